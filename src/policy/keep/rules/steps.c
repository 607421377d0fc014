/*
 * steps.c - overwriting: a lane that holds its budget takes the token of a step in the place of an
 * entry. That is the entry that the last step's attention scored lowest. The policy's words say
 * what is noted of a pass's weights; where it has none it looks at rows. Scores of lanes that keep
 * the same positions are combined, and each lane's victim is set (kv_seq_set_victim). When a round
 * comes before is budget.c's; only kv/ changes the cache.
 *
 * Invariant: what is chosen depends on the scores and positions of the layer's lanes alone. KV
 * heads are scored by several threads, and combined in their order. That is done at once, while the
 * sum is in the cache, where the policy can and all heads before are done. Else it is done when the
 * layer is.
 *
 * A device that has the scores finds victims itself (kv/victim.h): by the same scores, in the same
 * order. The host then learns all slots of a pass at its end.
 */
#include <math.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "cpu/expf.h"
#include "cpu/kernels.h"
#include "kv/victim.h"
#include "policy/positions.h"
#include "policy/keep/rules/rounds.h"

/* ---- memory ---- */

/* From an item's scales to the next one's, which another thread writes at the same time. */
static size_t scales_stride(const struct keep *k)
{
    return pi_align((size_t)k->model.g.n_head, PI_APART / sizeof(float));
}

/* Whether the device chooses where the lanes allow it. */
static bool finds(const struct keep *k)
{
    return k->stream->device->victims != NULL && keep_config_finds(&k->config);
}

static size_t count_slots(const struct keep *k, const struct keep_steps *s)
{
    return finds(k) ? (size_t)k->model.g.n_layer * (size_t)s->n_item * (size_t)k->model.g.n_head
                    : 0;
}

/* Bytes of the rows of scores, the first part of `there`. */
static size_t scores_size(const struct keep *k, const struct keep_steps *s)
{
    return (size_t)s->n_item * (size_t)k->model.g.n_head * (size_t)s->cap * sizeof(float);
}

/* Places the arrays into base (NULL: counts alone) and returns the bytes they take. */
static size_t lay_out(const struct keep *k, struct keep_steps *s, uint8_t *base)
{
    size_t used = 0, n_item = (size_t)s->n_item, n_head = (size_t)k->model.g.n_head;
    size_t n = n_item * (size_t)s->cap, n_all = s->lanes_differ ? n * n_head : 0;
    s->score = pi_mem_part(base, &used, n * n_head, sizeof(*s->score));
    s->combined = pi_mem_part(base, &used, n_item, sizeof(*s->combined));
    s->log_scale = pi_mem_part(base, &used, n_item * scales_stride(k), sizeof(*s->log_scale));
    s->pos = pi_mem_part(base, &used, n, sizeof(*s->pos));
    s->all = pi_mem_part(base, &used, n_all, sizeof(*s->all));
    s->all_score = pi_mem_part(base, &used, n_all, sizeof(*s->all_score));
    s->n_of = pi_mem_part(base, &used, n_all, sizeof(*s->n_of));
    s->scratch = pi_mem_part(base, &used, (size_t)k->n_thread, s->scratch_size);
    s->slot = pi_mem_part(base, &used, count_slots(k, s), sizeof(*s->slot));
    s->asked = pi_mem_part(base, &used, count_slots(k, s), sizeof(*s->asked));
    s->job = pi_mem_part(base, &used, n_item * n_head, sizeof(*s->job));
    return used;
}

/* Entries that there is room for: more than asked, as a lane that is not full grows with every
   step. */
static int64_t roomy(int64_t n)
{
    return pi_min(pi_ceil_div(n + n / 2, 64) * 64, INT32_MAX / 64 * 64);
}

static size_t scratch_of(const struct keep *k, int32_t cap)
{
    const struct keep_policy *p = k->config.policy;
    return p->step_scratch == NULL
               ? 0
               : pi_align(p->step_scratch(&k->config.params, &k->model, k->data, cap), PI_APART);
}

size_t keep_steps_bytes(const struct keep *k, int32_t longest)
{
    struct keep_steps s = {.n_item = 1, .cap = (int32_t)roomy(longest)};
    s.scratch_size = scratch_of(k, s.cap);
    return lay_out(k, &s, NULL);
}

/* A pass that was given up may have left some. */
static void combine_none(const struct keep *k, struct keep_steps *s)
{
    s->some = false;
    if (s->n_item > 0)
        memset(s->asked, 0, count_slots(k, s) * sizeof(*s->asked));
    for (int32_t i = 0; i < s->n_item; i++)
        atomic_init(&s->combined[i].n_head, 0);
}

pith_status keep_steps_reserve(struct keep *k, int32_t n_item, int64_t longest, bool lanes_differ,
                               pith_error *err)
{
    struct keep_steps *s = &k->steps, grown = *s;
    size_t n;
    combine_none(k, s);
    if (n_item <= s->n_item && longest <= s->cap && (s->lanes_differ || !lanes_differ))
        return PITH_OK;
    grown.n_item = (int32_t)pi_max(n_item, s->n_item);
    grown.cap = (int32_t)(longest > s->cap ? roomy(longest) : s->cap);
    grown.lanes_differ = s->lanes_differ || lanes_differ;
    grown.scratch_size = scratch_of(k, grown.cap);
    uint8_t *block = NULL;
    if (longest <= grown.cap && pi_mul_size((size_t)grown.n_item * (size_t)k->model.g.n_head,
                                            (size_t)grown.cap * 4 * sizeof(float), &n))
        block = pi_mem_alloc(PI_MEM_SCRATCH, lay_out(k, &grown, NULL));
    if (block != NULL && finds(k)) {
        struct pi_device *d = k->stream->device;
        grown.there = d->alloc(d, PI_MEM_SCRATCH,
                               scores_size(k, &grown) + count_slots(k, &grown) * sizeof(int32_t));
        if (!pi_at_some(grown.there)) {
            pi_mem_free(block);
            block = NULL;
        }
    }
    if (block == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the scores of %d steps over %lld entries",
                       n_item, (long long)longest);
    k->stream->device->free(k->stream->device, s->there);
    pi_mem_free(s->block);
    grown.block = block;
    lay_out(k, &grown, block);
    *s = grown;
    combine_none(k, s);
    return PITH_OK;
}

/* The row of scores of an item's KV head. */
static float *row_of(const struct keep *k, int32_t item, int32_t head)
{
    size_t n_head = (size_t)k->model.g.n_head;
    return k->steps.score + ((size_t)item * n_head + (size_t)head) * (size_t)k->steps.cap;
}

static float *log_scales_of(const struct keep *k, int32_t item)
{
    return k->steps.log_scale + (size_t)item * scales_stride(k);
}

/* ---- scores ---- */

/* Whether a step's scores can be added to the scores of the KV heads before. That is where all have
   one victim, and hold the same entries slot by slot. */
static bool adds_at_once(const struct keep *k)
{
    return k->config.policy->step_adds && k->config.rules.granularity != KEEP_LAYER_HEAD &&
           k->config.rules.combine == KEEP_MEAN && !k->steps.lanes_differ;
}

bool keep_policy_steps(const struct keep_policy *p)
{
    return p->step != NULL || p->scores_steps || p->notes_steps;
}

/* The words of a policy for marks, or for steps. */
static int32_t words_of(const struct keep_config *c, bool step, struct keep_word *out)
{
    struct keep_word all[KEEP_WORD_ROOM];
    int32_t n_all = c->policy->words != NULL ? c->policy->words(&c->params, all) : 0, n = 0;
    for (int32_t i = 0; i < n_all; i++)
        if (all[i].step == step)
            out[n++] = all[i];
    return n;
}

bool keep_config_finds(const struct keep_config *c)
{
    struct keep_word word[KEEP_WORD_ROOM];
    if (c->policy == NULL || !c->rules.overwrite)
        return false;
    if (c->policy->scores_steps)
        return c->policy->weigh != NULL;
    return words_of(c, true, word) == 1 && !word[0].plain;
}

/* Whether a layer's victims are found by its device. */
static bool found_there(const struct keep *k, const struct kv_seq *kv, int32_t layer)
{
    bool there = finds(k) && kv_lane_device(kv, layer, 0) == k->stream->device &&
                 (k->config.rules.granularity == KEEP_LAYER_HEAD || !k->steps.lanes_differ);
    for (int32_t h = 0; there && h < k->model.g.n_head; h++)
        there = kv_lane_finds_victim(kv, layer, h);
    return there;
}

bool keep_config_notes(const struct keep_config *c)
{
    struct keep_word all[KEEP_WORD_ROOM];
    return c->policy != NULL && c->policy->words != NULL && c->policy->words(&c->params, all) > 0;
}

int32_t keep_mark_notes(const struct keep_config *c, const struct keep_view *view, int32_t layer,
                        int32_t head, struct kv_note *out)
{
    struct keep_word word[KEEP_WORD_ROOM];
    int32_t n = words_of(c, false, word);
    const float *first = n > 0 ? kv_lane_marks_place(view->kv, layer, head, 0) : NULL;
    bool several = n > 0 && keep_config_marks(c) > 1;
    for (int32_t i = 0; i < n; i++)
        out[i] = (struct kv_note){
            .word = word[i].word,
            .group = word[i].group,
            .from = word[i].last > 0 ? view->n_prompt - word[i].last : 0,
            .to = kv_lane_marks_place(view->kv, layer, head, word[i].mark),
            .stride = several ? (size_t)(kv_lane_marks_place(view->kv, layer, head, 1) - first) : 0,
            .threshold = word[i].threshold,
            .window = word[i].window,
        };
    return n;
}

/* Where the device has the row of scores of an item's KV head. */
static struct pi_at row_there(const struct keep *k, int32_t item, int32_t head)
{
    return pi_at_item(k->steps.there, (size_t)(row_of(k, item, head) - k->steps.score));
}

/* A step's word. */
static struct kv_note note_of_step(const struct keep *k, const struct keep_view *view,
                                   const struct keep_word *word, int32_t item,
                                   const struct pi_pass_watched *lane)
{
    struct kv_note note = {
        .word = word->word,
        .group = word->group,
        .to = row_of(k, item, lane->head),
        .newest = word->newest ? lane->slot : -1,
        .number = lane->head,
    };
    if (found_there(k, view->kv, lane->layer))
        note.there = row_there(k, item, lane->head);
    if (word->word != KV_NOTE_NORM)
        return note;
    note.norm = kv_lane_norms_place(view->kv, lane->layer, lane->head);
    if (word->plain)
        note.log_scale = log_scales_of(k, item) + lane->head;
    if (!word->plain && adds_at_once(k)) {
        note.first = row_of(k, item, 0);
        note.n_sum = &k->steps.combined[item].n_head;
    }
    return note;
}

/* Whether tokens that are watched count for marks. With KEEP_NEED_STEP_WEIGHTS alone the engine
   watches single tokens only, whether they overwrite or not. */
static bool marks_tokens(const struct keep *k)
{
    return (k->own_needs & (KEEP_NEED_WEIGHTS | KEEP_NEED_STEP_WEIGHTS)) != 0;
}

void keep_plan_lane(const struct keep *k, const struct keep_view *view, int32_t item,
                    struct pi_pass_watched *lane)
{
    struct keep_word word[KEEP_WORD_ROOM];
    if (marks_tokens(k)) {
        lane->n_note = keep_mark_notes(&k->config, view, lane->layer, lane->head, lane->note);
        lane->rows = lane->n_note == 0;
    }
    if (item < 0 || !keep_overwrites(k))
        return;
    assert(item < k->steps.n_item &&
           kv_lane_len(view->kv, lane->layer, lane->head) <= k->steps.cap);
    int32_t n = words_of(&k->config, true, word);
    log_scales_of(k, item)[lane->head] = 0.0f;
    for (int32_t i = 0; i < n; i++)
        lane->note[lane->n_note++] = note_of_step(k, view, &word[i], item, lane);
    lane->rows = lane->rows || (n == 0 && k->config.policy->step != NULL);
}

/* The scores of a step in a lane, into its row, or, if its turn has come, into the first one's. */
static void take_scores(const struct keep *k, const struct keep_view *view,
                        struct keep_attention *a, int32_t item)
{
    _Atomic int32_t *n_combined = &k->steps.combined[item].n_head;
    bool at_once = adds_at_once(k);
    a->add =
        at_once && a->head > 0 && atomic_load_explicit(n_combined, memory_order_acquire) == a->head;
    k->config.policy->step(&k->config.params, view, a, row_of(k, item, a->add ? 0 : a->head));
    if (at_once && (a->add || a->head == 0))
        atomic_store_explicit(n_combined, a->head + 1, memory_order_release);
}

void keep_attended(const struct keep *k, const struct keep_view *view, struct keep_attention *a,
                   int32_t item, int32_t thread)
{
    struct keep_view whole = keep_view_complete(k, view);
    const struct keep_policy *p = k->config.policy;
    struct keep_word word[KEEP_WORD_ROOM];
    if (marks_tokens(k) && p->attended != NULL && words_of(&k->config, false, word) == 0)
        p->attended(&k->config.params, &whole, a);
    if (item < 0 || !keep_overwrites(k) || p->step == NULL || words_of(&k->config, true, word) > 0)
        return;
    a->scratch = k->steps.scratch + (size_t)thread * k->steps.scratch_size;
    take_scores(k, &whole, a, item);
}

/* Scores of marks alone, which attention has brought up to date. */
static void score_marks(const struct keep *k, const struct keep_view *view, int32_t layer,
                        int32_t item)
{
    struct keep_view whole = keep_view_complete(k, view);
    for (int32_t h = 0; k->config.policy->scores_steps && h < k->model.g.n_head; h++) {
        const struct keep_lane lane = {
            .layer = layer, .head = h, .n = kv_lane_len(view->kv, layer, h)};
        k->config.policy->score(&k->config.params, &whole, &lane, row_of(k, item, h));
    }
}

/* Multiplies n scores by exp(scale - largest), which is at most 1. INFINITY, the score of entries
   that stay whatever the others are, remains. */
static void bring_to(float *score, int32_t n, float scale, float largest)
{
    float x = scale - largest;
    if (x >= 0.0f)
        return;
    float factor = x < PI_EXP_MIN ? 0.0f : pi_expf(x);
    for (int32_t i = 0; i < n; i++)
        score[i] = score[i] < INFINITY ? score[i] * factor : score[i];
}

/* Rows of a layer that are to be compared with each other become numbers of one scale. */
static void bring_to_one_scale(const struct keep *k, const struct kv_seq *kv, int32_t layer,
                               int32_t item)
{
    const float *scale = log_scales_of(k, item);
    float largest = scale[0];
    for (int32_t h = 1; h < k->model.g.n_head; h++)
        largest = scale[h] > largest ? scale[h] : largest;
    for (int32_t h = 0; h < k->model.g.n_head; h++)
        bring_to(row_of(k, item, h), kv_lane_len(kv, layer, h), scale[h], largest);
}

/* ---- what may go ---- */

/* The positions of a lane's entries. It is -1, which is never chosen, for entries that cannot be
   overwritten, because they are read elsewhere than they were written. */
static void read_positions(const struct kv_seq *kv, int32_t layer, int32_t head, int32_t *pos)
{
    kv_lane_positions(kv, layer, head, pos, kv_lane_len(kv, layer, head));
    for (int32_t i = 0; i < kv_lane_runs(kv, layer, head); i++) {
        struct kv_run run = kv_lane_run(kv, layer, head, i);
        for (int32_t j = 0; run.delta != 0 && j < run.n; j++)
            pos[run.slot + j] = -1;
    }
}

/* The lowest position from lo on. */
static int32_t lowest_from(const int32_t *pos, int32_t n, int32_t lo)
{
    int32_t lowest = INT32_MAX;
    for (int32_t i = 0; i < n; i++)
        lowest = pos[i] >= lo && pos[i] < lowest ? pos[i] : lowest;
    return lowest;
}

/* Behind the n_sink oldest of n entries. They always stay, so that they are a lane's first entries
   but where it was made under other rules. */
static int32_t behind_sinks(const int32_t *pos, int32_t n, int32_t n_sink)
{
    int32_t last = -1, n_below = 0, lo = 0;
    n_sink = (int32_t)pi_min(n_sink, n);
    for (int32_t i = 0; i < n_sink; i++)
        last = pos[i] > last ? pos[i] : last;
    for (int32_t i = 0; i < n; i++)
        n_below += pos[i] <= last;
    if (n_below == n_sink)
        return last + 1;
    for (int32_t i = 0; i < n_sink && lo < INT32_MAX; i++) {
        int32_t lowest = lowest_from(pos, n, lo);
        lo = lowest < INT32_MAX ? lowest + 1 : INT32_MAX;
    }
    return lo;
}

/* As span_of of a round, but for the first entries of the rule sinks. */
static struct keep_span span_of(const struct keep *k, const struct keep_view *view, int32_t budget)
{
    const struct keep_rules *rules = &k->config.rules;
    int64_t lo = pi_max(rules->prefix, keep_pinned_prompt(rules, view->n_prompt, view->scale));
    int64_t hi = pi_max((int64_t)view->n_token - keep_protected_at(rules, budget, view), 0);
    return (struct keep_span){(int32_t)pi_min(lo, INT32_MAX), (int32_t)hi};
}

/* The budget that the next token will find. */
static int32_t next_budget(const struct keep *k, const struct keep_view *view, int32_t layer,
                           int32_t head)
{
    struct keep_point next = {(int32_t)pi_min((int64_t)view->n_token + 1, INT32_MAX),
                              view->n_prompt, view->scale, 0};
    return keep_lane_budget_at(&k->config, layer, head, next);
}

/* The index of the lowest score among n entries that may go, of equals that of the lowest position;
   -1 where none may. */
static int32_t choose(const struct keep *k, const struct keep_view *view, const int32_t *pos,
                      const float *score, int32_t n, int32_t budget)
{
    struct keep_span span = span_of(k, view, budget);
    if (k->config.rules.sinks > 0)
        span.lo = (int32_t)pi_max(span.lo, behind_sinks(pos, n, k->config.rules.sinks));
    return pi_kernels()->vec.lowest(score, pos, n, span.lo, span.hi);
}

/* The same for the entries of a lane by a shorter way, which reads no positions. It is the lowest
   score of all, where one entry alone has it and may go. -1 where it takes the long way to say. */
static int32_t choose_at_once(const struct keep *k, const struct kv_seq *kv,
                              const struct keep_view *view, int32_t layer, int32_t head,
                              const float *score, int32_t n, int32_t budget)
{
    int32_t slot = k->config.rules.sinks > 0 ? -1 : pi_kernels()->vec.single_lowest(score, n);
    if (slot < 0)
        return -1;
    int32_t pos = kv_lane_pos(kv, layer, head, slot);
    struct keep_span span = span_of(k, view, budget);
    bool moved = kv_lane_written_pos(kv, layer, head, slot) != pos;
    return !moved && pos >= span.lo && pos < span.hi ? slot : -1;
}

/* The slot of a lane that goes, -1 where none may. pos: memory for the lane's positions. */
static int32_t choose_of_lane(const struct keep *k, const struct kv_seq *kv,
                              const struct keep_view *view, int32_t layer, int32_t head,
                              int32_t budget, const float *score, int32_t *pos)
{
    int32_t n = kv_lane_len(kv, layer, head);
    int32_t slot = choose_at_once(k, kv, view, layer, head, score, n, budget);
    if (slot >= 0)
        return slot;
    read_positions(kv, layer, head, pos);
    return choose(k, view, pos, score, n, budget);
}

/* ---- which lanes decide together ---- */

/* Every lane for itself. */
static void choose_alone(const struct keep *k, struct kv_seq *kv, const struct keep_view *view,
                         int32_t layer, int32_t item)
{
    int32_t *pos = k->steps.pos + (size_t)item * (size_t)k->steps.cap;
    for (int32_t h = 0; h < k->model.g.n_head; h++) {
        int32_t budget = next_budget(k, view, layer, h);
        if (kv_lane_len(kv, layer, h) < budget)
            continue;
        int32_t slot = choose_of_lane(k, kv, view, layer, h, budget, row_of(k, item, h), pos);
        kv_seq_set_victim(kv, layer, h, slot);
    }
}

/* Lanes that hold the same positions, slot by slot: the scores of a slot are added, or the largest
   counts. The mean is the sum over the same number for all. */
static void choose_together(const struct keep *k, struct kv_seq *kv, const struct keep_view *view,
                            int32_t layer, int32_t item)
{
    const struct pi_vec_kernels *cpu = &pi_kernels()->vec;
    int32_t *pos = k->steps.pos + (size_t)item * (size_t)k->steps.cap;
    int32_t n = kv_lane_len(kv, layer, 0), budget = next_budget(k, view, layer, 0);
    int32_t n_combined =
        atomic_exchange_explicit(&k->steps.combined[item].n_head, 0, memory_order_acquire);
    float *score = row_of(k, item, 0);
    if (n < budget)
        return;
    if (n_combined == 0)
        bring_to_one_scale(k, kv, layer, item);
    for (int32_t h = (int32_t)pi_max(n_combined, 1); h < k->model.g.n_head; h++) {
        assert(kv_lane_agrees(kv, layer, h, layer, 0));
        if (k->config.rules.combine == KEEP_MEAN)
            cpu->add(score, row_of(k, item, h), n);
        else
            cpu->take_max(score, row_of(k, item, h), n);
    }
    int32_t slot = choose_of_lane(k, kv, view, layer, 0, budget, score, pos);
    for (int32_t h = 0; h < k->model.g.n_head; h++)
        kv_seq_set_victim(kv, layer, h, slot);
}

/* Sorts positions and drops what is there twice, and those that cannot be overwritten; returns how
   many are left. */
static int32_t sort_unique(int32_t *x, int32_t n)
{
    int32_t n_left = 0;
    policy_sort_positions(x, n);
    for (int32_t i = 0; i < n; i++)
        if (x[i] >= 0 && (n_left == 0 || x[n_left - 1] != x[i]))
            x[n_left++] = x[i];
    return n_left;
}

/* The lanes of a layer that are to keep the same positions and do not yet, since a file was saved
   under other rules. Every position that some lane has is scored by the lanes that have it, and
   goes from all of them. */
struct differing {
    int32_t n;    /* positions */
    int32_t *all; /* [n] ascending */
    float *score; /* [n] */
    int32_t *n_of;
    int32_t *pos; /* of one lane */
};

static void gather(const struct keep *k, const struct kv_seq *kv, int32_t layer, int32_t item,
                   struct differing *u)
{
    size_t cap = (size_t)k->steps.cap, row = (size_t)item * (size_t)k->model.g.n_head * cap;
    bool mean = k->config.rules.combine == KEEP_MEAN;
    *u = (struct differing){0, k->steps.all + row, k->steps.all_score + row, k->steps.n_of + row,
                            k->steps.pos + (size_t)item * cap};
    for (int32_t h = 0; h < k->model.g.n_head; h++) {
        read_positions(kv, layer, h, u->all + u->n);
        u->n += kv_lane_len(kv, layer, h);
    }
    u->n = sort_unique(u->all, u->n);
    memset(u->n_of, 0, (size_t)u->n * sizeof(*u->n_of));
    for (int32_t h = 0; h < k->model.g.n_head; h++) {
        const float *score = row_of(k, item, h);
        read_positions(kv, layer, h, u->pos);
        for (int32_t i = 0; i < kv_lane_len(kv, layer, h); i++) {
            int32_t at = u->pos[i] < 0 ? -1 : policy_first_from(u->all, u->n, u->pos[i]);
            if (at < 0)
                continue;
            if (u->n_of[at]++ == 0)
                u->score[at] = score[i];
            else if (mean)
                u->score[at] += score[i];
            else if (score[i] > u->score[at])
                u->score[at] = score[i];
        }
    }
    for (int32_t i = 0; mean && i < u->n; i++)
        u->score[i] /= (float)u->n_of[i];
}

static void choose_uneven(const struct keep *k, struct kv_seq *kv, const struct keep_view *view,
                          int32_t layer, int32_t item)
{
    struct differing u;
    int32_t budget = next_budget(k, view, layer, 0), longest = 0;
    for (int32_t h = 0; h < k->model.g.n_head; h++)
        longest = (int32_t)pi_max(longest, kv_lane_len(kv, layer, h));
    bring_to_one_scale(k, kv, layer, item);
    gather(k, kv, layer, item, &u);
    if (pi_max(u.n, longest) < budget)
        return;
    int32_t victim = choose(k, view, u.all, u.score, u.n, budget);
    for (int32_t h = 0; victim >= 0 && h < k->model.g.n_head; h++) {
        int32_t n = kv_lane_len(kv, layer, h), slot = 0;
        read_positions(kv, layer, h, u.pos);
        while (slot < n && u.pos[slot] != u.all[victim])
            slot++;
        if (slot < n)
            kv_seq_set_victim(kv, layer, h, slot);
    }
}

void keep_choose_victims(const struct keep *k, struct kv_seq *kv, const struct keep_view *view,
                         int32_t layer, int32_t item, bool lanes_differ)
{
    if (found_there(k, kv, layer))
        return;
    score_marks(k, view, layer, item);
    if (k->config.rules.granularity == KEEP_LAYER_HEAD)
        choose_alone(k, kv, view, layer, item);
    else if (lanes_differ)
        choose_uneven(k, kv, view, layer, item);
    else
        choose_together(k, kv, view, layer, item);
}

/* ---- by the device ---- */

static size_t slot_of(const struct keep *k, int32_t layer, int32_t item, int32_t head)
{
    return ((size_t)layer * (size_t)k->steps.n_item + (size_t)item) * (size_t)k->model.g.n_head +
           (size_t)head;
}

static bool chooses_alone(const struct keep *k)
{
    return k->config.rules.granularity == KEEP_LAYER_HEAD;
}

static struct kv_victim_job job_of(const struct keep *k, const struct kv_seq *kv,
                                   const struct keep_view *view, int32_t layer, int32_t head,
                                   int32_t item)
{
    struct keep_span span = span_of(k, view, next_budget(k, view, layer, head));
    size_t at = slot_of(k, layer, item, head), scores = scores_size(k, &k->steps);
    struct kv_weigh_job marks = {.seq = kv};
    struct kv_victim_job job = {
        .seq = kv,
        .layer = layer,
        .head = head,
        .n_head = chooses_alone(k) ? 1 : k->model.g.n_head,
        .mean = k->config.rules.combine == KEEP_MEAN,
        .stride = (size_t)k->steps.cap,
        .lo = span.lo,
        .hi = span.hi,
        .n_sink = k->config.rules.sinks,
        .out = pi_at_item(pi_at_add(k->steps.there, scores), at),
    };
    if (!k->config.policy->scores_steps) {
        job.score = row_there(k, item, head);
        return job;
    }
    k->config.policy->weigh(&k->config.params, view, &marks, NULL);
    job.kind = marks.kind;
    return job;
}

void keep_list_victims(struct keep *k, const struct kv_seq *kv, const struct keep_view *view,
                       int32_t layer, int32_t item)
{
    struct keep_view whole = keep_view_complete(k, view);
    int32_t n_set = chooses_alone(k) ? k->model.g.n_head : 1;
    for (int32_t h = 0; h < n_set && found_there(k, kv, layer); h++) {
        if (kv_lane_len(kv, layer, h) < next_budget(k, view, layer, h))
            continue;
        k->steps.job[k->steps.n_job++] = job_of(k, kv, &whole, layer, h, item);
        k->steps.asked[slot_of(k, layer, item, h)] = true;
        k->steps.some = true;
    }
}

void keep_find_victims(struct keep *k, struct pi_stream *stream)
{
    const struct kv_victim_list list = {k->steps.job, k->steps.n_job};
    if (list.n > 0)
        stream->device->victims(stream, &list);
    k->steps.n_job = 0;
}

void keep_learn_victims(struct keep *k)
{
    struct keep_steps *s = &k->steps;
    size_t size = count_slots(k, s) * sizeof(*s->slot);
    if (s->some)
        k->stream->device->download(NULL, pi_at_add(s->there, scores_size(k, s)), size, s->slot);
    s->some = false;
}

void keep_set_victims(const struct keep *k, struct kv_seq *kv, int32_t item)
{
    int32_t n_head = k->model.g.n_head,
            n_lane = k->steps.n_item > 0 && finds(k) ? k->model.g.n_layer * n_head : 0;
    for (int32_t i = 0; i < n_lane; i++) {
        int32_t layer = i / n_head, head = i % n_head;
        size_t at = slot_of(k, layer, item, chooses_alone(k) ? head : 0);
        if (!k->steps.asked[at])
            continue;
        bool sound = kv_lane_can_overwrite(kv, layer, head, k->steps.slot[at]);
        kv_seq_set_victim(kv, layer, head, sound ? k->steps.slot[at] : -1);
        if (chooses_alone(k) || head == n_head - 1)
            k->steps.asked[at] = false;
    }
}

/* ---- the account ---- */

int32_t keep_count_victims(const struct keep *k, const struct kv_seq *kv)
{
    int32_t n = 0;
    for (int32_t l = 0; keep_overwrites(k) && l < k->model.g.n_layer; l++)
        for (int32_t h = 0; h < k->model.g.n_head; h++)
            n += kv_lane_victim(kv, l, h) >= 0;
    return n;
}

void keep_tally_overwritten(struct keep_tally *tally, int32_t n_lane, int32_t n_token)
{
    if (n_lane > 0 && tally->n_overwritten == 0)
        tally->first_overwrite_at = n_token;
    tally->n_overwritten += n_lane;
    tally->n_evicted += n_lane;
}
