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

#include "batch_rig.h"
#include "command.h"
#include "model_maker.h"

#define NANO PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define MINI PITH_SOURCE_DIR "/models/pith-mini.gguf"
#define MOST 40

/* Root may start ranks, more of them than there are processors. MPI keeps memory, which is no
   leak. */
static inline void ranks_set_up(void)
{
    folder_make();
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1); /* there may be fewer processors than ranks */
    setenv("OMPI_MCA_pml", "ob1", 1); /* looking for networks takes as long as a run */
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
    char words[512];
    snprintf(words, sizeof(words), "%s vocab=101 ctx=512", family);
    assert_int_equal(model_make_of(words, in_folder("family.gguf", path), &err), PITH_OK);
}

/* Rounds whose scores come from several ranks: lanes that keep the same positions, or that share
   one budget. n ranks print what one process does; `parts` is for ranks alone. */
static inline void expect_rounds(const char *n, const char *parts)
{
    static const char *const keep[] = {
        "snapkv:budget=24,slack=8,window=4,granularity=all",
        "knorm:budget=24,slack=4,granularity=layer,combine=max --chunk 5",
        "streaming:budget=20,sinks=2,slack=8,granularity=head",
        "triattention:sinks=4,window=4,budget=24,slack=8,pin-prompt=off,granularity=all,boundary-"
        "skip=1",
        "random:budget=24,slack=4,granularity=all",
        "random:budget=24,slack=8,granularity=global --draft lookup",
        "random:budget=50%,slack=8,granularity=global --kv-memory 2MiB --chunk 6",
    };
    for (size_t i = 0; i < sizeof(keep) / sizeof(keep[0]); i += TEST_STRIDE) {
        char words[512], all[1024];
        snprintf(words, sizeof(words),
                 "run -t 1 -n 60 --ignore-eos --temp 0.8 --seed 3 --recall none -m " MINI
                 " -p The_friend_of_the_friend_of_the_friend --keep %s",
                 keep[i]);
        struct said one = over(NULL, words);
        expect_status(&one, 0);
        expect_word(one.err, "evicted");
        snprintf(all, sizeof(all), "%s %s", words, parts);
        expect_output(n, all, one.out);
    }
}

/* A model that can be given texts, with pith-mini's tokenizer. */
static inline void make_texts(const char *family, char path[128])
{
    char words[512];
    snprintf(words, sizeof(words), "%s vocab_file=" MINI, family);
    assert_int_equal(model_make_of(words, in_folder("texts.gguf", path), &err), PITH_OK);
}

/* A model's statistics of queries and of the importance of entries, in the test's folder. */
static inline void make_statistics(const char *model, char path[128])
{
    char words[512];
    snprintf(words, sizeof(words),
             "calibrate importance -t 2 -m %s -f " PITH_SOURCE_DIR
             "/README.md -o %s --pieces 1 -c 96 --hidden",
             model, in_folder("importance.stats", path));
    struct said s = over(NULL, words);
    expect_status(&s, 0);
}

/* The report of rank 0 of 2; caller frees. */
static inline json_t *report_of(const char *words)
{
    char all[1024];
    snprintf(all, sizeof(all), "%s --json", words);
    struct said s = over("2", all);
    expect_status(&s, 0);
    return json_loads(strstr(s.err, "{"), JSON_DISABLE_EOF_CHECK, NULL);
}

/* `pith info --ranks` is right. Nine tokens take eight passes of one token more than one token
   takes, and each pass sends what it says. */
static inline void expect_foretold(const char *model, const char *info, const char *options)
{
    char words[512];
    int64_t sent[2];
    snprintf(words, sizeof(words), "info %s --json %s", info, model);
    struct said s = over(NULL, words);
    expect_status(&s, 0);
    json_t *root = json_loads(s.out, 0, NULL);
    const json_t *rank = json_array_get(json_object_get(root, "ranks"), 0);
    assert_true(number_of(rank, "sent_token_bytes") > 0);
    for (int i = 0; i < 2; i++) {
        snprintf(words, sizeof(words), "run -t 1 --draft none -n %d --ignore-eos -p The %s -m %s",
                 1 + 8 * i, options, model);
        json_t *report = report_of(words), *parts = json_object_get(report, "memory_parts");
        sent[i] = number_of(json_object_get(report, "ranks"), "sent_bytes");
        assert_int_equal(number_of(report, "weight_bytes"), number_of(rank, "weight_bytes"));
        assert_int_equal(number_of(parts, "states"), number_of(rank, "state_bytes"));
        json_decref(report);
    }
    assert_int_equal(sent[1] - sent[0], 8 * number_of(rank, "sent_token_bytes"));
    json_decref(root);
}

/* A file of the requests with these bodies. */
static inline void write_requests(const char *const *bodies, int n, char path[128])
{
    char id[16];
    FILE *file = open_file("requests.jsonl", path);
    for (int i = 0; i < n; i++) {
        snprintf(id, sizeof(id), "%d", i);
        add_line(file, id, "/v1/completions", json_loads(bodies[i], 0, NULL));
    }
    close_file(file);
}

/* `pith batch` over two ranks, of which rank 0 has both files and leads, gives the answers of one
   process. `parts` is for ranks alone. Returns what rank 0 reported. */
static inline struct said expect_answers(const char *in, int n, const char *options,
                                         const char *parts)
{
    char out[128], words[1024], id[16];
    struct said s;
    json_t *answers[2];
    for (int i = 0; i < 2; i++) {
        in_folder(i == 0 ? "one.jsonl" : "all.jsonl", out);
        remove(out);
        snprintf(words, sizeof(words), "batch -f %s -o %s %s %s", in, out, options,
                 i == 0 ? "" : parts);
        s = over(i == 0 ? NULL : "2", words);
        expect_status(&s, 0);
        answers[i] = read_output(out);
        assert_int_equal(json_object_size(answers[i]), n);
    }
    for (int i = 0; i < n; i++) {
        snprintf(id, sizeof(id), "%d", i);
        assert_true(json_equal(json_object_get(body_of(answers[0], id), "choices"),
                               json_object_get(body_of(answers[1], id), "choices")));
    }
    json_decref(answers[0]);
    json_decref(answers[1]);
    return s;
}

/* Two of the prompts begin alike. */
static inline void expect_same_batch(const char *options)
{
    static const char *const bodies[] = {
        "{\"prompt\": \"The friend of the friend\", \"max_tokens\": 20, \"seed\": 3}",
        "{\"prompt\": [\"Once\", \"There was\"], \"n\": 2, \"max_tokens\": 12, \"stop\": [\"e\"]}",
        "{\"prompt\": \"Robert\", \"max_tokens\": 30, \"temperature\": 0, \"logprobs\": 2}",
        "{\"prompt\": \"The friend of the friend of Anna\", \"max_tokens\": 40, \"seed\": 5}",
    };
    char in[128];
    write_requests(bodies, 4, in);
    expect_answers(in, 4, options, "");
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
