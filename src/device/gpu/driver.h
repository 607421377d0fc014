/*
 * driver.h - what the host side asks of a GPU, or of its emulation: memory, copies and launches,
 * one after the other. device/cuda/ has it over libcuda, device/emulated/ for tests.
 */
#ifndef PI_GPU_DRIVER_H
#define PI_GPU_DRIVER_H

#include "base/base.h"
#include "device/gpu/args.h"

struct gpu_launch {
    enum gpu_kernel kernel;
    uint32_t x, y, z; /* blocks; 0 anywhere: nothing is done */
    uint32_t smem;    /* bytes of shared memory of a block */
    const void *args; /* the kernel's struct */
};

/* Calls come from one thread at a time. All but wait and get may return before they are done; what
   they read of the host's they have read. Failures are sticky: `failure` has the first one. */
struct gpu_driver {
    const char *name; /* as users give it: "cuda:0" */
    const char *text; /* what it is, for people */
    int32_t n_processor;
    uint32_t smem_most;                    /* bytes of shared memory that a block may have */
    bool wgmma;                            /* kernels for Hopper's tensor cores are there */
    double f16_flop_per_s, f32_flop_per_s; /* at most: f16 by tensor cores with sums in f32, and
                                              fused multiply-adds; 0: not known */
    const char *failure;                   /* NULL: there was none */

    gpu_at (*alloc)(struct gpu_driver *d, size_t size); /* not cleared; 0: none is left */
    void (*free)(struct gpu_driver *d, gpu_at at, size_t size);
    /* Addresses that get memory, zeros, by `touch`, and lose it by `drop`; 0: none. */
    gpu_at (*map)(struct gpu_driver *d, size_t size);
    void (*unmap)(struct gpu_driver *d, gpu_at at, size_t size);
    bool (*touch)(struct gpu_driver *d, gpu_at at, size_t size);
    void (*drop)(struct gpu_driver *d, gpu_at at, size_t size);
    void (*put)(struct gpu_driver *d, gpu_at to, const void *host, size_t size);
    void (*get)(struct gpu_driver *d, void *host, gpu_at from, size_t size);
    void (*copy)(struct gpu_driver *d, gpu_at to, gpu_at from, size_t size);
    void (*clear)(struct gpu_driver *d, gpu_at at, size_t size);
    void (*launch)(struct gpu_driver *d, const struct gpu_launch *l);
    void (*wait)(struct gpu_driver *d);
    void (*memory)(struct gpu_driver *d, size_t *free, size_t *total);
};

#endif
