/*
 * Many requests over several ranks: `pith batch` gives the answers of one process, also where some
 * ranks run out of pages before others.
 */
#define _POSIX_C_SOURCE 200809L

#include "batch_rig.h"
#include "ranks_rig.h"

#define HYBRID PITH_SOURCE_DIR "/models/pith-hybrid.gguf"

TEST_GROUP(ranks_set_up, folder_remove);

/* A file of the requests with these bodies. */
static void write_requests(const char *const *bodies, int n, char path[128])
{
    char id[16];
    FILE *file = open_file("requests.jsonl", path);
    for (int i = 0; i < n; i++) {
        snprintf(id, sizeof(id), "%d", i);
        add_line(file, id, "/v1/completions", json_loads(bodies[i], 0, NULL));
    }
    close_file(file);
}

/* Rank 0 has both files, and leads. Returns what rank 0 reported. */
static struct said expect_answers(const char *in, int n, const char *options, const char *parts)
{
    char out[128], words[1024], id[16];
    struct said s;
    json_t *answers[2];
    for (int i = 0; i < 2; i++) {
        in_folder(i == 0 ? "one.jsonl" : "all.jsonl", out);
        remove(out);
        snprintf(words, sizeof(words), "batch -t 1 -f %s -o %s %s %s", in, out, options,
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

TEST(answers_are_those_of_one_process)
{
    static const char *const bodies[] = {
        "{\"prompt\": \"The friend of the friend\", \"max_tokens\": 20, \"seed\": 3}",
        "{\"prompt\": [\"Once\", \"There was\"], \"n\": 2, \"max_tokens\": 12, \"stop\": [\"e\"]}",
        "{\"prompt\": \"Robert\", \"max_tokens\": 30, \"temperature\": 0, \"logprobs\": 2}",
    };
    char in[128];
    write_requests(bodies, 3, in);
    expect_answers(in, 3, "-m " MINI, "");
}

#define LONG(ids, n)                                                                               \
    "{\"prompt\": [" ids ",5,9,30,77,4,8,100,3,17,1,5,9,30,77,4,8,100,3,17], \"max_tokens\": " n   \
    ", \"temperature\": 0.8, \"seed\": 3, \"ignore_eos\": true}"

/* Ranks have unequal numbers of states and of windows, or of entries where all lanes share a budget.
   Then they put answers back together. */
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
        snprintf(options, sizeof(options), "--reserve 0 -m %s %s", cases[i].model,
                 cases[i].options);
        struct said s = expect_answers(in, 6, options, cases[i].parts);
        assert_true(cases[i].options == shared || strstr(s.err, " 0 times put back") == NULL);
    }
}
