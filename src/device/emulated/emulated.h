/*
 * emulated.h - a GPU whose kernels run on the processor, for tests.
 */
#ifndef PI_EMULATED_H
#define PI_EMULATED_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/gpu/card.h"

/* The one of the process. */
struct gpu_card *emulated_card(void);

#ifdef __cplusplus
}
#endif

#endif
