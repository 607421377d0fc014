/*
 * test_kv_share.c - pages in more than one place. A last page takes no more entries, a table entry
 * points at another page, and one page counts for two. Also attention over such lanes; refusals are
 * in test_kv_span.c. Numbers of the specification's vectors (memshare.json) stand where they are
 * used.
 */
#include "attend_check.h"
#include "kv/lane_internal.h"
#include "kv/snapshot.h"
#include "kv_pages.h"
#include "rounded.h"
#include "kv_shape.h"

/* ---- closing ---- */

/* All functions that make room, append or report room agree that a closed page takes nothing. Here
   a page is closed because a fork's page replaces it. */
TEST(a_closed_page_takes_nothing)
{
    struct kv_cache *cache = kv_check_cache(&two_layers, 40);
    struct kv_seq *seq = open_seq(cache), *fork;
    pages_close(seq); /* an empty sequence has no page to end */
    assert_int_equal(kv_check_append(seq, 1, 0, 5), PITH_OK);
    assert_int_equal(kv_seq_takes(seq, 11), 0);
    uint64_t used = (uint64_t)cache->used;
    pages_close(seq);
    assert_int_equal(cache->used, used);
    assert_int_equal(kv_seq_takes(seq, 0), 0);
    assert_int_equal(kv_seq_takes(seq, 1), kv_bytes_for_tokens(&two_layers, 1));
    assert_int_equal(kv_lane_lacks(seq, 1, 0, 17), 2);
    assert_int_equal(kv_lane_breaks(seq, 0, 0), 0);
    assert_int_equal(kv_check_append(seq, 1, 5, 1), PITH_OK);
    assert_pages(seq, PAGES(5, 1));
    assert_int_equal(kv_check_append(seq, 1, 6, 3), PITH_OK); /* that one is open */
    assert_pages(seq, PAGES(5, 4));
    pages_close(seq);
    assert_int_equal(kv_seq_fork(seq, &fork, NULL), PITH_OK);
    int64_t n_free = kv_cache_free_bytes(cache), takes = kv_seq_takes(fork, 17);
    assert_int_equal(kv_check_append(fork, 1, 9, 17), PITH_OK); /* a fork's are as closed */
    assert_pages(fork, PAGES(5, 4, 16, 1));
    assert_int_equal(n_free - kv_cache_free_bytes(cache), takes); /* and nothing was copied */
    pages_close(fork);
    pages_close(fork);
    for (int32_t s = 0; s < 26; s++)
        assert_int_equal(kv_lane_pos(fork, 1, 1, s), s);
    kv_seq_free(seq);
    kv_seq_free(fork);
    kv_cache_free(cache);
}

/* A reservation for an open page is none for a closed one. */
TEST(a_reservation_for_an_open_page_is_none_for_a_closed_one)
{
    struct kv_cache *cache = kv_check_cache(&two_layers, 40);
    struct kv_seq *seq = open_seq(cache);
    assert_int_equal(kv_check_append(seq, 1, 0, 5), PITH_OK);
    assert_int_equal(kv_seq_reserve(seq, 20, NULL), PITH_OK);
    pages_close(seq);
    assert_int_equal(kv_lane_lacks(seq, 0, 0, 16), 0);
    assert_int_equal(kv_lane_lacks(seq, 0, 0, 20), 1);
    assert_int_equal(kv_check_append(seq, 1, 5, 20), PITH_OK);
    assert_pages(seq, PAGES(5, 16, 4));
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* Losing an entry, packing, or overwriting an old entry opens a page again. */
TEST(truncating_and_compacting_open_a_closed_page)
{
    struct kv_cache *cache = kv_check_cache(&two_layers, 60);
    struct kv_seq *seq = open_seq(cache);
    float k[32] = {1}, v[32] = {2};
    int32_t all[20];
    for (int32_t i = 0; i < 20; i++)
        all[i] = i;
    assert_int_equal(kv_check_append(seq, 1, 0, 5), PITH_OK);
    pages_close(seq);
    assert_int_equal(kv_check_append(seq, 1, 5, 7), PITH_OK);
    kv_seq_truncate(seq, 5); /* the rest ends where it was closed */
    assert_int_equal(kv_check_append(seq, 1, 5, 7), PITH_OK);
    assert_pages(seq, PAGES(5, 7));
    kv_seq_truncate(seq, 4);
    assert_int_equal(kv_check_append(seq, 1, 4, 8), PITH_OK);
    assert_pages(seq, PAGES(12));
    pages_close(seq);
    assert_int_equal(kv_check_append(seq, 1, 12, 8), PITH_OK);
    pages_close(seq);
    for (int32_t l = 0; l < 4; l++)
        assert_int_equal(kv_seq_compact(seq, l / 2, l % 2, all, 20, NULL), PITH_OK);
    assert_pages(seq, PAGES(16, 4));
    assert_int_equal(kv_check_append(seq, 1, 20, 1), PITH_OK);
    assert_pages(seq, PAGES(16, 5));
    pages_close(seq);
    for (int32_t l = 0; l < 4; l++)
        kv_seq_set_victim(seq, l / 2, l % 2, 18);
    assert_int_equal(kv_seq_reserve(seq, 2, NULL), PITH_OK);
    for (int32_t l = 0; l < 4; l++)
        kv_seq_append(seq, l / 2, l % 2, 21, 2, k, 0, v, 0);
    assert_pages(seq, PAGES(16, 6));
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* ---- sharing ---- */

/* Steps of 20 and of 7 entries, each in pages of its own, shared page by page. */
TEST(shares_pages_that_are_not_full)
{
    struct kv_cache *cache = kv_check_cache(&two_layers, 80);
    struct kv_seq *seq = open_seq(cache);
    const int32_t step[] = {20, 7, 20, 7};
    for (int32_t i = 0, pos = 0; i < 4; pos += step[i++]) {
        assert_int_equal(kv_check_append(seq, 1, pos, step[i]), PITH_OK);
        if (i < 3)
            pages_close(seq);
    }
    assert_pages(seq, PAGES(16, 4, 7, 16, 4, 7));
    for (int32_t l = 0; l < 4; l++) {
        int64_t page = kv_pages_bytes(seq->lane[l].kind, 1), used = cache->used;
        for (int32_t i = 3; i < 6; i++)
            assert_int_equal(page_share(seq, l / 2, l % 2, i, seq, i - 3, 27, NULL), PITH_OK);
        assert_int_equal(used - cache->used, 3 * page);
        for (int32_t s = 0; s < 54; s++)
            assert_int_equal(kv_lane_pos(seq, l / 2, l % 2, s), s);
        assert_int_equal(kv_lane_breaks(seq, l / 2, l % 2), 2);
    }
    assert_pages(seq, PAGES(16, 4, 7, 16, 4, 7));
    /* The first entries of a larger page are as good. */
    assert_int_equal(page_share(seq, 0, 1, 1, seq, 0, 16, NULL), PITH_OK);
    assert_int_equal(kv_lane_pos(seq, 0, 1, 19), 19);
    assert_int_equal(kv_check_append(seq, 1, 54, 1), PITH_OK); /* none of them takes an entry */
    assert_pages(seq, PAGES(16, 4, 7, 16, 4, 7, 1));
    kv_seq_truncate(seq, 54);
    kv_seq_truncate(seq, 50); /* an entry of a shared page goes: here alone */
    assert_pages(seq, PAGES(16, 4, 7, 16, 4, 3));
    for (int32_t s = 20; s < 27; s++)
        assert_int_equal(kv_lane_pos(seq, 1, 0, s), s);
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* A page shared from a sequence that goes on to fill it: that one copies it. */
TEST(both_go_on_behind_a_shared_open_page)
{
    struct kv_cache *cache = kv_check_cache(&two_layers, 80);
    struct kv_seq *a = open_seq(cache), *b = open_seq(cache);
    float before[32], after[32];
    assert_int_equal(kv_check_append(a, 1, 0, 9), PITH_OK);
    assert_int_equal(kv_check_append(b, 2, 0, 6), PITH_OK);
    for (int32_t l = 0; l < 4; l++)
        assert_int_equal(page_share(b, l / 2, l % 2, 0, a, 0, 0, NULL), PITH_OK);
    kv_lane_key(b, 1, 1, 5, before);
    assert_int_equal(kv_seq_takes(a, 1), kv_bytes_for_tokens(&two_layers, 1));
    assert_int_equal(kv_seq_takes(a, 8), 2 * kv_bytes_for_tokens(&two_layers, 1));
    assert_int_equal(kv_check_append(a, 3, 9, 4), PITH_OK);
    assert_int_equal(kv_check_append(b, 4, 6, 2), PITH_OK);
    assert_pages(a, PAGES(13));
    assert_pages(b, PAGES(6, 2));
    kv_lane_key(b, 1, 1, 5, after);
    assert_memory_equal(before, after, sizeof(before));
    kv_lane_key(a, 1, 1, 5, after);
    assert_memory_equal(before, after, sizeof(before));
    kv_seq_free(a);
    kv_seq_free(b);
    kv_cache_free(cache);
}

/* ---- folding ---- */

/* Four steps of 6, marks beside the entries. */
TEST(folding_counts_a_page_twice)
{
    struct kv_geometry g = KV_SHAPE(1, 1, 8, 8, 16, KV_TYPE_F32, KV_TYPE_F32);
    struct kv_cache *cache = kv_check_cache(&g, 40);
    kv_cache_set_marks(cache, 1, false);
    struct kv_seq *seq = open_seq(cache), *fork;
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(kv_check_append(seq, 1, 6 * i, 6), PITH_OK);
        if (i < 3)
            pages_close(seq);
    }
    for (int32_t s = 0; s < 24; s++)
        kv_lane_marks(seq, 0, 0, 0)[s] = (float)s;
    kv_seq_set_victim(seq, 0, 0, 14);
    assert_int_equal(page_fold(seq, 0, 0, 1, 0, NULL), PITH_OK);
    assert_int_equal(kv_lane_victim(seq, 0, 0), 8); /* the same entry */
    assert_pages(seq, PAGES(6, 6, 6));
    assert_int_equal(kv_lane_run(seq, 0, 0, 0).count, 2);
    assert_int_equal(kv_lane_run(seq, 0, 0, 1).count, 1);
    assert_int_equal(kv_lane_breaks(seq, 0, 0), 1);
    for (int32_t s = 0; s < 18; s++) {
        assert_int_equal(kv_lane_pos(seq, 0, 0, s), s < 6 ? s : s + 6);
        assert_true(kv_lane_marks(seq, 0, 0, 0)[s] == (float)(s < 6 ? s : s + 6));
    }
    assert_false(kv_lane_can_overwrite(seq, 0, 0, 5));
    assert_true(kv_lane_can_overwrite(seq, 0, 0, 6));
    assert_int_equal(kv_seq_fork(seq, &fork, NULL), PITH_OK);
    assert_int_equal(kv_lane_run(fork, 0, 0, 0).count, 2);
    assert_int_equal(page_fold(fork, 0, 0, 2, 1, NULL), PITH_OK); /* it was open */
    assert_int_equal(kv_lane_victim(fork, 0, 0), -1);             /* it counts twice now */
    assert_int_equal(kv_lane_run(fork, 0, 0, 1).count, 2);
    assert_int_equal(kv_lane_breaks(fork, 0, 0), 2);
    assert_int_equal(kv_seq_takes(fork, 1), (int64_t)kv_page_bytes(&g)); /* it takes no entry */
    assert_int_equal(kv_check_append(fork, 1, 24, 1), PITH_OK);
    assert_pages(fork, PAGES(6, 6, 1));
    assert_int_equal(page_fold(seq, 0, 0, 2, 0, NULL), PITH_OK);
    assert_int_equal(kv_lane_run(seq, 0, 0, 0).count, 3);
    assert_int_equal(kv_lane_victim(seq, 0, 0), 8); /* neither of them */
    assert_int_equal(kv_check_append(seq, 1, 24, 2), PITH_OK);
    assert_pages(seq, PAGES(6, 7)); /* the one before is open */
    kv_seq_free(seq);
    kv_seq_free(fork);
    kv_cache_free(cache);
}

/* The count is told in 16 bits. */
TEST(refuses_counts_beyond_16_bits)
{
    static const int32_t count[] = {1, 2, 3, 40000, 65535};
    struct kv_geometry g = KV_SHAPE(1, 1, 8, 8, 16, KV_TYPE_F32, KV_TYPE_F32);
    struct kv_cache *cache = kv_check_cache(&g, 40);
    struct kv_seq *seq = open_seq(cache);
    int32_t pos = 16;
    assert_int_equal(kv_check_append(seq, 1, 0, 16), PITH_OK);
    for (size_t i = 0; i < PI_LEN(count); i++, pos += 16) {
        assert_int_equal(kv_check_append(seq, 1, pos, 16), PITH_OK);
        kv_lane_edit(&seq->lane[0])[0].n_folded = (uint16_t)(count[i] - 1);
        assert_int_equal(page_fold(seq, 0, 0, 1, 0, NULL), PITH_OK);
        assert_int_equal(kv_lane_run(seq, 0, 0, 0).count, count[i] + 1);
    }
    assert_int_equal(kv_lane_run(seq, 0, 0, 0).count, KV_COUNT_MAX);
    assert_int_equal(kv_check_append(seq, 1, pos, 16), PITH_OK);
    must_fail(page_fold(seq, 0, 0, 1, 0, &err), &err, "would count 65537 times");
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* Packing: a page that stays whole keeps its count, in a page of its own. The remaining entries of
   another page count once and join their neighbours. */
TEST(compacting_keeps_whole_pages_and_their_counts)
{
    struct kv_geometry g = KV_SHAPE(1, 1, 8, 8, 16, KV_TYPE_F32, KV_TYPE_F32);
    struct kv_cache *cache = kv_check_cache(&g, 40);
    struct kv_seq *seq = open_seq(cache), *fork;
    int32_t slots[36], n = 0;
    for (int32_t i = 0; i < 7; i++) { /* 0 1 2 0' 1' 2' 3, where 0 and 2 count twice */
        assert_int_equal(kv_check_append(seq, 1, 6 * i, 6), PITH_OK);
        pages_close(seq);
    }
    assert_int_equal(page_fold(seq, 0, 0, 5, 2, NULL), PITH_OK);
    assert_int_equal(page_fold(seq, 0, 0, 3, 0, NULL), PITH_OK);
    assert_pages(seq, PAGES(6, 6, 6, 6, 6));
    assert_int_equal(kv_lane_breaks(seq, 0, 0), 3);
    assert_int_equal(kv_seq_fork(seq, &fork, NULL), PITH_OK);
    for (int32_t s = 1; s < 30; s++) /* the first entry goes */
        slots[n++] = s;
    assert_int_equal(kv_seq_compact(seq, 0, 0, slots, n, NULL), PITH_OK);
    assert_pages(seq, PAGES(11, 6, 12));
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(kv_lane_run(seq, 0, 0, i).count, i == 1 ? 2 : 1);
    assert_int_equal(kv_lane_pos(seq, 0, 0, 10), 11);
    assert_int_equal(kv_lane_pos(seq, 0, 0, 11), 12);
    assert_int_equal(kv_check_append(seq, 1, 42, 3), PITH_OK); /* open again */
    assert_pages(seq, PAGES(11, 6, 15));
    n = 0;
    for (int32_t s = 0; s < 30; s++) /* all but the last of the third page, and the second */
        if (s / 6 != 1 && s != 17)
            slots[n++] = s;
    assert_int_equal(kv_seq_compact(fork, 0, 0, slots, n, NULL), PITH_OK);
    assert_pages(fork, PAGES(6, 16, 1));
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(kv_lane_run(fork, 0, 0, i).count, i == 0 ? 2 : 1);
    kv_seq_free(seq);
    kv_seq_free(fork);
    kv_cache_free(cache);
}

/* Lanes at the same positions that count differently do not agree. */
TEST(lanes_that_count_differently_do_not_agree)
{
    struct kv_geometry g = KV_SHAPE(1, 2, 8, 8, 16, KV_TYPE_F32, KV_TYPE_F32);
    struct kv_cache *cache = kv_check_cache(&g, 40);
    struct kv_seq *seq = open_seq(cache);
    assert_int_equal(kv_check_append(seq, 1, 0, 48), PITH_OK);
    for (int32_t h = 0; h < 2; h++)
        assert_int_equal(page_fold(seq, 0, h, 2, h, NULL), PITH_OK);
    assert_false(kv_lane_agrees(seq, 0, 0, 0, 1));
    kv_lane_edit(&seq->lane[0])[1].n_folded = 1;
    kv_lane_edit(&seq->lane[1])[0].n_folded = 1;
    assert_true(kv_lane_agrees(seq, 0, 0, 0, 1));
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* ---- attention ---- */

/* A sequence of one lane whose pages come twice: once for real, and once folded. */
struct twins {
    struct fixture f; /* the table with duplicates is its sequence */
    struct kv_seq *folded;
    int32_t copy[64]; /* of slots of the folded lane: one of the others', the first of `count` */
    int32_t count[64];
};

/* The fixture's lane, of pages 0 .. 5, where page 3 is page 1 again, 4 too, and 5 is page 0. All
   but the last hold 11 entries. */
static void twins_open(struct twins *t, const struct kv_geometry *g, uint64_t *rng)
{
    static const int32_t original[] = {0, 1, 2, 1, 1, 0};
    *t = (struct twins){.folded = NULL};
    cache_open(&t->f, g, 400);
    for (int32_t i = 0; i < 6; i++) {
        append_random(t->f.seq, rng, 11 * i, 11);
        pages_close(t->f.seq);
    }
    append_random(t->f.seq, rng, 66, 7);
    assert_int_equal(kv_seq_fork(t->f.seq, &t->folded, NULL), PITH_OK);
    for (int32_t i = 5; i > 2; i--)
        assert_int_equal(page_share(t->f.seq, 0, 0, i, t->f.seq, original[i], 0, NULL), PITH_OK);
    for (int32_t i = 5; i > 2; i--)
        assert_int_equal(page_fold(t->folded, 0, 0, i, original[i], NULL), PITH_OK);
    for (int32_t s = 0; s < 40; s++) {
        t->copy[s] = s < 33 ? s : s + 33;
        t->count[s] = s < 11 ? 2 : s < 22 ? 3 : 1;
    }
    assert_int_equal(kv_lane_len(t->folded, 0, 0), 40);
}

static void twins_close(struct twins *t)
{
    kv_seq_free(t->folded);
    close_all(&t->f);
}

static void assert_near(const float *a, const float *b, size_t n, double tolerance,
                        const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= tolerance))
            fail_msg("%s: value %zu of %zu is %.9g, expected %.9g", what, i, n, (double)a[i],
                     (double)b[i]);
}

/* The result of attention over a sequence, with the taps' rows; guests may be NULL. */
static void attend_twin(const struct twins *t, const struct kv_seq *seq,
                        const struct kv_seq *guests, float *out, struct kv_attend_tap *tap)
{
    const struct kv_geometry *g = &t->f.cache->g;
    uint8_t *scratch = test_malloc(kv_attend_scratch_bytes(g, t->f.n_tok * t->f.n_group));
    struct kv_attend_job job = {
        .seq = seq,
        .guests = guests,
        .n_tok = t->f.n_tok,
        .n_group = t->f.n_group,
        .pos0 = t->f.pos0,
        .q = t->f.q,
        .q_stride = (size_t)(t->f.n_group * g->dim_k),
        .scale = t->f.scale,
        .out = out,
        .out_stride = (size_t)(t->f.n_group * g->dim_v),
        .tap = tap,
    };
    kv_attend(&job, scratch);
    test_free(scratch);
}

/* Logits, weights, maxima and sums of the folded lane equal the sums over the copies. A weight may
   be of parts that were dropped as too small (kv_attend). */
static void check_taps(const struct twins *t)
{
    size_t n_row = (size_t)(t->f.n_tok * t->f.n_group), stride = 80, n = n_row * stride;
    float *x = test_calloc(n, sizeof(float)), *w = test_calloc(n, sizeof(float));
    float *fx = test_calloc(n, sizeof(float)), *fw = test_calloc(n, sizeof(float));
    struct kv_attend_tap tap = {.logits = x, .weight = w, .row_stride = stride};
    struct kv_attend_tap folded = {.logits = fx, .weight = fw, .row_stride = stride};
    float *out = test_calloc(out_len(&t->f), sizeof(float));
    attend_twin(t, t->f.seq, NULL, out, &tap);
    attend_twin(t, t->folded, NULL, out, &folded);
    for (size_t r = 0; r < n_row; r++)
        for (int32_t s = 0; s < 40; s++) {
            float logit = x[r * stride + (size_t)t->copy[s]];
            float weight = w[r * stride + (size_t)t->copy[s]] * (float)t->count[s];
            if (logit == -INFINITY)
                assert_true(fx[r * stride + (size_t)s] == -INFINITY);
            else
                assert_near(&fx[r * stride + (size_t)s],
                            (const float[]){logit + logf((float)t->count[s])}, 1, 1e-5, "logit");
            assert_near(&fw[r * stride + (size_t)s], &weight, 1, 2e-6, "weight");
        }
    test_free(x);
    test_free(w);
    test_free(fx);
    test_free(fw);
    test_free(out);
}

/* The folded lane gives the result of the lane with duplicates, to rounding. Cases: both sequences
   are the same, guests are of another, some entries are listed. */
static void check_twins(struct twins *t, uint64_t *rng, double tolerance)
{
    float *want = test_calloc(out_len(&t->f), sizeof(float));
    struct kv_seq *alone = t->f.seq;
    attend_twin(t, alone, NULL, want, NULL);
    attend_twin(t, t->folded, NULL, t->f.out, NULL);
    assert_near(t->f.out, want, out_len(&t->f), tolerance, "folded");
    attend_twin(t, alone, alone, want, NULL);
    attend_twin(t, t->folded, t->folded, t->f.out, NULL);
    assert_near(t->f.out, want, out_len(&t->f), tolerance, "guests");
    check_taps(t);
    t->f.seq = t->folded;
    assert_levels_agree(&t->f, rng);
    t->f.seq = alone;
    test_free(want);
}

/* Every storage type, one row, a group, and enough rows that pages are decoded. */
TEST(folding_attends_as_duplicates_do)
{
    static const int32_t calls[][3] = {{1, 1, 73}, {1, 5, 73}, {3, 4, 60}, {40, 3, 40}};
    for (int type = 0; type < KV_N_TYPE; type++)
        for (size_t c = 0; c < PI_LEN(calls); c++) {
            uint64_t rng = (uint64_t)type * 8 + c;
            int32_t dim = dim_for((enum kv_type)type, 48);
            const struct kv_geometry g =
                geometry(dim, dim, 16, (enum kv_type)type, (enum kv_type)type, 0);
            struct twins t;
            twins_open(&t, &g, &rng);
            queries(&t.f, &rng, calls[c][0], calls[c][1], calls[c][2]);
            check_twins(&t, &rng, 5e-6 + rounded_error((enum kv_type)type, dim));
            twins_close(&t);
        }
}

/* Entries that are listed, gathered over pages that count differently. */
TEST(gathers_entries_of_folded_pages)
{
    uint64_t rng = 3;
    const struct kv_geometry g = geometry(32, 32, 16, KV_TYPE_F16, KV_TYPE_Q8_0, KV_INDEX_NORM);
    struct twins t;
    twins_open(&t, &g, &rng);
    queries(&t.f, &rng, 2, 3, 73);
    uint8_t *scratch = test_malloc(kv_attend_scratch_bytes(&g, 6));
    float *want = test_calloc(out_len(&t.f), sizeof(float));
    for (int round = 0; round < 50; round++) {
        int32_t few[40], many[73], n_few = 0, n_many = 0;
        for (int32_t s = 0; s < 73; s++) {
            int32_t page = s / 11, first = page == 3 || page == 4 ? s % 11 + 11
                                           : page == 5            ? s % 11
                                           : page == 6            ? s - 33
                                                                  : s;
            bool chosen = ((uint64_t)first * 0x9e3779b97f4a7c15u >> 20) % 7 > (uint64_t)round % 7;
            if (chosen)
                many[n_many++] = s;
            if (chosen && page != 3 && page != 4 && page != 5)
                few[n_few++] = first;
        }
        struct kv_attend_job job = {.n_tok = 2,
                                    .n_group = 3,
                                    .pos0 = t.f.pos0,
                                    .q = t.f.q,
                                    .q_stride = 96,
                                    .scale = t.f.scale,
                                    .out_stride = 96};
        job.seq = t.f.seq, job.slots = many, job.n_slot = n_many, job.out = want;
        kv_attend(&job, scratch);
        job.seq = t.folded, job.slots = few, job.n_slot = n_few, job.out = t.f.out;
        kv_attend(&job, scratch);
        assert_near(t.f.out, want, out_len(&t.f), 5e-6, "gathered");
    }
    test_free(want);
    test_free(scratch);
    twins_close(&t);
}

/* ---- the specification's numbers ---- */

/* Entries of given keys and values, each in a page of its own from position 0 on. */
static void append_alone(struct kv_seq *seq, int32_t n, const float *k, const float *v)
{
    const struct kv_geometry *g = &seq->cache->g;
    for (int32_t i = 0; i < n; i++) {
        append(seq, i, 1, k + i * g->dim_k, v + i * g->dim_v);
        pages_close(seq);
    }
}

static void attend_one(const struct kv_seq *seq, const float *q, float scale, float *out)
{
    const struct kv_geometry *g = &seq->cache->g;
    uint8_t *scratch = test_malloc(kv_attend_scratch_bytes(g, 1));
    struct kv_attend_job job = {
        .seq = seq, .n_tok = 1, .n_group = 1, .pos0 = 100, .q = q, .scale = scale, .out = out};
    kv_attend(&job, scratch);
    test_free(scratch);
}

/* memshare.json, multiplicity. */
TEST(multiplicity_is_that_of_the_vector)
{
    const struct kv_geometry g = geometry(1, 2, 16, KV_TYPE_F32, KV_TYPE_F32, 0);
    static const float k[] = {0.2f, -0.5f, 0.2f, -0.5f, 1.3f};
    static const float v[] = {1, 0, 0, 1, 1, 0, 0, 1, 0.5f, -0.5f};
    static const float with[] = {0.5839397097641701f, -0.08485640137572717f};
    static const float without[] = {0.5559256288062482f, -0.2234066347956149f};
    const float q = 1.0f;
    float out[2];
    struct kv_cache *cache = kv_check_cache(&g, 20);
    struct kv_seq *seq = open_seq(cache);
    append_alone(seq, 5, k, v);
    attend_one(seq, &q, 1.0f, out);
    assert_near(out, with, 2, 1e-6, "duplicates");
    assert_int_equal(page_fold(seq, 0, 0, 3, 1, NULL), PITH_OK);
    assert_int_equal(page_fold(seq, 0, 0, 2, 0, NULL), PITH_OK);
    attend_one(seq, &q, 1.0f, out);
    assert_near(out, with, 2, 1e-6, "folded");
    kv_lane_edit(&seq->lane[0])[0].n_folded = kv_lane_edit(&seq->lane[0])[1].n_folded = 0;
    attend_one(seq, &q, 1.0f, out);
    assert_near(out, without, 2, 1e-6, "evicted");
    kv_seq_free(seq);
    kv_cache_free(cache);
}

/* memshare.json, theorem1: what replacing a key and a value by near ones costs at most. */
TEST(the_error_stays_below_the_published_bound)
{
    const struct kv_geometry g = geometry(2, 2, 16, KV_TYPE_F32, KV_TYPE_F32, 0);
    static const float k[] = {0.2f, 0.1f, 1.0f, -1.0f, 0.4f, 0.9f}, q[] = {1.0f, -0.5f};
    static const float v[] = {1, 0, 0, 2, -1, 1};
    static const float other_k[] = {0.2f, 0.1f, 1.1f, -0.9f}, other_v[] = {1, 0, 0.1f, 1.8f};
    static const float o[] = {0.029530731053767023f, 1.3577495078759567f};
    static const float o2[] = {0.08795062184449698f, 1.2528674501747163f};
    const double bound = 0.3316232815946888;
    float before[2], after[2];
    struct kv_cache *cache = kv_check_cache(&g, 20);
    struct kv_seq *seq = open_seq(cache), *other = open_seq(cache);
    append_alone(seq, 3, k, v);
    append_alone(other, 2, other_k, other_v);
    attend_one(seq, q, (float)(1.0 / sqrt(2.0)), before);
    assert_near(before, o, 2, 1e-6, "o");
    assert_int_equal(page_share(seq, 0, 0, 1, other, 1, 0, NULL), PITH_OK);
    attend_one(seq, q, (float)(1.0 / sqrt(2.0)), after);
    assert_near(after, o2, 2, 1e-6, "o''");
    double error = hypot((double)(after[0] - before[0]), (double)(after[1] - before[1]));
    assert_float_equal(error, 0.12005469448400229, 1e-6);
    assert_true(error <= bound);
    kv_seq_free(seq);
    kv_seq_free(other);
    kv_cache_free(cache);
}

/* memshare.json, rope_delta_query: a key that was written at 37 and is read at 117 by a query at
   200. Also a key that is read where it was written. */
TEST(a_shifted_query_is_that_of_the_vector)
{
    static const struct {
        bool adjacent;
        double theta;
        float positional, literal;
    } cases[] = {{true, 1e4, 0.3048959580128331f, 2.4321198718941646f},
                 {true, 1e6, 0.1863689468295766f, 2.051746330882009f},
                 {false, 1e4, -0.6023349312965822f, 0.7835384322483273f},
                 {false, 1e6, 0.37750155935564644f, 1.6482816617632396f}};
    static const float k_pre[] = {0.3f, -1.2f, 0.7f, 0.4f, 1.1f, -0.6f, 0.2f, 0.9f};
    static const float q_pre[] = {1.0f, 0.5f, -0.7f, 0.3f, 0.2f, -1.1f, 0.8f, 0.4f};
    const struct kv_geometry g = geometry(8, 8, 16, KV_TYPE_F32, KV_TYPE_F32, 0);
    for (size_t c = 0; c < 2 * PI_LEN(cases); c++) {
        bool literal = c % 2;
        double freq[4];
        float cs[9], k[8], q[8], logit, out[8];
        for (int32_t i = 0; i < 4; i++)
            freq[i] = pow(cases[c / 2].theta, -i / 4.0);
        struct pi_rope rope = {
            .n_pair = 4, .adjacent = cases[c / 2].adjacent, .freq = freq, .magnitude = 1.0f};
        struct fixture f;
        cache_open(&f, &g, 100);
        f.rope = &rope;
        struct kv_seq *old = open_seq(f.cache);
        memcpy(k, k_pre, sizeof(k));
        pi_rope_fill(&rope, 37, cs);
        kv_rotate(&rope, cs, k);
        append(old, 37, 1, k, k_pre);
        append(f.seq, 117, 1, q_pre, q_pre);
        assert_int_equal(page_share(f.seq, 0, 0, 0, old, 0, literal ? 0 : 80, NULL), PITH_OK);
        memcpy(q, q_pre, sizeof(q));
        pi_rope_fill(&rope, 200, cs);
        kv_rotate(&rope, cs, q);
        f.q = q;
        f.pos0 = 200;
        struct kv_attend_tap tap = {.logits = &logit, .row_stride = 1};
        attend(&f, 0, 1, out, &tap);
        float want = literal ? cases[c / 2].literal : cases[c / 2].positional;
        assert_near(&logit, &want, 1, 2e-6, "logit");
        f.q = f.out = NULL;
        kv_seq_free(old);
        close_all(&f);
    }
}

/* ---- files ---- */

/* Counts, closed pages and types at the ends survive a snapshot. */
TEST(counts_and_closed_pages_survive_a_file)
{
    const char *path = "test_kv_share.snapshot";
    for (int t = 0; t < 4; t++) {
        struct kv_geometry g = two_layers;
        g.type_k = g.type_v = KV_TYPE_F16;
        g.edge_k = t == 3 ? g.edge_k : (struct kv_edge){0};
        struct kv_cache *cache = kv_check_cache(&g, 80);
        struct kv_seq *seq = open_seq(cache), *back;
        void *extra;
        size_t size;
        for (int32_t i = 0; i < 4; i++) {
            assert_int_equal(kv_check_append(seq, 1, 16 * i, i < 3 ? 16 : 5), PITH_OK);
            if (t == 1)
                pages_close(seq);
        }
        for (int32_t l = 0; t == 2 && l < 4; l++)
            assert_int_equal(page_fold(seq, l / 2, l % 2, 2, l % 2, NULL), PITH_OK);
        assert_int_equal(kv_seq_save(seq, "", 0, path, NULL), PITH_OK);
        assert_int_equal(kv_seq_load(cache, path, &back, &extra, &size, NULL), PITH_OK);
        kv_check_same(seq, back);
        assert_int_equal(kv_check_append(back, 1, 53, 3), PITH_OK);
        assert_int_equal(kv_lane_runs(back, 1, 1), t == 1 ? 5 : t == 2 ? 3 : 4);
        remove(path);
        pi_mem_free(extra);
        kv_seq_free(seq);
        kv_seq_free(back);
        kv_cache_free(cache);
    }
}
