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

/* Whether passes of one token of engines to come go in one launch (step.cuh). False: the card has
   no such kernel. */
bool gpu_device_step(struct pi_device *d, bool on);
/* Whether attention of prompts takes Hopper's products of warp groups where it can
   (attend_wgmma.cuh). False: the card has no such kernels. */
bool gpu_device_wgmma(struct pi_device *d, bool on);

#endif
