/*
 * Policies that score by the attention of the last queries: SnapKV, TOVA and R-KV. They are
 * compared with vectors of the authors' formulas, computed in double precision. The ring of queries
 * is tested for any split of a text, and its attention against a softmax in double. Also pooling,
 * and R-KV's search for similar keys against the whole matrix.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "device/cpu/note.h"
#include "testing.h"

#include "base/mem.h"
#include "policy/keep/rules/keep.h"
#include "policy/pool.h"
#include "kv_check.h"
#include "status.h"
#include "kv_shape.h"

/* ---- a layer with queries ---- */

/* One layer of a sequence, its policy and what that remembers. */
struct world {
    struct policy_model model;
    struct keep_config config;
    struct keep *keep;
    struct kv_cache *cache;
    struct kv_seq *kv;
    int32_t n;
    void *state;
};

/* n entries in every KV head, keys [n_head][n][dim]; values are the keys. */
static void world_open(struct world *w, const struct keep_policy *policy, const char *options,
                       const struct kv_geometry *g, int32_t n_group, const float *keys, int32_t n)
{
    memset(w, 0, sizeof(*w));
    w->model =
        (struct policy_model){.g = *g, .n_group = n_group, .scale = 1.0f / sqrtf((float)g->dim_k)};
    w->n = n;
    check(keep_config_set(policy, options, &w->config, &err), &err);
    check(keep_config_fit(&w->config, g, &err), &err);
    check(keep_create(&w->config, &w->model, 2, &w->keep, &err), &err);
    w->cache = kv_check_cache(g, g->n_head * (n / g->page_len + 2));
    check(kv_seq_create(w->cache, &w->kv, &err), &err);
    check(kv_seq_reserve(w->kv, n, &err), &err);
    size_t dim = (size_t)g->dim_k;
    for (int32_t h = 0; h < g->n_head; h++) {
        const float *rows = keys + (size_t)h * (size_t)n * dim;
        kv_seq_append(w->kv, 0, h, 0, n, rows, dim, rows, dim);
    }
    w->state = pi_mem_alloc(PI_MEM_OTHER, keep_state_size(w->keep));
}

static void world_close(struct world *w)
{
    pi_mem_free(w->state);
    kv_seq_free(w->kv);
    kv_cache_free(w->cache);
    keep_free(w->keep);
}

static struct keep_view world_view(const struct world *w, int32_t n_token)
{
    return (struct keep_view){
        .kv = w->kv, .n_token = n_token, .state = w->state, .model = &w->model};
}

/* Shows the policy the queries of n tokens from pos on, q [n][n_head * n_group][dim]. */
static void world_observe(const struct world *w, int32_t pos, int32_t n, const float *q)
{
    struct pi_pass_item item = {.kv = w->kv, .n_tok = n, .pos0 = pos};
    struct pi_pass_tap_rows rows = {.item = &item, .q_pre = q, .q = q, .k = q, .v = q};
    struct keep_view view = world_view(w, pos);
    keep_observe(w->keep, &view, &rows);
}

/* Scores of one lane. */
static void world_score(const struct world *w, int32_t head, float *out)
{
    const struct keep_policy *p = w->config.policy;
    int32_t n = kv_lane_len(w->kv, 0, head);
    int32_t *pos = calloc((size_t)n, sizeof(*pos));
    bool *evictable = malloc((size_t)n);
    size_t size = p->scratch_size(&w->config.params, &w->model, NULL, n);
    void *scratch = pi_mem_alloc(PI_MEM_SCRATCH, size);
    struct keep_view view = world_view(w, w->n);
    memset(scratch, 0xff, size);
    memset(evictable, 1, (size_t)n);
    kv_lane_positions(w->kv, 0, head, pos, n);
    struct keep_lane lane = {.head = head,
                             .n = n,
                             .pos = pos,
                             .evictable = evictable,
                             .n_evictable = n,
                             .scratch = scratch};
    p->score(&w->config.params, &view, &lane, out);
    pi_mem_free(scratch);
    free(evictable);
    free(pos);
}

static void world_round(struct world *w)
{
    struct keep_tally tally = {0};
    struct keep_view view = world_view(w, w->n);
    check(keep_prepare_round(w->keep, w->kv, (struct keep_point){w->n, 0, 0.0, 0}, &err), &err);
    check(keep_round(w->keep, w->kv, &view, &tally, &err), &err);
}

static void expect_scores(const struct world *w, int32_t head, const double *want, int32_t n)
{
    float got[64];
    world_score(w, head, got);
    for (int32_t i = 0; i < w->n; i++) {
        if (i < n && fabs((double)got[i] - want[i]) > 2e-7 + 1e-6 * fabs(want[i]))
            fail_msg("head %d, entry %d: %.9f is not %.9f", head, i, (double)got[i], want[i]);
        if (i >= n && got[i] <= (float)(n > 0 ? want[0] : 0.0))
            fail_msg("head %d, entry %d: %f competes", head, i, (double)got[i]);
    }
}

/* The positions of a lane, up to the first that is negative. */
static void expect_kept(const struct world *w, int32_t head, const int32_t *want)
{
    int32_t n = kv_lane_len(w->kv, 0, head);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(kv_lane_pos(w->kv, 0, head, i), want[i]);
    assert_int_equal(want[n], -1);
}

/* ---- vectors ---- */

#define DIM 4
static const struct kv_geometry one = KV_SHAPE(1, 1, DIM, DIM, 16, KV_TYPE_F32, KV_TYPE_F32);
static const struct kv_geometry two = KV_SHAPE(1, 2, DIM, DIM, 16, KV_TYPE_F32, KV_TYPE_F32);

static const float snap_keys[2][12][DIM] = {
    {
        {-0.75f, 0.25f, -2.0f, 0.75f},
        {-1.75f, -1.625f, 1.625f, 1.75f},
        {-0.375f, -1.875f, 1.0f, 1.125f},
        {0.375f, 0.25f, -0.125f, -0.375f},
        {1.125f, -0.875f, 0.625f, -0.25f},
        {1.125f, -1.375f, 1.0f, 0.75f},
        {-1.875f, 2.0f, 0.875f, -1.875f},
        {0.25f, -0.875f, 1.375f, 0.875f},
        {1.375f, -0.25f, 1.875f, -0.25f},
        {-0.125f, -0.625f, 0.125f, -2.0f},
        {1.0f, -1.125f, 1.0f, 1.25f},
        {1.625f, -2.0f, 1.375f, -0.5f},
    },
    {
        {-0.75f, 0.25f, -2.0f, 0.75f},
        {-1.75f, -1.625f, 1.625f, 1.75f},
        {-0.375f, -1.875f, 1.0f, 1.125f},
        {0.375f, 0.25f, -0.125f, -0.375f},
        {1.125f, -0.875f, 0.625f, -0.25f},
        {1.125f, -1.375f, 1.0f, 0.75f},
        {-1.875f, 2.0f, 0.875f, -1.875f},
        {0.25f, -0.875f, 1.375f, 0.875f},
        {1.375f, -0.25f, 1.875f, -0.25f},
        {-0.125f, -0.625f, 0.125f, -2.0f},
        {1.0f, -1.125f, 1.0f, 1.25f},
        {1.625f, -2.0f, 1.375f, -0.5f},
    },
};
static const float snap_queries[4][2][DIM] = {
    {{1.625f, -0.875f, 0.375f, -1.25f}, {-1.375f, 0.375f, -1.0f, 1.5f}},
    {{1.25f, 0.5f, 1.625f, -0.625f}, {0.75f, 0.625f, -0.375f, 1.875f}},
    {{1.75f, -0.5f, -0.75f, -1.625f}, {-1.125f, 1.5f, -0.125f, 0.625f}},
    {{1.375f, 2.0f, -1.25f, 1.125f}, {2.0f, 0.5f, -1.5f, 2.0f}},
};

/* The choice of FasterDecoding/SnapKV per head, the mean over a group as in AdaKV and
   KVCache-Factory, and the form in yisunlp/LongFlow. */
TEST(snapkv_scores_as_its_authors_do)
{
    static const double avg[2][8] = {{0.1819246224, 0.221352539, 0.1902970618, 0.3881815464,
                                      0.4902495596, 0.4073151888, 0.2714364318, 0.1299405019},
                                     {0.5574274576, 0.6418213013, 0.3226369209, 0.2321379549,
                                      0.2582967572, 0.355249952, 0.3849963667, 0.2744437208}};
    static const double max[2][8] = {{0.5053063584, 0.5053063584, 0.4121399267, 0.6341209627,
                                      0.6341209627, 0.6341209627, 0.4244877895, 0.2264846917},
                                     {1.2167758919, 1.2167758919, 0.4555064809, 0.2592227509,
                                      0.3316579379, 0.5500823354, 0.5500823354, 0.5500823354}};
    static const double mean[8] = {0.36967604,   0.4315869201, 0.2564669914, 0.3101597506,
                                   0.3742731584, 0.3812825704, 0.3282163992, 0.2021921113};
    static const double before[8] = {0.8602581396, 1.0203590555, 0.6613353122, 0.9112719591,
                                     1.1228973337, 1.0957075241, 0.895136568,  0.5234102774};
    struct world w;
    world_open(&w, &keep_snapkv, "budget=8,window=4,queries=4,kernel=3", &two, 1,
               &snap_keys[0][0][0], 12);
    world_observe(&w, 8, 4, &snap_queries[0][0][0]);
    expect_scores(&w, 0, avg[0], 8);
    expect_scores(&w, 1, avg[1], 8);
    world_round(&w);
    expect_kept(&w, 0, (const int32_t[]){3, 4, 5, 6, 8, 9, 10, 11, -1});
    expect_kept(&w, 1, (const int32_t[]){0, 1, 5, 6, 8, 9, 10, 11, -1});
    world_close(&w);

    /* Pooling makes neighbours equal: of 0 and 1, and of 5, 6 and 7, torch keeps the older and Pith
       the younger. */
    world_open(&w, &keep_snapkv, "budget=8,window=4,queries=4,kernel=3,pool=max", &two, 1,
               &snap_keys[0][0][0], 12);
    world_observe(&w, 8, 4, &snap_queries[0][0][0]);
    expect_scores(&w, 0, max[0], 8);
    expect_scores(&w, 1, max[1], 8);
    world_round(&w);
    expect_kept(&w, 0, (const int32_t[]){1, 3, 4, 5, 8, 9, 10, 11, -1});
    expect_kept(&w, 1, (const int32_t[]){0, 1, 6, 7, 8, 9, 10, 11, -1});
    world_close(&w);

    world_open(&w, &keep_snapkv, "budget=8,window=4,queries=4,kernel=3", &one, 2,
               &snap_keys[0][0][0], 12);
    world_observe(&w, 8, 4, &snap_queries[0][0][0]);
    expect_scores(&w, 0, mean, 8);
    world_round(&w);
    expect_kept(&w, 0, (const int32_t[]){0, 1, 4, 5, 8, 9, 10, 11, -1});
    world_close(&w);

    world_open(&w, &keep_snapkv, "budget=8,window=4,queries=4,kernel=3,group=sum,softmax=before",
               &one, 2, &snap_keys[0][0][0], 12);
    world_observe(&w, 8, 4, &snap_queries[0][0][0]);
    expect_scores(&w, 0, before, 8);
    world_round(&w);
    expect_kept(&w, 0, (const int32_t[]){1, 3, 4, 5, 8, 9, 10, 11, -1});
    world_close(&w);

    /* The largest of the group, before pooling. */
    static const double sums[2][8] = {{0.5053063584, 0.0404675089, 0.1182837497, 0.4121399267,
                                       0.6341209627, 0.4244877895, 0.163336814, 0.2264846917},
                                      {1.2167758919, 0.4555064809, 0.253181531, 0.2592227509,
                                       0.1840095826, 0.3316579379, 0.5500823354, 0.2732488269}};
    double largest[8];
    for (int32_t i = 0; i < 8; i++)
        largest[i] = fmax(sums[0][i], sums[1][i]);
    world_open(&w, &keep_snapkv, "budget=8,window=4,queries=4,kernel=1,group=max", &one, 2,
               &snap_keys[0][0][0], 12);
    world_observe(&w, 8, 4, &snap_queries[0][0][0]);
    expect_scores(&w, 0, largest, 8);
    world_close(&w);
}

static const float rkv_keys[9][DIM] = {
    {0.125f, -0.25f, -0.875f, -0.625f}, {1.875f, -1.75f, -0.5f, -0.375f},
    {-1.125f, 1.25f, -1.875f, -2.0f},   {-1.875f, -1.0f, -1.75f, -1.375f},
    {1.0f, 1.75f, 0.125f, -0.75f},      {2.0f, -1.75f, -0.5f, -0.375f},
    {-1.0f, 1.375f, 1.625f, -1.0f},     {-0.875f, -1.125f, -0.5f, 0.125f},
    {2.0f, -0.75f, -1.25f, -1.875f},
};
static const float rkv_queries[2][2][DIM] = {
    {{-0.25f, 0.5f, -0.75f, 1.375f}, {1.75f, 0.125f, 1.875f, 1.5f}},
    {{-0.25f, 1.0f, 1.75f, -0.375f}, {-1.75f, -1.375f, 0.5f, 0.75f}},
};

/* Zefan-Cai/R-KV, rkv/compression/r1_kv.py and rkv/utils.py. */
TEST(rkv_scores_as_its_authors_do)
{
    static const double importance[7] = {0.1249086008, 0.1249086008, 0.1361041249, 0.1558162207,
                                         0.1558162207, 0.330174497,  0.330174497};
    static const double score[7] = {-0.1252590261, -0.0948530484, -0.1000076769, -0.0812847817,
                                    -0.0729907814, -0.0649715636, -0.0415461853};
    static const double redundancy[7] = {-0.1530554291, -0.1192710095, -0.1262423215, -0.1076293375,
                                         -0.0984137817, -0.1088766814, -0.0828484833};
    static const char *const weights[] = {"", "lambda=1,", "lambda=0,"};
    static const double *const want[] = {score, importance, redundancy};
    struct world w;
    for (size_t i = 0; i < PI_LEN(weights); i++) {
        char options[96];
        snprintf(options, sizeof(options), "%sbudget=6,window=2,queries=2,kernel=3", weights[i]);
        world_open(&w, &keep_rkv, options, &one, 2, &rkv_keys[0][0], 9);
        world_observe(&w, 7, 2, &rkv_queries[0][0][0]);
        expect_scores(&w, 0, want[i], 7);
        if (i == 0) {
            world_round(&w);
            expect_kept(&w, 0, (const int32_t[]){3, 4, 5, 6, 7, 8, -1});
        }
        world_close(&w);
    }
}

static const float small_keys[6][DIM] = {
    {-1.0f, 1.125f, 1.25f, -0.125f}, {-1.25f, 1.125f, 0.5f, 0.125f},
    {0.625f, -1.5f, 1.125f, -0.75f}, {0.0f, 0.0f, -0.625f, -0.75f},
    {-1.75f, -0.5f, 0.375f, -1.0f},  {-0.125f, 0.625f, -1.125f, 1.375f},
};

/* schwartz-lab-NLP/TOVA, src/tova_cache.py; the same from the weights of a step. And the entries
   that vnorm and keydiff keep of these keys (test_keep_policies.c checks their scores). */
TEST(tova_scores_as_its_authors_do)
{
    static const float query[2][DIM] = {{1.25f, 1.0f, 0.25f, -0.25f},
                                        {-0.625f, 1.875f, -1.25f, 1.125f}};
    static const double score[6] = {0.166511978,  0.1959457182, 0.0889050667,
                                    0.1327213732, 0.0469974997, 0.3689183642};
    struct world w;
    world_open(&w, &keep_tova, "budget=5,overwrite=off,slack=1", &one, 2, &small_keys[0][0], 6);
    world_observe(&w, 5, 1, &query[0][0]);
    expect_scores(&w, 0, score, 6);
    world_round(&w);
    expect_kept(&w, 0, (const int32_t[]){0, 1, 2, 3, 5, -1});
    world_close(&w);
    static const float weight[2][16] = {
        {0.2191476218f, 0.1654213036f, 0.1733600378f, 0.1995361803f, 0.0608550967f, 0.1816797597f},
        {0.1138763343f, 0.2264701328f, 0.0044500956f, 0.065906566f, 0.0331399026f, 0.5561569688f}};
    struct keep_word word[KEEP_WORD_ROOM];
    float got[6];
    assert_int_equal(keep_tova.words(NULL, word), 1);
    assert_true(word[0].step);
    const struct kv_note note = {.word = word[0].word, .group = word[0].group, .to = got};
    cpu_note_token(
        &note, &(struct cpu_noted){.weight = &weight[0][0], .stride = 16, .n_group = 2, .n = 6});
    for (int32_t i = 0; i < 6; i++)
        assert_true(fabs((double)got[i] - score[i]) < 1e-7);

    world_open(&w, &keep_knorm, "budget=3", &one, 1, &small_keys[0][0], 6);
    world_round(&w);
    expect_kept(&w, 0, (const int32_t[]){1, 3, 5, -1});
    world_close(&w);
    world_open(&w, &keep_keydiff, "budget=3", &one, 1, &small_keys[0][0], 6);
    world_round(&w);
    expect_kept(&w, 0, (const int32_t[]){2, 3, 5, -1});
    world_close(&w);
}

/* ---- pooling ---- */

TEST(pooling_is_the_mean_or_maximum_around_an_entry)
{
    enum { N = 40 };
    uint64_t rng = 4;
    float x[N], got[N];
    for (int32_t kernel = 1; kernel <= 12; kernel++)
        for (int32_t n = 1; n <= N; n += 3)
            for (int32_t kind = 0; kind < 2; kind++) {
                for (int32_t i = 0; i < n; i++)
                    x[i] = (float)rng_below(&rng, 64) - 40.0f;
                policy_pool((enum policy_pool_kind)kind, kernel, x, n, got);
                for (int32_t i = 0; i < n; i++) {
                    double sum = 0.0, max = -INFINITY;
                    for (int32_t j = i - kernel / 2; j < i - kernel / 2 + kernel; j++)
                        if (j >= 0 && j < n) {
                            sum += (double)x[j];
                            max = fmax(max, (double)x[j]);
                        }
                    double want = kind == POLICY_POOL_AVG ? (double)(float)(sum / kernel) : max;
                    assert_true((double)got[i] == want);
                }
            }
    static const int32_t pos[8] = {5, 9, 2, 2, 100, 0, 9, 7}, want[8] = {5, 2, 3, 0, 7, 1, 6, 4};
    int32_t order[8];
    policy_pool_order(pos, 8, order);
    assert_memory_equal(order, want, sizeof(want));
}

/* ---- the ring of queries ---- */

#define N_TOKEN 130
#define HEADS 2
#define GROUP 3
#define WIDE 32

static float ring_keys[HEADS][N_TOKEN][WIDE], ring_queries[N_TOKEN][HEADS * GROUP][WIDE];

static void fill_ring_world(void)
{
    uint64_t rng = 9;
    for (size_t i = 0; i < sizeof(ring_keys) / sizeof(float); i++)
        ((float *)ring_keys)[i] = 2.0f * rng_float(&rng);
    for (size_t i = 0; i < sizeof(ring_queries) / sizeof(float); i++)
        ((float *)ring_queries)[i] = 2.0f * rng_float(&rng);
}

/* x[i] = scaled logits of a query over the keys that it sees. */
static int32_t take_logits(const struct world *w, int32_t head, int32_t t, int32_t g, double *x)
{
    int32_t n = 0, len = kv_lane_len(w->kv, 0, head);
    for (int32_t s = 0; s < len; s++) {
        float key[WIDE];
        x[s] = -INFINITY;
        if (kv_lane_pos(w->kv, 0, head, s) > t)
            continue;
        kv_lane_key(w->kv, 0, head, s, key);
        x[s] = 0.0;
        for (int32_t d = 0; d < WIDE; d++)
            x[s] += (double)ring_queries[t][head * GROUP + g][d] * (double)key[d];
        x[s] *= (double)w->model.scale;
        n++;
    }
    return n;
}

static void check_logits(const double *x, int32_t n, const float *got)
{
    for (int32_t i = 0; i < n; i++)
        if (isinf(x[i]))
            assert_true(isinf(got[i]) && got[i] < 0.0f);
        else
            assert_true(fabs((double)got[i] - x[i]) < 1e-4);
}

/* sum [n] += softmax of x */
static void add_softmax(const double *x, int32_t n, double *sum)
{
    double max = -INFINITY, all = 0.0;
    for (int32_t i = 0; i < n; i++)
        max = fmax(max, x[i]);
    for (int32_t i = 0; i < n; i++)
        all += exp(x[i] - max);
    for (int32_t i = 0; i < n; i++)
        sum[i] += exp(x[i] - max) / all;
}

static void check_head(const struct world *w, int32_t head, int32_t n_query, int32_t count)
{
    static double sum[GROUP][N_TOKEN];
    struct keep_view view = world_view(w, w->n);
    struct keep_lane lane = {.head = head, .n = kv_lane_len(w->kv, 0, head)};
    size_t size = keep_queries_logits_scratch(&w->model, n_query, lane.n), stride;
    size_t sums_size = keep_queries_sums_scratch(&w->model, n_query, lane.n);
    void *scratch = pi_mem_alloc(PI_MEM_SCRATCH, size > sums_size ? size : sums_size);
    const float *row;
    double x[N_TOKEN];
    memset(scratch, 0xff, size);
    memset(sum, 0, sizeof(sum));
    keep_queries_logits(&view, &lane, n_query, scratch, &row, &stride);
    for (int32_t r = 0; r < count * GROUP; r++) {
        int32_t t = w->n - count + r / GROUP;
        assert_true(take_logits(w, head, t, r % GROUP, x) > 0);
        check_logits(x, lane.n, row + (size_t)r * stride);
        add_softmax(x, lane.n, sum[r % GROUP]);
    }
    memset(scratch, 0xff, sums_size);
    keep_queries_sums(&view, &lane, n_query, scratch, &row, &stride);
    for (int32_t g = 0; g < GROUP; g++)
        for (int32_t i = 0; i < lane.n; i++)
            assert_true(fabs((double)row[(size_t)g * stride + (size_t)i] - sum[g][i]) <
                        1e-5 * (1 + count));
    pi_mem_free(scratch);
}

static void check_weights(const struct world *w, int32_t n_query, int32_t count)
{
    struct keep_view view = world_view(w, w->n);
    assert_int_equal(keep_queries_count(&view, n_query), count);
    for (int32_t head = 0; head < HEADS; head++)
        check_head(w, head, n_query, count);
}

TEST(the_ring_of_queries_does_not_depend_on_cuts)
{
    static const enum kv_type types[] = {KV_TYPE_F32, KV_TYPE_F16, KV_TYPE_Q8_0};
    fill_ring_world();
    for (int32_t n_query = 1; n_query <= 37; n_query += 9) {
        struct kv_geometry g = KV_SHAPE(1, HEADS, WIDE, WIDE, 16, types[n_query % 3], KV_TYPE_F16);
        char options[48];
        struct world a, b;
        uint64_t rng = (uint64_t)n_query;
        snprintf(options, sizeof(options), "window=1,queries=%d", n_query);
        world_open(&a, &keep_snapkv, options, &g, GROUP, &ring_keys[0][0][0], N_TOKEN);
        world_open(&b, &keep_snapkv, options, &g, GROUP, &ring_keys[0][0][0], N_TOKEN);
        size_t size = keep_state_size(a.keep);
        assert_int_equal(size % 64, 0);
        world_observe(&a, 0, N_TOKEN, &ring_queries[0][0][0]);
        for (int32_t at = 0; at < N_TOKEN;) {
            int32_t n = (int32_t)pi_min(1 + (int64_t)rng_below(&rng, 50), N_TOKEN - at);
            world_observe(&b, at, n, &ring_queries[at][0][0]);
            at += n;
        }
        assert_memory_equal(a.state, b.state, size);
        check_weights(&a, n_query, n_query);

        /* Forgotten tokens do not count; tokens that are read again do. */
        int32_t back = n_query / 3;
        kv_seq_truncate(a.kv, N_TOKEN - back);
        a.n = N_TOKEN - back;
        check_weights(&a, n_query, n_query - back);
        kv_seq_truncate(a.kv, 40);
        a.n = 40;
        check_weights(&a, n_query, 0);
        world_observe(&a, 40, 5, &ring_queries[40][0][0]);
        a.n = 45;
        check_weights(&a, n_query, (int32_t)pi_min(5, n_query));
        world_close(&a);
        world_close(&b);
    }
}

/* A lane with cut and overwritten entries: queries see by position, and scores are pooled in the
   order of the text. */
TEST(entries_out_of_order_score_by_position)
{
    static const int32_t slots[] = {0, 3, 4, 8, 15, 16, 17, 30, 31, 47, 60, 61, 62, 63};
    struct kv_geometry g = KV_SHAPE(1, HEADS, WIDE, WIDE, 16, KV_TYPE_F32, KV_TYPE_F16);
    struct world a, b;
    fill_ring_world();
    world_open(&a, &keep_snapkv, "window=4,queries=4", &g, GROUP, &ring_keys[0][0][0], 64);
    world_open(&b, &keep_snapkv, "window=4,queries=4", &g, GROUP, &ring_keys[0][0][0], 64);
    for (int32_t h = 0; h < HEADS; h++) {
        check(kv_seq_compact(a.kv, 0, h, slots, 14, &err), &err);
        check(kv_seq_compact(b.kv, 0, h, slots, 14, &err), &err);
    }
    /* In a, positions 64.. overwrite slots 2, 9, 5 and 7; b drops these and appends. */
    static const int32_t victims[] = {2, 9, 5, 7}, rest[] = {0, 1, 3, 4, 6, 8, 10, 11, 12, 13};
    for (int32_t h = 0; h < HEADS; h++)
        check(kv_seq_compact(b.kv, 0, h, rest, 10, &err), &err);
    check(kv_seq_reserve(b.kv, 4, &err), &err);
    for (int32_t i = 0; i < 4; i++) {
        const float *row = &ring_queries[100 + i][0][0];
        for (int32_t h = 0; h < HEADS; h++)
            kv_seq_set_victim(a.kv, 0, h, victims[i]);
        check(kv_seq_reserve(a.kv, 1, &err), &err);
        for (int32_t h = 0; h < HEADS; h++) {
            kv_seq_append(a.kv, 0, h, 64 + i, 1, row, WIDE, row, WIDE);
            kv_seq_append(b.kv, 0, h, 64 + i, 1, row, WIDE, row, WIDE);
        }
    }
    world_observe(&a, 64, 4, &ring_queries[64][0][0]);
    world_observe(&b, 64, 4, &ring_queries[64][0][0]);
    a.n = b.n = 68;
    check_weights(&a, 4, 4);
    for (int32_t h = 0; h < HEADS; h++) {
        float of_a[16], of_b[16];
        world_score(&a, h, of_a);
        world_score(&b, h, of_b);
        assert_int_equal(kv_lane_len(a.kv, 0, h), 14);
        for (int32_t i = 0; i < 14; i++) {
            int32_t j = 0;
            while (kv_lane_pos(b.kv, 0, h, j) != kv_lane_pos(a.kv, 0, h, i))
                j++;
            assert_true(fabs((double)of_a[i] - (double)of_b[j]) < 1e-6 ||
                        (of_a[i] == FLT_MAX && of_b[j] == FLT_MAX));
        }
    }
    world_close(&a);
    world_close(&b);
}

/* ---- R-KV against the whole matrix ---- */

static double cosine(const float *a, const float *b)
{
    double dot = 0.0, of_a = 0.0, of_b = 0.0;
    for (int32_t d = 0; d < WIDE; d++) {
        dot += (double)a[d] * (double)b[d];
        of_a += (double)a[d] * (double)a[d];
        of_b += (double)b[d] * (double)b[d];
    }
    return of_a > 0.0 && of_b > 0.0 ? dot / sqrt(of_a * of_b) : 0.0;
}

/* redundancy [n] by the definition; returns how many keys have no similar one. */
static int32_t define_redundancy(const float (*keys)[WIDE], int32_t n, bool last, bool quirk,
                                 double *out)
{
    int32_t n_alone = 0;
    double sum = 0.0;
    memset(out, 0, (size_t)n * sizeof(*out));
    for (int32_t i = 0; i < n; i++) {
        int32_t found = -1;
        for (int32_t j = 0; j < n; j++)
            if (j != i) {
                double c = cosine(keys[i], keys[j]);
                found = c > 0.5 ? j : found;
                out[j] += c;
            }
        n_alone += found < 0;
        found = found < 0 && quirk ? 0 : found;
        if (last && found >= 0 && found != i)
            out[found] -= cosine(keys[i], keys[found]);
    }
    for (int32_t i = 0; i < n; i++)
        sum += exp(out[i] / n);
    for (int32_t i = 0; i < n; i++)
        out[i] = exp(out[i] / n) / sum;
    return n_alone;
}

TEST(rkv_compares_keys_as_a_whole_matrix_does)
{
    enum { N = 300 };
    static float keys[N][WIDE];
    static float queries[GROUP][WIDE];
    static const char *const forms[] = {"", ",quirk=off", ",similar=off"};
    uint64_t rng = 6;
    for (int32_t i = 0; i < N; i++)
        for (int32_t d = 0; d < WIDE; d++)
            keys[i][d] = rng_float(&rng) + (i % 3 == 0 && d < 8 ? 1.0f : 0.0f);
    memset(keys[77], 0, sizeof(keys[77]));
    for (int32_t page_len = 16; page_len <= 64; page_len *= 2)
        for (size_t f = 0; f < PI_LEN(forms); f++) {
            struct kv_geometry g = KV_SHAPE(1, 1, WIDE, WIDE, page_len, KV_TYPE_F32, KV_TYPE_F32);
            struct world w;
            char options[64];
            float got[N];
            double want[N];
            snprintf(options, sizeof(options), "lambda=0%s", forms[f]);
            world_open(&w, &keep_rkv, options, &g, GROUP, &keys[0][0], N);
            world_observe(&w, N - 1, 1, &queries[0][0]);
            int32_t n_alone = define_redundancy(keys, N, f != 2, f == 0, want);
            assert_true(n_alone > 20 && n_alone < N - 20);
            world_score(&w, 0, got);
            for (int32_t i = 0; i < N - 8; i++)
                if (fabs((double)got[i] + want[i]) > 1e-8)
                    fail_msg("%s, entry %d: %.9g is not %.9g", options, i, (double)got[i],
                             -want[i]);
            world_close(&w);
        }
}
