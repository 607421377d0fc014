/*
 * attend_avx512.c - attention over a page with registers of 16 floats. Only the operations stand
 * here; their order is attend_tile.h's.
 */
#include "cpu/codes_avx512.h"
#include "cpu/kernels.h"
#include "cpu/lanes_avx512.h"

#include "cpu/bits_avx512.h" /* whose `bits` is a name in those */

enum { VEC = 16, TILE_ROWS_TALL = 12, EXP_VECS = 4 };

typedef __mmask16 vmask;
typedef __m512i vint;

static inline vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
static inline vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
static inline float vec_max_all(vec v)
{
    return _mm512_reduce_max_ps(v);
}

static inline void vec_max_rows(const vec *v, float *out)
{
    vec_store(out, fold_max(v));
}
static inline void vec_tree_rows(vec (*v)[1], float *out)
{
    vec_store(out, fold_tree(&v[0][0]));
}

static inline vec vec_pow2(vec y, vec t)
{
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), n));
}

static inline vec vec_bf16(vec x)
{
    __m512i b = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    b = _mm512_add_epi32(_mm512_add_epi32(b, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_castsi512_ps(_mm512_and_si512(b, _mm512_set1_epi32((int32_t)0xffff0000u)));
}

/* The usual head sizes have steps of 1, 2 and 4. A masked load touches no byte behind the last
   value. */
static inline vec vec_load_f16_step(const uint16_t *p, int32_t step)
{
    if (step == 1)
        return vec_load_f16(p);
    if (step == 2) {
        __m512i all = _mm512_maskz_loadu_epi16(0x7fffffff, p);
        return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(all));
    }
    if (step == 4) {
        __m512i low = _mm512_loadu_si512(p), high = _mm512_maskz_loadu_epi16(0x1fffffff, p + 32);
        __m128i a = _mm512_cvtepi64_epi16(low), b = _mm512_cvtepi64_epi16(high);
        return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
    }
    uint16_t all[16];
    for (int32_t i = 0; i < 16; i++)
        all[i] = p[i * step];
    return vec_load_f16(all);
}

static inline vec vec_load_code(const uint8_t *p, int32_t i)
{
    const __m512i first =
        _mm512_broadcast_i32x4(_mm_setr_epi32(0x00808080, 0x04808080, 0x08808080, 0x0c808080));
    __m512i places = _mm512_add_epi32(first, _mm512_set1_epi32(i << 24));
    return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(_mm512_loadu_si512(p), places));
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

static inline vec vec_load_bf16_part(const uint16_t *p, int32_t n)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
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
static inline uint32_t mask_bits(vmask m)
{
    return m;
}
static inline vec mask_pick(vmask m, vec a, vec b)
{
    return _mm512_mask_blend_ps(m, b, a);
}

/* Up to 24 sums, 4 values, a broadcast and the scales of q8_0 share 32 registers. */
static inline int32_t tile_vecs(int32_t n_row)
{
    return n_row <= 6 ? 4 : 2;
}

/* The same where codes, their remainders, and their scales or tables need registers, too. */
static inline int32_t code_key_vecs(int32_t n_row)
{
    return n_row <= 3 ? 4 : 2;
}

static inline int32_t code_value_vecs(int32_t n_row)
{
    return n_row <= 5 ? 4 : 2;
}

/* One of the factors is unsigned: keys are, each 128 more, which the sum of the others undoes. */
static inline vint vint_load(const uint8_t *p)
{
    return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8((char)0x80));
}
static inline vint vint_set1(const uint32_t *p)
{
    return _mm512_set1_epi32((int32_t)*p);
}
static inline vint vint_start(int32_t sum)
{
    return _mm512_set1_epi32(-128 * sum);
}
static inline vint vint_dot(vint acc, vint k, vint q)
{
    return _mm512_dpbusd_epi32(acc, k, q);
}
static inline vec vint_floats(vint v)
{
    return _mm512_cvtepi32_ps(v);
}

/* Two sums each. */
static inline int32_t coded_vecs(int32_t n_row)
{
    return n_row <= 3 ? 4 : 2;
}

#include "cpu/attend_tile.h"

void pi_attend_init_avx512(struct pi_attend_kernels *k)
{
    attend_init(k);
}
