/*
 * test_cli_sweep.c - `pith eval sweep`, `kept` and `report` as their users meet them: what they
 * print, their exit statuses, the files they leave.
 */
#define _POSIX_C_SOURCE 200809L

#include <jansson.h>
#include <string.h>

#include "command.h"
#include "testing.h"

TEST_GROUP(folder_make, folder_remove);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define NEEDLE "{\"task\": \"needle\", \"style\": \"pith\", \"lengths\": [96], \"depths\": [0, 1]}"
#define SWEEP(budget)                                                                              \
    "{\"policies\": [\"full\", \"streaming:slack=8\"], \"budgets\": [" budget                      \
    "], \"tasks\": [" NEEDLE "]}"

static char *slurp(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

TEST(a_sweep_runs_and_is_reported)
{
    char sweep[128], out[128], page[128];
    in_folder("sweep.json", sweep);
    in_folder("sweep.jsonl", out); /* where results go unless something else is said */
    in_folder("page.html", page);
    write_file(sweep, SWEEP("48"));

    struct said said = command(NULL, "eval", "sweep", sweep, "-m", MODEL, NULL);
    expect_status(&said, 0);
    expect_word(said.out, "policy");
    expect_word(said.out, "streaming:slack=8  48");
    expect_word(said.out, out);
    assert_string_equal(said.err, "");

    said = command(NULL, "eval", "sweep", sweep, "-m", MODEL, "--csv", "-", NULL);
    expect_status(&said, 0);
    expect_word(said.err, "2 of 2 cells are there already");
    assert_int_equal(strncmp(said.out, "task,policy,budget,score,n,kv_bytes,tokens_per_s,", 49), 0);

    said = command(NULL, "eval", "sweep", sweep, "-m", MODEL, "--json", "-", "--fresh", NULL);
    expect_status(&said, 0);
    json_t *table = json_loads(said.out, 0, NULL);
    json_t *summary = json_object_get(table, "summary");
    assert_int_equal(json_integer_value(json_object_get(summary, "run")), 2);
    assert_int_equal(json_array_size(json_object_get(table, "rows")), 2);
    json_decref(table);

    said = command(NULL, "eval", "report", out, "-o", page, NULL);
    expect_status(&said, 0);
    expect_word(said.out, "page.html: 2 results");
    char *html = slurp(page);
    expect_word(html, "pith-nano");
    expect_word(html, "streaming:slack=8");
    expect_word(html, "</html>");
    free(html);

    /* The same results twice: each counts once, and the user is told. */
    said = command(NULL, "eval", "report", out, out, "-o", page, NULL);
    expect_status(&said, 0);
    expect_word(said.out, "2 results");
    expect_word(said.err, "2 results are left out");
}

TEST(a_failed_cell_fails_the_command)
{
    char sweep[128], out[128];
    in_folder("failing.json", sweep);
    in_folder("failing.out", out);
    write_file(sweep, SWEEP("\"1KiB\""));
    struct said said = command(NULL, "eval", "sweep", sweep, "-m", MODEL, "-o", out, NULL);
    expect_status(&said, 1);
    expect_word(said.err, "budget 1KiB | seed 1: failed");
    expect_word(said.out, "full"); /* the table is there all the same */
}

TEST(kept_writes_json_that_report_draws)
{
    char text[128], json[128], page[128];
    in_folder("text.txt", text);
    in_folder("kept.json", json);
    in_folder("kept.html", page);
    write_file(text, "In the winter the tired farmer came to the library. There he sang behind the "
                     "green cellar and was happy. He took a purple door under the orchard.");
    struct said said = command(NULL, "eval", "kept", "-m", MODEL, "-f", text, "-n", "24", "--every",
                               "8", "--keep", "streaming:budget=8,slack=2", "--json", json, NULL);
    expect_status(&said, 0);
    said = command(NULL, "eval", "report", json, "-o", page, NULL);
    expect_status(&said, 0);
    char *html = slurp(page);
    expect_word(html, "\"head\":1");
    expect_word(html, "\"text\":\"8\"");
    free(html);
    said = command(NULL, "eval", "kept", "-m", MODEL, "-f", "/dev/null", "-n", "24", NULL);
    expect_failure(&said, 1, "the text has no token");
}

TEST(fails_with_one_sentence)
{
    char page[128], sweep[128];
    in_folder("p.html", page);
    in_folder("bad.json", sweep);
    write_file(sweep, "{\"tasks\": 3}");
    struct said said = command(NULL, "eval", "report", "-o", page, NULL);
    expect_failure(&said, 2, "FILES");
    said = command(NULL, "eval", "report", "no-such.jsonl", "-o", page, NULL);
    expect_failure(&said, 1, "no-such.jsonl");
    said = command(NULL, "eval", "report", "no-such.jsonl", NULL);
    expect_failure(&said, 2, "-o");
    said = command(NULL, "eval", "sweep", NULL);
    expect_failure(&said, 2, "FILE");
    said = command(NULL, "eval", "sweep", sweep, NULL);
    expect_failure(&said, 1, "tasks: must be a list");
}

/* Files that only the sweep's own names are not replaced by its table, and results go to a file. */
TEST(a_sweep_loses_no_file)
{
    char model[128], text[128], sweep[128], squad[128], results[128], json[512];
    snprintf(json, sizeof(json), "cp %s %s", MODEL, in_folder("own.gguf", model));
    assert_int_equal(system(json), 0);
    write_file(in_folder("own.txt", text), "a text of a few words");
    write_file(in_folder("own.squad", squad), "{\"data\": []}");
    in_folder("own.jsonl", results);
    snprintf(json, sizeof(json),
             "{\"model\": \"own.gguf\", \"policies\": [\"full\"], \"tasks\": [{\"task\": \"kept\", "
             "\"file\": \"own.txt\", \"length\": 8}, {\"task\": \"ruler\", \"tasks\": [\"qa_1\"], "
             "\"squad\": \"own.squad\"}]}");
    write_file(in_folder("own.json", sweep), json);
    const char *const files[] = {model, text, squad, results};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct said said = command(NULL, "eval", "sweep", sweep, "--csv", files[i], NULL);
        expect_failure(&said, 2, "--csv would replace \"");
    }
    const char *const nowhere[] = {"/dev/full", "-"};
    for (size_t i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++) {
        struct said said = command(NULL, "eval", "sweep", sweep, "-o", nowhere[i], NULL);
        expect_failure(&said, 1, "name a regular file");
    }
    write_file(sweep, "{\"policies\": [\"full\"], \"engine\": {\"type_k\": \"q9\"}, \"tasks\": "
                      "[{\"task\": \"kept\", \"file\": \"own.txt\"}]}");
    struct said said = command(NULL, "eval", "sweep", sweep, "-m", MODEL, NULL);
    expect_failure(&said, 1, "own.json: type_k: \"q9\" is not a storage type");
}

/* The list after "only " in the message of a failed sweep, as text of cap bytes: "a, b, c". */
static void list_of(const char *tasks, char *text, size_t cap)
{
    char sweep[128], json[512];
    in_folder("keys.json", sweep);
    snprintf(json, sizeof(json), "{\"policies\": [\"full\"], \"tasks\": [%s]}", tasks);
    write_file(sweep, json);
    struct said said = command(NULL, "eval", "sweep", sweep, "-m", MODEL, NULL);
    expect_failure(&said, 1, "only ");
    snprintf(text, cap, "%s", strstr(said.err, "only ") + 5);
    text[strcspn(text, "\n")] = '\0';
}

/* The options under "Task:" in the help of a task, as a sweep would name them. */
static void help_of(const char *task, char *text, size_t cap)
{
    struct said said = command(NULL, "eval", task, "--help", NULL);
    expect_status(&said, 0);
    char *rest = strstr(said.out, "\nTask:\n");
    assert_non_null(rest);
    rest += strlen("\nTask:\n");
    *strstr(rest, "\n\n") = '\0';
    text[0] = '\0';
    for (char *line = strtok_r(rest, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        const char *name = strstr(line, "--");
        if (line[2] != '-' || name > line + 6)
            continue;
        size_t len = strlen(text);
        snprintf(text + len, cap - len, "%s%.*s", len > 0 ? ", " : "", (int)strcspn(name + 2, " "),
                 name + 2);
    }
    for (char *c = text; *c != '\0'; c++)
        *c = *c == '-' ? '_' : *c;
}

/* A task has the same options in a sweep and as a command. */
TEST(keys_of_a_sweep_are_the_options)
{
    char tasks[256], keys[256], options[256], json[128];
    int n = 0;
    list_of("{\"task\": \"x\"}", tasks, sizeof(tasks));
    for (char *rest = tasks, *task; (task = strtok_r(rest, ", ", &rest)) != NULL; n++) {
        snprintf(json, sizeof(json), "{\"task\": \"%s\", \"x\": 1}", task);
        list_of(json, keys, sizeof(keys));
        help_of(task, options, sizeof(options));
        assert_string_equal(keys, options);
    }
    assert_int_equal(n, 10);
}

/* The sweep among the examples is one that can be run. */
TEST(the_example_sweep_runs)
{
    json_error_t reason;
    json_t *sweep = json_load_file(PITH_SOURCE_DIR "/examples/sweep-nano.json", 0, &reason);
    if (sweep == NULL)
        fail_msg("line %d: %s", reason.line, reason.text);
    json_t *needle = json_array_get(json_object_get(sweep, "tasks"), 0);
    json_object_set_new(needle, "lengths", json_pack("[i]", 160));
    json_object_set_new(needle, "depths", json_pack("[f]", 0.5));
    json_object_set_new(sweep, "model", json_string(MODEL));
    json_array_remove(json_object_get(sweep, "tasks"), 1);
    char path[128];
    assert_int_equal(json_dump_file(sweep, in_folder("nano.json", path), 0), 0);
    size_t n = json_array_size(json_object_get(sweep, "budgets"));
    json_decref(sweep);
    struct said said = command(NULL, "eval", "sweep", path, "--json", "-", NULL);
    expect_status(&said, 0);
    json_t *table = json_loads(said.out, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(table, "rows")), 1 + n);
    json_decref(table);
}
