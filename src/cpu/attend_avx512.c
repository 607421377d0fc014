/* attend_avx512.c - kernels of attention for this level. */
#include "cpu/kernels.h"

void pi_attend_init_avx512(struct pi_attend_kernels *k) { (void)k; }
