/*
 * test_eval.c - the common part of the measuring tasks: random numbers, texts, intervals, prompts
 * and answers on pith-nano, the shape of results and their printing.
 */
#include <math.h>
#include <string.h>

#include "eval.h"
#include "print.h"
#include "testing.h"
#include "status.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define QUESTION                                                                                   \
    "The password of Maria is copper lantern.\nQuestion: What is the password of Maria?\n"

static pith_model *model;

static void load_model(void)
{
    pith_model_params params;
    pith_model_params_default(&params);
    params.n_thread = 1;
    assert_int_equal(pith_model_load(MODEL, &params, &model, &err), PITH_OK);
}

static void free_model(void)
{
    pith_model_free(model);
}

TEST_GROUP(load_model, free_model);

static struct eval_setup make_setup(void)
{
    struct eval_setup setup = {.model = model, .seed = 7};
    pith_engine_params_default(&setup.engine);
    setup.engine.n_thread = 1;
    return setup;
}

static void expect_near(double value, double expected, double most)
{
    if (!(fabs(value - expected) <= most))
        fail_msg("%.12g is not within %g of %.12g", value, most, expected);
}

/* ---- random numbers ---- */

TEST(streams_are_told_apart_by_every_number)
{
    struct eval_rng a = eval_rng_make(1, 2, 3), b = eval_rng_make(1, 2, 3);
    for (int i = 0; i < 100; i++)
        assert_int_equal(eval_rng_next(&a), eval_rng_next(&b));
    /* Each number matters, and so does its place. */
    uint64_t firsts[6];
    const uint64_t mixes[6][3] = {{1, 2, 3}, {2, 1, 3}, {1, 3, 2}, {3, 2, 1}, {1, 2, 4}, {0, 0, 0}};
    for (int i = 0; i < 6; i++) {
        struct eval_rng rng = eval_rng_make(mixes[i][0], mixes[i][1], mixes[i][2]);
        firsts[i] = eval_rng_next(&rng);
        for (int j = 0; j < i; j++)
            assert_int_not_equal(firsts[i], firsts[j]);
    }
}

TEST(numbers_are_uniform)
{
    enum { N = 70000, SIDES = 7 };
    int32_t count[SIDES] = {0};
    double sum = 0.0;
    struct eval_rng rng = eval_rng_make(5, 0, 0);
    for (int i = 0; i < N; i++) {
        int32_t v = eval_rng_below(&rng, SIDES);
        double u = eval_rng_unit(&rng);
        assert_in_range(v, 0, SIDES - 1);
        assert_true(u >= 0.0 && u < 1.0);
        count[v]++;
        sum += u;
    }
    /* Five standard errors: 93 of a count, 0.0011 of the mean. */
    for (int i = 0; i < SIDES; i++)
        assert_true(abs(count[i] - N / SIDES) < 5 * 93);
    assert_true(fabs(sum / N - 0.5) < 5 * 0.0011);
    assert_int_equal(eval_rng_below(&rng, 1), 0);
}

TEST(every_order_is_as_likely)
{
    enum { N = 5, ROUNDS = 20000 };
    int32_t at_place[N][N] = {{0}};
    struct eval_rng rng = eval_rng_make(9, 1, 1);
    for (int r = 0; r < ROUNDS; r++) {
        struct {
            int32_t id;
            char pad[3];
        } items[N];
        int32_t seen = 0;
        for (int i = 0; i < N; i++)
            items[i].id = i;
        eval_rng_shuffle(&rng, items, N, sizeof(items[0]));
        for (int i = 0; i < N; i++) {
            seen |= 1 << items[i].id;
            at_place[items[i].id][i]++;
        }
        assert_int_equal(seen, (1 << N) - 1);
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            assert_true(abs(at_place[i][j] - ROUNDS / N) < 5 * 57);
}

/* ---- texts and figures ---- */

TEST(a_text_grows_and_is_cleared)
{
    struct eval_text t = {0};
    char expected[6001] = "";
    eval_text_add(&t, "");
    assert_string_equal(t.data, "");
    for (int i = 0; i < 1000; i++) {
        eval_text_printf(&t, "%03d", i);
        eval_text_add_n(&t, "xyzw", 3);
        snprintf(expected + 6 * i, sizeof(expected) - (size_t)(6 * i), "%03dxyz", i);
    }
    assert_int_equal(t.len, 6000);
    assert_string_equal(t.data, expected);
    eval_text_clear(&t);
    assert_int_equal(t.len, 0);
    assert_string_equal(t.data, "");
    assert_false(t.failed);
    eval_text_free(&t);
    assert_null(t.data);
}

TEST(reads_a_file_or_names_it)
{
    char *text = NULL;
    size_t len = 0;
    check(eval_read_file(PITH_SOURCE_DIR "/models/demo/answer-2k.txt", &text, &len, &err), &err);
    assert_int_equal(len, strlen(text));
    assert_true(len > 0);
    free(text);
    assert_int_equal(eval_read_file("/no/such/file", &text, &len, &err), PITH_IO);
    assert_non_null(strstr(err.message, "/no/such/file"));
    assert_int_equal(eval_read_file("/", &text, &len, &err), PITH_IO);
}

/* Wilson's interval is where the score test just does not reject: |p - s| = z sqrt(p (1 - p) /
   n). */
TEST(wilsons_interval_ends_where_the_score_test_does)
{
    static const double cases[][2] = {{0, 1}, {1, 1}, {5, 10}, {98, 100}, {0, 50}, {250, 500}};
    const double z = 1.959963984540054;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double s = cases[i][0], n = cases[i][1];
        struct eval_interval w = eval_wilson(s, n);
        double ends[] = {w.low, w.high};
        expect_near(w.mean, s / n, 1e-12);
        for (int e = 0; e < 2; e++)
            expect_near(fabs(ends[e] - s / n), z * sqrt(ends[e] * (1.0 - ends[e]) / n), 1e-9);
        assert_true(w.low >= 0.0 && w.low < w.high && w.high <= 1.0);
    }
    struct eval_interval none = eval_wilson(0, 0);
    assert_true(none.low == 0.0 && none.high == 1.0 && none.mean == 0.0);
}

TEST(a_number_that_is_none_becomes_null)
{
    json_t *one = eval_number(1.5), *nan = eval_number((double)NAN);
    expect_near(json_real_value(one), 1.5, 0.0);
    assert_true(json_is_null(nan));
    json_decref(one);
    json_decref(nan);
    assert_int_equal(eval_fail(&err, PITH_RANGE, "n: %d is wrong", 4), PITH_RANGE);
    assert_int_equal(err.status, PITH_RANGE);
    assert_string_equal(err.message, "n: 4 is wrong");
    assert_int_equal(eval_fail(NULL, PITH_IO, "nobody listens"), PITH_IO);
}

/* ---- prompts and answers ---- */

TEST(encodes_a_prompt_and_its_answers_beginning)
{
    struct eval_setup setup = make_setup();
    int32_t *ids, n, expected[64], n_expected;
    check(eval_encode(&setup, "The password of Maria", " is", &ids, &n, &err), &err);
    check(pith_tokenize(model, "The password of Maria is", 24, PITH_TOKENIZE_BOS, expected, 64,
                        &n_expected, &err),
          &err);
    assert_int_equal(n, n_expected);
    assert_memory_equal(ids, expected, (size_t)n * sizeof(*ids));
    free(ids);
    setup.chat = true; /* the model has no template: refused, not made up */
    assert_int_equal(eval_encode(&setup, "x", NULL, &ids, &n, &err), PITH_UNSUPPORTED);
}

static struct eval_answer ask(struct eval_run *run, const struct eval_setup *setup, int32_t n,
                              const char *stop)
{
    struct eval_answer answer;
    int32_t *ids, n_id;
    check(eval_encode(setup, QUESTION, NULL, &ids, &n_id, &err), &err);
    check(eval_ask(run, ids, n_id, NULL, n, NULL, &stop, stop != NULL, &answer, &err), &err);
    assert_int_equal(answer.n_prompt, n_id);
    free(ids);
    return answer;
}

TEST(items_do_not_see_each_other)
{
    struct eval_setup setup = make_setup();
    struct eval_run *run;
    check(eval_run_create(&setup, 64, &run, &err), &err);
    struct eval_answer a = ask(run, &setup, 32, NULL);
    assert_string_equal(a.text, "Answer: The password of Maria is copper lantern.");
    assert_int_equal(a.len, strlen(a.text));
    assert_int_equal(a.reason, PITH_STOP_END);
    assert_true(a.kv_peak_bytes > 0 && a.evicted == 0 && a.rounds == 0);

    /* Items do not see each other: the same again, and a shorter one costs no more than itself. */
    struct eval_answer b = ask(run, &setup, 32, NULL), c = ask(run, &setup, 32, "copper");
    assert_string_equal(a.text, b.text);
    assert_int_equal(a.kv_peak_bytes, b.kv_peak_bytes);
    assert_string_equal(c.text, "Answer: The password of Maria is ");
    assert_int_equal(c.reason, PITH_STOP_STRING);
    struct eval_answer d = ask(run, &setup, 3, NULL);
    assert_int_equal(d.n_generated, 3);

    json_t *result = eval_result(run, "task", 4, json_pack("{s:i}", "x", 1), json_array());
    json_t *summary = json_object_get(result, "summary");
    assert_string_equal(json_string_value(json_object_get(result, "task")), "task");
    assert_string_equal(json_string_value(json_object_get(result, "model")), "pith-nano");
    assert_string_equal(json_string_value(json_object_get(result, "policy")), "full");
    assert_int_equal(json_integer_value(json_object_get(summary, "n")), 4);
    assert_int_equal(json_integer_value(json_object_get(summary, "prompt_tokens")), 4 * a.n_prompt);
    assert_int_equal(json_integer_value(json_object_get(summary, "generated_tokens")),
                     a.n_generated + b.n_generated + c.n_generated + 3);
    assert_int_equal(json_integer_value(json_object_get(summary, "kv_peak_bytes")),
                     a.kv_peak_bytes);
    assert_true(json_real_value(json_object_get(summary, "tokens_per_s")) > 0.0);
    json_decref(result);
    eval_answer_free(&a);
    eval_answer_free(&b);
    eval_answer_free(&c);
    eval_answer_free(&d);
    eval_run_free(run);
}

/* Without sample params every token is the likeliest: a text that could go on in many ways. */
TEST(every_token_is_the_likeliest_by_default)
{
    enum { N = 40 };
    struct eval_setup setup = make_setup();
    struct eval_run *run;
    struct eval_answer answer;
    pith_model_info info;
    pith_seq *seq;
    char text[1024];
    int32_t *ids, n, chosen[N];
    size_t len;
    pith_model_get_info(model, &info);
    check(eval_encode(&setup, "One morning", NULL, &ids, &n, &err), &err);
    check(eval_run_create(&setup, n + N, &run, &err), &err);
    check(eval_ask(run, ids, n, NULL, N, NULL, NULL, 0, &answer, &err), &err);
    check(pith_seq_create(eval_run_engine(run), &seq, &err), &err);
    check(pith_seq_eval(seq, ids, n, &err), &err);
    for (int i = 0; i < N; i++) {
        const float *logits = pith_seq_logits(seq);
        chosen[i] = 0;
        for (int32_t id = 1; id < info.n_vocab; id++)
            chosen[i] = logits[id] > logits[chosen[i]] ? id : chosen[i];
        assert_false(pith_token_is_end(model, chosen[i]));
        check(pith_seq_eval(seq, &chosen[i], 1, &err), &err);
    }
    check(pith_detokenize(model, chosen, N, false, text, sizeof(text) - 1, &len, &err), &err);
    text[len] = '\0';
    assert_string_equal(answer.text, text);
    assert_int_equal(answer.n_generated, N);
    eval_answer_free(&answer);
    pith_seq_free(seq);
    eval_run_free(run);
    free(ids);
}

/* A policy's evictions are counted, and the memory has the size for its entries. */
TEST(counts_evictions_and_sizes_memory_for_them)
{
    struct eval_setup setup = make_setup();
    struct eval_run *run;
    struct eval_answer answer;
    char *text;
    size_t len;
    int32_t *ids, n;
    check(eval_read_file(PITH_SOURCE_DIR "/models/demo/prompt-2k.txt", &text, &len, &err), &err);
    check(eval_encode(&setup, text, NULL, &ids, &n, &err), &err);
    setup.engine.keep = "streaming:budget=128";
    check(eval_run_create(&setup, n + 32, &run, &err), &err);
    check(eval_ask(run, ids, n, NULL, 16, NULL, NULL, 0, &answer, &err), &err);
    assert_true(answer.evicted > 0 && answer.rounds > 0);
    int64_t full;
    setup.engine.keep = NULL;
    check(pith_kv_estimate(model, &setup.engine, n, &full, &err), &err);
    assert_true(answer.kv_peak_bytes < full / 2);
    setup.engine.keep = "streaming:budget=128";
    struct eval_answer small = ask(run, &setup, 8, NULL); /* the peak of one is not that of all */
    assert_true(small.kv_peak_bytes < answer.kv_peak_bytes && small.evicted == 0);
    eval_answer_free(&small);
    eval_answer_free(&answer);
    eval_run_free(run);
    free(ids);
    free(text);
}

struct stopper {
    int left;
    double fraction;
    char what[64];
};

static bool count_down(void *user, double fraction, const char *what)
{
    struct stopper *s = user;
    s->fraction = fraction;
    snprintf(s->what, sizeof(s->what), "%s", what);
    return s->left-- > 0;
}

TEST(a_cancelled_run_tells_how_far_it_was)
{
    struct stopper stopper = {.left = 1};
    struct eval_setup setup = make_setup();
    struct eval_run *run;
    struct eval_answer answer = {0};
    int32_t *ids, n;
    setup.progress = count_down;
    setup.progress_user = &stopper;
    check(eval_run_create(&setup, 64, &run, &err), &err);
    check(eval_encode(&setup, QUESTION, NULL, &ids, &n, &err), &err);
    check(eval_progress(run, 0.25, &err, "%d of %d", 1, 4), &err);
    assert_string_equal(stopper.what, "1 of 4");
    expect_near(stopper.fraction, 0.25, 0.0);
    assert_int_equal(eval_ask(run, ids, n, NULL, 32, NULL, NULL, 0, &answer, &err), PITH_CANCELLED);
    assert_null(answer.text);
    assert_string_equal(stopper.what, "1 of 4"); /* share of tokens in an item's passes that repeat
                                                    others */
    stopper.left = 3;                            /* now within the answer */
    assert_int_equal(eval_ask(run, ids, n, NULL, 32, NULL, NULL, 0, &answer, &err), PITH_CANCELLED);
    assert_int_equal(eval_progress(run, 0.5, &err, "the end"), PITH_CANCELLED);
    assert_non_null(strstr(err.message, "the end"));
    eval_run_free(run);
    free(ids);
}

TEST(refuses_a_bad_policy)
{
    struct eval_setup setup = make_setup();
    struct eval_run *run = NULL;
    setup.engine.keep = "nonsense";
    assert_int_equal(eval_run_create(&setup, 64, &run, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "nonsense"));
    assert_null(run);
    eval_run_free(run);
}

/* ---- printing ---- */

static json_t *make_result(void)
{
    return json_pack(
        "{s:s, s:s, s:s, s:{}, s:{s:i, s:f, s:{s:f, s:n}, s:I, s:s}, s:[{s:s, s:i, s:f}, "
        "{s:s, s:i, s:n}]}",
        "task", "demo", "model", "m", "policy", "full", "settings", "summary", "n", 2, "score", 0.5,
        "inner", "a", 1.25, "b", "kv_peak_bytes", (json_int_t)2048, "note", "That was all.", "rows",
        "name", "say \"a, b\"", "x", 7, "y", 0.1, "name", "\xc3\xa4", "x", -12, "y");
}

TEST(prints_a_table)
{
    struct eval_text t = {0};
    json_t *result = make_result();
    eval_print_table(result, &t);
    assert_false(t.failed);
    assert_string_equal(t.data, "demo of m, cache: full\n"
                                "\n"
                                "name          x       y\n"
                                "say \"a, b\"    7  0.1000\n"
                                "\xc3\xa4           -12       -\n"
                                "\n"
                                "n              2\n"
                                "score          0.5000\n"
                                "inner.a        1.2500\n"
                                "inner.b        -\n"
                                "kv_peak_bytes  2048 (2.0 KiB)\n"
                                "\n"
                                "That was all.\n");
    eval_text_free(&t);
    json_object_set_new(result, "read", json_string("quoka:budget=8"));
    json_object_set_new(result, "store", json_string("q8_0/f16"));
    eval_print_table(result, &t);
    assert_non_null(
        strstr(t.data, "demo of m, cache: full, read quoka:budget=8, store q8_0/f16\n\n"));
    eval_text_free(&t);
    json_decref(result);
}

/* Long texts are cut between characters, lines become one. */
TEST(cuts_long_texts_between_characters)
{
    struct eval_text t = {0};
    char text[121] = "one\ntwo ";
    for (int i = 0; i < 50; i++)
        memcpy(text + 8 + 2 * i, "\xc3\xa9", 3);
    json_t *result = json_pack("{s:{}, s:[{s:s}]}", "summary", "rows", "text", text);
    eval_print_table(result, &t);
    assert_non_null(strstr(t.data, "one two \xc3\xa9"));
    char cut[90];
    snprintf(cut, sizeof(cut), "\n%.76s..\n", text);
    cut[4] = ' ';
    assert_non_null(strstr(t.data, cut)); /* 8 + 34 characters and the dots are 44 */
    eval_text_free(&t);
    json_decref(result);
}

TEST(prints_csv)
{
    struct eval_text t = {0};
    json_t *result = make_result();
    eval_print_csv(result, &t);
    assert_string_equal(t.data, "name,x,y\r\n"
                                "\"say \"\"a, b\"\"\",7,0.1\r\n"
                                "\xc3\xa4,-12,\r\n");
    eval_text_clear(&t);
    json_array_clear(json_object_get(result, "rows"));
    json_array_append_new(
        json_object_get(result, "rows"),
        json_pack("{s:[i, i], s:s, s:b}", "list", 1, 2, "lines", "a\nb", "yes", 1));
    eval_print_csv(result, &t);
    assert_string_equal(t.data, "list,lines,yes\r\n\"[1,2]\",\"a\nb\",true\r\n");
    eval_text_free(&t);
    json_decref(result);
}

TEST(prints_json)
{
    struct eval_text t = {0};
    json_t *result = make_result();
    eval_print_json(result, &t);
    json_t *again = json_loads(t.data, 0, NULL);
    assert_true(json_equal(result, again));
    json_decref(again);
    json_decref(result);
    eval_text_free(&t);
}
