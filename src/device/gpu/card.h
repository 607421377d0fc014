/*
 * card.h - a GPU, or its emulation: memory, and batches of launches. device/cuda/ has it over
 * libcuda, device/emulated/ for tests. record.c makes batches out of the calls of operations.
 *
 * Order. Batches, `put` and `get` have the effects of running in the order of the calls. alloc,
 * free, map, unmap, touch and drop are at once; free, unmap and drop wait for what was submitted.
 */
#ifndef PI_GPU_CARD_H
#define PI_GPU_CARD_H

#include "base/base.h"
#include "device/gpu/args.h"

struct gpu_launch {
    enum gpu_kernel kernel;
    uint32_t x, y, z; /* blocks; 0 anywhere: nothing is done */
    uint32_t smem;    /* bytes of shared memory of a block */
    const void *args; /* the kernel's struct */
};

/* Lists of batches lie in slots, one after the other, in memory of both the host and the card. */
enum { GPU_N_SLOT = 8 };

/* A copy between the card and memory of alloc_host. */
struct gpu_carry {
    gpu_at at;
    void *host;
    size_t size;
};

struct gpu_batch {
    const struct gpu_launch *launch; /* [n] */
    int32_t n;
    int32_t number; /* of batches since the last wait: the same number, mostly the same kernels */
    /* Lists: size bytes of host go to `lists` before the first launch. */
    int32_t slot;
    gpu_at lists;
    const void *host;
    size_t size;
};

/* Calls come from one thread at a time. Failures are sticky: `failure` has the first one. */
struct gpu_card {
    const char *name; /* as users give it: "cuda:0" */
    const char *text; /* what it is, for people */
    int32_t n_processor;
    uint32_t smem_most;                    /* bytes of shared memory that a block may have */
    uint32_t smem_step;                    /* likewise of the kernel `step`; 0: it is not there */
    uint32_t smem_all;                     /* likewise of some kernels of attention: all */
    bool step;                             /* tokens go by it unless device.h says no */
    bool wgmma;                            /* kernels for Hopper's tensor cores are there */
    bool attend_wgmma;                     /* prompts' attention takes some, likewise */
    double f16_flop_per_s, f32_flop_per_s; /* at most: f16 by tensor cores with sums in f32, and
                                              fused multiply-adds; 0: not known */
    size_t chunk;                          /* bytes that mapped memory is given and taken by */
    const char *failure;                   /* NULL: there was none */

    gpu_at (*alloc)(struct gpu_card *c, size_t size); /* not cleared; 0: none is left */
    void (*free)(struct gpu_card *c, gpu_at at, size_t size);
    /* Memory of the host that kernels reach at *at; NULL: none is left. */
    void *(*alloc_host)(struct gpu_card *c, size_t size, gpu_at *at);
    void (*free_host)(struct gpu_card *c, void *p, size_t size);
    /* Addresses that begin a chunk, which get memory, zeros, by `touch`, and lose it by `drop`; 0:
       none. Both take whole chunks. */
    gpu_at (*map)(struct gpu_card *c, size_t size);
    void (*unmap)(struct gpu_card *c, gpu_at at, size_t size);
    bool (*touch)(struct gpu_card *c, gpu_at at, size_t size);
    void (*drop)(struct gpu_card *c, gpu_at at, size_t size);
    /* When it returns it has read the host's memory. */
    void (*put)(struct gpu_card *c, gpu_at to, const void *host, size_t size);
    void (*get)(struct gpu_card *c, void *host, gpu_at from, size_t size);
    /* Copies from another card. It begins when all earlier calls of both are done, and later calls
       of both come after it. The host does not wait. NULL, or false: the cards do not reach each
       other, and nothing has happened. */
    bool (*fetch)(struct gpu_card *c, gpu_at to, struct gpu_card *other, gpu_at from, size_t size);
    /* It reads the lists later, all else at once. */
    void (*submit)(struct gpu_card *c, const struct gpu_batch *batch);
    /* The host may write to the slot's lists again. */
    void (*claim)(struct gpu_card *c, int32_t slot);
    void (*wait)(struct gpu_card *c);
    /* Copies of mapped memory out to the host, or in, beside what comes later. They begin when all
       before is done, one after the other. Calls after `settle` come after them. `carried` waits
       for them, as unmap and drop do. */
    void (*carry)(struct gpu_card *c, const struct gpu_carry *list, int32_t n, bool out);
    void (*settle)(struct gpu_card *c);
    void (*carried)(struct gpu_card *c);
    void (*memory)(struct gpu_card *c, size_t *free, size_t *total);
};

/* Bytes of shared memory that blocks of a kernel may have. */
static inline uint32_t gpu_smem_of(const struct gpu_card *c, enum gpu_kernel kernel)
{
    if (kernel == GPU_KERNEL_step && c->smem_step > 0)
        return c->smem_step;
    bool large = kernel >= GPU_KERNEL_attend_wgmma_f16 && kernel <= GPU_KERNEL_attend_part_16;
    return large ? c->smem_all : c->smem_most;
}

#endif
