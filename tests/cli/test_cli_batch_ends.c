/*
 * `pith batch` that ends early. For every cause, the output holds whole lines, and --resume goes on
 * from them.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "batch_rig.h"

TEST_GROUP(folder_make, folder_remove);

#define N_LONG 64

static void write_long(char *path)
{
    FILE *file = open_file("long.jsonl", path);
    for (int i = 0; i < N_LONG; i++) {
        char id[32];
        snprintf(id, sizeof(id), "request \"%d\"", i);
        add_line(file, id, "/v1/completions",
                 json_pack("{s:s, s:i, s:i, s:b}", "prompt", questions[i % 4], "max_tokens",
                           100 + i % 7, "seed", i, "ignore_eos", 1));
    }
    close_file(file);
}

static const char *const slowly[] = {"--seqs", "2", NULL};

/* Starts a batch and sends it a signal when its output has some lines. */
static struct said end_early(const char *in, const char *out, int signal_number)
{
    const char *words[] = {"batch", "-m", MODEL, "-t",     "1", "-q", "-f",
                           in,      "-o", out,   "--seqs", "2", NULL};
    struct said said = {0};
    FILE *null = fopen("/dev/null", "r+"), *log = tmpfile();
    assert_true(null != NULL && log != NULL);
    pid_t pid = command_start(words, fileno(null), fileno(null), fileno(log));
    for (int i = 0; i < 20000 && count_lines(out) < 5; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_int_equal(kill(pid, signal_number), 0);
    said.status = command_wait(pid);
    said.err_len = (size_t)ftell(log);
    fseek(log, 0, SEEK_END);
    said.err_len = (size_t)ftell(log);
    rewind(log);
    said.err = calloc(said.err_len + 1, 1);
    test_free_later(said.err);
    assert_int_equal(fread(said.err, 1, said.err_len, log), said.err_len);
    fclose(log);
    fclose(null);
    return said;
}

/* The file after the second run equals the output of one uninterrupted run. */
static void expect_rest(const char *in, const char *out, const json_t *whole)
{
    struct said s = batch(in, out, (const char *const[]){"--resume", "--seqs", "2", NULL});
    expect_status(&s, 0);
    json_t *all = read_output(out);
    forget_company(all);
    assert_true(json_equal(all, (json_t *)whole));
    json_decref(all);
    s = batch(in, out, (const char *const[]){"--resume", NULL}); /* there is nothing left to do */
    expect_status(&s, 0);
    assert_string_equal(s.err, "");
    assert_int_equal(count_lines(out), N_LONG);
}

TEST(resume_goes_on_behind_what_is_written)
{
    char in[128], out[128];
    write_long(in);
    json_t *whole = batch_all(in, in_folder("whole.out", out), slowly);
    forget_company(whole);
    assert_int_equal(json_object_size(whole), N_LONG);

    struct said s = end_early(in, in_folder("killed.out", out), SIGKILL);
    assert_int_equal(s.status, 128 + SIGKILL);
    assert_in_range(count_lines(out), 5, N_LONG - 1);
    FILE *file = fopen(out, "a");
    fputs("{\"id\":\"batch_req_0\",\"custom_id\":\"request \\\"63", file);
    close_file(file);
    s = batch(in, out, NULL);
    expect_failure(&s, 1, "is there already");
    expect_rest(in, out, whole);

    s = end_early(in, in_folder("interrupted.out", out), SIGINT);
    expect_failure(&s, 130, "interrupted: ");
    expect_word(s.err, "of 64 requests are in \"");
    expect_word(s.err, "--resume does the rest");
    assert_in_range(count_lines(out), 5, N_LONG - 1);
    json_t *part = read_output(out); /* whole lines */
    json_decref(part);
    expect_rest(in, out, whole);

    /* With nothing to go on with, --resume begins. */
    in_folder("fresh.out", out);
    expect_rest(in, out, whole);
    json_decref(whole);
}

/* A rest of a line is dropped, and said to be. */
TEST(resume_drops_a_torn_line)
{
    char in[128], out[128];
    write_plain("plain.jsonl", in, 3);
    static const char *const torn[] = {"{", "{\"id\":\"batch", "{\"id\":\"batch_req_0f\",\"custom"};
    for (size_t i = 0; i < 3; i++) {
        write_file(in_folder("torn.out", out), torn[i]);
        struct said s = batch(in, out, (const char *const[]){"--resume", NULL});
        expect_status(&s, 0);
        expect_word(s.err, "the rest of a line at the end of \"");
        json_t *all = read_output(out);
        assert_int_equal(json_object_size(all), 3);
        json_decref(all);
    }
}

/* Text that no batch has written stays as it is, also where it has no newline. */
TEST(resume_leaves_the_file_of_another)
{
    char in[128], out[128];
    write_plain("plain.jsonl", in, 3);
    static const char *const foreign[] = {"precious text without newline", "x",
                                          "{\"custom_id\":\"r0\",\"response\":null}",
                                          "{\"id\":\"batch\"}"};
    for (size_t i = 0; i < 4; i++) {
        write_file(in_folder("foreign.out", out), foreign[i]);
        struct said s = batch(in, out, (const char *const[]){"--resume", NULL});
        expect_failure(&s, 1, "is no part of a batch's output");
        char text[64] = "";
        FILE *file = fopen(out, "r");
        assert_non_null(file);
        size_t n = fread(text, 1, sizeof(text) - 1, file);
        fclose(file);
        assert_int_equal(n, strlen(foreign[i]));
        assert_string_equal(text, foreign[i]);
    }
}

TEST(a_full_disk_leaves_whole_lines)
{
    char in[128], out[128];
    struct rlimit limit, before;
    write_long(in);
    json_t *whole = batch_all(in, in_folder("whole.out", out), slowly);
    forget_company(whole);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){9000, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN); /* the command inherits it */
    in_folder("full.out", out);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct said s = batch(in, out, slowly);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_failure(&s, 1, "cannot write \"");
    expect_word(s.err, "File too large; ");
    expect_word(s.err, "of 64 requests are in it");
    assert_in_range(count_lines(out), 3, N_LONG - 1);
    json_t *part = read_output(out); /* a partial line is removed */
    json_decref(part);
    expect_rest(in, out, whole);
    json_decref(whole);
}
