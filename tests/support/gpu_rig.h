/*
 * gpu_rig.h - the device of GPU kind of a test program: the one that PITH_TEST_DEVICE names, else
 * an emulation of the program's own.
 */
#ifndef PI_TEST_GPU_RIG_H
#define PI_TEST_GPU_RIG_H

#include <stdlib.h>

#include "device/device.h"
#include "device/emulated/emulated.h"
#include "device/gpu/device.h"
#include "mem_used.h"
#include "testing.h"

static struct pi_device *the_gpu;

static inline bool gpu_is_own(void)
{
    return getenv("PITH_TEST_DEVICE") == NULL;
}

static inline struct pi_device *gpu(void)
{
    if (the_gpu == NULL)
        the_gpu = gpu_is_own() ? gpu_device_make(emulated_card()) : pi_device_default();
    assert_non_null(the_gpu);
    return the_gpu;
}

/* Frees it where it is the program's own, and looks for leaks. */
static inline void free_gpu(void)
{
    if (!gpu_is_own())
        return;
    gpu_device_free(the_gpu);
    mem_check(NULL);
}

#endif
