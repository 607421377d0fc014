/*
 * latent.c - multi-head latent attention, absorbed (DeepSeek-V2, arXiv:2405.04434, section 2.1).
 * The keys and values of all heads come from one vector c. A lane holds c and one rotated key that
 * all heads share. The matrix that would make a head's keys of c is applied to queries instead. The
 * matrix that would make its values of c is applied to the output of attention.
 *
 *   [u_h; p_h] = head h of Wq x, or of Wqb RMS(Wqa x);  [c; p] = Wkv x
 *   key = [R_t p; RMS(c)], of which RMS(c) is the value, too;  query of head h = [R_t p_h; A_h u_h]
 *   out = Wo [E_h o_h of all heads], o_h what attention gives head h
 *
 * In a lane the rotated dimensions come first. Where each head has a matrix of its own, heads'
 * vectors lie head by head, [n_head][n_tok]. So each product reads its rows one after the other.
 */
#include "model/pass.h"

static void plan(const struct pi_layer *layer, struct pi_layer_block *out)
{
    const struct pi_matrix *query =
        layer->latent.query_a.data != NULL ? &layer->latent.query_a : &layer->latent.query;
    out->norm = layer->latent.norm;
    out->bias = NULL;
    out->post_norm = NULL;
    out->reads_int8 = pi_matrix_reads_int8(query) || pi_matrix_reads_int8(&layer->latent.compress);
}

/* ---- scratch ---- */

static size_t most(int32_t a, int32_t b)
{
    return (size_t)pi_max(a, b);
}

/* Floats of a token's heads of all ranks, as they leave. */
static size_t len_outs(const struct pi_hparams *hp)
{
    return (size_t)hp->whole.n_head * (size_t)hp->latent.dim_out;
}

/* The same, and as they are projected. */
static size_t len_head(const struct pi_hparams *hp)
{
    size_t projected = (size_t)hp->n_head * (size_t)(hp->latent.dim_key + hp->n_rot);
    return projected > len_outs(hp) ? projected : len_outs(hp);
}

/* Floats of a token's attention output, or before it of its queries' input. */
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
    *out = (struct pi_block_scratch){
        .row = len_q(hp) + 2 * (size_t)hp->dim_k + (size_t)hp->dim_v + len_att(hp) + len_head(hp) +
               (size_t)s->n_query,
        .widest = heads > len_outs(hp) ? heads : len_outs(hp),
    };
    if ((size_t)s->n_query > out->widest)
        out->widest = (size_t)s->n_query;
}

static void place(struct pi_pass *pass, struct pi_at memory)
{
    const struct pi_hparams *hp = &pass->model->hp;
    struct pi_pass_latent *l = &pass->latent;
    pass->rows.q = pi_pass_take(pass, &memory, len_q(hp));
    pass->rows.k = pi_pass_take(pass, &memory, (size_t)hp->dim_k);
    pass->rows.v = pi_pass_take(pass, &memory, (size_t)hp->dim_v);
    pass->rows.att = pi_pass_take(pass, &memory, len_att(hp));
    l->head = pi_pass_take(pass, &memory, len_head(hp));
    l->raw = pi_pass_take(pass, &memory, (size_t)hp->dim_k);
    l->low = memory;
}

/* The arguments that all bodies of the block share. */
static struct pi_latent_rows rows_of(const struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer *layer = pass->now.layer;
    return (struct pi_latent_rows){
        .low = pass->latent.low,
        .query_a_norm = pi_pass_vector(pass, layer->latent.query_a_norm),
        .raw = pass->latent.raw,
        .latent_norm = pi_pass_vector(pass, layer->latent.compress_norm),
        .k = pass->rows.k,
        .v = pass->rows.v,
        .head = pass->latent.head,
        .att = pass->rows.att,
        .q = pass->rows.q,
        .q_pre = pass->rows.q_pre,
        .k_pre = pass->rows.k_pre,
        .wants_v = pi_at_some(pass->rows.k_pre) || pi_at_some(pass->rows.q_pre),
        .cs = pass->rows.cs,
        .pos = pass->ids.pos,
        .rope = layer->rope,
        .temp = pi_pass_temperature(pass),
        .n_tok = pass->now.n_tok,
        .n_head = hp->n_head,
        .n_query = hp->latent.n_query,
        .dim_key = hp->latent.dim_key,
        .n_rot = hp->n_rot,
        .dim_k = hp->dim_k,
        .dim_v = hp->dim_v,
        .eps = hp->rms_eps,
    };
}

/* ---- queries and the lane's new vectors ---- */

static void make_queries(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_placed_layer *w = pass->now.w;
    struct pi_pass_latent *l = &pass->latent;
    struct pi_latent_rows rows = rows_of(pass);
    bool low = pi_at_some(w->latent.query_a.data);
    pi_pass_product(pass, pass->rows.h, pass->now.n_tok,
                    (const struct pi_weight *const[]){low ? &w->latent.query_a : &w->latent.query,
                                                      &w->latent.compress},
                    (const struct pi_at[]){low ? l->low : l->head, l->raw}, 2);
    if (low) {
        rows.act = pi_pass_act(pass, &w->latent.query_b);
        pi_pass_rows(pass, PI_ROWS_LATENT_LOW, &rows, hp->latent.n_query);
        pi_pass_product(pass, l->low, pass->now.n_tok,
                        (const struct pi_weight *const[]){&w->latent.query_b},
                        (const struct pi_at[]){l->head}, 1);
    }
    rows.act = pi_pass_act(pass, &w->latent.absorb);
    pi_pass_rows(pass, PI_ROWS_LATENT_IN, &rows, (int64_t)len_head(hp));
    const struct pi_product_heads absorb = {.x = pass->rows.att,
                                            .act = pass->rows.act,
                                            .n_tok = pass->now.n_tok,
                                            .n_head = hp->n_head,
                                            .w = &w->latent.absorb,
                                            .out = pi_at_item(pass->rows.q, (size_t)hp->n_rot),
                                            .stride = len_q(hp),
                                            .step = (size_t)hp->dim_k};
    pass->device->product_heads(pass->stream, &absorb);
    if (pi_at_some(pass->rows.q_pre) || hp->temp_scale != 0.0f)
        pi_pass_rows(pass, PI_ROWS_LATENT_QUERY, &rows, (int64_t)len_q(hp));
}

/* ---- the way out ---- */

static void leave(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_placed_layer *w = pass->now.w;
    size_t dim_out = (size_t)hp->latent.dim_out;
    struct pi_latent_rows rows = rows_of(pass);
    rows.act = pi_pass_act(pass, &w->latent.expand);
    pi_pass_rows(pass, PI_ROWS_LATENT_GATHER, &rows, (int64_t)hp->n_head * hp->dim_v);
    const struct pi_product_heads expand = {.x = pass->rows.q,
                                            .act = pass->rows.act,
                                            .n_tok = pass->now.n_tok,
                                            .n_head = hp->n_head,
                                            .w = &w->latent.expand,
                                            .out = pass->latent.head,
                                            .stride = (size_t)hp->n_head * dim_out,
                                            .step = dim_out};
    pass->device->product_heads(pass->stream, &expand);
    const struct pi_quantize_rows out = {pass->latent.head, pi_pass_act(pass, &w->latent.out),
                                         hp->n_head * hp->latent.dim_out};
    if (pi_at_some(out.act.q))
        pi_pass_rows(pass, PI_ROWS_QUANTIZE, &out, out.n);
    pi_pass_gather(pass->latent.head, &out.act, pass->now.n_tok, hp->whole.n_head,
                   hp->latent.dim_out);
    pi_pass_product(pass, pass->latent.head, pass->now.n_tok,
                    (const struct pi_weight *const[]){&w->latent.out},
                    (const struct pi_at[]){pass->rows.h}, 1);
    pi_pass_gather_rows(pass->rows.h, pass->now.n_tok, hp->n_embd);
}

/* ---- the block ---- */

static void run(struct pi_pass *pass)
{
    make_queries(pass);
    pi_pass_attend(pass);
    leave(pass);
}

const struct pi_block pi_block_latent = {
    .name = "latent attention",
    .plan = plan,
    .scratch = scratch,
    .place = place,
    .run = run,
};
