/*
 * test_kv_span.c - stretches of a lane that others stand for, wherever they begin and end in pages:
 * what is left of those pages, what cannot be done, and that forgetting a stretch takes it back.
 */
#include "kv_pages.h"

/* ---- stretches ---- */

/* 20 entries of a prompt, then twice the same 37, the second of which ends in the open page. */
static void test_span(void **state)
{
    (void)state;
    struct kv_cache *cache = kv_check_cache(&two_layers, 80);
    struct kv_seq *seq = open_seq(cache), *fork;
    pith_error err;
    float before[32], after[32];
    assert_int_equal(kv_check_append(seq, 1, 0, 100), PITH_OK);
    assert_int_equal(kv_check_append(seq, 2, 100, 3), PITH_OK);
    assert_pages(seq, PAGES(16, 16, 16, 16, 16, 16, 7));
    uint64_t digest = kv_check_digest(cache);
    must_fail(kv_seq_share_span(seq, 0, 0, 69, 40, seq, 0, 69, &err), &err, "slot: 40 entries");
    must_fail(kv_seq_share_span(seq, 0, 0, 69, 20, seq, 31, 38, &err), &err, "begin a page");
    must_fail(kv_seq_share_span(seq, 0, 0, 69, 20, seq, 64, 37, &err), &err, "lie before 69");
    must_fail(kv_seq_share_span(seq, 0, 0, 66, 12, seq, 32, 34, &err), &err, "middle of page 4");
    must_fail(kv_seq_share_span(seq, 0, 0, 69, 20, seq, 32, -40, &err), &err, "delta: -40");
    must_fail(kv_seq_fold_span(seq, 0, 0, 69, 20, 32, &err), &err, "page 3 holds 16");
    assert_int_equal(kv_seq_share_span(seq, 0, 0, 69, 25, seq, 32, 37, &err), PITH_NOMEM);
    assert_true(kv_check_digest(cache) == digest);
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
static void test_fold_span(void **state)
{
    (void)state;
    struct kv_geometry g = {1, 1, 8, 8, 16, KV_TYPE_F32, KV_TYPE_F32, 0, 0, {0}, {0}};
    struct kv_cache *cache = kv_check_cache(&g, 40);
    kv_cache_set_marks(cache, 1, false);
    struct kv_seq *seq = open_seq(cache);
    assert_int_equal(kv_check_append(seq, 1, 0, 85), PITH_OK);
    for (int32_t s = 0; s < 85; s++)
        kv_lane_marks(seq, 0, 0, 0)[s] = (float)s;
    kv_seq_aim(seq, 0, 0, 84);
    assert_int_equal(kv_seq_fold_span(seq, 0, 0, 37, 32, 0, NULL), PITH_OK);
    assert_pages(seq, PAGES(16, 16, 5, 11, 5));
    assert_int_equal(kv_lane_aim(seq, 0, 0), 52);
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_span),
                                       cmocka_unit_test(test_fold_span)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
