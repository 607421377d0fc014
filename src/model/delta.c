/*
 * delta.c - the gated delta net block: projections, a short causal convolution, and a matrix per
 * head that every token turns a little towards its value (Qwen3-Next; Yang et al., Gated Delta
 * Networks, arXiv:2412.06464). It runs token by token, so that the bits depend on no chunk.
 *
 *   u = Wu h, z = Wz h, beta = sigmoid(Wb h), decay = exp(A softplus(Wa h + dt))
 *   q, k, v = silu(convolution of u);  q, k to length 1, a head at a time
 *   S *= decay, S += k (beta (v - S^T k))^T, o = S^T q / sqrt(dim)
 *   out = Wo (RMS(o) silu(z))
 *
 * What it remembers of a sequence is its state (kv.h): for each of the model's layers of this kind
 * the inputs of the last n_conv - 1 tokens, [n_conv - 1][channels], and the heads' matrices,
 * [n_value][dim of a value / 16, rounded up][dim of a key][16] (cpu/vec.h).
 */
#include <math.h>

#include "model/delta.h"
#include "model/pass.h"

#define BLOCK 16      /* columns of a matrix side by side */
#define ITEM_BLOCKS 4 /* that one work item turns */
#define ITEM_CHANNELS 256

static void plan(const struct pi_layer *layer, struct pi_layer_block *out)
{
    const struct pi_matrix *in[] = {&layer->w_mix,  &layer->w_z,     &layer->w_mix_z,
                                    &layer->w_beta, &layer->w_alpha, &layer->w_beta_alpha};
    out->norm = layer->attn_norm;
    out->bias = NULL;
    out->post_norm = layer->attn_post_norm;
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
    size_t mixed = channels(s) + value_len(s);
    *out = (struct pi_block_scratch){.row = 2 * mixed + 4 * (size_t)s->n_value + (size_t)s->n_key,
                                     .widest = value_len(s)};
}

static void place(struct pi_pass *pass, float *memory)
{
    const struct pi_delta_shape *s = &pass->model->hp.delta;
    struct pi_pass_delta *d = &pass->delta;
    size_t n = (size_t)pass->max_tok;
    d->u = memory;
    d->z = d->u + n * channels(s);
    d->c = d->z + n * value_len(s);
    d->beta = d->c + n * (channels(s) + value_len(s));
    d->decay = d->beta + n * (size_t)s->n_value;
    d->beta_alpha = d->decay + n * (size_t)s->n_value;
    d->kq = d->beta_alpha + n * 2 * (size_t)s->n_value;
}

/* The running layer's part of an item's state. */
static float *past_of(const struct pi_pass *pass, int32_t item)
{
    const struct pi_delta_shape *s = &pass->model->hp.delta;
    return kv_seq_state(pass->items[item].kv) + (size_t)pass->layer->delta_layer * layer_len(s);
}

static float *matrix_of(const struct pi_pass *pass, int32_t item, int32_t head)
{
    const struct pi_delta_shape *s = &pass->model->hp.delta;
    return past_of(pass, item) + pi_align((size_t)(s->n_conv - 1) * channels(s), BLOCK) +
           (size_t)head * matrix_len(s);
}

/* ---- what comes of the projections ---- */

/* Older files of Qwen3-Next have the rows of one key head together: its q and k, then v and z of the
   value heads that share it. */
static void split_mix(const struct pi_delta_shape *s, const float *row, float *u, float *z)
{
    size_t dim = (size_t)s->dim, shared = value_len(s) / (size_t)s->n_key;
    float *k = u + key_len(s), *v = k + key_len(s);
    for (int32_t h = 0; h < s->n_key; h++, row += 2 * dim + 2 * shared) {
        memcpy(u + (size_t)h * dim, row, dim * sizeof(*u));
        memcpy(k + (size_t)h * dim, row + dim, dim * sizeof(*u));
        memcpy(v + (size_t)h * shared, row + 2 * dim, shared * sizeof(*u));
        memcpy(z + (size_t)h * shared, row + 2 * dim + shared, shared * sizeof(*u));
    }
}

/* Likewise the rows of beta and alpha. */
static void split_gates(const struct pi_delta_shape *s, const float *row, float *beta, float *alpha)
{
    int32_t shared = s->n_value / s->n_key;
    for (int32_t h = 0; h < s->n_key; h++, row += 2 * shared)
        for (int32_t i = 0; i < shared; i++) {
            beta[h * shared + i] = row[i];
            alpha[h * shared + i] = row[shared + i];
        }
}

/* beta and decay from what was projected. They are few, and taken in double. */
static void gate_row(const struct pi_layer *layer, int32_t n, float *beta, float *decay)
{
    for (int32_t h = 0; h < n; h++) {
        double a = (double)decay[h] + (double)layer->delta_dt[h];
        double softplus = a > 20.0 ? a : log1p(exp(a));
        beta[h] = (float)(1.0 / (1.0 + exp(-(double)beta[h])));
        decay[h] = (float)exp((double)layer->delta_a[h] * softplus);
    }
}

static void in_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_delta_shape *s = &pass->model->hp.delta;
    const struct pi_layer *layer = pass->layer;
    struct pi_pass_delta *d = &pass->delta;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *beta = d->beta + t * s->n_value, *decay = d->decay + t * s->n_value;
        if (layer->w_mix_z.data != NULL)
            split_mix(s, d->c + (size_t)t * (channels(s) + value_len(s)),
                      d->u + (size_t)t * channels(s), d->z + (size_t)t * value_len(s));
        if (layer->w_beta_alpha.data != NULL)
            split_gates(s, d->beta_alpha + t * 2 * s->n_value, beta, decay);
        gate_row(layer, s->n_value, beta, decay);
    }
}

/* ---- the convolution ---- */

/* The inputs that the next tokens see, of n channels: the last rows of past and x. */
static void move_past(const struct pi_vec_conv *conv, float *past)
{
    for (int32_t j = 0; j < conv->n_tap - 1; j++) {
        int32_t t = conv->n_tok - (conv->n_tap - 1) + j;
        const float *row = t < 0 ? conv->past + (size_t)(j + conv->n_tok) * conv->past_stride
                                 : conv->x + (size_t)t * conv->x_stride;
        memmove(past + (size_t)j * conv->past_stride, row, (size_t)conv->n * sizeof(*row));
    }
}

/* Item index = sequence * parts of the channels + part. */
static void conv_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_delta_shape *s = &pass->model->hp.delta;
    struct pi_pass_delta *d = &pass->delta;
    size_t n = channels(s);
    int64_t n_part = pi_ceil_div((int64_t)n, ITEM_CHANNELS);
    (void)thread;
    for (int64_t at = begin; at < end; at++) {
        int32_t i = (int32_t)(at / n_part);
        size_t first = (size_t)(at % n_part) * ITEM_CHANNELS, row = (size_t)pass->row0[i] * n;
        float *past = past_of(pass, i) + first;
        struct pi_vec_conv conv = {
            .w = pass->layer->delta_conv + first * (size_t)s->n_conv,
            .past = past,
            .x = d->u + row + first,
            .out = d->c + row + first,
            .past_stride = n,
            .x_stride = n,
            .out_stride = n,
            .n_tap = s->n_conv,
            .n = (int32_t)pi_min(ITEM_CHANNELS, (int64_t)(n - first)),
            .n_tok = pass->items[i].n_tok,
        };
        pass->cpu->vec.conv(&conv);
        move_past(&conv, past);
    }
}

/* ---- the recurrence ---- */

static void unit_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_delta_shape *s = &hp->delta;
    struct pi_pass_delta *d = &pass->delta;
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        for (int32_t h = 0; h < s->n_key; h++) {
            float *q = d->c + (size_t)t * channels(s) + (size_t)(h * s->dim), *k = q + key_len(s);
            pass->cpu->vec.unit(q, s->dim, hp->rms_eps);
            pass->cpu->vec.unit(k, s->dim, hp->rms_eps);
            d->kq[t * s->n_key + h] = pass->cpu->vec.product(k, q, s->dim);
        }
}

/* Some blocks of a head's matrix, over all tokens of an item. What is read takes the values' place. */
static void turn_item(struct pi_pass *pass, int32_t i, int32_t head, int32_t block)
{
    const struct pi_delta_shape *s = &pass->model->hp.delta;
    struct pi_pass_delta *d = &pass->delta;
    int32_t key = s->tiled ? head % s->n_key : head / (s->n_value / s->n_key);
    size_t t = (size_t)pass->row0[i], n = channels(s), first = (size_t)(block * BLOCK);
    float *q = d->c + t * n + (size_t)(key * s->dim);
    float *v = d->c + t * n + 2 * key_len(s) + (size_t)(head * s->dim) + first;
    size_t gate = t * (size_t)s->n_value + (size_t)head;
    struct pi_vec_delta delta = {
        .state = matrix_of(pass, i, head) + first * (size_t)s->dim,
        .q = q,
        .k = q + key_len(s),
        .v = v,
        .decay = d->decay + gate,
        .beta = d->beta + gate,
        .kq = d->kq + t * (size_t)s->n_key + (size_t)key,
        .out = v,
        .qk_stride = n,
        .v_stride = n,
        .gate_stride = (size_t)s->n_value,
        .kq_stride = (size_t)s->n_key,
        .out_stride = n,
        .scale = 1.0f / sqrtf((float)s->dim),
        .dim = s->dim,
        .n = (int32_t)pi_min(ITEM_BLOCKS * BLOCK, s->dim - block * BLOCK),
        .n_tok = pass->items[i].n_tok,
    };
    pass->cpu->vec.delta(&delta);
}

static int64_t parts_of(const struct pi_delta_shape *s)
{
    return pi_ceil_div(s->dim, ITEM_BLOCKS * BLOCK);
}

/* Item index = (sequence * n_value + head) * parts of a matrix + part. */
static void turn_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_delta_shape *s = &pass->model->hp.delta;
    (void)thread;
    for (int64_t at = begin; at < end; at++) {
        int64_t lane = at / parts_of(s);
        turn_item(pass, (int32_t)(lane / s->n_value), (int32_t)(lane % s->n_value),
                  (int32_t)(at % parts_of(s)) * ITEM_BLOCKS);
    }
}

/* ---- the way out ---- */

static void out_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct pi_pass *pass = ctx;
    const struct pi_hparams *hp = &pass->model->hp;
    const struct pi_delta_shape *s = &hp->delta;
    const struct pi_layer *layer = pass->layer;
    int32_t n = (int32_t)value_len(s);
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *o = pass->delta.c + (size_t)t * channels(s) + 2 * key_len(s);
        float *z = pass->delta.z + t * n;
        for (int32_t h = 0; h < s->n_value; h++)
            pass->cpu->vec.rms_norm(o + h * s->dim, layer->delta_norm, o + h * s->dim, s->dim,
                                    hp->rms_eps);
        pass->cpu->vec.silu_mul(z, o, n);
        if (pi_matrix_reads_int8(&layer->w_delta_out))
            pi_pass_quantize(pass, z, t, n);
    }
}

/* ---- the block ---- */

static void project(struct pi_pass *pass)
{
    const struct pi_layer *w = pass->layer;
    struct pi_pass_delta *d = &pass->delta;
    if (w->w_mix_z.data != NULL)
        pi_pass_product(pass, pass->h, pass->n_tok, (const struct pi_matrix *const[]){&w->w_mix_z},
                        (float *const[]){d->c}, 1);
    else
        pi_pass_product(pass, pass->h, pass->n_tok,
                        (const struct pi_matrix *const[]){&w->w_mix, &w->w_z},
                        (float *const[]){d->u, d->z}, 2);
    if (w->w_beta_alpha.data != NULL)
        pi_pass_product(pass, pass->h, pass->n_tok,
                        (const struct pi_matrix *const[]){&w->w_beta_alpha},
                        (float *const[]){d->beta_alpha}, 1);
    else
        pi_pass_product(pass, pass->h, pass->n_tok,
                        (const struct pi_matrix *const[]){&w->w_beta, &w->w_alpha},
                        (float *const[]){d->beta, d->decay}, 2);
}

static void run(struct pi_pass *pass)
{
    const struct pi_delta_shape *s = &pass->model->hp.delta;
    int64_t n = (int64_t)channels(s), n_tok = pass->n_tok, n_item = pass->n_item;
    project(pass);
    pi_pass_rows(pass, in_rows, s->n_value);
    pi_parallel_items(pi_pass_threads_for(pass, n_tok * n * (s->n_conv + 10)),
                      n_item * pi_ceil_div(n, ITEM_CHANNELS), conv_items, pass);
    pi_pass_rows(pass, unit_rows, (int64_t)key_len(s) / 8);
    pi_parallel_items(pi_pass_threads_for(pass, n_tok * (int64_t)value_len(s) * s->dim),
                      n_item * s->n_value * parts_of(s), turn_items, pass);
    pi_pass_rows(pass, out_rows, (int64_t)value_len(s));
    pi_pass_product(pass, pass->delta.z, pass->n_tok,
                    (const struct pi_matrix *const[]){&pass->layer->w_delta_out},
                    (float *const[]){pass->h}, 1);
}

const struct pi_block pi_block_delta = {
    .name = "delta",
    .plan = plan,
    .scratch = scratch,
    .place = place,
    .run = run,
};
