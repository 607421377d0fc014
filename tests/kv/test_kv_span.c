/*
 * test_kv_span.c - stretches of a lane that other entries replace, beginning and ending anywhere in
 * pages. It checks the remaining entries of those pages, a sentence for each refusal, and that
 * forgetting a stretch takes the replacement back.
 */
#include "base/mem.h"
#include "kv_pages.h"
#include "kv_shape.h"

/* ---- stretches ---- */

/* 20 entries of a prompt, then twice the same 37, the second of which ends in the open page. */
TEST(a_stretch_stands_for_another_wherever_it_begins)
{
    struct kv_cache *cache = kv_check_cache(&two_layers, 80);
    struct kv_seq *seq = open_seq(cache), *fork;
    float before[32], after[32];
    assert_int_equal(kv_check_append(seq, 1, 0, 100), PITH_OK);
    assert_int_equal(kv_check_append(seq, 2, 100, 3), PITH_OK);
    assert_pages(seq, PAGES(16, 16, 16, 16, 16, 16, 7));
    assert_int_equal(kv_seq_reserve_runs(seq, 3, NULL), PITH_OK);
    kv_lane_key(seq, 1, 1, 50, before);
    for (int32_t l = 0; l < 4; l++)
        assert_int_equal(kv_seq_share_span(seq, l / 2, l % 2, 69, 29, seq, 32, 37, NULL), PITH_OK);
    assert_pages(seq, PAGES(16, 16, 16, 16, 5, 16, 13, 5)); /* 98 .. 102 moved to the front */
    assert_int_equal(kv_lane_room(seq, 0, 0), 11);
    kv_lane_key(seq, 1, 1, 87, after);
    assert_memory_equal(before, after, sizeof(before));
    for (int32_t l = 0; l < 4; l++)
        for (int32_t s = 0; s < 103; s++)
            assert_int_equal(kv_lane_pos(seq, l / 2, l % 2, s), s);
    /* A fork's copy of the page that entries move in, and one to the end. */
    assert_int_equal(kv_seq_fork(seq, &fork, NULL), PITH_OK);
    assert_int_equal(kv_seq_reserve_runs(fork, 3, NULL), PITH_OK);
    for (int32_t l = 0; l < 4; l++) {
        assert_int_equal(kv_seq_share_span(fork, l / 2, l % 2, 85, 14, seq, 16, 69, NULL), PITH_OK);
        assert_int_equal(kv_seq_share_span(fork, l / 2, l % 2, 99, 4, seq, 0, 99, NULL), PITH_OK);
        for (int32_t s = 0; s < 103; s++)
            assert_int_equal(kv_lane_pos(fork, l / 2, l % 2, s), s);
    }
    assert_pages(fork, PAGES(16, 16, 16, 16, 5, 16, 14, 4));
    assert_pages(seq, PAGES(16, 16, 16, 16, 5, 16, 13, 5));
    assert_int_equal(kv_check_append(fork, 3, 103, 1), PITH_OK);
    assert_pages(fork, PAGES(16, 16, 16, 16, 5, 16, 14, 4, 1));
    /* Forgetting goes back to the page that the stretch began in, which goes on. */
    kv_seq_truncate(fork, 70);
    assert_pages(fork, PAGES(16, 16, 16, 16, 5, 1));
    kv_seq_truncate(fork, 69);
    assert_int_equal(kv_check_append(fork, 4, 69, 2), PITH_OK);
    assert_pages(fork, PAGES(16, 16, 16, 16, 7));
    kv_seq_free(seq);
    kv_seq_free(fork);
    kv_cache_free(cache);
}

/* The same where entries go, and marks with them. */
TEST(a_folded_stretch_takes_its_marks_along)
{
    struct kv_geometry g = KV_SHAPE(1, 1, 8, 8, 16, KV_TYPE_F32, KV_TYPE_F32);
    struct kv_cache *cache = kv_check_cache(&g, 40);
    kv_cache_set_marks(cache, 1, false);
    struct kv_seq *seq = open_seq(cache);
    assert_int_equal(kv_check_append(seq, 1, 0, 85), PITH_OK);
    for (int32_t s = 0; s < 85; s++)
        kv_lane_marks(seq, 0, 0, 0)[s] = (float)s;
    kv_seq_set_victim(seq, 0, 0, 84);
    assert_int_equal(kv_seq_fold_span(seq, 0, 0, 37, 32, 0, NULL), PITH_OK);
    assert_pages(seq, PAGES(16, 16, 5, 11, 5));
    assert_int_equal(kv_lane_victim(seq, 0, 0), 52);
    for (int32_t s = 0; s < 53; s++) {
        int32_t was = s < 37 ? s : s + 32;
        assert_int_equal(kv_lane_pos(seq, 0, 0, s), was);
        assert_true(kv_lane_marks(seq, 0, 0, 0)[s] == (float)was);
    }
    for (int32_t i = 0; i < 5; i++)
        assert_int_equal(kv_lane_run(seq, 0, 0, i).count, 1 + (i < 2));
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* ---- what cannot be done ---- */

TEST(refuses_bad_stretches)
{
    struct kv_cache *cache = kv_check_cache(&two_layers, 80);
    struct kv_seq *seq = open_seq(cache), *other = open_seq(cache);
    assert_int_equal(kv_check_append(seq, 1, 0, 103), PITH_OK);
    assert_int_equal(kv_check_append(other, 2, 0, 40), PITH_OK);
    const struct {
        int32_t slot, n;
        const char *says;
    } cases[] = {
        {69, 40, "slot: 40 entries from 69 on are not in 0..102"},
        {103, 1, "slot: 1 entries from 103 on are not in 0..102"},
        {-1, 5, "slot: 5 entries from -1 on are not in 0..102"},
        {69, 0, "slot: 0 entries from 69 on are not in 0..102"},
        {69, -3, "slot: -3 entries from 69 on are not in 0..102"},
        {66, 12, "slot: 12 entries from 66 on lie in the middle of page 4"},
        {65, 1, "slot: 1 entries from 65 on lie in the middle of page 4"},
        {98, 4, "slot: 4 entries from 98 on lie in the middle of page 6"},
    };
    uint64_t digest = kv_check_digest(cache);
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        int32_t slot = cases[i].slot, n = cases[i].n;
        must_fail(kv_seq_share_span(seq, 0, 0, slot, n, other, 0, 69, &err), &err, cases[i].says);
        must_fail(kv_seq_fold_span(seq, 0, 0, slot, n, slot < 0 ? -16 : 0, &err), &err,
                  cases[i].says);
    }
    assert_true(kv_check_digest(cache) == digest);
    kv_seq_free(seq);
    kv_seq_free(other);
    kv_cache_free(cache);
}

/* The entries that would stand there. */
TEST(refuses_bad_origins)
{
    struct kv_cache *cache = kv_check_cache(&two_layers, 80),
                    *apart = kv_check_cache(&two_layers, 80);
    struct kv_seq *seq = open_seq(cache), *other = open_seq(cache), *alien = open_seq(apart);
    assert_int_equal(kv_check_append(seq, 1, 0, 103), PITH_OK);
    assert_int_equal(kv_check_append(other, 2, 0, 40), PITH_OK);
    assert_int_equal(kv_check_append(alien, 2, 0, 40), PITH_OK);
    const struct {
        const struct kv_seq *from;
        int32_t from_slot, delta;
        const char *says;
    } cases[] = {
        {alien, 0, 69, "from_seq belongs to another cache"},
        {seq, 64, 37, "from_slot: 20 entries from 64 on do not lie before 69"},
        {seq, 50, 37, "from_slot: 20 entries from 50 on do not lie before 69"},
        {seq, 31, 38, "from_slot: 31 does not begin a page"},
        {seq, -16, 38, "from_slot: 20 entries from -16 on are not in 0..102"},
        {other, -1, 69, "from_slot: 20 entries from -1 on are not in 0..39"},
        {other, 21, 69, "from_slot: 20 entries from 21 on are not in 0..39"},
        {other, 40, 69, "from_slot: 20 entries from 40 on are not in 0..39"},
        {other, 17, 69, "from_slot: 17 does not begin a page"},
        {seq, 32, -40, "delta: -40 moves positions 32..47 out of range"},
        {other, 16, INT32_MAX - 34, "moves positions 32..35 out of range"}, /* the last page's */
        {other, 16, INT32_MIN, "delta: -2147483648 moves positions 16..31 out of range"},
    };
    uint64_t digest = kv_check_digest(cache);
    for (size_t i = 0; i < PI_LEN(cases); i++)
        must_fail(kv_seq_share_span(seq, 0, 0, 69, 20, cases[i].from, cases[i].from_slot,
                                    cases[i].delta, &err),
                  &err, cases[i].says);
    must_fail(kv_seq_fold_span(seq, 0, 0, 69, 20, 64, &err), &err,
              "from_slot: 20 entries from 64 on do not lie before 69");
    must_fail(kv_seq_fold_span(seq, 0, 0, 69, 20, -1, &err), &err,
              "from_slot: 20 entries from -1 on are not in 0..102");
    must_fail(kv_seq_fold_span(seq, 0, 0, 69, 20, 31, &err), &err,
              "from_slot: 31 does not begin a page");
    must_fail(kv_seq_fold_span(seq, 0, 0, 69, 20, 32, &err), &err,
              "from_slot: page 3 holds 16 entries, not 4");
    assert_true(kv_check_digest(cache) == digest);
    kv_seq_free(seq);
    kv_seq_free(other);
    kv_seq_free(alien);
    kv_cache_free(cache);
    kv_cache_free(apart);
}

/* Entries that count more than once can be neither evicted nor replaced. */
TEST(refuses_what_is_counted_already)
{
    struct kv_cache *cache = kv_check_cache(&two_layers, 80);
    struct kv_seq *seq = open_seq(cache), *other = open_seq(cache);
    assert_int_equal(kv_check_append(seq, 1, 0, 103), PITH_OK);
    assert_int_equal(kv_check_append(other, 2, 0, 40), PITH_OK);
    assert_int_equal(page_fold(seq, 0, 0, 4, 1, NULL), PITH_OK);
    uint64_t digest = kv_check_digest(cache);
    must_fail(kv_seq_share_span(seq, 0, 0, 0, 32, other, 0, 0, &err), &err,
              "slot: page 1 counts 2 times");
    must_fail(kv_seq_share_span(seq, 0, 0, 5, 12, other, 0, 5, &err), &err,
              "slot: page 1 counts 2 times");
    must_fail(kv_seq_share_span(seq, 0, 0, 20, 20, other, 0, 20, &err), &err,
              "slot: page 1 counts 2 times");
    must_fail(kv_seq_fold_span(seq, 0, 0, 16, 16, 0, &err), &err, "slot: page 1 counts 2 times");
    must_fail(kv_seq_share_span(other, 0, 0, 5, 20, seq, 0, 0, &err), &err,
              "from_slot: page 1 counts 2 times");
    must_fail(kv_seq_share_span(seq, 0, 0, 60, 20, seq, 16, 0, &err), &err,
              "from_slot: page 1 counts 2 times");
    assert_true(kv_check_digest(cache) == digest);
    assert_int_equal(kv_seq_reserve_runs(other, 2, NULL), PITH_OK);
    assert_int_equal(kv_seq_share_span(other, 0, 0, 5, 16, seq, 0, 0, NULL), PITH_OK);
    kv_seq_free(seq);
    kv_seq_free(other);
    kv_cache_free(cache);
}

static void must_say(pith_status got, pith_status want, const pith_error *why, const char *says)
{
    assert_int_equal(got, want);
    assert_string_equal(why->message, says);
}

/* Without room in the table, memory for it, or a page for what moves. */
TEST(refuses_when_memory_is_short)
{
    struct kv_geometry g = KV_SHAPE(1, 1, 8, 8, 16, KV_TYPE_F32, KV_TYPE_F32);
    struct kv_cache *cache = kv_check_cache(&g, 4);
    struct kv_seq *seq = open_seq(cache), *fork;
    assert_int_equal(kv_check_append(seq, 1, 0, 64), PITH_OK);
    assert_int_equal(kv_seq_fork(seq, &fork, NULL), PITH_OK);
    uint64_t digest = kv_check_digest(cache);
    assert_int_equal(fork->cap, 4); /* no more than there is */
    assert_int_equal(kv_lane_span_takes(fork, 0, 0, 40, 20), (int64_t)kv_page_bytes(&g));
    assert_int_equal(kv_lane_span_takes(fork, 0, 0, 40, 8), 0);
    assert_int_equal(kv_lane_span_takes(fork, 0, 0, 40, 24), 0);
    must_say(kv_seq_share_span(fork, 0, 0, 40, 20, seq, 32, 8, &err), PITH_KV_FULL, &err,
             "no page for the entries from slot 60 of 64 on");
    must_say(kv_seq_fold_span(fork, 0, 0, 40, 16, 0, &err), PITH_KV_FULL, &err,
             "no page for the entries from slot 56 of 64 on");
    must_say(kv_seq_share_span(fork, 0, 0, 40, 24, seq, 32, 8, &err), PITH_NOMEM, &err,
             "no room for 2 more table entries in 4");
    pi_mem_fail_at(1, false);
    pith_status status = kv_seq_reserve_runs(fork, 3, &err);
    pi_mem_fail_at(0, false);
    must_say(status, PITH_NOMEM, &err, "no memory for page tables of 7 entries in 1 lanes");
    assert_true(kv_check_digest(cache) == digest);
    assert_int_equal(kv_seq_reserve_runs(fork, 1, NULL), PITH_OK);
    assert_int_equal(kv_seq_share_span(fork, 0, 0, 40, 24, seq, 32, 8, NULL), PITH_OK);
    for (int32_t s = 0; s < 64; s++)
        assert_int_equal(kv_lane_pos(fork, 0, 0, s), s);
    kv_seq_free(seq);
    assert_pages(fork, PAGES(16, 16, 8, 16, 8));
    kv_seq_free(fork);
    kv_cache_free(cache);
}
