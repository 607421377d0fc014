/*
 * codec.c - the storage types: a row of floats to stored values and back. Where the values lie in a
 * page is page.c's. The loops have no branches, so that compilers make them wide. Invariant:
 * whatever is encoded, decoding gives finite numbers.
 */
#include <float.h>

#include "base/half.h"
#include "cpu/kernels.h"
#include "kv/store.h"

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

static void f32_encode(const float *restrict x, int32_t n, void *restrict values,
                       uint16_t *restrict scales)
{
    float *out = values;
    (void)scales;
    for (int32_t i = 0; i < n; i++)
        out[i] = clean(x[i], FLT_MAX);
}

static void f32_decode(const void *restrict values, const uint16_t *restrict scales, int32_t n,
                       float *restrict out)
{
    (void)scales;
    memcpy(out, values, (size_t)n * sizeof(*out));
}

/* ---- f16 ---- */

static void f16_encode(const float *restrict x, int32_t n, void *restrict values,
                       uint16_t *restrict scales)
{
    float row[KV_CODEC_MAX];
    (void)scales;
    for (int32_t i = 0; i < n; i++)
        row[i] = clean(x[i], F16_MAX);
    pi_kernels()->vec.f16_from_f32(row, values, n);
}

static void f16_decode(const void *restrict values, const uint16_t *restrict scales, int32_t n,
                       float *restrict out)
{
    (void)scales;
    pi_kernels()->vec.f32_from_f16(values, out, n);
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

/* One block as ggml's q8_0 has it: d = max|x| / 127 in f32, code = round(x * (1 / d)), halves away
   from zero, and the scale that is stored is d in f16. Where that is 0, so are the codes. Rounding
   is spelt out because the conversion of C truncates: y - trunc(y) is exact. */
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

static void q8_encode(const float *restrict x, int32_t n, void *restrict values,
                      uint16_t *restrict scales)
{
    int8_t *codes = values;
    for (int32_t b = 0; b < n / Q8_BLOCK; b++)
        scales[b] = q8_encode_block(x + b * Q8_BLOCK, codes + b * Q8_BLOCK);
}

static void q8_decode(const void *restrict values, const uint16_t *restrict scales, int32_t n,
                      float *restrict out)
{
    const int8_t *codes = values;
    for (int32_t i = 0; i < n; i++)
        out[i] = pi_f32_from_f16(scales[i / Q8_BLOCK]) * (float)codes[i];
}

/* ---- the table ---- */

const struct kv_codec kv_codecs[KV_N_TYPE] = {
    [KV_TYPE_F32] = {"f32", 4, 1, 0, f32_encode, f32_decode},
    [KV_TYPE_F16] = {"f16", 2, 1, 0, f16_encode, f16_decode},
    [KV_TYPE_Q8_0] = {"q8_0", 1, Q8_BLOCK, 2, q8_encode, q8_decode},
};

enum kv_type kv_type_find(const char *name)
{
    for (int i = 0; i < KV_N_TYPE; i++)
        if (strcmp(name, kv_codecs[i].name) == 0)
            return (enum kv_type)i;
    return KV_N_TYPE;
}

pith_status kv_type_read(const char *field, const char *name, enum kv_type *out, pith_error *err)
{
    *out = kv_type_find(name != NULL ? name : "f16");
    if (*out == KV_N_TYPE)
        return pi_fail(err, PITH_INVALID, "%s: \"%.32s\" is not a storage type (f32, f16, q8_0)",
                       field, name);
    return PITH_OK;
}

const char *kv_type_name(enum kv_type type)
{
    return kv_codecs[type].name;
}
