/*
 * matmul_avx512.c - products with float weights on AVX-512, and the probes of the level's peak. The
 * lanes are the 16 rows of a group. It must not know the loops around tiles
 * (matmul_blocked_float.h).
 */
#define PI_FEW_COPIES /* inlined with sanitizers, too: the models of tests have float weights */
#include <immintrin.h>

#include "cpu/kernels.h"
#include "cpu/matmul_avx512.h"
#include "cpu/matmul_blocked_float.h"

enum { TILE_TOK = 6, TILE_GROUP = PI_FLOAT_TILE_GROUP_MAX }; /* 24 accumulators of 32 registers */

/* The weights of 16 rows at one column. */
typedef __m512 load_fn(const uint8_t *group, size_t col);

PI_INLINE __m512 load_f32(const uint8_t *group, size_t col)
{
    return _mm512_load_ps(group + col * 64);
}

PI_INLINE __m512 load_f16(const uint8_t *group, size_t col)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)(group + col * 32)));
}

PI_INLINE __m512 load_bf16(const uint8_t *group, size_t col)
{
    __m256i half = _mm256_load_si256((const __m256i *)(const void *)(group + col * 32));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

PI_INLINE void tile(const struct pi_float_tile *p, load_fn *load, int32_t n_tok, int32_t n_group)
{
    const size_t col_bytes = load == load_f32 ? 64 : 32;
    __m512 acc[TILE_GROUP][TILE_TOK];
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++) {
        PI_UNROLL
        for (int32_t g = 0; g < n_group; g++)
            acc[g][t] = p->first
                            ? _mm512_setzero_ps()
                            : _mm512_loadu_ps(p->out + (size_t)t * p->out_stride + g * PI_GROUP);
    }
    for (size_t c = 0; c < (size_t)p->n_col; c++) {
        __m512 w[TILE_GROUP];
        PI_UNROLL
        for (int32_t g = 0; g < n_group; g++) {
            _mm_prefetch((const char *)p->ahead[g] + c * col_bytes, _MM_HINT_T0);
            w[g] = load(p->group[g], c);
        }
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++) {
            __m512 x = _mm512_set1_ps(p->x[(size_t)t * p->x_stride + c]);
            PI_UNROLL
            for (int32_t g = 0; g < n_group; g++)
                acc[g][t] = _mm512_fmadd_ps(w[g], x, acc[g][t]);
        }
    }
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++) {
        PI_UNROLL
        for (int32_t g = 0; g < n_group; g++)
            _mm512_storeu_ps(p->out + (size_t)t * p->out_stride + g * PI_GROUP, acc[g][t]);
    }
}

PI_INLINE void tile_groups(const struct pi_float_tile *p, load_fn *load, int32_t n_tok)
{
    if (p->n_group == 4)
        tile(p, load, n_tok, 4);
    else if (p->n_group == 3)
        tile(p, load, n_tok, 3);
    else if (p->n_group == 2)
        tile(p, load, n_tok, 2);
    else
        tile(p, load, n_tok, 1);
}

/* Enters the version with the tile's numbers as constants. */
PI_INLINE void tile_enter(const struct pi_float_tile *p, load_fn *load)
{
    switch (p->n_tok) {
    case 1:
        tile_groups(p, load, 1);
        break;
    case 2:
        tile_groups(p, load, 2);
        break;
    case 3:
        tile_groups(p, load, 3);
        break;
    case 4:
        tile_groups(p, load, 4);
        break;
    case 5:
        tile_groups(p, load, 5);
        break;
    default:
        tile_groups(p, load, 6);
        break;
    }
}

/* clang-format off */
static void tile_f32(const struct pi_float_tile *p) { tile_enter(p, load_f32); }
static void tile_f16(const struct pi_float_tile *p) { tile_enter(p, load_f16); }
static void tile_bf16(const struct pi_float_tile *p) { tile_enter(p, load_bf16); }
/* clang-format on */

static const struct pi_float_kernels kernels_f32 = {tile_f32, TILE_TOK, TILE_GROUP, 4};
static const struct pi_float_kernels kernels_f16 = {tile_f16, TILE_TOK, TILE_GROUP, 2};
static const struct pi_float_kernels kernels_bf16 = {tile_bf16, TILE_TOK, TILE_GROUP, 2};

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

enum { PROBE_CHAINS = 16 }; /* more than latency times throughput of any processor so far */

static int64_t probe_int8(int64_t n_step)
{
    volatile int32_t seed = 1;
    __m512i u = _mm512_set1_epi32(seed), s = _mm512_set1_epi32(seed), acc[PROBE_CHAINS];
    PI_UNROLL
    for (int32_t j = 0; j < PROBE_CHAINS; j++)
        acc[j] = _mm512_set1_epi32(j);
    for (int64_t i = 0; i < n_step; i++) {
        PI_UNROLL
        for (int32_t j = 0; j < PROBE_CHAINS; j++)
            acc[j] = _mm512_dpbusd_epi32(acc[j], u, s);
    }
    PI_UNROLL
    for (int32_t j = 1; j < PROBE_CHAINS; j++)
        acc[0] = _mm512_add_epi32(acc[0], acc[j]);
    seed = _mm512_reduce_add_epi32(acc[0]);
    return n_step * PROBE_CHAINS * 64 * 2;
}

static int64_t probe_f32(int64_t n_step)
{
    volatile float seed = 0.5f;
    __m512 x = _mm512_set1_ps(seed), acc[PROBE_CHAINS];
    PI_UNROLL
    for (int32_t j = 0; j < PROBE_CHAINS; j++)
        acc[j] = _mm512_set1_ps((float)j);
    for (int64_t i = 0; i < n_step; i++) {
        PI_UNROLL
        for (int32_t j = 0; j < PROBE_CHAINS; j++)
            acc[j] = _mm512_fmadd_ps(acc[j], x, x);
    }
    PI_UNROLL
    for (int32_t j = 1; j < PROBE_CHAINS; j++)
        acc[0] = _mm512_add_ps(acc[0], acc[j]);
    seed = _mm512_reduce_add_ps(acc[0]);
    return n_step * PROBE_CHAINS * 16 * 2;
}

void pi_matmul_init_avx512(struct pi_matmul_kernels *k)
{
    k->mul[pi_matmul_index(PI_DTYPE_F32)] = mul_f32;
    k->mul[pi_matmul_index(PI_DTYPE_F16)] = mul_f16;
    k->mul[pi_matmul_index(PI_DTYPE_BF16)] = mul_bf16;
    pi_matmul_init_avx512_quant(k);
    k->probe_int8 = probe_int8;
    k->probe_f32 = probe_f32;
}
