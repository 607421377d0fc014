/* attend_neon.c - kernels of attention for this level. */
#include "cpu/kernels.h"

void pi_attend_init_neon(struct pi_attend_kernels *k) { (void)k; }
