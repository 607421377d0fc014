/*
 * test_keep_written.c - policies that score entries when they are written, or by sums over the
 * queries, on a model. Marks equal the statistics' prediction from the layer's input or the key and
 * the value. Bits are the same for any chunk, number of threads and other sequences, and equal the
 * full cache where a budget is never reached. Also forks, overwritten entries, and statistics that
 * do not fit. After a file, stored keys are scored.
 */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "testing.h"

#include "base/mem.h"
#include "folder.h"
#include "keep_engine.h"
#include "policy/keep/stats/stats.h"

#define N_TOKEN 200

static const char *stats_path;
static struct stats_importance *importance; /* of the file */

#define N_HIDDEN 5 /* neurons */

/* ---- statistics ---- */

static void fill(float *x, size_t n, float scale, uint64_t *rng)
{
    for (size_t i = 0; i < n; i++)
        x[i] = scale * rng_float(rng);
}

static struct stats_importance *make_importance(int32_t n_embd, int32_t n_feature)
{
    struct stats_importance shape = {.n_layer = info.n_layer,
                                     .n_lane = n_lane,
                                     .n_embd = n_embd,
                                     .n_feature = n_feature,
                                     .n_hidden = n_embd > 0 ? N_HIDDEN : 0,
                                     .n_quantile = 1};
    struct stats_importance *m = NULL;
    uint64_t rng = 11;
    size_t n_key = (size_t)n_lane * (size_t)n_feature;
    check(stats_importance_create(&shape, &m, &err), &err);
    fill(m->key_weight, n_key + (size_t)n_lane, 0.5f, &rng);
    for (size_t i = 0; i < n_key; i++) {
        m->key_low[i] = i % 5 == 0 ? -0.5f : -100.0f; /* some are clipped */
        m->key_high[i] = i % 7 == 0 ? 0.5f : 100.0f;
    }
    if (n_embd == 0)
        return m;
    fill(m->net_in, (size_t)info.n_layer * N_HIDDEN * (size_t)(n_embd + 1), 0.2f, &rng);
    fill(m->net_out, (size_t)n_lane * (N_HIDDEN + 1), 0.5f, &rng);
    fill(m->hidden_weight, (size_t)n_lane * (size_t)(n_embd + 1), 0.5f, &rng);
    for (size_t i = 0; i < (size_t)info.n_layer * (size_t)n_embd; i++) {
        m->hidden_low[i] = i % 5 == 0 ? -0.3f : -100.0f;
        m->hidden_high[i] = i % 7 == 0 ? 0.3f : 100.0f;
    }
    return m;
}

/* Writes statistics with the given parts, which they own, and frees them. */
static void save_stats(struct stats_importance *m, const char *path)
{
    struct pith_stats *s = NULL;
    check(stats_new(&s, &err), &err);
    s->n_layer = info.n_layer;
    s->n_head = info.n_head;
    s->n_head_kv = info.n_head_kv;
    s->n_pair = model->rope.n_pair;
    check(stats_alloc(s, false, false, &err), &err);
    size_t row = stats_row_len(s);
    for (size_t i = 0; i < (size_t)s->n_layer * (size_t)s->n_head; i++)
        for (size_t f = 0; f < (size_t)s->n_pair; f++)
            s->q[i * row + 2 * (size_t)s->n_pair + f] = 1.0f;
    for (int32_t l = 0; l < s->n_layer; l++)
        s->count[l] = 1;
    s->importance = m;
    check(pith_stats_save(s, path, &err), &err);
    pith_stats_free(s);
}

static void set_up(void)
{
    make_folder();
    model_load(5);
    static char path[160];
    strcpy(path, in_folder("zap.stats"));
    stats_path = path;
    importance = make_importance(info.n_embd, model->hp.dim_k + 2);
    save_stats(make_importance(info.n_embd, model->hp.dim_k + 2), path);
}

static void tear_down(void)
{
    stats_importance_free(importance);
    model_free();
    remove_folder();
}

TEST_GROUP(set_up, tear_down);

/* NAME:OPTIONS with the file where the policy wants one; the last four stay valid. */
static const char *keep_of(const char *form)
{
    static char text[4][320];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(text[turn], sizeof(text[turn]), "%s%s%s", form,
             strncmp(form, "kvzap", 5) == 0 ? ",stats=" : "",
             strncmp(form, "kvzap", 5) == 0 ? stats_path : "");
    return text[turn];
}

static const char *const forms[] = {
    "kvzap:budget=48,window=16,slack=24,granularity=layer-head",
    "kvzap:budget=48,window=16,slack=24,granularity=layer,features=hidden",
    "kvzap:budget=48,window=16,slack=24",
    "kvzap:budget=40%,window=8,slack=24,features=hidden",
    "kvzap:budget=48,window=16,slack=24,features=network",
    "expected:budget=48,slack=24,granularity=layer-head",
    "expected:budget=40%,slack=24,granularity=all,score=log,window=8",
};
#define N_FORM PI_LEN(forms)

/* ---- marks ---- */

/* The entries that a pass wrote, by the tap. */
struct seen {
    float *h; /* [n_layer][N_TOKEN][n_embd] */
    float *k; /* [n_layer][N_TOKEN][n_head_kv][dim_k] after rope */
    float *v;
};

static void see_rows(void *user, const struct pi_pass_tap_rows *rows)
{
    struct seen *s = user;
    const struct pi_hparams *hp = &model->hp;
    size_t n_k = (size_t)hp->n_head_kv * (size_t)hp->dim_k;
    size_t n_v = (size_t)hp->n_head_kv * (size_t)hp->dim_v, n_h = (size_t)hp->n_embd;
    size_t at = (size_t)rows->layer * N_TOKEN + (size_t)rows->item->pos0;
    size_t n = (size_t)rows->item->n_tok;
    memcpy(s->h + at * n_h, rows->h, n * n_h * sizeof(float));
    memcpy(s->k + at * n_k, rows->k, n * n_k * sizeof(float));
    memcpy(s->v + at * n_v, rows->v, n * n_v * sizeof(float));
}

static double length_of(const float *x, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* NVIDIA's KVzap with a layer of neurons, and PyTorch's GELU. */
static double network(const struct stats_importance *m, int32_t layer, size_t lane, const float *h)
{
    const float *out = m->net_out + lane * (N_HIDDEN + 1);
    double sum = (double)out[N_HIDDEN];
    for (int32_t j = 0; j < N_HIDDEN; j++) {
        const float *in =
            m->net_in + ((size_t)layer * N_HIDDEN + (size_t)j) * (size_t)(m->n_embd + 1);
        double x = (double)in[m->n_embd];
        for (int32_t i = 0; i < m->n_embd; i++)
            x += (double)in[i] * (double)h[i];
        sum += (double)out[j] * 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    }
    return sum;
}

static double predict(const struct seen *s, int hidden, int32_t layer, int32_t head, int32_t pos)
{
    const struct pi_hparams *hp = &model->hp;
    const struct stats_importance *m = importance;
    size_t lane = (size_t)layer * (size_t)hp->n_head_kv + (size_t)head, n = (size_t)m->n_feature;
    size_t at = (size_t)layer * N_TOKEN + (size_t)pos;
    float x[512], cs[512];
    if (hidden == 2)
        return network(m, layer, lane, s->h + at * (size_t)hp->n_embd);
    if (hidden == 1)
        return stats_importance_predict(m->hidden_weight + lane * (size_t)(hp->n_embd + 1),
                                        m->hidden_low + (size_t)layer * (size_t)hp->n_embd,
                                        m->hidden_high + (size_t)layer * (size_t)hp->n_embd,
                                        s->h + at * (size_t)hp->n_embd, hp->n_embd);
    size_t row = at * (size_t)hp->n_head_kv + (size_t)head;
    pi_rope_turn_back(&model->rope, pos, s->k + row * (size_t)hp->dim_k, hp->dim_k, cs, x);
    x[hp->dim_k] = (float)length_of(x, hp->dim_k);
    x[hp->dim_k + 1] = (float)length_of(s->v + row * (size_t)hp->dim_v, hp->dim_v);
    return stats_importance_predict(m->key_weight + lane * (n + 1), m->key_low + lane * n,
                                    m->key_high + lane * n, x, m->n_feature);
}

/* Marks before any round, after chunks and steps, equal the statistics' predictions. */
TEST(marks_are_what_the_statistics_predict)
{
    static const char *const texts[] = {"kvzap:budget=1024", "kvzap:budget=1024,features=hidden",
                                        "kvzap:budget=1024,features=network"};
    const struct pi_hparams *hp = &model->hp;
    size_t n_row = (size_t)hp->n_layer * N_TOKEN, n_kv = n_row * (size_t)hp->n_head_kv;
    struct seen s = {calloc(n_row * (size_t)hp->n_embd, sizeof(float)),
                     calloc(n_kv * (size_t)hp->dim_k, sizeof(float)),
                     calloc(n_kv * (size_t)hp->dim_v, sizeof(float))};
    for (int hidden = 0; hidden < 3; hidden++) {
        pith_engine *e = engine_make(keep_of(texts[hidden]), 50, 2, 512);
        pith_seq *seq = seq_make(e);
        check(pi_pass_set_tap(e->pass, &(struct pi_pass_tap){.fn = see_rows, .user = &s}, &err),
              &err);
        eval(seq, 0, 120);
        for (int32_t t = 120; t < 130; t++)
            eval(seq, t, t + 1);
        for (int32_t l = 0; l < hp->n_layer; l++)
            for (int32_t h = 0; h < hp->n_head_kv; h++)
                for (int32_t t = 0; t < 130; t++) {
                    double want = predict(&s, hidden, l, h, t);
                    double got = (double)kv_lane_marks(seq->memory.kv, l, h, 0)[t];
                    if (fabs(got - want) > 2e-4 * (1.0 + fabs(want)))
                        fail_msg("%s, layer %d, head %d, token %d: %g is not %g", texts[hidden], l,
                                 h, t, got, want);
                }
        pith_seq_free(seq);
        pith_engine_free(e);
    }
    free(s.h);
    free(s.k);
    free(s.v);
}

/* ---- the same bits ---- */

static uint64_t run_alone(const char *keep, int32_t chunk, int32_t n_thread, uint64_t *hashes)
{
    pith_engine *e = engine_make(keep, chunk, n_thread, 2 * N_TOKEN);
    pith_seq *seq = eval_all(e, N_TOKEN, hashes);
    assert_true(strstr(keep, "budget=1024") != NULL || stats_of(seq).rounds > 2);
    uint64_t hash = hashes[N_TOKEN - 1];
    pith_seq_free(seq);
    pith_engine_free(e);
    return hash;
}

TEST(chunks_threads_and_company_change_no_bit)
{
    for (size_t f = 0; f < N_FORM; f++) {
        static uint64_t want[TOKENS_MAX], got[TOKENS_MAX], other[TOKENS_MAX];
        const char *keep = keep_of(forms[f]);
        run_alone(keep, 512, 1, want);
        run_alone(keep, 7, 2, got);
        assert_memory_equal(want, got, N_TOKEN * sizeof(*want));
        pith_engine *e = engine_make(keep, 64, 2, 4 * N_TOKEN);
        pith_seq *a = seq_make(e), *b = seq_make(e);
        pith_batch_item item[2] = {{.seq = b,
                                    .tokens = tokens + 100,
                                    .n_token = 150,
                                    .logits = PITH_LOGITS_ALL,
                                    .on_logits = keep_hash,
                                    .user = other},
                                   {.seq = a,
                                    .tokens = tokens,
                                    .n_token = N_TOKEN,
                                    .logits = PITH_LOGITS_ALL,
                                    .on_logits = keep_hash,
                                    .user = got}};
        memset(got, 0, sizeof(got));
        check(pith_batch_eval(e, item, 2, NULL, NULL, &err), &err);
        assert_memory_equal(want, got, N_TOKEN * sizeof(*want));
        pith_seq_free(a);
        pith_seq_free(b);
        pith_engine_free(e);
    }
}

TEST(a_budget_that_is_never_reached_is_the_full_cache)
{
    static const char *const texts[] = {"kvzap:budget=1024", "kvzap:budget=1024,features=hidden",
                                        "expected:budget=1024"};
    static uint64_t want[TOKENS_MAX], got[TOKENS_MAX];
    run_alone("streaming:budget=1024", 512, 1, want);
    for (size_t i = 0; i < PI_LEN(texts); i++) {
        run_alone(keep_of(texts[i]), 64, 2, got);
        assert_memory_equal(want, got, N_TOKEN * sizeof(*want));
    }
}

/* A fork goes on as its original does, and so does what forgot and read again. */
TEST(a_fork_goes_on_alike)
{
    for (size_t f = 0; f < N_FORM; f++) {
        static uint64_t want[TOKENS_MAX];
        const char *keep = keep_of(forms[f]);
        uint64_t last = run_alone(keep, 512, 1, want);
        pith_engine *e = engine_make(keep, 64, 2, 4 * N_TOKEN);
        pith_seq *a = seq_make(e), *b = NULL;
        eval(a, 0, 90);
        check(pith_seq_fork(a, &b, &err), &err);
        eval(b, 90, N_TOKEN);
        eval(a, 90, N_TOKEN);
        assert_true(hash_of(a) == hash_of(b));
        if (strstr(forms[f], "%") == NULL) /* a share is cut where an evaluation ends, too */
            assert_true(hash_of(b) == last);
        pith_seq_free(a);
        pith_seq_free(b);
        pith_engine_free(e);
    }
}

/* ---- files ---- */

/* Scores of all lanes of a sequence. */
static void score_lanes(pith_seq *seq, float *out)
{
    const struct keep_config *config = keep_get_config(seq->engine->keep.handle);
    const struct keep_policy *p = config->policy;
    struct pith_stats stats = {.importance = importance};
    struct policy_model m = {.g = *kv_cache_geometry(seq->engine->kv),
                             .n_group = info.n_head / info.n_head_kv,
                             .scale = model->hp.attn_scale,
                             .rope = &model->rope,
                             .model = model,
                             .stats = &stats};
    struct keep_view view = pi_seq_view(seq, pith_seq_length(seq));
    view.model = &m;
    for (int32_t i = 0; i < n_lane; i++) {
        int32_t l = i / info.n_head_kv, h = i % info.n_head_kv,
                n = kv_lane_len(seq->memory.kv, l, h);
        int32_t pos[N_TOKEN];
        bool evictable[N_TOKEN];
        size_t size = p->scratch_size(&config->params, &m, NULL, n);
        void *scratch = pi_mem_alloc(PI_MEM_SCRATCH, size);
        memset(evictable, 1, sizeof(evictable));
        kv_lane_positions(seq->memory.kv, l, h, pos, n);
        struct keep_lane lane = {l, h, n, pos, evictable, n, scratch};
        p->score(&config->params, &view, &lane, out + (size_t)i * N_TOKEN);
        pi_mem_free(scratch);
    }
}

/* A file of the full cache has no marks: entries are scored by their stored keys. */
TEST(a_file_without_marks_is_judged_by_what_is_stored)
{
    static const char *const texts[] = {"kvzap:budget=1024", "kvzap:budget=1024,features=hidden"};
    for (size_t i = 0; i < PI_LEN(texts); i++) {
        pith_engine *e = engine_make_typed(keep_of(texts[i]), "f32", 64, 2, 1024);
        pith_engine *full = engine_make_typed(NULL, "f32", 64, 2, 1024);
        pith_seq *a = seq_make(e), *b = NULL, *c = seq_make(full);
        float *want = calloc((size_t)n_lane * N_TOKEN, sizeof(float));
        float *got = calloc((size_t)n_lane * N_TOKEN, sizeof(float));
        eval(a, 0, 100);
        eval(c, 0, 100);
        check(pith_seq_save(c, in_folder("a.seq"), &err), &err);
        check(pith_seq_load(e, in_folder("a.seq"), &b, &err), &err);
        score_lanes(a, want);
        assert_true(kv_lane_marks(b->memory.kv, 0, 0, 0)[3] == 0.0f);
        score_lanes(b, got);
        for (int32_t j = 0; i == 0 && j < n_lane * N_TOKEN; j++)
            if (fabs((double)got[j] - (double)want[j]) > 1e-3)
                fail_msg("lane %d, entry %d: %g is not %g", j / N_TOKEN, j % N_TOKEN,
                         (double)got[j], (double)want[j]);
        for (int32_t t = 100; t < 140; t++) { /* new entries have marks */
            eval(a, t, t + 1);
            eval(b, t, t + 1);
        }
        assert_true(hash_of(a) == hash_of(b));
        assert_true(kv_lane_marks(b->memory.kv, 0, 0, 0)[99] == 0.0f);
        assert_true(kv_lane_marks(b->memory.kv, 0, 0, 0)[120] ==
                    kv_lane_marks(a->memory.kv, 0, 0, 0)[120]);
        free(want);
        free(got);
        pith_seq_free(a);
        pith_seq_free(b);
        pith_seq_free(c);
        pith_engine_free(e);
        pith_engine_free(full);
    }
}

/* Marks and sums go along to an engine with the same options. */
TEST(marks_and_sums_go_along_with_a_file)
{
    for (size_t f = 0; f < N_FORM; f++) {
        pith_engine *e = engine_make(keep_of(forms[f]), 64, 2, 4 * N_TOKEN);
        pith_seq *a = seq_make(e), *b = NULL;
        eval(a, 0, 60);
        check(pith_seq_save(a, in_folder("b.seq"), &err), &err);
        check(pith_seq_load(e, in_folder("b.seq"), &b, &err), &err);
        eval(a, 60, N_TOKEN);
        eval(b, 60, N_TOKEN);
        assert_true(stats_of(b).rounds > 2);
        assert_true(hash_of(a) == hash_of(b));
        pith_seq_free(a);
        pith_seq_free(b);
        pith_engine_free(e);
    }
}

/* ---- what does not fit ---- */

static void expect_status(pith_status status, const char *keep, const char *word)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    err = (pith_error){0};
    pith_engine_params_default(&params);
    params.keep = keep;
    assert_int_equal(pith_engine_create(model, &params, &e, &err), status);
    if (strstr(err.message, word) == NULL)
        fail_msg("\"%s\" does not say %s", err.message, word);
}

static void expect_refused(const char *keep, const char *word)
{
    expect_status(PITH_INVALID, keep, word);
}

TEST(refuses_statistics_that_lack_something)
{
    char text[320];
    expect_refused("kvzap", "no file is given");
    save_stats(NULL, in_folder("none.stats"));
    snprintf(text, sizeof(text), "kvzap:stats=%s", in_folder("none.stats"));
    expect_refused(text, "no importance");
    save_stats(make_importance(0, model->hp.dim_k + 2), in_folder("keys.stats"));
    snprintf(text, sizeof(text), "kvzap:features=hidden,stats=%s", in_folder("keys.stats"));
    expect_refused(text, "keys alone");
    snprintf(text, sizeof(text), "kvzap:features=network,stats=%s", in_folder("keys.stats"));
    expect_refused(text, "kvzap: features=network: the statistics have weights for keys alone");
    expect_status(PITH_IO, "kvzap:stats=/nowhere/a.stats",
                  "keep: stats: /nowhere/a.stats: cannot open");
    struct stats_importance *m = make_importance(info.n_embd, model->hp.dim_k + 2);
    memset(m->key_weight, 0, (size_t)n_lane * (size_t)(m->n_feature + 1) * sizeof(float));
    memset(m->hidden_weight, 0, (size_t)n_lane * (size_t)(m->n_embd + 1) * sizeof(float));
    save_stats(m, in_folder("net.stats"));
    snprintf(text, sizeof(text), "kvzap:stats=%s", in_folder("net.stats"));
    expect_refused(text, "layers' inputs alone");
    snprintf(text, sizeof(text), "kvzap:features=hidden,stats=%s", in_folder("net.stats"));
    expect_refused(text, "network alone");
}
