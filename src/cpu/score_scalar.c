/*
 * score_scalar.c - scoring keys: the reference, score.h's text in C, and the packing of vectors,
 * which is the same for all levels.
 */
#include <float.h>
#include <math.h>

#include "base/half.h"
#include "cpu/kernels.h"

/* ---- packing ---- */

static int32_t blocks_of(int32_t n_q)
{
    return (n_q + PI_SCORE_BLOCK - 1) / PI_SCORE_BLOCK;
}

size_t pi_score_pack_len(int32_t n_q, int32_t dim)
{
    if (n_q <= PI_SCORE_FEW)
        return (size_t)n_q * pi_align((size_t)dim, PI_SCORE_BLOCK);
    return (size_t)blocks_of(n_q) * PI_SCORE_BLOCK * (size_t)dim;
}

size_t pi_score_pack_codes_len(int32_t n_q, int32_t dim)
{
    if (n_q <= PI_SCORE_FEW)
        return (size_t)n_q * pi_align((size_t)dim, PI_SCORE_PAD);
    return (size_t)blocks_of(n_q) * PI_SCORE_BLOCK * pi_align((size_t)dim, 4);
}

void pi_score_pack(const float *q, int32_t n_q, int32_t dim, float *out)
{
    size_t row = pi_align((size_t)dim, PI_SCORE_BLOCK);
    if (n_q <= PI_SCORE_FEW) {
        for (int32_t j = 0; j < n_q; j++) {
            memcpy(out + (size_t)j * row, q + (size_t)j * (size_t)dim, (size_t)dim * sizeof(*q));
            memset(out + (size_t)j * row + dim, 0, (row - (size_t)dim) * sizeof(*q));
        }
        return;
    }
    for (int32_t j = 0; j < blocks_of(n_q) * PI_SCORE_BLOCK; j++) {
        const float *from = q + (size_t)pi_min(j, n_q - 1) * (size_t)dim;
        float *to = out + (size_t)(j / PI_SCORE_BLOCK) * (size_t)dim * PI_SCORE_BLOCK;
        for (int32_t d = 0; d < dim; d++)
            to[d * PI_SCORE_BLOCK + j % PI_SCORE_BLOCK] = from[d];
    }
}

/* Where the code of a dimension of a vector goes. */
static size_t code_at(int32_t n_q, int32_t dim, int32_t j, int32_t d)
{
    if (n_q <= PI_SCORE_FEW)
        return (size_t)j * pi_align((size_t)dim, PI_SCORE_PAD) + (size_t)d;
    return ((size_t)(j / PI_SCORE_BLOCK) * (pi_align((size_t)dim, 4) / 4) + (size_t)(d / 4)) *
               (PI_SCORE_BLOCK * 4) +
           (size_t)(j % PI_SCORE_BLOCK * 4 + d % 4);
}

void pi_score_pack_codes(const float *q, int32_t n_q, int32_t dim, int8_t *code, float *scale,
                         int32_t *offset)
{
    int32_t n = n_q <= PI_SCORE_FEW ? n_q : blocks_of(n_q) * PI_SCORE_BLOCK;
    memset(code, 0, pi_score_pack_codes_len(n_q, dim));
    for (int32_t j = 0; j < n; j++) {
        const float *from = q + (size_t)pi_min(j, n_q - 1) * (size_t)dim;
        float max = 0.0f;
        for (int32_t d = 0; d < dim; d++)
            max = fabsf(from[d]) > max ? fabsf(from[d]) : max;
        double inverse = max > 0.0f ? 127.0 / (double)max : 0.0;
        int32_t sum = 0;
        for (int32_t d = 0; d < dim; d++) {
            int32_t c = pi_score_code(from[d], inverse);
            code[code_at(n_q, dim, j, d)] = (int8_t)c;
            sum += c;
        }
        scale[j] = max / 127.0f;
        offset[j] = 128 * sum;
    }
}

/* ---- kernels ---- */

static float clamp(float x)
{
    float y = x > -FLT_MAX ? x : -FLT_MAX;
    return y < FLT_MAX ? y : FLT_MAX;
}

/* Entries of coded keys are whole bytes in every plane, so that codes count on through them all. */
static float coded_at(enum pi_attend_type type, const struct pi_score_keys *keys, size_t at)
{
    const uint8_t *low = keys->k, *high = keys->high;
    int32_t code = type == PI_ATTEND_CODE4 ? low[at / 2] >> (at % 2 * 4) & 15
                                           : low[at / 4] >> (at % 4 * 2) & 3;
    if (type == PI_ATTEND_CODE3)
        code |= (high[at / 8] >> (at % 8) & 1) << 2;
    return pi_f32_from_f16(keys->scale[at / (size_t)keys->group]) * keys->table[code];
}

static float value_at(enum pi_attend_type type, const struct pi_score_keys *keys, int32_t i,
                      int32_t d)
{
    size_t at = (size_t)i * (size_t)keys->dim + (size_t)d;
    if (type >= PI_ATTEND_CODE4)
        return coded_at(type, keys, at);
    if (type == PI_ATTEND_F32)
        return ((const float *)keys->k)[at];
    if (type == PI_ATTEND_F16)
        return pi_f32_from_f16(((const uint16_t *)keys->k)[at]);
    if (type == PI_ATTEND_BF16)
        return pi_f32_from_bf16(((const uint16_t *)keys->k)[at]);
    return pi_f32_from_f16(keys->scale[at / 32]) * (float)((const int8_t *)keys->k)[at];
}

static float dot_few(enum pi_attend_type type, const struct pi_score_keys *keys, int32_t i,
                     const float *q)
{
    float sum[16] = {0};
    for (int32_t d = 0; d < keys->dim; d++)
        sum[d % 16] = fmaf(value_at(type, keys, i, d), q[d], sum[d % 16]);
    for (int32_t width = 8; width > 0; width /= 2)
        for (int32_t j = 0; j < width; j++)
            sum[j] += sum[j + width];
    return sum[0];
}

static float dot_many(enum pi_attend_type type, const struct pi_score_keys *keys, int32_t i,
                      const float *q)
{
    float acc = 0.0f;
    for (int32_t d = 0; d < keys->dim; d++)
        acc = fmaf(value_at(type, keys, i, d), q[d * PI_SCORE_BLOCK], acc);
    return acc;
}

static void dot(enum pi_attend_type type, const struct pi_score_keys *keys,
                const struct pi_score_vectors *q, float *out)
{
    size_t row = pi_align((size_t)keys->dim, PI_SCORE_BLOCK);
    for (int32_t i = 0; i < keys->n; i++) {
        float top = -FLT_MAX;
        for (int32_t j = 0; j < q->n; j++) {
            size_t block = (size_t)(j / PI_SCORE_BLOCK) * (size_t)keys->dim * PI_SCORE_BLOCK;
            float x = q->n <= PI_SCORE_FEW
                          ? dot_few(type, keys, i, q->q + (size_t)j * row)
                          : dot_many(type, keys, i, q->q + block + j % PI_SCORE_BLOCK);
            x = clamp(x);
            top = x > top ? x : top;
        }
        out[i] = top;
    }
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

static void unit8(const struct pi_score_keys *keys, const struct pi_score_codes *q, float *out)
{
    for (int32_t i = 0; i < keys->n; i++) {
        const uint8_t *k = (const uint8_t *)keys->k + (size_t)i * (size_t)keys->dim;
        float top = -FLT_MAX;
        for (int32_t j = 0; j < q->n; j++) {
            int32_t sum = 0;
            for (int32_t d = 0; d < keys->dim; d++)
                sum += (k[d] - 128) * q->code[code_at(q->n, keys->dim, j, d)];
            float x = (float)sum * q->scale[j];
            top = x > top ? x : top;
        }
        out[i] = top;
    }
}

static void columns(enum pi_attend_type type, const struct pi_score_columns *c, float *out)
{
    for (int32_t i = 0; i < c->n; i++) {
        float top = -FLT_MAX;
        for (int32_t j = 0; j < c->n_q; j++) {
            float acc = 0.0f;
            for (int32_t d = 0; d < c->n_dim; d++) {
                size_t at = (size_t)c->dims[d] * (size_t)c->stride + (size_t)i;
                float k = type == PI_ATTEND_F32 ? ((const float *)c->k)[at]
                                                : pi_f32_from_f16(((const uint16_t *)c->k)[at]);
                acc = fmaf(k, c->q[(size_t)j * (size_t)c->n_dim + (size_t)d], acc);
            }
            acc = clamp(acc);
            top = acc > top ? acc : top;
        }
        out[i] = top;
    }
}

static void columns_f32(const struct pi_score_columns *c, float *out)
{
    columns(PI_ATTEND_F32, c, out);
}

static void columns_f16(const struct pi_score_columns *c, float *out)
{
    columns(PI_ATTEND_F16, c, out);
}

/* Writes every index and advances only past the chosen ones, without a branch. */
static int32_t at_least(const float *x, int32_t n, float least, int32_t *at)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        at[count] = i;
        count += x[i] >= least;
    }
    return count;
}

void pi_score_init_scalar(struct pi_score_kernels *k)
{
    k->dot[PI_ATTEND_F32] = dot_f32;
    k->dot[PI_ATTEND_F16] = dot_f16;
    k->dot[PI_ATTEND_BF16] = dot_bf16;
    k->dot[PI_ATTEND_Q8_0] = dot_q8_0;
    k->dot[PI_ATTEND_CODE4] = dot_code4;
    k->dot[PI_ATTEND_CODE3] = dot_code3;
    k->dot[PI_ATTEND_CODE2] = dot_code2;
    k->unit8 = unit8;
    k->columns[PI_ATTEND_F32] = columns_f32;
    k->columns[PI_ATTEND_F16] = columns_f16;
    k->at_least = at_least;
}
