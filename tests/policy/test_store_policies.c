/*
 * test_store_policies.c - every policy over every storage type. On small models with random
 * weights, rounds happen, budgets hold to the entry, and policies read parts. The bits are the same
 * for any chunk and number of threads. A keep policy scores packed entries like the numbers that
 * they decode to.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "mem_used.h"
#include "engine/engine.h"
#include "policy/keep/rules/rounds.h"
#include "policy/keep/stats/stats.h"
#include "kv_check.h"
#include "model_maker.h"
#include "status.h"
#include "testing.h"
#include "kv_shape.h"

enum { N_PROMPT = 150, N_STEP = 14, N_TOKEN = N_PROMPT + N_STEP, HEADS = 4, KV_HEADS = 2 };

static const char *const type_names[KV_N_TYPE] = {
    [KV_TYPE_F32] = "f32",       [KV_TYPE_F16] = "f16",       [KV_TYPE_Q8_0] = "q8_0",
    [KV_TYPE_Q4_0] = "q4_0",     [KV_TYPE_TURBO4] = "turbo4", [KV_TYPE_TURBO3] = "turbo3",
    [KV_TYPE_TURBO2] = "turbo2", [KV_TYPE_BF16] = "bf16",
};
static const char *const value_names[] = {"turbo3", "q4_0"};

/* Options where the defaults do not suit: a policy without a line is tested by its defaults. */
static const char *const keep_more[][2] = {
    {"adakv", "window=24,queries=24,"},
    {"lazyeviction", "window=20,"},
    {"longflow", "prompt-window=20,"},
    {"random", "window=4,"},
};
static const char *const read_more[][2] = {
    {"lessismore", "source=0,phase=both,"},
    {"tidaldecode", "source=0,phase=both,"},
    {"quest", "dense-layers=0,phase=both,"},
    {"sparq", "r=8,"},
};

static const char *more_of(const char *const table[][2], size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(table[i][0], name) == 0)
            return table[i][1];
    return "";
}

/* ---- models ---- */

static const char *const shapes[] = {
    "arch=qwen3 layers=2 width=128 heads=4 kv_heads=2 head_dim=64 ff=96 vocab=160 ctx=1024",
    "arch=llama layers=2 width=96 heads=4 kv_heads=2 head_dim=96 ff=96 vocab=160 ctx=1024",
};

static pith_model *models[PI_LEN(shapes)];
static char bases[PI_LEN(shapes)][64]; /* Loki's projection of each */
static int32_t tokens[N_TOKEN];

static pith_engine *engine_of(size_t m, const char *keep, const char *read, const char *type_k,
                              const char *type_v, int32_t chunk, int32_t n_thread)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_engine_params_default(&params);
    params.chunk = chunk;
    params.n_thread = n_thread;
    params.kv_tokens = 3 * N_TOKEN;
    params.page_len = 16;
    params.keep = keep;
    params.read = read;
    params.type_k = type_k;
    params.type_v = type_v;
    if (pith_engine_create(models[m], &params, &e, &err) != PITH_OK)
        fail_msg("%s%s, K %s, V %s: %s", keep != NULL ? keep : "", read != NULL ? read : "", type_k,
                 type_v, err.message);
    return e;
}

static void make_models(void)
{
    uint64_t rng = 21;
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&rng, 160);
    for (size_t m = 0; m < PI_LEN(shapes); m++) {
        char path[64] = "/tmp/pith-store-XXXXXX";
        pith_projection *p = NULL;
        close(mkstemp(path));
        check(model_make_of(shapes[m], path, &err), &err);
        check(pith_model_load(path, NULL, &models[m], &err), &err);
        unlink(path);
        strcpy(bases[m], "/tmp/pith-store-XXXXXX");
        close(mkstemp(bases[m]));
        pith_engine *e = engine_of(m, NULL, NULL, "f16", "f16", 64, 1);
        check(pith_projection_fit(e, tokens, N_PROMPT, NULL, &p, &err), &err);
        check(pith_projection_save(p, bases[m], &err), &err);
        pith_projection_free(p);
        pith_engine_free(e);
    }
}

static void free_models(void)
{
    for (size_t m = 0; m < PI_LEN(shapes); m++) {
        pith_model_free(models[m]);
        unlink(bases[m]);
    }
    mem_check(NULL);
}

/* ---- runs ---- */

static bool keep_hash(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    (void)seq;
    ((uint64_t *)user)[pos] = pith_logits_hash(logits, 160);
    return true;
}

/* A prompt and steps; hashes [N_TOKEN]. */
static pith_seq *run(pith_engine *e, uint64_t *hashes)
{
    pith_seq *seq = seq_make(e);
    for (int32_t i = 0, n; i < N_TOKEN; i += n) {
        n = i == 0 ? N_PROMPT : 1;
        pith_batch_item item = {.seq = seq,
                                .tokens = tokens + i,
                                .n_token = n,
                                .logits = PITH_LOGITS_ALL,
                                .on_logits = keep_hash,
                                .user = hashes};
        check(pith_batch_eval(e, &item, 1, NULL, NULL, &err), &err);
    }
    return seq;
}

static int32_t lane_len(const pith_seq *seq, int32_t layer, int32_t head)
{
    pith_lane_info lane;
    int32_t pos[N_TOKEN];
    assert_int_equal(pith_seq_lane(seq, layer, head, &lane, pos, N_TOKEN), PITH_OK);
    return lane.n_entry;
}

/* In each layer: before a round no more than the budgets and the slack. After it exactly the
   budgets, less the place that overwriting leaves free. */
static void check_budgets(pith_seq *seq, const char *text)
{
    const struct keep_config *c = &seq->engine->keep.handle->config;
    const struct kv_geometry *g = kv_cache_geometry(seq->engine->kv);
    const struct keep_point at = {N_TOKEN, 0, 0.0, 0};
    int32_t before[4] = {0}, after[4] = {0}, most[4] = {0};
    for (int32_t i = 0; i < g->n_layer * g->n_head; i++) {
        before[i / g->n_head] += lane_len(seq, i / g->n_head, i % g->n_head);
        most[i / g->n_head] += keep_lane_budget_at(c, i / g->n_head, i % g->n_head, at);
    }
    check(pith_seq_keep_round(seq, &err), &err);
    for (int32_t i = 0; i < g->n_layer * g->n_head; i++)
        after[i / g->n_head] += lane_len(seq, i / g->n_head, i % g->n_head);
    for (int32_t l = 0; l < g->n_layer; l++) {
        int32_t spare = c->rules.overwrite ? g->n_head : 0;
        int32_t want = before[l] > most[l] ? most[l] - spare : before[l];
        if (before[l] > most[l] + g->n_head * c->rules.slack || after[l] != want)
            fail_msg("%s: layer %d had %d and has %d entries, of a budget of %d", text, l,
                     before[l], after[l], most[l]);
    }
}

static void expect_same(const uint64_t *a, const uint64_t *b, const char *text, int32_t type)
{
    for (int32_t i = 0; i < N_TOKEN; i++)
        if (a[i] != b[i])
            fail_msg("%s over %s: position %d differs", text, type_names[type], i);
}

static void check_keep(size_t m, const char *name, int32_t type, const char *type_v)
{
    char text[128];
    uint64_t a[N_TOKEN], b[N_TOKEN], full[N_TOKEN];
    snprintf(text, sizeof(text), "%s:%sbudget=64,slack=16", name,
             more_of(keep_more, PI_LEN(keep_more), name));
    for (int32_t turn = 0; turn < 2; turn++) {
        pith_engine *e = engine_of(m, text, NULL, type_names[type], type_v, turn == 0 ? 512 : 7,
                                   turn == 0 ? 1 : 2);
        pith_seq *seq = run(e, turn == 0 ? a : b);
        pith_keep_stats stats;
        pith_seq_keep_stats(seq, &stats);
        assert_int_equal(kv_cache_geometry(e->kv)->type_k, type); /* as it was asked for */
        assert_true(stats.rounds >= 2 && stats.evicted > 0);
        check_budgets(seq, text);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
    expect_same(a, b, text, type);
    /* And what went is missed. */
    pith_engine *e = engine_of(m, NULL, NULL, type_names[type], type_v, 512, 1);
    pith_seq_free(run(e, full));
    pith_engine_free(e);
    assert_true(a[N_TOKEN - 1] != full[N_TOKEN - 1]);
}

TEST_WITH(make_models, free_models, every_keep_policy_works_over_every_type)
{
    pith_policy_info info;
    for (size_t m = 0; m < PI_LEN(shapes); m++)
        for (int32_t i = 0, n = 0; pith_policy_get(PITH_KEEP, i, &info) == PITH_OK; i++)
            for (int32_t type = 0; type < KV_N_TYPE; type++, n++)
                if (n % TEST_STRIDE == 0 && strcmp(info.name, "kvzap") != 0 &&
                    strcmp(info.name, "kvzip") != 0) /* a file, and rounds that wait */
                    check_keep(m, info.name, type, value_names[n % 2]);
}

static void check_read(size_t m, const char *name, int32_t type, const char *type_v)
{
    char text[192];
    uint64_t a[N_TOKEN], b[N_TOKEN], full[N_TOKEN];
    bool loki = strcmp(name, "loki") == 0;
    snprintf(text, sizeof(text), "%s:%sbudget=16,chunk=7%s%s", name,
             more_of(read_more, PI_LEN(read_more), name), loki ? ",r=8,projection=" : "",
             loki ? bases[m] : "");
    for (int32_t turn = 0; turn < 2; turn++) {
        pith_engine *e = engine_of(m, NULL, text, type_names[type], type_v, turn == 0 ? 512 : 7,
                                   turn == 0 ? 1 : 2);
        pith_seq *seq = run(e, turn == 0 ? a : b);
        pith_read_stats stats;
        pith_seq_read_stats(seq, &stats);
        if (stats.sparse == 0 || stats.read >= stats.stored)
            fail_msg("%s over %s: %lld of %lld entries were read", text, type_names[type],
                     (long long)stats.read, (long long)stats.stored);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
    expect_same(a, b, text, type);
    pith_engine *e = engine_of(m, NULL, NULL, type_names[type], type_v, 512, 1);
    pith_seq_free(run(e, full));
    pith_engine_free(e);
    assert_true(memcmp(a, full, sizeof(full)) != 0);
}

TEST_WITH(make_models, free_models, every_read_policy_works_over_every_type)
{
    pith_policy_info info;
    for (size_t m = 0; m < PI_LEN(shapes); m++)
        for (int32_t i = 0, n = 0; pith_policy_get(PITH_READ, i, &info) == PITH_OK; i++)
            for (int32_t type = 0; type < KV_N_TYPE; type++, n++)
                if (n % TEST_STRIDE == 0)
                    check_read(m, info.name, type, value_names[n % 2]);
}

/* ---- scores of packed entries ---- */

enum { N_ENTRY = 70, DIM_MOST = 128 };

static char stats_path[64];

/* Statistics of one layer, so that TriAttention scores without having seen a pass. */
static void make_stats(int32_t dim)
{
    struct pith_stats *s;
    uint64_t rng = 3;
    check(stats_new(&s, &err), &err);
    s->n_layer = 1;
    s->n_head = HEADS;
    s->n_head_kv = KV_HEADS;
    s->n_pair = dim / 2;
    s->n_centre = 1;
    s->magnitude = 1.0f;
    check(stats_alloc(s, false, false, &err), &err);
    s->model = pi_mem_strndup(PI_MEM_OTHER, "", 0);
    s->text = pi_mem_strndup(PI_MEM_OTHER, "", 0);
    s->count[0] = 100;
    for (int32_t h = 0; h < HEADS; h++) {
        float *row = s->q + (size_t)h * stats_row_len(s);
        for (int32_t f = 0; f < s->n_pair; f++) {
            row[f] = rng_float(&rng);
            row[s->n_pair + f] = rng_float(&rng);
            row[2 * s->n_pair + f] = hypotf(row[f], row[s->n_pair + f]) * 1.25f;
        }
    }
    check(pith_stats_save(s, stats_path, &err), &err);
    pith_stats_free(s);
}

/* A policy's scores of both lanes, out [KV_HEADS][N_ENTRY]. False: it needs to see passes. */
static bool score(const struct keep_policy *policy, const struct kv_seq *kv,
                  const struct policy_model *of_cache, float *out)
{
    char more[96] = "";
    struct policy_model whole = *of_cache, *facts = &whole;
    struct pith_stats *stats = NULL;
    struct keep_config c;
    void *data = NULL;
    int32_t pos[N_ENTRY];
    bool evictable[N_ENTRY];
    if (policy == &keep_triattention)
        snprintf(more, sizeof(more), "stats=%s", stats_path);
    check(keep_config_set(policy, more, &c, &err), &err);
    if (policy == &keep_triattention)
        check(pith_stats_load(stats_path, &stats, &err), &err);
    whole.stats = stats;
    if (policy->needs != NULL && policy->needs(&c.params) != 0)
        return false;
    if (policy->open != NULL)
        check(policy->open(&c.params, facts, &data, &err), &err);
    if (policy->state_size != NULL)
        assert_int_equal(policy->state_size(&c.params, facts, data), 0);
    struct keep_view view = {.kv = kv, .n_token = N_ENTRY, .model = facts, .data = data};
    size_t size =
        policy->scratch_size != NULL ? policy->scratch_size(&c.params, facts, data, N_ENTRY) : 0;
    void *scratch = test_malloc(size + 1);
    memset(evictable, 1, sizeof(evictable));
    if (policy->begin != NULL)
        policy->begin(&c.params, &view);
    for (int32_t h = 0; h < KV_HEADS; h++) {
        struct keep_lane lane = {.head = h,
                                 .n = N_ENTRY,
                                 .pos = pos,
                                 .evictable = evictable,
                                 .n_evictable = N_ENTRY,
                                 .scratch = scratch};
        kv_lane_positions(kv, 0, h, pos, N_ENTRY);
        policy->score(&c.params, &view, &lane, out + h * N_ENTRY);
    }
    test_free(scratch);
    if (policy->close != NULL)
        policy->close(data);
    pith_stats_free(stats);
    return true;
}

/* A cache of one layer: rows follow from a seed, or are what `from` decodes to. */
static struct kv_seq *fill(struct kv_cache *cache, const struct kv_seq *from, int32_t dim)
{
    struct kv_seq *kv;
    float k[DIM_MOST], v[DIM_MOST];
    check(kv_seq_create(cache, &kv, &err), &err);
    check(kv_seq_reserve(kv, N_ENTRY, &err), &err);
    for (int32_t i = 0; i < N_ENTRY; i++)
        for (int32_t h = 0; h < KV_HEADS; h++) {
            kv_check_row((uint64_t)(i * 4 + h), k, dim);
            kv_check_row((uint64_t)(i * 4 + h + 1000000), v, dim);
            if (from != NULL) {
                kv_lane_key(from, 0, h, i, k);
                kv_lane_value(from, 0, h, i, v);
            }
            kv_seq_append(kv, 0, h, i, 1, k, 0, v, 0);
        }
    return kv;
}

static float most_of(const float *x, const float *y)
{
    float most = 0.0f;
    for (int32_t i = 0; i < KV_HEADS * N_ENTRY; i++)
        most = fmaxf(most, fabsf(x[i] - (y != NULL ? y[i] : 0.0f)));
    return most;
}

static int32_t check_scores(int32_t dim, enum kv_type type_k, enum kv_type type_v)
{
    struct kv_geometry g = KV_SHAPE(1, KV_HEADS, dim, dim, 16, type_k, type_v);
    struct kv_geometry plain = KV_SHAPE(1, KV_HEADS, dim, dim, 16, KV_TYPE_F32, KV_TYPE_F32);
    double freq[DIM_MOST / 2];
    struct pi_rope rope = {.freq = freq, .n_pair = dim / 2, .magnitude = 1.0f};
    struct policy_model facts = {.g = g, .n_group = 2, .scale = 0.125f, .rope = &rope};
    struct policy_model facts_plain = {.g = plain, .n_group = 2, .scale = 0.125f, .rope = &rope};
    struct kv_cache *packed = kv_check_cache(&g, 32), *other = kv_check_cache(&plain, 64);
    struct kv_seq *kv = fill(packed, NULL, dim), *decoded = fill(other, kv, dim);
    struct kv_seq *original = fill(other, NULL, dim);
    int32_t n = 0;
    for (int32_t f = 0; f < dim / 2; f++)
        freq[f] = pow(10000.0, -2.0 * f / dim);
    make_stats(dim);
    for (int32_t i = 0; keep_policy_at(i) != NULL; i++) {
        const struct keep_policy *policy = keep_policy_at(i);
        float a[KV_HEADS * N_ENTRY], b[KV_HEADS * N_ENTRY], c[KV_HEADS * N_ENTRY];
        if (!score(policy, kv, &facts, a))
            continue;
        score(policy, decoded, &facts_plain, b);
        score(policy, original, &facts_plain, c);
        float size = fmaxf(1.0f, most_of(b, NULL));
        if (!(most_of(a, b) <= 1e-4f * size))
            fail_msg("%s over %s, %s of %d: scores differ by %g, of %g", policy->name,
                     type_names[type_k], type_names[type_v], dim, (double)most_of(a, b),
                     (double)size);
        /* The comparison detects the error of a few bits in a key. */
        bool directions = policy == &keep_keydiff || policy == &keep_triattention;
        if (pith_store_bits((int32_t)type_k, dim) < 8.0 && directions)
            assert_true(most_of(a, c) > 3e-3f);
        n++;
    }
    kv_seq_free(kv);
    kv_seq_free(decoded);
    kv_seq_free(original);
    kv_cache_free(packed);
    kv_cache_free(other);
    return n;
}

TEST(scores_are_those_of_decoded_entries)
{
    static const int32_t dims[] = {64, 96, 128};
    strcpy(stats_path, "/tmp/pith-store-XXXXXX");
    close(mkstemp(stats_path));
    for (size_t d = 0; d < PI_LEN(dims); d++)
        for (int type = 0; type < KV_N_TYPE; type++) {
            /* streaming, random, knorm, keydiff, vnorm, triattention */
            assert_int_equal(check_scores(dims[d], (enum kv_type)type, KV_TYPE_TURBO3), 6);
            assert_int_equal(check_scores(dims[d], (enum kv_type)type, KV_TYPE_Q4_0), 6);
        }
    unlink(stats_path);
}
