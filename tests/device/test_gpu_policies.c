/*
 * Keep policies of a model on a device of GPU kind: which entries stay, against the processor's.
 * Near ties may go either way, and are counted. Another chunk keeps the same entries and has the
 * same logits.
 */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/gpu/host.h"
#include "engine/engine.h"
#include "folder.h"
#include "gpu_rig.h"
#include "pith/calibrate.h"
#include "pith/inspect.h"
#include "status.h"
#include "testing.h"

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

enum { N_STEP = 3, N_LAYER = 3, N_LANE = 6, MOST = 256 };

static int32_t n_prompt = 30;

static pith_error err;
static pith_model *model;

static void load(void)
{
    make_folder();
    check(pith_model_load(MODEL, NULL, &model, &err), &err);
}

static void free_all(void)
{
    remove_folder();
    pith_model_free(model);
    free_gpu();
}

TEST_GROUP(load, free_all);

/* A prompt in chunks, and tokens one by one. */
static pith_seq *run(struct pi_device *d, const char *keep, int32_t chunk)
{
    pith_engine_params params;
    pith_engine *e;
    pith_seq *seq;
    int32_t ids[MOST];
    pith_engine_params_default(&params);
    params.kv_tokens = 512;
    params.keep = keep;
    params.chunk = chunk;
    for (int32_t i = 0; i < n_prompt + N_STEP; i++)
        ids[i] = 300 + i * 37 % 211;
    struct pi_device *was = pi_device_register(d);
    check(pith_engine_create(model, &params, &e, &err), &err);
    pi_device_register(was);
    check(pith_seq_create(e, &seq, &err), &err);
    check(pith_seq_eval(seq, ids, n_prompt, &err), &err);
    for (int32_t i = n_prompt; i < n_prompt + N_STEP; i++)
        check(pith_seq_eval(seq, ids + i, 1, &err), &err);
    return seq;
}

static void end(pith_seq *seq)
{
    pith_engine *e = seq->engine;
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* Entries of a lane that another one has not. */
static int32_t count_apart(const struct kv_seq *a, const struct kv_seq *b, int32_t l, int32_t h)
{
    int32_t x[MOST], y[MOST], n = kv_lane_len(a, l, h), apart = 0;
    assert_int_equal(n, kv_lane_len(b, l, h));
    kv_lane_positions(a, l, h, x, n);
    kv_lane_positions(b, l, h, y, n);
    for (int32_t i = 0; i < n; i++) {
        bool there = false;
        for (int32_t j = 0; j < n; j++)
            there = there || x[i] == y[j];
        apart += !there;
    }
    return apart;
}

static int32_t count_all_apart(const pith_seq *a, const pith_seq *b, int32_t *n)
{
    const struct kv_geometry *g = kv_cache_geometry(a->engine->kv);
    int32_t apart = 0;
    *n = 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++) {
            apart += count_apart(a->memory.kv, b->memory.kv, l, h);
            *n += kv_lane_len(a->memory.kv, l, h);
        }
    return apart;
}

/* cuts: another chunk, too. */
static void run_policy(const char *keep, bool cuts)
{
    pith_model_info info;
    int32_t n;
    pith_model_get_info(model, &info);
    pith_seq *host = run(&pi_device_cpu, keep, 64), *a = run(gpu(), keep, 64),
             *b = cuts ? run(gpu(), keep, 17) : NULL;
    int32_t apart = count_all_apart(a, host, &n);
    printf("%s: %d of %d entries differ from the processor's\n", keep, apart, n);
    assert_true(apart * 12 <= n && n < (n_prompt + N_STEP) * N_LANE);
    if (cuts) {
        assert_int_equal(count_all_apart(a, b, &n), 0);
        assert_memory_equal(pith_seq_logits(a), pith_seq_logits(b),
                            (size_t)info.n_vocab * sizeof(float));
        end(b);
    }
    end(host);
    end(a);
}

/* The entries that steps overwrite, found by the GPU or by the host of the GPU's scores. */
static void run_victims(const char *keep)
{
    pith_model_info info;
    int32_t n;
    struct pi_device *d = gpu();
    void (*victims)(struct pi_stream *, const struct kv_victim_list *) = d->victims;
    pith_model_get_info(model, &info);
    pith_seq *host = run(&pi_device_cpu, keep, 64), *a = run(d, keep, 64);
    d->victims = NULL;
    pith_seq *b = run(d, keep, 64);
    assert_int_equal(count_all_apart(a, b, &n), 0);
    int32_t apart = count_all_apart(a, host, &n);
    printf("%s: %d of %d entries differ from the processor's\n", keep, apart, n);
    assert_true(apart * 12 <= n);
    for (int32_t l = 0; l < info.n_layer; l++)
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            int32_t victim = kv_lane_victim(a->memory.kv, l, h);
            assert_true(victim >= 0);
            assert_int_equal(victim, kv_lane_victim(b->memory.kv, l, h));
        }
    assert_memory_equal(pith_seq_logits(a), pith_seq_logits(b),
                        (size_t)info.n_vocab * sizeof(float));
    end(host);
    end(b);
    d->victims = victims;
    end(a);
}

/* Copies to the host while a step is evaluated. */
static int32_t n_copy;
static void (*copy_out)(struct gpu_driver *, void *, gpu_at, size_t);

static void count_copy(struct gpu_driver *driver, void *host, gpu_at from, size_t size)
{
    n_copy++;
    copy_out(driver, host, from, size);
}

static int32_t count_copies(const char *keep)
{
    struct gpu_driver *driver = gpu_of(gpu())->driver;
    int32_t id = 305;
    pith_seq *seq = run(gpu(), keep, 64);
    copy_out = driver->get;
    driver->get = count_copy;
    n_copy = 0;
    check(pith_seq_eval(seq, &id, 1, &err), &err);
    driver->get = copy_out;
    end(seq);
    return n_copy;
}

/* Statistics of the model's queries, and of the importance of entries, from a short text. */
static const char *make_stats(void)
{
    pith_engine_params params;
    pith_importance_params p;
    pith_engine *e;
    pith_stats *stats;
    int32_t ids[MOST];
    const pith_importance_text texts[] = {{ids, MOST / 2}, {ids + MOST / 2, MOST / 2}};
    const char *path = in_folder("stats");
    pith_engine_params_default(&params);
    pith_importance_params_default(&p);
    p.texts = texts;
    p.n_text = 2;
    params.kv_tokens = 1024;
    for (int32_t i = 0; i < MOST; i++)
        ids[i] = 300 + i * 37 % 211;
    check(pith_engine_create(model, &params, &e, &err), &err);
    check(pith_calibrate_importance(e, &p, &stats, &err), &err);
    check(pith_stats_save(stats, path, &err), &err);
    pith_stats_free(stats);
    pith_engine_free(e);
    return path;
}

/* The host learns the entries of all layers at once. */
TEST(a_step_waits_for_no_layer)
{
    int32_t n = count_copies("none");
    assert_int_equal(count_copies("h2o:budget=20"), 1 + n);
    assert_int_equal(count_copies("tova:budget=20"), 1 + n);
    assert_int_equal(count_copies("longflow:budget=20,prompt-window=8"), 1 + n);
    assert_int_equal(count_copies("snapkv:budget=20,slack=20,queries=8,window=8"), n);
    assert_int_equal(count_copies("triattention:budget=20,slack=20"), n);
    char keep[512];
    snprintf(keep, sizeof(keep), "triattention:v3,stats=%s,budget=260,slack=20", make_stats());
    assert_int_equal(count_copies(keep), n);
}

TEST(victims_are_those_that_the_host_finds)
{
    run_victims("vatp:budget=20,sinks=2,recent=0.3");
    run_victims("longflow:budget=20,prompt-window=8");
    run_victims("tova:budget=20,combine=max");
}

/* Notes of every token, whose sums are marks; lanes are overwritten. */
TEST(sums_of_weights)
{
    run_policy("h2o:budget=20,sinks=2", true);
}

TEST(bits_of_weights)
{
    run_policy("scissorhands:budget=20,slack=2", false);
}

TEST(times_and_gaps)
{
    run_policy("lazyeviction:budget=20,slack=2,window=4", false);
    run_policy("raas:budget=20,slack=2", false);
}

TEST(keys)
{
    run_policy("knorm:budget=20,slack=2", false);
}

/* Sums of the weights of queries that the device remembers. */
TEST(last_queries)
{
    run_policy("snapkv:budget=20,slack=2,queries=8,window=8", true);
    run_policy("pyramidkv:budget=20,slack=2,queries=5,window=8,layers=pyramidkv:4", false);
    run_policy("adakv:budget=20,slack=2,queries=5,window=5", false);
    run_policy("snapkv:budget=20,slack=2,queries=4,window=4,softmax=before,group=max", false);
    run_policy("tova:budget=20,overwrite=off,slack=2", false);
}

/* Keys that others repeat; moments of all queries; marks that the host wrote. */
TEST(likeness_moments_and_repetition)
{
    run_policy("rkv:budget=20,slack=2,queries=4,window=4", true);
    run_policy("rkv:budget=20,slack=2,queries=4,window=4,threshold=0.9,quirk=off", false);
    run_policy("expected:budget=20,slack=2,sinks=2", true);
    run_policy("expected:budget=20,slack=2,covariance=off,vnorm=off,score=share", false);
    run_policy("kvzip:budget=20,window=4,granularity=layer-head", false);
}

/* Queries that triattention gathers where it has no statistics. */
TEST(centres_of_queries)
{
    run_policy("triattention:budget=20,slack=2,pin-prompt=off", false);
    run_policy("triattention:budget=20,slack=2,pin-prompt=off,warmup=12", true);
    n_prompt = 200; /* centres move once behind the warm-up */
    run_policy("triattention:budget=60,slack=2,pin-prompt=off,warmup=12,calibrate=adaptive", false);
    n_prompt = 30;
}

/* Lanes of several pages, and of several tiles of cosines. */
TEST(long_lanes)
{
    n_prompt = 170;
    run_policy("rkv:budget=120,slack=40,queries=8,window=8", false);
    run_policy("expected:budget=120,slack=40", false);
    run_policy("snapkv:budget=120,slack=40,queries=8,window=8,softmax=before", false);
    n_prompt = 30;
}

/* The host learns which entries go, and nothing else: scores, choices and moves are the GPU's. */
static void check_round(const char *keep, int32_t n)
{
    int32_t copies = count_copies(keep);
    if (copies != n)
        fail_msg("%s: %d copies to the host, not %d", keep, (int)copies, (int)n);
}

TEST(a_round_waits_for_what_goes_alone)
{
    static const char *const policies[] = {
        "keydiff:budget=20,slack=2",
        "vnorm:budget=20,slack=2",
        "streaming:budget=20,slack=2",
        "h2o:budget=20,slack=2,overwrite=off",
        "vatp:budget=20,slack=2,overwrite=off,sinks=2,recent=0.3",
        "scissorhands:budget=20,slack=2",
        "lazyeviction:budget=20,slack=2,window=4",
        "tova:budget=20,slack=2,overwrite=off",
        "longflow:budget=20,slack=2,overwrite=off,prompt-window=8",
        "snapkv:budget=20,slack=2,queries=8,window=8",
        "pyramidkv:budget=20,slack=1,queries=5,window=8,layers=pyramidkv:4",
        "rkv:budget=20,slack=2,queries=4,window=4",
        "expected:budget=20,slack=2",
        "kvzip:budget=20,slack=2,window=4,granularity=layer-head",
    };
    int32_t n = count_copies("knorm:budget=20,slack=2");
    for (size_t i = 0; i < PI_LEN(policies); i++)
        check_round(policies[i], n);
    char keep[512];
    const char *stats = make_stats();
    /* lanes that share a budget: the last score that stays, and how many of each lane stay */
    snprintf(keep, sizeof(keep), "kvzap:stats=%s,budget=20,slack=2,window=8", stats);
    check_round(keep, n + 2);
    check_round("adakv:budget=20,slack=2,queries=5,window=5", 1 + N_LAYER * 3);
    snprintf(keep, sizeof(keep), "triattention:stats=%s,budget=20,slack=2,pin-prompt=off", stats);
    check_round(keep, n);
    run_policy(keep, false);
    /* and for sums of queries */
    check_round("triattention:budget=20,slack=2,pin-prompt=off", n + 1);
}

static bool stop(void *user, const pith_tap_rows *rows)
{
    (void)user;
    (void)rows;
    return false;
}

/* A fork, what comes from a file, and a sequence whose pass was taken back go on alike. */
static void go_on(const char *keep)
{
    enum { N = 3 };
    pith_seq *seq[N] = {run(gpu(), keep, 64)};
    const char *path = in_folder("sequence");
    pith_model_info info;
    int32_t n;
    pith_model_get_info(model, &info);
    check(pith_seq_fork(seq[0], &seq[1], &err), &err);
    check(pith_seq_save(seq[0], path, &err), &err);
    check(pith_seq_load(seq[0]->engine, path, &seq[2], &err), &err);
    check(pith_engine_set_tap(seq[0]->engine, stop, NULL, &err), &err);
    assert_int_equal(pith_seq_eval(seq[0], (const int32_t[]){400, 401}, 2, &err), PITH_CANCELLED);
    check(pith_engine_set_tap(seq[0]->engine, NULL, NULL, &err), &err);
    for (int32_t i = 0; i < N; i++) {
        for (int32_t id = 310; id < 316; id++)
            check(pith_seq_eval(seq[i], &id, 1, &err), &err);
        assert_int_equal(count_all_apart(seq[0], seq[i], &n), 0);
        assert_memory_equal(pith_seq_logits(seq[0]), pith_seq_logits(seq[i]),
                            (size_t)info.n_vocab * sizeof(float));
    }
    pith_seq_free(seq[1]);
    pith_seq_free(seq[2]);
    end(seq[0]);
}

TEST(what_a_gpu_learned_goes_along)
{
    go_on("snapkv:budget=20,slack=8,queries=5,window=5");
    go_on("expected:budget=20,slack=8");
    go_on("triattention:budget=20,slack=8,pin-prompt=off");
    go_on("triattention:budget=20,slack=8,pin-prompt=off,warmup=12,calibrate=adaptive");
}
