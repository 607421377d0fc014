/*
 * test_perplexity.c - perplexity and divergence: the final estimates of llama-perplexity
 * (golden/perplexity.txt, made by scripts/golden/perplexity.py). Every figure is compared with a
 * plain computation that reads one token after the other.
 */
#include <math.h>
#include <string.h>

#include "chunks.h"
#include "stories.h"
#include "testing.h"
#include "pith/policy.h"
#include "status.h"

#define GOLDEN PITH_SOURCE_DIR "/tests/golden/perplexity.txt"
#define NANO PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define DEMO_TEXT PITH_SOURCE_DIR "/models/demo/prompt-2k.txt"
#define POLICY "streaming:budget=32,slack=8,sinks=4"

static pith_model *nano;
static char *text; /* [text_len] of the demo */
static size_t text_len;
static char lacks[80]; /* data that a case was left out for; "": none */

static void expect_near(double value, double expected, double most)
{
    if (!(fabs(value - expected) <= most))
        fail_msg("%.12g is not within %g of %.12g", value, most, expected);
}

static pith_model *load(const char *path)
{
    pith_model *model = NULL;
    pith_model_params params;
    pith_model_params_default(&params);
    params.n_thread = 1;
    check(pith_model_load(path, &params, &model, &err), &err);
    return model;
}

/* One newline at the end is dropped, as the commands do. */
static char *read_text(const char *path, size_t most, size_t *len)
{
    char *out;
    check(eval_read_file(path, &out, len, &err), &err);
    if (most > 0 && *len > most)
        *len = most;
    if (*len > 0 && out[*len - 1] == '\n')
        --*len;
    return out;
}

static void set_up(void)
{
    nano = load(NANO);
    text = read_text(DEMO_TEXT, 0, &text_len);
}

static void tear_down(void)
{
    pith_model_free(nano);
    free(text);
}

TEST_GROUP(set_up, tear_down);

static struct eval_setup setup_of(const pith_model *model, const char *type, const char *keep)
{
    struct eval_setup setup = {.model = model};
    pith_engine_params_default(&setup.engine);
    setup.engine.n_thread = 1;
    setup.engine.type_k = type;
    setup.engine.type_v = type;
    setup.engine.keep = keep;
    return setup;
}

static json_t *measure(const struct eval_setup *setup, int32_t n_ctx, int32_t n_batch,
                       int32_t n_chunk, bool paired)
{
    json_t *result = NULL;
    const struct eval_perplexity_params params = {.text = text,
                                                  .text_len = text_len,
                                                  .n_ctx = n_ctx,
                                                  .n_batch = n_batch,
                                                  .n_chunk = n_chunk,
                                                  .paired = paired};
    check(eval_perplexity(setup, &params, &result, &err), &err);
    return result;
}

/* A figure of the summary; "outer/inner" looks within. NAN for null. */
static double figure(const json_t *result, const char *key)
{
    const json_t *o = json_object_get(result, "summary");
    const char *slash = strchr(key, '/');
    char outer[64];
    if (slash != NULL) {
        snprintf(outer, sizeof(outer), "%.*s", (int)(slash - key), key);
        o = json_object_get(o, outer);
        key = slash + 1;
    }
    const json_t *value = json_object_get(o, key);
    if (value == NULL)
        fail_msg("the summary has no \"%s\"", key);
    return json_is_null(value) ? (double)NAN : json_number_value(value);
}

static const char *note_of(const json_t *result)
{
    const char *note =
        json_string_value(json_object_get(json_object_get(result, "summary"), "note"));
    return note != NULL ? note : "";
}

/* ---- llama-perplexity ---- */

static bool open_case(const char *model, const char *file, int size, pith_model **out, char **part,
                      size_t *part_len)
{
    bool stories = strcmp(model, "stories260K") == 0;
    char path[512], shipped[512], name[80];
    snprintf(path, sizeof(path), PITH_SOURCE_DIR "/models/%s.gguf", model);
    snprintf(shipped, sizeof(shipped), PITH_SOURCE_DIR "/models/demo/%s", file);
    snprintf(name, sizeof(name), "text/%s", file);
    const char *text_path = access(shipped, R_OK) == 0 ? shipped : test_data_find(name);
    if (text_path == NULL || (stories && test_data_find("weights/stories260K.bin") == NULL)) {
        snprintf(lacks, sizeof(lacks), "%s", text_path == NULL ? name : "weights/stories260K.bin");
        return false;
    }
    *out = stories ? stories_load() : load(path);
    *part = read_text(text_path, (size_t)size, part_len);
    return true;
}

/* Four decimals, and a few parts in ten million for sums in another order. */
TEST(agrees_with_llama_perplexity)
{
    char line[256], name[64], file[64];
    int size, n_ctx, n_batch, n_chunk, n_row = 0, n_compared = 0;
    double ppl, error;
    FILE *golden = fopen(GOLDEN, "r");
    assert_non_null(golden);
    while (fgets(line, sizeof(line), golden) != NULL) {
        pith_model *model;
        json_t *result = NULL;
        struct eval_perplexity_params params = {0};
        char *part;
        if (line[0] == '#')
            continue;
        assert_int_equal(sscanf(line, "%63s %63s %d %d %d %d %lf %lf", name, file, &size, &n_ctx,
                                &n_batch, &n_chunk, &ppl, &error),
                         8);
        if (size > 0 && n_row++ % TEST_STRIDE != 0) /* a whole text is short */
            continue;
        if (!open_case(name, file, size, &model, &part, &params.text_len))
            continue;
        params.text = part;
        params.n_ctx = n_ctx;
        params.n_batch = n_batch;
        params.n_chunk = n_chunk;
        struct eval_setup setup = setup_of(model, "f32", NULL);
        check(eval_perplexity(&setup, &params, &result, &err), &err);
        expect_near(figure(result, "perplexity"), ppl, 1e-4 + 5e-7 * ppl);
        expect_near(figure(result, "perplexity_se"), error, 1e-4 + 5e-7 * error);
        json_decref(result);
        pith_model_free(model);
        free(part);
        n_compared++;
    }
    fclose(golden);
    assert_true(n_compared >= 2); /* the ones for the repository's model and text */
    if (lacks[0] != '\0')
        test_data(lacks);
}

/* ---- one token after the other ---- */

struct plain {
    double nll[8192];
    bool after[8192]; /* a round came before the token's position was read */
    int32_t n;
};

/* Reads n_chunk chunks of the demo and scores them as the protocol says, in double. */
static void read_plainly(const char *keep, int32_t n_ctx, int32_t n_chunk, struct plain *out)
{
    struct eval_setup setup = setup_of(nano, "f32", keep);
    struct eval_chunks chunks;
    pith_model_info info;
    pith_engine *engine;
    int32_t *tokens = malloc((size_t)n_ctx * sizeof(*tokens));
    assert_non_null(tokens);
    out->n = 0;
    pith_model_get_info(nano, &info);
    setup.engine.kv_tokens = n_ctx;
    check(eval_chunks_make(&setup, text, text_len, n_ctx, n_chunk, 1, &chunks, &err), &err);
    check(pith_engine_create(nano, &setup.engine, &engine, &err), &err);
    for (int32_t c = 0; c < n_chunk; c++) {
        pith_seq *seq;
        check(pith_seq_create(engine, &seq, &err), &err);
        eval_chunks_read(&chunks, c, tokens);
        for (int32_t p = 0; p < n_ctx - 1; p++) {
            pith_keep_stats stats;
            pith_seq_keep_stats(seq, &stats);
            bool after = stats.rounds > 0;
            check(pith_seq_eval(seq, &tokens[p], 1, &err), &err);
            if (p < n_ctx / 2)
                continue;
            const float *logits = pith_seq_logits(seq);
            double sum = 0.0;
            for (int32_t i = 0; i < info.n_vocab; i++)
                sum += exp((double)logits[i]);
            out->after[out->n] = after;
            out->nll[out->n++] = log(sum) - (double)logits[tokens[p + 1]];
        }
        pith_seq_free(seq);
    }
    pith_engine_free(engine);
    eval_chunks_free(&chunks);
    free(tokens);
}

TEST(agrees_with_reading_token_by_token)
{
    static struct plain plain;
    struct eval_setup setup = setup_of(nano, "f32", NULL);
    double sum = 0.0, sum2 = 0.0;
    read_plainly(NULL, 90, 6, &plain);
    assert_int_equal(plain.n, 6 * 44);
    for (int32_t i = 0; i < plain.n; i++) {
        sum += plain.nll[i];
        sum2 += plain.nll[i] * plain.nll[i];
    }
    double mean = sum / plain.n, se = sqrt((sum2 / plain.n - mean * mean) / (plain.n - 1));
    json_t *result = measure(&setup, 90, 90, 6, false);
    expect_near(figure(result, "nll"), mean, 1e-6);
    expect_near(figure(result, "nll_se"), se, 1e-6);
    expect_near(figure(result, "perplexity"), exp(mean), 1e-5);
    assert_int_equal(figure(result, "tokens"), plain.n);
    assert_int_equal(figure(result, "n"), 6);
    assert_int_equal(figure(result, "evicted"), 0);
    assert_string_equal(note_of(result), "Nothing was evicted: no keep policy was given.");
    assert_int_equal(json_array_size(json_object_get(result, "rows")), 6);
    json_decref(result);
}

/* The bits do not depend on how many tokens and sequences run at once. */
TEST(batches_change_no_bit)
{
    static const int32_t batches[] = {1, 7, 64, 96, 192, 200, 10000};
    static const char *const policies[] = {NULL, POLICY};
    for (size_t k = 0; k < 2; k++) {
        struct eval_setup setup = setup_of(nano, "f16", policies[k]);
        json_t *first = measure(&setup, 96, 96, 5, true);
        for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
            setup.engine.chunk = i % 2 == 0 ? 512 : 33;
            json_t *result = measure(&setup, 96, batches[i], 5, true);
            assert_true(
                json_equal(json_object_get(first, "rows"), json_object_get(result, "rows")));
            assert_true(figure(first, "diff_se") == figure(result, "diff_se"));
            assert_int_equal(figure(first, "evicted"), figure(result, "evicted"));
            json_decref(result);
        }
        json_decref(first);
    }
}

/* ---- policies ---- */

/* A policy that never comes to a round costs exactly nothing, and the result says why. */
TEST(says_that_nothing_was_evicted)
{
    struct eval_setup setup = setup_of(nano, "f16", "streaming:budget=128");
    json_t *result = measure(&setup, 128, 128, 4, true);
    assert_int_equal(figure(result, "evicted"), 0);
    assert_non_null(strstr(note_of(result), "Nothing was evicted: no chunk was long enough"));
    assert_true(figure(result, "diff") == 0.0);
    assert_true(figure(result, "diff_se") == 0.0);
    assert_true(figure(result, "ratio") == 1.0);
    assert_true(figure(result, "perplexity") == figure(result, "full_perplexity"));
    assert_int_equal(figure(result, "after_first_eviction/tokens"), 0);
    assert_true(isnan(figure(result, "after_first_eviction/diff")));
    json_decref(result);
}

TEST(differences_are_paired_by_token)
{
    static struct plain full, policy;
    struct eval_setup setup = setup_of(nano, "f32", NULL);
    double sum = 0.0, sum2 = 0.0, after = 0.0;
    int32_t n_after = 0;
    setup.engine.keep = "streaming:budget=64,slack=16,sinks=4"; /* a round at 80, one each 16 */
    read_plainly(NULL, 128, 5, &full);
    read_plainly(setup.engine.keep, 128, 5, &policy);
    for (int32_t i = 0; i < full.n; i++) {
        double d = policy.nll[i] - full.nll[i];
        sum += d;
        sum2 += d * d;
        after += policy.after[i] ? d : 0.0;
        n_after += policy.after[i];
    }
    assert_int_equal(n_after, 5 * (126 - 80 + 1)); /* positions 80 .. 126 */
    double mean = sum / full.n, se = sqrt((sum2 / full.n - mean * mean) / (full.n - 1));
    json_t *result = measure(&setup, 128, 100, 5, true);
    assert_true(fabs(mean) > 1e-4);
    expect_near(figure(result, "diff"), mean, 1e-6);
    expect_near(figure(result, "diff_se"), se, 1e-6);
    expect_near(figure(result, "ratio"), exp(mean), 1e-6);
    assert_int_equal(figure(result, "after_first_eviction/tokens"), n_after);
    expect_near(figure(result, "after_first_eviction/diff"), after / n_after, 1e-6);
    expect_near(log(figure(result, "perplexity") / figure(result, "full_perplexity")), mean, 1e-6);
    assert_true(figure(result, "evicted") > 0 && figure(result, "rounds") == 5 * 4);
    assert_string_equal(note_of(result), "");

    /* The chunks' own error: the spread of the means that the rows show. */
    const json_t *rows = json_object_get(result, "rows");
    struct eval_moments chunks = {0};
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        assert_int_equal(json_integer_value(json_object_get(row, "first_round_at")), 80);
        eval_moments_add(&chunks, json_number_value(json_object_get(row, "diff")));
    }
    expect_near(figure(result, "diff_se_chunks"), eval_moments_se(&chunks), 1e-12);
    json_decref(result);
}

/* The last round comes at the last token: nothing was scored behind it. */
TEST(counts_an_eviction_at_the_end)
{
    struct eval_setup setup = setup_of(nano, "f16", "streaming:budget=56,slack=8,sinks=4");
    json_t *result = measure(&setup, 64, 64, 3, true);
    assert_true(figure(result, "evicted") > 0);
    assert_int_equal(figure(result, "after_first_eviction/tokens"), 0);
    assert_string_equal(note_of(result),
                        "Entries were evicted, but only behind the last token that counts.");
    assert_true(figure(result, "diff") == 0.0);
    json_decref(result);
}

/* ---- divergence ---- */

static json_t *diverge(const struct eval_setup *setup, int32_t n_ctx, int32_t n_chunk,
                       const char *reference_type)
{
    json_t *result = NULL;
    const struct eval_divergence_params params = {.text = text,
                                                  .text_len = text_len,
                                                  .n_ctx = n_ctx,
                                                  .n_chunk = n_chunk,
                                                  .reference_type = reference_type};
    check(eval_divergence(setup, &params, &result, &err), &err);
    return result;
}

TEST(the_full_cache_does_not_diverge_from_itself)
{
    static const char *const policies[] = {NULL, "streaming:budget=100"};
    for (int i = 0; i < 2; i++) {
        struct eval_setup setup = setup_of(nano, "f16", policies[i]);
        json_t *result = diverge(&setup, 100, 3, NULL);
        assert_true(figure(result, "kl_mean") == 0.0 && figure(result, "kl_max") == 0.0);
        assert_true(figure(result, "kl_p99") == 0.0 && figure(result, "kl_se") == 0.0);
        assert_true(figure(result, "top1") == 1.0 && figure(result, "top5") == 1.0);
        assert_int_equal(figure(result, "tokens"), 300);
        assert_int_equal(figure(result, "evicted"), 0);
        assert_non_null(strstr(note_of(result), "Nothing was evicted"));
        if (policies[i] != NULL)
            assert_int_equal(figure(result, "after_first_eviction/tokens"), 0);
        json_decref(result);
    }
}

#define N_CTX 128

/* The logits of a chunk's positions, [N_CTX][n_vocab]; the caller frees. */
static float *logits_of(const char *keep, const char *type, const int32_t *tokens, int32_t n_vocab)
{
    struct eval_setup setup = setup_of(nano, type, keep);
    float *out = malloc((size_t)N_CTX * (size_t)n_vocab * sizeof(*out));
    pith_engine *engine;
    pith_seq *seq;
    assert_non_null(out);
    setup.engine.kv_tokens = N_CTX;
    check(pith_engine_create(nano, &setup.engine, &engine, &err), &err);
    check(pith_seq_create(engine, &seq, &err), &err);
    for (int32_t p = 0; p < N_CTX; p++) {
        check(pith_seq_eval(seq, &tokens[p], 1, &err), &err);
        memcpy(out + (size_t)p * (size_t)n_vocab, pith_seq_logits(seq),
               (size_t)n_vocab * sizeof(*out));
    }
    pith_seq_free(seq);
    pith_engine_free(engine);
    return out;
}

/* How many of the row are greater than logit i, or as great and before it. */
static int32_t rank_of(const float *row, int32_t n, int32_t i)
{
    int32_t rank = 0;
    for (int32_t j = 0; j < n; j++)
        rank += row[j] > row[i] || (row[j] == row[i] && j < i);
    return rank;
}

static double kl_of(const float *a, const float *b, int32_t n)
{
    double sum_a = 0.0, sum_b = 0.0, kl = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum_a += exp((double)a[i]);
        sum_b += exp((double)b[i]);
    }
    for (int32_t i = 0; i < n; i++) {
        double p = exp((double)a[i]) / sum_a, q = exp((double)b[i]) / sum_b;
        kl += p * log(p / q);
    }
    return kl;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Everything about one chunk against sums over whole rows. */
static void check_divergence(const char *keep, const char *type, const char *reference_type)
{
    struct eval_setup setup = setup_of(nano, type, keep);
    struct eval_chunks chunks;
    pith_model_info info;
    int32_t tokens[N_CTX];
    double kl[N_CTX], sum = 0.0, span = 0.0, top1 = 0.0, top5 = 0.0;
    pith_model_get_info(nano, &info);
    int32_t n = info.n_vocab;
    check(eval_chunks_make(&setup, text, text_len, N_CTX, 1, 1, &chunks, &err), &err);
    eval_chunks_read(&chunks, 0, tokens);
    float *full = logits_of(NULL, reference_type, tokens, n);
    float *other = logits_of(keep, type, tokens, n);
    for (int32_t p = 0; p < N_CTX; p++) {
        const float *a = full + (size_t)p * (size_t)n, *b = other + (size_t)p * (size_t)n;
        kl[p] = kl_of(a, b, n);
        sum += kl[p];
        span += p >= 7 * N_CTX / 8 ? kl[p] : 0.0;
        for (int32_t i = 0; i < n; i++) {
            int32_t rank = rank_of(a, n, i);
            if (rank < 5 && rank_of(b, n, i) < 5)
                top5 += 0.2;
            if (rank == 0 && rank_of(b, n, i) == 0)
                top1 += 1.0;
        }
    }
    json_t *result = diverge(&setup, N_CTX, 1, reference_type);
    const json_t *rows = json_object_get(result, "rows");
    qsort(kl, N_CTX, sizeof(kl[0]), compare_doubles);
    assert_true(sum > 0.0);
    expect_near(figure(result, "kl_mean"), sum / N_CTX, 1e-9);
    expect_near(figure(result, "kl_max"), kl[N_CTX - 1], 1e-9);
    expect_near(figure(result, "kl_median"), 0.5 * (kl[63] + kl[64]), 1e-9);
    expect_near(figure(result, "kl_p99"), kl[125] + 0.73 * (kl[126] - kl[125]), 1e-9);
    expect_near(figure(result, "top1"), top1 / N_CTX, 1e-6);
    expect_near(figure(result, "top5"), top5 / N_CTX, 1e-6);
    double p1 = top1 / N_CTX;
    expect_near(figure(result, "top1_se"), sqrt(p1 * (1.0 - p1) / (N_CTX - 1)), 1e-9);
    assert_int_equal(json_array_size(rows), 1 + 8);
    const json_t *last = json_array_get(rows, 8);
    assert_int_equal(json_integer_value(json_object_get(last, "from")), 7 * N_CTX / 8);
    expect_near(json_number_value(json_object_get(last, "kl_mean")), span / (N_CTX / 8), 1e-9);
    json_decref(result);
    free(full);
    free(other);
    eval_chunks_free(&chunks);
}

TEST(divergence_of_a_policy_agrees_with_plain_reading)
{
    check_divergence(POLICY, "f32", "f32");
}

TEST(divergence_of_a_storage_type_agrees_with_plain_reading)
{
    check_divergence(NULL, "q8_0", "f32");
}

/* Before the first round nothing differs; the figures behind it hold all of the divergence. */
TEST(divergence_begins_at_the_first_round)
{
    struct eval_setup setup = setup_of(nano, "f16", POLICY);
    json_t *result = diverge(&setup, 160, 4, NULL);
    const json_t *first = json_array_get(json_object_get(result, "rows"), 4);
    assert_true(json_number_value(json_object_get(first, "kl_max")) == 0.0); /* positions 0 .. 19 */
    double n_after = figure(result, "after_first_eviction/tokens");
    assert_int_equal(n_after, 4 * (160 - 40)); /* budget + slack = 40 */
    expect_near(figure(result, "after_first_eviction/kl_mean") * n_after,
                figure(result, "kl_mean") * figure(result, "tokens"), 1e-9);
    assert_true(figure(result, "after_first_eviction/top1") < figure(result, "top1"));
    json_decref(result);
}

/* ---- refusals ---- */

static void expect_invalid(struct eval_perplexity_params params, const char *word)
{
    struct eval_setup setup = setup_of(nano, "f16", NULL);
    json_t *result = NULL;
    params.text = text;
    assert_int_equal(eval_perplexity(&setup, &params, &result, &err), PITH_INVALID);
    if (strstr(err.message, word) == NULL)
        fail_msg("\"%s\" does not name %s", err.message, word);
    assert_null(result);
}

static bool never(void *user, double fraction, const char *what)
{
    (void)user;
    (void)fraction;
    (void)what;
    return false;
}

TEST(refuses_texts_and_chunks_that_are_too_short)
{
    struct eval_setup setup = setup_of(nano, "f16", NULL);
    struct eval_divergence_params params = {.text = text, .text_len = text_len, .n_ctx = 64};
    struct eval_perplexity_params same = {
        .text = text, .text_len = text_len, .n_ctx = 64, .n_batch = 64};
    json_t *result = NULL;
    expect_invalid((struct eval_perplexity_params){.text_len = text_len, .n_ctx = 3, .n_batch = 1},
                   "n_ctx: 3");
    expect_invalid((struct eval_perplexity_params){.text_len = text_len, .n_ctx = 64},
                   "n_batch: 0");
    expect_invalid((struct eval_perplexity_params){.text_len = 100, .n_ctx = 64, .n_batch = 64},
                   "chunk of 64");
    expect_invalid(
        (struct eval_perplexity_params){
            .text_len = text_len, .n_ctx = 64, .n_batch = 64, .n_chunk = -1},
        "n_chunk: -1");
    params.text_len = 0;
    assert_int_equal(eval_divergence(&setup, &params, &result, &err), PITH_INVALID);
    setup.progress = never;
    params.text_len = text_len;
    assert_int_equal(eval_divergence(&setup, &params, &result, &err), PITH_CANCELLED);
    assert_int_equal(eval_perplexity(&setup, &same, &result, &err), PITH_CANCELLED);
    setup.progress = NULL;
    setup.engine.keep = "streaming:budget=none";
    assert_int_equal(eval_divergence(&setup, &params, &result, &err), PITH_INVALID);
    assert_null(result);
}
