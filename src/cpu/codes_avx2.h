/*
 * codes_avx2.h - codes of 4, 3 and 2 bits in registers of 8 floats: the operations that
 * attend_codes.h lists, for attend_avx2.c and score_avx2.c.
 */
#ifndef PI_CODES_AVX2_H
#define PI_CODES_AVX2_H

#include "cpu/attend.h"
#include "cpu/lanes_avx2.h"
#include "cpu/unrolled.h"

#define CODES TILE

typedef __m256i ivec;

/* The upper half serves codes of 4 bits alone. */
struct table {
    vec low;
    vec high;
};

CODES struct table table_load(enum pi_attend_type type, const float *p)
{
    return (struct table){vec_load(p), type == PI_ATTEND_CODE4 ? vec_load(p + 8) : vec_zero()};
}

CODES struct table table_mul(enum pi_attend_type type, struct table t, vec scale)
{
    t.low = vec_mul(t.low, scale);
    if (type == PI_ATTEND_CODE4)
        t.high = vec_mul(t.high, scale);
    return t;
}

/* The permutation takes the lowest three bits of an index, the blend the sign. */
CODES vec table_at(enum pi_attend_type type, const struct table *t, ivec i)
{
    vec low = _mm256_permutevar8x32_ps(t->low, i);
    if (type != PI_ATTEND_CODE4)
        return low;
    vec high = _mm256_permutevar8x32_ps(t->high, i);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}

CODES ivec ivec_words(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

CODES ivec ivec_halves(const uint8_t *p)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

CODES ivec ivec_left2(ivec a)
{
    return _mm256_slli_epi32(a, 2);
}

CODES ivec ivec_right(ivec a, const int32_t n)
{
    return n == 1   ? _mm256_srli_epi32(a, 1)
           : n == 2 ? _mm256_srli_epi32(a, 2)
                    : _mm256_srli_epi32(a, 4);
}

CODES ivec ivec_third(ivec a, ivec b)
{
    const __m256i two = _mm256_set1_epi32(3), third = _mm256_set1_epi32(4);
    return _mm256_or_si256(_mm256_and_si256(a, two), _mm256_and_si256(b, third));
}

CODES ivec spread(const uint8_t *p, const int32_t n_byte)
{
    uint32_t x = 0;
    memcpy(&x, p, (size_t)n_byte);
    return _mm256_set1_epi32((int32_t)x);
}

/* Codes of 2 bits, with a third, of one vector, whose first stands at a bit of its words. */
CODES ivec row_2bit(const enum pi_attend_type type, ivec low, ivec high, const int32_t first)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i by_2 = _mm256_add_epi32(_mm256_add_epi32(lanes, lanes), _mm256_set1_epi32(2 * first));
    low = _mm256_srlv_epi32(low, by_2);
    if (type == PI_ATTEND_CODE2)
        return low;
    return ivec_third(low,
                      _mm256_srlv_epi32(high, _mm256_add_epi32(lanes, _mm256_set1_epi32(first))));
}

CODES void codes_row(const enum pi_attend_type type, const int32_t n_vec, const uint8_t *low,
                     const uint8_t *high, ivec *out)
{
    const __m256i by_4 = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28),
                  none = _mm256_setzero_si256();
    if (type == PI_ATTEND_CODE4) {
#pragma GCC unroll 4
        for (int32_t j = 0; j < n_vec; j++)
            out[j] = _mm256_srlv_epi32(spread(low + 4 * j, 4), by_4);
        return;
    }
    if (n_vec == 1) {
        ivec third = type == PI_ATTEND_CODE3 ? ivec_left2(spread(high, 1)) : none;
        out[0] = row_2bit(type, spread(low, 2), third, 0);
        return;
    }
#pragma GCC unroll 4
    for (int32_t j = 0; j < n_vec; j += 2) {
        ivec two = spread(low + 2 * j, 4);
        ivec third = type == PI_ATTEND_CODE3 ? ivec_left2(spread(high + j, 2)) : none;
        out[j] = row_2bit(type, two, third, 0);
        out[j + 1] = row_2bit(type, two, third, 8);
    }
}

#endif
