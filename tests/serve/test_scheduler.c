/*
 * The scheduler as a caller sees it. Each request gets the answer that it gets alone. Also the ends
 * of requests, refusals, and the calls allowed in callbacks.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "testing.h"

#include "scheduler_rig.h"

#define N_ASK 12

static void setup(void)
{
    model_load(71);
}

TEST_GROUP(setup, model_free);

/* Requests of many lengths together give the results that each gives alone, for any step and
   cache. */
TEST(requests_together_get_what_each_gets_alone)
{
    static const int32_t step_tokens[] = {0, 7, 64};
    static struct ask asks[N_ASK];
    static struct heard alone[N_ASK];
    pith_engine *e = engine_make(NULL, 32, 1, 4096);
    for (int32_t i = 0; i < N_ASK; i++) {
        ask_init(&asks[i], 3 * i, 1 + 17 * i, 1 + 5 * (N_ASK - i), i % 2 == 0 ? 0.0f : 0.9f);
        generate_alone(e, &asks[i], 0, &alone[i]);
    }
    for (size_t k = 0; k < PI_LEN(step_tokens); k++) {
        pith_scheduler_params params;
        pith_scheduler_params_default(&params);
        params.step_tokens = step_tokens[k];
        params.n_seq = k == 1 ? 5 : 256;
        params.no_prefix = k == 2;
        pith_scheduler *s = scheduler_make(e, &params);
        for (int32_t i = 0; i < N_ASK; i++) {
            ask_init(&asks[i], 3 * i, 1 + 17 * i, 1 + 5 * (N_ASK - i), i % 2 == 0 ? 0.0f : 0.9f);
            submit(s, &asks[i]);
            assert_int_equal(asks[i].id, i + 1);
        }
        run_all(s);
        pith_scheduler_stats t = stats_of_scheduler(s);
        int64_t n_generated = 0, n_prompt = 0;
        for (int32_t i = 0; i < N_ASK; i++) {
            expect_same(&asks[i].answer[0], &alone[i], "alone");
            n_generated += alone[i].n;
            n_prompt += asks[i].request.n_prompt;
            assert_int_equal(asks[i].answer[0].result.n_prompt + asks[i].answer[0].result.n_cached,
                             asks[i].request.n_prompt);
        }
        assert_int_equal(t.n_done, N_ASK);
        assert_int_equal(t.n_cancelled + t.n_failed + t.n_refused + t.n_waiting + t.n_running, 0);
        assert_int_equal(t.generated_tokens, n_generated);
        assert_int_equal(t.prompt_tokens + t.cached_tokens, n_prompt);
        assert_true(t.peak_running >= 5 && t.peak_running <= params.n_seq);
        assert_true(t.schedule_s > 0.0 && t.schedule_s < t.seconds);
        pith_scheduler_free(s);
    }
    pith_engine_free(e);
}

/* ---- ends ---- */

/* Every way that a text ends, with text that is held back, as alone; several answers to a
   prompt. */
TEST(every_end_is_as_alone)
{
    static const char question[] = "The friend of Maria is Anton.\nQuestion: Who is the friend of "
                                   "Maria?\n";
    static const char *const stops[] = {"friend of Maria", "xyz"};
    static struct ask asks[6];
    static struct heard alone[6][4];
    int32_t ids[64], n;
    check(pith_tokenize(model, question, strlen(question), PITH_TOKENIZE_BOS, ids, 64, &n, &err),
          &err);
    pith_engine *e = engine_make(NULL, 32, 1, 4096);
    pith_scheduler *s = scheduler_make(e, NULL);
    for (int32_t i = 0; i < 6; i++) {
        ask_init(&asks[i], 0, 1, 40, i == 4 ? 3.0f : 0.0f);
        asks[i].request.prompt = ids;
        asks[i].request.n_prompt = n;
        asks[i].params.ignore_end = i == 2;
        asks[i].params.stop = stops;
        asks[i].params.n_stop = i == 1 || i == 3 ? 2 : 0;
        asks[i].request.n_answer = i == 4 ? 4 : 1;
        asks[i].params.special = i == 2;
    }
    asks[3].params.n_predict = 3; /* ends within what might become a stop string */
    asks[4].params.sample.top_k = 0;
    asks[4].params.sample.top_p = 1.0f;
    asks[4].params.sample.min_p = 0.0f;
    asks[5].params.n_predict = 0;
    for (int32_t i = 0; i < 6; i++) {
        for (int32_t j = 0; j < asks[i].request.n_answer; j++)
            generate_alone(e, &asks[i], j, &alone[i][j]);
        submit(s, &asks[i]);
        /* Everything was copied. */
        asks[i].params.stop = NULL;
        asks[i].params.n_stop = 0;
        asks[i].params.n_predict = 1;
    }
    run_all(s);
    for (int32_t i = 0; i < 6; i++)
        for (int32_t j = 0; j < asks[i].request.n_answer; j++)
            expect_same(&asks[i].answer[j], &alone[i][j], "ends");
    assert_int_equal(asks[0].answer[0].result.reason, PITH_STOP_END);
    assert_int_equal(asks[1].answer[0].result.reason, PITH_STOP_STRING);
    assert_int_equal(asks[2].answer[0].result.reason, PITH_STOP_LENGTH);
    assert_true(asks[3].answer[0].len > 0);
    assert_int_equal(asks[5].answer[0].n, 0);
    for (int32_t j = 1; j < 4; j++) {
        const pith_answer_result *r = &asks[4].answer[j].result;
        assert_true(r->n_prompt == 0 && r->n_cached == n);
        assert_true(r->queue_s > 0.0 && r->prompt_s > 0.0 && r->generate_s >= 0.0);
    }
    assert_true(asks[4].answer[1].n != asks[4].answer[2].n ||
                memcmp(asks[4].answer[1].token, asks[4].answer[2].token,
                       (size_t)asks[4].answer[1].n * sizeof(int32_t)) != 0);
    free_both(s, e);
}

TEST(a_caller_may_stop_an_answer)
{
    static struct ask ask;
    pith_engine *e = engine_make(NULL, 32, 1, 512);
    pith_scheduler *s = scheduler_make(e, NULL);
    ask_init(&ask, 0, 20, 30, 0.0f);
    ask.stop_after = 4;
    submit(s, &ask);
    run_all(s);
    assert_int_equal(ask.answer[0].n_done, 1);
    assert_int_equal(ask.answer[0].result.status, PITH_OK);
    assert_int_equal(ask.answer[0].result.reason, PITH_STOP_CALLER);
    assert_int_equal(ask.answer[0].n, 4);
    assert_int_equal(pith_scheduler_cancel(s, ask.id), PITH_NOT_FOUND);
    assert_int_equal(pith_scheduler_cancel(s, 77), PITH_NOT_FOUND);
    free_both(s, e);
}

/* However long an answer may be, its sequence ends with the context that each request has. */
TEST(a_context_bounds_prompts_and_answers)
{
    static const int32_t predict[] = {-1, 100, 41, 5};
    static struct ask ask;
    static struct heard alone;
    pith_engine *e = engine_make(NULL, 32, 1, 512);
    pith_scheduler_params params;
    pith_scheduler_params_default(&params);
    params.n_ctx = 60;
    pith_scheduler *s = scheduler_make(e, &params);
    for (size_t i = 0; i < PI_LEN(predict); i++) {
        int32_t n = predict[i] == 5 ? 5 : 41; /* the last one is not evaluated */
        ask_init(&ask, 0, 20, n, 0.0f);
        generate_alone(e, &ask, 0, &alone);
        ask.params.n_predict = predict[i];
        submit(s, &ask);
        run_all(s);
        expect_same(&ask.answer[0], &alone, "context");
        assert_int_equal(ask.answer[0].result.reason, PITH_STOP_LENGTH);
    }
    ask_init(&ask, 0, 61, 1, 0.0f);
    expect(pith_scheduler_submit(s, &ask.request, &ask.id, &err), &err, PITH_CONTEXT,
           "61 tokens are more than the context of 60");
    assert_int_equal(pith_scheduler_room(s, &ask.request), 60);
    free_both(s, e);
}

/* ---- refusals ---- */

static void expect_params(pith_engine *e, const pith_scheduler_params *params, const char *word)
{
    pith_scheduler *s = NULL;
    expect(pith_scheduler_create(e, params, &s, &err), &err, PITH_INVALID, word);
    assert_null(s);
}

TEST(refuses_bad_parameters)
{
    pith_engine *e = engine_make(NULL, 32, 1, 512);
    pith_scheduler_params good, p;
    pith_scheduler_params_default(&good);
    static const double nan = 0.0 / 0.0;
    p = good, p.n_seq = 0, expect_params(e, &p, "n_seq: 0");
    p = good, p.n_queue = -1, expect_params(e, &p, "n_queue: -1");
    p = good, p.step_tokens = -2, expect_params(e, &p, "step_tokens: -2");
    p = good, p.reserve = 1.5, expect_params(e, &p, "reserve: 1.5");
    p = good, p.reserve = nan, expect_params(e, &p, "reserve");
    p = good, p.watermark = -0.1, expect_params(e, &p, "watermark: -0.1");
    p = good, p.n_ctx = -1, expect_params(e, &p, "n_ctx: -1");
    p = good, p.swap_bytes = -1, expect_params(e, &p, "swap_bytes: -1");
    p = good, p.max_preempt = -1, expect_params(e, &p, "max_preempt: -1");
    pith_engine_free(e);

    pith_engine_params params;
    pith_scheduler *s = NULL;
    pith_engine_params_default(&params);
    params.keep = "knorm:budget=64,slack=16";
    params.recall = "text:session=work";
    check(pith_engine_create(model, &params, &e, &err), &err);
    expect(pith_scheduler_create(e, NULL, &s, &err), &err, PITH_UNSUPPORTED, "recall");
    pith_engine_free(e);
}

static void expect_refused(pith_scheduler *s, const struct ask *ask, pith_status status,
                           const char *word)
{
    int64_t id = -5;
    expect(pith_scheduler_submit(s, &ask->request, &id, &err), &err, status, word);
    assert_int_equal(id, -5);
}

TEST(refuses_bad_requests)
{
    static struct ask good, ask;
    static int32_t bad[3] = {1, 2, 5000};
    static int32_t many[5000];
    static const char *const empty[] = {""};
    const double nan = 0.0 / 0.0;
    pith_logit_bias bias = {.token = -1};
    pith_scheduler_params params;
    pith_scheduler_params_default(&params);
    params.n_queue = 2;
    params.n_seq = 8;
    pith_engine *e = engine_make("streaming:budget=64,slack=16,pin-prompt=on", 32, 1, 200);
    pith_scheduler *s = scheduler_make(e, &params);
    ask_init(&good, 0, 20, 10, 0.0f);
#define BEGIN (ask = good, ask.request.params = &ask.params)
    BEGIN, ask.request.prompt = NULL, expect_refused(s, &ask, PITH_INVALID, "n_prompt");
    BEGIN, ask.request.n_prompt = 0, expect_refused(s, &ask, PITH_INVALID, "n_prompt");
    BEGIN, ask.request.prompt = bad, ask.request.n_prompt = 3;
    expect_refused(s, &ask, PITH_INVALID, "id 5000");
    BEGIN, ask.request.prompt = many, ask.request.n_prompt = 5000;
    expect_refused(s, &ask, PITH_CONTEXT, "5000");
    BEGIN, ask.request.n_answer = 0, expect_refused(s, &ask, PITH_INVALID, "n_answer: 0");
    BEGIN, ask.request.n_answer = 9, expect_refused(s, &ask, PITH_INVALID, "n_answer: 9");
    BEGIN, ask.request.deadline_s = nan, expect_refused(s, &ask, PITH_INVALID, "deadline_s");
    BEGIN, ask.params.n_predict = -2, expect_refused(s, &ask, PITH_INVALID, "n_predict: -2");
    BEGIN, ask.params.sample.top_p = 2, expect_refused(s, &ask, PITH_INVALID, "top_p");
    BEGIN, ask.params.stop = empty, ask.params.n_stop = 1;
    expect_refused(s, &ask, PITH_INVALID, "stop");
    BEGIN, ask.params.sample.bias = &bias, ask.params.sample.n_bias = 1;
    expect_refused(s, &ask, PITH_INVALID, "bias");
#undef BEGIN
    assert_int_equal(stats_of_scheduler(s).n_refused, 11);
    ask_init(&ask, 0, 20, 10, 0.0f);
    submit(s, &good);
    submit(s, &ask);
    expect_refused(s, &good, PITH_BUSY, "n_queue: 2");
    run_all(s);
    assert_int_equal(good.answer[0].n_done, 1);
    assert_int_equal(ask.answer[0].n_done, 1);
    free_both(s, e);

    e = engine_make(NULL, 32, 1, 128);
    s = scheduler_make(e, NULL);
    ask_init(&ask, 0, 129, 1, 0.0f);
    expect_refused(s, &ask, PITH_KV_FULL, "a prompt of 129 tokens takes ");
    assert_int_equal(pith_scheduler_room(s, &ask.request), 128);
    /* n_predict is a ceiling: 128 tokens are evaluated, and the last one need not be. */
    static const int32_t most[] = {29, 30, 5000, INT32_MAX};
    for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
        ask_init(&ask, 0, 100, 29, 0.0f);
        ask.params.n_predict = most[i];
        submit(s, &ask);
        run_all(s);
        assert_int_equal(ask.answer[0].n, 29);
        assert_int_equal(ask.answer[0].result.status, PITH_OK);
        assert_int_equal(ask.answer[0].result.reason, PITH_STOP_LENGTH);
        assert_int_equal(ask.answer[0].result.n_predict, 29);
    }
    free_both(s, e);
}

/* ---- the order of requests ---- */

static int64_t order[16];
static int32_t n_order;

static void note_order(void *user, const pith_answer_result *result)
{
    (void)user;
    order[n_order++] = result->request;
}

/* One at a time: by priority, then by arrival. And a request that waits for memory is not passed by
   smaller ones. */
TEST(runs_by_priority_and_arrival)
{
    static struct ask asks[6];
    static const int32_t priority[6] = {0, 0, 2, -1, 2, 0};
    static const int64_t wanted[6] = {3, 5, 1, 2, 6, 4};
    pith_scheduler_params params;
    pith_scheduler_params_default(&params);
    params.n_seq = 1;
    pith_engine *e = engine_make(NULL, 32, 1, 512);
    pith_scheduler *s = scheduler_make(e, &params);
    n_order = 0;
    for (int32_t i = 0; i < 6; i++) {
        ask_init(&asks[i], i, 10, 5, 0.0f);
        asks[i].request.priority = priority[i];
        asks[i].request.on_done = note_order;
        submit(s, &asks[i]);
    }
    run_all(s);
    assert_memory_equal(order, wanted, sizeof(wanted));
    free_both(s, e);

    e = engine_make(NULL, 32, 1, 16 * PAGE_LEN);
    s = scheduler_make(e, NULL);
    n_order = 0;
    for (int32_t i = 0; i < 6; i++) {
        ask_init(&asks[i], 40 * i, i == 1 ? 200 : 30, i == 0 ? 100 : 3, 0.0f);
        asks[i].request.on_done = note_order;
        submit(s, &asks[i]);
    }
    run_all(s);
    assert_int_equal(order[0], 1);
    assert_int_equal(order[1], 2);
    free_both(s, e);
}

/* ---- cancelling ---- */

static void step(pith_scheduler *s)
{
    check(pith_scheduler_step(s, NULL, &err), &err);
}

static void expect_cancelled(const struct ask *ask, const char *word)
{
    for (int32_t i = 0; i < ask->request.n_answer; i++) {
        const struct heard *h = &ask->answer[i];
        assert_int_equal(h->n_done, 1);
        assert_int_equal(h->result.status, PITH_CANCELLED);
        if (strstr(h->message, word) == NULL)
            fail_msg("\"%s\" does not have \"%s\"", h->message, word);
    }
}

/* In the queue, reading, generating, and in host memory. */
TEST(cancels_in_every_state)
{
    static struct ask asks[4];
    static struct heard alone;
    pith_scheduler_params params;
    pith_engine_params engine;
    pith_engine *e;
    pith_engine_params_default(&engine);
    engine.n_thread = 1;
    engine.page_len = 16;
    engine.kv_tokens = 512;
    engine.read = "quoka:budget=16,chunk=16,gate=1"; /* a request that is put back is swapped */
    check(pith_engine_create(model, &engine, &e, &err), &err);
    pith_scheduler_params_default(&params);
    params.n_seq = 3;
    params.step_tokens = 30;
    pith_scheduler *s = scheduler_make(e, &params);
    for (int32_t i = 0; i < 4; i++)
        ask_init(&asks[i], 20 * i, 29, 40, 0.0f);
    generate_alone(e, &asks[1], 0, &alone);
    for (int32_t i = 0; i < 3; i++)
        submit(s, &asks[i]);
    while (asks[2].answer[0].n < 3)
        step(s);
    scheduler_relieve(s, NULL, s->kv_bytes);
    assert_int_equal(s->room.first->request->id, asks[2].id);
    assert_non_null(s->room.first->swapped);
    submit(s, &asks[3]);
    check(pith_scheduler_cancel(s, asks[3].id), &err); /* in the inbox */
    check(pith_scheduler_cancel(s, asks[2].id), &err);
    check(pith_scheduler_cancel(s, asks[0].id), &err);
    check(pith_scheduler_cancel(s, asks[0].id), &err); /* once more is no news */
    step(s);
    expect_cancelled(&asks[0], "cancelled");
    expect_cancelled(&asks[2], "cancelled");
    expect_cancelled(&asks[3], "cancelled");
    assert_int_equal(asks[2].answer[0].result.n_preempted, 1);
    assert_true(asks[0].answer[0].n > 0 && asks[3].answer[0].n == 0);
    assert_int_equal(pith_scheduler_cancel(s, asks[0].id), PITH_NOT_FOUND);
    assert_int_equal(stats_of_scheduler(s).n_swapped, 0);
    run_all(s);
    expect_same(&asks[1].answer[0], &alone, "not cancelled");
    pith_scheduler_stats t = stats_of_scheduler(s);
    assert_true(t.n_done == 4 && t.n_cancelled == 3 && t.n_failed == 0);
    free_both(s, e);

    /* Reading, with siblings that wait for the prompt. */
    e = engine_make(NULL, 32, 1, 1024);
    s = scheduler_make(e, &params);
    ask_init(&asks[0], 0, 200, 40, 0.0f);
    asks[0].request.n_answer = 3;
    submit(s, &asks[0]);
    step(s);
    assert_int_equal(stats_of_scheduler(s).n_reading, 1);
    check(pith_scheduler_cancel(s, asks[0].id), &err);
    step(s);
    expect_cancelled(&asks[0], "cancelled");
    assert_int_equal(s->room.n_active, 0);
    free_both(s, e);
}

TEST(a_deadline_ends_a_request)
{
    static struct ask asks[3];
    static struct heard alone;
    pith_engine *e = engine_make(NULL, 32, 1, 1024);
    pith_scheduler *s = scheduler_make(e, NULL);
    for (int32_t i = 0; i < 3; i++)
        ask_init(&asks[i], i, 40, 150, 0.0f);
    generate_alone(e, &asks[0], 0, &alone);
    asks[0].request.deadline_s = 1e6;
    asks[1].request.deadline_s = 1e-9;
    asks[1].request.n_answer = 2;
    submit(s, &asks[0]);
    submit(s, &asks[1]);
    step(s);
    expect_cancelled(&asks[1], "deadline_s");
    assert_int_equal(asks[1].answer[0].n, 0);
    asks[2].request.deadline_s = 0.02;
    submit(s, &asks[2]);
    step(s);
    step(s);
    usleep(25000);
    step(s);
    expect_cancelled(&asks[2], "deadline_s: 0.02");
    assert_true(asks[2].answer[0].n < 150);
    run_all(s);
    expect_same(&asks[0].answer[0], &alone, "in time");
    assert_int_equal(stats_of_scheduler(s).n_cancelled, 2);
    free_both(s, e);
}

/* ---- callbacks ---- */

struct chain {
    pith_scheduler *s;
    int32_t n_done;
    int32_t n_token;
    int64_t victim; /* request that the first token cancels */
};

static bool chain_token(void *user, const pith_answer_token *t)
{
    struct chain *c = user;
    bool idle;
    c->n_token += t->token >= 0;
    expect(pith_scheduler_step(c->s, &idle, &err), &err, PITH_BUSY, "step");
    if (c->victim != 0) {
        assert_int_equal(pith_scheduler_cancel(c->s, c->victim), PITH_OK);
        c->victim = 0;
    }
    return true;
}

/* Every end submits the next. */
static void chain_done(void *user, const pith_answer_result *result)
{
    struct chain *c = user;
    struct ask next;
    assert_int_equal(result->status, PITH_OK);
    assert_int_equal(pith_scheduler_cancel(c->s, result->request), PITH_NOT_FOUND);
    if (++c->n_done == 20)
        return;
    ask_init(&next, c->n_done, 5 + c->n_done, 3, 0.0f);
    next.request.on_token = chain_token;
    next.request.on_done = chain_done;
    next.request.user = c;
    submit(c->s, &next);
}

TEST(callbacks_may_submit_and_cancel)
{
    static struct ask victim, first;
    pith_engine *e = engine_make(NULL, 32, 1, 512);
    struct chain c = {.s = scheduler_make(e, NULL)};
    ask_init(&victim, 0, 30, 60, 0.0f);
    submit(c.s, &victim);
    ask_init(&first, 50, 10, 3, 0.0f);
    first.request.on_token = chain_token;
    first.request.on_done = chain_done;
    first.request.user = &c;
    c.victim = victim.id;
    submit(c.s, &first);
    run_all(c.s);
    assert_int_equal(c.n_done, 20);
    assert_int_equal(c.n_token, 60);
    expect_cancelled(&victim, "cancelled");
    assert_true(victim.answer[0].n <= 2);
    free_both(c.s, e);
}

static void refuse_done(void *user, const pith_answer_result *result)
{
    struct chain *c = user;
    struct ask next;
    assert_int_equal(result->status, PITH_CANCELLED);
    assert_non_null(strstr(result->message, "freed"));
    ask_init(&next, 0, 5, 3, 0.0f);
    expect(pith_scheduler_submit(c->s, &next.request, NULL, &err), &err, PITH_CANCELLED, "freed");
    c->n_done++;
}

TEST(freeing_ends_every_request)
{
    static struct ask asks[6];
    pith_scheduler_params params;
    pith_scheduler_params_default(&params);
    params.n_seq = 4;
    pith_engine *e = engine_make(NULL, 32, 1, 512);
    struct chain c = {.s = scheduler_make(e, &params)};
    for (int32_t i = 0; i < 6; i++) {
        ask_init(&asks[i], i, 40, 50, 0.0f);
        asks[i].request.on_done = refuse_done;
        asks[i].request.on_token = NULL;
        asks[i].request.user = &c;
        asks[i].request.n_answer = 1 + i % 2;
        submit(c.s, &asks[i]);
        if (i == 3 || i == 4)
            step(c.s);
    }
    free_both(c.s, e);
    assert_int_equal(c.n_done, 9);
    pith_scheduler_free(NULL);
}

TEST(waits_for_work_and_no_longer)
{
    static struct ask ask;
    bool idle = false;
    pith_engine *e = engine_make(NULL, 32, 1, 512);
    pith_scheduler *s = scheduler_make(e, NULL);
    assert_false(pith_scheduler_wait(s, 0.0));
    assert_false(pith_scheduler_wait(s, 0.01));
    assert_false(pith_scheduler_wait(s, -1.0));
    check(pith_scheduler_step(s, &idle, &err), &err);
    assert_true(idle);
    ask_init(&ask, 0, 5, 2, 0.0f);
    submit(s, &ask);
    assert_true(pith_scheduler_wait(s, 1e30));
    run_all(s);
    assert_false(pith_scheduler_wait(s, 0.0));
    free_both(s, e);
}

/* ---- memory of the process ---- */

/* A step in which no request comes or goes allocates nothing. */
TEST(a_steady_step_allocates_nothing)
{
    static struct ask asks[8];
    pith_engine *e = engine_make(NULL, 64, 1, 2048);
    pith_scheduler *s = scheduler_make(e, NULL);
    for (int32_t i = 0; i < 8; i++) {
        ask_init(&asks[i], i, 17, 60, 0.0f);
        submit(s, &asks[i]);
    }
    for (int32_t i = 0; i < 20; i++)
        step(s);
    int64_t most = 0;
    for (int32_t i = 0; i < 30; i++) {
        pi_mem_fail_at(0, false);
        step(s);
        most += pi_mem_fail_at(0, false);
    }
    /* Token lists, page tables and text double now and then. */
    assert_true(most <= 8 * 4);
    run_all(s);
    free_both(s, e);
}
