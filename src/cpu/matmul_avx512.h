/* matmul_avx512.h - the parts of the AVX-512 level, for its init function. */
#ifndef PI_MATMUL_AVX512_H
#define PI_MATMUL_AVX512_H

#include "cpu/matmul.h"

/* Sets the products of all quantised types. */
void pi_matmul_init_avx512_quant(struct pi_matmul_kernels *k);

#endif
