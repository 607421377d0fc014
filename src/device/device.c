/*
 * device.c - the default device: the processor, or that of a test program.
 */
#include "device/device.h"

static struct pi_device *of_tests; /* set before the first call of others */

struct pi_device *pi_device_default(void)
{
    return of_tests != NULL ? of_tests : &pi_device_cpu;
}

struct pi_device *pi_device_of_tests(void)
{
    return of_tests;
}

struct pi_device *pi_device_register(struct pi_device *d)
{
    struct pi_device *was = of_tests;
    of_tests = d;
    return was;
}
