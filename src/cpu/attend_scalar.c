/* attend_scalar.c - kernels of attention for this level. */
#include "cpu/kernels.h"

void pi_attend_init_scalar(struct pi_attend_kernels *k) { (void)k; }
