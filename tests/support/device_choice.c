/*
 * device_choice.c - the device of a test program's engines and stores, and its kernels. The
 * variables PITH_TEST_DEVICE and PITH_TEST_LEVEL name them, before main. Part of every test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "pith/pith.h"

__attribute__((constructor)) static void choose(void)
{
    const char *name = getenv("PITH_TEST_DEVICE"), *level = getenv("PITH_TEST_LEVEL");
    pith_error err;
    if (level != NULL && pith_cpu_level_set(level, &err) != PITH_OK) {
        fprintf(stderr, "PITH_TEST_LEVEL: %s\n", err.message);
        exit(1);
    }
    if (name == NULL)
        return;
    if (strcmp(name, "checked") != 0) {
        fprintf(stderr, "PITH_TEST_DEVICE: there is no device \"%s\"\n", name);
        exit(1);
    }
    pi_device_choose(&pi_device_checked);
}
