/*
 * wht.c - the rotation of the turbo storage types. It owns the signs; the transform is a kernel of
 * vec.h. Invariant: rotating and rotating back changes numbers by rounding alone.
 */
#include "device/cpu/wht.h"

#include <math.h>

#include "cpu/kernels.h"

/* Any fixed signs will do. These are TurboQuant+'s, as bytes a6 fc 95 1b ... and 6f 11 53 e9 ...,
   so that its codes can be compared. A group shorter than 128 has the first ones. */
static const uint32_t signs_1[KV_WHT_MAX / 32] = {0x1b95fca6u, 0xbd07a6b6u, 0x5b39c444u,
                                                  0xb60daf56u};
static const uint32_t signs_2[KV_WHT_MAX / 32] = {0xe953116fu, 0xc09d7023u, 0x485aca85u,
                                                  0x415a9a9du};

void kv_wht(float *x, int32_t dim, int32_t group, bool inverse)
{
    const float scale = (float)(1.0 / sqrt((double)group));
    assert(group >= KV_WHT_MIN && group <= KV_WHT_MAX && (group & (group - 1)) == 0);
    assert(dim % group == 0);
    for (int32_t i = 0; i < dim; i += group)
        pi_kernels()->vec.wht(x + i, group, inverse ? signs_2 : signs_1,
                              inverse ? signs_1 : signs_2, scale);
}
