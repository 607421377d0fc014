/*
 * attention.c - the attention block: the projections before and behind what happens in the lanes
 * (attention_lanes.c), the norms of heads, the rotation of queries and keys.
 */
#include "model/pass.h"

static void plan(const struct pi_layer *layer, struct pi_layer_block *out)
{
    out->norm = layer->attn.norm;
    out->bias = layer->attn.bo;
    out->post_norm = layer->attn.post_norm;
    out->reads_int8 = pi_matrix_reads_int8(&layer->attn.wq) ||
                      pi_matrix_reads_int8(&layer->attn.wk) ||
                      pi_matrix_reads_int8(&layer->attn.wv);
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

/* The same of all ranks. */
static size_t len_whole(const struct pi_hparams *hp)
{
    return (size_t)hp->whole.n_head * (size_t)hp->dim_v;
}

static void scratch(const struct pi_hparams *hp, struct pi_block_scratch *out)
{
    size_t gated = hp->attn_gated ? 2 * len_q(hp) : 0;
    size_t whole = len_whole(hp);
    *out = (struct pi_block_scratch){.row = len_q(hp) + len_k(hp) + len_v(hp) + whole + gated,
                                     .widest = whole};
}

static void place(struct pi_pass *pass, struct pi_at memory)
{
    const struct pi_hparams *hp = &pass->model->hp;
    pass->rows.q = pi_pass_take(pass, &memory, len_q(hp));
    pass->rows.k = pi_pass_take(pass, &memory, len_k(hp));
    pass->rows.v = pi_pass_take(pass, &memory, len_v(hp));
    pass->rows.att = pi_pass_take(pass, &memory, len_whole(hp));
    pass->rows.q_gate = hp->attn_gated ? memory : (struct pi_at){0};
}

/* ---- the block ---- */

struct pi_at pi_pass_turns(const struct pi_pass *pass)
{
    const struct pi_rope *rope = pass->now.layer->rope;
    if (rope == NULL)
        return (struct pi_at){0};
    return rope == &pass->model->rope_local ? pass->rows.local_cs : pass->rows.cs;
}

static void call_learner(struct pi_pass *pass)
{
    const struct pi_pass_rows rows = {
        .items = pass->now.items,
        .n_item = pass->now.n_item,
        .row0 = pass->ids.row0,
        .layer = pass->now.layer->kv_layer,
        .q_pre = pass->rows.q_pre,
        .q = pass->rows.q,
    };
    pass->learner.rows(pass->learner.user, pass->stream, &rows);
}

/* Rows of n floats each, where they are wanted; NULL: they are not. */
static const float *look(const struct pi_pass *pass, bool wanted, struct pi_at rows, size_t n,
                         enum pi_pass_room room)
{
    return wanted ? pi_pass_look(pass, rows, n, room) : NULL;
}

static const float *row_at(const float *rows, size_t row, size_t n)
{
    return rows != NULL ? rows + row * n : NULL;
}

static void call_tap(struct pi_pass *pass, pi_pass_tap_fn *fn, bool attended)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_pass_tap *tap = &pass->tap;
    uint32_t wants = PI_TAP_ALL;
    if (tap->wants != NULL && !attended)
        wants = tap->wants(tap->user, pass->now.items, pass->now.n_item, pass->now.layer->kv_layer);
    if (wants == 0)
        return;
    const float *h =
        look(pass, (wants & PI_TAP_H) != 0, pass->rows.h, (size_t)hp->n_embd, PI_ROOM_H);
    const float *q_pre =
        look(pass, (wants & PI_TAP_Q_PRE) != 0, pass->rows.q_pre, len_q(hp), PI_ROOM_Q_PRE);
    const float *q = look(pass, (wants & PI_TAP_Q) != 0, pass->rows.q, len_q(hp), PI_ROOM_Q);
    const float *k = look(pass, (wants & PI_TAP_K) != 0, pass->rows.k, len_k(hp), PI_ROOM_K);
    const float *v = look(pass, (wants & PI_TAP_V) != 0, pass->rows.v, len_v(hp), PI_ROOM_V);
    const float *out = look(pass, attended, pass->rows.att, len_out(hp), PI_ROOM_ATT);
    for (int32_t i = 0; i < pass->now.n_item; i++) {
        size_t row = (size_t)pass->ids.row0[i];
        struct pi_pass_tap_rows rows = {
            .item = &pass->now.items[i],
            .layer = pass->now.layer->kv_layer,
            .h = row_at(h, row, (size_t)hp->n_embd),
            .q_pre = row_at(q_pre, row, len_q(hp)),
            .q = row_at(q, row, len_q(hp)),
            .k = row_at(k, row, len_k(hp)),
            .v = row_at(v, row, len_v(hp)),
            .out = row_at(out, row, len_out(hp)),
        };
        fn(pass->tap.user, &rows);
    }
}

void pi_pass_attend(struct pi_pass *pass)
{
    if (pass->learner.rows != NULL)
        call_learner(pass);
    if (pass->tap.fn != NULL)
        call_tap(pass, pass->tap.fn, false);
    pi_pass_attention_run(pass);
    if (pass->tap.attended != NULL)
        call_tap(pass, pass->tap.attended, true);
}

/* From projections to queries, keys and values. */
static void enter(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer *layer = pass->now.layer;
    const struct pi_qkv_rows rows = {
        .q = pass->rows.q,
        .k = pass->rows.k,
        .v = pass->rows.v,
        .q_gate = pass->rows.q_gate,
        .q_pre = pass->rows.q_pre,
        .k_pre = pass->rows.k_pre,
        .bq = pi_pass_vector(pass, layer->attn.bq),
        .bk = pi_pass_vector(pass, layer->attn.bk),
        .bv = pi_pass_vector(pass, layer->attn.bv),
        .q_norm = pi_pass_vector(pass, layer->attn.q_norm),
        .k_norm = pi_pass_vector(pass, layer->attn.k_norm),
        .cs = pi_pass_turns(pass),
        .rope = layer->rope,
        .pos = pass->ids.pos,
        .temp = pi_pass_temperature(pass),
        .n_head = hp->n_head,
        .n_head_kv = hp->n_head_kv,
        .dim_k = hp->dim_k,
        .n_v = layer->attn.wv.n_row,
        .eps = hp->rms_eps,
    };
    pi_pass_rows(pass, PI_ROWS_QKV, &rows, layer->attn.wq.n_row + layer->attn.wk.n_row);
}

/* The gate of the output, and its int8 copy. */
static void leave(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_out_rows rows = {
        .x = pass->rows.att,
        .q_gate = pass->rows.q_gate,
        .act = pi_pass_act(pass, &pass->now.w->attn.wo),
        .n = (int32_t)len_out(hp),
        .n_head = hp->n_head,
        .dim = hp->dim_k,
    };
    if (pi_at_some(rows.act.q) || pi_at_some(rows.q_gate))
        pi_pass_rows(pass, PI_ROWS_OUT, &rows, rows.n);
    pi_pass_gather(pass->rows.att, &rows.act, pass->now.n_tok, hp->whole.n_head_kv,
                   hp->n_head / hp->n_head_kv * hp->dim_v);
}

static void run(struct pi_pass *pass)
{
    const struct pi_placed_layer *w = pass->now.w;
    struct pi_at q = pi_at_some(pass->rows.q_gate) ? pass->rows.q_gate : pass->rows.q;
    pi_pass_product(pass, pass->rows.h, pass->now.n_tok,
                    (const struct pi_weight *const[]){&w->attn.wq, &w->attn.wk, &w->attn.wv},
                    (const struct pi_at[]){q, pass->rows.k, pass->rows.v}, 3);
    enter(pass);
    pi_pass_attend(pass);
    leave(pass);
    pi_pass_product(pass, pass->rows.att, pass->now.n_tok,
                    (const struct pi_weight *const[]){&w->attn.wo},
                    (const struct pi_at[]){pass->rows.h}, 1);
    pi_pass_gather_rows(pass->rows.h, pass->now.n_tok, pass->model->hp.n_embd);
}

const struct pi_block pi_block_attention = {
    .name = "attention",
    .plan = plan,
    .scratch = scratch,
    .place = place,
    .run = run,
};

/* ---- the tap, and the learner ---- */

/* Room for queries before rope. */
static pith_status make_tap(struct pi_pass *pass, pith_error *err)
{
    bool ok = true;
    if (pi_at_some(pass->rows.q_pre))
        return PITH_OK;
    struct pi_at rows =
        pi_pass_place(pass, pass->plan.max_tok, len_q(&pass->model->hp), sizeof(float), &ok);
    if (!ok)
        return pi_fail(err, PITH_NOMEM, "no memory for the queries of %d tokens",
                       pass->plan.max_tok);
    pass->rows.q_pre = rows;
    return PITH_OK;
}

static void free_tap(struct pi_pass *pass)
{
    if (pass->tap.fn != NULL || pass->tap.attended != NULL ||
        (pass->learner.rows != NULL && pass->learner.before_rope))
        return;
    pass->device->free(pass->device, pass->rows.q_pre);
    pass->rows.q_pre = (struct pi_at){0};
}

pith_status pi_pass_set_tap(struct pi_pass *pass, const struct pi_pass_tap *tap, pith_error *err)
{
    pith_status status = PITH_OK;
    bool wanted = tap != NULL && (tap->fn != NULL || tap->attended != NULL);
    PI_EACH_STAGE(s, pass)
    status = wanted && status == PITH_OK ? make_tap(s, err) : status;
    PI_EACH_STAGE(s, pass)
    {
        if (status == PITH_OK)
            s->tap = tap != NULL ? *tap : (struct pi_pass_tap){0};
        free_tap(s);
    }
    return status;
}

pith_status pi_pass_set_learner(struct pi_pass *pass, const struct pi_pass_learner *learner,
                                pith_error *err)
{
    pith_status status = PITH_OK;
    PI_EACH_STAGE(s, pass)
    if (learner != NULL && learner->before_rope && status == PITH_OK)
        status = make_tap(s, err);
    PI_EACH_STAGE(s, pass)
    {
        if (status == PITH_OK)
            s->learner = learner != NULL ? *learner : (struct pi_pass_learner){0};
        free_tap(s);
    }
    return status;
}
