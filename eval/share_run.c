/*
 * share_run.c - all requests at once through a scheduler, in an engine of its own: the measurement
 * of one row of `pith eval share`. It steps the scheduler itself and looks at the memory after each
 * step; what that takes counts in no figure.
 */
#include "share.h"
#include "voices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct runner {
    const struct share_items *items;
    struct share_run *run;
    pith_engine *engine;       /* owned, like the next */
    pith_scheduler *scheduler; /* freed first */
    int64_t first_id;          /* of the requests, which follow one by one */
    int32_t n_vocab;
    bool score;
    double own_s; /* spent on figures within a step */
    int32_t n_ended;
    pith_status status; /* of the first request that failed, with .. */
    pith_error err;     /* .. its sentence */
};

/* A request's place, as a callback gets it. */
struct place {
    struct runner *runner;
    int32_t index;
};

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "share: no memory for answers");
}

/* ---- answers ---- */

/* nll = -(logit - max - log(sum exp(logit - max))), as perplexity has it. */
static void score_token(struct runner *r, struct share_answer *a, int32_t at,
                        const pith_answer_token *token)
{
    float max;
    double start = eval_clock_s(), sum = eval_log_sum(token->logits, r->n_vocab, &max);
    a->nll[at] = -((double)token->logits[token->token] - (double)max - sum);
    a->n_chosen += eval_likeliest(token->logits, r->n_vocab) == token->token;
    r->own_s += eval_clock_s() - start;
}

static bool on_token(void *user, const pith_answer_token *token)
{
    struct place *p = user;
    struct share_answer *a = &p->runner->run->answers[p->index];
    eval_text_add_n(&a->text, token->text, token->len);
    if (token->token < 0)
        return true;
    size_t at = a->tokens.len / sizeof(token->token);
    eval_text_add_n(&a->tokens, (const char *)&token->token, sizeof(token->token));
    if (p->runner->score && at < (size_t)p->runner->items->at[p->index].n_right)
        score_token(p->runner, a, (int32_t)at, token);
    return true;
}

static void on_done(void *user, const pith_answer_result *result)
{
    struct place *p = user;
    struct runner *r = p->runner;
    r->run->answers[p->index].result = *result;
    r->run->answers[p->index].done = true;
    r->n_ended++;
    if (result->status != PITH_OK && r->status == PITH_OK)
        r->status = eval_fail(&r->err, result->status, "share: request %d: %.200s",
                              (int)p->index + 1, result->message);
}

/* ---- the run ---- */

static pith_status open_engine(struct runner *r, const struct eval_setup *setup,
                               const struct share_row *row, int64_t kv_bytes, int32_t page_len,
                               pith_error *err)
{
    pith_engine_params engine = setup->engine;
    pith_scheduler_params params;
    pith_scheduler_params_default(&params);
    engine.share = row->share;
    engine.keep = row->keep;
    engine.kv_tokens = 0;
    engine.kv_bytes = kv_bytes;
    engine.memory_bytes = 0;
    engine.page_len = row->page_len > 0 ? row->page_len : page_len;
    params.n_seq = params.n_queue = r->items->n;
    params.no_prefix = !row->prefix;
    params.reserve = row->reserve >= 0.0 ? row->reserve : params.reserve;
    params.step_tokens = row->step_tokens;
    pith_status status = pith_engine_create(setup->model, &engine, &r->engine, err);
    if (status == PITH_OK)
        status = pith_scheduler_create(r->engine, &params, &r->scheduler, err);
    if (status == PITH_OK)
        pith_engine_kv_reset_peak(r->engine);
    return status;
}

static pith_status submit_all(struct runner *r, struct place *places, pith_error *err)
{
    /* A model that was trained on these texts goes on with the next. */
    static const char *const stop[] = {"\nSums modulo"};
    pith_status status = PITH_OK;
    for (int32_t i = 0; i < r->items->n && status == PITH_OK; i++) {
        const struct share_item *item = &r->items->at[i];
        pith_generate_params generate;
        pith_request request;
        int64_t id;
        pith_generate_params_default(&generate);
        generate.sample.temperature = 0.0f;
        generate.n_predict = item->n_predict;
        generate.ignore_end = item->forced != NULL;
        generate.stop = stop;
        generate.n_stop = item->forced == NULL ? 1 : 0;
        pith_request_default(&request);
        places[i] = (struct place){r, i};
        request.prompt = item->ids;
        request.n_prompt = item->n_id;
        request.params = &generate;
        request.forced = item->forced;
        request.n_forced = item->forced != NULL ? item->n_right : 0;
        request.on_token = on_token;
        request.on_done = on_done;
        request.user = &places[i];
        status = pith_scheduler_submit(r->scheduler, &request, &id, err);
    }
    return status;
}

/* Adds a step's time to the means, which are sums until the end. */
static void look(struct runner *r, double seconds, double cpu_s, int32_t n_ended)
{
    struct share_run *run = r->run;
    pith_kv_stats kv;
    pith_scheduler_get_stats(r->scheduler, &run->stats);
    pith_engine_kv_stats(r->engine, &kv);
    run->seconds += seconds;
    run->cpu_s += cpu_s;
    run->running += seconds * (run->stats.n_running - run->stats.n_swapped + n_ended);
    run->used += seconds * (double)kv.used_bytes;
    run->saved += seconds * (double)kv.saved_bytes;
    run->dead += seconds * (double)(kv.used_bytes - kv.live_bytes);
    run->kv_peak_bytes = kv.peak_bytes;
}

static pith_status step_all(struct runner *r, share_progress_fn *progress, void *user,
                            pith_error *err)
{
    double n_token = 0.0;
    for (int32_t i = 0; i < r->items->n; i++)
        n_token += r->items->at[i].n_right;
    for (bool idle = false; !idle;) {
        int32_t n_before = r->n_ended;
        double own = r->own_s, cpu = eval_cpu_s(), start = eval_clock_s();
        pith_status status = pith_scheduler_step(r->scheduler, &idle, err);
        double seconds = eval_clock_s() - start - (r->own_s - own);
        if (status != PITH_OK)
            return status;
        if (!idle)
            look(r, seconds, eval_cpu_s() - cpu - (r->own_s - own), r->n_ended - n_before);
        if (r->status != PITH_OK) {
            *err = r->err;
            return r->status;
        }
        if (!progress(user, fmin(1.0, (double)r->run->stats.generated_tokens / n_token)))
            return eval_fail(err, PITH_CANCELLED, "share: cancelled");
    }
    return PITH_OK;
}

static pith_status check_answers(const struct share_run *run, pith_error *err)
{
    for (int32_t i = 0; i < run->n_item; i++) {
        const struct share_answer *a = &run->answers[i];
        if (a->text.failed || a->tokens.failed)
            return no_memory(err);
        if (!a->done)
            return eval_fail(err, PITH_INTERNAL, "share: request %d of %d never ended", (int)i + 1,
                             (int)run->n_item);
    }
    return PITH_OK;
}

static pith_status make_answers(struct runner *r, pith_error *err)
{
    struct share_run *run = r->run;
    run->answers = calloc((size_t)r->items->n, sizeof(*run->answers));
    if (run->answers == NULL)
        return no_memory(err);
    run->n_item = r->items->n;
    for (int32_t i = 0; i < run->n_item && r->score; i++) {
        run->answers[i].nll = calloc((size_t)r->items->at[i].n_right, sizeof(*run->answers[i].nll));
        if (run->answers[i].nll == NULL)
            return no_memory(err);
    }
    return PITH_OK;
}

static void finish_means(struct share_run *run)
{
    double seconds = run->seconds > 0.0 ? run->seconds : 1.0;
    run->running /= seconds;
    run->used /= seconds;
    run->saved /= seconds;
    run->dead /= seconds;
}

pith_status share_run_make(const struct eval_setup *setup, const struct share_row *row,
                           const struct share_items *items, int64_t kv_bytes, int32_t page_len,
                           bool score, share_progress_fn *progress, void *user,
                           struct share_run *out, pith_error *err)
{
    struct runner r = {.items = items, .run = out};
    pith_model_info info;
    pith_model_get_info(setup->model, &info);
    r.n_vocab = info.n_vocab;
    r.score = score && items->at[0].forced != NULL;
    *out = (struct share_run){0};
    struct place *places = calloc((size_t)items->n, sizeof(*places));
    pith_status status = places != NULL ? make_answers(&r, err) : no_memory(err);
    if (status == PITH_OK)
        status = open_engine(&r, setup, row, kv_bytes, page_len, err);
    if (status == PITH_OK)
        status = submit_all(&r, places, err);
    if (status == PITH_OK)
        status = step_all(&r, progress, user, err);
    pith_scheduler_free(r.scheduler); /* ends what is left, so that nothing calls back later */
    if (status == PITH_OK)
        status = check_answers(out, err);
    finish_means(out);
    pith_engine_free(r.engine);
    free(places);
    return status;
}

void share_run_free(struct share_run *run)
{
    for (int32_t i = 0; i < run->n_item; i++) {
        eval_text_free(&run->answers[i].text);
        eval_text_free(&run->answers[i].tokens);
        free(run->answers[i].nll);
    }
    free(run->answers);
    *run = (struct share_run){0};
}

void share_run_sum(const struct share_run *run, const struct share_items *items,
                   struct share_sums *out)
{
    *out = (struct share_sums){0};
    for (int32_t i = 0; i < run->n_item; i++) {
        const pith_answer_result *a = &run->answers[i].result;
        out->n_prompt += items->at[i].n_id;
        out->n_cached += a->n_cached;
        out->n_generated += a->n_generated;
        out->evicted += a->keep.evicted;
        out->tokens_shared += a->share.tokens_shared;
        out->pages_shared += a->share.pages_shared;
        out->steps_closed += a->share.steps_closed;
        out->steps_compared += a->share.steps_compared;
        out->steps_similar += a->share.steps_similar;
    }
    out->affected = (double)out->tokens_shared / (double)(out->n_prompt + out->n_generated);
}
