/*
 * codec.c - storage types of floats and bytes: a row of floats to stored values and back. Codes of
 * fewer bits are coded.c's; where the values lie in a page is page.c's. The loops have no branches,
 * so that compilers make them wide. Invariant: decoding gives finite numbers for any input of
 * encoding.
 */
#include <float.h>

#include "base/half.h"
#include "cpu/kernels.h"
#include "device/cpu/pages.h"

#define F16_MAX 65504.0f
#define Q8_BLOCK 32
#define Q8_MAX_CODE 127

/* NaN becomes 0, the rest the nearest value in -limit..limit. */
static inline float clean(float x, float limit)
{
    float y = x < limit ? x : limit;
    y = y > -limit ? y : -limit;
    return x == x ? y : 0.0f;
}

/* ---- f32 ---- */

static void f32_encode(const float *restrict x, int32_t n, int32_t group, const struct kv_row *out)
{
    float *values = (float *)(void *)out->low;
    (void)group;
    for (int32_t i = 0; i < n; i++)
        values[i] = clean(x[i], FLT_MAX);
}

static void f32_decode(const struct kv_stored_row *row, int32_t n, int32_t group, float *out)
{
    (void)group;
    memcpy(out, row->low, (size_t)n * sizeof(*out));
}

/* ---- f16 ---- */

static void f16_encode(const float *restrict x, int32_t n, int32_t group, const struct kv_row *out)
{
    float row[KV_CODEC_MAX];
    (void)group;
    for (int32_t i = 0; i < n; i++)
        row[i] = clean(x[i], F16_MAX);
    pi_kernels()->vec.f16_from_f32(row, (uint16_t *)(void *)out->low, n);
}

static void f16_decode(const struct kv_stored_row *row, int32_t n, int32_t group, float *out)
{
    (void)group;
    pi_kernels()->vec.f32_from_f16((const uint16_t *)(const void *)row->low, out, n);
}

/* ---- bf16 ---- */

/* B(Z(x, PI_ATTEND_BF16_STORED)), cpu/attend.h. */
static void bf16_encode(const float *restrict x, int32_t n, int32_t group, const struct kv_row *out)
{
    uint16_t *values = (uint16_t *)(void *)out->low;
    (void)group;
    for (int32_t i = 0; i < n; i++)
        values[i] = pi_attend_bf16(x[i] == x[i] ? x[i] : 0.0f, PI_ATTEND_BF16_STORED);
}

static void bf16_decode(const struct kv_stored_row *row, int32_t n, int32_t group, float *out)
{
    const uint16_t *values = (const uint16_t *)(const void *)row->low;
    (void)group;
    for (int32_t i = 0; i < n; i++)
        out[i] = pi_f32_from_bf16(values[i]);
}

/* ---- q8_0 ---- */

/* max|x| of a block of finite numbers, whose magnitudes are ordered as their bits are. */
static float max_magnitude(const float *x)
{
    int32_t max = 0;
    for (int32_t i = 0; i < Q8_BLOCK; i++) {
        int32_t mag = (int32_t)(pi_bits_from_f32(x[i]) & 0x7fffffffu);
        max = max < mag ? mag : max;
    }
    return pi_f32_from_bits((uint32_t)max);
}

/* One block of ggml's q8_0: d = max|x| / 127 in f32, code = round(x * (1 / d)), halves away from
   zero. The stored scale is d in f16. Where the scale is 0, so are the codes. Rounding is spelt out
   because the conversion of C truncates: y - trunc(y) is exact. */
static uint16_t q8_encode_block(const float *restrict x, int8_t *restrict codes)
{
    float row[Q8_BLOCK];
    for (int32_t i = 0; i < Q8_BLOCK; i++)
        row[i] = clean(x[i], F16_MAX * Q8_MAX_CODE);
    float d = max_magnitude(row) / Q8_MAX_CODE;
    uint16_t scale = pi_f16_from_f32(d);
    float inverse = scale != 0 ? 1.0f / d : 0.0f;
    for (int32_t i = 0; i < Q8_BLOCK; i++) {
        float y = row[i] * inverse;
        int32_t whole = (int32_t)y;
        float rest = y - (float)whole;
        codes[i] = (int8_t)(whole + (rest >= 0.5f) - (rest <= -0.5f));
    }
    return scale;
}

static void q8_encode(const float *restrict x, int32_t n, int32_t group, const struct kv_row *out)
{
    int8_t *codes = (int8_t *)out->low;
    for (int32_t b = 0; b < n / group; b++)
        out->scale[b] = q8_encode_block(x + b * Q8_BLOCK, codes + b * Q8_BLOCK);
}

static void q8_decode(const struct kv_stored_row *row, int32_t n, int32_t group, float *out)
{
    const int8_t *codes = (const int8_t *)row->low;
    for (int32_t i = 0; i < n; i++)
        out[i] = pi_f32_from_f16(row->scale[i / group]) * (float)codes[i];
}

/* ---- the table ---- */

float kv_codec_limit(enum kv_type type)
{
    const struct kv_codec *codec = &kv_codecs[type];
    switch (codec->kernel) {
    case PI_ATTEND_F32:
    case PI_ATTEND_BF16:
        return FLT_MAX;
    case PI_ATTEND_Q8_0:
        return F16_MAX * Q8_MAX_CODE;
    case PI_ATTEND_CODE4:
        return codec->rotated ? F16_MAX : F16_MAX * 8;
    default:
        return F16_MAX;
    }
}

const struct kv_coder kv_coders[KV_N_TYPE] = {
    [KV_TYPE_F32] = {f32_encode, f32_decode},
    [KV_TYPE_F16] = {f16_encode, f16_decode},
    [KV_TYPE_Q8_0] = {q8_encode, q8_decode},
    [KV_TYPE_Q4_0] = {kv_q4_encode, kv_q4_decode},
    [KV_TYPE_TURBO4] = {kv_turbo4_encode, kv_turbo4_decode},
    [KV_TYPE_TURBO3] = {kv_turbo3_encode, kv_turbo3_decode},
    [KV_TYPE_TURBO2] = {kv_turbo2_encode, kv_turbo2_decode},
    [KV_TYPE_BF16] = {bf16_encode, bf16_decode},
};
