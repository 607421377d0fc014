/*
 * attend_avx2.c - attention over a page with registers of 8 floats. Only the operations stand here;
 * their order is attend_tile.h's.
 */
#include <float.h>
#include <immintrin.h>

#include "cpu/kernels.h"

enum { VEC = 8, TILE_ROWS_TALL = 6 };

typedef __m256 vec;
typedef __m256 vmask;

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
static inline vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
static inline vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
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

static inline float vec_max_all(vec v)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
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

static inline vec vec_pow2(vec y, vec t)
{
    __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), n));
}

static inline vec vec_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
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

/* Lanes below n, for a head size that is no multiple of 8. */
static inline __m256i first(int32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vec vec_load_part(const float *p, int32_t n)
{
    return _mm256_maskload_ps(p, first(n));
}

static inline vec vec_load_f16_part(const uint16_t *p, int32_t n)
{
    uint16_t all[8] = {0};
    for (int32_t i = 0; i < n; i++)
        all[i] = p[i];
    return vec_load_f16(all);
}

static inline vec vec_load_i8_part(const int8_t *p, int32_t n)
{
    int8_t all[8] = {0};
    for (int32_t i = 0; i < n; i++)
        all[i] = p[i];
    return vec_load_i8(all);
}

static inline void vec_store_part(float *p, vec v, int32_t n)
{
    _mm256_maskstore_ps(p, first(n), v);
}

static inline vmask mask_visible(const int32_t *pos, int32_t limit, int32_t n)
{
    __m256i at = _mm256_loadu_si256((const __m256i *)(const void *)pos);
    __m256i later = _mm256_cmpgt_epi32(at, _mm256_set1_epi32(limit));
    return _mm256_castsi256_ps(_mm256_andnot_si256(later, first(n)));
}

static inline vmask mask_below(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
static inline vec mask_pick(vmask m, vec a, vec b)
{
    return _mm256_blendv_ps(b, a, m);
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

/* Up to 12 sums, the values and a broadcast share 16 registers. */
static inline int32_t tile_vecs(int32_t n_row)
{
    return n_row <= 2 ? 4 : n_row <= 6 ? 2 : 1;
}

#include "cpu/attend_tile.h"

void pi_attend_init_avx2(struct pi_attend_kernels *k)
{
    attend_init(k);
}
