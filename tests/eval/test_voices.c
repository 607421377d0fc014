/*
 * test_voices.c - the probability of a given answer and the figures of pairs. They are compared
 * with logits that are computed here through pith.h alone, on the repository's small model.
 */
#include <math.h>
#include <needle.h>
#include <paired.h>
#include <stdlib.h>
#include <string.h>
#include <voices.h>

#include "testing.h"
#include "status.h"
#include "json_read.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

static pith_model *model;

static void set_up(void)
{
    assert_int_equal(pith_model_load(MODEL, NULL, &model, &err), PITH_OK);
}

static void tear_down(void)
{
    pith_model_free(model);
}

TEST_GROUP(set_up, tear_down);

static struct eval_setup setup_of(const char *keep, const char *recall)
{
    struct eval_setup s = {.model = model, .seed = 7};
    pith_engine_params_default(&s.engine);
    s.engine.n_thread = 2;
    s.engine.page_len = 16;
    s.engine.keep = keep;
    s.engine.recall = recall;
    return s;
}

/* ---- by hand ---- */

static double log_p(const float *logits, int32_t n, int32_t id)
{
    double sum = 0.0, max = (double)logits[0];
    for (int32_t i = 1; i < n; i++)
        max = fmax(max, (double)logits[i]);
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return (double)logits[id] - max - log(sum);
}

/* The probability of an answer behind a prompt, in an engine of its own: the prompt in one
   evaluation, the answer token by token. */
static double by_hand(const pith_engine_params *params, const char *prompt, const char *answer)
{
    int32_t ids[1024], answer_ids[64], n = 0, n_answer = 0;
    pith_model_info info;
    pith_engine *engine = NULL;
    pith_seq *seq = NULL;
    double sum = 0.0;
    pith_model_get_info(model, &info);
    check(pith_tokenize(model, prompt, strlen(prompt), PITH_TOKENIZE_BOS, ids, 1024, &n, &err),
          &err);
    check(pith_tokenize(model, answer, strlen(answer), 0, answer_ids, 64, &n_answer, &err), &err);
    pith_engine_params p = *params;
    p.kv_tokens = 1200;
    check(pith_engine_create(model, &p, &engine, &err), &err);
    check(pith_seq_create(engine, &seq, &err), &err);
    check(pith_seq_mark_prompt(seq, n, &err), &err);
    check(pith_seq_eval(seq, ids, n, &err), &err);
    for (int32_t i = 0; i < n_answer; i++) {
        sum += log_p(pith_seq_logits(seq), info.n_vocab, answer_ids[i]);
        if (i + 1 < n_answer)
            check(pith_seq_eval(seq, &answer_ids[i], 1, &err), &err);
    }
    pith_seq_free(seq);
    pith_engine_free(engine);
    return sum;
}

static json_t *measure(const struct eval_setup *setup, const struct eval_needle_params *p)
{
    json_t *result = NULL;
    check(eval_needle(setup, p, &result, &err), &err);
    return result;
}

static const int32_t lengths[] = {200};
static const double depths[] = {0.2, 0.6, 1.0};

static struct eval_needle_params needle(bool paired)
{
    return (struct eval_needle_params){.style = EVAL_NEEDLE_PITH,
                                       .lengths = lengths,
                                       .n_length = 1,
                                       .depths = depths,
                                       .n_depth = 3,
                                       .n_needle = 2,
                                       .n_repeat = 1,
                                       .n_predict = 24,
                                       .paired = paired};
}

/* Each row's figures, with evictions and with recall, against the same tokens evaluated here. */
TEST(probabilities_are_those_evaluated_here)
{
    static const char *const policies[][2] = {
        {"streaming:sinks=4,budget=64,slack=8", NULL},
        {"tova:budget=64,overwrite=on", NULL},
        {"streaming:sinks=4,budget=64,slack=8", "kv:ram=1MiB,last=16,block=4"},
    };
    for (size_t i = 0; i < 3; i++) {
        struct eval_setup setup = setup_of(policies[i][0], policies[i][1]);
        struct eval_setup full = setup_of(NULL, NULL);
        struct eval_needle_params p = needle(true);
        struct eval_counter counter = eval_counter_of(&setup);
        json_t *result = measure(&setup, &p);
        double sum = 0.0, full_sum = 0.0;
        for (int32_t d = 0; d < 3; d++) {
            const json_t *row = json_array_get(json_object_get(result, "rows"), (size_t)d);
            struct needle_item item = {.seed = setup.seed, .length = 200, .depth = depths[d]};
            struct needle_text t = {0};
            char prompt[4096], answer[128];
            check(eval_needle_make(&p, &item, &counter, &t, &err), &err);
            snprintf(prompt, sizeof(prompt), "%s%s", t.prompt.text.data, t.prompt.prefix.data);
            snprintf(answer, sizeof(answer), " %s", t.needle); /* the style's answer */
            double want = by_hand(&setup.engine, prompt, answer);
            double want_full = by_hand(&full.engine, prompt, answer);
            assert_true(fabs(number(row, "answer_logprob") - want) < 1e-6 * (1.0 - want));
            assert_true(fabs(number(row, "full_logprob") - want_full) < 1e-6 * (1.0 - want_full));
            sum += exp(want) / 3.0;
            full_sum += exp(want_full) / 3.0;
            eval_needle_text_free(&t);
        }
        const json_t *summary = json_object_get(result, "summary");
        assert_true(fabs(number(summary, "probability") - sum) < 1e-6);
        assert_true(fabs(number(summary, "full_probability") - full_sum) < 1e-6);
        assert_true(fabs(number(summary, "ratio") - sum / full_sum) < 1e-5);
        json_decref(result);
    }
}

/* The answer, its cost and the verdict are the same as in a run without a probability. */
TEST(a_probability_changes_no_answer)
{
    static const char *const policies[][2] = {
        {NULL, NULL},
        {"h2o:budget=48,slack=8", NULL},
        {"tova:budget=48,overwrite=on", NULL},
        {"streaming:budget=48,slack=8", "kv:ram=1MiB,last=16,block=4"},
    };
    for (size_t i = 0; i < 4; i++) {
        struct eval_setup setup = setup_of(policies[i][0], policies[i][1]);
        struct eval_run *run = NULL;
        struct eval_given given = {0};
        struct eval_answer a, b;
        int32_t *ids = NULL, n = 0;
        setup.engine.kv_tokens = 2000; /* the item's and the fork's */
        check(eval_run_create(&setup, 0, &run, &err), &err);
        check(
            eval_encode(&setup,
                        "The friend of Maria is Anton. The password of Peter is black butter. The "
                        "old farmer walked to the river. There he sang behind the green cellar. "
                        "The tired teacher came to the library. The rain fell and the small dog "
                        "was happy. The baker and the doctor talked there.\nQuestion: What is the "
                        "password of Peter?\nAnswer:",
                        NULL, &ids, &n, &err),
            &err);
        check(eval_tokenize(model, " black butter", 13, 0, &given.ids, &given.n_id, &err), &err);
        check(eval_ask(run, ids, n, NULL, 24, NULL, NULL, 0, &a, &err), &err);
        check(eval_ask_given(run, ids, n, NULL, 24, NULL, 0, &given, &b, &err), &err);
        assert_string_equal(a.text, b.text);
        assert_int_equal(a.kv_peak_bytes, b.kv_peak_bytes);
        assert_int_equal(a.evicted, b.evicted);
        assert_int_equal(a.rounds, b.rounds);
        assert_int_equal(a.n_prompt, b.n_prompt);
        assert_int_equal(a.n_generated, b.n_generated);
        assert_int_equal(a.recall.recalls, b.recall.recalls);
        assert_true(given.logprob < 0.0);
        eval_answer_free(&a);
        eval_answer_free(&b);
        eval_given_free(&given);
        free(ids);
        eval_run_free(run);
    }
}

/* A budget that holds everything: both caches say the same, to the last bit. */
TEST(both_caches_say_the_same_where_all_is_held)
{
    struct eval_setup setup = setup_of("knorm:budget=4000", NULL);
    struct eval_needle_params p = needle(true);
    json_t *result = measure(&setup, &p);
    const json_t *summary = json_object_get(result, "summary");
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(json_object_get(result, "rows"), i);
        assert_true(number(row, "answer_logprob") == number(row, "full_logprob"));
        assert_true(number(row, "pass") == number(row, "full_pass"));
    }
    assert_true(number(summary, "ratio") == 1.0 && number(summary, "ratio_se") == 0.0);
    assert_true(number(summary, "score") == number(summary, "full_score"));
    json_decref(result);
    p.paired = false;
    result = measure(&setup, &p);
    assert_null(json_object_get(json_object_get(result, "summary"), "ratio"));
    json_decref(result);
}

/* Memory for the item alone: the answer is there, its probability is not, and nothing fails. */
TEST(without_room_there_is_no_probability)
{
    struct eval_setup setup = setup_of(NULL, NULL);
    struct eval_needle_params p = needle(false);
    setup.engine.kv_tokens = 208; /* one page beyond the prompt */
    p.n_predict = 2;
    json_t *result = measure(&setup, &p);
    const json_t *row = json_array_get(json_object_get(result, "rows"), 0);
    assert_true(json_is_null(json_object_get(row, "answer_logprob")));
    assert_true(json_is_null(json_object_get(json_object_get(result, "summary"), "probability")));
    json_decref(result);
}

/* ---- figures ---- */

TEST(figures_of_pairs_are_those_computed_by_hand)
{
    static const struct eval_pair pairs[] = {
        {0, true, -0.5, true, -0.25},         {0, false, -2.0, true, -0.5},
        {1, true, -1.0, false, -3.0},         {1, true, -0.1, true, -0.1},
        {2, false, (double)NAN, false, -1.0},
    };
    struct eval_pairs p = {.paired = true};
    json_t *summary = json_object();
    for (size_t i = 0; i < 5; i++)
        assert_true(eval_pairs_add(&p, &pairs[i]));
    assert_true(eval_pairs_summarise(&p, summary));
    double sum = exp(-0.5) + exp(-2.0) + exp(-1.0) + exp(-0.1);
    assert_true(fabs(number(summary, "probability") - sum / 4.0) < 1e-12);
    double full = exp(-0.25) + exp(-0.5) + exp(-3.0) + exp(-0.1);
    assert_true(fabs(number(summary, "ratio") - sum / full) < 1e-12);
    assert_true(number(summary, "n_full") == 3.0);
    assert_true(fabs(number(summary, "recovered") - 2.0 / 3.0) < 1e-12);
    assert_true(number(summary, "full_score") == 0.6);
    /* found: 1 of 2, 2 of 2, 0 of 1; 0.6 each: residuals -0.2, 0.8, -0.6 */
    double se = sqrt(3.0 / 2.0 * (0.04 + 0.64 + 0.36)) / 5.0;
    assert_true(fabs(number(summary, "se") - se) < 1e-12);
    json_decref(summary);
    eval_pairs_free(&p);
}

TEST(finds_a_word_in_any_case)
{
    assert_true(eval_contains("The ORANGE one", "orange"));
    assert_true(eval_contains("aab", "ab"));
    assert_false(eval_contains("ora", "orange"));
    assert_true(eval_contains("", ""));
    assert_false(eval_contains("", "x"));
}
