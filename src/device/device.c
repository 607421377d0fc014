/*
 * device.c - the list of devices, for this library and its users.
 */
#include <stdio.h>

#include "device/device.h"

static struct pi_device *const devices[] = {&pi_device_cpu};

static struct pi_device *of_tests; /* set before the first call of others */

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

/* ---- for users ---- */

static void describe(struct pi_device *d, pith_device_info *out)
{
    struct pi_device_report report = {.total = -1, .unused = -1};
    d->describe(d, &report);
    *out = (pith_device_info){.name = d->name,
                              .total_bytes = report.total,
                              .free_bytes = report.unused,
                              .used_bytes = atomic_load(&d->bytes)};
    snprintf(out->description, sizeof(out->description), "%s", report.text);
}

int32_t pith_device_count(void)
{
    return (int32_t)PI_LEN(devices);
}

pith_status pith_device_get(int32_t i, pith_device_info *out)
{
    if (i < 0 || i >= pith_device_count())
        return PITH_NOT_FOUND;
    describe(devices[i], out);
    return PITH_OK;
}

/* "cpu, cuda:0" */
static void list_names(char *out, size_t cap)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < PI_LEN(devices) && used < cap; i++)
        used +=
            (size_t)snprintf(out + used, cap - used, "%s%s", i > 0 ? ", " : "", devices[i]->name);
}

pith_status pith_device_find(const char *name, pith_device_info *out, pith_error *err)
{
    struct pi_device *d = pi_device_find(name);
    char names[128];
    if (d == NULL) {
        list_names(names, sizeof(names));
        return pi_fail(err, PITH_INVALID, "device: \"%.64s\" is no device; there are auto, %s",
                       name, names);
    }
    if (out != NULL)
        describe(d, out);
    return PITH_OK;
}
