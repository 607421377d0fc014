/*
 * One budget that all lanes share by score, over a cache without a model. The evicted entries are
 * compared with a sort of all entries. Entries and bytes hold through random histories of growing,
 * rounds, forks and truncations in a pool that is often full. Also refusals.
 */
#include <string.h>

#include "testing.h"

#include "base/mem.h"
#include "kv_check.h"
#include "policy/keep/rules/rounds.h"
#include "status.h"

#define N_LAYER 3
#define N_HEAD 2
#define N_LANE (N_LAYER * N_HEAD)
#define MAX_SEQ 3
#define MAX_LEN 260

static const struct policy_model shape = {
    .g = {N_LAYER, N_HEAD, 8, 4, 16, KV_TYPE_F32, KV_TYPE_F16}, .n_group = 1, .scale = 1.0f};

/* The last layer is thought most of; few values, so that there are ties. */
static float opinion(int32_t layer, int32_t head, int32_t pos)
{
    uint64_t key = (uint64_t)pos * 64 + (uint64_t)layer * 8 + (uint64_t)head;
    return (float)rng_below(&key, 12) + (float)(3 * layer + head);
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    (void)params;
    (void)view;
    for (int32_t i = 0; i < lane->n; i++)
        out[i] = opinion(lane->layer, lane->head, lane->pos[i]);
}

static bool comparable(const void *params)
{
    (void)params;
    return true;
}

static const struct keep_policy comparing = {.name = "comparing",
                                             .summary = "hashes",
                                             .citation = "",
                                             .score = score,
                                             .comparable = comparable};

static struct {
    struct kv_cache *cache;
    struct keep *keep;
    struct keep_config config;
    uint64_t rng;
    struct kv_seq *kv[MAX_SEQ];
    int32_t n_token[MAX_SEQ];
    struct keep_tally tally;
    int64_t bytes; /* 0: no budget in bytes */
    int64_t n_refused, n_ragged;
} world;

static int64_t sum_of(const struct kv_seq *kv)
{
    int64_t n = 0;
    for (int32_t i = 0; i < N_LANE; i++)
        n += kv_lane_len(kv, i / N_HEAD, i % N_HEAD);
    return n;
}

static int64_t bytes_of(const struct kv_seq *kv)
{
    int64_t n = 0;
    for (int32_t i = 0; i < N_LANE; i++)
        n += kv_lane_pages(kv, i / N_HEAD, i % N_HEAD) *
             (int64_t)kv_layer_page_bytes(&shape.g, i / N_HEAD);
    return n;
}

static void check_budgets(const struct kv_seq *kv, int32_t n_token)
{
    const struct keep_rules *r = &world.config.rules;
    int64_t mean = keep_budget_at(&world.config, n_token);
    assert_true(sum_of(kv) <= N_LANE * (mean + r->slack + r->batch));
    assert_true(bytes_of(kv) <= keep_bytes_at(&world.config, &shape.g, n_token));
    if (world.bytes > 0)
        assert_true(bytes_of(kv) <= world.bytes);
}

/* ---- which go, by a sort ---- */

struct entry {
    float score;
    int32_t pos;
    int32_t lane;
};

static int by_worth(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? -1 : 1;
    return x->pos != y->pos ? (x->pos < y->pos ? -1 : 1) : x->lane - y->lane;
}

/* The positions of the lanes: a bit for each. */
struct held {
    bool at[N_LANE][MAX_LEN];
};

static void look(const struct kv_seq *kv, struct held *out)
{
    int32_t pos[MAX_LEN];
    memset(out, 0, sizeof(*out));
    for (int32_t i = 0; i < N_LANE; i++) {
        int32_t n = kv_lane_len(kv, i / N_HEAD, i % N_HEAD);
        kv_lane_positions(kv, i / N_HEAD, i % N_HEAD, pos, n);
        for (int32_t j = 0; j < n; j++)
            out->at[i][pos[j]] = true;
    }
}

static void expect_round(struct held *h, int32_t n_token)
{
    static struct entry all[N_LANE * MAX_LEN];
    const struct keep_rules *r = &world.config.rules;
    int64_t n_held = 0, n_all = 0, total = (int64_t)N_LANE * keep_budget_at(&world.config, n_token);
    for (int32_t i = 0; i < N_LANE; i++)
        for (int32_t pos = 0, n_before = 0; pos < n_token; pos++) {
            if (!h->at[i][pos])
                continue;
            n_held++;
            if (n_before++ >= r->sinks && pos >= r->prefix && pos < n_token - r->window)
                all[n_all++] = (struct entry){opinion(i / N_HEAD, i % N_HEAD, pos), pos, i};
        }
    qsort(all, (size_t)n_all, sizeof(*all), by_worth);
    for (int64_t i = 0; i < n_held - total; i++)
        h->at[all[i].lane][all[i].pos] = false;
}

static void run_round(struct kv_seq *kv, int32_t n_token)
{
    static struct held want, got;
    struct keep_view view = {.kv = kv, .n_token = n_token};
    int64_t before = world.tally.n_evicted, sum = sum_of(kv);
    look(kv, &want);
    expect_round(&want, n_token);
    check(keep_round(world.keep, kv, &view, &world.tally, &err), &err);
    look(kv, &got);
    assert_memory_equal(&got, &want, sizeof(got));
    assert_int_equal(world.tally.n_evicted - before, sum - sum_of(kv));
    assert_int_equal(sum_of(kv), N_LANE * keep_budget_at(&world.config, n_token));
    for (int32_t i = 0; i < N_LANE; i++) {
        int32_t n = kv_lane_len(kv, i / N_HEAD, i % N_HEAD);
        assert_int_equal(kv_lane_pages(kv, i / N_HEAD, i % N_HEAD), (n + 15) / 16);
        world.n_ragged += n != kv_lane_len(kv, 0, 0);
    }
    check_budgets(kv, n_token);
}

/* ---- random histories ---- */

static void append(struct kv_seq *kv, int32_t from, int32_t n)
{
    float row[MAX_LEN * 8];
    for (int32_t i = 0; i < N_LANE; i++) {
        for (int32_t t = 0; t < n; t++)
            kv_check_row((uint64_t)((from + t) * 64 + i), row + t * 8, 8);
        kv_seq_append(kv, i / N_HEAD, i % N_HEAD, from, n, row, 8, row, 8);
    }
}

/* n tokens, or none where the pool is too full; admitted tokens cannot fail. */
static void grow(int32_t s, int32_t n)
{
    struct kv_seq *kv = world.kv[s];
    struct keep_point at = {world.n_token[s], 0, 0.0, 0};
    check(keep_prepare(world.keep, kv, at, n, &err), &err);
    uint64_t digest = kv_check_digest(world.cache);
    if (kv_seq_reserve(kv, keep_room(world.keep, kv, at, n), &err) != PITH_OK) {
        assert_true(kv_check_digest(world.cache) == digest);
        world.n_refused++;
        return;
    }
    int64_t lacks = keep_lacks(world.keep, kv, at, n).all;
    kv_seq_clear_charges(kv);
    if (lacks > kv_seq_free_bytes(kv)) {
        kv_seq_trim(kv);
        world.n_refused++;
        return;
    }
    for (int32_t left = n;;) {
        if (keep_due(world.keep, kv, at, left)) {
            run_round(kv, at.n_token);
            check(kv_seq_reserve(kv, keep_room(world.keep, kv, at, left), &err), &err);
        }
        if (left == 0)
            break;
        int32_t take = keep_room(world.keep, kv, at, left);
        assert_true(take > 0);
        append(kv, at.n_token, take);
        left -= take;
        world.n_token[s] = at.n_token += take;
        check_budgets(kv, at.n_token);
    }
    kv_seq_trim(kv);
}

static void random_step(void)
{
    int32_t a = (int32_t)rng_below(&world.rng, MAX_SEQ);
    int32_t b = (int32_t)rng_below(&world.rng, MAX_SEQ);
    uint64_t what = rng_below(&world.rng, 30);
    int32_t n = 1 + (int32_t)rng_below(&world.rng, what == 4 ? 150 : 14);
    if (world.n_token[a] + n > MAX_LEN || what == 0) {
        kv_seq_free(world.kv[a]);
        check(kv_seq_create(world.cache, &world.kv[a], &err), &err);
        world.n_token[a] = 0;
    } else if (what == 1 && a != b) {
        kv_seq_free(world.kv[b]);
        check(kv_seq_fork(world.kv[a], &world.kv[b], &err), &err);
        world.n_token[b] = world.n_token[a];
    } else if (what == 2) {
        world.n_token[a] = (int32_t)rng_below(&world.rng, (uint64_t)world.n_token[a] + 1);
        kv_seq_truncate(world.kv[a], world.n_token[a]);
    } else {
        grow(a, n);
    }
}

static void run_histories(const char *options, int64_t bytes, int32_t n_page, int32_t n_step)
{
    char text[160];
    memset(&world, 0, sizeof(world));
    world.rng = 7;
    world.bytes = bytes;
    world.cache = kv_check_cache(&shape.g, n_page);
    snprintf(text, sizeof(text), "granularity=global,%s", options);
    check(keep_config_set(&comparing, text, &world.config, &err), &err);
    check(keep_config_fit(&world.config, &shape.g, &err), &err);
    check(keep_create(&world.config, &shape, 2, &world.keep, &err), &err);
    for (int32_t s = 0; s < MAX_SEQ; s++)
        check(kv_seq_create(world.cache, &world.kv[s], &err), &err);
    for (int32_t i = 0; i < n_step; i++) {
        random_step();
        kv_check_account(world.cache, 0);
    }
    assert_true(world.tally.n_round > n_step / 30 && world.n_ragged > n_step / 10);
    assert_true(world.n_refused > n_step / 200 && world.n_refused < n_step / 2);
    for (int32_t s = 0; s < MAX_SEQ; s++)
        kv_seq_free(world.kv[s]);
    keep_free(world.keep);
    kv_cache_free(world.cache);
    assert_int_equal(pi_mem_used(PI_MEM_SCRATCH), 0);
}

TEST(budgets_hold_through_random_histories)
{
    run_histories("budget=40,slack=8", 0, 56, 2500);
    run_histories("budget=30,slack=5,window=6,sinks=3", 0, 46, 2500);
    run_histories("budget=30%,slack=6,window=4,prefix=5", 0, 70, 2500);
}

TEST(budgets_in_bytes_hold_through_random_histories)
{
    char text[80];
    int64_t bytes = 20 * (int64_t)kv_page_bytes(&shape.g) + 100;
    snprintf(text, sizeof(text), "budget=%lldB,slack=6,window=4", (long long)bytes);
    run_histories(text, bytes, 42, 2500);
}

/* ---- sizes, and refusals ---- */

static struct keep_config config_of(const struct keep_policy *policy, const char *options)
{
    struct keep_config c;
    check(keep_config_set(policy, options, &c, &err), &err);
    check(keep_config_fit(&c, &shape.g, &err), &err);
    return c;
}

TEST(counts_bytes_of_all_lanes)
{
    int64_t page = (int64_t)kv_page_bytes(&shape.g);
    struct keep_config c = config_of(&comparing, "granularity=global,budget=40,slack=8");
    assert_int_equal(keep_bytes_at(&c, &shape.g, 47), kv_bytes_for_tokens(&shape.g, 47));
    /* 6 lanes of 48: 288 entries, of which each lane leaves 15 places at most unused. */
    assert_int_equal(keep_bytes_at(&c, &shape.g, 5000), (288 + 90) / 16 * page);
    assert_int_equal(keep_bytes_at(&c, &shape.g, 48), kv_bytes_for_tokens(&shape.g, 48));
    c = config_of(&comparing, "granularity=global,budget=40KiB,slack=7");
    assert_true(keep_bytes_at(&c, &shape.g, INT32_MAX) <= 40 << 10);
    c.n_budget += 3;
    assert_true(keep_bytes_at(&c, &shape.g, INT32_MAX) > 40 << 10);
    /* The whole prompt, and then what rounds leave. */
    c = config_of(&comparing, "granularity=global,budget=40,slack=8,rounds=prompt-end");
    assert_int_equal(keep_bytes_at(&c, &shape.g, 5000), kv_bytes_for_tokens(&shape.g, 5000));
    assert_int_equal(keep_bytes_to(&c, &shape.g, (struct keep_point){5000, 200, 0.0, 0}),
                     kv_bytes_for_tokens(&shape.g, 200));
    assert_int_equal(keep_bytes_to(&c, &shape.g, (struct keep_point){5000, 20, 0.0, 0}),
                     (288 + 90) / 16 * page);
    assert_int_equal(keep_most_at(&c, 5000), 5000);
}

/* The first round of a share left nothing between the prefix and the window: half of 384 tokens is
   less than the protected entries. */
TEST(a_share_is_at_least_twice_what_is_protected)
{
    struct keep_config c = config_of(&keep_random, "budget=50%,prefix=128,window=128");
    assert_int_equal(keep_budget_at(&c, 384), 384);
    assert_int_equal(keep_budget_at(&c, 700), 512);
    assert_int_equal(keep_budget_at(&c, 1024), 512);
    assert_int_equal(keep_budget_at(&c, 4096), 2048);
    c = config_of(&keep_random, "budget=50%,prefix=128,window=128,pin-prompt=on");
    assert_int_equal(keep_lane_budget_at(&c, 1, 1, (struct keep_point){4096, 1500, 0.0, 0}), 3256);
    for (int32_t n = 0; n < 3000; n++) {
        int32_t a = keep_budget_at(&c, n), b = keep_budget_at(&c, n + 1);
        assert_true(b >= a && b <= a + 1 && a <= pi_max(n, 1));
    }
}

TEST(refuses_scores_that_lanes_do_not_share)
{
    static const char *const cases[][2] = {
        {"knorm:granularity=global",
         "keep: granularity: global: scores of knorm in one lane say nothing about those in "
         "another: `pith calibrate importance --keep knorm` writes a map of them, and stats=FILE "
         "reads it"},
        {"random:granularity=global,layers=pyramid:4",
         "keep: layers: pyramid:4: with granularity global all lanes share the budget by score"},
        {"random:granularity=global,split=calibrated",
         "keep: split: calibrated: with granularity global all lanes share the budget by score"},
        {"random:granularity=layer,split=calibrated",
         "keep: split: calibrated: lanes that keep the same positions, as with granularity layer, "
         "have no shares of their own (layer-head)"},
        {"random:heads=1/2,split=calibrated",
         "keep: split: calibrated: every lane has a share already, so that layers and heads have "
         "none"},
        {"random:split=foo",
         "keep: split: \"foo\" is neither even, calibrated nor calibrated:10% (a share of the "
         "entries above 0% and at most 100%)"},
        {"random:split=calibrated",
         "keep: split: calibrated: shares come from importance in statistics: `pith calibrate "
         "importance` writes them, and stats=FILE reads them"},
        {"h2o:granularity=global,stats=x",
         "keep: overwrite: on: lanes that share one budget by score are never full by themselves "
         "(overwrite=off, or split=calibrated with layer-head)"},
        {"streaming:granularity=global,positions=cache",
         "keep: granularity: global: streaming reads entries elsewhere than they were written, "
         "which is for lanes of a budget of their own"},
        {"triattention,budget=25%", "keep: \"triattention,budget=25%\": options follow a colon; "
                                    "did you mean triattention:budget=25%?"},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct keep_config c;
        assert_int_equal(keep_config_parse(cases[i][0], &c, &err), PITH_INVALID);
        assert_string_equal(err.message, cases[i][1]);
    }
}
