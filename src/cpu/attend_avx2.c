/* attend_avx2.c - kernels of attention for this level. */
#include "cpu/kernels.h"

void pi_attend_init_avx2(struct pi_attend_kernels *k) { (void)k; }
