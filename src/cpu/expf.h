/*
 * expf.h - one exponential for all kernels, the same bits at every level: each step is a fused or a
 * plain operation in a fixed order, so it may be taken 1, 4, 8 or 16 at a time.
 *
 *   x is held within [-87, 88]; n = round(x log2 e); r = x - n ln 2, |r| <= 0.347
 *   exp(x) = 2^n * p(r),  p the Taylor polynomial of degree 7 (its error there is below 6e-9)
 * Error below 1e-7 relative on the range; below it the result stays exp(-87) ~ 1.6e-38.
 */
#ifndef PI_EXPF_H
#define PI_EXPF_H

#include <math.h>

#include "base/half.h"

#define PI_EXP_MIN -87.0f
#define PI_EXP_MAX 88.0f
#define PI_EXP_LOG2E 1.44269504f
#define PI_EXP_ROUND 12582912.0f      /* 1.5 * 2^23: adding it rounds to an integer */
#define PI_EXP_LN2_HI 0.693145752f    /* 16 bits of ln 2: n times it is exact */
#define PI_EXP_LN2_LO 1.42860677e-6f
/* 1/k! from k = 7 down to 2 */
#define PI_EXP_C7 1.98412698e-4f
#define PI_EXP_C6 1.38888889e-3f
#define PI_EXP_C5 8.33333333e-3f
#define PI_EXP_C4 4.16666667e-2f
#define PI_EXP_C3 1.66666667e-1f
#define PI_EXP_C2 5.0e-1f

static inline float pi_expf(float x)
{
    x = x < PI_EXP_MIN ? PI_EXP_MIN : x;
    x = x > PI_EXP_MAX ? PI_EXP_MAX : x;
    float n = fmaf(x, PI_EXP_LOG2E, PI_EXP_ROUND) - PI_EXP_ROUND;
    float r = fmaf(n, -PI_EXP_LN2_LO, fmaf(n, -PI_EXP_LN2_HI, x));
    float p = fmaf(PI_EXP_C7, r, PI_EXP_C6);
    p = fmaf(p, r, PI_EXP_C5);
    p = fmaf(p, r, PI_EXP_C4);
    p = fmaf(p, r, PI_EXP_C3);
    p = fmaf(p, r, PI_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return p * pi_f32_from_bits((uint32_t)((int32_t)n + 127) << 23);
}

#endif
