/*
 * matmul_avx2.c - products with float weights on AVX2 with FMA, and the probes of the level's peak.
 * The lanes of two registers are the 16 rows of a group.
 */
#undef PI_FEW_COPIES /* the models of tests have float weights, and a copy is short */
#include <immintrin.h>

#include "cpu/kernels.h"
#include "cpu/lanes_avx2.h"
#include "cpu/matmul_avx2.h"
#include "cpu/matmul_layout.h"

#define VEC_LEN 8
#define TILE_GROUP 1 /* 12 accumulators of 16 registers */

PI_INLINE vec load_f32(const uint8_t *rows)
{
    return _mm256_load_ps((const float *)(const void *)rows);
}

PI_INLINE vec load_f16(const uint8_t *rows)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)rows));
}

PI_INLINE vec load_bf16(const uint8_t *rows)
{
    __m128i half = _mm_load_si128((const __m128i *)(const void *)rows);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

#include "cpu/matmul_float_tile.h"

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
    init_float(k);
    pi_matmul_init_avx2_quant(k);
    k->probe_int8 = probe_int8;
    k->probe_f32 = probe_f32;
}
