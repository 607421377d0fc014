/*
 * asked.c - weights of queries over their own lane and over stored entries (kv/asked.h). The lanes'
 * maxima and sums are made one after the other; then they become one softmax. Invariant: a weight
 * depends on the queries, the lane and the stored lane alone.
 */
#include "kv/asked.h"
#include "device/gpu/host.h"

enum { MOST = 32 }; /* jobs that go together */

/* A part of the list on its way. */
struct asking {
    struct gpu_device *d;
    struct kv_asked_job *jobs; /* [n] */
    int32_t n;
    gpu_at own, stored, guests, missed; /* rows of all jobs, and shares */
    struct kv_score_job job[MOST];
};

static int32_t vectors_of(const struct kv_asked_job *job)
{
    return job->pick.n_tok * job->pick.n_group;
}

static int32_t own_len(const struct kv_asked_job *job)
{
    return job->own != NULL ? kv_lane_at(job->own, job->layer, job->head)->len : 0;
}

static int32_t guests_len(const struct kv_asked_job *job)
{
    return job->guests != NULL ? kv_lane_at(job->guests, job->layer, job->head)->len : 0;
}

static struct kv_score_job rows_of(const struct kv_asked_job *job, const struct kv_seq *seq,
                                   int32_t layer, int32_t head)
{
    int32_t n = kv_lane_at(seq, layer, head)->len;
    return (struct kv_score_job){
        .seq = seq,
        .layer = layer,
        .head = head,
        .n = n,
        .kind = KV_SCORE_DOT,
        .reduce = KV_SCORE_SOFTMAX,
        .pick = job->pick,
        .n_q = vectors_of(job),
        .rope = job->rope,
        .soft = {.n_seen = n, .take = job->sums ? KV_TAKE_SUM : KV_TAKE_MOST}};
}

/* Rows of own lanes or of guests, to places of all jobs. Lanes without entries have none: those on
   both sides of one are called for apart. */
static void run_rows(struct asking *a, bool guests, gpu_at at)
{
    gpu_at first = at;
    int32_t n = 0;
    for (int32_t i = 0; i <= a->n; i++) {
        const struct kv_asked_job *job = &a->jobs[i];
        int32_t len = i == a->n ? 0 : guests ? guests_len(job) : own_len(job);
        if (len == 0) {
            const struct gpu_soft_rows rows = {.at = first, .only = true};
            if (n > 0)
                gpu_score_jobs(a->d, a->job, n, &rows);
            n = 0;
        } else {
            first = n == 0 ? at : first;
            a->job[n] = rows_of(job, guests ? job->guests : job->own, job->layer, job->head);
            if (!guests) {
                a->job[n].soft.n_seen = a->job[n].n = len - (job->pick.n_tok - 1);
                a->job[n].soft.grows = true;
            }
            n++;
        }
        at += i < a->n ? gpu_rows_bytes(vectors_of(job)) : 0;
    }
}

/* Where the kernel that joins rows finds the rows of each job; 0: no memory. */
static gpu_at put_jobs(struct asking *a, bool misses)
{
    size_t jobs = (size_t)a->n * sizeof(struct gpu_asked_job), used = pi_align(jobs, 16),
           size = used;
    void *host;
    for (int32_t i = 0; i < a->n; i++) {
        const struct kv_seq *stored = a->jobs[i].stored;
        size += a->jobs[i].centre != NULL ? (size_t)stored->cache->g.dim_k * sizeof(float) : 0;
    }
    gpu_at list = gpu_list(a->d, size, &host), own = a->own, stored = a->stored, guests = a->guests,
           missed = a->missed;
    for (int32_t i = 0; list != 0 && i < a->n; i++) {
        const struct kv_asked_job *job = &a->jobs[i];
        size_t row = gpu_rows_bytes(vectors_of(job));
        size_t dim = (size_t)job->stored->cache->g.dim_k * sizeof(float);
        ((struct gpu_asked_job *)host)[i] =
            (struct gpu_asked_job){.own = own_len(job) > 0 ? own : 0,
                                   .stored = stored,
                                   .guests = misses && guests_len(job) > 0 ? guests : 0,
                                   .centre = job->centre != NULL ? list + used : 0,
                                   .q = job->pick.q.at,
                                   .missed = misses ? missed : 0,
                                   .stride = job->pick.stride,
                                   .n_vector = vectors_of(job),
                                   .n_group = job->pick.n_group,
                                   .factor = job->pick.factor};
        if (job->centre != NULL) {
            memcpy((uint8_t *)host + used, job->centre, dim);
            used += dim;
        }
        own += row, stored += row, guests += row, missed += row;
    }
    if (list != 0)
        gpu_send(a->d, list, size);
    return list;
}

/* The largest share of each job. */
static void take_missed(struct asking *a, size_t size)
{
    struct gpu_device *d = a->d;
    size_t at = 0;
    if (!gpu_host_room(d, &d->rows, size))
        return;
    d->driver->get(d->driver, d->rows, a->missed, size);
    for (int32_t i = 0; i < a->n; i++) {
        const float *x = (const float *)(const void *)((const uint8_t *)d->rows + at);
        a->jobs[i].missed = 0.0f;
        for (int32_t v = 0; v < vectors_of(&a->jobs[i]); v++)
            a->jobs[i].missed = x[v] > a->jobs[i].missed ? x[v] : a->jobs[i].missed;
        at += gpu_rows_bytes(vectors_of(&a->jobs[i]));
    }
}

static void run_part(struct asking *a, bool misses)
{
    size_t size = 0;
    for (int32_t i = 0; i < a->n; i++)
        size += gpu_rows_bytes(vectors_of(&a->jobs[i]));
    a->own = gpu_room(a->d, GPU_ROOM_LOGITS, 4 * size);
    if (a->own == 0)
        return;
    a->stored = a->own + size, a->guests = a->stored + size, a->missed = a->guests + size;
    run_rows(a, false, a->own);
    if (misses)
        run_rows(a, true, a->guests);
    const struct gpu_soft_rows rows = {
        .at = a->stored, .only = misses, .asked = put_jobs(a, misses)};
    for (int32_t i = 0; i < a->n; i++) {
        a->job[i] = rows_of(&a->jobs[i], a->jobs[i].stored, 0, 0);
        a->job[i].out = a->jobs[i].out;
    }
    if (rows.asked == 0 || !gpu_score_jobs(a->d, a->job, a->n, &rows))
        return;
    if (misses)
        take_missed(a, size);
    else
        gpu_score_fetch(a->d, a->job, a->n);
}

void gpu_asked(struct pi_stream *s, const struct kv_asked_list *list)
{
    struct asking a = {.d = gpu_of_stream(s)};
    gpu_enter(a.d);
    for (int32_t i = 0; i < list->n; i += a.n) {
        a.jobs = list->jobs + i;
        a.n = (int32_t)pi_min(MOST, list->n - i);
        run_part(&a, list->misses);
    }
    gpu_leave(a.d);
}
