/*
 * Many requests over several ranks: `pith batch` gives the answers of one process, also where some
 * ranks run out of pages before others.
 */
#define _POSIX_C_SOURCE 200809L

#include "ranks_rig.h"

#define HYBRID PITH_SOURCE_DIR "/models/pith-hybrid.gguf"

TEST_GROUP(ranks_set_up, folder_remove);

TEST(answers_are_those_of_one_process)
{
    expect_same_batch("-t 2 -m " MINI);
}

#define LONG(ids, n)                                                                               \
    "{\"prompt\": [" ids ",5,9,30,77,4,8,100,3,17,1,5,9,30,77,4,8,100,3,17], \"max_tokens\": " n   \
    ", \"temperature\": 0.8, \"seed\": 3, \"ignore_eos\": true}"

/* Ranks have unequal numbers of states and of windows, or of entries where all lanes share a
   budget. Then they put answers back together. */
TEST(ranks_that_run_out_apart_put_answers_back_together)
{
    static const char *const bodies[] = {LONG("1", "60"), LONG("2", "65"), LONG("3", "70"),
                                         LONG("4", "60"), LONG("5", "75"), LONG("6", "60")};
    static const char shared[] = "--kv-memory 1200KiB --recall none "
                                 "--keep random:budget=32,slack=8,granularity=global";
    char in[128], windows[128], options[512];
    make_family("arch=gemma3 layers=7 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 window=20 "
                "tied=1",
                windows);
    const struct {
        const char *model, *options, *parts;
    } cases[] = {
        {HYBRID, "--kv-memory 600KiB", "--split layers"},
        {windows, "--kv-memory 400KiB", "--split layers"},
        {MINI, shared, "--split layers"},
        {MINI, shared, ""},
    };
    write_requests(bodies, 6, in);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i += TEST_STRIDE) {
        snprintf(options, sizeof(options), "-t 1 --reserve 0 -m %s %s", cases[i].model,
                 cases[i].options);
        struct said s = expect_answers(in, 6, options, cases[i].parts);
        assert_true(cases[i].options == shared || strstr(s.err, " 0 times put back") == NULL);
    }
}
