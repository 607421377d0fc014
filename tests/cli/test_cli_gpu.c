/*
 * test_cli_gpu.c - what commands say where a GPU is in the list of devices: the emulated one.
 */
#define _POSIX_C_SOURCE 200809L

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "testing.h"

#include "command.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define RUN "run", "-m", MODEL, "-t", "1", "-p", "The friend of", "-n", "2", "--temp", "0"

/* The command that has a GPU, with that memory for pages; NULL: 1 GB. */
static void with_gpu(const char *bytes)
{
    command_path = PITH_COMMAND_WITH_GPU;
    if (bytes != NULL)
        setenv("PITH_TEST_GPU_BYTES", bytes, 1);
    else
        unsetenv("PITH_TEST_GPU_BYTES");
}

/* Of the JSON object at the end of a report. */
static json_t *report(const struct said *s)
{
    json_t *root = json_loads(strstr(s->err, "{"), JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(root);
    return root;
}

static json_int_t number(const json_t *o, const char *key)
{
    const json_t *value = json_object_get(o, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

TEST(auto_is_the_gpu)
{
    with_gpu(NULL);
    struct said s = command(NULL, "devices", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "cuda:0 ");
    expect_word(s.out, "a GPU emulated by the processor");
    s = command(NULL, "info", "-m", MODEL, NULL);
    expect_status(&s, 0);
    expect_word(s.out, "runs on       cuda:0 layers 0-2 and the output (");
    s = command(NULL, "info", "-m", MODEL, "--device", "cpu", NULL);
    expect_status(&s, 0);
    assert_null(strstr(s.out, "runs on"));
}

TEST(layers_are_where_the_options_say)
{
    with_gpu(NULL);
    struct said s = command(NULL, "info", "-m", MODEL, "-ngl", "2", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "runs on       cpu layers 0-0 (");
    expect_word(s.out, "), cuda:0 layers 1-2 (");
    expect_word(s.out, "), cpu the output (");
    s = command(NULL, "info", "-m", MODEL, "-ngl", "0", NULL);
    expect_status(&s, 0);
    assert_null(strstr(s.out, "runs on"));
    s = command(NULL, "info", "-m", MODEL, "-ngl", "all", "-dev", "cuda:0", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "runs on       cuda:0 layers 0-2 and the output (");
}

/* 64 MiB stay free, or half of it where layers are tried. */
TEST(auto_takes_the_layers_that_fit)
{
    with_gpu("42000000");
    struct said s = command(NULL, "info", "-m", MODEL, NULL);
    expect_status(&s, 0);
    expect_word(s.out, "runs on       cpu layers 0-");
    expect_word(s.out, "cuda:0 layers ");
    with_gpu("30000000");
    s = command(NULL, "info", "-m", MODEL, NULL);
    expect_status(&s, 0);
    assert_null(strstr(s.out, "runs on"));
    s = command(NULL, RUN, "-ngl", "all", NULL);
    expect_status(&s, 1);
    expect_word(s.err, "device cuda:0: 30000000 bytes are free, of which some stay so");
}

TEST(a_report_has_the_sum_and_its_parts)
{
    with_gpu(NULL);
    struct said s = command(NULL, RUN, "-ngl", "2", "-c", "256", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "layers   cpu layers 0-0 (");
    expect_word(s.err, "devices  cpu ");
    expect_word(s.err, ", cuda:0 ");
    expect_word(s.err, "pages    cpu ");
    s = command(NULL, RUN, "-ngl", "2", "-c", "256", "--json", NULL);
    expect_status(&s, 0);
    json_t *root = report(&s), *pages = json_object_get(root, "pages");
    const json_t *cpu = json_object_get(pages, "cpu"), *gpu = json_object_get(pages, "cuda:0");
    assert_int_equal(json_object_size(pages), 2);
    assert_int_equal(number(cpu, "used") + number(gpu, "used"), number(root, "kv_used_bytes"));
    assert_int_equal(2 * number(cpu, "used"), number(gpu, "used")); /* 1 layer and 2 */
    assert_true(number(cpu, "peak") + number(gpu, "peak") >= number(root, "kv_peak_bytes"));
    assert_true(number(gpu, "used") <= number(gpu, "most"));
    assert_int_equal(number(cpu, "idle") + number(gpu, "idle"),
                     number(json_object_get(root, "memory_parts"), "idle"));
    json_decref(root);
}

/* Weights of layers that are on the GPU are not the processor's, too. */
TEST(a_weight_is_on_one_device)
{
    static const char *const layers[] = {"0", "2", "all"};
    json_int_t cpu[3], gpu[3], weights = 0;
    with_gpu(NULL);
    for (int i = 0; i < 3; i++) {
        struct said s =
            command(NULL, RUN, "-ngl", layers[i], "-c", "256", "--chunk", "4", "--json", NULL);
        expect_status(&s, 0);
        json_t *root = report(&s), *devices = json_object_get(root, "devices");
        weights = number(root, "weight_bytes");
        cpu[i] = number(devices, "cpu");
        gpu[i] = number(devices, "cuda:0");
        json_decref(root);
    }
    print_message("weights %lld: cpu %lld, %lld, %lld; cuda:0 %lld, %lld, %lld\n",
                  (long long)weights, (long long)cpu[0], (long long)cpu[1], (long long)cpu[2],
                  (long long)gpu[0], (long long)gpu[1], (long long)gpu[2]);
    assert_int_equal(gpu[0], 0);
    assert_true(cpu[0] > weights);
    assert_true(cpu[1] < cpu[0] && cpu[2] < weights / 4);
    assert_true(gpu[1] > 0 && gpu[2] > gpu[1] + weights / 2);
}
