/*
 * rounded.h - the tolerance for outputs of attention where values are rounded (cpu/attend.h). It
 * covers other arithmetic, and the same entries in other pages.
 */
#ifndef PI_TEST_ROUNDED_H
#define PI_TEST_ROUNDED_H

#include <math.h>

#include "device/cpu/pages.h"

/* For values in [-1, 1]. With bf16 a weight changes by at most 2^-9 of itself. With codes a
   coordinate of an entry changes by less than 2^-7 of itself, and by less than a third of that in
   the mean. After the inverse rotation each coordinate is a sum of all, with either sign.
 */
static inline double rounded_error(enum kv_type type_v, int32_t dim_v)
{
    if (type_v == KV_TYPE_BF16)
        return 0x1p-9;
    return kv_type_is_rotated(type_v) && kv_type_group(type_v, dim_v) == dim_v ? 0x1p-7 : 0.0;
}

/* A query as it meets keys of a type: as it is, rounded, or in codes of 32 dimensions a scale. */
static inline void query_met(enum kv_type type_k, const float *q, int32_t dim, double *out)
{
    for (int32_t d = 0; d < dim; d++) {
        float most = 0.0f;
        for (int32_t i = d / 32 * 32; i < d / 32 * 32 + 32 && i < dim; i++)
            most = fmaxf(most, fabsf(q[i]));
        out[d] = (double)q[d];
        if (type_k == KV_TYPE_BF16)
            out[d] = (double)pi_f32_from_bf16(pi_attend_bf16(q[d], PI_ATTEND_BF16_LEAST));
        if (type_k == KV_TYPE_Q8_0 && most > 0)
            out[d] = (double)rintf(q[d] * (127.0f / most)) * (double)(most / 127.0f);
    }
}

#endif
