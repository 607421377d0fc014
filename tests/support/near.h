/* near.h - numbers that are close, as a test expects them. */
#ifndef PI_TEST_NEAR_H
#define PI_TEST_NEAR_H

#include <math.h>

#include "device/device.h"
#include "testing.h"

static inline void near(double a, double b, double tolerance)
{
    if (!(fabs(a - b) <= tolerance))
        fail_msg("%.9g is not %.9g within %g", a, b, tolerance);
}

/* By how much attention over values near 1 may be off. Devices of another kind than the processor's
   round what goes into it to f16 (docs/gpu.md). */
static inline double attention_error(void)
{
    return pi_device_default()->floats ? 1e-3 : 0.0;
}

/* |a - ref| / |ref| */
static inline double relative_error(const float *a, const double *ref, size_t n)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        off += (a[i] - ref[i]) * (a[i] - ref[i]);
        all += ref[i] * ref[i];
    }
    return sqrt(off / all);
}

/* Of float vectors in doubles, a term after another. */
static inline double dot(const float *a, const float *b, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

#endif
