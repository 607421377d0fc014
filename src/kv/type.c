/*
 * type.c - the storage types: their table, their names, and the options of K and V. How values
 * become codes is a device's business.
 */
#include <stdio.h>

#include "kv/type.h"
#include "base/near.h"
#include "cpu/kernels.h"
#include "kv/geometry.h"
#include "kv/type_internal.h"

#define Q8_BLOCK 32

const struct kv_codec kv_codecs[KV_N_TYPE] = {
    [KV_TYPE_F32] = {"f32", PI_ATTEND_F32, 32, 0, 1, false},
    [KV_TYPE_F16] = {"f16", PI_ATTEND_F16, 16, 0, 1, false},
    [KV_TYPE_Q8_0] = {"q8_0", PI_ATTEND_Q8_0, 8, 0, Q8_BLOCK, false},
    [KV_TYPE_Q4_0] = {"q4_0", PI_ATTEND_CODE4, 4, 0, 32, false},
    [KV_TYPE_TURBO4] = {"turbo4", PI_ATTEND_CODE4, 4, 0, 0, true},
    [KV_TYPE_TURBO3] = {"turbo3", PI_ATTEND_CODE3, 2, 1, 0, true},
    [KV_TYPE_TURBO2] = {"turbo2", PI_ATTEND_CODE2, 2, 0, 0, true},
    [KV_TYPE_BF16] = {"bf16", PI_ATTEND_BF16, 16, 0, 1, false},
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
                       "%s: \"%.64s\": \"%.32s\" is neither TYPE=FIRST+LAST, another type for "
                       "the first and the last layers, nor for K \"force\" or \"centre\"",
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

/* ---- the types of queries ---- */

enum { CODE_LEN = 32 }; /* dimensions that share a scale of q8_0 */

void kv_query_met(enum kv_type type, float *q, int32_t dim)
{
    int8_t code[CODE_LEN];
    int16_t sum16[2];
    float scale;
    for (int32_t d = 0; type == KV_TYPE_BF16 && d < dim; d++)
        q[d] = pi_f32_from_bf16(pi_attend_bf16(q[d], PI_ATTEND_BF16_LEAST));
    for (int32_t d = 0; type == KV_TYPE_Q8_0 && d < dim; d += CODE_LEN) {
        pi_kernels()->vec.quantize(q + d, CODE_LEN, code, &scale, sum16);
        for (int32_t i = 0; i < CODE_LEN; i++)
            q[d + i] = (float)code[i] * scale;
    }
}
