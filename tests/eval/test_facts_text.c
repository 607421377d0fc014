/*
 * test_facts_text.c - texts with ten facts: the pool, the places of facts, the effect of a seed. It
 * runs the task on the repository's small model, where a question must not affect another.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "folder.h"
#include "status.h"
#include "json_read.h"

#include <facts.h>
#include <math.h>
#include <sweep.h>
#include <voices.h>

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

static pith_model *model;

static void set_up(void)
{
    assert_int_equal(pith_model_load(MODEL, NULL, &model, &err), PITH_OK);
    make_folder();
}

static void tear_down(void)
{
    pith_model_free(model);
    remove_folder();
}

TEST_GROUP(set_up, tear_down);

/* ---- the pool ---- */

/* Four texts of a seed have all 40 facts, and no sentence answers the question of another. */
TEST(four_texts_of_a_seed_have_all_facts)
{
    struct facts_picked all[4];
    memset(all, 0, sizeof(all));
    for (int32_t i = 0; i < 4; i++)
        check(eval_facts_pick(EVAL_FACTS_POOL, 11, i, &all[i], &err), &err);
    for (int32_t i = 0; i < 40; i++) {
        const struct facts_picked *a = &all[i / 10];
        const char *wanted = a->wanted.at[i % 10];
        assert_true(eval_contains(a->sentence.at[i % 10], wanted));
        assert_true(eval_contains(a->answer.at[i % 10], wanted));
        assert_false(eval_contains(a->question.at[i % 10], wanted));
        assert_non_null(strstr(a->question.at[i % 10], ", nothing else:"));
        for (int32_t j = 0; j < 40; j++)
            if (j != i && eval_contains(all[j / 10].sentence.at[j % 10], wanted))
                fail_msg("\"%s\" is in \"%s\"", wanted, all[j / 10].sentence.at[j % 10]);
    }
    for (int32_t i = 0; i < 4; i++)
        eval_facts_picked_free(&all[i]);
}

/* ---- texts ---- */

/* Words as tokens. */
static pith_status count_words(void *user, const char *text, const char *prefix, int32_t *n,
                               pith_error *why)
{
    bool in_word = false;
    (void)user;
    (void)why;
    *n = prefix != NULL && prefix[0] != '\0';
    for (; *text != '\0'; text++) {
        bool space = *text == ' ' || *text == '\n';
        *n += !space && !in_word;
        in_word = !space;
    }
    return PITH_OK;
}

static const struct eval_counter words = {count_words, NULL};

static struct facts_text make(enum eval_facts_style style, uint64_t seed, int32_t index,
                              int32_t length)
{
    struct eval_facts_texts_params p = {.style = style};
    struct facts_text t = {0};
    check(eval_facts_text_make(&p, seed, index, length, &words, &t, &err), &err);
    return t;
}

static int32_t count_of(const char *text, const char *part)
{
    int32_t n = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part))
        n++;
    return n;
}

/* Each sentence stands once, in the order of depths, near its depth and behind a full stop. */
TEST(facts_stand_in_the_order_of_their_depths)
{
    for (int32_t style = 0; style < 2; style++)
        for (int32_t length = 600; length <= 3000; length += 1200) {
            struct facts_text t = make((enum eval_facts_style)style, 3, 1, length);
            const char *last = t.text.data;
            for (int32_t i = 0; i < FACTS_OF_TEXT; i++) {
                const char *sentence = t.facts.sentence.at[i];
                const char *at = strstr(t.text.data, sentence);
                assert_int_equal(count_of(t.text.data, sentence), 1);
                assert_true(at >= last);
                assert_true(at == t.text.data || at[-2] == '.');
                assert_true(fabs(t.at[i] - eval_facts_depth(i)) < 0.03);
                last = at;
            }
            int32_t n = 0;
            check(count_words(NULL, t.text.data, "", &n, NULL), NULL);
            assert_true(n <= length && n > length - 60);
            eval_facts_text_free(&t);
        }
}

TEST(a_seed_repeats_its_texts)
{
    struct facts_text a = make(EVAL_FACTS_POOL, 5, 2, 800), b = make(EVAL_FACTS_POOL, 5, 2, 800);
    struct facts_text c = make(EVAL_FACTS_POOL, 6, 2, 800), d = make(EVAL_FACTS_POOL, 5, 3, 800);
    assert_string_equal(a.text.data, b.text.data);
    assert_string_not_equal(a.text.data, c.text.data);
    assert_string_not_equal(a.text.data, d.text.data);
    for (int32_t i = 0; i < FACTS_OF_TEXT; i++)
        assert_false(eval_strings_has(&d.facts.sentence, a.facts.sentence.at[i]));
    eval_facts_text_free(&a);
    eval_facts_text_free(&b);
    eval_facts_text_free(&c);
    eval_facts_text_free(&d);
}

/* ---- the task ---- */

static const int32_t lengths[] = {400};

static struct eval_facts_texts_params params(bool paired)
{
    return (struct eval_facts_texts_params){.style = EVAL_FACTS_PITH,
                                            .lengths = lengths,
                                            .n_length = 1,
                                            .n_text = 2,
                                            .n_predict = 16,
                                            .paired = paired};
}

static struct eval_setup setup_of(const char *keep)
{
    struct eval_setup s = {.model = model, .seed = 1, .keep_text = true};
    pith_engine_params_default(&s.engine);
    s.engine.n_thread = 2;
    s.engine.page_len = 16;
    s.engine.keep = keep;
    return s;
}

static json_t *measure(const struct eval_setup *setup, bool paired)
{
    struct eval_facts_texts_params p = params(paired);
    json_t *result = NULL;
    check(eval_facts_texts(setup, &p, &result, &err), &err);
    return result;
}

/* The repository's model finds most facts that are in the form of its training data. */
TEST(the_full_cache_finds_most_facts)
{
    struct eval_setup setup = setup_of(NULL);
    json_t *result = measure(&setup, false);
    assert_int_equal((int)figure(result, "n"), 20);
    assert_int_equal((int)figure(result, "texts"), 2);
    assert_true(figure(result, "score") >= 0.5);
    assert_true(figure(result, "probability") >= 0.3);
    assert_true(figure(result, "held_min") > 300.0 && figure(result, "held_max") < 400.0);
    assert_int_equal(json_array_size(json_object_get(result, "rows")), 20);
    assert_null(json_object_get(json_object_get(result, "summary"), "recovered"));
    json_decref(result);
}

static int32_t *ids_of(const json_t *row, const char *key, int32_t *n)
{
    const json_t *list = json_object_get(row, key);
    *n = (int32_t)json_array_size(list);
    int32_t *ids = calloc((size_t)*n + 1, sizeof(*ids));
    assert_non_null(ids);
    for (int32_t i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return ids;
}

/* log p of answer [n_answer] behind prompt [n_prompt]. */
static double hear(const int32_t *prompt, int32_t n_prompt, int32_t *answer, int32_t n_answer)
{
    struct eval_setup setup = setup_of(NULL);
    struct eval_given given = {.ids = answer, .n_id = n_answer};
    struct eval_run *run = NULL;
    pith_seq *seq = NULL;
    check(eval_run_create(&setup, 2 * (n_prompt + n_answer), &run, &err), &err);
    check(pith_seq_create(eval_run_engine(run), &seq, &err), &err);
    check(pith_seq_eval(seq, prompt, n_prompt, &err), &err);
    check(eval_given_hear(seq, &given, &err), &err);
    pith_seq_free(seq);
    eval_run_free(run);
    return given.logprob;
}

/* The tokens of a row, evaluated anew, give the same answer probabilities. The tokens of the
   reading are the same for all questions. */
TEST(the_tokens_of_a_row_say_the_same_again)
{
    struct eval_setup setup = setup_of(NULL);
    json_t *result = measure(&setup, false);
    const json_t *rows = json_object_get(result, "rows");
    int32_t n_first = 0, n_prompt = 0, n_answer = 0;
    int32_t *first = ids_of(json_array_get(rows, 0), "prompt_ids", &n_first);
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(rows, i);
        int32_t n_read = (int32_t)json_integer_value(json_object_get(row, "tokens"));
        int32_t *prompt = ids_of(row, "prompt_ids", &n_prompt);
        int32_t *answer = ids_of(row, "answer_ids", &n_answer);
        assert_true(n_read < n_prompt && n_read < n_first && n_answer > 0);
        assert_memory_equal(prompt, first, (size_t)n_read * sizeof(*prompt));
        assert_true(hear(prompt, n_prompt, answer, n_answer) ==
                    json_number_value(json_object_get(row, "answer_logprob")));
        assert_true(eval_contains(json_string_value(json_object_get(row, "fact")),
                                  json_string_value(json_object_get(row, "wanted"))));
        free(prompt);
        free(answer);
    }
    free(first);
    json_decref(result);
}

/* Under a budget that holds all: the figures of the full cache, to the last bit. */
TEST(a_budget_that_holds_all_is_the_full_cache)
{
    struct eval_setup setup = setup_of("triattention:v3,budget=1000");
    json_t *result = measure(&setup, true);
    size_t i;
    json_t *row;
    assert_true(figure(result, "ratio") == 1.0 && figure(result, "recovered") == 1.0);
    assert_true(figure(result, "rounds") == 0.0);
    assert_true(figure(result, "kv_held_bytes") == figure(result, "full_kv_held_bytes"));
    json_array_foreach(json_object_get(result, "rows"), i, row)
    {
        assert_true(json_equal(json_object_get(row, "answer_logprob"),
                               json_object_get(row, "full_logprob")));
        assert_true(json_equal(json_object_get(row, "said"), json_object_get(row, "full_said")));
    }
    json_decref(result);
}

/* The result of a question depends neither on other questions nor on chunk and threads. With a
   memory limit, questions run one by one; without one, side by side. */
/* The second tier is large enough. If it were full, it would drop the oldest entries of any
   sequence. */
TEST(company_changes_no_figure)
{
    static const char *const policies[][3] = {
        /* keep, read, recall */
        {NULL, NULL, NULL},
        {"streaming:sinks=4,budget=100,slack=16", NULL, NULL},
        {"h2o:budget=100,slack=16", NULL, NULL},
        {"tova:budget=100,overwrite=on", NULL, NULL},
        {"streaming:sinks=4,budget=100,slack=16", NULL, "kv:ram=64MiB,last=16,block=4"},
        {NULL, "quest:budget=64", NULL},
    };
    for (size_t i = 0; i < sizeof(policies) / sizeof(*policies); i++) {
        struct eval_setup setup = setup_of(policies[i][0]);
        setup.engine.read = policies[i][1];
        setup.engine.recall = policies[i][2];
        json_t *beside = measure(&setup, false);
        setup.engine.kv_tokens = 8192;
        setup.engine.n_thread = 1;
        if (policies[i][1] == NULL)
            setup.engine.chunk = 64;
        json_t *alone = measure(&setup, false);
        if (!json_equal(json_object_get(beside, "rows"), json_object_get(alone, "rows")))
            fail_msg("policy %zu: questions see each other", i);
        assert_true(figure(beside, "kv_held_bytes") == figure(alone, "kv_held_bytes"));
        assert_true(figure(beside, "rounds") == figure(alone, "rounds"));
        json_decref(beside);
        json_decref(alone);
    }
}

/* The policy's own rounds decide which entries stay, and evicted facts are not found. */
TEST(streaming_loses_the_facts_that_it_evicts)
{
    struct eval_setup setup = setup_of("streaming:sinks=4,budget=100,slack=16");
    json_t *result = measure(&setup, true);
    assert_true(figure(result, "rounds") > 2.0);
    assert_true(figure(result, "held_max") <= 116.0);
    assert_true(figure(result, "recovered") < 0.6 && figure(result, "ratio") < 0.6);
    assert_true(figure(result, "kv_held_bytes") < figure(result, "full_kv_held_bytes"));
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(json_object_get(result, "rows"), i);
        assert_int_equal(json_integer_value(json_object_get(row, "found")), 0);
    }
    json_decref(result);
}

TEST(refuses_bad_lengths_and_counts)
{
    struct eval_setup setup = setup_of(NULL);
    static const int32_t few[] = {40};
    struct eval_facts_texts_params p = params(false);
    json_t *result = NULL;
    p.lengths = few;
    assert_int_equal(eval_facts_texts(&setup, &p, &result, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "40 tokens are too few"));
    p = params(false);
    p.n_text = 0;
    assert_int_equal(eval_facts_texts(&setup, &p, &result, &err), PITH_INVALID);
    p = params(false);
    p.n_length = 0;
    assert_int_equal(eval_facts_texts(&setup, &p, &result, &err), PITH_INVALID);
    p = params(false);
    p.haystack = " \n";
    p.haystack_len = 2;
    assert_int_equal(eval_facts_texts(&setup, &p, &result, &err), PITH_INVALID);
}

/* As a task of a sweep: seeds are drawn where texts are made. */
TEST(a_sweep_draws_seeds_of_texts)
{
    const char *path = in_folder("sweep.json"), *out = in_folder("sweep.jsonl");
    FILE *file = fopen(path, "wb");
    json_t *table = NULL;
    assert_non_null(file);
    fprintf(file, "{\"model\": \"" MODEL "\", \"engine\": {\"threads\": 1}, \"seeds\": [1, 2], "
                  "\"policies\": [\"full\", \"streaming\"], \"budgets\": [\"100\"], \"tasks\": "
                  "[{\"task\": \"facts\", \"style\": \"pith\", \"lengths\": [300], \"texts\": 1, "
                  "\"predict\": 12}]}");
    assert_int_equal(fclose(file), 0);
    struct eval_sweep_params p = {.path = path, .out = out};
    check(eval_sweep(&p, &table, &err), &err);
    const json_t *summary = json_object_get(table, "summary");
    assert_int_equal(json_integer_value(json_object_get(summary, "failed")), 0);
    json_decref(table);
}
