/*
 * codes_neon.h - codes of 4, 3 and 2 bits in registers of 4 floats: the operations that
 * attend_codes.h lists, for attend_neon.c and score_neon.c.
 */
#ifndef PI_CODES_NEON_H
#define PI_CODES_NEON_H

#include "cpu/attend.h"
#include "cpu/lanes_neon.h"
#include "cpu/unrolled.h"

#define CODES TILE

typedef uint32x4_t ivec;

/* As many of the registers as a type has codes for. */
struct table {
    vec of[4];
};

CODES int32_t table_len(enum pi_attend_type type)
{
    return type == PI_ATTEND_CODE4 ? 4 : type == PI_ATTEND_CODE3 ? 2 : 1;
}

CODES struct table table_load(enum pi_attend_type type, const float *p)
{
    struct table t = {{vec_zero(), vec_zero(), vec_zero(), vec_zero()}};
    for (int32_t i = 0; i < table_len(type); i++)
        t.of[i] = vec_load(p + 4 * i);
    return t;
}

CODES struct table table_mul(enum pi_attend_type type, struct table t, vec scale)
{
    for (int32_t i = 0; i < table_len(type); i++)
        t.of[i] = vec_mul(t.of[i], scale);
    return t;
}

/* A look-up of bytes: code c has bytes 4 * c to 4 * c + 3. */
CODES vec table_at(enum pi_attend_type type, const struct table *t, ivec i)
{
    const uint32_t mask = type == PI_ATTEND_CODE4 ? 15 : type == PI_ATTEND_CODE3 ? 7 : 3;
    ivec code = vandq_u32(i, vdupq_n_u32(mask));
    uint8x16_t at =
        vreinterpretq_u8_u32(vmlaq_u32(vdupq_n_u32(0x03020100u), code, vdupq_n_u32(0x04040404u)));
    uint8x16x4_t b;
    for (int32_t r = 0; r < 4; r++)
        b.val[r] = vreinterpretq_u8_f32(t->of[r]);
    if (type == PI_ATTEND_CODE4)
        return vreinterpretq_f32_u8(vqtbl4q_u8(b, at));
    if (type == PI_ATTEND_CODE3)
        return vreinterpretq_f32_u8(vqtbl2q_u8((uint8x16x2_t){{b.val[0], b.val[1]}}, at));
    return vreinterpretq_f32_u8(vqtbl1q_u8(b.val[0], at));
}

CODES ivec ivec_words(const uint8_t *p)
{
    return vreinterpretq_u32_u8(vld1q_u8(p));
}

CODES ivec ivec_halves(const uint8_t *p)
{
    return vmovl_u16(vreinterpret_u16_u8(vld1_u8(p)));
}

CODES ivec ivec_left2(ivec a)
{
    return vshlq_n_u32(a, 2);
}

CODES ivec ivec_right(ivec a, const int32_t n)
{
    return n == 1 ? vshrq_n_u32(a, 1) : n == 2 ? vshrq_n_u32(a, 2) : vshrq_n_u32(a, 4);
}

CODES ivec ivec_third(ivec a, ivec b)
{
    return vbslq_u32(vdupq_n_u32(4), b, a);
}

/* Lane i's bits of a word shifted right by step * i + first, less where that is negative. */
CODES ivec spread(uint32_t word, const int32_t step, const int32_t first)
{
    const int32_t by[4] = {-first, -first - step, -first - 2 * step, -first - 3 * step};
    return vshlq_u32(vdupq_n_u32(word), vld1q_s32(by));
}

CODES void codes_row(const enum pi_attend_type type, const int32_t n_vec, const uint8_t *low,
                     const uint8_t *high, ivec *out)
{
    for (int32_t j = 0; j < n_vec; j++) {
        if (type == PI_ATTEND_CODE4) {
            uint16_t word;
            memcpy(&word, low + 2 * j, sizeof(word));
            out[j] = spread(word, 4, 0);
            continue;
        }
        out[j] = spread(low[j], 2, 0);
        if (type == PI_ATTEND_CODE3)
            out[j] = ivec_third(out[j], spread(high[j / 2], 1, j % 2 * 4 - 2));
    }
}

#endif
