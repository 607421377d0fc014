/*
 * Stop strings in a stream, against a search in the whole text. However the text is cut into
 * pieces, the same part of it comes out, and never a byte that may belong to a stop string.
 */
#include <string.h>

#include "testing.h"

#include "base/mem.h"
#include "text/stop.h"

#define TEXT_MAX 512

/* ---- the definition ---- */

/* Length of text before the match that is complete first, the longest of those that end there;
   len when there is none. */
static size_t define(const char *text, size_t len, const char *const *strings, int32_t n)
{
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;
        for (int32_t i = 0; i < n; i++) {
            size_t l = strlen(strings[i]);
            if (l <= end && l > longest && memcmp(text + end - l, strings[i], l) == 0)
                longest = l;
        }
        if (longest > 0)
            return end - longest;
    }
    return len;
}

/* Whether a stop string could still begin within the text's end and reach beyond it. */
static size_t must_hold(const char *text, size_t len, const char *const *strings, int32_t n)
{
    for (size_t begin = 0; begin < len; begin++)
        for (int32_t i = 0; i < n; i++)
            if (strlen(strings[i]) > len - begin &&
                memcmp(text + begin, strings[i], len - begin) == 0)
                return len - begin;
    return 0;
}

/* ---- the stream ---- */

struct output {
    char text[TEXT_MAX];
    size_t len;
    bool found;
};

static void push(struct pi_stop *stop, const char *piece, size_t len, struct output *out)
{
    size_t n;
    assert_false(out->found);
    assert_int_equal(pi_stop_push(stop, piece, len, &n, &out->found, &err), PITH_OK);
    memcpy(out->text + out->len, stop->held, n);
    out->len += n;
    pi_stop_drop(stop, n);
}

/* Streams text in pieces of random length and checks each step. */
static void stream(const char *text, size_t len, const char *const *strings, int32_t n,
                   uint64_t *rng, size_t max_piece)
{
    struct pi_stop stop;
    struct output out = {.len = 0};
    size_t expected = define(text, len, strings, n);
    assert_int_equal(pi_stop_init(&stop, strings, NULL, n, &err), PITH_OK);
    for (size_t at = 0; at < len && !out.found;) {
        size_t piece = 1 + (size_t)rng_below(rng, max_piece);
        if (piece > len - at)
            piece = len - at;
        push(&stop, text + at, piece, &out);
        at += piece;
        assert_true(out.len <= expected);
        if (!out.found) /* nothing is held back that need not be */
            assert_int_equal(out.len, at - must_hold(text, at, strings, n));
    }
    if (!out.found) {
        memcpy(out.text + out.len, stop.held, stop.len);
        out.len += stop.len;
    }
    assert_int_equal(out.len, expected);
    assert_int_equal(out.found, expected < len);
    assert_memory_equal(out.text, text, out.len);
    pi_stop_free(&stop);
}

TEST(any_split_gives_the_same_text)
{
    static const char *const sets[][3] = {
        {"aba", NULL, NULL},      {"aabab", "bb", NULL},
        {"abaab", "aab", "babb"}, {"b", "ab", "aab"}, /* end together: the longest */
        {"aaaa", NULL, NULL},     {"c", NULL, NULL},
    };
    uint64_t rng = 1;
    for (int round = 0; round < 4000; round++) {
        char text[40];
        size_t len = 1 + (size_t)rng_below(&rng, sizeof(text));
        for (size_t i = 0; i < len; i++)
            text[i] = "ab"[rng_below(&rng, 2)];
        const char *const *set = sets[round % 6];
        int32_t n = 0;
        while (n < 3 && set[n] != NULL)
            n++;
        stream(text, len, set, n, &rng, 1 + (size_t)(round % 7));
    }
}

TEST(without_strings_nothing_is_held)
{
    uint64_t rng = 2;
    stream("any text at all", 15, NULL, 0, &rng, 4);
}

TEST(holds_back_parts_of_characters)
{
    static const char *const strings[] = {"\xc3\xa9t\xc3\xa9", "\xe2\x82\xac"};
    uint64_t rng = 3;
    const char *text = "en \xc3\xa9t\xc3\xa8 \xe2\x82\xad \xc3\xa9t\xc3\xa9!";
    for (size_t max_piece = 1; max_piece < 8; max_piece++)
        stream(text, strlen(text), strings, 2, &rng, max_piece);
}

/* The end of a piece that a stop string begins with stays back, and comes out when it is none. */
TEST(holds_back_and_gives_back)
{
    static const char *const strings[] = {"\nUser:"};
    struct pi_stop stop;
    struct output out = {.len = 0};
    assert_int_equal(pi_stop_init(&stop, strings, NULL, 1, NULL), PITH_OK);
    push(&stop, "Hello\nUs", 8, &out);
    assert_int_equal(out.len, 5);
    push(&stop, "eful\n", 5, &out);
    assert_int_equal(out.len, 12);
    push(&stop, "User", 4, &out);
    assert_int_equal(out.len, 12);
    push(&stop, ": more", 6, &out);
    assert_true(out.found);
    assert_int_equal(out.len, 12);
    assert_memory_equal(out.text, "Hello\nUseful", 12);
    pi_stop_free(&stop);
}

TEST(takes_long_pieces)
{
    static const char *const strings[] = {"<end>"};
    struct pi_stop stop;
    char *text = malloc(100000);
    size_t n;
    bool found;
    memset(text, '<', 100000);
    assert_int_equal(pi_stop_init(&stop, strings, NULL, 1, &err), PITH_OK);
    assert_int_equal(pi_stop_push(&stop, text, 100000, &n, &found, &err), PITH_OK);
    assert_int_equal(n, 99999);
    assert_false(found);
    pi_stop_drop(&stop, n);
    assert_int_equal(pi_stop_push(&stop, "end>", 4, &n, &found, &err), PITH_OK);
    assert_int_equal(n, 0);
    assert_true(found);
    pi_stop_free(&stop);
    free(text);
}

TEST(refuses_empty_strings_and_failing_memory)
{
    static const char *const empty[] = {"a", ""};
    static const char *const fine[] = {"a"};
    struct pi_stop stop;
    size_t n;
    bool found;
    int64_t before = pi_mem_used(PI_MEM_OTHER);
    assert_int_equal(pi_stop_init(&stop, empty, NULL, 2, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "string 1"));
    pi_stop_free(&stop);
    assert_int_equal(pi_stop_init(&stop, NULL, NULL, 1, &err), PITH_INVALID);
    pi_stop_free(&stop);
    pi_mem_fail_at(1, false);
    assert_int_equal(pi_stop_init(&stop, fine, NULL, 1, &err), PITH_NOMEM);
    pi_mem_fail_at(0, false);
    pi_stop_free(&stop);

    char text[4096];
    memset(text, 'x', sizeof(text));
    assert_int_equal(pi_stop_init(&stop, fine, NULL, 1, &err), PITH_OK);
    pi_mem_fail_at(1, false);
    assert_int_equal(pi_stop_push(&stop, text, sizeof(text), &n, &found, &err), PITH_NOMEM);
    pi_mem_fail_at(0, false);
    pi_stop_free(&stop);
    assert_int_equal(pi_mem_used(PI_MEM_OTHER), before);
}
