/*
 * gpu_count.h - launches of kernels on an emulated card, counted.
 */
#ifndef PI_TEST_GPU_COUNT_H
#define PI_TEST_GPU_COUNT_H

#include <string.h>

#include "device/gpu/host.h"

static int32_t gpu_launches[GPU_N_KERNEL], gpu_blocks[GPU_N_KERNEL]; /* blocks: along x */
static void (*gpu_submit)(struct gpu_card *c, const struct gpu_batch *batch);

static void gpu_counted_submit(struct gpu_card *c, const struct gpu_batch *batch)
{
    for (int32_t i = 0; i < batch->n; i++) {
        gpu_launches[batch->launch[i].kernel]++;
        gpu_blocks[batch->launch[i].kernel] += (int32_t)batch->launch[i].x;
    }
    gpu_submit(c, batch);
}

/* Counts the card's launches, from none on. All emulated cards submit alike. */
static inline void gpu_count(struct gpu_card *card)
{
    if (card->submit != gpu_counted_submit) {
        gpu_submit = card->submit;
        card->submit = gpu_counted_submit;
    }
    memset(gpu_launches, 0, sizeof(gpu_launches));
    memset(gpu_blocks, 0, sizeof(gpu_blocks));
}

/* Launches of kernels that follow each other. */
static inline int32_t gpu_launches_of(enum gpu_kernel first, enum gpu_kernel last)
{
    int32_t n = 0;
    for (int32_t k = (int32_t)first; k <= (int32_t)last; k++)
        n += gpu_launches[k];
    return n;
}

#endif
