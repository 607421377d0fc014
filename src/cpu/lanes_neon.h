/*
 * lanes_neon.h - registers of 4 floats: the operations that attend_neon.c and score_neon.c share,
 * as attend_tile.h names them.
 */
#ifndef PI_LANES_NEON_H
#define PI_LANES_NEON_H

#include <arm_neon.h>
#include <float.h>

#include "base/base.h"

typedef float32x4_t vec;

static inline vec vec_zero(void)
{
    return vdupq_n_f32(0.0f);
}
static inline vec vec_set1(float f)
{
    return vdupq_n_f32(f);
}
static inline vec vec_load(const float *p)
{
    return vld1q_f32(p);
}
static inline void vec_store(float *p, vec v)
{
    vst1q_f32(p, v);
}
static inline vec vec_mul(vec a, vec b)
{
    return vmulq_f32(a, b);
}
static inline vec vec_fma(vec a, vec b, vec c)
{
    return vfmaq_f32(c, a, b);
}
static inline vec vec_max(vec a, vec b)
{
    return vmaxq_f32(a, b);
}
/* These instructions return the number when the other operand is NaN. */
static inline vec vec_clamp(vec v)
{
    return vminnmq_f32(vmaxnmq_f32(v, vdupq_n_f32(-FLT_MAX)), vdupq_n_f32(FLT_MAX));
}
static inline vec vec_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline vec vec_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline vec vec_set1_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(*p)));
}

#endif
