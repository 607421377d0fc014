/*
 * The weight of bodies against the counted bytes of their values: never less, and not many times
 * more.
 */
#include <jansson.h>
#include <malloc.h>
#include <string.h>

#include "serve/json.h"
#include "testing.h"
#include "weigh.h"

#define BLOCK_OVERHEAD 8 /* glibc's own of each block */

static size_t in_use, peak;

static void *counting_malloc(size_t size)
{
    void *p = malloc(size);
    in_use += p != NULL ? malloc_usable_size(p) + BLOCK_OVERHEAD : 0;
    peak = in_use > peak ? in_use : peak;
    return p;
}

static void counting_free(void *p)
{
    in_use -= p != NULL ? malloc_usable_size(p) + BLOCK_OVERHEAD : 0;
    free(p);
}

static void set_up(void)
{
    json_set_alloc_funcs(counting_malloc, counting_free);
}

TEST_GROUP(set_up, NULL);

/* begin, n times each, end: the bytes that it takes, and its weight in pieces of any length. */
static void compare(const char *begin, const char *each, size_t n, const char *end, double most)
{
    size_t len = strlen(begin), part = strlen(each), room = len + n * part + strlen(end);
    char *text = malloc(room + 1);
    struct body_weight whole = {0}, pieces = {0};
    memcpy(text, begin, len);
    for (size_t i = 0; i < n; i++, len += part)
        memcpy(text + len, each, part);
    memcpy(text + len, end, strlen(end) + 1);
    body_weigh(&whole, text, room);
    for (size_t at = 0, step = 1; at < room; at += step, step = step % 7 + 1)
        body_weigh(&pieces, text + at, room - at < step ? room - at : step);
    in_use = peak = 0;
    json_error_t error;
    struct serve_numbers numbers = {0};
    json_t *json = serve_json_load(&numbers, text, room, JSON_DECODE_ANY, &error);
    if (json == NULL)
        fail_msg("%s%s...: %s", begin, each, error.text);
    int64_t weight = body_weight_most(&whole);
    printf("%-28.28s x %zu: %zu bytes take %zu, weigh %lld\n", each, n, room, peak,
           (long long)weight);
    assert_int_equal(body_weight_most(&pieces), weight);
    assert_true(weight >= (int64_t)peak);
    assert_true((double)weight <= most * (double)peak + 4096);
    json_decref(json);
    serve_numbers_free(&numbers);
    assert_int_equal(in_use, 0);
    free(text);
}

TEST(weighs_at_least_what_values_take)
{
    static const size_t counts[] = {1, 7, 1000, 70000};
    for (size_t i = 0; i < 4; i++) {
        size_t n = counts[i];
        compare("[1", ",1", n, "]", 3);
        compare("[1", ",-1.5e+10", n, "]", 3);
        compare("[1", ",18446744073709551615", n, "]", 3);
        compare("[1", ",0.12345678901234567890123456789012345678901234567890", n, "]", 3);
        compare("[1.", "7", n, "]", 6);
        compare("[true", ",true", n, "]", 8);
        compare("[[]", ",[]", n, "]", 3);
        compare("[{}", ",{}", n, "]", 3);
        compare("[\"\"", ",\"\"", n, "]", 3);
        compare("[\"\"", ",\"abc\\\"d[[[[,,,,\"", n, "]", 3);
        compare("[\"\"", ",{\"a\":[1,{\"b\":null}]}", n, "]", 3);
        compare("\"", "a", n, "\"", 3);
        compare("\"", "\\n", n, "\"", 6);
        compare("\"", "\\u00e9", n, "\"", 16);
        compare("[1", " ,\n 1", n, "]", 3);
    }
}

/* Keys that differ: a table of them grows. */
TEST(weighs_keys_that_differ)
{
    size_t len = 1, n = 50000;
    char *text = malloc(n * 20);
    struct body_weight w = {0};
    text[0] = '{';
    for (size_t i = 0; i < n; i++)
        len += (size_t)sprintf(text + len, "%s\"%zu\":0", i > 0 ? "," : "", i);
    text[len++] = '}';
    body_weigh(&w, text, len);
    in_use = peak = 0;
    json_t *json = json_loadb(text, len, 0, NULL);
    assert_non_null(json);
    printf("%zu keys: %zu bytes take %zu, weigh %lld\n", n, len, peak,
           (long long)body_weight_most(&w));
    assert_true(body_weight_most(&w) >= (int64_t)peak);
    assert_true(body_weight_most(&w) <= 3 * (int64_t)peak);
    json_decref(json);
    free(text);
}

/* Broken JSON has the weight of its part before the error. */
TEST(weighs_what_is_no_json)
{
    struct body_weight w = {0};
    body_weigh(&w, "\"abc", 4);
    assert_true(body_weight_most(&w) > 3);
    w = (struct body_weight){0};
    body_weigh(&w, "    ", 4);
    assert_int_equal(body_weight_most(&w), 0);
}
