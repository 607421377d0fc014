/*
 * lanes.c - appending and attention, which read tables and positions of lanes. The host goes on to
 * change these, so that an operation that waits has copies of the lanes that it names. Attention
 * that notes or shows its weights runs at once, and so does appending that leaves norms in the
 * host's marks: both write host memory.
 */
#include "device/checked/checked.h"
#include "device/cpu/cpu.h"
#include "device/cpu/pages.h"

/* ---- copies of lanes ---- */

/* The positions of a lane's pages, in a class of its own. */
static bool copy_positions(struct checked_queue *q, struct kv_lane *lane)
{
    struct kv_class *kind = checked_keep(q, lane->kind, sizeof(*kind));
    int32_t low = INT32_MAX, high = 0, len = lane->kind->page_len;
    for (int32_t i = 0; i < lane->n_live; i++) {
        low = (int32_t)pi_min(low, lane->table[i].page);
        high = (int32_t)pi_max(high, lane->table[i].page);
    }
    if (kind == NULL || lane->n_live == 0)
        return kind != NULL;
    const int32_t *from = kv_page_pos(kind, low);
    const int32_t *pos =
        checked_keep(q, from, (size_t)(high - low + 1) * (size_t)len * sizeof(*pos));
    if (pos == NULL)
        return false;
    /* the place of page number 0's positions: pages below `low` are not read */
    kind->pos = (int32_t *)((uintptr_t)pos - (size_t)low * (size_t)len * sizeof(*pos));
    lane->kind = kind;
    return true;
}

static bool copy_lane(struct checked_queue *q, struct kv_lane *lane, bool positions)
{
    lane->table = checked_keep(q, lane->table, (size_t)lane->n_page * sizeof(*lane->table));
    return lane->table != NULL && (!positions || copy_positions(q, lane));
}

/* A sequence of which n lanes of a layer may be read, from a head on; NULL: there is no room. */
static struct kv_seq *copy_lanes(struct checked_queue *q, const struct kv_seq *seq, int32_t layer,
                                 int32_t head, int32_t n, bool positions)
{
    struct kv_seq *copy = checked_keep(q, seq, sizeof(*seq));
    if (copy == NULL)
        return NULL;
    copy->lane = checked_keep(q, seq->lane, (size_t)kv_lane_count(seq->cache) * sizeof(*seq->lane));
    copy->table = NULL;
    copy->marks = NULL;
    for (int32_t i = 0; copy->lane != NULL && i < n; i++)
        if (!copy_lane(q, kv_lane_at(copy, layer, head + i), positions))
            return NULL;
    return copy->lane != NULL ? copy : NULL;
}

/* ---- appending ---- */

struct append {
    struct kv_append *jobs;
    int32_t n;
};

/* Jobs of a sequence stand side by side. */
static bool append_copy(struct checked_queue *q, void *args)
{
    struct append *a = args;
    const struct kv_append *from = a->jobs;
    a->jobs = checked_keep(q, from, (size_t)a->n * sizeof(*from));
    for (int32_t i = 0; a->jobs != NULL && i < a->n; i++) {
        const struct kv_append *f = &from[i];
        bool same = i > 0 && f->seq == f[-1].seq && f->layer == f[-1].layer;
        a->jobs[i].seq = same ? a->jobs[i - 1].seq
                              : copy_lanes(q, f->seq, f->layer, 0, f->seq->cache->g.n_head, false);
        if (a->jobs[i].seq == NULL)
            return false;
    }
    return a->jobs != NULL;
}

static void append_run(struct pi_stream *inner, const void *args)
{
    const struct append *a = args;
    cpu_append(inner, a->jobs, a->n);
}

static const struct checked_kind append = {sizeof(struct append), append_copy, append_run};

void checked_append(struct pi_stream *s, const struct kv_append *jobs, int32_t n)
{
    const struct append args = {(struct kv_append *)jobs, n};
    bool norms = false;
    for (int32_t i = 0; i < n; i++)
        norms = norms || jobs[i].seq->cache->value_norm;
    if (s != NULL && !norms) {
        checked_ask(s, &append, &args);
        return;
    }
    checked_wait(s);
    checked_enter(CHECKED_ALL);
    cpu_append(s != NULL ? checked_inner(s) : NULL, jobs, n);
    checked_leave(CHECKED_ALL);
}

/* ---- attention ---- */

static bool attend_copy(struct checked_queue *q, void *args)
{
    struct kv_attend_job *job = args;
    const struct kv_seq *guests = job->guests;
    job->seq = copy_lanes(q, job->seq, job->layer, job->head, 1, true);
    if (guests != NULL)
        job->guests = copy_lanes(q, guests, job->layer, job->head, 1, true);
    if (job->slots != NULL) {
        job->slots = checked_keep(q, job->slots, (size_t)job->n_slot * sizeof(*job->slots));
        if (job->slots == NULL)
            return false;
    }
    return job->seq != NULL && (guests == NULL || job->guests != NULL);
}

static void attend_run(struct pi_stream *inner, const void *args)
{
    cpu_attend_one(args, cpu_scratch(cpu_stream_of(inner), 0));
}

static const struct checked_kind attend = {sizeof(struct kv_attend_job), attend_copy, attend_run};

/* A call that notes or shows weights writes host memory. The caller's functions are the host's: the
   memory is closed to them. */
static void attend_now(struct pi_stream *s, const struct kv_attend_list *list, int64_t unit,
                       int32_t turn, const struct kv_attend_job *job)
{
    checked_wait(s);
    checked_enter(CHECKED_ALL);
    attend_run(checked_inner(s), job);
    checked_leave(CHECKED_ALL);
    if (list->done != NULL)
        list->done(list->ctx, unit, turn, job, 0);
}

/* From the last unit to the first. */
void checked_attend(struct pi_stream *s, const struct kv_attend_list *list)
{
    struct kv_attend_job job;
    for (int64_t i = list->n - 1; i >= 0; i--)
        for (int32_t turn = 0; list->job(list->ctx, i, turn, 0, &job); turn++) {
            if (list->done != NULL || job.tap != NULL) {
                attend_now(s, list, i, turn, &job);
                continue;
            }
            assert(job.q == NULL && job.out == NULL && job.n_note == 0);
            checked_ask(s, &attend, &job);
        }
}

/* ---- scores and choices: their results are the host's ---- */

void checked_score(struct pi_stream *s, const struct kv_score_list *list)
{
    checked_wait(s);
    checked_enter(CHECKED_PAGES);
    cpu_score(checked_inner(s), list);
    checked_leave(CHECKED_PAGES);
}

void checked_choose(struct pi_stream *s, const struct kv_choose_list *list)
{
    cpu_choose(checked_inner(s), list);
}
