/*
 * The scores of the control policies, against vectors of the authors' formulas. Also the calls of a
 * policy and their arguments, and the pinned prompt.
 */
#include <math.h>
#include <string.h>

#include "testing.h"

#include "keep_engine.h"
#include "kv_check.h"
#include "kv_shape.h"

/* ---- scores of a lane ---- */

#define DIM 4

static const float keys_a[6][DIM] = {
    {-1.0f, 1.125f, 1.25f, -0.125f}, {-1.25f, 1.125f, 0.5f, 0.125f},
    {0.625f, -1.5f, 1.125f, -0.75f}, {0.0f, 0.0f, -0.625f, -0.75f},
    {-1.75f, -0.5f, 0.375f, -1.0f},  {-0.125f, 0.625f, -1.125f, 1.375f},
};
static const float keys_b[10][DIM] = {
    {0.51f, 0.8f, 0.99f, -0.47f},   {-0.84f, 0.46f, -0.34f, 0.96f}, {-0.3f, 0.86f, -0.46f, -0.69f},
    {0.65f, 0.34f, -0.1f, -0.82f},  {-0.04f, 0.34f, 0.56f, 0.94f},  {0.45f, -0.71f, 0.89f, 0.48f},
    {0.46f, -0.8f, -0.34f, -0.26f}, {0.33f, 0.05f, 0.23f, 0.4f},    {-0.48f, -0.11f, 0.34f, -0.25f},
    {-0.2f, 0.9f, 0.1f, 0.44f},
};

/* Scores of one policy for keys in a cache of one lane. */
static void score_keys(const struct keep_policy *policy, const float *keys, int32_t n, int32_t dim,
                       enum kv_type type, float *out)
{
    struct kv_geometry g = KV_SHAPE(1, 1, dim, dim, 16, type, KV_TYPE_F32);
    struct policy_model facts = {.g = g, .n_group = 1, .scale = 1.0f};
    struct kv_cache *cache = kv_check_cache(&g, n / 16 + 2);
    struct kv_seq *kv;
    struct keep_config config;
    int32_t *pos = calloc((size_t)n, sizeof(*pos));
    bool *evictable = calloc((size_t)n, sizeof(*evictable));
    check(kv_seq_create(cache, &kv, &err), &err);
    check(kv_seq_reserve(kv, n, &err), &err);
    kv_seq_append(kv, 0, 0, 0, n, keys, (size_t)dim, keys, (size_t)dim);
    kv_lane_positions(kv, 0, 0, pos, n);
    memset(evictable, 1, (size_t)n);
    check(keep_config_set(policy, NULL, &config, &err), &err);
    size_t size =
        policy->scratch_size != NULL ? policy->scratch_size(&config.params, &facts, NULL, n) : 0;
    void *scratch = malloc(size + 1);
    memset(scratch, 0xff, size + 1);
    struct keep_view view = {.kv = kv, .n_token = n, .model = &facts};
    struct keep_lane lane = {
        .n = n, .pos = pos, .evictable = evictable, .n_evictable = n, .scratch = scratch};
    policy->score(&config.params, &view, &lane, out);
    free(scratch);
    free(evictable);
    free(pos);
    kv_seq_free(kv);
    kv_cache_free(cache);
}

static void expect_scores(const struct keep_policy *policy, const float (*keys)[DIM], int32_t n,
                          const double *want)
{
    float got[16];
    score_keys(policy, &keys[0][0], n, DIM, KV_TYPE_F32, got);
    for (int32_t i = 0; i < n; i++)
        if (fabs(got[i] - want[i]) > 1e-6)
            fail_msg("%s: entry %d: %.9f is not %.9f", policy->name, i, got[i], want[i]);
}

TEST(scores_as_their_authors_do)
{
    static const double knorm[6] = {-1.9605483927, -1.7589059099, -2.1139418157,
                                    -0.9762812095, -2.110242877,  -1.8874586088};
    static const double keydiff_a[6] = {-0.7385453294, -0.8081193078, 0.2089269254,
                                        -0.1909963084, -0.8637140862, 0.2546710237};
    static const double keydiff_b[10] = {-0.80111208,  -0.115281346, 0.024527531, -0.034746697,
                                         -0.751276987, -0.300320407, 0.71442395,  -0.644833799,
                                         -0.010370845, -0.703442048};
    expect_scores(&keep_knorm, keys_a, 6, knorm);
    expect_scores(&keep_keydiff, keys_a, 6, keydiff_a);
    expect_scores(&keep_keydiff, keys_b, 10, keydiff_b);
    /* score_keys stores keys as values, too. */
    double vnorm[6];
    for (int32_t i = 0; i < 6; i++)
        vnorm[i] = -knorm[i];
    expect_scores(&keep_vnorm, keys_a, 6, vnorm);
}

/* The same for every storage type, over several pages, to the precision of the type. The stored key
   of a rotated type is longer than the key by the cosine: 6 % in turbo2. */
TEST(scores_follow_every_storage_type)
{
    enum { N = 100, WIDE = 64 };
    static float keys[N * WIDE];
    static const struct keep_policy *const policies[] = {&keep_knorm, &keep_keydiff};
    static const double tolerance[KV_N_TYPE] = {
        [KV_TYPE_F32] = 1e-5,   [KV_TYPE_F16] = 2e-3,    [KV_TYPE_Q8_0] = 2e-2,
        [KV_TYPE_Q4_0] = 0.3,   [KV_TYPE_TURBO4] = 0.05, [KV_TYPE_TURBO3] = 0.2,
        [KV_TYPE_TURBO2] = 0.6, [KV_TYPE_BF16] = 2e-2,
    };
    uint64_t rng = 3;
    for (int32_t i = 0; i < N * WIDE; i++)
        keys[i] = rng_float(&rng) + (i % WIDE == 5 ? 1.0f : 0.0f);
    for (size_t p = 0; p < PI_LEN(policies); p++)
        for (int32_t type = 0; type < KV_N_TYPE; type++) {
            float got[N];
            score_keys(policies[p], keys, N, WIDE, (enum kv_type)type, got);
            for (int32_t i = 0; i < N; i++) {
                double norm = 0.0, dot = 0.0, length = 0.0, anchor[WIDE] = {0};
                for (int32_t j = 0; j < N; j++) {
                    double of_key = 0.0;
                    for (int32_t d = 0; d < WIDE; d++)
                        of_key += (double)keys[j * WIDE + d] * keys[j * WIDE + d];
                    for (int32_t d = 0; d < WIDE; d++)
                        anchor[d] += keys[j * WIDE + d] / sqrt(of_key) / N;
                    norm = j == i ? sqrt(of_key) : norm;
                }
                for (int32_t d = 0; d < WIDE; d++) {
                    dot += keys[i * WIDE + d] * anchor[d];
                    length += anchor[d] * anchor[d];
                }
                double want = p == 0 ? -norm : -dot / (norm * sqrt(length));
                if (fabs(got[i] - want) > tolerance[type])
                    fail_msg("%s, type %d, entry %d: %f is not %f", policies[p]->name, type, i,
                             got[i], want);
            }
        }
}

/* Lots are spread evenly, differ between seeds and lanes, and stay with the position. */
TEST(random_lots_are_even_and_stay)
{
    enum { N = 4096 };
    static int32_t pos[N];
    static float first[N], other[N];
    double sum = 0.0, product = 0.0;
    for (int32_t i = 0; i < N; i++)
        pos[i] = 7 * i;
    struct keep_config a, b;
    check(keep_config_set(&keep_random, "seed=1", &a, &err), &err);
    check(keep_config_set(&keep_random, "seed=2", &b, &err), &err);
    const struct policy_model whole = {.g = {.n_layer = 4, .n_head = 2}};
    const struct keep_view view = {.model = &whole};
    struct keep_lane lane = {.layer = 3, .head = 1, .n = N, .pos = pos};
    keep_random.score(&a.params, &view, &lane, first);
    keep_random.score(&b.params, &view, &lane, other);
    for (int32_t i = 0; i < N; i++) {
        assert_true(first[i] >= 0.0f && first[i] < 1.0f);
        sum += first[i];
        product += (first[i] - 0.5) * (other[i] - 0.5);
    }
    assert_true(fabs(sum / N - 0.5) < 0.02 && fabs(product / N) < 0.01);
    lane = (struct keep_lane){.layer = 3, .head = 1, .n = 1, .pos = &pos[1000]};
    keep_random.score(&a.params, &view, &lane, other);
    assert_true(other[0] == first[1000]);
    lane.head = 0;
    keep_random.score(&a.params, &view, &lane, other);
    assert_true(other[0] != first[1000]);
}

/* ---- the arguments of a policy ---- */

struct seen_params {
    double level;
    int32_t mode;
    char file[POLICY_TEXT_SIZE];
};

/* A sequence's block. */
struct seen_state {
    int64_t n_row;
    int32_t n_begin;
};

static int32_t n_open, n_close, n_score;

static pith_status seen_open(const void *params, const struct policy_model *m, void **data,
                             pith_error *why)
{
    const struct seen_params *p = params;
    assert_int_equal(m->n_group, 3);
    if (strcmp(p->file, "missing") == 0)
        return pi_fail(why, PITH_IO, "missing: no such file");
    n_open++;
    *data = &n_open;
    return PITH_OK;
}

static void seen_close(void *data)
{
    assert_ptr_equal(data, &n_open);
    n_close++;
}

static uint32_t seen_needs(const void *params)
{
    return ((const struct seen_params *)params)->mode == 1 ? KEEP_NEED_ROWS : 0;
}

static size_t seen_state(const void *params, const struct policy_model *m, const void *data)
{
    (void)params;
    (void)m;
    assert_ptr_equal(data, &n_open);
    return sizeof(struct seen_state);
}

static size_t seen_scratch(const void *params, const struct policy_model *m, const void *data,
                           int32_t n)
{
    (void)params;
    (void)m;
    (void)data;
    return (size_t)n * sizeof(double);
}

static void seen_observe(const void *params, const struct keep_view *view,
                         const struct pi_pass_tap_rows *rows)
{
    assert_int_equal(((const struct seen_params *)params)->mode, 1);
    assert_ptr_equal(view->data, &n_open);
    ((struct seen_state *)view->state)->n_row += rows->item->n_tok;
}

static bool seen_begin(const void *params, const struct keep_view *view)
{
    (void)params;
    assert_int_equal(n_score, 0);
    ((struct seen_state *)view->state)->n_begin++;
    return true;
}

static void seen_score(const void *params, const struct keep_view *view,
                       const struct keep_lane *lane, float *out)
{
    double *scratch = lane->scratch;
    assert_int_equal(((const struct seen_state *)view->state)->n_begin, 1);
    assert_int_equal((uintptr_t)scratch % 64, 0);
    n_score++;
    for (int32_t i = 0; i < lane->n; i++)
        scratch[i] = ((const struct seen_params *)params)->level * lane->pos[i];
    for (int32_t i = 0; i < lane->n; i++)
        out[i] = (float)scratch[i];
}

static const char *const seen_modes[] = {"blind", "watching", NULL};
static const struct policy_param seen_table[] = {
    {"level", POLICY_TYPE_REAL, offsetof(struct seen_params, level), -2000, 2500, "-1.5",
     "a number", NULL},
    {"mode", POLICY_TYPE_CHOICE, offsetof(struct seen_params, mode), 0, 0, "blind", "what it does",
     seen_modes},
    {"file", POLICY_TYPE_TEXT, offsetof(struct seen_params, file), 0, 0, "", "a file", NULL},
    {0},
};
static const struct policy_preset seen_presets[] = {
    {"quiet", "level=1,window=3", "a preset"},
    {"loud", "level=2.5,mode=watching,budget=20,slack=4", "another"},
    {0},
};
static const struct keep_policy seen = {
    .name = "seen",
    .summary = "looks at what it is told",
    .citation = "",
    .params = seen_table,
    .params_size = sizeof(struct seen_params),
    .presets = seen_presets,
    .open = seen_open,
    .close = seen_close,
    .needs = seen_needs,
    .state_size = seen_state,
    .scratch_size = seen_scratch,
    .observe = seen_observe,
    .begin = seen_begin,
    .score = seen_score,
};

TEST(a_policy_reads_its_own_options)
{
    struct keep_config c;
    struct seen_params p;
    check(keep_config_set(&seen, NULL, &c, &err), &err);
    memcpy(&p, &c.params, sizeof(p));
    assert_true(p.level == -1.5 && p.mode == 0 && p.file[0] == '\0');
    check(keep_config_set(&seen, "loud,level=-0.25,file=a/b:c=d.bin", &c, &err), &err);
    memcpy(&p, &c.params, sizeof(p));
    assert_true(p.level == -0.25 && p.mode == 1 && c.rules.budget.value == 20);
    assert_string_equal(p.file, "a/b:c=d.bin");
    check(keep_config_set(&seen, "quiet", &c, &err), &err);
    assert_int_equal(c.rules.window, 3);
    static const char *const cases[][2] = {
        {"silent", "keep: seen: \"silent\" is neither key=value nor one of quiet, loud"},
        {"level=2,quiet", "keep: seen: \"quiet\" is not key=value"},
        {"quiet,", "keep: seen: nothing follows the last comma"},
        {"level=2.6", "keep: level: 2.6 is not in -2..2.5"},
        {"level=nan", "keep: level: \"nan\" is not a number"},
        {"level=", "keep: level: \"\" is not a number"},
        {"level=1x", "keep: level: \"1x\" is not a number"},
        {"mode=loud", "keep: mode: \"loud\" is none of blind, watching"},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        assert_int_equal(keep_config_set(&seen, cases[i][0], &c, &err), PITH_INVALID);
        assert_string_equal(err.message, cases[i][1]);
    }
    char text[POLICY_TEXT_SIZE + 6] = "file=";
    memset(text + 5, 'x', POLICY_TEXT_SIZE);
    assert_int_equal(keep_config_set(&seen, text, &c, &err), PITH_INVALID);
    assert_string_equal(err.message, "keep: file: a text of 256 bytes is longer than 255");
}

TEST(a_policy_is_opened_asked_and_closed)
{
    struct policy_model m = {.g = {2, 2, 8, 4, 16, KV_TYPE_F32, KV_TYPE_F16}, .n_group = 3};
    struct keep_config c;
    struct keep *keep = NULL;
    struct kv_seq *kv;
    struct keep_tally tally = {0};
    struct seen_state block = {0};
    n_open = n_close = n_score = 0;
    check(keep_config_set(&seen, "file=missing", &c, &err), &err);
    check(keep_config_fit(&c, &m.g, &err), &err);
    assert_int_equal(keep_create(&c, &m, 2, &keep, &err), PITH_IO);
    assert_null(keep);
    check(keep_config_set(&seen, "loud", &c, &err), &err);
    check(keep_config_fit(&c, &m.g, &err), &err);
    check(keep_create(&c, &m, 1, &keep, &err), &err);
    assert_int_equal(keep_needs(keep), KEEP_NEED_ROWS);
    assert_int_equal(keep_state_size(keep), sizeof(block));
    struct kv_cache *cache = kv_check_cache(&m.g, 16);
    check(kv_seq_create(cache, &kv, &err), &err);
    check(keep_prepare(keep, kv, (struct keep_point){0, 0, 0.0, 0}, 24, &err), &err);
    check(kv_check_append(kv, 1, 0, 24), &err);
    struct keep_view view = {.kv = kv, .n_token = 24, .state = &block};
    struct pi_pass_item item = {.n_tok = 24};
    keep_observe(keep, &view, &(struct pi_pass_tap_rows){.item = &item});
    assert_int_equal(block.n_row, 24);
    check(keep_round(keep, kv, &view, &tally, &err), &err);
    assert_int_equal(n_score, 4);
    assert_int_equal(kv_lane_pos(kv, 1, 1, 0), 4);
    assert_int_equal(tally.n_evicted, 16);
    kv_seq_free(kv);
    keep_free(keep);
    kv_cache_free(cache);
    assert_true(n_open == 1 && n_close == 1);
}

/* ---- the prompt ---- */

#define N_TOKEN 200

static void load_model(void)
{
    model_load(12);
}

static void free_model(void)
{
    model_free();
}

static void expect_first(const pith_seq *seq, int32_t n, bool all)
{
    for (int32_t l = 0; l < info.n_layer; l++)
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            int32_t pos[N_TOKEN], n_there = 0;
            pith_lane_info lane;
            assert_int_equal(pith_seq_lane(seq, l, h, &lane, pos, N_TOKEN), PITH_OK);
            for (int32_t i = 0; i < lane.n_entry; i++)
                n_there += pos[i] < n;
            assert_true((n_there == n) == all);
        }
}

static bool stop_at_once(void *user, double fraction)
{
    (void)user;
    return fraction < 0.0;
}

TEST_WITH(load_model, free_model, a_pinned_prompt_stays)
{
    pith_engine *e =
        engine_make("random:budget=100,slack=10,pin-prompt=on,window=5", 64, 2, 2 * N_TOKEN);
    pith_seq *seq = NULL, *fork = NULL;
    check(pith_seq_create(e, &seq, &err), &err);
    check(pith_seq_mark_prompt(seq, 40, &err), &err);
    check(pith_seq_eval(seq, tokens, 150, &err), &err);
    expect_first(seq, 40, true);
    check(pith_seq_fork(seq, &fork, &err), &err);
    check(pith_seq_eval(fork, tokens + 150, 40, &err), &err);
    expect_first(fork, 40, true);
    check(pith_seq_truncate(fork, 30, &err),
          &err); /* a part of the prompt: nothing is pinned now */
    check(pith_seq_eval(fork, tokens + 30, 100, &err), &err);
    expect_first(fork, 30, false);
    check(pith_seq_mark_prompt(seq, 51, &err), &err); /* more than half: it is not pinned */
    check(pith_seq_eval(seq, tokens + 150, 100, &err), &err);
    expect_first(seq, 40, false);
    assert_int_equal(pith_seq_mark_prompt(seq, -1, &err), PITH_INVALID);
    pith_seq_free(fork);

    /* Generation marks its first prompt, and goes on from it. */
    pith_generate_params params;
    pith_generate_params_default(&params);
    params.n_predict = 60;
    params.ignore_end = true;
    pith_seq_free(seq);
    check(pith_seq_create(e, &seq, &err), &err);
    check(pith_seq_mark_prompt(seq, 30, &err), &err);
    params.progress = stop_at_once; /* the marks from before a failed call stay */
    assert_int_equal(pith_generate(seq, tokens, 50, &params, NULL, NULL, NULL, &err),
                     PITH_CANCELLED);
    assert_int_equal(seq->n_prompt, 30);
    params.progress = NULL;
    check(pith_generate(seq, tokens, 50, &params, NULL, NULL, NULL, &err), &err);
    expect_first(seq, 50, true);
    int32_t turn[N_TOKEN], n = pith_seq_length(seq);
    memcpy(turn, pith_seq_tokens(seq), (size_t)n * sizeof(*turn));
    memcpy(turn + n, tokens, 40 * sizeof(*turn));
    check(pith_generate(seq, turn, n + 40, &params, NULL, NULL, NULL, &err), &err);
    expect_first(seq, 50, true);
    check(pith_generate(seq, tokens + 60, 20, &params, NULL, NULL, NULL, &err), &err);
    expect_first(seq, 20, true);
    pith_seq_free(seq);
    pith_engine_free(e);
}
