/*
 * The command over several ranks that divide the heads of recurrent layers. They print the same as
 * one process does. They hold the parts that `pith info` foretells.
 */
#define _POSIX_C_SOURCE 200809L

#include "ranks_rig.h"

TEST_GROUP(ranks_set_up, folder_remove);

#define IDS "1,5,9,30,77,4,8,100,3,3,17,60,61,62,63,2,99,12,13,14,15,16,40,41,7,80,81,82,83,84,85"

#define QWEN35 "arch=qwen35 width=64 rot=8 ff=96 delta_dim=32 layers=4 head_dim=32 "
#define NEXT                                                                                       \
    "arch=qwen3next width=64 rot=8 ff=96 delta_dim=32 layers=4 head_dim=32 experts=4 used=2 "      \
    "expert_ff=96 "

/* Value heads of a key head lie apart in the one family, and side by side in the other. Memory is for
   these tokens alone. */
TEST(logits_of_recurrent_layers_are_those_of_one_process)
{
    static const struct {
        const char *n, *parts, *family;
    } cases[] = {
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
    char path[128], words[512];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i += TEST_STRIDE) {
        make_family(cases[i].family, path);
        snprintf(words, sizeof(words), "logits -t 1 -c 32 --chunk 8 --ids " IDS " -m %s", path);
        struct said one = over(NULL, words);
        expect_status(&one, 0);
        snprintf(words, sizeof(words), "logits -t 1 -c 32 --chunk 8 --ids " IDS " %s -m %s",
                 cases[i].parts, path);
        expect_output(cases[i].n, words, one.out);
    }
}

#define TEXTS_35 QWEN35 "heads=4 kv_heads=2 delta_keys=2 delta_values=6"
#define RUN "run -t 1 -n 24 --temp 0.8 --seed 3 -p The_friend_of_the_friend_of_the_friend "

TEST(texts_of_recurrent_layers_are_those_of_one_process)
{
    static const char *const options[] = {
        "",
        "-ctk q8_0 -ctv turbo3 --chunk 7",
        "--kv-memory 512KiB --chunk 5",
        "--recall none --keep knorm:budget=24,slack=8,granularity=layer-head",
        "--recall none --keep snapkv:budget=24,slack=8,window=4,granularity=layer-head",
    };
    char path[128], words[512];
    make_texts(TEXTS_35, path);
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i += TEST_STRIDE) {
        snprintf(words, sizeof(words), RUN "%s -m %s", options[i], path);
        expect_same("2", words);
    }
}

/* The memory holds the states of some of the requests at a time. */
TEST(a_batch_of_recurrent_layers_is_that_of_one_process)
{
    char path[128], words[512];
    make_texts(TEXTS_35, path);
    snprintf(words, sizeof(words), "--kv-memory 384KiB -m %s", path);
    expect_same_batch(words);
}

TEST(info_foretells_parts_of_recurrent_layers)
{
    char path[128];
    make_texts(TEXTS_35 " type=Q8_0", path);
    expect_foretold(path, "--ranks 2", "");
    make_texts(NEXT "heads=3 kv_heads=3 delta_keys=3 delta_values=6", path);
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
}
