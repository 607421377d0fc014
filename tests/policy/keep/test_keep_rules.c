/*
 * The options of keep policies, and the rules over a cache without a model: which entries go, and
 * when. The pages counted before a batch are enough for all of its rounds, shared pages included. A
 * second implementation of the rules, entry by entry, is compared with them on random histories.
 */
#include <string.h>

#include "testing.h"

#include "base/mem.h"
#include "kv_check.h"
#include "policy/keep/rules/keep.h"
#include "pith/policy.h"
#include "status.h"
#include "kv_shape.h"

/* ---- a policy for the tests ---- */

struct coarse_params {
    int32_t levels;
    int32_t twist;
    int32_t places;
};

static const struct policy_param coarse_table[] = {
    {"levels", POLICY_TYPE_COUNT, offsetof(struct coarse_params, levels), 1, 1000, "5", "values",
     NULL},
    {"twist", POLICY_TYPE_COUNT, offsetof(struct coarse_params, twist), 0, 9, "0", "another order",
     NULL},
    {"places", POLICY_TYPE_COUNT, offsetof(struct coarse_params, places), 0, 1, "0",
     "the first entries are read right before the others", NULL},
    {0},
};

/* Few values, so that there are ties, negative ones and both zeros among them; every lane
   differs. */
static float opinion(const struct coarse_params *p, int32_t layer, int32_t head, int32_t pos)
{
    uint64_t key =
        (uint64_t)pos * 64 + (uint64_t)layer * 8 + (uint64_t)head + 1000003u * (uint64_t)p->twist;
    int32_t level = (int32_t)(rng_next(&key) % (uint64_t)p->levels) - p->levels / 2;
    return level == 0 && (pos & 1) != 0 ? -0.0f : (float)level;
}

static void coarse_score(const void *params, const struct keep_view *view,
                         const struct keep_lane *lane, float *out)
{
    assert_non_null(view->kv);
    for (int32_t i = 0; i < lane->n; i++)
        out[i] = opinion(params, lane->layer, lane->head, lane->pos[i]);
}

static size_t coarse_state(const void *params, const struct policy_model *model, const void *data)
{
    assert_null(data);
    return (size_t)((const struct coarse_params *)params)->levels * (size_t)model->g.n_layer;
}

static uint32_t coarse_needs(const void *params)
{
    return ((const struct coarse_params *)params)->places ? KEEP_NEED_PLACES : 0;
}

static const struct keep_policy coarse = {
    .name = "coarse",
    .summary = "hashes",
    .citation = "",
    .defaults = "twist=3,window=2",
    .params = coarse_table,
    .params_size = sizeof(struct coarse_params),
    .needs = coarse_needs,
    .state_size = coarse_state,
    .score = coarse_score,
};

/* ---- options ---- */

#define RULE_KEYS                                                                                  \
    "budget, slack, prefix, sinks, window, recent, pin-prompt, segments, granularity, combine, "   \
    "batch, rounds, overwrite, layers, heads, split, stats"

TEST(reads_options_with_their_units)
{
    static const struct {
        const char *text;
        enum policy_unit unit;
        int64_t value;
        int32_t slack, prefix, sinks, window;
    } cases[] = {
        {"streaming", POLICY_UNIT_TOKENS, 1024, 128, 0, 4, 0},
        {"streaming:budget=256", POLICY_UNIT_TOKENS, 256, 128, 0, 4, 0},
        {"streaming:window=7,sinks=0,budget=50%", POLICY_UNIT_SHARE, 500000, 128, 0, 0, 7},
        {"streaming:budget=0.0001%", POLICY_UNIT_SHARE, 1, 128, 0, 4, 0},
        {"streaming:budget=12.5%,slack=1", POLICY_UNIT_SHARE, 125000, 1, 0, 4, 0},
        {"streaming:budget=100%", POLICY_UNIT_SHARE, 1000000, 128, 0, 4, 0},
        {"streaming:budget=64MiB,prefix=128", POLICY_UNIT_BYTES, 64 << 20, 128, 128, 4, 0},
        {"streaming:budget=1.5kB", POLICY_UNIT_BYTES, 1500, 128, 0, 4, 0},
        {"streaming:budget=4096B", POLICY_UNIT_BYTES, 4096, 128, 0, 4, 0},
        {"streaming:budget=2GB", POLICY_UNIT_BYTES, 2000000000, 128, 0, 4, 0},
        {"streaming:budget=4", POLICY_UNIT_TOKENS, 4, 128, 0, 4, 0},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct keep_config c;
        if (keep_config_parse(cases[i].text, &c, &err) != PITH_OK)
            fail_msg("%s: %s", cases[i].text, err.message);
        assert_ptr_equal(c.policy, &keep_streaming);
        assert_int_equal(c.rules.budget.unit, cases[i].unit);
        assert_int_equal(c.rules.budget.value, cases[i].value);
        assert_int_equal(c.rules.slack, cases[i].slack);
        assert_int_equal(c.rules.prefix, cases[i].prefix);
        assert_int_equal(c.rules.sinks, cases[i].sinks);
        assert_int_equal(c.rules.window, cases[i].window);
        assert_int_equal(pith_policy_check(PITH_KEEP, cases[i].text, NULL), PITH_OK);
    }
    struct keep_config none = {.policy = &coarse};
    assert_int_equal(keep_config_parse(NULL, &none, NULL), PITH_OK);
    assert_null(none.policy);
    none.policy = &coarse;
    assert_int_equal(keep_config_parse("none", &none, NULL), PITH_OK);
    assert_null(none.policy);
}

TEST(refuses_wrong_options_with_a_sentence)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "keep: \"\" is not a policy (none, streaming, "},
        {"straem", "keep: \"straem\" is not a policy; did you mean streaming?"},
        {"frozen", "keep: \"frozen\" is not a policy (none, streaming, "},
        {"streamings:budget=3", "keep: \"streamings\" is not a policy; did you mean streaming?"},
        {"none:budget=3", "keep: none has no options, as in \"none:budget=3\""},
        {"streaming:", "keep: \"streaming:\" ends where options should begin"},
        {"streaming:budget=99,", "keep: streaming: nothing follows the last comma"},
        {"streaming:budget", "keep: streaming: \"budget\" is not key=value"},
        {"streaming:budget=9,,sinks=1", "keep: streaming: \"\" is not key=value"},
        {"streaming:sink=3", "keep: streaming has no option \"sink\"; did you mean sinks?"},
        {"streaming:depth=3", "keep: streaming has no option \"depth\" (" RULE_KEYS ", positions)"},
        {"streaming:=3", "keep: streaming has no option \"\" (" RULE_KEYS ", positions)"},
        {"knorm:levels=3", "keep: knorm has no option \"levels\" (" RULE_KEYS ")"},
        {"streaming:positions=rel", "keep: positions: \"rel\" is none of true, cache"},
        {"streaming:positions=cahce",
         "keep: positions: \"cahce\" is none of true, cache; did you mean cache?"},
        {"streaming:positions=cache,segments=2",
         "keep: streaming: segments: 2: positions of the cache are for one gap behind the first "
         "entries, and segments leave several"},
        {"streaming:slack=0", "keep: slack: 0 is not in 1..536870912"},
        {"streaming:slack=536870913", "keep: slack: 536870913 is not in 1..536870912"},
        {"streaming:slack=99999999999999999999",
         "keep: slack: \"99999999999999999999\" is not a whole number"},
        {"streaming:sinks=-1", "keep: sinks: \"-1\" is not a whole number"},
        {"streaming:sinks=4.5", "keep: sinks: \"4.5\" is not a whole number"},
        {"streaming:sinks=", "keep: sinks: \"\" is not a whole number"},
        {"streaming:budget=0", "keep: budget: 0 is not in 1..536870912"},
        {"streaming:budget=0%", "keep: budget: 0% is not above 0% and at most 100%"},
        {"streaming:budget=100.1%", "keep: budget: 100.1% is not above 0% and at most 100%"},
        {"streaming:budget=4k",
         "keep: budget: \"4k\" is no number of tokens (512), share of them (50%) "
         "or size (64MiB; B, kB, MB, GB, KiB, MiB, GiB)"},
        {"streaming:budget=0.00001%", "keep: budget: \"0.00001%\" is no number of tokens"},
        {"streaming:budget=9000000000GiB",
         "keep: budget: \"9000000000GiB\" is no number of tokens"},
        {"streaming:budget=.5%", "keep: budget: \".5%\" is no number of tokens"},
        {"streaming:budget=5.%", "keep: budget: \"5.%\" is no number of tokens"},
        {"streaming:sinks=1,sinks=2", "keep: streaming: \"sinks=1\" is followed by another value"},
        {"streaming:budget=100,prefix=60,window=41",
         "keep: a budget of 100 entries is smaller than the 101 that are protected: the first 60 "
         "and "
         "the last 41"},
        {"streaming:budget=3", "keep: a budget of 3 entries is smaller than the 4 that are "
                               "protected: the first 4 and the "
                               "last 0"},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct keep_config c = {.n_budget = 77};
        err = (pith_error){0};
        if (keep_config_parse(cases[i].text, &c, &err) != PITH_INVALID)
            fail_msg("%s: accepted", cases[i].text);
        if (strncmp(err.message, cases[i].says, strlen(cases[i].says)) != 0)
            fail_msg("%s: says \"%s\"", cases[i].text, err.message);
        assert_int_equal(c.n_budget, 77);
        assert_int_equal(pith_policy_check(PITH_KEEP, cases[i].text, &err), PITH_INVALID);
    }
}

TEST(a_policy_reads_its_own_options)
{
    struct keep_config c;
    struct coarse_params p;
    assert_int_equal(keep_config_set(&coarse, NULL, &c, &err), PITH_OK);
    memcpy(&p, c.params.bytes, sizeof(p));
    assert_true(p.levels == 5 && p.twist == 3 && c.rules.window == 2 && c.rules.sinks == 0);
    assert_int_equal(keep_config_set(&coarse, "twist=1,levels=9,window=0", &c, &err), PITH_OK);
    memcpy(&p, c.params.bytes, sizeof(p));
    assert_true(p.levels == 9 && p.twist == 1 && c.rules.window == 0);
    assert_int_equal(keep_config_set(&coarse, "twist=10", &c, &err), PITH_INVALID);
    assert_string_equal(err.message, "keep: twist: 10 is not in 0..9");
    assert_int_equal(keep_config_set(&coarse, "turn=1", &c, &err), PITH_INVALID);
    assert_string_equal(err.message, "keep: coarse has no option \"turn\" (" RULE_KEYS
                                     ", levels, twist, places)");
}

TEST(lists_policies_with_their_parameters)
{
    pith_policy_info policy;
    pith_param_info param;
    int32_t n_seen = 0;
    assert_int_equal(pith_policy_get(PITH_KEEP, 0, &policy), PITH_OK);
    assert_string_equal(policy.name, "streaming");
    assert_non_null(strstr(policy.citation, "2309.17453"));
    assert_true(policy.n_param >= 5);
    for (int32_t j = 0; j < policy.n_param; j++) {
        assert_int_equal(pith_policy_get_param(PITH_KEEP, 0, j, &param), PITH_OK);
        assert_true(strlen(param.help) > 10);
        assert_int_equal(param.shared, strcmp(param.key, "positions") != 0);
        bool number = strcmp(param.type, "choice") != 0 && strcmp(param.type, "text") != 0;
        assert_true(number ? param.max > param.min : param.max == 0);
        if (strcmp(param.key, "sinks") == 0) {
            assert_string_equal(param.fallback, "4");
            n_seen++;
        } else if (strcmp(param.key, "budget") == 0) {
            assert_string_equal(param.fallback, "1024");
            assert_string_equal(param.type, "budget");
            n_seen++;
        }
    }
    assert_int_equal(n_seen, 2);
    assert_int_equal(pith_policy_get_param(PITH_KEEP, 0, policy.n_param, &param), PITH_NOT_FOUND);
    assert_int_equal(pith_policy_get_param(PITH_KEEP, 0, -1, &param), PITH_NOT_FOUND);
    assert_int_equal(pith_policy_get_param(PITH_KEEP, 99, 0, &param), PITH_NOT_FOUND);
    for (int32_t i = 0; keep_policy_at(i) != NULL; i++)
        assert_int_equal(pith_policy_get(PITH_KEEP, i, &policy), PITH_OK);
    assert_int_equal(pith_policy_get(PITH_KEEP, -1, &policy), PITH_NOT_FOUND);
    assert_int_equal(pith_policy_get(PITH_KEEP, 1000, &policy), PITH_NOT_FOUND);
}

/* ---- budgets ---- */

#define N_LAYER 2
#define N_HEAD 2
#define N_LANE (N_LAYER * N_HEAD)

static const struct kv_geometry shape =
    KV_SHAPE(N_LAYER, N_HEAD, 8, 4, 16, KV_TYPE_F32, KV_TYPE_F16);

static const struct policy_model model = {
    .g = {N_LAYER, N_HEAD, 8, 4, 16, KV_TYPE_F32, KV_TYPE_F16}, .n_group = 1, .scale = 1.0f};

static struct keep_config config_of(const struct keep_policy *policy, const char *options)
{
    struct keep_config c;
    if (keep_config_set(policy, options, &c, &err) != PITH_OK ||
        keep_config_fit(&c, &shape, &err) != PITH_OK)
        fail_msg("%s: %s", options, err.message);
    return c;
}

TEST(budgets_follow_the_number_of_tokens)
{
    struct keep_config c = config_of(&keep_streaming, "budget=100,slack=20");
    assert_int_equal(keep_budget_at(&c, 0), 100);
    assert_int_equal(keep_budget_at(&c, 1000000), 100);
    assert_int_equal(keep_most_at(&c, 119), 119);
    assert_int_equal(keep_most_at(&c, 1000), 120);
    c = config_of(&keep_streaming, "budget=25%,slack=20");
    assert_int_equal(keep_budget_at(&c, 5), 5);  /* never more than there is */
    assert_int_equal(keep_budget_at(&c, 20), 8); /* twice the protected entries */
    assert_int_equal(keep_budget_at(&c, 403), 100);
    assert_int_equal(keep_most_at(&c, 403), 120);
    assert_int_equal(keep_budget_at(&c, INT32_MAX), INT32_MAX / 4);
    c = config_of(&keep_streaming, "budget=100%,slack=1");
    assert_int_equal(keep_most_at(&c, 12345), 12345);

    /* Bytes are the bytes of the pages at budget + slack. */
    int64_t page = (int64_t)kv_page_bytes(&shape) * N_LANE;
    char text[64];
    snprintf(text, sizeof(text), "slack=20,budget=%lldB", (long long)(5 * page + page - 1));
    c = config_of(&keep_streaming, text);
    assert_int_equal(keep_most_at(&c, 1000), 5 * shape.page_len);
    assert_int_equal(keep_budget_at(&c, 1000), 5 * shape.page_len - 20);
    assert_true(kv_bytes_for_tokens(&shape, keep_most_at(&c, 1000)) <= c.rules.budget.value);

    snprintf(text, sizeof(text), "slack=16,budget=%lldB", (long long)page);
    assert_int_equal(keep_config_set(&keep_streaming, text, &c, &err), PITH_OK);
    assert_int_equal(keep_config_fit(&c, &shape, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "holds 16 entries in each of 4 lanes, not more than the "
                                        "slack of 16"));
    snprintf(text, sizeof(text), "slack=1,sinks=16,budget=%lldB", (long long)page);
    assert_int_equal(keep_config_set(&keep_streaming, text, &c, &err), PITH_OK);
    assert_int_equal(keep_config_fit(&c, &shape, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "a budget of 15 entries is smaller than the 16"));
}

/* ---- random histories ---- */

#define MAX_SEQ 4
#define MAX_LEN 400

/* A sequence, and what its lanes should hold. */
struct history {
    struct kv_seq *kv;
    int32_t n_token;
    int32_t n[N_LANE];
    int32_t pos[N_LANE][MAX_LEN];
    struct keep_tally tally;
};

static struct {
    struct kv_cache *cache;
    struct keep *keep;
    struct keep_config config;
    struct coarse_params params;
    uint64_t rng;
    struct history h[MAX_SEQ];
    int64_t n_round, n_full, n_copy;
} world;

/* The rules again: the entry that goes next is the lowest, and the oldest of the lowest. */
static int32_t next_to_go(const struct history *h, int32_t lane)
{
    const struct keep_rules *r = &world.config.rules;
    int32_t best = -1;
    float best_score = 0.0f;
    for (int32_t i = 0; i < h->n[lane]; i++) {
        int32_t pos = h->pos[lane][i];
        float score = opinion(&world.params, lane / N_HEAD, lane % N_HEAD, pos);
        if (i < r->sinks || pos < r->prefix || pos >= h->n_token - r->window)
            continue;
        if (best < 0 || score < best_score) {
            best = i;
            best_score = score;
        }
    }
    return best;
}

static int32_t budget_now(const struct history *h)
{
    const struct keep_rules *r = &world.config.rules;
    if (r->budget.unit == POLICY_UNIT_TOKENS)
        return (int32_t)r->budget.value;
    int32_t share = (int32_t)((int64_t)h->n_token * r->budget.value / 1000000);
    int32_t least = 2 * ((r->sinks > r->prefix ? r->sinks : r->prefix) + r->window);
    share = share > least ? share : least;
    share = share < h->n_token ? share : h->n_token;
    return share > 0 ? share : 1;
}

static bool expect_token(struct history *h)
{
    bool due = false;
    for (int32_t l = 0; l < N_LANE; l++)
        h->pos[l][h->n[l]++] = h->n_token;
    h->n_token++;
    for (int32_t l = 0; l < N_LANE; l++)
        due = due || h->n[l] >= budget_now(h) + world.config.rules.slack;
    for (int32_t l = 0; due && l < N_LANE; l++)
        while (h->n[l] > budget_now(h)) {
            int32_t go = next_to_go(h, l);
            assert_true(go >= 0);
            memmove(&h->pos[l][go], &h->pos[l][go + 1], (size_t)(--h->n[l] - go) * sizeof(int32_t));
        }
    return due;
}

/* The entries that always stay at the beginning are read right before the rest, which is read where
   it was. */
static void check_places(const struct history *h, int32_t lane)
{
    const struct keep_rules *r = &world.config.rules;
    int32_t l = lane / N_HEAD, head = lane % N_HEAD, n_first = 0;
    bool shifted = h->n[lane] > 0 && kv_lane_pos(h->kv, l, head, 0) != h->pos[lane][0];
    while (n_first < h->n[lane] && (n_first < r->sinks || h->pos[lane][n_first] < r->prefix))
        n_first++;
    int32_t next = n_first < h->n[lane] ? h->pos[lane][n_first] : h->n_token;
    for (int32_t i = 0; i < h->n[lane]; i++) {
        int32_t want = h->pos[lane][i];
        if (world.params.places && i < n_first && shifted)
            want += next - 1 - h->pos[lane][n_first - 1];
        assert_int_equal(kv_lane_pos(h->kv, l, head, i), want);
    }
    if (world.params.places && n_first > 0 && h->tally.n_round > 0 && next < h->n_token)
        assert_int_equal(shifted, next > h->pos[lane][n_first - 1] + 1);
}

static void check_lanes(const struct history *h)
{
    int32_t pos[MAX_LEN];
    for (int32_t l = 0; l < N_LANE; l++) {
        int32_t n = kv_lane_len(h->kv, l / N_HEAD, l % N_HEAD);
        assert_int_equal(n, h->n[l]);
        keep_positions(world.keep, h->kv, l / N_HEAD, l % N_HEAD, pos, n);
        assert_memory_equal(pos, h->pos[l], (size_t)n * sizeof(*pos));
        check_places(h, l);
        float row[8], stored[8], got[8];
        for (int32_t i = 0; i < n; i += 7) { /* the key that belongs to the position */
            kv_check_row((uint64_t)pos[i] * N_LANE + (uint64_t)l, row, 8);
            kv_check_stored(KV_TYPE_F32, row, 8, stored);
            kv_lane_key(h->kv, l / N_HEAD, l % N_HEAD, i, got);
            assert_memory_equal(got, stored, sizeof(got));
        }
    }
}

static void append(struct history *h, int32_t n)
{
    for (int32_t l = 0; l < N_LANE; l++)
        for (int32_t i = 0; i < n; i++) {
            float k[8], v[4] = {0};
            kv_check_row((uint64_t)(h->n_token + i) * N_LANE + (uint64_t)l, k, 8);
            kv_seq_append(h->kv, l / N_HEAD, l % N_HEAD, h->n_token + i, 1, k, 8, v, 4);
        }
}

static struct keep_point point_of(const struct history *h)
{
    return (struct keep_point){h->n_token, 0, 0.0, 0};
}

/* A part of a batch: at most `most` of the n tokens that are left. Returns how many. */
static int32_t step(struct history *h, int32_t n, int32_t most)
{
    int32_t rounds = 0;
    int32_t take = keep_room(world.keep, h->kv, point_of(h), n < most ? n : most);
    append(h, take);
    for (int32_t i = 0; i < take; i++)
        rounds += expect_token(h);
    if (keep_room(world.keep, h->kv, point_of(h), 1) == 0) {
        struct keep_view view = {.kv = h->kv, .n_token = h->n_token};
        assert_int_equal(rounds, 1);
        check(keep_round(world.keep, h->kv, &view, &h->tally, &err), &err);
        check(kv_seq_reserve(h->kv, keep_room(world.keep, h->kv, point_of(h), n - take), &err),
              &err);
        world.n_round++;
    } else {
        assert_int_equal(rounds, 0);
    }
    return take;
}

/* As the engine does it: everything is counted first, then several sequences go on in turns. */
static void grow_together(int32_t n_seq, const int32_t *which, const int32_t *n)
{
    pith_status status = PITH_OK;
    int64_t lacks = 0;
    int32_t left[MAX_SEQ];
    memcpy(left, n, (size_t)n_seq * sizeof(*n));
    for (int32_t i = 0; i < n_seq && status == PITH_OK; i++) {
        struct history *h = &world.h[which[i]];
        check(keep_prepare(world.keep, h->kv, point_of(h), n[i], &err), &err);
        status = kv_seq_reserve(h->kv, keep_room(world.keep, h->kv, point_of(h), n[i]), &err);
    }
    for (int32_t i = 0; i < n_seq && status == PITH_OK; i++)
        lacks +=
            keep_lacks(world.keep, world.h[which[i]].kv, point_of(&world.h[which[i]]), n[i]).all;
    for (int32_t i = 0; i < n_seq; i++)
        kv_seq_clear_charges(world.h[which[i]].kv);
    if (status != PITH_OK || lacks > kv_seq_free_bytes(world.h[which[0]].kv)) {
        world.n_full++;
        for (int32_t i = 0; i < n_seq; i++)
            kv_seq_trim(world.h[which[i]].kv);
        return;
    }
    world.n_copy += lacks > 0;
    for (bool more = true; more;) {
        more = false;
        for (int32_t i = 0; i < n_seq; i++) {
            if (left[i] > 0)
                left[i] -=
                    step(&world.h[which[i]], left[i], 1 + (int32_t)rng_below(&world.rng, 30));
            more = more || left[i] > 0;
        }
    }
}

static void restart(struct history *h)
{
    kv_seq_free(h->kv);
    memset(h, 0, sizeof(*h));
    check(kv_seq_create(world.cache, &h->kv, &err), &err);
}

static void fork_to(const struct history *from, struct history *to)
{
    struct kv_seq *kv;
    if (from == to)
        return;
    check(kv_seq_fork(from->kv, &kv, &err), &err);
    kv_seq_free(to->kv);
    *to = *from;
    to->kv = kv;
}

static void truncate_at_random(struct history *h)
{
    int32_t to = (int32_t)rng_below(&world.rng, (uint64_t)h->n_token + 1);
    keep_truncate(world.keep, h->kv, to);
    h->n_token = to;
    for (int32_t l = 0; l < N_LANE; l++)
        while (h->n[l] > 0 && h->pos[l][h->n[l] - 1] >= to)
            h->n[l]--;
}

static void random_step(void)
{
    struct history *a = &world.h[rng_below(&world.rng, MAX_SEQ)];
    switch (rng_below(&world.rng, 12)) {
    case 0:
        fork_to(a, &world.h[rng_below(&world.rng, MAX_SEQ)]);
        return;
    case 1:
        truncate_at_random(a);
        return;
    case 2:
        restart(a);
        return;
    default:
        break;
    }
    int32_t which[MAX_SEQ], n[MAX_SEQ], n_seq = 0;
    for (int32_t i = 0; i < MAX_SEQ; i++) {
        int32_t most = MAX_LEN - world.h[i].n_token - 1;
        if (rng_below(&world.rng, 2) == 0 || most < 1)
            continue;
        which[n_seq] = i;
        n[n_seq++] = 1 + (int32_t)rng_below(&world.rng, (uint64_t)(most < 90 ? most : 90));
    }
    if (n_seq > 0)
        grow_together(n_seq, which, n);
}

static void run_histories(const char *options, int32_t n_page, int32_t n_step)
{
    memset(&world, 0, sizeof(world));
    world.rng = (uint64_t)n_page;
    world.cache = kv_check_cache(&shape, n_page);
    world.config = config_of(&coarse, options);
    memcpy(&world.params, world.config.params.bytes, sizeof(world.params));
    check(keep_create(&world.config, &model, 2, &world.keep, &err), &err);
    assert_int_equal(keep_state_size(world.keep), world.params.levels * N_LAYER);
    for (int32_t i = 0; i < MAX_SEQ; i++)
        restart(&world.h[i]);
    for (int32_t s = 0; s < n_step; s++) {
        random_step();
        for (int32_t i = 0; i < MAX_SEQ; i++) {
            struct history *h = &world.h[i];
            check_lanes(h);
            for (int32_t l = 0; l < N_LANE; l++)
                assert_true(h->n[l] < budget_now(h) + world.config.rules.slack);
            if (h->n_token > MAX_LEN - 20)
                restart(h);
        }
        kv_check_account(world.cache, 0);
    }
    for (int32_t i = 0; i < MAX_SEQ; i++)
        kv_seq_free(world.h[i].kv);
    keep_free(world.keep);
    kv_cache_free(world.cache);
    assert_int_equal(pi_mem_used(PI_MEM_SCRATCH), 0);
    assert_true(world.n_round > 50);
}

/* Pools in which everything fits, and tight ones, where a batch is refused or goes through
   whole. */
TEST(the_rules_hold_through_random_histories)
{
    run_histories("budget=40,slack=10", 4000, 1500);
    assert_int_equal(world.n_full, 0);
    assert_true(world.n_copy > 10);
    run_histories("budget=40,slack=10,window=0", 50, 2500);
    assert_true(world.n_full > 50 && world.n_copy > 10);
    run_histories("budget=33,slack=1,prefix=20,sinks=3,window=12", 60, 1500);
    run_histories("budget=16,slack=48,sinks=5,levels=1", 40, 2500);
    run_histories("budget=30%,slack=8,window=6,levels=400", 70, 1500);
    assert_true(world.n_full > 20);
    run_histories("budget=1,slack=2,window=0,levels=2", 30, 500);
    run_histories("budget=40,slack=10,sinks=5,places=1,window=0", 4000, 1500);
    assert_int_equal(world.n_full, 0);
    run_histories("budget=40,slack=10,sinks=5,places=1,window=0", 60, 2500);
    assert_true(world.n_full > 50 && world.n_copy > 10);
    run_histories("budget=33,slack=1,prefix=20,window=12,places=1", 60, 1500);
    run_histories("budget=30%,slack=8,prefix=3,levels=400,places=1", 70, 1500);
}

/* Exactly enough pages for forks that all share and all change every page; not with one less. */
TEST(a_fork_reserves_exactly_what_it_needs)
{
    const int32_t per_seq = 4 * N_LANE; /* pages of budget + slack = 64 entries */
    for (int32_t less = 0; less < 2; less++) {
        memset(&world, 0, sizeof(world));
        world.cache = kv_check_cache(&shape, 3 * per_seq - less);
        world.config = config_of(&coarse, "budget=20,slack=44,window=0");
        memcpy(&world.params, world.config.params.bytes, sizeof(world.params));
        check(keep_create(&world.config, &model, 2, &world.keep, &err), &err);
        restart(&world.h[0]);
        grow_together(1, (int32_t[]){0}, (int32_t[]){63});
        fork_to(&world.h[0], &world.h[1]);
        fork_to(&world.h[0], &world.h[2]);
        grow_together(3, (int32_t[]){0, 1, 2}, (int32_t[]){30, 60, 5});
        assert_int_equal(world.n_full, less);
        assert_int_equal(world.h[1].n_token, less ? 63 : 123);
        for (int32_t i = 0; i < 3; i++) {
            check_lanes(&world.h[i]);
            kv_seq_free(world.h[i].kv);
        }
        keep_free(world.keep);
        kv_cache_free(world.cache);
    }
}
