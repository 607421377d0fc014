/*
 * facts_ask.c - `pith eval facts` on texts that are made. Each text has one reading under the
 * policy's own rounds, and ten questions are asked of forks of it, side by side.
 *
 * Invariant: every question finds the sequence as the reading left it and sees no other question.
 * Answers of one text share its reading, so that errors take texts, not answers, as independent.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "chunks.h"
#include "facts.h"
#include "paired.h"
#include "voices.h"
#include "pith/inspect.h"
#include "pith/policy.h"

#define SPARE_TOKENS 128 /* the pages that a fork begins, at most two of 64 entries a lane */
#define SIDE_BYTES                                                                                 \
    (4ll                                                                                           \
     << 30) /* KV memory that questions side by side may make it; what is not                  \
                   written to is not taken from the machine */

/* Tokens of one question: what is read behind the text, and the right answer. */
struct question {
    struct eval_prompt prompt;
    int32_t *ids; /* [n_id] owned: the whole prompt */
    int32_t n_id;
    struct eval_given given; /* owned */
};

/* The result of a question under one cache. */
struct asked {
    bool found;
    double logprob;
    char *said; /* owned */
};

/* One cache, and what it holds when questions are asked. */
struct cache {
    struct eval_setup setup;    /* with the cache's engine params */
    struct eval_run *run;       /* owned; NULL: there is no such cache */
    int32_t n_side;             /* questions side by side */
    int64_t peak_bytes;         /* of the reading that took most */
    int64_t held_bytes;         /* at the questions, of the text that held most */
    int32_t held_min, held_max; /* entries of a lane, then */
    double held_sum, n_lane;
    double read_s, generate_s;
    int64_t n_said;
};

struct facts_run {
    const struct eval_setup *setup;
    const struct eval_facts_texts_params *params;
    struct cache measured, full;
    struct eval_counter counter;
    struct eval_pairs pairs;
    int32_t n_text; /* read */
    json_t *rows;
};

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "facts: no memory");
}

/* ---- prompts ---- */

static void free_questions(struct question *q)
{
    for (int32_t i = 0; i < FACTS_OF_TEXT; i++) {
        eval_prompt_free(&q[i].prompt);
        eval_given_free(&q[i].given);
        free(q[i].ids);
    }
}

static int32_t common(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b)
{
    int32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}

/* Finds the tokens that all prompts of the text have in front, for all questions. They end where a
   text that goes on with a digit parts from them. The tokens that join text and question are read
   with the question. */
static pith_status find_reading(const struct facts_run *r, const struct facts_text *t,
                                const struct question *q, int32_t *n_read, pith_error *err)
{
    struct eval_text probe = {0};
    int32_t *ids = NULL, n_id = 0;
    eval_text_printf(&probe, "%s0", t->text.data);
    pith_status status = probe.failed ? no_memory(err) : PITH_OK;
    if (status == PITH_OK)
        status = eval_encode(r->setup, probe.data, "", &ids, &n_id, err);
    *n_read = n_id;
    for (int32_t i = 0; i < FACTS_OF_TEXT && status == PITH_OK; i++)
        *n_read = common(ids, *n_read, q[i].ids, q[i].n_id - 1); /* a token is left to ask with */
    free(ids);
    eval_text_free(&probe);
    return status;
}

static pith_status encode(const struct facts_run *r, const struct facts_text *t, struct question *q,
                          int32_t *n_read, pith_error *err)
{
    const struct facts_picked *f = &t->facts;
    pith_status status = PITH_OK;
    for (int32_t i = 0; i < FACTS_OF_TEXT && status == PITH_OK; i++) {
        struct eval_prompt *p = &q[i].prompt;
        eval_text_printf(&p->text, "%s%s", t->text.data, f->question.at[i]);
        eval_text_add(&p->prefix, f->prefix.at[i]);
        status = eval_prompt_check(p, err);
        /* With an opening, even an empty one, no thinking block is left open. */
        if (status == PITH_OK)
            status =
                eval_encode(r->setup, p->text.data, f->prefix.at[i], &q[i].ids, &q[i].n_id, err);
        if (status == PITH_OK)
            status = eval_prompt_given(r->setup, p, f->answer.at[i], &q[i].given, err);
    }
    return status == PITH_OK ? find_reading(r, t, q, n_read, err) : status;
}

/* ---- one cache ---- */

static void note_lanes(struct cache *c, const pith_seq *seq)
{
    pith_model_info info;
    pith_lane_info lane;
    pith_model_get_info(c->setup.model, &info);
    for (int32_t l = 0; l < info.n_layer_kv; l++)
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            if (pith_seq_lane(seq, l, h, &lane, NULL, 0) != PITH_OK)
                continue;
            bool first = c->n_lane < 1.0;
            c->held_min = first || lane.n_entry < c->held_min ? lane.n_entry : c->held_min;
            c->held_max = first || lane.n_entry > c->held_max ? lane.n_entry : c->held_max;
            c->held_sum += lane.n_entry;
            c->n_lane++;
        }
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static pith_status read_text(struct cache *c, const int32_t *ids, int32_t n, pith_seq **out,
                             struct eval_answer *cost, pith_error *err)
{
    pith_engine *engine = eval_run_engine(c->run);
    pith_seq *seq = NULL;
    pith_kv_stats kv;
    double start = eval_clock_s();
    pith_engine_kv_reset_peak(engine);
    pith_status status = pith_seq_create(engine, &seq, err);
    if (status == PITH_OK)
        status = pith_seq_mark_prompt(seq, n, err);
    const pith_batch_item item = {
        .seq = seq, .tokens = ids, .n_token = n, .logits = PITH_LOGITS_NONE};
    if (status == PITH_OK)
        status = pith_batch_eval(engine, &item, 1, eval_progress_step, c->run, err);
    if (status != PITH_OK) {
        pith_seq_free(seq);
        return status;
    }
    c->read_s += eval_clock_s() - start;
    cost->prompt_s += eval_clock_s() - start;
    cost->n_prompt += n;
    pith_engine_kv_stats(engine, &kv);
    cost->kv_peak_bytes = kv.peak_bytes;
    c->peak_bytes = larger(c->peak_bytes, kv.peak_bytes);
    c->held_bytes = larger(c->held_bytes, kv.used_bytes);
    note_lanes(c, seq);
    eval_account(seq, cost);
    *out = seq;
    return PITH_OK;
}

/* Reads the questions on forks of the reading. Recall `text` looks for each in its own prompt. */
static pith_status read_questions(struct cache *c, const struct question *q, int32_t n,
                                  int32_t n_read, pith_seq **forks, pith_error *err)
{
    const char *recall = eval_recall(&c->setup.engine);
    bool in_text = recall != NULL && strncmp(recall, "text", 4) == 0;
    pith_batch_item items[FACTS_OF_TEXT];
    for (int32_t i = 0; i < n; i++)
        items[i] = (pith_batch_item){
            .seq = forks[i], .tokens = q[i].ids + n_read, .n_token = q[i].n_id - n_read};
    if (!in_text)
        return pith_batch_eval(eval_run_engine(c->run), items, n, eval_progress_step, c->run, err);
    pith_status status = PITH_OK;
    for (int32_t i = 0; i < n && status == PITH_OK; i++) {
        pith_generate_params p;
        pith_generate_params_default(&p);
        p.n_predict = 0;
        p.message = q[i].prompt.text.data;
        p.message_len = q[i].prompt.text.len;
        status = pith_generate(forks[i], q[i].ids, q[i].n_id, &p, NULL, NULL, NULL, err);
    }
    return status;
}

/* The work of recall for a question, beyond its work while the text was read. */
static void account_recall(const pith_seq *fork, const pith_recall_stats *before,
                           struct eval_answer *cost)
{
    pith_recall_stats r;
    pith_seq_recall_stats(fork, &r);
    cost->recall.recalls += r.recalls - before->recalls;
    /* A fork's store of text has a clock of its own. */
    cost->recall.seconds += r.seconds >= before->seconds ? r.seconds - before->seconds : r.seconds;
    cost->recall.guests += r.guests;
}

/* Both ways to answer each question: the likeliest tokens on its fork, the right ones on another.
   voices [2 * n], forks [2 * n]. */
static pith_status speak(struct cache *c, const struct question *q, const char *const *wanted,
                         int32_t n, int32_t n_predict, pith_seq **forks, struct eval_voice *voices,
                         pith_error *err)
{
    pith_status status = PITH_OK;
    for (int32_t i = 0; i < n && status == PITH_OK; i++) {
        const struct eval_given *g = &q[i].given;
        status = pith_seq_fork(forks[i], &forks[n + i], err);
        voices[i] =
            (struct eval_voice){.seq = forks[i], .n_predict = n_predict, .wanted = wanted[i]};
        /* The end of a thinking block is in the prompt already. */
        voices[n + i] = (struct eval_voice){
            .seq = forks[n + i], .given = g->ids + g->n_quiet, .n_given = g->n_id - g->n_quiet};
    }
    if (status != PITH_OK)
        return status;
    return eval_voices_speak(eval_run_engine(c->run), voices, 2 * n, err);
}

static pith_status collect_answers(const struct eval_voice *voices, int32_t n, struct asked *out,
                                   pith_error *err)
{
    for (int32_t i = 0; i < n; i++) {
        const struct eval_voice *v = &voices[i];
        out[i].found = v->found;
        out[i].logprob = voices[n + i].logprob;
        out[i].said = eval_copy(v->text.data != NULL ? v->text.data : "");
        if (out[i].said == NULL)
            return no_memory(err);
    }
    return PITH_OK;
}

/* Questions [0, n) of a reading, all at once. */
static pith_status ask_some(struct cache *c, const pith_seq *reading, const struct question *q,
                            const char *const *wanted, int32_t n, int32_t n_read, int32_t n_predict,
                            struct asked *out, struct eval_answer *cost, pith_error *err)
{
    pith_seq *forks[2 * FACTS_OF_TEXT] = {NULL};
    struct eval_voice voices[2 * FACTS_OF_TEXT] = {{0}};
    pith_recall_stats before;
    pith_status status = PITH_OK;
    double start = eval_clock_s();
    pith_seq_recall_stats(reading, &before);
    for (int32_t i = 0; i < n && status == PITH_OK; i++) {
        status = pith_seq_fork(reading, &forks[i], err);
        cost->n_prompt += q[i].n_id - n_read;
    }
    if (status == PITH_OK)
        status = read_questions(c, q, n, n_read, forks, err);
    double read = eval_clock_s();
    if (status == PITH_OK)
        status = speak(c, q, wanted, n, n_predict, forks, voices, err);
    if (status == PITH_OK)
        status = collect_answers(voices, n, out, err);
    cost->prompt_s += read - start;
    cost->generate_s += eval_clock_s() - read;
    for (int32_t i = 0; i < 2 * n; i++) {
        cost->n_generated += voices[i].n_said;
        if (i < n && status == PITH_OK)
            account_recall(forks[i], &before, cost);
        pith_seq_free(forks[i]);
        eval_voice_free(&voices[i]);
    }
    return status;
}

/* One text under one cache: out [FACTS_OF_TEXT]. */
static pith_status run_cache(const struct facts_run *r, struct cache *c, const struct facts_text *t,
                             const struct question *q, int32_t n_read, struct asked *out,
                             pith_error *err)
{
    struct eval_answer cost = {0};
    pith_seq *reading = NULL;
    const char *const *wanted = (const char *const *)t->facts.wanted.at;
    pith_status status = read_text(c, q[0].ids, n_read, &reading, &cost, err);
    for (int32_t i = 0; i < FACTS_OF_TEXT && status == PITH_OK; i += c->n_side) {
        int32_t n = FACTS_OF_TEXT - i < c->n_side ? FACTS_OF_TEXT - i : c->n_side;
        status = ask_some(c, reading, q + i, wanted + i, n, n_read, r->params->n_predict, out + i,
                          &cost, err);
    }
    pith_seq_free(reading);
    c->generate_s += cost.generate_s;
    c->n_said += cost.n_generated;
    eval_run_add(c->run, &cost);
    return status;
}

/* ---- texts ---- */

/* With the tokens another engine can be asked the same: a tokenizer of its own may cut
   otherwise. */
static bool set_texts(const struct facts_run *r, json_t *row, const struct question *q,
                      const char *wanted, const struct asked *a, const struct asked *full)
{
    const struct eval_given *g = &q->given;
    bool ok = eval_set(row, "said", eval_json_text(a->said)) &&
              (!r->pairs.paired || eval_set(row, "full_said", eval_json_text(full->said)));
    return ok && eval_set(row, "wanted", eval_json_text(wanted)) &&
           eval_set(row, "prompt_ids", eval_json_ids(q->ids, q->n_id)) &&
           eval_set(row, "answer_ids", eval_json_ids(g->ids + g->n_quiet, g->n_id - g->n_quiet));
}

static pith_status add_row(struct facts_run *r, const struct facts_text *t,
                           const struct question *q, int32_t i, int32_t length, int32_t index,
                           int32_t n_read, const struct asked *a, const struct asked *full,
                           pith_error *err)
{
    const struct eval_pair pair = {.group = r->n_text,
                                   .found = a->found,
                                   .logprob = a->logprob,
                                   .full_found = full->found,
                                   .full_logprob = full->logprob};
    json_t *row =
        json_pack("{s:i, s:i, s:i, s:f, s:f, s:o, s:i}", "length", (int)length, "text", (int)index,
                  "tokens", (int)n_read, "depth", eval_facts_depth(i), "at", t->at[i], "fact",
                  eval_json_text(t->facts.answer.at[i]), "found", (int)a->found);
    bool ok = row != NULL, paired = r->pairs.paired;
    ok = ok && (!paired || eval_set(row, "full_found", json_integer(full->found)));
    ok = ok && eval_set(row, "answer_logprob", eval_number(a->logprob));
    ok = ok && (!paired || eval_set(row, "full_logprob", eval_number(full->logprob)));
    if (r->setup->keep_text)
        ok = ok && set_texts(r, row, q, t->facts.wanted.at[i], a, full);
    if (!ok) {
        json_decref(row);
        return no_memory(err);
    }
    if (json_array_append_new(r->rows, row) != 0 || !eval_pairs_add(&r->pairs, &pair))
        return no_memory(err);
    return PITH_OK;
}

static pith_status tell(struct facts_run *r, int32_t length, int32_t index, pith_error *err)
{
    const struct eval_facts_texts_params *p = r->params;
    double done = (double)r->n_text / ((double)p->n_length * p->n_text);
    struct eval_run *runs[] = {r->measured.run, r->full.run};
    for (int i = 0; i < 2; i++) {
        if (runs[i] == NULL)
            continue;
        pith_status status = eval_progress(runs[i], done, err, "%d tokens, text %d of %d",
                                           (int)length, (int)index + 1, (int)p->n_text);
        if (status != PITH_OK)
            return status;
    }
    return PITH_OK;
}

static pith_status run_text(struct facts_run *r, int32_t length, int32_t index, pith_error *err)
{
    struct facts_text t = {0};
    struct question q[FACTS_OF_TEXT] = {{.ids = NULL}};
    struct asked asked[2][FACTS_OF_TEXT] = {{{0}}};
    int32_t n_read = 0;
    pith_status status = tell(r, length, index, err);
    if (status == PITH_OK)
        status =
            eval_facts_text_make(r->params, r->setup->seed, index, length, &r->counter, &t, err);
    if (status == PITH_OK)
        status = encode(r, &t, q, &n_read, err);
    if (status == PITH_OK)
        status = run_cache(r, &r->measured, &t, q, n_read, asked[0], err);
    if (status == PITH_OK && r->full.run != NULL)
        status = run_cache(r, &r->full, &t, q, n_read, asked[1], err);
    for (int32_t i = 0; i < FACTS_OF_TEXT && status == PITH_OK; i++)
        status = add_row(r, &t, &q[i], i, length, index, n_read, &asked[0][i], &asked[1][i], err);
    r->n_text++;
    for (int32_t i = 0; i < FACTS_OF_TEXT; i++) {
        free(asked[0][i].said);
        free(asked[1][i].said);
    }
    free_questions(q);
    eval_facts_text_free(&t);
    return status;
}

/* ---- the run ---- */

/* KV memory for the reading and for as many questions side by side as SIDE_BYTES holds, each twice.
   A fork shares what it does not write to; under a policy rounds may copy all of it. */
static pith_status open_cache(struct cache *c, int32_t n_token, int32_t n_ask, pith_error *err)
{
    pith_engine_params *p = &c->setup.engine;
    int64_t one = 0, fork = 0;
    bool sized = p->kv_bytes > 0 || p->kv_tokens > 0 || p->memory_bytes > 0;
    pith_status status = pith_kv_estimate(c->setup.model, p, n_token, &one, err);
    if (status == PITH_OK)
        status = pith_kv_estimate(c->setup.model, p, eval_is_full(p) ? n_ask : n_token, &fork, err);
    if (status != PITH_OK)
        return status;
    int64_t most = c->setup.most_bytes;
    most = most > 0 && most < SIDE_BYTES ? most : SIDE_BYTES;
    int64_t n = fork > 0 ? (most - one) / (2 * fork) : FACTS_OF_TEXT;
    c->n_side = sized || n < 1 ? 1 : n < FACTS_OF_TEXT ? (int32_t)n : FACTS_OF_TEXT;
    if (!sized)
        p->kv_bytes = one + 2 * c->n_side * fork;
    return eval_run_create(&c->setup, 0, &c->run, err);
}

static pith_status open_run(struct facts_run *r, pith_error *err)
{
    const struct eval_facts_texts_params *p = r->params;
    int32_t longest = 0, n_ask = p->n_predict + 2 * SPARE_TOKENS;
    if (p->n_text < 1)
        return eval_fail(err, PITH_INVALID, "facts: texts = %d is not positive", (int)p->n_text);
    pith_status status = eval_check_lengths("facts", p->lengths, p->n_length, &longest, err);
    if (status == PITH_OK)
        status = eval_check_predict("facts", p->n_predict, 1, err);
    r->measured.setup = *r->setup;
    r->full.setup = *r->setup;
    r->full.setup.engine = eval_full_params(&r->setup->engine, NULL);
    if (status == PITH_OK)
        status = open_cache(&r->measured, longest + n_ask, n_ask, err);
    if (status == PITH_OK && p->paired)
        status = open_cache(&r->full, longest + n_ask, n_ask, err);
    return status;
}

static json_t *settings_of(const struct facts_run *r)
{
    const struct eval_facts_texts_params *p = r->params;
    json_t *lengths = json_array();
    for (int32_t i = 0; i < p->n_length; i++)
        json_array_append_new(lengths, json_integer(p->lengths[i]));
    return json_pack("{s:o, s:i, s:s, s:i, s:I, s:I, s:b, s:b}", "lengths", lengths, "texts",
                     (int)p->n_text, "style", p->style == EVAL_FACTS_PITH ? "pith" : "pool",
                     "answer_tokens", (int)p->n_predict, "haystack_bytes",
                     (json_int_t)p->haystack_len, "seed", (json_int_t)r->setup->seed, "chat",
                     (int)r->setup->chat, "paired", (int)p->paired);
}

static bool set_held(const struct facts_run *r, json_t *summary)
{
    const struct cache *m = &r->measured, *f = &r->full;
    double n = m->n_lane > 0.0 ? m->n_lane : 1.0;
    bool ok = eval_set(summary, "texts", json_integer(r->n_text)) &&
              eval_set(summary, "held_mean", json_real(m->held_sum / n)) &&
              eval_set(summary, "held_min", json_integer(m->held_min)) &&
              eval_set(summary, "held_max", json_integer(m->held_max)) &&
              eval_set(summary, "kv_held_bytes", json_integer(m->held_bytes)) &&
              eval_set(summary, "read_seconds", json_real(m->read_s));
    if (f->run == NULL)
        return ok;
    return ok && eval_set(summary, "full_kv_peak_bytes", json_integer(f->peak_bytes)) &&
           eval_set(summary, "full_kv_held_bytes", json_integer(f->held_bytes)) &&
           eval_set(summary, "full_read_seconds", json_real(f->read_s)) &&
           eval_set(summary, "full_tokens_per_s",
                    json_real(f->generate_s > 0.0 ? (double)f->n_said / f->generate_s : 0.0));
}

static pith_status finish(struct facts_run *r, json_t **result, pith_error *err)
{
    int32_t n = r->pairs.n, n_found = 0;
    for (int32_t i = 0; i < n; i++)
        n_found += r->pairs.at[i].found;
    json_t *out = eval_result(r->measured.run, "facts", n, settings_of(r), json_incref(r->rows));
    pith_status status = eval_scored(out, eval_wilson(n_found, n), &out, err);
    if (status != PITH_OK)
        return status;
    json_t *summary = json_object_get(out, "summary");
    if (!eval_pairs_summarise(&r->pairs, summary) || !set_held(r, summary)) {
        json_decref(out);
        return no_memory(err);
    }
    *result = out;
    return PITH_OK;
}

pith_status eval_facts_texts(const struct eval_setup *setup,
                             const struct eval_facts_texts_params *params, json_t **result,
                             pith_error *err)
{
    struct facts_run r = {.setup = setup,
                          .params = params,
                          .counter = eval_counter_of(setup),
                          .pairs = {.paired = params->paired},
                          .rows = json_array()};
    pith_status status = r.rows != NULL ? open_run(&r, err) : no_memory(err);
    for (int32_t l = 0; l < params->n_length && status == PITH_OK; l++)
        for (int32_t i = 0; i < params->n_text && status == PITH_OK; i++)
            status = run_text(&r, params->lengths[l], i, err);
    if (status == PITH_OK)
        status = finish(&r, result, err);
    eval_pairs_free(&r.pairs);
    json_decref(r.rows);
    eval_run_free(r.measured.run);
    eval_run_free(r.full.run);
    return status;
}
