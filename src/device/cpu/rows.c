/*
 * rows.c - the bodies of rows between products, on the processor: embeddings, norms, rotations,
 * activations. The bodies of experts, delta nets and latent attention are in files of their own.
 * Invariant: a row's result depends on no other row.
 */
#include <math.h>

#include "device/cpu/cpu.h"
#include "tensor/dtype.h"

void cpu_quantize(const struct cpu_stream *s, const struct pi_int8 *act, const float *row,
                  int64_t t, int32_t n)
{
    size_t n_block = (size_t)pi_ceil_div(n, PI_ACT_BLOCK), at = (size_t)t * n_block;
    if (!pi_at_some(act->q))
        return;
    s->cpu->vec.quantize(row, n, (int8_t *)pi_cpu_ptr(act->q) + at * PI_ACT_BLOCK,
                         pi_cpu_floats(act->scale) + at,
                         (int16_t *)pi_cpu_ptr(act->sum16) + at * 2);
}

float cpu_temperature(const struct pi_temperature *temp, const int32_t *pos, int64_t t)
{
    return (float)(1.0 + (double)temp->scale * log((double)(pos[t] / temp->len) + 1.0));
}

static void scale_row(float *x, float factor, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        x[i] *= factor;
}

/* ---- the stream ---- */

static void embed_row(const struct pi_embed_rows *a, int32_t token, float *out)
{
    const struct pi_dtype_traits *traits = pi_dtype_find(a->embd.type);
    size_t size = pi_dtype_row_bytes(traits, a->embd.n_col);
    const struct pi_matrix embd = pi_cpu_matrix(&a->embd);
    if (embd.data != NULL)
        pi_matmul_unpack_row(&embd, token, out);
    else
        traits->decode(a->file + (size_t)token * size, out, a->embd.n_col);
}

static void embed_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_embed_rows *a = args;
    const int32_t *token = pi_cpu_ints(a->token), *pos = pi_cpu_ints(a->pos);
    int32_t n = a->embd.n_col;
    (void)s;
    for (int64_t t = begin; t < end; t++) {
        float *x = pi_at_some(a->x) ? pi_cpu_floats(a->x) + t * n : NULL;
        if (x != NULL)
            embed_row(a, token[t], x);
        if (x != NULL && a->scale != 1.0f)
            scale_row(x, a->scale, n);
        for (int i = 0; i < 2 && a->rope[i] != NULL; i++)
            pi_rope_fill(a->rope[i], pos[t],
                         pi_cpu_floats(a->cs[i]) + (size_t)t * (size_t)a->rope[i]->n_pair * 2);
    }
}

/* Adds a block's output h to the stream. */
static void add_row(const struct cpu_stream *s, const struct pi_between_rows *a, float *x, float *h)
{
    const float *post_norm = pi_cpu_floats(a->post_norm);
    if (pi_at_some(a->bias))
        s->cpu->vec.add(h, pi_cpu_floats(a->bias), a->n);
    if (post_norm != NULL)
        s->cpu->vec.rms_norm(h, post_norm, h, a->n, a->eps);
    s->cpu->vec.add(x, h, a->n);
}

static void between_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_between_rows *a = args;
    const float *norm = pi_cpu_floats(a->norm);
    for (int64_t t = begin; t < end; t++) {
        float *x = pi_cpu_floats(a->x) + t * a->n, *h = pi_cpu_floats(a->h) + t * a->n;
        if (a->leave)
            add_row(s, a, x, h);
        if (norm == NULL)
            continue;
        s->cpu->vec.rms_norm(x, norm, h, a->n, a->eps);
        cpu_quantize(s, &a->act, h, t, a->n);
    }
}

static void pick_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_pick_rows *a = args;
    const int32_t *index = pi_cpu_ints(a->index);
    for (int64_t t = begin; t < end; t++) {
        float *out = pi_cpu_floats(a->out) + t * a->n;
        s->cpu->vec.rms_norm(pi_cpu_floats(a->x) + (size_t)index[t] * (size_t)a->n,
                             pi_cpu_floats(a->norm), out, a->n, a->eps);
        cpu_quantize(s, &a->act, out, t, a->n);
    }
}

static void cap_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_cap_rows *a = args;
    for (int64_t t = begin; t < end; t++)
        s->cpu->vec.soft_cap(pi_cpu_floats(a->x) + t * a->n, a->cap, a->n);
}

static void quantize_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_quantize_rows *a = args;
    for (int64_t t = begin; t < end; t++)
        cpu_quantize(s, &a->act, pi_cpu_floats(a->x) + t * a->n, t, a->n);
}

/* ---- attention ---- */

/* The heads of one row: norm where the family has one, then rotation. before [n_head][dim_k]
   receives them as they were between the two, unless it is NULL. */
static void turn_heads(const struct cpu_stream *s, const struct pi_qkv_rows *a, float *heads,
                       int32_t n_head, const float *norm, const float *cs, float *before)
{
    for (int32_t i = 0; i < n_head; i++) {
        float *head = heads + (size_t)i * (size_t)a->dim_k;
        if (norm != NULL)
            s->cpu->vec.rms_norm(head, norm, head, a->dim_k, a->eps);
        if (before != NULL)
            memcpy(before + (size_t)i * (size_t)a->dim_k, head, (size_t)a->dim_k * sizeof(*head));
        if (cs != NULL)
            s->cpu->vec.rope(head, cs, a->rope->n_pair, a->rope->adjacent);
    }
}

/* Of gated attention: a row's queries, from between the gates. */
static void take_queries(const float *from, float *q, size_t n, size_t dim)
{
    for (size_t at = 0; at < n; at += dim)
        memcpy(q + at, from + 2 * at, dim * sizeof(*q));
}

/* Row t of rows of n floats; NULL for none. */
static float *row_of(struct pi_at rows, int64_t t, int64_t n)
{
    float *first = pi_cpu_floats(rows);
    return first == NULL ? NULL : first + t * n;
}

static void qkv_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_qkv_rows *a = args;
    int32_t n_q = a->n_head * a->dim_k, n_k = a->n_head_kv * a->dim_k;
    for (int64_t t = begin; t < end; t++) {
        const float *cs = a->rope == NULL ? NULL : row_of(a->cs, t, a->rope->n_pair * 2);
        float *q = row_of(a->q, t, n_q), *k = row_of(a->k, t, n_k);
        if (pi_at_some(a->q_gate))
            take_queries(row_of(a->q_gate, t, 2 * (int64_t)n_q), q, (size_t)n_q, (size_t)a->dim_k);
        if (pi_at_some(a->bq))
            s->cpu->vec.add(q, pi_cpu_floats(a->bq), n_q);
        if (pi_at_some(a->bk))
            s->cpu->vec.add(k, pi_cpu_floats(a->bk), n_k);
        if (pi_at_some(a->bv))
            s->cpu->vec.add(row_of(a->v, t, a->n_v), pi_cpu_floats(a->bv), a->n_v);
        turn_heads(s, a, q, a->n_head, pi_cpu_floats(a->q_norm), cs, row_of(a->q_pre, t, n_q));
        if (a->temp.scale != 0.0f)
            scale_row(q, cpu_temperature(&a->temp, pi_cpu_ints(a->pos), t), n_q);
        turn_heads(s, a, k, a->n_head_kv, pi_cpu_floats(a->k_norm), cs, row_of(a->k_pre, t, n_k));
    }
}

static void centre_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_centre_rows *a = args;
    const float *mean = pi_cpu_floats(a->mean);
    (void)s;
    for (int64_t t = begin; t < end; t++) {
        float *k = row_of(a->k, t, a->n);
        for (int32_t d = 0; d < a->n; d++)
            k[d] -= mean[d];
    }
}

static void out_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_out_rows *a = args;
    size_t dim = (size_t)a->dim, n = (size_t)a->n_head * dim;
    for (int64_t t = begin; t < end; t++) {
        float *out = row_of(a->x, t, a->n);
        const float *from = row_of(a->q_gate, t, 2 * (int64_t)n);
        for (size_t at = 0; from != NULL && at < n; at += dim)
            s->cpu->vec.sigmoid_mul(out + at, from + 2 * at + dim, a->dim);
        cpu_quantize(s, &a->act, out, t, a->n);
    }
}

/* ---- the feed-forward ---- */

static void gate_rows(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end)
{
    const struct pi_gate_rows *a = args;
    const struct pi_vec_kernels *vec = &s->cpu->vec;
    void (*const fn[])(float *, const float *, int32_t) = {[PI_GATE_SILU] = vec->silu_mul,
                                                           [PI_GATE_GELU] = vec->gelu_mul,
                                                           [PI_GATE_OAI] = vec->oai_mul};
    for (int64_t t = begin; t < end; t++) {
        float *gate = row_of(a->gate, t, a->n);
        fn[a->fn](gate, row_of(a->up, t, a->n), a->n);
        cpu_quantize(s, &a->act, gate, t, a->n);
    }
}

/* ---- the table ---- */

cpu_rows_fn *const cpu_bodies[PI_ROWS_N_BODY] = {
    [PI_ROWS_EMBED] = embed_rows,
    [PI_ROWS_BETWEEN] = between_rows,
    [PI_ROWS_PICK] = pick_rows,
    [PI_ROWS_CAP] = cap_rows,
    [PI_ROWS_QUANTIZE] = quantize_rows,
    [PI_ROWS_QKV] = qkv_rows,
    [PI_ROWS_CENTRE] = centre_rows,
    [PI_ROWS_OUT] = out_rows,
    [PI_ROWS_GATE] = gate_rows,
    [PI_ROWS_MOE_CHOOSE] = cpu_moe_choose_rows,
    [PI_ROWS_MOE_GATHER] = cpu_moe_gather_rows,
    [PI_ROWS_MOE_HIDDEN] = cpu_moe_hidden_rows,
    [PI_ROWS_MOE_SUM] = cpu_moe_sum_rows,
    [PI_ROWS_DELTA_IN] = cpu_delta_in_rows,
    [PI_ROWS_DELTA_UNIT] = cpu_delta_unit_rows,
    [PI_ROWS_DELTA_OUT] = cpu_delta_out_rows,
    [PI_ROWS_LATENT_LOW] = cpu_latent_low_rows,
    [PI_ROWS_LATENT_IN] = cpu_latent_in_rows,
    [PI_ROWS_LATENT_QUERY] = cpu_latent_query_rows,
    [PI_ROWS_LATENT_GATHER] = cpu_latent_gather_rows,
};

struct rows_job {
    const struct cpu_stream *s;
    cpu_rows_fn *fn;
    const void *args;
};

static void run_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct rows_job *job = ctx;
    (void)thread;
    job->fn(job->s, job->args, begin, end);
}

void cpu_rows(struct pi_stream *stream, enum pi_rows_body body, const void *args, int64_t n_row,
              int64_t work)
{
    struct rows_job job = {cpu_stream_of(stream), cpu_bodies[body], args};
    cpu_ranges(job.s, cpu_threads_for(job.s, n_row * work), n_row, run_rows, &job);
}
