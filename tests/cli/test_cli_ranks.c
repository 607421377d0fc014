/*
 * The command over several ranks, which mpirun starts on this machine. They print the same as one
 * process does. A use that they do not have is refused by all of them, and said once.
 */
#define _POSIX_C_SOURCE 200809L

#include <sys/stat.h>
#include <unistd.h>

#include "ranks_rig.h"

TEST_GROUP(ranks_set_up, folder_remove);

TEST(logits_are_those_of_one_process)
{
    expect_same("2", "logits -t 1 --ids 1,5,9,30,77,4,8,100 -m " NANO);
    expect_same("2", "logits -t 2 --ids 1,5,9,30,77,4,8,100 -m " MINI);
}

/* Families of attention, and of a dense feed-forward or experts: tied and not, fused, with windows,
   a shared expert, biases of experts. */
TEST(logits_of_every_family_of_rows_too)
{
    static const char *const families[] = {
        "arch=llama layers=2 width=64 heads=6 kv_heads=3 head_dim=16 ff=96 tied=1 type=Q4_0",
        "arch=qwen3 layers=2 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 type=Q8_0",
        "arch=smollm3 layers=5 width=64 heads=4 kv_heads=2 head_dim=16 ff=96",
        "arch=gemma3 layers=7 width=64 heads=4 kv_heads=2 head_dim=32 ff=160 window=20 tied=1",
        "arch=gemma2 layers=3 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 window=20 attn_cap=5",
        "arch=phi3 layers=2 width=96 heads=6 kv_heads=2 head_dim=16 ff=96 fused=1 rot=12",
        "arch=mistral3 layers=2 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 temperature=0.1",
        "arch=qwen3moe layers=3 width=64 heads=4 kv_heads=2 head_dim=32 experts=8 used=2 "
        "expert_ff=96 type=Q8_0",
        "arch=glm4moe layers=4 width=64 heads=4 kv_heads=2 head_dim=32 rot=16 ff=96 experts=8 "
        "used=3 expert_ff=64 norm=1",
        "arch=gpt-oss layers=4 width=64 heads=4 kv_heads=2 head_dim=16 experts=4 used=2 "
        "expert_ff=96",
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

#define RUN "run -t 2 -n 24 --temp 0.8 --seed 3 -p The_friend_of_the_friend_of_the_friend -m " MINI

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

TEST(rounds_over_lanes_of_several_ranks_are_those_of_one_process)
{
    expect_rounds("2", "");
}

/* Each rank takes the heads, or the layers, that are its own from the file. */
TEST(statistics_are_those_of_a_ranks_lanes)
{
    static const char *const keep[] = {"triattention:sinks=4", "kvzap:recent=0",
                                       "expected:sinks=4"};
    char stats[128], words[1024];
    make_statistics(MINI, stats);
    for (int i = 0; i < 3; i += TEST_STRIDE)
        for (int n = i == 1 ? 4 : 2; n > 0; n--) {
            snprintf(words, sizeof(words),
                     RUN " --recall none --split %s --keep %s,stats=%s,window=4,budget=24,slack=8,"
                         "pin-prompt=off,granularity=%s",
                     n % 2 > 0 ? "layers" : "rows", keep[i], stats,
                     n > 2 ? "global" : "layer-head");
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

/* Requests of a scheduler that every rank runs by itself. */
TEST(solved_problems_are_those_of_one_process)
{
    char path[128], words[512];
    write_file(in_folder("problems", path),
               "{\"question\": \"Anna has 2 hats and buys 3. How many?\", \"answer\": \"#### 5\"}\n"
               "{\"question\": \"Robert had 4. He lost 1. How many?\", \"answer\": \"#### 3\"}\n");
    snprintf(words, sizeof(words),
             "eval questions -t 1 --parallel 2 --predict 20 --temp 0.8 -m " MINI " -f %s", path);
    expect_same("2", words);
}

TEST(info_foretells_what_is_sent)
{
    expect_foretold(NANO, "--ranks 2", "");
    expect_foretold(NANO, "--ranks 3,1", "--ranks 3,1");
}

TEST(what_ranks_cannot_do_is_refused_once)
{
    expect_refused("3", "logits -t 1 --ids 1,5 -m " NANO, "3 ranks are more than the 2 KV heads");
    expect_refused("2", "chat -m " NANO, "cannot run over several ranks");
    expect_refused("2", "logits -t 1 --ids 1,5 --ranks 3,1,1 -m " NANO,
                   "3 weights are not one for");
    expect_refused("2", "logits -t 1 --ids 1,5 --ranks 3,x -m " NANO, "is no list of weights");
    expect_refused("2", RUN " --read quoka:budget=16", "over ranks all that is stored is read");
    expect_refused("2", RUN " --recall none --keep longflow:budget=48,granularity=layer",
                   "over ranks each lane decides for itself");
    expect_refused("2", RUN " --recall none --keep adakv:budget=48",
                   "over ranks a layer's heads cannot share its budget");
    expect_refused("2", RUN " --recall none --keep knorm:budget=1MiB,granularity=layer-head",
                   "over ranks it is a number of tokens");
    expect_refused("2", "logits -t 1 --ids 1,5 -m nowhere.gguf", "nowhere.gguf");
}

#define SHORT "run -n 4 --ignore-eos -m " NANO

TEST(what_differs_between_ranks_is_said)
{
    expect_refused(
        "1", SHORT " -p The : -np 1 env PITH_TEMP=2 " PITH_COMMAND_WITH_RANKS " " SHORT " -p The",
        "its options differ from rank 0's");
    expect_refused("2", SHORT " -f /proc/self/stat", "its prompt is not rank 0's");
    expect_refused("2", "eval perplexity -c 16 -f /proc/self/stat -m " NANO,
                   "its text is not rank 0's");
}

/* Rank 1 in a folder of its own, where the file has other contents. */
static void expect_others(const char *words, const char *sentence)
{
    char list[900];
    snprintf(list, sizeof(list), "%s : -np 1 env -C other " PITH_COMMAND_WITH_RANKS " %s", words,
             words);
    expect_refused("1", list, sentence);
}

TEST(files_that_differ_between_ranks_are_said)
{
    char path[128], before[256];
    write_file(in_folder("file", path), "1\n2\n3\n");
    assert_int_equal(mkdir(in_folder("other", path), 0700), 0);
    write_file(in_folder("other/file", path), "1\n2\n4\n");
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(in_folder("", path)), 0);
    expect_others("logits -t 1 --ids @file -m " NANO, "its list of ids is not rank 0's");
    expect_others("run -n 4 -p The --recall none --keep streaming:budget=48,layers=file -m " NANO,
                  "its policy, or a file that it names, is not rank 0's");
    assert_int_equal(chdir(before), 0);
}

/* How fast each computes, and a seed of the clock, which is rank 0's. */
TEST(threads_may_differ_and_a_seed_is_one)
{
    struct said s = over(
        "1", SHORT " -s -1 -t 1 -p The : -np 1 env PITH_CPU_LEVEL=scalar " PITH_COMMAND_WITH_RANKS
                   " " SHORT " -s -1 -t 2 -p The");
    expect_status(&s, 0);
}
