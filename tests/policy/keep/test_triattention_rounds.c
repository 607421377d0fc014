/*
 * TriAttention as a policy. In an engine: rounds that do not depend on the split of an evaluation,
 * the processor's level or the storage of keys. Also the authors' triggers, presets,
 * self-calibration. Over a cache without a model: the changes of centres, the layers that score,
 * dimensions that are not rotated, and refusals.
 */
#define _POSIX_C_SOURCE 200809L

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "testing.h"

#include "engine/engine.h"
#include "kv_check.h"
#include "near.h"
#include "policy/keep/rules/keep.h"
#include "policy/keep/stats/stats.h"
#include "status.h"
#include "tensor/rope.h"

#define VECTORS PITH_SOURCE_DIR "/tests/vectors/triattention.json"
#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

/* ---- in an engine ---- */

#define N_TOKEN 320
#define N_LANE_MAX 16

static pith_model *model;
static pith_model_info info;
static int32_t tokens[N_TOKEN];

static pith_engine *engine_make(const char *keep, const char *type_k, int32_t chunk,
                                int32_t n_thread)
{
    return engine_with(model, (pith_engine_params){.chunk = chunk,
                                                   .n_thread = n_thread,
                                                   .kv_tokens = 1024,
                                                   .page_len = 16,
                                                   .type_k = type_k,
                                                   .keep = keep});
}

/* The positions that every lane holds at last, and the hash of the last logits. */
struct outcome {
    int32_t pos[N_LANE_MAX][N_TOKEN];
    int32_t n[N_LANE_MAX];
    uint64_t hash;
};

static void look(const pith_seq *seq, struct outcome *out)
{
    memset(out, 0, sizeof(*out));
    for (int32_t l = 0; l < info.n_layer; l++)
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            pith_lane_info lane;
            int32_t i = l * info.n_head_kv + h;
            check(pith_seq_lane(seq, l, h, &lane, out->pos[i], N_TOKEN), &err);
            out->n[i] = lane.n_entry;
        }
    out->hash = pith_logits_hash(pith_seq_logits(seq), info.n_vocab);
}

static void run_typed(const char *keep, const char *type_k, int32_t chunk, int32_t n_thread,
                      int32_t n_token, struct outcome *out)
{
    pith_engine *e = engine_make(keep, type_k, chunk, n_thread);
    pith_seq *seq = seq_make(e);
    check(pith_seq_eval(seq, tokens, n_token, &err), &err);
    look(seq, out);
    pith_seq_free(seq);
    pith_engine_free(e);
}

static void run(const char *keep, int32_t chunk, int32_t n_thread, struct outcome *out)
{
    run_typed(keep, "f16", chunk, n_thread, N_TOKEN, out);
}

static const char *stats_path(void)
{
    static char path[64];
    snprintf(path, sizeof(path), "/tmp/pith-stats-%d", (int)getpid());
    return path;
}

/* Statistics of the first n_token tokens. */
static void make_stats(int32_t n_centre, int32_t n_token)
{
    pith_engine *e = engine_make(NULL, "f16", 128, 2);
    const pith_range first = {0, n_token};
    pith_calibrate_params p;
    pith_stats *s = NULL;
    pith_calibrate_params_default(&p);
    p.n_centre = n_centre;
    p.select = PITH_SELECT_RANGES;
    p.ranges = &first;
    p.n_range = 1;
    check(pith_calibrate(e, tokens, N_TOKEN, &p, &s, &err), &err);
    check(pith_stats_save(s, stats_path(), &err), &err);
    pith_stats_free(s);
    pith_engine_free(e);
}

static void setup(void)
{
    uint64_t rng = 11;
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
    pith_model_get_info(model, &info);
    assert_true(info.n_layer * info.n_head_kv <= N_LANE_MAX);
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&rng, (uint64_t)info.n_vocab);
}

static void teardown(void)
{
    unlink(stats_path());
    pith_model_free(model);
}

TEST_GROUP(setup, teardown);

#define SIZES "budget=96,slack=32"

TEST(chunks_and_threads_change_no_round)
{
    static const char *const words[] = {
        "triattention:" SIZES,
        "triattention:v1,budget=160,slack=32",
        "triattention:v2,budget=160,slack=32",
        "triattention:v3,budget=230,slack=32,window=64",
        "triattention:v3-fork,budget=230,slack=32,window=64",
        "triattention:trig=off," SIZES,
        "triattention:norm=off," SIZES,
        "triattention:r=off,z=off,group=mean," SIZES,
        "triattention:over=max,offsets=linear,offset-max=4096," SIZES,
        "triattention:granularity=layer-head,calibrate=adaptive,warmup=64,budget=96,slack=3",
        "triattention:stats=%s," SIZES,
        "triattention:stats=%s,centres=mean," SIZES,
        "triattention:stats=%s,centres=random-phase,seed=3," SIZES,
    };
    static struct outcome whole[PI_LEN(words)], parts;
    make_stats(4, N_TOKEN);
    for (size_t i = 0; i < PI_LEN(words); i++) {
        char keep[256];
        snprintf(keep, sizeof(keep), words[i], stats_path());
        run(keep, 128, 2, &whole[i]);
        run(keep, 7, 1, &parts);
        for (int32_t l = 0; l < info.n_layer * info.n_head_kv; l++)
            assert_true(whole[i].n[l] > 0 && whole[i].n[l] < 262);
        assert_memory_equal(&whole[i], &parts, sizeof(parts));
        for (size_t j = 0; j < i; j++) /* every switch switches something */
            assert_memory_not_equal(&whole[i], &whole[j], sizeof(parts));
    }
    run("triattention:paper," SIZES, 128, 2, &parts); /* the defaults are the paper's */
    assert_memory_equal(&whole[0], &parts, sizeof(parts));
}

/* For every storage type of keys, every level of the processor keeps the same entries. */
TEST(every_level_keeps_the_same_entries)
{
    static const char *const types[] = {"f32", "f16", "q8_0"};
    static const char *const levels[] = {"scalar", "avx2", "avx512", "amx", "neon"};
    static const char *const words[] = {"triattention:stats=%s,budget=40,slack=8",
                                        "triattention:v3,budget=60,slack=8,prefix=16,window=16"};
    enum { N = 76 }; /* the scalar level is slow */
    make_stats(2, N_TOKEN);
    for (size_t i = 0; i < PI_LEN(types) * PI_LEN(words); i++) {
        static struct outcome best, other;
        char keep[256];
        snprintf(keep, sizeof(keep), words[i / PI_LEN(types)], stats_path());
        run_typed(keep, types[i % PI_LEN(types)], 128, 2, N, &best);
        assert_true(best.n[0] < 68);
        for (size_t l = 0; l < PI_LEN(levels); l++) {
            if (pith_cpu_level_set(levels[l], &err) != PITH_OK)
                continue;
            run_typed(keep, types[i % PI_LEN(types)], 128, 2, N, &other);
            check(pith_cpu_level_set(NULL, &err), &err);
            assert_memory_equal(&best, &other, sizeof(best));
        }
    }
}

/* Statistics gathered while the model runs equal a calibration of the same tokens. They cover the
   warm-up once that is over, and all tokens so far where a round comes before. */
TEST(self_calibration_gathers_what_a_calibration_does)
{
    static struct outcome self, file, longer;
    char text[256];
    snprintf(text, sizeof(text), "triattention:stats=%s," SIZES, stats_path());
    make_stats(1, 64);
    run(text, 128, 2, &file);
    run("triattention:warmup=64," SIZES, 50, 2, &self);
    run("triattention:warmup=400," SIZES, 50, 2, &longer);
    assert_memory_equal(&self, &file, sizeof(self));
    assert_memory_not_equal(&self, &longer, sizeof(self)); /* so the centres matter */
    /* One round, at 128 tokens, long before 1,024. */
    make_stats(1, 128);
    run_typed(text, "f16", 128, 2, 128, &file);
    run_typed("triattention:" SIZES, "f16", 30, 1, 128, &self);
    assert_int_equal(self.n[0], 96);
    assert_memory_equal(&self, &file, sizeof(self));
}

/* A fork goes on with the gathered statistics; a cleared sequence begins anew. */
TEST(a_fork_goes_on_with_what_was_gathered)
{
    static struct outcome alone, out;
    const char *keep = "triattention:warmup=100," SIZES;
    pith_seq *seq = NULL, *fork = NULL;
    run(keep, 128, 2, &alone);
    pith_engine *e = engine_make(keep, "f16", 128, 2);
    check(pith_seq_create(e, &seq, &err), &err);
    check(pith_seq_eval(seq, tokens, 90, &err), &err);
    check(pith_seq_fork(seq, &fork, &err), &err);
    check(pith_seq_eval(seq, tokens + 200, 60, &err), &err);
    check(pith_seq_eval(fork, tokens + 90, N_TOKEN - 90, &err), &err);
    look(fork, &out);
    assert_memory_equal(&out, &alone, sizeof(out));
    check(pith_seq_truncate(seq, 0, &err), &err);
    check(pith_seq_eval(seq, tokens, N_TOKEN, &err), &err);
    look(seq, &out);
    assert_memory_equal(&out, &alone, sizeof(out));
    pith_seq_free(seq);
    pith_seq_free(fork);
    pith_engine_free(e);
}

/* The fork's sign reverses the order: among the entries that may go, one keeps those that the other
   drops. */
TEST(the_forks_sign_turns_the_order_around)
{
    static struct outcome keep, evict;
    static bool kept[N_TOKEN];
    char text[256];
    make_stats(1, N_TOKEN);
    snprintf(text, sizeof(text), "triattention:stats=%s,granularity=all,budget=160,slack=160",
             stats_path());
    run(text, 128, 2, &keep);
    snprintf(text, sizeof(text),
             "triattention:stats=%s,granularity=all,budget=160,slack=160,sign=evict", stats_path());
    run(text, 128, 2, &evict);
    assert_int_equal(keep.n[0], 160);
    assert_int_equal(evict.n[0], 160);
    for (int32_t i = 0; i < keep.n[0]; i++)
        kept[keep.pos[0][i]] = true;
    for (int32_t i = 0; i < evict.n[0]; i++)
        assert_false(kept[evict.pos[0][i]]);
}

/* Runs one of the authors' sequences a token at a time. late: rounds run before the next token. */
static void expect_events(const char *options, const json_t *events, int32_t n_prompt, int32_t n,
                          int32_t late)
{
    pith_engine *e = engine_make(options, "f16", 16, 1);
    pith_keep_stats now;
    pith_lane_info lane;
    int32_t before = n_prompt, n_event = 0;
    pith_seq *seq = seq_make(e);
    check(pith_seq_mark_prompt(seq, n_prompt, &err), &err);
    check(pith_seq_eval(seq, tokens, n_prompt, &err), &err);
    for (int32_t t = n_prompt; t < n + late; t++) {
        int64_t n_round = n_event;
        check(pith_seq_eval(seq, &tokens[t], 1, &err), &err);
        pith_seq_keep_stats(seq, &now);
        check(pith_seq_lane(seq, 0, 0, &lane, NULL, 0), &err);
        if (now.rounds > n_round) {
            const json_t *event = json_array_get(events, (size_t)n_event++);
            assert_non_null(event);
            assert_int_equal(json_integer_value(json_object_get(event, "abs_pos")), t + 1 - late);
            assert_int_equal(json_integer_value(json_object_get(event, "cache_before")),
                             before + 1 - late);
            assert_int_equal(json_integer_value(json_object_get(event, "cache_after")),
                             lane.n_entry - late);
        }
        before = lane.n_entry;
    }
    assert_int_equal(n_event, json_array_size(events));
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(rounds_come_as_vector_11_says)
{
    json_t *root = json_load_file(VECTORS, 0, NULL), *v = json_object_get(root, "vectors");
    v = json_object_get(json_array_get(v, 10), "expected");
    assert_non_null(v);
    expect_events("triattention:budget=16,slack=4", json_object_get(v, "paper_default"), 6, 36, 0);
    expect_events("triattention:budget=16,slack=1,batch=4",
                  json_object_get(v, "rkv_style_no_slack"), 6, 36, 1);
    /* Only decoded tokens count: the trigger is later by the prompt, and the kept entries are the
       same. */
    expect_events("triattention:budget=16,slack=10", json_object_get(v, "decode_only_count"), 6, 36,
                  0);
    /* Where the authors' code cuts the prompt's end off, it is not pinned. */
    assert_int_equal(json_array_size(json_object_get(v, "prefill_20_exceeds_budget")), 3);
    pith_engine *e = engine_make("triattention:budget=16,slack=4", "f16", 16, 1);
    pith_seq *seq = seq_make(e);
    check(pith_seq_mark_prompt(seq, 20, &err), &err);
    check(pith_seq_eval(seq, tokens, 20, &err), &err);
    pith_lane_info lane;
    assert_int_equal(pith_seq_lane(seq, 0, 0, &lane, NULL, 0), PITH_OK);
    assert_int_equal(lane.n_entry, 16);
    pith_seq_free(seq);
    pith_engine_free(e);
    json_decref(root);
}

TEST(refuses_bad_options)
{
    static const struct {
        const char *keep;
        pith_status status;
        const char *says;
    } cases[] = {
        {"triattention:stats=/nowhere/at/all", PITH_IO, "/nowhere/at/all"},
        {"triattention:centres=random-phase", PITH_INVALID, "wants stats"},
        {"triattention:v4", PITH_INVALID, "paper, v1, v2, v3, v3-fork"},
        {"triattention:trig=off,norm=off", PITH_INVALID, "nothing to score"},
        {"triattention:calibrate=adaptive,stats=%s", PITH_INVALID, "leave out stats"},
        {"triattention:group=mean,stats=%s", PITH_INVALID, "say centres=mean"},
    };
    make_stats(2, N_TOKEN);
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        pith_engine_params params;
        pith_engine *e = NULL;
        char keep[512];
        snprintf(keep, sizeof(keep), cases[i].keep, stats_path());
        pith_engine_params_default(&params);
        params.keep = keep;
        assert_int_equal(pith_engine_create(model, &params, &e, &err), cases[i].status);
        if (strstr(err.message, cases[i].says) == NULL)
            fail_msg("%s: says \"%s\"", keep, err.message);
        assert_null(e);
    }
}

TEST(refuses_statistics_of_another_model)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    char keep[512];
    snprintf(keep, sizeof(keep), "triattention:stats=%s", test_data("stats/qwen3-1.7b.tria.bin"));
    pith_engine_params_default(&params);
    params.keep = keep;
    assert_int_equal(pith_engine_create(model, &params, &e, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "28 layers"));
    assert_null(e);
}

/* ---- over a cache without a model ---- */

#define DIM 8
#define N_KEY 40
#define LAYERS 2

static double freq[] = {1.0, 0.1, 0.01};

/* A policy over lanes of random keys at positions 0, 1, ..., one KV head in each of two layers,
   with one query head. */
struct bare {
    struct pi_rope rope;
    struct policy_model model;
    struct keep_config config;
    struct kv_cache *cache;
    struct keep_view view;
    void *data;
    struct kv_seq *kv;
    struct pith_stats *stats;
};

static void bare_shape(struct bare *b, int32_t n_pair)
{
    *b = (struct bare){.rope = {.n_pair = n_pair, .freq = freq, .magnitude = 1.0f}};
    b->model = (struct policy_model){.g = {LAYERS, 1, DIM, DIM, 16, KV_TYPE_F32, KV_TYPE_F16},
                                     .n_group = 1,
                                     .scale = 1.0f,
                                     .rope = &b->rope};
    b->cache = kv_check_cache(&b->model.g, 2 * LAYERS * (N_KEY / 16 + 1));
}

static void fill_keys(struct bare *b, float size)
{
    uint64_t rng = 5;
    check(kv_seq_create(b->cache, &b->kv, &err), &err);
    check(kv_seq_reserve(b->kv, N_KEY, &err), &err);
    for (int32_t l = 0; l < LAYERS; l++) {
        float k[N_KEY * DIM], v[N_KEY * DIM] = {0};
        for (int32_t i = 0; i < N_KEY * DIM; i++)
            k[i] = size * rng_float(&rng);
        kv_seq_append(b->kv, l, 0, 0, N_KEY, k, DIM, v, DIM);
    }
}

static pith_status bare_open(struct bare *b, const char *options, int32_t n_pair, float size,
                             pith_error *why)
{
    bare_shape(b, n_pair);
    fill_keys(b, size);
    check(keep_config_set(&keep_triattention, options, &b->config, why), why);
    check(keep_config_fit(&b->config, &b->model.g, why), why);
    if (b->config.rules.stats[0] != '\0') {
        check(pith_stats_load(b->config.rules.stats, &b->stats, why), why);
        PI_TRY(stats_check_lanes(b->stats, &b->model, "", why));
        b->model.stats = b->stats;
    }
    b->view = (struct keep_view){.kv = b->kv, .n_token = N_KEY, .model = &b->model};
    pith_status status = keep_triattention.open(&b->config.params, &b->model, &b->data, why);
    if (status != PITH_OK)
        return status;
    b->view.data = b->data;
    b->view.state = calloc(1, keep_triattention.state_size(&b->config.params, &b->model, b->data) +
                                  sizeof(double));
    assert_non_null(b->view.state);
    return PITH_OK;
}

static void bare_close(struct bare *b)
{
    keep_triattention.close(b->data);
    pith_stats_free(b->stats);
    free(b->view.state);
    kv_seq_free(b->kv);
    kv_cache_free(b->cache);
}

/* Shows n queries of a layer, all the same. */
static void show(struct bare *b, int32_t layer, const float *q, int32_t n)
{
    float *rows = malloc((size_t)n * DIM * sizeof(*rows));
    struct pi_pass_item item = {.n_tok = n};
    struct pi_pass_tap_rows shown = {.item = &item, .layer = layer, .q_pre = rows};
    assert_non_null(rows);
    for (int32_t i = 0; i < n; i++)
        memcpy(rows + i * DIM, q, DIM * sizeof(*q));
    keep_triattention.observe(&b->config.params, &b->view, &shown);
    free(rows);
}

static void bare_score(struct bare *b, int32_t layer, float *out)
{
    const void *params = &b->config.params;
    int32_t pos[N_KEY];
    bool may[N_KEY];
    void *scratch = malloc(keep_triattention.scratch_size(params, &b->model, b->data, N_KEY));
    struct keep_lane lane = {.layer = layer,
                             .n = N_KEY,
                             .pos = pos,
                             .evictable = may,
                             .n_evictable = N_KEY,
                             .scratch = scratch};
    assert_non_null(scratch);
    kv_lane_positions(b->kv, layer, 0, pos, N_KEY);
    memset(may, 1, sizeof(may));
    keep_triattention.begin(params, &b->view);
    keep_triattention.score(params, &b->view, &lane, out);
    free(scratch);
}

static const float query_a[DIM] = {1, -2, 0.5f, 0.3f, 1, 2, -1, 0.7f};
static const float query_b[DIM] = {-1, 1, 0.25f, -2, 0.5f, 1, 3, -0.2f};

#define RAW "z=off,norm=off,warmup=4" /* scores that are linear in the centre */

/* Adaptive centres stay where fewer than 128 queries are new, and then move by a tenth. */
TEST(adaptive_centres_move_by_a_tenth)
{
    float a[N_KEY], c[N_KEY], now[N_KEY], frozen[N_KEY];
    struct bare b, f, only_b;
    check(bare_open(&b, RAW ",calibrate=adaptive", 3, 1.0f, &err), &err);
    check(bare_open(&f, RAW, 3, 1.0f, &err), &err);
    check(bare_open(&only_b, RAW, 3, 1.0f, &err), &err);
    show(&b, 0, query_a, 4);
    show(&f, 0, query_a, 4);
    show(&only_b, 0, query_b, 4);
    bare_score(&b, 0, a);
    bare_score(&f, 0, frozen);
    bare_score(&only_b, 0, c);
    assert_memory_equal(a, frozen, sizeof(a));
    show(&b, 0, query_b, 100);
    show(&f, 0, query_b, 200);
    bare_score(&b, 0, now);
    assert_memory_equal(now, a, sizeof(a));
    bare_score(&f, 0, frozen);
    assert_memory_equal(frozen, a, sizeof(a));
    show(&b, 0, query_b, 27);
    bare_score(&b, 0, now);
    assert_memory_equal(now, a, sizeof(a));
    show(&b, 0, query_b, 1);
    for (int round = 1; round <= 2; round++) {
        bare_score(&b, 0, now);
        for (int i = 0; i < N_KEY; i++) {
            double still = pow(0.9, round);
            near((double)now[i], still * (double)a[i] + (1.0 - still) * (double)c[i], 1e-5);
        }
        show(&b, 0, query_b, 150);
    }
    bare_close(&b);
    bare_close(&f);
    bare_close(&only_b);
}

/* Queries are counted in each layer; one without has no say, and then others decide. */
TEST(layers_without_queries_say_nothing)
{
    struct bare b;
    check(bare_open(&b, "z=off", 3, 1.0f, &err), &err);
    const void *params = &b.config.params;
    keep_triattention.begin(params, &b.view);
    assert_true(keep_triattention.silent(params, &b.view, 0));
    show(&b, 1, query_a, 1);
    keep_triattention.begin(params, &b.view);
    assert_true(keep_triattention.silent(params, &b.view, 0));
    assert_false(keep_triattention.silent(params, &b.view, 1));
    bare_close(&b);
}

/* The positions that the second layer's lanes keep, of a set of both layers. */
static void kept_of(const char *options, int32_t *pos)
{
    struct bare b;
    struct keep *keep = NULL;
    struct keep_tally tally = {0};
    check(bare_open(&b, options, 3, 1.0f, &err), &err);
    for (int32_t l = 0; l < LAYERS; l++)
        show(&b, l, l == 0 ? query_a : query_b, 4);
    check(keep_create(&b.config, &b.model, 1, &keep, &err), &err);
    check(keep_prepare(keep, b.kv, (struct keep_point){N_KEY, 0, 0.0, 0}, 1, &err), &err);
    check(keep_round(keep, b.kv, &b.view, &tally, &err), &err);
    assert_int_equal(kv_lane_len(b.kv, 1, 0), 20);
    kv_lane_positions(b.kv, 1, 0, pos, 20);
    keep_free(keep);
    bare_close(&b);
}

/* Half of the z-scores of the scoring layer are negative. With zeros from the other layer, the
   maximum would not tell them apart. */
TEST(silent_layers_have_no_say)
{
    int32_t mean[20], max[20], both[20];
    kept_of("granularity=all,budget=20,slack=20,score-layers=1,combine=mean", mean);
    kept_of("granularity=all,budget=20,slack=20,score-layers=1,combine=max", max);
    kept_of("granularity=all,budget=20,slack=20,combine=max", both);
    assert_memory_equal(mean, max, sizeof(mean));
    assert_memory_not_equal(both, max, sizeof(max));
    /* Where no lane of a set has a say, the oldest go. */
    kept_of("granularity=layer,budget=20,slack=20,score-layers=1,combine=max", max);
    for (int32_t i = 0; i < 20; i++)
        assert_int_equal(max[i], 20 + i);
}

/* The layers that boundary-skip leaves decide, and all of them where it leaves none. */
TEST(skipped_layers_have_no_say)
{
    int32_t skip[20], all[20], first[20];
    kept_of("granularity=all,budget=20,slack=20,boundary-skip=1,combine=mean", skip);
    kept_of("granularity=all,budget=20,slack=20,score-layers=1,combine=mean", first);
    kept_of("granularity=all,budget=20,slack=20,combine=mean", all);
    assert_memory_not_equal(skip, all, sizeof(all));
    assert_memory_not_equal(skip, first, sizeof(first));
    kept_of("granularity=all,budget=20,slack=20,boundary-skip=1,combine=max", first);
    assert_memory_equal(skip, first, sizeof(first)); /* one layer's mean is its maximum */
    kept_of("granularity=all,budget=20,slack=20,boundary-skip=2,combine=mean", skip);
    assert_memory_equal(skip, all, sizeof(all));
    /* Each layer by itself: the last one decides as ever. */
    kept_of("granularity=layer,budget=20,slack=20,boundary-skip=1,combine=max", skip);
    kept_of("granularity=layer,budget=20,slack=20,combine=max", all);
    assert_memory_equal(skip, all, sizeof(all));
}

/* Writes statistics of LAYERS layers with one head: 3 bands, n_flat more dimensions. */
static void write_stats(int32_t n_pair, int32_t n_flat)
{
    struct pith_stats *s = NULL;
    uint64_t rng = 9;
    check(stats_new(&s, &err), &err);
    s->n_layer = LAYERS;
    s->n_head = s->n_head_kv = 1;
    s->n_pair = n_pair;
    s->n_flat = n_flat;
    check(stats_alloc(s, false, false, &err), &err);
    for (int32_t l = 0; l < LAYERS; l++) {
        float *row = s->q + (size_t)l * stats_row_len(s);
        s->count[l] = 10;
        for (int32_t f = 0; f < n_pair; f++) {
            row[f] = rng_float(&rng);
            row[n_pair + f] = rng_float(&rng);
            row[2 * n_pair + f] = hypotf(row[f], row[n_pair + f]) + 0.1f;
        }
        for (int32_t i = 0; i < n_flat; i++)
            row[3 * n_pair + i] = 1.0f + (float)i;
    }
    check(pith_stats_save(s, stats_path(), &err), &err);
    pith_stats_free(s);
}

/* Dimensions that are not rotated add their product with the mean, 1, 2 of the last two. */
TEST(unrotated_dimensions_add_their_mean)
{
    char options[2][160];
    float with[N_KEY], without[N_KEY], key[DIM];
    struct bare b[2];
    write_stats(3, 2);
    for (int i = 0; i < 2; i++) {
        snprintf(options[i], sizeof(options[i]), "z=off,flat=%s,stats=%s", i == 0 ? "on" : "off",
                 stats_path());
        check(bare_open(&b[i], options[i], 3, 1.0f, &err), &err);
        bare_score(&b[i], 1, i == 0 ? with : without);
    }
    for (int32_t i = 0; i < N_KEY; i++) {
        kv_lane_key(b[0].kv, 1, 0, i, key);
        near((double)with[i] - (double)without[i], (double)(key[6] + 2.0f * key[7]), 1e-5);
    }
    for (int i = 0; i < 2; i++)
        bare_close(&b[i]);
    /* Only those dimensions are left; and statistics of other heads than the cache has. */
    snprintf(options[0], sizeof(options[0]), "z=off,trig=off,norm=off,stats=%s", stats_path());
    check(bare_open(&b[0], options[0], 3, 1.0f, &err), &err);
    bare_score(&b[0], 1, with);
    for (int32_t i = 0; i < N_KEY; i++) {
        kv_lane_key(b[0].kv, 1, 0, i, key);
        near((double)with[i], (double)(key[6] + 2.0f * key[7]), 1e-5);
    }
    bare_close(&b[0]);
    write_stats(3, 1);
    assert_int_equal(bare_open(&b[0], options[0], 3, 1.0f, &err), PITH_INVALID);
    assert_non_null(
        strstr(err.message, "1 dimensions that are not rotated; a key of the cache has 2"));
    bare_close(&b[0]);
}

/* Keys of f32 so long that sums are infinite: no score is NaN. */
TEST(huge_keys_give_no_nan)
{
    static const char *const options[] = {"z=on", "z=off", "over=max", "sign=evict,z=off"};
    for (size_t o = 0; o < PI_LEN(options); o++) {
        struct bare b;
        float out[N_KEY];
        check(bare_open(&b, options[o], 3, FLT_MAX, &err), &err);
        float long_a[DIM], long_b[DIM];
        for (int32_t d = 0; d < DIM; d++) {
            long_a[d] = 1000.0f * query_a[d];
            long_b[d] = 1000.0f * query_b[d];
        }
        show(&b, 0, long_a, 4);
        show(&b, 0, long_b, 4);
        bare_score(&b, 0, out);
        for (int32_t i = 0; i < N_KEY; i++)
            assert_true(out[i] == out[i]);
        bare_close(&b);
    }
}
