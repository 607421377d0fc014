/* matmul_avx2.h - the parts of the AVX2 level, for its init function. */
#ifndef PI_MATMUL_AVX2_H
#define PI_MATMUL_AVX2_H

#include "cpu/matmul.h"

/* Sets the products of all quantised types. */
void pi_matmul_init_avx2_quant(struct pi_matmul_kernels *k);

#endif
