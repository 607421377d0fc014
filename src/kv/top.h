/*
 * top.h - the highest of many scores.
 */
#ifndef PI_KV_TOP_H
#define PI_KV_TOP_H

#include "base/base.h"

/* The k slots of highest score among n, ascending, into slots; of equal scores the lower slots. Not
   a sort: O(n). 0 <= k <= n, scores are never NaN. scratch [kv_top_scratch_bytes(n)]. */
size_t kv_top_scratch_bytes(int32_t n);
void kv_top(const float *score, int32_t n, int32_t k, int32_t *slots, void *scratch);

#endif
