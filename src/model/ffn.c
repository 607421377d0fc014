/*
 * ffn.c - the dense feed-forward block: down(act(gate(h)) * up(h)), act being SiLU or GELU.
 */
#include "model/pass.h"

static void plan(const struct pi_layer *layer, struct pi_layer_block *out)
{
    out->norm = layer->ffn_norm;
    out->bias = NULL;
    out->post_norm = layer->ffn_post_norm;
    out->reads_int8 = pi_matrix_reads_int8(&layer->w_gate) || pi_matrix_reads_int8(&layer->w_up);
}

static void scratch(const struct pi_hparams *hp, struct pi_block_scratch *out)
{
    *out = (struct pi_block_scratch){.row = 2 * (size_t)hp->n_ff, .widest = (size_t)hp->n_ff};
}

static void place(struct pi_pass *pass, struct pi_at memory)
{
    size_t n = (size_t)pass->model->hp.n_ff;
    pass->gate = pi_pass_take(pass, &memory, n);
    pass->up = pi_pass_take(pass, &memory, n);
}

static void run(struct pi_pass *pass)
{
    const struct pi_placed_layer *w = pass->w;
    const struct pi_gate_rows rows = {
        .gate = pass->gate,
        .up = pass->up,
        .act = pi_pass_act(pass, &w->w_down),
        .fn = pass->model->hp.gelu ? PI_GATE_GELU : PI_GATE_SILU,
        .n = pass->model->hp.n_ff,
    };
    pi_pass_product(pass, pass->h, pass->n_tok,
                    (const struct pi_weight *const[]){&w->w_gate, &w->w_up},
                    (const struct pi_at[]){pass->gate, pass->up}, 2);
    pi_pass_rows(pass, PI_ROWS_GATE, &rows, rows.n);
    pi_pass_product(pass, pass->gate, pass->n_tok, (const struct pi_weight *const[]){&w->w_down},
                    (const struct pi_at[]){pass->h}, 1);
}

const struct pi_block pi_block_ffn = {
    .name = "ffn",
    .plan = plan,
    .scratch = scratch,
    .place = place,
    .run = run,
};
