/*
 * codes_avx512.h - codes of 4, 3 and 2 bits in registers of 16 floats: the operations that
 * attend_codes.h lists, for attend_avx512.c and score_avx512.c.
 */
#ifndef PI_CODES_AVX512_H
#define PI_CODES_AVX512_H

#include "cpu/attend.h"
#include "cpu/lanes_avx512.h"
#include "cpu/unrolled.h"

#define CODES TILE

typedef __m512i ivec;

struct table {
    vec of;
};

CODES struct table table_load(enum pi_attend_type type, const float *p)
{
    (void)type;
    return (struct table){vec_load(p)};
}

CODES struct table table_mul(enum pi_attend_type type, struct table t, vec scale)
{
    (void)type;
    return (struct table){vec_mul(t.of, scale)};
}

/* The instruction takes the lowest four bits of an index. */
CODES vec table_at(enum pi_attend_type type, const struct table *t, ivec i)
{
    (void)type;
    return _mm512_permutexvar_ps(i, t->of);
}

CODES ivec ivec_words(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

CODES ivec ivec_halves(const uint8_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

CODES ivec ivec_left2(ivec a)
{
    return _mm512_slli_epi32(a, 2);
}

CODES ivec ivec_right(ivec a, const int32_t n)
{
    return n == 1   ? _mm512_srli_epi32(a, 1)
           : n == 2 ? _mm512_srli_epi32(a, 2)
                    : _mm512_srli_epi32(a, 4);
}

/* Selects each bit from b where the mask is set, otherwise from a. */
CODES ivec ivec_third(ivec a, ivec b)
{
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi32(4), 0xd8);
}

/* Shifts by lane and logic run on other execution units than products. vpmultishiftqb could also
   split a word into codes, but it would take the units of products. */
CODES __m512i spread_4(const uint8_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof(x));
    return _mm512_set1_epi32(x);
}

/* Lanes 0 .. 7 and lanes 8 .. 15 each have a word of their own in every lane. */
CODES __m512i spread_8(const uint8_t *p)
{
    __m512i x = spread_4(p);
    __m128i upper = _mm_loadu_si32(p + 4);
    return _mm512_mask_broadcastd_epi32(x, 0xff00, upper);
}

/* 0, n, 2 * n, ... and so on from a first number on. */
CODES __m512i steps(const int32_t first, const int32_t n)
{
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_add_epi32(_mm512_set1_epi32(first),
                            n == 1 ? lanes : _mm512_mullo_epi32(lanes, _mm512_set1_epi32(n)));
}

/* Bit i of a word, counted from the first one on, comes to bit 2 of lane i. */
CODES ivec thirds(const uint8_t *p, const int32_t n_byte, const int32_t first)
{
    uint32_t x = 0;
    memcpy(&x, p, (size_t)n_byte);
    return _mm512_rorv_epi32(_mm512_set1_epi32((int32_t)x), steps(first - 2, 1));
}

CODES void codes_row(const enum pi_attend_type type, const int32_t n_vec, const uint8_t *low,
                     const uint8_t *high, ivec *out)
{
    const __m512i nibbles =
        _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
#pragma GCC unroll 4
    for (int32_t j = 0; j < n_vec; j++) {
        if (type == PI_ATTEND_CODE4) {
            out[j] = _mm512_srlv_epi32(spread_8(low + 8 * j), nibbles);
            continue;
        }
        out[j] = _mm512_srlv_epi32(spread_4(low + 4 * j), steps(0, 2));
        if (type == PI_ATTEND_CODE3)
            out[j] = ivec_third(out[j], n_vec == 1 ? thirds(high, 2, 0)
                                                   : thirds(high + j / 2 * 4, 4, j % 2 * 16));
    }
}

#endif
