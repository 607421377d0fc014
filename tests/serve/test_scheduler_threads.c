/*
 * The scheduler between threads. A thousand requests of random lengths, priorities, deadlines and
 * forks come from several threads and are cancelled at random. The pool is too small for a tenth of
 * them. Each answer ends exactly once and in a defined state, and nothing is left. And with every
 * allocation failing in turn. scripts/test-tsan.sh runs it under ThreadSanitizer.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "mem_used.h"
#include "model_maker.h"
#include "serve/scheduler/scheduler.h"
#include "status.h"
#include "testing.h"

#define N_THREAD 4
#define N_EACH 250
#define N_VOCAB 64

static pith_model *model;
static int32_t tokens[256];

static void setup(void)
{
    char path[64] = "/tmp/pith-sched-XXXXXX";
    uint64_t rng = 5;
    pith_error why;
    close(mkstemp(path));
    check(model_make_of("arch=llama layers=2 width=32 heads=2 kv_heads=1 head_dim=16 ff=32 "
                        "vocab=64 ctx=512",
                        path, &why),
          &why);
    check(pith_model_load(path, NULL, &model, &why), &why);
    unlink(path);
    for (int32_t i = 0; i < 256; i++)
        tokens[i] = (int32_t)rng_below(&rng, N_VOCAB);
}

static void teardown(void)
{
    pith_model_free(model);
    mem_check(NULL);
}

TEST_GROUP(setup, teardown);

static pith_engine *engine_of(const char *keep, const char *read, int32_t n_page)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    pith_error why;
    pith_engine_params_default(&params);
    params.chunk = 64;
    params.n_thread = 1; /* whose library of threads sanitizers do not know */
    params.kv_tokens = 16 * n_page;
    params.page_len = 16;
    params.keep = keep;
    params.read = read;
    check(pith_engine_create(model, &params, &e, &why), &why);
    return e;
}

static void free_both(pith_scheduler *s, pith_engine *e)
{
    pith_kv_stats kv;
    pith_scheduler_free(s);
    pith_engine_kv_stats(e, &kv);
    assert_int_equal(kv.used_bytes, 0);
    assert_int_equal(kv.n_seq, 0);
    pith_engine_free(e);
}

/* ---- a thousand requests ---- */

/* One request of a thread; written by the thread that steps, but what submitting fills. */
struct order {
    int32_t n_answer;
    int32_t n_predict;
    int32_t n_done[3];
    int32_t n_token[3];
    pith_status status[3];
    bool limited; /* it has a deadline, or a thread cancels it */
};

struct client {
    pith_scheduler *s;
    pthread_t thread;
    uint64_t rng;
    struct order order[N_EACH];
    int64_t n_busy;
    int32_t n; /* requests */
};

static atomic_int n_ready; /* threads that have submitted everything */

static bool on_token(void *user, const pith_answer_token *t)
{
    struct order *o = user;
    o->n_token[t->answer] += t->token >= 0;
    return true;
}

static void on_done(void *user, const pith_answer_result *result)
{
    struct order *o = user;
    o->n_done[result->answer]++;
    o->status[result->answer] = result->status;
    if (result->n_generated != o->n_token[result->answer])
        o->n_done[result->answer] = -1000;
}

static void pause_ms(int32_t ms)
{
    const struct timespec time = {0, ms * 1000000L};
    nanosleep(&time, NULL);
}

static void submit_one(struct client *c, int32_t i)
{
    struct order *o = &c->order[i];
    pith_generate_params params;
    pith_request request;
    pith_error why;
    int64_t id;
    pith_generate_params_default(&params);
    pith_request_default(&request);
    o->n_answer = rng_below(&c->rng, 6) == 0 ? 2 + (int32_t)rng_below(&c->rng, 2) : 1;
    o->n_predict = (int32_t)rng_below(&c->rng, 60);
    params.n_predict = o->n_predict;
    params.ignore_end = true;
    params.sample.seed = rng_next(&c->rng);
    request.n_prompt = 1 + (int32_t)rng_below(&c->rng, 70);
    request.prompt = tokens + 20 * rng_below(&c->rng, 4);
    request.params = &params;
    request.n_answer = o->n_answer;
    request.priority = (int32_t)rng_below(&c->rng, 3) - 1;
    request.on_token = on_token;
    request.on_done = on_done;
    request.user = o;
    if (o->n_answer == 1 && rng_below(&c->rng, 2) == 0) {
        request.slot = (int32_t)rng_below(&c->rng, 6);
        request.cache_salt = rng_below(&c->rng, 2);
    }
    bool cancels = rng_below(&c->rng, 5) == 0;
    if (rng_below(&c->rng, 8) == 0)
        request.deadline_s = 1e-4 * (double)(1 + rng_below(&c->rng, 500));
    o->limited = cancels || request.deadline_s > 0.0;
    for (;;) {
        pith_status status = pith_scheduler_submit(c->s, &request, &id, &why);
        if (status == PITH_OK)
            break;
        if (status != PITH_BUSY)
            abort();
        c->n_busy++;
        pause_ms(1);
    }
    if (cancels) {
        if (rng_below(&c->rng, 2) == 0)
            pause_ms(1);
        pith_scheduler_cancel(c->s, id);
    }
}

static void *submit_all(void *arg)
{
    struct client *c = arg;
    pith_scheduler_stats t;
    for (int32_t i = 0; i < c->n; i++) {
        submit_one(c, i);
        pith_scheduler_get_stats(c->s, &t);
    }
    n_ready++;
    return NULL;
}

static void serve(const char *keep, const char *read, double reserve, int32_t n_each)
{
    static struct client client[N_THREAD];
    pith_engine *e = engine_of(keep, read, 40);
    pith_scheduler_params params;
    pith_scheduler *s = NULL;
    pith_error why;
    bool idle = false;
    int64_t n_cancelled = 0;
    pith_scheduler_params_default(&params);
    params.n_queue = 60;
    params.n_seq = 24;
    params.reserve = reserve;
    check(pith_scheduler_create(e, &params, &s, &why), &why);
    memset(client, 0, sizeof(client));
    n_ready = 0;
    for (int32_t i = 0; i < N_THREAD; i++) {
        client[i].s = s;
        client[i].n = n_each;
        client[i].rng = (uint64_t)i + 1;
        assert_int_equal(pthread_create(&client[i].thread, NULL, submit_all, &client[i]), 0);
    }
    while (n_ready < N_THREAD || !idle) {
        if (idle)
            pith_scheduler_wait(s, 0.01);
        check(pith_scheduler_step(s, &idle, &why), &why);
    }
    for (int32_t i = 0; i < N_THREAD; i++)
        pthread_join(client[i].thread, NULL);
    check(pith_scheduler_run(s, &why), &why);
    for (int32_t i = 0; i < N_THREAD; i++)
        for (int32_t j = 0; j < n_each; j++) {
            const struct order *o = &client[i].order[j];
            bool cancelled = false;
            for (int32_t k = 0; k < o->n_answer; k++) {
                assert_int_equal(o->n_done[k], 1);
                cancelled = cancelled || o->status[k] == PITH_CANCELLED;
                if (o->status[k] == PITH_CANCELLED)
                    assert_true(o->limited);
                else
                    assert_int_equal(o->status[k], PITH_OK);
                if (o->status[k] == PITH_OK)
                    assert_int_equal(o->n_token[k], o->n_predict);
            }
            n_cancelled += cancelled;
        }
    pith_scheduler_stats t;
    pith_scheduler_get_stats(s, &t);
    assert_int_equal(t.n_done, N_THREAD * n_each);
    assert_int_equal(t.n_cancelled, n_cancelled);
    assert_int_equal(t.n_failed, 0);
    assert_true(t.n_waiting == 0 && t.n_running == 0 && t.n_swapped == 0 &&
                (t.swapped_bytes == 0 || t.n_parked_swapped > 0));
    if (reserve == 0.0)
        assert_true(t.preempted_recompute + t.preempted_swap > 0);
    else if (reserve < 0.0 && keep != NULL)
        assert_int_equal(t.preempted_recompute + t.preempted_swap, 0);
    free_both(s, e);
}

TEST(a_thousand_requests_end_once)
{
    serve(NULL, NULL, 0.0, N_EACH);
}

TEST(many_requests_under_a_keep_policy_end_once)
{
    serve("knorm:budget=32,slack=16,window=4", NULL, -1.0, N_EACH / 4);
}

TEST(many_requests_under_a_read_policy_end_once)
{
    serve(NULL, "quoka:budget=16,chunk=16,gate=1", 0.0, N_EACH / 4);
}

/* ---- every allocation fails ---- */

enum { N_FEW = 4 };

struct few {
    int32_t n_done[N_FEW][2];
    pith_status status[N_FEW][2];
    int32_t token[N_FEW][2][40];
    int32_t n_token[N_FEW][2];
    bool accepted[N_FEW];
};

struct few_user {
    struct few *few;
    int32_t i;
};

static bool few_token(void *user, const pith_answer_token *t)
{
    const struct few_user *u = user;
    if (t->token >= 0)
        u->few->token[u->i][t->answer][u->few->n_token[u->i][t->answer]++] = t->token;
    return true;
}

static void few_done(void *user, const pith_answer_result *result)
{
    const struct few_user *u = user;
    u->few->n_done[u->i][result->answer]++;
    u->few->status[u->i][result->answer] = result->status;
}

/* Two are put back on the way, because a prompt that is theirs is in the cache, or because they are
   made to. */
static void run_few(pith_engine *e, struct few *few)
{
    struct few_user user[N_FEW];
    pith_scheduler_params params;
    pith_scheduler *s = NULL;
    pith_error why;
    bool idle = false;
    memset(few, 0, sizeof(*few));
    pith_scheduler_params_default(&params);
    params.reserve = 0.0;
    pith_status status = pith_scheduler_create(e, &params, &s, &why);
    if (status != PITH_OK) {
        assert_int_equal(status, PITH_NOMEM);
        return;
    }
    for (int32_t i = 0; i < N_FEW; i++) {
        pith_generate_params generate;
        pith_request request;
        pith_generate_params_default(&generate);
        pith_request_default(&request);
        user[i] = (struct few_user){few, i};
        generate.n_predict = 40 - 4 * i;
        generate.ignore_end = true;
        generate.sample.seed = (uint64_t)i;
        request.prompt = tokens;
        request.n_prompt = 33 + i;
        request.params = &generate;
        request.n_answer = 1 + i % 2;
        request.slot = i % 2 == 0 ? 0 : -1;
        request.on_done = few_done;
        request.on_token = few_token;
        request.user = &user[i];
        status = pith_scheduler_submit(s, &request, NULL, &why);
        few->accepted[i] = status == PITH_OK;
        assert_true(status == PITH_OK || status == PITH_NOMEM);
    }
    for (int32_t step = 0; !idle; step++) {
        check(pith_scheduler_step(s, &idle, &why), &why);
        if (step == 7 || step == 12)
            for (int32_t i = 0; i < 3; i++)
                scheduler_relieve(s, NULL, s->kv_bytes);
        assert_true(step < 2000);
    }
    pith_scheduler_free(s);
}

/* Models of these tests have no tokenizer: text is none, tokens are all there is. */
static void fail_each(const char *keep, const char *read)
{
    static struct few whole, few;
    pith_engine *e = engine_of(keep, read, 20);
    pith_kv_stats kv;
    int64_t n_alloc = 1, n_ok = 0, n_failed = 0;
    run_few(e, &whole);
    for (int64_t n = 1; n_alloc > 0; n += 1 + n / 64) {
        pi_mem_fail_at(n, false);
        run_few(e, &few);
        n_alloc = pi_mem_fail_at(0, false) >= n;
        pith_engine_kv_stats(e, &kv);
        assert_int_equal(kv.used_bytes, 0);
        assert_int_equal(kv.n_seq, 0);
        /* Under a read policy an answer depends on the conversation that it goes on from. */
        bool all_went = true;
        for (int32_t i = 0; i < N_FEW; i++) {
            all_went = all_went && few.accepted[i];
            for (int32_t j = 0; few.accepted[i] && j < 1 + i % 2; j++) {
                assert_int_equal(few.n_done[i][j], 1);
                if (few.status[i][j] != PITH_OK) {
                    assert_int_equal(few.status[i][j], PITH_NOMEM);
                    n_failed++;
                    all_went = false;
                    continue;
                }
                n_ok++;
                if (all_went || read == NULL)
                    assert_memory_equal(few.token[i][j], whole.token[i][j],
                                        (size_t)few.n_token[i][j] * sizeof(int32_t));
            }
        }
    }
    assert_true(n_ok > n_failed && n_failed > 10);
    pith_engine_free(e);
}

TEST(failing_memory_ends_requests_once)
{
    fail_each(NULL, NULL);
    fail_each("streaming:budget=32,slack=8,window=8", NULL);
    fail_each(NULL, "quoka:budget=16,chunk=16,gate=1");
}

/* ---- sessions ---- */

/* Under a keep policy the turns of a slot go on past the model's trained context, in the memory of
   the first turn. */
TEST(a_session_goes_on_past_the_trained_context)
{
    static int32_t said[700];
    struct order o = {.n_answer = 1};
    pith_generate_params params;
    pith_request request;
    pith_error why;
    pith_engine *e = engine_of("knorm:budget=32,slack=16,window=4", NULL, 8);
    pith_scheduler *s = NULL;
    check(pith_scheduler_create(e, NULL, &s, &why), &why);
    for (int32_t i = 0; i < 700; i++)
        said[i] = tokens[i % 256];
    pith_generate_params_default(&params);
    pith_request_default(&request);
    params.n_predict = 1; /* whose token is not evaluated */
    params.ignore_end = true;
    request.prompt = said;
    request.params = &params;
    request.on_token = on_token;
    request.on_done = on_done;
    request.user = &o;
    request.n_prompt = 600;
    assert_int_equal(pith_scheduler_submit(s, &request, NULL, &why), PITH_CONTEXT);
    request.slot = 1;
    for (request.n_prompt = 100; request.n_prompt <= 700; request.n_prompt += 100) {
        o.n_token[0] = 0;
        check(pith_scheduler_submit(s, &request, NULL, &why), &why);
        check(pith_scheduler_run(s, &why), &why);
        assert_int_equal(o.status[0], PITH_OK);
    }
    pith_scheduler_stats t;
    pith_scheduler_get_stats(s, &t);
    assert_int_equal(o.n_done[0], 7);
    assert_int_equal(t.prompt_tokens, 700);
    assert_int_equal(t.cached_tokens, 100 + 200 + 300 + 400 + 500 + 600);
    free_both(s, e);
}
