/*
 * delta.c - the gated delta net block: projections, a short causal convolution, and a matrix per
 * head that every token moves a little towards its value (Qwen3-Next; Yang et al., Gated Delta
 * Networks, arXiv:2412.06464). It runs token by token, so that the bits depend on no chunk.
 *
 *   u = Wu h, z = Wz h, beta = sigmoid(Wb h), decay = exp(A softplus(Wa h + dt))
 *   q, k, v = silu(convolution of u);  q, k to length 1, a head at a time
 *   S *= decay, S += k (beta (v - S^T k))^T, o = S^T q / sqrt(dim)
 *   out = Wo (RMS(o) silu(z))
 *
 * Its memory of a sequence is a state (kv/state.h), for each of the model's layers of this kind. It
 * has the inputs of the last n_conv - 1 tokens, [n_conv - 1][channels]. It has the heads' matrices,
 * [n_value][dim of a value / 16, rounded up][dim of a key][16] (cpu/vec.h).
 */
#include "model/delta.h"
#include "model/pass.h"

#define BLOCK 16 /* columns of a matrix side by side */

static void plan(const struct pi_layer *layer, struct pi_layer_block *out)
{
    const struct pi_matrix *in[] = {&layer->delta.mix,   &layer->delta.z,
                                    &layer->delta.mix_z, &layer->delta.beta,
                                    &layer->delta.alpha, &layer->delta.beta_alpha};
    out->norm = layer->delta.norm;
    out->bias = NULL;
    out->post_norm = NULL;
    out->reads_int8 = false;
    for (size_t i = 0; i < PI_LEN(in); i++)
        out->reads_int8 = out->reads_int8 || (in[i]->data != NULL && pi_matrix_reads_int8(in[i]));
}

/* ---- shapes ---- */

static size_t key_len(const struct pi_delta_shape *s)
{
    return (size_t)s->n_key * (size_t)s->dim;
}

static size_t value_len(const struct pi_delta_shape *s)
{
    return (size_t)s->n_value * (size_t)s->dim;
}

/* Values of all ranks: heads go with KV heads (load_ranks.h). */
static size_t whole_len(const struct pi_hparams *hp)
{
    return value_len(&hp->delta) / (size_t)hp->n_head_kv * (size_t)hp->whole.n_head_kv;
}

static size_t channels(const struct pi_delta_shape *s)
{
    return 2 * key_len(s) + value_len(s);
}

/* Floats of a head's matrix. */
static size_t matrix_len(const struct pi_delta_shape *s)
{
    return (size_t)pi_ceil_div(s->dim, BLOCK) * BLOCK * (size_t)s->dim;
}

/* Floats of a layer's part of the state. */
static size_t layer_len(const struct pi_delta_shape *s)
{
    return pi_align((size_t)(s->n_conv - 1) * channels(s), BLOCK) +
           (size_t)s->n_value * matrix_len(s);
}

size_t pi_delta_state_bytes(const struct pi_delta_shape *s)
{
    return (size_t)s->n_layer * layer_len(s) * sizeof(float);
}

/* ---- scratch ---- */

static void scratch(const struct pi_hparams *hp, struct pi_block_scratch *out)
{
    const struct pi_delta_shape *s = &hp->delta;
    size_t mixed = channels(s) + value_len(s), whole = whole_len(hp);
    *out = (struct pi_block_scratch){.row = channels(s) + whole + mixed + 4 * (size_t)s->n_value +
                                            (size_t)s->n_key,
                                     .widest = whole};
}

static void place(struct pi_pass *pass, struct pi_at memory)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_delta_shape *s = &hp->delta;
    struct pi_delta_parts *d = &pass->delta.parts;
    d->u = pi_pass_take(pass, &memory, channels(s));
    d->z = pi_pass_take(pass, &memory, whole_len(hp));
    d->c = pi_pass_take(pass, &memory, channels(s) + value_len(s));
    d->beta = pi_pass_take(pass, &memory, (size_t)s->n_value);
    d->decay = pi_pass_take(pass, &memory, (size_t)s->n_value);
    d->beta_alpha = pi_pass_take(pass, &memory, 2 * (size_t)s->n_value);
    d->kq = memory;
}

/* ---- the block ---- */

static void project(struct pi_pass *pass)
{
    const struct pi_placed_layer *w = pass->now.w;
    struct pi_delta_parts *d = &pass->delta.parts;
    if (pi_at_some(w->delta.mix_z.data))
        pi_pass_product(pass, pass->rows.h, pass->now.n_tok,
                        (const struct pi_weight *const[]){&w->delta.mix_z},
                        (const struct pi_at[]){d->c}, 1);
    else
        pi_pass_product(pass, pass->rows.h, pass->now.n_tok,
                        (const struct pi_weight *const[]){&w->delta.mix, &w->delta.z},
                        (const struct pi_at[]){d->u, d->z}, 2);
    if (pi_at_some(w->delta.beta_alpha.data))
        pi_pass_product(pass, pass->rows.h, pass->now.n_tok,
                        (const struct pi_weight *const[]){&w->delta.beta_alpha},
                        (const struct pi_at[]){d->beta_alpha}, 1);
    else
        pi_pass_product(pass, pass->rows.h, pass->now.n_tok,
                        (const struct pi_weight *const[]){&w->delta.beta, &w->delta.alpha},
                        (const struct pi_at[]){d->beta, d->decay}, 2);
}

/* The items' tokens, and their parts of their states. */
static void list_items(struct pi_pass *pass)
{
    const struct pi_delta_shape *s = &pass->model->hp.delta;
    for (int32_t i = 0; i < pass->now.n_item; i++) {
        struct pi_at past =
            kv_seq_state(pass->now.items[i].kv,
                         (size_t)pass->now.layer->delta_layer * layer_len(s) * sizeof(float));
        pass->delta.item[i] = (struct pi_delta_item){
            .past = past,
            .matrix = pi_at_item(past, pi_align((size_t)(s->n_conv - 1) * channels(s), BLOCK)),
            .row0 = pass->ids.row0[i],
            .n_tok = pass->now.items[i].n_tok,
        };
    }
}

/* The gated output of all ranks' heads. Where value heads are tiled, a token's row is one of all
   key heads for each value head of theirs. */
static void gather(struct pi_pass *pass, const struct pi_int8 *act)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_delta_shape *s = &hp->delta;
    int32_t n_row = s->tiled ? s->n_value / s->n_key : 1;
    pi_pass_gather(pass->delta.parts.z, act, pass->now.n_tok * n_row, hp->whole.n_head_kv,
                   s->n_value / n_row / hp->n_head_kv * s->dim);
}

static void run(struct pi_pass *pass)
{
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_delta_shape *s = &hp->delta;
    const struct pi_layer *layer = pass->now.layer;
    const struct pi_placed_layer *w = pass->now.w;
    const struct pi_delta_rows rows = {
        .shape = *s,
        .parts = pass->delta.parts,
        .mixed = pi_at_some(w->delta.mix_z.data),
        .mixed_gates = pi_at_some(w->delta.beta_alpha.data),
        .dt = pi_pass_vector(pass, layer->delta.dt),
        .a = pi_pass_vector(pass, layer->delta.a),
        .norm = pi_pass_vector(pass, layer->delta.head_norm),
        .act = pi_pass_act(pass, &w->delta.out),
        .eps = hp->rms_eps,
    };
    project(pass);
    list_items(pass);
    pi_pass_rows(pass, PI_ROWS_DELTA_IN, &rows, s->n_value);
    pass->device->delta_conv(pass->stream, &rows, pi_pass_vector(pass, layer->delta.conv),
                             pass->delta.item, pass->now.n_item);
    pi_pass_rows(pass, PI_ROWS_DELTA_UNIT, &rows, (int64_t)key_len(s) / 8);
    pass->device->delta_turn(pass->stream, &rows, pass->delta.item, pass->now.n_item);
    pi_pass_rows(pass, PI_ROWS_DELTA_OUT, &rows, (int64_t)value_len(s));
    gather(pass, &rows.act);
    pi_pass_product(pass, pass->delta.parts.z, pass->now.n_tok,
                    (const struct pi_weight *const[]){&w->delta.out},
                    (const struct pi_at[]){pass->rows.h}, 1);
    pi_pass_gather_rows(pass->rows.h, pass->now.n_tok, hp->n_embd);
}

const struct pi_block pi_block_delta = {
    .name = "delta",
    .plan = plan,
    .scratch = scratch,
    .place = place,
    .run = run,
};
