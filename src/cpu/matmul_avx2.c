/*
 * matmul_avx2.c - products with float weights on AVX2 with FMA, and the probes of the level's peak.
 * The lanes of two registers are the 16 rows of a group. It must not know the loops around tiles
 * (matmul_blocked_float.h).
 */
#define PI_FEW_COPIES /* inlined with sanitizers, too: the models of tests have float weights */
#include <immintrin.h>

#include "cpu/kernels.h"
#include "cpu/matmul_avx2.h"
#include "cpu/matmul_blocked_float.h"

enum { TILE_TOK = 6 }; /* 12 accumulators of 16 registers */

/* The weights of eight rows, [8] of the type. */
typedef __m256 load_fn(const uint8_t *rows);

PI_INLINE __m256 load_f32(const uint8_t *rows)
{
    return _mm256_load_ps((const float *)(const void *)rows);
}

PI_INLINE __m256 load_f16(const uint8_t *rows)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)rows));
}

PI_INLINE __m256 load_bf16(const uint8_t *rows)
{
    __m128i half = _mm_load_si128((const __m128i *)(const void *)rows);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

PI_INLINE void tile(const struct pi_float_tile *p, load_fn *load, size_t elem_bytes, int32_t n_tok)
{
    __m256 acc[2][TILE_TOK];
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++) {
        PI_UNROLL
        for (int32_t r = 0; r < 2; r++)
            acc[r][t] = p->first ? _mm256_setzero_ps()
                                 : _mm256_loadu_ps(p->out + (size_t)t * p->out_stride + r * 8);
    }
    for (size_t c = 0; c < (size_t)p->n_col; c++) {
        const uint8_t *rows = p->group[0] + c * PI_GROUP * elem_bytes;
        _mm_prefetch((const char *)p->ahead[0] + c * PI_GROUP * elem_bytes, _MM_HINT_T0);
        __m256 w[2] = {load(rows), load(rows + 8 * elem_bytes)};
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++) {
            __m256 x = _mm256_set1_ps(p->x[(size_t)t * p->x_stride + c]);
            PI_UNROLL
            for (int32_t r = 0; r < 2; r++)
                acc[r][t] = _mm256_fmadd_ps(w[r], x, acc[r][t]);
        }
    }
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++) {
        PI_UNROLL
        for (int32_t r = 0; r < 2; r++)
            _mm256_storeu_ps(p->out + (size_t)t * p->out_stride + r * 8, acc[r][t]);
    }
}

/* One token: four groups at a time, against the latency of their chains. */
PI_INLINE void tile_one(const struct pi_float_tile *p, load_fn *load, size_t elem_bytes)
{
    __m256 acc[PI_FLOAT_TILE_GROUP_MAX][2];
    PI_UNROLL
    for (int32_t g = 0; g < PI_FLOAT_TILE_GROUP_MAX; g++) {
        PI_UNROLL
        for (int32_t r = 0; r < 2; r++)
            acc[g][r] =
                p->first ? _mm256_setzero_ps() : _mm256_loadu_ps(p->out + g * PI_GROUP + r * 8);
    }
    for (size_t c = 0; c < (size_t)p->n_col; c++) {
        size_t at = c * PI_GROUP * elem_bytes;
        __m256 x = _mm256_set1_ps(p->x[c]);
        PI_UNROLL
        for (int32_t g = 0; g < PI_FLOAT_TILE_GROUP_MAX; g++) {
            _mm_prefetch((const char *)p->ahead[g] + at, _MM_HINT_T0);
            PI_UNROLL
            for (size_t r = 0; r < 2; r++)
                acc[g][r] =
                    _mm256_fmadd_ps(load(p->group[g] + at + r * 8 * elem_bytes), x, acc[g][r]);
        }
    }
    PI_UNROLL
    for (int32_t g = 0; g < PI_FLOAT_TILE_GROUP_MAX; g++) {
        PI_UNROLL
        for (int32_t r = 0; r < 2; r++)
            _mm256_storeu_ps(p->out + g * PI_GROUP + r * 8, acc[g][r]);
    }
}

PI_INLINE void tile_group(const struct pi_float_tile *p, load_fn *load, size_t elem_bytes)
{
    if (p->n_tok == 1)
        tile(p, load, elem_bytes, 1);
    else if (p->n_tok == 2)
        tile(p, load, elem_bytes, 2);
    else if (p->n_tok == 3)
        tile(p, load, elem_bytes, 3);
    else if (p->n_tok == 4)
        tile(p, load, elem_bytes, 4);
    else if (p->n_tok == 5)
        tile(p, load, elem_bytes, 5);
    else
        tile(p, load, elem_bytes, 6);
}

/* The registers hold one group of six tokens or four groups of one; other tiles go group by
   group. */
PI_INLINE void tile_enter(const struct pi_float_tile *p, load_fn *load, size_t elem_bytes)
{
    if (p->n_tok == 1 && p->n_group == PI_FLOAT_TILE_GROUP_MAX) {
        tile_one(p, load, elem_bytes);
        return;
    }
    struct pi_float_tile one = *p;
    for (int32_t g = 0; g < p->n_group; g++) {
        one.group[0] = p->group[g];
        one.ahead[0] = p->ahead[g];
        one.out = p->out + g * PI_GROUP;
        tile_group(&one, load, elem_bytes);
    }
}

/* clang-format off */
static void tile_f32(const struct pi_float_tile *p) { tile_enter(p, load_f32, 4); }
static void tile_f16(const struct pi_float_tile *p) { tile_enter(p, load_f16, 2); }
static void tile_bf16(const struct pi_float_tile *p) { tile_enter(p, load_bf16, 2); }
/* clang-format on */

static const struct pi_float_kernels kernels_f32 = {tile_f32, TILE_TOK, PI_FLOAT_TILE_GROUP_MAX, 4};
static const struct pi_float_kernels kernels_f16 = {tile_f16, TILE_TOK, PI_FLOAT_TILE_GROUP_MAX, 2};
static const struct pi_float_kernels kernels_bf16 = {tile_bf16, TILE_TOK, PI_FLOAT_TILE_GROUP_MAX,
                                                     2};

static void mul_f32(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                    int32_t group_end, float *out, size_t out_stride, void *scratch)
{
    mul_blocked_float(&kernels_f32, w, a, group_begin, group_end, out, out_stride, scratch);
}

static void mul_f16(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                    int32_t group_end, float *out, size_t out_stride, void *scratch)
{
    mul_blocked_float(&kernels_f16, w, a, group_begin, group_end, out, out_stride, scratch);
}

static void mul_bf16(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                     int32_t group_end, float *out, size_t out_stride, void *scratch)
{
    mul_blocked_float(&kernels_bf16, w, a, group_begin, group_end, out, out_stride, scratch);
}

/* ---- probes ------------------------------------------------------------------------------- */

enum { PROBE_CHAINS = 12 }; /* more than latency times throughput, and registers to spare */

/* Pairs multiplied and summed in 16 bits: two instructions for 32 products. */
static int64_t probe_int8(int64_t n_step)
{
    volatile int32_t seed = 1;
    __m256i u = _mm256_set1_epi32(seed), acc[PROBE_CHAINS];
    PI_UNROLL
    for (int32_t j = 0; j < PROBE_CHAINS; j++)
        acc[j] = _mm256_set1_epi32(j);
    for (int64_t i = 0; i < n_step; i++) {
        PI_UNROLL
        for (int32_t j = 0; j < PROBE_CHAINS; j++)
            acc[j] = _mm256_add_epi16(_mm256_maddubs_epi16(acc[j], u), u);
    }
    PI_UNROLL
    for (int32_t j = 1; j < PROBE_CHAINS; j++)
        acc[0] = _mm256_add_epi32(acc[0], acc[j]);
    seed = _mm256_extract_epi32(acc[0], 0);
    return n_step * PROBE_CHAINS * 32 * 2;
}

static int64_t probe_f32(int64_t n_step)
{
    volatile float seed = 0.5f;
    __m256 x = _mm256_set1_ps(seed), acc[PROBE_CHAINS];
    PI_UNROLL
    for (int32_t j = 0; j < PROBE_CHAINS; j++)
        acc[j] = _mm256_set1_ps((float)j);
    for (int64_t i = 0; i < n_step; i++) {
        PI_UNROLL
        for (int32_t j = 0; j < PROBE_CHAINS; j++)
            acc[j] = _mm256_fmadd_ps(acc[j], x, x);
    }
    PI_UNROLL
    for (int32_t j = 1; j < PROBE_CHAINS; j++)
        acc[0] = _mm256_add_ps(acc[0], acc[j]);
    seed = _mm256_cvtss_f32(acc[0]);
    return n_step * PROBE_CHAINS * 8 * 2;
}

void pi_matmul_init_avx2(struct pi_matmul_kernels *k)
{
    k->mul[pi_matmul_index(PI_DTYPE_F32)] = mul_f32;
    k->mul[pi_matmul_index(PI_DTYPE_F16)] = mul_f16;
    k->mul[pi_matmul_index(PI_DTYPE_BF16)] = mul_bf16;
    pi_matmul_init_avx2_quant(k);
    k->probe_int8 = probe_int8;
    k->probe_f32 = probe_f32;
}
