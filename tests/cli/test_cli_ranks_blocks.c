/*
 * The command over several ranks that divide the heads of recurrent layers, or the query heads of
 * latent attention. They print the same as one process does. They hold the parts that `pith info`
 * foretells.
 */
#define _POSIX_C_SOURCE 200809L

#include "ranks_rig.h"

TEST_GROUP(ranks_set_up, folder_remove);

#define IDS "1,5,9,30,77,4,8,100,3,3,17,60,61,62,63,2,99,12,13,14,15,16,40,41,7,80,81,82,83,84,85"

#define QWEN35 "arch=qwen35 width=64 rot=8 ff=96 delta_dim=32 layers=4 head_dim=32 "
#define NEXT                                                                                       \
    "arch=qwen3next width=64 rot=8 ff=96 delta_dim=32 layers=4 head_dim=32 experts=4 used=2 "      \
    "expert_ff=96 "
#define LATENT                                                                                     \
    "arch=deepseek2 layers=3 width=64 head_dim=64 rot=32 rank=64 ff=96 experts=4 used=2 "          \
    "expert_ff=96 lead=1 "

struct block_case {
    const char *n, *parts, *family;
};

/* Memory is for these tokens alone. */
static void expect_logits(const struct block_case *cases, size_t n)
{
    char path[128], words[512];
    for (size_t i = 0; i < n; i += TEST_STRIDE) {
        make_family(cases[i].family, path);
        snprintf(words, sizeof(words), "logits -t 1 -c 32 --chunk 8 --ids " IDS " -m %s", path);
        struct said one = over(NULL, words);
        expect_status(&one, 0);
        snprintf(words, sizeof(words), "logits -t 1 -c 32 --chunk 8 --ids " IDS " %s -m %s",
                 cases[i].parts, path);
        expect_output(cases[i].n, words, one.out);
    }
}

/* Value heads of a key head lie apart in the one family, and side by side in the other. */
TEST(logits_of_recurrent_layers_are_those_of_one_process)
{
    static const struct block_case cases[] = {
        {"2", "", QWEN35 "heads=4 kv_heads=2 delta_keys=2 delta_values=6"},
        {"2", "", QWEN35 "heads=4 kv_heads=2 delta_keys=4 delta_values=8 type=Q8_0"},
        {"3", "", QWEN35 "heads=3 kv_heads=3 delta_keys=3 delta_values=9 type=Q4_0"},
        {"2", "--ranks 3,1", QWEN35 "heads=6 kv_heads=3 delta_keys=6 delta_values=12 type=F16"},
        {"2", "",
         "arch=qwen35moe width=64 rot=8 ff=64 delta_dim=32 layers=4 head_dim=32 experts=4 used=2 "
         "expert_ff=64 heads=4 kv_heads=2 delta_keys=2 delta_values=4"},
        {"2", "", NEXT "heads=4 kv_heads=2 delta_keys=2 delta_values=6"},
        {"3", "--ranks 1,2,2", NEXT "heads=5 kv_heads=5 delta_keys=5 delta_values=10 type=Q8_0"},
        {"2", "", NEXT "heads=4 kv_heads=2 delta_keys=4 delta_values=12 legacy=1"},
        {"2", "--ranks 1,3",
         NEXT "heads=3 kv_heads=3 delta_keys=3 delta_values=6 legacy=1 type=Q8_0"},
    };
    expect_logits(cases, sizeof(cases) / sizeof(cases[0]));
}

/* Queries in one step and in two, matrices of heads that the file has turned, experts. */
TEST(logits_of_latent_attention_are_those_of_one_process)
{
    static const struct block_case cases[] = {
        {"2", "", LATENT "heads=4 value_dim=24"},
        {"3", "", LATENT "heads=3 value_dim=32 query_rank=32 type=Q8_0"},
        {"2", "--ranks 3,1", LATENT "heads=5 value_dim=40 query_rank=32 type=F16"},
        {"2", "", LATENT "heads=4 value_dim=32 old=1 type=Q8_0"},
        {"2", "--ranks 1,2", LATENT "heads=3 value_dim=24 query_rank=64 old=1"},
        {"2", "", LATENT "heads=8 value_dim=64 type=Q4_0 temperature=0.1 temp_len=8"},
    };
    expect_logits(cases, sizeof(cases) / sizeof(cases[0]));
}

#define TEXTS_35 QWEN35 "heads=4 kv_heads=2 delta_keys=2 delta_values=6"
#define RUN "run -t 1 -n 24 --temp 0.8 --seed 3 -p The_friend_of_the_friend_of_the_friend "

/* Under each of n options; every other one over `second` ranks. */
static void expect_same_texts(const char *family, const char *const *options, size_t n,
                              const char *second)
{
    char path[128], words[512];
    make_texts(family, path);
    for (size_t i = 0; i < n; i += TEST_STRIDE) {
        snprintf(words, sizeof(words), RUN "%s -m %s", options[i], path);
        expect_same(i % 2 == 0 ? "2" : second, words);
    }
}

TEST(texts_of_recurrent_layers_are_those_of_one_process)
{
    static const char *const options[] = {
        "",
        "-ctk q8_0 -ctv turbo3 --chunk 7",
        "--kv-memory 512KiB --chunk 5",
        "--recall none --keep knorm:budget=24,slack=8,granularity=layer-head",
        "--recall none --keep snapkv:budget=24,slack=8,window=4,granularity=layer-head",
    };
    expect_same_texts(TEXTS_35, options, sizeof(options) / sizeof(options[0]), "2");
}

#define TEXTS_LATENT LATENT "heads=6 value_dim=32 query_rank=32"

/* Every rank evicts the same entries of the lanes that all have. Six query heads share a key, so
   that turbo keys become q8_0, whatever number of them a rank has. */
TEST(texts_of_latent_attention_are_those_of_one_process)
{
    static const char *const options[] = {
        "",
        "-ctk turbo3 -ctv turbo3 --chunk 7",
        "--draft lookup --kv-memory 1MiB",
        "--recall none --keep streaming:budget=24",
        "--recall none --keep knorm:budget=24,slack=8,granularity=all",
        "--recall none --keep random:budget=24,slack=8",
    };
    expect_same_texts(TEXTS_LATENT, options, sizeof(options) / sizeof(options[0]), "3");
}

static void expect_same_statistics(const char *family)
{
    static const char *const keep[] = {"triattention:sinks=4", "kvzap:recent=0"};
    char path[128], stats[128], words[1024];
    make_texts(family, path);
    make_statistics(path, stats);
    for (int i = 0; i < 2; i += TEST_STRIDE) {
        snprintf(words, sizeof(words),
                 RUN "--recall none --keep %s,stats=%s,window=4,budget=24,slack=8,pin-prompt=off,"
                     "granularity=layer-head -m %s",
                 keep[i], stats, path);
        expect_same("2", words);
    }
}

/* Where each rank holds the lanes, statistics of all query heads score keys on every one. */
TEST(statistics_are_those_of_a_ranks_lanes)
{
    expect_same_statistics(TEXTS_35);
    expect_same_statistics(TEXTS_LATENT);
}

/* Each rank holds all entries, so that two share the memory for one. */
TEST(memory_of_latent_lanes_is_of_all_ranks_together)
{
    const int64_t half = 1 << 20;
    char path[128], words[512];
    make_texts(TEXTS_LATENT, path);
    snprintf(words, sizeof(words), RUN "--kv-memory 2MiB -m %s", path);
    json_t *report = report_of(words);
    assert_in_range(number_of(report, "kv_reserved_bytes"), half / 2, half);
    json_decref(report);
}

/* The memory holds the states of some of the requests at a time. */
TEST(a_batch_of_recurrent_layers_is_that_of_one_process)
{
    char path[128], words[512];
    make_texts(TEXTS_35, path);
    snprintf(words, sizeof(words), "-t 1 --kv-memory 384KiB -m %s", path);
    expect_same_batch(words);
}

TEST(a_batch_of_latent_attention_is_that_of_one_process)
{
    char path[128], words[512];
    make_texts(TEXTS_LATENT, path);
    snprintf(words, sizeof(words), "-t 1 --kv-memory 512KiB -m %s", path);
    expect_same_batch(words);
}

/* Heads that lie apart in the file, and turned ones; the second start maps what the first
   packed. */
TEST(packed_weights_of_heads_are_kept)
{
    static const char *const families[] = {TEXTS_35, TEXTS_LATENT " old=1 type=Q8_0"};
    char path[128], folder[128], words[512];
    for (int i = 0; i < 2; i++) {
        make_texts(families[i], path);
        snprintf(words, sizeof(words), RUN "--cache-weights=%s -m %s", in_folder("", folder), path);
        expect_same("2", words);
        expect_same("2", words);
        struct said s = over("2", words);
        expect_word(s.err, "mapped");
        assert_null(strstr(s.err, "made again"));
    }
}

TEST(info_foretells_parts_of_blocks)
{
    char path[128];
    make_texts(TEXTS_35 " type=Q8_0", path);
    expect_foretold(path, "--ranks 2", "");
    make_texts(NEXT "heads=3 kv_heads=3 delta_keys=3 delta_values=6", path);
    expect_foretold(path, "--ranks 3,1", "--ranks 3,1");
    make_texts(LATENT "heads=4 value_dim=24", path);
    expect_foretold(path, "--ranks 2", "");
    make_texts(LATENT "heads=5 value_dim=32 query_rank=32 old=1 type=Q8_0", path);
    expect_foretold(path, "--ranks 3,1", "--ranks 3,1");
}

TEST(blocks_that_cannot_be_divided_are_refused_once)
{
    char path[128], words[512];
    expect_refused("2", "logits -t 1 --ids 1,5 -m " PITH_SOURCE_DIR "/models/pith-hybrid.gguf",
                   "1 key heads are not as many for each of 2 KV heads");
    make_family("arch=qwen35 width=64 rot=8 ff=96 layers=4 heads=4 kv_heads=2 head_dim=32", path);
    snprintf(words, sizeof(words), "logits -t 1 --ids 1,5 -m %s", path);
    expect_refused("2", words, "16 is no multiple of 32");
    make_family(LATENT "heads=4 value_dim=24 type=Q8_0", path);
    snprintf(words, sizeof(words), "logits -t 1 --ids 1,5 -m %s", path);
    expect_refused("5", words, "5 ranks are more than the 4 query heads");
    expect_refused("2", words, "the 24 values of a head are no multiple of 32");
    make_texts(TEXTS_LATENT, path);
    snprintf(words, sizeof(words), RUN "--recall none --keep h2o:budget=24 -m %s", path);
    expect_refused("2", words, "it looks at queries");
    snprintf(words, sizeof(words), RUN "--recall none --keep tova:budget=24 -m %s", path);
    expect_refused("2", words, "it looks at queries");
    snprintf(words, sizeof(words), RUN "--recall none --keep knorm:budget=1MiB -m %s", path);
    expect_refused("2", words, "over ranks it is a number of tokens");
}
