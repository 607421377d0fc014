/*
 * KV heads that share their layer's budget by score. Shares are compared with numbers worked out by
 * hand and with a second implementation of the rule. Budgets and pages hold through random
 * histories of growing, rounds, forks and truncations in a pool that is often full. Also Ada-KV on
 * a model.
 */
#include <math.h>
#include <string.h>

#include "testing.h"

#include "mem_used.h"
#include "engine/engine.h"
#include "policy/keep/rules/rounds.h"
#include "kv_check.h"
#include "status.h"
#include "kv_shape.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

/* ---- sharing ---- */

#define N_HEAD 4
#define MAX_N 64

struct share_params {
    double floor;
};

static double share_floor(const void *params)
{
    return ((const struct share_params *)params)->floor;
}

static const struct policy_param share_table[] = {
    {"floor", POLICY_TYPE_REAL, offsetof(struct share_params, floor), 0, 1000, "0.2", "sure", NULL},
    {0},
};

/* Heads 0 and 1 score their entries higher than the others do, differently in each layer. */
static float opinion(int32_t layer, int32_t head, int32_t pos)
{
    uint64_t key = (uint64_t)pos * 64 + (uint64_t)layer * 8 + (uint64_t)head;
    return (float)rng_below(&key, 1000) * (float)(head < 2 ? 3 + layer : 1);
}

static void share_score(const void *params, const struct keep_view *view,
                        const struct keep_lane *lane, float *out)
{
    (void)params;
    (void)view;
    for (int32_t i = 0; i < lane->n; i++)
        out[i] = opinion(lane->layer, lane->head, lane->pos[i]);
}

static const struct keep_policy sharing = {.name = "sharing",
                                           .summary = "lanes that share",
                                           .citation = "",
                                           .params = share_table,
                                           .params_size = sizeof(struct share_params),
                                           .score = share_score,
                                           .allot_floor = share_floor};

/* A layer's lanes: n of them may go, with scores; pos is their index, and n_sink more stand before
   them. */
struct layer {
    int32_t pos[N_HEAD][MAX_N];
    float score[N_HEAD][MAX_N];
    struct keep_set set[N_HEAD];
};

static void layer_make(struct layer *l, const int32_t *n, int32_t n_sink)
{
    memset(l, 0, sizeof(*l));
    for (int32_t h = 0; h < N_HEAD; h++) {
        for (int32_t i = 0; i < n_sink + n[h]; i++)
            l->pos[h][i] = i;
        l->set[h] = (struct keep_set){
            .n = n_sink + n[h], .pos = l->pos[h], .score = l->score[h], .span = {n_sink, 1000}};
    }
}

static void allot(const struct keep_config *c, struct keep_set *set, int32_t n_set, int64_t total)
{
    struct kv_choose_lane lanes[N_HEAD];
    struct pi_device *d = pi_device_default();
    struct pi_stream *s = d->open(d, &(struct pi_stream_shape){.n_thread = 1});
    keep_allot(s, c, set, lanes, n_set, total);
    d->close(s);
}

static void expect_shares(struct layer *l, const char *options, int32_t n_set, int64_t total,
                          const int32_t *want)
{
    struct keep_config c;
    check(keep_config_set(&sharing, options, &c, &err), &err);
    allot(&c, l->set, n_set, total);
    for (int32_t s = 0; s < n_set; s++)
        if (l->set[s].budget != want[s])
            fail_msg("%s, total %d, lane %d: %d is not %d", options, (int)total, s,
                     l->set[s].budget, want[s]);
}

/* FFY0/AdaKV: keep_h = round(c_h (1 - 0.2) + int(0.2 base)), c_h of the base x H best being its. */
TEST(shares_a_budget_as_adakv_does)
{
    static struct layer l;
    layer_make(&l, (const int32_t[]){20, 20, 20, 20}, 0);
    /* Lane 0 has the 20 highest, lane 1 the next 12, lane 3 the 8 after that: c = 20, 12, 0, 8 of
       40. 0.8 c + int(0.2 x 10) = 18, 11.6, 2, 8.4: the authors' 18, 12, 2, 8. */
    for (int32_t i = 0; i < 20; i++) {
        l.score[0][i] = 100.0f + (float)i;
        l.score[1][i] = i < 12 ? 50.0f + (float)i : -7.0f;
        l.score[2][i] = -9.0f - (float)i;
        l.score[3][i] = i < 8 ? 20.0f + (float)i : -8.0f;
    }
    expect_shares(&l, "", N_HEAD, 40, (const int32_t[]){18, 12, 2, 8});
    expect_shares(&l, "floor=0", N_HEAD, 40, (const int32_t[]){20, 12, 0, 8});
    expect_shares(&l, "floor=1", N_HEAD, 40, (const int32_t[]){10, 10, 10, 10});
    /* 43: c = 20, 15, 0, 8, of five equal ones three; int(0.2 x 10.75) = 2. 18, 14, 2, 8.4 and one
       is left, for lane 3. */
    expect_shares(&l, "", N_HEAD, 43, (const int32_t[]){18, 14, 2, 9});
    expect_shares(&l, "", N_HEAD, 80, (const int32_t[]){20, 20, 20, 20});
    expect_shares(&l, "", N_HEAD, 1000, (const int32_t[]){20, 20, 20, 20});
    expect_shares(&l, "", N_HEAD, 0, (const int32_t[]){0, 0, 0, 0});
    /* Entries that always stay are counted first: 3 in each lane. */
    layer_make(&l, (const int32_t[]){20, 20, 20, 20}, 3);
    expect_shares(&l, "", N_HEAD, 42, (const int32_t[]){11, 11, 10, 10});
    /* A lane with few entries keeps them, and the rest of its share goes to the others. */
    layer_make(&l, (const int32_t[]){2, 30, 30, 30}, 0);
    expect_shares(&l, "floor=1", N_HEAD, 40, (const int32_t[]){2, 13, 13, 12});
    /* One lane. */
    layer_make(&l, (const int32_t[]){30, 0, 0, 0}, 2);
    expect_shares(&l, "", 1, 12, (const int32_t[]){12});
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The k-th highest score of the entries that may go. */
static float border_of(const struct layer *l, const int32_t *n, int32_t n_sink, int32_t k)
{
    float all[N_HEAD * MAX_N];
    int32_t n_all = 0;
    for (int32_t h = 0; h < N_HEAD; h++)
        for (int32_t i = 0; i < n[h]; i++)
            all[n_all++] = l->score[h][n_sink + i];
    qsort(all, (size_t)n_all, sizeof(*all), descending);
    return all[k - 1];
}

/* For any scores and lengths the sum is exact, and no lane keeps more than its entries or less than
   the floor. Without a floor the best entries stay. */
TEST(shares_are_exact_for_any_scores)
{
    static struct layer l;
    uint64_t rng = 3;
    for (int32_t round = 0; round < 2000; round++) {
        int32_t n[N_HEAD], n_sink = (int32_t)rng_below(&rng, 4), n_all = 0;
        struct keep_config c;
        char options[32];
        double part = (double)rng_below(&rng, 11) / 10.0;
        for (int32_t h = 0; h < N_HEAD; h++)
            n_all += n[h] = (int32_t)rng_below(&rng, MAX_N - 4);
        layer_make(&l, n, n_sink);
        for (int32_t h = 0; h < N_HEAD; h++)
            for (int32_t i = 0; i < MAX_N; i++)
                l.score[h][i] = (float)rng_below(&rng, 40) - 20.0f;
        snprintf(options, sizeof(options), "floor=%.1f", part);
        check(keep_config_set(&sharing, options, &c, &err), &err);
        int32_t stay = (int32_t)rng_below(&rng, (uint64_t)n_all + 1), sum = 0;
        allot(&c, l.set, N_HEAD, stay + N_HEAD * n_sink);
        for (int32_t h = 0; h < N_HEAD; h++) {
            int32_t kept = l.set[h].budget - n_sink, least = (int32_t)(part * stay / N_HEAD + 1e-9);
            assert_in_range(kept, pi_min(n[h], least), n[h]);
            sum += kept;
        }
        assert_int_equal(sum, stay);
        for (int32_t h = 0; part == 0.0 && stay > 0 && h < N_HEAD; h++) {
            float border = border_of(&l, n, n_sink, stay);
            int32_t above = 0, equal = 0;
            for (int32_t i = n_sink; i < n_sink + n[h]; i++) {
                above += l.score[h][i] > border;
                equal += l.score[h][i] == border;
            }
            assert_in_range(l.set[h].budget - n_sink, above, above + equal);
        }
    }
}

TEST(refuses_other_granularities)
{
    static const char *const cases[][2] = {
        {"granularity=layer", "keep: granularity: sharing shares a layer's budget among its KV "
                              "heads by score, so that each keeps positions of its own "
                              "(layer-head)"},
        {"heads=1/2", "keep: heads: 1/2: sharing shares a layer's budget among its KV heads by "
                      "score"},
        {"overwrite=on", "keep: overwrite: on: sharing has no score for single steps, only for "
                         "rounds"},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct keep_config c;
        assert_int_equal(keep_config_set(&sharing, cases[i][0], &c, &err), PITH_INVALID);
        assert_string_equal(err.message, cases[i][1]);
    }
}

/* ---- PyramidKV's budgets ---- */

TEST(shares_a_budget_as_pyramidkv_does)
{
    static const struct kv_geometry g = KV_SHAPE(4, 2, 8, 8, 16, KV_TYPE_F16, KV_TYPE_F16);
    /* base 1000, min 50, max 1950, step 633 1/3 of the formula; the authors' 633. */
    static const int32_t want[4] = {32 + 1950, 32 + 1316, 32 + 683, 32 + 50};
    struct keep_config c;
    check(keep_config_parse("pyramidkv:budget=1032", &c, &err), &err);
    check(keep_config_fit(&c, &g, &err), &err);
    for (int32_t l = 0; l < 4; l++)
        for (int32_t h = 0; h < 2; h++)
            assert_int_equal(keep_lane_budget_at(&c, l, h, (struct keep_point){5000, 0, 0.0, 0}),
                             want[l]);
    assert_int_equal(keep_budget_at(&c, 5000), 1032);
    /* A share: the part beyond the window grows with the text, by at most one per token. */
    check(keep_config_parse("pyramidkv:budget=40%,window=20", &c, &err), &err);
    check(keep_config_fit(&c, &g, &err), &err);
    assert_int_equal(keep_lane_budget_at(&c, 0, 0, (struct keep_point){10000, 0, 0.0, 0}), 7781);
    assert_int_equal(keep_lane_budget_at(&c, 3, 0, (struct keep_point){10000, 0, 0.0, 0}), 219);
    for (int32_t l = 0; l < 4; l++)
        for (int32_t n = 0; n < 3000; n++) {
            int32_t a = keep_lane_budget_at(&c, l, 0, (struct keep_point){n, 0, 0.0, 0});
            int32_t b = keep_lane_budget_at(&c, l, 0, (struct keep_point){n + 1, 0, 0.0, 0});
            assert_true(a >= pi_min(n, 40) && b >= a && b <= a + 1);
        }
    /* Bytes: the pages of all lanes together fill at most the size, and two more each would not. */
    check(keep_config_parse("pyramidkv:budget=3MiB,slack=40", &c, &err), &err);
    check(keep_config_fit(&c, &g, &err), &err);
    assert_true(keep_bytes_at(&c, &g, 1 << 20) <= 3 << 20);
    c.n_budget += 2 * g.page_len;
    assert_true(keep_bytes_at(&c, &g, 1 << 20) > 3 << 20);
    /* One layer has the whole budget. */
    static const struct kv_geometry flat = KV_SHAPE(1, 2, 8, 8, 16, KV_TYPE_F16, KV_TYPE_F16);
    check(keep_config_parse("pyramidkv:budget=100", &c, &err), &err);
    check(keep_config_fit(&c, &flat, &err), &err);
    assert_int_equal(keep_lane_budget_at(&c, 0, 1, (struct keep_point){0, 0, 0.0, 0}), 100);
    assert_int_equal(keep_config_parse("snapkv:layers=pyramidkv:0", &c, &err) == PITH_OK
                         ? keep_config_fit(&c, &g, &err)
                         : PITH_OK,
                     PITH_INVALID);
}

/* ---- random histories ---- */

#define N_LAYER 2
#define MAX_SEQ 3
#define MAX_LEN 260

static const struct policy_model shape = {
    .g = {N_LAYER, N_HEAD, 8, 4, 16, KV_TYPE_F32, KV_TYPE_F16}, .n_group = 1, .scale = 1.0f};

static struct {
    struct kv_cache *cache;
    struct keep *keep;
    struct keep_config config;
    uint64_t rng;
    struct kv_seq *kv[MAX_SEQ];
    int32_t n_token[MAX_SEQ];
    struct keep_tally tally;
    int64_t n_refused, n_ragged, n_most; /* n_most: rounds that found a layer just full */
} world;

static int64_t sum_of(const struct kv_seq *kv, int32_t layer)
{
    int64_t n = 0;
    for (int32_t h = 0; h < N_HEAD; h++)
        n += kv_lane_len(kv, layer, h);
    return n;
}

static int64_t pages_of(const struct kv_seq *kv)
{
    int64_t n = 0;
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++)
            n += kv_lane_pages(kv, l, h);
    return n;
}

/* No layer holds more than its budget and the slack, no lane a page too many, and the pages are
   those that an estimate counts. */
static void check_budgets(const struct kv_seq *kv, int32_t n_token, bool after_round)
{
    const struct keep_rules *r = &world.config.rules;
    for (int32_t l = 0; l < N_LAYER; l++) {
        int64_t mean =
            keep_lane_budget_at(&world.config, l, 0, (struct keep_point){n_token, 0, 0.0, 0});
        assert_true(sum_of(kv, l) <= N_HEAD * (mean + (after_round ? 0 : r->slack + r->batch)));
        for (int32_t h = 0; after_round && h < N_HEAD; h++) {
            int32_t n = kv_lane_len(kv, l, h);
            assert_int_equal(kv_lane_pages(kv, l, h), (n + 15) / 16);
            world.n_ragged += n != kv_lane_len(kv, l, 0);
        }
    }
    assert_true(pages_of(kv) * (int64_t)kv_page_bytes(&shape.g) <=
                keep_bytes_at(&world.config, &shape.g, n_token));
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
            struct keep_view view = {.kv = kv, .n_token = at.n_token};
            int64_t before = world.tally.n_evicted, sum = 0;
            for (int32_t l = 0; l < N_LAYER; l++)
                sum += sum_of(kv, l);
            check(keep_round(world.keep, kv, &view, &world.tally, &err), &err);
            for (int32_t l = 0; l < N_LAYER; l++)
                sum -= sum_of(kv, l);
            assert_int_equal(world.tally.n_evicted - before, sum);
            check_budgets(kv, at.n_token, true);
            check(kv_seq_reserve(kv, keep_room(world.keep, kv, at, left), &err), &err);
        }
        if (left == 0)
            break;
        int32_t take = keep_room(world.keep, kv, at, left);
        assert_true(take > 0);
        for (int32_t i = 0; i < N_LAYER * N_HEAD; i++) {
            float row[MAX_LEN * 8];
            for (int32_t t = 0; t < take; t++)
                kv_check_row((uint64_t)((at.n_token + t) * 64 + i), row + t * 8, 8);
            kv_seq_append(kv, i / N_HEAD, i % N_HEAD, at.n_token, take, row, 8, row, 8);
        }
        left -= take;
        world.n_token[s] = at.n_token += take;
        check_budgets(kv, at.n_token, false);
        for (int32_t l = 0; l < N_LAYER; l++) {
            int64_t mean = keep_lane_budget_at(&world.config, l, 0, at);
            world.n_most += sum_of(kv, l) == N_HEAD * (mean + world.config.rules.slack);
        }
    }
    kv_seq_trim(kv);
}

static void random_step(void)
{
    int32_t a = (int32_t)rng_below(&world.rng, MAX_SEQ),
            b = (int32_t)rng_below(&world.rng, MAX_SEQ);
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

static void run_histories(const char *options, int32_t n_page, int32_t n_step)
{
    memset(&world, 0, sizeof(world));
    world.rng = 7;
    world.cache = kv_check_cache(&shape.g, n_page);
    check(keep_config_set(&sharing, options, &world.config, &err), &err);
    check(keep_config_fit(&world.config, &shape.g, &err), &err);
    check(keep_create(&world.config, &shape, 2, &world.keep, &err), &err);
    for (int32_t s = 0; s < MAX_SEQ; s++)
        check(kv_seq_create(world.cache, &world.kv[s], &err), &err);
    for (int32_t i = 0; i < n_step; i++) {
        random_step();
        kv_check_account(world.cache, 0);
    }
    assert_true(world.tally.n_round > n_step / 20 && world.n_ragged > n_step / 10);
    assert_true(world.n_refused > n_step / 100 && world.n_refused < n_step / 2);
    for (int32_t s = 0; s < MAX_SEQ; s++)
        kv_seq_free(world.kv[s]);
    keep_free(world.keep);
    kv_cache_free(world.cache);
    assert_int_equal(pi_mem_used(PI_MEM_SCRATCH), 0);
}

TEST(budgets_hold_through_random_histories)
{
    run_histories("budget=40,slack=8", 66, 2000);
    assert_true(world.n_most > 100);
    run_histories("budget=30,slack=5,window=6,sinks=3,floor=0", 50, 2000);
    run_histories("budget=40%,slack=6,layers=3/1,window=2", 90, 2000);
    run_histories("budget=30,slack=4,batch=8,floor=0.5,segments=3", 60, 2000);
}

/* A size in bytes holds, and is used. */
TEST(holds_a_budget_in_bytes)
{
    struct keep_config c;
    check(keep_config_set(&sharing, "budget=40KiB,slack=7", &c, &err), &err);
    check(keep_config_fit(&c, &shape.g, &err), &err);
    assert_true(keep_bytes_at(&c, &shape.g, INT32_MAX) <= 40 << 10);
    c.n_budget++;
    assert_true(keep_bytes_at(&c, &shape.g, INT32_MAX) > 40 << 10);
    /* Until the first round lanes are equally long, and fill no more than without a policy. */
    check(keep_config_set(&sharing, "budget=40,slack=7", &c, &err), &err);
    check(keep_config_fit(&c, &shape.g, &err), &err);
    assert_int_equal(keep_bytes_at(&c, &shape.g, 46), kv_bytes_for_tokens(&shape.g, 46));
    /* 4 lanes of 47: 188 entries, of which each lane leaves 15 places at most unused. */
    assert_int_equal(keep_bytes_at(&c, &shape.g, 5000),
                     2 * ((188 + 60) / 16) * (int64_t)kv_page_bytes(&shape.g));
}

/* ---- Ada-KV on a model ---- */

#define N_TOKEN 330

static pith_model *model;
static pith_model_info info;
static int32_t tokens[N_TOKEN];

static void load_model(void)
{
    uint64_t rng = 12;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&rng, (uint64_t)info.n_vocab);
}

static void free_model(void)
{
    pith_model_free(model);
    mem_check(NULL);
}

/* An engine whose pool holds the bytes that one sequence of N_TOKEN tokens is said to need. */
static pith_engine *engine_make(const char *keep, int32_t chunk, int32_t n_thread, int64_t n_seq)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_engine_params_default(&params);
    params.chunk = chunk;
    params.n_thread = n_thread;
    params.page_len = 16;
    params.keep = keep;
    check(pith_kv_estimate(model, &params, N_TOKEN, &params.kv_bytes, &err), &err);
    params.kv_bytes *= n_seq;
    check(pith_engine_create(model, &params, &e, &err), &err);
    return e;
}

static const char *const forms[] = {
    "snapkv:budget=64,slack=24",
    "snapkv:budget=64,slack=24,granularity=layer,softmax=before",
    "pyramidkv:budget=64,slack=24",
    "adakv:budget=64,slack=24",
    "adakv:budget=30%,queries=8,window=8,layers=2/1/1",
    "rkv:budget=64,slack=24",
    "tova:budget=64,slack=24,overwrite=off",
};

static uint64_t hash_of(const pith_seq *seq)
{
    return pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
}

/* The pool of one sequence holds a text that is many times as long. The bits are the same for any
   chunk, any threads, token by token, and with another sequence beside it. */
TEST_WITH(load_model, free_model, the_pool_of_one_sequence_holds_a_long_text)
{
    for (size_t f = 0; f < PI_LEN(forms); f++) {
        uint64_t hash[2];
        for (int32_t way = 0; way < 2; way++) {
            pith_engine *e = engine_make(forms[f], way == 0 ? 512 : 37, 1 + way, 1 + way);
            pith_seq *seq = NULL, *other = NULL;
            check(pith_seq_create(e, &seq, &err), &err);
            check(pith_seq_create(e, &other, &err), &err);
            if (way == 0) {
                check(pith_seq_eval(seq, tokens, N_TOKEN, &err), &err);
            } else {
                pith_batch_item items[2] = {{.seq = seq, .tokens = tokens, .n_token = 250},
                                            {.seq = other, .tokens = tokens + 100, .n_token = 170}};
                check(pith_batch_eval(e, items, 2, NULL, NULL, &err), &err);
                for (int32_t t = 250; t < N_TOKEN; t += 1 + (t < 300) * 24)
                    check(pith_seq_eval(seq, tokens + t, 1 + (t < 300) * 24, &err), &err);
            }
            hash[way] = hash_of(seq);
            pith_seq_free(other);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
        if (hash[0] != hash[1])
            fail_msg("%s: other bits", forms[f]);
    }
}

/* The same pool takes a prompt that is cut at its end. No lane then holds more pages than before,
   for any shares of a layer's lanes. */
TEST_WITH(load_model, free_model, a_prompt_that_is_cut_at_its_end_fits_the_pool)
{
    static const char *const keeps[] = {
        "adakv:budget=25%,rounds=prompt-end",
        "adakv:budget=64,slack=24,rounds=prompt-end",
        "streaming:budget=25%,rounds=prompt-end,granularity=global",
    };
    for (size_t i = 0; i < PI_LEN(keeps); i++) {
        pith_engine *e = engine_make(keeps[i], 512, 1, 1);
        pith_seq *seq = NULL;
        pith_keep_stats k;
        check(pith_seq_create(e, &seq, &err), &err);
        check(pith_seq_eval(seq, tokens, N_TOKEN, &err), &err);
        pith_seq_keep_stats(seq, &k);
        assert_int_equal(k.rounds, 1);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* Lanes of other lengths, and pages that follow them. */
TEST_WITH(load_model, free_model, lanes_have_lengths_of_their_own)
{
    pith_engine *e = engine_make("adakv:budget=96,slack=16", 64, 2, 2);
    pith_engine *even = engine_make("snapkv:budget=96,slack=16,pool=max,kernel=7", 64, 2, 2);
    pith_seq *seq = NULL, *fork = NULL, *of_even = NULL;
    int32_t n_differ = 0, n_page = 0;
    check(pith_seq_create(e, &seq, &err), &err);
    check(pith_seq_create(even, &of_even, &err), &err);
    check(pith_seq_eval(seq, tokens, 250, &err), &err);
    check(pith_seq_eval(of_even, tokens, 250, &err), &err);
    check(pith_seq_keep_round(seq, &err), &err);
    check(pith_seq_keep_round(of_even, &err), &err);
    for (int32_t l = 0; l < info.n_layer; l++) {
        int32_t sum = 0;
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            pith_lane_info lane;
            check(pith_seq_lane(seq, l, h, &lane, NULL, 0), &err);
            n_differ += lane.n_entry != 96;
            n_page += (lane.n_entry + 15) / 16;
            sum += lane.n_entry;
            assert_true(lane.n_entry >= 32 + 12); /* the window, and a fifth of 64 */
        }
        assert_int_equal(sum, 96 * info.n_head_kv);
    }
    assert_true(n_differ > 0);
    pith_kv_stats stats, of_stats;
    pith_engine_kv_stats(e, &stats);
    pith_engine_kv_stats(even, &of_stats);
    assert_int_equal(stats.live_bytes, of_stats.live_bytes);
    assert_int_equal(stats.used_bytes, n_page * (int64_t)kv_page_bytes(kv_cache_geometry(e->kv)));
    /* A fork goes on from there as the sequence does. */
    check(pith_seq_fork(seq, &fork, &err), &err);
    check(pith_seq_eval(seq, tokens + 250, 60, &err), &err);
    check(pith_seq_eval(fork, tokens + 250, 60, &err), &err);
    assert_true(hash_of(seq) == hash_of(fork));
    pith_seq_free(fork);
    pith_seq_free(seq);
    pith_seq_free(of_even);
    pith_engine_free(even);
    pith_engine_free(e);
}
