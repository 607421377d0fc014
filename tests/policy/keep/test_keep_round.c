/*
 * test_keep_round.c - rounds that the caller asks for. They are the rounds that the rules would
 * run, and without slack to reach they come only when asked for. A round without memory changes
 * nothing. Also the control `vnorm`, which keeps entries by their values.
 */
#include <math.h>
#include <string.h>

#include "testing.h"

#include "pith/inspect.h"
#include "pith/policy.h"
#include "status.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define N_TOKEN 200

static pith_model *model;
static pith_model_info info;
static int32_t ids[N_TOKEN];

static void load(void)
{
    uint64_t rng = 5;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < N_TOKEN; i++)
        ids[i] = 300 + (int32_t)rng_below(&rng, 600);
}

static void unload(void)
{
    pith_model_free(model);
}

TEST_GROUP(load, unload);

static pith_engine *engine_of(const char *keep, int32_t n_kv_token)
{
    pith_engine_params p;
    pith_engine *e;
    pith_engine_params_default(&p);
    p.keep = keep;
    p.kv_tokens = n_kv_token;
    p.page_len = 16;
    p.n_thread = 2;
    check(pith_engine_create(model, &p, &e, &err), &err);
    return e;
}

static pith_seq *read_ids(pith_engine *e, int32_t n)
{
    pith_seq *seq;
    check(pith_seq_create(e, &seq, &err), &err);
    check(pith_seq_eval(seq, ids, n, &err), &err);
    return seq;
}

static pith_keep_stats stats_of(const pith_seq *seq)
{
    pith_keep_stats s;
    pith_seq_keep_stats(seq, &s);
    return s;
}

static uint64_t hash_of(const pith_seq *seq)
{
    assert_non_null(pith_seq_logits(seq));
    return pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
}

/* Whether all lanes of two sequences hold the same positions; their number in the first lane. */
static int32_t compare_lanes(const pith_seq *a, const pith_seq *b)
{
    pith_lane_info x = {0}, y;
    int32_t pos_x[N_TOKEN + 8], pos_y[N_TOKEN + 8];
    for (int32_t l = 0; l < info.n_layer; l++)
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            assert_int_equal(pith_seq_lane(a, l, h, &x, pos_x, N_TOKEN + 8), PITH_OK);
            assert_int_equal(pith_seq_lane(b, l, h, &y, pos_y, N_TOKEN + 8), PITH_OK);
            assert_int_equal(x.n_entry, y.n_entry);
            assert_memory_equal(pos_x, pos_y, (size_t)x.n_entry * sizeof(*pos_x));
        }
    return x.n_entry;
}

/* A requested round keeps the same entries as a round of the rule `batch`, and later results have
   the same bits. */
TEST(a_round_is_that_of_the_rules)
{
    static const char *const policies[] = {"streaming:sinks=2", "random:seed=3",
                                           "knorm:granularity=all", "keydiff:segments=4,window=8",
                                           "triattention"};
    for (size_t i = 0; i < sizeof(policies) / sizeof(*policies); i++) {
        char by_rule[128], asked[128];
        char sep = strchr(policies[i], ':') != NULL ? ',' : ':';
        snprintf(by_rule, sizeof(by_rule), "%s%cbudget=30%%,slack=1,batch=%d", policies[i], sep,
                 N_TOKEN - 1);
        snprintf(asked, sizeof(asked), "%s%cbudget=30%%,slack=1000", policies[i], sep);
        pith_engine *e = engine_of(by_rule, 400), *f = engine_of(asked, 400);
        pith_seq *a = read_ids(e, N_TOKEN - 1), *b = read_ids(f, N_TOKEN - 1);
        uint64_t before = hash_of(b);
        assert_int_equal(stats_of(a).rounds, 0);
        assert_int_equal(stats_of(b).rounds, 0);
        check(pith_seq_keep_round(b, &err), &err);
        assert_int_equal(hash_of(b), before);
        assert_int_equal(stats_of(b).rounds, 1);
        assert_int_equal(stats_of(b).first_round_at, N_TOKEN - 1);
        assert_int_equal(stats_of(b).longest, (N_TOKEN - 1) * 3 / 10);
        check(pith_seq_eval(a, ids + N_TOKEN - 1, 1, &err), &err);
        check(pith_seq_eval(b, ids + N_TOKEN - 1, 1, &err), &err);
        assert_int_equal(stats_of(a).rounds, 1);
        assert_int_equal(compare_lanes(a, b), (N_TOKEN - 1) * 3 / 10 + 1);
        assert_int_equal(hash_of(a), hash_of(b));
        pith_seq_free(a);
        pith_seq_free(b);
        pith_engine_free(e);
        pith_engine_free(f);
    }
}

/* Memory goes back to the pool, and a second round finds nothing to do. */
TEST(a_second_round_finds_nothing_to_do)
{
    pith_engine *e = engine_of("streaming:budget=40,slack=1000", 400);
    pith_seq *seq = read_ids(e, N_TOKEN);
    pith_kv_stats kv;
    int32_t lanes = info.n_layer * info.n_head_kv;
    check(pith_seq_keep_round(seq, &err), &err);
    check(pith_seq_keep_round(seq, &err), &err);
    pith_engine_kv_stats(e, &kv);
    assert_int_equal(kv.n_page_used, lanes * 3); /* 40 entries on pages of 16 */
    assert_int_equal(stats_of(seq).rounds, 1);
    assert_int_equal(stats_of(seq).evicted, lanes * (N_TOKEN - 40));
    pith_seq_free(seq);
    pith_engine_free(e);

    e = engine_of(NULL, 400);
    seq = read_ids(e, N_TOKEN);
    uint64_t before = hash_of(seq);
    check(pith_seq_keep_round(seq, &err), &err);
    assert_int_equal(hash_of(seq), before);
    assert_int_equal(stats_of(seq).rounds, 0);
    assert_int_equal(stats_of(seq).longest, N_TOKEN);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* A fork is cut and its origin keeps everything; where no page is free for the copies, the fork
   stays as it was. */
TEST(a_round_copies_shared_pages_or_changes_nothing)
{
    static const char keep[] = "random:budget=50%,slack=1000";
    int32_t n_page = (N_TOKEN + 15) / 16;
    for (int roomy = 0; roomy < 2; roomy++) {
        pith_engine *e = engine_of(keep, n_page * 16 * (roomy ? 2 : 1));
        pith_seq *seq = read_ids(e, N_TOKEN), *fork, *again;
        check(pith_seq_fork(seq, &fork, &err), &err);
        if (roomy) {
            check(pith_seq_keep_round(fork, &err), &err);
            assert_int_equal(stats_of(fork).longest, N_TOKEN / 2);
        } else {
            assert_int_equal(pith_seq_keep_round(fork, &err), PITH_KV_FULL);
            assert_non_null(strstr(err.message, "pages"));
            assert_int_equal(compare_lanes(seq, fork), N_TOKEN);
            assert_int_equal(stats_of(fork).rounds, 0);
        }
        assert_int_equal(stats_of(seq).longest, N_TOKEN);
        check(pith_seq_fork(seq, &again, &err), &err);
        assert_int_equal(compare_lanes(seq, again), N_TOKEN);
        pith_seq_free(again);
        pith_seq_free(fork);
        check(pith_seq_keep_round(seq, &err), &err);
        assert_int_equal(stats_of(seq).longest, N_TOKEN / 2);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

TEST(a_prompt_beyond_the_budget_is_not_pinned)
{
    pith_engine *e = engine_of("streaming:budget=64,slack=1000,pin-prompt=on", 400);
    pith_seq *seq = read_ids(e, N_TOKEN);
    check(pith_seq_mark_prompt(seq, 100, &err), &err); /* is not pinned */
    check(pith_seq_mark_prompt(seq, 32, &err), &err);
    check(pith_seq_keep_round(seq, &err), &err);
    int32_t pos[N_TOKEN];
    pith_lane_info lane;
    assert_int_equal(pith_seq_lane(seq, 0, 0, &lane, pos, N_TOKEN), PITH_OK);
    assert_int_equal(lane.n_entry, 64);
    for (int32_t i = 0; i < 32; i++)
        assert_int_equal(pos[i], i);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- vnorm ---- */

struct norms {
    bool l1;
    double *of; /* [n_layer][n_head_kv][N_TOKEN] */
};

static bool take_norms(void *user, const pith_tap_rows *rows)
{
    struct norms *n = user;
    int32_t dim = info.head_dim_v;
    for (int32_t t = 0; t < rows->n_token; t++)
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            const float *v =
                rows->v + ((size_t)t * (size_t)info.n_head_kv + (size_t)h) * (size_t)dim;
            double sum = 0.0;
            for (int32_t d = 0; d < dim; d++)
                sum += n->l1 ? fabs((double)v[d]) : (double)v[d] * (double)v[d];
            n->of[(rows->layer * info.n_head_kv + h) * N_TOKEN + rows->pos0 + t] = sum;
        }
    return true;
}

/* The smallest norm that a lane kept is not below the largest that it lost, to what rounding does
   to neighbours. */
static void check_lane(const struct norms *n, const pith_seq *seq, int32_t layer, int32_t head)
{
    const double *of = n->of + (layer * info.n_head_kv + head) * N_TOKEN;
    double least = HUGE_VAL, most = 0.0;
    int32_t pos[N_TOKEN], next = 0;
    pith_lane_info lane;
    assert_int_equal(pith_seq_lane(seq, layer, head, &lane, pos, N_TOKEN), PITH_OK);
    assert_int_equal(lane.n_entry, N_TOKEN / 4);
    for (int32_t i = 0; i < N_TOKEN; i++)
        if (next < lane.n_entry && pos[next] == i) {
            least = fmin(least, of[i]);
            next++;
        } else
            most = fmax(most, of[i]);
    assert_int_equal(next, lane.n_entry);
    if (least < most * (1.0 - 1e-5))
        fail_msg("layer %d, head %d: kept %g, lost %g", layer, head, least, most);
}

TEST(vnorm_keeps_what_the_values_say)
{
    static const char *const policies[] = {"vnorm:budget=25%,slack=1000",
                                           "vnorm:norm=l1,budget=25%,slack=1000"};
    for (size_t i = 0; i < 2; i++) {
        pith_engine_params p;
        pith_engine *e;
        pith_seq *seq;
        struct norms n = {.l1 = i == 1};
        n.of = calloc((size_t)(info.n_layer * info.n_head_kv) * N_TOKEN, sizeof(*n.of));
        pith_engine_params_default(&p);
        p.keep = policies[i];
        p.kv_tokens = 400;
        p.type_k = p.type_v = "f32";
        check(pith_engine_create(model, &p, &e, &err), &err);
        check(pith_engine_set_tap(e, take_norms, &n, &err), &err);
        check(pith_seq_create(e, &seq, &err), &err);
        check(pith_seq_eval(seq, ids, N_TOKEN, &err), &err);
        check(pith_seq_keep_round(seq, &err), &err);
        for (int32_t l = 0; l < info.n_layer; l++)
            for (int32_t h = 0; h < info.n_head_kv; h++)
                check_lane(&n, seq, l, h);
        pith_seq_free(seq);
        pith_engine_free(e);
        free(n.of);
    }
}
