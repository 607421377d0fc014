/*
 * The rules that reach across lanes: sets of lanes that keep the same positions, segments, and a
 * pinned prompt. Also budgets that layers and heads share, and rounds that wait for a batch.
 * Vectors come from the authors' code where it was run or traced. The rest is compared with a
 * second implementation of the rules, position by position.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>

#include "testing.h"

#include "choose_kept.h"
#include "base/mem.h"
#include "kv_check.h"
#include "policy/keep/rules/keep.h"
#include "status.h"

/* ---- choosing: TheTom's V1, V2 and V3 on 40 cells ---- */

#define N_CELL 40
#define N_EVICT_MAX 10

static const float cells_score[2][N_CELL] = {
    {2.5f, 2.3f, 3.1f, 3.7f, 2.8f, 3.9f, 0.5f, 2.6f, 1.4f, 0.2f, 1.7f, 1.9f, 1.8f, 0.6f,
     2.4f, 1.2f, 0.9f, 1.3f, 3.6f, 1.1f, 1.6f, 2.2f, 3.0f, 3.5f, 3.4f, 1.0f, 0.4f, 0.3f,
     2.0f, 0.1f, 4.0f, 2.9f, 3.2f, 2.7f, 1.5f, 0.7f, 3.8f, 3.3f, 2.1f, 0.8f},
    {2.5f, 2.3f, 3.1f,  3.7f,  2.8f,  3.9f,  2.6f,  1.4f, 1.7f,  1.9f,  1.8f,  2.4f, 1.2f, 1.3f,
     3.6f, 1.6f, 2.2f,  3.0f,  3.5f,  3.4f,  2.0f,  4.0f, 2.9f,  3.2f,  2.7f,  1.5f, 3.8f, 3.3f,
     2.1f, 0.8f, 0.05f, 2.64f, 1.53f, 0.42f, 3.01f, 1.9f, 0.79f, 3.38f, 2.27f, 1.16f},
};
static const int32_t cells_second[N_CELL] = {0,  1,  2,  3,  4,  5,  7,  8,  10, 11, 12, 14, 15, 17,
                                             18, 20, 21, 22, 23, 24, 28, 30, 31, 32, 33, 34, 36, 37,
                                             38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49};

static const struct {
    int32_t set, version;
    bool fork; /* evicts the highest score */
    int32_t gone[N_EVICT_MAX];
} chosen[] = {
    {0, 1, true, {2, 3, 5, 18, 22, 23, 24, 30, 31, 32}},
    {0, 1, false, {6, 9, 13, 16, 19, 25, 26, 27, 29, 35}},
    {0, 2, true, {2, 3, 5, 11, 14, 18, 23, 24, 30, 32}},
    {0, 2, false, {6, 8, 9, 13, 16, 25, 26, 27, 29, 35}},
    {0, 3, true, {4, 5, 14, 18, 22, 23, 24, 30, 31, 32}},
    {0, 3, false, {6, 9, 13, 16, 19, 25, 26, 27, 29, 35}},
    {1, 1, true, {2, 3, 5, 18, 23, 24, 30, 32, 36, 37}},
    {1, 1, false, {8, 10, 15, 17, 20, 34, 39, 40, 42, 43}},
    {1, 2, true, {3, 5, 18, 22, 23, 24, 30, 32, 36, 37}},
    {1, 2, false, {8, 10, 15, 17, 28, 34, 39, 40, 42, 43}},
    {1, 3, true, {4, 5, 18, 23, 24, 30, 32, 36, 37, 44}},
    {1, 3, false, {8, 10, 15, 17, 20, 34, 39, 40, 42, 43}},
    {2, 1, true, {0, 1, 2, 3, 4, 5, 7}},
    {2, 1, false, {0, 1, 2, 3, 4, 6, 7}},
    {2, 2, true, {0, 1, 2, 3, 4, 5, 7}},
    {2, 2, false, {0, 1, 2, 3, 4, 6, 7}},
};

TEST(segments_evict_evenly)
{
    for (size_t c = 0; c < PI_LEN(chosen); c++) {
        int32_t set = chosen[c].set, n = set == 2 ? 12 : N_CELL, n_evict = set == 2 ? 7 : 10;
        int32_t pos[N_CELL], slots[N_CELL], n_gone = 0;
        float score[N_CELL];
        for (int32_t i = 0; i < n; i++) {
            pos[i] = set == 1 ? cells_second[i] : i;
            score[i] = cells_score[set == 1][i] * (chosen[c].fork ? -1.0f : 1.0f);
        }
        struct keep_span span = {chosen[c].version == 3 ? 4 : 0, pos[n - 1] + 1 - 4};
        int32_t n_kept =
            choose_kept(pos, score, n, span, chosen[c].version == 1 ? 0 : 4, n_evict, slots);
        assert_int_equal(n_kept, n - n_evict);
        for (int32_t i = 0, j = 0; i < n; i++)
            if (j < n_kept && slots[j] == i)
                j++;
            else if (n_gone < n_evict && chosen[c].gone[n_gone] == pos[i])
                n_gone++;
            else
                fail_msg("case %zu: position %d went", c, pos[i]);
        assert_int_equal(n_gone, n_evict);
    }
}

/* ---- shares ---- */

#define LIMITS " above zero, up to 1e+09"

TEST(splits_are_read_and_sum_up)
{
    double w[4];
    check(keep_split_read("layers", "even", 4, w, &err), &err);
    assert_true(w[0] == 1.0 && w[3] == 1.0);
    /* PyramidKV with a mean of 60 and beta 20: 117, 79, 41, 3. */
    check(keep_split_read("layers", "pyramid:20", 4, w, &err), &err);
    assert_true(fabs(w[0] * 60 - 117) < 1e-9 && fabs(w[1] * 60 - 79) < 1e-9);
    assert_true(fabs(w[2] * 60 - 41) < 1e-9 && fabs(w[3] * 60 - 3) < 1e-9);
    check(keep_split_read("layers", "pyramid:20", 1, w, &err), &err);
    assert_true(w[0] == 1.0);
    check(keep_split_read("heads", "1/2/1/4", 4, w, &err), &err);
    assert_true(w[0] == 0.5 && w[1] == 1.0 && w[2] == 0.5 && w[3] == 2.0);
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"1/2", "keep: heads: 2 numbers, and 4 are shared among"},
        {"1/2/3/4/5", "keep: heads: 5 numbers, and 4 are shared among"},
        {"1/0/1/1", "keep: heads: number 2, at \"0/1/1\", is not a number" LIMITS},
        {"1/x/1/1", "keep: heads: number 2, at \"x/1/1\", is not a number" LIMITS},
        {"1//1/1", "keep: heads: number 2, at \"/1/1\", is not a number" LIMITS},
        {"1e30/1/1/1", "keep: heads: number 1, at \"1e30/1/1/1\", is not a number" LIMITS},
        {"50%", "keep: heads: number 1, at \"50%\", is not a number" LIMITS},
        {"", "keep: heads: it is empty: even, pyramid:BETA, numbers (1/2/1) or a file"},
        {"pyramid:0.5", "keep: heads: \"pyramid:0.5\" has no number in 1..1e6"},
        {"pyramid:", "keep: heads: \"pyramid:\" has no number in 1..1e6"},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        assert_int_equal(keep_split_read("heads", cases[i].text, 4, w, &err), PITH_INVALID);
        assert_string_equal(err.message, cases[i].says);
    }
    assert_int_equal(keep_split_read("heads", "/nowhere/shares", 4, w, &err), PITH_IO);
    assert_non_null(strstr(err.message, "keep: heads: /nowhere/shares: cannot open"));
    char path[] = "/tmp/pith-shares-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "3\n1\n2\n2\n", 8) == 8);
    close(fd);
    check(keep_split_read("heads", path, 4, w, &err), &err);
    assert_true(w[0] == 1.5 && w[1] == 0.5 && w[2] == 1.0);
    unlink(path);
}

/* ---- a policy for the tests ---- */

#define N_LAYER 2
#define N_HEAD 2
#define N_LANE (N_LAYER * N_HEAD)

static const struct policy_model model = {
    .g = {N_LAYER, N_HEAD, 8, 4, 16, KV_TYPE_F32, KV_TYPE_F16}, .n_group = 1, .scale = 1.0f};

/* Small whole numbers, so that means are exact and there are ties. */
static float opinion(int32_t layer, int32_t head, int32_t pos)
{
    uint64_t key = (uint64_t)pos * 64 + (uint64_t)layer * 8 + (uint64_t)head;
    return (float)rng_below(&key, 16) - 7.0f;
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    int32_t n = 0;
    (void)params;
    assert_ptr_equal(view->model->rope, NULL);
    for (int32_t i = 0; i < lane->n; i++) {
        out[i] = lane->evictable[i] ? opinion(lane->layer, lane->head, lane->pos[i]) : NAN;
        n += lane->evictable[i];
    }
    assert_int_equal(n, lane->n_evictable);
    assert_true(n > 0);
}

static const struct keep_policy policy = {
    .name = "whole", .summary = "whole numbers", .citation = "", .score = score};

static struct keep *make(const struct keep_policy *p, const char *options,
                         const struct policy_model *m, struct keep_config *config)
{
    struct keep *keep = NULL;
    check(keep_config_set(p, options, config, &err), &err);
    check(keep_config_fit(config, &m->g, &err), &err);
    check(keep_create(config, m, 2, &keep, &err), &err);
    return keep;
}

TEST(refuses_contradictions)
{
    static const struct {
        const char *options, *says;
    } cases[] = {
        {"granularity=heads",
         "keep: granularity: \"heads\" is none of all, head, layer, layer-head"},
        {"granularity=all,layers=1/2", "keep: layers: 1/2: with granularity all every layer keeps"},
        {"granularity=head,layers=pyramid:3",
         "keep: layers: pyramid:3: with granularity head every layer"},
        {"granularity=layer,heads=1/2", "keep: heads: 1/2: with granularity layer every KV head"},
        {"budget=30,window=8,layers=1/9",
         "keep: a budget of 6 entries is smaller than the 8 that are protected: the first 0 and "
         "the last 8"},
        {"budget=4,layers=1/99", "keep: layer 0, KV head 0: its part of a budget of 4 entries is "
                                 "less than one"},
        {"layers=1/2/3", "keep: layers: 3 numbers, and 2 are shared among"},
        {"pin-prompt=yes", "keep: pin-prompt: \"yes\" is none of off, on"},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct keep_config c;
        pith_status status = keep_config_set(&policy, cases[i].options, &c, &err);
        if (status == PITH_OK)
            status = keep_config_fit(&c, &model.g, &err);
        assert_int_equal(status, PITH_INVALID);
        if (strncmp(err.message, cases[i].says, strlen(cases[i].says)) != 0)
            fail_msg("%s: says \"%s\"", cases[i].options, err.message);
    }
}

/* ---- the selection modes of the TriAttention authors ---- */

static const float heads[8][7] = {
    {-1.45f, -1.26f, -1.14f, 0.63f, -0.75f, 0.98f, -0.86f},
    {1.14f, -0.09f, -2.23f, 0.04f, 0.17f, -1.28f, 0.47f},
    {-1.52f, -0.85f, -0.08f, -0.03f, 0.35f, 1.71f, -0.44f},
    {-0.25f, 0.27f, 1.56f, -0.13f, -1.22f, -0.09f, 0.48f},
    {0.73f, -0.4f, 0.72f, 0.24f, -1.53f, -0.66f, 0.39f},
    {-0.11f, 1.34f, 0.21f, 2.44f, -0.51f, -1.63f, -1.25f},
    {-0.98f, -0.83f, 0.38f, -1.0f, -0.29f, 0.48f, -0.27f},
    {2.07f, -0.32f, -0.22f, -0.48f, 0.84f, 0.17f, 2.04f},
};

/* The maximum over the two query heads of a KV head, as the policy gives it. */
static void matrix_score(const void *params, const struct keep_view *view,
                         const struct keep_lane *lane, float *out)
{
    (void)params;
    (void)view;
    const float(*row)[7] = &heads[4 * lane->layer + 2 * lane->head];
    for (int32_t i = 0; i < lane->n; i++)
        out[i] =
            lane->pos[i] < 2 ? 0.0f : fmaxf(row[0][lane->pos[i] - 2], row[1][lane->pos[i] - 2]);
}

static void append(struct kv_seq *kv, const struct policy_model *m, int32_t pos0, int32_t n)
{
    check(kv_seq_reserve(kv, n, &err), &err);
    for (int32_t l = 0; l < m->g.n_layer; l++)
        for (int32_t h = 0; h < m->g.n_head; h++)
            for (int32_t i = 0; i < n; i++) {
                float k[8], v[4] = {0};
                kv_check_row((uint64_t)((pos0 + i) * N_LANE + l * N_HEAD + h), k, 8);
                kv_seq_append(kv, l, h, pos0 + i, 1, k, 8, v, 4);
            }
}

TEST(selects_as_the_authors_do_in_each_mode)
{
    static const struct keep_policy matrix = {
        .name = "matrix", .summary = "a table", .citation = "", .score = matrix_score};
    static const struct {
        const char *options;
        int32_t kept[N_LANE][5];
    } cases[] = {
        {"granularity=head,combine=mean",
         {{0, 1, 2, 3, 5}, {0, 1, 4, 7, 8}, {0, 1, 2, 3, 5}, {0, 1, 4, 7, 8}}},
        {"granularity=layer-head",
         {{0, 1, 2, 5, 7}, {0, 1, 4, 7, 8}, {0, 1, 2, 3, 5}, {0, 1, 2, 6, 8}}},
        /* The authors' "union". An entry among the best by maximum is among the best of the head
           that gives the maximum. So the union of the heads' choices adds nothing. */
        {"granularity=all,combine=max",
         {{0, 1, 2, 5, 8}, {0, 1, 2, 5, 8}, {0, 1, 2, 5, 8}, {0, 1, 2, 5, 8}}},
    };
    for (size_t c = 0; c < PI_LEN(cases); c++) {
        char options[96];
        struct keep_config config;
        struct keep_tally tally = {0};
        struct kv_seq *kv;
        snprintf(options, sizeof(options), "%s,budget=5,slack=4,pin-prompt=on", cases[c].options);
        struct keep *keep = make(&matrix, options, &model, &config);
        struct kv_cache *cache = kv_check_cache(&model.g, 16);
        struct keep_point at = {0, 2, 0.0, 0};
        check(kv_seq_create(cache, &kv, &err), &err);
        check(keep_prepare(keep, kv, at, 9, &err), &err);
        append(kv, &model, 0, 9);
        struct keep_view view = {.kv = kv, .n_token = 9, .n_prompt = 2};
        at.n_token = 9;
        assert_true(keep_due(keep, kv, at, 0));
        check(keep_round(keep, kv, &view, &tally, &err), &err);
        for (int32_t l = 0; l < N_LANE; l++) {
            int32_t pos[9], n = kv_lane_len(kv, l / N_HEAD, l % N_HEAD);
            assert_int_equal(n, 5);
            kv_lane_positions(kv, l / N_HEAD, l % N_HEAD, pos, n);
            assert_memory_equal(pos, cases[c].kept[l], sizeof(cases[c].kept[l]));
        }
        kv_seq_free(kv);
        keep_free(keep);
        kv_cache_free(cache);
    }
}

/* ---- triggers ---- */

/* One lane, appended to as in the engine; the rounds that run and the entries that each drops. */
static int32_t run_lane(const char *options, int32_t n_prompt, int32_t n_token, int32_t first,
                        int32_t *at_token, int32_t *dropped)
{
    static const struct policy_model one = {.g = {1, 1, 8, 4, 64, KV_TYPE_F32, KV_TYPE_F16}};
    struct keep_config config;
    struct keep_tally tally = {0};
    struct kv_seq *kv;
    struct keep *keep = make(&keep_streaming, options, &one, &config);
    struct kv_cache *cache = kv_check_cache(&one.g, (n_token + 63) / 64 + 2);
    struct keep_point at = {0, n_prompt, 0.0, 0};
    int32_t n_round = 0;
    check(kv_seq_create(cache, &kv, &err), &err);
    while (at.n_token < n_token) {
        int32_t n = at.n_token == 0 ? first : n_token - at.n_token;
        check(keep_prepare(keep, kv, at, n, &err), &err);
        for (int32_t left = n; left > 0;) {
            int32_t take = keep_room(keep, kv, at, left);
            append(kv, &one, at.n_token, take);
            at.n_token += take;
            left -= take;
            if (!keep_due(keep, kv, at, n_token - at.n_token))
                continue;
            struct keep_view view = {.kv = kv, .n_token = at.n_token, .n_prompt = n_prompt};
            int32_t before = kv_lane_len(kv, 0, 0);
            check(keep_round(keep, kv, &view, &tally, &err), &err);
            at_token[n_round] = at.n_token;
            dropped[n_round++] = before - kv_lane_len(kv, 0, 0);
            for (int32_t i = 0; i < n_prompt; i++)
                assert_int_equal(kv_lane_pos(kv, 0, 0, i), i);
        }
    }
    kv_seq_free(kv);
    keep_free(keep);
    kv_cache_free(cache);
    return n_round;
}

/* The rounds of the V3 paper's perplexity tables, three chunks each: 18, 27 and 36. */
TEST(rounds_of_a_batch_are_those_of_the_paper)
{
    static const struct {
        int32_t ctx, batch, budget, rounds, first, dropped;
    } cases[] = {
        {32768, 512, 29491, 6, 29696, 205},  {32768, 512, 27853, 9, 28160, 307},
        {65536, 512, 58982, 12, 59392, 410}, {32768, 2048, 29491, 1, 30720, 1229},
        {32768, 32768, 29491, 0, 0, 0},
    };
    for (size_t c = 0; c < PI_LEN(cases); c++) {
        char options[96];
        int32_t at[16], dropped[16];
        snprintf(options, sizeof(options), "budget=%d,prefix=128,window=128,batch=%d",
                 cases[c].budget, cases[c].batch);
        assert_int_equal(run_lane(options, 0, cases[c].ctx, cases[c].ctx, at, dropped),
                         cases[c].rounds);
        for (int32_t i = 0; i < cases[c].rounds; i++) {
            assert_int_equal(at[i], cases[c].first + i * cases[c].batch);
            assert_int_equal(dropped[i], i == 0 ? cases[c].dropped : cases[c].batch);
        }
    }
}

/* The TriAttention paper's runs: budget 16, slack 4, a prompt of 6 pinned. */
TEST(rounds_with_slack_are_those_of_the_paper)
{
    int32_t at[16], dropped[16];
    int32_t n = run_lane("budget=16,slack=4,sinks=0,pin-prompt=on", 6, 36, 6, at, dropped);
    assert_int_equal(n, 5);
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(at[i], 20 + 4 * i);
        assert_int_equal(dropped[i], 4);
    }
    /* Where the authors' code cuts the prompt's end off, it is not pinned: above half of the
       budget, and where the window leaves no room. */
    struct keep_config config;
    struct keep *keep =
        make(&keep_streaming, "budget=16,slack=4,pin-prompt=on,window=2", &model, &config);
    assert_int_equal(keep_pinned_prompt(&config.rules, 8, 0.0), 8);
    assert_int_equal(keep_pinned_prompt(&config.rules, 9, 0.0), 0);
    assert_int_equal(keep_pinned_prompt(&config.rules, 4, 0.5), 4); /* of a budget of its own */
    assert_int_equal(keep_pinned_prompt(&config.rules, 5, 0.5), 0);
    assert_int_equal(keep_pinned_prompt(&config.rules, 1000, INFINITY), 1000);
    assert_int_equal(keep_check_prompt(keep, (struct keep_point){0, 1000, 0.0, 0}, &err), PITH_OK);
    keep_free(keep);
    keep = make(&keep_streaming, "budget=16,slack=4,pin-prompt=on,window=12", &model, &config);
    assert_int_equal(keep_pinned_prompt(&config.rules, 4, 0.0), 4);
    assert_int_equal(keep_pinned_prompt(&config.rules, 5, 0.0), 0);
    keep_free(keep);
}

/* ---- random histories, with the rules written down again for sets ---- */

#define MAX_SEQ 3
#define MAX_LEN 240

struct history {
    struct kv_seq *kv;
    int32_t n_token;
    int32_t n_prompt;
    bool has[N_LANE][MAX_LEN];
};

static struct {
    struct kv_cache *cache;
    struct keep *keep;
    struct keep_config config;
    uint64_t rng;
    struct history h[MAX_SEQ];
    struct keep_tally tally;
    int64_t n_round, n_over;
} world;

static int32_t set_of(int32_t lane)
{
    static const int32_t of[][N_LANE] = {
        [KEEP_ALL] = {0, 0, 0, 0},
        [KEEP_HEAD] = {0, 1, 0, 1},
        [KEEP_LAYER] = {0, 0, 1, 1},
        [KEEP_LAYER_HEAD] = {0, 1, 2, 3},
    };
    return of[world.config.rules.granularity][lane];
}

static int32_t budget_of(const struct history *h, int32_t lane)
{
    struct keep_point at = {h->n_token, h->n_prompt, 0.0, 0};
    return keep_lane_budget_at(&world.config, lane / N_HEAD, lane % N_HEAD, at);
}

static int32_t count(const bool *has)
{
    int32_t n = 0;
    for (int32_t i = 0; i < MAX_LEN; i++)
        n += has[i];
    return n;
}

/* Positions of a set, and their scores. */
static void weigh_set(const struct history *h, int32_t set, bool *in, double *worth)
{
    for (int32_t p = 0; p < MAX_LEN; p++) {
        int32_t n = 0;
        double sum = 0.0, max = -1e9;
        for (int32_t l = 0; l < N_LANE; l++)
            if (set_of(l) == set && h->has[l][p]) {
                double x = opinion(l / N_HEAD, l % N_HEAD, p);
                sum += x;
                max = fmax(max, x);
                n++;
            }
        in[p] = n > 0;
        worth[p] = world.config.rules.combine == KEEP_MAX ? max : n > 0 ? sum / n : 0.0;
    }
}

/* The lowest of a part of the set's evictable positions, the first of equals; -1: none. */
static int32_t lowest(const bool *in, const double *worth, int32_t begin, int32_t end)
{
    int32_t best = -1;
    for (int32_t p = begin; p < end; p++)
        if (in[p] && (best < 0 || worth[p] < worth[best]))
            best = p;
    return best;
}

static void expect_set(struct history *h, int32_t set, int32_t budget)
{
    const struct keep_rules *r = &world.config.rules;
    bool in[MAX_LEN];
    double worth[MAX_LEN];
    int32_t n_sink = r->sinks, lo = 0, hi = h->n_token - r->window, n_all = 0;
    weigh_set(h, set, in, worth);
    for (int32_t p = 0; p < MAX_LEN && n_sink > 0; p++)
        if (in[p]) {
            lo = p + 1;
            n_sink--;
        }
    lo = (int32_t)pi_max(lo, pi_max(r->prefix, keep_pinned_prompt(r, h->n_prompt, 0.0)));
    int32_t n_evict = count(in) - budget;
    for (int32_t p = lo; p < hi; p++)
        n_all += in[p];
    int32_t left = n_evict;
    for (int32_t s = 0; n_evict > 0 && s < r->segments; s++) {
        int32_t begin = lo, end, n = 0;
        while ((begin - lo) * r->segments / (hi - lo) < s)
            begin++;
        for (end = begin; end < hi && (end - lo) * r->segments / (hi - lo) == s; end++)
            n += in[end];
        for (int32_t i = n * n_evict / n_all; i > 0; i--, left--)
            in[lowest(in, worth, begin, end)] = false;
    }
    for (; left > 0; left--)
        in[lowest(in, worth, lo, hi)] = false;
    for (int32_t l = 0; l < N_LANE; l++)
        for (int32_t p = 0; set_of(l) == set && p < MAX_LEN; p++)
            h->has[l][p] = h->has[l][p] && in[p];
}

/* The entries after a round, whether or not the lanes of a set agreed before. */
static void expect_round(struct history *h)
{
    for (int32_t l = 0; l < N_LANE; l++)
        if (l == 0 || set_of(l) > set_of(l - 1))
            expect_set(h, set_of(l), budget_of(h, l));
}

static void check_history(const struct history *h)
{
    int32_t pos[MAX_LEN];
    for (int32_t l = 0; l < N_LANE; l++) {
        int32_t n = kv_lane_len(h->kv, l / N_HEAD, l % N_HEAD);
        assert_int_equal(n, count(h->has[l]));
        kv_lane_positions(h->kv, l / N_HEAD, l % N_HEAD, pos, n);
        for (int32_t i = 0; i < n; i++) {
            float row[8], got[8];
            assert_true(h->has[l][pos[i]]);
            kv_check_row((uint64_t)(pos[i] * N_LANE + l), row, 8);
            kv_lane_key(h->kv, l / N_HEAD, l % N_HEAD, i, got);
            if (i % 5 == 0)
                assert_memory_equal(got, row, sizeof(got));
        }
    }
}

static void grow(struct history *h, int32_t n)
{
    struct keep_point at = {h->n_token, h->n_prompt, 0.0, 0};
    check(keep_prepare(world.keep, h->kv, at, n, &err), &err);
    for (int32_t left = n;;) {
        if (keep_due(world.keep, h->kv, at, left)) {
            struct keep_view view = {.kv = h->kv, .n_token = at.n_token, .n_prompt = at.n_prompt};
            expect_round(h);
            check(keep_round(world.keep, h->kv, &view, &world.tally, &err), &err);
            check_history(h);
            for (int32_t l = 0; l < N_LANE; l++)
                assert_true(count(h->has[l]) <= budget_of(h, l));
            world.n_round++;
        }
        if (left == 0)
            return;
        int32_t take = keep_room(world.keep, h->kv, at, left);
        append(h->kv, &model, at.n_token, take);
        for (int32_t l = 0; l < N_LANE; l++)
            memset(&h->has[l][at.n_token], 1, (size_t)take);
        left -= take;
        h->n_token = at.n_token += take;
        const struct keep_rules *r = &world.config.rules;
        int64_t bytes = 0;
        for (int32_t l = 0; l < N_LANE; l++) {
            world.n_over += count(h->has[l]) > budget_of(h, l) + r->slack + r->batch;
            bytes +=
                kv_lane_pages(h->kv, l / N_HEAD, l % N_HEAD) * (int64_t)kv_page_bytes(&model.g);
        }
        if (r->budget.unit == POLICY_UNIT_BYTES)
            world.n_over += bytes > r->budget.value;
    }
}

static void restart(struct history *h)
{
    kv_seq_free(h->kv);
    memset(h, 0, sizeof(*h));
    check(kv_seq_create(world.cache, &h->kv, &err), &err);
}

static void random_step(void)
{
    struct history *a = &world.h[rng_below(&world.rng, MAX_SEQ)];
    struct history *b = &world.h[rng_below(&world.rng, MAX_SEQ)];
    uint64_t what = rng_below(&world.rng, 40);
    int32_t n = 1 + (int32_t)rng_below(&world.rng, 12);
    if (a->n_token + n > MAX_LEN || what == 0) {
        restart(a);
        a->n_prompt = (int32_t)rng_below(&world.rng, 6);
    } else if (what == 1 && a != b) {
        struct kv_seq *kv;
        check(kv_seq_fork(a->kv, &kv, &err), &err);
        kv_seq_free(b->kv);
        *b = *a;
        b->kv = kv;
    } else if (what == 2) {
        int32_t to = (int32_t)rng_below(&world.rng, (uint64_t)a->n_token + 1);
        kv_seq_truncate(a->kv, to);
        for (int32_t l = 0; l < N_LANE; l++)
            memset(&a->has[l][to], 0, (size_t)(MAX_LEN - to));
        a->n_token = to;
    } else {
        grow(a, n);
    }
}

static void open_world(const char *options)
{
    world.keep = make(&policy, options, &model, &world.config);
}

static void run_histories(const char *options, int32_t n_step)
{
    memset(&world, 0, sizeof(world));
    world.rng = 5;
    world.cache = kv_check_cache(&model.g, 400);
    open_world(options);
    for (int32_t i = 0; i < MAX_SEQ; i++)
        restart(&world.h[i]);
    n_step /= TEST_STRIDE;
    for (int32_t s = 0; s < n_step; s++) {
        random_step();
        if (s % 50 == 0)
            kv_check_account(world.cache, 0);
    }
    if (world.n_over != 0)
        fail_msg("%s: %lld times more than budget, slack and batch", options,
                 (long long)world.n_over);
    assert_true(world.n_round > n_step / 20);
    for (int32_t i = 0; i < MAX_SEQ; i++)
        kv_seq_free(world.h[i].kv);
    keep_free(world.keep);
    kv_cache_free(world.cache);
    if (pi_mem_used(PI_MEM_SCRATCH) != 0)
        fail_msg("%s: %lld bytes leaked", options, (long long)pi_mem_used(PI_MEM_SCRATCH));
}

TEST(the_rules_hold_through_random_histories)
{
    run_histories("budget=40,slack=8,granularity=all", 10000);
    run_histories("budget=40,slack=8,granularity=head,combine=max,sinks=3,window=5", 10000);
    run_histories("budget=40,slack=8,granularity=layer,segments=8,prefix=8,window=8", 10000);
    run_histories("budget=40,slack=8,granularity=layer-head,segments=3", 10000);
    run_histories("budget=50%,slack=6,granularity=all,pin-prompt=on,window=3,segments=4", 4000);
    run_histories("budget=40,slack=8,layers=3/1,heads=1/2,pin-prompt=on", 10000);
    run_histories("budget=70%,slack=5,layers=3/1,heads=pyramid:2,segments=5", 10000);
    run_histories("budget=30,slack=4,granularity=head,heads=1/3,batch=16", 4000);
    run_histories("budget=32KiB,slack=4,layers=pyramid:3,batch=5", 4000);
    run_histories("budget=20KiB,slack=7,granularity=layer,layers=1/2", 10000);
}

/* ---- sequences that another granularity made ---- */

TEST(lanes_that_differed_come_to_hold_the_same_positions)
{
    static const char *const then[] = {"budget=24,slack=6,granularity=all",
                                       "budget=24,slack=6,granularity=head,combine=max",
                                       "budget=24,slack=6,granularity=layer,segments=4"};
    for (size_t c = 0; c < PI_LEN(then); c++) {
        memset(&world, 0, sizeof(world));
        world.cache = kv_check_cache(&model.g, 400);
        restart(&world.h[0]);
        open_world("budget=30,slack=10,granularity=layer-head");
        grow(&world.h[0], 100);
        keep_free(world.keep);
        assert_true(memcmp(world.h[0].has[0], world.h[0].has[1], MAX_LEN) != 0);
        open_world(then[c]);
        for (int32_t n = 0; n < 100; n += 10)
            grow(&world.h[0], 10);
        for (int32_t l = 1; l < N_LANE; l++) /* by now every old entry went or is in all lanes */
            assert_true(count(world.h[0].has[l]) < 30);
        assert_true(world.n_round > 10);
        kv_seq_free(world.h[0].kv);
        keep_free(world.keep);
        kv_cache_free(world.cache);
    }
}
