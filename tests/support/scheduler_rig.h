/*
 * scheduler_rig.h - requests for a scheduler with recorded answers, and the same prompts generated
 * alone for comparison. Both record tokens one by one, text, and the bits of the logits behind each
 * token. For one file of a test program, which loads the model in its group's setup and frees it in
 * its teardown.
 */
#ifndef PI_TEST_SCHEDULER_RIG_H
#define PI_TEST_SCHEDULER_RIG_H

#include "keep_engine.h"
#include "serve/scheduler/scheduler.h"

#define ANSWER_MAX 192
#define TEXT_MAX 2048

/* The result of an answer. */
struct heard {
    int32_t token[ANSWER_MAX];
    uint64_t hash[ANSWER_MAX]; /* of the logits */
    int32_t n;
    char text[TEXT_MAX];
    size_t len;
    int32_t n_done; /* calls of on_done */
    pith_answer_result result;
    char message[256];
};

/* A request and what became of it. */
struct ask {
    pith_request request;
    pith_generate_params params;
    struct heard answer[4];
    int32_t stop_after; /* tokens after which the callback wants no more; 0: never */
    int64_t id;
};

static inline bool hear_token(void *user, const pith_answer_token *t)
{
    struct ask *ask = user;
    struct heard *h = &ask->answer[t->answer];
    assert_int_equal(h->n_done, 0);
    assert_true(h->len + t->len < TEXT_MAX);
    if (t->len > 0)
        memcpy(h->text + h->len, t->text, t->len);
    h->len += t->len;
    if (t->token < 0) {
        assert_null(t->logits);
        return true;
    }
    assert_true(h->n < ANSWER_MAX);
    h->token[h->n] = t->token;
    h->hash[h->n++] = pith_logits_hash(t->logits, info.n_vocab);
    return ask->stop_after == 0 || h->n < ask->stop_after;
}

static inline void hear_done(void *user, const pith_answer_result *result)
{
    struct ask *ask = user;
    struct heard *h = &ask->answer[result->answer];
    h->n_done++;
    h->result = *result;
    snprintf(h->message, sizeof(h->message), "%s", result->message);
}

/* The first n_prompt of `tokens` from a place on, n_predict tokens at a temperature. */
static inline void ask_init(struct ask *ask, int32_t from, int32_t n_prompt, int32_t n_predict,
                            float temperature)
{
    memset(ask, 0, sizeof(*ask));
    pith_generate_params_default(&ask->params);
    pith_request_default(&ask->request);
    assert_true(from + n_prompt <= TOKENS_MAX && n_predict <= ANSWER_MAX);
    ask->params.n_predict = n_predict;
    ask->params.ignore_end = true;
    ask->params.sample.temperature = temperature;
    ask->params.sample.seed = (uint64_t)(1000 + from);
    ask->request.prompt = tokens + from;
    ask->request.n_prompt = n_prompt;
    ask->request.on_token = hear_token;
    ask->request.on_done = hear_done;
    ask->request.user = ask;
    ask->request.params = &ask->params;
}

static inline void submit(pith_scheduler *s, struct ask *ask)
{
    check(pith_scheduler_submit(s, &ask->request, &ask->id, &err), &err);
}

static inline void run_all(pith_scheduler *s)
{
    check(pith_scheduler_run(s, &err), &err);
}

static inline bool hear_text(void *user, const char *text, size_t len)
{
    struct heard *h = user;
    assert_true(h->len + len < TEXT_MAX);
    memcpy(h->text + h->len, text, len);
    h->len += len;
    return true;
}

/* The request's answer number i by pith_generate in a fresh sequence of an engine. */
static inline void generate_alone(pith_engine *e, const struct ask *ask, int32_t i,
                                  struct heard *out)
{
    pith_generate_params params = ask->params;
    pith_generate_result result;
    pith_seq *seq = seq_make(e);
    memset(out, 0, sizeof(*out));
    params.sample.seed += (uint64_t)i;
    check(pith_generate(seq, ask->request.prompt, ask->request.n_prompt, &params, hear_text, out,
                        &result, &err),
          &err);
    out->result.reason = result.reason;
    out->n = result.n_generated;
    out->result.n_generated = result.n_generated;
    int32_t n_held = pith_seq_length(seq) - ask->request.n_prompt;
    assert_true(n_held >= out->n - 1);
    memcpy(out->token, pith_seq_tokens(seq) + ask->request.n_prompt,
           (size_t)pi_min(n_held, out->n) * sizeof(int32_t));
    /* The last row that was chosen from: of the last token, or of the end token after it. */
    out->hash[0] = hash_of(seq);
    pith_seq_free(seq);
}

/* The same tokens, text and end, and the same bits of the last logits. */
static inline void expect_same(const struct heard *got, const struct heard *alone, const char *what)
{
    if (got->n_done != 1 || got->result.status != PITH_OK)
        fail_msg("%s: done %d times, %s: %s", what, got->n_done,
                 pith_status_name(got->result.status), got->message);
    if (got->n != alone->n || got->result.n_generated != alone->n ||
        got->result.reason != alone->result.reason)
        fail_msg("%s: %d tokens (%d), reason %d, instead of %d, reason %d", what, got->n,
                 got->result.n_generated, got->result.reason, alone->n, alone->result.reason);
    for (int32_t i = 0; i + 1 < got->n; i++)
        if (got->token[i] != alone->token[i])
            fail_msg("%s: token %d of %d is %d, alone %d", what, i, got->n, got->token[i],
                     alone->token[i]);
    if (got->n > 0 && alone->result.reason != PITH_STOP_END &&
        got->hash[got->n - 1] != alone->hash[0])
        fail_msg("%s: the logits of token %d have other bits", what, got->n - 1);
    if (got->len != alone->len || memcmp(got->text, alone->text, got->len) != 0)
        fail_msg("%s: text \"%.*s\", alone \"%.*s\"", what, (int)got->len, got->text,
                 (int)alone->len, alone->text);
}

static inline pith_scheduler *scheduler_make(pith_engine *e, const pith_scheduler_params *params)
{
    pith_scheduler *s = NULL;
    check(pith_scheduler_create(e, params, &s, &err), &err);
    return s;
}

static inline pith_scheduler_stats stats_of_scheduler(pith_scheduler *s)
{
    pith_scheduler_stats t;
    pith_scheduler_get_stats(s, &t);
    return t;
}

/* Frees both, and nothing of the pool is left in between. */
static inline void free_both(pith_scheduler *s, pith_engine *e)
{
    pith_kv_stats kv;
    pith_scheduler_free(s);
    pith_engine_kv_stats(e, &kv);
    assert_int_equal(kv.used_bytes, 0);
    assert_int_equal(kv.n_seq, 0);
    pith_engine_free(e);
}

#endif
