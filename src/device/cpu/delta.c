/*
 * delta.c - the gated delta net on the processor: splitting the projections, the convolution, the
 * recurrence and the output. model/delta.c has its formulas and the shapes of its state.
 */
#include <math.h>

#include "device/cpu/cpu.h"

#define BLOCK 16      /* columns of a matrix side by side */
#define ITEM_BLOCKS 4 /* that one work item turns */
#define ITEM_CHANNELS 256

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

/* ---- from the projections ---- */

/* Older files of Qwen3-Next have the rows of one key head together. First come its q and k, then v
   and z of the value heads that use it. */
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

/* beta and decay from the projections. They are few, and taken in double. */
static void gate_row(const struct pi_delta_rows *a, float *beta, float *decay)
{
    const float *dt = pi_cpu_floats(a->dt), *factor = pi_cpu_floats(a->a);
    for (int32_t h = 0; h < a->shape.n_value; h++) {
        double x = (double)decay[h] + (double)dt[h];
        double softplus = x > 20.0 ? x : log1p(exp(x));
        beta[h] = (float)(1.0 / (1.0 + exp(-(double)beta[h])));
        decay[h] = (float)exp((double)factor[h] * softplus);
    }
}

void cpu_delta_in_rows(const struct cpu_stream *stream, const void *args, int64_t begin,
                       int64_t end)
{
    const struct pi_delta_rows *a = args;
    const struct pi_delta_shape *s = &a->shape;
    const struct pi_delta_parts *d = &a->parts;
    (void)stream;
    for (int64_t t = begin; t < end; t++) {
        float *beta = pi_cpu_floats(d->beta) + t * s->n_value;
        float *decay = pi_cpu_floats(d->decay) + t * s->n_value;
        if (a->mixed)
            split_mix(s, pi_cpu_floats(d->c) + (size_t)t * (channels(s) + value_len(s)),
                      pi_cpu_floats(d->u) + (size_t)t * channels(s),
                      pi_cpu_floats(d->z) + (size_t)t * value_len(s));
        if (a->mixed_gates)
            split_gates(s, pi_cpu_floats(d->beta_alpha) + t * 2 * s->n_value, beta, decay);
        gate_row(a, beta, decay);
    }
}

/* ---- the convolution ---- */

/* The arguments that the items of both loops over sequences share. */
struct delta_job {
    const struct cpu_stream *s;
    const struct pi_delta_rows *d;
    const float *w; /* [mix][n_conv] */
    const struct pi_delta_item *items;
};

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
    const struct delta_job *job = ctx;
    const struct pi_delta_shape *s = &job->d->shape;
    size_t n = channels(s);
    int64_t n_part = pi_ceil_div((int64_t)n, ITEM_CHANNELS);
    (void)thread;
    for (int64_t at = begin; at < end; at++) {
        const struct pi_delta_item *item = &job->items[at / n_part];
        size_t first = (size_t)(at % n_part) * ITEM_CHANNELS, row = (size_t)item->row0 * n;
        float *past = pi_cpu_floats(item->past) + first;
        struct pi_vec_conv conv = {
            .w = job->w + first * (size_t)s->n_conv,
            .past = past,
            .x = pi_cpu_floats(job->d->parts.u) + row + first,
            .out = pi_cpu_floats(job->d->parts.c) + row + first,
            .past_stride = n,
            .x_stride = n,
            .out_stride = n,
            .n_tap = s->n_conv,
            .n = (int32_t)pi_min(ITEM_CHANNELS, (int64_t)(n - first)),
            .n_tok = item->n_tok,
        };
        job->s->cpu->vec.conv(&conv);
        move_past(&conv, past);
    }
}

static int64_t count_tokens(const struct pi_delta_item *items, int32_t n)
{
    int64_t n_tok = 0;
    for (int32_t i = 0; i < n; i++)
        n_tok += items[i].n_tok;
    return n_tok;
}

void cpu_delta_conv(struct pi_stream *stream, const struct pi_delta_rows *d, struct pi_at w,
                    const struct pi_delta_item *items, int32_t n_item)
{
    struct delta_job job = {cpu_stream_of(stream), d, pi_cpu_floats(w), items};
    int64_t n = (int64_t)channels(&d->shape), n_tok = count_tokens(items, n_item);
    cpu_items(job.s, cpu_threads_for(job.s, n_tok * n * (d->shape.n_conv + 10)),
              n_item * pi_ceil_div(n, ITEM_CHANNELS), conv_items, &job);
}

/* ---- the recurrence ---- */

void cpu_delta_unit_rows(const struct cpu_stream *stream, const void *args, int64_t begin,
                         int64_t end)
{
    const struct pi_delta_rows *a = args;
    const struct pi_delta_shape *s = &a->shape;
    float *kq = pi_cpu_floats(a->parts.kq);
    for (int64_t t = begin; t < end; t++)
        for (int32_t h = 0; h < s->n_key; h++) {
            float *q = pi_cpu_floats(a->parts.c) + (size_t)t * channels(s) + (size_t)(h * s->dim);
            float *k = q + key_len(s);
            stream->cpu->vec.unit(q, s->dim, a->eps);
            stream->cpu->vec.unit(k, s->dim, a->eps);
            kq[t * s->n_key + h] = stream->cpu->vec.product(k, q, s->dim);
        }
}

/* Some blocks of a head's matrix, over all tokens of an item. The output replaces the values. */
static void turn_item(const struct delta_job *job, const struct pi_delta_item *item, int32_t head,
                      int32_t block)
{
    const struct pi_delta_shape *s = &job->d->shape;
    const struct pi_delta_parts *d = &job->d->parts;
    int32_t key = s->tiled ? head % s->n_key : head / (s->n_value / s->n_key);
    size_t t = (size_t)item->row0, n = channels(s), first = (size_t)(block * BLOCK);
    float *q = pi_cpu_floats(d->c) + t * n + (size_t)(key * s->dim);
    float *v = pi_cpu_floats(d->c) + t * n + 2 * key_len(s) + (size_t)(head * s->dim) + first;
    size_t gate = t * (size_t)s->n_value + (size_t)head;
    struct pi_vec_delta delta = {
        .state =
            pi_cpu_floats(item->matrix) + (size_t)head * matrix_len(s) + first * (size_t)s->dim,
        .q = q,
        .k = q + key_len(s),
        .v = v,
        .decay = pi_cpu_floats(d->decay) + gate,
        .beta = pi_cpu_floats(d->beta) + gate,
        .kq = pi_cpu_floats(d->kq) + t * (size_t)s->n_key + (size_t)key,
        .out = v,
        .qk_stride = n,
        .v_stride = n,
        .gate_stride = (size_t)s->n_value,
        .kq_stride = (size_t)s->n_key,
        .out_stride = n,
        .scale = 1.0f / sqrtf((float)s->dim),
        .dim = s->dim,
        .n = (int32_t)pi_min(ITEM_BLOCKS * BLOCK, s->dim - block * BLOCK),
        .n_tok = item->n_tok,
    };
    job->s->cpu->vec.delta(&delta);
}

static int64_t parts_of(const struct pi_delta_shape *s)
{
    return pi_ceil_div(s->dim, ITEM_BLOCKS * BLOCK);
}

/* Item index = (sequence * n_value + head) * parts of a matrix + part. */
static void turn_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct delta_job *job = ctx;
    const struct pi_delta_shape *s = &job->d->shape;
    (void)thread;
    for (int64_t at = begin; at < end; at++) {
        int64_t lane = at / parts_of(s);
        turn_item(job, &job->items[lane / s->n_value], (int32_t)(lane % s->n_value),
                  (int32_t)(at % parts_of(s)) * ITEM_BLOCKS);
    }
}

void cpu_delta_turn(struct pi_stream *stream, const struct pi_delta_rows *d,
                    const struct pi_delta_item *items, int32_t n_item)
{
    struct delta_job job = {cpu_stream_of(stream), d, NULL, items};
    const struct pi_delta_shape *s = &d->shape;
    int64_t n_tok = count_tokens(items, n_item);
    cpu_items(job.s, cpu_threads_for(job.s, n_tok * (int64_t)value_len(s) * s->dim),
              n_item * (int64_t)s->n_value * parts_of(s), turn_items, &job);
}

/* ---- the way out ---- */

void cpu_delta_out_rows(const struct cpu_stream *stream, const void *args, int64_t begin,
                        int64_t end)
{
    const struct pi_delta_rows *a = args;
    const struct pi_delta_shape *s = &a->shape;
    const float *norm = pi_cpu_floats(a->norm);
    int32_t n = (int32_t)value_len(s);
    for (int64_t t = begin; t < end; t++) {
        float *o = pi_cpu_floats(a->parts.c) + (size_t)t * channels(s) + 2 * key_len(s);
        float *z = pi_cpu_floats(a->parts.z) + t * n;
        for (int32_t h = 0; h < s->n_value; h++)
            stream->cpu->vec.rms_norm(o + h * s->dim, norm, o + h * s->dim, s->dim, a->eps);
        stream->cpu->vec.silu_mul(z, o, n);
        cpu_quantize(stream, &a->act, z, t, n);
    }
}
