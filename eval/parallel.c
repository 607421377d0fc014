/*
 * parallel.c - answers to many prompts through a scheduler. It knows no task.
 *
 * Invariant: an answer does not depend on how many are generated at the same time, as the scheduler
 * promises. Only times do: an answer in company counts its share of the whole time.
 */
#include "parallel.h"

#include <stdlib.h>

struct asking {
    struct eval_run *run;
    struct eval_asked *asked; /* [n] */
    int32_t n;
    int32_t n_ended;
    double start_s;
    pith_status status; /* of the first answer that failed, with .. */
    pith_error err;     /* .. its sentence */
};

/* An answer's place, as a callback gets it. */
struct place {
    struct asking *asking;
    struct eval_asked *asked;
    struct eval_text text;
    bool thinks;
};

static bool on_token(void *user, const pith_answer_token *token)
{
    struct place *p = user;
    eval_text_add_n(&p->text, token->text, token->len);
    return !p->text.failed;
}

static void on_done(void *user, const pith_answer_result *result)
{
    struct place *p = user;
    struct asking *a = p->asking;
    struct eval_answer *out = &p->asked->answer;
    a->n_ended++;
    eval_account_result(result, out);
    if (result->status != PITH_OK && a->status == PITH_OK)
        a->status = eval_fail(&a->err, result->status, "prompt %d: %.200s",
                              (int)(p->asked - a->asked) + 1, result->message);
}

static pith_status submit(pith_scheduler *scheduler, const struct eval_setup *setup,
                          struct place *place, pith_error *err)
{
    const struct eval_asked *asked = place->asked;
    int32_t *ids = NULL, n_id = 0;
    pith_generate_params generate;
    pith_request request;
    int64_t id;
    pith_generate_params_default(&generate);
    generate.sample = asked->sample;
    generate.n_predict = asked->n_predict;
    generate.stop = asked->stop;
    generate.n_stop = asked->n_stop;
    generate.message = asked->prompt->text.data;
    generate.message_len = asked->prompt->text.len;
    pith_status status = eval_prompt_encode(setup, asked->prompt, &ids, &n_id, &place->thinks, err);
    if (status != PITH_OK)
        return status;
    pith_request_default(&request);
    request.prompt = ids;
    request.n_prompt = n_id;
    request.params = &generate;
    request.on_token = on_token;
    request.no_logits = true;
    request.on_done = on_done;
    request.user = place;
    status = pith_scheduler_submit(scheduler, &request, &id, err);
    free(ids);
    return status;
}

static pith_status step_all(struct asking *a, pith_scheduler *scheduler, pith_error *err)
{
    for (bool idle = false; !idle;) {
        pith_status status = pith_scheduler_step(scheduler, &idle, err);
        if (status == PITH_OK && a->status != PITH_OK) {
            *err = a->err;
            status = a->status;
        }
        if (status == PITH_OK)
            status = eval_progress(a->run, (double)a->n_ended / a->n, err, "answer %d of %d",
                                   (int)a->n_ended, (int)a->n);
        if (status != PITH_OK)
            return status;
    }
    return PITH_OK;
}

/* The time of all answers is shared out over them: the reading of prompts is part of it. */
static pith_status collect_answers(struct asking *a, struct place *places, pith_error *err)
{
    double seconds = eval_clock_s() - a->start_s;
    pith_kv_stats kv;
    pith_engine_kv_stats(eval_run_engine(a->run), &kv);
    for (int32_t i = 0; i < a->n; i++) {
        struct eval_answer *out = &a->asked[i].answer;
        eval_text_add(&places[i].text, ""); /* an empty answer is a text, too */
        if (places[i].text.failed)
            return eval_fail(err, PITH_NOMEM, "no memory for the text of an answer");
        out->text = places[i].text.data;
        out->len = places[i].text.len;
        places[i].text = (struct eval_text){0};
        out->generate_s = seconds / a->n;
        out->kv_peak_bytes = kv.peak_bytes;
        eval_run_add(a->run, out);
        pith_status status = places[i].thinks ? eval_open_thinking(out, err) : PITH_OK;
        if (status != PITH_OK)
            return status;
    }
    return PITH_OK;
}

static pith_status ask_together(struct eval_run *run, const struct eval_setup *setup,
                                struct eval_asked *asked, int32_t n, int32_t n_parallel,
                                pith_error *err)
{
    struct asking a = {.run = run, .asked = asked, .n = n, .start_s = eval_clock_s()};
    struct place *places = calloc((size_t)n, sizeof(*places));
    pith_scheduler *scheduler = NULL;
    pith_scheduler_params params;
    pith_scheduler_params_default(&params);
    params.n_seq = n_parallel;
    params.n_queue = n;
    params.no_prefix = true; /* every item has a memory of its own, as when it is asked alone */
    if (places == NULL)
        return eval_fail(err, PITH_NOMEM, "no memory for %d answers", (int)n);
    pith_engine_kv_reset_peak(eval_run_engine(run));
    pith_status status = pith_scheduler_create(eval_run_engine(run), &params, &scheduler, err);
    for (int32_t i = 0; i < n && status == PITH_OK; i++) {
        places[i] = (struct place){.asking = &a, .asked = &asked[i]};
        status = submit(scheduler, setup, &places[i], err);
    }
    if (status == PITH_OK)
        status = step_all(&a, scheduler, err);
    pith_scheduler_free(scheduler); /* ends what is left, so that nothing calls back later */
    if (status == PITH_OK)
        status = collect_answers(&a, places, err);
    for (int32_t i = 0; i < n; i++)
        eval_text_free(&places[i].text);
    free(places);
    return status;
}

static pith_status ask_each(struct eval_run *run, const struct eval_setup *setup,
                            struct eval_asked *asked, int32_t n, pith_error *err)
{
    pith_status status = PITH_OK;
    for (int32_t i = 0; i < n && status == PITH_OK; i++) {
        struct eval_asked *a = &asked[i];
        status = eval_progress(run, (double)i / n, err, "answer %d of %d", (int)i + 1, (int)n);
        if (status == PITH_OK)
            status = eval_prompt_ask(run, setup, a->prompt, a->n_predict, &a->sample, a->stop,
                                     a->n_stop, &a->answer, err);
    }
    return status;
}

pith_status eval_prompts_ask(struct eval_run *run, const struct eval_setup *setup,
                             struct eval_asked *asked, int32_t n, int32_t n_parallel,
                             pith_error *err)
{
    return n_parallel > 1 ? ask_together(run, setup, asked, n, n_parallel, err)
                          : ask_each(run, setup, asked, n, err);
}

pith_status eval_run_create_many(const struct eval_setup *setup, int32_t n_token,
                                 int32_t n_parallel, struct eval_run **out, pith_error *err)
{
    struct eval_setup many = *setup;
    int32_t n = eval_seqs_that_fit(setup, NULL, n_token, n_parallel);
    pith_status status = eval_size_memory(many.model, n_token, n, &many.engine, err);
    return status == PITH_OK ? eval_run_create(&many, 0, out, err) : status;
}
