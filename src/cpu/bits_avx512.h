/*
 * bits_avx512.h - what attend_transpose.h asks of a level, with registers of 64 bytes, for
 * attend_avx512.c and attend_avx512_pairs.c.
 */
#ifndef PI_BITS_AVX512_H
#define PI_BITS_AVX512_H

#include <immintrin.h>

#include "cpu/unrolled.h"

enum { LANES = 4 };

typedef __m512i bits;

static inline bits bits_load(const uint8_t *p, size_t step)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(p + step));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

TILE bits bits_zip_low(const int32_t size, bits a, bits b)
{
    return size == 4 ? _mm512_unpacklo_epi32(a, b) : _mm512_unpacklo_epi16(a, b);
}

TILE bits bits_zip_high(const int32_t size, bits a, bits b)
{
    return size == 4 ? _mm512_unpackhi_epi32(a, b) : _mm512_unpackhi_epi16(a, b);
}

static inline bits bits_even(bits a, bits b)
{
    return _mm512_shuffle_i64x2(a, b, 0x88);
}
static inline bits bits_odd(bits a, bits b)
{
    return _mm512_shuffle_i64x2(a, b, 0xdd);
}

TILE void bits_store(uint8_t *p, bits x, const int32_t n)
{
    if (n == 4)
        _mm512_storeu_si512(p, x);
    else
        _mm256_storeu_si256((__m256i *)(void *)p, _mm512_castsi512_si256(x));
}

#endif
