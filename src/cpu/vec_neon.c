/* vec_neon.c - rows of activations with NEON. The text is vec_body.h's. */
#include "cpu/vec_body.h"

void pi_vec_init_neon(struct pi_vec_kernels *k) { vec_init(k); }
