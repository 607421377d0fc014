/*
 * `pith calibrate` as its users meet it: a file is written, drawn, and used; what cannot be is said
 * in a sentence.
 */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "testing.h"

#include "command.h"
#include "json_read.h"
#include "model_maker.h"

TEST_GROUP(folder_make, folder_remove);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define TEXT PITH_SOURCE_DIR "/models/demo/prompt-2k.txt"

/* The beginning of TEXT. */
static void write_some(const char *path, size_t n)
{
    char text[2000] = "";
    FILE *file = fopen(TEXT, "r");
    assert_non_null(file);
    assert_true(n < sizeof(text) && fread(text, 1, n, file) == n);
    fclose(file);
    write_file(path, text);
}

TEST(gathers_statistics_that_run_uses)
{
    char path[128], keep[256];
    in_folder("a.stats", path);
    struct said s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", TEXT, "-o", path,
                            "--centres", "3", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "3 centres, from 1991 of 1991 tokens");
    s = command(NULL, "calibrate", "inspect", path, "-m", MODEL, "-f", TEXT, NULL);
    expect_status(&s, 0);
    expect_word(s.out, "pith-nano");
    expect_word(s.out, "prompt-2k.txt");
    expect_word(s.out, "1991 read, queries of all tokens");
    expect_word(s.out, "mean R over bands");
    expect_word(s.out, "mean correlation");
    expect_word(s.out, "against distance");
    expect_word(s.out, "with the largest mean |query| mean |key|");
    s = command(NULL, "calibrate", "inspect", path, "-m", MODEL, "--layer", "2", "--head", "1",
                NULL);
    expect_status(&s, 0);
    expect_word(s.out, "layer 2, head 1");
    s = command(NULL, "calibrate", "inspect", path, "-m", MODEL, "--layer", "9", NULL);
    expect_failure(&s, 1, "layer 9");
    snprintf(keep, sizeof(keep), "triattention:v3,stats=%s,budget=512", path);
    s = command(NULL, "run", "-m", MODEL, "-f", TEXT, "--temp", "0", "-n", "4", "--keep", keep,
                NULL);
    expect_status(&s, 0);
    expect_word(s.err, "evicted");
}

/* Occurrences of a word in a file. */
static int32_t count_word(const char *path, const char *word)
{
    static char page[1 << 20];
    int32_t n = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t len = fread(page, 1, sizeof(page) - 1, file);
    fclose(file);
    page[len] = '\0';
    for (const char *at = strstr(page, word); at != NULL; at = strstr(at + 1, word))
        n++;
    return n;
}

TEST(draws_queries_keys_and_blocks)
{
    char path[128], page[128];
    in_folder("d.stats", path);
    in_folder("d.html", page);
    struct said s =
        command(NULL, "calibrate", "queries", "-m", MODEL, "-f", TEXT, "-o", path, "-q", NULL);
    expect_status(&s, 0);
    s = command(NULL, "calibrate", "inspect", path, "-m", MODEL, "-f", TEXT, "--layer", "1",
                "--head", "1", "--html", page, NULL);
    expect_status(&s, 0);
    assert_int_equal(count_word(page, "<svg "), 5);
    assert_int_equal(count_word(page, "</svg>"), 5);
    assert_int_equal(count_word(page, "of layer 1, head 1"), 2);
    assert_int_equal(count_word(page, "<circle "), 2 * 2 * 1024); /* a point for each token */
    assert_int_equal(count_word(page, "class=\"cell\""), 64 * 63 / 2);
    assert_int_equal(count_word(page, "class=\"line"), 3);
    assert_int_equal(count_word(page, " nan") + count_word(page, "\"nan") + count_word(page, "inf"),
                     0);
    assert_int_equal(count_word(page, "http"), 0); /* nothing is asked of the network */
    s = command(NULL, "calibrate", "inspect", path, "-m", MODEL, "--html", page, NULL);
    expect_failure(&s, 2, "--html draws a text");
}

TEST(gathers_importance_of_entries)
{
    char path[128], other[128];
    in_folder("i.stats", path);
    in_folder("j.stats", other);
    struct said s =
        command(NULL, "calibrate", "importance", "-m", MODEL, "-f", TEXT, "-o", path, "--pieces",
                "5", "-c", "100", "--keep", "triattention", "--keep", "knorm:sinks=4", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "importance of entries from 5 pieces of at most 100 tokens");
    expect_word(s.out, "mean R^2");
    expect_word(s.out, "map of triattention");
    expect_word(s.out, "map of knorm");
    s = command(NULL, "calibrate", "inspect", path, NULL);
    expect_status(&s, 0);
    expect_word(s.out, "pith 2");
    expect_word(s.out, "prompt-2k.txt");
    expect_word(s.out, "mean R over bands");
    expect_word(s.out, "25 % of all lanes");
    s = command(NULL, "calibrate", "importance", "-m", MODEL, "-f", TEXT, "-o", other, "--keep",
                "knorm:budget=64", NULL);
    expect_failure(&s, 1, "leave out the budget");
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", TEXT, "-f", TEXT, "-o", other,
                NULL);
    expect_failure(&s, 2, "several -f");
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", TEXT, "-o", other, "--hidden",
                NULL);
    expect_failure(&s, 2, "--hidden: there is no such option");
    s = command(NULL, "calibrate", "importance", "-m", MODEL, "-f", TEXT, "-o", TEXT, NULL);
    expect_failure(&s, 1, "would replace a file");
}

TEST(finds_bases_of_keys)
{
    char path[128], read[256];
    in_folder("a.loki", path);
    struct said s = command(NULL, "calibrate", "loki", "-m", MODEL, "-f", TEXT, "-o", path, NULL);
    expect_status(&s, 0);
    expect_word(s.err, "bases of 3 layers, 2 KV heads, 32 dimensions");
    expect_word(s.err, "from 1991 tokens");
    s = command(NULL, "calibrate", "inspect", path, "-m", MODEL, NULL);
    expect_status(&s, 0);
    expect_word(s.out, "pith-nano");
    expect_word(s.out, "prompt-2k.txt");
    expect_word(s.out, "1991 read, keys as they are stored");
    expect_word(s.out, "layer   2");
    snprintf(read, sizeof(read), "loki:projection=%s,r=16,budget=256", path);
    s = command(NULL, "run", "-m", MODEL, "-f", TEXT, "--temp", "0", "-n", "4", "--read", read,
                NULL);
    expect_status(&s, 0);
    expect_word(s.err, "loki");
    s = command(NULL, "run", "-m", MODEL, "-p", "a", "--read", "loki", NULL);
    expect_failure(&s, 1, "pith calibrate loki");
    s = command(NULL, "calibrate", "loki", "-m", MODEL, "-f", TEXT, "-o", path, "--keys", "plain",
                "-c", "500", NULL);
    expect_status(&s, 0);
    s = command(NULL, "calibrate", "inspect", path, NULL);
    expect_status(&s, 0);
    expect_word(s.out, "keys before rotation");
}

TEST(refuses_bases_that_cannot_be)
{
    char path[128];
    in_folder("b.loki", path);
    struct said s = command(NULL, "calibrate", "loki", "-m", MODEL, "-f", TEXT, "-o", path,
                            "--keys", "rotten", NULL);
    expect_failure(&s, 2, "\"rotten\" is not one of rotated, plain");
    s = command(NULL, "calibrate", "loki", "-m", MODEL, "-f", TEXT, "-o", path, "--select",
                "generated", NULL);
    expect_failure(&s, 2, "--select: there is no such option");
    s = command(NULL, "calibrate", "loki", "-m", MODEL, "-f", TEXT, "-o", TEXT, NULL);
    expect_failure(&s, 1, "would replace");
    write_file(path, "PITHLOKI and no more");
    s = command(NULL, "calibrate", "inspect", path, NULL);
    expect_failure(&s, 1, "version");
}

TEST(selects_tokens_by_ranges)
{
    char path[128], ranges[128];
    in_folder("b.stats", path);
    in_folder("ranges", ranges);
    write_file(ranges, "# two\n10 20\n\n 30\t31 # and one\n");
    struct said s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", TEXT, "-o", path,
                            "--select", ranges, NULL);
    expect_status(&s, 0);
    expect_word(s.err, "from 11 of 1991 tokens");
    s = command(NULL, "calibrate", "inspect", path, NULL);
    expect_status(&s, 0);
    expect_word(s.out, "30 to 31");
    expect_word(s.out, "queries       11 of each head");
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", TEXT, "-o", path, "--select",
                "generated", "-n", "8", "-c", "1000", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "from 16 of 2007 tokens");
    write_file(ranges, "10 20\n12 ten\n");
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", TEXT, "-o", path, "--select",
                ranges, NULL);
    expect_failure(&s, 1, "line 2");
    write_file(ranges, "10 20\n12 30\n");
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", TEXT, "-o", path, "--select",
                ranges, NULL);
    expect_failure(&s, 1, "range 1");
}

/* Token ids are read unchanged: they give the same statistics as their text, and ranges count
   them. */
TEST(reads_token_ids_as_they_are)
{
    char text[128], ids[128], path[128], other[128];
    in_folder("text", text);
    in_folder("ids", ids);
    in_folder("d.stats", path);
    in_folder("e.stats", other);
    write_file(text, "A text that is short: the quick brown fox jumps over the lazy dog.\n");
    struct said s = command(NULL, "tokenize", "-m", MODEL, "-f", text, "--json", NULL);
    expect_status(&s, 0);
    write_file(ids, s.out);
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", text, "-o", path, NULL);
    expect_status(&s, 0);
    expect_word(s.err, "1 centre, from ");
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "--tokens", ids, "-o", other, NULL);
    expect_status(&s, 0);
    struct said a = command(NULL, "calibrate", "inspect", path, NULL);
    struct said b = command(NULL, "calibrate", "inspect", other, NULL);
    assert_string_equal(strstr(a.out, "shape"), strstr(b.out, "shape"));
    expect_word(b.out, "text          ids");
    s = command(NULL, "calibrate", "inspect", path, "-m", MODEL, "--tokens", ids, NULL);
    expect_status(&s, 0);
    expect_word(s.out, "mean correlation");

    write_file(ids, "1 2 99999\n");
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "--tokens", ids, "-o", other, NULL);
    expect_failure(&s, 2, "token id 99999");
    write_file(ids, " \n");
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "--tokens", ids, "-o", other, NULL);
    expect_failure(&s, 1, "no tokens");
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "--tokens", ids, "-f", TEXT, "-o", other,
                NULL);
    expect_failure(&s, 2, "one of them");
}

/* A model without a tokenizer is calibrated from tokens, and from nothing else. */
TEST(calibrates_a_model_without_tokenizer_from_tokens)
{
    char model[128], ids[128], ranges[128], path[128];
    assert_int_equal(model_make_of("arch=llama layers=2 width=32 vocab=512",
                                   in_folder("bare.gguf", model), &err),
                     PITH_OK);
    in_folder("ids", ids);
    in_folder("ranges", ranges);
    in_folder("f.stats", path);
    write_file(ids, "1 2 3 4\n5,6\t7 8 511 0\n");
    write_file(ranges, "0 2\n8 10\n");
    struct said s = command(NULL, "calibrate", "queries", "-m", model, "--tokens", ids, "-o", path,
                            "--select", ranges, NULL);
    expect_status(&s, 0);
    expect_word(s.err, "from 4 of 10 tokens");
    s = command(NULL, "calibrate", "queries", "-m", model, "-f", ids, "-o", path, NULL);
    expect_failure(&s, 1, "no tokenizer");
}

/* Ctrl-C ends it, and leaves the file that was there. */
TEST(an_interrupt_leaves_the_old_file)
{
    char path[128], byte;
    struct stat st;
    int ends[2], in = open("/dev/null", O_RDONLY), out = open("/dev/null", O_WRONLY);
    in_folder("g.stats", path);
    write_file(path, "as it was");
    const char *const words[] = {"calibrate", "queries", "-m",         MODEL,      "-f",
                                 TEXT,        "-o",      path,         "--select", "generated",
                                 "-n",        "2000",    "--progress", NULL};
    assert_int_equal(pipe(ends), 0);
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    pid_t pid = command_start(words, in, out, ends[1]);
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    kill(pid, SIGINT);
    while (read(ends[0], &byte, 1) > 0)
        continue;
    assert_int_equal(command_wait(pid), 130);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, strlen("as it was"));
    close(ends[0]);
    close(in);
    close(out);
}

/* The path of the one file that there is of the model: what is its name's end. */
static const char *own_file(const char *cache, const char *what)
{
    static char path[256];
    glob_t found;
    snprintf(path, sizeof(path), "%s/pith/*.%s", cache, what);
    assert_int_equal(glob(path, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(path, sizeof(path), "%s", found.gl_pathv[0]);
    globfree(&found);
    return path;
}

/* Commands find by the model the files that `pith calibrate MODEL` leaves. */
TEST(one_word_calibrates_all_that_policies_want)
{
    if (TEST_STRIDE > 1)
        test_skip("with sanitizers it takes longer than all others here together");
    char cache[128], none[128];
    in_folder("calibrated", cache);
    setenv("XDG_CACHE_HOME", cache, 1);
    struct said s = command(NULL, "run", "-m", MODEL, "-f", TEXT, "-n", "1", "--keep",
                            "kvzap:budget=25%", NULL);
    expect_failure(&s, 1, "pith calibrate");
    s = command(NULL, "run", "-m", MODEL, "-f", TEXT, "-n", "1", "--no-chat", "--kv", "20%", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "would lose less: it learns once, in about ");
    s = command(NULL, "calibrate", MODEL, "-t", "1", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "pith-nano is calibrated, in ");
    assert_string_equal(s.out, "");
    s = command(NULL, "calibrate", "-m", MODEL, NULL);
    expect_status(&s, 0);
    expect_word(s.err, ".stats is there: --again learns it anew");
    s = command(NULL, "run", "-m", MODEL, "-f", TEXT, "-n", "1", "--no-chat", "--kv", "20%", NULL);
    expect_status(&s, 0);
    expect_word(s.err, ", kvzap ");
    assert_null(strstr(s.err, "would lose less"));
    s = command(NULL, "run", "-m", MODEL, "-f", TEXT, "-n", "1", "--keep", "kvzap:budget=25%",
                "--read", "loki:budget=256", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "stats=/");
    s = command(NULL, "run", "-m", MODEL, "-p", "a", "-n", "1", "--share", "memshare", "--json",
                NULL);
    expect_status(&s, 0);
    json_t *o = json_loads(s.err, 0, NULL);
    double block = number(o, "share_block");
    assert_true(block > 0.01 && block < 2.0);
    json_decref(o);
    s = command(NULL, "run", "-m", MODEL, "-p", "a", "-n", "1", "--share", "memshare:block=auto",
                "--json", NULL); /* as it is said: nothing was measured yet */
    o = json_loads(s.err, 0, NULL);
    assert_true(number(o, "share_block") == 0.0);
    json_decref(o);
    s = command(NULL, "run", "-m", PITH_SOURCE_DIR "/models/pith-mini.gguf", "-p", "a", "-n", "1",
                "--keep", "kvzap:budget=25%", NULL);
    expect_failure(&s, 1, "pith calibrate"); /* another model's are not taken */
    assert_int_equal(unlink(own_file(cache, "loki")), 0);
    s = command(NULL, "calibrate", MODEL, "-t", "1", NULL); /* as after Ctrl-C */
    expect_status(&s, 0);
    assert_int_equal(access(own_file(cache, "loki"), R_OK), 0);
    write_file(own_file(cache, "share"), "block=0.5 or so\n");
    s = command(NULL, "run", "-m", MODEL, "-p", "a", "-n", "1", "--share", "memshare", NULL);
    expect_failure(&s, 1, ".share: the first line is \"block=0.5 or so\", not block=auto or like");
    assert_int_equal(truncate(own_file(cache, "stats"), 3000), 0);
    s = command(NULL, "plan", MODEL, "-c", "512", "-t", "1", NULL);
    expect_word(s.out, "Its statistics cannot be used: \"pith calibrate ");
    s = command(NULL, "run", "-m", MODEL, "-p", "a", "-n", "1", "--keep", "kvzap:budget=25%",
                "--read", "loki:budget=256", NULL);
    expect_word(s.err, ".stats: the file has 3000 bytes and should have ");
    const char *first = strstr(s.err, "learns them anew");
    assert_non_null(first);
    assert_null(strstr(first + 1, "learns them anew"));
    s = command(NULL, "calibrate", MODEL, "-t", "1", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "they are learned anew");
    expect_word(s.err, "pith-nano is calibrated, in ");
    s = command(NULL, "run", "-m", MODEL, "-f", TEXT, "-n", "1", "--keep", "kvzap:budget=25%",
                NULL);
    expect_status(&s, 0);
    s = command(NULL, "run", "-m", MODEL, "-p", "a", "-n", "1", "--share", "memshare", NULL);
    expect_status(&s, 0);
    setenv("XDG_CACHE_HOME", in_folder("cache", none), 1);
}

/* Texts that are none, and places where no file can be: said before anything is computed. */
TEST(refuses_empty_texts_and_places_without_files)
{
    char path[128], text[128], own[128];
    in_folder("h.stats", path);
    in_folder("text", text);
    in_folder("own", own);
    write_file(text, "");
    write_file(own, "A text that stays.");
    const struct {
        const char *text, *out, *word;
    } cases[] = {
        {text, path, "text: the file is empty"},  {"/", path, "Is a directory"},
        {"no-such-file", path, "no-such-file"},   {TEXT, "/", "not a regular file"},
        {TEXT, "no-such-folder/x", "no-such-fo"}, {own, own, "made from"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct said s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", cases[i].text,
                                "-o", cases[i].out, NULL);
        expect_failure(&s, 1, cases[i].word);
    }
    assert_int_not_equal(access(path, F_OK), 0);
}

TEST(refuses_what_is_no_statistics)
{
    char path[128];
    in_folder("c.stats", path);
    struct said s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", TEXT, NULL);
    expect_failure(&s, 2, "-o STATS");
    s = command(NULL, "calibrate", "inspect", path, NULL);
    expect_failure(&s, 1, "c.stats");
    write_file(path, "no statistics");
    s = command(NULL, "calibrate", "inspect", path, NULL);
    expect_failure(&s, 1, "begins like none");
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", TEXT, "-o", path, "-n", "9000",
                "--select", "generated", NULL);
    expect_failure(&s, 1, "-n 9000");
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", TEXT, "-o", path, "--centres",
                "64", "--samples", "10", NULL);
    expect_failure(&s, 2, "--samples 10");
    s = command(NULL, "calibrate", "queries", "-m", MODEL, "-f", TEXT, "-o", path, "--centres",
                "64", "--select", "generated", "-n", "3", NULL);
    expect_failure(&s, 1, "64 centres of 3 queries");
    s = command(NULL, "calibrate", "inspect", path, "--layer", "1", NULL);
    expect_failure(&s, 2, "-m");
}

/* Earlier an option chose the method: such command lines still work, and one line names the present
   form. */
TEST(older_lines_name_the_command_that_they_are_now)
{
    char path[128], text[128], loki[160], share[] = "--share=memshare";
    in_folder("k.stats", path);
    in_folder("text", text);
    write_some(text, 1500);
    const struct {
        const char *words[9];
        const char *now;
    } cases[] = {
        {{"-m", MODEL, "-f", text, "-o", path}, "this is \"pith calibrate queries\" now"},
        {{"--inspect", path}, "this is \"pith calibrate inspect\" now"},
        {{"-m", MODEL, "-f", text, "--loki", path}, "this is \"pith calibrate loki\" now"},
        {{"-m", MODEL, "-f", text, loki}, "this is \"pith calibrate loki\" now"},
        {{"-m", MODEL, loki + 7, "--inspect"}, "this is \"pith calibrate inspect\" now"},
        {{"-m", MODEL, "-f", text, share}, "this is \"pith calibrate share\" now"},
        {{"-c", "100", "--importance", "-m", MODEL, "-f", text, "-o", path},
         "this is \"pith calibrate importance\" now"},
    };
    snprintf(loki, sizeof(loki), "--loki=%s", path);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const char *const *w = cases[i].words;
        struct said s =
            command(NULL, "calibrate", w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], NULL);
        expect_status(&s, 0);
        expect_word(s.err, cases[i].now);
    }
    struct said s = command(NULL, "calibrate", "-q", "-m", MODEL, "-f", text, "-o", path, NULL);
    expect_status(&s, 0);
    assert_string_equal(s.err, "");
}

TEST(refuses_statistics_of_another_model)
{
    struct said s = command(NULL, "calibrate", "inspect", test_data("stats/qwen3-1.7b.tria.bin"),
                            "-m", MODEL, NULL);
    expect_failure(&s, 1, "28 layers");
}
