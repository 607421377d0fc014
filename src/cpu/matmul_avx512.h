/* matmul_avx512.h - the parts of the AVX-512 level, for its init function. */
#ifndef PI_MATMUL_AVX512_H
#define PI_MATMUL_AVX512_H

#include "cpu/matmul.h"

/* Sets the products of all quantised types, which are one function. */
void pi_matmul_init_avx512_quant(struct pi_matmul_kernels *k);
pi_matmul_fn pi_matmul_quantised_avx512;

#endif
