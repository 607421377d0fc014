/*
 * lanes_avx512.h - registers of 16 floats: the operations that attend_avx512.c, score_avx512.c and
 * attend_avx512_bf16.c share, as attend_tile.h names them, and requests for memory.
 */
#ifndef PI_LANES_AVX512_H
#define PI_LANES_AVX512_H

#include <float.h>
#include <immintrin.h>

#include "base/base.h"
#include "cpu/unrolled.h"

typedef __m512 vec;

static inline vec vec_zero(void)
{
    return _mm512_setzero_ps();
}
static inline vec vec_set1(float f)
{
    return _mm512_set1_ps(f);
}
static inline vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void vec_store(float *p, vec v)
{
    _mm512_storeu_ps(p, v);
}
static inline vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}
/* The instruction returns its second operand when the first is NaN. */
static inline vec vec_clamp(vec v)
{
    return _mm512_min_ps(_mm512_max_ps(v, _mm512_set1_ps(-FLT_MAX)), _mm512_set1_ps(FLT_MAX));
}
static inline float vec_tree(const vec *v)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v[0]), _mm512_extractf32x8_ps(v[0], 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline vec vec_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline vec vec_load_bf16(const uint16_t *p)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
static inline vec vec_load_i8(const int8_t *p)
{
    __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
}
static inline vec vec_set1_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)*p));
}
/* As assembly because GCC takes functions that only prefetch for pure and drops the calls, and so
   that requests stay where they stand. */
static inline void line_prefetch(const void *p)
{
    __asm__ volatile("prefetcht0 %0" : : "m"(*(const char *)p));
}
static inline void line_prefetch_far(const void *p)
{
    __asm__ volatile("prefetcht1 %0" : : "m"(*(const char *)p));
}

/* Reduces sixteen registers to their maxima in four rounds, each of which merges two registers into
   one. The rounds combine elements two apart in a group of four, then one apart, then groups one
   apart, then two apart. Lane i of the result is the maximum of register i. */
TILE __m512 fold_max(const __m512 *r)
{
    __m512 x[4];
#pragma GCC unroll 4
    for (int32_t i = 0; i < 4; i++) {
        __m512 ab = _mm512_max_ps(_mm512_unpacklo_ps(r[4 * i], r[4 * i + 1]),
                                  _mm512_unpackhi_ps(r[4 * i], r[4 * i + 1]));
        __m512 cd = _mm512_max_ps(_mm512_unpacklo_ps(r[4 * i + 2], r[4 * i + 3]),
                                  _mm512_unpackhi_ps(r[4 * i + 2], r[4 * i + 3]));
        x[i] = _mm512_max_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    }
    __m512 y0 = _mm512_max_ps(_mm512_shuffle_f32x4(x[0], x[1], 0x88),
                              _mm512_shuffle_f32x4(x[0], x[1], 0xdd));
    __m512 y1 = _mm512_max_ps(_mm512_shuffle_f32x4(x[2], x[3], 0x88),
                              _mm512_shuffle_f32x4(x[2], x[3], 0xdd));
    return _mm512_max_ps(_mm512_shuffle_f32x4(y0, y1, 0x88), _mm512_shuffle_f32x4(y0, y1, 0xdd));
}

/* The sums of the registers, each by attend.h's tree. A round adds elements half as far apart as
   the round before: halves, quarters, pairs, ones. Then element g of group i stands for key 4 * g +
   i. */
TILE __m512 fold_tree(const __m512 *r)
{
    __m512 x[8], y[4], z[2];
#pragma GCC unroll 8
    for (int32_t i = 0; i < 8; i++)
        x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(r[2 * i], r[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(r[2 * i], r[2 * i + 1], 0xee));
#pragma GCC unroll 4
    for (int32_t i = 0; i < 4; i++)
        y[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xdd));
#pragma GCC unroll 2
    for (int32_t i = 0; i < 2; i++)
        z[i] = _mm512_add_ps(_mm512_shuffle_ps(y[2 * i], y[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(y[2 * i], y[2 * i + 1], 0xee));
    __m512 sum =
        _mm512_add_ps(_mm512_shuffle_ps(z[0], z[1], 0x88), _mm512_shuffle_ps(z[0], z[1], 0xdd));
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_ps(order, sum);
}

#endif
