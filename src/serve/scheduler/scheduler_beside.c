/*
 * scheduler_beside.c - one budget for pages and what stands beside them. Each sequence has tables,
 * tokens and what its policies remember, and a short one may have more of that than of pages. The
 * budget leaves the pool a limit beside all of these. Growth that running answers may have counts
 * as if it were there. A parked conversation that gives way gives its pages and the rest.
 *
 * The engine's buffers count as they are, or as the longest running answer may make them.
 * Sequences in host memory count against the scheduler's swap_bytes, with all that they have.
 *
 * Invariant: pages within the limit and all that is counted here are within the budget. One
 * conversation that runs alone has all pages of the pool, as the budget was split for it. Pages
 * that were set aside for an answer stay its own, whatever the limit.
 */
#include "serve/scheduler/scheduler.h"

#include "base/ranks.h"

#define AHEAD 64 /* tokens beyond its target that an answer is counted for at a time */

static int64_t known_of(const struct pi_own *own)
{
    return own->tables + own->text;
}

void scheduler_beside_begin(struct pith_scheduler *s)
{
    s->beside.room = pi_engine_room(s->engine);
    s->beside.limit = s->kv_bytes;
    s->beside.engine = -1;
}

/* ---- counting ---- */

void scheduler_beside_park(struct pith_scheduler *s, struct slot *slot, int sign)
{
    if (sign > 0)
        slot->own = pi_seq_own(slot->seq);
    s->beside.parked += sign * pi_own_sum(&slot->own);
    s->beside.known += sign * known_of(&slot->own);
    s->beside.engine = -1;
}

void scheduler_beside_away(struct pith_scheduler *s, const struct pi_own *own, int sign)
{
    s->beside.away += sign * known_of(own);
    s->room.swapped += sign * pi_own_sum(own);
    s->beside.engine = -1;
}

void scheduler_beside_look_outside(struct pith_scheduler *s)
{
    int64_t bytes = 0;
    if (s->beside.room == 0)
        return;
    for (const struct pith_seq *seq = s->engine->first; seq != NULL; seq = seq->next) {
        struct pi_own own = pi_seq_own(seq);
        bytes += seq->is_away ? 0 : own.list + own.policy;
    }
    s->beside.outside = pi_max(0, bytes - (s->beside.parked - s->beside.known));
}

/* Bounds of n tokens of an answer's sequence. */
static void look_ahead(struct pith_scheduler *s, struct sched_answer *a, int32_t n)
{
    if (a->beside.n == n)
        return;
    a->beside.n = n;
    a->beside.own_at = pi_engine_own_at(s->engine, n);
    a->beside.shared_at = pi_engine_shared_at(s->engine, n);
}

/* Sums over the running answers: their own bytes, with those that they may come to, and of these
   the known part. shared: the engine's buffers, as large as any of them may need. */
struct running {
    int64_t own, known, shared;
};

static struct running count_running(struct pith_scheduler *s)
{
    struct running sum = {0};
    for (int32_t i = 0; i < s->n_running; i++) {
        struct sched_answer *a = s->running[i];
        if (a->state == ANSWER_ENDED || a->seq == NULL)
            continue;
        int32_t n = pith_seq_length(a->seq) + DRAFT_MOST + 1;
        if (n > pi_max(a->room.target, a->beside.n))
            look_ahead(s, a, n + AHEAD);
        struct pi_own now = pi_seq_own(a->seq);
        int64_t waiting = scheduler_group_size(a) - 1;
        bool reads = a->state == ANSWER_READING;
        sum.own += pi_max(pi_own_sum(&now), a->beside.own_at);
        sum.own += reads ? waiting * a->beside.own_at : 0;
        sum.known += known_of(&now);
        sum.shared = pi_max(sum.shared, a->beside.shared_at);
    }
    return sum;
}

/* Bytes beside pages without parked conversations; another may need `shared` of the buffers. */
static int64_t without_parked(struct pith_scheduler *s, int64_t shared)
{
    if (s->beside.engine < 0)
        s->beside.engine = pi_engine_beside(s->engine);
    struct running run = count_running(s);
    int64_t engine = s->beside.engine - s->beside.away - s->beside.known - run.known;
    return pi_max(engine, pi_max(run.shared, shared)) + s->beside.outside + run.own;
}

/* ---- the limit ---- */

int64_t scheduler_beside_limit(struct pith_scheduler *s, struct sched_answer *a)
{
    if (s->beside.room == 0)
        return s->kv_bytes;
    look_ahead(s, a, (int32_t)pi_min((int64_t)a->room.target + DRAFT_MOST + 1, INT32_MAX));
    int64_t own = scheduler_group_size(a) * a->beside.own_at;
    return pi_min(s->kv_bytes, s->beside.room - without_parked(s, a->beside.shared_at) - own);
}

/* Pages that are promised to what runs. */
static int64_t promised(const struct pith_scheduler *s)
{
    bool alone = s->room.n_active <= 1 && s->stats.n_parked == s->stats.n_parked_swapped;
    if (alone)
        return s->kv_bytes;
    return s->engine->traits.bounded ? s->room.outside + s->room.set_aside : 0;
}

void scheduler_beside_bound(struct pith_scheduler *s)
{
    if (s->beside.room == 0)
        return;
    int64_t limit = s->beside.room - without_parked(s, 0) - s->beside.parked;
    limit = pi_min(s->kv_bytes, pi_max(limit, promised(s)));
    if (s->ranks.role != SCHED_ALONE && !s->ranks.unlike) /* as much on each */
        limit = pi_ranks_least(limit);
    s->step.spare -= pi_max(0, s->beside.limit - limit);
    s->beside.limit = limit;
    kv_cache_set_limit(s->engine->kv, limit);
}

bool scheduler_beside_fits_copy(struct pith_scheduler *s, const struct sched_answer *a)
{
    struct pi_own own = pi_seq_own(a->seq);
    if (s->beside.room == 0 || s->ranks.role != SCHED_ALONE)
        return true;
    for (;;) {
        int64_t used = s->kv_bytes - kv_cache_unlimited_bytes(s->engine->kv);
        int64_t lacks = used + scheduler_growth(s) + s->beside.parked + pi_own_sum(&own) +
                        without_parked(s, 0) - s->beside.room;
        if (lacks <= 0)
            return true;
        s->prefixes_changed = true;
        if ((s->prefix == NULL || prefix_reclaim(s->prefix, lacks) == 0) && !scheduler_slot_give(s))
            return false;
    }
}

void scheduler_beside_settle(struct pith_scheduler *s)
{
    bool idle = s->n_running == 0 && s->room.first == NULL;
    if (s->beside.room == 0 || (idle && s->ranks.role != SCHED_ALONE)) /* others sleep then */
        return;
    s->beside.engine = -1;
    scheduler_beside_bound(s);
    scheduler_make_room(s, 0);
}
