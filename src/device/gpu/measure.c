/*
 * measure.c - the bounds of a GPU. Reading and copying are measured, arithmetic is what the driver
 * says of its processors.
 */
#include <math.h>

#include "base/os.h"
#include "device/gpu/host.h"
#include "pith/inspect.h"

enum { N_ROUND = 4, N_TIME = 4, BLOCKS_OF_PROCESSOR = 16 };
#define MOST_BYTES ((size_t)1 << 29) /* several times the caches */

static void read_all(struct gpu_device *d, gpu_at from, size_t size)
{
    const struct gpu_read_args a = {.from = from, .out = from, .size = size};
    gpu_run(d, GPU_KERNEL_read_all, (int64_t)d->driver->n_processor * BLOCKS_OF_PROCESSOR, 1, 1, 0,
            &a);
}

/* Seconds of one time in the best round. */
static double best_of(struct gpu_device *d, bool copies, gpu_at at, size_t size)
{
    double best = INFINITY;
    for (int32_t i = 0; i < N_ROUND; i++) {
        d->driver->wait(d->driver);
        double start = pi_time_s();
        for (int32_t j = 0; j < N_TIME; j++)
            if (copies)
                d->driver->copy(d->driver, at + size / 2, at, size / 2);
            else
                read_all(d, at, size);
        d->driver->wait(d->driver);
        best = fmin(best, (pi_time_s() - start) / N_TIME);
    }
    return best;
}

pith_status gpu_measure(struct pi_device *device, struct pith_machine *out, pith_error *err)
{
    struct gpu_device *d = gpu_of(device);
    size_t unused, total, size;
    gpu_enter(d);
    d->card->memory(d->card, &unused, &total);
    size = pi_min((int64_t)MOST_BYTES, (int64_t)unused / 4) / 4096 * 4096;
    gpu_at at = size > 0 ? d->driver->alloc(d->driver, size) : 0;
    *out = (struct pith_machine){.f32_flop_per_s = d->card->f32_flop_per_s,
                                 .f16_flop_per_s = d->card->f16_flop_per_s};
    if (at != 0) {
        d->driver->clear(d->driver, at, size);
        out->read_bytes_per_s = (double)size / best_of(d, false, at, size);
        out->copy_bytes_per_s = (double)size / best_of(d, true, at, size);
        d->driver->free(d->driver, at, size);
    }
    gpu_leave(d);
    return at != 0 ? PITH_OK
                   : pi_fail(err, PITH_NOMEM, "no memory of %s for measuring", device->name);
}
