/* near.h - numbers that are close, as a test expects them. */
#ifndef PI_TEST_NEAR_H
#define PI_TEST_NEAR_H

#include <math.h>

#include "testing.h"

static inline void near(double a, double b, double tolerance)
{
    if (!(fabs(a - b) <= tolerance))
        fail_msg("%.9g is not %.9g within %g", a, b, tolerance);
}

#endif
