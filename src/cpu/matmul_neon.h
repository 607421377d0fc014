/* matmul_neon.h - the parts of the NEON level, for its init function. */
#ifndef PI_MATMUL_NEON_H
#define PI_MATMUL_NEON_H

#include "cpu/matmul.h"

/* Sets the products of all quantised types. */
void pi_matmul_init_neon_quant(struct pi_matmul_kernels *k);

#endif
