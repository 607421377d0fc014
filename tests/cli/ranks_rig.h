/*
 * ranks_rig.h - the common part of the tests of the command over several ranks, which mpirun starts
 * on this machine. For one file of a test program, which asks for POSIX.1-2008 first.
 */
#ifndef PI_TEST_RANKS_RIG_H
#define PI_TEST_RANKS_RIG_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "testing.h"

#include "command.h"
#include "model_maker.h"

#define NANO PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define MINI PITH_SOURCE_DIR "/models/pith-mini.gguf"
#define MOST 40

/* Root may start ranks, more of them than there are processors. MPI keeps memory, which is no leak. */
static inline void ranks_set_up(void)
{
    folder_make();
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1); /* there may be fewer processors than ranks */
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1); /* else a rank has one processor */
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
}

/* Words, divided by spaces, as the command over n ranks; n 0: without MPI. */
static inline struct said over(const char *n, const char *words)
{
    static char text[1024];
    const char *list[MOST] = {"-np", n, PITH_COMMAND_WITH_RANKS};
    int at = n != NULL ? 3 : 0;
    snprintf(text, sizeof(text), "%s", words);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " ")) {
        assert_true(at < MOST - 1);
        list[at++] = word;
    }
    list[at] = NULL;
    command_path = n != NULL ? PITH_MPIEXEC : PITH_COMMAND_WITH_RANKS;
    return command_list(NULL, NULL, list);
}

/* Ends of lines are a terminal's under mpirun, and times differ. */
static inline void drop_lines(char *text)
{
    char *to = text, *times = strstr(text, "\nseconds ");
    if (times != NULL)
        *times = '\0';
    for (; *text != '\0'; text++)
        if (*text != '\n' && *text != '\r')
            *to++ = *text;
    *to = '\0';
}

/* n ranks print what one process printed. */
static inline void expect_output(const char *n, const char *words, char *wanted)
{
    struct said all = over(n, words);
    if (all.status != 0)
        print_message("%s: %s\n", words, all.err);
    expect_status(&all, 0);
    drop_lines(wanted);
    drop_lines(all.out);
    assert_true(strlen(wanted) > 0);
    assert_string_equal(wanted, all.out);
}

static inline void expect_same(const char *n, const char *words)
{
    struct said one = over(NULL, words);
    expect_status(&one, 0);
    expect_output(n, words, one.out);
}

/* A model of a family in the test's folder. */
static inline void make_family(const char *family, char path[128])
{
    struct model_spec spec;
    char words[512];
    model_spec_default(&spec);
    snprintf(words, sizeof(words), "%s vocab=101 ctx=512", family);
    assert_int_equal(model_spec_parse(&spec, words, &err), PITH_OK);
    assert_int_equal(model_make(&spec, in_folder("family.gguf", path), &err), PITH_OK);
}

/* Bytes that rank 0 of 2 sent, by its report. */
static inline json_int_t sent_by(const char *words)
{
    char all[1024];
    snprintf(all, sizeof(all), "%s --json", words);
    struct said s = over("2", all);
    expect_status(&s, 0);
    json_t *root = json_loads(strstr(s.err, "{"), JSON_DISABLE_EOF_CHECK, NULL);
    json_int_t sent =
        json_integer_value(json_object_get(json_object_get(root, "ranks"), "sent_bytes"));
    json_decref(root);
    return sent;
}

/* `pith info --ranks` is right. Nine tokens take eight passes of one token more than one token
   takes, and each pass sends what it says. */
static inline void expect_foretold(const char *info, const char *options)
{
    char words[512];
    json_int_t sent[2];
    snprintf(words, sizeof(words), "info %s --json " NANO, info);
    struct said s = over(NULL, words);
    expect_status(&s, 0);
    json_t *root = json_loads(s.out, 0, NULL);
    const json_t *rank = json_array_get(json_object_get(root, "ranks"), 0);
    json_int_t foretold = json_integer_value(json_object_get(rank, "sent_token_bytes"));
    assert_true(foretold > 0);
    for (int i = 0; i < 2; i++) {
        snprintf(words, sizeof(words), "run -t 1 --draft none -n %d --ignore-eos -p The %s -m %s",
                 1 + 8 * i, options, NANO);
        sent[i] = sent_by(words);
    }
    assert_int_equal(sent[1] - sent[0], 8 * foretold);
    json_decref(root);
}

/* One sentence, of rank 0, on standard error, and no rank goes on. */
static inline void expect_refused(const char *n, const char *words, const char *word)
{
    struct said s = over(n, words);
    if (s.status == 0)
        print_message("not refused: %s\n", words);
    assert_true(s.status != 0);
    expect_word(s.err, word);
    if (strstr(strstr(s.err, word) + 1, word) != NULL)
        print_message("said twice: %s\n", s.err);
    assert_null(strstr(strstr(s.err, word) + 1, word));
}

#endif
