/*
 * device.c - the default device.
 */
#include "device/device.h"

static struct pi_device *chosen = &pi_device_cpu;

struct pi_device *pi_device_default(void)
{
    return chosen;
}

void pi_device_choose(struct pi_device *d)
{
    chosen = d;
}
