/*
 * ffn.c - the dense feed-forward block: down(act(gate(h)) * up(h)), act being SiLU or GELU.
 */
#include "model/pass.h"

static void plan(const struct pi_layer *layer, struct pi_layer_block *out)
{
    out->norm = layer->ffn.norm;
    out->bias = NULL;
    out->post_norm = layer->ffn.post_norm;
    out->reads_int8 =
        pi_matrix_reads_int8(&layer->ffn.gate) || pi_matrix_reads_int8(&layer->ffn.up);
}

static void scratch(const struct pi_hparams *hp, struct pi_block_scratch *out)
{
    *out = (struct pi_block_scratch){.row = (size_t)(hp->whole.n_ff + hp->n_ff),
                                     .widest = (size_t)hp->whole.n_ff};
}

static void place(struct pi_pass *pass, struct pi_at memory)
{
    const struct pi_hparams *hp = &pass->model->hp;
    pass->ffn.gate = pi_pass_take(pass, &memory, (size_t)hp->whole.n_ff);
    pass->ffn.up = pi_pass_take(pass, &memory, (size_t)hp->n_ff);
}

static void run(struct pi_pass *pass)
{
    const struct pi_placed_layer *w = pass->now.w;
    const struct pi_gate_rows rows = {
        .gate = pass->ffn.gate,
        .up = pass->ffn.up,
        .act = pi_pass_act(pass, &w->ffn.down),
        .fn = pass->model->hp.gelu ? PI_GATE_GELU : PI_GATE_SILU,
        .n = pass->model->hp.n_ff,
    };
    pi_pass_product(pass, pass->rows.h, pass->now.n_tok,
                    (const struct pi_weight *const[]){&w->ffn.gate, &w->ffn.up},
                    (const struct pi_at[]){pass->ffn.gate, pass->ffn.up}, 2);
    pi_pass_rows(pass, PI_ROWS_GATE, &rows, rows.n);
    pi_pass_gather(pass->ffn.gate, &rows.act, pass->now.n_tok,
                   pass->model->hp.whole.n_ff / PI_ACT_BLOCK, PI_ACT_BLOCK);
    pi_pass_product(pass, pass->ffn.gate, pass->now.n_tok,
                    (const struct pi_weight *const[]){&w->ffn.down},
                    (const struct pi_at[]){pass->rows.h}, 1);
    pi_pass_gather_rows(pass->rows.h, pass->now.n_tok, pass->model->hp.n_embd);
}

const struct pi_block pi_block_ffn = {
    .name = "ffn",
    .plan = plan,
    .scratch = scratch,
    .place = place,
    .run = run,
};
