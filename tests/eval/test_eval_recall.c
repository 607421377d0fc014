/*
 * test_eval_recall.c - recall in the measuring commands. Every task accepts it or says why not, and
 * a sweep has it as a dimension and finds its old results. Tables and reports name it and show its
 * seconds.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>

#include <eval.h>
#include <kept.h>
#include <print.h>
#include <report.h>
#include <results.h>
#include <sweep.h>

#include "eval_read.h"

TEST_GROUP(make_folder, remove_folder);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define DEMO_TEXT PITH_SOURCE_DIR "/models/demo/prompt-2k.txt"
#define GOLDEN PITH_SOURCE_DIR "/tests/golden/replay.safetensors"
#define KEEP "streaming:slack=8,sinks=4"
#define KV "kv:ram=1MiB,last=16,block=4"
#define NEEDLE                                                                                     \
    "{\"task\": \"needle\", \"style\": \"pith\", \"lengths\": [256], \"depths\": [0.25, 0.5]}"
#define SWEEP(policies, budgets, tasks)                                                            \
    "{\"model\": \"" MODEL                                                                         \
    "\", \"engine\": {\"threads\": 1, \"page\": 16}, \"policies\": [" policies                     \
    "], \"budgets\": " budgets ", \"tasks\": [" tasks "]}"

static pith_status sweep(const char *text, bool fresh, char *notes, json_t **table, pith_error *why)
{
    put("s.json", text);
    notes[0] = '\0';
    const struct eval_sweep_params p = {.path = in_folder("s.json"),
                                        .out = in_folder("o.jsonl"),
                                        .fresh = fresh,
                                        .note = on_note,
                                        .user = notes};
    return eval_sweep(&p, table, why);
}

/* The table of a sweep in which no cell failed. */
static json_t *sweep_ok(const char *text, bool fresh)
{
    char notes[NOTES_SIZE];
    json_t *table = NULL;
    check(sweep(text, fresh, notes, &table, &err), &err);
    if (number(json_object_get(table, "summary"), "failed") != 0)
        fail_msg("%s", notes);
    return table;
}

static struct results read_out(void)
{
    err = (pith_error){0};
    struct results r = {0};
    check(results_read(in_folder("o.jsonl"), &r, &err), &err);
    return r;
}

static const json_t *summary_of(const json_t *line)
{
    return json_object_get(line, "summary");
}

/* ---- sweeps ---- */

#define ARMS                                                                                       \
    "\"full\", {\"name\": \"alone\", \"keep\": \"" KEEP                                            \
    "\"}, {\"name\": \"kv\", \"keep\": \"" KEEP "\", \"recall\": \"" KV                            \
    "\"}, {\"name\": \"small\", \"keep\": \"" KEEP "\", \"recall\": \"" KV                         \
    "\", \"type_k\": \"q8_0\", \"type_v\": \"q8_0\"}"

TEST(a_sweep_has_recall_as_a_dimension)
{
    static const struct {
        const char *policy, *keep, *recall, *store;
    } wanted[] = {{"full", "full", NULL, NULL},
                  {"alone", KEEP ",budget=64", NULL, NULL},
                  {"kv", KEEP ",budget=64", KV, NULL},
                  {"small", KEEP ",budget=64", KV, "q8_0/q8_0"}};
    json_t *table = sweep_ok(SWEEP(ARMS, "[64]", NEEDLE), true);
    struct results r = read_out();
    assert_int_equal(json_array_size(r.lines), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *line = json_array_get(r.lines, i), *summary = summary_of(line);
        const json_t *row = json_array_get(json_object_get(table, "rows"), i);
        const json_t *recall = json_object_get(summary, "recall");
        const char *words[] = {results_text(line, "recall"), results_text(line, "store")};
        assert_string_equal(results_text(row, "policy"), wanted[i].policy);
        assert_string_equal(results_text(line, "policy"), wanted[i].keep);
        assert_true((words[0] == NULL) == (wanted[i].recall == NULL));
        assert_true((words[1] == NULL) == (wanted[i].store == NULL));
        if (words[0] != NULL)
            assert_string_equal(words[0], wanted[i].recall);
        if (words[1] != NULL)
            assert_string_equal(words[1], wanted[i].store);
        assert_true((recall == NULL) == (wanted[i].recall == NULL));
        assert_true(fabs(number(row, "prompt_s") - number(summary, "prompt_seconds") / 2) < 1e-9);
        if (recall == NULL) {
            assert_true(json_is_null(json_object_get(row, "recall_s")));
            continue;
        }
        /* A recall for each prompt at least, of a tier that holds all that was evicted. */
        assert_true(number(recall, "recalls") >= 2.0 && number(recall, "lost") == 0.0);
        assert_true(number(recall, "guests") > 0.0 && number(recall, "ram_bytes") > 0.0);
        assert_true(number(recall, "stored") == number(summary, "evicted"));
        assert_true(number(recall, "seconds") > 0.0 && number(recall, "tokens") == 0.0);
        assert_true(fabs(number(row, "recall_s") - number(recall, "seconds") / 2) < 1e-9);
        assert_true(number(summary, "kv_peak_bytes") <
                    number(summary_of(json_array_get(r.lines, 0)), "kv_peak_bytes"));
    }
    results_free(&r);
    json_decref(table);
    table = sweep_ok(SWEEP("\"full\"", "[]", NEEDLE), true);
    assert_null(json_object_get(json_array_get(json_object_get(table, "rows"), 0), "prompt_s"));
    json_decref(table);
}

/* A result is identified by all options of recall, and a present result does not run again. */
TEST(a_result_is_known_by_all_options_of_recall)
{
    char notes[NOTES_SIZE];
    json_t *table = NULL;
    json_decref(sweep_ok(SWEEP(ARMS, "[64]", NEEDLE), true));
    check(sweep(SWEEP(ARMS ", {\"name\": \"other\", \"keep\": \"" KEEP "\", \"recall\": \"" KV
                           ",take=50%\"}",
                      "[64]", NEEDLE),
                false, notes, &table, &err),
          &err);
    assert_true(number(summary_of(table), "done") == 4 && number(summary_of(table), "run") == 1);
    json_decref(table);
    check(sweep(SWEEP(ARMS, "[64]", NEEDLE), false, notes, &table, &err), &err);
    assert_true(number(summary_of(table), "done") == 4 && number(summary_of(table), "run") == 0);
    json_decref(table);
    struct results r = read_out();
    for (size_t i = 0; i < 5; i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(
                results_text(json_object_get(json_array_get(r.lines, i), "cell"), "hash"),
                results_text(json_object_get(json_array_get(r.lines, j), "cell"), "hash"));
    results_free(&r);
}

TEST(says_what_is_wrong_in_a_sentence)
{
    static const struct {
        const char *policies, *word;
    } cases[] = {
        {"{\"name\": \"x\", \"recall\": \"kv\"}", "\"x\" has recall and no keep"},
        {"{\"name\": \"x\", \"keep\": \"" KEEP "\", \"recall\": 3}", "are texts"},
        {"{\"name\": \"x\", \"keep\": \"" KEEP "\", \"recall\": \"kw\"}", "kw"},
        {"{\"name\": \"x\", \"keep\": \"" KEEP "\", \"recall\": \"kv:blocks=4\"}", "blocks"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[1024], notes[NOTES_SIZE];
        err = (pith_error){0};
        json_t *table = NULL;
        snprintf(text, sizeof(text),
                 "{\"model\": \"" MODEL "\", \"policies\": [%s], \"budgets\": [64], \"tasks\": "
                 "[" NEEDLE "]}",
                 cases[i].policies);
        expect(sweep(text, true, notes, &table, &err), &err, PITH_INVALID, cases[i].word);
        assert_null(table);
    }
}

/* ---- tasks ---- */

#define RULER                                                                                      \
    "{\"task\": \"ruler\", \"lengths\": [400], \"samples\": 1, \"tasks\": [\"niah_single_1\"]}"
#define ASKING                                                                                     \
    NEEDLE ", " RULER ", {\"task\": \"recursion\", \"min_steps\": 6, \"max_steps\": 6, "           \
           "\"samples\": 1, \"predict\": 8}, {\"task\": \"derivation\", \"parts\": [8], "          \
           "\"samples\": 1}, {\"task\": \"questions\", \"file\": \"q.jsonl\", \"predict\": 8}"
#define READING                                                                                    \
    "{\"task\": \"perplexity\", \"file\": \"prose.txt\", \"n_ctx\": 192, \"n_batch\": 64, "        \
    "\"chunks\": 2}, {\"task\": \"divergence\", \"file\": \"prose.txt\", \"n_ctx\": 192, "         \
    "\"chunks\": 1}, {\"task\": \"kept\", \"file\": \"prose.txt\", \"n_ctx\": 128, \"every\": 64}"

static void put_texts(void)
{
    char prose[8192] = "", question[1024] = "";
    for (int k = 0; k < 90; k++)
        snprintf(prose + strlen(prose), sizeof(prose) - strlen(prose),
                 "The friend of Maria is Omar and the street has %d lamps. ", k);
    put("prose.txt", prose);
    for (int k = 0; k < 12; k++)
        snprintf(question + strlen(question), sizeof(question) - strlen(question),
                 "The way to the lake is long. ");
    char line[2048];
    snprintf(line, sizeof(line),
             "{\"problem\": \"The friend of Maria is Omar. %sWho is the friend of Maria?\", "
             "\"answer\": \"7\"}\n",
             question);
    put("q.jsonl", line);
}

/* Each has evicted and recalled, and the cost is in its summary. */
static void expect_recalled(size_t n_line, const char *recall)
{
    struct results r = read_out();
    assert_int_equal(json_array_size(r.lines), n_line);
    for (size_t i = 0; i < n_line; i++) {
        const json_t *line = json_array_get(r.lines, i);
        const json_t *cost = json_object_get(summary_of(line), "recall");
        assert_string_equal(results_text(line, "recall"), recall);
        if (!(number(summary_of(line), "evicted") > 0 && number(cost, "stored") > 0))
            fail_msg("%s: %g entries were evicted, and %g stored", results_text(line, "task"),
                     number(summary_of(line), "evicted"), number(cost, "stored"));
        assert_true(number(cost, "recalls") > 0.0 && number(cost, "seconds") > 0.0);
    }
    results_free(&r);
}

TEST(every_task_runs_with_recall_of_entries)
{
    put_texts();
    json_decref(sweep_ok(SWEEP("{\"name\": \"x\", \"keep\": \"streaming:budget=32,slack=4\", "
                               "\"recall\": \"" KV "\"}",
                               "[]", ASKING ", " READING),
                         true));
    expect_recalled(8, KV);
}

#define LONGER "{\"task\": \"needle\", \"style\": \"pith\", \"lengths\": [384], \"needles\": 3}"

/* Tasks with questions put text into their prompts. */
TEST(tasks_that_ask_run_with_recall_of_text)
{
    static const char recall[] = "text:floor=0,bleed=4";
    put_texts();
    json_decref(sweep_ok(SWEEP("{\"name\": \"x\", \"keep\": \"streaming:budget=64,slack=4\", "
                               "\"recall\": \"text:floor=0,bleed=4\"}",
                               "[]", NEEDLE ", " LONGER),
                         true));
    expect_recalled(2, recall);
    struct results r = read_out();
    for (size_t i = 0; i < 2; i++) {
        const json_t *summary = summary_of(json_array_get(r.lines, i));
        assert_true(number(json_object_get(summary, "recall"), "tokens") > 0.0);
        assert_true(number(json_object_get(summary, "recall"), "guests") > 0.0);
    }
    results_free(&r);
}

TEST(tasks_that_ask_nothing_refuse_recall_of_text)
{
    static const char *const names[] = {"perplexity", "divergence", "kept", "facts"};
    char notes[NOTES_SIZE];
    err = (pith_error){0};
    json_t *table = NULL;
    put_texts();
    put("f.jsonl", "{\"context\": \"The friend of Maria is Omar.\", \"questions\": [{\"ask\": \" "
                   "The friend of Maria is\", \"answer\": \" Omar\"}]}\n");
    check(sweep(SWEEP("{\"name\": \"x\", \"keep\": \"streaming:budget=64\", \"recall\": \"text\"}",
                      "[]", READING ", {\"task\": \"facts\", \"file\": \"f.jsonl\"}"),
                true, notes, &table, &err),
          &err);
    assert_true(number(summary_of(table), "failed") == 4);
    for (size_t i = 0; i < 4; i++) {
        char word[64];
        snprintf(word, sizeof(word), "%s: recall \"text\" answers questions", names[i]);
        assert_non_null(strstr(notes, word));
    }
    json_decref(table);

    struct eval_setup setup = {0};
    pith_engine_params_default(&setup.engine);
    setup.engine.recall = "kv";
    json_t *result = NULL;
    const struct eval_replay_params params = {.path = GOLDEN, .n_query = 4};
    expect(eval_replay(&setup, &params, &result, &err), &err, PITH_INVALID, "has no part in");
    setup.engine.recall = NULL;
    setup.engine.share = "memshare";
    expect(eval_replay(&setup, &params, &result, &err), &err, PITH_INVALID,
           "share \"memshare\" has");
}

/* A budget that is never reached: the answers of the full cache, and nothing to recall. */
TEST(a_budget_that_is_never_reached_recalls_nothing)
{
    json_t *table =
        sweep_ok("{\"model\": \"" MODEL "\", \"keep_text\": true, \"engine\": {\"threads\": 1}, "
                 "\"policies\": [\"full\", {\"name\": \"kv\", \"keep\": \"streaming:budget=4000\", "
                 "\"recall\": \"kv\"}, {\"name\": \"text\", \"keep\": \"streaming:budget=4000\", "
                 "\"recall\": \"text\"}], \"tasks\": [{\"task\": \"needle\", \"style\": "
                 "\"pith\", \"lengths\": [256], \"depths\": [0.25, 0.5], \"paired\": false}]}",
                 true);
    struct results r = read_out();
    const json_t *full = json_object_get(json_array_get(r.lines, 0), "rows");
    for (size_t i = 1; i < 3; i++) {
        const json_t *line = json_array_get(r.lines, i);
        const json_t *cost = json_object_get(summary_of(line), "recall");
        assert_true(json_equal(json_object_get(line, "rows"), full));
        assert_true(number(cost, "stored") == 0.0 && number(cost, "guests") == 0.0);
    }
    results_free(&r);
    json_decref(table);
}

/* ---- the stack and reports ---- */

TEST(the_stack_has_rows_with_recall)
{
    static const char *const names[] = {"f16", "store", "keep", "keep + recall",
                                        "store + keep + recall"};
    struct eval_setup setup = {0};
    struct eval_text table = {0};
    char *text = NULL;
    json_t *result = NULL;
    const char *budget = "48";
    struct eval_stack_params params = {.n_ctx = 256,
                                       .n_batch = 64,
                                       .n_chunk = 1,
                                       .budgets = &budget,
                                       .n_budget = 1,
                                       .n_repeat = 1};
    pith_model *model = model_at(MODEL);
    check(eval_read_file(DEMO_TEXT, &text, &params.text_len, &err), &err);
    params.text = text;
    setup.model = model;
    pith_engine_params_default(&setup.engine);
    setup.engine.n_thread = 1;
    setup.engine.page_len = 16;
    setup.engine.type_k = setup.engine.type_v = "q8_0";
    setup.engine.keep = KEEP;
    setup.engine.recall = KV;
    check(eval_stack(&setup, &params, &result, &err), &err);
    const json_t *rows = json_object_get(result, "rows");
    assert_int_equal(json_array_size(rows), 5);
    for (size_t i = 0; i < 5; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_string_equal(results_text(row, "config"), names[i]);
        assert_true((number(row, "recall_bytes") > 0) == (i >= 3));
        assert_true((number(row, "recall_seconds") > 0) == (i >= 3));
        assert_true((number(row, "evicted") > 0) == (i >= 2));
    }
    /* Restored entries are within the budget: the same pages or fewer, and another text. */
    assert_true(number(json_array_get(rows, 3), "diff") != number(json_array_get(rows, 2), "diff"));
    eval_print_table(result, &table);
    assert_non_null(strstr(table.data, "recall_seconds"));
    eval_text_free(&table);
    json_decref(result);
    pith_model_free(model);
    free(text);
}

TEST(the_page_shows_recall_and_its_seconds)
{
    struct eval_text page = {0};
    const char *path = in_folder("o.jsonl");
    json_decref(sweep_ok(SWEEP(ARMS, "[64]", NEEDLE), true));
    check(eval_report(&path, 1, &page, NULL, &err), &err);
    assert_non_null(strstr(page.data, "\"name\":\"kv\""));
    assert_non_null(strstr(page.data, "\"name\":\"small\""));
    eval_text_free(&page);
    /* Without a sweep the name says it all; seconds are per item. */
    put("one.jsonl", "{\"task\":\"needle\",\"model\":\"m\",\"policy\":\"tova:budget=10%\","
                     "\"recall\":\"kv:block=16\",\"store\":\"q8_0/turbo3\",\"settings\":{},"
                     "\"summary\":{\"n\":4,\"score\":0.5,\"prompt_seconds\":10,\"recall\":"
                     "{\"seconds\":0.5}},\"rows\":[{\"length\":64,\"depth\":0.5,\"n\":4,"
                     "\"score\":0.5}]}\n");
    path = in_folder("one.jsonl");
    check(eval_report(&path, 1, &page, NULL, &err), &err);
    assert_non_null(strstr(page.data, "tova, recall kv:block=16, q8_0/turbo3"));
    assert_non_null(strstr(page.data, "\"prompt_s\":2.5,\"recall_s\":0.125"));
    eval_text_free(&page);
}
