/*
 * device.c - the list of devices, and which one a name means.
 */
#include "device/device.h"

static struct pi_device *const devices[] = {&pi_device_cpu};

static struct pi_device *of_tests; /* set before anything asks */

int32_t pi_device_count(void)
{
    return (int32_t)PI_LEN(devices);
}

struct pi_device *pi_device_at(int32_t i)
{
    return devices[i];
}

struct pi_device *pi_device_find(const char *name)
{
    if (name == NULL || strcmp(name, "auto") == 0)
        return of_tests != NULL ? of_tests : devices[0];
    if (of_tests != NULL && strcmp(name, of_tests->name) == 0)
        return of_tests;
    for (size_t i = 0; i < PI_LEN(devices); i++)
        if (strcmp(name, devices[i]->name) == 0)
            return devices[i];
    return NULL;
}

struct pi_device *pi_device_register(struct pi_device *d)
{
    struct pi_device *was = of_tests;
    of_tests = d;
    return was;
}
