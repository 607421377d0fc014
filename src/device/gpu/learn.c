/*
 * learn.c - what policies remember of the rows of a pass, and what they predict of new entries,
 * where the rows are (kv/learn.h).
 */
#include "device/gpu/host.h"
#include "kv/learn.h"
#include "kv/marks_internal.h"

static_assert(KV_PREDICT_KEY == 0 && KV_PREDICT_HIDDEN == 1 && KV_PREDICT_NETWORK == 2,
              "kinds of learn.cuh");

/* ---- what is remembered ---- */

void gpu_learn(struct pi_stream *s, const struct kv_learn_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    const struct kv_learn_job *any = &list->jobs[0];
    size_t size = (size_t)list->n * sizeof(struct gpu_learn_job);
    bool ring = any->kind == KV_LEARN_RING;
    int64_t most_n = 0, most_tok = 0;
    void *host;
    for (int32_t i = 0; i < list->n; i++)
        most_tok = pi_max(most_tok, list->jobs[i].n_tok);
    if (most_tok == 0) /* nothing counts */
        return;
    gpu_enter_pass(d);
    struct gpu_learn_args args = {.jobs = gpu_list(d, size, &host)};
    struct gpu_learn_job *to = host;
    for (int32_t i = 0; args.jobs != 0 && i < list->n; i++) {
        const struct kv_learn_job *job = &list->jobs[i];
        to[i] = (struct gpu_learn_job){.from = job->from.at,
                                       .to = job->to.at,
                                       .n_tok = job->n_tok,
                                       .n = job->n,
                                       .pos = job->pos,
                                       .n_ring = job->n_ring,
                                       .dim = ring ? 0 : job->n / job->n_head,
                                       .square = job->square,
                                       .begins = job->begins,
                                       .n_pair = job->n_pair,
                                       .n_flat = job->n_flat,
                                       .adjacent = job->adjacent};
        most_n = pi_max(most_n, job->n);
    }
    if (args.jobs != 0) {
        gpu_send(d, args.jobs, size);
        if (ring)
            gpu_run(d, GPU_KERNEL_learn_ring, pi_ceil_div(most_n, 256), list->n,
                    pi_min(most_tok, any->n_ring), 0, &args);
        else if (any->kind == KV_LEARN_PAIRS)
            gpu_run(d, GPU_KERNEL_learn_pairs, pi_ceil_div(any->n_pair + any->n_flat, 128),
                    any->n_head, list->n, 0, &args);
        else
            gpu_run(d, GPU_KERNEL_learn_moments, 1 + (any->square ? any->n / any->n_head : 0),
                    any->n_head, list->n, 0, &args);
    }
    gpu_leave(d);
}

void gpu_clone(struct pi_device *device, struct pi_at to, struct pi_at from, size_t size)
{
    struct gpu_device *d = gpu_of(device);
    gpu_enter_pass(d);
    d->driver->copy(d->driver, to.at, from.at, size);
    gpu_leave(d);
}

/* ---- what is predicted ---- */

/* Whether two jobs have the neurons of the same tokens. */
static bool shares(const struct kv_predict_job *a, const struct kv_predict_job *b)
{
    return a->seq == b->seq && a->h.at == b->h.at && a->neuron.at == b->neuron.at;
}

static gpu_at put_jobs(struct gpu_device *d, const struct kv_predict_list *list, gpu_at room,
                       int32_t *most_tok)
{
    size_t size = (size_t)list->n * sizeof(struct gpu_predict_job);
    void *host;
    gpu_at at = gpu_list(d, size, &host);
    struct gpu_predict_job *to = host;
    for (int32_t i = 0; at != 0 && i < list->n; i++) {
        const struct kv_predict_job *job = &list->jobs[i];
        struct kv_lane *lane = kv_lane_at(job->seq, job->layer, job->head);
        bool first = i == 0 || !shares(job, job - 1);
        if (first && i > 0)
            room += (size_t)job[-1].n_tok * (size_t)job[-1].n_neuron * sizeof(float);
        gpu_marks_up(d, job->seq, lane, lane->len);
        to[i] = (struct gpu_predict_job){.mark = gpu_mark_at(job->seq, lane, 0),
                                         .k = job->k.at,
                                         .v = job->v.at,
                                         .h = job->h.at,
                                         .weight = job->weight.at,
                                         .low = job->low.at,
                                         .high = job->high.at,
                                         .neuron = job->neuron.at,
                                         .out = room,
                                         .k_stride = job->k_stride,
                                         .v_stride = job->v_stride,
                                         .n_tok = job->n_tok,
                                         .slot = job->slot,
                                         .behind = lane->len - job->n_tok,
                                         .n = job->n,
                                         .dim_v = job->dim_v,
                                         .n_neuron = job->n_neuron,
                                         .first = first};
        *most_tok = (int32_t)pi_max(*most_tok, job->n_tok);
    }
    if (at != 0)
        gpu_send(d, at, size);
    return at;
}

void gpu_predict(struct pi_stream *s, const struct kv_predict_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    const struct kv_predict_job *any = &list->jobs[0];
    size_t n_room = 0;
    int32_t most = 0;
    gpu_enter_pass(d);
    for (int32_t i = 0; i < list->n; i++)
        if (i == 0 || !shares(&list->jobs[i], &list->jobs[i - 1]))
            n_room += (size_t)list->jobs[i].n_tok * (size_t)list->jobs[i].n_neuron;
    gpu_at room = gpu_room(d, GPU_ROOM_PART, n_room * sizeof(float) + 256);
    struct gpu_predict_args args = {.kind = (int32_t)any->kind};
    args.jobs = room != 0 ? put_jobs(d, list, room, &most) : 0;
    if (args.jobs != 0 && any->kind == KV_PREDICT_HIDDEN)
        gpu_run(d, GPU_KERNEL_predict_hidden, pi_ceil_div(most, 8), list->n, 1, 0, &args);
    else if (args.jobs != 0 && any->kind == KV_PREDICT_NETWORK)
        gpu_run(d, GPU_KERNEL_predict_neurons, pi_ceil_div(any->n_neuron, 8), list->n,
                pi_ceil_div(most, GPU_PREDICT_TOKENS), 0, &args);
    if (args.jobs != 0 && any->kind != KV_PREDICT_HIDDEN)
        gpu_run(d, GPU_KERNEL_predict_marks, most, list->n, 1, 128 * sizeof(double), &args);
    gpu_leave(d);
}
