/*
 * matmul_neon.c - products with float weights on NEON, and the probes of the level's peak. The
 * lanes of four registers are the 16 rows of a group.
 */
#include <arm_neon.h>

#include "cpu/kernels.h"
#include "cpu/lanes_neon.h"
#include "cpu/matmul_layout.h"
#include "cpu/matmul_neon.h"

#define VEC_LEN 4
#define TILE_GROUP 1 /* 24 accumulators of 32 registers */

PI_INLINE vec load_f32(const uint8_t *rows)
{
    return vreinterpretq_f32_u8(vld1q_u8(rows));
}

PI_INLINE vec load_f16(const uint8_t *rows)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(rows)));
}

PI_INLINE vec load_bf16(const uint8_t *rows)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(rows)), 16));
}

#include "cpu/matmul_float_tile.h"

/* ---- probes ------------------------------------------------------------------------------- */

enum { PROBE_CHAINS = 24 }; /* more than latency times throughput of four pipelines */

static int64_t probe_int8(int64_t n_step)
{
    volatile int8_t seed = 1;
    int8x16_t x = vdupq_n_s8(seed);
    int32x4_t acc[PROBE_CHAINS];
    PI_UNROLL
    for (int32_t j = 0; j < PROBE_CHAINS; j++)
        acc[j] = vdupq_n_s32(j);
    for (int64_t i = 0; i < n_step; i++) {
        PI_UNROLL
        for (int32_t j = 0; j < PROBE_CHAINS; j++)
            acc[j] = vdotq_s32(acc[j], x, x);
    }
    PI_UNROLL
    for (int32_t j = 1; j < PROBE_CHAINS; j++)
        acc[0] = vaddq_s32(acc[0], acc[j]);
    seed = (int8_t)vaddvq_s32(acc[0]);
    return n_step * PROBE_CHAINS * 16 * 2;
}

static int64_t probe_f32(int64_t n_step)
{
    volatile float seed = 0.5f;
    float32x4_t x = vdupq_n_f32(seed), acc[PROBE_CHAINS];
    PI_UNROLL
    for (int32_t j = 0; j < PROBE_CHAINS; j++)
        acc[j] = vdupq_n_f32((float)j);
    for (int64_t i = 0; i < n_step; i++) {
        PI_UNROLL
        for (int32_t j = 0; j < PROBE_CHAINS; j++)
            acc[j] = vfmaq_f32(x, acc[j], x);
    }
    PI_UNROLL
    for (int32_t j = 1; j < PROBE_CHAINS; j++)
        acc[0] = vaddq_f32(acc[0], acc[j]);
    seed = vaddvq_f32(acc[0]);
    return n_step * PROBE_CHAINS * 4 * 2;
}

void pi_matmul_init_neon(struct pi_matmul_kernels *k)
{
    init_float(k);
    pi_matmul_init_neon_quant(k);
    k->probe_int8 = probe_int8;
    k->probe_f32 = probe_f32;
}
