/* The tasks of `pith eval` end to end, on the small model of the repository. */
#define _POSIX_C_SOURCE 200809L
#include "testing.h"
#include "with_template.h"

#include <string.h>

#include "eval/eval.h"
#include "eval/ruler.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

static pith_model *load_model(void)
{
    pith_model *model = NULL;
    if (pith_model_load(MODEL, NULL, &model, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return model;
}

static struct eval_setup setup_of(const pith_model *model)
{
    struct eval_setup s = {.model = model, .seed = 11, .keep_text = true};
    pith_engine_params_default(&s.engine);
    return s;
}

static double summary(const json_t *result, const char *key)
{
    const json_t *value = json_object_get(json_object_get(result, "summary"), key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* The model answers its own kind of question wherever the fact stands, and the prompt has the
   tokens that were asked for. */
TEST(needle_runs_on_the_model)
{
    pith_model *model = load_model();
    struct eval_setup setup = setup_of(model);
    static const int32_t lengths[] = {256, 1024};
    static const double depths[] = {0.0, 0.5, 1.0};
    struct eval_needle_params p = {.style = EVAL_NEEDLE_PITH, .n_needle = 1};
    char *hay = NULL;
    assert_int_equal(
        eval_read_file(PITH_SOURCE_DIR "/models/demo/prompt-2k.txt", &hay, &p.haystack_len, &err),
        PITH_OK);
    p.haystack = hay;
    p.haystack_len = (size_t)(strstr(hay, "\nQuestion:") - hay); /* facts about others stay */
    p.lengths = lengths;
    p.n_length = 2;
    p.depths = depths;
    p.n_depth = 3;
    p.n_repeat = 2;
    p.n_predict = 24;
    json_t *result = NULL;
    if (eval_needle(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    const json_t *rows = json_object_get(result, "rows");
    assert_int_equal(json_array_size(rows), 6);
    for (size_t i = 0; i < 6; i++) {
        const json_t *row = json_array_get(rows, i);
        double n = json_number_value(json_object_get(row, "tokens"));
        double length = json_number_value(json_object_get(row, "length"));
        assert_true(n <= length && n > length - 8);
        assert_int_equal(json_array_size(json_object_get(row, "texts")), 2);
    }
    assert_int_equal(summary(result, "n"), 12);
    assert_true(summary(result, "score") >= 0.9);
    json_decref(result);
    free(hay);
    pith_model_free(model);
}

TEST(ruler_runs_on_the_model)
{
    pith_model *model = load_model();
    struct eval_setup setup = setup_of(model);
    static const char *const tasks[] = {"all"};
    static const int32_t lengths[] = {640};
    struct eval_ruler_params p = {
        .tasks = tasks, .n_task = 1, .lengths = lengths, .n_length = 1, .n_sample = 1};
    json_t *result = NULL;
    if (eval_ruler(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(json_array_size(json_object_get(result, "rows")),
                     RULER_N_TASK - 2); /* no files */
    assert_int_equal(summary(result, "n"), RULER_N_TASK - 2);
    json_decref(result);
    static const char *const none[] = {"niah_single_9"};
    p.tasks = none;
    assert_int_equal(eval_ruler(&setup, &p, &result, &err), PITH_INVALID);
    pith_model_free(model);
}

static void write_to(char *path, const char *text)
{
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

/* A file of HotpotQA whose question lacks something. */
static void refuse_question(const struct eval_setup *setup, const char *text)
{
    char path[] = "/tmp/pith-hotpot-XXXXXX";
    struct eval_ruler_params p = {.tasks = (const char *const[]){"qa_2"},
                                  .n_task = 1,
                                  .lengths = (int32_t[]){420},
                                  .n_length = 1,
                                  .n_sample = 1,
                                  .hotpotqa = path};
    json_t *result = NULL;
    write_to(path, text);
    assert_int_equal(eval_ruler(setup, &p, &result, &err), PITH_FORMAT);
    assert_non_null(strstr(err.message, ": question 1 has no text, no answer or no document"));
    unlink(path);
}

/* qa_1 and qa_2: a question's own documents are there, others as far as there is room, and one of
   several answers is enough. */
TEST(ruler_asks_questions_among_documents)
{
    char squad[] = "/tmp/pith-squad-XXXXXX", hotpot[] = "/tmp/pith-hotpot-XXXXXX";
    static const char *const tasks[] = {"qa_1", "qa_2"};
    static const int32_t lengths[] = {230, 420};
    pith_model *model = load_model();
    struct eval_setup setup = setup_of(model);
    struct eval_ruler_params p = {
        .tasks = tasks, .n_task = 2, .lengths = lengths, .n_length = 2, .n_sample = 2};
    json_t *result = NULL;
    write_to(
        squad,
        "{\"data\": [{\"paragraphs\": [{\"context\": \"The password of Maria is copper lantern.\","
        " \"qas\": [{\"question\": \"Gone?\", \"is_impossible\": true, \"answers\": []},"
        " {\"question\": \"What is the password of Maria?\", \"is_impossible\": false,"
        " \"answers\": [{\"text\": \"zzz\"}, {\"text\": \"a\"}, {\"text\": \"e\"}]}]},"
        " {\"context\": \"The friend of Anton is Emma.\", \"qas\": []}]}]}");
    write_to(hotpot,
             "[{\"question\": \"Who is the friend of Anton?\", \"answer\": \"Emma\", \"context\":"
             " [[\"Anton\", [\"The friend of Anton\", \" is Emma.\"]], [\"Otto\", [\"Otto "
             "sleeps.\"]]]}]");
    assert_int_equal(eval_ruler(&setup, &p, &result, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "--squad"));
    p.squad = squad;
    p.hotpotqa = hotpot;
    setup.keep_text = true;
    if (eval_ruler(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(json_object_get(result, "rows"), i);
        const json_t *text = json_array_get(json_object_get(row, "texts"), 1);
        const char *prompt = json_string_value(json_object_get(text, "prompt"));
        assert_non_null(
            strstr(prompt, i < 2 ? "lantern.\n" : "Anton\nThe friend of Anton is Emma.\n"));
        assert_non_null(strstr(prompt, i < 2 ? "Question: What is the password of Maria?"
                                             : "Question: Who is the friend of Anton?"));
        assert_non_null(strstr(prompt, "Document 2:\n"));
        assert_int_equal(strstr(prompt, "Document 5:\n") != NULL, i % 2 == 1);
        double n = json_number_value(json_object_get(row, "tokens"));
        assert_true(n <= lengths[i % 2] - 32 && n > 0.6 * lengths[i % 2] - 32);
        double score = json_number_value(json_object_get(row, "score"));
        assert_true(score == 0.0 || score == 0.5 || score == 1.0);
    }
    json_decref(result);
    p.squad = hotpot;
    assert_int_equal(eval_ruler(&setup, &p, &result, &err), PITH_FORMAT);
    refuse_question(&setup, "[{\"question\": \"a\", \"answer\": \"b\", \"context\": 5}]");
    refuse_question(&setup, "[{\"question\": \"a\", \"context\": [[\"t\", [\"s\"]]]}]");
    unlink(squad);
    unlink(hotpot);
    pith_model_free(model);
}

TEST(recursion_runs_on_the_model)
{
    pith_model *model = load_model();
    struct eval_setup setup = setup_of(model);
    struct eval_recursion_params p = {.min_steps = 6,
                                      .max_steps = 8,
                                      .step_stride = 2,
                                      .n_sample = 2,
                                      .n_parallel = 1,
                                      .trace = true};
    json_t *result = NULL, *together = NULL;
    setup.keep_text = true;
    if (eval_recursion(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(summary(result, "n"), 4);
    p.n_parallel = 3;
    if (eval_recursion(&setup, &p, &together, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_true(json_equal(json_object_get(result, "rows"), json_object_get(together, "rows")));
    json_decref(together);
    json_decref(result);
    p.trace = false;
    p.n_predict = 16;
    if (eval_recursion(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(json_array_size(json_object_get(result, "rows")), 2);
    json_decref(result);
    p.max_steps = 99;
    assert_int_equal(eval_recursion(&setup, &p, &result, &err), PITH_INVALID);
    p.max_steps = 8;
    p.step_stride = INT32_MAX; /* 6 and this is no number of steps */
    assert_int_equal(eval_recursion(&setup, &p, &result, &err), PITH_INVALID);

    static const int32_t parts[] = {4, 6};
    struct eval_derivation_params d = {.parts = parts, .n_part = 2, .n_sample = 1};
    if (eval_derivation(&setup, &d, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(summary(result, "n"), 2);
    json_decref(result);
    pith_model_free(model);
}

/* Arguments that are not UTF-8, beyond the model, or beyond all numbers. */
TEST(needle_refuses_settings_beyond_the_model)
{
    pith_model *model = load_model();
    struct eval_setup setup = setup_of(model);
    static const int32_t small[] = {96}, beyond[] = {4200}, most[] = {64, INT32_MAX};
    static const double depths[] = {0.5};
    struct eval_needle_params p = {.n_needle = 1, .n_repeat = 1, .n_predict = 1};
    json_t *result = NULL;
    p.word = "CAF\xc9"; /* Latin-1 */
    p.lengths = small;
    p.n_length = 1;
    p.depths = depths;
    p.n_depth = 1;
    if (eval_needle(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    const json_t *settings = json_object_get(result, "settings");
    assert_string_equal(json_string_value(json_object_get(settings, "word")), "CAF\xef\xbf\xbd");
    assert_null(json_object_get(json_object_get(result, "summary"), "note"));
    json_decref(result);

    p.word = NULL;
    p.lengths = beyond;
    if (eval_needle(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    const char *note =
        json_string_value(json_object_get(json_object_get(result, "summary"), "note"));
    assert_non_null(note);
    assert_non_null(strstr(note, "longer than the 4096 of the model's training"));
    json_decref(result);

    p.lengths = most;
    p.n_length = 2;
    assert_int_equal(eval_needle(&setup, &p, &result, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "2147483647"));
    p.lengths = small;
    p.n_length = 1;
    p.n_predict = INT32_MAX;
    assert_int_equal(eval_needle(&setup, &p, &result, &err), PITH_INVALID);
    pith_model_free(model);
}

/* A template that opens the thinking block itself: the answer has no "<think>" of its own. An
   answer that never comes to "</think>" is no answer here either. An opening of the answer closes
   it. */
TEST(an_answer_closes_the_thought_that_a_template_opens)
{
    char path[] = "/tmp/pith-thinking-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    write_with_template(MODEL, path,
                        "{% for m in messages %}{{ m.content.split('</think>')[-1] }}"
                        "{% endfor %}{{ '<|im_start|>assistant\\n<think>\\n' -}}");
    pith_model *model = NULL;
    if (pith_model_load(path, NULL, &model, &err) != PITH_OK)
        fail_msg("%s", err.message);
    struct eval_setup setup = setup_of(model);
    bool thinks = true;
    assert_int_equal(eval_thinks(&setup, &thinks, &err), PITH_OK);
    assert_false(thinks); /* without --chat */
    setup.chat = true;
    assert_int_equal(eval_thinks(&setup, &thinks, &err), PITH_OK);
    assert_true(thinks);

    static const int32_t lengths[] = {128};
    static const double depths[] = {0.5};
    struct eval_needle_params p = {.n_needle = 1,
                                   .n_repeat = 1,
                                   .n_predict = 4,
                                   .lengths = lengths,
                                   .n_length = 1,
                                   .depths = depths,
                                   .n_depth = 1};
    json_t *result = NULL;
    if (eval_needle(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    const json_t *row = json_array_get(json_object_get(result, "rows"), 0);
    const json_t *text = json_array_get(json_object_get(row, "texts"), 0);
    const char *answer = json_string_value(json_object_get(text, "answer"));
    assert_memory_equal(answer, "<think>\n", 8);
    json_decref(result);

    int32_t *ids = NULL, n_id = 0;
    char said[512];
    size_t len = 0;
    assert_int_equal(eval_encode(&setup, "Who?", "It is", &ids, &n_id, &err), PITH_OK);
    assert_int_equal(pith_detokenize(model, ids, n_id, true, said, sizeof(said) - 1, &len, &err),
                     PITH_OK);
    said[len] = '\0';
    assert_non_null(strstr(said, "</think>\n\nIt is"));
    free(ids);
    pith_model_free(model);
    unlink(path);
}

TEST(questions_run_on_the_model)
{
    pith_model *model = load_model();
    struct eval_setup setup = setup_of(model);
    char path[] = "/tmp/pith-questions-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "wb");
    fputs("{\"problem\": \"What is 1 + 1?\", \"answer\": 2}\n{\"question\": \"Count to three.\","
          " \"answer\": \"x\\n#### 3\"}\n",
          f);
    fclose(f);
    struct eval_questions_params p = {.path = path, .n_draw = 3, .n_parallel = 1, .n_predict = 12};
    pith_sample_params_default(&p.sample);
    json_t *result = NULL, *again = NULL, *together = NULL;
    if (eval_questions(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(eval_questions(&setup, &p, &again, &err), PITH_OK);
    assert_int_equal(summary(result, "n"), 2);
    const json_t *rows = json_object_get(result, "rows");
    assert_true(json_equal(rows, json_object_get(again, "rows"))); /* seeded */
    const json_t *texts = json_object_get(json_array_get(rows, 0), "texts");
    assert_int_equal(json_array_size(texts), 3);
    assert_false(json_equal(json_array_get(texts, 0), json_array_get(texts, 1))); /* sampled */
    p.n_parallel = 4;
    assert_int_equal(eval_questions(&setup, &p, &together, &err), PITH_OK);
    assert_true(json_equal(rows, json_object_get(together, "rows"))); /* the same beside other
                                                                         tasks */
    assert_int_equal(summary(together, "generated_tokens"), summary(result, "generated_tokens"));
    assert_int_equal(summary(together, "prompt_tokens"), summary(result, "prompt_tokens"));
    p.n_parallel = 0;
    assert_int_equal(eval_questions(&setup, &p, &together, &err), PITH_INVALID);
    json_decref(result);
    json_decref(again);
    json_decref(together);
    unlink(path);
    pith_model_free(model);
}

/* The work of policies for an answer is counted beside others as it is alone. */
TEST(questions_beside_others_count_the_same)
{
    static const struct {
        const char *keep, *read, *recall;
    } ways[] = {{NULL, "quoka:budget=8,chunk=16,gate=1", NULL},
                {"streaming:budget=128,slack=16", NULL, "text:floor=0"}};
    pith_model *model = load_model();
    char path[] = "/tmp/pith-questions-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "wb");
    for (int32_t i = 0; i < 3; i++) {
        fprintf(f, "{\"problem\": \"The password of Maria is red %d. ", i);
        for (int32_t k = 0; k < 40 + i; k++)
            fprintf(f, "The friend of Anton is Emma. ");
        fprintf(f, "\\nQuestion: What is the password of Maria?\\nAnswer:\", \"answer\": %d}\n", i);
    }
    fclose(f);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct eval_setup setup = setup_of(model);
        struct eval_questions_params p = {.path = path, .n_draw = 1, .n_predict = 8};
        json_t *result[2];
        pith_sample_params_default(&p.sample);
        setup.engine.keep = ways[i].keep;
        setup.engine.read = ways[i].read;
        setup.engine.recall = ways[i].recall;
        for (int32_t k = 0; k < 2; k++) {
            p.n_parallel = 1 + 2 * k;
            if (eval_questions(&setup, &p, &result[k], &err) != PITH_OK)
                fail_msg("%s", err.message);
        }
        assert_true(
            json_equal(json_object_get(result[0], "rows"), json_object_get(result[1], "rows")));
        assert_true(summary(result[1], "read_share") == summary(result[0], "read_share"));
        assert_true(summary(result[1], "prompt_tokens") == summary(result[0], "prompt_tokens"));
        assert_true(summary(result[1], "evicted") == summary(result[0], "evicted"));
        assert_int_equal(summary(result[0], "read_share") < 0.9, ways[i].read != NULL);
        const json_t *recall[2];
        for (int32_t k = 0; k < 2; k++)
            recall[k] = json_object_get(json_object_get(result[k], "summary"), "recall");
        assert_int_equal(recall[0] != NULL, ways[i].recall != NULL);
        if (recall[0] != NULL)
            assert_int_equal(json_integer_value(json_object_get(recall[0], "tokens")),
                             json_integer_value(json_object_get(recall[1], "tokens")));
        if (recall[0] != NULL)
            assert_true(json_integer_value(json_object_get(recall[0], "tokens")) > 0);
        json_decref(result[0]);
        json_decref(result[1]);
    }
    unlink(path);
    pith_model_free(model);
}
