/*
 * LongBench: each metric gives what the authors' own code gave for the same texts
 * (scripts/golden/longbench.py). And a file of the benchmark, asked of a model.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "lines.h"
#include "longbench.h"
#include "testing.h"

#define GOLDEN PITH_SOURCE_DIR "/tests/golden/longbench.jsonl"
#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

static enum longbench_metric metric_of(const char *name)
{
    static const char *const names[] = {
        "qa_f1", "rouge", "classification", "retrieval", "retrieval_zh", "count", "code"};
    for (int i = 0; i < 7; i++)
        if (strcmp(name, names[i]) == 0)
            return (enum longbench_metric)i;
    fail_msg("there is no metric %s", name);
    return LONGBENCH_NONE;
}

static int32_t n_checked, n_partial;

static pith_status check_line(void *user, const json_t *json, int32_t line, pith_error *out)
{
    struct eval_strings classes = {0};
    const json_t *list = json_object_get(json, "classes");
    const char *name = json_string_value(json_object_get(json, "metric"));
    double want = json_number_value(json_object_get(json, "score")), got = -1.0;
    (void)user;
    for (size_t i = 0; i < json_array_size(list); i++)
        eval_strings_add(&classes, json_string_value(json_array_get(list, i)));
    pith_status status = eval_longbench_score(
        metric_of(name), json_string_value(json_object_get(json, "answer")),
        json_string_value(json_object_get(json, "truth")), &classes, &got, out);
    eval_strings_free(&classes);
    if (status == PITH_OK && fabs(got - want) > 1e-12)
        fail_msg("line %d, %s: %.15g instead of %.15g", line, name, got, want);
    n_checked++;
    n_partial += want > 0.0 && want < 1.0;
    return status;
}

TEST(metrics_are_the_authors)
{
    char *text = NULL;
    size_t len = 0;
    n_checked = n_partial = 0;
    if (eval_read_file(GOLDEN, &text, &len, &err) != PITH_OK ||
        eval_lines_read(text, len, "golden", check_line, NULL, &err) != PITH_OK)
        fail_msg("%s", err.message);
    free(text);
    assert_true(n_checked > 250 && n_partial > 100);
}

TEST(prompts_hold_their_texts)
{
    struct eval_text t = {0};
    assert_null(eval_longbench_find("nothing"));
    eval_longbench_prompt(eval_longbench_find("hotpotqa"), "A {input} B", "Who?", &t);
    assert_non_null(strstr(t.data, "passages.\nA {input} B\n\nAnswer"));
    assert_non_null(strstr(t.data, "\n\nQuestion: Who?\nAnswer:"));
    eval_text_free(&t);
    assert_true(eval_longbench_find("lcc")->plain && eval_longbench_find("trec")->first_line);
    assert_int_equal(eval_longbench_find("vcsum")->metric, LONGBENCH_NONE);
}

static double run(pith_model *model, const char *path, struct eval_longbench_params p,
                  json_t **rows, int64_t *n_cut)
{
    struct eval_setup setup = {.model = model, .keep_text = true};
    json_t *result = NULL;
    pith_engine_params_default(&setup.engine);
    p.path = path;
    if (eval_longbench(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    const json_t *summary = json_object_get(result, "summary");
    double score = json_number_value(json_object_get(summary, "score"));
    *n_cut = json_integer_value(json_object_get(summary, "cut_prompts"));
    *rows = json_incref(json_object_get(result, "rows"));
    json_decref(result);
    return score;
}

/* The model repeats facts: the answer's words are the truth's. Prompts are cut in their middle. */
TEST(a_file_is_asked)
{
    pith_model *model = NULL;
    char path[] = "/tmp/pith-hotpotqa_e-XXXXXX";
    int fd = mkstemp(path);
    json_t *rows, *together;
    int64_t n_cut;
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "wb");
    for (int i = 0; i < 3; i++)
        fprintf(f,
                "{\"input\": \"What is the password of Maria?\", \"context\": \"The password of "
                "Maria is"
                " copper lantern. The friend of Anton is Emma.\", \"answers\": [\"no\", \"Copper "
                "lantern\"], \"length\": %d, \"dataset\": %s, \"all_classes\": null}\n",
                3000 * i, i == 0 ? "10" : "\"hotpotqa\"");
    fclose(f);
    assert_int_equal(pith_model_load(MODEL, NULL, &model, &err), PITH_OK);
    struct eval_longbench_params p = {.dataset = "hotpotqa", .n_parallel = 1, .n_predict = 6};
    double score = run(model, path, p, &rows, &n_cut);
    assert_true(score > 0.0 && score <= 1.0);
    assert_int_equal(n_cut, 0);
    assert_int_equal(json_array_size(rows), 2); /* 0 and 3,000 words, 6,000 words */
    assert_int_equal(json_integer_value(json_object_get(json_array_get(rows, 0), "n")), 2);
    p.n_parallel = 3;
    assert_true(run(model, path, p, &together, &n_cut) == score);
    assert_true(json_equal(rows, together));
    json_decref(rows);
    json_decref(together);
    p.n_length = 40;
    run(model, path, p, &rows, &n_cut);
    assert_int_equal(n_cut, 3);
    json_decref(rows);

    struct eval_setup setup = {.model = model};
    pith_engine_params_default(&setup.engine);
    p.path = path;
    p.dataset = "dureader";
    assert_int_equal(eval_longbench(&setup, &p, &rows, &err), PITH_UNSUPPORTED);
    p.dataset = NULL; /* its name begins otherwise, and the first line has a number */
    assert_int_equal(eval_longbench(&setup, &p, &rows, &err), PITH_INVALID);
    unlink(path);
    pith_model_free(model);
}

/* A line that no answer could score, or that no row would count, is refused with its number. */
TEST(lines_without_a_score_are_refused)
{
    static const char *const bad[][2] = {
        {"\"dataset\": \"trec\"", "line 2: all_classes"},
        {"\"dataset\": \"trec\", \"all_classes\": []", "line 2: all_classes"},
        {"\"dataset\": \"qasper\", \"length\": -5", "line 2: length -5 is negative"},
        {"\"dataset\": \"qasper\", \"length\": \"5\"", "line 2: length is no whole number"},
        {"\"dataset\": \"qasper\"}\n{\"context\": \"\", \"input\": \"\", \"dataset\": \"trec\"",
         "line 3 is of \"trec\", and earlier ones of qasper"},
    };
    pith_model *model = NULL;
    char path[] = "/tmp/pith-longbench-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(pith_model_load(MODEL, NULL, &model, &err), PITH_OK);
    struct eval_setup setup = {.model = model};
    pith_engine_params_default(&setup.engine);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct eval_longbench_params p = {.path = path, .n_parallel = 1, .n_predict = 2};
        json_t *result = NULL;
        FILE *f = fopen(path, "wb");
        fprintf(f, "\n{\"context\": \"c\", \"input\": \"i\", \"answers\": [\"a\"], %s}\n",
                bad[i][0]);
        fclose(f);
        assert_int_equal(eval_longbench(&setup, &p, &result, &err), PITH_FORMAT);
        assert_non_null(strstr(err.message, bad[i][1]));
    }
    unlink(path);
    pith_model_free(model);
}
