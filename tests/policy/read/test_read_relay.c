/*
 * LessIsMore and TidalDecode: the layers that reuse another layer's choice, on lanes of several
 * layers that are read as in a pass, beside a reference.
 *
 * The vector was made with float64 from the formulas and code that lessismore.c names. It is for
 * the last query of a chunk of six over ten keys and its own.
 */
#include <math.h>
#include <string.h>

#include "testing.h"

#include "policy/read/reading.h"
#include "policy/read/relay.h"
#include "status.h"

#define MAX_ENTRIES 512
#define MAX_DIM 64

static const float vector_q[2][4] = {{-0.44f, -0.24f, -0.58f, 0.96f},
                                     {-0.43f, 0.42f, 0.27f, 0.99f}};
static const float vector_k[11][4] = {
    {0.51f, 0.8f, 0.99f, -0.47f},   {-0.84f, 0.46f, -0.34f, 0.96f}, {-0.3f, 0.86f, -0.46f, -0.69f},
    {0.65f, 0.34f, -0.1f, -0.82f},  {-0.04f, 0.34f, 0.56f, 0.94f},  {0.45f, -0.71f, 0.89f, 0.48f},
    {0.46f, -0.8f, -0.34f, -0.26f}, {0.33f, 0.05f, 0.23f, 0.4f},    {-0.48f, -0.11f, 0.34f, -0.25f},
    {-0.2f, 0.9f, 0.1f, 0.44f},     {-0.69f, -0.45f, 0.8f, -0.68f},
};
/* ---- layers ---- */

/* Lanes of several layers, read as a pass does. */
struct layers {
    struct policy_model model;
    struct read_config config;
    struct kv_cache *cache;
    struct kv_seq *kv;
    struct read *read;
    struct pi_pass_reader reader;
    struct pi_pass_item item;
    int32_t n_head;
    float *q;       /* [n_layer][n_tok][n_head * n_group][dim] */
    int32_t *slots; /* [n_layer][n_head][cap] */
    int32_t *count; /* [n_layer][n_head] */
    int32_t cap;
};

static void layers_open(struct layers *w, const struct kv_geometry *g, int32_t n_group,
                        const struct read_policy *policy, const char *options)
{
    *w = (struct layers){.model = {.g = *g, .n_group = n_group, .scale = 0.5f},
                         .cap = 2 * MAX_ENTRIES};
    check(read_config_set(policy, options, &w->config, &err), &err);
    check(read_config_fit(&w->config, &w->model.g, &err), &err);
    check(kv_cache_create(&w->model.g, kv_bytes_for_tokens(&w->model.g, 2 * MAX_ENTRIES), &w->cache,
                          &err),
          &err);
    check(read_create(&w->config, &w->model, 1, &w->read, &err), &err);
    check(kv_seq_create(w->cache, &w->kv, &err), &err);
    read_reader(w->read, &w->reader);
    size_t n_lane = (size_t)g->n_layer * (size_t)g->n_head;
    w->slots = test_calloc(n_lane * (size_t)w->cap, sizeof(int32_t));
    w->count = test_calloc(n_lane, sizeof(int32_t));
}

static void layers_close(struct layers *w)
{
    kv_seq_free(w->kv);
    read_free(w->read);
    kv_cache_free(w->cache);
    test_free(w->slots);
    test_free(w->count);
}

/* n entries of every lane; row [n][dim] of all lanes, or random ones. */
static void layers_fill(struct layers *w, int32_t pos0, int32_t n, const float *row, uint64_t *rng)
{
    size_t dim = (size_t)w->model.g.dim_k;
    float *random = test_calloc((size_t)n * dim, sizeof(float));
    check(kv_seq_reserve(w->kv, n, &err), &err);
    for (int32_t l = 0; l < w->model.g.n_layer; l++)
        for (int32_t h = 0; h < w->model.g.n_head; h++) {
            for (size_t i = 0; row == NULL && i < (size_t)n * dim; i++)
                random[i] = rng_float(rng);
            const float *x = row != NULL ? row : random;
            kv_seq_append(w->kv, l, h, pos0, n, x, dim, x, dim);
        }
    test_free(random);
}

/* The entries that every lane reads for the last n_tok tokens, by q [n_tok][n_head *
   n_group][dim]. */
static void layers_select(struct layers *w, int32_t n_tok, const float *q)
{
    const struct kv_geometry *g = &w->model.g;
    int32_t len = kv_lane_len(w->kv, 0, 0);
    size_t dim = (size_t)g->dim_k, row = (size_t)(g->n_head * w->model.n_group) * dim;
    struct read_tally tally = {0};
    w->item =
        (struct pi_pass_item){.kv = w->kv, .n_tok = n_tok, .pos0 = len - n_tok, .n_read = n_tok};
    check(read_reserve(w->read, 1, len, &err), &err);
    for (int32_t l = 0; l < g->n_layer; l++) {
        size_t at = (size_t)(l * g->n_head);
        struct pi_pass_chunk c = {.item = &w->item,
                                  .layer = l,
                                  .n_tok = n_tok,
                                  .q = q,
                                  .q_stride = row,
                                  .cap = w->cap,
                                  .slots = w->slots + at * (size_t)w->cap,
                                  .n_slot = w->count + at};
        w->reader.select(w->reader.user, &c, 1);
    }
    read_add_tally(w->read, &w->item, &tally);
    assert_int_equal(tally.n_chunk, g->n_layer * g->n_head);
}

static const int32_t *slots_of(const struct layers *w, int32_t layer, int32_t head, int32_t *n)
{
    int32_t at = layer * w->model.g.n_head + head;
    *n = w->count[at];
    return w->slots + (size_t)at * (size_t)w->cap;
}

static void assert_slots(const struct layers *w, int32_t layer, int32_t head, const int32_t *wanted,
                         int32_t n_wanted)
{
    int32_t n;
    const int32_t *slots = slots_of(w, layer, head, &n);
    assert_int_equal(n, n_wanted);
    if (n > 0)
        assert_memory_equal(slots, wanted, (size_t)n * sizeof(*wanted));
}

static struct kv_geometry geometry(int32_t n_layer, int32_t n_head, int32_t dim)
{
    return (struct kv_geometry){.n_layer = n_layer,
                                .n_head = n_head,
                                .dim_k = dim,
                                .dim_v = dim,
                                .page_len = 16,
                                .type_k = KV_TYPE_F32,
                                .type_v = KV_TYPE_F32};
}

/* All eleven keys are of earlier tokens here; the token's own, the twelfth, comes on top. */
TEST(lessismore_chooses_as_the_vector_says)
{
    static const int32_t wanted[] = {0, 1, 4, 7, 9, 10, 11};
    struct kv_geometry g = geometry(3, 1, 4);
    struct layers w;
    layers_open(&w, &g, 2, &read_lessismore, "source=0,budget=6,share=0.5,sinks=1,gate=1");
    layers_fill(&w, 0, 11, vector_k[0], NULL);
    layers_fill(&w, 11, 1, vector_k[0], NULL);
    layers_select(&w, 1, vector_q[0]);
    assert_slots(&w, 0, 0, NULL, -1);
    for (int32_t l = 1; l < 3; l++)
        assert_slots(&w, l, 0, wanted, 7);
    layers_close(&w);
}

/* The same by a reference: sinks, recent ones, and of the others the heads' best in turn. */
TEST(lessismore_takes_the_heads_best_in_turn)
{
    static const struct {
        const char *options;
        int32_t budget, middle, sinks, recent; /* recent: of the share and the rule */
    } form[] = {
        {"budget=40,gate=1", 40, 30, 0, 10},
        {"budget=40,gate=1,share=0", 40, 40, 0, 0},
        {"budget=41,gate=1,sinks=4", 41, 30, 4, 7},
        {"budget=41,gate=1,sinks=4,recent=3", 41, 30, 4, 7},
        {"budget=40,gate=1,sinks=4,recent=12", 40, 24, 4, 12},
        {"budget=40,gate=1,sinks=16", 40, 24, 16, 0},
        {"code,budget=33,gate=1", 33, 33, 0, 0},
    };
    enum { N = 200, DIM = 8, HEADS = 2, GROUP = 3 };
    uint64_t rng = 3;
    for (size_t f = 0; f < PI_LEN(form); f++) {
        struct kv_geometry g = geometry(5, HEADS, DIM);
        struct layers w;
        float q[HEADS * GROUP * DIM];
        bool in[N] = {false};
        int32_t n_middle = 0, n_in = 0, wanted[N + 1];
        static double score[HEADS * GROUP][N];
        static bool used[HEADS * GROUP][N];
        memset(used, 0, sizeof(used));
        layers_open(&w, &g, GROUP, &read_lessismore, form[f].options);
        layers_fill(&w, 0, N, NULL, &rng);
        layers_fill(&w, N, 1, NULL, &rng);
        for (size_t i = 0; i < PI_LEN(q); i++)
            q[i] = rng_float(&rng);
        for (int32_t h = 0; h < HEADS * GROUP; h++)
            for (int32_t s = 0; s < N; s++) {
                float k[DIM];
                score[h][s] = 0.0;
                kv_lane_key(w.kv, 2, h / GROUP, s, k);
                for (int32_t d = 0; d < DIM; d++)
                    score[h][s] += (double)k[d] * (double)q[h * DIM + d];
            }
        for (int32_t s = 0; s < N; s++)
            in[s] = s < form[f].sinks || s >= N - form[f].recent;
        for (int32_t rank = 0; n_middle < form[f].middle; rank++)
            for (int32_t h = 0; h < HEADS * GROUP && n_middle < form[f].middle; h++) {
                int32_t best = -1;
                for (int32_t s = form[f].sinks; s < N - form[f].recent; s++)
                    if (!used[h][s] && (best < 0 || score[h][s] > score[h][best]))
                        best = s;
                used[h][best] = true;
                n_middle += !in[best];
                in[best] = true;
            }
        for (int32_t s = 0; s < N; s++)
            if (in[s])
                wanted[n_in++] = s;
        wanted[n_in++] = N;
        assert_int_equal(n_in, form[f].budget + 1);
        layers_select(&w, 1, q);
        for (int32_t l = 0; l < 5; l++)
            for (int32_t h = 0; h < HEADS; h++)
                assert_slots(&w, l, h, wanted, l < 3 ? -1 : n_in);
        layers_close(&w);
    }
}

/* ---- TidalDecode ---- */

TEST(layers_choose_and_reuse_as_the_paper_says)
{
    static const struct {
        int32_t n_layer, source, reselect, wanted;
    } form[] = {
        {32, 2, 0, 13}, {36, 2, 0, 15}, {28, 2, 0, 11}, {6, 2, 0, 4},  {5, 2, 0, 5}, {4, 2, 0, 4},
        {7, 2, 0, 4},   {3, 0, 0, 3},   {4, 0, 0, 2},   {32, 2, 9, 9}, {6, 2, 6, 6}, {80, 2, 0, 31},
    };
    for (size_t i = 0; i < PI_LEN(form); i++) {
        struct relay_form f = {form[i].source, form[i].reselect};
        struct policy_model m = {.g = geometry(form[i].n_layer, 1, 4)};
        int32_t n_reuse = 0;
        assert_int_equal(relay_reselect(&f, form[i].n_layer), form[i].wanted);
        for (int32_t l = 0; l < form[i].n_layer; l++) {
            enum read_role role = relay_role(&f, &m, l);
            assert_int_equal(role, l < f.source                           ? READ_DENSE
                                   : l == f.source || l == form[i].wanted ? READ_SOURCE
                                                                          : READ_REUSE);
            n_reuse += role == READ_REUSE;
        }
        assert_true(n_reuse > 0);
    }
}

TEST(refuses_layers_that_cannot_relay)
{
    static const struct {
        int32_t n_layer;
        const char *options, *word;
    } form[] = {
        {3, "", "give source=0 to source=1"},
        {1, "source=0", "one layer"},
        {6, "reselect=2", "reselect: layer 2 is not behind layer 2"},
        {4, "reselect=3", "no layer of 4 reuses"},
        {6, "source=5", "source: layer 5 has none behind it"},
    };
    for (size_t i = 0; i < PI_LEN(form); i++) {
        struct kv_geometry g = geometry(form[i].n_layer, 1, 4);
        struct read_config c;
        check(read_config_set(&read_tidaldecode, form[i].options, &c, &err), &err);
        expect(read_config_fit(&c, &g, &err), &err, PITH_INVALID, form[i].word);
        check(read_config_set(&read_lessismore, form[i].options, &c, &err), &err);
        expect(read_config_fit(&c, &g, &err), &err, PITH_INVALID, form[i].word);
    }
}

/* The score of a layer's query head for a lane's first n keys. It is the mean over n_tok queries of
   q.k, or of its softmax over the entries that the query sees. */
static void score_head(const struct layers *w, int32_t layer, int32_t head, int32_t i,
                       const float *q, int32_t n_tok, int32_t n, bool softmax, double *score)
{
    int32_t dim = w->model.g.dim_k, n_q = w->model.g.n_head * w->model.n_group;
    memset(score, 0, MAX_ENTRIES * sizeof(*score));
    for (int32_t t = 0; t < n_tok; t++) {
        static double x[MAX_ENTRIES];
        double max = -INFINITY, sum = 0.0;
        for (int32_t s = 0; s < n + t + 1; s++) {
            float k[MAX_DIM];
            kv_lane_key(w->kv, layer, head, s, k);
            x[s] = 0.0;
            for (int32_t d = 0; d < dim; d++)
                x[s] += (double)k[d] * (double)q[(t * n_q + head * w->model.n_group + i) * dim + d];
            max = fmax(max, x[s]);
        }
        for (int32_t s = 0; softmax && s < n + t + 1; s++)
            sum += exp((double)w->model.scale * (x[s] - max));
        for (int32_t s = 0; s < n; s++)
            score[s] +=
                softmax ? exp((double)w->model.scale * (x[s] - max)) / sum / n_tok : x[s] / n_tok;
    }
}

/* The best n_best of n keys by the group's mean or largest score, ascending, and then the n_tok
   slots behind them. */
static void best_of(const struct layers *w, int32_t layer, int32_t head, const float *q,
                    int32_t n_tok, bool max, bool softmax, int32_t n, int32_t n_best, int32_t *out)
{
    static double score[MAX_ENTRIES], one[MAX_ENTRIES];
    int32_t n_out = 0;
    for (int32_t i = 0; i < w->model.n_group; i++) {
        score_head(w, layer, head, i, q, n_tok, n, softmax, one);
        for (int32_t s = 0; s < n; s++)
            score[s] = i == 0 ? one[s] : max ? fmax(score[s], one[s]) : score[s] + one[s];
    }
    for (int32_t s = 0; s < n; s++) {
        int32_t n_above = 0;
        for (int32_t i = 0; i < n; i++)
            n_above += score[i] > score[s];
        if (n_above < n_best)
            out[n_out++] = s;
    }
    assert_int_equal(n_out, n_best);
    for (int32_t t = 0; t < n_tok; t++)
        out[n_out++] = n + t;
}

TEST(tidaldecode_reuses_a_layers_choice)
{
    enum { N = 300, DIM = 16, HEADS = 2, GROUP = 2, BUDGET = 50, TOKENS = 9 };
    static const struct {
        const char *options;
        bool max, softmax;
        int32_t n_tok;
    } form[] = {
        {"budget=50", false, false, 1},
        {"budget=50,heads=max", true, false, 1},
        {"budget=50,rank=softmax", false, true, 1},
        {"budget=50,phase=both", false, false, TOKENS},
        {"quoka,budget=50", false, true, TOKENS},
        {"quoka,budget=50,heads=max", true, true, TOKENS},
    };
    uint64_t rng = 21;
    for (size_t f = 0; f < PI_LEN(form); f++) {
        struct kv_geometry g = geometry(6, HEADS, DIM);
        struct layers w;
        float q[TOKENS * HEADS * GROUP * DIM];
        int32_t wanted[BUDGET + TOKENS], n_tok = form[f].n_tok;
        layers_open(&w, &g, GROUP, &read_tidaldecode, form[f].options);
        layers_fill(&w, 0, N, NULL, &rng);
        layers_fill(&w, N, n_tok, NULL, &rng);
        for (size_t i = 0; i < PI_LEN(q); i++)
            q[i] = 2.0f * rng_float(&rng);
        layers_select(&w, n_tok, q);
        for (int32_t l = 0; l < 6; l++)
            for (int32_t h = 0; h < HEADS; h++) {
                if (l != 3 && l != 5) { /* 0 and 1 are dense, 2 and 4 choose */
                    assert_slots(&w, l, h, NULL, -1);
                    continue;
                }
                best_of(&w, l - 1, h, q, n_tok, form[f].max, form[f].softmax, N, BUDGET, wanted);
                assert_slots(&w, l, h, wanted, BUDGET + n_tok);
            }
        layers_close(&w);
    }
}

/* A lane that has lost some of the chosen entries reads the remaining ones. */
TEST(tidaldecode_reads_lanes_that_lost_entries)
{
    enum { N = 200, DIM = 8, BUDGET = 30 };
    struct kv_geometry g = geometry(4, 1, DIM);
    struct layers w;
    float q[DIM];
    int32_t best[BUDGET + 1], keep[N], n_keep = 0, wanted[BUDGET + 1], n_wanted = 0;
    uint64_t rng = 4;
    layers_open(&w, &g, 1, &read_tidaldecode, "budget=30");
    layers_fill(&w, 0, N, NULL, &rng);
    for (int32_t d = 0; d < DIM; d++)
        q[d] = rng_float(&rng);
    for (int32_t s = 0; s < N; s++)
        if (s % 3 != 0)
            keep[n_keep++] = s;
    check(kv_seq_compact(w.kv, 3, 0, keep, n_keep, &err), &err);
    layers_fill(&w, N, 1, NULL, &rng);
    best_of(&w, 2, 0, q, 1, false, false, N, BUDGET, best);
    for (int32_t i = 0; i < BUDGET; i++)
        for (int32_t s = 0; s < n_keep; s++)
            if (keep[s] == best[i])
                wanted[n_wanted++] = s;
    assert_true(n_wanted > 0 && n_wanted < BUDGET);
    wanted[n_wanted++] = n_keep;
    layers_select(&w, 1, q);
    assert_slots(&w, 3, 0, wanted, n_wanted);
    layers_close(&w);
}
