/*
 * test_recall_attend.c - recall's score `attention`, computed again in double from the entries of
 * the store and the lane: the weight that the queries would give to each. Also the bounds of the
 * file's pages. A needle comes back from memory and from the file; one that the lane still has
 * brings nothing back. The guests are the same for every way to choose them.
 */
#define _DEFAULT_SOURCE /* mkstemp */
#include <float.h>
#include <math.h>

#include "base/threads.h"
#include "kv_clear.h"
#include "near.h"
#include "recall_rig.h"
#include "rounded.h"

enum { Q_MOST = 60, ENTRIES = 400 };

static bool keep_third(int32_t lane, int32_t pos)
{
    return (pos + lane) % 3 == 0;
}

static bool keep_ninth(int32_t lane, int32_t pos)
{
    return (pos + lane) % 9 == 0;
}

/* ---- scores ---- */

/* Adds the scaled logits of a row over a lane to its maximum and sum: of entries at positions up to
   `last`. x [length], -INFINITY behind it; NULL: not wanted. */
static void naive_row(const struct kv_seq *kv, int32_t layer, int32_t head, const float *q,
                      int32_t last, double *max, double *sum, double *x)
{
    float key[RIG_DIM];
    double met[RIG_DIM];
    const struct kv_geometry *g = kv_seq_geometry(kv);
    /* Queries meet q8_0 and bf16 as they are where the lane's device takes floats. */
    bool as_is = kv_layer_device(g, layer)->floats;
    query_met(as_is ? KV_TYPE_F32 : g->type_k, q, RIG_DIM, met);
    for (int32_t s = 0; s < kv_lane_len(kv, layer, head); s++) {
        double dot = 0.0;
        bool seen = kv_lane_pos(kv, layer, head, s) <= last;
        kv_lane_key(kv, layer, head, s, key);
        for (int32_t d = 0; d < RIG_DIM; d++)
            dot += met[d] * (double)key[d] * 0.125;
        if (x != NULL)
            x[s] = seen ? dot : -INFINITY;
        if (!seen)
            continue;
        double both = fmax(*max, dot);
        *sum = *sum * exp(*max - both) + exp(dot - both);
        *max = both;
    }
}

/* The scores of the entries of `scored`, where M and L are of the lane's own and of `stored`. */
static void naive_scores(const struct recall_query *query, int32_t combine,
                         const struct kv_seq *stored, const struct kv_seq *scored, double *out)
{
    int32_t n = kv_lane_len(scored, 0, 0);
    memset(out, 0, (size_t)n * sizeof(*out));
    for (int32_t t = 0; t < query->n_tok; t++)
        for (int32_t g = 0; g < query->n_group; g++) {
            const float *q = query->q + (size_t)t * query->q_stride + (size_t)g * RIG_DIM;
            int32_t last = query->pos0 + t;
            double max = -INFINITY, sum = 0.0, other = -INFINITY, unused = 0.0, x[ENTRIES];
            if (query->own != NULL)
                naive_row(query->own, query->layer, query->head, q, last, &max, &sum, NULL);
            naive_row(stored, 0, 0, q, last, &max, &sum, NULL);
            naive_row(scored, 0, 0, q, last, &other, &unused, x);
            for (int32_t s = 0; s < n; s++) {
                double weight = exp(x[s] - max) / sum;
                out[s] = combine == RECALL_SUM ? out[s] + weight : fmax(out[s], weight);
            }
        }
}

static void expect_scores(const struct recall_scorer *scorer, const struct kv_seq *stored,
                          const struct kv_seq *scored, const float *got)
{
    const struct recall_query *query = scorer->query;
    double want[ENTRIES];
    naive_scores(query, scorer->tier->o.combine, stored, scored, want);
    for (int32_t s = 0; s < kv_lane_len(scored, 0, 0); s++)
        /* A device that rounds makes maxima and sums of both lanes, and weights. */
        if (!(fabs((double)got[s] - want[s]) <= (1e-4 + 3 * attention_error()) * want[s] + 1e-9))
            fail_msg("entry %d, %d tokens: %g is not %g", s, query->n_tok, (double)got[s], want[s]);
}

/* The queries of a lane in the tests: the last n_tok of the sequence's tokens, with causal
   attention to the lane's own entries. */
static struct recall_query query_of(const struct rig *r, int32_t lane, const float *q,
                                    int32_t n_tok, bool own)
{
    return (struct recall_query){.layer = lane / RIG_HEADS,
                                 .head = lane % RIG_HEADS,
                                 .n_tok = n_tok,
                                 .n_group = RIG_GROUP,
                                 .pos0 = r->n_token - n_tok,
                                 .q = q,
                                 .q_stride = RIG_GROUP * RIG_DIM,
                                 .own = own ? r->seq : NULL};
}

static void check_scores(enum kv_type type, int32_t combine, bool stored)
{
    const struct kv_geometry g = rig_geometry(type);
    struct recall_kv_options o = rig_options(&g, 8);
    static const int32_t n_toks[] = {1, 5, 24, Q_MOST}; /* the last are more than a tile */
    static float q[Q_MOST * RIG_GROUP * RIG_DIM];
    struct rig r;
    float got[ENTRIES];
    o.score = RECALL_ATTENTION;
    o.combine = combine;
    rig_queries(9, Q_MOST, q);
    rig_make(&r, &g, ENTRIES);
    rig_open(&r, &o, 1);
    rig_append(&r, 150);
    if (stored)
        rig_evict(&r, keep_third); /* positions ascend within rounds, not between them */
    rig_append(&r, 150);
    if (stored)
        rig_evict(&r, keep_ninth);
    rig_append(&r, Q_MOST);
    for (size_t i = 0; i < PI_LEN(n_toks) * 2; i++)
        for (int32_t l = 0; l < RIG_LANES; l++) {
            const struct recall_query query = query_of(&r, l, q, n_toks[i / 2], i % 2 == 0);
            const struct kv_seq *row = r.store->row[l].kv;
            struct recall_scorer s;
            recall_scorer_start(r.tier, &query, r.tier->work, &s);
            recall_scorer_run(&s, row, true, got);
            assert_int_equal(kv_lane_len(row, 0, 0) > 0, stored);
            if (((int32_t)i + l) % TEST_STRIDE == 0) /* what is slow is the test's own decoding */
                expect_scores(&s, row, row, got);
        }
    rig_free(&r);
}

TEST(scores_are_weights)
{
    for (int type = 0; type < KV_N_TYPE; type++) {
        check_scores((enum kv_type)type, RECALL_MAX, true);
        check_scores((enum kv_type)type, RECALL_SUM, true);
        check_scores((enum kv_type)type, RECALL_MAX, false);
    }
}

/* Scores complement the lane's own weights: in each row, the scores of all stored entries and the
   lane's own weights sum to one. */
TEST(weights_sum_to_one)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F32);
    struct recall_kv_options o = rig_options(&g, 8);
    struct rig r;
    float q[5 * RIG_GROUP * RIG_DIM], got[ENTRIES];
    double sum[2] = {0.0, 0.0};
    o.score = RECALL_ATTENTION;
    o.combine = RECALL_SUM;
    rig_queries(3, 5, q);
    rig_make(&r, &g, ENTRIES);
    rig_open(&r, &o, 1);
    rig_append(&r, 200);
    rig_evict(&r, keep_third);
    for (int32_t own = 0; own < 2; own++) {
        const struct recall_query query = query_of(&r, 1, q, 5, own != 0);
        struct recall_scorer s;
        recall_scorer_start(r.tier, &query, r.tier->work, &s);
        recall_scorer_run(&s, r.store->row[1].kv, true, got);
        for (int32_t i = 0; i < kv_lane_len(r.store->row[1].kv, 0, 0); i++)
            sum[own] += (double)got[i];
    }
    /* Alone the stored have all of the weight; beside a third of the entries about two thirds. */
    double last = (double)kv_lane_len(r.store->row[1].kv, 0, 0) / 200.0 * 5 * RIG_GROUP;
    assert_true(sum[0] < 5 * RIG_GROUP + 1e-4 && sum[0] > 5 * RIG_GROUP - 1e-4);
    assert_true(fabs(sum[1] - last) < 0.1 * last);
    rig_free(&r);
}

/* ---- the file ---- */

/* Reads every page of a shelf. Its entries score as the formula says, and never above the page's
   bound; where bounds are tight, not much below. */
static void check_pages(struct rig *r, struct recall_scorer *s, int32_t lane, bool tight)
{
    const struct recall_shelf *shelf = &r->tier->shelf[lane];
    struct kv_seq *staging = r->tier->work->staging[shelf->kind].kv;
    uint8_t *buffer = test_malloc(RECALL_HEAD_SIZE + shelf->page_bytes);
    struct recall_head head;
    float got[RECALL_PAGE_LEN];
    for (int32_t p = 0; p < shelf->n_fresh; p++) {
        float promise = r->tier->work->promise[p], best = 0.0f;
        assert_true(recall_file_read(r->tier, shelf, p, true, &head, buffer));
        kv_lane_put_page(staging, 0, 0, buffer + RECALL_HEAD_SIZE, head.n);
        recall_scorer_run(s, staging, false, got);
        for (int32_t e = 0; e < head.n; e++)
            best = fmaxf(best, got[e]);
        assert_true(promise < FLT_MAX && best <= promise * 1.0001f);
        assert_true(!tight || promise <= best * 1.02f);
        expect_scores(s, r->store->row[lane].kv, staging, got);
        kv_lane_clear(staging, 0, 0);
    }
    test_free(buffer);
}

/* Appends a page of the tier to every lane, of keys that differ by so little. */
static void append_alike(struct rig *r, float spread)
{
    float base[RIG_DIM], k[RIG_DIM], v[RIG_DIM];
    assert_int_equal(kv_seq_reserve(r->seq, RECALL_PAGE_LEN, &err), PITH_OK);
    for (int32_t d = 0; d < RIG_DIM; d++)
        base[d] = rng_float(&r->rng);
    for (int32_t t = 0; t < RECALL_PAGE_LEN; t++, r->n_token++)
        for (int32_t l = 0; l < RIG_LANES; l++) {
            for (int32_t d = 0; d < RIG_DIM; d++) {
                k[d] = base[d] + spread * rng_float(&r->rng);
                v[d] = rng_float(&r->rng);
            }
            kv_seq_append(r->seq, l / RIG_HEADS, l % RIG_HEADS, r->n_token, 1, k, 0, v, 0);
        }
}

static void check_promises(enum kv_type type, uint64_t seed, int32_t combine, float spread,
                           bool own)
{
    static float q[30 * RIG_GROUP * RIG_DIM];
    const struct kv_geometry g = rig_geometry(type);
    struct recall_kv_options o = rig_file_options(&g, 2, 40);
    o.score = RECALL_ATTENTION;
    o.combine = combine;
    bool alike = spread < 1;
    struct rig r;
    float got[ENTRIES];
    rig_queries(seed, 30, q);
    rig_make(&r, &g, 900);
    rig_open(&r, &o, 1);
    for (int32_t n = 0; n < 12; n++) {
        if (alike)
            append_alike(&r, spread);
        else
            rig_append(&r, RECALL_PAGE_LEN);
        rig_evict(&r, alike ? rig_keep_none : keep_ninth);
    }
    rig_append(&r, 30);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        const struct recall_query query = query_of(&r, l, q, 30, own);
        struct recall_scorer s;
        recall_scorer_start(r.tier, &query, r.tier->work, &s);
        recall_scorer_run(&s, r.store->row[l].kv, true, got);
        recall_scorer_promise(&s, &r.tier->shelf[l]);
        assert_true(r.tier->shelf[l].n_fresh >= 8);
        check_pages(&r, &s, l, alike && type == KV_TYPE_F32);
    }
    rig_free(&r);
}

TEST_WITH(rig_make_path, rig_remove_path, promises_are_kept)
{
    static const enum kv_type types[] = {KV_TYPE_F32, KV_TYPE_F16, KV_TYPE_Q8_0, KV_TYPE_TURBO3};
    for (size_t i = 0; i < 8 * PI_LEN(types); i += 3 + TEST_STRIDE / 2) /* all types and forms */
        check_promises(types[i / 8], 11, i / 4 % 2 == 0 ? RECALL_MAX : RECALL_SUM,
                       i % 2 == 0 ? 0.001f : 1.0f, i / 2 % 2 == 0);
}

/* Queries that attention rounds or codes meet bounds as they meet keys. Bounds of keys that are
   the same leave no room for a difference. */
TEST_WITH(rig_make_path, rig_remove_path, promises_are_of_what_keys_meet)
{
    static const enum kv_type types[] = {KV_TYPE_BF16, KV_TYPE_Q8_0};
    for (uint64_t i = 0; i < 8 * PI_LEN(types); i += 3 + TEST_STRIDE / 2)
        check_promises(types[i / 8], 20 + i % 8, RECALL_MAX, 0.0f, false);
}

/* ---- needles ---- */

static void recall(struct rig *r, const float *q, int32_t n_tok, bool own, int32_t n_most)
{
    clear_lanes(r->guests, RIG_LANES / RIG_HEADS, RIG_HEADS);
    assert_int_equal(kv_seq_reserve(r->guests, n_most, &err), PITH_OK);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        const struct recall_query query = query_of(r, l, q, n_tok, own);
        recall_store_choose(r->store, &query, r->guests, n_most, 0);
    }
}

/* Appends keys that have large numbers in common, as models with biases make them. */
static void append_biased(struct rig *r, int32_t n)
{
    float k[RIG_DIM], v[RIG_DIM];
    assert_int_equal(kv_seq_reserve(r->seq, n, &err), PITH_OK);
    for (int32_t t = 0; t < n; t++, r->n_token++)
        for (int32_t l = 0; l < RIG_LANES; l++) {
            for (int32_t d = 0; d < RIG_DIM; d++) {
                k[d] = rng_float(&r->rng) + (d == 5 ? 90.0f : d == 40 ? -60.0f : 0.0f);
                v[d] = rng_float(&r->rng);
            }
            kv_seq_append(r->seq, l / RIG_HEADS, l % RIG_HEADS, r->n_token, 1, k, 0, v, 0);
        }
}

/* The mean square of the difference between guests' keys and the evicted keys. */
static double key_error(const struct rig *r, int32_t lane)
{
    int32_t layer = lane / RIG_HEADS, head = lane % RIG_HEADS;
    int32_t n = kv_lane_len(r->guests, layer, head);
    double sum = 0.0;
    for (int32_t s = 0; s < n; s++) {
        float key[RIG_DIM];
        int32_t pos = kv_lane_pos(r->guests, layer, head, s);
        const float *was =
            r->key + ((size_t)lane * (size_t)r->capacity + (size_t)pos) * (size_t)RIG_DIM;
        kv_lane_key(r->guests, layer, head, s, key);
        for (int32_t d = 0; d < RIG_DIM; d++)
            sum += pow((double)key[d] - (double)was[d], 2.0);
    }
    return sum / (n * RIG_DIM);
}

/* Scores by position, of guests as they came back: they are all that was evicted, or what memory
   has of it. Returns the largest difference from the scorer's result for the row in memory, as a
   share of the largest weight. */
static double score_error(struct rig *r, const struct recall_scorer *s, const float *got,
                          double *want)
{
    const struct recall_query *query = s->query;
    const struct kv_seq *row = r->store->row[0].kv;
    static double x[1000];
    double error = 0.0, best = 0.0;
    memset(want, 0, (size_t)r->capacity * sizeof(*want));
    for (int32_t t = 0; t < query->n_tok; t++)
        for (int32_t g = 0; g < query->n_group; g++) {
            const float *q = query->q + (size_t)t * query->q_stride + (size_t)g * RIG_DIM;
            double max = -INFINITY, sum = 0.0, most = -INFINITY, none = 0.0;
            naive_row(r->seq, 0, 0, q, query->pos0 + t, &max, &sum, NULL);
            naive_row(r->guests, 0, 0, q, query->pos0 + t, &most, &none, x);
            for (int32_t i = 0; i < kv_lane_len(row, 0, 0); i++) {
                int32_t e = 0;
                while (kv_lane_pos(r->guests, 0, 0, e) != kv_lane_pos(row, 0, 0, i))
                    e++;
                double both = fmax(max, x[e]);
                sum = sum * exp(max - both) + exp(x[e] - both);
                max = both;
            }
            for (int32_t e = 0; e < kv_lane_len(r->guests, 0, 0); e++) {
                double *at = &want[kv_lane_pos(r->guests, 0, 0, e)];
                *at = fmax(*at, exp(x[e] - max) / sum);
            }
        }
    for (int32_t i = 0; i < kv_lane_len(row, 0, 0); i++) {
        best = fmax(best, want[kv_lane_pos(row, 0, 0, i)]);
        error = fmax(error, fabs((double)got[i] - want[kv_lane_pos(row, 0, 0, i)]));
    }
    return error / best;
}

/* Keys of 4 bits keep their differences, however large their common part is, in memory, in the file
   and in a fork. Scores and bounds are for whole keys. */
static void check_centre(bool in_file)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F32);
    struct recall_kv_options o = in_file ? rig_file_options(&g, 1, 40) : rig_options(&g, 20);
    static float q[5 * RIG_GROUP * RIG_DIM], got[1000];
    static double want[1000];
    struct rig r;
    o.score = RECALL_ATTENTION;
    o.type = 1 + KV_TYPE_TURBO4;
    rig_queries(31, 5, q);
    rig_make(&r, &g, 1000);
    rig_open(&r, &o, 1);
    append_biased(&r, 300);
    rig_evict(&r, keep_third);
    append_biased(&r, 300);
    rig_evict(&r, keep_ninth);
    recall(&r, q, 5, true, 600);
    assert_int_equal(kv_lane_len(r.guests, 0, 0), 600 - kv_lane_len(r.seq, 0, 0));
    for (int32_t l = 0; l < RIG_LANES; l++)
        assert_true(key_error(&r, l) < 0.02);
    const struct recall_query query = query_of(&r, 0, q, 5, true);
    struct recall_scorer s;
    recall_scorer_start(r.tier, &query, r.tier->work, &s);
    s.centre = recall_row_centre(&r.store->row[0]);
    assert_non_null(s.centre);
    recall_scorer_run(&s, r.store->row[0].kv, true, got);
    assert_true(score_error(&r, &s, got, want) < 1e-3);
    recall_scorer_promise(&s, &r.tier->shelf[0]);
    assert_true((r.tier->shelf[0].n_fresh > 0) == in_file);
    for (int32_t p = 0; p < r.tier->shelf[0].n_fresh; p++) {
        uint8_t bytes[RECALL_HEAD_SIZE];
        struct recall_head head;
        assert_true(recall_file_read(r.tier, &r.tier->shelf[0], p, false, &head, bytes));
        for (int32_t e = 0; e < head.n; e++)
            assert_true(want[head.pos[e]] <= (double)r.tier->work->promise[p] * 1.001);
    }
    struct recall_store *first = r.store;
    assert_int_equal(recall_store_fork(first, &r.store, &err), PITH_OK);
    recall_store_free(first);
    recall(&r, q, 5, true, 600);
    assert_true(key_error(&r, 3) < 0.02);
    recall_store_truncate(r.store, 0); /* the next entries have a centre of their own */
    assert_null(recall_row_centre(&r.store->row[0]));
    rig_free(&r);
}

TEST_WITH(rig_make_path, rig_remove_path, what_keys_have_in_common_takes_no_bits)
{
    check_centre(false);
    check_centre(true);
}

/* A planted key that a token of the question looks for brings itself and the entries after it. In
   the file there are more pages than a recall reads. */
static void check_needle(int32_t depth, bool in_file)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F16);
    const int32_t n = in_file ? 6000 : 2000, lane = depth % RIG_LANES;
    struct recall_kv_options o = in_file ? rig_file_options(&g, 2, 100) : rig_options(&g, 40);
    float q[8 * RIG_GROUP * RIG_DIM], key[RIG_DIM];
    struct rig r;
    o.score = RECALL_ATTENTION;
    o.fade = 6;
    rig_queries((uint64_t)depth + 7, 8, q);
    for (int32_t d = 0; d < RIG_DIM; d++)
        key[d] = q[3 * RIG_GROUP * RIG_DIM + d] * 3.0f;
    rig_make(&r, &g, n);
    rig_open(&r, &o, 1);
    for (int32_t i = 0; i < n; i += 250) {
        rig_append_key(&r, 250, depth, lane, key);
        rig_evict(&r, rig_keep_none);
    }
    if (in_file) /* the last two pages are in memory */
        assert_true(r.store->row[lane].n_ref > 2 * RECALL_FILE_LEAST);
    recall(&r, q, 8, true, 16);
    rig_check_guests(&r, lane);
    for (int32_t p = depth; p < depth + 9 && p < n; p++)
        if (!rig_has_guest(&r, lane, p))
            fail_msg("a needle at %d of %d: %d did not come back", depth, n, p);
    rig_free(&r);
}

TEST_WITH(rig_make_path, rig_remove_path, a_needle_is_found)
{
    for (int32_t depth = 1; depth < 2000; depth += 190 * TEST_STRIDE)
        check_needle(depth, false);
    for (int32_t depth = 3; depth < 6000; depth += 1150 * TEST_STRIDE)
        check_needle(depth, true);
}

static bool keep_needle(int32_t lane, int32_t pos)
{
    (void)lane;
    return pos == 700;
}

/* Two needles of two questions, one of which is in the lane still: only the other asks. */
TEST(what_the_lane_has_is_not_asked_for)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F32);
    struct recall_kv_options o = rig_options(&g, 20);
    float q[2 * RIG_GROUP * RIG_DIM], key[RIG_DIM], got[2][1000];
    struct rig r;
    o.score = RECALL_ATTENTION;
    o.combine = RECALL_SUM;
    rig_queries(5, 2, q);
    for (int32_t d = 0; d < RIG_DIM; d++) /* one question: all rows look for the same */
        for (int32_t row = 1; row < 2 * RIG_GROUP; row++)
            q[row * RIG_DIM + d] = q[d];
    rig_make(&r, &g, 1000);
    rig_open(&r, &o, 1);
    for (int32_t d = 0; d < RIG_DIM; d++)
        key[d] = 3.0f * q[d];
    rig_append_key(&r, 500, 300, 0, key); /* stored */
    for (int32_t d = 0; d < RIG_DIM; d++)
        key[d] = 6.0f * q[d];
    rig_append_key(&r, 500, 700, 0, key); /* stays, and answers better */
    rig_evict(&r, keep_needle);
    for (int32_t own = 0; own < 2; own++) {
        const struct recall_query query = query_of(&r, 0, q, 2, own != 0);
        struct recall_scorer s;
        recall_scorer_start(r.tier, &query, r.tier->work, &s);
        recall_scorer_run(&s, r.store->row[0].kv, true, got[own]);
    }
    assert_true(got[0][300] > 1.0f);  /* the sum over 4 rows: the best match among the stored
                                         entries */
    assert_true(got[1][300] < 0.05f); /* beside the lane's it is nothing */
    rig_free(&r);
}

/* Random keys. All rows weakly match the keys at every 30th position, and a single row matches one
   key strongly. */
static void append_for_all_and_one(struct rig *r, const float *all, const float *one, int32_t at)
{
    float k[RIG_DIM], v[RIG_DIM];
    assert_int_equal(kv_seq_reserve(r->seq, 300, &err), PITH_OK);
    for (int32_t t = 0; t < 300; t++, r->n_token++)
        for (int32_t l = 0; l < RIG_LANES; l++) {
            for (int32_t d = 0; d < RIG_DIM; d++) {
                v[d] = rng_float(&r->rng);
                k[d] = t == at ? one[d] : (t % 30 == 0 ? all[d] : 0.0f) + 0.1f * v[d];
            }
            kv_seq_append(r->seq, l / RIG_HEADS, l % RIG_HEADS, r->n_token, 1, k, 0, v, 0);
        }
}

/* An entry that one query wants with all its weight comes back before entries that each want a
   little. A sum of many small weights would be larger and hide it. */
static bool finds_what_one_wants(int32_t combine)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F32);
    struct recall_kv_options o = rig_options(&g, 8);
    float q[30 * RIG_GROUP * RIG_DIM] = {0}, all[RIG_DIM] = {0}, one[RIG_DIM] = {0};
    struct rig r;
    o.score = RECALL_ATTENTION;
    o.combine = combine;
    o.block = 1;
    for (int32_t row = 0; row < 30 * RIG_GROUP; row++)
        q[row * RIG_DIM + (row == 7 ? 1 : 0)] = 8.0f;
    all[0] = one[1] = 8.0f;
    rig_make(&r, &g, ENTRIES);
    rig_open(&r, &o, 1);
    append_for_all_and_one(&r, all, one, 100);
    rig_evict(&r, rig_keep_none);
    rig_append(&r, 30);
    recall(&r, q, 30, true, 8);
    bool found = rig_has_guest(&r, 2, 100);
    rig_free(&r);
    return found;
}

TEST(one_query_is_enough)
{
    assert_true(finds_what_one_wants(RECALL_MAX));
    assert_false(finds_what_one_wants(RECALL_SUM));
}

/* The best claim of the evicted entries on an entry: halved over `fade` positions after them, and
   over half as many before. */
static double naive_faded(const struct rig *r, const double *score, int32_t pos, double fade)
{
    double best = 0.0;
    for (int32_t p = 0; p < r->n_token; p++)
        best = fmax(best, score[p] * exp2(p <= pos ? (p - pos) / fade : 2.0 * (pos - p) / fade));
    return best;
}

TEST(claims_fade)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F32);
    struct recall_kv_options o = rig_options(&g, 8);
    float q[5 * RIG_GROUP * RIG_DIM], got[ENTRIES];
    struct rig r;
    o.score = RECALL_ATTENTION;
    rig_make(&r, &g, ENTRIES);
    rig_open(&r, &o, 1);
    rig_append(&r, 150);
    rig_evict(&r, keep_ninth);
    rig_append(&r, 150);
    rig_evict(&r, keep_third);
    for (int32_t i = 0; i < 8; i++) {
        r.tier->o.fade = 1 + i * 3;
        rig_queries((uint64_t)i, 5, q);
        recall(&r, q, 5, true, 60);
        for (int32_t l = 0; l < RIG_LANES; l++) {
            const struct recall_query query = query_of(&r, l, q, 5, true);
            const struct kv_seq *row = r.store->row[l].kv;
            double score[ENTRIES] = {0}, least = INFINITY, most = 0.0;
            struct recall_scorer s;
            recall_scorer_start(r.tier, &query, r.tier->work, &s);
            recall_scorer_run(&s, row, true, got);
            for (int32_t e = 0; e < kv_lane_len(row, 0, 0); e++)
                score[kv_lane_pos(row, 0, 0, e)] = (double)got[e];
            for (int32_t e = 0; e < kv_lane_len(row, 0, 0); e++) {
                int32_t p = kv_lane_pos(row, 0, 0, e);
                double reach = naive_faded(&r, score, p, r.tier->o.fade);
                if (rig_has_guest(&r, l, p))
                    least = fmin(least, reach);
                else
                    most = fmax(most, reach);
            }
            assert_true(least >= most * (1.0 - 1e-4));
        }
    }
    rig_free(&r);
}

/* ---- the missed share ---- */

/* Guests reduce it by their own share. */
TEST(missed_is_what_the_evicted_would_get)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_F32);
    struct recall_kv_options o = rig_options(&g, 8);
    float q[RIG_GROUP * RIG_DIM], got[ENTRIES];
    struct rig r;
    o.score = RECALL_ATTENTION;
    o.combine = RECALL_SUM;
    rig_queries(4, 1, q);
    rig_make(&r, &g, ENTRIES);
    rig_open(&r, &o, 1);
    rig_append(&r, 300);
    rig_evict(&r, keep_third);
    for (int32_t d = 0; d < RIG_DIM; d++) /* one row, so that the largest share is its own */
        q[RIG_DIM + d] = q[d];
    for (int32_t n = 0; n <= 300; n += 100) {
        recall(&r, q, 1, true, n);
        for (int32_t l = 0; l < RIG_LANES; l++) {
            const struct recall_query query = query_of(&r, l, q, 1, true);
            const struct kv_seq *row = r.store->row[l].kv;
            struct recall_scorer s;
            double want = 0.0;
            recall_scorer_start(r.tier, &query, r.tier->work, &s);
            recall_scorer_run(&s, row, true, got);
            for (int32_t e = 0; e < kv_lane_len(row, 0, 0); e++)
                if (!rig_has_guest(&r, l, kv_lane_pos(row, 0, 0, e)))
                    want += (double)got[e] / RIG_GROUP;
            double missed = (double)recall_store_missed(r.store, &query, r.guests, 0);
            assert_true(n < 200 ? want > 0.05 : want == 0.0);
            assert_true(fabs(missed - want) < 1e-4);
        }
    }
    rig_free(&r);
}

/* ---- every way to choose ---- */

struct job {
    struct rig *r;
    const float *q;
};

static void choose_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct job *job = ctx;
    for (int32_t l = (int32_t)begin; l < end; l++) {
        const struct recall_query query = query_of(job->r, l, job->q, 30, true);
        recall_store_choose(job->r->store, &query, job->r->guests, 100, thread);
    }
}

/* The guests of all lanes: positions, one after the other. */
static int32_t guests_of(int32_t n_thread, int32_t *pos)
{
    const struct kv_geometry g = rig_geometry(KV_TYPE_TURBO3);
    struct recall_kv_options o = rig_file_options(&g, 3, 40);
    o.score = RECALL_ATTENTION;
    static float q[30 * RIG_GROUP * RIG_DIM];
    struct rig r;
    int32_t n = 0;
    rig_queries(8, 30, q);
    rig_make(&r, &g, 1200);
    rig_open(&r, &o, n_thread);
    for (int32_t i = 0; i < 1200; i += 100) {
        rig_append(&r, 100);
        rig_evict(&r, keep_ninth);
    }
    assert_int_equal(kv_seq_reserve(r.guests, 100, &err), PITH_OK);
    struct job job = {&r, q};
    pi_parallel_items(n_thread, RIG_LANES, choose_lanes, &job);
    for (int32_t l = 0; l < RIG_LANES; l++) {
        rig_check_guests(&r, l);
        assert_int_equal(kv_lane_len(r.guests, l / RIG_HEADS, l % RIG_HEADS), 100);
        kv_lane_positions(r.guests, l / RIG_HEADS, l % RIG_HEADS, pos + n, 100);
        n += 100;
    }
    rig_free(&r);
    return n;
}

TEST_WITH(rig_make_path, rig_remove_path, threads_change_nothing)
{
    int32_t one[RIG_LANES * 100], two[RIG_LANES * 100];
    assert_int_equal(guests_of(1, one), RIG_LANES * 100);
    guests_of(2, two);
    assert_memory_equal(one, two, sizeof(one));
}
