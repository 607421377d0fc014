/*
 * The scheduler under every keep policy, read policies, recall and storage types. Requests run
 * beside others, read parts where that is allowed, and are put back again and again at random. They
 * get the tokens and the bits that they get alone.
 */
#define _POSIX_C_SOURCE 200809L
#include "testing.h"

#include "policy/keep/stats/stats.h"
#include "scheduler_rig.h"

#define N_ASK 5

static char stats_path[64];

/* Weights of keys that say anything at all. */
static struct stats_importance *make_importance(void)
{
    struct stats_importance shape = {.n_layer = info.n_layer,
                                     .n_lane = info.n_layer * info.n_head_kv,
                                     .n_feature = model->hp.dim_k + 2,
                                     .n_quantile = 1};
    struct stats_importance *m = NULL;
    uint64_t rng = 4;
    check(stats_importance_create(&shape, &m, &err), &err);
    int32_t n = shape.n_lane * shape.n_feature;
    for (int32_t i = 0; i < n + shape.n_lane; i++)
        m->key_weight[i] = rng_float(&rng);
    for (int32_t i = 0; i < n; i++) {
        m->key_low[i] = -8.0f;
        m->key_high[i] = 8.0f;
    }
    return m;
}

static void setup(void)
{
    pith_stats *stats = NULL;
    model_load(72);
    pith_engine *e = engine_make(NULL, 64, 1, 2048);
    strcpy(stats_path, "/tmp/pith-sched-XXXXXX");
    close(mkstemp(stats_path));
    check(pith_calibrate(e, tokens, 256, NULL, &stats, &err), &err);
    stats->importance = make_importance();
    check(pith_stats_save(stats, stats_path, &err), &err);
    pith_stats_free(stats);
    pith_engine_free(e);
}

static void teardown(void)
{
    unlink(stats_path);
    model_free();
}

TEST_GROUP(setup, teardown);

struct setting {
    const char *keep;
    const char *read;
    const char *recall;
    const char *share;
    const char *type;
};

static pith_engine *engine_of(const struct setting *c, int32_t chunk, int32_t kv_tokens)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_engine_params_default(&params);
    params.chunk = chunk;
    params.n_thread = 1;
    params.kv_tokens = kv_tokens;
    params.page_len = PAGE_LEN;
    params.keep = c->keep;
    params.read = c->read;
    params.recall = c->recall;
    params.share = c->share;
    if (c->type != NULL)
        params.type_k = params.type_v = c->type;
    if (pith_engine_create(model, &params, &e, &err) != PITH_OK)
        fail_msg("%s|%s|%s|%s: %s", c->keep, c->read, c->recall, c->share, err.message);
    return e;
}

static pith_logit_bias bias; /* of a line's end, for steps to end */
static int32_t n_bias;

static void make_ask(struct ask *ask, int32_t i)
{
    static const int32_t n_prompt[N_ASK] = {1, 33, 62, 120, 66};
    static const int32_t n_predict[N_ASK] = {150, 64, 40, 20, 33};
    /* The last begins as the third does, by more than two pages. */
    ask_init(ask, i == 4 ? 40 : 20 * i, n_prompt[i], n_predict[i], i % 2 == 0 ? 0.8f : 0.0f);
    ask->request.n_answer = i == 1 ? 2 : 1;
    ask->request.priority = i == 3;
    ask->params.sample.bias = &bias;
    ask->params.sample.n_bias = n_bias;
}

/* Steps until there is nothing to do; at random a request has to give way in between. */
static void run_disturbed(pith_scheduler *s, uint64_t seed)
{
    for (bool idle = false; !idle;) {
        check(pith_scheduler_step(s, &idle, &err), &err);
        if (!idle && rng_below(&seed, 6) == 0)
            for (int32_t i = 0; i < 3; i++)
                scheduler_relieve(s, NULL, s->kv_bytes);
    }
}

/* Returns how many were put back, in host memory or to be computed again. */
static int64_t n_shared; /* pages, by all answers of `compare` so far */

static pith_scheduler_stats compare(const struct setting *c, int32_t kv_tokens, int32_t step_tokens,
                                    bool disturbed)
{
    static struct ask asks[N_ASK];
    static struct heard alone[N_ASK + 1];
    pith_scheduler_params params;
    pith_engine *e = engine_of(c, 64, kv_tokens);
    char what[400];
    for (int32_t i = 0; i < N_ASK; i++) {
        make_ask(&asks[i], i);
        generate_alone(e, &asks[i], 0, &alone[i]);
    }
    generate_alone(e, &asks[1], 1, &alone[N_ASK]);
    pith_scheduler_params_default(&params);
    params.step_tokens = step_tokens;
    params.max_preempt = disturbed ? 1000 : 3;
    pith_scheduler *s = scheduler_make(e, &params);
    for (int32_t i = 0; i < N_ASK; i++)
        submit(s, &asks[i]);
    if (disturbed)
        run_disturbed(s, 99);
    else
        run_all(s);
    for (int32_t i = 0; i < N_ASK; i++) {
        snprintf(what, sizeof(what), "%s|%s|%s|%s|%s, step %d, request %d%s",
                 c->keep != NULL ? c->keep : "", c->read != NULL ? c->read : "",
                 c->recall != NULL ? c->recall : "", c->share != NULL ? c->share : "",
                 c->type != NULL ? c->type : "", step_tokens, i, disturbed ? ", disturbed" : "");
        expect_same(&asks[i].answer[0], &alone[i], what);
    }
    expect_same(&asks[1].answer[1], &alone[N_ASK], what);
    for (int32_t i = 0; i < N_ASK; i++)
        n_shared += asks[i].answer[0].result.share.pages_shared;
    pith_scheduler_stats t = stats_of_scheduler(s);
    if (!disturbed && c->keep != NULL)
        assert_int_equal(t.preempted_recompute + t.preempted_swap, 0);
    free_both(s, e);
    return t;
}

static void compare_all(const struct setting *c, bool swaps)
{
    static const int32_t step_tokens[] = {9, 0};
    static size_t n_call; /* each size of a step for every other setting */
    if (n_call % TEST_STRIDE == 0)
        compare(c, 900, step_tokens[n_call % PI_LEN(step_tokens)], false);
    n_call++;
    pith_scheduler_stats t = compare(c, 900, 24, true);
    if (swaps ? t.preempted_swap == 0 : t.preempted_recompute == 0 || t.preempted_swap > 0)
        fail_msg("%s|%s: %lld were swapped, %lld recomputed", c->keep != NULL ? c->keep : "",
                 c->read != NULL ? c->read : "", (long long)t.preempted_swap,
                 (long long)t.preempted_recompute);
}

/* Options that go with small budgets; a policy without a line does with its defaults. */
static const char *const keep_more[][2] = {
    {"adakv", "window=8,queries=8"},     {"snapkv", "window=8,queries=8"},
    {"pyramidkv", "window=8,queries=8"}, {"lazyeviction", "window=8"},
    {"longflow", "prompt-window=8"},     {"rkv", "window=8,queries=8"},
    {"raas", "window=4,pin-prompt=off"}, {"triattention", "window=4,pin-prompt=off"},
};

TEST(every_keep_policy_answers_as_alone)
{
    pith_policy_info p;
    for (int32_t i = 0; pith_policy_get(PITH_KEEP, i, &p) == PITH_OK; i++) {
        char keep[400];
        const char *more = "window=4";
        for (size_t k = 0; k < PI_LEN(keep_more); k++)
            if (strcmp(p.name, keep_more[k][0]) == 0)
                more = keep_more[k][1];
        bool stats = strcmp(p.name, "triattention") == 0 || strcmp(p.name, "kvzap") == 0;
        snprintf(keep, sizeof(keep), "%s:budget=48,slack=16,%s%s%s", p.name, more,
                 stats ? ",stats=" : "", stats ? stats_path : "");
        struct setting c = {.keep = keep};
        pith_engine *e = engine_of(&c, 64, 900);
        bool swaps = e->traits.counts_steps;
        pith_engine_free(e);
        compare_all(&c, swaps);
    }
}

TEST(rules_of_keep_answer_as_alone)
{
    static const struct setting settings[] = {
        {.keep = "streaming:budget=50%,slack=8,window=8,pin-prompt=on"},
        {.keep = "knorm:budget=64,batch=32,segments=4", .type = "q8_0"},
        {.keep = "keydiff:budget=48,granularity=layer-head,slack=1", .type = "turbo3"},
        {.keep = "h2o:budget=48,slack=16,window=4,overwrite=off", .type = "q4_0"},
    };
    for (size_t i = 0; i < PI_LEN(settings); i++)
        compare_all(&settings[i], false);
    static const struct setting steps[] = {
        {.keep = "h2o:budget=48,slack=16,window=4,overwrite=on,granularity=layer"},
        {.keep = "longflow:budget=48,slack=1,prompt-window=8,overwrite=on", .type = "turbo4"},
    };
    for (size_t i = 0; i < PI_LEN(steps); i++)
        compare_all(&steps[i], true);
}

TEST(read_policies_answer_as_alone)
{
    static const struct setting settings[] = {
        {.read = "quoka:budget=24,chunk=16,gate=1"},
        {.read = "quest:budget=24,chunk=16,gate=1,phase=both,dense-layers=0", .type = "q8_0"},
        {.read = "sampleattention:chunk=32,gate=1"},
        {.read = "keydiff:budget=32,chunk=16,gate=1", .keep = "streaming:budget=64,slack=16"},
    };
    for (size_t i = 0; i < PI_LEN(settings); i++)
        compare_all(&settings[i], true);
}

TEST(recall_answers_as_alone)
{
    static const struct setting settings[] = {
        {.keep = "knorm:budget=64,slack=16", .recall = "kv:take=16,last=16,ram=4MiB"},
        {.keep = "streaming:budget=64,slack=8", .recall = "kv:take=16,last=8,every=4,ram=4MiB"},
    };
    for (size_t i = 0; i < PI_LEN(settings); i++) {
        compare(&settings[i], 900, 0, false);
        compare(&settings[i], 900, 9, false);
        compare(&settings[i], 900, 24, true);
    }
}

/* A prompt that begins in the cache of prefixes gets the answer of one that is read from its start.
   Cases: only the tokens that recall together are missing, and rounds come in it. */
/* Memory never ends it, nor does a context. */
TEST(an_answer_without_a_ceiling_ends)
{
    static struct ask ask;
    const struct setting c = {.keep = "streaming:budget=48"};
    pith_engine *e = engine_of(&c, 64, 900);
    pith_scheduler *s = scheduler_make(e, NULL);
    ask_init(&ask, 20, 33, -1, 0.8f);
    ask.request.on_token = NULL; /* it has room for ANSWER_MAX tokens */
    submit(s, &ask);
    run_all(s);
    assert_int_equal(ask.answer[0].result.reason, PITH_STOP_LENGTH);
    assert_int_equal(ask.answer[0].result.n_generated, info.n_ctx_train);
    free_both(s, e);
}

TEST(recall_behind_a_found_prefix_answers_as_alone)
{
    static struct ask asks[3];
    static struct heard alone[3];
    static const int32_t n_prompt[3] = {100, 49, 150};
    const struct setting c = {.keep = "knorm:budget=112,slack=16",
                              .recall = "kv:take=16,last=16,ram=4MiB"};
    pith_engine *e = engine_of(&c, 64, 1200);
    pith_scheduler *s = scheduler_make(e, NULL);
    for (int32_t again = 0; again < 2; again++)
        for (int32_t i = 0; i < 3; i++) {
            ask_init(&asks[i], 20, n_prompt[i], 60, i == 1 ? 0.8f : 0.0f);
            generate_alone(e, &asks[i], 0, &alone[i]);
            submit(s, &asks[i]);
            run_all(s);
            expect_same(&asks[i].answer[0], &alone[i], "behind a prefix");
            int32_t n_cached = asks[i].answer[0].result.n_cached;
            if (again)
                assert_in_range(n_cached, PAGE_LEN, n_prompt[i] - 16);
        }
    free_both(s, e);
}

TEST(storage_types_answer_as_alone)
{
    static const char *const types[] = {"f32", "q8_0", "q4_0", "turbo4", "turbo2", NULL};
    for (size_t i = 0; i < PI_LEN(types); i++)
        compare_all(&(struct setting){.type = types[i]}, false);
}

TEST(share_policies_answer_as_alone)
{
    static const struct setting settings[] = {
        {.share = "memshare:step=0.1,block=100,relative=2"},
        {.share = "memshare:step=0.1,block=100,relative=2,mode=literal"},
        {.share = "random:share=0.5", .type = "q8_0"},
        {.share = "memshare:step=0.1,block=100,relative=2", .keep = "knorm:budget=64,slack=64"},
    };
    int32_t n;
    check(pith_tokenize(model, "\n", 1, 0, &bias.token, 1, &n, &err), &err);
    bias.bias = 6.0f;
    n_bias = 1;
    for (size_t i = 0; i < PI_LEN(settings); i++) {
        n_shared = 0;
        compare_all(&settings[i], true);
        assert_true(n_shared > 0);
    }
    n_bias = 0;
}

/* Under a keep policy the memory of each request is set aside in full. With room for two no
   admitted request waits, however long the others become. */
TEST(a_constant_budget_lets_no_request_wait)
{
    static const struct setting c = {.keep = "knorm:budget=48,slack=16,window=4"};
    pith_scheduler_stats t = compare(&c, 64 * 3 + 20, 0, false);
    assert_true(t.peak_running <= 3 && t.peak_running >= 2);
    t = compare(&c, 64 * 2 + 40, 13, false);
    assert_int_equal(t.peak_running, 2);
}
