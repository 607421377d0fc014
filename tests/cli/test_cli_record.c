/*
 * `pith run --record` and `pith eval replay` on the command line. One reads the file of the other,
 * recording changes no output, and a failure to write or read is one sentence.
 */
#define _POSIX_C_SOURCE 200809L

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "testing.h"

#include "command.h"

TEST_GROUP(folder_make, folder_remove);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define TEXT "The password of Maria is copper lantern. The friend of the merchant wanted a button."
#define RUN "run", "-m", MODEL, "-t", "1", "-p", TEXT, "-n", "20", "--temp", "0", "--json"

static json_t *json_of(const char *text)
{
    json_error_t why;
    json_t *value = json_loads(text, 0, &why);
    if (value == NULL)
        fail_msg("%s in: %s", why.text, text);
    return value;
}

static json_int_t whole(const json_t *object, const char *key)
{
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

/* A run says the same with and without the option; the file holds the tokens it evaluated. */
TEST(a_recording_is_replayed)
{
    char path[128];
    in_folder("run.safetensors", path);
    struct said plain = command(NULL, RUN, NULL), s = command(NULL, RUN, "--record", path, NULL);
    expect_status(&plain, 0);
    expect_status(&s, 0);
    assert_string_equal(s.out, plain.out);
    json_t *a = json_of(plain.err), *b = json_of(s.err);
    assert_string_equal(json_string_value(json_object_get(a, "logits_hash")),
                        json_string_value(json_object_get(b, "logits_hash")));
    json_int_t n_token = whole(b, "length");
    json_decref(a);
    json_decref(b);

    s = command(NULL, "eval", "replay", path, "--policy", "none", "--policy",
                "streaming:budget=10,slack=4", "--queries", "5", "--json", "-", NULL);
    expect_status(&s, 0);
    json_t *result = json_of(s.out);
    const json_t *settings = json_object_get(result, "settings");
    const json_t *list = json_object_get(json_object_get(result, "summary"), "policies");
    assert_int_equal(whole(settings, "n_token"), n_token);
    assert_int_equal(json_array_size(list), 2);
    assert_true(json_real_value(json_object_get(json_array_get(list, 0), "score")) == 1.0);
    assert_true(json_real_value(json_object_get(json_array_get(list, 1), "score")) < 1.0);
    assert_int_equal(json_array_size(json_object_get(result, "rows")), 2 * 3 * 2);
    assert_string_equal(json_string_value(json_object_get(result, "model")), "pith-nano");
    json_decref(result);

    s = command(NULL, "eval", "replay", path, "--read-policy", "none", "--read-policy",
                "quoka:budget=6,gate=1", "--keep", "streaming:budget=10,slack=4", "--queries", "5",
                "--json", "-", NULL);
    expect_status(&s, 0);
    result = json_of(s.out);
    list = json_object_get(json_object_get(result, "summary"), "policies");
    assert_int_equal(json_array_size(list), 2);
    assert_true(json_real_value(json_object_get(json_array_get(list, 0), "read_share")) == 1.0);
    assert_true(json_real_value(json_object_get(json_array_get(list, 1), "read_share")) < 1.0);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 1), "policy")),
                        "streaming:budget=10,slack=4, read quoka:budget=6,gate=1");
    json_decref(result);
}

TEST(a_link_leads_where_it_led)
{
    char file[128], link[128];
    struct stat st;
    write_file(in_folder("behind.safetensors", file), "old");
    assert_int_equal(symlink(file, in_folder("link.safetensors", link)), 0);
    struct said s = command(NULL, RUN, "--record", link, NULL);
    expect_status(&s, 0);
    assert_true(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    assert_true(stat(file, &st) == 0 && st.st_size > 100);
}

TEST(fails_with_one_sentence)
{
    char path[128];
    struct said s = command(NULL, RUN, "-q", "--record", "/dev/full", NULL);
    expect_failure(&s, 1, "/dev/full: cannot write: No space left on device");
    s = command(NULL, RUN, "--record", in_folder("no/such", path), NULL);
    expect_failure(&s, 1, "cannot create");
    assert_string_equal(s.out, "");
    s = command(NULL, "eval", "replay", path, NULL);
    expect_failure(&s, 1, "cannot open");
    s = command(NULL, "eval", "replay", MODEL, NULL);
    expect_failure(&s, 1, "does not fit a file");
    s = command(NULL, "eval", "replay", NULL);
    expect_failure(&s, 2, "FILE");
    write_file(in_folder("empty", path), "");
    s = command(NULL, "eval", "replay", path, NULL);
    expect_failure(&s, 1, "the file is empty");
    s = command(NULL, "eval", "replay", PITH_SOURCE_DIR "/tests/golden/replay.safetensors",
                "--policy", "best:budget=1", NULL);
    expect_failure(&s, 1, "best");
    s = command(NULL, "eval", "replay", PITH_SOURCE_DIR "/tests/golden/replay.safetensors",
                "--read-policy", "best:budget=1", NULL);
    expect_failure(&s, 1, "best");
}
