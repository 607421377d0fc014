/*
 * sample.c - the best tokens of rows of logits, which stay on the device.
 */
#include "device/gpu/host.h"

static_assert((int)GPU_BEST == (int)PI_BEST, "as many as the table has");

enum { SMEM = 1024 * sizeof(uint64_t) + 2 * sizeof(int32_t) };

/* The list has the places of copies, then the results. */
void gpu_best(struct pi_stream *s, const struct pi_best_rows *b)
{
    struct gpu_device *d = gpu_of_stream(s);
    size_t n = (size_t)b->n_row, at = n * sizeof(gpu_at), size = n * sizeof(struct gpu_best);
    void *host;
    gpu_enter(d);
    gpu_at list = gpu_list(d, at + size, &host);
    for (size_t i = 0; i < n; i++)
        b->out[i]->n = 0;
    if (list != 0) {
        const struct gpu_best_args args = {.x = b->x.at, .keep = list, .out = list + at, .n = b->n};
        for (size_t i = 0; i < n; i++)
            ((gpu_at *)host)[i] = b->keep[i].at;
        gpu_send(d, list, at);
        gpu_run(d, GPU_KERNEL_best_rows, b->n_row, 1, 1, SMEM, &args);
        struct gpu_best *best = (struct gpu_best *)(void *)((uint8_t *)host + at);
        d->driver->get(d->driver, best, list + at, size);
        gpu_fold_clipped(d);
        for (size_t i = 0; i < n; i++) {
            b->out[i]->n = best[i].n;
            memcpy(b->out[i]->logit, best[i].logit, sizeof(best[i].logit));
            memcpy(b->out[i]->id, best[i].id, sizeof(best[i].id));
        }
    }
    gpu_leave(d);
}
