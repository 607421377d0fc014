/*
 * Devices of GPU kind, on the emulation. Products of every weight type and attention over every
 * storage type are compared with f64. The device is compared with itself bit by bit: any number of
 * tokens at a time, any cut of a prompt, any company, forks. Files go both ways. Kernels run
 * in the order of warps that EMU_ORDER names (device/emulated/emu.h).
 *
 * Weights and activations are rounded to f16, by 2^-11 at most each. A sum of products of random
 * signs is then off by about 4e-4 of its length. F32 is multiplied as it is. Attention rounds
 * queries, keys, values and weights likewise.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda.h"
#include "device/device.h"
#include "kv/attend.h"
#include "kv/kv.h"
#include "gpu_rig.h"
#include "pith/inspect.h"
#include "status.h"
#include "tensor/dtype.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define PRODUCT_BOUND 1e-3
#define FLOAT_BOUND 1e-6
#define ATTEND_BOUND 2e-3

TEST_GROUP(NULL, free_gpu);

/* Operations stand one behind the other, from alloc on to the end. */
TEST(no_operation_is_missing)
{
    size_t first = offsetof(struct pi_device, alloc);
    size_t n = (sizeof(struct pi_device) - first) / sizeof(void (*)(void));
    for (size_t i = 0; i < n; i++) {
        uintptr_t at;
        memcpy(&at, (const char *)gpu() + first + i * sizeof(at), sizeof(at));
        if (at == 0)
            fail_msg("operation %zu of %zu is missing", i, n);
    }
}

/* |a - ref| / |ref| */
static double relative_error(const float *a, const double *ref, size_t n)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        off += (a[i] - ref[i]) * (a[i] - ref[i]);
        all += ref[i] * ref[i];
    }
    return sqrt(off / all);
}

/* ---- products ---- */

enum { N_ROW = 40, MOST_COL = 512, MOST_TOK = 130 };

static const enum pi_dtype types[] = {
    PI_DTYPE_F32,  PI_DTYPE_F16,   PI_DTYPE_BF16,   PI_DTYPE_Q4_0,  PI_DTYPE_Q4_1, PI_DTYPE_Q5_0,
    PI_DTYPE_Q5_1, PI_DTYPE_Q8_0,  PI_DTYPE_Q2_K,   PI_DTYPE_Q3_K,  PI_DTYPE_Q4_K, PI_DTYPE_Q5_K,
    PI_DTYPE_Q6_K, PI_DTYPE_MXFP4, PI_DTYPE_IQ4_NL, PI_DTYPE_IQ4_XS};

/* Blocks of a type without an encoder: any codes, and scales near 2^-8. */
static void random_blocks(uint64_t *rng, const struct pi_dtype_traits *t, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i += (size_t)t->block_bytes) {
        for (int32_t j = 0; j < t->block_bytes; j++)
            out[i + (size_t)j] = (uint8_t)rng_next(rng);
        if (t->type == PI_DTYPE_MXFP4)
            out[i] = (uint8_t)(118 + rng_below(rng, 4));
        else
            out[i + 1] = (uint8_t)(0x1c + rng_below(rng, 4));
    }
}

/* N_ROW rows of random weights as files have them; the caller frees. */
static uint8_t *make_file_rows(enum pi_dtype type, int32_t n_col, uint64_t *rng)
{
    const struct pi_dtype_traits *t = pi_dtype_find((uint32_t)type);
    size_t row = pi_dtype_row_bytes(t, n_col);
    uint8_t *rows = pi_mem_alloc(PI_MEM_OTHER, N_ROW * row);
    float x[MOST_COL];
    for (int32_t r = 0; r < N_ROW; r++) {
        for (int32_t c = 0; c < n_col; c++)
            x[c] = 0.05f * rng_float(rng);
        if (t->encode != NULL)
            t->encode(x, rows + (size_t)r * row, n_col);
        else
            random_blocks(rng, t, rows + (size_t)r * row, row);
    }
    return rows;
}

/* A matrix of random weights, packed as the host has it. data: the caller frees. */
static struct pi_matrix make_matrix(enum pi_dtype type, int32_t n_col, uint64_t *rng)
{
    size_t row = pi_dtype_row_bytes(pi_dtype_find((uint32_t)type), n_col);
    uint8_t *rows = make_file_rows(type, n_col, rng);
    struct pi_matrix w = {
        type, N_ROW, n_col, (N_ROW + PI_GROUP - 1) / PI_GROUP, pi_matmul_group_bytes(type, n_col),
        NULL};
    w.data = pi_mem_alloc(PI_MEM_OTHER, (size_t)w.n_group * w.group_bytes);
    for (int32_t g = 0; g < w.n_group; g++)
        pi_matmul_pack_group(type, n_col, rows + (size_t)g * PI_GROUP * row,
                             (int32_t)pi_min(PI_GROUP, N_ROW - g * PI_GROUP),
                             w.data + (size_t)g * w.group_bytes);
    pi_mem_free(rows);
    return w;
}

/* out [n_tok][N_ROW] */
static void multiply(struct pi_stream *s, const struct pi_weight *w, struct pi_at x, int32_t first,
                     int32_t n_tok, struct pi_at y, float *out)
{
    const struct pi_product p = {.x = pi_at_item(x, (size_t)(first * w->n_col)),
                                 .n_tok = n_tok,
                                 .n = 1,
                                 .w = {w},
                                 .out = {y}};
    s->device->product(s, &p);
    s->device->download(s, y, (size_t)(n_tok * N_ROW) * sizeof(float), out);
}

/* Activations of very different sizes: each token has a scale of its own. */
static void make_rows(uint64_t *rng, int32_t n_col, float *x)
{
    for (int32_t t = 0; t < MOST_TOK; t++)
        for (int32_t c = 0; c < n_col; c++)
            x[t * n_col + c] = rng_float(rng) * ldexpf(1.0f, t % 37 - 18);
}

static void check_type(enum pi_dtype type, int32_t n_col)
{
    static float x[MOST_TOK * MOST_COL], all[MOST_TOK * N_ROW], some[MOST_TOK * N_ROW];
    static double ref[MOST_TOK * N_ROW];
    const int32_t n_toks[] = {1, 2, 8, 16, 64, MOST_TOK};
    struct pi_device *d = gpu();
    uint64_t rng = 7 + (uint64_t)type;
    struct pi_matrix w = make_matrix(type, n_col, &rng);
    const struct pi_stream_shape shape = {.n_thread = 1, .widest = MOST_COL};
    struct pi_stream *s = d->open(d, &shape);
    struct pi_at at = d->alloc(d, PI_MEM_OTHER, sizeof(x)),
                 y = d->alloc(d, PI_MEM_OTHER, sizeof(all));
    struct pi_weight packed = {w.type,        w.n_row,           w.n_col, w.n_group,
                               w.group_bytes, d->pack(d, &w, 1), true};
    make_rows(&rng, n_col, x);
    d->upload(s, x, sizeof(x), at);
    for (int32_t r = 0; r < N_ROW; r++) {
        float row[MOST_COL];
        pi_matmul_unpack_row(&w, r, row);
        for (int32_t t = 0; t < MOST_TOK; t++) {
            ref[t * N_ROW + r] = 0;
            for (int32_t c = 0; c < n_col; c++)
                ref[t * N_ROW + r] += (double)row[c] * (double)x[t * n_col + c];
        }
    }
    multiply(s, &packed, at, 0, MOST_TOK, y, all);
    for (int32_t t = 0; t < MOST_TOK; t++) {
        double error = relative_error(all + t * N_ROW, ref + t * N_ROW, N_ROW);
        if (!(error < (type == PI_DTYPE_F32 ? FLOAT_BOUND : PRODUCT_BOUND)))
            fail_msg("%s, %d columns, token %d: error %.2e", pi_dtype_find(type)->name, n_col, t,
                     error);
    }
    for (size_t i = 0; i < PI_LEN(n_toks); i++) {
        int32_t first = MOST_TOK - n_toks[i];
        multiply(s, &packed, at, first, n_toks[i], y, some);
        if (memcmp(some, all + first * N_ROW, (size_t)(n_toks[i] * N_ROW) * sizeof(float)) != 0)
            fail_msg("%s: %d tokens have other bits", pi_dtype_find(type)->name, n_toks[i]);
    }
    d->unpack(d, packed.data);
    d->free(d, at);
    d->free(d, y);
    d->close(s);
    pi_mem_free(w.data);
}

TEST(products_of_every_type_are_near_and_have_the_same_bits)
{
    for (size_t i = 0; i < PI_LEN(types); i += TEST_STRIDE)
        check_type(types[i], MOST_COL);
}

/* Columns that do not fill the last block of 256. */
TEST(products_of_odd_matrices)
{
    const enum pi_dtype odd[] = {PI_DTYPE_F32, PI_DTYPE_F16, PI_DTYPE_Q8_0, PI_DTYPE_Q5_1,
                                 PI_DTYPE_MXFP4};
    for (size_t i = 0; i < PI_LEN(odd); i++)
        check_type(odd[i], 288);
}

/* Three matrices of two types, at once and one by one, of rows that change in between. */
static void check_together(int32_t n_tok)
{
    static float x[MOST_TOK * MOST_COL], all[3][MOST_TOK * N_ROW], one[MOST_TOK * N_ROW];
    static float before[MOST_TOK * N_ROW];
    const enum pi_dtype type[] = {PI_DTYPE_Q4_K, PI_DTYPE_Q6_K, PI_DTYPE_Q4_K};
    struct pi_device *d = gpu();
    uint64_t rng = 5;
    struct pi_matrix w[3];
    struct pi_weight packed[3];
    const struct pi_stream_shape shape = {.n_thread = 1, .widest = MOST_COL};
    struct pi_stream *s = d->open(d, &shape);
    struct pi_at at = d->alloc(d, PI_MEM_OTHER, sizeof(x)),
                 y = d->alloc(d, PI_MEM_OTHER, sizeof(all));
    struct pi_product p = {.x = at, .n_tok = n_tok, .n = 3};
    for (int i = 0; i < 3; i++) {
        w[i] = make_matrix(type[i], MOST_COL, &rng);
        packed[i] =
            (struct pi_weight){w[i].type,        w[i].n_row,           w[i].n_col, w[i].n_group,
                               w[i].group_bytes, d->pack(d, &w[i], 1), true};
        p.w[i] = &packed[i];
        p.out[i] = pi_at_item(y, (size_t)(i * MOST_TOK * N_ROW));
    }
    make_rows(&rng, MOST_COL, x);
    for (int round = 0; round < 2; round++) {
        d->upload(s, x, sizeof(x), at);
        d->product(s, &p);
        d->download(s, y, sizeof(all), all);
        for (int i = 0; i < 3; i++) {
            multiply(s, &packed[i], at, 0, n_tok, y, one);
            assert_memory_equal(one, all[i], (size_t)(n_tok * N_ROW) * sizeof(float));
        }
        for (int32_t i = 0; round == 1 && i < n_tok * N_ROW; i++)
            assert_true(all[0][i] == -before[i]);
        memcpy(before, all[0], sizeof(before));
        for (size_t i = 0; i < PI_LEN(x); i++)
            x[i] = -x[i];
    }
    for (int i = 0; i < 3; i++) {
        d->unpack(d, packed[i].data);
        pi_mem_free(w[i].data);
    }
    d->free(d, at);
    d->free(d, y);
    d->close(s);
}

TEST(matrices_of_one_input_have_the_same_bits_together)
{
    check_together(3);
    check_together(33);
    check_together(MOST_TOK);
}

/* Rows of a file become the processor's floats. */
TEST(embeddings_of_every_type_have_the_processors_bits)
{
    const int32_t token[] = {3, 0, N_ROW - 1}, pos[] = {0, 1, 2};
    const struct pi_stream_shape shape = {.n_thread = 1, .widest = MOST_COL};
    struct pi_device *d = gpu();
    struct pi_stream *s = d->open(d, &shape);
    struct pi_at at = d->alloc(d, PI_MEM_OTHER, sizeof(pos));
    struct pi_at x = d->alloc(d, PI_MEM_OTHER, PI_LEN(token) * MOST_COL * sizeof(float));
    uint64_t rng = 11;
    d->upload(s, pos, sizeof(pos), at);
    for (size_t i = 0; i < PI_LEN(types); i++) {
        const struct pi_dtype_traits *t = pi_dtype_find((uint32_t)types[i]);
        uint8_t *rows = make_file_rows(types[i], MOST_COL, &rng);
        float want[MOST_COL], got[PI_LEN(token)][MOST_COL];
        const struct pi_embed_rows embed = {.embd = {.type = types[i], .n_col = MOST_COL},
                                            .file = rows,
                                            .pos = at,
                                            .tokens = token,
                                            .scale = 3,
                                            .x = x};
        d->rows(s, PI_ROWS_EMBED, &embed, PI_LEN(token), 1);
        d->download(s, x, sizeof(got), got);
        for (size_t r = 0; r < PI_LEN(token); r++) {
            t->decode(rows + (size_t)token[r] * pi_dtype_row_bytes(t, MOST_COL), want, MOST_COL);
            for (int32_t c = 0; c < MOST_COL; c++)
                if (got[r][c] != want[c] * 3)
                    fail_msg("%s, row %d, column %d: %g, not %g", t->name, token[r], c,
                             (double)got[r][c], (double)want[c] * 3);
        }
        pi_mem_free(rows);
    }
    d->free(d, at);
    d->free(d, x);
    d->close(s);
}

/* ---- attention ---- */

enum { MOST_LEN = 150, DIM = 64, MOST_DIM = 256, N_GROUP = 3, ATTEND_TOK = 45 };

/* A lane with entries of a type, on a device. */
struct rig {
    struct kv_cache *cache;
    struct kv_seq *seq;
    int32_t dim;
    float q[ATTEND_TOK * N_GROUP * MOST_DIM];
    float k[MOST_LEN * MOST_DIM], v[MOST_LEN * MOST_DIM];
    double k_read[MOST_LEN * MOST_DIM], v_read[MOST_LEN * MOST_DIM];
};

/* A lane's form. */
struct form {
    enum kv_type k, v;
    int32_t page_len, dim;
    bool beside; /* keys lie side by side */
};

static void rig_make(struct rig *r, struct pi_device *d, const struct form *form)
{
    const int32_t dim = form->dim;
    const struct kv_geometry g = {.n_layer = 1,
                                  .n_head = 1,
                                  .dim_k = dim,
                                  .dim_v = dim,
                                  .page_len = form->page_len,
                                  .type_k = form->k,
                                  .type_v = form->v,
                                  .index = form->beside ? 0 : KV_INDEX_ROWS,
                                  .device = d};
    uint64_t rng = 3;
    float row[MOST_DIM];
    r->dim = dim;
    check(kv_cache_create(&g, 1 << 20, &r->cache, &err), &err);
    check(kv_seq_create(r->cache, &r->seq, &err), &err);
    check(kv_seq_reserve(r->seq, MOST_LEN, &err), &err);
    for (size_t i = 0; i < PI_LEN(r->q); i++)
        r->q[i] = 2 * rng_float(&rng);
    for (size_t i = 0; i < PI_LEN(r->k); i++)
        r->k[i] = rng_float(&rng);
    for (size_t i = 0; i < PI_LEN(r->v); i++)
        r->v[i] = rng_float(&rng);
    for (int32_t at = 0, n; at < MOST_LEN; at += n) { /* in stretches */
        n = (int32_t)pi_min(37, MOST_LEN - at);
        kv_seq_append(r->seq, 0, 0, at, n, r->k + at * dim, dim, r->v + at * dim, dim);
    }
    for (int32_t s = 0; s < MOST_LEN; s++) {
        kv_lane_key(r->seq, 0, 0, s, row);
        for (int32_t i = 0; i < dim; i++)
            r->k_read[s * dim + i] = row[i];
        kv_lane_value(r->seq, 0, 0, s, row);
        for (int32_t i = 0; i < dim; i++)
            r->v_read[s * dim + i] = row[i];
    }
}

static void rig_open(struct rig *r, struct pi_device *d, enum kv_type k, enum kv_type v,
                     int32_t page_len)
{
    const struct form form = {.k = k, .v = v, .page_len = page_len, .dim = DIM};
    rig_make(r, d, &form);
}

static void rig_close(struct rig *r)
{
    kv_seq_free(r->seq);
    kv_cache_free(r->cache);
}

static struct kv_attend_job job_of(const struct rig *r, int32_t t, int32_t n_tok, float *out)
{
    return (struct kv_attend_job){.seq = r->seq,
                                  .n_tok = n_tok,
                                  .n_group = N_GROUP,
                                  .pos0 = MOST_LEN - ATTEND_TOK + t,
                                  .q = r->q + t * N_GROUP * r->dim,
                                  .q_stride = N_GROUP * r->dim,
                                  .scale = 0.125f,
                                  .out = out,
                                  .out_stride = N_GROUP * r->dim};
}

static void run_job(const struct rig *r, const struct kv_attend_job *job)
{
    void *scratch = pi_mem_alloc(
        PI_MEM_SCRATCH, kv_attend_scratch_bytes(kv_cache_geometry(r->cache), ATTEND_TOK * N_GROUP));
    kv_attend(job, scratch);
    pi_mem_free(scratch);
}

/* The exact output of a query, of the entries as they are stored. */
static void attend_exactly(const struct rig *r, const struct kv_attend_job *job, int32_t t,
                           int32_t g, double *out)
{
    const int32_t dim = r->dim;
    const float *q = job->q + (size_t)t * job->q_stride + (size_t)g * dim;
    double x[MOST_LEN], most = job->sink != NULL ? job->sink[g] : -INFINITY, sum;
    int32_t n = job->pos0 + t + 1;
    for (int32_t s = 0; s < n; s++) {
        x[s] = 0;
        for (int32_t i = 0; i < dim; i++)
            x[s] += q[i] * r->k_read[s * dim + i];
        x[s] *= job->scale;
        x[s] = job->cap > 0 ? job->cap * tanh(x[s] / job->cap) : x[s];
        most = fmax(most, x[s]);
    }
    sum = job->sink != NULL ? exp(job->sink[g] - most) : 0;
    memset(out, 0, (size_t)dim * sizeof(*out));
    for (int32_t s = 0; s < n; s++) {
        double p = exp(x[s] - most);
        sum += p;
        for (int32_t i = 0; i < dim; i++)
            out[i] += p * r->v_read[s * dim + i];
    }
    for (int32_t i = 0; i < dim; i++)
        out[i] /= sum;
}

enum { OUT_LEN = ATTEND_TOK * N_GROUP * MOST_DIM };

/* All tokens at a time: near exact; one by one, and over a list of all entries: the same bits. */
static void check_form(const struct form *form, float cap, const float *sink)
{
    static struct rig r;
    static float all[OUT_LEN], one[OUT_LEN];
    static double ref[OUT_LEN];
    int32_t slots[MOST_LEN];
    rig_make(&r, gpu(), form);
    const size_t n = (size_t)ATTEND_TOK * N_GROUP * (size_t)r.dim;
    struct kv_attend_job job = job_of(&r, 0, ATTEND_TOK, all);
    job.cap = cap;
    job.sink = sink;
    run_job(&r, &job);
    for (int32_t t = 0; t < ATTEND_TOK; t++)
        for (int32_t g = 0; g < N_GROUP; g++)
            attend_exactly(&r, &job, t, g, ref + (t * N_GROUP + g) * r.dim);
    double error = relative_error(all, ref, n);
    if (!(error < ATTEND_BOUND))
        fail_msg("%s, %s: error %.2e", kv_type_name(form->k), kv_type_name(form->v), error);
    for (int32_t t = 0; t < ATTEND_TOK; t++) {
        struct kv_attend_job single = job_of(&r, t, 1, one + t * N_GROUP * r.dim);
        single.cap = cap;
        single.sink = sink;
        run_job(&r, &single);
    }
    assert_memory_equal(one, all, n * sizeof(*all));
    enum { FIRST = 7, SOME = 5 }; /* 15 rows */
    struct kv_attend_job some = job_of(&r, FIRST, SOME, one);
    some.cap = cap;
    some.sink = sink;
    run_job(&r, &some);
    assert_memory_equal(one, all + FIRST * N_GROUP * r.dim,
                        (size_t)SOME * N_GROUP * (size_t)r.dim * sizeof(*all));
    for (int32_t i = 0; i < MOST_LEN; i++)
        slots[i] = i;
    job.slots = slots;
    job.n_slot = MOST_LEN;
    job.out = one;
    run_job(&r, &job);
    /* else tiles are other stretches of sums, or products of codes go in another order */
    bool codes = form->k == KV_TYPE_Q8_0 || form->k == KV_TYPE_TURBO3 || form->k == KV_TYPE_TURBO2;
    if (form->page_len == 64 && !(form->beside && codes))
        assert_memory_equal(one, all, n * sizeof(*all));
    assert_true(relative_error(one, ref, n) < ATTEND_BOUND);
    rig_close(&r);
}

static void check_attention(enum kv_type k, enum kv_type v, int32_t page_len, float cap,
                            const float *sink)
{
    const struct form form = {.k = k, .v = v, .page_len = page_len, .dim = DIM};
    check_form(&form, cap, sink);
}

TEST(attention_over_every_storage_type)
{
    for (int32_t t = 0; t < KV_N_TYPE; t++)
        check_attention((enum kv_type)t, (enum kv_type)((t * 3 + 1) % KV_N_TYPE), 64, 0, NULL);
}

/* The types and sizes of attend_few.cuh and attend_many.cuh, which take one token and all. A list of
   all entries goes through the general kernel. */
TEST(attention_of_frequent_forms_has_the_bits_of_the_general_kernel)
{
    const enum kv_type frequent[] = {KV_TYPE_F16, KV_TYPE_Q8_0, KV_TYPE_TURBO3, KV_TYPE_TURBO2};
    const float sink[N_GROUP] = {0.5f, -1.0f, 3.0f};
    const struct form small[] = {{KV_TYPE_F16, KV_TYPE_F16, 64, 64, true},
                                 {KV_TYPE_F16, KV_TYPE_F16, 64, 128, false},
                                 {KV_TYPE_Q8_0, KV_TYPE_Q8_0, 64, 64, true},
                                 {KV_TYPE_TURBO3, KV_TYPE_TURBO2, 64, 64, true},
                                 {KV_TYPE_F16, KV_TYPE_TURBO3, 64, 64, false},
                                 {KV_TYPE_F16, KV_TYPE_F16, 64, 256, true},
                                 {KV_TYPE_Q8_0, KV_TYPE_Q8_0, 64, 256, true},
                                 {KV_TYPE_TURBO3, KV_TYPE_TURBO3, 64, 256, true},
                                 {KV_TYPE_F16, KV_TYPE_F16, 64, 256, false}};
    for (size_t i = 0; i < PI_LEN(small); i++)
        check_form(&small[i], 0, NULL);
    for (size_t k = 0; k < PI_LEN(frequent); k++)
        for (size_t v = 0; v < PI_LEN(frequent); v++) {
            const struct form form = {frequent[k], frequent[v], 64, 128, true};
            check_form(&form, k == v ? 2.0f : 0, k == v ? sink : NULL);
        }
}

TEST(attention_with_small_pages_caps_and_sinks)
{
    const float sink[N_GROUP] = {0.5f, -1.0f, 3.0f};
    check_attention(KV_TYPE_F16, KV_TYPE_F16, 16, 0, NULL);
    check_attention(KV_TYPE_Q8_0, KV_TYPE_TURBO3, 32, 2.0f, sink);
}

/* A tap shows what the processor's does, and leaves the output's bits alone. */
TEST(watched_attention_has_the_same_bits)
{
    static struct rig r;
    static float out[OUT_LEN], watched[OUT_LEN], weight[ATTEND_TOK * N_GROUP * 160];
    float max[ATTEND_TOK * N_GROUP], sum[ATTEND_TOK * N_GROUP];
    struct kv_attend_tap tap = {.weight = weight, .row_stride = 160, .max = max, .sum = sum};
    rig_open(&r, gpu(), KV_TYPE_F16, KV_TYPE_F16, 64);
    struct kv_attend_job job = job_of(&r, 0, ATTEND_TOK, out);
    run_job(&r, &job);
    job.out = watched;
    job.tap = &tap;
    run_job(&r, &job);
    assert_memory_equal(out, watched, sizeof(out));
    for (int32_t i = 0; i < ATTEND_TOK * N_GROUP; i++) {
        double all = 0;
        for (int32_t s = 0; s < MOST_LEN; s++)
            all += weight[i * 160 + s];
        assert_true(fabs(all - 1) < 1e-4);
    }
    rig_close(&r);
}

/* ---- entries ---- */

/* Types without a search are encoded to the same bytes as on the processor; the others to codes
   as good. */
TEST(entries_are_stored_as_on_the_processor)
{
    static struct rig a, b;
    for (int32_t t = 0; t < KV_N_TYPE; t++) {
        enum kv_type type = (enum kv_type)t;
        double off = 0, all = 0;
        rig_open(&a, &pi_device_cpu, type, type, 32);
        rig_open(&b, gpu(), type, type, 32);
        if (!kv_type_is_rotated(type)) {
            assert_memory_equal(a.k_read, b.k_read, sizeof(a.k_read));
            assert_memory_equal(a.v_read, b.v_read, sizeof(a.v_read));
        }
        for (size_t i = 0; i < PI_LEN(a.k_read); i++) {
            off += (a.k_read[i] - b.k_read[i]) * (a.k_read[i] - b.k_read[i]);
            all += a.k_read[i] * a.k_read[i];
        }
        if (!(off <= 1e-4 * all))
            fail_msg("%s: %.2e of the keys is stored differently", kv_type_name(type), off / all);
        rig_close(&a);
        rig_close(&b);
    }
}

/* Keys that were compacted are those that stayed. */
TEST(compaction_moves_entries_as_stored)
{
    static struct rig r;
    int32_t slots[MOST_LEN], n = 0;
    float row[DIM];
    for (int32_t t = 0; t < KV_N_TYPE; t++) {
        rig_open(&r, gpu(), (enum kv_type)t, KV_TYPE_TURBO3, 16);
        n = 0;
        for (int32_t s = 0; s < MOST_LEN; s += 1 + (s * 7 + t) % 3)
            slots[n++] = s;
        check(kv_seq_compact(r.seq, 0, 0, slots, n, &err), &err);
        for (int32_t i = 0; i < n; i++) {
            kv_lane_key(r.seq, 0, 0, i, row);
            for (int32_t j = 0; j < DIM; j++)
                assert_true(row[j] == (float)r.k_read[slots[i] * DIM + j]);
            kv_lane_value(r.seq, 0, 0, i, row);
            for (int32_t j = 0; j < DIM; j++)
                assert_true(row[j] == (float)r.v_read[slots[i] * DIM + j]);
        }
        rig_close(&r);
    }
}

/* ---- an engine ---- */

enum { N_TOKEN = 90 };

static void make_text(int32_t *ids)
{
    for (int32_t i = 0; i < N_TOKEN; i++)
        ids[i] = (i * 7919 + 13) % 1000;
}

static pith_engine *engine_on(struct pi_device *d, const pith_model *model, const char *type,
                              int32_t chunk)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_engine_params_default(&params);
    params.kv_tokens = 1024;
    params.type_k = params.type_v = type;
    params.chunk = chunk;
    struct pi_device *was = pi_device_register(d);
    check(pith_engine_create(model, &params, &e, &err), &err);
    pi_device_register(was);
    return e;
}

static uint64_t hash_of(pith_seq *seq, const pith_model *model)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    return pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
}

static pith_model *load(void)
{
    pith_model *model;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    return model;
}

/* 1 - cosine of the logits of two sequences. */
static double distance(pith_seq *a, pith_seq *b, const pith_model *model)
{
    pith_model_info info;
    const float *x = pith_seq_logits(a), *y = pith_seq_logits(b);
    double xy = 0, xx = 0, yy = 0;
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < info.n_vocab; i++) {
        xy += (double)x[i] * y[i];
        xx += (double)x[i] * x[i];
        yy += (double)y[i] * y[i];
    }
    return 1 - xy / sqrt(xx * yy);
}

TEST(a_model_is_near_the_processor_and_cut_anyhow_the_same)
{
    const int32_t chunks[] = {512, 64, 17};
    int32_t ids[N_TOKEN];
    uint64_t hash[PI_LEN(chunks)];
    pith_model *model = load();
    pith_engine *host = engine_on(&pi_device_cpu, model, "q8_0", 512);
    pith_seq *exact = seq_make(host);
    make_text(ids);
    check(pith_seq_eval(exact, ids, N_TOKEN, &err), &err);
    for (size_t i = 0; i < PI_LEN(chunks); i++) {
        pith_engine *e = engine_on(gpu(), model, "q8_0", chunks[i]);
        pith_seq *seq = seq_make(e);
        check(pith_seq_eval(seq, ids, N_TOKEN, &err), &err);
        hash[i] = hash_of(seq, model);
        assert_true(distance(seq, exact, model) < 1e-4);
        pith_seq_free(seq);
        pith_engine_free(e);
        assert_true(hash[i] == hash[0]);
    }
    pith_seq_free(exact);
    pith_engine_free(host);
    pith_model_free(model);
}

/* Token by token, in company, and after a fork. */
TEST(company_and_forks_change_no_bit)
{
    int32_t ids[N_TOKEN];
    pith_model *model = load();
    pith_engine *e = engine_on(gpu(), model, "turbo3", 512);
    pith_seq *alone = seq_make(e), *a = seq_make(e), *b = seq_make(e), *fork = NULL;
    make_text(ids);
    check(pith_seq_eval(alone, ids, 40, &err), &err);
    uint64_t hash = hash_of(alone, model);
    const pith_batch_item items[] = {
        {.seq = a, .tokens = ids, .n_token = 40, .logits = PITH_LOGITS_LAST},
        {.seq = b, .tokens = ids + 20, .n_token = 33, .logits = PITH_LOGITS_LAST}};
    check(pith_batch_eval(e, items, 2, NULL, NULL, &err), &err);
    assert_true(hash_of(a, model) == hash);
    check(pith_seq_fork(a, &fork, &err), &err);
    for (int32_t i = 40; i < 44; i++) {
        const pith_batch_item next[] = {
            {.seq = fork, .tokens = ids + i, .n_token = 1, .logits = PITH_LOGITS_LAST},
            {.seq = b, .tokens = ids + i + 9, .n_token = 1, .logits = PITH_LOGITS_LAST}};
        check(pith_batch_eval(e, next, 2, NULL, NULL, &err), &err);
    }
    check(pith_seq_eval(alone, ids + 40, 4, &err), &err);
    assert_true(hash_of(fork, model) == hash_of(alone, model));
    pith_seq_free(fork);
    pith_seq_free(alone);
    pith_seq_free(a);
    pith_seq_free(b);
    pith_engine_free(e);
    pith_model_free(model);
}

/* A file of one device goes on on the other, near what that would have been. */
TEST(files_go_from_device_to_device)
{
    struct pi_device *const devices[] = {&pi_device_cpu, gpu()};
    int32_t ids[N_TOKEN];
    char path[64];
    pith_model *model = load();
    make_text(ids);
    for (int i = 0; i < 2; i++) {
        pith_engine *from = engine_on(devices[i], model, "q8_0", 512);
        pith_engine *to = engine_on(devices[1 - i], model, "q8_0", 512);
        pith_seq *first = seq_make(from), *second = NULL;
        snprintf(path, sizeof(path), "/tmp/test_gpu.%ld.%d", (long)getpid(), i);
        check(pith_seq_eval(first, ids, 70, &err), &err);
        check(pith_seq_save(first, path, &err), &err);
        check(pith_seq_load(to, path, &second, &err), &err);
        check(pith_seq_eval(first, ids + 70, 5, &err), &err);
        check(pith_seq_eval(second, ids + 70, 5, &err), &err);
        assert_true(distance(first, second, model) < 1e-4);
        pith_seq_free(first);
        pith_seq_free(second);
        pith_engine_free(from);
        pith_engine_free(to);
        unlink(path);
    }
    pith_model_free(model);
}

/* The device counts what it gives out, and gets all of it back. */
TEST(memory_comes_back)
{
    int64_t before = atomic_load(&gpu()->bytes);
    pith_model *model = load();
    pith_engine *e = engine_on(gpu(), model, "f16", 64);
    assert_true(atomic_load(&gpu()->bytes) > before);
    pith_engine_free(e);
    pith_model_free(model);
    assert_int_equal(atomic_load(&gpu()->bytes), before);
}

/* ---- memory that ends ---- */

TEST(when_memory_of_pages_ends_the_status_says_so_and_the_engine_goes_on)
{
    const int32_t tokens[] = {5, 9, 300, 41, 7, 12, 88, 130, 4, 99};
    if (getenv("PITH_TEST_DEVICE") != NULL && strcmp(gpu()->name, "emulated") != 0)
        test_skip("the emulation's memory can be limited");
    pith_model *model = load();
    pith_engine *e = engine_on(gpu(), model, "f16", 64);
    pith_seq *seq, *other;
    check(pith_seq_create(e, &seq, &err), &err);
    check(pith_seq_create(e, &other, &err), &err);
    assert_int_equal(pith_seq_eval(seq, tokens, 4, &err), PITH_OK);
    emulated_limit(emulated_given());
    assert_int_equal(pith_seq_eval(other, tokens, 10, &err), PITH_NOMEM);
    assert_non_null(strstr(err.message, "no memory"));
    assert_int_equal(pith_seq_length(other), 0);
    emulated_limit((size_t)1 << 30);
    assert_int_equal(pith_seq_eval(other, tokens, 10, &err), PITH_OK);
    assert_int_equal(pith_seq_eval(seq, tokens + 4, 6, &err), PITH_OK);
    assert_true(hash_of(seq, model) == hash_of(other, model));
    pith_seq_free(seq);
    pith_seq_free(other);
    pith_engine_free(e);
    pith_model_free(model);
}

TEST(a_card_that_fails_gives_every_call_a_status_from_then_on)
{
    const int32_t tokens[] = {5, 9, 300, 41};
    struct gpu_card *card = emulated_card();
    struct pi_device *d = gpu_device_make(card);
    assert_non_null(d);
    pith_model *model = load();
    pith_engine *e = engine_on(d, model, "f16", 64);
    pith_seq *seq;
    check(pith_seq_create(e, &seq, &err), &err);
    assert_int_equal(pith_seq_eval(seq, tokens, 3, &err), PITH_OK);
    card->failure = "it fell off the bus";
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pith_seq_eval(seq, tokens + 3, 1, &err), PITH_INTERNAL);
        assert_string_equal(err.message, "emulated: it fell off the bus");
        assert_int_equal(pith_seq_length(seq), 3);
    }
    pith_seq_free(seq);
    pith_engine_free(e);
    pith_model_free(model);
    gpu_device_free(d);
    card->failure = NULL;
}

/* ---- the real one ---- */

TEST(without_a_gpu_a_sentence_says_so)
{
    struct gpu_card *card = NULL;
    err = (pith_error){0};
    int32_t n = cuda_count(&err);
    if (n > 0)
        test_skip("there is a GPU");
    assert_true(strlen(err.message) > 10);
    assert_int_not_equal(cuda_open(0, &card, &err), PITH_OK);
    assert_null(card);
    cuda_close(card);
}
