/*
 * test_recall_tier.c - the second tier in memory: entries come back unchanged, the best first,
 * within exact budgets. Also forks, truncation, threads, and failing allocations.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>

#include "base/threads.h"
#include "recall_rig.h"

/* Different lanes keep different tokens. */
static bool keep_third(int32_t lane, int32_t pos)
{
    return (pos + lane) % 3 == 0;
}

static bool keep_ninth(int32_t lane, int32_t pos)
{
    return (pos + lane) % 9 == 0;
}

/* ---- exactness ---- */

static void check_type(enum kv_type type, uint32_t index)
{
    struct kv_geometry g = rig_geometry(type);
    struct rig r;
    float q[3 * RIG_GROUP * RIG_DIM];
    int32_t n_guest[RIG_LANES];
    g.index = index;
    const struct recall_kv_options o = rig_options(&g, 8);
    rig_queries(1, 3, q);
    rig_make(&r, &g, 300);
    rig_open(&r, &o, 1);
    rig_append(&r, 150);
    rig_evict(&r, keep_third);
    rig_append(&r, 150);
    rig_evict(&r, keep_ninth);
    rig_recall(&r, q, 3, 300, n_guest);
    int32_t n = 0;
    for (int32_t l = 0; l < RIG_LANES; l++) {
        rig_check_guests(&r, l);
        n += n_guest[l];
    }
    assert_int_equal(n, rig_count_gone(&r)); /* all of them */
    rig_recall(&r, q, 3, 50, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        rig_check_guests(&r, l);
        assert_int_equal(n_guest[l], 50);
    }
    rig_recall(&r, q, 3, 0, n_guest);
    assert_int_equal(n_guest[0], 0);
    rig_free(&r);
}

TEST(entries_come_back_as_they_were)
{
    for (int type = 0; type < KV_N_TYPE; type++) {
        check_type((enum kv_type)type, 0);
        check_type((enum kv_type)type, KV_INDEX_ROWS);
        check_type((enum kv_type)type, KV_INDEX_NORM | KV_INDEX_BOUNDS | KV_INDEX_VALUE_SUM);
    }
}

/* Types differ from layer to layer, and keys from values. */
TEST(layers_have_types_of_their_own)
{
    struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    struct rig r;
    float q[RIG_GROUP * RIG_DIM];
    int32_t n_guest[RIG_LANES];
    g.type_v = KV_TYPE_TURBO3;
    g.edge_v = (struct kv_edge){KV_TYPE_Q8_0, 1, 0};
    struct recall_kv_options o = rig_options(&g, 1);
    o.ram = 1 << 20;
    rig_queries(1, 1, q);
    rig_make(&r, &g, 200);
    rig_open(&r, &o, 1);
    assert_int_equal(r.tier->n_kind, 2);
    rig_append(&r, 200);
    rig_evict(&r, keep_third);
    rig_recall(&r, q, 1, 200, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        int32_t n = 0;
        for (int32_t p = 0; p < 200; p++)
            n += !keep_third(l, p);
        assert_int_equal(n_guest[l], n);
        rig_check_guests(&r, l);
    }
    rig_free(&r);
}

/* In another type than the lane's: entries come back with that type's rounding. */
TEST(a_tier_may_have_a_type_of_its_own)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F32);
    struct recall_kv_options o = rig_options(&g, 4);
    struct rig r;
    float q[RIG_GROUP * RIG_DIM], row[RIG_DIM];
    int32_t n_guest[RIG_LANES];
    o.type = 1 + KV_TYPE_Q8_0;
    rig_queries(1, 1, q);
    rig_make(&r, &g, 100);
    rig_open(&r, &o, 1);
    rig_append(&r, 100);
    rig_evict(&r, rig_keep_none);
    rig_recall(&r, q, 1, 100, n_guest);
    assert_int_equal(n_guest[0], 100);
    for (int32_t s = 0; s < 100; s++) {
        float most = 0.0f, error = 0.0f;
        kv_lane_key(r.guests, 0, 0, s, row);
        for (int32_t d = 0; d < RIG_DIM; d++) {
            most = fmaxf(most, fabsf(r.key[s * RIG_DIM + d]));
            error = fmaxf(error, fabsf(row[d] - r.key[s * RIG_DIM + d]));
        }
        assert_true(error > 0.0f && error <= most / 127.0f * 0.6f);
    }
    rig_free(&r);
}

/* One entry after the other, as they are overwritten. */
TEST(single_entries_are_remembered)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_options(&g, 4);
    struct rig r;
    struct recall_counts counts;
    float q[RIG_GROUP * RIG_DIM], key[RIG_DIM], row[RIG_DIM];
    int32_t n_guest[RIG_LANES];
    rig_queries(1, 1, q);
    rig_make(&r, &g, 100);
    rig_open(&r, &o, 1);
    rig_append(&r, 100);
    for (int32_t i = 0; i < 100; i++)
        recall_store_remember_one(r.store, r.seq, 1, 1, (i * 37) % 100);
    recall_store_count(r.store, &counts);
    assert_int_equal(counts.n_stored, 100);
    rig_recall(&r, q, 1, 100, n_guest);
    assert_int_equal(n_guest[3], 100);
    for (int32_t s = 0; s < 100; s++) {
        assert_int_equal(kv_lane_pos(r.guests, 1, 1, s), s);
        kv_lane_key(r.guests, 1, 1, s, row);
        kv_lane_key(r.seq, 1, 1, s, key);
        assert_memory_equal(row, key, sizeof(row));
    }
    rig_free(&r);
}

/* Entries that are read elsewhere than they were written are not remembered, and counted. */
TEST(shifted_entries_are_lost)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_options(&g, 4);
    struct rig r;
    struct recall_counts counts;
    rig_make(&r, &g, 100);
    rig_open(&r, &o, 1);
    rig_append(&r, 64);
    kv_seq_shift(r.seq, 0, 1, 16, -3);
    const int32_t kept[2] = {2, 20};
    recall_store_remember(r.store, r.seq, 0, 1, kept, 2, 0);
    recall_store_remember_one(r.store, r.seq, 0, 1, 5);
    recall_store_count(r.store, &counts);
    assert_int_equal(counts.n_stored, 64 - 16 - 1);
    assert_int_equal(counts.n_lost, 15 + 1);
    rig_free(&r);
}

/* ---- the choice ---- */

/* cosine of a key with the mean of a token's unit queries, in double. */
static double naive_score(const float *q, const float *key)
{
    double mean[RIG_DIM] = {0}, dot = 0.0, kk = 0.0;
    for (int32_t g = 0; g < RIG_GROUP; g++) {
        double qq = 0.0;
        for (int32_t d = 0; d < RIG_DIM; d++)
            qq += (double)q[g * RIG_DIM + d] * q[g * RIG_DIM + d];
        for (int32_t d = 0; d < RIG_DIM; d++)
            mean[d] += q[g * RIG_DIM + d] / sqrt(qq) / RIG_GROUP;
    }
    for (int32_t d = 0; d < RIG_DIM; d++) {
        dot += mean[d] * key[d];
        kk += (double)key[d] * key[d];
    }
    return dot / sqrt(kk);
}

/* The best score of those whose block an entry is in. */
static double naive_reach(const struct rig *r, const double *score, int32_t lane, int32_t pos,
                          int32_t block)
{
    double best = -1e9;
    for (int32_t p = 0; p < r->n_token; p++)
        if (r->gone[lane * r->capacity + p] && p - block / 4 <= pos && pos < p - block / 4 + block)
            best = fmax(best, score[p]);
    return best;
}

TEST(the_best_blocks_come_back)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F32);
    struct recall_kv_options o = rig_options(&g, 16);
    struct rig r;
    float q[RIG_GROUP * RIG_DIM];
    double score[700];
    int32_t n_guest[RIG_LANES];
    rig_make(&r, &g, 700);
    rig_open(&r, &o, 1);
    rig_append(&r, 400);
    rig_evict(&r, keep_third); /* positions ascend within rounds, not between them */
    rig_append(&r, 300);
    rig_evict(&r, keep_ninth);
    for (int32_t i = 0; i < 12; i++) {
        r.tier->o.block = 1 + i * 3;
        rig_queries((uint64_t)i, 1, q);
        rig_recall(&r, q, 1, 60, n_guest);
        for (int32_t l = 0; l < RIG_LANES; l++) {
            double least = 1e9, most = -1e9;
            for (int32_t p = 0; p < 700; p++)
                score[p] = naive_score(q, r.key + (l * 700 + p) * RIG_DIM);
            for (int32_t p = 0; p < 700; p++) {
                double reach = naive_reach(&r, score, l, p, r.tier->o.block);
                if (!r.gone[l * 700 + p])
                    continue;
                if (rig_has_guest(&r, l, p))
                    least = fmin(least, reach);
                else
                    most = fmax(most, reach);
            }
            assert_int_equal(n_guest[l], 60);
            assert_true(least >= most - 1e-5);
        }
    }
    rig_free(&r);
}

TEST(a_needle_is_found)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    struct recall_kv_options o = rig_options(&g, 40);
    for (int32_t depth = 1; depth < 2000; depth += 190)
        for (o.score = RECALL_ATTENTION; o.score <= RECALL_BOUNDS; o.score++)
            rig_check_needle(&g, o, keep_third, depth);
}

/* ---- budgets ---- */

TEST(memory_is_kept_to_and_losses_are_counted)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    struct recall_kv_options o = rig_options(&g, 3);
    struct rig r;
    struct recall_counts counts;
    float q[RIG_GROUP * RIG_DIM];
    int32_t n_guest[RIG_LANES];
    rig_queries(2, 1, q);
    rig_make(&r, &g, 1000);
    o.ram--;
    o.ram -= 2 * rig_page_bytes(&g);
    assert_int_equal(recall_tier_create(&o, &r.model, NULL, 1, &r.tier, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "recall: ram: "));
    o.ram += 3 * rig_page_bytes(&g); /* a byte less than 4 pages of every lane */
    rig_open(&r, &o, 1);
    for (int32_t i = 0; i < 10; i++) {
        rig_append(&r, 100);
        rig_evict(&r, i % 2 == 0 ? keep_ninth : keep_third);
        recall_store_count(r.store, &counts);
        assert_int_equal(counts.n_stored + counts.n_lost, rig_count_gone(&r));
        assert_true(counts.ram_bytes <= o.ram && counts.file_bytes == 0);
    }
    /* Three pages of every lane, the last of which may be filling. */
    assert_true(counts.n_stored > RIG_LANES * 2 * RECALL_PAGE_LEN);
    assert_true(counts.n_stored <= RIG_LANES * 3 * RECALL_PAGE_LEN);
    assert_int_equal(counts.ram_bytes, 3 * rig_page_bytes(&g));
    rig_recall(&r, q, 1, 400, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        rig_check_guests(&r, l);
        assert_true(n_guest[l] <= 3 * RECALL_PAGE_LEN);
        /* The oldest evicted entries are lost: none of the first rounds' entries is left. */
        assert_true(kv_lane_pos(r.guests, l / RIG_HEADS, l % RIG_HEADS, 0) > 300);
    }
    rig_free(&r);
}

/* Two sequences share a budget: the older pages of either go first. */
TEST(stores_share_the_budget)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_options(&g, 4);
    struct rig r;
    struct recall_store *other;
    struct recall_counts a, b;
    rig_make(&r, &g, 256);
    rig_open(&r, &o, 1);
    assert_int_equal(recall_store_create(r.tier, &other, &err), PITH_OK);
    rig_append(&r, 256);
    for (int32_t l = 0; l < RIG_LANES; l++)
        for (int32_t s = 0; s < 128; s++)
            recall_store_remember_one(other, r.seq, l / RIG_HEADS, l % RIG_HEADS, s);
    rig_evict(&r, rig_keep_none);
    recall_store_count(r.store, &a);
    recall_store_count(other, &b);
    assert_int_equal(a.n_stored, 256 * RIG_LANES);
    assert_int_equal(b.n_stored, 0);
    assert_int_equal(b.n_lost, 128 * RIG_LANES);
    assert_int_equal(b.ram_bytes, 0);
    recall_store_free(other);
    rig_free(&r);
}

/* ---- forks and truncation ---- */

TEST(forks_go_their_own_ways)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_options(&g, 8);
    struct rig r;
    struct recall_store *fork;
    struct recall_counts a, b;
    float q[RIG_GROUP * RIG_DIM];
    int32_t n_guest[RIG_LANES];
    rig_queries(2, 1, q);
    rig_make(&r, &g, 400);
    rig_open(&r, &o, 1);
    rig_append(&r, 150);
    rig_evict(&r, keep_ninth);
    int64_t before = rig_count_gone(&r);
    assert_int_equal(recall_store_fork(r.store, &fork, &err), PITH_OK);
    rig_append(&r, 150);
    rig_evict(&r, keep_third);
    recall_store_count(r.store, &a);
    recall_store_count(fork, &b);
    assert_int_equal(a.n_stored, rig_count_gone(&r));
    assert_int_equal(b.n_stored, before);
    assert_int_equal(a.n_lost + b.n_lost, 0);
    /* Full pages are shared, the last one is not any more. */
    assert_int_equal(kv_lane_page(r.store->row[0].kv, 0, 0, 0),
                     kv_lane_page(fork->row[0].kv, 0, 0, 0));
    assert_int_not_equal(kv_lane_page(r.store->row[0].kv, 0, 0, 2),
                         kv_lane_page(fork->row[0].kv, 0, 0, 2));
    /* The fork gives the same answers as before. */
    struct recall_store *own = r.store;
    r.store = fork;
    rig_recall(&r, q, 1, 400, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        rig_check_guests(&r, l);
        assert_true(n_guest[l] > 0);
        assert_true(kv_lane_last(r.guests, l / RIG_HEADS, l % RIG_HEADS) < 150);
    }
    r.store = own;
    recall_store_free(fork);
    rig_recall(&r, q, 1, 400, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++)
        rig_check_guests(&r, l);
    rig_free(&r);
}

/* Pages that two rows share go out of both, and each row counts its own loss. */
TEST(shared_pages_go_together)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_options(&g, 3);
    struct rig r;
    struct recall_store *fork;
    struct recall_counts a, b;
    rig_make(&r, &g, 400);
    rig_open(&r, &o, 1);
    rig_append(&r, 150);
    rig_evict(&r, rig_keep_none);
    assert_int_equal(recall_store_fork(r.store, &fork, &err), PITH_OK);
    rig_append(&r, 150);
    rig_evict(&r, rig_keep_none);
    recall_store_count(r.store, &a);
    recall_store_count(fork, &b);
    assert_int_equal(a.n_stored + a.n_lost, 300 * RIG_LANES);
    assert_int_equal(b.n_stored + b.n_lost, 150 * RIG_LANES);
    assert_true(a.n_stored >= 2 * RECALL_PAGE_LEN * RIG_LANES);
    assert_true(b.n_lost >= 2 * RECALL_PAGE_LEN * RIG_LANES);
    recall_store_free(fork);
    rig_free(&r);
}

TEST(truncating_forgets)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_Q8_0);
    const struct recall_kv_options o = rig_options(&g, 16);
    struct rig r;
    struct recall_store *fork;
    struct recall_counts counts;
    float q[RIG_GROUP * RIG_DIM];
    int32_t n_guest[RIG_LANES];
    rig_queries(2, 1, q);
    rig_make(&r, &g, 300);
    rig_open(&r, &o, 1);
    rig_append(&r, 200);
    rig_evict(&r, keep_third);
    rig_append(&r, 100);
    rig_evict(&r, rig_keep_none);
    assert_int_equal(recall_store_fork(r.store, &fork, &err), PITH_OK);
    recall_store_truncate(r.store, 120);
    for (int32_t l = 0; l < RIG_LANES; l++)
        for (int32_t p = 120; p < 300; p++)
            r.gone[l * 300 + p] = false;
    recall_store_count(r.store, &counts);
    assert_int_equal(counts.n_stored, 120 * RIG_LANES);
    assert_int_equal(counts.n_lost, 0);
    rig_recall(&r, q, 1, 300, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        assert_int_equal(n_guest[l], 120);
        rig_check_guests(&r, l);
    }
    recall_store_count(fork, &counts);
    assert_int_equal(counts.n_stored, 300 * RIG_LANES);
    /* New entries at old positions. */
    kv_seq_truncate(r.seq, 0);
    r.n_token = 120;
    rig_append(&r, 180);
    rig_evict(&r, rig_keep_none);
    rig_recall(&r, q, 1, 300, n_guest);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        assert_int_equal(n_guest[l], 300);
        rig_check_guests(&r, l);
    }
    recall_store_free(fork);
    rig_free(&r);
}

/* Truncating shared pages takes room: where there is none, the oldest entries make it. */
TEST(truncating_makes_room_in_a_full_tier)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_options(&g, 5);
    struct rig r;
    struct recall_store *fork;
    struct recall_counts a, b;
    rig_make(&r, &g, 320);
    rig_open(&r, &o, 1);
    rig_append(&r, 240);
    rig_evict(&r, keep_third);
    rig_append(&r, 80);
    rig_evict(&r, rig_keep_none);
    assert_int_equal(recall_store_fork(r.store, &fork, &err), PITH_OK);
    recall_store_truncate(r.store, 100);
    recall_store_count(r.store, &a);
    recall_store_count(fork, &b);
    assert_int_equal(b.n_stored + b.n_lost, 320 * RIG_LANES);
    assert_true(a.n_stored <= 100 * RIG_LANES && a.n_stored + a.n_lost >= 100 * RIG_LANES);
    recall_store_free(fork);
    rig_free(&r);
}

/* ---- threads ---- */

struct parallel {
    struct rig *r;
    const float *q;
    int32_t n_guest[RIG_LANES];
};

static void remember_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct parallel *p = ctx;
    int32_t kept[400];
    for (int32_t l = (int32_t)begin; l < end; l++) {
        int32_t n = 0;
        for (int32_t s = 0; s < kv_lane_len(p->r->seq, l / RIG_HEADS, l % RIG_HEADS); s++)
            if ((s + l) % 5 == 0)
                kept[n++] = s;
        recall_store_remember(p->r->store, p->r->seq, l / RIG_HEADS, l % RIG_HEADS, kept, n,
                              thread);
    }
}

static void choose_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct parallel *p = ctx;
    for (int32_t l = (int32_t)begin; l < end; l++) {
        const struct recall_query query = {.layer = l / RIG_HEADS,
                                           .head = l % RIG_HEADS,
                                           .n_tok = 5,
                                           .n_group = RIG_GROUP,
                                           .pos0 = 400,
                                           .q = p->q,
                                           .q_stride = RIG_GROUP * RIG_DIM};
        p->n_guest[l] = recall_store_choose(p->r->store, &query, p->r->guests, 70, thread);
    }
}

/* A digest of all guests, after rounds and recalls with n_thread threads. */
static uint64_t run_with_threads(int32_t n_thread)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const struct recall_kv_options o = rig_options(&g, 3);
    struct rig r;
    float q[5 * RIG_GROUP * RIG_DIM], row[RIG_DIM];
    uint64_t digest = 1;
    rig_queries(9, 5, q);
    rig_make(&r, &g, 400);
    rig_open(&r, &o, n_thread);
    assert_int_equal(kv_seq_reserve(r.guests, 70, &err), PITH_OK);
    struct parallel p = {.r = &r, .q = q};
    for (int32_t i = 0; i < 4; i++) {
        rig_append(&r, 100);
        pi_parallel_items(n_thread, RIG_LANES, remember_lanes, &p);
        pi_parallel_items(n_thread, RIG_LANES, choose_lanes, &p);
        for (int32_t l = 0; l < RIG_LANES; l++)
            for (int32_t s = 0; s < p.n_guest[l]; s++) {
                kv_lane_value(r.guests, l / RIG_HEADS, l % RIG_HEADS, s, row);
                digest =
                    digest * 31 + (uint64_t)kv_lane_pos(r.guests, l / RIG_HEADS, l % RIG_HEADS, s);
                for (int32_t d = 0; d < RIG_DIM; d++)
                    digest = digest * 31 + (uint64_t)(int64_t)(row[d] * 1e6f);
            }
    }
    rig_free(&r);
    return digest;
}

TEST(threads_change_nothing)
{
    uint64_t one = run_with_threads(1);
    assert_true(run_with_threads(2) == one);
    assert_true(run_with_threads(4) == one);
}

/* ---- allocations that fail ---- */

TEST(no_memory_is_said)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    struct recall_kv_options o = rig_options(&g, 4);
    struct recall_tier *tier = NULL;
    struct recall_store *store = NULL, *fork = NULL;
    struct rig r;
    char path[] = "/tmp/pith-recall-XXXXXX";
    pith_status status = PITH_NOMEM;
    int32_t n = 0;
    close(mkstemp(path));
    snprintf(o.file, sizeof(o.file), "%s", path);
    o.size = 1 << 20;
    rig_make(&r, &g, 100);
    while (status != PITH_OK) {
        err = (pith_error){0};
        pi_mem_fail_at(++n, false);
        status = recall_tier_create(&o, &r.model, NULL, 2, &tier, &err);
        if (status == PITH_OK)
            status = recall_store_create(tier, &store, &err);
        if (status == PITH_OK)
            status = recall_store_fork(store, &fork, &err);
        if (status == PITH_OK)
            status = recall_tier_reserve(tier, 32, &err);
        pi_mem_fail_at(0, false);
        assert_true(status == PITH_OK || (status == PITH_NOMEM && err.message[0] != '\0'));
        recall_store_free(fork);
        recall_store_free(store);
        recall_tier_free(tier);
        tier = NULL;
        store = fork = NULL;
        for (int tag = 0; tag < PI_MEM_N_TAG; tag++)
            assert_true(pi_mem_used((enum pi_mem_tag)tag) >= r.used[tag]);
    }
    assert_true(n > 20);
    rig_free(&r);
    unlink(path);
}
