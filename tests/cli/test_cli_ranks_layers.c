/*
 * The command over several ranks of which each has some layers: they print what one process does,
 * in every family. A use that they do not have is refused by all of them, and said once.
 */
#define _POSIX_C_SOURCE 200809L

#include "ranks_rig.h"

#define HYBRID PITH_SOURCE_DIR "/models/pith-hybrid.gguf"
#define IDS "1,5,9,30,77,4,8,100,3,3,17,60,61,62,63,2,99,12,13,14,15,16,40,41,7,80,81,82,83,84,85"

TEST_GROUP(ranks_set_up, folder_remove);

/* With `parts` over n ranks, and without it in one process. */
static void expect_parts(const char *n, const char *parts, const char *words)
{
    char all[1024];
    struct said one = over(NULL, words);
    expect_status(&one, 0);
    snprintf(all, sizeof(all), "%s --split layers %s", words, parts);
    expect_output(n, all, one.out);
}

/* Every block: experts and dense layers before them, latent attention, recurrent layers, windows.
   Ranks with windows alone, with one KV head, and one layer each. */
TEST(logits_of_every_family_are_those_of_one_process)
{
    static const struct {
        const char *n, *parts, *family;
    } cases[] = {
        {"3", "",
         "arch=llama layers=3 width=64 heads=4 kv_heads=1 head_dim=16 ff=96 tied=1 "
         "type=Q4_0"},
        {"2", "--ranks 3,1", "arch=qwen2 layers=4 width=64 heads=4 kv_heads=2 head_dim=16 ff=96"},
        {"2", "--ranks 1,9", "arch=qwen3 layers=2 width=64 heads=4 kv_heads=2 head_dim=32 ff=96"},
        {"2", "",
         "arch=qwen3moe layers=3 width=64 heads=4 kv_heads=2 head_dim=32 experts=8 used=2 "
         "expert_ff=40"},
        {"3", "",
         "arch=glm4moe layers=4 width=64 heads=4 kv_heads=2 head_dim=32 rot=16 ff=96 "
         "experts=8 used=3 expert_ff=40 mtp=1 norm=1"},
        {"2", "",
         "arch=gpt-oss layers=4 width=64 heads=4 kv_heads=2 head_dim=16 experts=4 used=2 "
         "expert_ff=48 window=24"},
        {"2", "", "arch=smollm3 layers=5 width=64 heads=4 kv_heads=2 head_dim=16 ff=96"},
        {"3", "--ranks 1,1,2",
         "arch=gemma3 layers=7 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 "
         "window=20 tied=1"},
        {"3", "",
         "arch=gemma2 layers=3 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 window=20 "
         "attn_cap=5"},
        {"2", "",
         "arch=phi3 layers=2 width=96 heads=6 kv_heads=2 head_dim=16 ff=80 fused=1 rot=12"},
        {"2", "",
         "arch=mistral3 layers=2 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 "
         "temperature=0.1"},
        {"2", "--ranks 1,2",
         "arch=qwen35 layers=12 width=64 heads=4 kv_heads=2 head_dim=32 rot=8 "
         "ff=96"},
        {"3", "",
         "arch=qwen3next layers=6 width=64 heads=4 kv_heads=2 head_dim=32 rot=8 ff=96 "
         "experts=4 used=2 interval=2"},
        {"3", "",
         "arch=deepseek2 layers=3 width=64 heads=3 head_dim=64 rot=32 rank=64 "
         "value_dim=24 query_rank=32 ff=96 experts=4 used=2 expert_ff=40 lead=2"},
    };
    char path[128], words[512];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i += TEST_STRIDE) {
        make_family(cases[i].family, path);
        snprintf(words, sizeof(words), "logits -t 1 --chunk 8 --ids " IDS " -m %s", path);
        expect_parts(cases[i].n, cases[i].parts, words);
    }
}

#define RUN "run -t 2 -n 24 --temp 0.8 --seed 3 -p The_friend_of_the_friend_of_the_friend -m "

TEST(texts_are_those_of_one_process)
{
    static const char *const options[] = {
        "",
        " -ctk q8_0 -ctv turbo3:q8_0=1+2 --chunk 7",
        " --draft lookup --kv-memory 2MiB",
        " --recall none --keep snapkv:budget=24,slack=8,window=4,granularity=layer --chunk 9",
        " --recall none --keep tova:budget=24",
        " --recall none --keep adakv:budget=48,slack=8",
        " --recall none --keep h2o:budget=24,window=8,granularity=layer-head",
        " --read quoka:budget=8,chunk=4 --chunk 8",
        " --read quest:budget=16 -n 40",
    };
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i += TEST_STRIDE) {
        char words[512];
        snprintf(words, sizeof(words), RUN MINI "%s", options[i]);
        expect_parts(i % 2 == 0 ? "2" : "3", i == 0 ? "--ranks 1,4" : "", words);
    }
    expect_parts("2", "", RUN HYBRID);
    expect_parts("2", "", RUN HYBRID " --chunk 5 --kv-memory 2MiB");
}

TEST(rounds_over_lanes_of_several_ranks_are_those_of_one_process)
{
    expect_rounds("3", "--split layers");
}

/* A rank whose lanes score higher needs more pages than another. */
TEST(lanes_that_share_a_budget_fit_the_memory_of_their_ranks)
{
    static const char *const keep[] = {"random:granularity=global,budget=100,slack=16",
                                       "adakv:budget=100,slack=16"};
    char words[512];
    for (size_t i = 0; i < sizeof(keep) / sizeof(keep[0]); i++) {
        snprintf(words, sizeof(words),
                 "run -t 1 -n 2 --recall none -m " NANO " -f " PITH_SOURCE_DIR
                 "/models/demo/prompt-2k.txt --keep %s",
                 keep[i]);
        expect_parts("2", "", words);
    }
}

/* One rank has layers with windows alone, whose lanes take less. */
TEST(all_ranks_refuse_what_does_not_fit_one_of_them)
{
    char path[128], words[512];
    make_family(
        "arch=gemma3 layers=7 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 window=8 tied=1", path);
    snprintf(words, sizeof(words), "logits -t 1 -c 64 --chunk 8 --ids " IDS " -m %s", path);
    expect_parts("2", "", words);
    snprintf(words, sizeof(words),
             "logits -t 1 -c 64 --chunk 8 --ids " IDS "," IDS "," IDS " --split layers -m %s",
             path);
    expect_refused("2", words, "do not fit the KV memory");
}

/* A second start maps what the first one packed: each rank has a file of its own. */
TEST(packed_weights_of_ranks_are_kept_apart)
{
    char folder[128], words[512];
    snprintf(words, sizeof(words), RUN MINI " --cache-weights=%s", in_folder("", folder));
    expect_parts("2", "", words);
    snprintf(words, sizeof(words), RUN MINI " --split layers --cache-weights=%s", folder);
    struct said s = over("2", words);
    expect_status(&s, 0);
    expect_word(s.err, "mapped");
    assert_null(strstr(s.err, "made again"));
}

TEST(perplexity_is_that_of_one_process)
{
    char path[128], words[512];
    write_file(in_folder("text", path), "The friend of Robert is 1. The friend of Anna is 2. "
                                        "The friend of Robert is 1. The friend of Anna is 2.");
    snprintf(words, sizeof(words), "eval perplexity -t 1 -c 16 -m " NANO " -f %s", path);
    expect_parts("3", "", words);
}

/* On one machine a gather takes no time, next to layers of megabytes; these layers are smaller. */
TEST(rank_0_chooses_where_the_split_is_auto)
{
    struct said one = over(NULL, RUN MINI), all = over("2", RUN MINI " --split auto");
    expect_status(&all, 0);
    expect_word(all.err, "a gather of 16 kB takes");
    drop_lines(one.out);
    drop_lines(all.out);
    assert_string_equal(one.out, all.out);
    char path[128], words[512];
    make_family("arch=llama layers=2 width=64 heads=4 kv_heads=1 head_dim=16 ff=96", path);
    snprintf(words, sizeof(words), "logits -t 1 --ids 1,5 -m %s", path);
    one = over(NULL, words);
    snprintf(words, sizeof(words), "logits -t 1 --ids 1,5 --split auto -m %s", path);
    expect_output("2", words, one.out); /* rows would want two KV heads */
}

TEST(info_foretells_what_is_sent)
{
    expect_foretold(NANO, "--ranks 2 --split layers", "--split layers");
    expect_foretold(NANO, "--ranks 1,2 --split layers", "--split layers --ranks 1,2");
}

#define LAYERS " --split layers"

TEST(what_ranks_cannot_do_is_refused_once)
{
    expect_refused("4", "logits -t 1 --ids 1,5 -m " NANO LAYERS,
                   "4 ranks are more than the 3 layers");
    expect_refused("3", "logits -t 1 --ids 1,5 -m " HYBRID LAYERS, "are without attention");
    expect_refused("2", RUN MINI LAYERS " --read tidaldecode:budget=16",
                   "it chooses for all layers");
    expect_refused("2", RUN MINI LAYERS " --recall none --keep pyramidkv:budget=48",
                   "over ranks budgets are even");
    expect_refused("2", RUN MINI LAYERS " --kv 50%", "over ranks -c or --kv-memory");
    expect_refused("2", RUN MINI LAYERS " --share memshare --chunk 8", "over ranks there is none");
    expect_refused("2", RUN MINI LAYERS " -ctv turbo3:q8_0=4+4", "do not fit in 6 layers");
}
