/*
 * codec.c - the storage types: their table, their names, and those of floats and bytes: a row of
 * floats to stored values and back. Codes of fewer bits are coded.c's; where the values lie in a
 * page is page.c's. The loops have no branches, so that compilers make them wide. Invariant:
 * whatever is encoded, decoding gives finite numbers.
 */
#include <float.h>
#include <stdio.h>

#include "base/half.h"
#include "base/near.h"
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

float kv_codec_limit(const struct kv_codec *codec)
{
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

const struct kv_codec kv_codecs[KV_N_TYPE] = {
    [KV_TYPE_F32] = {"f32", PI_ATTEND_F32, 32, 0, 1, false, f32_encode, f32_decode},
    [KV_TYPE_F16] = {"f16", PI_ATTEND_F16, 16, 0, 1, false, f16_encode, f16_decode},
    [KV_TYPE_Q8_0] = {"q8_0", PI_ATTEND_Q8_0, 8, 0, Q8_BLOCK, false, q8_encode, q8_decode},
    [KV_TYPE_Q4_0] = {"q4_0", PI_ATTEND_CODE4, 4, 0, 32, false, kv_q4_encode, kv_q4_decode},
    [KV_TYPE_TURBO4] = {"turbo4", PI_ATTEND_CODE4, 4, 0, 0, true, kv_turbo4_encode,
                        kv_turbo4_decode},
    [KV_TYPE_TURBO3] = {"turbo3", PI_ATTEND_CODE3, 2, 1, 0, true, kv_turbo3_encode,
                        kv_turbo3_decode},
    [KV_TYPE_TURBO2] = {"turbo2", PI_ATTEND_CODE2, 2, 0, 0, true, kv_turbo2_encode,
                        kv_turbo2_decode},
    [KV_TYPE_BF16] = {"bf16", PI_ATTEND_BF16, 16, 0, 1, false, bf16_encode, bf16_decode},
};

/* ---- names ---- */

enum kv_type kv_type_find(const char *name)
{
    for (int i = 0; i < KV_N_TYPE; i++)
        if (strcmp(name, kv_codecs[i].name) == 0)
            return (enum kv_type)i;
    return KV_N_TYPE;
}

const char *kv_type_name(enum kv_type type)
{
    return kv_codecs[type].name;
}

/* The type that n characters name, KV_N_TYPE for none. */
static enum kv_type find_part(const char *text, size_t n)
{
    for (int i = 0; i < KV_N_TYPE; i++)
        if (strlen(kv_codecs[i].name) == n && memcmp(text, kv_codecs[i].name, n) == 0)
            return (enum kv_type)i;
    return KV_N_TYPE;
}

static pith_status fail_type(const char *field, const char *text, const char *part, size_t n,
                             pith_error *err)
{
    char list[128], near[64] = "";
    const char *names[KV_N_TYPE];
    int used = 0;
    for (int i = 0; i < KV_N_TYPE; i++) {
        names[i] = kv_codecs[i].name;
        used +=
            snprintf(list + used, sizeof(list) - (size_t)used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    const char *meant = pi_nearest(part, n, names, KV_N_TYPE);
    if (meant != NULL)
        snprintf(near, sizeof(near), "; did you mean %s?", meant);
    if (n == strlen(text))
        return pi_fail(err, PITH_INVALID, "%s: \"%.32s\" is not a storage type (%s)%s", field, text,
                       list, near);
    return pi_fail(err, PITH_INVALID, "%s: \"%.64s\": \"%.*s\" is not a storage type (%s)%s", field,
                   text, (int)pi_min(n, 32), part, list, near);
}

/* Digits up to `end`; false where there are none, others, or too many. */
static bool read_layers(const char *text, const char *end, int32_t *out)
{
    int32_t n = 0;
    if (text == end || end - text > 6)
        return false;
    for (; text < end; text++) {
        if (*text < '0' || *text > '9')
            return false;
        n = 10 * n + (*text - '0');
    }
    *out = n;
    return true;
}

/* "EDGE=FIRST+LAST" */
static pith_status read_edge(const char *field, const char *text, const char *part,
                             struct kv_edge *out, pith_error *err)
{
    const char *equal = strchr(part, '='), *plus = strchr(part, '+'), *end = part + strlen(part);
    if (equal == NULL)
        return pi_fail(err, PITH_INVALID,
                       "%s: \"%.64s\": \"%.32s\" is neither TYPE=FIRST+LAST, another type in so "
                       "many layers at both ends, nor for K \"force\" or \"centre\"",
                       field, text, part);
    out->type = find_part(part, (size_t)(equal - part));
    if (out->type == KV_N_TYPE)
        return fail_type(field, text, part, (size_t)(equal - part), err);
    if (plus == NULL || plus < equal || !read_layers(equal + 1, plus, &out->first) ||
        !read_layers(plus + 1, end, &out->last))
        return pi_fail(err, PITH_INVALID,
                       "%s: \"%.64s\": \"%.32s\" is not FIRST+LAST, two numbers of layers", field,
                       text, equal + 1);
    return PITH_OK;
}

pith_status kv_type_read(const char *field, const char *text, struct kv_type_choice *out,
                         pith_error *err)
{
    *out = (struct kv_type_choice){.type = KV_TYPE_F16};
    if (text == NULL)
        return PITH_OK;
    size_t n = strcspn(text, ":");
    const char *rest = text + n;
    out->type = find_part(text, n);
    if (out->type == KV_N_TYPE)
        return fail_type(field, text, text, n, err);
    if (strncmp(rest, ":force", 6) == 0 && (rest[6] == '\0' || rest[6] == ':')) {
        out->force = true;
        rest += 6;
    }
    if (strncmp(rest, ":centre", 7) == 0 && (rest[7] == '\0' || rest[7] == ':')) {
        out->centre = true;
        rest += 7;
    }
    return *rest == '\0' ? PITH_OK : read_edge(field, text, rest + 1, &out->edge, err);
}

pith_status kv_geometry_read_types(struct kv_geometry *g, const char *type_k, const char *type_v,
                                   struct kv_type_choice *k, pith_error *err)
{
    struct kv_type_choice v;
    PI_TRY(kv_type_read("type_k", type_k, k, err));
    PI_TRY(kv_type_read("type_v", type_v, &v, err));
    if (v.force)
        return pi_fail(err, PITH_INVALID,
                       "type_v: \"%.64s\": values are stored as they are asked for, force is for "
                       "keys",
                       type_v);
    if (v.centre)
        return pi_fail(err, PITH_INVALID,
                       "type_v: \"%.64s\": centre is for keys, whose scores it leaves as they are",
                       type_v);
    g->type_k = k->type;
    g->edge_k = k->edge;
    g->type_v = v.type;
    g->edge_v = v.edge;
    return PITH_OK;
}

/* ---- head sizes ---- */

bool kv_type_is_rotated(enum kv_type type)
{
    return kv_codecs[type].rotated;
}

int32_t kv_type_group(enum kv_type type, int32_t dim)
{
    int32_t block = kv_codecs[type].block, group = KV_CODEC_MAX;
    if (block > 0)
        return dim % block == 0 ? block : 0;
    while (group >= KV_CODEC_GROUP && dim % group != 0)
        group /= 2;
    return group >= KV_CODEC_GROUP ? group : 0;
}

double kv_type_bits(enum kv_type type, int32_t dim)
{
    const struct kv_codec *codec = &kv_codecs[type];
    int32_t group = kv_type_group(type, dim);
    return codec->bits + codec->bits_high + (group > 1 ? 16.0 / group : 0.0);
}
