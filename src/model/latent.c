/*
 * latent.c - multi-head latent attention, absorbed (DeepSeek-V2, arXiv:2405.04434, section 2.1): the
 * keys and values of all heads come from one vector c, and that is what a lane holds, beside the one
 * rotated key that heads share. What makes a head's keys of c is applied to queries instead, and
 * what makes its values of c to what attention gives.
 *
 *   [u_h; p_h] = head h of Wq x, or of Wqb RMS(Wqa x);  [c; p] = Wkv x
 *   key = [R_t p; RMS(c)], of which RMS(c) is the value, too;  query of head h = [R_t p_h; A_h u_h]
 *   out = Wo [E_h o_h of all heads], o_h what attention gives head h
 *
 * In a lane the rotated dimensions come first. Heads' vectors stand head by head, [n_head][n_tok],
 * where a matrix of their own follows, so that each product reads its rows one after the other.
 */
#include "model/pass.h"

static void plan(const struct pi_layer *layer, struct pi_layer_block *out)
{
    const struct pi_matrix *query = layer->w_query_a.data != NULL ? &layer->w_query_a : &layer->wq;
    out->norm = layer->attn_norm;
    out->bias = NULL;
    out->post_norm = NULL;
    out->reads_int8 = pi_matrix_reads_int8(query) || pi_matrix_reads_int8(&layer->w_latent);
}

/* ---- scratch ---- */

static size_t most(int32_t a, int32_t b)
{
    return (size_t)pi_max(a, b);
}

/* Floats of a token's heads, as they are projected and as they leave. */
static size_t len_head(const struct pi_hparams *hp)
{
    return (size_t)hp->n_head * most(hp->latent.dim_key + hp->n_rot, hp->latent.dim_out);
}

/* Of what attention gives, and of what queries are made of before. */
static size_t len_att(const struct pi_hparams *hp)
{
    return (size_t)hp->n_head * most(hp->dim_v, hp->latent.dim_key);
}

static size_t len_q(const struct pi_hparams *hp)
{
    return (size_t)hp->n_head * (size_t)hp->dim_k;
}

static void scratch(const struct pi_hparams *hp, struct pi_block_scratch *out)
{
    const struct pi_latent_shape *s = &hp->latent;
    size_t heads = (size_t)hp->n_head * pi_align(most(hp->dim_v, s->dim_key), PI_ACT_BLOCK);
    size_t outs = (size_t)hp->n_head * (size_t)s->dim_out;
    *out = (struct pi_block_scratch){
        .row = len_q(hp) + 2 * (size_t)hp->dim_k + (size_t)hp->dim_v + len_att(hp) + len_head(hp) +
               (size_t)s->n_query,
        .widest = heads > outs ? heads : outs,
    };
    if ((size_t)s->n_query > out->widest)
        out->widest = (size_t)s->n_query;
}

static void place(struct pi_pass *pass, float *memory)
{
    const struct pi_hparams *hp = &pass->model->hp;
    struct pi_pass_latent *l = &pass->latent;
    size_t n = (size_t)pass->max_tok;
    pass->q = memory;
    pass->k = pass->q + n * len_q(hp);
    pass->v = pass->k + n * (size_t)hp->dim_k;
    pass->att = pass->v + n * (size_t)hp->dim_v;
    l->head = pass->att + n * len_att(hp);
    l->raw = l->head + n * len_head(hp);
    l->low = l->raw + n * (size_t)hp->dim_k;
}

/* ---- a matrix for each head ---- */

/* One loop over all heads and the groups of their matrices. */
struct heads {
    struct pi_pass *pass;
    const struct pi_matrix *w; /* of head 0 */
    const float *x;            /* [n_head][n_tok][n_col] */
    float *out;                /* row t of head h at out + t * stride + h * step */
    size_t stride, step;
    int32_t chunk;   /* groups of one work item */
    int32_t n_chunk; /* work items of a head */
};

static void heads_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct heads *p = ctx;
    struct pi_pass *pass = p->pass;
    void *room = pass->scratch + (size_t)thread * pass->scratch_size;
    for (int64_t item = begin; item < end; item++) {
        int32_t head = (int32_t)(item / p->n_chunk), part = (int32_t)(item % p->n_chunk);
        struct pi_matrix w = pi_matrix_slab(p->w, head);
        size_t row = (size_t)head * (size_t)pass->n_tok;
        size_t block = row * (size_t)pi_ceil_div(w.n_col, PI_ACT_BLOCK);
        struct pi_act act = {.n_tok = pass->n_tok,
                             .n_col = w.n_col,
                             .x = p->x + row * (size_t)w.n_col,
                             .q = pass->act_q + block * PI_ACT_BLOCK,
                             .scale = pass->act_scale + block,
                             .sum16 = pass->act_sum16 + block * 2,
                             .far = pass->cpu->matmul.far};
        int32_t last = (int32_t)pi_min((part + 1) * p->chunk, w.n_group);
        pass->cpu->matmul.mul[pi_matmul_index(w.type)](
            &w, &act, part * p->chunk, last, p->out + (size_t)head * p->step, p->stride, room);
    }
}

#define MIN_CHUNKS_PER_THREAD 8 /* so that a slow thread holds the others up by little */

static void run_heads(struct heads *p)
{
    int32_t n_head = p->pass->model->hp.n_head, n_group = p->w->n_group;
    int64_t work = (int64_t)n_head * n_group * PI_GROUP * p->w->n_col * p->pass->n_tok;
    int32_t n_thread = pi_pass_threads_for(p->pass, work);
    int64_t n_item = n_thread == 1 ? 1 : (int64_t)n_thread * MIN_CHUNKS_PER_THREAD;
    p->chunk = (int32_t)pi_ceil_div(n_group, pi_ceil_div(n_item, n_head));
    p->n_chunk = (int32_t)pi_ceil_div(n_group, p->chunk);
    pi_parallel_items(n_thread, (int64_t)p->n_chunk * n_head, heads_items, p);
}

/* ---- queries and the lane's new vectors ---- */

static void low_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer *layer = pass->layer;
    int32_t n = hp->latent.n_query;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *low = pass->latent.low + t * n;
        pass->cpu->vec.rms_norm(low, layer->query_a_norm, low, n, hp->rms_eps);
        if (pi_matrix_reads_int8(&layer->w_query_b))
            pi_pass_quantize(pass, low, t, n);
    }
}

/* Row t's vector of the lane. Whoever looks at values gets a copy. */
static void make_key(struct pi_pass *pass, int64_t t, const float *cs)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_rope *rope = pass->layer->rope;
    int32_t n_rot = hp->n_rot, n_rank = hp->dim_v;
    const float *raw = pass->latent.raw + t * hp->dim_k;
    float *k = pass->k + t * hp->dim_k;
    memcpy(k, raw + n_rank, (size_t)n_rot * sizeof(*k));
    pass->cpu->vec.rms_norm(raw, pass->layer->latent_norm, k + n_rot, n_rank, hp->rms_eps);
    if (pass->k_pre != NULL)
        memcpy(pass->k_pre + t * hp->dim_k, k, (size_t)hp->dim_k * sizeof(*k));
    if (pass->k_pre != NULL || pass->tap != NULL)
        memcpy(pass->v + t * n_rank, k + n_rot, (size_t)n_rank * sizeof(*k));
    pass->cpu->vec.rope(k, cs, rope->n_pair, rope->adjacent);
}

/* Row t's heads: what is rotated goes to the query, the rest to where the next product reads it. */
static void split_heads(struct pi_pass *pass, int64_t t, const float *cs)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_rope *rope = pass->layer->rope;
    size_t n = (size_t)hp->latent.dim_key, n_rot = (size_t)hp->n_rot;
    bool reads_int8 = pi_matrix_reads_int8(&pass->layer->w_absorb);
    const float *head = pass->latent.head + (size_t)t * (size_t)hp->n_head * (n + n_rot);
    for (int32_t h = 0; h < hp->n_head; h++, head += n + n_rot) {
        int64_t row = (int64_t)h * pass->n_tok + t;
        float *q = pass->q + (size_t)t * len_q(hp) + (size_t)h * (size_t)hp->dim_k;
        if (reads_int8)
            pi_pass_quantize(pass, head, row, (int32_t)n);
        else
            memcpy(pass->att + (size_t)row * n, head, n * sizeof(*head));
        memcpy(q, head + n, n_rot * sizeof(*q));
        if (pass->q_pre != NULL)
            memcpy(pass->q_pre + (q - pass->q), q, n_rot * sizeof(*q));
        pass->cpu->vec.rope(q, cs, rope->n_pair, rope->adjacent);
    }
}

static void in_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const float *cs = pass->rope_cs + t * pass->layer->rope->n_pair * 2;
        make_key(pass, t, cs);
        split_heads(pass, t, cs);
    }
}

/* What is left to do where somebody looks at queries, or they grow with their position. */
static void query_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_hparams *hp = &pass->model->hp;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *q = pass->q + (size_t)t * len_q(hp);
        for (int32_t h = 0; h < hp->n_head && pass->q_pre != NULL; h++) {
            size_t at = (size_t)h * (size_t)hp->dim_k + (size_t)hp->n_rot;
            memcpy(pass->q_pre + (size_t)t * len_q(hp) + at, q + at,
                   (size_t)hp->dim_v * sizeof(*q));
        }
        float factor = hp->temp_scale != 0.0f ? pi_pass_temperature(pass, t) : 1.0f;
        for (size_t i = 0; hp->temp_scale != 0.0f && i < len_q(hp); i++)
            q[i] *= factor;
    }
}

static void make_queries(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer *w = pass->layer;
    struct pi_pass_latent *l = &pass->latent;
    bool low = w->w_query_a.data != NULL;
    pi_pass_product(pass, pass->h, pass->n_tok,
                    (const struct pi_matrix *const[]){low ? &w->w_query_a : &w->wq, &w->w_latent},
                    (float *const[]){low ? l->low : l->head, l->raw}, 2);
    if (low) {
        pi_pass_rows(pass, low_rows, hp->latent.n_query);
        pi_pass_product(pass, l->low, pass->n_tok, (const struct pi_matrix *const[]){&w->w_query_b},
                        (float *const[]){l->head}, 1);
    }
    pi_pass_rows(pass, in_rows, (int64_t)len_head(hp));
    struct heads absorb = {.pass = pass,
                           .w = &w->w_absorb,
                           .x = pass->att,
                           .out = pass->q + hp->n_rot,
                           .stride = len_q(hp),
                           .step = (size_t)hp->dim_k};
    run_heads(&absorb);
    if (pass->q_pre != NULL || hp->temp_scale != 0.0f)
        pi_pass_rows(pass, query_rows, (int64_t)len_q(hp));
}

/* ---- the way out ---- */

/* What attention gave, head by head; queries have been used, and their memory has room. */
static void gather_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_hparams *hp = &pass->model->hp;
    size_t n = (size_t)hp->dim_v;
    bool reads_int8 = pi_matrix_reads_int8(&pass->layer->w_expand);
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        for (int32_t h = 0; h < hp->n_head; h++) {
            const float *att = pass->att + ((size_t)t * (size_t)hp->n_head + (size_t)h) * n;
            int64_t row = (int64_t)h * pass->n_tok + t;
            if (reads_int8)
                pi_pass_quantize(pass, att, row, (int32_t)n);
            else
                memcpy(pass->q + (size_t)row * n, att, n * sizeof(*att));
        }
}

static void out_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    int32_t n = pass->layer->wo.n_col;
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        pi_pass_quantize(pass, pass->latent.head + t * n, t, n);
}

static void leave(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer *w = pass->layer;
    size_t dim_out = (size_t)hp->latent.dim_out;
    pi_pass_rows(pass, gather_rows, (int64_t)hp->n_head * hp->dim_v);
    struct heads expand = {.pass = pass,
                           .w = &w->w_expand,
                           .x = pass->q,
                           .out = pass->latent.head,
                           .stride = (size_t)hp->n_head * dim_out,
                           .step = dim_out};
    run_heads(&expand);
    if (pi_matrix_reads_int8(&w->wo))
        pi_pass_rows(pass, out_rows, w->wo.n_col);
    pi_pass_product(pass, pass->latent.head, pass->n_tok, (const struct pi_matrix *const[]){&w->wo},
                    (float *const[]){pass->h}, 1);
}

/* ---- the block ---- */

static void run(struct pi_pass *pass)
{
    make_queries(pass);
    if (pass->tap != NULL)
        pi_pass_call_tap(pass);
    pi_pass_attention_run(pass);
    leave(pass);
}

const struct pi_block pi_block_latent = {
    .name = "latent attention",
    .plan = plan,
    .scratch = scratch,
    .place = place,
    .run = run,
};
