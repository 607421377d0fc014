/*
 * attention.c - the attention block: the projections before and behind what happens in the lanes
 * (attention_lanes.c), the norms of heads, the rotation of queries and keys.
 */
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

static void place(struct pi_pass *pass, struct pi_at memory)
{
    const struct pi_hparams *hp = &pass->model->hp;
    pass->q = pi_pass_take(pass, &memory, len_q(hp));
    pass->k = pi_pass_take(pass, &memory, len_k(hp));
    pass->v = pi_pass_take(pass, &memory, len_v(hp));
    pass->att = pi_pass_take(pass, &memory, len_out(hp));
    pass->q_gate = hp->attn_gated ? memory : (struct pi_at){0};
}

/* ---- the block ---- */

struct pi_at pi_pass_turns(const struct pi_pass *pass)
{
    const struct pi_rope *rope = pass->layer->rope;
    if (rope == NULL)
        return (struct pi_at){0};
    return rope == &pass->model->rope_local ? pass->rope_local_cs : pass->rope_cs;
}

void pi_pass_call_tap(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const float *h = pi_pass_look(pass, pass->h, (size_t)hp->n_embd, PI_ROOM_H);
    const float *q_pre = pi_pass_look(pass, pass->q_pre, len_q(hp), PI_ROOM_Q_PRE);
    const float *q = pi_pass_look(pass, pass->q, len_q(hp), PI_ROOM_Q);
    const float *k = pi_pass_look(pass, pass->k, len_k(hp), PI_ROOM_K);
    const float *v = pi_pass_look(pass, pass->v, len_v(hp), PI_ROOM_V);
    for (int32_t i = 0; i < pass->n_item; i++) {
        size_t row = (size_t)pass->row0[i];
        struct pi_pass_tap_rows rows = {
            .item = &pass->items[i],
            .layer = pass->layer->kv_layer,
            .h = h + row * (size_t)hp->n_embd,
            .q_pre = q_pre + row * len_q(hp),
            .q = q + row * len_q(hp),
            .k = k + row * len_k(hp),
            .v = v + row * len_v(hp),
        };
        pass->tap(pass->tap_user, &rows);
    }
}

/* From projections to queries, keys and values. */
static void enter(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer *layer = pass->layer;
    const struct pi_qkv_rows rows = {
        .q = pass->q,
        .k = pass->k,
        .v = pass->v,
        .q_gate = pass->q_gate,
        .q_pre = pass->q_pre,
        .k_pre = pass->k_pre,
        .bq = pi_pass_vector(pass, layer->bq),
        .bk = pi_pass_vector(pass, layer->bk),
        .bv = pi_pass_vector(pass, layer->bv),
        .q_norm = pi_pass_vector(pass, layer->q_norm),
        .k_norm = pi_pass_vector(pass, layer->k_norm),
        .cs = pi_pass_turns(pass),
        .rope = layer->rope,
        .pos = pass->pos,
        .temp = pi_pass_temperature(pass),
        .n_head = hp->n_head,
        .n_head_kv = hp->n_head_kv,
        .dim_k = hp->dim_k,
        .n_v = layer->wv.n_row,
        .eps = hp->rms_eps,
    };
    pi_pass_rows(pass, PI_ROWS_QKV, &rows, layer->wq.n_row + layer->wk.n_row);
}

/* The gate of the output, and its int8 copy. */
static void leave(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_out_rows rows = {
        .x = pass->att,
        .q_gate = pass->q_gate,
        .act = pi_pass_act(pass, &pass->w->wo),
        .n = pass->layer->wo.n_col,
        .n_head = hp->n_head,
        .dim = hp->dim_k,
    };
    if (pi_at_some(rows.act.q) || pi_at_some(rows.q_gate))
        pi_pass_rows(pass, PI_ROWS_OUT, &rows, rows.n);
}

static void run(struct pi_pass *pass)
{
    const struct pi_placed_layer *w = pass->w;
    struct pi_at q = pi_at_some(pass->q_gate) ? pass->q_gate : pass->q;
    pi_pass_product(pass, pass->h, pass->n_tok,
                    (const struct pi_weight *const[]){&w->wq, &w->wk, &w->wv},
                    (const struct pi_at[]){q, pass->k, pass->v}, 3);
    enter(pass);
    if (pass->tap != NULL)
        pi_pass_call_tap(pass);
    pi_pass_attention_run(pass);
    leave(pass);
    pi_pass_product(pass, pass->att, pass->n_tok, (const struct pi_weight *const[]){&w->wo},
                    (const struct pi_at[]){pass->h}, 1);
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
    if (fn != NULL && !pi_at_some(pass->q_pre)) {
        struct pi_at rows =
            pi_pass_place(pass, pass->max_tok, len_q(&pass->model->hp), sizeof(float), &ok);
        if (!ok)
            return pi_fail(err, PITH_NOMEM, "no memory for the queries of %d tokens",
                           pass->max_tok);
        pass->q_pre = rows;
    }
    if (fn == NULL) {
        pass->device->free(pass->device, pass->q_pre);
        pass->q_pre = (struct pi_at){0};
    }
    pass->tap = fn;
    pass->tap_user = user;
    return PITH_OK;
}
