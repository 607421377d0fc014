/*
 * test_prefix_windows.c - prefixes where some lanes have windows. A text can reuse a page only if
 * its publisher still had the entries that windows see there. The windows' pages are given up
 * before others, even where a sequence uses the rest. No byte is lost or counted twice.
 */
#include "kv/block.h"
#include "prefix_rig.h"

#define WINDOW 20
#define REACH 2 /* pages that it sees behind a whole one */

static const int32_t windows[] = {0, 0, WINDOW};
static const struct kv_geometry sliding = {.n_layer = 3,
                                           .n_head = 2,
                                           .dim_k = 8,
                                           .dim_v = 8,
                                           .page_len = LEN,
                                           .window = windows,
                                           .step_len = LEN};

static int32_t text[8 * LEN];

/* Reads on to n tokens, page by page as passes do. */
static void read_to(struct kv_seq *seq, int32_t n)
{
    int32_t from = kv_lane_len(seq, 0, 0);
    for (int32_t to; from < n; from = to) {
        to = (int32_t)pi_min(n, (from / LEN + 1) * LEN);
        assert_int_equal(grow_seq(seq, text, from, to), PITH_OK);
        kv_seq_slide(seq, false);
    }
}

static struct kv_seq *read_text(struct kv_cache *kv, int32_t n)
{
    struct kv_seq *seq = NULL;
    assert_int_equal(kv_seq_create(kv, &seq, NULL), PITH_OK);
    read_to(seq, n);
    return seq;
}

static void check_alone(const struct kv_seq *seq, int32_t n)
{
    struct kv_cache *kv = kv_check_cache(&sliding, N_PAGE);
    struct kv_seq *alone = read_text(kv, n);
    kv_check_same(seq, alone);
    kv_seq_free(alone);
    kv_cache_free(kv);
}

TEST(goes_on_where_windows_are_held)
{
    struct rig r = rig_make(&sliding, N_PAGE);
    fill_text(text, PI_LEN(text), 4);
    assert_int_equal(kv_block_reach(&sliding), REACH);
    assert_int_equal(kv_block_reach(&geometry), 0);
    struct kv_seq *seq = read_text(r.kv, 4 * LEN);
    assert_int_equal(prefix_publish(r.cache, 0, text, 4 * LEN, seq), 4 * LEN);
    assert_int_equal(rig_find(r.cache, text, 4 * LEN + 1), 4 * LEN);
    assert_int_equal(rig_find(r.cache, text, 4 * LEN), 0); /* page 1 is gone, which page 3 sees */

    struct kv_seq *other = begin_seq(&r, text, 6 * LEN, 4 * LEN);
    assert_int_equal(kv_lane_len(other, 2, 0), REACH * LEN);
    check_alone(other, 4 * LEN);
    read_to(other, 6 * LEN);
    read_to(seq, 5 * LEN + 3);
    assert_int_equal(prefix_publish(r.cache, 0, text, 5 * LEN + 3, seq), 5 * LEN);
    assert_int_equal(rig_find(r.cache, text, 5 * LEN + 1), 5 * LEN);
    kv_seq_free(seq);
    check_alone(other, 6 * LEN);
    kv_seq_free(other);
    rig_free(&r);
}

/* Short texts, whose windows see all: every page is one to go on behind. */
TEST(every_page_of_a_short_text_can_go_on)
{
    struct rig r = rig_make(&sliding, N_PAGE);
    fill_text(text, PI_LEN(text), 4);
    struct kv_seq *seq = read_text(r.kv, LEN + 9);
    assert_int_equal(prefix_publish(r.cache, 0, text, LEN + 9, seq), LEN);
    assert_int_equal(rig_find(r.cache, text, LEN + 1), LEN);
    kv_seq_free(seq);
    seq = begin_seq(&r, text, 3 * LEN, LEN);
    kv_seq_free(seq);
    rig_free(&r);
}

TEST(gives_up_windows_first)
{
    struct rig r = rig_make(&sliding, N_PAGE);
    fill_text(text, PI_LEN(text), 4);
    struct kv_seq *seq = read_text(r.kv, 4 * LEN);
    int64_t full = kv_block_bytes(r.kv), window = kv_block_window_bytes(r.kv);
    assert_int_equal(2 * window, full); /* two layers have none, one has one */
    prefix_publish(r.cache, 0, text, 4 * LEN, seq);
    assert_int_equal(prefix_unused_bytes(r.cache), 0);
    assert_int_equal(prefix_reclaim(r.cache, INT64_MAX), 0);
    assert_int_equal(used(&r), 4 * full + REACH * window);

    /* The sequence goes on: only the cache holds the pages that it no longer sees. */
    read_to(seq, 8 * LEN);
    assert_int_equal(prefix_unused_bytes(r.cache), REACH * window);
    assert_int_equal(prefix_reclaim(r.cache, 1), window);
    assert_int_equal(rig_find(r.cache, text, 4 * LEN + 1), 0);
    assert_int_equal(prefix_count(r.cache), 4);
    assert_int_equal(prefix_reclaim(r.cache, INT64_MAX), (REACH - 1) * window);
    assert_int_equal(prefix_count(r.cache), 4);
    kv_seq_free(seq);
    assert_int_equal(prefix_unused_bytes(r.cache), 4 * full);
    assert_int_equal(used(&r), 4 * full);

    /* A sequence that reads it again brings the windows back. */
    seq = read_text(r.kv, 4 * LEN);
    assert_int_equal(prefix_publish(r.cache, 0, text, 4 * LEN, seq), 4 * LEN);
    kv_seq_free(seq);
    assert_int_equal(rig_find(r.cache, text, 4 * LEN + 1), 4 * LEN);
    assert_int_equal(used(&r), 4 * full + REACH * window);
    assert_int_equal(prefix_reclaim(r.cache, INT64_MAX), 4 * full + REACH * window);
    assert_int_equal(prefix_count(r.cache), 0);
    rig_free(&r);
}
