/*
 * devices.h - the list of devices that engines run on.
 */
#ifndef PI_DEVICES_H
#define PI_DEVICES_H

#include "device/device.h"

/* By name; NULL and "auto": the first GPU that can be used, else the processor. INVALID names the
   devices that there are; another failure says why a GPU cannot be used. */
pith_status pi_device_find(const char *name, struct pi_device **out, pith_error *err);

#endif
