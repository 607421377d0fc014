/*
 * attend_avx2.c - attention over a page with registers of 8 floats. Only the operations stand here;
 * their order is attend_tile.h's.
 */
#include "cpu/codes_avx2.h"
#include "cpu/kernels.h"
#include "cpu/lanes_avx2.h"

enum { VEC = 8, LANES = 2, TILE_ROWS_TALL = 6, EXP_VECS = 2 };

typedef __m256i bits;
typedef __m256 vmask;
typedef __m256i vint;

static inline vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
static inline vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
static inline float vec_max_all(vec v)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline void vec_max_rows(const vec *v, float *out)
{
    for (int32_t i = 0; i < 16; i++)
        out[i] = vec_max_all(v[i]);
}
static inline void vec_tree_rows(vec (*v)[2], float *out)
{
    for (int32_t i = 0; i < 16; i++)
        out[i] = vec_tree(v[i]);
}

static inline vec vec_pow2(vec y, vec t)
{
    __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), n));
}

static inline vec vec_bf16(vec x)
{
    __m256i b = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    b = _mm256_add_epi32(_mm256_add_epi32(b, _mm256_set1_epi32(0x7fff)), odd);
    return _mm256_castsi256_ps(_mm256_and_si256(b, _mm256_set1_epi32((int32_t)0xffff0000u)));
}

static inline vec vec_load_f16_step(const uint16_t *p, int32_t step)
{
    if (step == 1)
        return vec_load_f16(p);
    return _mm256_cvtph_ps(_mm_setr_epi16(
        (short)p[0], (short)p[step], (short)p[2 * step], (short)p[3 * step], (short)p[4 * step],
        (short)p[5 * step], (short)p[6 * step], (short)p[7 * step]));
}

static inline vec vec_load_code(const uint8_t *p, int32_t i)
{
    const __m256i first = _mm256_setr_epi32(0x00808080, 0x04808080, 0x08808080, 0x0c808080,
                                            0x00808080, 0x04808080, 0x08808080, 0x0c808080);
    __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)p);
    __m256i places = _mm256_add_epi32(first, _mm256_set1_epi32(i << 24));
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(words, places));
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

static inline vec vec_load_bf16_part(const uint16_t *p, int32_t n)
{
    uint16_t all[8] = {0};
    for (int32_t i = 0; i < n; i++)
        all[i] = p[i];
    return vec_load_bf16(all);
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
static inline uint32_t mask_bits(vmask m)
{
    return (uint32_t)_mm256_movemask_ps(m);
}
static inline vec mask_pick(vmask m, vec a, vec b)
{
    return _mm256_blendv_ps(b, a, m);
}

static inline bits bits_load(const uint8_t *p, size_t step)
{
    (void)step;
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

TILE bits bits_zip_low(const int32_t size, bits a, bits b)
{
    return size == 4 ? _mm256_unpacklo_epi32(a, b) : _mm256_unpacklo_epi16(a, b);
}

TILE bits bits_zip_high(const int32_t size, bits a, bits b)
{
    return size == 4 ? _mm256_unpackhi_epi32(a, b) : _mm256_unpackhi_epi16(a, b);
}

static inline bits bits_even(bits a, bits b)
{
    return _mm256_permute2x128_si256(a, b, 0x20);
}
static inline bits bits_odd(bits a, bits b)
{
    return _mm256_permute2x128_si256(a, b, 0x31);
}

TILE void bits_store(uint8_t *p, bits x, const int32_t n)
{
    if (n == 2)
        _mm256_storeu_si256((__m256i *)(void *)p, x);
    else
        _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(x));
}

/* As assembly because GCC takes functions that only prefetch for pure and drops the calls. */
static inline void line_prefetch(const void *p)
{
    __asm__ volatile("prefetcht0 %0" : : "m"(*(const char *)p));
}

/* Up to 12 sums, the values and a broadcast share 16 registers. */
static inline int32_t tile_vecs(int32_t n_row)
{
    return n_row <= 2 ? 4 : n_row <= 6 ? 2 : 1;
}

/* The same where codes, their remainders, and their scales or tables need registers, too. */
static inline int32_t code_key_vecs(int32_t n_row)
{
    return n_row <= 2 ? 2 : 1;
}

static inline int32_t code_value_vecs(int32_t n_row)
{
    return n_row <= 4 ? 2 : 1;
}

static inline vint vint_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
static inline vint vint_set1(const uint32_t *p)
{
    return _mm256_set1_epi32((int32_t)*p);
}
static inline vint vint_start(int32_t sum)
{
    (void)sum;
    return _mm256_setzero_si256();
}
/* Two products of codes stay within 16 bits: 2 * 128 * 127. */
static inline vint vint_dot(vint acc, vint k, vint q)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(k), _mm256_sign_epi8(q, k));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
static inline vec vint_floats(vint v)
{
    return _mm256_cvtepi32_ps(v);
}

/* Two sums each. */
static inline int32_t coded_vecs(int32_t n_row)
{
    return n_row <= 2 ? 2 : 1;
}

#include "cpu/attend_tile.h"

void pi_attend_init_avx2(struct pi_attend_kernels *k)
{
    attend_init(k);
}
