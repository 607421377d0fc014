/*
 * bench_gpu.c - the two things that a pass spends its time with, on a device of GPU kind: products
 * of weights, and attention over pages. They are asked for by the device's table, as a pass asks.
 * Bounds are the device's own (pith_device_measure).
 *
 *   products   one matrix a call; calls go round copies that together exceed the caches
 *   attention  one token of each sequence, whose lanes are distinct pages; and prompts. Where the
 *              card has Hopper's products of warp groups, prompts go by these, too: with the same
 *              bits, or the program fails
 *   sampling   the best tokens of rows of logits, which come to the host
 *   step       tokens of a model in one launch each and by kernels one by one: times, and that the
 *              logits have the same bits, or the program fails
 *
 * usage: bench_gpu [options]; see --help
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "cpu/matmul_layout.h"
#include "device/gpu/device.h"
#include "engine/devices.h"
#include "kv/attend.h"
#include "rig.h"
#include "tensor/dtype.h"

#define COPIES_BYTES ((size_t)128 << 20)
#define MIN_SECONDS 0.05

struct options {
    const char *what; /* NULL: all */
    const char *device;
    const char *types; /* of weights and of pages; NULL: those that the tables have */
    const char *model; /* NULL: no step */
    struct option_ints tokens, sequences, depths, prompts;
    int32_t small; /* matrices and lanes are divided by it, to try the program */
};

static const struct option option_table[] = {
    RIG_TEXT("--what", "NAME", what, "all", "products, attention, sampling or step"),
    RIG_TEXT("--model", "FILE", model, "no step", "whose tokens go in one launch"),
    RIG_TEXT("--device", "NAME", device, "auto", "as the command takes it"),
    RIG_TEXT("--types", "NAMES", types, "some", "of weights and of pages: Q4_K,f16,..."),
    RIG_INTS("--tokens", tokens, 1, 1 << 14, "of a product"),
    RIG_INTS("--sequences", sequences, 1, 4096, "whose next tokens attend together"),
    RIG_INTS("--depths", depths, 64, 1 << 20, "entries of their lanes"),
    RIG_INTS("--prompts", prompts, 1, 1 << 14, "tokens of a prompt at those depths"),
    RIG_INT("--small", small, 1, 1024, "divides sizes, to try it"),
    {0},
};

static struct pi_device *device;
static struct pi_stream *stream;
static pith_machine machine;

/* Seconds of a call: of rounds of `n` calls, which the host does not wait for. */
static double seconds_of(void (*call)(void *ctx, int32_t i), void *ctx, int32_t n)
{
    double best = INFINITY, until = pi_time_s() + MIN_SECONDS;
    for (int32_t round = 0; round < 3 || pi_time_s() < until; round++) {
        device->wait(stream);
        double start = pi_time_s();
        for (int32_t i = 0; i < n; i++)
            call(ctx, i);
        device->wait(stream);
        best = fmin(best, (pi_time_s() - start) / n);
    }
    return best;
}

static struct pi_at room(size_t size)
{
    struct pi_at at = device->alloc(device, PI_MEM_OTHER, size);
    if (!pi_at_some(at))
        stop(&(pith_error){.message = "no memory of the device"});
    return at;
}

/* Random numbers there. */
static struct pi_at rows_there(size_t n)
{
    enum { STRETCH = 999983 };
    struct pi_at at = room(n * sizeof(float));
    float *x = memory(STRETCH * sizeof(float));
    fill_random(x, STRETCH, 3);
    for (size_t i = 0; i < n; i += STRETCH)
        device->upload(stream, x, (n - i < STRETCH ? n - i : STRETCH) * sizeof(float),
                       pi_at_item(at, i));
    pi_mem_free(x);
    return at;
}

/* ---- products ---- */

static const char *name_of(enum pi_dtype type)
{
    return pi_dtype_find((uint32_t)type)->name;
}

static const enum pi_dtype weight_types[] = {PI_DTYPE_Q4_K, PI_DTYPE_Q6_K, PI_DTYPE_Q8_0,
                                             PI_DTYPE_F16};
/* The matrices of Qwen3-8B. */
static const int32_t matrix_shapes[][2] = {
    {1024, 4096}, {4096, 4096}, {12288, 4096}, {4096, 12288}, {151936, 4096}};
enum { MOST_COPY = 64 };

struct products {
    struct pi_matrix host;
    struct pi_weight w[MOST_COPY]; /* [n_copy] */
    struct pi_at x, out;
    int32_t n_copy, n_tok;
};

/* One group of random codes with scales near 2^-8, over all groups. */
static struct pi_matrix random_matrix(enum pi_dtype type, int32_t n_row, int32_t n_col)
{
    const struct pi_matmul_layout *layout = pi_matmul_layout(type);
    size_t group = pi_matmul_group_bytes(type, n_col);
    struct pi_matrix w = {type, n_row, n_col, n_row / PI_GROUP, group, NULL};
    uint8_t *rows = memory(group), *to = rows;
    uint32_t seed = 1;
    for (size_t b = 0; b < (size_t)(n_col / layout->block_len) * PI_GROUP; b++) {
        for (int32_t i = 0; i < layout->block_bytes; i++)
            to[i] = (uint8_t)(random_u32(&seed) >> 24);
        for (int32_t i = 0; i < layout->n_half; i++)
            memcpy(to + layout->half_offset[i], &(uint16_t){0x1c00}, 2);
        if (layout->payload_bytes == 0) /* floats stay finite */
            to[layout->block_bytes - 1] = 0x1c;
        to += layout->block_bytes;
    }
    w.data = memory((size_t)w.n_group * group);
    pi_matmul_pack_group(type, n_col, rows, PI_GROUP, w.data);
    for (int32_t g = 1; g < w.n_group; g++)
        memcpy(w.data + (size_t)g * group, w.data, group);
    pi_mem_free(rows);
    return w;
}

static void pack_copies(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct products *p = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const struct pi_matrix *m = &p->host;
        p->w[i] = (struct pi_weight){m->type,    m->n_row,       m->n_col,
                                     m->n_group, m->group_bytes, device->pack(device, m, 1),
                                     true};
    }
}

static void multiply(void *ctx, int32_t i)
{
    const struct products *p = ctx;
    const struct pi_product call = {
        .x = p->x, .n_tok = p->n_tok, .n = 1, .w = {&p->w[i % p->n_copy]}, .out = {p->out}};
    device->product(stream, &call);
}

static void product_rows(const struct options *o, enum pi_dtype type, int32_t n_row, int32_t n_col)
{
    struct products p = {.host = random_matrix(type, n_row, n_col)};
    size_t bytes = (size_t)p.host.n_group * p.host.group_bytes, most = 1;
    for (int32_t i = 0; i < o->tokens.n; i++)
        most = (size_t)pi_max((int64_t)most, o->tokens.value[i]);
    p.n_copy = (int32_t)pi_min(MOST_COPY, (int64_t)((COPIES_BYTES - 1) / bytes + 1));
    pi_parallel_items(0, p.n_copy, pack_copies, &p);
    p.x = rows_there(most * (size_t)n_col);
    p.out = room(most * (size_t)n_row * sizeof(float));
    for (int32_t i = 0; i < o->tokens.n; i++) {
        p.n_tok = o->tokens.value[i];
        double flop = 2.0 * n_row * n_col * p.n_tok;
        double s = seconds_of(multiply, &p, o->small > 1 ? 1 : 2 * p.n_copy + 16);
        double bound =
            fmax((double)bytes / machine.read_bytes_per_s, flop / machine.f16_flop_per_s);
        printf("products,%s,%dx%d,%d,%.2f,%.1f,%.2f,%.2f,%.1f\n", name_of(type), n_row, n_col,
               p.n_tok, 1e6 * s, 1e-9 * (double)bytes / s, 1e-12 * flop / s, 1e6 * bound,
               100.0 * bound / s);
        fflush(stdout);
    }
    for (int32_t i = 0; i < p.n_copy; i++)
        device->unpack(device, p.w[i].data);
    device->free(device, p.x);
    device->free(device, p.out);
    pi_mem_free(p.host.data);
}

static void products(const struct options *o)
{
    for (size_t t = 0; t < PI_LEN(weight_types); t++)
        for (size_t i = 0;
             i < PI_LEN(matrix_shapes) && rig_wants(o->types, name_of(weight_types[t])); i++)
            product_rows(o, weight_types[t],
                         (int32_t)pi_align((size_t)(matrix_shapes[i][0] / o->small), PI_GROUP),
                         (int32_t)pi_align((size_t)(matrix_shapes[i][1] / o->small), 256));
}

/* ---- attention ---- */

enum { N_HEAD = 8, N_GROUP = 4, DIM = 128, PAGE = 64, PIECE = 4096, LATENT_GROUP = 16 };

static const enum kv_type page_types[] = {KV_TYPE_F16, KV_TYPE_Q8_0, KV_TYPE_TURBO3};

/* Heads of other sizes, which small models, Gemma and Phi-3 have, and pages that kernels decode in
   shared memory. DeepSeek-2 has one lane, whose values are the keys' dimensions from v_in_k on. */
struct form {
    enum kv_type type;
    int32_t dim, page_len;
    int32_t v_in_k; /* 0: values are apart */
};
static const struct form other_forms[] = {
    {KV_TYPE_F16, 64, PAGE, 0},     {KV_TYPE_Q8_0, 64, PAGE, 0},  {KV_TYPE_TURBO3, 64, PAGE, 0},
    {KV_TYPE_F16, 256, PAGE, 0},    {KV_TYPE_Q8_0, 256, PAGE, 0}, {KV_TYPE_F16, DIM, 16, 0},
    {KV_TYPE_Q8_0, DIM, 16, 0},     {KV_TYPE_TURBO3, DIM, 16, 0}, {KV_TYPE_Q4_0, DIM, PAGE, 0},
    {KV_TYPE_TURBO4, DIM, PAGE, 0}, {KV_TYPE_BF16, DIM, PAGE, 0}, {KV_TYPE_F32, DIM, PAGE, 0},
    {KV_TYPE_F16, 96, PAGE, 0},     {KV_TYPE_Q8_0, 96, PAGE, 0},  {KV_TYPE_F16, 576, PAGE, 64},
    {KV_TYPE_Q8_0, 576, PAGE, 64},  {KV_TYPE_F16, 512, PAGE, 0},
};

/* A sequence is n_head lanes; all are heads of one sequence of the cache. */
struct attention {
    struct kv_cache *cache;
    struct kv_seq *seq;
    struct pi_at q, out; /* [n_tok][n_lane * n_group][dim], and of dim_v */
    int32_t n_seq, depth, n_tok, dim, dim_v, n_head, n_group;
};

static void fill_lanes(struct attention *a)
{
    enum { STEP = 7919 };
    pith_error err = {0};
    size_t n = (size_t)PIECE * (size_t)a->dim;
    size_t n_lane = (size_t)a->n_seq * (size_t)a->n_head;
    float *rows = memory((n + n_lane * STEP) * sizeof(float));
    fill_random(rows, n + n_lane * STEP, 2);
    for (int32_t pos = 0; pos < a->depth; pos += PIECE) {
        int32_t now = (int32_t)pi_min(PIECE, a->depth - pos);
        check(kv_seq_reserve(a->seq, now, &err), &err);
        for (int32_t h = 0; h < (int32_t)n_lane; h++)
            kv_seq_append(a->seq, 0, h, pos, now, rows + (size_t)h * STEP, (size_t)a->dim,
                          rows + (size_t)h * STEP + DIM / 2, (size_t)a->dim_v);
    }
    pi_mem_free(rows);
}

static bool next_job(void *ctx, int64_t i, int32_t turn, int32_t thread, struct kv_attend_job *out)
{
    const struct attention *a = ctx;
    size_t n = (size_t)a->n_group, row = (size_t)(a->n_seq * a->n_head) * n;
    (void)thread;
    *out = (struct kv_attend_job){.seq = a->seq,
                                  .head = (int32_t)i,
                                  .n_tok = a->n_tok,
                                  .n_group = a->n_group,
                                  .pos0 = a->depth - a->n_tok,
                                  .q_at = pi_at_item(a->q, (size_t)i * n * (size_t)a->dim),
                                  .q_stride = row * (size_t)a->dim,
                                  .scale = 0.0884f,
                                  .out_at = pi_at_item(a->out, (size_t)i * n * (size_t)a->dim_v),
                                  .out_stride = row * (size_t)a->dim_v};
    return turn == 0;
}

static void attend(void *ctx, int32_t i)
{
    struct attention *a = ctx;
    int64_t n = (int64_t)a->n_seq * a->n_head;
    const struct kv_attend_list list = {.ctx = a,
                                        .n = n,
                                        .work = n * a->n_group * (a->dim + a->dim_v) * a->depth *
                                                a->n_tok,
                                        .job = next_job};
    (void)i;
    device->attend(stream, &list);
}

/* The last n_tok tokens of each sequence, together; returns the hash of the output. way: the way of
   reading, behind the type's name. */
static uint64_t attention_row(const struct options *o, struct attention *a, const struct form *form,
                              int32_t n_tok, const char *way)
{
    enum kv_type type = form->type;
    size_t n = (size_t)n_tok * (size_t)(a->n_seq * a->n_head * a->n_group) * (size_t)a->dim;
    double n_lane = (double)a->n_seq * a->n_head;
    double pairs = (double)n_tok * (a->depth - n_tok) + 0.5 * n_tok * (n_tok + 1.0);
    double flop = 2.0 * (a->dim + a->dim_v) * pairs * a->n_group * n_lane;
    double bytes = (form->v_in_k > 0 ? 1.0 : 2.0) * kv_type_bits(type, a->dim) / 8 * a->dim *
                   a->depth * n_lane;
    a->q = rows_there(n);
    a->out = room(n * sizeof(float));
    a->n_tok = n_tok;
    double s = seconds_of(attend, a, o->small > 1 ? 1 : n_tok > 1 ? 2 : 16);
    double bound = fmax(bytes / machine.read_bytes_per_s, flop / machine.f16_flop_per_s);
    char head[32] = "";
    if (a->dim != DIM)
        snprintf(head, sizeof(head), " of %d dimensions", (int)a->dim);
    else if (form->page_len != PAGE)
        snprintf(head, sizeof(head), " in pages of %d", (int)form->page_len);
    printf("attention,%s%s%s,%dx%d,%d,%.2f,%.1f,%.2f,%.2f,%.1f\n", kv_type_name(type), head, way,
           a->n_seq, a->depth, n_tok, 1e6 * s, 1e-9 * bytes / s, 1e-12 * flop / s, 1e6 * bound,
           100.0 * bound / s);
    fflush(stdout);
    n = n / (size_t)a->dim * (size_t)a->dim_v;
    float *out = memory(n * sizeof(float));
    device->download(stream, a->out, n * sizeof(float), out);
    const uint64_t hash = pith_logits_hash(out, (int32_t)n);
    pi_mem_free(out);
    device->free(device, a->q);
    device->free(device, a->out);
    return hash;
}

/* A prompt's attention. Where the card has Hopper's products of warp groups, also by these. Returns
   whether the outputs are the same. */
static bool attention_rows(const struct options *o, struct attention *a, const struct form *form,
                           int32_t n_tok)
{
    const bool can = gpu_device_wgmma(device, false);
    const uint64_t hash = attention_row(o, a, form, n_tok, "");
    if (a->dim != DIM || !can)
        return true;
    gpu_device_wgmma(device, true);
    const bool same = attention_row(o, a, form, n_tok, " by warp groups") == hash;
    gpu_device_wgmma(device, false);
    if (!same)
        fprintf(stderr, "bench_gpu: attention by warp groups gives other bits (%s, %d entries)\n",
                kv_type_name(form->type), (int)a->depth);
    return same;
}

static bool lanes(const struct options *o, const struct form *form, int32_t n_seq, int32_t depth)
{
    bool same = true;
    pith_error err = {0};
    bool latent = form->v_in_k > 0;
    struct attention a = {.n_seq = n_seq,
                          .depth = depth,
                          .dim = form->dim,
                          .dim_v = form->dim - form->v_in_k,
                          .n_head = latent ? 1 : N_HEAD,
                          .n_group = latent ? LATENT_GROUP : N_GROUP};
    struct kv_geometry g = lanes_shape(n_seq * a.n_head, form->dim, form->page_len, form->type);
    g.device = device;
    g.dim_v = a.dim_v;
    g.v_in_k = form->v_in_k;
    check(kv_cache_create(&g, kv_bytes_for_tokens(&g, depth), &a.cache, &err), &err);
    check(kv_seq_create(a.cache, &a.seq, &err), &err);
    fill_lanes(&a);
    attention_row(o, &a, form, 1, "");
    for (int32_t i = 0; i < o->prompts.n && n_seq == 1; i++)
        if (o->prompts.value[i] <= depth)
            same = attention_rows(o, &a, form, o->prompts.value[i]) && same;
    kv_seq_free(a.seq);
    kv_cache_free(a.cache);
    return same;
}

/* Whether all ways of a prompt have the same bits. */
static bool attention(const struct options *o)
{
    bool same = true;
    for (size_t t = 0; t < PI_LEN(page_types); t++)
        for (int32_t i = 0; i < o->sequences.n * o->depths.n; i++)
            if (rig_wants(o->types, kv_type_name(page_types[t]))) {
                const struct form form = {page_types[t], DIM, PAGE, 0};
                same = lanes(o, &form, o->sequences.value[i / o->depths.n],
                             o->depths.value[i % o->depths.n] / o->small) &&
                       same;
            }
    for (size_t i = 0; i < PI_LEN(other_forms); i++)
        if (rig_wants(o->types, kv_type_name(other_forms[i].type)))
            same = lanes(o, &other_forms[i], 1, 32768 / o->small) && same;
    return same;
}

/* ---- sampling ---- */

enum { N_VOCAB = 151936, MOST_ROW = 64 };

static void sample(void *ctx, int32_t i)
{
    (void)i;
    device->best(stream, ctx);
}

static void sampling(const struct options *o)
{
    static struct pi_best best[MOST_ROW];
    struct pi_best *out[MOST_ROW];
    struct pi_at keep[MOST_ROW];
    int32_t n = N_VOCAB / o->small;
    struct pi_at x = rows_there((size_t)MOST_ROW * (size_t)n);
    for (int32_t i = 0; i < MOST_ROW; i++) {
        out[i] = &best[i];
        keep[i] = room((size_t)n * sizeof(float));
    }
    for (int32_t i = 0; i < o->sequences.n; i++) {
        struct pi_best_rows rows = {x, keep, out, (int32_t)pi_min(o->sequences.value[i], MOST_ROW),
                                    n};
        double bytes = 2.0 * rows.n_row * n * sizeof(float); /* read, and copied */
        double s = seconds_of(sample, &rows, o->small > 1 ? 1 : 16);
        double bound = bytes / machine.read_bytes_per_s;
        printf("sampling,F32,%dx%d,1,%.2f,%.1f,,%.2f,%.1f\n", rows.n_row, n, 1e6 * s,
               1e-9 * bytes / s, 1e6 * bound, 100.0 * bound / s);
        fflush(stdout);
    }
    for (int32_t i = 0; i < MOST_ROW; i++)
        device->free(device, keep[i]);
    device->free(device, x);
}

/* ---- tokens in one launch ---- */

enum { N_WARM = 4, N_TIMED = 32, N_CHECKED = 8 };

/* Tokens one by one behind a prompt: us of one, and the hash of each one's logits of the last. */
static double run_tokens(const pith_model *model, int32_t depth, bool step,
                         uint64_t hash[N_CHECKED])
{
    pith_engine_params params;
    pith_engine *engine = NULL;
    pith_seq *seq = NULL;
    pith_model_info info;
    pith_error err;
    const int32_t n = depth + N_WARM + N_TIMED + N_CHECKED;
    int32_t *ids = memory((size_t)n * sizeof(*ids));
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * (int64_t)7919 + 13) % info.n_vocab);
    pith_engine_params_default(&params);
    params.kv_tokens = n + params.page_len;
    if (!gpu_device_step(device, step))
        rig_usage("--what step: this device has no such kernel");
    check(pith_engine_create(model, &params, &engine, &err), &err);
    check(pith_seq_create(engine, &seq, &err), &err);
    check(pith_seq_eval(seq, ids, depth, &err), &err);
    double start = 0;
    for (int32_t i = 0; i < N_WARM + N_TIMED; i++) {
        if (i == N_WARM)
            start = pi_time_s();
        check(pith_seq_eval(seq, ids + depth + i, 1, &err), &err);
        pith_logits_hash(pith_seq_logits(seq), i == 0 ? info.n_vocab : 1); /* waits for the row */
    }
    double us = (pi_time_s() - start) * 1e6 / N_TIMED;
    for (int32_t i = 0; i < N_CHECKED; i++) {
        check(pith_seq_eval(seq, ids + n - N_CHECKED + i, 1, &err), &err);
        hash[i] = pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
    }
    pith_seq_free(seq);
    pith_engine_free(engine);
    pi_mem_free(ids);
    return us;
}

/* The bound is that of reading the weights; pages are not in it. */
static bool steps(const struct options *o)
{
    pith_model_info info;
    pith_model *model = load_model(o->model, 0, &info);
    double bytes = generation_bytes(model), bound = 1e6 * bytes / machine.read_bytes_per_s;
    struct pi_device *was = pi_device_register(device);
    bool same = true;
    for (int32_t i = 0; i < o->depths.n; i++) {
        uint64_t hash[2][N_CHECKED];
        for (int32_t step = 0; step < 2; step++) {
            double us = run_tokens(model, o->depths.value[i], step == 1, hash[step]);
            printf("step,%s,%d,1,%.1f,%.1f,,%.1f,%.1f\n", step == 1 ? "one launch" : "kernels",
                   (int)o->depths.value[i], us, 1e-3 * bytes / us, bound, 100 * bound / us);
            fflush(stdout);
        }
        if (memcmp(hash[0], hash[1], sizeof(hash[0])) != 0) {
            fprintf(stderr, "bench_gpu: behind %d entries one launch gives other logits\n",
                    (int)o->depths.value[i]);
            same = false;
        }
    }
    pi_device_register(was);
    pith_model_free(model);
    return same;
}

int main(int argc, char **argv)
{
    struct options o = {.tokens = {{1, 8, 16, 64, 512, 2048}, 6},
                        .sequences = {{1, 8, 64}, 3},
                        .depths = {{4096, 32768}, 2},
                        .prompts = {{512, 2048}, 2},
                        .small = 1};
    const struct pi_stream_shape shape = {.n_thread = 1, .widest = 12288, .attend_size = 1};
    pith_error err = {0};
    bool same = true;
    rig_options(argc, argv, option_table, &o);
    check(pi_device_find(o.device, &device, &err), &err);
    check(pith_device_measure(o.device, 0, &machine, &err), &err);
    if (machine.f16_flop_per_s == 0)
        rig_usage("--device: it is no GPU");
    stream = device->open(device, &shape);
    printf("what,type,shape,tokens,us,GBps,TFLOPps,bound_us,of_bound_pct\n");
    printf("device,%s,read,,,%.1f,%.2f,,\n", device->name, 1e-9 * machine.read_bytes_per_s,
           1e-12 * machine.f16_flop_per_s);
    if (rig_wants(o.what, "products"))
        products(&o);
    if (rig_wants(o.what, "sampling"))
        sampling(&o);
    if (rig_wants(o.what, "attention"))
        same = attention(&o);
    device->close(stream);
    if (o.model != NULL && rig_wants(o.what, "step"))
        same = steps(&o) && same;
    return same ? 0 : 1;
}
