/*
 * pool.h - scores that spread to their neighbours in the text, so that what stays is stretches and
 * not single tokens. Pure functions of numbers.
 */
#ifndef PI_POLICY_POOL_H
#define PI_POLICY_POOL_H

#include "base/base.h"

enum policy_pool_kind {
    POLICY_POOL_AVG, /* neighbours beyond the ends are zeros, and counted in the divisor */
    POLICY_POOL_MAX, /* neighbours beyond the ends are left out */
};

/* order[i] is the index of the i-th smallest of n positions, of equal ones the lower first. Takes
   O(n) where they ascend already. */
void policy_pool_order(const int32_t *pos, int32_t n, int32_t *order);

/* out[i], [n], is x[i - kernel / 2] .. x[i - kernel / 2 + kernel - 1] pooled: the mean, or the
   largest. An odd kernel is symmetric, 1 changes nothing. out is not x; kernel >= 1. */
void policy_pool(enum policy_pool_kind kind, int32_t kernel, const float *x, int32_t n, float *out);

#endif
