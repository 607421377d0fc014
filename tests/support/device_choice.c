/*
 * device_choice.c - the device of a test program's engines and stores: that which the variable
 * PITH_TEST_DEVICE names, before main. Part of every test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"

__attribute__((constructor)) static void choose(void)
{
    const char *name = getenv("PITH_TEST_DEVICE");
    if (name == NULL)
        return;
    if (strcmp(name, "checked") != 0) {
        fprintf(stderr, "PITH_TEST_DEVICE: there is no device \"%s\"\n", name);
        exit(1);
    }
    pi_device_choose(&pi_device_checked);
}
