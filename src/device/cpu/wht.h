/*
 * wht.h - the rotation of the turbo storage types: a signed Walsh-Hadamard transform of each group
 * of a row. It spreads the content of one dimension over its whole group, so that the coded values
 * resemble a Gaussian for every model. It keeps lengths and dot products.
 */
#ifndef PI_KV_WHT_H
#define PI_KV_WHT_H

#include "base/base.h"

enum { KV_WHT_MIN = 16, KV_WHT_MAX = 128 }; /* dimensions of a group, a power of two between */

/* Rotates each group of a row of dim floats, a multiple of group, in place, or with inverse back.
   Forward is S2 H S1 / sqrt(group), back S1 H S2 / sqrt(group), with vec.h's H and fixed diagonals
   S1, S2 of signs. Every level of the processor gives the same bits. */
void kv_wht(float *x, int32_t dim, int32_t group, bool inverse);

#endif
