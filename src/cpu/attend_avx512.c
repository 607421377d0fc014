/*
 * attend_avx512.c - attention over a page with registers of 16 floats. Only the operations stand
 * here; their order is attend_tile.h's.
 */
#include <float.h>
#include <immintrin.h>

#include "cpu/kernels.h"

enum { VEC = 16, TILE_ROWS_TALL = 12 };

typedef __m512 vec;
typedef __mmask16 vmask;

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
static inline vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
static inline vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
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
static inline float vec_max_all(vec v)
{
    return _mm512_reduce_max_ps(v);
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

static inline vec vec_pow2(vec y, vec t)
{
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), n));
}

static inline vec vec_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
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

static inline __mmask16 first(int32_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
}

static inline vec vec_load_part(const float *p, int32_t n)
{
    return _mm512_maskz_loadu_ps(first(n), p);
}

static inline vec vec_load_f16_part(const uint16_t *p, int32_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
}

static inline vec vec_load_i8_part(const int8_t *p, int32_t n)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first(n), p)));
}

static inline void vec_store_part(float *p, vec v, int32_t n)
{
    _mm512_mask_storeu_ps(p, first(n), v);
}

static inline vmask mask_visible(const int32_t *pos, int32_t limit, int32_t n)
{
    return _mm512_mask_cmple_epi32_mask(first(n), _mm512_loadu_si512(pos),
                                        _mm512_set1_epi32(limit));
}

static inline vmask mask_below(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
static inline vec mask_pick(vmask m, vec a, vec b)
{
    return _mm512_mask_blend_ps(m, b, a);
}

/* As assembly because GCC takes functions that only prefetch for pure and drops the calls. */
static inline void line_prefetch(const void *p)
{
    __asm__ volatile("prefetcht0 %0" : : "m"(*(const char *)p));
}

static inline void line_prefetch_far(const void *p)
{
    __asm__ volatile("prefetcht1 %0" : : "m"(*(const char *)p));
}

/* Up to 24 sums, 4 values, a broadcast and the scales of q8_0 share 32 registers. */
static inline int32_t tile_vecs(int32_t n_row)
{
    return n_row <= 6 ? 4 : 2;
}

#include "cpu/attend_tile.h"

void pi_attend_init_avx512(struct pi_attend_kernels *k)
{
    attend_init(k);
}
