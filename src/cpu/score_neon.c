/*
 * score_neon.c - scoring keys with registers of 4 floats. Dot products and columns are
 * score_tile.h's. Codes use the dot product of signed bytes, for which the highest bit of each
 * key's code is flipped.
 */
#include "cpu/codes_neon.h"
#include "cpu/kernels.h"
#include "cpu/lanes_neon.h"

enum { VEC = 4, GROUP = 4, FEW_KEYS = 4 };

static inline float vec_tree(const vec *v)
{
    float32x4_t four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

static inline vec vec_load_i8(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof(four));
    int8x8_t codes = vreinterpret_s8_s32(vdup_n_s32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(codes))));
}

/* As assembly because GCC takes functions that only prefetch for pure and drops the calls. */
static inline void line_prefetch_far(const void *p)
{
    __asm__ volatile("prfm pldl2keep, [%0]" : : "r"(p));
}

static inline void group_max(float32x4_t acc[GROUP][4], float *out)
{
    for (int32_t g = 0; g < GROUP; g++)
        out[g] =
            vmaxvq_f32(vmaxq_f32(vmaxq_f32(acc[g][0], acc[g][1]), vmaxq_f32(acc[g][2], acc[g][3])));
}

static inline void group_tree(float32x4_t acc[FEW_KEYS][4], float *out)
{
    for (int32_t g = 0; g < FEW_KEYS; g++)
        out[g] = vec_tree(acc[g]);
}

#include "cpu/score_tile.h"

/* ---- codes -------------------------------------------------------------------------------- */

/* A key times each vector, along the key. Where it ends within 16 codes the vector goes on with
   zeros. */
TILE float unit8_few(const struct pi_score_codes *q, int32_t dim, const uint8_t *k)
{
    size_t row = pi_align((size_t)dim, PI_SCORE_PAD);
    float top = -FLT_MAX;
    for (int32_t j = 0; j < q->n; j++) {
        const int8_t *with = q->code + (size_t)j * row;
        int32x4_t acc = vdupq_n_s32(0);
        for (int32_t d = 0; d < dim; d += 16)
            acc = vdotq_s32(acc, vreinterpretq_s8_u8(veorq_u8(vld1q_u8(k + d), vdupq_n_u8(0x80))),
                            vld1q_s8(with + d));
        float x = (float)vaddvq_s32(acc) * q->scale[j];
        top = x > top ? x : top;
    }
    return top;
}

/* Four codes of a key against four of each of 16 vectors, 4 vectors to a register. */
TILE float unit8_many(const struct pi_score_codes *q, int32_t dim, const uint8_t *k)
{
    float32x4_t top = vdupq_n_f32(-FLT_MAX);
    for (int32_t b = 0; b < (q->n + 15) / 16; b++) {
        const int8_t *with = q->code + (size_t)b * (size_t)dim * 16;
        int32x4_t acc[4];
        UNROLL
        for (int32_t v = 0; v < 4; v++)
            acc[v] = vdupq_n_s32(0);
        for (int32_t d = 0; d < dim; d += 4) {
            uint32_t four;
            memcpy(&four, k + d, sizeof(four));
            int8x16_t key = vreinterpretq_s8_u32(vdupq_n_u32(four ^ 0x80808080u));
            UNROLL
            for (int32_t v = 0; v < 4; v++)
                acc[v] = vdotq_s32(acc[v], key, vld1q_s8(with + d * 16 + v * 16));
        }
        UNROLL
        for (int32_t v = 0; v < 4; v++)
            top = vmaxq_f32(top,
                            vmulq_f32(vcvtq_f32_s32(acc[v]), vld1q_f32(q->scale + b * 16 + v * 4)));
    }
    return vmaxvq_f32(top);
}

static void unit8(const struct pi_score_keys *keys, const struct pi_score_codes *q, float *out)
{
    for (int32_t i = 0; i < keys->n; i++) {
        const uint8_t *k = (const uint8_t *)keys->k + (size_t)i * (size_t)keys->dim;
        for (int32_t d = 0; d < keys->dim && keys->next != 0; d += 64)
            line_prefetch_far(k + keys->next + d);
        out[i] = q->n <= PI_SCORE_FEW ? unit8_few(q, keys->dim, k) : unit8_many(q, keys->dim, k);
    }
}

void pi_score_init_neon(struct pi_score_kernels *k)
{
    score_init(k);
    k->unit8 = unit8;
}
