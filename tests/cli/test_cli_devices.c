/*
 * `pith devices` and --device: what the list has is what commands take.
 */
#define _POSIX_C_SOURCE 200809L

#include <jansson.h>
#include <string.h>

#include "testing.h"

#include "command.h"
#include "pith/pith.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define RUN "run", "-m", MODEL, "-t", "1", "-p", "The friend of", "-n", "3"

TEST(lists_devices_with_their_memory)
{
    struct said s = command(NULL, "devices", NULL);
    expect_status(&s, 0);
    assert_int_equal(strncmp(s.out, "cpu ", 4), 0);
    expect_word(s.out, " of memory");
    expect_word(s.out, " free");
    s = command(NULL, "devices", "--json", NULL);
    expect_status(&s, 0);
    json_t *root = json_loads(s.out, 0, NULL), *cpu = json_array_get(root, 0);
    assert_int_equal(json_array_size(root), pith_device_count());
    assert_string_equal(json_string_value(json_object_get(cpu, "name")), "cpu");
    json_int_t total = json_integer_value(json_object_get(cpu, "total_bytes"));
    json_int_t unused = json_integer_value(json_object_get(cpu, "free_bytes"));
    assert_true(unused > 0 && unused <= total);
    json_decref(root);
}

/* llama.cpp's "none" is the processor. */
TEST(names_of_the_list_run_and_give_the_same)
{
    static const char *const names[] = {"auto", "cpu", "none"};
    struct said want = command(NULL, RUN, NULL);
    expect_status(&want, 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct said s = command(NULL, RUN, "-dev", names[i], NULL);
        expect_status(&s, 0);
        assert_string_equal(s.out, want.out);
    }
}

TEST(other_names_are_refused_in_one_sentence)
{
    struct said s = command(NULL, RUN, "--device", "cuda:7", NULL);
    expect_status(&s, 2);
    expect_word(s.err, "--device: \"cuda:7\" is no device; there are auto, cpu");
    s = command(NULL, "tokenize", "-m", MODEL, "--device", "x", "-p", "a", NULL);
    expect_status(&s, 2);
    expect_word(s.err, "--device: \"x\"");
}

TEST(reports_count_what_was_taken)
{
    struct said s = command(NULL, RUN, NULL);
    expect_status(&s, 0);
    expect_word(s.err, "devices  cpu ");
    s = command(NULL, RUN, "--json", NULL);
    expect_status(&s, 0);
    json_t *root = json_loads(strstr(s.err, "{"), JSON_DISABLE_EOF_CHECK, NULL);
    json_int_t used = json_integer_value(json_object_get(json_object_get(root, "devices"), "cpu"));
    json_int_t weights = json_integer_value(json_object_get(root, "weight_bytes"));
    json_int_t pages = json_integer_value(json_object_get(root, "kv_reserved_bytes"));
    assert_true(weights > 0 && pages > 0);
    assert_true(used > weights + pages * 9 / 10);
    json_decref(root);
}
