/* vec_avx2.c - rows of activations with AVX2, FMA and F16C. The text is vec_body.h's. */
#include "cpu/vec_body.h"

void pi_vec_init_avx2(struct pi_vec_kernels *k) { vec_init(k); }
