/*
 * learn.c - what policies remember of the rows of a pass, where the rows are (kv/learn.h).
 */
#include "device/gpu/host.h"
#include "kv/learn.h"

void gpu_learn(struct pi_stream *s, const struct kv_learn_list *list)
{
    struct gpu_device *d = gpu_of_stream(s);
    size_t size = (size_t)list->n * sizeof(struct gpu_learn_job);
    int64_t most_n = 0, most_tok = 0;
    void *host;
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
                                       .n_ring = job->n_ring};
        most_n = pi_max(most_n, job->n);
        most_tok = pi_max(most_tok, pi_min(job->n_tok, job->n_ring));
    }
    if (args.jobs != 0) {
        gpu_send(d, args.jobs, size);
        gpu_run(d, GPU_KERNEL_learn_ring, pi_ceil_div(most_n, 256), list->n, most_tok, 0, &args);
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
