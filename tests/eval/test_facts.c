/*
 * test_facts.c - `pith eval facts`: its files, and one sentence for each fault in them. It runs the
 * task on the repository's small model, where the entries that a cut leaves are known.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "folder.h"
#include "json_read.h"

#include <facts.h>

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

/* ---- files ---- */

TEST(reads_contexts_and_questions)
{
    static const char text[] =
        "{\"context\": \"A text.\", \"questions\": [{\"ask\": \"Who?\", \"answer\": [7, 8]}]}\r\n"
        "\n"
        " {\"id\": \"two\", \"context\": [1, 2, 3], \"questions\": ["
        "{\"ask\": [4], \"answer\": \"x\", \"at\": 0.5}, {\"ask\": [5], \"answer\": [6], \"at\": "
        "1}]}";
    struct facts_file f;
    assert_int_equal(eval_facts_parse(text, strlen(text), &f, &err), PITH_OK);
    assert_int_equal(f.n, 2);
    assert_string_equal(f.item[0].name, "line 1");
    assert_string_equal(f.item[0].context.text, "A text.");
    assert_int_equal(f.item[0].n_question, 1);
    assert_string_equal(f.item[0].question[0].ask.text, "Who?");
    assert_int_equal(f.item[0].question[0].answer.n_id, 2);
    assert_int_equal(f.item[0].question[0].answer.ids[1], 8);
    assert_true(f.item[0].question[0].at < 0.0);
    assert_string_equal(f.item[1].name, "two");
    assert_null(f.item[1].context.text);
    assert_int_equal(f.item[1].context.ids[2], 3);
    assert_int_equal(f.item[1].n_question, 2);
    assert_true(f.item[1].question[0].at == 0.5 && f.item[1].question[1].at == 1.0);
    eval_facts_free(&f);
    assert_null(f.item);
}

#define LINE(context, questions) "{\"context\": " context ", \"questions\": " questions "}"

TEST(refuses_bad_files_with_line_and_reason)
{
    static const char *const bad[][2] = {
        {"", "no line"},
        {" \n\t\n", "no line"},
        {"{", "line 1"},
        {"[]", "line 1: context"},
        {LINE("\"\"", "[]"), "context is empty"},
        {LINE("[]", "[]"), "context is empty"},
        {LINE("5", "[]"), "context is neither"},
        {LINE("[1, -1]", "[]"), "no token id"},
        {LINE("[1, 2.5]", "[]"), "no token id"},
        {LINE("[1, 2147483648]", "[]"), "no token id"},
        {LINE("[1]", "[]"), "questions is empty"},
        {LINE("[1]", "{}"), "questions is no list"},
        {LINE("[1]", "[3]"), "question 1: ask"},
        {LINE("[1]", "[{\"ask\": [1]}]"), "question 1: answer"},
        {LINE("[1]", "[{\"ask\": [1], \"answer\": []}]"), "question 1: answer"},
        {LINE("[1]", "[{\"ask\": [1], \"answer\": [1]}, {\"ask\": [], \"answer\": [1]}]"),
         "question 2: ask"},
        {LINE("[1]", "[{\"ask\": [1], \"answer\": [1], \"at\": 1.5}]"), "at is no number"},
        {LINE("[1]", "[{\"ask\": [1], \"answer\": [1], \"at\": \"0\"}]"), "at is no number"},
        {LINE("[1]", "[{\"ask\": [1], \"answer\": [1]}]") "\n7", "line 2"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct facts_file f;
        err = (pith_error){0};
        assert_int_equal(eval_facts_parse(bad[i][0], strlen(bad[i][0]), &f, &err), PITH_FORMAT);
        if (strstr(err.message, bad[i][1]) == NULL)
            fail_msg("\"%s\": \"%s\" does not say %s", bad[i][0], err.message, bad[i][1]);
        eval_facts_free(&f);
    }
}

/* ---- the task ---- */

#define FILLER                                                                                     \
    "The old farmer walked to the river. There he sang behind the green cellar. The baker and "    \
    "the "                                                                                         \
    "doctor talked there. He took a purple door under the orchard before the snow stopped. The "   \
    "tired teacher came to the library. The rain fell and the small dog was happy. "
#define QUESTION(name, answer, at)                                                                 \
    "{\"ask\": \"\\nQuestion: What is the password of " name "?\\nAnswer: The password of " name   \
    " is\", \"answer\": \" " answer ".\", \"at\": " at "}"

/* Two contexts, each with a fact at the start and one at the end. */
static const char *write_items(void)
{
    const char *path = in_folder("items.jsonl");
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fprintf(
        file,
        "{\"id\": \"first\", \"context\": \"The password of Maria is copper lantern. " FILLER FILLER
        "The password of Peter is black butter. The rain fell.\", \"questions\": [" QUESTION(
            "Maria", "copper lantern", "0") ", " QUESTION("Peter", "black butter", "0.9") "]}\n");
    fprintf(file,
            "{\"context\": \"The password of Diana is wooden coin. " FILLER
            "The password of Walter is silver crown. The rain fell.\", \"questions\": [" QUESTION(
                "Diana", "wooden coin", "0") ", " QUESTION("Walter", "silver crown", "0.9") "]}\n");
    assert_int_equal(fclose(file), 0);
    return path;
}

static struct eval_setup setup_of(const char *keep)
{
    struct eval_setup s = {.model = model, .seed = 1, .keep_text = true};
    pith_engine_params_default(&s.engine);
    s.engine.n_thread = 2;
    s.engine.keep = keep;
    return s;
}

static json_t *measure(const char *keep, int32_t n_context)
{
    struct eval_setup setup = setup_of(keep);
    struct eval_facts_params p = {.path = write_items(), .n_context = n_context};
    json_t *result = NULL;
    if (eval_facts(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return result;
}

TEST(the_full_cache_finds_everything)
{
    json_t *result = measure(NULL, 0);
    assert_string_equal(json_string_value(json_object_get(result, "policy")), "full");
    assert_true(figure(result, "score") == 1.0 && figure(result, "se") == 0.0);
    assert_true(figure(result, "start") == 1.0 && figure(result, "end") == 1.0);
    assert_null(json_object_get(json_object_get(result, "summary"), "middle"));
    assert_int_equal((int)figure(result, "n"), 2);
    assert_int_equal((int)figure(result, "answers"), 4);
    assert_int_equal((int)figure(result, "rounds"), 0);
    const json_t *row = json_array_get(json_object_get(result, "rows"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "context")), "first");
    assert_int_equal(json_integer_value(json_object_get(row, "held")),
                     json_integer_value(json_object_get(row, "tokens")));
    assert_int_equal(json_array_size(json_object_get(row, "said")), 2);
    json_decref(result);
}

/* The model knows the end of a text but not its start. There is one round per context and none in
   between, and the questions see the same cut. */
TEST(streaming_finds_the_end_alone)
{
    json_t *result = measure("streaming:sinks=1,budget=40", 0);
    assert_string_equal(json_string_value(json_object_get(result, "policy")),
                        "streaming:sinks=1,budget=40");
    assert_true(figure(result, "start") == 0.0 && figure(result, "end") == 1.0);
    assert_true(figure(result, "score") == 0.5);
    assert_int_equal((int)figure(result, "rounds"), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = json_array_get(json_object_get(result, "rows"), i);
        assert_int_equal(json_integer_value(json_object_get(row, "held")), 40);
        assert_int_equal(json_integer_value(json_object_get(row, "right")), 1);
    }
    json_decref(result);
    result = measure("streaming:sinks=1,budget=40", 1);
    assert_int_equal((int)figure(result, "n"), 1);
    assert_true(json_is_null(json_object_get(json_object_get(result, "summary"), "se")));
    json_decref(result);
}

/* A budget that holds everything gives the results of the full cache, for every storage type. */
TEST(a_budget_that_holds_all_is_the_full_cache)
{
    static const char *const keep[] = {"knorm:budget=1000", "random:budget=100%",
                                       "triattention:v3,budget=1000"};
    for (size_t i = 0; i < 3; i++) {
        json_t *result = measure(keep[i], 0), *full = measure(NULL, 0);
        assert_int_equal((int)figure(result, "rounds"), 0);
        assert_true(json_equal(json_object_get(result, "rows"), json_object_get(full, "rows")));
        json_decref(result);
        json_decref(full);
    }
}

TEST(refuses_policies_and_missing_files)
{
    static const char *const keep[][2] = {
        {"streaming:slack=64", "slack"},
        {"streaming:budget=64MiB", "bytes"},
        {"streaming:sinks=2,slack=1,budget=50%", "slack"},
        {"nonsense", "policy"},
    };
    for (size_t i = 0; i < sizeof(keep) / sizeof(*keep); i++) {
        struct eval_setup setup = setup_of(keep[i][0]);
        struct eval_facts_params p = {.path = write_items()};
        json_t *result = NULL;
        assert_int_equal(eval_facts(&setup, &p, &result, &err), PITH_INVALID);
        if (strstr(err.message, keep[i][1]) == NULL)
            fail_msg("%s: %s", keep[i][0], err.message);
        assert_null(result);
    }
    struct eval_setup setup = setup_of(NULL);
    struct eval_facts_params p = {.path = in_folder("absent.jsonl")};
    json_t *result = NULL;
    assert_int_equal(eval_facts(&setup, &p, &result, &err), PITH_IO);
    assert_int_equal(eval_facts(&setup, &(struct eval_facts_params){0}, &result, &err),
                     PITH_INVALID);
}

/* Ids that the model has not are refused with the value. */
TEST(refuses_ids_that_the_model_lacks)
{
    const char *path = in_folder("foreign.jsonl");
    FILE *file = fopen(path, "wb");
    struct eval_setup setup = setup_of(NULL);
    struct eval_facts_params p = {.path = path};
    json_t *result = NULL;
    assert_non_null(file);
    fputs(LINE("[1, 2, 999999]", "[{\"ask\": [1], \"answer\": [1]}]"), file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(eval_facts(&setup, &p, &result, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "999999"));
}
