/*
 * attend_tile.h - the body of every vector level of attend.h, written once. A level's file defines
 * the type `vec` of VEC floats, the type `vmask` and the operations listed below, and includes this
 * header. No other file includes it. The order of operations follows the reference exactly.
 *
 *   vec_zero() vec_set1(f) vec_load(p) vec_store(p, v) vec_add vec_sub vec_mul vec_fma(a, b, c)
 *   vec_clamp(v)           attend.h's clamp
 *   vec_max(a, b)          for values that are not NaN
 *   vec_max_all(v)         the largest lane
 *   vec_tree(v)            attend.h's tree over 16 / VEC vectors
 *   vec_max_rows(v, out) vec_tree_rows(v, out)      the same of 16 rows, out [16]
 *   vec_pow2(y, t)         y * 2^n, n in the low bits of t
 *   vec_bf16(v)            rounded to bf16, to nearest, ties to even, of finite numbers
 *   vec_load_f16(p) vec_load_bf16(p) vec_load_i8(p)      VEC values, exactly
 *   vec_load_f16_step(p, step)                the same of values `step` apart
 *   vec_load_code(p, i)                       of VEC words of four codes each, code i * 2^24
 *   vec_set1_f16(p)                           one value in every lane
 *   the type `vint` of VEC whole numbers, and of VEC words of four signed codes:
 *   vint_load(p) vint_set1(p)                 words, or one in every lane
 *   vint_start(sum)        what sums of products begin with; sum: of the second's codes
 *   vint_dot(acc, k, q)    acc plus the four products of each word; k as vint_load leaves it
 *   vint_floats(v)
 *   coded_vecs(n_row)      tile_vecs of those
 *   vec_load_part(p, n) vec_load_f16_part vec_load_bf16_part vec_load_i8_part
 *                          the first n < VEC values, 0 beyond
 *   vec_store_part(p, v, n)
 *   mask_visible(pos, limit, n)  lanes i < n with pos[i] <= limit; n may be any number
 *   mask_below(a, b)       lanes with a < b
 *   mask_pick(m, a, b)     a where m, else b
 *   line_prefetch(p)       brings a line to the first level of cache, _far to the second
 *   EXP_VECS               exponentials side by side, a multiple of 16 / VEC, at most 4
 *   tile_vecs(n_row)       registers across, of a tile that is n_row high
 *   TILE_ROWS_TALL         12 where a tile of 12 rows pays on f32 pages, else 6
 *   LANES, bits and the operations on them, which attend_transpose.h lists, and what attend_codes.h
 *   does
 *   mask_bits(m)           bit i for lane i
 */
#ifndef PI_ATTEND_TILE_H
#define PI_ATTEND_TILE_H

#include <math.h>

#include "cpu/attend_transpose.h"

/* Prefetches at step i of n: with far, this step's share of the lines; without it, all lines at the
   first step. Far prefetches are spread over the steps; issued together they are slower
   (kernels.c). */
TILE void prefetch_beside(const uint8_t *at, const int32_t size, const bool far, const int32_t i,
                          const int32_t n)
{
    const int32_t n_line = (size + 63) / 64;
    if (!far && i == 0)
        prefetch_lines(at, (size_t)size, false);
    UNROLL
    for (int32_t l = 0; far && l < n_line; l++)
        if (spread_to(l, n_line, i, n))
            line_prefetch_far(at + l * 64);
}

/* How many bytes before their use lines move from the second cache level to the first. Without it,
   the loop over f16 keys was 7 % slower in some programs, depending on the registers that the
   compiler chose. q8_0 is bound by its arithmetic and gains nothing. */
#define SOON_BYTES 1024

/* Beside the first half of n steps: brings lines of the page that is read, where it is far. */
TILE void prefetch_soon(const uint8_t *at, const int32_t size, const bool far, const int32_t i,
                        const int32_t n)
{
    const int32_t n_line = (size + 63) / 64;
    UNROLL
    for (int32_t l = 0; far && l < n_line; l++)
        if (spread_to(l, n_line, i - 1, n / 2))
            line_prefetch(at + SOON_BYTES + l * 64);
}

/* Vectors of a page that are computed: the slots in use, rounded up to 16. */
TILE int32_t page_vecs(const struct pi_attend_page *page)
{
    return (page->n + 15) / 16 * (16 / VEC);
}

TILE bool is_half(enum pi_attend_type type)
{
    return type == PI_ATTEND_F16 || type == PI_ATTEND_BF16;
}

TILE size_t type_size(enum pi_attend_type type)
{
    return type == PI_ATTEND_F32 ? sizeof(float) : is_half(type) ? sizeof(uint16_t) : 1;
}

/* VEC values of a type; codes as they are. */
TILE vec load_values(enum pi_attend_type type, const uint8_t *at)
{
    const void *p = at;
    if (type == PI_ATTEND_F32)
        return vec_load(p);
    if (type == PI_ATTEND_BF16)
        return vec_load_bf16(p);
    return type == PI_ATTEND_F16 ? vec_load_f16(p) : vec_load_i8(p);
}

TILE vec load_values_part(enum pi_attend_type type, const uint8_t *at, int32_t n)
{
    const void *p = at;
    if (type == PI_ATTEND_F32)
        return vec_load_part(p, n);
    if (type == PI_ATTEND_BF16)
        return vec_load_bf16_part(p, n);
    return type == PI_ATTEND_F16 ? vec_load_f16_part(p, n) : vec_load_i8_part(p, n);
}

#include "cpu/attend_keys.h"

/* ---- logits ------------------------------------------------------------------------------- */

/* A sum over the dimensions so far; the last ones make logits of it. */
TILE void logit_store(const struct pi_attend_page *page, const struct keys *keys,
                      const struct pi_attend_rows *rows, float *x, vec sum)
{
    bool last = keys->d0 + keys->n_dim == page->dim_k;
    vec_store(x, last ? vec_clamp(vec_mul(sum, vec_set1(rows->scale))) : sum);
}

/* Rows r0.. (n_row of them) times the slots from s0 on (n_vec vectors). The sums wait in x from one
   call to the one with the next dimensions. */
TILE void logits_tile(const enum pi_attend_type type, const int32_t n_row, const int32_t n_vec,
                      const bool far, const struct pi_attend_page *page, const struct keys *keys,
                      const struct pi_attend_rows *rows, int32_t r0, int32_t s0)
{
    const int32_t size = element_size(type);
    const int32_t asked = keys->asked;
    const bool asks = is_half(type) || keys->next != NULL; /* known when this is compiled */
    vec acc[PI_ATTEND_ROWS][4], k[4];
    const uint8_t *at = keys->at + s0 * size;
    const uint8_t *next = asks ? keys->next + s0 * asked : NULL;
    const float *q = rows->q + (size_t)keys->d0 * (size_t)rows->n_row + r0;
    float *x = rows->x + r0 * PI_ATTEND_SLOTS + s0;
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            acc[r][j] = keys->d0 == 0 ? vec_zero() : vec_load(x + r * PI_ATTEND_SLOTS + j * VEC);
    }
    for (int32_t d = 0; d < keys->n_dim; d++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            k[j] = load_values(type, at + j * VEC * size);
        UNROLL
        for (int32_t r = 0; r < n_row; r++) {
            vec qr = vec_set1(q[r]);
            UNROLL
            for (int32_t j = 0; j < n_vec; j++) {
                if (asks)
                    prefetch_beside(next, n_vec * VEC * asked, far, r * n_vec + j, n_row * n_vec);
                if (is_half(type))
                    prefetch_soon(at, n_vec * VEC * size, far, r * n_vec + j, n_row * n_vec);
                acc[r][j] = vec_fma(k[j], qr, acc[r][j]);
            }
        }
        q += rows->n_row;
        at += keys->pitch;
        next = asks ? next + keys->next_pitch : NULL;
    }
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            logit_store(page, keys, rows, x + r * PI_ATTEND_SLOTS + j * VEC, acc[r][j]);
    }
}

/* All slots for n_row rows, in tiles as wide as registers allow. */
TILE void logits_rows(const enum pi_attend_type type, const int32_t n_row, const bool far,
                      const struct pi_attend_page *page, const struct keys *keys,
                      const struct pi_attend_rows *rows, int32_t r0)
{
    int32_t i = 0, n = page_vecs(page);
    if (tile_vecs(n_row) >= 4)
        for (; i + 4 <= n; i += 4)
            logits_tile(type, n_row, 4, far, page, keys, rows, r0, i * VEC);
    if (tile_vecs(n_row) >= 2)
        for (; i + 2 <= n; i += 2)
            logits_tile(type, n_row, 2, far, page, keys, rows, r0, i * VEC);
    for (; i < n; i++)
        logits_tile(type, n_row, 1, far, page, keys, rows, r0, i * VEC);
}

#include "cpu/attend_coded.h"

/* ---- softmax ------------------------------------------------------------------------------ */

/* n registers side by side: one waits for its own last step while others take theirs. */
TILE void exp_below_0_all(const int32_t n, vec *x)
{
    vec t[4], r[4], y[4];
    UNROLL
    for (int32_t i = 0; i < n; i++)
        t[i] = vec_fma(x[i], vec_set1(PI_EXP_LOG2E), vec_set1(PI_EXP_MAGIC));
    UNROLL
    for (int32_t i = 0; i < n; i++)
        y[i] = vec_sub(t[i], vec_set1(PI_EXP_MAGIC));
    UNROLL
    for (int32_t i = 0; i < n; i++)
        r[i] = vec_fma(y[i], vec_set1(-PI_EXP_LN2_HIGH), x[i]);
    UNROLL
    for (int32_t i = 0; i < n; i++)
        r[i] = vec_fma(y[i], vec_set1(-PI_EXP_LN2_LOW), r[i]);
    UNROLL
    for (int32_t i = 0; i < n; i++)
        y[i] = vec_fma(vec_set1(PI_EXP_C6), r[i], vec_set1(PI_EXP_C5));
    UNROLL
    for (int32_t i = 0; i < n; i++)
        y[i] = vec_fma(y[i], r[i], vec_set1(PI_EXP_C4));
    UNROLL
    for (int32_t i = 0; i < n; i++)
        y[i] = vec_fma(y[i], r[i], vec_set1(PI_EXP_C3));
    UNROLL
    for (int32_t i = 0; i < n; i++)
        y[i] = vec_fma(y[i], r[i], vec_set1(PI_EXP_C2));
    UNROLL
    for (int32_t i = 0; i < n; i++)
        y[i] = vec_fma(y[i], r[i], vec_set1(1.0f));
    UNROLL
    for (int32_t i = 0; i < n; i++)
        y[i] = vec_fma(y[i], r[i], vec_set1(1.0f));
    UNROLL
    for (int32_t i = 0; i < n; i++)
        x[i] = mask_pick(mask_below(x[i], vec_set1(PI_EXP_MIN)), vec_zero(), vec_pow2(y[i], t[i]));
}

TILE vec exp_below_0(vec x)
{
    exp_below_0_all(1, &x);
    return x;
}

/* Replaces the logits that are not visible by -INFINITY. */
static void hide(const struct pi_attend_page *page, int32_t limit, float *x)
{
    vec nothing = vec_set1(-INFINITY);
    for (int32_t s = 0; s < page_vecs(page) * VEC; s += VEC)
        vec_store(x + s, mask_pick(mask_visible(page->pos + s, limit, page->n - s), vec_load(x + s),
                                   nothing));
}

/* Loads and stores for n values, of which only a last vector may be partial. */
TILE vec load_some(const float *p, int32_t n)
{
    return n < VEC ? vec_load_part(p, n) : vec_load(p);
}

TILE void store_some(float *p, vec v, int32_t n)
{
    if (n < VEC)
        vec_store_part(p, v, n);
    else
        vec_store(p, v);
}

/* The largest logit of a row so far. */
TILE float row_max(const float *x, int32_t n_vec, float old)
{
    vec top = vec_max(vec_set1(old), vec_load(x));
    for (int32_t i = 1; i < n_vec; i++)
        top = vec_max(top, vec_load(x + i * VEC));
    return vec_max_all(top);
}

/* n registers of row_weights, n <= 4 and a multiple of 16 / VEC. */
TILE void some_weights(const int32_t n, float *x, vec shift, float *copy, vec *sum)
{
    vec p[4];
    UNROLL
    for (int32_t j = 0; j < n; j++)
        p[j] = vec_sub(vec_load(x + j * VEC), shift);
    exp_below_0_all(n, p);
    UNROLL
    for (int32_t j = 0; j < n; j++) {
        vec_store(x + j * VEC, p[j]);
        if (copy != NULL)
            vec_store(copy + j * VEC, p[j]);
        sum[j % (16 / VEC)] = vec_add(sum[j % (16 / VEC)], p[j]);
    }
}

/* x becomes E(x - base), stored in copy, too, where that is not NULL; sum [16 / VEC]: its sixteen
   sums. */
TILE void row_weights(float *x, int32_t n_vec, float base, float *copy, vec *sum)
{
    vec shift = vec_set1(base);
    int32_t i = 0;
    UNROLL
    for (int32_t j = 0; j < 16 / VEC; j++)
        sum[j] = vec_zero();
    for (; i + EXP_VECS <= n_vec; i += EXP_VECS)
        some_weights(EXP_VECS, x + i * VEC, shift, copy == NULL ? NULL : copy + i * VEC, sum);
    for (; i < n_vec; i += 16 / VEC)
        some_weights(16 / VEC, x + i * VEC, shift, copy == NULL ? NULL : copy + i * VEC, sum);
}

/* Rows whose logits are -INFINITY where they do not see. A row that has seen nothing yet takes 0
   for its maximum in the differences, which keeps them from being NaN. */
TILE float row_base(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

/* Few rows: one after the other, and the rescale, mostly 1, only where the maximum moved. */
static void softmax_few(const struct pi_attend_rows *rows, int32_t n_vec, float *weight,
                        size_t stride)
{
    for (int32_t r = 0; r < rows->n_row; r++) {
        float *x = rows->x + r * PI_ATTEND_SLOTS, old = rows->max[r], c[VEC] = {1.0f};
        vec sum[16 / VEC];
        float max = row_max(x, n_vec, old), base = row_base(max);
        if (max > old)
            vec_store(c, exp_below_0(vec_sub(vec_set1(old), vec_set1(base))));
        rows->max[r] = max;
        rows->rescale[r] = c[0];
        row_weights(x, n_vec, base, weight, sum);
        rows->sum[r] = fmaf(rows->sum[r], c[0], vec_tree(sum));
        weight = weight == NULL ? NULL : weight + stride;
    }
}

/* The largest logits of many rows, max [16], at least the maxima so far. base is the number to
   subtract from logits, which are not below -FLT_MAX where they count. */
TILE void rows_max(const struct pi_attend_rows *rows, int32_t n_vec, float *max, float *base)
{
    vec top[16];
    for (int32_t r = 0; r < 16; r++) {
        const float *x = rows->x + (r < rows->n_row ? r : 0) * PI_ATTEND_SLOTS;
        top[r] = vec_load(x);
        for (int32_t i = 1; i < n_vec; i++)
            top[r] = vec_max(top[r], vec_load(x + i * VEC));
    }
    vec_max_rows(top, max);
    for (int32_t r = 0; r < rows->n_row; r += VEC) {
        int32_t n = rows->n_row - r;
        vec m = vec_max(load_some(rows->max + r, n), vec_load(max + r));
        vec_store(max + r, m);
        vec_store(base + r, vec_max(m, vec_set1(-FLT_MAX)));
    }
}

/* Many rows: the steps on one number per row are taken for all at once. The rescale is computed for
   every row. E(0) = 1 is exact where the maximum stays. A row that has seen no entry gets 0 instead
   of 1, which multiplies zeros. */
static void softmax_many(const struct pi_attend_rows *rows, int32_t n_vec, float *weight,
                         size_t stride)
{
    float max[16], base[16], sum[16];
    vec part[16][16 / VEC];
    rows_max(rows, n_vec, max, base);
    for (int32_t r = 0; r < 16; r++) {
        if (r < rows->n_row)
            row_weights(rows->x + r * PI_ATTEND_SLOTS, n_vec, base[r], weight, part[r]);
        else
            memset(part[r], 0, sizeof(part[r]));
        weight = weight == NULL ? NULL : weight + stride;
    }
    vec_tree_rows(part, sum);
    for (int32_t r = 0; r < rows->n_row; r += VEC) {
        int32_t n = rows->n_row - r;
        vec c = exp_below_0(vec_sub(load_some(rows->max + r, n), vec_load(base + r)));
        vec l = vec_fma(load_some(rows->sum + r, n), c, vec_load(sum + r));
        store_some(rows->rescale + r, c, n);
        store_some(rows->sum + r, l, n);
    }
    memcpy(rows->max, max, (size_t)rows->n_row * sizeof(float));
}

static void softmax(const struct pi_attend_page *page, const struct pi_attend_rows *rows,
                    const struct pi_attend_tap *tap)
{
    float *weight = tap == NULL ? NULL : tap->weight;
    size_t stride = tap == NULL ? 0 : tap->stride;
    if (!rows->all_visible || page->n % 16 != 0)
        for (int32_t r = 0; r < rows->n_row; r++)
            hide(page, rows->limit[r], rows->x + r * PI_ATTEND_SLOTS);
    if (tap != NULL && tap->logits != NULL)
        for (int32_t r = 0; r < rows->n_row; r++)
            memcpy(tap->logits + (size_t)r * stride, rows->x + r * PI_ATTEND_SLOTS,
                   (size_t)page->n * sizeof(float));
    if (rows->n_row <= PI_ATTEND_ROWS_STORED)
        softmax_few(rows, page_vecs(page), weight, stride);
    else
        softmax_many(rows, page_vecs(page), weight, stride);
}

/* Slots beyond n have weights of 0, if any. With a bound of 0 they are not below it, and then the
   test for weights above 0 excludes them. */
static uint64_t drop(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    uint64_t need = 0;
    for (int32_t r = 0; r < rows->n_row; r++) {
        vec least = vec_set1(PI_ATTEND_SMALL * rows->sum[r]);
        float *x = rows->x + r * PI_ATTEND_SLOTS;
        for (int32_t s = 0; s < page_vecs(page) * VEC; s += VEC) {
            vec p = vec_load(x + s);
            p = mask_pick(mask_below(p, least), vec_zero(), p);
            vec_store(x + s, p);
            need |= (uint64_t)mask_bits(mask_below(vec_zero(), p)) << s;
        }
    }
    return need;
}

static void multiply(float *x, int32_t n, float factor)
{
    vec f = vec_set1(factor);
    int32_t i = 0;
    for (; i + VEC <= n; i += VEC)
        vec_store(x + i, vec_mul(vec_load(x + i), f));
    if (i < n)
        vec_store_part(x + i, vec_mul(vec_load_part(x + i, n - i), f), n - i);
}

static void decay(float *x, int32_t n, float max, float factor)
{
    vec m = vec_set1(max), f = vec_set1(factor);
    for (int32_t i = 0; i < n; i += VEC)
        store_some(x + i, vec_mul(exp_below_0(vec_sub(load_some(x + i, n - i), m)), f), n - i);
}

/* ---- values ------------------------------------------------------------------------------- */

/* Rows r0.. times the dimensions from d0 on: n_vec vectors, or with part > 0 the part < VEC
   dimensions that are left over (n_vec is 1). It also prefetches values of a later page: the same
   values there, or with far an equal share of the page in its own order. Intel's second level
   fetches pairs of neighbouring lines. If the first tile prefetched every other line, it would
   fetch all of them and leave none to the next tile. f32 pages are mostly decoded ones, in the
   caches already. */
TILE void values_tile(const enum pi_attend_type type, const int32_t n_row, const int32_t n_vec,
                      const bool far, const struct pi_attend_page *page,
                      const struct pi_attend_rows *rows, int32_t r0, int32_t d0, const int32_t part)
{
    vec acc[PI_ATTEND_ROWS][4], v[4];
    const size_t pitch = (size_t)page->v_pitch * type_size(type);
    const size_t before = (size_t)d0 * type_size(type),
                 size = (size_t)(n_vec * VEC) * type_size(type);
    const uint8_t *at = (const uint8_t *)page->v + before;
    const uint8_t *next =
        (const uint8_t *)page->v + page->next + (far ? (size_t)page->n * before : before);
    struct scales scales;
    const float *p = rows->x + r0 * PI_ATTEND_SLOTS;
    float *o = rows->o + (size_t)r0 * rows->o_stride + d0;
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        vec c = vec_set1(rows->rescale[r0 + r]);
        UNROLL
        for (int32_t j = 0; j < n_vec; j++) {
            const float *from = o + (size_t)r * rows->o_stride + j * VEC;
            acc[r][j] = vec_mul(part > 0 ? vec_load_part(from, part) : vec_load(from), c);
        }
    }
    if (type == PI_ATTEND_Q8_0)
        scales_load(page->v_scale + d0 / SCALE_LEN, page->v_pitch / SCALE_LEN, page->n,
                    (n_vec * VEC + SCALE_LEN - 1) / SCALE_LEN, &scales);
    for (int32_t s = 0; s < page->n; s++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++) {
            v[j] = part > 0 ? load_values_part(type, at, part)
                            : load_values(type, at + (size_t)(j * VEC) * type_size(type));
            if (type == PI_ATTEND_Q8_0)
                v[j] = vec_mul(vec_set1(scales.of[j * VEC / SCALE_LEN][s]), v[j]);
        }
        UNROLL
        for (int32_t r = 0; r < n_row; r++) {
            vec w = vec_set1(p[r * PI_ATTEND_SLOTS + s]);
            UNROLL
            for (int32_t j = 0; j < n_vec; j++) {
                if (type != PI_ATTEND_F32)
                    prefetch_beside(next, (int32_t)size, far, r * n_vec + j, n_row * n_vec);
                acc[r][j] = vec_fma(v[j], w, acc[r][j]);
            }
        }
        next += far ? size : pitch;
        at += pitch;
    }
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++) {
            float *to = o + (size_t)r * rows->o_stride + j * VEC;
            if (part > 0)
                vec_store_part(to, acc[r][j], part);
            else
                vec_store(to, acc[r][j]);
        }
    }
}

TILE void values_rows(const enum pi_attend_type type, const int32_t n_row, const bool far,
                      const struct pi_attend_page *page, const struct pi_attend_rows *rows,
                      int32_t r0)
{
    int32_t i = 0, n = page->dim_v / VEC;
    if (tile_vecs(n_row) >= 4)
        for (; i + 4 <= n; i += 4)
            values_tile(type, n_row, 4, far, page, rows, r0, i * VEC, 0);
    if (tile_vecs(n_row) >= 2)
        for (; i + 2 <= n; i += 2)
            values_tile(type, n_row, 2, far, page, rows, r0, i * VEC, 0);
    for (; i < n; i++)
        values_tile(type, n_row, 1, far, page, rows, r0, i * VEC, 0);
    if (page->dim_v % VEC != 0 && type != PI_ATTEND_Q8_0) /* q8_0 rows have whole vectors */
        values_tile(type, n_row, 1, far, page, rows, r0, i * VEC, page->dim_v % VEC);
}

/* ---- one function per type and height ----------------------------------------------------- */

/* The work of a tile on rows r0..: logits of transposed keys (keys != NULL), or values. */
TILE void tile_rows(const enum pi_attend_type type, const int32_t n_row,
                    const struct pi_attend_page *page, const struct keys *keys,
                    const struct pi_attend_rows *rows, int32_t r0)
{
    const bool far = type != PI_ATTEND_F32 && page->far;
    if (keys != NULL && far)
        logits_rows(type, n_row, true, page, keys, rows, r0);
    else if (keys != NULL)
        logits_rows(type, n_row, false, page, keys, rows, r0);
    else if (far)
        values_rows(type, n_row, true, page, rows, r0);
    else
        values_rows(type, n_row, false, page, rows, r0);
}

/* Heights are constants, so that each tile's sums stay in registers. */
TILE void tile_some(const enum pi_attend_type type, int32_t n_row,
                    const struct pi_attend_page *page, const struct keys *keys,
                    const struct pi_attend_rows *rows, int32_t r0)
{
    switch (n_row) {
    case 1:
        tile_rows(type, 1, page, keys, rows, r0);
        break;
    case 2:
        tile_rows(type, 2, page, keys, rows, r0);
        break;
    case 3:
        tile_rows(type, 3, page, keys, rows, r0);
        break;
    case 4:
        tile_rows(type, 4, page, keys, rows, r0);
        break;
    case 5:
        tile_rows(type, 5, page, keys, rows, r0);
        break;
    case 6:
        tile_rows(type, 6, page, keys, rows, r0);
        break;
    case 7:
        if (type != PI_ATTEND_F32)
            tile_rows(type, 7, page, keys, rows, r0);
        break;
    case 8:
        if (type != PI_ATTEND_F32)
            tile_rows(type, 8, page, keys, rows, r0);
        break;
    default:
        break;
    }
}

/* f32 is read from the cache again for every 6 rows; packed types, at most 8 rows, in one go. */
TILE void tile_all(const enum pi_attend_type type, const struct pi_attend_page *page,
                   const struct keys *keys, const struct pi_attend_rows *rows)
{
    int32_t r = 0, across = keys != NULL ? page_vecs(page) : page->dim_v / VEC;
    if (type == PI_ATTEND_F32 && TILE_ROWS_TALL == 12 && rows->n_row == 12 && across < 4) {
        tile_rows(type, 12, page, keys, rows, 0);
        return;
    }
    if (type == PI_ATTEND_F32)
        for (; rows->n_row - r >= 6; r += 6)
            tile_some(type, 6, page, keys, rows, r);
    tile_some(type, rows->n_row - r, page, keys, rows, r);
}

/* Keys as stored, KEY_BLOCK dimensions at a time where they are put side by side. */
TILE void logits_stored(const enum pi_attend_type type, const struct pi_attend_page *page,
                        const struct pi_attend_rows *rows)
{
    struct key_block block;
    for (int32_t d = 0, end; d < page->dim_k; d = end) {
        const struct keys keys = page->columns
                                     ? keys_stored(type, page)
                                     : keys_turn(type, page, page_vecs(page) * VEC, d, &block);
        tile_all(type, page, &keys, rows);
        end = keys.d0 + keys.n_dim;
    }
}

static void logits_f32(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    logits_stored(PI_ATTEND_F32, page, rows);
}

static void logits_f16(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    logits_stored(PI_ATTEND_F16, page, rows);
}

static void logits_bf16(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    logits_stored(PI_ATTEND_BF16, page, rows);
}

static void logits_decoded(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    const struct keys keys = {
        .at = page->k, .pitch = (size_t)page->page_len * sizeof(float), .n_dim = page->dim_k};
    tile_all(PI_ATTEND_F32, page, &keys, rows);
}

static void values_f32(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    tile_all(PI_ATTEND_F32, page, NULL, rows);
}

static void values_f16(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    tile_all(PI_ATTEND_F16, page, NULL, rows);
}

static void values_q8_0(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    tile_all(PI_ATTEND_Q8_0, page, NULL, rows);
}

static void prefetch(const void *at, size_t size)
{
    for (size_t i = 0; i < size; i += 64)
        line_prefetch_far((const uint8_t *)at + i);
}

static void prefetch_near(const void *at, size_t size)
{
    prefetch_lines(at, size, false);
}

#include "cpu/attend_decode.h"
#include "cpu/attend_rounded.h"

#include "cpu/attend_codes.h"

/* Decoding f32 values keeps the scalar function: they need no decoding. */
static void attend_init(struct pi_attend_kernels *k)
{
    codes_init(k);
    k->drop = drop;
    k->logits[PI_ATTEND_F32] = logits_f32;
    k->logits[PI_ATTEND_F16] = logits_f16;
    k->logits[PI_ATTEND_BF16] = logits_bf16;
    k->logits[PI_ATTEND_Q8_0] = logits_coded;
    k->logits_decoded = logits_decoded;
    k->softmax = softmax;
    k->values[PI_ATTEND_F32] = values_f32;
    k->values[PI_ATTEND_F16] = values_f16;
    k->values[PI_ATTEND_BF16] = values_bf16;
    k->values_rounded[PI_ATTEND_BF16] = values_bf16;
    k->values[PI_ATTEND_Q8_0] = values_q8_0;
    k->decode_k[PI_ATTEND_F32] = decode_k_f32;
    k->decode_k[PI_ATTEND_F16] = decode_k_f16;
    k->decode_k[PI_ATTEND_BF16] = decode_k_bf16;
    k->decode_k[PI_ATTEND_Q8_0] = decode_k_q8_0;
    k->turn_k = turn_k;
    k->decode_v[PI_ATTEND_F16] = decode_v_f16;
    k->decode_v[PI_ATTEND_BF16] = decode_v_bf16;
    k->decode_rounded[PI_ATTEND_BF16] = decode_v_bf16;
    k->decode_v[PI_ATTEND_Q8_0] = decode_v_q8_0;
    k->scale = multiply;
    k->decay = decay;
    k->prefetch = prefetch;
    k->prefetch_near = prefetch_near;
}

#endif
