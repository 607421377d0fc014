/*
 * facts.c - `pith eval facts`: contexts with questions about them. A context is read under the full
 * cache, the keep policy cuts it once, and each question is asked of a fork of the rest. So a
 * policy's choice is judged apart from a model's reading with a cache that shrinks.
 *
 * Invariant: every question of a context sees the same entries and no other question. Answers of
 * one context share its cut, so that the standard error takes contexts, not answers, as
 * independent.
 */
#include "facts.h"

#include "lines.h"
#include "prompt.h"
#include "voices.h"
#include "pith/policy.h"

#include "pith/inspect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_THIRD 3
#define PAGE_LEN_MAX 64

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "facts: no memory");
}

/* ---- files ---- */

/* Where something stands in a file: question 0 is the context. */
struct place {
    int32_t line;
    int32_t question;
    const char *field;
};

static pith_status bad(struct place at, const char *what, pith_error *err)
{
    char question[32] = "";
    if (at.question > 0)
        snprintf(question, sizeof(question), ", question %d", (int)at.question);
    return eval_fail(err, PITH_FORMAT, "facts: line %d%s: %s %s", (int)at.line, question, at.field,
                     what);
}

static pith_status read_ids(const json_t *list, struct place at, struct facts_part *out,
                            pith_error *err)
{
    size_t n = json_array_size(list);
    if (n > EVAL_MAX_TOKENS)
        return bad(at, "has more ids than a text may have tokens", err);
    out->ids = malloc(n * sizeof(*out->ids));
    if (out->ids == NULL)
        return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX)
            return bad(at, "holds something that is no token id", err);
        out->ids[i] = (int32_t)json_integer_value(id);
    }
    out->n_id = (int32_t)n;
    return PITH_OK;
}

static pith_status read_part(const json_t *object, struct place at, struct facts_part *out,
                             pith_error *err)
{
    const json_t *value = json_object_get(object, at.field);
    if (json_is_array(value) && json_array_size(value) > 0)
        return read_ids(value, at, out, err);
    if ((json_is_array(value) || json_is_string(value)) && json_string_length(value) == 0)
        return bad(at, "is empty", err);
    if (!json_is_string(value))
        return bad(at, "is neither a text nor a list of token ids", err);
    out->text = eval_copy(json_string_value(value));
    return out->text != NULL ? PITH_OK : no_memory(err);
}

static pith_status read_question(const json_t *object, struct place at, struct facts_question *q,
                                 pith_error *err)
{
    const json_t *where = json_object_get(object, "at");
    at.field = "ask";
    pith_status status = read_part(object, at, &q->ask, err);
    at.field = "answer";
    if (status == PITH_OK)
        status = read_part(object, at, &q->answer, err);
    at.field = "at";
    q->at = where != NULL ? json_number_value(where) : -1.0;
    if (status == PITH_OK && where != NULL &&
        (!json_is_number(where) || !(q->at >= 0.0 && q->at <= 1.0)))
        status = bad(at, "is no number from 0 to 1", err);
    return status;
}

static pith_status read_item(const json_t *json, int32_t line, struct facts_item *item,
                             pith_error *err)
{
    struct place at = {line, 0, "context"};
    const json_t *list = json_object_get(json, "questions"), *id = json_object_get(json, "id");
    char name[32];
    snprintf(name, sizeof(name), "line %d", (int)line);
    item->name = eval_copy(json_is_string(id) ? json_string_value(id) : name);
    if (item->name == NULL)
        return no_memory(err);
    pith_status status = read_part(json, at, &item->context, err);
    if (status != PITH_OK)
        return status;
    at.field = "questions";
    size_t n = json_array_size(list);
    if (json_is_array(list) && n == 0)
        return bad(at, "is empty", err);
    if (n == 0 || n > EVAL_MAX_TOKENS)
        return bad(at, "is no list of questions", err);
    item->question = calloc(n, sizeof(*item->question));
    if (item->question == NULL)
        return no_memory(err);
    item->n_question = (int32_t)n;
    for (size_t i = 0; i < n && status == PITH_OK; i++) {
        at.question = (int32_t)i + 1;
        status = read_question(json_array_get(list, i), at, &item->question[i], err);
    }
    return status;
}

/* A file that is being read. */
struct reading {
    struct facts_file *file;
    int32_t cap;
};

static pith_status add_item(void *user, const json_t *json, int32_t line, pith_error *err)
{
    struct reading *r = user;
    struct facts_file *f = r->file;
    struct facts_item *grown = eval_lines_grow(f->item, f->n, &r->cap, sizeof(*grown));
    if (grown == NULL)
        return no_memory(err);
    f->item = grown;
    f->item[f->n] = (struct facts_item){0};
    f->n++; /* half an item is freed too */
    return read_item(json, line, &f->item[f->n - 1], err);
}

pith_status eval_facts_parse(const char *text, size_t len, struct facts_file *out, pith_error *err)
{
    struct reading r = {.file = out};
    *out = (struct facts_file){0};
    return eval_lines_read(text, len, "facts", add_item, &r, err);
}

static void free_part(struct facts_part *p)
{
    free(p->text);
    free(p->ids);
}

void eval_facts_free(struct facts_file *f)
{
    for (int32_t i = 0; i < f->n; i++) {
        struct facts_item *item = &f->item[i];
        for (int32_t q = 0; q < item->n_question; q++) {
            free_part(&item->question[q].ask);
            free_part(&item->question[q].answer);
        }
        free(item->question);
        free_part(&item->context);
        free(item->name);
    }
    free(f->item);
    *f = (struct facts_file){0};
}

/* ---- a run ---- */

struct share {
    int32_t n;
    int32_t right;
};

struct facts_run {
    const struct eval_setup *setup;
    const struct eval_facts_params *params;
    struct facts_file file;
    int32_t n_context;
    struct eval_text keep; /* the policy with a slack that no context reaches */
    struct eval_run *run;
    json_t *rows;
    struct share *of; /* [n_context] */
    struct share third[N_THIRD];
    int32_t *said; /* [longest answer] */
};

static pith_status encode(const struct facts_run *r, struct facts_part *p, uint32_t flags,
                          pith_error *err)
{
    if (p->text == NULL)
        return PITH_OK;
    pith_status status =
        eval_tokenize(r->setup->model, p->text, strlen(p->text), flags, &p->ids, &p->n_id, err);
    if (status == PITH_OK && p->n_id == 0)
        status = eval_fail(err, PITH_FORMAT, "facts: the text \"%.40s\" has no token", p->text);
    return status;
}

/* Tokens of every part; *longest is what the longest context takes with its longest question, and
 *answer is the longest answer. */
static pith_status encode_all(struct facts_run *r, int32_t *longest, int32_t *answer,
                              pith_error *err)
{
    pith_status status = PITH_OK;
    for (int32_t i = 0; i < r->n_context; i++) {
        struct facts_item *item = &r->file.item[i];
        status = encode(r, &item->context, PITH_TOKENIZE_BOS, err);
        for (int32_t q = 0; q < item->n_question && status == PITH_OK; q++) {
            struct facts_question *question = &item->question[q];
            status = encode(r, &question->ask, 0, err);
            if (status == PITH_OK)
                status = encode(r, &question->answer, 0, err);
            int64_t n = (int64_t)item->context.n_id + question->ask.n_id + question->answer.n_id;
            if (status == PITH_OK && n > EVAL_MAX_TOKENS)
                status = eval_fail(err, PITH_INVALID, "facts: %s: %lld tokens are too many",
                                   item->name, (long long)n);
            *longest = n > *longest ? (int32_t)n : *longest;
            *answer = question->answer.n_id > *answer ? question->answer.n_id : *answer;
        }
        if (status != PITH_OK)
            return status;
    }
    return PITH_OK;
}

/* The value of a key in a policy's options, up to the next comma; NULL: it is not given. */
static const char *option_value(const char *keep, const char *key)
{
    size_t len = strlen(key);
    for (const char *at = strchr(keep, ':'); at != NULL; at = strchr(at, ','))
        if (strncmp(++at, key, len) == 0 && at[len] == '=')
            return at + len + 1;
    return NULL;
}

/* The policy's options and a slack beyond n_token, the longest item, so that the only round is that
   which this task asks for. A size in bytes is what budget and slack take together, so that with
   such a slack it says nothing about a cut. */
static pith_status hold_rounds(struct facts_run *r, int32_t n_token, struct eval_setup *setup,
                               pith_error *err)
{
    const char *keep = setup->engine.keep;
    if (eval_is_full(&setup->engine))
        return PITH_OK;
    pith_status status = eval_check_recall(setup, "facts", err);
    if (status == PITH_OK)
        status = pith_policy_check(PITH_KEEP, keep, err);
    if (status != PITH_OK)
        return status;
    const char *budget = option_value(keep, "budget");
    if (option_value(keep, "slack") != NULL)
        return eval_fail(err, PITH_INVALID,
                         "facts: slack: a context is cut once, when it is read: leave it out");
    if (budget != NULL && budget[strspn(budget, "0123456789.%")] != ',' &&
        budget[strspn(budget, "0123456789.%")] != '\0')
        return eval_fail(err, PITH_INVALID,
                         "facts: budget=%.*s: tokens or a share are wanted, no size in bytes",
                         (int)strcspn(budget, ","), budget);
    eval_text_printf(&r->keep, "%s%cslack=%d", keep, strchr(keep, ':') != NULL ? ',' : ':',
                     (int)n_token);
    if (r->keep.failed)
        return no_memory(err);
    setup->engine.keep = r->keep.data;
    return PITH_OK;
}

static pith_status open_run(struct facts_run *r, pith_error *err)
{
    struct eval_setup setup = *r->setup;
    char *text = NULL;
    size_t len = 0;
    int32_t longest = 0, answer = 0;
    if (r->params->path == NULL || r->params->n_context < 0)
        return eval_fail(err, PITH_INVALID,
                         "facts: a file is wanted, and contexts = %d must not be negative",
                         (int)r->params->n_context);
    pith_status status = eval_read_file(r->params->path, &text, &len, err);
    if (status == PITH_OK)
        status = eval_facts_parse(text, len, &r->file, err);
    free(text);
    r->n_context = r->file.n;
    if (r->params->n_context > 0 && r->params->n_context < r->n_context)
        r->n_context = r->params->n_context;
    if (status == PITH_OK)
        status = encode_all(r, &longest, &answer, err);
    longest += PAGE_LEN_MAX; /* a fork copies the last page of each lane before it writes to it */
    if (status == PITH_OK)
        status = hold_rounds(r, longest, &setup, err);
    if (status != PITH_OK)
        return status;
    r->of = calloc((size_t)r->n_context, sizeof(*r->of));
    r->said = malloc((size_t)answer * sizeof(*r->said));
    if (r->of == NULL || r->said == NULL)
        return no_memory(err);
    return eval_run_create(&setup, longest, &r->run, err);
}

/* ---- one context ---- */

/* Asks on a fork of the context and generates as long as the tokens are the answer's; those that
   were said go to r->said. */
static pith_status ask(struct facts_run *r, const pith_seq *context, const struct facts_question *q,
                       struct eval_answer *cost, int32_t *n_said, bool *right, pith_error *err)
{
    pith_model_info info;
    pith_seq *seq = NULL;
    double start = eval_clock_s();
    int32_t n = 0;
    pith_model_get_info(r->setup->model, &info);
    pith_status status = pith_seq_fork(context, &seq, err);
    if (status == PITH_OK)
        status = pith_seq_eval(seq, q->ask.ids, q->ask.n_id, err);
    cost->prompt_s += eval_clock_s() - start;
    start = eval_clock_s();
    *right = status == PITH_OK;
    while (*right && n < q->answer.n_id && status == PITH_OK) {
        status = pith_logits_check(r->setup->model, pith_seq_logits(seq), err);
        if (status != PITH_OK)
            break;
        r->said[n] = eval_likeliest(pith_seq_logits(seq), info.n_vocab);
        *right = r->said[n] == q->answer.ids[n];
        n++;
        if (*right && n < q->answer.n_id)
            status = pith_seq_eval(seq, &r->said[n - 1], 1, err);
    }
    cost->generate_s += eval_clock_s() - start;
    cost->n_prompt += q->ask.n_id;
    cost->n_generated += n;
    *n_said = n;
    pith_seq_free(seq);
    return status;
}

static pith_status ask_all(struct facts_run *r, const struct facts_item *item,
                           const pith_seq *context, struct eval_answer *cost, struct share *share,
                           json_t *said, pith_error *err)
{
    pith_status status = PITH_OK;
    for (int32_t q = 0; q < item->n_question && status == PITH_OK; q++) {
        const struct facts_question *question = &item->question[q];
        int32_t n_said = 0;
        bool right = false;
        status = ask(r, context, question, cost, &n_said, &right, err);
        if (status != PITH_OK)
            break;
        share->n++;
        share->right += right;
        if (question->at >= 0.0) {
            int32_t third = (int32_t)(question->at * N_THIRD);
            struct share *part = &r->third[third < N_THIRD ? third : N_THIRD - 1];
            part->n++;
            part->right += right;
        }
        if (said != NULL && json_array_append_new(said, eval_json_ids(r->said, n_said)) != 0)
            status = no_memory(err);
    }
    return status;
}

static pith_status read_context(struct facts_run *r, const struct facts_item *item, pith_seq *seq,
                                struct eval_answer *cost, pith_error *err)
{
    const pith_batch_item all = {.seq = seq,
                                 .tokens = item->context.ids,
                                 .n_token = item->context.n_id,
                                 .logits = PITH_LOGITS_NONE};
    double start = eval_clock_s();
    pith_status status =
        pith_batch_eval(eval_run_engine(r->run), &all, 1, eval_progress_step, r->run, err);
    if (status == PITH_OK)
        status = pith_seq_keep_round(seq, err);
    cost->prompt_s += eval_clock_s() - start;
    cost->n_prompt += item->context.n_id;
    return status;
}

static pith_status add_row(struct facts_run *r, const struct facts_item *item,
                           const struct share *share, int32_t held, json_t *said, pith_error *err)
{
    json_t *row =
        json_pack("{s:o, s:i, s:i, s:i, s:i, s:f}", "context", eval_json_text(item->name), "tokens",
                  (int)item->context.n_id, "held", (int)held, "n", (int)share->n, "right",
                  (int)share->right, "score", (double)share->right / share->n);
    if (row != NULL && said != NULL && json_object_set(row, "said", said) != 0) {
        json_decref(row);
        row = NULL;
    }
    return row != NULL && json_array_append_new(r->rows, row) == 0 ? PITH_OK : no_memory(err);
}

static pith_status run_context(struct facts_run *r, int32_t index, pith_error *err)
{
    const struct facts_item *item = &r->file.item[index];
    struct eval_answer cost = {0};
    pith_keep_stats keep = {0};
    pith_kv_stats kv;
    pith_seq *seq = NULL;
    json_t *said = r->setup->keep_text ? json_array() : NULL;
    pith_engine_kv_reset_peak(eval_run_engine(r->run));
    pith_status status = eval_progress(r->run, (double)index / r->n_context, err,
                                       "context %d of %d", (int)(index + 1), (int)r->n_context);
    if (status == PITH_OK && r->setup->keep_text && said == NULL)
        status = no_memory(err);
    if (status == PITH_OK)
        status = pith_seq_create(eval_run_engine(r->run), &seq, err);
    if (status == PITH_OK)
        status = read_context(r, item, seq, &cost, err);
    if (status == PITH_OK) {
        pith_seq_keep_stats(seq, &keep);
        eval_account(seq, &cost);
        status = ask_all(r, item, seq, &cost, &r->of[index], said, err);
    }
    if (status == PITH_OK)
        status = add_row(r, item, &r->of[index], keep.longest, said, err);
    pith_engine_kv_stats(eval_run_engine(r->run), &kv);
    cost.kv_peak_bytes = kv.peak_bytes;
    eval_run_add(r->run, &cost);
    pith_seq_free(seq);
    json_decref(said);
    return status;
}

/* ---- the figures ---- */

/* The standard error of the share of right answers, contexts being independent and answers within
   one not. It is the ratio estimator's: sqrt(n / (n - 1) * sum (right_i - p n_i)^2) / sum n_i. NAN
   for one context. */
static double clustered_error(const struct share *of, int32_t n, double p, double n_answer)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        double left = of[i].right - p * of[i].n;
        sum += left * left;
    }
    return n > 1 ? sqrt(n / (n - 1.0) * sum) / n_answer : (double)NAN;
}

/* Wilson's interval with as many trials as contexts, as if all answers of one agreed. */
static pith_status finish(struct facts_run *r, json_t **result, pith_error *err)
{
    static const char *const names[N_THIRD] = {"start", "middle", "end"};
    struct share all = {0};
    for (int32_t i = 0; i < r->n_context; i++) {
        all.n += r->of[i].n;
        all.right += r->of[i].right;
    }
    double p = (double)all.right / all.n;
    json_t *settings = json_pack("{s:o, s:i}", "file", eval_json_text(r->params->path), "contexts",
                                 (int)r->n_context);
    json_t *out = eval_result(r->run, "facts", r->n_context, settings, json_incref(r->rows));
    pith_status status = eval_scored(out, eval_wilson(p * r->n_context, r->n_context), &out, err);
    if (status != PITH_OK)
        return status;
    json_t *summary = json_object_get(out, "summary");
    bool ok = json_object_set_new(summary, "se",
                                  eval_number(clustered_error(r->of, r->n_context, p, all.n))) == 0;
    ok = ok && json_object_set_new(summary, "answers", json_integer(all.n)) == 0;
    for (int32_t i = 0; i < N_THIRD && ok; i++)
        if (r->third[i].n > 0)
            ok = json_object_set_new(summary, names[i],
                                     json_real((double)r->third[i].right / r->third[i].n)) == 0;
    /* The policy as it was given, without the slack of hold_rounds. */
    ok = ok &&
         json_object_set_new(out, "policy", eval_json_text(eval_policy(&r->setup->engine))) == 0;
    if (!ok) {
        json_decref(out);
        return no_memory(err);
    }
    *result = out;
    return PITH_OK;
}

pith_status eval_facts(const struct eval_setup *setup, const struct eval_facts_params *params,
                       json_t **result, pith_error *err)
{
    struct facts_run r = {.setup = setup, .params = params, .rows = json_array()};
    pith_status status = r.rows != NULL ? open_run(&r, err) : no_memory(err);
    for (int32_t i = 0; i < r.n_context && status == PITH_OK; i++)
        status = run_context(&r, i, err);
    if (status == PITH_OK)
        status = finish(&r, result, err);
    eval_run_free(r.run);
    eval_facts_free(&r.file);
    eval_text_free(&r.keep);
    json_decref(r.rows);
    free(r.of);
    free(r.said);
    return status;
}
