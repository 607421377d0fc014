/* vec_avx512.c - rows of activations with AVX-512. The text is vec_body.h's, but for codes, where
   compilers leave most of the instructions unused. */
#include <immintrin.h>

#include "cpu/kernels.h"

/* The largest of 16 numbers. */
static inline float largest(__m512 x)
{
    __m256 y = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

static inline __m256i halves_added(__m512i x)
{
    return _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
}

/* Rounds to the nearest even integer by two additions. */
static inline __m512i codes_of(__m512 x, __m512 inverse)
{
    const __m512 round = _mm512_set1_ps(12582912.0f);
    __m512 y = _mm512_add_ps(_mm512_mul_ps(x, inverse), round);
    return _mm512_cvttps_epi32(_mm512_sub_ps(y, round));
}

static inline void vec_quantize_block(const float *x, int8_t *q, float *scale, int16_t *sum16)
{
    __m512 first = _mm512_loadu_ps(x), second = _mm512_loadu_ps(x + 16);
    float most = largest(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second)));
    __m512 inverse = _mm512_set1_ps(most >= PI_ACT_LEAST ? 127.0f / most : 0.0f);
    __m512i code = codes_of(first, inverse), code2 = codes_of(second, inverse);
    *scale = most / 127.0f;
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(code));
    _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtepi32_epi8(code2));
    __m256i sums = _mm256_hadd_epi32(halves_added(code), halves_added(code2));
    sums = _mm256_hadd_epi32(sums, sums);
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    sum16[0] = (int16_t)_mm_cvtsi128_si32(both);
    sum16[1] = (int16_t)_mm_extract_epi32(both, 1);
}

#define VEC_OWN_QUANTIZE_BLOCK
#include "cpu/vec_body.h"

void pi_vec_init_avx512(struct pi_vec_kernels *k)
{
    vec_init(k);
}
