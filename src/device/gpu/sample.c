/*
 * sample.c - the best tokens of rows of logits, which stay on the device.
 */
#include "device/gpu/host.h"

static_assert((int)GPU_BEST == (int)PI_BEST, "as many as the table has");

enum { SMEM = 1024 * sizeof(uint64_t) + 2 * sizeof(int32_t) };

/* Where the results go on the device; 0: no memory. */
static gpu_at run(struct gpu_device *d, const struct pi_best_rows *b, size_t size)
{
    void *keep;
    gpu_at out = gpu_room(d, GPU_ROOM_HOST, size);
    gpu_at list = out != 0 ? gpu_list(d, (size_t)b->n_row * sizeof(gpu_at), &keep) : 0;
    if (list == 0)
        return 0;
    for (int32_t i = 0; i < b->n_row; i++)
        ((gpu_at *)keep)[i] = b->keep[i].at;
    gpu_send(d, list, (size_t)b->n_row * sizeof(gpu_at));
    const struct gpu_best_args args = {.x = b->x.at, .keep = list, .out = out, .n = b->n};
    gpu_run(d, GPU_KERNEL_best_rows, b->n_row, 1, 1, SMEM, &args);
    return out;
}

void gpu_best(struct pi_stream *s, const struct pi_best_rows *b)
{
    struct gpu_device *d = gpu_of_stream(s);
    size_t size = (size_t)b->n_row * sizeof(struct gpu_best);
    gpu_enter_pass(d);
    gpu_at out = gpu_host_room(d, (void **)&d->list, size) ? run(d, b, size) : 0;
    const struct gpu_best *best = (const struct gpu_best *)(void *)d->list;
    if (out != 0) {
        d->driver->get(d->driver, d->list, out, size);
        gpu_fold_clipped(d);
    }
    for (int32_t i = 0; i < b->n_row; i++) {
        bool known = out != 0 && d->driver->failure == NULL;
        b->out[i]->n = known ? best[i].n : 0;
        memcpy(b->out[i]->logit, best[i].logit, known ? sizeof(best[i].logit) : 0);
        memcpy(b->out[i]->id, best[i].id, known ? sizeof(best[i].id) : 0);
    }
    gpu_leave(d);
}
