/*
 * dtype_table.h - weight types whose codes of 4 bits stand for numbers of a table, for dtype.c and
 * the packed products.
 */
#ifndef PI_DTYPE_TABLE_H
#define PI_DTYPE_TABLE_H

#include "base/half.h"
#include "tensor/dtype.h"

#define PI_IQ4_NL_BYTES 18
#define PI_IQ4_XS_BYTES 136
#define PI_MXFP4_BYTES 17

/* The tables' numbers lie in -128..127 around what stands for zero in packed codes. */
#define PI_IQ4_ZERO 128
#define PI_MXFP4_ZERO 12

extern const int8_t pi_iq4_table[16];
extern const int8_t pi_mxfp4_table[16]; /* twice the numbers, so that scales are halved */

/* 2^(e - 128), also where that is no normal number. */
static inline float pi_mxfp4_scale(uint8_t e)
{
    return 0.5f * pi_f32_from_bits(e == 0 ? 0x00400000u : (uint32_t)e << 23);
}

/* Scales beyond this one are no weights: products of such could not be told from infinity. */
#define PI_MXFP4_MOST 224

/* Whether n weights of MXFP4 have scales that are such. */
bool pi_mxfp4_is_sound(const void *src, int64_t n);

void pi_iq4_nl_decode(const void *src, float *dst, int64_t n);
void pi_iq4_xs_decode(const void *src, float *dst, int64_t n);
void pi_mxfp4_decode(const void *src, float *dst, int64_t n);

#endif
