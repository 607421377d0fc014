/*
 * device_choice.c - the device of a test program's engines and stores, and its kernels: those that
 * the variables PITH_TEST_DEVICE and PITH_TEST_LEVEL name, before main. The checked device has the
 * scalar kernels unless a level is named; "best" is the processor's best. PITH_TEST_LAYERS is for
 * tests that split models (testing.h). Part of every test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/devices.h"
#include "pith/pith.h"
#ifdef PITH_EMULATED
#include "device/emulated/emulated.h"
#include "device/gpu/device.h"
#endif

/* The processor as a device of its own, beside which layers can be on the processor. */
static struct pi_device *twin(void)
{
    static struct pi_device d;
    memcpy(&d, &pi_device_cpu, sizeof(d));
    d.name = "twin";
    return &d;
}

#ifdef PITH_EMULATED
static struct pi_device *own; /* made here */

static void free_own(void)
{
    gpu_device_free(own);
}

static struct pi_device *emulated(bool hopper)
{
    if (hopper) { /* it multiplies by warp groups, one block's at a time */
        emulated_card()->wgmma = emulated_card()->attend_wgmma = true;
        emulated_card()->n_processor = 1;
    }
    own = gpu_device_make(emulated_card());
    atexit(free_own);
    return own;
}
#endif

/* NULL: there is none of that name. */
static struct pi_device *device_of(const char *name)
{
    if (strcmp(name, "checked") == 0)
        return &pi_device_checked;
    if (strcmp(name, "twin") == 0)
        return twin();
#ifdef PITH_EMULATED
    if (strcmp(name, "emulated") == 0 || strcmp(name, "hopper") == 0)
        return emulated(strcmp(name, "hopper") == 0);
#endif
    struct pi_device *d;
    pith_error err;
    if (pi_device_find(name, &d, &err) == PITH_OK)
        return d;
    fprintf(stderr, "PITH_TEST_DEVICE: %s\n", err.message);
    return NULL;
}

__attribute__((constructor)) static void choose(void)
{
    const char *name = getenv("PITH_TEST_DEVICE"), *level = getenv("PITH_TEST_LEVEL");
    bool checked = name != NULL && strcmp(name, "checked") == 0;
    pith_error err;
    if (level == NULL && checked)
        level = "scalar";
    if (level != NULL && strcmp(level, "best") != 0 && pith_cpu_level_set(level, &err) != PITH_OK) {
        fprintf(stderr, "PITH_TEST_LEVEL: %s\n", err.message);
        exit(1);
    }
    struct pi_device *d = name != NULL ? device_of(name) : &pi_device_cpu;
    if (d == NULL)
        exit(1);
    pi_device_register(d);
}
