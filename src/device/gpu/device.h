/*
 * device.h - a device of GPU kind over a card.
 */
#ifndef PI_GPU_DEVICE_H
#define PI_GPU_DEVICE_H

#include "device/device.h"
#include "device/gpu/card.h"

/* NULL: no memory, of the host or of the device. The card is borrowed until gpu_device_free. */
struct pi_device *gpu_device_make(struct gpu_card *card);
void gpu_device_free(struct pi_device *d);

#endif
