/*
 * test_cli_eval.c - `pith eval` on the command line: the list of tasks, the files of results, and
 * the messages for faults.
 */
#define _XOPEN_SOURCE 700

#include <jansson.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "command.h"
#include "testing.h"
#include "json_read.h"

TEST_GROUP(folder_make, folder_remove);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define TEXT PITH_SOURCE_DIR "/models/demo/prompt-2k.txt"
#define EVAL "eval", "perplexity", "-m", MODEL, "-t", "1", "-c", "64", "--chunks", "3"

static json_t *parse(const char *text)
{
    json_error_t at;
    json_t *value = json_loads(text, 0, &at);
    if (value == NULL)
        fail_msg("no JSON (%s): %s", at.text, text);
    return value;
}

/* ---- help ---- */

TEST(help_lists_the_tasks)
{
    static const char *const ways[][4] = {{"eval", "--help"}, {"eval", "help"}, {"help", "eval"}};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct said s = command_list(NULL, NULL, ways[i]);
        expect_status(&s, 0);
        expect_word(s.out, "usage: pith eval TASK");
        expect_word(s.out, "  perplexity ");
        expect_word(s.out, "  divergence ");
    }
    struct said s = command(NULL, "eval", "perplexity", "--help", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "usage: pith eval perplexity -m MODEL -f FILE");
    expect_word(s.out, "--batch-size N");
    expect_word(s.out, "(default 512)");
    s = command(NULL, "help", "eval", "divergence", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "usage: pith eval divergence");
    s = command(NULL, "help", NULL);
    expect_word(s.out, "  eval ");
}

/* Every task of the list has a help of its own. */
TEST(every_task_has_its_help)
{
    struct said list = command(NULL, "eval", "--help", NULL);
    char *save = NULL;
    int n = 0;
    char *rows = strstr(list.out, "\n\n  ");
    assert_non_null(rows);
    *strstr(rows + 2, "\n\n") = '\0';
    for (char *line = strtok_r(rows, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        char name[32], usage[64];
        assert_int_equal(sscanf(line, " %31s", name), 1);
        struct said s = command(NULL, "eval", name, "--help", NULL);
        expect_status(&s, 0);
        snprintf(usage, sizeof(usage), "usage: pith eval %s ", name);
        expect_word(s.out, usage);
        n++;
    }
    assert_true(n >= 5);
}

/* ---- results ---- */

TEST(prints_a_table_without_progress)
{
    struct said s = command(NULL, EVAL, "-f", TEXT, NULL);
    expect_status(&s, 0);
    expect_word(s.out, "perplexity of pith-nano, cache: full\n");
    expect_word(s.out, "\nperplexity_se ");
    expect_word(s.out, "Nothing was evicted: no keep policy was given.\n");
    assert_string_equal(s.err, ""); /* no progress where there is no terminal */
}

TEST(prints_json_and_pairs_by_itself)
{
    struct said s =
        command(NULL, EVAL, "-f", TEXT, "--keep", "streaming:budget=16,slack=8,window=8", "--json",
                "-", "--progress", NULL);
    expect_status(&s, 0);
    json_t *result = parse(s.out);
    assert_true(figure(result, "evicted") > 0);
    assert_true(figure(result, "n") == 3);
    assert_true(figure(result, "diff_se") > 0); /* paired by itself */
    assert_string_equal(json_string_value(json_object_get(result, "policy")),
                        "streaming:budget=16,slack=8,window=8");
    expect_word(s.err, " %");
    json_decref(result);

    s = command(NULL, EVAL, "-f", TEXT, "--keep", "streaming:budget=16,slack=8,window=8", "--json",
                "-", "--no-paired", NULL);
    result = parse(s.out);
    assert_null(json_object_get(json_object_get(result, "summary"), "diff"));
    json_decref(result);
}

/* Files beside the table, a text from standard input, the same figures everywhere. */
TEST(writes_files_beside_the_table)
{
    char json[128], csv[128], line[64];
    in_folder("out.json", json);
    in_folder("out.csv", csv);
    struct said text =
        command(NULL, "run", "-m", MODEL, "-f", TEXT, "--echo", "-n", "0", "-q", "-t", "1", NULL);
    struct said s = command(text.out, EVAL, "-f", "-", "--json", json, "--csv", csv, NULL);
    expect_status(&s, 0);
    expect_word(s.out, "perplexity of pith-nano");
    json_t *result = json_load_file(json, 0, NULL);
    assert_non_null(result);
    snprintf(line, sizeof(line), "%.4f\n", figure(result, "perplexity"));
    expect_word(s.out, line);
    json_decref(result);
    FILE *file = fopen(csv, "rb");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    assert_memory_equal(line, "chunk,tokens,perplexity,", 24);
    fclose(file);
    s = command(NULL, EVAL, "-f", TEXT, "--csv", "-", NULL);
    expect_status(&s, 0);
    assert_memory_equal(s.out, "chunk,tokens,perplexity,", 24);
    assert_null(strstr(s.out, "cache: full"));
}

TEST(measures_divergence_of_a_storage_type)
{
    struct said s =
        command(NULL, "eval", "divergence", MODEL, "-t", "1", "-c", "64", "--chunks", "2", "-f",
                TEXT, "-ctk", "q8_0", "--reference-type", "f16", "--json", "-", NULL);
    expect_status(&s, 0);
    json_t *result = parse(s.out);
    assert_true(figure(result, "kl_mean") > 0.0 && figure(result, "kl_mean") < 0.1);
    assert_true(figure(result, "tokens") == 128);
    json_decref(result);
}

/* ---- failures ---- */

TEST(refuses_bad_command_lines)
{
    static const struct {
        const char *words[24];
        const char *says;
    } cases[] = {
        {{"eval", "perplexty"}, "did you mean \"pith eval perplexity\"?"},
        {{"eval", "-m", MODEL}, "the task comes before the options"},
        {{"help", "eval", "nothing"}, "nothing: there is no such command"},
        {{"help", "eval", "needle", "more"}, "one argument too many"},
        {{"eval", "perplexity", "-m", MODEL}, "-f FILE is missing"},
        {{"eval", "perplexity", "-f", TEXT}, "-m FILE is missing"},
        {{EVAL, "-f", TEXT, "--json", "-", "--csv", "-"}, "both write to standard output"},
        {{EVAL, "-f", TEXT, "--json", "/tmp/r", "--csv", "/tmp/r"}, "the same file"},
        {{EVAL, "-f", TEXT, "--paired", "--no-paired"}, "contradict"},
        {{EVAL, "-f", TEXT, "--keep", "no-such"}, "no-such"},
        {{EVAL, "-f", TEXT, "-c", "2"}, "-c: 2"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct said s = command_list(NULL, NULL, cases[i].words);
        expect_failure(&s, 2, cases[i].says);
        assert_string_equal(s.out, "");
    }
    struct said s = command(NULL, "eval", NULL);
    expect_status(&s, 2);
    expect_word(s.err, "usage: pith eval TASK");
}

TEST(fails_with_one_sentence)
{
    char path[128];
    write_file(in_folder("short.txt", path), "Too short.\n");
    struct said s = command(NULL, EVAL, "-f", path, NULL);
    expect_failure(&s, 1, "tokens are fewer than the 128");
    s = command(NULL, EVAL, "-f", "/no/such/text", NULL);
    expect_failure(&s, 1, "/no/such/text");
    s = command(NULL, EVAL, "-f", TEXT, "--json", "/no/such/folder/x", NULL);
    expect_failure(&s, 1, "/no/such/folder/x");
}

/* A failure leaves a file of an earlier result as it was, and no empty one. */
TEST(a_failure_keeps_the_old_files)
{
    char old[128], fresh[128], text[16] = "";
    write_file(in_folder("old.json", old), "kept");
    in_folder("fresh.csv", fresh);
    struct said s = command(NULL, "eval", "perplexity", "-m", "/no/such/model", "-f", TEXT,
                            "--json", old, "--csv", fresh, NULL);
    expect_failure(&s, 1, "/no/such/model");
    FILE *file = fopen(old, "rb");
    assert_non_null(file);
    assert_int_equal(fread(text, 1, sizeof(text) - 1, file), 4);
    assert_string_equal(text, "kept");
    fclose(file);
    assert_int_not_equal(access(fresh, F_OK), 0);
}

/* A result that does not fit leaves the old file whole, and a link leads where it led. */
TEST(results_replace_whole_files_behind_links)
{
    char old[128], link[128], text[16] = "";
    struct stat s;
    struct rlimit limit, before;
    write_file(in_folder("behind.json", old), "kept");
    assert_int_equal(symlink(old, in_folder("link.json", link)), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){100, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN); /* the command inherits it */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct said said = command(NULL, EVAL, "-f", TEXT, "--json", link, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_status(&said, 1);
    FILE *file = fopen(old, "rb");
    assert_int_equal(fread(text, 1, sizeof(text) - 1, file), 4);
    assert_string_equal(text, "kept");
    fclose(file);
    said = command(NULL, EVAL, "-f", TEXT, "--json", link, NULL);
    expect_status(&said, 0);
    assert_true(lstat(link, &s) == 0 && S_ISLNK(s.st_mode));
    assert_true(stat(old, &s) == 0 && s.st_size > 100);
}

/* A result whose file is full in the end goes to standard output, and the command fails. */
TEST(a_full_file_sends_the_result_to_standard_output)
{
    SKIP_WITHOUT("/dev/full");
    struct said s =
        command(NULL, EVAL, "-f", TEXT, "--json", "/dev/full", "--csv", "/dev/null", NULL);
    expect_status(&s, 1);
    expect_word(s.err, "/dev/full: cannot write");
    expect_word(s.out, "\"perplexity_se\"");
    const char *const words[] = {EVAL, "-f", TEXT, NULL};
    s = command_list(NULL, "/dev/full", words);
    expect_failure(&s, 1, "standard output: No space left on device");
}

/* One cut per context; a fault of a file or a policy is one sentence. */
TEST(cuts_once_per_context_and_refuses_bad_facts)
{
    static const char line[] =
        "{\"id\": \"a\", \"context\": \"The friend of Maria is Anton. The rain fell. The password "
        "of Peter is black butter.\", \"questions\": [{\"ask\": \"\\nQuestion: What is the "
        "password of Peter?\\nAnswer: The password of Peter is\", \"answer\": \" black "
        "butter.\"}]}\n";
    char path[128], short_path[128];
    write_file(in_folder("items.jsonl", path), line);
    write_file(in_folder("short.jsonl", short_path), "{\"context\": \"x\"}\n");
    struct said s = command(NULL, "eval", "facts", "-m", MODEL, "-f", path, "--cut-once", "-t", "1",
                            "--keep", "streaming:sinks=1,budget=15", "--json", "-", NULL);
    expect_status(&s, 0);
    json_t *result = parse(s.out);
    assert_true(figure(result, "score") == 1.0 && figure(result, "rounds") == 1.0);
    json_decref(result);
    s = command(NULL, "eval", "facts", "-m", MODEL, "-f", path, "--cut-once", "--keep",
                "random:slack=9", NULL);
    expect_failure(&s, 1, "slack");
    s = command(NULL, "eval", "facts", "-m", MODEL, "-f", short_path, "--cut-once", NULL);
    expect_failure(&s, 1, "line 1: questions");
}
