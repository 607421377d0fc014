/*
 * test_kv_threads.c - operations that kv.h allows in several threads at once give the results of
 * one thread. These are packing lanes, appending to different lanes, and attending to them while
 * pages are shared, folded and closed. For scripts/test-tsan.sh, too.
 */
#include "base/threads.h"
#include "kv_by_page.h"
#include "kv_check.h"
#include "testing.h"

enum { N_HEAD = 6, N_LANE = 2 * N_HEAD, N_TOKEN = 150, DIM = 32, N_ROUND = 20 };

static const struct kv_geometry shape = {
    2,   N_HEAD, DIM, DIM, 16, KV_TYPE_F16, KV_TYPE_Q8_0, 0, 0, {KV_TYPE_F32, 1, 0},
    {0}, NULL,   0,   0,   0,  NULL,        {0}};

/* Two sequences that share, fold and close, and the work to do on the lanes of one. */
struct work {
    struct kv_cache *cache;
    struct kv_seq *seq, *other;
    struct kv_cut cut[N_LANE];
    int32_t slots[N_LANE][2 * N_TOKEN];
    float out[N_LANE][4 * DIM];
    void *scratch[N_LANE];
    int32_t pos0; /* of the next token */
    int32_t n_shared, n_folded;
};

static void work_open(struct work *w, uint64_t seed)
{
    uint64_t rng = seed;
    *w = (struct work){.cache = kv_check_cache(&shape, 600), .pos0 = N_TOKEN};
    kv_cache_set_marks(w->cache, 1, true);
    assert_int_equal(kv_seq_create(w->cache, &w->seq, NULL), PITH_OK);
    for (int32_t pos = 0, n; pos < N_TOKEN; pos += n) {
        n = (int32_t)pi_min(N_TOKEN - pos, 1 + (int32_t)rng_below(&rng, 24));
        assert_int_equal(kv_check_append(w->seq, seed, pos, n), PITH_OK);
        pages_close(w->seq);
    }
    assert_int_equal(kv_seq_fork(w->seq, &w->other, NULL), PITH_OK);
    for (int32_t i = 0; i < 6 * N_LANE; i++) {
        int32_t l = i % N_LANE, n_run = kv_lane_runs(w->seq, l / N_HEAD, l % N_HEAD);
        int32_t to = 1 + (int32_t)rng_below(&rng, (uint64_t)n_run - 1);
        int32_t from = (int32_t)rng_below(&rng, (uint64_t)to);
        assert_int_equal(kv_seq_reserve_runs(w->seq, 16, NULL), PITH_OK);
        w->n_shared +=
            page_share(w->seq, l / N_HEAD, l % N_HEAD, to, w->other, from, 0, NULL) == PITH_OK;
        if (i % 2)
            w->n_folded += page_fold(w->seq, l / N_HEAD, l % N_HEAD, to, from, NULL) == PITH_OK;
    }
    for (int32_t l = 0; l < N_LANE; l++) {
        int32_t n = 0;
        for (int32_t s = 0; s < kv_lane_len(w->seq, l / N_HEAD, l % N_HEAD); s++)
            if (rng_below(&rng, 4) > 0)
                w->slots[l][n++] = s;
        w->cut[l] = (struct kv_cut){l / N_HEAD, l % N_HEAD, w->slots[l], n};
        w->scratch[l] = test_malloc(kv_attend_scratch_bytes(&shape, 4));
    }
}

static void work_close(struct work *w)
{
    for (int32_t l = 0; l < N_LANE; l++)
        test_free(w->scratch[l]);
    kv_seq_free(w->seq);
    kv_seq_free(w->other);
    kv_cache_free(w->cache);
}

/* A token's pass over each lane: an entry, then attention, the other sequence as guests. */
static void pass(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct work *w = ctx;
    float q[4 * DIM], k[DIM], v[DIM];
    (void)thread;
    for (int64_t l = begin; l < end; l++) {
        kv_check_row((uint64_t)l, q, 4 * DIM);
        kv_check_row((uint64_t)l + 100, k, DIM);
        kv_check_row((uint64_t)l + 200, v, DIM);
        kv_seq_append(w->seq, (int32_t)l / N_HEAD, (int32_t)l % N_HEAD, w->pos0, 1, k, 0, v, 0);
        struct kv_attend_job job = {.seq = w->seq,
                                    .guests = w->other,
                                    .layer = (int32_t)l / N_HEAD,
                                    .head = (int32_t)l % N_HEAD,
                                    .n_tok = 1,
                                    .n_group = 4,
                                    .pos0 = w->pos0,
                                    .q = q,
                                    .scale = 0.2f,
                                    .out = w->out[l]};
        kv_attend(&job, w->scratch[l]);
    }
}

/* Passes, packing, passes. */
static void work_do(struct work *w, int32_t n_thread)
{
    for (int32_t i = 0; i < 20; i++) {
        assert_int_equal(kv_seq_reserve(w->seq, 1, NULL), PITH_OK);
        pi_parallel_items(n_thread, N_LANE, pass, w);
        w->pos0++;
        if (i == 10)
            assert_int_equal(kv_seq_compact_lanes(w->seq, w->cut, N_LANE, n_thread, NULL), PITH_OK);
        if (i % 7 == 3)
            pages_close(w->seq);
    }
}

TEST(threads_give_what_one_gives)
{
    for (uint64_t seed = 1; seed <= N_ROUND; seed++) {
        static struct work one, many;
        work_open(&one, seed);
        work_open(&many, seed);
        work_do(&one, 1);
        work_do(&many, 4);
        assert_true(one.n_shared > N_LANE && one.n_folded > 0);
        assert_memory_equal(one.out, many.out, sizeof(one.out));
        assert_true(kv_check_digest(one.cache) == kv_check_digest(many.cache));
        kv_check_same(one.seq, many.seq);
        work_close(&one);
        work_close(&many);
    }
}
