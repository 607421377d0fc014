/* vec_avx512.c - rows of activations with AVX-512. The text is vec_body.h's. */
#include "cpu/vec_body.h"

void pi_vec_init_avx512(struct pi_vec_kernels *k) { vec_init(k); }
