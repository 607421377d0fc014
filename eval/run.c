/*
 * run.c - the engine of a running task: a prompt in, an answer and its cost out, totals, progress,
 * and the common shape of results. It knows no task.
 *
 * Invariant: every item begins with an empty sequence and leaves no page in use. So no item sees
 * another and the peak of each is its own.
 */
#include "voices.h"
#include "pith/policy.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHAT_LEN 160

struct eval_run {
    struct eval_setup setup;  /* what it points to is borrowed */
    pith_engine *engine;      /* owned */
    struct eval_answer total; /* of all items, without their tokens: */
    int64_t n_prompt;
    int64_t n_generated;
    double start_s;
    int32_t longest;     /* tokens of an item, prompt and answer */
    double fraction;     /* of the task, and .. */
    char what[WHAT_LEN]; /* .. what is being done, as eval_progress said last */
};

/* ---- the run ---- */

pith_status eval_size_memory(const pith_model *model, int32_t n_token, int32_t n_seq,
                             pith_engine_params *params, pith_error *err)
{
    int64_t bytes;
    if (params->kv_bytes > 0 || params->kv_tokens > 0 || params->memory_bytes > 0)
        return PITH_OK;
    pith_status status = pith_kv_estimate(model, params, n_token, &bytes, err);
    if (status != PITH_OK)
        return status;
    if (bytes > INT64_MAX / 4 / n_seq)
        return eval_fail(err, PITH_INVALID, "n_batch: %d sequences of %d tokens are too many",
                         (int)n_seq, (int)n_token);
    params->kv_bytes = n_seq * bytes;
    return PITH_OK;
}

int32_t eval_seqs_that_fit(const struct eval_setup *setup, const pith_engine_params *beside,
                           int32_t n_token, int32_t n_seq)
{
    int64_t one, other = 0;
    if (setup->most_bytes == 0 ||
        pith_kv_estimate(setup->model, &setup->engine, n_token, &one, NULL) != PITH_OK ||
        (beside != NULL &&
         pith_kv_estimate(setup->model, beside, n_token, &other, NULL) != PITH_OK))
        return n_seq;
    int64_t n = one + other > 0 ? setup->most_bytes / (one + other) : n_seq;
    return n < 1 ? 1 : n < n_seq ? (int32_t)n : n_seq;
}

pith_status eval_run_create(const struct eval_setup *setup, int32_t n_token, struct eval_run **out,
                            pith_error *err)
{
    struct eval_run *run = calloc(1, sizeof(*run));
    if (run == NULL)
        return eval_fail(err, PITH_NOMEM, "no memory for a run of a task");
    run->setup = *setup;
    run->start_s = eval_clock_s();
    pith_status status = PITH_OK;
    if (n_token > 0)
        status = eval_size_memory(setup->model, n_token, 1, &run->setup.engine, err);
    if (status == PITH_OK)
        status = pith_engine_create(setup->model, &run->setup.engine, &run->engine, err);
    if (status != PITH_OK) {
        eval_run_free(run);
        return status;
    }
    *out = run;
    return PITH_OK;
}

void eval_run_free(struct eval_run *run)
{
    if (run == NULL)
        return;
    pith_engine_free(run->engine);
    free(run);
}

pith_engine *eval_run_engine(struct eval_run *run)
{
    return run->engine;
}

static void raise_to(int64_t *most, int64_t value)
{
    *most = value > *most ? value : *most;
}

void eval_add_cost(struct eval_answer *sum, const struct eval_answer *cost)
{
    struct eval_recall_cost *r = &sum->recall;
    struct eval_share_cost *s = &sum->share;
    sum->prompt_s += cost->prompt_s;
    sum->generate_s += cost->generate_s;
    sum->evicted += cost->evicted;
    sum->rounds += cost->rounds;
    sum->stored += cost->stored;
    sum->read += cost->read;
    sum->steps += cost->steps;
    sum->steps_sparse += cost->steps_sparse;
    sum->step_gate = cost->step_gate;
    raise_to(&sum->kv_peak_bytes, cost->kv_peak_bytes);
    r->recalls += cost->recall.recalls;
    r->stored += cost->recall.stored;
    r->lost += cost->recall.lost;
    r->guests += cost->recall.guests;
    r->tokens += cost->recall.tokens;
    r->seconds += cost->recall.seconds;
    raise_to(&r->ram_bytes, cost->recall.ram_bytes);
    raise_to(&r->file_bytes, cost->recall.file_bytes);
    s->steps += cost->share.steps;
    s->similar += cost->share.similar;
    s->pages += cost->share.pages;
    s->tokens += cost->share.tokens;
    s->of += cost->share.of;
    s->seconds += cost->share.seconds;
}

void eval_run_add(struct eval_run *run, const struct eval_answer *cost)
{
    run->n_prompt += cost->n_prompt;
    run->n_generated += cost->n_generated;
    if (cost->n_prompt + cost->n_generated > run->longest)
        run->longest = cost->n_prompt + cost->n_generated;
    eval_add_cost(&run->total, cost);
}

/* ---- prompts ---- */

/* The user's message within the model's chat template, up to where the answer begins. */
static pith_status render(const pith_model *model, const char *text, uint32_t flags,
                          struct eval_text *out, pith_error *err)
{
    const pith_message message = {"user", text};
    size_t len = 0;
    pith_status status = pith_chat_render(model, NULL, &message, 1, flags, NULL, 0, &len, err);
    if (status != PITH_RANGE)
        return status;
    char *rendered = malloc(len + 1);
    if (rendered == NULL)
        return eval_fail(err, PITH_NOMEM, "no memory for a prompt of %zu bytes", len);
    status = pith_chat_render(model, NULL, &message, 1, flags, rendered, len, &len, err);
    if (status == PITH_OK)
        eval_text_add_n(out, rendered, len);
    free(rendered);
    return status;
}

pith_status eval_tokenize(const pith_model *model, const char *text, size_t len, uint32_t flags,
                          int32_t **ids, int32_t *n_id, pith_error *err)
{
    if (len > INT32_MAX / 2)
        return eval_fail(err, PITH_INVALID, "text_len: %zu bytes are more than can be tokens", len);
    int32_t cap = (int32_t)len + 16, n = 0; /* usually enough: few tokens are shorter than a byte */
    for (int attempt = 0;; attempt++) {
        int32_t *data = malloc((size_t)cap * sizeof(*data));
        if (data == NULL)
            return eval_fail(err, PITH_NOMEM, "no memory for %d tokens", (int)cap);
        pith_status status = pith_tokenize(model, text, len, flags, data, cap, &n, err);
        if (status == PITH_OK) {
            *ids = data;
            *n_id = n;
            return PITH_OK;
        }
        free(data);
        if (status != PITH_RANGE || attempt > 0)
            return status;
        cap = n;
    }
}

pith_status eval_thinks(const struct eval_setup *setup, bool *thinks, pith_error *err)
{
    static const char mark[] = "<think>\n"; /* as the templates of all such models have it */
    struct eval_text t = {0};
    *thinks = false;
    if (!setup->chat)
        return PITH_OK;
    pith_status status = render(setup->model, "", PITH_CHAT_GENERATE, &t, err);
    size_t n = strlen(mark);
    if (status == PITH_OK && t.failed)
        status = eval_fail(err, PITH_NOMEM, "no memory for a prompt");
    else if (status == PITH_OK)
        *thinks = t.len >= n && memcmp(t.data + t.len - n, mark, n) == 0;
    eval_text_free(&t);
    return status;
}

pith_status eval_encode(const struct eval_setup *setup, const char *text, const char *prefix,
                        int32_t **ids, int32_t *n_id, pith_error *err)
{
    struct eval_text whole = {0};
    uint32_t flags = PITH_TOKENIZE_BOS;
    pith_status status = PITH_OK;
    if (setup->chat) {
        bool thinks = false;
        flags |= PITH_TOKENIZE_SPECIAL; /* the template's marks are tokens */
        if (prefix != NULL)
            status = eval_thinks(setup, &thinks, err);
        if (status == PITH_OK)
            status =
                render(setup->model, text,
                       PITH_CHAT_GENERATE | (thinks ? PITH_CHAT_NO_THINKING : 0u), &whole, err);
    } else {
        eval_text_add(&whole, text);
    }
    if (prefix != NULL)
        eval_text_add(&whole, prefix);
    if (status == PITH_OK && whole.failed)
        status = eval_fail(err, PITH_NOMEM, "no memory for a prompt of %zu bytes", strlen(text));
    if (status == PITH_OK)
        status = eval_tokenize(setup->model, whole.data != NULL ? whole.data : "", whole.len, flags,
                               ids, n_id, err);
    eval_text_free(&whole);
    return status;
}

/* ---- progress ---- */

bool eval_progress_step(void *user, double fraction)
{
    struct eval_run *run = user;
    (void)fraction; /* of the item: how much of the task that is, only the task knows */
    return run->setup.progress == NULL ||
           run->setup.progress(run->setup.progress_user, run->fraction, run->what);
}

pith_status eval_progress(struct eval_run *run, double fraction, pith_error *err, const char *what,
                          ...)
{
    va_list args;
    va_start(args, what);
    vsnprintf(run->what, sizeof(run->what), what, args);
    va_end(args);
    run->fraction = fraction;
    if (!eval_progress_step(run, fraction))
        return eval_fail(err, PITH_CANCELLED, "cancelled at \"%.100s\"", run->what);
    return PITH_OK;
}

/* ---- answers ---- */

struct listener {
    struct eval_run *run;
    struct eval_text text;
    bool cancelled;
};

static bool on_text(void *user, const char *text, size_t len)
{
    struct listener *l = user;
    eval_text_add_n(&l->text, text, len);
    l->cancelled = !eval_progress_step(l->run, 0.0);
    return !l->cancelled && !l->text.failed;
}

static void account_policies(const pith_keep_stats *keep, const pith_read_stats *read,
                             const pith_recall_stats *recall, const pith_share_stats *share,
                             int64_t n_token, struct eval_answer *cost)
{
    cost->evicted += keep->evicted;
    cost->rounds += keep->rounds;
    cost->stored += read->stored;
    cost->read += read->read;
    cost->steps += read->steps;
    cost->steps_sparse += read->steps_sparse;
    cost->step_gate = read->step_gate;
    cost->recall.recalls += recall->recalls;
    cost->recall.stored += recall->stored;
    cost->recall.lost += recall->lost;
    cost->recall.guests += recall->guests;
    cost->recall.seconds += recall->seconds;
    raise_to(&cost->recall.ram_bytes, recall->ram_bytes);
    raise_to(&cost->recall.file_bytes, recall->file_bytes);
    cost->share.steps += share->steps_closed;
    cost->share.similar += share->steps_similar;
    cost->share.pages += share->pages_shared;
    cost->share.tokens += share->tokens_shared;
    cost->share.of += n_token;
    cost->share.seconds += share->seconds;
}

void eval_account(const pith_seq *seq, struct eval_answer *cost)
{
    pith_keep_stats keep;
    pith_read_stats read;
    pith_recall_stats recall;
    pith_share_stats share;
    pith_seq_keep_stats(seq, &keep);
    pith_seq_share_stats(seq, &share);
    pith_seq_read_stats(seq, &read);
    pith_seq_recall_stats(seq, &recall);
    account_policies(&keep, &read, &recall, &share, pith_seq_length(seq), cost);
}

void eval_account_result(const pith_answer_result *result, struct eval_answer *cost)
{
    cost->n_prompt = result->n_prompt + result->n_cached - result->n_recalled;
    cost->n_generated = result->n_generated;
    cost->reason = result->reason;
    cost->recall.tokens += result->n_recalled;
    account_policies(&result->keep, &result->read, &result->recall, &result->share,
                     result->n_prompt + result->n_cached + result->n_generated, cost);
}

/* Adds the figures of the sequence and its memory for the item that was just done. */
static void account(struct eval_run *run, const pith_seq *seq, const pith_generate_result *result,
                    struct eval_answer *out)
{
    pith_kv_stats kv;
    pith_engine_kv_stats(run->engine, &kv);
    out->n_prompt = result->n_prompt;
    out->n_generated = result->n_generated;
    out->recall.tokens = result->n_recalled;
    out->reason = result->reason;
    out->prompt_s = result->prompt_s;
    out->generate_s = result->generate_s;
    raise_to(&out->kv_peak_bytes, kv.peak_bytes);
    eval_account(seq, out);
    eval_run_add(run, out);
}

/* Reads the prompt and hears the given answer behind it. *peak is that of the reading: the fork
   that the answer is said on is no part of the item. */
static pith_status read_given(struct eval_run *run, pith_seq *seq, const int32_t *ids, int32_t n_id,
                              const pith_generate_params *params, struct eval_given *given,
                              pith_generate_result *result, int64_t *peak, pith_error *err)
{
    pith_generate_params p = *params;
    pith_kv_stats kv;
    p.n_predict = 0;
    pith_status status = pith_generate(seq, ids, n_id, &p, NULL, NULL, result, err);
    pith_engine_kv_stats(run->engine, &kv);
    *peak = kv.peak_bytes;
    if (status == PITH_OK)
        status = eval_given_hear(seq, given, err);
    pith_engine_kv_reset_peak(run->engine);
    return status;
}

/* Reads the prompt and generates; with a given answer in two calls, of which the second finds the
   prompt read, whatever recall put into it. */
static pith_status generate(struct eval_run *run, pith_seq *seq, const int32_t *ids, int32_t n_id,
                            pith_generate_params *params, struct eval_given *given,
                            struct listener *l, pith_generate_result *result, int64_t *peak,
                            pith_error *err)
{
    pith_generate_result read;
    if (given == NULL)
        return pith_generate(seq, ids, n_id, params, on_text, l, result, err);
    pith_status status = read_given(run, seq, ids, n_id, params, given, &read, peak, err);
    if (status != PITH_OK)
        return status;
    int32_t n = pith_seq_length(seq);
    int32_t *all = malloc((size_t)n * sizeof(*all)); /* the sequence's own change as it grows */
    if (all == NULL)
        return eval_fail(err, PITH_NOMEM, "no memory for a prompt of %d tokens", (int)n);
    memcpy(all, pith_seq_tokens(seq), (size_t)n * sizeof(*all));
    params->message = NULL;
    params->message_len = 0;
    status = pith_generate(seq, all, n, params, on_text, l, result, err);
    free(all);
    if (status != PITH_OK)
        return status;
    result->n_prompt = read.n_prompt;
    result->n_cached = read.n_cached;
    result->n_recalled = read.n_recalled;
    result->prompt_s = read.prompt_s;
    return PITH_OK;
}

static pith_status ask(struct eval_run *run, const int32_t *ids, int32_t n_id,
                       pith_generate_params *params, struct eval_given *given,
                       struct eval_answer *out, pith_error *err)
{
    pith_seq *seq = NULL;
    pith_generate_result result;
    struct listener l = {.run = run};
    struct eval_answer answer = {0};
    int64_t peak = 0;
    params->progress = eval_progress_step;
    params->progress_user = run;

    pith_engine_kv_reset_peak(run->engine);
    pith_status status = pith_seq_create(run->engine, &seq, err);
    if (status == PITH_OK)
        status = generate(run, seq, ids, n_id, params, given, &l, &result, &peak, err);
    if (status == PITH_OK && l.cancelled)
        status = eval_fail(err, PITH_CANCELLED, "cancelled at \"%.100s\"", run->what);
    if (status == PITH_OK) {
        eval_text_add(&l.text, ""); /* an empty answer is a text, too */
        if (l.text.failed)
            status = eval_fail(err, PITH_NOMEM, "no memory for the text of an answer");
    }
    if (status == PITH_OK) {
        raise_to(&answer.kv_peak_bytes, peak);
        account(run, seq, &result, &answer);
        answer.text = l.text.data;
        answer.len = l.text.len;
        *out = answer;
    } else {
        eval_text_free(&l.text);
    }
    pith_seq_free(seq);
    return status;
}

static pith_generate_params generate_params(const char *message, int32_t n_predict,
                                            const char *const *stop, int32_t n_stop)
{
    pith_generate_params params;
    pith_generate_params_default(&params);
    params.sample.temperature = 0.0f;
    params.n_predict = n_predict;
    params.stop = stop;
    params.n_stop = n_stop;
    params.message = message;
    params.message_len = message != NULL ? strlen(message) : 0;
    return params;
}

pith_status eval_ask(struct eval_run *run, const int32_t *ids, int32_t n_id, const char *message,
                     int32_t n_predict, const pith_sample_params *sample, const char *const *stop,
                     int32_t n_stop, struct eval_answer *out, pith_error *err)
{
    pith_generate_params params = generate_params(message, n_predict, stop, n_stop);
    if (sample != NULL)
        params.sample = *sample;
    return ask(run, ids, n_id, &params, NULL, out, err);
}

pith_status eval_ask_given(struct eval_run *run, const int32_t *ids, int32_t n_id,
                           const char *message, int32_t n_predict, const char *const *stop,
                           int32_t n_stop, struct eval_given *given, struct eval_answer *out,
                           pith_error *err)
{
    pith_generate_params params = generate_params(message, n_predict, stop, n_stop);
    return ask(run, ids, n_id, &params, given, out, err);
}

void eval_answer_free(struct eval_answer *a)
{
    free(a->text);
    *a = (struct eval_answer){0};
}

/* ---- results ---- */

static double rate(int64_t n, double seconds)
{
    return seconds > 0.0 ? (double)n / seconds : 0.0;
}

static json_t *describe_recall(const struct eval_run *run)
{
    const struct eval_recall_cost *r = &run->total.recall;
    return json_pack("{s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "recalls", (json_int_t)r->recalls,
                     "seconds", r->seconds, "tokens", (json_int_t)r->tokens, "stored",
                     (json_int_t)r->stored, "lost", (json_int_t)r->lost, "guests",
                     (json_int_t)r->guests, "ram_bytes", (json_int_t)r->ram_bytes, "file_bytes",
                     (json_int_t)r->file_bytes);
}

/* The options of the share policy, NULL without any. */
static const char *share_policy(const pith_engine_params *params)
{
    return params->share == NULL || strcmp(params->share, "none") == 0 ? NULL : params->share;
}

static json_t *describe_share(const struct eval_run *run)
{
    const struct eval_share_cost *s = &run->total.share;
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:f}", "steps", (json_int_t)s->steps, "similar",
                     (json_int_t)s->similar, "pages", (json_int_t)s->pages, "tokens",
                     (json_int_t)s->tokens, "affected",
                     s->of > 0 ? (double)s->tokens / (double)s->of : 0.0, "seconds", s->seconds);
}

/* A remark on the run; "": none. */
static void write_note(const struct eval_run *run, char *note, size_t cap)
{
    const struct eval_answer *t = &run->total;
    pith_model_info info;
    size_t len = 0;
    note[0] = '\0';
    pith_model_get_info(run->setup.model, &info);
    if (run->longest > info.n_ctx_train)
        len = (size_t)snprintf(note, cap,
                               "Items of %d tokens are longer than the %d of the model's training.",
                               (int)run->longest, (int)info.n_ctx_train);
    if (t->steps == 0 || t->steps_sparse > 0)
        return;
    const char *space = len > 0 ? " " : "";
    if (t->step_gate > 0)
        snprintf(note + len, cap - len,
                 "%sGenerated tokens read everything: the gate lets them read lanes of up to %lld "
                 "entries whole.",
                 space, (long long)t->step_gate);
    else
        snprintf(note + len, cap - len, "%sGenerated tokens read everything, by the gate.", space);
}

static json_t *make_summary(const struct eval_run *run, int32_t n)
{
    const struct eval_answer *t = &run->total;
    char note[256];
    write_note(run, note, sizeof(note));
    json_t *recall = eval_recall(&run->setup.engine) != NULL ? describe_recall(run) : NULL;
    json_t *share = share_policy(&run->setup.engine) != NULL ? describe_share(run) : NULL;
    return json_pack("{s:i, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:o*, s:o*, s:s*}",
                     "n", (int)n, "prompt_tokens", (json_int_t)run->n_prompt, "generated_tokens",
                     (json_int_t)run->n_generated, "seconds", eval_clock_s() - run->start_s,
                     "tokens_per_s", rate(run->n_generated, t->generate_s), "prompt_tokens_per_s",
                     rate(run->n_prompt, t->prompt_s), "prompt_seconds", t->prompt_s,
                     "kv_peak_bytes", (json_int_t)t->kv_peak_bytes, "evicted",
                     (json_int_t)t->evicted, "rounds", (json_int_t)t->rounds, "read_share",
                     t->stored > 0 ? (double)t->read / (double)t->stored : 1.0, "recall", recall,
                     "share", share, "note", note[0] != '\0' ? note : NULL);
}

json_t *eval_json_text(const char *text)
{
    if (text == NULL)
        return json_null();
    char *whole = eval_utf8(text);
    json_t *value = json_string(whole); /* NULL of NULL */
    free(whole);
    return value;
}

json_t *eval_json_ids(const int32_t *ids, int32_t n)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int32_t i = 0; i < n && ok; i++)
        ok = json_array_append_new(list, json_integer(ids[i])) == 0;
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

bool eval_is_full(const pith_engine_params *params)
{
    return params->keep == NULL || strcmp(params->keep, "none") == 0;
}

const char *eval_read(const pith_engine_params *params)
{
    return params->read == NULL || strcmp(params->read, "none") == 0 ? NULL : params->read;
}

const char *eval_recall(const pith_engine_params *params)
{
    return params->recall == NULL || strcmp(params->recall, "none") == 0 ? NULL : params->recall;
}

pith_status eval_check_recall(const struct eval_setup *setup, const char *task, pith_error *err)
{
    const char *recall = eval_recall(&setup->engine);
    if (recall == NULL || strncmp(recall, "text", 4) != 0)
        return PITH_OK;
    return eval_fail(err, PITH_INVALID,
                     "%s: recall \"%.60s\" answers questions, and this task asks none in a prompt",
                     task, recall);
}

void eval_store(const pith_engine_params *params, char *buf, size_t cap)
{
    const char *k = params->type_k != NULL ? params->type_k : "f16";
    const char *v = params->type_v != NULL ? params->type_v : "f16";
    bool plain = strcmp(k, "f16") == 0 && strcmp(v, "f16") == 0;
    if (plain)
        snprintf(buf, cap, "%s", "");
    else
        snprintf(buf, cap, "%s/%s", k, v);
}

char *eval_add_budget(const char *options, const char *budget)
{
    struct eval_text t = {0};
    eval_text_printf(&t, "%s%cbudget=%s", options, strchr(options, ':') != NULL ? ',' : ':',
                     budget);
    return t.data; /* NULL when there was no memory */
}

bool eval_is_plain(const pith_engine_params *params)
{
    return eval_is_full(params) && eval_read(params) == NULL;
}

const char *eval_policy(const pith_engine_params *params)
{
    return eval_is_full(params) ? "full" : params->keep;
}

json_t *eval_result(const struct eval_run *run, const char *task, int32_t n, json_t *settings,
                    json_t *rows)
{
    pith_model_info info;
    pith_model_get_info(run->setup.model, &info);
    const pith_engine_params *engine = &run->setup.engine;
    const char *read = eval_read(engine), *recall = eval_recall(engine);
    const char *share = share_policy(engine);
    char store[128];
    eval_store(engine, store, sizeof(store));
    /* json_pack takes its arguments over even when it fails, so nothing is left behind. */
    return json_pack("{s:s, s:o, s:o, s:o*, s:o*, s:o*, s:o*, s:o, s:o, s:o}", "task", task,
                     "model", eval_json_text(info.name), "policy",
                     eval_json_text(eval_policy(engine)), "read",
                     read != NULL ? eval_json_text(read) : NULL, "recall",
                     recall != NULL ? eval_json_text(recall) : NULL, "share",
                     share != NULL ? eval_json_text(share) : NULL, "store",
                     store[0] != '\0' ? eval_json_text(store) : NULL, "settings", settings,
                     "summary", make_summary(run, n), "rows", rows);
}
