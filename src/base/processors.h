/* processors.h - how much of the machine this process may use. */
#ifndef PI_PROCESSORS_H
#define PI_PROCESSORS_H

#include "base/base.h"

/* Processors that the process may run on at the same time, at least 1. */
int32_t pi_processors(void);

#endif
