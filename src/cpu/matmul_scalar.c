/*
 * matmul_scalar.c - the reference products, one output at a time. They define the bits that every
 * other level must give: the formulas stand in matmul.h. Compiled without contraction; speed is no
 * concern here.
 */
#include <math.h>

#include "base/half.h"
#include "cpu/kernels.h"
#include "cpu/matmul_layout.h"

static float float_at(enum pi_dtype type, const uint8_t *group, size_t at)
{
    float f;
    uint16_t h;
    if (type == PI_DTYPE_F32) {
        memcpy(&f, group + at * 4, 4);
        return f;
    }
    memcpy(&h, group + at * 2, 2);
    return type == PI_DTYPE_F16 ? pi_f32_from_f16(h) : pi_f32_from_bf16(h);
}

static void mul_float(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                      int32_t group_end, float *out, size_t out_stride, void *scratch)
{
    float *weights = scratch; /* [n_col] of one row */
    int32_t n_row = (int32_t)pi_min(w->n_row, (int64_t)group_end * PI_GROUP);
    for (int32_t row = group_begin * PI_GROUP; row < n_row; row++) {
        const uint8_t *group = w->data + (size_t)(row / PI_GROUP) * w->group_bytes;
        for (int32_t c = 0; c < w->n_col; c++)
            weights[c] = float_at(w->type, group, (size_t)c * PI_GROUP + (size_t)(row % PI_GROUP));
        for (int32_t t = 0; t < a->n_tok; t++) {
            const float *x = a->x + (size_t)t * (size_t)a->n_col;
            float acc = 0.0f;
            for (int32_t c = 0; c < w->n_col; c++)
                acc = fmaf(weights[c], x[c], acc);
            out[(size_t)t * out_stride + (size_t)row] = acc;
        }
    }
}

/* The part of an output that 32 columns of a row give, before the activations' scale. */
static float block_term(const struct pi_matmul_layout *layout, const uint8_t *code,
                        const float *scale, const float *min, const int8_t *q, const int16_t *sum16)
{
    int32_t n_sub = PI_ACT_BLOCK / layout->sub_len;
    float term = 0.0f;
    for (int32_t s = 0; s < n_sub; s++) {
        int32_t dot = 0;
        for (int32_t i = s * layout->sub_len; i < (s + 1) * layout->sub_len; i++)
            dot += (code[i] - layout->zero) * q[i];
        term = s == 0 ? (float)dot * scale[0] : fmaf((float)dot, scale[s], term);
    }
    if (!layout->has_min)
        return term;
    if (n_sub == 1)
        return fmaf(min[0], (float)(sum16[0] + sum16[1]), term);
    term = fmaf(min[0], (float)sum16[0], term);
    return fmaf(min[1], (float)sum16[1], term);
}

/* One block of a row: acc += its terms, in ascending order of columns. */
static float block_dot(const struct pi_matmul_layout *layout, const struct pi_row_block *block,
                       const int8_t *q, const float *x_scale, const int16_t *sum16, float acc)
{
    int32_t n_sub = PI_ACT_BLOCK / layout->sub_len;
    for (int32_t i = 0; i < layout->block_len / PI_ACT_BLOCK; i++) {
        float term = block_term(layout, block->code + i * PI_ACT_BLOCK, block->scale + i * n_sub,
                                block->min + i * n_sub, q + i * PI_ACT_BLOCK, sum16 + i * 2);
        acc = fmaf(term, x_scale[i], acc);
    }
    return acc;
}

static void mul_quantised(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                          int32_t group_end, float *out, size_t out_stride, void *scratch)
{
    (void)scratch;
    const struct pi_matmul_layout *layout = pi_matmul_layout(w->type);
    int32_t n_row = (int32_t)pi_min(w->n_row, (int64_t)group_end * PI_GROUP);
    size_t n_x_block = (size_t)w->n_col / PI_ACT_BLOCK;
    int32_t n_per = layout->block_len / PI_ACT_BLOCK; /* activation blocks of a weight block */
    struct pi_row_block block;
    for (int32_t row = group_begin * PI_GROUP; row < n_row; row++) {
        const uint8_t *group = w->data + (size_t)(row / PI_GROUP) * w->group_bytes;
        for (int32_t b = 0; b < w->n_col / layout->block_len; b++) {
            pi_matmul_row_block(layout, w->n_col, group, row % PI_GROUP, b, &block);
            for (int32_t t = 0; t < a->n_tok; t++) {
                float *o = out + (size_t)t * out_stride + (size_t)row;
                size_t at = (size_t)t * n_x_block + (size_t)(b * n_per);
                *o = block_dot(layout, &block, a->q + at * PI_ACT_BLOCK, a->scale + at,
                               a->sum16 + at * 2, b == 0 ? 0.0f : *o);
            }
        }
    }
}

/* ---- probes ------------------------------------------------------------------------------- */

static int64_t probe_int8(int64_t n_step)
{
    volatile uint32_t x = 3;
    uint32_t v = x, acc[4] = {0, 1, 2, 3};
    for (int64_t i = 0; i < n_step; i++)
        for (int32_t j = 0; j < 4; j++)
            acc[j] = acc[j] * v + 1;
    x = acc[0] + acc[1] + acc[2] + acc[3];
    return n_step * 8;
}

static int64_t probe_f32(int64_t n_step)
{
    volatile float x = 0.999f;
    float v = x, acc[4] = {0, 1, 2, 3};
    for (int64_t i = 0; i < n_step; i++)
        for (int32_t j = 0; j < 4; j++)
            acc[j] = acc[j] * v + 1e-3f;
    x = acc[0] + acc[1] + acc[2] + acc[3];
    return n_step * 8;
}

void pi_matmul_init_scalar(struct pi_matmul_kernels *k)
{
    for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++)
        k->mul[i] = mul_quantised;
    k->mul[pi_matmul_index(PI_DTYPE_F32)] = mul_float;
    k->mul[pi_matmul_index(PI_DTYPE_F16)] = mul_float;
    k->mul[pi_matmul_index(PI_DTYPE_BF16)] = mul_float;
    k->probe_int8 = probe_int8;
    k->probe_f32 = probe_f32;
}
