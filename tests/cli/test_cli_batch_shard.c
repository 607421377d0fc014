/*
 * `pith batch --shard`: the parts are the whole, each request is in one, and a file that grows
 * leaves them as they are.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "batch_rig.h"

TEST_GROUP(folder_make, folder_remove);

#define N_REQUEST 12

static json_t *shard(const char *in, const char *name, const char *part)
{
    char out[128];
    return batch_all(in, in_folder(name, out), (const char *const[]){"--shard", part, NULL});
}

TEST(shards_are_the_whole)
{
    char in[128], out[128];
    write_plain("plain.jsonl", in, N_REQUEST);
    json_t *whole = batch_all(in, in_folder("whole.out", out), NULL);
    json_t *all = shard(in, "0.out", "0/2"), *second = shard(in, "1.out", "1/2");
    assert_in_range(json_object_size(all), 2, N_REQUEST - 2);
    assert_int_equal(json_object_size(all) + json_object_size(second), N_REQUEST);
    assert_int_equal(json_object_update(all, second), 0);
    forget_company(whole);
    forget_company(all);
    assert_true(json_equal(all, whole));

    /* Twice as many requests: the first half is where it was. */
    write_plain("more.jsonl", in, 2 * N_REQUEST);
    json_t *more = shard(in, "more.out", "1/2");
    const char *id;
    json_t *line;
    json_object_foreach(second, id, line) assert_non_null(json_object_get(more, id));
    json_object_foreach(more, id, line)
        assert_true(atoi(id + 1) >= N_REQUEST || json_object_get(second, id) != NULL);
    json_decref(whole);
    json_decref(all);
    json_decref(second);
    json_decref(more);
}

/* A shard that was cut short does its own rest, and nothing of the others. */
TEST(a_shard_resumes)
{
    static const char *const again[] = {"--shard", "1/2", "--resume", NULL};
    char in[128], out[128];
    write_plain("plain.jsonl", in, N_REQUEST);
    json_t *part = shard(in, "part.out", "1/2");
    in_folder("part.out", out);
    FILE *file = fopen(out, "r+");
    char *line = NULL;
    size_t cap = 0;
    assert_true(getline(&line, &cap, file) > 0);
    assert_int_equal(ftruncate(fileno(file), ftello(file) + 9), 0); /* one line and some bytes */
    fclose(file);
    free(line);
    struct said s = batch(in, out, again);
    expect_status(&s, 0);
    json_t *rest = read_output(out);
    forget_company(part);
    forget_company(rest);
    assert_true(json_equal(rest, part));
    json_decref(part);
    json_decref(rest);
}

/* Lines without a name and a name's second line are answered once, by one shard. */
TEST(wrong_lines_are_in_one_shard)
{
    char in[128], out[128];
    int n = 0;
    FILE *file = open_file("wrong.jsonl", in);
    fputs("{}\nno JSON\n", file);
    for (int i = 0; i < 2; i++)
        add_line(file, "twin", "/v1/completions",
                 json_pack("{s:s, s:i}", "prompt", "The way", "max_tokens", 3));
    close_file(file);
    for (int i = 0; i < 3; i++) {
        char part[16];
        snprintf(part, sizeof(part), "%d/3", i);
        remove(in_folder("wrong.out", out));
        (void)batch(in, out, (const char *const[]){"--shard", part, NULL});
        n += (int)count_lines(out);
    }
    assert_int_equal(n, 4);
}

TEST(wrong_shards_are_refused)
{
    static const char *const wrong[] = {"", "1", "/2", "2/2", "-1/2", "0/0", "0/2x", "0/ 2", "a/b"};
    char in[128], out[128];
    write_plain("plain.jsonl", in, 1);
    in_folder("refused.out", out);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct said s = batch(in, out, (const char *const[]){"--shard", wrong[i], NULL});
        expect_failure(&s, 2, "--shard: ");
    }
}
