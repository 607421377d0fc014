/*
 * finite.h - floats that are numbers. The loops have no branches, so that compilers make them wide.
 */
#ifndef PI_FINITE_H
#define PI_FINITE_H

#include "base/base.h"
#include "base/half.h"

#define PI_FINITE_END 0x7f800000u /* magnitudes from here on are infinity and NaN */

/* The largest magnitude of n floats, as its bits: they are ordered as the numbers are, and NaN
   comes behind infinity. */
static inline uint32_t pi_max_magnitude(const float *x, int64_t n)
{
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t bits = (int32_t)(pi_bits_from_f32(x[i]) & 0x7fffffffu);
        most = most < bits ? bits : most;
    }
    return (uint32_t)most;
}

/* The first of n floats that is NaN or infinite; -1: all are finite. */
static inline int64_t pi_find_not_finite(const float *x, int64_t n)
{
    if (pi_max_magnitude(x, n) < PI_FINITE_END)
        return -1;
    for (int64_t i = 0; i < n; i++)
        if ((pi_bits_from_f32(x[i]) & 0x7fffffffu) >= PI_FINITE_END)
            return i;
    return -1;
}

#endif
