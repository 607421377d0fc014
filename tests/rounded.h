/*
 * rounded.h - how far outputs of attention may be from those of other arithmetic, or of the same
 * entries in other pages, where values are rounded (cpu/attend.h).
 */
#ifndef PI_TEST_ROUNDED_H
#define PI_TEST_ROUNDED_H

#include "kv/store.h"

/* For values in [-1, 1]. Of bf16 a weight changes by 2^-9 of it at most. Of codes a coordinate of an
   entry changes by less than 2^-7 of it, and by less than a third of that in the mean; after they
   are turned back each is a sum of all, with either sign.
 */
static inline double rounded_error(enum kv_type type_v, int32_t dim_v)
{
    if (type_v == KV_TYPE_BF16)
        return 0x1p-9;
    return kv_type_is_rotated(type_v) && kv_type_group(type_v, dim_v) == dim_v ? 0x1p-7 : 0.0;
}

/* A number of a query as it meets keys of a type. */
static inline float met_by_query(enum kv_type type_k, float q)
{
    return type_k == KV_TYPE_BF16 ? pi_f32_from_bf16(pi_attend_bf16(q, PI_ATTEND_BF16_LEAST)) : q;
}

#endif
