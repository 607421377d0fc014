/*
 * Keep rounds over lanes that sharing can make, but the engine alone cannot: pages read at other
 * positions, and positions that fall or occur twice. Also lanes that are packed at the same time.
 */
#include <math.h>
#include <string.h>

#include "testing.h"

#include "base/mem.h"
#include "kv_by_page.h"
#include "kv_check.h"
#include "policy/keep/rules/keep.h"
#include "status.h"
#include "kv_shape.h"

#define N_LAYER 2
#define N_HEAD 2
#define N_LANE (N_LAYER * N_HEAD)
#define PAGE_LEN 16

static const struct policy_model model = {
    .g = {N_LAYER, N_HEAD, 8, 4, PAGE_LEN, KV_TYPE_F32, KV_TYPE_F16}, .n_group = 1, .scale = 1.0f};

static const char *const granularities[] = {"all", "head", "layer", "layer-head"};

static struct keep *make(const struct keep_policy *p, const char *options,
                         const struct policy_model *m, int32_t n_thread)
{
    struct keep_config config;
    struct keep *keep = NULL;
    check(keep_config_set(p, options, &config, &err), &err);
    check(keep_config_fit(&config, &m->g, &err), &err);
    check(keep_create(&config, m, n_thread, &keep, &err), &err);
    return keep;
}

static struct kv_seq *kv_make(struct kv_cache *cache)
{
    struct kv_seq *kv;
    check(kv_seq_create(cache, &kv, &err), &err);
    return kv;
}

static void append(struct kv_seq *kv, int32_t pos0, int32_t n)
{
    check(kv_check_append(kv, 9, pos0, n), &err);
}

static void round_now(struct keep *keep, struct kv_seq *kv, int32_t n_token)
{
    struct keep_view view = {.kv = kv, .n_token = n_token};
    struct keep_tally tally = {0};
    check(keep_round(keep, kv, &view, &tally, &err), &err);
    assert_int_equal(tally.n_round, 1);
}

/* ---- several lanes at once ---- */

#define MAX_SLOT 400

static int32_t some_slots(uint64_t *rng, int32_t len, int32_t *slots)
{
    int32_t n = 0;
    uint64_t odds = 1 + rng_below(rng, 20);
    for (int32_t s = 0; s < len; s++)
        if (rng_below(rng, 20) < odds)
            slots[n++] = s;
    return n;
}

/* The same history in two caches: lanes packed one by one, and at once by three threads. */
TEST(lanes_are_packed_at_the_same_time)
{
    struct kv_cache *cache[2];
    struct kv_seq *seq[2], *fork[2] = {NULL, NULL};
    static int32_t slots[N_LANE][MAX_SLOT];
    int32_t n_shared[2] = {0};
    uint64_t rng = 77;
    for (int32_t c = 0; c < 2; c++) {
        cache[c] = kv_check_cache(&model.g, 400);
        seq[c] = kv_make(cache[c]);
    }
    for (int32_t step = 0, next = 0; step < 400; step++) {
        int32_t n = 1 + (int32_t)rng_below(&rng, 60), n_cut = 0, from = (int32_t)rng_below(&rng, 4);
        struct kv_cut cut[N_LANE];
        bool forks = rng_below(&rng, 3) == 0, shares = rng_below(&rng, 3) == 0;
        for (int32_t c = 0; c < 2; c++) {
            append(seq[c], next, n);
            if (shares && kv_lane_len(seq[c], 0, 1) > 8 * PAGE_LEN) {
                check(kv_seq_reserve_runs(seq[c], PAGE_LEN, &err), &err);
                n_shared[c] += page_share(seq[c], 0, 1, 5, seq[c], from, 3, &err) == PITH_OK;
            }
            if (!forks)
                continue;
            kv_seq_free(fork[c]);
            check(kv_seq_fork(seq[c], &fork[c], &err), &err);
        }
        next += n;
        for (int32_t l = 0; l < N_LANE; l++) {
            int32_t len = kv_lane_len(seq[0], l / N_HEAD, l % N_HEAD);
            assert_true(len <= MAX_SLOT);
            if (rng_below(&rng, 4) == 0 && len < 200)
                continue;
            cut[n_cut++] =
                (struct kv_cut){l / N_HEAD, l % N_HEAD, slots[l], some_slots(&rng, len, slots[l])};
        }
        for (int32_t i = 0; i < n_cut; i++)
            check(kv_seq_compact(seq[0], cut[i].layer, cut[i].head, cut[i].slots, cut[i].n, &err),
                  &err);
        check(kv_seq_compact_lanes(seq[1], cut, n_cut, 3, &err), &err);
        kv_check_same(seq[0], seq[1]);
        if (fork[0] != NULL)
            kv_check_same(fork[0], fork[1]);
        kv_check_account(cache[1], cache[0]->table_bytes);
    }
    assert_int_equal(n_shared[0], n_shared[1]);
    assert_true(n_shared[0] > 15);
    for (int32_t c = 0; c < 2; c++) {
        kv_seq_free(fork[c]);
        kv_seq_free(seq[c]);
        kv_cache_free(cache[c]);
    }
}

/* One lane that cannot be packed leaves all of them as they are. */
TEST(a_round_packs_all_lanes_or_none)
{
    static const int32_t some[] = {1, 2, 5, 30}, wrong[] = {3, 3};
    struct kv_cache *cache = kv_check_cache(&model.g, 2 * N_LANE + N_LANE * 2 - 1);
    struct kv_seq *a = kv_make(cache), *b;
    struct kv_cut cut[N_LANE];
    append(a, 0, 2 * PAGE_LEN);
    check(kv_seq_fork(a, &b, &err), &err);
    append(b, 2 * PAGE_LEN, PAGE_LEN); /* one page of each lane is left, but for one */
    for (int32_t l = 0; l < N_LANE; l++)
        cut[l] = (struct kv_cut){l / N_HEAD, l % N_HEAD, some, 4};
    uint64_t digest = kv_check_digest(cache);
    assert_int_equal(kv_seq_compact_lanes(b, cut, N_LANE, 2, &err), PITH_KV_FULL);
    char want[128];
    int page = (int)kv_page_bytes(&model.g);
    snprintf(want, sizeof(want),
             "keeping 16 of 192 entries copies shared pages of %d bytes, and %d of %d are free",
             4 * page, 3 * page, 15 * page);
    assert_string_equal(err.message, want);
    cut[3] = (struct kv_cut){1, 1, wrong, 2};
    assert_int_equal(kv_seq_compact_lanes(b, cut, N_LANE, 2, &err), PITH_INVALID);
    assert_true(kv_check_digest(cache) == digest);
    check(kv_seq_compact_lanes(b, cut, 3, 2, &err), &err);
    for (int32_t s = 0; s < 4; s++)
        assert_int_equal(kv_lane_pos(b, 1, 0, s), some[s]);
    assert_int_equal(kv_lane_len(a, 1, 0), 2 * PAGE_LEN);
    kv_seq_free(b);
    kv_seq_free(a);
    kv_cache_free(cache);
}

/* Lanes that are long enough for several threads come out the same. */
TEST(threads_change_no_round)
{
    enum { N = 700, BUDGET = 410 };
    struct policy_model wide = model;
    wide.g = (struct kv_geometry)KV_SHAPE(3, 8, 64, 32, 64, KV_TYPE_F16, KV_TYPE_Q8_0);
    for (size_t g = 0; g < PI_LEN(granularities); g++) {
        struct kv_cache *cache[2];
        struct kv_seq *kv[2];
        char options[64];
        snprintf(options, sizeof(options), "budget=%d,granularity=%s", BUDGET, granularities[g]);
        for (int32_t c = 0; c < 2; c++) {
            struct keep *keep = make(&keep_keydiff, options, &wide, c == 0 ? 1 : 5);
            struct keep_point at = {N, 0, 0.0, 0};
            cache[c] = kv_check_cache(&wide.g, 24 * 13);
            kv[c] = kv_make(cache[c]);
            append(kv[c], 0, N);
            check(keep_prepare(keep, kv[c], at, 1, &err), &err);
            round_now(keep, kv[c], N);
            assert_int_equal(kv_lane_len(kv[c], 2, 7), BUDGET);
            keep_free(keep);
        }
        kv_check_same(kv[0], kv[1]);
        for (int32_t c = 0; c < 2; c++) {
            kv_seq_free(kv[c]);
            kv_cache_free(cache[c]);
        }
    }
}

/* ---- positions that stand twice ---- */

/* A lane of 32 entries at 16 positions is over a budget of 20, and is brought below it. */
TEST(positions_that_stand_twice_count_as_entries)
{
    for (size_t g = 0; g < PI_LEN(granularities); g++) {
        char options[64];
        snprintf(options, sizeof(options), "budget=20,slack=12,sinks=0,granularity=%s",
                 granularities[g]);
        struct keep *keep = make(&keep_streaming, options, &model, 1);
        struct kv_cache *cache = kv_check_cache(&model.g, 4 * N_LANE);
        struct kv_seq *kv = kv_make(cache);
        struct keep_point at = {32, 0, 0.0, 0};
        append(kv, 0, 32);
        for (int32_t l = 0; l < N_LANE; l++)
            check(page_share(kv, l / N_HEAD, l % N_HEAD, 1, kv, 0, 0, &err), &err);
        check(keep_prepare(keep, kv, at, 20, &err), &err);
        assert_true(keep_due(keep, kv, at, 20));
        round_now(keep, kv, at.n_token);
        for (int32_t l = 0; l < N_LANE; l++) {
            assert_int_equal(kv_lane_len(kv, l / N_HEAD, l % N_HEAD), 16);
            for (int32_t s = 0; s < 16; s++)
                assert_int_equal(kv_lane_pos(kv, l / N_HEAD, l % N_HEAD, s), s);
        }
        assert_int_equal(keep_room(keep, kv, at, 100), 16);
        kv_check_account(cache, 0);
        kv_seq_free(kv);
        keep_free(keep);
        kv_cache_free(cache);
    }
}

/* Whether two lanes hold the same positions does not depend on their pages. */
TEST(lanes_agree_by_positions_and_not_by_pages)
{
    struct kv_cache *cache = kv_check_cache(&model.g, 8 * N_LANE);
    struct kv_seq *kv = kv_make(cache);
    int32_t slots[40];
    append(kv, 0, 40);
    assert_true(kv_lane_agrees(kv, 0, 0, 1, 1));
    assert_int_equal(kv_lane_last(kv, 1, 1), 39);
    check(page_move(kv, 1, 0, 0, 1, &err), &err); /* 1 .. 16, 16 .. 31, ... */
    assert_false(kv_lane_agrees(kv, 0, 0, 1, 0));
    for (int32_t s = 0; s < 40; s++)
        slots[s] = s;
    check(kv_seq_compact(kv, 0, 0, slots + 1, 15, &err), &err); /* 1 .. 15 */
    check(kv_seq_compact(kv, 1, 0, slots, 15, &err), &err);
    assert_false(kv_lane_agrees(kv, 0, 0, 1, 0)); /* read at the same, not written */
    for (int32_t h = 0; h < N_HEAD; h++)
        kv_seq_shift(kv, 1, h, kv_lane_len(kv, 1, h), 1);
    assert_int_equal(kv_lane_pos(kv, 1, 1, 15), 16);
    assert_int_equal(kv_lane_written_pos(kv, 1, 1, 15), 15);
    check(kv_seq_compact(kv, 1, 1, slots, 15, &err), &err);
    append(kv, 50, 40); /* in lanes with a delta they begin a page */
    assert_true(kv_lane_agrees(kv, 1, 1, 1, 0) && kv_lane_agrees(kv, 1, 0, 1, 1));
    assert_int_equal(kv_lane_breaks(kv, 0, 0), 0);
    assert_int_equal(kv_lane_breaks(kv, 1, 0), 1);
    for (int32_t s = 16; s < 40; s++)
        slots[s]++;
    check(kv_seq_compact(kv, 1, 1, slots, 20, &err), &err);
    assert_false(kv_lane_agrees(kv, 1, 1, 1, 0));
    check(kv_seq_compact(kv, 1, 0, slots, 20, &err), &err);
    assert_true(kv_lane_agrees(kv, 1, 1, 1, 0));
    kv_seq_truncate(kv, 0);
    assert_true(kv_lane_agrees(kv, 0, 0, 1, 0));
    assert_int_equal(kv_lane_last(kv, 0, 0), -1);
    kv_seq_free(kv);
    kv_cache_free(cache);
}

/* Splitting changes nothing but where pages begin: not in the sequence, not in its fork. */
TEST(splitting_changes_nothing_but_where_pages_begin)
{
    static const int32_t at[] = {0, 1, 15, 16, 17, 39, 40};
    for (size_t i = 0; i < 2 * PI_LEN(at); i++) {
        int32_t slot = at[i / 2];
        struct kv_cache *cache = kv_check_cache(&model.g, 5 * N_LANE);
        struct kv_seq *kv = kv_make(cache), *fork = NULL;
        float before[40][8], row[8];
        append(kv, 100, 40);
        for (int32_t s = 0; s < 40; s++)
            kv_lane_key(kv, 1, 0, s, before[s]);
        if (i % 2 == 1)
            check(kv_seq_fork(kv, &fork, &err), &err);
        check(kv_seq_reserve_table(kv, PAGE_LEN, &err), &err);
        int64_t n_free = kv_seq_free_bytes(kv);
        check(kv_seq_split(kv, 1, 0, slot, &err), &err);
        assert_int_equal(n_free - kv_seq_free_bytes(kv),
                         (slot % PAGE_LEN == 0 || slot == 40 ? 0 : 1 + i % 2) *
                             (int64_t)kv_layer_page_bytes(kv_cache_geometry(cache), 1));
        kv_seq_shift(kv, 1, 0, slot, -50);
        for (int32_t s = 0; s < 40; s++) {
            kv_lane_key(kv, 1, 0, s, row);
            assert_memory_equal(row, before[s], sizeof(row));
            assert_int_equal(kv_lane_pos(kv, 1, 0, s), s < slot ? s + 50 : s + 100);
            assert_int_equal(kv_lane_written_pos(kv, 1, 0, s), s + 100);
            if (fork != NULL) {
                kv_lane_key(fork, 1, 0, s, row);
                assert_memory_equal(row, before[s], sizeof(row));
                assert_int_equal(kv_lane_pos(fork, 1, 0, s), s + 100);
            }
        }
        kv_check_account(cache, 0);
        kv_seq_free(fork);
        kv_seq_free(kv);
        kv_cache_free(cache);
    }
    struct kv_cache *cache = kv_check_cache(&model.g, 2 * N_LANE);
    struct kv_seq *kv = kv_make(cache);
    append(kv, 0, 2 * PAGE_LEN);
    check(kv_seq_reserve_table(kv, PAGE_LEN, &err), &err);
    uint64_t digest = kv_check_digest(cache);
    assert_int_equal(kv_seq_split(kv, 0, 0, 3, &err), PITH_KV_FULL);
    assert_string_equal(err.message, "no page for the entries before slot 3 of 32");
    assert_true(kv_check_digest(cache) == digest);
    kv_seq_free(kv);
    kv_cache_free(cache);
}

/* ---- memory where pages cannot be joined ---- */

/* A first page that is read 50 positions later and loses entries stays a page of its own. So the
   lane holds one page more than its entries fill, which is planned before or refused. */
TEST(breaks_are_counted)
{
    for (int32_t extra = 0; extra < 2; extra++) {
        struct keep *keep = make(&keep_streaming, "budget=40,slack=8,sinks=0", &model, 1);
        struct kv_cache *cache = kv_check_cache(&model.g, (3 + extra) * N_LANE);
        struct kv_seq *kv = kv_make(cache);
        struct keep_point at = {132, 0, 0.0, 0};
        append(kv, 0, PAGE_LEN);
        append(kv, 100, 32);
        for (int32_t l = 0; l < N_LANE; l++)
            check(page_move(kv, l / N_HEAD, l % N_HEAD, 0, 50, &err), &err);
        check(keep_prepare(keep, kv, at, 200, &err), &err);
        int64_t lacks = keep_lacks(keep, kv, at, 200).all;
        kv_seq_clear_charges(kv);
        assert_int_equal(lacks, N_LANE * (int64_t)kv_page_bytes(&model.g));
        for (int32_t left = 200; extra > 0 && left > 0;) {
            if (keep_due(keep, kv, at, left))
                round_now(keep, kv, at.n_token);
            int32_t take = keep_room(keep, kv, at, left);
            append(kv, at.n_token, take);
            at.n_token += take;
            left -= take;
        }
        kv_seq_free(kv);
        keep_free(keep);
        kv_cache_free(cache);
    }
}

/* ---- opinions without a mean ---- */

static void infinite_score(const void *params, const struct keep_view *view,
                           const struct keep_lane *lane, float *out)
{
    (void)params;
    (void)view;
    for (int32_t i = 0; i < lane->n; i++)
        out[i] = lane->head == 0 ? INFINITY : -INFINITY;
}

static const struct keep_policy infinite = {
    .name = "infinite", .summary = "cannot agree", .citation = "", .score = infinite_score};

TEST(infinite_scores_let_the_older_go_first)
{
    static const char *const options[] = {"budget=20,slack=12,granularity=all",
                                          "budget=20,slack=12,granularity=layer,combine=max"};
    for (size_t i = 0; i < PI_LEN(options); i++) {
        struct keep *keep = make(&infinite, options[i], &model, 1);
        struct kv_cache *cache = kv_check_cache(&model.g, 4 * N_LANE);
        struct kv_seq *kv = kv_make(cache);
        struct keep_point at = {0, 0, 0.0, 0};
        check(keep_prepare(keep, kv, at, 32, &err), &err);
        append(kv, 0, 32);
        round_now(keep, kv, 32);
        assert_int_equal(kv_lane_len(kv, 1, 1), 20);
        assert_int_equal(kv_lane_pos(kv, 1, 1, 0), 12); /* of equals the older goes first */
        kv_seq_free(kv);
        keep_free(keep);
        kv_cache_free(cache);
    }
}
