/*
 * matmul_neon.c - products with float weights on NEON, and the probes of the level's peak. The
 * lanes of four registers are the 16 rows of a group. It must not know the loops around tiles
 * (matmul_blocked_float.h).
 */
#include <arm_neon.h>

#include "cpu/kernels.h"
#include "cpu/matmul_blocked_float.h"
#include "cpu/matmul_neon.h"

enum { TILE_TOK = 6, N_PART = 4 }; /* 24 accumulators of 32 registers */

/* The weights of four rows, [4] of the type. */
typedef float32x4_t load_fn(const uint8_t *rows);

PI_INLINE float32x4_t load_f32(const uint8_t *rows)
{
    return vreinterpretq_f32_u8(vld1q_u8(rows));
}

PI_INLINE float32x4_t load_f16(const uint8_t *rows)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(rows)));
}

PI_INLINE float32x4_t load_bf16(const uint8_t *rows)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(rows)), 16));
}

/* One group. */
PI_INLINE void tile(const struct pi_float_tile *p, load_fn *load, size_t elem_bytes, int32_t n_tok)
{
    float32x4_t acc[TILE_TOK][N_PART];
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++) {
        PI_UNROLL
        for (int32_t r = 0; r < N_PART; r++)
            acc[t][r] = p->first ? vdupq_n_f32(0.0f)
                                 : vld1q_f32(p->out + (size_t)t * p->out_stride + r * 4);
    }
    for (size_t c = 0; c < (size_t)p->n_col; c++) {
        const uint8_t *rows = p->group[0] + c * PI_GROUP * elem_bytes;
        __builtin_prefetch(p->ahead[0] + c * PI_GROUP * elem_bytes);
        float32x4_t w[N_PART];
        PI_UNROLL
        for (size_t r = 0; r < N_PART; r++)
            w[r] = load(rows + r * 4 * elem_bytes);
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++) {
            float32x4_t x = vld1q_dup_f32(p->x + (size_t)t * p->x_stride + c);
            PI_UNROLL
            for (int32_t r = 0; r < N_PART; r++)
                acc[t][r] = vfmaq_f32(acc[t][r], w[r], x);
        }
    }
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++) {
        PI_UNROLL
        for (int32_t r = 0; r < N_PART; r++)
            vst1q_f32(p->out + (size_t)t * p->out_stride + r * 4, acc[t][r]);
    }
}

/* One token: four groups at a time, against the latency of their chains. */
PI_INLINE void tile_one(const struct pi_float_tile *p, load_fn *load, size_t elem_bytes)
{
    float32x4_t acc[PI_FLOAT_TILE_GROUP_MAX][N_PART];
    PI_UNROLL
    for (int32_t g = 0; g < PI_FLOAT_TILE_GROUP_MAX; g++) {
        PI_UNROLL
        for (int32_t r = 0; r < N_PART; r++)
            acc[g][r] = p->first ? vdupq_n_f32(0.0f) : vld1q_f32(p->out + g * PI_GROUP + r * 4);
    }
    for (size_t c = 0; c < (size_t)p->n_col; c++) {
        size_t at = c * PI_GROUP * elem_bytes;
        float32x4_t x = vld1q_dup_f32(p->x + c);
        PI_UNROLL
        for (int32_t g = 0; g < PI_FLOAT_TILE_GROUP_MAX; g++) {
            __builtin_prefetch(p->ahead[g] + at);
            PI_UNROLL
            for (size_t r = 0; r < N_PART; r++)
                acc[g][r] = vfmaq_f32(acc[g][r], load(p->group[g] + at + r * 4 * elem_bytes), x);
        }
    }
    PI_UNROLL
    for (int32_t g = 0; g < PI_FLOAT_TILE_GROUP_MAX; g++) {
        PI_UNROLL
        for (int32_t r = 0; r < N_PART; r++)
            vst1q_f32(p->out + g * PI_GROUP + r * 4, acc[g][r]);
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
    k->mul[pi_matmul_index(PI_DTYPE_F32)] = mul_f32;
    k->mul[pi_matmul_index(PI_DTYPE_F16)] = mul_f16;
    k->mul[pi_matmul_index(PI_DTYPE_BF16)] = mul_bf16;
    pi_matmul_init_neon_quant(k);
    k->probe_int8 = probe_int8;
    k->probe_f32 = probe_f32;
}
