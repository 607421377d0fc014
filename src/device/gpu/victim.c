/*
 * victim.c - the entries that steps overwrite (kv/victim.h), found where their scores are. The host
 * learns slots when it asks, and waits for no layer.
 */
#include "device/gpu/host.h"
#include "kv/marks_internal.h"
#include "kv/victim.h"

static struct kv_lane *lane_of(const struct kv_victim_job *job, int32_t i)
{
    return kv_lane_at(job->seq, job->layer, job->head + i);
}

static struct gpu_victim_row row_of(const struct kv_victim_job *job, int32_t i)
{
    const struct kv_lane *lane = lane_of(job, i);
    struct gpu_victim_row row = {.score = job->score.at + (size_t)i * job->stride * sizeof(float)};
    if (pi_at_some(job->score))
        return row;
    row.score = gpu_mark_at(job->seq, lane, 0);
    if (job->kind == KV_WEIGH_MARK_MEAN)
        row.seen = gpu_mark_at(job->seq, lane, 1);
    else if (job->kind == KV_WEIGH_MARK_NORM)
        row.norm = gpu_norm_at(job->seq, lane, 0);
    return row;
}

static void put_jobs(const struct kv_victim_list *list, struct gpu_victim *to,
                     struct gpu_victim_row *rows, gpu_at rows_at)
{
    for (int32_t i = 0; i < list->n; i++) {
        const struct kv_victim_job *job = &list->jobs[i];
        const struct kv_lane *lane = lane_of(job, 0);
        to[i] =
            (struct gpu_victim){.rows = rows_at,
                                .place = gpu_mark_at(job->seq, lane, job->seq->cache->n_mark - 1),
                                .out = job->out.at,
                                .n_row = job->n_head,
                                .n = lane->len,
                                .lo = job->lo,
                                .hi = job->hi,
                                .n_sink = (int32_t)pi_min(job->n_sink, lane->len),
                                .mean = job->mean};
        for (int32_t h = 0; h < job->n_head; h++, rows_at += sizeof(*rows))
            *rows++ = row_of(job, h);
    }
}

void gpu_victims(struct pi_stream *s, const struct kv_victim_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    size_t size = pi_align((size_t)list->n * sizeof(struct gpu_victim), 16), n_row = 0;
    void *host;
    gpu_enter(d);
    for (int32_t i = 0; i < list->n; n_row += (size_t)list->jobs[i++].n_head)
        for (int32_t h = 0; h < list->jobs[i].n_head; h++)
            gpu_marks_up(d, list->jobs[i].seq, lane_of(&list->jobs[i], h),
                         lane_of(&list->jobs[i], h)->len);
    size_t whole = size + n_row * sizeof(struct gpu_victim_row);
    gpu_at at = list->n > 0 ? gpu_list(d, whole, &host) : 0;
    if (at != 0) {
        const struct gpu_victim_args args = {.victims = at};
        put_jobs(list, host, (struct gpu_victim_row *)(void *)((uint8_t *)host + size), at + size);
        gpu_send(d, at, whole);
        gpu_run(d, GPU_KERNEL_victims, list->n, 1, 1, 128, &args);
    }
    gpu_leave(d);
}
