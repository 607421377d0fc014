/*
 * The pure parts of recall as text: the spans of evicted tokens, and the promises of every list of
 * spans. Also cleaned text, words, ranks, and the message.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "policy/recall/text_rank.h"
#include "policy/recall/text_spans.h"
#include "status.h"
#include "testing.h"

#define N_MOST 2000

/* ---- spans ---- */

static void expect_cut(const char *gone, int32_t bleed, const char *wanted)
{
    struct text_spans spans = {0};
    uint8_t flags[128];
    char text[256] = "";
    int32_t n = (int32_t)strlen(gone);
    for (int32_t i = 0; i < n; i++)
        flags[i] = gone[i] == 'x';
    check(text_cut(flags, n, bleed, &spans, &err), &err);
    for (int32_t i = 0; i < spans.n; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%d..%d", i > 0 ? " " : "",
                 spans.span[i].first, spans.span[i].last);
    text_spans_free(&spans);
    assert_string_equal(text, wanted);
}

TEST(cuts_spans_around_what_is_gone)
{
    expect_cut("", 2, "");
    expect_cut(".......", 2, "");
    expect_cut("..........x.........", 3, "7..14");
    expect_cut("x..................x", 3, "0..4 16..20");
    expect_cut("....x....x..........", 2, "2..12");      /* 4 between: they meet */
    expect_cut("....x.....x.........", 2, "2..7 8..13"); /* 5: they do not */
    expect_cut("xxxxxxxxxxxxxxxxxxxx", 2, "0..20");
    expect_cut("..xx..x.............", 0, "2..4 6..7");
}

/* Checks the promises of every list of spans, for random evictions. */
static void check_spans(const uint8_t *gone, int32_t n, int32_t bleed, const struct text_spans *s)
{
    static uint8_t near[N_MOST], inside[N_MOST];
    memset(near, 0, sizeof(near));
    memset(inside, 0, sizeof(inside));
    for (int32_t p = 0; p < n; p++)
        for (int32_t q = p - bleed; gone[p] && q <= p + bleed; q++)
            if (q >= 0 && q < n)
                near[q] = 1;
    for (int32_t i = 0; i < s->n; i++) {
        struct text_span x = s->span[i];
        assert_true(0 <= x.first && x.first < x.last && x.last <= n);
        assert_true(x.last - x.first <= TEXT_PIECE + 2 * bleed);
        if (i > 0) /* none lies in another */
            assert_true(x.first > s->span[i - 1].first && x.last > s->span[i - 1].last);
        for (int32_t p = x.first; p < x.last; p++)
            inside[p] = 1;
    }
    /* Together they are the evicted tokens and their bleed, and nothing else. */
    assert_memory_equal(inside, near, (size_t)n);
    /* Each evicted token has its neighbours with it in one span. */
    for (int32_t p = 0, i = 0; p < n; p++) {
        int32_t lo = p - bleed < 0 ? 0 : p - bleed, hi = p + bleed + 1 > n ? n : p + bleed + 1;
        while (gone[p] && i < s->n && s->span[i].last < hi)
            i++;
        if (gone[p])
            assert_true(i < s->n && s->span[i].first <= lo && s->span[i].last >= hi);
    }
}

TEST(random_cuts_keep_every_promise)
{
    static uint8_t gone[2000];
    uint64_t seed = 21;
    for (int32_t round = 0; round < 300; round++) {
        int32_t n = 1 + (int32_t)rng_below(&seed, 2000), bleed = (int32_t)rng_below(&seed, 40);
        struct text_spans before = {0};
        memset(gone, 0, sizeof(gone));
        for (int32_t step = 0; step < 4; step++) {
            int32_t n_run = 1 + (int32_t)rng_below(&seed, 12);
            for (int32_t r = 0; r < n_run; r++) {
                uint64_t first = rng_below(&seed, (uint64_t)n);
                uint64_t len = rng_below(&seed, r % 3 == 0 ? 600 : 5) + 1;
                for (uint64_t p = first; p < first + len && p < (uint64_t)n; p++)
                    gone[p] = 1;
            }
            struct text_spans now = {0}, add = {0}, drop = {0};
            check(text_cut(gone, n, bleed, &now, &err), &err);
            check_spans(gone, n, bleed, &now);
            /* before - drop + add = now */
            check(text_spans_minus(&now, &before, &add, &err), &err);
            check(text_spans_minus(&before, &now, &drop, &err), &err);
            assert_int_equal(before.n - drop.n + add.n, now.n);
            text_spans_free(&before);
            text_spans_free(&add);
            text_spans_free(&drop);
            before = now;
        }
        text_spans_free(&before);
    }
}

/* A run that is evicted from the left changes its last pieces alone. */
TEST(growth_is_local)
{
    static uint8_t gone[2000];
    struct text_spans before = {0};
    for (int32_t n = 4; n < 1900; n += 7) {
        struct text_spans now = {0}, add = {0};
        memset(gone + 4, 1, (size_t)n);
        check(text_cut(gone, 2000, 32, &now, &err), &err);
        check(text_spans_minus(&now, &before, &add, &err), &err);
        assert_in_range(add.n, 1, 2);
        text_spans_free(&add);
        text_spans_free(&before);
        before = now;
    }
    assert_in_range(before.n, 14, 16);
    text_spans_free(&before);
}

static void expect_clean(const char *bytes, const char *wanted)
{
    char text[64];
    strcpy(text, bytes);
    text[text_clean(text, strlen(text))] = '\0';
    assert_string_equal(text, wanted);
}

TEST(cleans_texts_of_odd_bytes)
{
    expect_clean("  two words \n", "two words");
    expect_clean("\x82\xac begins and ends \xe2\x82", "begins and ends"); /* parts of a character */
    expect_clean("a\x01"
                 "b\x7f"
                 "c\td\ne\xff"
                 "f",
                 "a b c\td\ne f");
    expect_clean(" \t\n ", "");
    expect_clean("\x80\x80\x80\x80x", "x"); /* the fourth is no part: a blank, and blanks go */
    char nul[] = "a\0b";
    assert_int_equal(text_clean(nul, 3), 3);
    assert_string_equal(nul, "a b");
}

/* ---- words and ranks ---- */

static void expect_words(const char *text, const char *wanted)
{
    char *words = text_words(text, strlen(text));
    assert_non_null(words);
    assert_string_equal(words, wanted);
    pi_mem_free(words);
}

TEST(splits_texts_into_words)
{
    expect_words("", "");
    expect_words(" ,.;\"'", "");
    expect_words("The code-word is PURPLE elephant_7742!",
                 "the code word is purple elephant 7742 ");
    expect_words("na\xc3\xafve \xc3\x89t\xc3\xa9", "na\xc3\xafve \xc3\x89t\xc3\xa9 ");
    expect_words("\xe2\x80\x9cquoted\xe2\x80\x9d\xe2\x80\xa6", "quoted ");
    expect_words("\xe7\xa7\x98\xe5\xaf\x86"
                 "7\xe3\x80\x82",
                 "\xe7\xa7\x98 \xe5\xaf\x86 7 ");
    expect_words("bad \xff\xfe bytes\xe2\x82", "bad bytes ");
    char *query = text_query("is IT \"it\" OR not; drop", 23);
    assert_string_equal(query, "\"is\" OR \"it\" OR \"or\" OR \"not\" OR \"drop\"");
    pi_mem_free(query);
}

TEST(ranks_by_words_and_meaning)
{
    struct text_score spans[] = {
        {.id = 1, .first = 40, .matched = true, .words = 2, .cosine = 0.1},
        {.id = 2, .first = 30, .words = 0, .cosine = 0.9},
        {.id = 3, .first = 20, .matched = true, .words = 4, .cosine = 0.2},
        {.id = 4, .first = 10, .matched = true, .words = 2, .cosine = 0.3},
    };
    struct text_score copy[4];
    struct text_ranking r = {.top = 8, .floor = 0.2};
    memcpy(copy, spans, sizeof(copy));
    assert_int_equal(text_rank(copy, 4, &r), 3);
    assert_int_equal(copy[0].id, 3);
    assert_int_equal(copy[1].id, 4); /* as good as 1, and first */
    assert_int_equal(copy[2].id, 1);
    assert_true(copy[0].score == 1 && copy[1].score == 0.5 && copy[2].score == 0.5);
    r.embedded = true;
    r.alpha = 0.5; /* 1: 0.3, 2: 0.45, 3: 0.6, 4: 0.4 */
    r.floor = 0.35;
    memcpy(copy, spans, sizeof(copy));
    assert_int_equal(text_rank(copy, 4, &r), 3);
    assert_int_equal(copy[0].id, 3);
    assert_int_equal(copy[1].id, 2);
    assert_int_equal(copy[2].id, 4);
    assert_true(fabs(copy[1].score - 0.45) < 1e-12);
    r.top = 1;
    memcpy(copy, spans, sizeof(copy));
    assert_int_equal(text_rank(copy, 4, &r), 1);
    /* No spread: cosine alone, or without it all that matched are as good as can be. */
    for (int32_t i = 0; i < 4; i++)
        spans[i].words = 1;
    r = (struct text_ranking){.embedded = true, .alpha = 0.5, .floor = 0.15, .top = 8};
    memcpy(copy, spans, sizeof(copy));
    assert_int_equal(text_rank(copy, 4, &r), 3);
    assert_true(copy[0].id == 2 && copy[0].score == 0.9);
    r = (struct text_ranking){.floor = 1, .top = 8};
    memcpy(copy, spans, sizeof(copy));
    assert_int_equal(text_rank(copy, 4, &r), 3);
}
