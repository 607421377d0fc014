/* centres.h - several centres of a cloud of queries, found by k-means. */
#ifndef PI_KEEP_CENTRES_H
#define PI_KEEP_CENTRES_H

#include "base/base.h"

/* Bytes of scratch for n points of dim floats and k centres. */
size_t centres_scratch(int32_t n, int32_t dim, int32_t k);

/* k-means with the starts of k-means++ (Arthur and Vassilvitskii 2007), seeded: x [n][dim] gets
   owner [n], the centre in 0..k-1 that each point belongs to. A centre may own no point where there
   are fewer different points than k. The same arguments give the same result. */
void centres_find(const float *x, int32_t n, int32_t dim, int32_t k, uint64_t seed, void *scratch,
                  int32_t *owner);

#endif
