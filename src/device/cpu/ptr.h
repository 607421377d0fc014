/*
 * ptr.h - addresses of devices whose memory is this process's, for their own files alone. Addresses
 * of device/checked/ have a bit set that no pointer has.
 */
#ifndef PI_DEVICE_PTR_H
#define PI_DEVICE_PTR_H

#include "device/device.h"

/* Processors refuse such an address. On x86-64 it is not canonical, or above the addresses that
   systems give a program. On AArch64 it is the kernel's, even where tags of the top byte are
   allowed. */
#define PI_AT_HIDDEN ((uintptr_t)1 << 55)

static inline void *pi_cpu_ptr(struct pi_at a)
{
    return (void *)(a.at & ~PI_AT_HIDDEN);
}

/* NULL for none. */
static inline float *pi_cpu_floats(struct pi_at a)
{
    return pi_cpu_ptr(a);
}

static inline int32_t *pi_cpu_ints(struct pi_at a)
{
    return pi_cpu_ptr(a);
}

static inline struct pi_matrix pi_cpu_matrix(const struct pi_weight *w)
{
    return (struct pi_matrix){w->type,    w->n_row,       w->n_col,
                              w->n_group, w->group_bytes, pi_cpu_ptr(w->data)};
}

#endif
