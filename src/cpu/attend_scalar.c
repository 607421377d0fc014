/*
 * attend_scalar.c - the reference of attention over a page, one value at a time. It defines the
 * bits that every other level must give: the formulas stand in attend.h. Compiled without
 * contraction; speed is no concern here.
 */
#include <float.h>
#include <math.h>

#include "base/half.h"
#include "cpu/kernels.h"

/* The number of slots that are computed: the used ones, rounded up to whole groups of 16. */
static int32_t slots_of(const struct pi_attend_page *page)
{
    return (page->n + 15) / 16 * 16;
}

static float f32_at(const void *values, size_t at)
{
    return ((const float *)values)[at];
}

static float f16_at(const void *values, size_t at)
{
    return pi_f32_from_f16(((const uint16_t *)values)[at]);
}

static float bf16_at(const void *values, size_t at)
{
    return pi_f32_from_bf16(((const uint16_t *)values)[at]);
}

/* Code i from an address on, including its high bit. */
static int32_t code_at(enum pi_attend_type type, const uint8_t *low, const uint8_t *high, size_t i)
{
    if (type == PI_ATTEND_CODE4)
        return low[i / 2] >> (i % 2 * 4) & 15;
    int32_t code = low[i / 4] >> (i % 4 * 2) & 3;
    return type == PI_ATTEND_CODE3 ? code | (high[i / 8] >> (i % 8) & 1) << 2 : code;
}

/* The codes of an element of columns begin in its own first byte. */
static float coded_key_at(enum pi_attend_type type, const struct pi_attend_page *page, size_t d,
                          size_t s)
{
    size_t len = (size_t)page->page_len, dim = (size_t)page->dim_k, group = (size_t)page->k_group;
    const uint8_t *low = page->k, *high = page->k_high;
    if (!page->columns) {
        low += s * dim * (size_t)pi_attend_code_bits(type) / 8;
        if (type == PI_ATTEND_CODE3)
            high += s * dim / 8;
        int32_t code = code_at(type, low, high, d);
        return pi_f32_from_f16(page->k_scale[s * (dim / group) + d / group]) * page->k_table[code];
    }
    size_t n = type == PI_ATTEND_CODE4 ? 8 : 16; /* codes of an element */
    low += (d / n * len + s) * 4;
    if (type == PI_ATTEND_CODE3)
        high += (d / n * len + s) * 2;
    int32_t code = code_at(type, low, high, d % n);
    return pi_f32_from_f16(page->k_scale[d / group * len + s]) * page->k_table[code];
}

/* The number that a value's code stands for, before the scale. */
static float value_number_at(enum pi_attend_type type, const struct pi_attend_page *page, size_t s,
                             size_t d)
{
    size_t dim = (size_t)page->v_pitch;
    const uint8_t *low = page->v, *high = page->v_high;
    low += s * dim * (size_t)pi_attend_code_bits(type) / 8;
    if (type == PI_ATTEND_CODE3)
        high += s * dim / 8;
    return page->v_table[code_at(type, low, high, d)];
}

static float coded_value_at(enum pi_attend_type type, const struct pi_attend_page *page, size_t s,
                            size_t d)
{
    size_t n_group = (size_t)(page->v_pitch / page->v_group), group = (size_t)page->v_group;
    return pi_f32_from_f16(page->v_scale[s * n_group + d / group]) *
           value_number_at(type, page, s, d);
}

static int32_t key_code_at(const struct pi_attend_page *page, size_t d, size_t s)
{
    size_t len = (size_t)page->page_len, dim = (size_t)page->dim_k;
    return ((const int8_t *)page->k)[page->columns ? (d / 4 * len + s) * 4 + d % 4 : s * dim + d];
}

static float key_scale_at(const struct pi_attend_page *page, size_t block, size_t s)
{
    size_t n = (size_t)page->dim_k / 32, len = (size_t)page->page_len;
    return pi_f32_from_f16(page->k_scale[page->columns ? block * len + s : s * n + block]);
}

static float key_at(enum pi_attend_type type, const struct pi_attend_page *page, int32_t d,
                    int32_t s)
{
    size_t len = (size_t)page->page_len, dim = (size_t)page->dim_k;
    size_t slot = (size_t)s, i = (size_t)d;
    if (type >= PI_ATTEND_CODE4)
        return coded_key_at(type, page, i, slot);
    size_t at = page->columns ? i * len + slot : slot * dim + i;
    if (type == PI_ATTEND_F32)
        return f32_at(page->k, at);
    if (type == PI_ATTEND_F16)
        return f16_at(page->k, at);
    if (type == PI_ATTEND_BF16)
        return bf16_at(page->k, at);
    return key_scale_at(page, i / 32, slot) * (float)key_code_at(page, i, slot);
}

static float value_at(enum pi_attend_type type, const struct pi_attend_page *page, int32_t s,
                      int32_t d)
{
    size_t at = (size_t)s * (size_t)page->v_pitch + (size_t)d;
    if (type >= PI_ATTEND_CODE4)
        return coded_value_at(type, page, (size_t)s, (size_t)d);
    if (type == PI_ATTEND_F32)
        return f32_at(page->v, at);
    if (type == PI_ATTEND_F16)
        return f16_at(page->v, at);
    if (type == PI_ATTEND_BF16)
        return bf16_at(page->v, at);
    size_t block = (size_t)s * (size_t)(page->v_pitch / 32) + (size_t)(d / 32);
    return pi_f32_from_f16(page->v_scale[block]) * (float)((const int8_t *)page->v)[at];
}

/* Comparisons, not fmaxf: a NaN must become -FLT_MAX. */
static float clamp(float x)
{
    x = x > -FLT_MAX ? x : -FLT_MAX;
    return x < FLT_MAX ? x : FLT_MAX;
}

static void logits(enum pi_attend_type type, const struct pi_attend_page *page,
                   const struct pi_attend_rows *rows)
{
    for (int32_t r = 0; r < rows->n_row; r++)
        for (int32_t s = 0; s < slots_of(page); s++) {
            float acc = 0.0f;
            for (int32_t d = 0; d < page->dim_k; d++)
                acc = fmaf(key_at(type, page, d, s), rows->q[d * rows->n_row + r], acc);
            rows->x[r * PI_ATTEND_SLOTS + s] = clamp(acc * rows->scale);
        }
}

static float coded_logit(const struct pi_attend_page *page, const struct pi_attend_rows *rows,
                         int32_t r, int32_t s)
{
    float acc = 0.0f;
    for (int32_t b = 0; b < page->dim_k / 32; b++) {
        int32_t dot = 0;
        for (int32_t d = 32 * b; d < 32 * b + 32; d++) {
            uint32_t word = rows->q_codes.code[d / 4 * rows->n_row + r];
            dot += key_code_at(page, (size_t)d, (size_t)s) * (int8_t)(uint8_t)(word >> d % 4 * 8);
        }
        float unit =
            key_scale_at(page, (size_t)b, (size_t)s) * rows->q_codes.scale[b * rows->n_row + r];
        acc = fmaf((float)dot, unit, acc);
    }
    return acc;
}

static void logits_coded(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    for (int32_t r = 0; r < rows->n_row; r++)
        for (int32_t s = 0; s < slots_of(page); s++)
            rows->x[r * PI_ATTEND_SLOTS + s] = clamp(coded_logit(page, rows, r, s) * rows->scale);
}

/* The same from keys that lie side by side. */
static void logits_decoded(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    const float *k = page->k;
    for (int32_t r = 0; r < rows->n_row; r++)
        for (int32_t s = 0; s < slots_of(page); s++) {
            float acc = 0.0f;
            for (int32_t d = 0; d < page->dim_k; d++)
                acc = fmaf(k[d * page->page_len + s], rows->q[d * rows->n_row + r], acc);
            rows->x[r * PI_ATTEND_SLOTS + s] = clamp(acc * rows->scale);
        }
}

static void values(enum pi_attend_type type, const struct pi_attend_page *page,
                   const struct pi_attend_rows *rows)
{
    for (int32_t r = 0; r < rows->n_row; r++)
        for (int32_t d = 0; d < page->dim_v; d++) {
            float *o = rows->o + (size_t)r * rows->o_stride + (size_t)d;
            float acc = *o * rows->rescale[r];
            for (int32_t s = 0; s < page->n; s++)
                if (type < PI_ATTEND_CODE4 || (rows->need >> s & 1) != 0)
                    acc = fmaf(value_at(type, page, s, d), rows->x[r * PI_ATTEND_SLOTS + s], acc);
            *o = acc;
        }
}

/* ---- rounded values ------------------------------------------------------------------------ */

static float round_bf16(float x)
{
    return pi_f32_from_bf16(pi_bf16_from_f32(x));
}

/* attend.h's Z */
static float at_least(float x, float least)
{
    return fabsf(x) < least ? 0.0f : x;
}

static float rounded_weight(const struct pi_attend_page *page, float p, int32_t s)
{
    if (page->v_table == NULL)
        return round_bf16(at_least(p, PI_ATTEND_BF16_LEAST));
    return round_bf16(at_least(p * pi_f32_from_f16(page->v_scale[s]), PI_ATTEND_ROUNDED_LEAST));
}

static float rounded_sum(float o, float c)
{
    return c == 1.0f ? o : at_least(o * c, PI_ATTEND_ROUNDED_LEAST_SUM);
}

/* A value as rounded ones have it. */
static float rounded_value(enum pi_attend_type type, const struct pi_attend_page *page, int32_t s,
                           int32_t d)
{
    if (type == PI_ATTEND_BF16)
        return value_at(type, page, s, d);
    return round_bf16(value_number_at(type, page, (size_t)s, (size_t)d));
}

static void values_rounded(enum pi_attend_type type, const struct pi_attend_page *page,
                           const struct pi_attend_rows *rows)
{
    assert(type == PI_ATTEND_BF16 ||
           (page->v_group == page->dim_v && page->dim_v <= PI_ATTEND_ROUNDED_DIM &&
            page->v_pitch == page->dim_v));
    for (int32_t r = 0; r < rows->n_row; r++) {
        float w[PI_ATTEND_SLOTS];
        for (int32_t s = 0; s < page->n; s++)
            w[s] = rounded_weight(page, rows->x[r * PI_ATTEND_SLOTS + s], s);
        for (int32_t d = 0; d < page->dim_v; d++) {
            float *o = rows->o + (size_t)r * rows->o_stride + (size_t)d;
            float acc = rounded_sum(*o, rows->rescale[r]);
            for (int32_t s = 0; s < page->n; s++)
                if (type == PI_ATTEND_BF16 || (rows->need >> s & 1) != 0)
                    acc = fmaf(rounded_value(type, page, s, d), w[s], acc);
            *o = acc;
        }
    }
}

static void round_weights(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    for (int32_t r = 0; r < rows->n_row; r++) {
        float *x = rows->x + r * PI_ATTEND_SLOTS, *o = rows->o + (size_t)r * rows->o_stride;
        for (int32_t s = 0; s < slots_of(page); s++)
            x[s] = rounded_weight(page, x[s], s);
        for (int32_t d = 0; d < page->dim_v; d++)
            o[d] = rounded_sum(o[d], rows->rescale[r]);
        rows->rescale[r] = 1.0f;
    }
}

static void decode_rounded(enum pi_attend_type type, const struct pi_attend_page *page, float *out)
{
    for (int32_t s = 0; s < page->page_len; s++)
        for (int32_t d = 0; d < page->dim_v; d++)
            out[s * page->dim_v + d] = rounded_value(type, page, s, d);
}

/* ---- softmax ------------------------------------------------------------------------------ */

static float exp_below_0(float x)
{
    return x < PI_EXP_MIN ? 0.0f : pi_expf(x);
}

static float tree_sum(float *sum16)
{
    for (int32_t half = 8; half > 0; half /= 2)
        for (int32_t i = 0; i < half; i++)
            sum16[i] += sum16[i + half];
    return sum16[0];
}

/* One row: x becomes p. Returns without a change of max, sum and p = 0 when nothing is visible. */
static void softmax_row(const struct pi_attend_page *page, const struct pi_attend_rows *rows,
                        int32_t r, float *logit, float *weight)
{
    float *x = rows->x + r * PI_ATTEND_SLOTS, sum16[16] = {0};
    float old = rows->max[r], max = old;
    bool visible[PI_ATTEND_SLOTS];
    for (int32_t s = 0; s < slots_of(page); s++) {
        visible[s] = s < page->n && x[s] > -INFINITY &&
                     (rows->all_visible || page->pos[s] <= rows->limit[r]);
        if (visible[s] && x[s] > max)
            max = x[s];
        if (logit != NULL && s < page->n)
            logit[s] = visible[s] ? x[s] : -INFINITY;
    }
    for (int32_t s = 0; s < slots_of(page); s++) {
        x[s] = visible[s] ? exp_below_0(x[s] - max) : 0.0f;
        sum16[s % 16] += x[s];
        if (weight != NULL)
            weight[s] = x[s];
    }
    float c = max > old ? exp_below_0(old - max) : 1.0f;
    rows->max[r] = max;
    rows->rescale[r] = c;
    rows->sum[r] = fmaf(rows->sum[r], c, tree_sum(sum16));
}

static void softmax(const struct pi_attend_page *page, const struct pi_attend_rows *rows,
                    const struct pi_attend_tap *tap)
{
    for (int32_t r = 0; r < rows->n_row; r++) {
        size_t at = tap == NULL ? 0 : (size_t)r * tap->stride;
        softmax_row(page, rows, r, tap == NULL || tap->logits == NULL ? NULL : tap->logits + at,
                    tap == NULL || tap->weight == NULL ? NULL : tap->weight + at);
    }
}

static uint64_t drop(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    uint64_t need = 0;
    for (int32_t r = 0; r < rows->n_row; r++)
        for (int32_t s = 0; s < page->n; s++) {
            float *p = rows->x + r * PI_ATTEND_SLOTS + s;
            *p = *p < PI_ATTEND_SMALL * rows->sum[r] ? 0.0f : *p;
            need |= *p > 0.0f ? (uint64_t)1 << s : 0;
        }
    return need;
}

static void multiply(float *x, int32_t n, float factor)
{
    for (int32_t i = 0; i < n; i++)
        x[i] *= factor;
}

static void decay(float *x, int32_t n, float max, float factor)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = exp_below_0(x[i] - max) * factor;
}

static void decode_k(enum pi_attend_type type, const struct pi_attend_page *page, float *out)
{
    for (int32_t d = 0; d < page->dim_k; d++)
        for (int32_t s = 0; s < page->page_len; s++)
            out[d * page->page_len + s] = key_at(type, page, d, s);
}

static void turn_k(const struct pi_attend_page *page, uint8_t *out)
{
    size_t len = (size_t)page->page_len, dim = (size_t)page->dim_k, n = dim / 32;
    uint16_t *scale = (uint16_t *)(void *)(out + dim * len);
    for (size_t s = 0; s < len; s++) {
        for (size_t d = 0; d < dim; d++)
            out[(d / 4 * len + s) * 4 + d % 4] = ((const uint8_t *)page->k)[s * dim + d];
        for (size_t b = 0; b < n; b++)
            scale[b * len + s] = page->k_scale[s * n + b];
    }
}

static void decode_v(enum pi_attend_type type, const struct pi_attend_page *page, float *out)
{
    for (int32_t s = 0; s < page->page_len; s++)
        for (int32_t d = 0; d < page->dim_v; d++)
            out[s * page->dim_v + d] = value_at(type, page, s, d);
}

static void prefetch(const void *at, size_t size)
{
    (void)at;
    (void)size;
}

/* ---- one function per storage type -------------------------------------------------------- */

static void logits_f32(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    logits(PI_ATTEND_F32, page, rows);
}

static void logits_f16(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    logits(PI_ATTEND_F16, page, rows);
}

static void logits_bf16(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    logits(PI_ATTEND_BF16, page, rows);
}

static void logits_code4(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    logits(PI_ATTEND_CODE4, page, rows);
}

static void logits_code3(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    logits(PI_ATTEND_CODE3, page, rows);
}

static void logits_code2(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    logits(PI_ATTEND_CODE2, page, rows);
}

static void values_f32(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    values(PI_ATTEND_F32, page, rows);
}

static void values_f16(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    values(PI_ATTEND_F16, page, rows);
}

static void values_q8_0(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    values(PI_ATTEND_Q8_0, page, rows);
}

static void values_code4(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    values(PI_ATTEND_CODE4, page, rows);
}

static void values_code3(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    values(PI_ATTEND_CODE3, page, rows);
}

static void values_code2(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    values(PI_ATTEND_CODE2, page, rows);
}

static void values_rounded_bf16(const struct pi_attend_page *page,
                                const struct pi_attend_rows *rows)
{
    values_rounded(PI_ATTEND_BF16, page, rows);
}

static void values_rounded_code4(const struct pi_attend_page *page,
                                 const struct pi_attend_rows *rows)
{
    values_rounded(PI_ATTEND_CODE4, page, rows);
}

static void values_rounded_code3(const struct pi_attend_page *page,
                                 const struct pi_attend_rows *rows)
{
    values_rounded(PI_ATTEND_CODE3, page, rows);
}

static void values_rounded_code2(const struct pi_attend_page *page,
                                 const struct pi_attend_rows *rows)
{
    values_rounded(PI_ATTEND_CODE2, page, rows);
}

static void decode_k_f32(const struct pi_attend_page *page, float *out)
{
    decode_k(PI_ATTEND_F32, page, out);
}

static void decode_k_f16(const struct pi_attend_page *page, float *out)
{
    decode_k(PI_ATTEND_F16, page, out);
}

static void decode_k_bf16(const struct pi_attend_page *page, float *out)
{
    decode_k(PI_ATTEND_BF16, page, out);
}

static void decode_k_q8_0(const struct pi_attend_page *page, float *out)
{
    decode_k(PI_ATTEND_Q8_0, page, out);
}

static void decode_k_code4(const struct pi_attend_page *page, float *out)
{
    decode_k(PI_ATTEND_CODE4, page, out);
}

static void decode_k_code3(const struct pi_attend_page *page, float *out)
{
    decode_k(PI_ATTEND_CODE3, page, out);
}

static void decode_k_code2(const struct pi_attend_page *page, float *out)
{
    decode_k(PI_ATTEND_CODE2, page, out);
}

static void decode_v_f32(const struct pi_attend_page *page, float *out)
{
    decode_v(PI_ATTEND_F32, page, out);
}

static void decode_v_f16(const struct pi_attend_page *page, float *out)
{
    decode_v(PI_ATTEND_F16, page, out);
}

static void decode_v_bf16(const struct pi_attend_page *page, float *out)
{
    decode_v(PI_ATTEND_BF16, page, out);
}

static void decode_v_q8_0(const struct pi_attend_page *page, float *out)
{
    decode_v(PI_ATTEND_Q8_0, page, out);
}

static void decode_v_code4(const struct pi_attend_page *page, float *out)
{
    decode_v(PI_ATTEND_CODE4, page, out);
}

static void decode_v_code3(const struct pi_attend_page *page, float *out)
{
    decode_v(PI_ATTEND_CODE3, page, out);
}

static void decode_v_code2(const struct pi_attend_page *page, float *out)
{
    decode_v(PI_ATTEND_CODE2, page, out);
}

static void decode_rounded_code4(const struct pi_attend_page *page, float *out)
{
    decode_rounded(PI_ATTEND_CODE4, page, out);
}

static void decode_rounded_code3(const struct pi_attend_page *page, float *out)
{
    decode_rounded(PI_ATTEND_CODE3, page, out);
}

static void decode_rounded_code2(const struct pi_attend_page *page, float *out)
{
    decode_rounded(PI_ATTEND_CODE2, page, out);
}

void pi_attend_init_scalar(struct pi_attend_kernels *k)
{
    *k = (struct pi_attend_kernels){
        .logits = {logits_f32, logits_f16, logits_bf16, logits_coded, logits_code4, logits_code3,
                   logits_code2},
        .logits_decoded = logits_decoded,
        .softmax = softmax,
        .drop = drop,
        .values = {values_f32, values_f16, values_rounded_bf16, values_q8_0, values_code4,
                   values_code3, values_code2},
        .values_rounded = {[PI_ATTEND_BF16] = values_rounded_bf16,
                           [PI_ATTEND_CODE4] = values_rounded_code4,
                           [PI_ATTEND_CODE3] = values_rounded_code3,
                           [PI_ATTEND_CODE2] = values_rounded_code2},
        .round_weights = round_weights,
        .decode_k = {decode_k_f32, decode_k_f16, decode_k_bf16, decode_k_q8_0, decode_k_code4,
                     decode_k_code3, decode_k_code2},
        .turn_k = turn_k,
        .decode_v = {decode_v_f32, decode_v_f16, decode_v_bf16, decode_v_q8_0, decode_v_code4,
                     decode_v_code3, decode_v_code2},
        .decode_rounded = {[PI_ATTEND_BF16] = decode_v_bf16,
                           [PI_ATTEND_CODE4] = decode_rounded_code4,
                           [PI_ATTEND_CODE3] = decode_rounded_code3,
                           [PI_ATTEND_CODE2] = decode_rounded_code2},
        .scale = multiply,
        .decay = decay,
        .prefetch = prefetch,
        .prefetch_near = prefetch,
    };
}
