/*
 * test_draft_parts.c - the parts of drafting, without a model. The index of a text is compared with
 * a plain search, with drafts at a text's end and copies with edits. The gauge is compared with the
 * formula in draft_gauge.h: when it stops, and when it tries again.
 */
#include <math.h>

#include "testing.h"

#include "engine/draft_gauge.h"
#include "engine/draft_lookup.h"
#include "mem_used.h"
#include "status.h"

#define N 3000

static void set(struct draft_lookup *l, const int32_t *tokens, int32_t n)
{
    assert_int_equal(draft_lookup_set(l, tokens, n), PITH_OK);
    assert_int_equal(l->n, n);
}

/* The longest match of the text's end before it, of at most 16 tokens. */
static int32_t longest_match(const int32_t *tokens, int32_t n)
{
    int32_t longest = 0;
    for (int32_t at = 0; at < n - 1; at++) {
        int32_t len = 0;
        while (len < 16 && at - len >= 0 && tokens[at - len] == tokens[n - 1 - len])
            len++;
        longest = len > longest ? len : longest;
    }
    return longest;
}

/* Where an n-gram is rare, all its places are compared. The longest match is found, and the draft
   is the text after it. */
TEST(finds_the_longest_match_of_rare_ngrams)
{
    static int32_t tokens[N];
    struct draft_lookup l = {.source = -1};
    uint64_t seed = 5;
    int32_t out[8], n_found = 0;
    int kind;
    for (int32_t i = 0; i < N; i++)
        tokens[i] = i % 700 < 600 ? (int32_t)rng_below(&seed, 400) : tokens[i - 600];
    for (int32_t n = 2; n <= N; n++) {
        set(&l, tokens, n);
        l.source = -1; /* nothing is expected */
        int32_t longest = longest_match(tokens, n);
        int32_t got = draft_lookup_find(&l, 8, out, &kind);
        assert_int_equal(got, longest > 0 ? 8 : 0);
        if (got == 0)
            continue;
        assert_int_equal(kind, longest >= 8 ? 5 : longest >= 4 ? 4 : longest);
        for (int32_t i = 0; i < 8; i++) {
            int32_t at = l.source + 1 + i;
            assert_int_equal(out[i], at < n ? tokens[at] : out[at - n]);
        }
        n_found++;
    }
    assert_true(n_found > N / 2);
    draft_lookup_free(&l);
    mem_check(NULL);
}

/* A text that repeats goes on repeating. */
TEST(continues_a_periodic_text)
{
    struct draft_lookup l = {.source = -1};
    int32_t tokens[30], out[20];
    int kind;
    for (int32_t i = 0; i < 30; i++)
        tokens[i] = i % 3;
    set(&l, tokens, 30);
    assert_int_equal(draft_lookup_find(&l, 20, out, &kind), 20);
    for (int32_t i = 0; i < 20; i++)
        assert_int_equal(out[i], i % 3);
    draft_lookup_free(&l);
}

/* A copy in which a word was replaced by one of another length. After it the draft follows the
   source, although the same text occurs at other places, too. */
TEST(follows_a_copy_behind_an_edit)
{
    static int32_t tokens[N];
    struct draft_lookup l = {.source = -1};
    uint64_t seed = 9;
    int32_t n = 400, from = 0, n_right = 0, n_all = 0, out[1];
    int kind;
    for (int32_t i = 0; i < n; i++)
        tokens[i] = i % 20 == 10 ? 999 : (int32_t)rng_below(&seed, 30);
    tokens[n++] = 1000; /* the end of the source */
    set(&l, tokens, n);
    while (from < 400) {
        int32_t next[2] = {tokens[from], 0}, n_next = 1;
        if (tokens[from] == 999) { /* the word, for which there are two others */
            next[0] = 500;
            next[1] = 501;
            n_next = 2;
        }
        for (int32_t i = 0; i < n_next; i++) {
            int32_t got = draft_lookup_find(&l, 1, out, &kind);
            n_right += got == 1 && out[0] == next[i];
            tokens[n++] = next[i];
            set(&l, tokens, n);
        }
        n_all += n_next;
        from++;
    }
    assert_true(n_right > n_all * 80 / 100);
    draft_lookup_free(&l);
}

/* A text that is cut, or another one, begins the index anew. */
TEST(another_text_begins_the_index_anew)
{
    struct draft_lookup l = {.source = -1};
    int32_t a[] = {1, 2, 3, 4, 1, 2}, b[] = {7, 8, 9, 7}, out[2];
    int kind;
    set(&l, a, 6);
    assert_int_equal(draft_lookup_find(&l, 2, out, &kind), 2);
    assert_int_equal(out[0], 3);
    set(&l, a, 4);
    assert_int_equal(draft_lookup_find(&l, 2, out, &kind), 0);
    set(&l, b, 4);
    assert_int_equal(draft_lookup_find(&l, 2, out, &kind), 2);
    assert_int_equal(out[0], 8);
    draft_lookup_free(&l);
}

/* ---- the gauge ---- */

static double gain_of(double p, const struct draft_cost *c, double each, int32_t m, int32_t k)
{
    double sum = m;
    for (int32_t i = 1; i <= k; i++)
        sum += pow(p, i);
    return sum / m * draft_cost_rows(c, m) / (draft_cost_rows(c, m + k) + k * each);
}

TEST(the_gauge_chooses_the_best_length)
{
    for (int s = 0; s < 40; s++) {
        double p = 0.025 * s, each = 0.1 * (s % 4), gain;
        int32_t m = 1 + s % 3;
        struct draft_cost c = {.one_s = 1.0};
        for (int32_t i = 0, n = 2; i < 2000; i++, n = 2 + (n + 1) % 40)
            draft_cost_note(&c, n, 1.0 + (0.05 + 0.01 * s) * (n - 1));
        int32_t best = draft_gauge_best(p, &c, each, m, 31, &gain);
        assert_true(fabs(gain - gain_of(p, &c, each, m, best)) < 1e-12);
        for (int32_t k = 0; k <= 31; k++)
            assert_true(gain >= gain_of(p, &c, each, m, k) - 1e-12);
    }
}

/* Times of rows are found, and a single odd one changes little. */
TEST(a_single_odd_time_changes_the_cost_little)
{
    struct draft_cost c = {0};
    for (int i = 0; i < 60; i++) {
        draft_cost_note(&c, 1, 0.5);
        draft_cost_note(&c, 5, 0.5 * (1 + 4 * 0.35));
    }
    assert_true(fabs(c.one_s - 0.5) < 1e-9 && draft_cost_rows(&c, 1) == 1.0);
    assert_true(fabs(draft_cost_rows(&c, 5) - (1 + 4 * 0.35)) < 1e-3);
    assert_true(draft_cost_rows(&c, 4) < draft_cost_rows(&c, 5)); /* by the nearest */
    double before = draft_cost_rows(&c, 5);
    draft_cost_note(&c, 5, 100.0);
    assert_true(draft_cost_rows(&c, 5) > before && draft_cost_rows(&c, 5) < 1.2 * before);
    draft_cost_note(&c, 1, 0.0);
    draft_cost_note(&c, 1000, 1.0);
    assert_true(c.one_s == 0.5);
}

/* Of a text that never repeats few tokens are drafted, more rarely as it goes on; where drafts come
   true they become long. */
TEST(the_gauge_stops_where_nothing_repeats)
{
    struct draft_gauge g;
    struct draft_cost c = {.one_s = 1.0};
    double gain;
    int32_t n_draft = 0, n_late = 0;
    draft_gauge_start(&g);
    for (int32_t i = 0; i < 2000; i++)
        draft_cost_note(&c, 2 + i % 20, 1.0 + 0.2 * (1 + i % 20));
    for (int32_t i = 0; i < 4000; i++) {
        int kind = i % DRAFT_N_LOOKUP_KIND;
        draft_gauge_note(&g, 0, 0, 0);
        int32_t n = draft_gauge_plan(&g, &c, kind, 0.0, 1, 15, &gain);
        draft_gauge_note(&g, kind, n, 0);
        n_draft += i < 2000 ? n : 0;
        n_late += i < 2000 ? 0 : n;
    }
    assert_true(n_draft > 0 && n_draft < 200); /* a row costs a fifth of a token: 2 % at most */
    assert_true(n_late > 0 && n_late < 20);
    for (int32_t i = 0; i < 400; i++) {
        draft_gauge_note(&g, 0, 0, 0);
        int32_t n = draft_gauge_plan(&g, &c, 11, 0.0, 1, 15, &gain);
        draft_gauge_note(&g, 11, n, n);
    }
    for (int32_t i = 0; i < 2000; i++) {
        draft_gauge_note(&g, 0, 0, 0);
        int32_t n = draft_gauge_plan(&g, &c, 11, 0.0, 1, 15, &gain);
        draft_gauge_note(&g, 11, n, n);
    }
    assert_int_equal(draft_gauge_plan(&g, &c, 11, 0.0, 1, 15, &gain), 15);
    assert_true(gain > 3.0);
}
