/*
 * test_keep_expected.c - Expected Attention against scores of whole matrices in double precision
 * (scripts/golden/expected.py). It compares shares, their logarithms and logits for any split of
 * the text, over lanes from several pages. Sums must not depend on the split, bit by bit.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "testing.h"

#include "base/mem.h"
#include "kv_check.h"
#include "policy/keep/rules/keep.h"
#include "status.h"

#define GOLDEN PITH_SOURCE_DIR "/tests/golden/expected.txt"
#define SINKS 4

enum { TOKENS = 64, HEADS = 4, DIM = 8 }; /* more than any case has */

struct golden {
    char name[32];
    int n_token, n_head, n_group, dim, n_pair, adjacent, future, skip;
    double base;
    float q[TOKENS * HEADS * DIM];
    float k[HEADS * TOKENS * DIM];
    float v[HEADS * TOKENS * DIM];
    float share[HEADS * TOKENS];
    float logit[HEADS * TOKENS];
};

static void read_floats(FILE *f, float *out, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(fscanf(f, "%f", &out[i]), 1);
}

/* The next case; false at the end. */
static bool read_case(FILE *f, struct golden *g)
{
    int n = fscanf(f, " case %31s %d %d %d %d %d %d %d %d %lf", g->name, &g->n_token, &g->n_head,
                   &g->n_group, &g->dim, &g->n_pair, &g->adjacent, &g->future, &g->skip, &g->base);
    if (n != 10)
        return false;
    assert_true(g->n_token <= TOKENS && g->n_head * g->n_group <= HEADS && g->dim == DIM);
    int n_entry = g->n_head * g->n_token, n_score = g->n_head * (g->n_token - SINKS);
    read_floats(f, g->q, g->n_token * g->n_head * g->n_group * g->dim);
    read_floats(f, g->k, n_entry * g->dim);
    read_floats(f, g->v, n_entry * g->dim);
    read_floats(f, g->share, n_score);
    read_floats(f, g->logit, n_score);
    return true;
}

/* One layer of a sequence with the case's entries, and the policy. */
struct world {
    const struct golden *g;
    struct pi_rope rope;
    double freq[DIM];
    struct policy_model model;
    struct keep *keep;
    struct kv_cache *cache;
    struct kv_seq *kv;
    void *state;
};

static void world_open(struct world *w, const struct golden *g, const char *score)
{
    struct keep_config config;
    char options[128];
    size_t dim = (size_t)g->dim;
    memset(w, 0, sizeof(*w));
    w->g = g;
    w->rope = (struct pi_rope){
        .n_pair = g->n_pair, .adjacent = g->adjacent, .freq = w->freq, .magnitude = 1.0f};
    for (int f = 0; f < g->n_pair; f++)
        w->freq[f] = pow(g->base, -2.0 * f / (2 * g->n_pair));
    w->model = (struct policy_model){
        .g = {1, g->n_head, g->dim, g->dim, 16, KV_TYPE_F32, KV_TYPE_F32, 0, 0, {0}, {0}},
        .n_group = g->n_group,
        .scale = 1.0f / sqrtf((float)g->dim),
        .rope = &w->rope};
    snprintf(options, sizeof(options), "future=%d,skip=%d,score=%s", g->future, g->skip, score);
    check(keep_config_set(&keep_expected, options, &config, &err), &err);
    check(keep_config_fit(&config, &w->model.g, &err), &err);
    check(keep_create(&config, &w->model, 2, &w->keep, &err), &err);
    w->cache = kv_check_cache(&w->model.g, g->n_head * (g->n_token / 16 + 2));
    check(kv_seq_create(w->cache, &w->kv, &err), &err);
    check(kv_seq_reserve(w->kv, g->n_token, &err), &err);
    for (int32_t h = 0; h < g->n_head; h++) {
        size_t at = (size_t)h * (size_t)g->n_token * dim;
        kv_seq_append(w->kv, 0, h, 0, g->n_token, g->k + at, dim, g->v + at, dim);
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

/* Shows the policy the queries, at most `cut` at once. */
static void world_observe(const struct world *w, int32_t cut)
{
    const struct golden *g = w->g;
    size_t row = (size_t)(g->n_head * g->n_group * g->dim);
    for (int32_t pos = 0; pos < g->n_token; pos += cut) {
        struct pi_pass_item item = {
            .kv = w->kv, .n_tok = (int32_t)pi_min(cut, g->n_token - pos), .pos0 = pos};
        const float *q = g->q + (size_t)pos * row;
        struct pi_pass_tap_rows rows = {.item = &item, .q_pre = q, .q = q, .k = q, .v = q};
        struct keep_view view = {
            .kv = w->kv, .n_token = pos, .state = w->state, .model = &w->model};
        keep_observe(w->keep, &view, &rows);
    }
}

static void world_score(const struct world *w, int32_t head, float *out)
{
    const struct keep_config *config = keep_get_config(w->keep);
    int32_t n = w->g->n_token, pos[TOKENS];
    bool evictable[TOKENS];
    size_t size = keep_expected.scratch_size(&config->params, &w->model, NULL, n);
    void *scratch = pi_mem_alloc(PI_MEM_SCRATCH, size);
    struct keep_view view = {.kv = w->kv, .n_token = n, .state = w->state, .model = &w->model};
    memset(scratch, 0xff, size);
    kv_lane_positions(w->kv, 0, head, pos, n);
    for (int32_t i = 0; i < n; i++) /* a window stays, too, but counts */
        evictable[i] = i >= SINKS && i < n - 5;
    struct keep_lane lane = {.head = head,
                             .n = n,
                             .pos = pos,
                             .evictable = evictable,
                             .n_evictable = n - SINKS - 5,
                             .scratch = scratch};
    keep_expected.score(&config->params, &view, &lane, out);
    pi_mem_free(scratch);
}

static void expect_scores(const struct golden *g, const char *score, int32_t cut)
{
    struct world w;
    world_open(&w, g, score);
    world_observe(&w, cut);
    for (int32_t h = 0; h < g->n_head; h++) {
        float got[TOKENS];
        world_score(&w, h, got);
        for (int32_t i = SINKS; i < g->n_token; i++) {
            size_t at = (size_t)h * (size_t)(g->n_token - SINKS) + (size_t)(i - SINKS);
            double share = (double)g->share[at], logit = (double)g->logit[at];
            double want = score[0] == 's'                       ? share
                          : score[2] == 'g' && score[3] == '\0' ? log(share)
                                                                : logit;
            double tolerance = score[0] == 's' ? 2e-5 * share + 1e-7 : 2e-5 * (1 + fabs(want));
            if (!(fabs((double)got[i] - want) <= tolerance))
                fail_msg("%s, %s, head %d, entry %d: %.9g is not %.9g", g->name, score, h, i,
                         (double)got[i], want);
        }
    }
    world_close(&w);
}

TEST(scores_are_those_of_whole_matrices)
{
    static struct golden g;
    static const char *const scores[] = {"share", "log", "logit"};
    char line[256];
    int n_case = 0;
    FILE *f = fopen(GOLDEN, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    while (read_case(f, &g)) {
        for (size_t s = 0; s < PI_LEN(scores); s++)
            for (int32_t cut = 1; cut <= 64; cut = cut * 3 + 1)
                expect_scores(&g, scores[s], cut);
        n_case++;
    }
    fclose(f);
    assert_int_equal(n_case, 3);
}

/* The same state for any cut of the text. */
TEST(any_cut_of_the_text_gives_the_same_state)
{
    static struct golden g;
    char line[256];
    FILE *f = fopen(GOLDEN, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    while (read_case(f, &g)) {
        struct world a;
        world_open(&a, &g, "share");
        world_observe(&a, TOKENS);
        for (int32_t cut = 1; cut < 12; cut++) {
            struct world b;
            world_open(&b, &g, "share");
            world_observe(&b, cut);
            assert_memory_equal(a.state, b.state, keep_state_size(a.keep));
            world_close(&b);
        }
        world_close(&a);
    }
    fclose(f);
}

/* Queries a thousand times as long as their spread still have a precise covariance. */
TEST(long_queries_keep_their_covariance)
{
    static struct golden g;
    char line[256];
    float near[TOKENS], far[TOKENS];
    FILE *f = fopen(GOLDEN, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    assert_true(read_case(f, &g));
    fclose(f);
    struct world w;
    int32_t n = g.n_token * g.n_head * g.n_group * g.dim;
    for (int32_t i = 0; i < n; i++) /* along dimension 0, which keys are made to lack */
        g.q[i] += i % g.dim == 0 ? 1024.0f : 0.0f;
    for (int32_t i = 0; i < g.n_head * g.n_token * g.dim; i++)
        g.k[i] = i % g.dim == 0 || i % g.dim == g.n_pair ? 0.0f : g.k[i];
    world_open(&w, &g, "logit");
    world_observe(&w, 7);
    world_score(&w, 0, far);
    world_close(&w);
    for (int32_t i = 0; i < n; i++)
        g.q[i] -= i % g.dim == 0 ? 1024.0f : 0.0f;
    world_open(&w, &g, "logit");
    world_observe(&w, 7);
    world_score(&w, 0, near);
    world_close(&w);
    for (int32_t i = SINKS; i < g.n_token; i++)
        if (fabs((double)near[i] - (double)far[i]) > 1e-3)
            fail_msg("entry %d: %g and %g", i, (double)near[i], (double)far[i]);
}
