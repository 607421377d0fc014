/*
 * attention.c - the attention block: the projections before and behind what happens in the lanes
 * (attention_lanes.c), the norms of heads, the rotation of queries and keys.
 */
#include <math.h>

#include "model/pass.h"

static void plan(const struct pi_layer *layer, struct pi_layer_block *out)
{
    out->norm = layer->attn_norm;
    out->bias = layer->bo;
    out->post_norm = layer->attn_post_norm;
    out->reads_int8 = pi_matrix_reads_int8(&layer->wq) || pi_matrix_reads_int8(&layer->wk) ||
                      pi_matrix_reads_int8(&layer->wv);
}

/* ---- scratch ---- */

static size_t len_q(const struct pi_hparams *hp)
{
    return (size_t)hp->n_head * (size_t)hp->dim_k;
}

static size_t len_k(const struct pi_hparams *hp)
{
    return (size_t)hp->n_head_kv * (size_t)hp->dim_k;
}

static size_t len_v(const struct pi_hparams *hp)
{
    return (size_t)hp->n_head_kv * (size_t)hp->dim_v;
}

static size_t len_out(const struct pi_hparams *hp)
{
    return (size_t)hp->n_head * (size_t)hp->dim_v;
}

static void scratch(const struct pi_hparams *hp, struct pi_block_scratch *out)
{
    size_t gated = hp->attn_gated ? 2 * len_q(hp) : 0;
    *out = (struct pi_block_scratch){.row = len_q(hp) + len_k(hp) + len_v(hp) + len_out(hp) + gated,
                                     .widest = len_out(hp)};
}

static void place(struct pi_pass *pass, float *memory)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n = (size_t)pass->max_tok;
    pass->q = memory;
    pass->k = pass->q + n * len_q(hp);
    pass->v = pass->k + n * len_k(hp);
    pass->att = pass->v + n * len_v(hp);
    pass->q_gate = pass->att + n * len_out(hp);
}

/* ---- rows ---- */

/* The cosines and sines of the running layer's rotation, of row t; NULL: it has none. */
static const float *turns_of(const struct pi_pass *pass, int64_t t)
{
    const struct pi_rope *rope = pass->layer->rope;
    const float *first = rope == &pass->model->rope_local ? pass->rope_local_cs : pass->rope_cs;
    return rope == NULL ? NULL : first + t * rope->n_pair * 2;
}

/* The heads of one row: norm where the family has one, then rotation. before [n_head][dim_k]
   receives them as they were between the two, unless it is NULL. */
static void turn_heads(struct pi_pass *pass, float *heads, int32_t n_head, const float *norm,
                       const float *cs, float *before)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_rope *rope = pass->layer->rope;
    for (int32_t i = 0; i < n_head; i++) {
        float *head = heads + (size_t)i * hp->dim_k;
        if (norm != NULL)
            pass->cpu->vec.rms_norm(head, norm, head, hp->dim_k, hp->rms_eps);
        if (before != NULL)
            memcpy(before + (size_t)i * hp->dim_k, head, (size_t)hp->dim_k * sizeof(*head));
        if (cs != NULL)
            pass->cpu->vec.rope(head, cs, rope->n_pair, rope->adjacent);
    }
}

/* Of gated attention: a row's queries, from between the gates. */
static void take_queries(struct pi_pass *pass, int64_t t)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t dim = (size_t)hp->dim_k, n = len_q(hp);
    float *q = pass->q + (size_t)t * n, *from = pass->q_gate + 2 * (size_t)t * n;
    for (size_t at = 0; at < n; at += dim)
        memcpy(q + at, from + 2 * at, dim * sizeof(*q));
}

float pi_pass_temperature(const struct pi_pass *pass, int64_t t)
{
    const struct pi_hparams *hp = &pass->model->hp;
    int32_t i = pass->item_of[t], pos = pass->items[i].pos0 + (int32_t)t - pass->row0[i];
    return (float)(1.0 + (double)hp->temp_scale * log((double)(pos / hp->temp_len) + 1.0));
}

static void scale_row(float *x, float factor, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        x[i] *= factor;
}

static void qkv_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer *layer = pass->layer;
    int32_t n_q = (int32_t)len_q(hp), n_k = layer->wk.n_row, n_v = layer->wv.n_row;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const float *cs = turns_of(pass, t);
        float *q = pass->q + t * n_q, *k = pass->k + t * n_k;
        float *q_pre = pass->q_pre != NULL ? pass->q_pre + t * n_q : NULL;
        float *k_pre = pass->k_pre != NULL ? pass->k_pre + t * n_k : NULL;
        if (hp->attn_gated)
            take_queries(pass, t);
        if (layer->bq != NULL)
            pass->cpu->vec.add(q, layer->bq, n_q);
        if (layer->bk != NULL)
            pass->cpu->vec.add(k, layer->bk, n_k);
        if (layer->bv != NULL)
            pass->cpu->vec.add(pass->v + t * n_v, layer->bv, n_v);
        turn_heads(pass, q, hp->n_head, layer->q_norm, cs, q_pre);
        if (hp->temp_scale != 0.0f)
            scale_row(q, pi_pass_temperature(pass, t), n_q);
        turn_heads(pass, k, hp->n_head_kv, layer->k_norm, cs, k_pre);
    }
}

/* A row of gated attention's output: times the sigmoid of the gate, whose heads are as long. */
static void close_gates(struct pi_pass *pass, int64_t t)
{
    const struct pi_hparams *hp = &pass->model->hp;
    size_t dim = (size_t)hp->dim_k, n = len_q(hp);
    float *out = pass->att + (size_t)t * n, *from = pass->q_gate + 2 * (size_t)t * n;
    for (size_t at = 0; at < n; at += dim)
        pass->cpu->vec.sigmoid_mul(out + at, from + 2 * at + dim, hp->dim_k);
}

static void out_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    int32_t n = pass->layer->wo.n_col;
    bool reads_int8 = pi_matrix_reads_int8(&pass->layer->wo);
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        if (pass->model->hp.attn_gated)
            close_gates(pass, t);
        if (reads_int8)
            pi_pass_quantize(pass, pass->att + t * n, t, n);
    }
}

/* ---- the block ---- */

void pi_pass_call_tap(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    for (int32_t i = 0; i < pass->n_item; i++) {
        size_t row = (size_t)pass->row0[i];
        struct pi_pass_tap_rows rows = {
            .item = &pass->items[i],
            .layer = pass->layer->kv_layer,
            .h = pass->h + row * (size_t)hp->n_embd,
            .q_pre = pass->q_pre + row * len_q(hp),
            .q = pass->q + row * len_q(hp),
            .k = pass->k + row * len_k(hp),
            .v = pass->v + row * len_v(hp),
        };
        pass->tap(pass->tap_user, &rows);
    }
}

static void run(struct pi_pass *pass)
{
    const struct pi_layer *w = pass->layer;
    pi_pass_product(
        pass, pass->h, pass->n_tok, (const struct pi_matrix *const[]){&w->wq, &w->wk, &w->wv},
        (float *const[]){pass->model->hp.attn_gated ? pass->q_gate : pass->q, pass->k, pass->v}, 3);
    pi_pass_rows(pass, qkv_rows, w->wq.n_row + w->wk.n_row);
    if (pass->tap != NULL)
        pi_pass_call_tap(pass);
    pi_pass_attention_run(pass);
    if (pi_matrix_reads_int8(&w->wo) || pass->model->hp.attn_gated)
        pi_pass_rows(pass, out_rows, w->wo.n_col);
    pi_pass_product(pass, pass->att, pass->n_tok, (const struct pi_matrix *const[]){&w->wo},
                    (float *const[]){pass->h}, 1);
}

const struct pi_block pi_block_attention = {
    .name = "attention",
    .plan = plan,
    .scratch = scratch,
    .place = place,
    .run = run,
};

/* ---- the tap ---- */

pith_status pi_pass_set_tap(struct pi_pass *pass, pi_pass_tap_fn *fn, void *user, pith_error *err)
{
    bool ok = true;
    if (fn != NULL && pass->q_pre == NULL) {
        float *rows = pi_pass_alloc(pass->max_tok, len_q(&pass->model->hp), sizeof(float), &ok);
        if (!ok)
            return pi_fail(err, PITH_NOMEM, "no memory for the queries of %d tokens",
                           pass->max_tok);
        pass->q_pre = rows;
    }
    if (fn == NULL) {
        pi_mem_free(pass->q_pre);
        pass->q_pre = NULL;
    }
    pass->tap = fn;
    pass->tap_user = user;
    return PITH_OK;
}
