/*
 * round.c - one round: every lane that is over its budget is brought to it. Lanes that keep the
 * same positions form a set. Their scores are combined position by position, one choice is made,
 * and every lane of the set drops its entries at the other positions. It decides nothing about when
 * (budget.c), and only kv/ changes the cache.
 *
 * Invariant: what is dropped depends on the entries alone. Lanes are scored by several threads,
 * each for itself, and combined in the order of layers and heads.
 */
#include <math.h>

#include "base/os.h"
#include "base/threads.h"
#include "policy/positions.h"
#include "policy/keep/rules/rounds.h"
#include "policy/keep/stats/stats.h"

/* Numbers of keys that make waking other threads up worth it. */
#define PARALLEL_MIN (1 << 18)

struct round {
    struct keep *k;
    struct kv_seq *kv;
    const struct keep_view *view;
    struct keep_tally *tally;
    int32_t layer; /* that is being scored */
    int64_t n_evicted;
    bool pulled; /* the host has what the device remembers */
};

/* ---- the positions of a set ---- */

static bool ascends(const int32_t *pos, int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        if (pos[i] <= pos[i - 1])
            return false;
    return true;
}

/* The index of a position among n ascending ones, or -1. */
static int32_t find(const int32_t *pos, int32_t n, int32_t at)
{
    int32_t i = policy_first_from(pos, n, at);
    return i < n && pos[i] == at ? i : -1;
}

/* Adds n positions to the set's. */
static void merge(const struct keep *k, struct keep_set *set, int32_t *pos, int32_t n)
{
    int32_t n_merged = 0;
    if (!ascends(pos, n))
        policy_sort_positions(pos, n);
    for (int32_t i = 0, j = 0; i < set->n || j < n;) {
        int32_t next = j == n || (i < set->n && set->pos[i] <= pos[j]) ? set->pos[i] : pos[j];
        i += i < set->n && set->pos[i] == next;
        while (j < n && pos[j] == next)
            j++;
        assert(n_merged < k->cap_set);
        k->merged[n_merged++] = next;
    }
    memcpy(set->pos, k->merged, (size_t)n_merged * sizeof(*set->pos));
    set->n = n_merged;
}

/* Reads the positions of a lane into its head's part. */
static struct keep_part *read_lane(const struct round *r, int32_t layer, int32_t head)
{
    struct keep_part *part = &r->k->part[head];
    part->n = kv_lane_len(r->kv, layer, head);
    assert(part->n <= r->k->cap);
    keep_positions(r->k, r->kv, layer, head, part->pos, part->n);
    return part;
}

/* Work on n entries, about, in multiplications. */
static int64_t work_of(const struct keep *k, int64_t n)
{
    return n * k->model.g.dim_k;
}

/* Whether it is worth waking other threads up. */
static bool is_large(const struct keep *k, int64_t n)
{
    return work_of(k, n) >= PARALLEL_MIN;
}

/* The first layer of a layer's stage. */
static int32_t first_layer(const struct keep *k, int32_t layer)
{
    return layer / keep_stage_layers(k) * keep_stage_layers(k);
}

/* Whether a lane is the first one of its set. That is the lane of its first layer, and of the head
   that has the set's number there. Where all lanes share a budget each is a set. */
static bool is_first(const struct keep *k, int32_t layer, int32_t head)
{
    return keep_config_is_global(&k->config) ||
           (layer == first_layer(k, layer) && head == keep_set_of(k, layer, head));
}

/* Compares lanes of the stages that begin at the round's layer with the first lane of their set. */
static void compare_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct round *r = ctx;
    int32_t n_head = r->k->model.g.n_head;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int32_t layer = r->layer + (int32_t)(i / n_head), head = (int32_t)(i % n_head);
        r->k->agrees[i] = is_first(r->k, layer, head) ||
                          kv_lane_agrees(r->kv, layer, head, first_layer(r->k, layer),
                                         keep_set_of(r->k, 0, head));
    }
}

static void add_lane(const struct round *r, struct keep_set *set, bool first, int32_t layer,
                     int32_t head)
{
    int32_t number = (layer - r->layer) * r->k->model.g.n_head + head;
    if (set->agree && (first || r->k->agrees[number]))
        return; /* what is known already */
    const struct keep_part *part = read_lane(r, layer, head);
    size_t size = (size_t)part->n * sizeof(*part->pos);
    set->longest = (int32_t)pi_max(set->longest, part->n);
    set->n = first ? 0 : set->n;
    if (first || !set->agree || part->n != set->n || memcmp(set->pos, part->pos, size) != 0) {
        set->agree = false;
        merge(r->k, set, part->pos, part->n);
    }
}

/* Positions of the lanes that are the first ones of their sets. Where they do not ascend, the lane
   does not agree with its own set. */
static void read_first(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct round *r = ctx;
    const struct keep *k = r->k;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int32_t l = r->layer + (int32_t)(i / k->model.g.n_head),
                h = (int32_t)(i % k->model.g.n_head);
        if (!is_first(k, l, h))
            continue;
        struct keep_set *set = &k->set[keep_round_set(k, l, h)];
        set->n = set->longest = kv_lane_len(r->kv, l, h);
        keep_positions(k, r->kv, l, h, set->pos, set->n);
        set->agree = ascends(set->pos, set->n);
    }
}

/* The entries that may go: neither the oldest entries that are protected nor the last positions,
   and nothing that is pinned. */
static struct keep_span span_of(const struct keep_rules *rules, const struct keep_set *set,
                                const struct keep_view *view, int32_t budget)
{
    int32_t n_sink = (int32_t)pi_min(rules->sinks, set->n);
    int64_t lo = pi_max(rules->prefix, keep_pinned_prompt(rules, view->n_prompt, view->scale));
    if (n_sink > 0)
        lo = pi_max(lo, (int64_t)set->pos[n_sink - 1] + 1);
    int64_t hi = pi_max((int64_t)view->n_token - keep_protected_at(rules, budget, view), lo + 1);
    return (struct keep_span){(int32_t)pi_min(lo, INT32_MAX - 1), (int32_t)pi_min(hi, INT32_MAX)};
}

/* Entries that a round leaves in the lanes of a stage, which share a budget. */
static int64_t total_budget(const struct round *r, int32_t layer)
{
    struct keep_point at = {r->view->n_token, r->view->n_prompt, r->view->scale, 0};
    return keep_allot_lanes(r->k) * keep_lane_budget_at(&r->k->config, layer, 0, at);
}

/* Lanes that share a budget are due together, when they hold more than all of it. */
static bool gather_allotted(const struct round *r, int32_t layer)
{
    const struct keep *k = r->k;
    int64_t n = r->view->elsewhere;
    for (int32_t s = 0; s < keep_n_set(k); s++)
        n += pi_max(k->set[s].n, k->set[s].longest);
    for (int32_t s = 0; s < keep_n_set(k); s++)
        k->set[s].due = n > total_budget(r, layer);
    return k->set[0].due;
}

/* Empties the sets of a stage. Of lanes that share a budget each is a set, as long as the lane:
   they lie one behind the other. */
static void begin_sets(const struct round *r)
{
    const struct keep *k = r->k;
    size_t at = 0;
    for (int32_t s = 0; s < keep_round_sets(k); s++) {
        struct keep_set *set = &k->set[s];
        set->n = set->longest = 0;
        set->agree = true;
        if (!keep_config_is_global(&k->config))
            continue;
        set->pos = k->all.pos + at;
        set->score = k->all.score + at;
        set->n_of = k->all.n_of + at;
        set->slots = (int32_t *)(void *)set->score;
        at += (size_t)kv_lane_len(r->kv, s / k->model.g.n_head, s % k->model.g.n_head);
        assert((int64_t)at <= k->cap_all);
    }
}

/* The budget and the span of set s of stages that begin at a layer. The last ones may be fewer than
   there is memory for. */
static void bound_set(const struct round *r, int32_t begin, int32_t s)
{
    const struct keep *k = r->k;
    struct keep_set *set = &k->set[s];
    struct keep_point at = {r->view->n_token, r->view->n_prompt, r->view->scale, 0};
    int32_t layer = begin + s / keep_n_set(k) * keep_stage_layers(k);
    int32_t head = keep_config_is_global(&k->config) ? 0 : s % keep_n_set(k);
    set->due = false;
    if (layer >= k->model.g.n_layer)
        return;
    int32_t budget = keep_lane_budget_at(&k->config, layer, head, at);
    set->span = span_of(&k->config.rules, set, r->view, budget);
    set->budget = keep_round_budget(k, layer, head, at);
    set->due = pi_max(set->n, set->longest) > set->budget;
}

/* The sets of a stage that begins at a layer: their positions, and whether they are due. */
static bool gather_sets(struct round *r, int32_t begin, int32_t end)
{
    const struct keep *k = r->k;
    int32_t n_head = k->model.g.n_head, n_lane = (end - begin) * n_head;
    int64_t n_entry = (int64_t)n_lane * kv_lane_len(r->kv, begin, 0);
    bool due = false;
    r->layer = begin;
    pi_parallel_items(is_large(k, n_entry) ? k->n_thread : 1, n_lane, compare_lanes, r);
    begin_sets(r);
    pi_parallel_items(is_large(k, n_entry) ? k->n_thread : 1, n_lane, read_first, r);
    for (int32_t l = begin; l < end; l++)
        for (int32_t h = 0; h < n_head; h++)
            add_lane(r, &k->set[keep_round_set(k, l, h)], is_first(k, l, h), l, h);
    for (int32_t s = 0; s < keep_round_sets(k); s++) {
        bound_set(r, begin, s);
        due = due || k->set[s].due;
    }
    return keep_config_allots(&k->config) ? gather_allotted(r, begin) : due;
}

/* ---- scores ---- */

/* Which entries of a lane may go. */
static void mark_evictable(const struct keep_set *set, const int32_t *pos, struct keep_part *part)
{
    part->n_evictable = 0;
    for (int32_t i = 0; i < part->n; i++) {
        part->evictable[i] = pos[i] >= set->span.lo && pos[i] < set->span.hi;
        part->n_evictable += part->evictable[i];
    }
}

/* Makes a lane's scores comparable with other lanes': slope * score + intercept, which is about the
   logarithm of its importance. */
static void calibrate(const struct stats_map *map, size_t number, const bool *evictable, int32_t n,
                      float *score)
{
    float slope = map->slope[number], intercept = map->intercept[number];
    for (int32_t i = 0; i < n; i++)
        if (evictable[i])
            score[i] = slope > 0.0f ? slope * score[i] + intercept : intercept;
}

/* Scores the lanes of the round's layer, one per item. */
static void score_heads(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct round *r = ctx;
    const struct keep *k = r->k;
    for (int32_t h = (int32_t)begin; h < (int32_t)end; h++) {
        const struct keep_set *set = &k->set[keep_round_set(k, r->layer, h)];
        if (!set->due)
            continue;
        struct keep_part *part = &k->part[h];
        const int32_t *pos = set->pos;
        part->n = set->n;
        if (!set->agree)
            pos = read_lane(r, r->layer, h)->pos;
        mark_evictable(set, pos, part);
        struct keep_lane lane = {
            .layer = r->layer,
            .head = h,
            .n = part->n,
            .pos = pos,
            .evictable = part->evictable,
            .n_evictable = part->n_evictable,
            .scratch = k->scratch + (size_t)thread * k->scratch_size,
        };
        if (lane.n_evictable == 0)
            continue;
        k->config.policy->score(&k->config.params, r->view, &lane, part->score);
        if (k->map != NULL)
            calibrate(k->map, (size_t)keep_set_of(k, r->layer, h), part->evictable, part->n,
                      part->score);
    }
}

/* Combines a lane's scores into the scores of a set whose lanes agree. Entries that may go lie next
   to each other, and as many lanes have scored each of them. */
static void fold_agreeing(const struct keep *k, struct keep_set *set, const float *score)
{
    int32_t lo = policy_first_from(set->pos, set->n, set->span.lo);
    int32_t hi = policy_first_from(set->pos, set->n, set->span.hi);
    bool first = lo < hi && set->n_of[lo] == 0, mean = k->config.rules.combine == KEEP_MEAN;
    for (int32_t i = lo; i < hi; i++)
        set->n_of[i]++;
    for (int32_t i = lo; i < hi && first; i++)
        set->score[i] = score[i];
    for (int32_t i = lo; i < hi && !first && mean; i++)
        set->score[i] += score[i];
    for (int32_t i = lo; i < hi && !first && !mean; i++)
        set->score[i] = score[i] > set->score[i] ? score[i] : set->score[i];
}

/* Combines a lane's scores of evictable entries into its set's. */
static void fold(const struct keep *k, struct keep_set *set, const struct keep_part *part)
{
    bool mean = k->config.rules.combine == KEEP_MEAN;
    if (set->agree) {
        fold_agreeing(k, set, part->score);
        return;
    }
    for (int32_t i = 0; i < part->n; i++) {
        if (!part->evictable[i])
            continue;
        int32_t at = find(set->pos, set->n, part->pos[i]);
        float x = part->score[i];
        if (set->n_of[at]++ == 0)
            set->score[at] = x;
        else if (mean)
            set->score[at] += x;
        else if (x > set->score[at])
            set->score[at] = x;
    }
}

/* Sums become means. Infinities of both signs have none: such an entry is like any other. So are
   entries that no lane scored; calibrated, they are like the mean of their lane. */
static void finish_scores(const struct keep *k, int32_t s)
{
    struct keep_set *set = &k->set[s];
    bool mean = k->config.rules.combine == KEEP_MEAN;
    float unknown = k->map != NULL ? k->map->intercept[s] : 0.0f;
    for (int32_t i = 0; set->due && i < set->n; i++) {
        float x = set->n_of[i] > 0 ? set->score[i] : unknown;
        x = mean && set->n_of[i] > 1 ? x / (float)set->n_of[i] : x;
        set->score[i] = x == x ? x : unknown;
    }
}

static bool is_silent(const struct round *r)
{
    const struct keep_config *c = &r->k->config;
    return c->policy->silent != NULL && c->policy->silent(&c->params, r->view, r->layer);
}

/* The host scores by the state. */
static void pull_state(struct round *r)
{
    if (!r->pulled)
        keep_block_pull(r->k, &(struct keep_block){r->view->state, r->view->there});
    r->pulled = true;
}

static void score_sets(struct round *r, int32_t begin, int32_t end)
{
    const struct keep *k = r->k;
    int32_t n_head = k->model.g.n_head;
    pull_state(r);
    for (int32_t s = 0; s < keep_round_sets(k); s++)
        memset(k->set[s].n_of, 0, (size_t)k->set[s].n * sizeof(*k->set[s].n_of));
    if (keep_spans_layers(k))
        keep_receive_sets(k);
    for (r->layer = begin; r->layer < end; r->layer++) {
        int64_t n_entry = 0;
        if (is_silent(r))
            continue;
        for (int32_t h = 0; h < n_head; h++) {
            const struct keep_set *set = &k->set[keep_round_set(k, r->layer, h)];
            n_entry += set->due ? set->n : 0;
        }
        pi_parallel_items(is_large(k, n_entry) ? k->n_scorer : 1, n_head, score_heads, r);
        if (keep_spans_heads(k))
            keep_fold_heads(k, &k->set[keep_round_set(k, r->layer, 0)], fold_agreeing);
        for (int32_t h = 0; h < n_head && !keep_spans_heads(k); h++)
            if (k->set[keep_round_set(k, r->layer, h)].due)
                fold(k, &k->set[keep_round_set(k, r->layer, h)], &k->part[h]);
    }
    if (keep_spans_layers(k))
        keep_hand_on_sets(k);
    for (int32_t s = 0; s < keep_round_sets(k); s++)
        finish_scores(k, s);
}

/* ---- scores of the device ---- */

/* Whether the device scores and combines the lanes of a stage. It has the policy's kind and the
   lanes. The lanes of each set that is due hold the same positions. */
static bool weighs(const struct round *r, int32_t begin, int32_t end)
{
    const struct keep *k = r->k;
    const struct pi_device *d = k->stream->device;
    bool learned = keep_remembers(k);
    if ((learned && !pi_at_some(r->view->there)) ||
        (k->config.policy->weighs_shown && !r->view->shown))
        return false;
    for (int32_t l = begin; l < end; l++)
        if (kv_lane_device(r->kv, l, 0) != d || (learned && !d->sees(r->kv, l)))
            return false;
    for (int32_t s = 0; s < keep_round_sets(k); s++)
        if (k->set[s].due && !k->set[s].agree)
            return false;
    return k->weigh != NULL;
}

/* The jobs of the round's layer, one lane per item. */
static void fill_jobs(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct round *r = ctx;
    const struct keep *k = r->k;
    (void)thread;
    for (int32_t h = (int32_t)begin; h < (int32_t)end; h++) {
        int32_t s = keep_round_set(k, r->layer, h);
        struct kv_weigh_job *job = &k->weigh[h];
        *job = (struct kv_weigh_job){.seq = r->kv,
                                     .layer = r->layer,
                                     .head = h,
                                     .set = s,
                                     .rope = policy_rope(&k->model, r->layer)};
        if (k->weighed[s].begin == k->weighed[s].end)
            continue;
        k->config.policy->weigh(&k->config.params, r->view, job,
                                k->weigh_room + (size_t)h * k->weigh_size);
        job->mapped = k->map != NULL;
        if (job->mapped) {
            job->slope = k->map->slope[s];
            job->intercept = k->map->intercept[s];
        }
    }
}

static void begin_weighing(const struct keep *k)
{
    for (int32_t s = 0; s < keep_round_sets(k); s++) {
        struct keep_set *set = &k->set[s];
        int32_t first = set->due ? policy_first_from(set->pos, set->n, set->span.lo) : 0;
        int32_t last = set->due ? policy_first_from(set->pos, set->n, set->span.hi) : 0;
        k->weighed[s] = (struct kv_weigh_set){
            .n = set->n,
            .pos = set->pos,
            .begin = first,
            .end = (int32_t)pi_max(first, last),
            .unknown = k->map != NULL ? k->map->intercept[s] : 0.0f,
        };
    }
}

/* The lanes of a layer that have something to lose, packed. */
static void weigh_layer(struct round *r, struct kv_weigh_list *list)
{
    struct keep *k = r->k;
    int32_t n_head = k->model.g.n_head;
    pi_parallel_items(k->n_scorer, n_head, fill_jobs, r);
    list->n = 0;
    for (int32_t h = 0; h < n_head; h++) {
        const struct kv_weigh_set *set = &k->weighed[k->weigh[h].set];
        if (set->begin < set->end)
            k->weigh[list->n++] = k->weigh[h];
    }
    if (list->n > 0)
        k->stream->device->weigh(k->stream, list);
    for (int32_t i = 0; i < list->n; i++)
        k->weighed[k->weigh[i].set].n_of++;
}

/* As score_sets: what the sets score stays on the device. */
static void weigh_sets(struct round *r, int32_t begin, int32_t end)
{
    struct keep *k = r->k;
    struct kv_weigh_list list = {.jobs = k->weigh,
                                 .sets = k->weighed,
                                 .n_set = keep_round_sets(k),
                                 .mean = k->config.rules.combine == KEEP_MEAN};
    begin_weighing(k);
    for (r->layer = begin; r->layer < end; r->layer++)
        if (!is_silent(r))
            weigh_layer(r, &list);
    list.n = 0;
    list.last = true;
    k->stream->device->weigh(k->stream, &list);
    for (int32_t s = 0; s < keep_round_sets(k); s++)
        k->set[s].at = k->weighed[s].score;
}

/* ---- choosing and dropping ---- */

/* The slots that stay of each set, by its choice. */
static void take_rest(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct keep *k = ((const struct round *)ctx)->k;
    (void)thread;
    for (int64_t s = begin; s < end; s++) {
        struct keep_set *set = &k->set[s];
        if (set->due)
            set->n_kept = keep_rest(&k->job[set->job], set->pos, set->n, set->slots);
    }
}

/* Chooses the entries that stay of all sets that are due. */
static void choose(const struct round *r)
{
    const struct keep *k = r->k;
    struct kv_choose_list list = {.jobs = k->job, .scratch = k->choose, k->choose_size};
    for (int32_t s = 0; s < keep_round_sets(k); s++) {
        struct keep_set *set = &k->set[s];
        if (!set->due)
            continue;
        set->job = list.n;
        k->job[list.n++] =
            keep_choice(set->pos, set->score, set->n, set->span, k->config.rules.segments,
                        (int32_t)pi_max(0, set->n - set->budget), set->slots);
        k->job[list.n - 1].at = keep_scores_at(set, (int32_t)(k->job[list.n - 1].pos - set->pos));
        list.work += work_of(k, set->n);
    }
    k->stream->device->choose(k->stream, &list);
    int32_t n_thread = list.work >= PARALLEL_MIN ? k->n_thread : 1;
    pi_parallel_items(n_thread, keep_round_sets(k), take_rest, (void *)(uintptr_t)r);
}

/* Where distances are between places within the lane: reads the first entries, which always stay,
   as if they stood right before the others. pos [n] of the lane. */
static pith_status close_gap(struct round *r, const struct kv_cut *cut, const int32_t *pos,
                             int32_t n, int32_t lo, pith_error *err)
{
    int32_t n_first = policy_first_from(pos, n, lo);
    if (!keep_config_places(&r->k->config) || n_first == 0)
        return PITH_OK;
    int32_t next = cut->n > n_first ? pos[cut->slots[n_first]] : r->view->n_token;
    PI_TRY(kv_seq_split(r->kv, cut->layer, cut->head, n_first, err));
    kv_seq_shift(r->kv, cut->layer, cut->head, n_first, next - 1 - pos[n_first - 1]);
    return PITH_OK;
}

/* The slots that a lane keeps of the chosen positions where the lanes of its set differ; of several
   entries at one position the oldest. Returns their number. The array is the round's scratch. */
static int32_t slots_of(const struct round *r, struct keep_set *set, int32_t layer, int32_t head,
                        int32_t **slots)
{
    const struct keep *k = r->k;
    const struct keep_part *part = read_lane(r, layer, head);
    int32_t n = 0;
    for (int32_t i = 0; i < set->n_kept; i++) {
        k->merged[i] = set->pos[set->slots[i]];
        set->n_of[i] = 0;
    }
    *slots = k->kept;
    for (int32_t i = 0; i < part->n; i++) {
        int32_t at = find(k->merged, set->n_kept, part->pos[i]);
        if (at >= 0 && set->n_of[at]++ == 0)
            (*slots)[n++] = i;
    }
    return n;
}

/* Lets the witness see what lanes are about to lose: the cuts [begin, end) of the stage's. */
static void show_cuts(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct round *r = ctx;
    const struct keep_witness *w = &r->k->witness;
    for (int64_t i = begin; i < end; i++) {
        const struct kv_cut *cut = &r->k->cut[i];
        if (cut->n < kv_lane_len(r->kv, cut->layer, cut->head))
            w->dropped(w->user, r->kv, cut->layer, cut->head, cut->slots, cut->n, thread);
    }
}

/* Drops a lane's entries at the other positions, in a set whose lanes differ. */
static pith_status drop_some(struct round *r, int32_t layer, int32_t head, pith_error *err)
{
    struct keep_set *set = &r->k->set[keep_round_set(r->k, layer, head)];
    int32_t *slots, n = kv_lane_len(r->kv, layer, head);
    int32_t n_kept = slots_of(r, set, layer, head, &slots);
    const struct kv_cut cut = {layer, head, slots, n_kept};
    if (n_kept == n)
        return PITH_OK;
    if (ascends(r->k->part[head].pos, n))
        PI_TRY(close_gap(r, &cut, r->k->part[head].pos, n, set->span.lo, err));
    if (r->k->witness.dropped != NULL)
        r->k->witness.dropped(r->k->witness.user, r->kv, layer, head, slots, n_kept, 0);
    PI_TRY(kv_seq_compact(r->kv, layer, head, slots, n_kept, err));
    r->n_evicted += n - n_kept;
    return PITH_OK;
}

/* Lanes that agree are packed at the same time. */
static pith_status drop(struct round *r, int32_t begin, int32_t end, pith_error *err)
{
    struct keep *k = r->k;
    int32_t n_cut = 0;
    int64_t n_entry = 0;
    for (int32_t l = begin; l < end; l++)
        for (int32_t h = 0; h < k->model.g.n_head; h++) {
            const struct keep_set *set = &k->set[keep_round_set(k, l, h)];
            if (set->due && !set->agree)
                PI_TRY(drop_some(r, l, h, err));
            if (!set->due || !set->agree)
                continue;
            struct kv_cut *cut = &k->cut[n_cut++];
            *cut = (struct kv_cut){l, h, set->slots, set->n_kept};
            PI_TRY(close_gap(r, cut, set->pos, set->n, set->span.lo, err));
            n_entry += set->n;
            r->n_evicted += set->n - set->n_kept;
        }
    int32_t n_thread = is_large(k, n_entry) ? k->n_thread : 1;
    if (k->witness.dropped != NULL && n_cut > 0)
        pi_parallel_items(n_thread, n_cut, show_cuts, r);
    return kv_seq_compact_lanes(r->kv, k->cut, n_cut, n_thread, err);
}

/* The layers [begin, end): a stage, whose sets are decided together, or several. */
static pith_status run_stages(struct round *r, int32_t begin, int32_t end, pith_error *err)
{
    struct keep *k = r->k;
    if (!gather_sets(r, begin, end))
        return PITH_OK;
    for (int32_t s = 0; s < keep_round_sets(k); s++)
        k->set[s].at = (struct pi_at){0};
    if (weighs(r, begin, end))
        weigh_sets(r, begin, end);
    else
        score_sets(r, begin, end);
    if (k->config.n_elsewhere > 0)
        keep_allot_everywhere(k, total_budget(r, begin), r->view->n_token, r->tally);
    else if (keep_config_allots(&k->config))
        keep_allot(k->stream, &k->config, k->set, k->lane, keep_n_set(k), total_budget(r, begin));
    choose(r);
    return drop(r, begin, end, err);
}

/* ---- for the engine ---- */

void keep_set_witness(struct keep *k, const struct keep_witness *witness)
{
    k->witness = witness != NULL ? *witness : (struct keep_witness){0};
}

pith_status keep_round(struct keep *k, struct kv_seq *kv, const struct keep_view *view,
                       struct keep_tally *tally, pith_error *err)
{
    double start = pi_time_s();
    struct keep_view whole = keep_view_complete(k, view);
    struct round r = {.k = k, .kv = kv, .view = &whole, .tally = tally};
    kv_seq_trim(kv);
    int64_t n_free = kv_seq_free_bytes(kv);
    int32_t step = keep_stage_layers(k) * k->n_together, n_layer = k->model.g.n_layer;
    pith_status status = PITH_OK;
    if (k->config.policy->begin != NULL) {
        pull_state(&r);
        if (k->config.policy->begin(&k->config.params, &whole))
            keep_block_push(k, &(struct keep_block){whole.state, whole.there});
    }
    for (int32_t l = 0; l < n_layer && status == PITH_OK; l += step)
        status = run_stages(&r, l, (int32_t)pi_min(l + step, n_layer), err);
    if (tally->n_round++ == 0)
        tally->first_at = view->n_token;
    tally->n_evicted += r.n_evicted;
    tally->bytes_freed += kv_seq_free_bytes(kv) - n_free;
    tally->seconds += pi_time_s() - start;
    return status;
}
