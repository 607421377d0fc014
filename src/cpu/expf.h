/*
 * expf.h - one exponential for all kernels, with the same bits at every level. Each step is a fused
 * or a plain operation in a fixed order. So kernels may compute 1, 4, 8 or 16 values at a time. For
 * x in [PI_EXP_MIN, PI_EXP_MAX], with an error below 1.5 units in the last place:
 *
 *   t = fma(x, 1/ln 2, 1.5 * 2^23), n = t - 1.5 * 2^23        (rounds x / ln 2 to nearest even)
 *   r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x)), |r| <= ln 2 / 2
 *   y = 1 + r + r^2 (C2 + C3 r + ... + C6 r^4) by Horner's rule, each step an fma
 *   exp(x) = y * 2^n, by adding n to the exponent's bits
 *
 * C2..C6 minimise the relative error of y with C0 = C1 = 1 (5e-9, by Lawson's iteration). LN2_HIGH
 * has 15 bits, so that n * LN2_HIGH is exact. exp(0) = 1 exactly.
 */
#ifndef PI_EXPF_H
#define PI_EXPF_H

#include <math.h>

#include "base/half.h"

#define PI_EXP_MIN (-87.0f)
#define PI_EXP_MAX 88.0f
#define PI_EXP_LOG2E 0x1.715476p+0f
#define PI_EXP_MAGIC 0x1.8p+23f
#define PI_EXP_LN2_HIGH 0x1.62e4p-1f
#define PI_EXP_LN2_LOW 0x1.7f7d1cp-20f
#define PI_EXP_C2 0x1.fffffcp-2f
#define PI_EXP_C3 0x1.555492p-3f
#define PI_EXP_C4 0x1.5558f2p-5f
#define PI_EXP_C5 0x1.1239e2p-7f
#define PI_EXP_C6 0x1.6a2434p-10f

/* x is within the range. */
static inline float pi_expf(float x)
{
    float t = fmaf(x, PI_EXP_LOG2E, PI_EXP_MAGIC);
    float n = t - PI_EXP_MAGIC;
    float r = fmaf(n, -PI_EXP_LN2_LOW, fmaf(n, -PI_EXP_LN2_HIGH, x));
    float y = fmaf(PI_EXP_C6, r, PI_EXP_C5);
    y = fmaf(y, r, PI_EXP_C4);
    y = fmaf(y, r, PI_EXP_C3);
    y = fmaf(y, r, PI_EXP_C2);
    y = fmaf(y, r, 1.0f);
    y = fmaf(y, r, 1.0f);
    /* The low bits of t hold n; shifted, they add to y's exponent. */
    return pi_f32_from_bits(pi_bits_from_f32(y) + (pi_bits_from_f32(t) << 23));
}

#endif
