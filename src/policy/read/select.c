/*
 * select.c - reading during a pass: asks the policy for scores, chooses, carries what some layers
 * choose to those behind them, and counts. It knows no policy and no engine.
 *
 * The lanes of a layer go through five steps together, LANES at a time. The policy says by which
 * vectors the device scores them. The device does. The policy makes its scores of the result. The
 * device chooses, and the choice becomes slots. A policy that scores by itself does so in the first
 * step, and its lane is chosen for at once.
 *
 * Invariant: the entries that a chunk reads in a lane depend on the lane and the chunk's queries
 * alone. Every (chunk, KV head) has a record of its own, which one thread at a time writes.
 */
#include <stdlib.h>

#include "base/os.h"
#include "base/threads.h"
#include "policy/positions.h"
#include "policy/read/running.h"

/* Multiplications that choosing costs for each score, about. */
#define CHOICE_WORK 16

/* ---- what is read of a lane ---- */

struct unit *read_unit_of(const struct read *read, const struct pi_pass_chunk *c, int32_t head)
{
    return &read->unit[(size_t)c->index * (size_t)read->model.g.n_head + (size_t)head];
}

int32_t *read_kept_of(const struct read *read, const struct pi_pass_chunk *c, int32_t head)
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

enum read_role read_role_of(const struct read *read, int32_t layer)
{
    const struct read_policy *p = read->config.policy;
    enum read_role role =
        p->role != NULL ? p->role(&read->config.params, &read->model, layer) : READ_OWN;
    /* A source reads everything anyway; what is behind it may need its choice. */
    return layer < read->config.rules.dense_layers && role != READ_SOURCE ? READ_DENSE : role;
}

/* A lane as the policy sees it. */
static struct lane lane_of(struct read *read, const struct pi_pass_chunk *c, int32_t head,
                           int32_t thread)
{
    struct unit *unit = read_unit_of(read, c, head);
    struct work *work = &read->work[thread];
    size_t n_row = (size_t)read_chunk_of(&read->config.rules) * (size_t)read->model.n_group;
    size_t at = (size_t)(unit - read->unit) * n_row;
    size_t group = (size_t)read->model.n_group * (size_t)read->model.g.dim_k;
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
              .q = c->q != NULL ? c->q + (size_t)head * group : NULL,
              .q_at = pi_at_item(c->q_at, (size_t)head * group),
              .q_stride = c->q_stride,
              .beside = read->beside + at,
              .scratch = work->policy},
        .slots = c->slots + (size_t)head * (size_t)c->cap,
        .n_slot = -1,
    };
}

/* How many entries are chosen by score where n are read. */
static int32_t scored_of(const struct read_rules *r, int32_t n_read)
{
    return (int32_t)pi_max(0, (int64_t)n_read - r->sinks - r->recent);
}

/* The choices among a lane's scores: one, or one for each query head. */
static int32_t choices_of(const struct lane *l, struct kv_choose_job *jobs)
{
    const struct read *read = l->read;
    int32_t n = 0;
    bool unites = l->use == USE_KEEP && read->config.policy->unites;
    for (; n < (unites ? l->c.n_group : 1); n++) {
        const float *row = l->score + (size_t)n * (size_t)l->c.n;
        jobs[n] = read_choice(&read->config.rules, row, l->c.n, l->n_read, l->slots);
        if (l->use == USE_KEEP)
            jobs[n].slots =
                unites ? best_of(read, l->of, l->c.head, n) : read_kept_of(read, l->of, l->c.head);
    }
    return n;
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

static void slots_to_positions(const struct lane *l, int32_t *at, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        at[i] = kv_lane_written_pos(l->of->item->kv, l->c.layer, l->c.head, at[i]);
}

/* The lists of a KV head's query heads, in the order of their scores. */
static void rank_heads(const struct lane *l)
{
    int32_t n_first = l->read->config.rules.sinks;
    for (int32_t g = 0; g < l->c.n_group; g++) {
        int32_t *out = best_of(l->read, l->of, l->c.head, g);
        const float *row = l->score + (size_t)g * (size_t)l->c.n;
        for (int32_t i = 0; i < l->c.n_choose; i++)
            l->work->order[i] = (struct ranked){row[out[i] + n_first], out[i] + n_first};
        qsort(l->work->order, (size_t)l->c.n_choose, sizeof(*l->work->order), by_score);
        for (int32_t i = 0; i < l->c.n_choose; i++)
            out[i] = l->work->order[i].slot;
        slots_to_positions(l, out, l->c.n_choose);
    }
}

/* A source's choice, for the layers behind it. */
static void keep_choice(const struct lane *l)
{
    const struct read *read = l->read;
    l->unit->n_kept = l->c.n_choose;
    if (read->config.policy->unites) {
        rank_heads(l);
        return;
    }
    int32_t *kept = read_kept_of(read, l->of, l->c.head);
    for (int32_t i = 0; i < l->c.n_choose; i++)
        kept[i] += read->config.rules.sinks;
    slots_to_positions(l, kept, l->c.n_choose);
    qsort(kept, (size_t)l->c.n_choose, sizeof(*kept), by_position);
}

static bool has_position(const int32_t *kept, int32_t n, int32_t pos)
{
    int32_t at = policy_first_from(kept, n, pos);
    return at < n && kept[at] == pos;
}

bool read_lane_whole(const struct pi_pass_chunk *c, int32_t head, int32_t n)
{
    const struct kv_seq *kv = c->item->kv;
    return !kv_lane_unordered(kv, c->layer, head) && kv_lane_breaks(kv, c->layer, head) == 0 &&
           kv_lane_written_pos(kv, c->layer, head, n - 1) == n - 1;
}

/* The slots of the positions that the last source chose, and those that are always read. */
static int32_t follow_choice(struct lane *l, int32_t *slots, int32_t cap)
{
    const struct read *read = l->read;
    const struct read_rules *r = &read->config.rules;
    int32_t head = read->config.policy->unites ? 0 : l->c.head, head_of = l->c.head;
    int32_t n_kept = read_unit_of(read, l->of, head)->n_kept, n = 0, last = l->c.n - r->recent;
    const int32_t *kept = read_kept_of(read, l->of, head);
    if (n_kept < 0 || read_budget_for(r, l->c.n, l->c.n_tok) == l->c.n)
        return -1;
    if (read_lane_whole(l->of, head_of, l->c.n)) {
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
static void unite_choices(struct read *read, const struct pi_pass_chunk *c, int32_t thread)
{
    int32_t n_head = read->model.g.n_head, n_group = read->model.n_group, n_most = -1;
    struct work *w = &read->work[thread];
    struct unit *first = read_unit_of(read, c, 0);
    double begin = pi_time_s();
    for (int32_t i = 0; i < n_head * n_group; i++) {
        int32_t n = read_unit_of(read, c, i / n_group)->n_kept;
        w->best[i] = best_of(read, c, i / n_group, i % n_group);
        w->n_best[i] = (int32_t)pi_max(n, 0);
        n_most = (int32_t)pi_max(n_most, n);
    }
    first->n_kept = n_most;
    if (n_most > 0) {
        int32_t *kept = read_kept_of(read, c, 0);
        first->n_kept = read_unite(w->best, w->n_best, n_head * n_group, n_most, kept, w->set);
        qsort(kept, (size_t)first->n_kept, sizeof(*kept), by_position);
    }
    first->tally.seconds += pi_time_s() - begin;
}

/* ---- the reader ---- */

bool read_count_earlier(const struct pi_pass_chunk *c, int32_t head, int32_t *n)
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
    t->n_step += c->n_tok == 1;
    t->n_step_sparse += c->n_tok == 1 && n_slot >= 0;
    t->n_stored += n_stored;
    t->n_read += n_slot >= 0 ? n_slot : n_stored;
}

static void fill_own(struct lane *l)
{
    const struct read *read = l->read;
    const struct read_policy *p = read->config.policy;
    l->n_slot = l->n_read;
    if (pi_at_some(l->chosen.at))
        return;
    read_fill(&read->config.rules, l->c.n, l->n_read, l->slots);
    if (p->chosen != NULL && !l->picked)
        p->chosen(&read->config.params, &l->view, &l->c, l->slots, l->n_read);
}

/* From the choice to the slots that are read, and the account. */
static void finish_lane(struct lane *l)
{
    const struct pi_pass_chunk *c = l->of;
    if (l->use == USE_OWN)
        fill_own(l);
    else if (l->use == USE_KEEP && !pi_at_some(l->unit->kept_at))
        keep_choice(l);
    if (pi_at_some(l->chosen.at))
        c->chosen[l->c.head] = l->chosen;
    for (int32_t t = 0; l->n_slot >= 0 && !pi_at_some(l->chosen.at) && t < c->n_tok; t++)
        l->slots[l->n_slot + t] = l->unit->n + t;
    l->n_slot += l->n_slot >= 0 ? c->n_tok : 0;
    assert(l->n_slot <= c->cap);
    c->n_slot[l->c.head] = l->n_slot;
    count(l->unit, c, l->n_slot);
}

/* Whether the lane is scored, and for what. */
static enum use use_of(struct lane *l, bool behind)
{
    const struct read *read = l->read;
    enum read_role role = read_role_of(read, l->c.layer);
    if (role == READ_SOURCE) {
        l->unit->n_kept = -1;
        l->unit->kept_at = (struct pi_at){0};
    }
    if (role == READ_REUSE && behind && !read_follow_there(l))
        l->n_slot = follow_choice(l, l->slots, l->of->cap - l->c.n_tok);
    if (!behind || (role != READ_SOURCE && role != READ_OWN))
        return USE_NONE;
    l->n_read = read_budget_for(&read->config.rules, l->c.n, l->c.n_tok);
    l->c.n_choose = scored_of(&read->config.rules, l->n_read);
    return l->n_read == l->c.n ? USE_NONE : role == READ_OWN ? USE_OWN : USE_KEEP;
}

/* A policy that scores by itself: while the scores are in the cache, and what it noted in its
   scratch. */
static void choose_at_once(struct lane *l, int32_t thread)
{
    struct read *read = l->read;
    struct kv_choose_job *jobs = read->choose_job + (size_t)(l - read->lane) * (size_t)read->n_row;
    /* scores by vectors, of other lanes, have the place of their lane */
    size_t place = read->n_vector > 0 ? (size_t)(l - read->lane) : (size_t)thread;
    l->score = read->score + place * (size_t)read->n_row * (size_t)read->longest;
    read->config.policy->score(&read->config.params, &l->view, &l->c, l->score);
    int32_t n = choices_of(l, jobs);
    for (int32_t i = 0; i < n; i++)
        kv_choose(&jobs[i], read->choose_scratch + (size_t)thread * read->choose_size);
    finish_lane(l);
    l->use = USE_NONE;
}

/* Asks the policy by what the lane is scored. */
static void ask(struct lane *l, int32_t n_set)
{
    struct read *read = l->read;
    size_t at = (size_t)(l - read->lane), n_row = (size_t)read->n_row;
    struct kv_score_job *jobs = read->score_job + at * n_row;
    /* Scores that the device makes do not come. */
    l->score = read->score + (l->picked ? 0 : at * n_row * (size_t)read->longest);
    l->c.vector = read->vector + at * (size_t)(read->n_vector * read->model.g.dim_k);
    read->config.policy->ask(&read->config.params, &l->view, &l->c, jobs);
    for (int32_t i = 0; i < n_set; i++) {
        jobs[i].seq = l->view.kv;
        jobs[i].layer = l->c.layer;
        jobs[i].head = l->c.head;
        jobs[i].n = l->c.n;
        jobs[i].rope = policy_rope(&read->model, l->c.layer);
        jobs[i].out = l->score + (size_t)i * (size_t)l->c.n;
    }
}

/* ---- the lanes of a layer ---- */

struct turn {
    struct read *read;
    const struct pi_pass_chunk *chunks;
    int32_t n_unit; /* of the layer */
    int32_t begin;  /* of the lanes that are there, counted from the last chunk down: the lanes of
                       the last chunks are the longest */
};

/* Prepares lanes, one per item. */
static void begin_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct turn *t = ctx;
    struct read *read = t->read;
    int32_t n_head = read->model.g.n_head, n;
    for (int64_t i = begin; i < end; i++) {
        int32_t number = t->begin + (int32_t)i, head = number % n_head;
        const struct pi_pass_chunk *c = &t->chunks[t->n_unit / n_head - 1 - number / n_head];
        struct unit *u = read_unit_of(read, c, head);
        double start = pi_time_s();
        assert(c->index < read->cap_chunk);
        if (c->layer == 0)
            *u = (struct unit){.n_kept = -1};
        bool behind = read_count_earlier(c, head, &u->n);
        assert(u->n <= read->longest);
        struct lane *l = &read->lane[i];
        *l = lane_of(read, c, head, thread);
        l->picked = u->picked = read_picks(read, c);
        l->c.q = l->picked ? NULL : l->c.q;
        l->use = use_of(l, behind);
        n = read_sets_of(read, c->n_tok, l->picked);
        if (l->use == USE_NONE)
            finish_lane(l);
        else if (n > 0)
            ask(l, n);
        else
            choose_at_once(l, thread);
        u->tally.seconds += pi_time_s() - start;
    }
}

/* The policy's scores out of the device's. */
static void take_scores(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct turn *t = ctx;
    struct read *read = t->read;
    for (int64_t i = begin; i < end; i++) {
        struct lane *l = &read->lane[i];
        if (l->use == USE_NONE || l->picked)
            continue;
        double start = pi_time_s();
        l->work = &read->work[thread];
        l->c.scratch = l->work->policy;
        read->config.policy->score(&read->config.params, &l->view, &l->c, l->score);
        l->unit->tally.seconds += pi_time_s() - start;
    }
}

static void finish_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct turn *t = ctx;
    for (int64_t i = begin; i < end; i++) {
        struct lane *l = &t->read->lane[i];
        if (l->use == USE_NONE)
            continue;
        double start = pi_time_s();
        l->work = &t->read->work[thread];
        l->c.scratch = l->work->policy;
        finish_lane(l);
        l->unit->tally.seconds += pi_time_s() - start;
    }
}

/* The jobs of the lanes that wait, packed: with vectors of the device, or of the host. Returns
   their number. */
static int32_t pack_score_jobs(struct read *read, int32_t n_lane, bool picked, int64_t *work)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_lane; i++) {
        const struct lane *l = &read->lane[i];
        const struct kv_score_job *jobs = read->score_job + (size_t)i * (size_t)read->n_row;
        if (l->use == USE_NONE || l->picked != picked)
            continue;
        for (int32_t j = 0; j < read_sets_of(read, l->c.n_tok, picked); j++) {
            *work += (int64_t)jobs[j].n * jobs[j].n_q * read->model.g.dim_k;
            read->packed_job[n++] = jobs[j];
        }
    }
    return n;
}

static int32_t pack_choices(struct read *read, int32_t n_lane, bool picked, int64_t *work)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_lane; i++) {
        const struct lane *l = &read->lane[i];
        if (l->use == USE_NONE || l->picked != picked)
            continue;
        n += choices_of(l, read->choose_job + n);
        *work += (int64_t)l->c.n * CHOICE_WORK;
    }
    return n;
}

/* Scores and choices of those lanes on the device. */
static void score_part(struct turn *t, int32_t n_lane, bool picked, int32_t n_thread)
{
    struct read *read = t->read;
    struct pi_stream *stream = read_stream_of(read, t->chunks->layer);
    struct kv_score_list scores = {.jobs = read->packed_job,
                                   .there = picked,
                                   .scratch = read->score_scratch,
                                   .scratch_size = read->score_size};
    struct kv_choose_list choices = {.jobs = read->choose_job,
                                     .scratch = read->choose_scratch,
                                     .scratch_size = read->choose_size};
    double start = pi_time_s(), spent;
    scores.n = pack_score_jobs(read, n_lane, picked, &scores.work);
    if (scores.n == 0)
        return;
    stream->device->score(stream, &scores);
    spent = pi_time_s() - start;
    if (!picked)
        pi_parallel_items(n_thread, n_lane, take_scores, t);
    start = pi_time_s();
    choices.n = pack_choices(read, n_lane, picked, &choices.work);
    if (picked)
        read_point_choices(read, n_lane);
    stream->device->choose(stream, &choices);
    if (picked)
        read_use_left(read, stream, n_lane);
    spent += pi_time_s() - start;
    for (int32_t i = 0; i < n_lane; i++)
        read->lane[i].unit->tally.seconds += spent / n_lane;
}

/* Multiplications of a layer's lanes, about. */
static int64_t work_of(const struct read *read, const struct pi_pass_chunk *chunks, int32_t n)
{
    int64_t n_scored = 0;
    for (int32_t i = 0; i < n; i++)
        n_scored += kv_lane_len(chunks[i].item->kv, chunks[i].layer, 0);
    return n_scored * read->model.g.n_head * read->model.n_group * read->model.g.dim_k;
}

struct union_turn {
    struct read *read;
    const struct pi_pass_chunk *chunks;
};

static void unite_chunks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct union_turn *t = ctx;
    for (int64_t i = begin; i < end; i++)
        if (!pi_at_some(read_unit_of(t->read, &t->chunks[i], 0)->kept_at))
            unite_choices(t->read, &t->chunks[i], thread);
}

/* Whether some lane of a chunk reads a part. */
static bool reads_part(const struct read *read, const struct pi_pass_chunk *c)
{
    int32_t n;
    for (int32_t h = 0; h < read->model.g.n_head; h++)
        if (read_count_earlier(c, h, &n) && read_budget_for(&read->config.rules, n, c->n_tok) < n)
            return true;
    return false;
}

/* The host needs no queries where nothing is chosen, or where the device makes all vectors. */
static bool looks(void *user, const struct pi_pass_chunk *chunks, int32_t n)
{
    const struct read *read = user;
    enum read_role role = read_role_of(read, chunks->layer);
    if (read_stream_of(read, chunks->layer)->device->weigh == NULL)
        return true;
    for (int32_t i = 0; i < n && (role == READ_OWN || role == READ_SOURCE); i++)
        if (reads_part(read, &chunks[i]) && !read_picks(read, &chunks[i]))
            return true;
    return false;
}

/* Of the host, for a lane whose entries the device chooses. */
#define PICKED_WORK 3000

static void select_lanes(void *user, const struct pi_pass_chunk *chunks, int32_t n)
{
    struct read *read = user;
    struct turn t = {.read = read, .chunks = chunks, .n_unit = n * read->model.g.n_head};
    /* without queries of the host the device makes all vectors */
    int64_t work = chunks->q != NULL ? work_of(read, chunks, n) : PICKED_WORK * t.n_unit;
    int32_t n_thread = read_may_stop(read) ? 1 : pi_threads_worth(read->n_thread, work);
    for (int32_t i = 0; i < n && chunks[i].layer == 0; i++)
        read->item_of[chunks[i].index] = chunks[i].item;
    read_bring(read, chunks, n);
    for (; t.begin < t.n_unit; t.begin += read->n_lane) {
        int32_t n_lane = (int32_t)pi_min(read->n_lane, t.n_unit - t.begin);
        pi_parallel_items(n_thread, n_lane, begin_lanes, &t);
        score_part(&t, n_lane, true, n_thread);
        score_part(&t, n_lane, false, n_thread);
        pi_parallel_items(n_thread, n_lane, finish_lanes, &t);
    }
    if (read->config.policy->unites && read_role_of(read, chunks[0].layer) == READ_SOURCE)
        pi_parallel_items(n_thread, n, unite_chunks, &(struct union_turn){read, chunks});
}

/* Adjusts the output of lanes, one per item. */
static void adjust_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct turn *t = ctx;
    struct read *read = t->read;
    int32_t n_head = read->model.g.n_head;
    size_t group = (size_t)read->model.n_group * (size_t)read->model.g.dim_v;
    for (int64_t i = begin; i < end; i++) {
        int32_t head = (int32_t)(i % n_head);
        const struct pi_pass_chunk *c = &t->chunks[i / n_head];
        struct lane l = lane_of(read, c, head, thread);
        const struct read_rules *r = &read->config.rules;
        if (c->n_slot[head] < 0 || l.unit->picked)
            continue;
        l.c.n_choose = scored_of(r, read_budget_for(r, l.c.n, l.c.n_tok));
        read->config.policy->adjust(&read->config.params, &l.view, &l.c,
                                    c->out + (size_t)head * group, c->out_stride);
    }
}

static void adjust_outputs(void *user, const struct pi_pass_chunk *chunks, int32_t n)
{
    struct read *read = user;
    struct turn t = {.read = read, .chunks = chunks, .n_unit = n * read->model.g.n_head};
    if (read_role_of(read, chunks[0].layer) == READ_OWN)
        pi_parallel_items(pi_threads_worth(read->n_thread, work_of(read, chunks, n)), t.n_unit,
                          adjust_lanes, &t);
}

void read_reader(struct read *read, struct pi_pass_reader *out)
{
    const struct read_policy *p = read->config.policy;
    *out = (struct pi_pass_reader){
        .user = read,
        .chunk = read_chunk_of(&read->config.rules),
        .looks = looks,
        .select = select_lanes,
        .blended = p->blends != NULL ? read_blended : NULL,
        .attended = p->adjust != NULL ? adjust_outputs : NULL,
    };
}
