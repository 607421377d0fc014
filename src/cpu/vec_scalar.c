/* vec_scalar.c - the reference level of rows of activations: any processor. The text is
   vec_body.h's. */
#include "cpu/vec_body.h"

void pi_vec_init_scalar(struct pi_vec_kernels *k) { vec_init(k); }
