/*
 * devices.h - the list of devices that engines run on.
 */
#ifndef PI_DEVICES_H
#define PI_DEVICES_H

#include "device/device.h"

/* By name; NULL and "auto": the first GPU that can be used, else the processor. INVALID names the
   devices that there are; another failure says why a GPU cannot be used. */
pith_status pi_device_find(const char *name, struct pi_device **out, pith_error *err);

/* ---- GPUs ---- */

enum { PI_GPU_MOST = 16 };

/* How GPUs are found: by the driver, or by a test. */
struct pi_gpu_list {
    int32_t (*count)(pith_error *why); /* 0, with why in one sentence: none */
    /* Its name and its memory, without opening it. It leaves alone what it does not know. */
    void (*describe)(int32_t i, struct pi_device_report *out);
    pith_status (*open)(int32_t i, struct pi_device **out, pith_error *err);
};

/* For tests: from now on the GPUs are these; NULL: the GPUs of the machine. The list forgets which
   ones are open, and no engine is on one. */
void pi_gpu_list_register(const struct pi_gpu_list *list);

#endif
