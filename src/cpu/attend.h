/* attend.h - kernels of attention over pages. */
#ifndef PI_ATTEND_H
#define PI_ATTEND_H

#include "base/base.h"

struct pi_attend_kernels {
    int placeholder;
};

#endif
