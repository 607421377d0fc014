/*
 * test_eval_share.c - the table of many requests in one KV memory: how rows and requests are made,
 * and the arithmetic between columns. Where nothing may change them, a row's figures equal the sums
 * over its requests alone. The table repeats.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>

#include <eval.h>
#include <print.h>
#include <results.h>
#include <share.h>

#include "folder.h"
#include "json_read.h"

#define NANO PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define N_REQUEST 6
#define N_PART 4
/* Thresholds that even random steps pass: pages are shared for any model. */
#define LOOSE "memshare:step=0.5,block=1000,relative=2"

static pith_model *nano;

static void set_up(void)
{
    pith_model_params params;
    pith_model_params_default(&params);
    params.n_thread = 1;
    check(pith_model_load(NANO, &params, &nano, &err), &err);
    make_folder();
}

static void tear_down(void)
{
    pith_model_free(nano);
    remove_folder();
}

TEST_GROUP(set_up, tear_down);

static struct eval_setup setup_of(int32_t n_thread)
{
    struct eval_setup setup = {.model = nano, .seed = 1};
    pith_engine_params_default(&setup.engine);
    setup.engine.n_thread = n_thread;
    return setup;
}

static struct eval_share_params params_of(const char *const *rows, int32_t n_row)
{
    return (struct eval_share_params){.n_request = N_REQUEST,
                                      .n_part = N_PART,
                                      .n_example = 1,
                                      .n_predict = 64,
                                      .fit = 0.5,
                                      .n_line = 1,
                                      .rows = rows,
                                      .n_row = n_row,
                                      .n_repeat = 1};
}

static json_t *measure(const struct eval_setup *setup, const struct eval_share_params *params)
{
    json_t *result = NULL;
    check(eval_share(setup, params, &result, &err), &err);
    return result;
}

static const json_t *row_of(const json_t *result, size_t i)
{
    return json_array_get(json_object_get(result, "rows"), i);
}

static void near(double value, double expected, double part)
{
    if (!(fabs(value - expected) <= part * fmax(1e-9, fabs(expected))))
        fail_msg("%.12g is not within %g of %.12g", value, part, expected);
}

/* ---- rows ---- */

TEST(reads_rows_from_texts)
{
    static const char *const texts[] = {"none", "prefix + page=32",
                                        "memshare:step=0.9 + streaming:budget=64 + reserve=0.25",
                                        "random", "random:share=0.5 + step=40"};
    struct share_rows rows;
    check(share_rows_parse(texts, 5, &rows, &err), &err);
    assert_int_equal(rows.n, 5);
    assert_null(rows.at[0].share);
    assert_null(rows.at[0].keep);
    assert_false(rows.at[0].prefix);
    assert_true(rows.at[0].reserve < 0.0);
    assert_true(rows.at[1].prefix);
    assert_int_equal(rows.at[1].page_len, 32);
    assert_string_equal(rows.at[2].share, "memshare:step=0.9");
    assert_string_equal(rows.at[2].keep, "streaming:budget=64");
    assert_true(rows.at[2].reserve == 0.25);
    assert_string_equal(rows.at[2].name, texts[2]);
    assert_int_equal(rows.at[3].match, 2);
    assert_int_equal(rows.at[4].match, -1);
    assert_int_equal(rows.at[4].step_tokens, 40);
    check(share_row_set_chance(&rows.at[3], 0.125, &err), &err);
    assert_string_equal(rows.at[3].share, "random:share=0.1250");
    assert_int_equal(rows.at[3].match, -1);
    share_rows_free(&rows);
}

static void expect_row(const char *text, const char *word)
{
    struct share_rows rows;
    expect(share_rows_parse(&text, 1, &rows, &err), &err, PITH_INVALID, word);
    share_rows_free(&rows);
}

TEST(refuses_bad_rows)
{
    expect_row("none + nonsense", "nonsense");
    expect_row("memshare:step=1.5", "step");
    expect_row("memshare:step=0.8 + memshare:step=0.9", "second policy that shares");
    expect_row("streaming:budget=64 + tova:budget=64", "second policy that keeps");
    expect_row("streaming:budget=0", "budget");
    expect_row("page=8", "page=8");
    expect_row("reserve=2", "reserve=2");
    expect_row("step=x", "step=x");
    expect_row("random", "random:share=X");
    expect_row("", "empty part");
    expect_row("nonsense", "no part of a row");
}

static void expect_bad(const struct eval_setup *setup, const struct eval_share_params *params,
                       const char *word)
{
    json_t *result = NULL;
    expect(eval_share(setup, params, &result, &err), &err, PITH_INVALID, word);
    assert_null(result);
}

TEST(refuses_bad_options)
{
    static const char *const rows[] = {"none"};
    struct eval_setup setup = setup_of(1);
    struct eval_share_params p = params_of(rows, 1);
    p.n_request = 1;
    expect_bad(&setup, &p, "requests = 1");
    p = params_of(rows, 1);
    p.n_part = 3;
    expect_bad(&setup, &p, "parts = 3");
    p = params_of(rows, 1);
    p.n_example = 65;
    expect_bad(&setup, &p, "examples = 65");
    p = params_of(rows, 1);
    p.n_predict = -1;
    expect_bad(&setup, &p, "-1");
    p = params_of(rows, 1);
    p.fit = 0.0;
    expect_bad(&setup, &p, "fit = 0");
    p.fit = 1.5;
    expect_bad(&setup, &p, "fit = 1.5");
    p = params_of(rows, 1);
    p.answers = EVAL_SHARE_VERBATIM;
    p.n_line = 65;
    expect_bad(&setup, &p, "lines = 65");
    p = params_of(rows, 1);
    p.n_repeat = 0;
    expect_bad(&setup, &p, "repeats = 0");
    p = params_of(rows, 1);
    setup.engine.keep = "streaming:budget=64";
    expect_bad(&setup, &p, "streaming:budget=64");
    setup = setup_of(1);
    setup.engine.recall = "text";
    expect_bad(&setup, &p, "recall");
}

/* ---- requests ---- */

TEST(requests_begin_alike_and_ask_different_things)
{
    struct eval_setup setup = setup_of(1);
    struct eval_share_params p = params_of(NULL, 0);
    struct share_items items;
    check(share_items_make(&setup, &p, &items, &err), &err);
    assert_int_equal(items.n, N_REQUEST);
    assert_true(items.n_head > 100); /* the example, which is as long as a prompt and its answer */
    for (int32_t i = 0; i < items.n; i++) {
        assert_memory_equal(items.at[i].ids, items.at[0].ids,
                            (size_t)items.n_head * sizeof(int32_t));
        assert_int_equal(items.at[i].n_predict, 64);
        assert_null(items.at[i].forced);
        assert_true(items.at[i].n_id > items.n_head);
    }
    share_items_free(&items);
    p.n_predict = 0;
    p.n_example = 0;
    check(share_items_make(&setup, &p, &items, &err), &err);
    assert_true(items.n_head < 20);
    assert_int_equal(items.at[2].n_predict, items.at[2].n_right + items.at[2].n_right / 4 + 8);
    share_items_free(&items);
}

/* Answers that are given are, token by token, the text that they are made of. */
TEST(given_answers_are_the_texts_tokens)
{
    struct eval_setup setup = setup_of(1);
    struct eval_share_params p = params_of(NULL, 0);
    struct share_items items;
    char text[4096];
    size_t len;
    for (int kind = EVAL_SHARE_RIGHT; kind <= EVAL_SHARE_VERBATIM; kind++) {
        p.answers = (enum eval_share_answers)kind;
        p.n_part = 20;
        check(share_items_make(&setup, &p, &items, &err), &err);
        for (int32_t i = 0; i < items.n; i++) {
            const struct share_item *item = &items.at[i];
            check(pith_detokenize(nano, item->forced, item->n_right, false, text, sizeof(text),
                                  &len, &err),
                  &err);
            assert_int_equal(len, strlen(item->prompt.refs.at[0]));
            assert_memory_equal(text, item->prompt.refs.at[0], len);
        }
        share_items_free(&items);
    }
}

/* Of 20 steps drawn from 10 kinds at least 10 are repetitions, letter by letter. */
TEST(verbatim_answers_repeat_whole_steps)
{
    struct eval_setup setup = setup_of(1);
    struct eval_share_params p = params_of(NULL, 0);
    struct share_items items;
    p.answers = EVAL_SHARE_VERBATIM;
    p.n_part = 20;
    p.n_line = 2;
    check(share_items_make(&setup, &p, &items, &err), &err);
    const char *text = items.at[0].prompt.refs.at[0];
    int32_t n = 0, n_again = 0;
    for (const char *step = text; *step != '\0';) {
        const char *end = strstr(step, "\n\n");
        assert_non_null(end);
        size_t len = (size_t)(end + 2 - step);
        bool again = false;
        for (const char *was = text; was < step && !again;) {
            again = strncmp(was, step, len) == 0;
            was = strstr(was, "\n\n") + 2;
        }
        n++;
        n_again += again;
        step += len;
    }
    assert_int_equal(n, 20);
    assert_true(n_again >= 10);
    share_items_free(&items);
}

TEST(memory_is_counted_from_pages)
{
    struct eval_setup setup = setup_of(1);
    struct eval_share_params p = params_of(NULL, 0);
    struct share_items items;
    int64_t bytes, one, sum = 0, most = 0;
    check(share_items_make(&setup, &p, &items, &err), &err);
    setup.engine.page_len = 16;
    for (int32_t i = 0; i < items.n; i++) {
        const struct share_item *item = &items.at[i];
        check(pith_kv_estimate(nano, &setup.engine, item->n_id + item->n_right, &one, &err), &err);
        sum += one;
        check(pith_kv_estimate(nano, &setup.engine, item->n_id + item->n_predict, &one, &err),
              &err);
        most = one > most ? one : most;
    }
    check(share_items_memory(&items, &setup, 16, 0.5, &bytes, &err), &err);
    assert_int_equal(bytes, sum / 2);
    check(share_items_memory(&items, &setup, 16, 0.01, &bytes, &err), &err);
    assert_int_equal(bytes, most);   /* the largest request must fit */
    setup.engine.share = "memshare"; /* of a row; the memory is measured without it */
    check(share_items_memory(&items, &setup, 16, 0.5, &bytes, &err), &err);
    assert_int_equal(bytes, sum / 2);
    share_items_free(&items);
}

/* ---- the table ---- */

static void expect_columns(const json_t *result, size_t i)
{
    const json_t *row = row_of(result, i), *first = row_of(result, 0);
    const json_t *summary = json_object_get(result, "summary");
    double affected = number(row, "affected"), ratio = number(row, "ratio");
    double prompts = number(summary, "prompt_tokens");
    double generated = number(row, "tokens_per_s") * number(row, "seconds");
    near(number(row, "total_per_s") * number(row, "seconds"), generated + prompts, 1e-9);
    near(affected, number(row, "tokens_shared") / (prompts + generated), 1e-9);
    near(ratio, number(row, "tokens_per_s") / number(first, "tokens_per_s"), 1e-9);
    near(number(row, "running_ratio"), number(row, "running") / number(first, "running"), 1e-9);
    if (json_is_null(json_object_get(row, "share"))) {
        assert_true(json_is_null(json_object_get(row, "bound")));
        assert_true(affected == 0.0);
    } else {
        near(number(row, "bound"), 1.0 / (1.0 - affected), 1e-9);
        near(number(row, "of_bound"), ratio / number(row, "bound"), 1e-9);
    }
    near(number(row, "room"),
         number(first, "kv_mean_bytes") / number(first, "running") /
             (number(row, "kv_mean_bytes") / number(row, "running")),
         1e-9);
    assert_true(number(row, "kv_peak_bytes") <= number(summary, "kv_bytes"));
    assert_true(number(row, "kv_mean_bytes") <= number(row, "kv_peak_bytes"));
    assert_true(number(row, "low") <= number(row, "accuracy"));
    assert_true(number(row, "accuracy") <= number(row, "high"));
    assert_true(number(row, "running") <= number(row, "peak_running") + 1e-9);
    assert_true(number(row, "dead") >= 0.0 && number(row, "dead") < 1.0);
    assert_true(number(row, "schedule_part") >= 0.0 && number(row, "share_part") >= 0.0);
    assert_true(number(row, "steps_similar") <= number(row, "steps_compared"));
    assert_true(number(row, "steps_compared") <= number(row, "steps_closed"));
}

static const char *const all_rows[] = {"none", "prefix", LOOSE, "random",
                                       "prefix + " LOOSE " + streaming:budget=96"};
#define N_ROW 5

/* The columns of a row that repeat exactly. */
static const char *const exact[] = {"affected",      "peak_running", "kv_peak_bytes", "preempted",
                                    "cached_tokens", "evicted",      "steps_closed",  "accuracy",
                                    "pages_shared",  "same",         "steps_compared"};

static void expect_same(const json_t *a, const json_t *b)
{
    for (size_t i = 0; i < N_ROW; i++)
        for (size_t k = 0; k < sizeof(exact) / sizeof(exact[0]); k++)
            if (!json_equal(json_object_get(row_of(a, i), exact[k]),
                            json_object_get(row_of(b, i), exact[k])))
                fail_msg("row %zu: \"%s\" differs", i, exact[k]);
}

TEST(the_columns_of_the_table_agree)
{
    struct eval_setup setup = setup_of(1);
    struct eval_share_params p = params_of(all_rows, N_ROW);
    json_t *result = measure(&setup, &p);
    assert_string_equal(results_text(result, "task"), "share");
    assert_int_equal(json_array_size(json_object_get(result, "rows")), N_ROW);
    for (size_t i = 0; i < N_ROW; i++) {
        assert_string_equal(results_text(row_of(result, i), "row"), all_rows[i]);
        expect_columns(result, i);
    }
    const json_t *none = row_of(result, 0), *prefix = row_of(result, 1);
    assert_true(number(none, "ratio") == 1.0);
    assert_true(number(none, "same") == 1.0);
    assert_true(number(none, "cached_tokens") == 0.0);
    assert_true(number(none, "running") < N_REQUEST); /* the memory is too small for all */
    assert_true(number(prefix, "same") == 1.0);       /* reused entries are exact */
    assert_true(number(prefix, "cached_tokens") > 0.0);
    assert_true(number(prefix, "saved") > 0.0);

    /* Neither threads nor a second run change the counters. */
    setup = setup_of(2);
    json_t *again = measure(&setup, &p);
    expect_same(result, again);
    json_decref(again);
    json_decref(result);
}

/* The control takes the share of pages that its model took. */
TEST(the_control_shares_as_many_pages)
{
    static const char *const rows[] = {"none", LOOSE, "random"};
    struct eval_setup setup = setup_of(1);
    struct eval_share_params p = params_of(rows, 3);
    p.answers = EVAL_SHARE_VERBATIM;
    p.n_part = 12;
    p.n_repeat = 2;
    json_t *result = measure(&setup, &p);
    const json_t *model = row_of(result, 1), *control = row_of(result, 2);
    assert_true(number(model, "pages_shared") > 0.0);
    assert_true(number(control, "pages_shared") > 0.0);
    assert_true(number(model, "saved") > 0.0);
    assert_non_null(strstr(results_text(control, "share"), "random:share=0."));
    near(number(control, "affected"), number(model, "affected"), 0.5);
    for (size_t i = 0; i < 3; i++)
        assert_null(json_object_get(row_of(result, i), "same"));
    json_decref(result);
}

/* ---- given answers ---- */

struct alone {
    const struct share_item *item;
    double nll;
    int32_t n_chosen;
    int32_t n;
};

static bool on_logits(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct alone *a = user;
    pith_model_info info;
    float max;
    int32_t at = pos + 1 - a->item->n_id, best = 0;
    (void)seq;
    pith_model_get_info(nano, &info);
    if (at < 0 || at >= a->item->n_right)
        return true;
    for (int32_t i = 1; i < info.n_vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    double sum = eval_log_sum(logits, info.n_vocab, &max);
    a->nll += -((double)logits[a->item->forced[at]] - (double)max - sum);
    a->n_chosen += best == a->item->forced[at];
    a->n++;
    return true;
}

/* Beside others and in a small memory, a request is as it is alone: the logits of its given tokens
   have the same bits. */
TEST(company_changes_no_score)
{
    static const char *const rows[] = {"none", "prefix"};
    struct eval_setup setup = setup_of(1);
    struct eval_share_params p = params_of(rows, 2);
    struct share_items items;
    pith_engine *engine;
    struct alone sum = {.n = 0};
    p.answers = EVAL_SHARE_RIGHT;
    json_t *result = measure(&setup, &p);
    check(share_items_make(&setup, &p, &items, &err), &err);
    setup.engine.page_len = 16;
    check(pith_engine_create(nano, &setup.engine, &engine, &err), &err);
    for (int32_t i = 0; i < items.n; i++) {
        struct alone a = {.item = &items.at[i]};
        pith_seq *seq = seq_make(engine);
        const pith_batch_item work[] = {{.seq = seq,
                                         .tokens = a.item->ids,
                                         .n_token = a.item->n_id,
                                         .logits = PITH_LOGITS_ALL,
                                         .on_logits = on_logits,
                                         .user = &a}};
        check(pith_batch_eval(engine, work, 1, NULL, NULL, &err), &err);
        const pith_batch_item rest[] = {{.seq = seq,
                                         .tokens = a.item->forced,
                                         .n_token = a.item->n_right,
                                         .logits = PITH_LOGITS_ALL,
                                         .on_logits = on_logits,
                                         .user = &a}};
        check(pith_batch_eval(engine, rest, 1, NULL, NULL, &err), &err);
        assert_int_equal(a.n, a.item->n_right);
        pith_seq_free(seq);
        sum.nll += a.nll;
        sum.n_chosen += a.n_chosen;
        sum.n += a.n;
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = row_of(result, i);
        near(number(row, "nll"), sum.nll / sum.n, 1e-12);
        near(number(row, "accuracy"), (double)sum.n_chosen / sum.n, 1e-12);
        assert_true(number(row, "nll_diff") == 0.0);
        assert_int_equal(lround(number(row, "tokens_per_s") * number(row, "seconds")), sum.n);
    }
    pith_engine_free(engine);
    share_items_free(&items);
    json_decref(result);
}

/* ---- the usual rows, and the printing ---- */

TEST(defaults_make_the_usual_rows)
{
    static const char *const names[] = {"none",
                                        "prefix",
                                        "memshare:step=0.8",
                                        "memshare:step=0.9",
                                        "random",
                                        "streaming:budget=96",
                                        "memshare:step=0.8 + streaming:budget=96",
                                        "memshare:step=0.7"};
    struct eval_setup setup = setup_of(1);
    struct eval_share_params p = params_of(NULL, 0);
    struct eval_text table = {0}, csv = {0};
    setup.engine.keep = "streaming:budget=96";
    setup.engine.share = "memshare:step=0.7";
    setup.keep_text = true;
    p.n_predict = 24;
    json_t *result = measure(&setup, &p);
    assert_int_equal(json_array_size(json_object_get(result, "rows")), 8);
    for (size_t i = 0; i < 8; i++) {
        assert_string_equal(results_text(row_of(result, i), "row"), names[i]);
        assert_int_equal(json_array_size(json_object_get(row_of(result, i), "texts")), N_REQUEST);
    }
    assert_true(number(row_of(result, 5), "evicted") > 0.0);
    assert_true(number(row_of(result, 6), "evicted") > 0.0);
    eval_print_table(result, &table);
    eval_print_csv(result, &csv);
    assert_false(table.failed || csv.failed);
    assert_non_null(strstr(table.data, "of_bound"));
    assert_non_null(strstr(csv.data, "schedule_part"));
    eval_text_free(&table);
    eval_text_free(&csv);
    json_decref(result);
}
