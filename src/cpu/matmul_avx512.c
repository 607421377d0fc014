/*
 * matmul_avx512.c - products with float weights on AVX-512, and the probes of the level's peak. The
 * lanes are the 16 rows of a group.
 */
#undef PI_FEW_COPIES /* the models of tests have float weights, and a copy is short */
#include <immintrin.h>

#include "cpu/kernels.h"
#include "cpu/lanes_avx512.h"
#include "cpu/matmul_avx512.h"
#include "cpu/matmul_layout.h"

#define VEC_LEN 16
#define TILE_GROUP 4 /* 24 accumulators of 32 registers */

PI_INLINE vec load_f32(const uint8_t *rows)
{
    return _mm512_load_ps(rows);
}

PI_INLINE vec load_f16(const uint8_t *rows)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)rows));
}

PI_INLINE vec load_bf16(const uint8_t *rows)
{
    __m256i half = _mm256_load_si256((const __m256i *)(const void *)rows);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

#include "cpu/matmul_float_tile.h"

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
    init_float(k);
    pi_matmul_init_avx512_quant(k);
    k->probe_int8 = probe_int8;
    k->probe_f32 = probe_f32;
}
