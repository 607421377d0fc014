/*
 * test_eval_sweep.c - a sweep runs every combination once, goes on where it stopped for any reason,
 * and reports a fault of its file in one sentence.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <kept.h>
#include <results.h>
#include <sweep.h>
#include <sweep_task.h>

#include "folder.h"

TEST_GROUP(make_folder, remove_folder);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define NEEDLE "{\"task\": \"needle\", \"style\": \"pith\", \"lengths\": [96], \"depths\": [0, 1]}"
#define SWEEP(policies, budgets, tasks)                                                            \
    "{\"model\": \"" MODEL "\", \"engine\": {\"threads\": 1}, \"policies\": " policies             \
    ", \"budgets\": " budgets ", \"tasks\": [" tasks "]}"
#define USUAL SWEEP("[\"streaming\", \"full\"]", "[64, \"50%\"]", NEEDLE)
#define USUAL_CELLS 3

static void put(const char *path, const char *text, size_t len)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
}

/* ---- running ---- */

/* The notes of a sweep, and the point at which it is to be stopped. */
struct watch {
    char notes[4096];
    int32_t stop_at; /* the cell, counted from 1, at which progress says no; 0: none */
    int32_t n_call;
    double last;
    bool second_sweep; /* start another one on the same results meanwhile */
    pith_status second_status;
};

static void on_note(void *user, const char *sentence)
{
    struct watch *w = user;
    size_t len = strlen(w->notes);
    snprintf(w->notes + len, sizeof(w->notes) - len, "%s\n", sentence);
}

static bool on_progress(void *user, double fraction, const char *what)
{
    struct watch *w = user;
    w->n_call++;
    assert_true(fraction >= 0.0 && fraction <= 1.0);
    w->last = fraction;
    if (w->second_sweep) {
        json_t *result = NULL;
        struct eval_sweep_params other = {.path = in_folder("s.json"), .out = in_folder("o.jsonl")};
        w->second_sweep = false;
        w->second_status = eval_sweep(&other, &result, &err);
    }
    return w->stop_at == 0 || atoi(what) < w->stop_at;
}

static pith_status sweep_text(const char *text, struct watch *w, bool fresh, json_t **result,
                              pith_error *why)
{
    put(in_folder("s.json"), text, strlen(text));
    struct eval_sweep_params p = {.path = in_folder("s.json"),
                                  .out = in_folder("o.jsonl"),
                                  .fresh = fresh,
                                  .note = on_note,
                                  .progress = on_progress,
                                  .user = w};
    return eval_sweep(&p, result, why);
}

/* Runs and gives the table; fails the test with the sweep's own sentence. */
static json_t *sweep_ok(const char *text, struct watch *w, bool fresh)
{
    err = (pith_error){0};
    json_t *result = NULL;
    struct watch own = {0};
    if (sweep_text(text, w != NULL ? w : &own, fresh, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return result;
}

static int64_t summary_of(const json_t *table, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(table, "summary"), key));
}

static struct results read_out(void)
{
    err = (pith_error){0};
    struct results r = {0};
    if (results_read(in_folder("o.jsonl"), &r, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return r;
}

/* The results without what differs from run to run, by their hash. */
static json_t *lasting(void)
{
    const char *clocks[] = {"seconds", "tokens_per_s", "prompt_tokens_per_s", "prompt_seconds"};
    size_t i;
    json_t *line, *all = json_object();
    struct results r = read_out();
    assert_int_equal(r.n_ignored, 0);
    json_array_foreach(r.lines, i, line)
    {
        json_t *summary = json_object_get(line, "summary");
        for (size_t k = 0; k < sizeof(clocks) / sizeof(clocks[0]); k++)
            json_object_del(summary, clocks[k]);
        json_object_del(line, "run");
        const char *hash = results_text(json_object_get(line, "cell"), "hash");
        assert_int_equal(strlen(hash), 16);
        assert_null(json_object_get(all, hash));
        json_object_set(all, hash, line);
    }
    results_free(&r);
    return all;
}

/* ---- cells ---- */

TEST(runs_every_combination_once)
{
    struct watch w = {0};
    json_t *table =
        sweep_ok(SWEEP("[\"full\", \"streaming:sinks=2,slack=8\", \"streaming:budget=48\", "
                       "{\"name\": \"small\", \"type_k\": \"q8_0\", \"type_v\": \"q8_0\"}]",
                       "[64, \"50%\"]", NEEDLE),
                 &w, true);
    static const char *const expected[][3] = {
        {"full", NULL, "full"},
        {"streaming:sinks=2,slack=8", "64", "streaming:sinks=2,slack=8,budget=64"},
        {"streaming:sinks=2,slack=8", "50%", "streaming:sinks=2,slack=8,budget=50%"},
        {"streaming:budget=48", NULL, "streaming:budget=48"},
        {"small", NULL, "full"}};
    json_t *rows = json_object_get(table, "rows");
    struct results r = read_out();
    assert_int_equal(json_array_size(rows), 5);
    assert_int_equal(json_array_size(r.lines), 5);
    for (size_t i = 0; i < 5; i++) {
        json_t *row = json_array_get(rows, i), *line = json_array_get(r.lines, i);
        assert_string_equal(results_text(row, "policy"), expected[i][0]);
        const char *budget = results_text(row, "budget");
        assert_int_equal(budget == NULL, expected[i][1] == NULL);
        if (budget != NULL)
            assert_string_equal(budget, expected[i][1]);
        assert_string_equal(results_text(line, "policy"), expected[i][2]);
        assert_int_equal(json_integer_value(json_object_get(row, "n")), 2);
        assert_true(results_number(row, "kv_bytes") > 0);
        assert_null(json_object_get(row, "seed"));
    }
    /* 64 entries of 96 tokens cannot hold the beginning; half precision's half is smaller. */
    assert_true(results_number(json_array_get(rows, 1), "evicted") > 0);
    assert_true(results_number(json_array_get(rows, 4), "kv_bytes") <
                results_number(json_array_get(rows, 0), "kv_bytes"));
    assert_int_equal(summary_of(table, "run"), 5);
    assert_true(w.n_call >= 10);
    results_free(&r);
    json_decref(table);
}

TEST(seeds_and_names_tell_results_apart)
{
    json_t *table = sweep_ok("{\"model\": \"" MODEL "\", \"seeds\": [1, 7], \"policies\": "
                             "[\"full\"], \"tasks\": [" NEEDLE ", " NEEDLE "]}",
                             NULL, true);
    static const char *const names[] = {"needle", "needle", "needle 2", "needle 2"};
    json_t *rows = json_object_get(table, "rows");
    assert_int_equal(json_array_size(rows), 4);
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(results_text(json_array_get(rows, i), "task"), names[i]);
        assert_int_equal(results_number(json_array_get(rows, i), "seed"), i % 2 == 0 ? 1 : 7);
    }
    json_decref(table);
}

/* ---- going on ---- */

TEST(goes_on_where_it_stopped)
{
    err = (pith_error){0};
    json_t *result = NULL;
    json_decref(sweep_ok(USUAL, NULL, true));
    json_t *whole = lasting();
    assert_int_equal(json_object_size(whole), USUAL_CELLS);
    for (int32_t stop = 1; stop <= USUAL_CELLS; stop++) {
        struct watch w = {.stop_at = stop};
        assert_int_equal(sweep_text(USUAL, &w, true, &result, &err), PITH_CANCELLED);
        struct results r = read_out();
        assert_int_equal(json_array_size(r.lines), stop - 1);
        results_free(&r);
        struct watch again = {0};
        json_t *table = sweep_ok(USUAL, &again, false);
        assert_int_equal(summary_of(table, "done"), stop - 1);
        assert_int_equal(summary_of(table, "run"), USUAL_CELLS - (stop - 1));
        json_decref(table);
        json_t *rest = lasting();
        assert_true(json_equal(rest, whole));
        json_decref(rest);
    }
    struct watch third = {0};
    json_t *table = sweep_ok(USUAL, &third, false);
    assert_int_equal(summary_of(table, "run"), 0);
    assert_int_equal(third.n_call, 0);
    assert_int_equal(json_array_size(json_object_get(table, "rows")), USUAL_CELLS);
    assert_true(results_number(json_array_get(json_object_get(table, "rows"), 2), "score") >= 0);
    json_decref(table);
    json_decref(whole);
}

/* Every length that a killed write can leave of the last line. */
TEST(drops_a_half_written_line)
{
    char *text = NULL;
    size_t len = 0;
    err = (pith_error){0};
    json_decref(sweep_ok(USUAL, NULL, true));
    json_t *whole = lasting();
    assert_int_equal(eval_read_file(in_folder("o.jsonl"), &text, &len, &err), PITH_OK);
    size_t last = len - 1;
    while (text[last - 1] != '\n')
        last--;
    const size_t cuts[] = {last + 1, (last + len) / 2, len - 1};
    for (int i = 0; i < 3; i++) {
        struct watch w = {0};
        put(in_folder("o.jsonl"), text, cuts[i]);
        json_t *table = sweep_ok(USUAL, &w, false);
        assert_non_null(strstr(w.notes, "half written"));
        assert_int_equal(summary_of(table, "run"), 1);
        json_decref(table);
        json_t *rest = lasting();
        assert_true(json_equal(rest, whole));
        json_decref(rest);
    }
    json_decref(whole);
    free(text);
}

/* Lines beside results, of another program say, stay. */
TEST(leaves_strange_lines)
{
    static const char strange[] = "not JSON\n\n{\"task\": 3}\n[]\n"
                                  "{\"task\": \"t\", \"summary\": {}, \"rows\": []}\n";
    struct watch w = {0};
    err = (pith_error){0};
    char *text = NULL;
    size_t len = 0;
    put(in_folder("o.jsonl"), strange, strlen(strange));
    json_t *table = sweep_ok(USUAL, &w, false);
    assert_non_null(strstr(w.notes, "line 1 is no result"));
    assert_non_null(strstr(w.notes, "2 more"));
    assert_int_equal(summary_of(table, "run"), USUAL_CELLS);
    json_decref(table);
    assert_int_equal(eval_read_file(in_folder("o.jsonl"), &text, &len, &err), PITH_OK);
    assert_int_equal(strncmp(text, strange, strlen(strange)), 0);
    free(text);
}

/* A change of a setting that a cell's result depends on runs the cell anew; any other leaves it. */
TEST(runs_a_cell_anew_when_its_settings_change)
{
    static const char *const same[] = {
        SWEEP("[\"full\", \"streaming\"]", "[\"50%\", 64]", NEEDLE),
        SWEEP("[\"streaming\", \"full\"]", "[64, \"50%\"]",
              "{\"name\": \"other\", \"lengths\": [96], \"depths\": [0, 1], \"style\": \"pith\", "
              "\"task\": \"needle\"}"),
    };
    static const struct {
        const char *text;
        int64_t run;
    } other[] = {
        {SWEEP("[\"streaming\", \"full\"]", "[64, 65]", NEEDLE), 1},
        {SWEEP("[\"streaming\", \"full\"]", "[64, \"50%\"]",
               "{\"task\": \"needle\", \"style\": \"pith\", \"lengths\": [96], \"depths\": [0]}"),
         3},
        {"{\"model\": \"" MODEL "\", \"engine\": {\"threads\": 1, \"type_v\": \"f32\"}, "
         "\"policies\": [\"full\"], \"tasks\": [" NEEDLE "]}",
         1},
        {"{\"model\": \"" MODEL "\", \"engine\": {\"threads\": 1}, \"policies\": [\"full\"], "
         "\"seeds\": [2], \"tasks\": [" NEEDLE "]}",
         1},
    };
    json_decref(sweep_ok(USUAL, NULL, true));
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        json_t *table = sweep_ok(same[i], NULL, false);
        assert_int_equal(summary_of(table, "run"), 0);
        json_decref(table);
    }
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        struct watch w = {0};
        json_t *table = sweep_ok(other[i].text, &w, false);
        assert_int_equal(summary_of(table, "run"), other[i].run);
        assert_non_null(strstr(w.notes, "other settings"));
        json_decref(table);
    }
}

TEST(runs_a_cell_anew_when_its_text_changes)
{
    static const char text[] = SWEEP("[\"full\"]", "[]",
                                     "{\"task\": \"kept\", \"file\": \"t.txt\", \"n_ctx\": 24, "
                                     "\"every\": 8}");
    static const char *const files[] = {"Anton came to the village and sang behind the green "
                                        "wall. There he was happy. He took a door.",
                                        "Maria came to the village and sang behind the green "
                                        "wall. There he was happy. He took a door."};
    for (int i = 0; i < 4; i++) {
        put(in_folder("t.txt"), files[i / 2], strlen(files[i / 2]));
        json_t *table = sweep_ok(text, NULL, i == 0);
        assert_int_equal(summary_of(table, "run"), i % 2 == 0 ? 1 : 0);
        json_decref(table);
    }
}

/* The name and the folder of a file do not identify a measurement. */
TEST(knows_a_text_under_another_name)
{
    static const char text[] = "Anton came to the village and sang behind the green wall.";
    static const char *const names[] = {"t.txt", "u.txt"};
    for (int i = 0; i < 2; i++) {
        char sweep[512];
        snprintf(sweep, sizeof(sweep),
                 SWEEP("[\"full\"]", "[]", "{\"task\": \"kept\", \"file\": \"%s\", \"n_ctx\": 8}"),
                 names[i]);
        put(in_folder(names[i]), text, strlen(text));
        json_t *table = sweep_ok(sweep, NULL, i == 0);
        assert_int_equal(summary_of(table, "run"), i == 0 ? 1 : 0);
        json_decref(table);
    }
}

/* Seeds of a task that draws nothing would be copies, which a report took for more evidence. */
TEST(ignores_seeds_where_nothing_is_drawn)
{
    static const struct {
        const char *task;
        int64_t cells;
    } cases[] = {
        {"{\"task\": \"kept\", \"file\": \"t.txt\", \"n_ctx\": 16}", 1},
        {"{\"task\": \"perplexity\", \"file\": \"t.txt\", \"n_ctx\": 8}", 1},
        {"{\"task\": \"divergence\", \"file\": \"t.txt\", \"n_ctx\": 8}", 1},
        {"{\"task\": \"questions\", \"file\": \"q.jsonl\", \"predict\": 2}", 2},
        {"{\"task\": \"questions\", \"file\": \"q.jsonl\", \"predict\": 2, \"temperature\": 0}", 1},
        {"{\"task\": \"needle\", \"lengths\": 96, \"depths\": 0, \"predict\": 2}", 1},
        {"{\"task\": \"needle\", \"lengths\": 96, \"depths\": 0, \"predict\": 2, \"repeats\": 2}",
         2},
        {"{\"task\": \"derivation\", \"parts\": 4, \"samples\": 1, \"predict\": 2}", 2},
        {"{\"task\": \"recursion\", \"trace\": true, \"max_steps\": 6, \"samples\": 1, "
         "\"predict\": 2}",
         2},
    };
    static const char text[] = "Anton came to the village and sang behind the green wall. There he "
                               "was happy. He took a door.";
    static const char question[] = "{\"problem\": \"1+1\", \"answer\": \"2\"}\n";
    put(in_folder("t.txt"), text, strlen(text));
    put(in_folder("q.jsonl"), question, strlen(question));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char sweep[512];
        snprintf(sweep, sizeof(sweep),
                 "{\"model\": \"" MODEL "\", \"seeds\": [3, 4], \"policies\": [\"full\"], "
                 "\"tasks\": [%s]}",
                 cases[i].task);
        json_t *table = sweep_ok(sweep, NULL, true);
        if (summary_of(table, "run") != cases[i].cells)
            fail_msg("case %zu: %d cells", i, (int)summary_of(table, "run"));
        struct results r = read_out();
        const json_t *seed =
            json_object_get(json_object_get(json_array_get(r.lines, 0), "cell"), "seed");
        assert_int_equal(json_is_null(seed), cases[i].cells == 1);
        results_free(&r);
        json_decref(table);
    }
}

/* A sweep leaves a file that is not its own unchanged. */
TEST(other_files_are_left_alone)
{
    static const char *const texts[] = {"notes without a newline", "{\n  \"model\": \"x\"\n}",
                                        "notes\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct watch w = {0};
        err = (pith_error){0};
        json_t *result = NULL;
        char *text = NULL;
        size_t len = 0;
        put(in_folder("o.jsonl"), texts[i], strlen(texts[i]));
        assert_int_equal(sweep_text(USUAL, &w, true, &result, &err), PITH_INVALID);
        assert_non_null(strstr(err.message, "stays as it is"));
        assert_int_equal(sweep_text(USUAL, &w, false, &result, &err), PITH_INVALID);
        assert_non_null(strstr(err.message, "stays as it is"));
        assert_int_equal(eval_read_file(in_folder("o.jsonl"), &text, &len, &err), PITH_OK);
        assert_string_equal(text, texts[i]);
        free(text);
    }
    put(in_folder("o.jsonl"), "", 0);
}

/* A long name in any script names the task, whole. */
TEST(a_long_name_is_shown_whole)
{
    char name[302] = "x", sweep[1024];
    for (size_t i = 1; i + 2 < sizeof(name); i += 2)
        memcpy(name + i, "\xc3\xa9", 3);
    snprintf(sweep, sizeof(sweep),
             SWEEP("[\"full\"]", "[]",
                   "{\"task\": \"needle\", \"name\": \"%s\", \"lengths\": 96, \"depths\": 0, "
                   "\"predict\": 2}"),
             name);
    json_t *table = sweep_ok(sweep, NULL, true);
    assert_int_equal(summary_of(table, "failed"), 0);
    assert_string_equal(results_text(json_array_get(json_object_get(table, "rows"), 0), "task"),
                        name);
    json_decref(table);
}

TEST(takes_file_names_of_any_bytes)
{
    struct eval_sweep_params p = {.path = in_folder("\xff.json"), .out = in_folder("\xfe.jsonl")};
    err = (pith_error){0};
    json_t *table = NULL;
    put(p.path, USUAL, strlen(USUAL));
    if (eval_sweep(&p, &table, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(summary_of(table, "run"), USUAL_CELLS);
    json_decref(table);
}

TEST(allows_one_sweep_at_a_time)
{
    struct watch w = {.second_sweep = true};
    json_decref(sweep_ok(USUAL, &w, true));
    assert_false(w.second_sweep);
    assert_int_equal(w.second_status, PITH_BUSY);
}

/* ---- failures ---- */

TEST(failed_cell_is_tried_again)
{
    /* That this many bytes hold no entry shows only with the model. */
    static const char text[] = SWEEP("[\"streaming\", \"full\"]", "[\"1KiB\"]", NEEDLE);
    for (int i = 0; i < 2; i++) {
        struct watch w = {0};
        json_t *table = sweep_ok(text, &w, i == 0);
        assert_int_equal(summary_of(table, "failed"), 1);
        assert_int_equal(summary_of(table, "run"), i == 0 ? 1 : 0);
        assert_non_null(strstr(w.notes, "budget 1KiB | seed 1: failed: "));
        json_t *row = json_array_get(json_object_get(table, "rows"), 0);
        assert_true(json_is_null(json_object_get(row, "score")));
        json_decref(table);
    }
}

/* As a full disk does: what could not be written whole is not there. */
TEST(a_full_disk_leaves_whole_lines)
{
    struct rlimit old, small;
    struct stat st;
    struct watch w = {.stop_at = 2};
    err = (pith_error){0};
    json_t *result = NULL;
    assert_int_equal(sweep_text(USUAL, &w, true, &result, &err), PITH_CANCELLED);
    assert_int_equal(stat(in_folder("o.jsonl"), &st), 0);
    int64_t size = st.st_size;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = (rlim_t)size + 100;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct watch none = {0};
    pith_status status = sweep_text(USUAL, &none, false, &result, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(status, PITH_IO);
    assert_non_null(strstr(err.message, "cannot be written"));
    assert_int_equal(stat(in_folder("o.jsonl"), &st), 0);
    assert_int_equal(st.st_size, size);
}

TEST(says_what_is_wrong_in_a_sentence)
{
    static const struct {
        const char *text;
        pith_status status;
        const char *word;
    } cases[] = {
        {"{", PITH_FORMAT, "line 1"},
        {"[]", PITH_INVALID, "one JSON object"},
        {"{\"modle\": \"x\"}", PITH_INVALID, "\"modle\""},
        {"{\"model\": 3}", PITH_INVALID, "model: must be the name of a file"},
        {"{\"policies\": [\"full\"], \"tasks\": [" NEEDLE "]}", PITH_INVALID, "model: is missing"},
        {"{\"model\": \"no.gguf\", \"policies\": [\"full\"], \"tasks\": [" NEEDLE "]}", PITH_IO,
         "no.gguf"},
        {SWEEP("[]", "[]", NEEDLE), PITH_INVALID, "policies"},
        {SWEEP("[3]", "[]", NEEDLE), PITH_INVALID, "policies"},
        {SWEEP("[{\"keep\": \"full\"}]", "[]", NEEDLE), PITH_INVALID, "\"name\""},
        {SWEEP("[{\"name\": \"x\", \"type\": \"f16\"}]", "[]", NEEDLE), PITH_INVALID, "\"type\""},
        {SWEEP("[{\"name\": \"x\", \"type_k\": 16}]", "[]", NEEDLE), PITH_INVALID, "type_k"},
        {SWEEP("[\"full\", \"full\"]", "[]", NEEDLE), PITH_INVALID, "twice"},
        {SWEEP("[\"straming\"]", "[64]", NEEDLE), PITH_INVALID, "straming"},
        {SWEEP("[\"streaming:sink=4\"]", "[64]", NEEDLE), PITH_INVALID, "sink"},
        {SWEEP("[\"streaming\"]", "[0.5]", NEEDLE), PITH_INVALID, "budgets"},
        {SWEEP("[\"streaming\"]", "[-1]", NEEDLE), PITH_INVALID, "budgets"},
        {SWEEP("[\"streaming\"]", "[\"64,sinks=2\"]", NEEDLE), PITH_INVALID, "budgets"},
        {SWEEP("[\"full\"]", "[]", ""), PITH_INVALID, "tasks"},
        {SWEEP("[\"full\"]", "[]", "{\"name\": \"x\"}"), PITH_INVALID, "\"task\""},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"neelde\"}"), PITH_INVALID, "\"neelde\""},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"kept\"}"), PITH_INVALID, "file is missing"},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"facts\"}"), PITH_INVALID, "file of contexts"},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"needle\", \"style\": \"x\"}"), PITH_INVALID,
         "style \"x\" is none of paper, pith"},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"needle\", \"needles\": 33}"), PITH_INVALID,
         "needles: 33 is not between 1 and 32"},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"needle\", \"depths\": [0, 101]}"), PITH_INVALID,
         "depths: 101 is not between 0 and 100"},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"needle\", \"paired\": true, \"no_paired\": true}"),
         PITH_INVALID, "contradict"},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"needle\", \"lengths\": [96], \"depht\": 0}"),
         PITH_INVALID, "task needle: there is no option \"depht\""},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"needle\", \"lengths\": [96.5]}"), PITH_INVALID,
         "lengths must be a list of whole numbers"},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"needle\", \"lengths\": [0]}"), PITH_INVALID,
         "lengths: 0 is not between 1 and 16777216"},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"needle\", \"lengths\": []}"), PITH_INVALID,
         "lengths must be"},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"recursion\", \"trace\": 1}"), PITH_INVALID,
         "trace must be true or false"},
        {SWEEP("[\"full\"]", "[]", "{\"task\": \"kept\", \"file\": \"absent.txt\"}"), PITH_IO,
         "absent.txt"},
        {"{\"model\": \"" MODEL "\", \"seeds\": [-1], \"policies\": [\"full\"], \"tasks\": [" NEEDLE
         "]}",
         PITH_INVALID, "seeds"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct watch w = {0};
        err = (pith_error){0};
        json_t *result = NULL;
        pith_status status = sweep_text(cases[i].text, &w, true, &result, &err);
        if (status != cases[i].status || strstr(err.message, cases[i].word) == NULL)
            fail_msg("case %zu: status %d, \"%s\" instead of %d with \"%s\"", i, status,
                     err.message, cases[i].status, cases[i].word);
        assert_null(result);
        assert_non_null(strstr(err.message, "s.json"));
        assert_null(strchr(err.message, '\n'));
    }
}

/* ---- keys ---- */

/* The rows of a task's result, which a sweep measured under a policy. */
static json_t *rows_of(const char *task)
{
    char sweep[512];
    snprintf(sweep, sizeof(sweep), SWEEP("[\"streaming:budget=64\"]", "[]", "%s"), task);
    json_decref(sweep_ok(sweep, NULL, true));
    struct results r = read_out();
    json_t *rows = json_incref(json_object_get(json_array_get(r.lines, 0), "rows"));
    results_free(&r);
    return rows;
}

/* The option's name and the older key ask for the same; percent are the same as shares. */
TEST(keys_have_two_spellings)
{
    static const char *const pairs[][2] = {
        {"{\"task\": \"needle\", \"style\": \"pith\", \"lengths\": [128], \"depths\": [0, 0.25, "
         "1], "
         "\"repeats\": 2, \"predict\": 4}",
         "{\"task\": \"needle\", \"style\": \"pith\", \"length\": [128], \"depth\": [0, 25, 100], "
         "\"repeat\": 2, \"predict\": 4}"},
        {"{\"task\": \"needle\", \"style\": \"pith\", \"lengths\": 96, \"depths\": 0, "
         "\"paired\": false}",
         "{\"task\": \"needle\", \"style\": \"pith\", \"lengths\": 96, \"depths\": 0, "
         "\"no_paired\": true}"},
        {"{\"task\": \"ruler\", \"tasks\": \"vt\", \"lengths\": 640, \"samples\": 1, "
         "\"example\": false}",
         "{\"task\": \"ruler\", \"tasks\": \"vt\", \"length\": 640, \"samples\": 1, "
         "\"no_example\": true}"},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        json_t *older = rows_of(pairs[i][0]), *newer = rows_of(pairs[i][1]);
        assert_true(json_array_size(older) > 0);
        if (!json_equal(older, newer))
            fail_msg("%s is not %s", pairs[i][0], pairs[i][1]);
        json_decref(older);
        json_decref(newer);
    }
}

/* Every option of a command is a key of its task under its own name, and a further key means one
   option alone. */
TEST(every_option_is_a_key)
{
    bool inverted;
    for (const struct eval_task *t = eval_task_table; t->name != NULL; t++)
        for (const struct option *o = t->options; o->name != NULL; o++) {
            char key[64];
            snprintf(key, sizeof(key), "%s", o->name + strspn(o->name, "-"));
            for (char *c = key; *c != '\0'; c++)
                *c = *c == '-' ? '_' : *c;
            assert_ptr_equal(sweep_option_find(t->options, key, &inverted), o);
            assert_false(inverted);
            if (o->keys != NULL)
                assert_ptr_equal(sweep_option_find(t->options, o->keys, &inverted), o);
        }
}

/* ---- kept ---- */

TEST(writes_positions_as_ranges)
{
    static const struct {
        int32_t positions[8];
        int32_t n;
        const char *text;
    } cases[] = {
        {{0}, 0, ""},
        {{5}, 1, "5"},
        {{0, 1, 2, 3}, 4, "0-3"},
        {{0, 2, 4}, 3, "0,2,4"},
        {{0, 1, 7, 8, 9, 20}, 6, "0-1,7-9,20"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eval_text t = {0};
        eval_kept_ranges(&t, cases[i].positions, cases[i].n);
        assert_string_equal(t.data, cases[i].text);
        eval_text_free(&t);
    }
}

/* Streaming keeps the sinks and the end, in every lane, at every time. */
TEST(streaming_keeps_sinks_and_the_end)
{
    json_t *table = sweep_ok(SWEEP("[\"full\", \"streaming:sinks=4,slack=8\"]", "[32]",
                                   "{\"task\": \"kept\", \"file\": \"" PITH_SOURCE_DIR
                                   "/models/demo/prompt-2k.txt\", \"n_ctx\": 200, \"every\": 50}"),
                             NULL, true);
    struct results r = read_out();
    assert_int_equal(json_array_size(r.lines), 2);
    for (size_t k = 0; k < 2; k++) {
        size_t i;
        json_t *row, *rows = json_object_get(json_array_get(r.lines, k), "rows");
        assert_int_equal(json_array_size(rows), 4 * 3 * 2); /* times, layers, KV heads */
        json_array_foreach(rows, i, row)
        {
            int now = (int)results_number(row, "tokens"), first, last;
            int entries = (int)results_number(row, "entries");
            const char *kept = results_text(row, "kept");
            assert_int_equal(now, 50 * (int)(1 + i / 6));
            if (k == 0) {
                assert_int_equal(entries, now);
                assert_int_equal(sscanf(kept, "%d-%d", &first, &last), 2);
                assert_int_equal(first, 0);
            } else {
                assert_in_range(entries, 32, 40);
                assert_int_equal(strncmp(kept, "0-3,", 4), 0);
                assert_int_equal(sscanf(kept + 4, "%d-%d", &first, &last), 2);
                assert_int_equal(first, now - (entries - 4));
            }
            assert_int_equal(last, now - 1);
        }
    }
    results_free(&r);
    json_decref(table);
}

/* A policy that overwrites holds its budget after every token that is read alone, and one less
   after a turn of a prompt. The remaining token belongs to the last. Its slots are in no
   order. */
TEST(overwriting_holds_the_budget_at_every_token)
{
    json_t *row;
    size_t i;
#define KEPT(every)                                                                                \
    "{\"task\": \"kept\", \"file\": \"" PITH_SOURCE_DIR                                            \
    "/models/demo/prompt-2k.txt\", \"n_ctx\": 61, \"every\": " every "}"
    json_decref(sweep_ok(SWEEP("[\"longflow:prompt-window=8\"]", "[24]", KEPT("1") "," KEPT("20")),
                         NULL, true));
#undef KEPT
    struct results r = read_out();
    assert_int_equal(json_array_size(r.lines), 2);
    for (size_t k = 0; k < 2; k++) {
        static const int turns[] = {20, 40, 61};
        json_t *rows = json_object_get(json_array_get(r.lines, k), "rows");
        assert_int_equal(json_array_size(rows), (k == 0 ? 61 : 3) * 3 * 2);
        json_array_foreach(rows, i, row)
        {
            int now = k == 0 ? (int)(1 + i / 6) : turns[i / 6], n = 0, last = -1;
            int most = k == 0 ? 24 : 23;
            assert_int_equal((int)results_number(row, "tokens"), now);
            assert_int_equal((int)results_number(row, "entries"), now < most ? now : most);
            for (char *at = (char *)results_text(row, "kept"); *at != '\0'; at += *at == ',') {
                int first = (int)strtol(at, &at, 10), end = first;
                if (*at == '-')
                    end = (int)strtol(at + 1, &at, 10);
                assert_true(first > last && end >= first && end < now);
                n += end - first + 1;
                last = end;
            }
            assert_int_equal(n, (int)results_number(row, "entries"));
        }
    }
    results_free(&r);
}
