/*
 * Devices of GPU kind, on the emulation. Products of every weight type are compared with f64. The
 * device is compared with itself bit by bit: any number of tokens at a time, any cut of a prompt,
 * any company, forks. Files go both ways. Kernels run in the order of warps that EMU_ORDER names
 * (device/emulated/emu.h).
 *
 * Weights and activations are rounded to f16, by 2^-11 at most each. A sum of products of random
 * signs is then off by about 4e-4 of its length. F32 is multiplied as it is.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda.h"
#include "device/device.h"
#include "kv/kv.h"
#include "gpu_rig.h"
#include "near.h"
#include "pith/inspect.h"
#include "status.h"
#include "tensor/dtype.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define PRODUCT_BOUND 1e-3
#define FLOAT_BOUND 1e-6

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
    const int32_t chunks[] = {512, 17, 64}; /* under sanitizers all at once and small ones */
    const size_t n_chunk = TEST_STRIDE > 1 ? 2 : PI_LEN(chunks);
    int32_t ids[N_TOKEN];
    uint64_t hash[PI_LEN(chunks)];
    pith_model *model = load();
    pith_engine *host = engine_on(&pi_device_cpu, model, "q8_0", 512);
    pith_seq *exact = seq_make(host);
    make_text(ids);
    check(pith_seq_eval(exact, ids, N_TOKEN, &err), &err);
    for (size_t i = 0; i < n_chunk; i++) {
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
