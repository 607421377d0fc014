/*
 * The command over several ranks, which mpirun starts on this machine. They print the same as one
 * process does. A use that they do not have is refused by all of them, and said once.
 */
#define _POSIX_C_SOURCE 200809L

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
static void set_up(void)
{
    folder_make();
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1); /* there may be fewer processors than ranks */
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
}

TEST_GROUP(set_up, folder_remove);

/* Words, divided by spaces, as the command over n ranks; n 0: without MPI. */
static struct said over(const char *n, const char *words)
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
static void drop_lines(char *text)
{
    char *to = text, *times = strstr(text, "\nseconds ");
    if (times != NULL)
        *times = '\0';
    for (; *text != '\0'; text++)
        if (*text != '\n' && *text != '\r')
            *to++ = *text;
    *to = '\0';
}

/* What n ranks print, with what one process printed. */
static void expect_output(const char *n, const char *words, char *wanted)
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

static void expect_same(const char *n, const char *words)
{
    struct said one = over(NULL, words);
    expect_status(&one, 0);
    expect_output(n, words, one.out);
}

/* A model of a family in the test's folder. */
static void make_family(const char *family, char path[128])
{
    struct model_spec spec;
    char words[512];
    model_spec_default(&spec);
    snprintf(words, sizeof(words), "%s vocab=101 ctx=512", family);
    assert_int_equal(model_spec_parse(&spec, words, &err), PITH_OK);
    assert_int_equal(model_make(&spec, in_folder("family.gguf", path), &err), PITH_OK);
}

/* Bytes that rank 0 of 2 sent, by its report. */
static json_int_t sent_by(const char *words)
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

TEST(logits_are_those_of_one_process)
{
    expect_same("2", "logits -t 1 --ids 1,5,9,30,77,4,8,100 -m " NANO);
    expect_same("2", "logits -t 2 --ids 1,5,9,30,77,4,8,100 -m " MINI);
}

/* Families of attention and dense feed-forward, tied and not, fused, with windows. */
TEST(logits_of_every_dense_family_too)
{
    static const char *const families[] = {
        "arch=llama layers=2 width=64 heads=6 kv_heads=3 head_dim=16 ff=96 tied=1 type=Q4_0",
        "arch=qwen3 layers=2 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 type=Q8_0",
        "arch=smollm3 layers=5 width=64 heads=4 kv_heads=2 head_dim=16 ff=96",
        "arch=gemma3 layers=7 width=64 heads=4 kv_heads=2 head_dim=32 ff=160 window=20 tied=1",
        "arch=gemma2 layers=3 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 window=20 attn_cap=5",
        "arch=phi3 layers=2 width=96 heads=6 kv_heads=2 head_dim=16 ff=96 fused=1 rot=12",
        "arch=mistral3 layers=2 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 temperature=0.1",
    };
    char path[128], words[512];
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i += TEST_STRIDE) {
        make_family(families[i], path);
        snprintf(words, sizeof(words), "logits -t 1 --ids 1,5,9,30,77,4,8,100 -m %s", path);
        expect_same(i == 0 ? "3" : "2", words);
    }
}

/* Ranks of unequal weight: 1 and 2 of three KV heads, unequal numbers of rows. */
TEST(uneven_ranks_have_the_same_logits)
{
    char path[128], words[512];
    make_family("arch=llama layers=3 width=96 heads=6 kv_heads=3 head_dim=16 ff=160 type=Q8_0",
                path);
    snprintf(words, sizeof(words), "logits -t 1 --ids 1,5,9,30,77,4,8,100 -m %s", path);
    struct said one = over(NULL, words);
    expect_status(&one, 0);
    snprintf(words, sizeof(words), "logits -t 1 --ids 1,5,9,30,77,4,8,100 --ranks 3,1 -m %s", path);
    expect_output("2", words, one.out);
    snprintf(words, sizeof(words), "logits -t 1 --ids 1,5,9,30,77,4,8,100 --ranks 1,9,1 -m %s",
             path);
    expect_output("3", words, one.out);
}

#define RUN "run -t 1 -n 24 --temp 0.8 --seed 3 -p The_friend_of_the_friend_of_the_friend -m " MINI

TEST(texts_are_those_of_one_process)
{
    static const char *const options[] = {
        "",
        " -ctk q8_0 -ctv turbo3 --chunk 7",
        " --draft lookup --kv-memory 2MiB",
        " --recall none --keep snapkv:budget=24,slack=8,window=4,granularity=layer-head",
        " --recall none --keep longflow:budget=24,prompt-window=8,granularity=layer-head",
    };
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i += TEST_STRIDE) {
        char words[512];
        snprintf(words, sizeof(words), RUN "%s", options[i]);
        expect_same("2", words);
    }
}

TEST(perplexity_is_that_of_one_process)
{
    char path[128], words[512];
    write_file(in_folder("text", path), "The friend of Robert is 1. The friend of Anna is 2. "
                                        "The friend of Robert is 1. The friend of Anna is 2.");
    snprintf(words, sizeof(words), "eval perplexity -t 1 -c 16 -m " NANO " -f %s", path);
    expect_same("2", words);
}

/* `pith info --ranks` is right. Nine tokens take eight passes of one token more than one token
   takes, and each pass sends what it says. */
static void expect_foretold(const char *info, const char *options)
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

TEST(info_foretells_what_is_sent)
{
    expect_foretold("--ranks 2", "");
    expect_foretold("--ranks 3,1", "--ranks 3,1");
}

/* One sentence, of rank 0, on standard error, and no rank goes on. */
static void expect_refused(const char *n, const char *words, const char *word)
{
    struct said s = over(n, words);
    if (s.status == 0)
        print_message("not refused: %s\n", words);
    assert_true(s.status != 0);
    expect_word(s.err, word);
    assert_null(strstr(strstr(s.err, word) + 1, word));
}

TEST(what_ranks_cannot_do_is_refused_once)
{
    expect_refused("3", "logits -t 1 --ids 1,5 -m " NANO, "3 ranks are more than the 2 KV heads");
    expect_refused("2", "logits -t 1 --ids 1,5 --ranks 3,1,1 -m " NANO,
                   "3 weights are not one for");
    expect_refused("2", "logits -t 1 --ids 1,5 --ranks 3,x -m " NANO, "is no list of weights");
    expect_refused("2", "serve -m " NANO, "cannot run over several ranks");
    expect_refused("2", RUN " --read quoka:budget=16", "over ranks all that is stored is read");
    expect_refused("2", RUN " --recall none --keep knorm:budget=24,granularity=all",
                   "over ranks each lane decides for itself");
    expect_refused("2", "logits -t 1 --ids 1,5 -m nowhere.gguf", "nowhere.gguf");
}
