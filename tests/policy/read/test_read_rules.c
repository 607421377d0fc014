/*
 * The rules that read policies share: their options and refusals, how many entries are read of how
 * many, and which ones for given scores. Also the split of an evaluation into chunks and passes,
 * and one choice out of several heads' choices.
 */
#include "testing.h"

#include <string.h>

#include "base/mem.h"
#include "policy/read/reading.h"
#include "status.h"
#include "pith/policy.h"

/* ---- a policy ---- */

struct params {
    int32_t width;
};

static void score_zero(const void *params, const struct read_view *view, const struct read_chunk *c,
                       float *out)
{
    (void)params;
    (void)view;
    memset(out, 0, (size_t)c->n * sizeof(*out));
}

static uint32_t index_of(const void *params, const struct kv_geometry *g, int32_t *dim)
{
    (void)g;
    *dim = ((const struct params *)params)->width;
    return KV_INDEX_NORM | KV_INDEX_PROJ;
}

static pith_status check_width(const void *params, const struct read_rules *rules,
                               const struct kv_geometry *g, pith_error *why)
{
    const struct params *p = params;
    if (p->width > g->dim_k - rules->sinks)
        return pi_fail(why, PITH_INVALID, "width: %d of %d", p->width, g->dim_k);
    return PITH_OK;
}

static const struct policy_param own_params[] = {
    {"width", POLICY_TYPE_COUNT, offsetof(struct params, width), 1, 1000, "8", "a number", NULL},
    {0},
};

static const struct policy_preset own_presets[] = {
    {"narrow", "width=2,budget=40", "a few"},
    {0},
};

static const struct read_policy policy = {
    .name = "test",
    .summary = "scores nothing",
    .citation = "",
    .defaults = "budget=256,sinks=3",
    .params = own_params,
    .params_size = sizeof(struct params),
    .presets = own_presets,
    .check = check_width,
    .index = index_of,
    .score = score_zero,
};

static struct read_config config_of(const char *options)
{
    struct read_config c;
    check(read_config_set(&policy, options, &c, &err), &err);
    return c;
}

static struct read_rules rules_of(const char *options)
{
    return config_of(options).rules;
}

/* ---- options ---- */

TEST(reads_options_with_their_units)
{
    struct read_rules r = rules_of(NULL);
    assert_int_equal(r.budget.unit, POLICY_UNIT_TOKENS);
    assert_int_equal(r.budget.value, 256);
    assert_int_equal(r.chunk, 128);
    assert_int_equal(r.sinks, 3);
    assert_int_equal(r.recent, 0);
    assert_int_equal(r.tail, 0);
    assert_int_equal(r.dense_layers, 0);
    assert_true(r.gate == 0.0);
    assert_int_equal(r.phase, READ_BOTH);
    r = rules_of(
        "budget=12.5%,chunk=64,sinks=0,recent=5,tail=6,dense-layers=2,gate=1,phase=decode");
    assert_int_equal(r.budget.unit, POLICY_UNIT_SHARE);
    assert_int_equal(r.budget.value, 125000);
    assert_int_equal(r.chunk, 64);
    assert_int_equal(r.sinks, 0);
    assert_int_equal(r.recent, 5);
    assert_int_equal(r.tail, 6);
    assert_int_equal(r.dense_layers, 2);
    assert_true(r.gate == 1.0);
    assert_int_equal(r.phase, READ_DECODE);
    struct read_config c = config_of("narrow,sinks=1");
    assert_int_equal(c.rules.budget.value, 40);
    assert_int_equal(c.rules.sinks, 1);
    assert_int_equal(((const struct params *)(const void *)&c.params)->width, 2);
}

TEST(refuses_wrong_options_with_a_sentence)
{
    static const struct {
        const char *options, *part; /* of the sentence */
    } cases[] = {
        {"budget=64MiB", "67108864 bytes"},
        {"budget=0", "budget"},
        {"budget=101%", "budget"},
        {"budget=7,sinks=4,recent=4", "7 entries is smaller than the 8"},
        {"budget=2", "2 entries is smaller than the 3"},
        {"chunk=0", "chunk"},
        {"chunk=8193", "8193"},
        {"gate=0.99", "gate"},
        {"phase=prefill", "prefill"},
        {"sinks=-1", "sinks"},
        {"width=0", "width"},
        {"wide", "narrow"},
        {"slack=5", "slack"},
        {"budget=5,budget=6", "budget=5"},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct read_config c;
        err = (pith_error){0};
        assert_int_equal(read_config_set(&policy, cases[i].options, &c, &err), PITH_INVALID);
        if (strncmp(err.message, "read: ", 6) != 0 || strstr(err.message, cases[i].part) == NULL)
            fail_msg("%s: \"%s\"", cases[i].options, err.message);
    }
}

/* Names come from the table, and the public functions list them. */
TEST(names_are_those_of_the_table)
{
    struct read_config c = {.policy = &policy};
    pith_policy_info info;
    pith_param_info p;
    err = (pith_error){0};
    int32_t n = 0;
    for (; pith_policy_get(PITH_READ, n, &info) == PITH_OK; n++) {
        check(read_config_parse(info.name, &c, &err), &err);
        assert_string_equal(c.policy->name, info.name);
        assert_int_equal(pith_policy_get_param(PITH_READ, n, 0, &p), PITH_OK);
        assert_string_equal(p.key, "budget");
        assert_true(p.shared);
        assert_int_equal(pith_policy_get_param(PITH_READ, n, info.n_param - 1, &p), PITH_OK);
        assert_int_equal(pith_policy_get_param(PITH_READ, n, info.n_param, &p), PITH_NOT_FOUND);
        for (int32_t j = 0; j < info.n_preset; j++) {
            pith_preset_info preset;
            char text[128];
            assert_int_equal(pith_policy_get_preset(PITH_READ, n, j, &preset), PITH_OK);
            snprintf(text, sizeof(text), "%s:%s", info.name, preset.name);
            check(pith_policy_check(PITH_READ, text, &err), &err);
        }
    }
    assert_true(n >= 9);
    assert_int_equal(pith_policy_get_param(PITH_READ, n, 0, &p), PITH_NOT_FOUND);
    check(read_config_parse("none", &c, &err), &err);
    assert_null(c.policy);
    check(read_config_parse(NULL, &c, &err), &err);
    assert_null(c.policy);
    assert_int_equal(pith_policy_check(PITH_READ, "nobody:budget=5", &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "nobody"));
    assert_non_null(strstr(err.message, "quoka"));
    assert_int_equal(pith_policy_check(PITH_READ, "none:budget=5", &err), PITH_INVALID);
}

/* The geometry gets the index where everything goes together, and else is left alone. */
TEST(a_geometry_gets_the_index_or_stays)
{
    const struct kv_geometry g = {.n_layer = 2,
                                  .n_head = 2,
                                  .dim_k = 16,
                                  .dim_v = 16,
                                  .page_len = 16,
                                  .type_k = KV_TYPE_F16,
                                  .type_v = KV_TYPE_F16};
    struct kv_geometry out = g;
    struct read_config c = config_of("width=4"), none = {0};
    err = (pith_error){0};
    check(read_config_fit(&none, &out, &err), &err);
    assert_memory_equal(&out, &g, sizeof(g));
    check(read_config_fit(&c, &out, &err), &err);
    assert_int_equal(out.index, KV_INDEX_ROWS | KV_INDEX_NORM | KV_INDEX_PROJ);
    assert_int_equal(out.index_dim, 4);
    assert_true(kv_page_bytes(&out) > kv_page_bytes(&g));
    c = config_of("width=14"); /* beside 3 sinks */
    out = g;
    assert_int_equal(read_config_fit(&c, &out, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "14 of 16"));
    assert_memory_equal(&out, &g, sizeof(g));
}

/* ---- how many ---- */

TEST(budgets_follow_the_length_of_a_lane)
{
    static const struct {
        const char *options;
        int32_t n, expected;
    } cases[] = {
        {"budget=100,gate=1", 0, 0},
        {"budget=100,gate=1", 100, 100},
        {"budget=100,gate=1", 101, 100},
        {"budget=100", 125, 125},
        {"budget=100", 126, 100},
        {"budget=100,gate=3", 300, 300},
        {"budget=100,gate=3", 301, 100},
        {"budget=1024,gate=1000000", INT32_MAX, 1024},
        {"budget=4096,gate=1000000", INT32_MAX, INT32_MAX}, /* 4096000000 entries */
        {"budget=25%,gate=1,sinks=0", 10, 2},
        {"budget=25%,gate=1,sinks=0", 3, 1},
        {"budget=25%,gate=1,sinks=0", 1, 1},
        {"budget=25%,sinks=0", 1000, 250},
        {"budget=25%,sinks=3,recent=9", 20, 12},
        {"budget=25%,sinks=3,recent=9", 15, 15}, /* 1.25 * 12 */
        {"budget=80%,sinks=0", 1000, 1000},      /* 1.25 * 800 */
        {"budget=79%,sinks=0", 1000, 790},
        {"budget=100%,gate=1,sinks=0", 77, 77},
        {"budget=100%,gate=1,sinks=0", INT32_MAX, INT32_MAX},
        {"budget=0.0001%,gate=1,sinks=0", INT32_MAX, 2147},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct read_rules r = rules_of(cases[i].options);
        int32_t got = read_budget_at(&r, cases[i].n);
        if (got != cases[i].expected)
            fail_msg("%s of %d: %d, not %d", cases[i].options, cases[i].n, got, cases[i].expected);
    }
}

/* A single token has a gate of its own where the option says nothing. */
TEST(a_single_token_has_a_gate_of_its_own)
{
    static const struct {
        const char *options;
        int32_t n, expected, token;
    } cases[] = {
        {"budget=100", 600, 100, 600},        {"budget=100", 601, 100, 100},
        {"budget=100,gate=1", 101, 100, 100}, {"budget=100,gate=2", 200, 200, 200},
        {"budget=10%,sinks=0", 601, 60, 60},  {"budget=20%,sinks=0", 1000, 200, 1000},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct read_rules r = rules_of(cases[i].options);
        assert_int_equal(read_budget_for(&r, cases[i].n, 7), cases[i].expected);
        assert_int_equal(read_budget_at(&r, cases[i].n), cases[i].expected);
        assert_int_equal(read_budget_for(&r, cases[i].n, 1), cases[i].token);
    }
}

/* No lane up to there is read in part. */
TEST(short_lanes_are_read_whole)
{
    static const char *const options[] = {"budget=50",           "budget=50,gate=1",
                                          "budget=30%",          "budget=30%,recent=40",
                                          "budget=90%,sinks=20", "budget=3,gate=2.5"};
    for (size_t i = 0; i < PI_LEN(options); i++) {
        struct read_rules r = rules_of(options[i]);
        int32_t whole = read_whole_up_to(&r);
        assert_true(whole >= 3);
        for (int32_t n = 0; n <= whole; n++)
            assert_int_equal(read_budget_at(&r, n), n);
        if (r.budget.unit == POLICY_UNIT_TOKENS)
            assert_true(read_budget_at(&r, whole + 1) < whole + 1);
    }
}

TEST(phases_say_which_tokens_read_a_part)
{
    struct read_rules both = rules_of("tail=10"), prompt = rules_of("tail=10,phase=prompt"),
                      decode = rules_of("tail=10,phase=decode");
    assert_int_equal(read_tokens_of(&both, 1), 1);
    assert_int_equal(read_tokens_of(&both, 2), 0);
    assert_int_equal(read_tokens_of(&both, 100), 90);
    assert_int_equal(read_tokens_of(&prompt, 1), 0);
    assert_int_equal(read_tokens_of(&prompt, 100), 90);
    assert_int_equal(read_tokens_of(&decode, 1), 1);
    assert_int_equal(read_tokens_of(&decode, 100), 0);
    assert_int_equal(read_chunk_of(&both), 128);
    assert_int_equal(read_chunk_of(&decode), 1);
}

/* ---- passes ---- */

/* Cuts an evaluation of n tokens, of which the first n_read are read, into passes of random room
   between keep rounds. Rounds are due at every token of rounds. out[i] says whether a chunk (1) or
   a part that is read whole (2) begins at token i. Returns the passes. */
static int32_t cut(const struct read_rules *r, int32_t n, int32_t n_read, const int32_t *rounds,
                   int32_t max_room, uint64_t *rng, uint8_t *out)
{
    int32_t done = 0, n_pass = 0, chunk = read_chunk_of(r);
    memset(out, 0, (size_t)n);
    for (; done < n; n_pass++) {
        int32_t room = 1 + (int32_t)rng_below(rng, (uint64_t)max_room), until = n - done;
        for (int32_t i = 0; rounds[i] != 0; i++)
            if (rounds[i] > done)
                until = (int32_t)pi_min(until, rounds[i] - done);
        int32_t left_read = (int32_t)pi_max(0, n_read - done);
        int32_t take = read_take_of(r, room, n - done, left_read, until);
        assert_true(take >= 0 && take <= room && take <= until);
        if (take == 0)
            assert_true(room < chunk);
        for (int32_t t = 0; t < take; t += chunk)
            if (done + t < n_read)
                out[done + t] = 1;
        if (n_read >= done && n_read < done + take)
            out[n_read] = 2;
        done += take;
    }
    return n_pass;
}

TEST(passes_end_where_chunks_do)
{
    struct read_rules r = rules_of("chunk=32");
    assert_int_equal(read_take_of(&r, 100, 1000, 1000, 1000), 96);
    assert_int_equal(read_take_of(&r, 31, 1000, 1000, 1000), 0);
    assert_int_equal(read_take_of(&r, 100, 70, 70, 70), 70); /* the last chunk is shorter */
    assert_int_equal(read_take_of(&r, 69, 70, 70, 70), 64);
    assert_int_equal(read_take_of(&r, 100, 1000, 1000, 40), 40); /* so is one before a round */
    assert_int_equal(read_take_of(&r, 39, 1000, 1000, 40), 32);
    assert_int_equal(read_take_of(&r, 100, 1000, 40, 1000), 100); /* the tail is cut anywhere */
    assert_int_equal(read_take_of(&r, 39, 1000, 40, 1000), 32);
    assert_int_equal(read_take_of(&r, 7, 1000, 0, 1000), 7);
    assert_int_equal(read_take_of(&r, 7, 5, 0, 1000), 5);
    assert_int_equal(read_take_of(&r, 7, 5, 0, 3), 3);
    r = rules_of("phase=decode");
    assert_int_equal(read_take_of(&r, 5, 1, 1, 1), 1);
    assert_int_equal(read_take_of(&r, 5, 9, 0, 9), 5);
}

/* Chunks begin at the same tokens for any room of passes. */
TEST(chunks_do_not_depend_on_passes)
{
    uint64_t rng = 5;
    for (int32_t i = 0; i < 300; i++) {
        uint8_t expected[512], got[512];
        struct read_rules r = rules_of(i % 2 == 0 ? "chunk=32" : "chunk=7");
        int32_t n = 2 + (int32_t)rng_below(&rng, 500);
        int32_t n_read = (int32_t)rng_below(&rng, (uint64_t)n + 1), rounds[4] = {0};
        for (int32_t k = 0; k < (int32_t)rng_below(&rng, 4); k++)
            rounds[k] = 1 + (int32_t)rng_below(&rng, (uint64_t)n);
        int32_t few = cut(&r, n, n_read, rounds, 8192, &rng, expected);
        int32_t many = cut(&r, n, n_read, rounds, 40, &rng, got);
        assert_true(many >= few || n < 40);
        assert_memory_equal(got, expected, (size_t)n);
    }
}

/* ---- which ---- */

/* The same by looking for the best again and again. */
static void choose_slowly(const struct read_rules *r, const float *score, int32_t n, int32_t n_read,
                          bool *chosen)
{
    int32_t first = (int32_t)pi_min(r->sinks, n_read), n_left = n_read;
    int32_t last = (int32_t)pi_min(r->recent, n_read - first);
    for (int32_t i = 0; i < n; i++) {
        chosen[i] = i < first || i >= n - last;
        n_left -= chosen[i];
    }
    for (; n_left > 0; n_left--) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++)
            if (!chosen[i] && (best < 0 || score[i] > score[best]))
                best = i;
        chosen[best] = true;
    }
}

TEST(chooses_the_highest_sinks_and_recent_ones)
{
    enum { N = 200 };
    static const char *const options[] = {"sinks=0", "sinks=2,recent=5", "sinks=20,recent=20"};
    uint64_t rng = 8;
    void *scratch = malloc(kv_choose_scratch_bytes(N));
    for (int32_t round = 0; round < 300; round++) {
        struct read_rules r = rules_of(options[round % PI_LEN(options)]);
        int32_t n = 1 + (int32_t)rng_below(&rng, N), slots[N];
        int32_t n_read = (int32_t)rng_below(&rng, (uint64_t)n + 1);
        float score[N];
        bool expected[N];
        for (int32_t i = 0; i < n; i++) /* every second time with ties */
            score[i] = round % 2 == 0 ? rng_float(&rng) : (float)rng_below(&rng, 5) - 2.0f;
        choose_slowly(&r, score, n, n_read, expected);
        struct kv_choose_job job = read_choice(&r, score, n, n_read, slots);
        kv_choose(&job, scratch);
        read_fill(&r, n, n_read, slots);
        for (int32_t i = 0, k = 0; i < n; i++)
            if (expected[i]) {
                assert_true(k < n_read);
                assert_int_equal(slots[k++], i);
            }
    }
    free(scratch);
}

TEST(takes_the_best_of_several_heads_in_turn)
{
    static const int32_t a[] = {7, 3, 9, 11}, b[] = {3, 7, 5, 1}, c[] = {2};
    static const int32_t *const best[] = {a, b, c};
    static const int32_t n_best[] = {4, 4, 1}, expected[] = {7, 3, 2, 9, 5, 11, 1};
    int32_t out[16], set[32];
    for (int32_t n_most = 0; n_most <= 9; n_most++) {
        int32_t n = read_unite(best, n_best, 3, n_most, out, set);
        assert_true(read_union_size(n_most) <= PI_LEN(set));
        assert_int_equal(n, pi_min(n_most, 7));
        assert_memory_equal(out, expected, (size_t)n * sizeof(*out));
    }
}

/* As many different positions as there are, which collide wherever they can. */
TEST(takes_as_many_different_positions_as_there_are)
{
    enum { N = 500, HEADS = 6 };
    static int32_t lists[HEADS][N];
    const int32_t *best[HEADS];
    int32_t n_best[HEADS], out[N], set[2048];
    uint64_t rng = 3;
    for (int32_t round = 0; round < 20; round++) {
        bool seen[4 * N] = {0};
        int32_t n_most = 1 + (int32_t)rng_below(&rng, N), n_expected = 0, expected[N];
        for (int32_t h = 0; h < HEADS; h++) {
            best[h] = lists[h];
            n_best[h] = (int32_t)rng_below(&rng, N + 1);
            for (int32_t i = 0; i < n_best[h]; i++)
                lists[h][i] = (int32_t)rng_below(&rng, 4 * N);
        }
        for (int32_t i = 0; i < N; i++)
            for (int32_t h = 0; h < HEADS; h++)
                if (i < n_best[h] && n_expected < n_most && !seen[lists[h][i]]) {
                    seen[lists[h][i]] = true;
                    expected[n_expected++] = lists[h][i];
                }
        int32_t n = read_unite(best, n_best, HEADS, n_most, out, set);
        assert_int_equal(n, n_expected);
        assert_memory_equal(out, expected, (size_t)n * sizeof(*out));
    }
}
