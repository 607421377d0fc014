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

static void place(struct pi_pass *pass, float *memory)
{
    pass->gate = memory;
    pass->up = pass->gate + (size_t)pass->max_tok * (size_t)pass->model->hp.n_ff;
}

static void gate_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    int32_t n = pass->model->hp.n_ff;
    bool reads_int8 = pi_matrix_reads_int8(&pass->layer->w_down);
    const struct pi_vec_kernels *vec = &pass->cpu->vec;
    void (*act)(float *, const float *, int32_t) =
        pass->model->hp.gelu ? vec->gelu_mul : vec->silu_mul;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        act(pass->gate + t * n, pass->up + t * n, n);
        if (reads_int8)
            pi_pass_quantize(pass, pass->gate + t * n, t, n);
    }
}

static void run(struct pi_pass *pass)
{
    const struct pi_layer *w = pass->layer;
    pi_pass_product(pass, pass->h, pass->n_tok,
                    (const struct pi_matrix *const[]){&w->w_gate, &w->w_up},
                    (float *const[]){pass->gate, pass->up}, 2);
    pi_pass_rows(pass, gate_rows, pass->model->hp.n_ff);
    pi_pass_product(pass, pass->gate, pass->n_tok, (const struct pi_matrix *const[]){&w->w_down},
                    (float *const[]){pass->h}, 1);
}

const struct pi_block pi_block_ffn = {
    .name = "ffn",
    .plan = plan,
    .scratch = scratch,
    .place = place,
    .run = run,
};
