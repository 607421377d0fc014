/*
 * The output of `pith` in difficult places: the demo through a pipe, a full disk, a reader that
 * goes away, Ctrl-C.
 */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "testing.h"

#include "command.h"

TEST_GROUP(folder_make, folder_remove);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define DEMO PITH_SOURCE_DIR "/models/demo/prompt-2k.txt"
#define ON_MODEL "-m", MODEL, "-t", "1"

/* ---- demo ---- */

/* The size in a row of the table, which must have a unit and an answer. */
static double demo_size(const char *out, const char *row, const char *unit, const char *answer)
{
    char name[32], text[64];
    snprintf(name, sizeof(name), "\n  %-16s ", row);
    snprintf(text, sizeof(text), " %s  %s", unit, answer);
    const char *begin = strstr(out, name);
    assert_non_null(begin);
    const char *end = strstr(begin, text);
    assert_non_null(end);
    assert_null(memchr(begin + 1, '\n', (size_t)(end - begin - 1)));
    const char *size = end;
    while (size > begin && size[-1] != ' ')
        size--;
    return strtod(size, NULL);
}

TEST(the_demo_loses_the_fact_and_recalls_it)
{
    char path[128];
    struct said s = command(NULL, "demo", "-t", "1", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "Right.");
    expect_word(s.out, "layer 2 head 0");
    expect_word(s.out, " = the pool's ");
    /* A quarter of the pages, where the fact is gone, until recall brings it back. The memory of
       recall counts, too. */
    double full = demo_size(s.out, "full cache", "MiB", "Right: plain book.") * 1024;
    double quarter = demo_size(s.out, "a quarter", "KiB", "Wrong: ");
    double recalled = demo_size(s.out, "with recall", "KiB", "Right: plain book.");
    assert_true(quarter > full / 4 && quarter < recalled && recalled < 0.45 * full);
    assert_null(strchr(s.out, '\033')); /* no colours where there is no terminal */
    write_file(in_folder("wrong.txt", path), "The password of nobody.\n");
    s = command(NULL, "demo", "-t", "1", "--answer", path, NULL);
    expect_status(&s, 1);
    expect_word(s.out, "Wrong: the text says \"The password of nobody.\"");
}

/* ---- output that does not arrive ---- */

TEST(a_full_disk_fails_every_command)
{
    static const char *const cases[][12] = {
        {"run", ON_MODEL, "-p", "The", "-n", "8", "-q"},
        {"logits", ON_MODEL, "--ids", "1,2,3", "--json"},
        {"logits", ON_MODEL, "--ids", "1,2,3"},
        {"info", MODEL},
        {"info", MODEL, "--json"},
        {"tokenize", "-m", MODEL, "-p", "The end", "--json"},
        {"help", "run"},
        {"--version"},
        {"bench", ON_MODEL, "-p", "4", "-n", "0", "-r", "1"},
    };
    SKIP_WITHOUT("/dev/full");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct said s = command_list(NULL, "/dev/full", cases[i]);
        expect_failure(&s, 1, "standard output: No space left on device");
    }
}

/* The reader takes the first piece and leaves. The command ends by itself, without a word. */
TEST(ends_quietly_when_the_reader_leaves)
{
    static const char *const words[] = {"run",    ON_MODEL, "-p",           "The", "-n",
                                        "100000", "-q",     "--ignore-eos", NULL};
    int ends[2], in = open("/dev/null", O_RDONLY);
    char first;
    FILE *log = tmpfile();
    assert_int_equal(pipe(ends), 0);
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    pid_t pid = command_start(words, in, ends[1], fileno(log));
    close(ends[1]);
    assert_int_equal(read(ends[0], &first, 1), 1);
    close(ends[0]);
    assert_int_equal(command_wait(pid), 1);
    fseek(log, 0, SEEK_END);
    assert_int_equal(ftell(log), 0);
    fclose(log);
    close(in);
}

/* Ctrl-C ends the text; the text so far stays, and the statistics follow. */
TEST(an_interrupt_ends_the_text_and_statistics_follow)
{
    static const char *const words[] = {"run",    ON_MODEL,       "-p",     "The", "-n",
                                        "100000", "--ignore-eos", "--json", NULL};
    int ends[2], in = open("/dev/null", O_RDONLY);
    char buf[4096];
    FILE *log = tmpfile();
    assert_int_equal(pipe(ends), 0);
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    pid_t pid = command_start(words, in, ends[1], fileno(log));
    close(ends[1]);
    assert_true(read(ends[0], buf, 1) == 1);
    kill(pid, SIGINT);
    while (read(ends[0], buf, sizeof(buf)) > 0)
        continue;
    close(ends[0]);
    assert_int_equal(command_wait(pid), 130);
    rewind(log);
    json_t *o = json_loadf(log, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(o, "stop")), "caller");
    json_decref(o);
    fclose(log);
    close(in);
}

/* ---- files that are read, too ---- */

#define LOST "would replace"

static void expect_kept(const char *path, const char *text)
{
    char now[64] = "";
    FILE *file = fopen(path, "rb");
    assert_true(fread(now, 1, sizeof(now) - 1, file) < sizeof(now) - 1);
    fclose(file);
    assert_string_equal(now, text);
}

/* Logits appear when all of them are there. */
TEST(a_full_disk_leaves_the_old_logits)
{
    char path[128];
    struct rlimit before, small;
    write_file(in_folder("old.f32", path), "old");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){2000, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN); /* the command inherits it */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct said s = command(NULL, "logits", ON_MODEL, "--ids", "1", "--top", "1", "-o", path, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_failure(&s, 1, "old.f32: cannot write: File too large");
    expect_kept(path, "old");
}

/* A command may not write to a file that it reads, under any name, and changes none. */
TEST(an_output_is_none_of_the_inputs)
{
    char model[128], other[128], text[128], policy[160], ids[160];
    FILE *from = fopen(MODEL, "rb"), *to = fopen(in_folder("m.gguf", model), "wb");
    static char bytes[1 << 21];
    size_t n = fread(bytes, 1, sizeof(bytes), from);
    assert_true(n > 0 && n < sizeof(bytes) && fwrite(bytes, 1, n, to) == n);
    fclose(from);
    fclose(to);
    write_file(in_folder("a.txt", text), "1,2\n");
    snprintf(policy, sizeof(policy), "kvzap:stats=%s,budget=3", text);
    snprintf(ids, sizeof(ids), "@%s", text);
    assert_int_equal(link(model, in_folder("h.gguf", other)), 0);
    const char *const lines[][12] = {
        {"logits", "-m", model, "--ids", "1,2", "-o", model},
        {"logits", "-m", model, "--ids", ids, "-o", text},
        {"run", "-m", model, "-p", "a", "-n", "2", "--record", other},
        {"run", "-m", model, "-p", "a", "--keep", "streaming", "--map", model},
        {"run", "-m", model, "-f", text, "--record", text},
        {"run", "-m", model, "-f", text, "--map", text},
        {"run", "-m", model, "-p", "a", "--keep", policy, "--map", text},
        {"run", "-m", MODEL, "-p", "a", "--draft", model, "--map", model},
        {"eval", "perplexity", "-m", model, "-f", text, "--json", model},
        {"eval", "perplexity", "-m", model, "-f", text, "--json", text},
        {"eval", "needle", "-m", model, "-f", text, "--csv", text},
        {"eval", "questions", "-m", model, "-f", text, "--csv", text},
        {"eval", "replay", text, "--json", text},
        {"eval", "report", text, "-o", text},
        {"eval", "sweep", text, "-o", text},
        {"calibrate", "inspect", text, "--html", text},
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        struct said s = command_list(NULL, NULL, lines[i]);
        expect_failure(&s, 2, LOST);
        expect_kept(text, "1,2\n");
    }
    struct said s = command("1,2", "run", "-m", model, "-p", "a", "--record", in_folder("x", other),
                            "--map", other, NULL);
    expect_failure(&s, 2, "--record and --map name the same file");
    static char now[sizeof(bytes)];
    from = fopen(model, "rb");
    assert_true(fread(now, 1, sizeof(now), from) == n && memcmp(now, bytes, n) == 0);
    fclose(from);
}
