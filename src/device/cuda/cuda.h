/*
 * cuda.h - NVIDIA GPUs. The driver is looked for when the first one is asked for, so that one
 * program serves machines with and without. A build without nvcc has the same functions, and no
 * GPU.
 */
#ifndef PI_CUDA_H
#define PI_CUDA_H

#include "device/device.h"
#include "device/gpu/card.h"

/* How many there are; 0, and why in one sentence: none. */
int32_t cuda_count(pith_error *err);
/* The name and the memory of number i, without opening it; what is not known stays. */
void cuda_describe(int32_t i, struct pi_device_report *out);
/* Number i of them. UNSUPPORTED, NOMEM with one sentence. */
pith_status cuda_open(int32_t i, struct gpu_card **out, pith_error *err);
void cuda_close(struct gpu_card *card);

#endif
