/*
 * test_eval_stack.c - the table of everything that makes a cache cheaper: its configurations, each
 * row against perplexity measured alone, and its bytes counted from pages. Also its output as a
 * table, as CSV and in a report.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>

#include <eval.h>
#include <print.h>
#include <report.h>
#include <results.h>

#include "eval_read.h"

#define NANO PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define DEMO_TEXT PITH_SOURCE_DIR "/models/demo/prompt-2k.txt"
#define KEEP "streaming:slack=8,sinks=4"
#define N_CTX 256
#define N_CHUNK 2

static pith_model *nano;
static char *text;
static size_t text_len;

static void set_up(void)
{
    pith_model_params params;
    pith_model_params_default(&params);
    params.n_thread = 1;
    check(pith_model_load(NANO, &params, &nano, &err), &err);
    check(eval_read_file(DEMO_TEXT, &text, &text_len, &err), &err);
    make_folder();
}

static void tear_down(void)
{
    pith_model_free(nano);
    free(text);
    remove_folder();
}

TEST_GROUP(set_up, tear_down);

static struct eval_setup setup_of(const char *type_k, const char *type_v, const char *keep)
{
    struct eval_setup setup = {.model = nano};
    pith_engine_params_default(&setup.engine);
    setup.engine.n_thread = 1;
    setup.engine.page_len = 16;
    setup.engine.type_k = type_k;
    setup.engine.type_v = type_v;
    setup.engine.keep = keep;
    return setup;
}

static pith_status try_stack(const struct eval_setup *setup, const char *const *budgets,
                             int32_t n_budget, int32_t n_repeat, json_t **result, pith_error *why)
{
    const struct eval_stack_params params = {.text = text,
                                             .text_len = text_len,
                                             .n_ctx = N_CTX,
                                             .n_batch = 96,
                                             .n_chunk = N_CHUNK,
                                             .budgets = budgets,
                                             .n_budget = n_budget,
                                             .n_repeat = n_repeat};
    return eval_stack(setup, &params, result, why);
}

static json_t *stack(const struct eval_setup *setup, const char *const *budgets, int32_t n_budget)
{
    json_t *result = NULL;
    check(try_stack(setup, budgets, n_budget, 1, &result, &err), &err);
    return result;
}

/* Name and budget of every row; an expected name NULL ends the list. */
static void expect_rows(const json_t *result, const char *const expected[][2])
{
    size_t n = 0;
    for (; expected[n][0] != NULL; n++) {
        const char *budget = results_text(row_of(result, n), "budget");
        assert_string_equal(results_text(row_of(result, n), "config"), expected[n][0]);
        assert_true((budget == NULL) == (expected[n][1] == NULL));
        if (budget != NULL)
            assert_string_equal(budget, expected[n][1]);
    }
    assert_int_equal(json_array_size(json_object_get(result, "rows")), n);
    assert_int_equal(number(json_object_get(result, "summary"), "n"), n);
}

/* ---- configurations ---- */

TEST(lists_every_configuration)
{
    static const char *const budgets[] = {"64", "25%"};
    static const char *const store[][2] = {{"f16", NULL}, {"store", NULL}, {NULL}};
    static const char *const kept[][2] = {
        {"f16", NULL},   {"store", NULL},         {"keep", "64"}, {"store + keep", "64"},
        {"keep", "25%"}, {"store + keep", "25%"}, {NULL}};
    static const char *const own[][2] = {{"f16", NULL}, {"keep", NULL}, {NULL}};
    static const char *const reads[][2] = {
        {"f16", NULL}, {"store", NULL}, {"read", NULL}, {"store + read", NULL}, {NULL}};
    static const char *const all[][2] = {{"f16", NULL},
                                         {"store", NULL},
                                         {"read", NULL},
                                         {"keep", "64"},
                                         {"store + read + keep", "64"},
                                         {NULL}};
    struct eval_setup setup = setup_of("q8_0", "f16", NULL);
    json_t *result = stack(&setup, NULL, 0);
    expect_rows(result, store);
    json_decref(result);

    setup = setup_of("f16", "q8_0", KEEP);
    result = stack(&setup, budgets, 2);
    expect_rows(result, kept);
    json_decref(result);

    setup = setup_of("f16", "f16", "streaming:budget=64");
    result = stack(&setup, NULL, 0);
    expect_rows(result, own);
    json_decref(result);

    setup = setup_of("q8_0", "q8_0", NULL);
    setup.engine.read = "quoka:budget=32,chunk=32";
    result = stack(&setup, NULL, 0);
    expect_rows(result, reads);
    json_decref(result);

    setup.engine.keep = KEEP;
    result = stack(&setup, budgets, 1);
    expect_rows(result, all);
    json_decref(result);
}

TEST(refuses_what_it_cannot_compare)
{
    static const char *const budgets[] = {"64"};
    static const struct {
        const char *type, *keep, *recall;
        int32_t n_budget;
        int32_t n_repeat;
        const char *word;
    } cases[] = {
        {"f16", NULL, NULL, 0, 1, "nothing to compare"},
        {"q8_0", NULL, NULL, 1, 1, "no keep policy"},
        {"q8_0", "streaming:budget=32", NULL, 1, 1, "one of its own"},
        {"q8_0", KEEP, NULL, 1, 0, "repeats: 0"},
        {"q8_0", KEEP, "text", 1, 1, "asks none"},
        {"q8_0", "straming", NULL, 1, 1, "straming"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eval_setup setup = setup_of(cases[i].type, cases[i].type, cases[i].keep);
        json_t *result = NULL;
        err = (pith_error){0};
        setup.engine.recall = cases[i].recall;
        expect(try_stack(&setup, budgets, cases[i].n_budget, cases[i].n_repeat, &result, &err),
               &err, PITH_INVALID, cases[i].word);
        assert_null(result);
    }
}

/* ---- figures ---- */

/* The same configuration by `perplexity`, against the full cache of halves. */
static json_t *perplexity(const struct eval_setup *setup)
{
    json_t *result = NULL;
    const struct eval_perplexity_params params = {.text = text,
                                                  .text_len = text_len,
                                                  .n_ctx = N_CTX,
                                                  .n_batch = 96,
                                                  .n_chunk = N_CHUNK,
                                                  .paired = true,
                                                  .reference_type = "f16"};
    check(eval_perplexity(setup, &params, &result, &err), &err);
    return result;
}

/* A figure that is null in one must be null in the other. */
static void expect_same(const json_t *row, const char *key, const json_t *summary,
                        const char *other)
{
    const json_t *a = json_object_get(row, key), *b = json_object_get(summary, other);
    assert_non_null(a);
    assert_non_null(b);
    assert_true(json_is_null(a) == json_is_null(b));
    if (!json_is_null(a) && json_number_value(a) != json_number_value(b))
        fail_msg("%s is %.17g, and %s %.17g", key, json_number_value(a), other,
                 json_number_value(b));
}

TEST(each_row_is_what_perplexity_measures)
{
    static const char *const budgets[] = {"48"};
    static const struct {
        size_t row;
        const char *type_k, *type_v, *keep;
    } cases[] = {{1, "q8_0", "f16", NULL},
                 {2, "f16", "f16", KEEP ",budget=48"},
                 {3, "q8_0", "f16", KEEP ",budget=48"}};
    struct eval_setup setup = setup_of("q8_0", "f16", KEEP);
    json_t *result = stack(&setup, budgets, 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const json_t *row = row_of(result, cases[i].row);
        setup = setup_of(cases[i].type_k, cases[i].type_v, cases[i].keep);
        json_t *alone = perplexity(&setup);
        const json_t *summary = json_object_get(alone, "summary");
        const json_t *after = json_object_get(summary, "after_first_eviction");
        expect_same(row, "perplexity", summary, "perplexity");
        expect_same(row, "perplexity_se", summary, "perplexity_se");
        expect_same(row_of(result, 0), "perplexity", summary, "full_perplexity");
        expect_same(row, "diff", summary, "diff");
        expect_same(row, "diff_se", summary, "diff_se");
        expect_same(row, "diff_se_chunks", summary, "diff_se_chunks");
        expect_same(row, "ratio", summary, "ratio");
        expect_same(row, "kv_peak_bytes", summary, "kv_peak_bytes");
        expect_same(row, "evicted", summary, "evicted");
        if (cases[i].keep != NULL) {
            expect_same(row, "after_tokens", after, "tokens");
            expect_same(row, "after_perplexity", after, "perplexity");
            expect_same(row, "after_diff", after, "diff");
            expect_same(row, "after_diff_se", after, "diff_se");
            assert_true(number(row, "evicted") > 0 && number(row, "first_round_at") == 56);
        }
        json_decref(alone);
    }
    json_decref(result);
}

/* Whole pages of the full cache, and of a cache within a budget. */
TEST(counts_bytes_in_whole_pages)
{
    static const char *const budgets[] = {"48"};
    struct eval_setup setup = setup_of("q8_0", "q8_0", KEEP);
    pith_model_info info;
    pith_engine *engine = NULL;
    pith_kv_stats kv;
    pith_model_get_info(nano, &info);
    json_t *result = stack(&setup, budgets, 1);
    setup = setup_of("f16", "f16", NULL);
    setup.engine.kv_tokens = N_CTX;
    check(pith_engine_create(nano, &setup.engine, &engine, &err), &err);
    pith_engine_kv_stats(engine, &kv);
    pith_engine_free(engine);
    double page = (double)kv.page_bytes, lanes = (double)info.n_layer * info.n_head_kv;
    assert_true(number(row_of(result, 0), "kv_end_bytes") == lanes * page * N_CTX / 16);
    assert_true(number(row_of(result, 0), "kv_peak_bytes") == lanes * page * N_CTX / 16);
    assert_true(number(row_of(result, 0), "peak_fewer") == 1.0);
    assert_true(number(row_of(result, 0), "time_ratio") == 1.0);
    /* Rounds at 56, 64, .. leave 48 entries; the last of 256 tokens is one of them. */
    assert_true(number(row_of(result, 2), "kv_end_bytes") == lanes * page * 3);
    assert_true(number(row_of(result, 2), "end_fewer") == N_CTX / 16 / 3.0);
    assert_true(number(row_of(result, 2), "kv_peak_bytes") == lanes * page * 4);
    double both = number(row_of(result, 3), "end_fewer");
    assert_true(both == N_CTX / 16 / 3.0 * number(row_of(result, 1), "end_fewer"));
    assert_true(both > 1.7 * N_CTX / 16 / 3.0); /* q8_0 takes a little more than half of f16 */
    json_decref(result);
}

/* Everything but the clock is as in one reading. */
TEST(repeats_change_the_clock_alone)
{
    static const char *const clocks[] = {"seconds", "time_ratio", "cpu_seconds", "cpu_ratio"};
    static const char *const budgets[] = {"48"};
    const struct eval_setup setup = setup_of("q8_0", "q8_0", KEEP);
    json_t *once = stack(&setup, budgets, 1), *thrice = NULL;
    check(try_stack(&setup, budgets, 1, 3, &thrice, &err), &err);
    for (size_t i = 0; i < 4; i++) {
        json_t *a = json_array_get(json_object_get(once, "rows"), i);
        json_t *b = json_array_get(json_object_get(thrice, "rows"), i);
        for (size_t k = 0; k < 4; k++) {
            assert_true(number(b, clocks[k]) > 0.0);
            json_object_del(a, clocks[k]);
            json_object_del(b, clocks[k]);
        }
        assert_true(json_equal(a, b));
    }
    json_decref(once);
    json_decref(thrice);
}

/* A budget that no chunk reaches is the full cache bit for bit, and the note says so. */
TEST(a_budget_that_is_never_reached_is_the_full_cache)
{
    static const char *const budgets[] = {"1000"};
    const struct eval_setup setup = setup_of("f16", "f16", KEEP);
    json_t *result = stack(&setup, budgets, 1);
    const char *note = results_text(json_object_get(result, "summary"), "note");
    assert_true(number(row_of(result, 1), "diff") == 0.0);
    assert_true(number(row_of(result, 1), "diff_se") == 0.0);
    assert_true(number(row_of(result, 1), "after_tokens") == 0.0);
    assert_true(json_is_null(json_object_get(row_of(result, 1), "after_perplexity")));
    assert_non_null(strstr(note, "Nothing was evicted under \"keep\" at 1000"));
    json_decref(result);
}

/* ---- output ---- */

/* The table shows what fits, CSV and JSON have all; a report takes the result without a chart. */
TEST(prints_tables_csv_and_pages)
{
    static const char *const budgets[] = {"48"};
    const struct eval_setup setup = setup_of("q8_0", "q8_0", KEEP);
    struct eval_text table = {0}, csv = {0}, json = {0}, page = {0};
    json_t *result = stack(&setup, budgets, 1);
    eval_print_table(result, &table);
    eval_print_csv(result, &csv);
    eval_print_json(result, &json);
    assert_non_null(strstr(table.data, "time_ratio"));
    assert_null(strstr(table.data, "diff_se_chunks"));
    assert_non_null(strstr(csv.data, ",diff_se_chunks,"));
    assert_non_null(strstr(csv.data, "\r\nstore + keep,48,"));
    assert_non_null(strstr(json.data, "\"first_round_at\": 56"));
    assert_non_null(strstr(json.data, "\"type_k\": \"q8_0\""));
    const char *path = in_folder("stack.json");
    check(eval_write_file(path, &json, &err), &err);
    check(eval_report(&path, 1, &page, NULL, &err), &err);
    assert_non_null(strstr(page.data, "stack"));
    eval_text_free(&table);
    eval_text_free(&csv);
    eval_text_free(&json);
    eval_text_free(&page);
    json_decref(result);
}

TEST(writes_types_and_budgets_as_options)
{
    static const struct {
        const char *k, *v, *store;
    } cases[] = {{"f16", "f16", ""},
                 {NULL, NULL, ""},
                 {"q8_0", NULL, "q8_0/f16"},
                 {"f16", "turbo3", "f16/turbo3"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char store[32];
        const pith_engine_params p = {.type_k = cases[i].k, .type_v = cases[i].v};
        eval_store(&p, store, sizeof(store));
        assert_string_equal(store, cases[i].store);
    }
    char *bare = eval_add_budget("h2o", "10%"), *more = eval_add_budget("h2o:sinks=1", "64MiB");
    assert_string_equal(bare, "h2o:budget=10%");
    assert_string_equal(more, "h2o:sinks=1,budget=64MiB");
    free(bare);
    free(more);
}
