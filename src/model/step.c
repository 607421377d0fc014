/*
 * step.c - a pass of one token as one operation of its device. The device has it, and the model is
 * made of attention and feed-forward alone. It decides which passes go that way. Policies, taps and
 * readers look into none of them. Bits are the same either way.
 */
#include "model/step.h"

/* A layer of two plain blocks. */
static bool is_plain(const struct pi_layer *layer)
{
    return layer->n_block == 2 && layer->block[0].block == &pi_block_attention &&
           layer->block[1].block == &pi_block_ffn && layer->attn.post_norm == NULL &&
           layer->ffn.post_norm == NULL;
}

bool pi_step_create(struct pi_pass *pass)
{
    const struct pith_model *m = pass->model;
    bool whole = pass->stage.begin == 0 && pass->stage.end == m->hp.n_layer && pass->stage.output;
    bool plain = whole && pass->device->step != NULL && !m->hp.attn_gated, ok = true;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        plain = plain && is_plain(&m->layer[l]);
    if (!plain)
        return true;
    pass->step.layer = pi_pass_alloc(m->hp.n_layer, 1, sizeof(*pass->step.layer), &ok);
    pass->step.append =
        pi_pass_alloc(m->hp.n_layer, (size_t)m->hp.n_head_kv, sizeof(*pass->step.append), &ok);
    return ok;
}

void pi_step_free(struct pi_pass *pass)
{
    pi_mem_free(pass->step.layer);
    pi_mem_free(pass->step.append);
}

bool pi_step_may(const struct pi_pass *pass)
{
    const struct pi_pass_item *item = &pass->now.items[0];
    return pass->step.layer != NULL && pass->now.n_item == 1 && item->n_tok == 1 &&
           item->guests == NULL && !pi_at_some(pass->rows.q_pre) && pass->learner.rows == NULL &&
           pass->writer.fn.written == NULL && pass->watching.n == 0 && pass->reading.n_chunk == 0 &&
           pass->recalling.n == 0;
}

static void fill_layer(struct pi_pass *pass, int32_t l)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_layer *layer = &pass->model->layer[l];
    const struct pi_placed_layer *w = &pass->placed->layer[l];
    const struct pi_attention_weights *attn = &layer->attn;
    size_t n_k = (size_t)hp->n_head_kv * (size_t)hp->dim_k;
    pass->now.layer = layer;
    struct pi_step_layer *to = &pass->step.layer[l];
    *to = (struct pi_step_layer){
        .wq = &w->attn.wq,
        .wk = &w->attn.wk,
        .wv = &w->attn.wv,
        .wo = &w->attn.wo,
        .gate = &w->ffn.gate,
        .up = &w->ffn.up,
        .down = &w->ffn.down,
        .norm = pi_pass_vector(pass, attn->norm),
        .ffn_norm = pi_pass_vector(pass, layer->ffn.norm),
        .bq = pi_pass_vector(pass, attn->bq),
        .bk = pi_pass_vector(pass, attn->bk),
        .bv = pi_pass_vector(pass, attn->bv),
        .bo = pi_pass_vector(pass, attn->bo),
        .q_norm = pi_pass_vector(pass, attn->q_norm),
        .k_norm = pi_pass_vector(pass, attn->k_norm),
        .cs = pi_pass_turns(pass),
        .rope = layer->rope,
        .sink = attn->sinks,
    };
    if (pi_at_some(pass->lanes.centre))
        to->centre = pi_at_item(pass->lanes.centre, (size_t)layer->kv_layer * n_k);
    for (int32_t h = 0; h < hp->n_head_kv; h++)
        pass->step.append[l * hp->n_head_kv + h] = (struct kv_append){
            .seq = pass->now.items[0].kv,
            .layer = layer->kv_layer,
            .head = h,
            .pos0 = pass->now.items[0].pos0,
            .n = 1,
        };
}

bool pi_step_run(struct pi_pass *pass)
{
    const struct pith_model *m = pass->model;
    const struct pi_hparams *hp = &m->hp;
    for (int32_t l = 0; l < hp->n_layer; l++)
        fill_layer(pass, l);
    struct pi_weight head = pi_pass_head(pass);
    const struct pi_step step = {
        .layer = pass->step.layer,
        .n_layer = hp->n_layer,
        .append = pass->step.append,
        .x = pass->rows.x,
        .q = pass->rows.q,
        .k = pass->rows.k,
        .v = pass->rows.v,
        .att = pass->rows.att,
        .act = pass->ffn.gate,
        .pos = pass->ids.pos,
        .pos0 = pass->now.items[0].pos0,
        .head = pi_at_some(pass->rows.logits) ? &head : NULL,
        .head_norm = pi_pass_vector(pass, m->output_norm),
        .logits = pass->rows.logits,
        .n_embd = hp->n_embd,
        .n_ff = hp->n_ff,
        .n_head = hp->n_head,
        .n_head_kv = hp->n_head_kv,
        .dim_k = hp->dim_k,
        .dim_v = hp->dim_v,
        .temp = pi_pass_temperature(pass),
        .activation = hp->gelu ? PI_GATE_GELU : PI_GATE_SILU,
        .eps = hp->rms_eps,
        .scale = hp->attn_scale,
        .cap = hp->attn_cap,
    };
    pass->step.has_logits = pass->device->step(pass->stream, &step);
    return pass->step.has_logits;
}
