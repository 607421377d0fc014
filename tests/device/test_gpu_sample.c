/*
 * The device finds the best tokens of rows of logits. They lead to the choices of whole rows.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "testing.h"

#include "engine/row.h"
#include "gpu_rig.h"
#include "pith/inspect.h"
#include "status.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

static struct pi_stream *stream;

static struct pi_device *sampler(void)
{
    const struct pi_stream_shape shape = {.n_thread = 1, .widest = 1024, .attend_size = 1};
    if (gpu()->best == NULL)
        test_skip("%s finds no best tokens", gpu()->name);
    if (stream == NULL)
        stream = gpu()->open(gpu(), &shape);
    return gpu();
}

static void free_all(void)
{
    if (stream != NULL)
        gpu()->close(stream);
    free_gpu();
}

TEST_GROUP(NULL, free_all);

/* ---- rows ---- */

enum { MOST_ROW = 16 };

struct rows {
    float *x; /* [n_row][n] of the host; owned, as the rest */
    int32_t n_row, n;
    struct pi_at at, keep[MOST_ROW];
    struct pi_best best[MOST_ROW];
};

static void rows_open(struct rows *r, int32_t n_row, int32_t n)
{
    *r = (struct rows){.n_row = n_row, .n = n};
    r->x = calloc((size_t)n_row * (size_t)n, sizeof(float));
    assert_non_null(r->x);
    r->at = sampler()->alloc(sampler(), PI_MEM_OTHER, (size_t)n_row * (size_t)n * sizeof(float));
    for (int32_t i = 0; i < n_row; i++)
        r->keep[i] = sampler()->alloc(sampler(), PI_MEM_OTHER, (size_t)n * sizeof(float));
}

static void rows_close(struct rows *r)
{
    sampler()->free(sampler(), r->at);
    for (int32_t i = 0; i < r->n_row; i++)
        sampler()->free(sampler(), r->keep[i]);
    free(r->x);
}

static void find(struct rows *r)
{
    struct pi_best *out[MOST_ROW];
    const struct pi_best_rows rows = {r->at, r->keep, out, r->n_row, r->n};
    for (int32_t i = 0; i < r->n_row; i++)
        out[i] = &r->best[i];
    sampler()->upload(stream, r->x, (size_t)r->n_row * (size_t)r->n * sizeof(float), r->at);
    sampler()->best(stream, &rows);
}

static const float *sorted; /* the row that by_order compares in */

static int by_order(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (sorted[i] != sorted[j])
        return sorted[i] > sorted[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* Row i: its copy, and its best by sorting all. */
static void expect_best(const struct rows *r, int32_t i)
{
    size_t size = (size_t)r->n * sizeof(float);
    const struct pi_best *best = &r->best[i];
    int32_t *id = malloc((size_t)r->n * sizeof(*id));
    float *copy = malloc(size);
    assert_true(id != NULL && copy != NULL);
    sorted = r->x + (size_t)i * (size_t)r->n;
    sampler()->download(stream, r->keep[i], size, copy);
    assert_memory_equal(copy, sorted, size);
    for (int32_t t = 0; t < r->n; t++)
        id[t] = t;
    qsort(id, (size_t)r->n, sizeof(*id), by_order);
    assert_int_equal(best->n, pi_min(r->n, PI_BEST));
    for (int32_t t = 0; t < best->n; t++) {
        assert_int_equal(best->id[t], id[t]);
        assert_memory_equal(&best->logit[t], &sorted[id[t]], sizeof(float));
    }
    free(id);
    free(copy);
}

/* Hardly any ties, many, all equal, zeros of both signs. */
static void fill(float *x, int32_t n, int32_t kind, uint64_t *rng)
{
    for (int32_t i = 0; i < n; i++) {
        float v = 10.0f * rng_float(rng);
        x[i] = kind % 4 == 0 ? v : kind % 4 == 1 ? floorf(v) : kind % 4 == 2 ? -3.5f : v * 0.0f;
    }
}

TEST(the_best_of_a_row_are_those_of_sorting_it)
{
    const int32_t sizes[] = {1, 127, 128, 129, 1024, 1025, 30011};
    uint64_t rng = 5;
    for (size_t s = 0; s < PI_LEN(sizes); s++) {
        struct rows r;
        rows_open(&r, 4, sizes[s]);
        for (int32_t i = 0; i < r.n_row; i++)
            fill(r.x + (size_t)i * (size_t)r.n, r.n, i, &rng);
        find(&r);
        for (int32_t i = 0; i < r.n_row; i++)
            expect_best(&r, i);
        rows_close(&r);
    }
}

TEST(a_row_that_is_not_finite_has_no_best)
{
    const float wrong[] = {NAN, INFINITY, -INFINITY};
    uint64_t rng = 6;
    struct rows r;
    rows_open(&r, 4, 3000);
    fill(r.x, 4 * r.n, 0, &rng);
    for (int32_t i = 0; i < 3; i++)
        r.x[i * r.n + 1500 + i] = wrong[i];
    find(&r);
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(r.best[i].n, 0);
    expect_best(&r, 3);
    rows_close(&r);
}

/* The best lie where 128 threads see nothing else. Then there may be too many to sort. */
TEST(a_row_that_is_made_for_it_is_refused_or_right)
{
    struct rows r;
    rows_open(&r, 2, 1024 * 20);
    for (int32_t i = 0; i < r.n; i++) {
        r.x[i] =
            i % 1024 < 128 ? 1.0f + (float)i : -(float)i; /* 2,560 are better than all others */
        r.x[r.n + i] = i % 1024 < 3 ? 1.0f + (float)i : -(float)i;
    }
    find(&r);
    if (r.best[0].n != 0)
        expect_best(&r, 0);
    expect_best(&r, 1);
    rows_close(&r);
}

/* ---- choices ---- */

enum { N_PROMPT = 30, N_NEXT = 12, N_SEQ = 3 };

static pith_engine *engine_on_gpu(const pith_model *model)
{
    pith_engine_params p;
    pith_engine *engine = NULL;
    struct pi_device *before = pi_device_register(sampler());
    pith_engine_params_default(&p);
    p.kv_tokens = 1024;
    p.n_thread = 1;
    check(pith_engine_create(model, &p, &engine, &err), &err);
    pi_device_register(before);
    return engine;
}

/* Continues by rows, which come to the host, with a sampler of its own. */
static void by_rows(pith_engine *e, const int32_t *prompt, const pith_sample_params *p,
                    int32_t *out)
{
    pith_model_info info;
    pith_sampler *sampler = NULL;
    pith_seq *seq = NULL;
    pith_model_get_info(pith_engine_model(e), &info);
    check(pith_sampler_create(p, info.n_vocab, &sampler, &err), &err);
    check(pith_seq_create(e, &seq, &err), &err);
    check(pith_seq_eval(seq, prompt, N_PROMPT, &err), &err);
    for (int32_t i = 0; i < N_PROMPT; i++)
        pith_sampler_accept(sampler, prompt[i]);
    for (int32_t i = 0; i < N_NEXT; i++) {
        out[i] = pith_sampler_sample(sampler, pith_seq_logits(seq));
        pith_sampler_accept(sampler, out[i]);
        check(pith_seq_eval(seq, &out[i], 1, &err), &err);
    }
    pith_seq_free(seq);
    pith_sampler_free(sampler);
}

TEST(generation_chooses_what_rows_would)
{
    const pith_sample_params cases[] = {
        {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1},
        {.temperature = 1.2f, .top_p = 1, .min_p = 0.1f, .repeat_penalty = 1, .seed = 3},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 4}, /* takes whole rows */
        {.temperature = 1,
         .top_k = 20,
         .top_p = 0.9f,
         .repeat_penalty = 1.3f,
         .presence_penalty = 0.2f,
         .penalty_last_n = 64,
         .seed = 5},
    };
    int32_t prompt[N_PROMPT], chosen[N_NEXT];
    pith_model *model = NULL;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_engine *e = engine_on_gpu(model);
    for (int32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = 40 + i * 7;
    for (size_t c = 0; c < PI_LEN(cases); c++) {
        pith_generate_params p;
        pith_seq *seq = NULL;
        pith_generate_params_default(&p);
        p.n_predict = N_NEXT;
        p.ignore_end = true;
        p.sample = cases[c];
        by_rows(e, prompt, &p.sample, chosen);
        check(pith_seq_create(e, &seq, &err), &err);
        check(pith_generate(seq, prompt, N_PROMPT, &p, NULL, NULL, NULL, &err), &err);
        assert_memory_equal(pith_seq_tokens(seq) + N_PROMPT, chosen,
                            (N_NEXT - 1) * sizeof(*chosen));
        pith_seq_free(seq);
    }
    pith_engine_free(e);
    pith_model_free(model);
}

/* The row stays with its sequence while others are evaluated, and a fork has it, too. */
TEST(a_row_is_there_when_it_is_asked_for)
{
    int32_t prompt[N_PROMPT];
    uint64_t hash[N_SEQ];
    pith_seq *seq[N_SEQ], *fork = NULL;
    pith_model_info info;
    pith_model *model = NULL;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    pith_engine *e = engine_on_gpu(model);
    for (int32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = 40 + i * 7;
    for (int32_t i = 0; i < N_SEQ; i++) { /* each alone, its row at once */
        check(pith_seq_create(e, &seq[i], &err), &err);
        check(pith_seq_eval(seq[i], prompt, N_PROMPT - i, &err), &err);
        hash[i] = pith_logits_hash(pith_seq_logits(seq[i]), info.n_vocab);
        check(pith_seq_truncate(seq[i], 0, &err), &err);
        assert_null(pith_seq_logits(seq[i]));
    }
    for (int32_t i = 0; i < N_SEQ; i++)
        check(pith_seq_eval(seq[i], prompt, N_PROMPT - i, &err), &err);
    for (int32_t i = 0; i < N_SEQ; i++)
        assert_non_null(pi_row_best(seq[i]));
    check(pith_seq_fork(seq[1], &fork, &err), &err);
    assert_null(pi_row_best(seq[1])); /* the row is here */
    assert_true(pith_logits_hash(pith_seq_logits(fork), info.n_vocab) == hash[1]);
    for (int32_t i = 0; i < N_SEQ; i++)
        assert_true(pith_logits_hash(pith_seq_logits(seq[i]), info.n_vocab) == hash[i]);
    pith_seq_free(fork);
    for (int32_t i = 0; i < N_SEQ; i++)
        pith_seq_free(seq[i]);
    pith_engine_free(e);
    pith_model_free(model);
}
