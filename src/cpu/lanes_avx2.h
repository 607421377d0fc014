/*
 * lanes_avx2.h - registers of 8 floats: the operations that attend_avx2.c and score_avx2.c share,
 * as attend_tile.h names them.
 */
#ifndef PI_LANES_AVX2_H
#define PI_LANES_AVX2_H

#include <float.h>
#include <immintrin.h>

#include "base/base.h"

typedef __m256 vec;

static inline vec vec_zero(void)
{
    return _mm256_setzero_ps();
}
static inline vec vec_set1(float f)
{
    return _mm256_set1_ps(f);
}
static inline vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void vec_store(float *p, vec v)
{
    _mm256_storeu_ps(p, v);
}
static inline vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
/* The instruction returns its second operand when the first is NaN. */
static inline vec vec_clamp(vec v)
{
    return _mm256_min_ps(_mm256_max_ps(v, _mm256_set1_ps(-FLT_MAX)), _mm256_set1_ps(FLT_MAX));
}
static inline float vec_tree(const vec *v)
{
    __m256 eight = _mm256_add_ps(v[0], v[1]);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline vec vec_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline vec vec_load_bf16(const uint16_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
static inline vec vec_load_i8(const int8_t *p)
{
    __m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
}
static inline vec vec_set1_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_set1_epi16((short)*p));
}
/* As assembly because GCC takes functions that only prefetch for pure and drops the calls. */
static inline void line_prefetch_far(const void *p)
{
    __asm__ volatile("prefetcht1 %0" : : "m"(*(const char *)p));
}

#endif
