/*
 * score_tile.h - the body of every vector level of score.h's dot products and columns, written
 * once. A level's file defines the type `vec` of VEC floats and the operations listed below, and
 * includes this header. No other file includes it. The order of operations follows the reference
 * exactly.
 *
 *   vec_zero() vec_set1(f) vec_load(p) vec_store(p, v) vec_mul vec_fma(a, b, c)
 *   vec_max(a, b)             for values that are not NaN
 *   vec_clamp(v)              score.h's clamp
 *   vec_tree(v)               score.h's tree over NV vectors
 *   vec_load_f16(p) vec_load_bf16(p) vec_load_i8(p) vec_set1_f16(p)
 *   GROUP                     keys whose sums with 16 vectors stay in registers
 *   FEW_KEYS                  keys whose sums along 16 dimensions do
 *   group_max(acc, out)       out[g] = the largest of the 16 floats acc[g][0..NV), g < GROUP
 *   group_tree(acc, out)      out[g] = vec_tree(acc[g]), g < FEW_KEYS
 *   line_prefetch_far(p)      brings a line to the second level of cache: keys that come next
 *                             and those at hand would not find room in the first together
 *   ivec, struct table, table_load, table_at, codes_row      as attend_codes.h has them
 */
#ifndef PI_SCORE_TILE_H
#define PI_SCORE_TILE_H

#include <float.h>

#include "cpu/unrolled.h"

enum {
    NV = 16 / VEC,   /* registers of a block of vectors, or of 16 dimensions */
    SLAB = 256,      /* dimensions of a key that are widened at once */
    WIDE = 16,       /* keys that are */
    COLUMN_VECS = 4, /* registers of keys side by side */
};

/* Of a value; of codes with a high plane, in the low one. */
TILE size_t type_bits(enum pi_attend_type type)
{
    return type == PI_ATTEND_F32     ? 32
           : type == PI_ATTEND_F16   ? 16
           : type == PI_ATTEND_BF16  ? 16
           : type == PI_ATTEND_Q8_0  ? 8
           : type == PI_ATTEND_CODE4 ? 4
                                     : 2;
}

/* Bytes of n values, which are whole. */
TILE size_t type_bytes(enum pi_attend_type type, size_t n)
{
    return n * type_bits(type) / 8;
}

/* VEC values of a type; codes as they are. */
TILE vec load_values(enum pi_attend_type type, const void *p)
{
    return type == PI_ATTEND_F32    ? vec_load(p)
           : type == PI_ATTEND_F16  ? vec_load_f16(p)
           : type == PI_ATTEND_BF16 ? vec_load_bf16(p)
                                    : vec_load_i8(p);
}

/* A key as it is stored. */
struct row {
    const uint8_t *k;
    const uint8_t *high;
    const uint16_t *scale;
    const float *table;
    int32_t shift; /* dimensions per scale: 1 << shift */
};

TILE struct row row_of(enum pi_attend_type type, const struct pi_score_keys *keys,
                       const int32_t dim, int32_t i)
{
    size_t at = (size_t)i * (size_t)dim;
    struct row row = {.k = (const uint8_t *)keys->k + type_bytes(type, at), .shift = 5};
    if (type == PI_ATTEND_Q8_0)
        row.scale = keys->scale + at / 32;
    if (type >= PI_ATTEND_CODE4) {
        row.shift = __builtin_ctz((uint32_t)keys->group);
        row.scale = keys->scale + (at >> row.shift);
        row.table = keys->table;
    }
    if (type == PI_ATTEND_CODE3)
        row.high = (const uint8_t *)keys->high + at / 8;
    return row;
}

/* Dimensions d .. d + 16 of a key as f32. */
TILE void load_16(enum pi_attend_type type, struct row row, int32_t d, vec out[NV])
{
    if (type >= PI_ATTEND_CODE4) {
        const struct table table = table_load(type, row.table);
        vec scale = vec_set1_f16(row.scale + (d >> row.shift));
        const uint8_t *high = type == PI_ATTEND_CODE3 ? row.high + d / 8 : NULL;
        ivec code[NV];
        codes_row(type, NV, row.k + type_bytes(type, (size_t)d), high, code);
        UNROLL
        for (int32_t v = 0; v < NV; v++)
            out[v] = vec_mul(scale, table_at(type, &table, code[v]));
        return;
    }
    UNROLL
    for (int32_t v = 0; v < NV; v++) {
        out[v] = load_values(type, row.k + type_bytes(type, (size_t)(d + v * VEC)));
        if (type == PI_ATTEND_Q8_0)
            out[v] = vec_mul(vec_set1_f16(row.scale + d / 32), out[v]);
    }
}

/* The same where a key ends before, n < 16 of them and then 0. Blocks of codes do not. */
TILE void load_rest(enum pi_attend_type type, struct row row, int32_t d, int32_t n, vec out[NV])
{
    uint8_t rest[16 * sizeof(float)] = {0};
    memcpy(rest, row.k + type_bytes(type, (size_t)d), type_bytes(type, (size_t)n));
    load_16(type, (struct row){.k = rest}, 0, out);
}

/* ---- few vectors, along the key ----------------------------------------------------------- */

/* Products of n_key keys with a vector, 16 dimensions of each side by side. Lines from `next` on
   are prefetched a few at a time, as many as these keys have; NULL: none. */
TILE void few_sums(const enum pi_attend_type type, const int32_t n_key, const struct row *key,
                   int32_t dim, const float *q, const uint8_t *next, vec acc[FEW_KEYS][NV])
{
    const size_t ask = type_bytes(type, (size_t)(n_key * 16));
    int32_t whole = dim / 16 * 16;
    vec k[NV];
    UNROLL
    for (int32_t g = 0; g < n_key; g++) {
        UNROLL
        for (int32_t v = 0; v < NV; v++)
            acc[g][v] = vec_zero();
    }
    for (int32_t d = 0; d < whole; d += 16) {
        for (size_t b = 0; next != NULL && b < ask; b += 64)
            line_prefetch_far(next + (size_t)(d / 16) * ask + b);
        UNROLL
        for (int32_t g = 0; g < n_key; g++) {
            load_16(type, key[g], d, k);
            UNROLL
            for (int32_t v = 0; v < NV; v++)
                acc[g][v] = vec_fma(k[v], vec_load(q + d + v * VEC), acc[g][v]);
        }
    }
    if (whole == dim || type >= PI_ATTEND_Q8_0)
        return;
    UNROLL
    for (int32_t g = 0; g < n_key; g++) {
        load_rest(type, key[g], whole, dim - whole, k);
        UNROLL
        for (int32_t v = 0; v < NV; v++)
            acc[g][v] = vec_fma(k[v], vec_load(q + whole + v * VEC), acc[g][v]);
    }
}

/* Keys i .. i + n_key, FEW_KEYS of them or one. */
TILE void few_tile(const enum pi_attend_type type, const int32_t n_key, const int32_t dim,
                   const struct pi_score_keys *keys, const struct pi_score_vectors *q, int32_t i,
                   float *out)
{
    size_t row = pi_align((size_t)dim, 16);
    float x[FEW_KEYS], top[FEW_KEYS];
    struct row key[FEW_KEYS];
    UNROLL
    for (int32_t g = 0; g < n_key; g++) {
        top[g] = -FLT_MAX;
        key[g] = row_of(type, keys, dim, i + g);
    }
    for (int32_t j = 0; j < q->n; j++) {
        vec acc[FEW_KEYS][NV];
        few_sums(type, n_key, key, dim, q->q + (size_t)j * row,
                 j == 0 && keys->next != 0 ? key[0].k + keys->next : NULL, acc);
        if (n_key == FEW_KEYS)
            group_tree(acc, x);
        else
            x[0] = vec_tree(acc[0]);
        for (int32_t g = 0; g < n_key; g++) {
            x[g] = x[g] > -FLT_MAX ? x[g] : -FLT_MAX;
            x[g] = x[g] < FLT_MAX ? x[g] : FLT_MAX;
            top[g] = x[g] > top[g] ? x[g] : top[g];
        }
    }
    for (int32_t g = 0; g < n_key; g++)
        out[i + g] = top[g];
}

TILE void few_keys(const enum pi_attend_type type, const int32_t dim,
                   const struct pi_score_keys *keys, const struct pi_score_vectors *q, float *out)
{
    int32_t i = 0;
    for (; i + FEW_KEYS <= keys->n; i += FEW_KEYS)
        few_tile(type, FEW_KEYS, dim, keys, q, i, out);
    for (; i < keys->n; i++)
        few_tile(type, 1, keys->dim, keys, q, i, out);
}

/* The usual head size as a constant, so that keys lie at distances that no register has to hold. */
TILE void dot_few(const enum pi_attend_type type, const struct pi_score_keys *keys,
                  const struct pi_score_vectors *q, float *out)
{
    if (keys->dim == 128)
        few_keys(type, 128, keys, q, out);
    else
        few_keys(type, keys->dim, keys, q, out);
}

/* ---- many vectors, the lanes of a register ------------------------------------------------ */

/* Up to SLAB dimensions from d0 on of WIDE keys from key i on; the last key replaces missing
   ones. */
TILE void widen(const enum pi_attend_type type, const struct pi_score_keys *keys, int32_t i,
                int32_t d0, int32_t n, float *to)
{
    int32_t whole = n / 16 * 16;
    for (int32_t g = 0; g < WIDE; g++, to += SLAB) {
        int32_t i_key = i + g < keys->n ? i + g : keys->n - 1;
        struct row key = row_of(type, keys, keys->dim, i_key);
        vec k[NV];
        for (int32_t d = 0; d < whole; d += 16) {
            load_16(type, key, d0 + d, k);
            UNROLL
            for (int32_t v = 0; v < NV; v++)
                vec_store(to + d + v * VEC, k[v]);
        }
        if (whole == n || type >= PI_ATTEND_Q8_0)
            continue;
        load_rest(type, key, d0 + whole, n - whole, k);
        UNROLL
        for (int32_t v = 0; v < NV; v++)
            vec_store(to + whole + v * VEC, k[v]);
    }
}

/* acc[g] += dimension d of GROUP widened keys times that of 16 vectors. */
TILE void many_step(const float *k, const float *q, int32_t d, vec acc[GROUP][NV])
{
    vec with[NV];
    UNROLL
    for (int32_t v = 0; v < NV; v++)
        with[v] = vec_load(q + d * 16 + v * VEC);
    UNROLL
    for (int32_t g = 0; g < GROUP; g++) {
        vec value = vec_set1(k[g * SLAB + d]);
        UNROLL
        for (int32_t v = 0; v < NV; v++)
            acc[g][v] = vec_fma(value, with[v], acc[g][v]);
    }
}

/* The same for n dimensions, of type as they are stored. It prefetches as many lines from `next` on
   as these keys have, one by one: many at once would stall the memory. */
TILE void many_tile(const enum pi_attend_type type, const float *k, const float *q, int32_t n,
                    const uint8_t *next, vec acc[GROUP][NV])
{
    const int32_t step = 64 * 8 / (GROUP * (int32_t)type_bits(type));
    int32_t d = 0;
    for (; d + step <= n; d += step, next += 64) {
        line_prefetch_far(next);
        UNROLL
        for (int32_t i = 0; i < step; i++)
            many_step(k, q, d + i, acc);
    }
    for (; d < n; d++)
        many_step(k, q, d, acc);
}

/* Sums or maxima of GROUP keys to and from memory. */
TILE void group_load(const float *from, vec acc[GROUP][NV])
{
    UNROLL
    for (int32_t g = 0; g < GROUP; g++) {
        UNROLL
        for (int32_t v = 0; v < NV; v++)
            acc[g][v] = vec_load(from + g * 16 + v * VEC);
    }
}

TILE void group_store(float *to, vec acc[GROUP][NV])
{
    UNROLL
    for (int32_t g = 0; g < GROUP; g++) {
        UNROLL
        for (int32_t v = 0; v < NV; v++)
            vec_store(to + g * 16 + v * VEC, acc[g][v]);
    }
}

/* acc becomes clamped acc, or the larger of that and top. */
TILE void group_top(const float *top, bool first, vec acc[GROUP][NV])
{
    UNROLL
    for (int32_t g = 0; g < GROUP; g++) {
        UNROLL
        for (int32_t v = 0; v < NV; v++) {
            acc[g][v] = vec_clamp(acc[g][v]);
            if (!first)
                acc[g][v] = vec_max(acc[g][v], vec_load(top + g * 16 + v * VEC));
        }
    }
}

TILE void group_zero(vec acc[GROUP][NV])
{
    UNROLL
    for (int32_t g = 0; g < GROUP; g++) {
        UNROLL
        for (int32_t v = 0; v < NV; v++)
            acc[g][v] = vec_zero();
    }
}

/* WIDE keys from key i on. A key of no more than a slab is widened once for all blocks of
   vectors. */
TILE void many_keys(const enum pi_attend_type type, const struct pi_score_keys *keys,
                    const struct pi_score_vectors *q, int32_t i, float *out)
{
    _Alignas(64) float k[WIDE * SLAB], sums[WIDE * 16], tops[WIDE * 16] = {0};
    int32_t dim = keys->dim, n_block = (q->n + 15) / 16;
    const uint8_t *next = (const uint8_t *)keys->k + type_bytes(type, (size_t)i * (size_t)dim);
    next += keys->next;
    for (int32_t b = 0; b < n_block; b++)
        for (int32_t d0 = 0; d0 < dim; d0 += SLAB) {
            const float *with = q->q + ((size_t)b * (size_t)dim + (size_t)d0) * 16;
            int32_t n = dim - d0 < SLAB ? dim - d0 : SLAB;
            if (b == 0 || dim > SLAB)
                widen(type, keys, i, d0, n, k);
            for (int32_t g = 0; g < WIDE; g += GROUP) {
                vec acc[GROUP][NV];
                if (d0 == 0)
                    group_zero(acc);
                else
                    group_load(sums + g * 16, acc);
                many_tile(type, k + g * SLAB, with, n,
                          next + type_bytes(type, (size_t)(g * dim + d0 * GROUP)), acc);
                if (d0 + n < dim) {
                    group_store(sums + g * 16, acc);
                    continue;
                }
                group_top(tops + g * 16, b == 0, acc);
                if (b + 1 < n_block)
                    group_store(tops + g * 16, acc);
                else
                    group_max(acc, out + i + g);
            }
        }
}

TILE void dot(const enum pi_attend_type type, const struct pi_score_keys *keys,
              const struct pi_score_vectors *q, float *out)
{
    if (q->n <= PI_SCORE_FEW)
        dot_few(type, keys, q, out);
    else
        for (int32_t i = 0; i < keys->n; i += WIDE)
            many_keys(type, keys, q, i, out);
}

static void dot_f32(const struct pi_score_keys *keys, const struct pi_score_vectors *q, float *out)
{
    dot(PI_ATTEND_F32, keys, q, out);
}

static void dot_f16(const struct pi_score_keys *keys, const struct pi_score_vectors *q, float *out)
{
    dot(PI_ATTEND_F16, keys, q, out);
}

static void dot_bf16(const struct pi_score_keys *keys, const struct pi_score_vectors *q, float *out)
{
    dot(PI_ATTEND_BF16, keys, q, out);
}

static void dot_q8_0(const struct pi_score_keys *keys, const struct pi_score_vectors *q, float *out)
{
    dot(PI_ATTEND_Q8_0, keys, q, out);
}

static void dot_code4(const struct pi_score_keys *keys, const struct pi_score_vectors *q,
                      float *out)
{
    dot(PI_ATTEND_CODE4, keys, q, out);
}

static void dot_code3(const struct pi_score_keys *keys, const struct pi_score_vectors *q,
                      float *out)
{
    dot(PI_ATTEND_CODE3, keys, q, out);
}

static void dot_code2(const struct pi_score_keys *keys, const struct pi_score_vectors *q,
                      float *out)
{
    dot(PI_ATTEND_CODE2, keys, q, out);
}

/* ---- columns, the lanes being keys -------------------------------------------------------- */

/* Vectors j .. j + n_q times n_vec registers of keys from key s on. */
TILE void column_tile(const enum pi_attend_type type, const int32_t n_q, const int32_t n_vec,
                      const struct pi_score_columns *c, int32_t j, int32_t s, float *out)
{
    vec acc[4][COLUMN_VECS], k[COLUMN_VECS];
    const float *q = c->q + (size_t)j * (size_t)c->n_dim;
    UNROLL
    for (int32_t i = 0; i < n_q; i++) {
        UNROLL
        for (int32_t v = 0; v < n_vec; v++)
            acc[i][v] = vec_zero();
    }
    for (int32_t d = 0; d < c->n_dim; d++) {
        const uint8_t *at = (const uint8_t *)c->k +
                            type_bytes(type, (size_t)c->dims[d] * (size_t)c->stride + (size_t)s);
        for (size_t b = 0; j == 0 && b < type_bytes(type, (size_t)(n_vec * VEC)); b += 64)
            line_prefetch_far(at + c->next + b);
        UNROLL
        for (int32_t v = 0; v < n_vec; v++)
            k[v] = load_values(type, at + type_bytes(type, (size_t)(v * VEC)));
        UNROLL
        for (int32_t i = 0; i < n_q; i++) {
            vec with = vec_set1(q[i * c->n_dim + d]);
            UNROLL
            for (int32_t v = 0; v < n_vec; v++)
                acc[i][v] = vec_fma(k[v], with, acc[i][v]);
        }
    }
    UNROLL
    for (int32_t v = 0; v < n_vec; v++) {
        vec top = j == 0 ? vec_clamp(acc[0][v]) : vec_load(out + s + v * VEC);
        UNROLL
        for (int32_t i = 0; i < n_q; i++)
            top = vec_max(top, vec_clamp(acc[i][v]));
        vec_store(out + s + v * VEC, top);
    }
}

TILE void column_vectors(const enum pi_attend_type type, const int32_t n_q,
                         const struct pi_score_columns *c, int32_t j, float *out)
{
    int32_t s = 0, n = (c->n + 15) / 16 * 16;
    for (; s + COLUMN_VECS * VEC <= n; s += COLUMN_VECS * VEC)
        column_tile(type, n_q, COLUMN_VECS, c, j, s, out);
    for (; s < n; s += VEC)
        column_tile(type, n_q, 1, c, j, s, out);
}

TILE void columns(const enum pi_attend_type type, const struct pi_score_columns *c, float *out)
{
    int32_t j = 0;
    for (; j + 4 <= c->n_q; j += 4)
        column_vectors(type, 4, c, j, out);
    for (; j < c->n_q; j++)
        column_vectors(type, 1, c, j, out);
}

static void columns_f32(const struct pi_score_columns *c, float *out)
{
    columns(PI_ATTEND_F32, c, out);
}

static void columns_f16(const struct pi_score_columns *c, float *out)
{
    columns(PI_ATTEND_F16, c, out);
}

static void score_init(struct pi_score_kernels *k)
{
    k->dot[PI_ATTEND_F32] = dot_f32;
    k->dot[PI_ATTEND_F16] = dot_f16;
    k->dot[PI_ATTEND_BF16] = dot_bf16;
    k->dot[PI_ATTEND_Q8_0] = dot_q8_0;
    k->dot[PI_ATTEND_CODE4] = dot_code4;
    k->dot[PI_ATTEND_CODE3] = dot_code3;
    k->dot[PI_ATTEND_CODE2] = dot_code2;
    k->columns[PI_ATTEND_F32] = columns_f32;
    k->columns[PI_ATTEND_F16] = columns_f16;
}

#endif
