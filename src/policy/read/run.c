/*
 * run.c - reading during a pass: asks the policy for scores, lets choose.c choose, carries what
 * some layers choose to those behind them, and counts. It knows no policy and no engine.
 *
 * Invariant: the entries that a chunk reads in a lane depend on the lane and the chunk's queries
 * alone. Every (chunk, KV head) has a record of its own, which one thread at a time writes.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "base/os.h"
#include "policy/read/reading.h"

/* The entries that a chunk reads in the lanes of one KV head, in the running layer and over the
   pass. */
struct unit {
    const float *q; /* of the running layer, as the pass gave it */
    size_t q_stride;
    int32_t n;      /* entries of earlier tokens in the running layer */
    int32_t n_kept; /* what the last source chose for the layers behind it; -1: nothing, they read
                       everything */
    struct read_tally tally; /* of the running pass */
};

/* One thread's working memory. */
struct work {
    float *score;         /* [n_row][longest] */
    int32_t *pos;         /* [longest] */
    struct ranked *order; /* [most] */
    int32_t *set;         /* [read_union_size(most)] */
    const int32_t **best; /* [n_head * n_group] */
    int32_t *n_best;      /* [n_head * n_group] */
    void *top;
    void *policy;
};

struct ranked {
    float score;
    int32_t slot;
};

struct read {
    struct read_config config;
    struct policy_model model;
    void *data; /* owned by the policy */
    int32_t n_thread;

    /* Of the running pass; parts of one block. */
    int32_t cap_chunk;
    int64_t longest;                     /* entries of a lane */
    int32_t most;                        /* slots that are chosen of them */
    const struct pi_pass_item **item_of; /* [cap_chunk] NULL: nothing to be counted */
    struct unit *unit;                   /* [cap_chunk][n_head] */
    float *beside;                       /* [cap_chunk][n_head][chunk][n_group] */
    int32_t *kept;     /* [cap_chunk][n_head][most] positions that a source chose, ascending; NULL
                          without roles. Where heads unite, the first has the entries of all */
    int32_t *best;     /* [cap_chunk][n_head][n_group][most] where heads unite: each query head's
                          positions in the order of their scores; else NULL */
    struct work *work; /* [n_thread] */
    uint8_t *block;    /* owned */
};

/* ---- the shape of the scratch ---- */

static int32_t most_of(const struct read_rules *r, int64_t longest)
{
    int32_t n = (int32_t)pi_min(longest, INT32_MAX);
    int64_t budget = r->budget.value;
    if (r->budget.unit == POLICY_UNIT_SHARE)
        budget = pi_max(1, n * r->budget.value / 1000000);
    return (int32_t)pi_min(n, pi_max(budget, (int64_t)r->sinks + r->recent));
}

/* Places the parts of one thread; only counts while base is NULL. */
static void place_work(const struct read *read, int32_t longest, int32_t most, uint8_t *base,
                       size_t *used, struct work *w)
{
    const struct read_policy *p = read->config.policy;
    size_t n_query = (size_t)read->model.g.n_head * (size_t)read->model.n_group;
    size_t n_row = p->unites ? (size_t)read->model.n_group : 1, n = (size_t)longest;
    size_t policy = p->scratch_size == NULL
                        ? 0
                        : p->scratch_size(&read->config.params, &read->model, longest,
                                          read_chunk_of(&read->config.rules));
    w->score = pi_mem_part(base, used, n_row * n, sizeof(*w->score));
    w->pos = pi_mem_part(base, used, p->role != NULL ? n : 0, sizeof(*w->pos));
    w->order = pi_mem_part(base, used, p->unites ? (size_t)most : 0, sizeof(*w->order));
    w->set = pi_mem_part(base, used, p->unites ? read_union_size(most) : 0, sizeof(*w->set));
    w->best = pi_mem_part(base, used, p->unites ? n_query : 0, sizeof(*w->best));
    w->n_best = pi_mem_part(base, used, p->unites ? n_query : 0, sizeof(*w->n_best));
    w->top = pi_mem_part(base, used, kv_top_scratch_bytes(longest), 1);
    w->policy = pi_mem_part(base, used, policy, 1);
}

/* The same for everything; returns the bytes. */
static size_t lay_out(struct read *read, int32_t n_chunk, int32_t longest, int32_t most,
                      uint8_t *base)
{
    const struct read_policy *p = read->config.policy;
    size_t n_unit = (size_t)n_chunk * (size_t)read->model.g.n_head, used = 0;
    size_t n_group = (size_t)read->model.n_group;
    size_t chunk = (size_t)read_chunk_of(&read->config.rules);
    bool besides = p->chosen != NULL || p->adjust != NULL;
    struct work counted;
    struct work *work = pi_mem_part(base, &used, (size_t)read->n_thread, sizeof(*work));
    const struct pi_pass_item **item_of =
        pi_mem_part(base, &used, (size_t)n_chunk, sizeof(*item_of));
    struct unit *unit = pi_mem_part(base, &used, n_unit, sizeof(*unit));
    float *beside = pi_mem_part(base, &used, besides ? n_unit * chunk * n_group : 0, sizeof(float));
    int32_t *kept =
        pi_mem_part(base, &used, p->role != NULL ? n_unit * (size_t)most : 0, sizeof(int32_t));
    int32_t *best =
        pi_mem_part(base, &used, p->unites ? n_unit * n_group * (size_t)most : 0, sizeof(int32_t));
    for (int32_t i = 0; i < read->n_thread; i++)
        place_work(read, longest, most, base, &used, work != NULL ? &work[i] : &counted);
    if (base != NULL) {
        read->work = work;
        read->item_of = item_of;
        read->unit = unit;
        read->beside = beside;
        read->kept = kept;
        read->best = best;
    }
    return used;
}

pith_status read_reserve(struct read *read, int32_t n_chunk, int64_t longest, pith_error *err)
{
    if (n_chunk <= read->cap_chunk && longest <= read->longest)
        return PITH_OK;
    /* More than asked: a lane may grow with every pass. */
    int64_t n = longest <= read->longest ? read->longest : longest + longest / 2 + 64;
    n = pi_min(n, INT32_MAX);
    n_chunk = (int32_t)pi_max(n_chunk, read->cap_chunk);
    int32_t most = most_of(&read->config.rules, n);
    size_t size = lay_out(read, n_chunk, (int32_t)n, most, NULL);
    uint8_t *block = pi_mem_alloc(PI_MEM_SCRATCH, size);
    if (block == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for reading %d chunks over %lld entries",
                       n_chunk, (long long)n);
    pi_mem_free(read->block);
    read->block = block;
    read->cap_chunk = n_chunk;
    read->longest = n;
    read->most = most;
    lay_out(read, n_chunk, (int32_t)n, most, block);
    return PITH_OK;
}

int64_t read_most(const struct read *read, int64_t longest)
{
    return pi_min(longest, (int64_t)most_of(&read->config.rules, longest) +
                               read_chunk_of(&read->config.rules));
}

/* ---- what is read of a lane ---- */

/* One lane of a chunk on its way to slots. */
struct lane {
    struct read *read;
    const struct pi_pass_chunk *of;
    struct unit *unit;
    struct work *work;
    struct read_view view;
    struct read_chunk c;
};

static struct unit *unit_of(const struct read *read, const struct pi_pass_chunk *c, int32_t head)
{
    return &read->unit[(size_t)c->index * (size_t)read->model.g.n_head + (size_t)head];
}

static int32_t *kept_of(const struct read *read, const struct pi_pass_chunk *c, int32_t head)
{
    size_t at = (size_t)c->index * (size_t)read->model.g.n_head + (size_t)head;
    return read->kept + at * (size_t)read->most;
}

/* The positions that query head g of a KV head chose. */
static int32_t *best_of(const struct read *read, const struct pi_pass_chunk *c, int32_t head,
                        int32_t g)
{
    size_t at = (size_t)c->index * (size_t)read->model.g.n_head + (size_t)head;
    return read->best + (at * (size_t)read->model.n_group + (size_t)g) * (size_t)read->most;
}

static enum read_role role_of(const struct read *read, int32_t layer)
{
    const struct read_policy *p = read->config.policy;
    enum read_role role =
        p->role != NULL ? p->role(&read->config.params, &read->model, layer) : READ_OWN;
    /* A source reads everything anyway; what is behind it may need its choice. */
    return layer < read->config.rules.dense_layers && role != READ_SOURCE ? READ_DENSE : role;
}

static struct lane lane_of(struct read *read, const struct pi_pass_chunk *c, int32_t head,
                           int32_t thread)
{
    struct unit *unit = unit_of(read, c, head);
    struct work *work = &read->work[thread];
    size_t n_row = (size_t)read_chunk_of(&read->config.rules) * (size_t)read->model.n_group;
    size_t at = (size_t)(unit - read->unit) * n_row;
    return (struct lane){
        .read = read,
        .of = c,
        .unit = unit,
        .work = work,
        .view = {.kv = c->item->kv,
                 .model = &read->model,
                 .rules = &read->config.rules,
                 .data = read->data},
        .c = {.layer = c->layer,
              .head = head,
              .n = unit->n,
              .n_tok = c->n_tok,
              .n_group = read->model.n_group,
              .pos0 = c->item->pos0 + c->t0,
              .q = unit->q,
              .q_stride = unit->q_stride,
              .beside = read->beside + at,
              .scratch = work->policy},
    };
}

/* How many entries are chosen by score where n are read. */
static int32_t scored_of(const struct read_rules *r, int32_t n_read)
{
    return (int32_t)pi_max(0, (int64_t)n_read - r->sinks - r->recent);
}

static void score(struct lane *l, int32_t n_read)
{
    const struct read *read = l->read;
    l->c.n_choose = scored_of(&read->config.rules, n_read);
    read->config.policy->score(&read->config.params, &l->view, &l->c, l->work->score);
}

/* Returns the number of slots of earlier tokens that are read. */
static int32_t choose_own(struct lane *l, int32_t *slots)
{
    const struct read *read = l->read;
    const struct read_policy *p = read->config.policy;
    int32_t n_read = read_budget_for(&read->config.rules, l->c.n, l->c.n_tok);
    if (n_read == l->c.n)
        return -1;
    score(l, n_read);
    read_choose(&read->config.rules, l->work->score, l->c.n, n_read, slots, l->work->top);
    if (p->chosen != NULL)
        p->chosen(&read->config.params, &l->view, &l->c, slots, n_read);
    return n_read;
}

/* ---- a choice that other layers follow ---- */

static int by_position(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Higher scores first, of equal ones the lower slot. */
static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

/* The positions of a row's best n_choose entries among those that are not read anyway, in the order
   of their slots. */
static void take_best(const struct lane *l, const float *row, int32_t *out)
{
    const struct read_rules *r = &l->read->config.rules;
    int32_t n = l->c.n - r->sinks - r->recent;
    kv_top(row + r->sinks, n, l->c.n_choose, out, l->work->top);
    for (int32_t i = 0; i < l->c.n_choose; i++)
        out[i] += r->sinks;
}

static void slots_to_positions(const struct lane *l, int32_t *at, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        at[i] = kv_lane_written_pos(l->of->item->kv, l->c.layer, l->c.head, at[i]);
}

/* The lists of a KV head's query heads, in the order of their scores. */
static void rank_heads(const struct lane *l)
{
    for (int32_t g = 0; g < l->c.n_group; g++) {
        int32_t *out = best_of(l->read, l->of, l->c.head, g);
        const float *row = l->work->score + (size_t)g * (size_t)l->c.n;
        take_best(l, row, out);
        for (int32_t i = 0; i < l->c.n_choose; i++)
            l->work->order[i] = (struct ranked){row[out[i]], out[i]};
        qsort(l->work->order, (size_t)l->c.n_choose, sizeof(*l->work->order), by_score);
        for (int32_t i = 0; i < l->c.n_choose; i++)
            out[i] = l->work->order[i].slot;
        slots_to_positions(l, out, l->c.n_choose);
    }
}

/* A source: chooses, and reads everything itself. */
static void keep_choice(struct lane *l)
{
    const struct read *read = l->read;
    int32_t n_read = read_budget_for(&read->config.rules, l->c.n, l->c.n_tok);
    l->unit->n_kept = -1;
    if (n_read == l->c.n)
        return;
    score(l, n_read);
    l->unit->n_kept = l->c.n_choose;
    if (read->config.policy->unites) {
        rank_heads(l);
        return;
    }
    int32_t *kept = kept_of(read, l->of, l->c.head);
    take_best(l, l->work->score, kept);
    slots_to_positions(l, kept, l->c.n_choose);
    qsort(kept, (size_t)l->c.n_choose, sizeof(*kept), by_position);
}

static bool has_position(const int32_t *kept, int32_t n, int32_t pos)
{
    int32_t low = 0, high = n;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (kept[mid] < pos)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && kept[low] == pos;
}

/* Whether position i is in slot i, for the first n: nothing was evicted, overwritten or shared. */
static bool is_whole(const struct lane *l)
{
    const struct kv_seq *kv = l->of->item->kv;
    int32_t layer = l->c.layer, head = l->c.head, n = l->c.n;
    return !kv_lane_unordered(kv, layer, head) && kv_lane_breaks(kv, layer, head) == 0 &&
           kv_lane_written_pos(kv, layer, head, n - 1) == n - 1;
}

/* The slots of the positions that the last source chose, and those that are always read. */
static int32_t follow_choice(struct lane *l, int32_t *slots, int32_t cap)
{
    const struct read *read = l->read;
    const struct read_rules *r = &read->config.rules;
    int32_t head = read->config.policy->unites ? 0 : l->c.head;
    int32_t n_kept = unit_of(read, l->of, head)->n_kept, n = 0, last = l->c.n - r->recent;
    const int32_t *kept = kept_of(read, l->of, head);
    if (n_kept < 0 || read_budget_for(r, l->c.n, l->c.n_tok) == l->c.n)
        return -1;
    if (is_whole(l)) {
        for (int32_t s = 0; s < r->sinks; s++)
            slots[n++] = s;
        for (int32_t i = 0; i < n_kept && n < cap - r->recent; i++)
            if (kept[i] >= r->sinks && kept[i] < last)
                slots[n++] = kept[i];
        for (int32_t s = last; s < l->c.n; s++)
            slots[n++] = s;
        return n;
    }
    int32_t *pos = l->work->pos;
    kv_lane_written(l->of->item->kv, l->c.layer, l->c.head, pos, l->c.n);
    for (int32_t s = 0; s < l->c.n && n < cap; s++) {
        bool always = s < r->sinks || s >= last;
        bool fits = n < cap - (int32_t)pi_min(r->recent, l->c.n - s);
        if (always || (fits && has_position(kept, n_kept, pos[s])))
            slots[n++] = s;
    }
    return n;
}

/* One set for the KV heads of a source's layer, where they unite. */
static void unite_choices(void *user, const struct pi_pass_chunk *c, int32_t thread)
{
    struct read *read = user;
    int32_t n_head = read->model.g.n_head, n_group = read->model.n_group, n_most = -1;
    struct work *w = &read->work[thread];
    struct unit *first = unit_of(read, c, 0);
    if (role_of(read, c->layer) != READ_SOURCE)
        return;
    double begin = pi_time_s();
    for (int32_t i = 0; i < n_head * n_group; i++) {
        int32_t n = unit_of(read, c, i / n_group)->n_kept;
        w->best[i] = best_of(read, c, i / n_group, i % n_group);
        w->n_best[i] = (int32_t)pi_max(n, 0);
        n_most = (int32_t)pi_max(n_most, n);
    }
    first->n_kept = n_most;
    if (n_most > 0) {
        int32_t *kept = kept_of(read, c, 0);
        first->n_kept = read_unite(w->best, w->n_best, n_head * n_group, n_most, kept, w->set);
        qsort(kept, (size_t)first->n_kept, sizeof(*kept), by_position);
    }
    first->tally.seconds += pi_time_s() - begin;
}

/* ---- the reader ---- */

/* Slots of the lane up to the chunk's last token; *n receives the slots of earlier tokens. False
   where the chunk's own are not the others: its first token took the place of an older entry
   (kv_seq_aim). */
static bool count_earlier(const struct pi_pass_chunk *c, int32_t head, int32_t *n)
{
    const struct pi_pass_item *item = c->item;
    *n = kv_lane_len(item->kv, c->layer, head) - (item->n_tok - c->t0);
    return kv_lane_written_pos(item->kv, c->layer, head, *n) == item->pos0 + c->t0;
}

static void count(struct unit *u, const struct pi_pass_chunk *c, int32_t n_slot)
{
    struct read_tally *t = &u->tally;
    int32_t n_stored = u->n + c->n_tok;
    if (n_slot >= 0 && t->n_sparse++ == 0)
        t->first_at = c->item->pos0 + c->t0;
    t->n_chunk++;
    t->n_stored += n_stored;
    t->n_read += n_slot >= 0 ? n_slot : n_stored;
}

static int32_t select_slots(void *user, const struct pi_pass_chunk *c, int32_t head, const float *q,
                            size_t q_stride, int32_t *slots, int32_t cap, int32_t thread)
{
    struct read *read = user;
    struct unit *u = unit_of(read, c, head);
    double begin = pi_time_s();
    int32_t n_slot = -1;
    assert(c->index < read->cap_chunk);
    if (c->layer == 0)
        *u = (struct unit){.n_kept = -1};
    if (c->layer == 0 && head == 0)
        read->item_of[c->index] = c->item;
    u->q = q;
    u->q_stride = q_stride;
    bool behind = count_earlier(c, head, &u->n);
    assert(u->n <= read->longest);
    enum read_role role = role_of(read, c->layer);
    struct lane l = lane_of(read, c, head, thread);
    if (role == READ_SOURCE && !behind)
        u->n_kept = -1;
    else if (role == READ_SOURCE)
        keep_choice(&l);
    else if (role == READ_OWN && behind)
        n_slot = choose_own(&l, slots);
    else if (role == READ_REUSE && behind)
        n_slot = follow_choice(&l, slots, cap - c->n_tok);
    for (int32_t t = 0; n_slot >= 0 && t < c->n_tok; t++)
        slots[n_slot + t] = u->n + t;
    n_slot += n_slot >= 0 ? c->n_tok : 0;
    assert(n_slot <= cap);
    count(u, c, n_slot);
    u->tally.seconds += pi_time_s() - begin;
    return n_slot;
}

static void adjust_output(void *user, const struct pi_pass_chunk *c, int32_t head, float *out,
                          size_t out_stride, int32_t thread)
{
    struct read *read = user;
    struct lane l = lane_of(read, c, head, thread);
    if (role_of(read, c->layer) != READ_OWN)
        return;
    const struct read_rules *r = &read->config.rules;
    l.c.n_choose = scored_of(r, read_budget_for(r, l.c.n, l.c.n_tok));
    read->config.policy->adjust(&read->config.params, &l.view, &l.c, out, out_stride);
}

void read_reader(struct read *read, struct pi_pass_reader *out)
{
    const struct read_policy *p = read->config.policy;
    *out = (struct pi_pass_reader){
        .user = read,
        .chunk = read_chunk_of(&read->config.rules),
        .select = select_slots,
        .selected = p->unites ? unite_choices : NULL,
        .attended = p->adjust != NULL ? adjust_output : NULL,
    };
}

void read_add_tally(struct read *read, const struct pi_pass_item *item, struct read_tally *tally)
{
    int32_t n_head = read->model.g.n_head;
    for (int32_t i = 0; i < read->cap_chunk; i++) {
        if (read->item_of[i] != item)
            continue;
        read->item_of[i] = NULL;
        for (int32_t h = 0; h < n_head; h++) {
            const struct read_tally *t = &read->unit[(size_t)i * (size_t)n_head + (size_t)h].tally;
            if (t->n_sparse > 0 && (tally->n_sparse == 0 || t->first_at < tally->first_at))
                tally->first_at = t->first_at;
            tally->n_chunk += t->n_chunk;
            tally->n_sparse += t->n_sparse;
            tally->n_stored += t->n_stored;
            tally->n_read += t->n_read;
            tally->seconds += t->seconds;
        }
    }
}

/* ---- the policy of an engine ---- */

pith_status read_create(const struct read_config *config, const struct policy_model *model,
                        int32_t n_thread, struct read **out, pith_error *err)
{
    const struct read_policy *p = config->policy;
    *out = NULL;
    if (p == NULL)
        return PITH_OK;
    struct read *read = pi_mem_alloc(PI_MEM_OTHER, sizeof(*read));
    if (read == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a read policy");
    read->config = *config;
    read->model = *model;
    read->n_thread = (int32_t)pi_max(n_thread, 1);
    if (p->open != NULL) {
        pith_status status = p->open(&read->config.params, &read->model, &read->data, err);
        if (status != PITH_OK) {
            pi_mem_free(read);
            return status;
        }
    }
    *out = read;
    return PITH_OK;
}

void read_free(struct read *read)
{
    if (read == NULL)
        return;
    if (read->config.policy->close != NULL)
        read->config.policy->close(read->data);
    pi_mem_free(read->block);
    pi_mem_free(read);
}

const struct read_config *read_get_config(const struct read *read)
{
    return &read->config;
}

const float *read_projection(const struct read *read)
{
    const struct read_policy *p = read->config.policy;
    return p->projection != NULL ? p->projection(read->data) : NULL;
}

int32_t read_tokens(const struct read *read, int32_t n_token)
{
    return read_tokens_of(&read->config.rules, n_token);
}

int32_t read_take(const struct read *read, int32_t most, int32_t left, int32_t left_read,
                  int32_t until)
{
    return read_take_of(&read->config.rules, most, left, left_read, until);
}

int32_t read_reusable(const struct read *read, const struct read_tally *tally, int32_t same,
                      int32_t n_token)
{
    const struct read_rules *r = &read->config.rules;
    int32_t whole = read_whole_up_to(r);
    if (n_token <= whole)
        return same;
    if (r->phase == READ_DECODE)
        return tally->n_sparse > 0 ? (int32_t)pi_min(same, tally->first_at) : same;
    return (int32_t)pi_min(same, whole) / r->chunk * r->chunk;
}
