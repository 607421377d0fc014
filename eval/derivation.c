/*
 * derivation.c - `pith eval derivation`: sums that a model writes part by part. Each part needs the
 * total of the one before, and some of them repeat earlier parts. The text is the one that the
 * models of this repository are trained on (scripts/train/reasoning.py).
 *
 * Invariant: an item depends on the seed, its number of parts and its sample alone.
 */
#include "derivation.h"

#include "answers.h"

#include <stdio.h>
#include <string.h>

#define MODULUS 20
#define HEAD_SIZE 32

/* Part i of a&b: s = a + b, t = s + b, u = t + a, total = total + u, all modulo MODULUS. */
static int32_t write_part(struct eval_text *out, int32_t i, const int32_t *pair, int32_t total)
{
    int32_t a = pair[0], b = pair[1];
    int32_t s = (a + b) % MODULUS, t = (s + b) % MODULUS, u = (t + a) % MODULUS;
    int32_t sum = (total + u) % MODULUS;
    eval_text_printf(out, "Part #%d %d&%d: %d+%d=%d, %d+%d=%d, %d+%d=%d. Total %d+%d=%d.\n\n",
                     (int)i, (int)a, (int)b, (int)a, (int)b, (int)s, (int)s, (int)b, (int)t, (int)t,
                     (int)a, (int)u, (int)total, (int)u, (int)sum);
    return sum;
}

pith_status eval_derivation_make(uint64_t seed, int32_t n_part, int32_t sample,
                                 struct eval_prompt *out, pith_error *err)
{
    if (n_part < DERIVATION_MIN_PART || n_part > DERIVATION_MAX_PART)
        return eval_fail(err, PITH_INVALID, "derivation: parts = %d is not between %d and %d",
                         (int)n_part, DERIVATION_MIN_PART, DERIVATION_MAX_PART);
    struct eval_rng rng = eval_rng_make(seed, (uint64_t)n_part, (uint64_t)(uint32_t)sample);
    int32_t pool[DERIVATION_MAX_PART][2], n_pool = (n_part + 1) / 2, total = 0;
    struct eval_text text = {0};
    for (int32_t i = 0; i < n_pool; i++) {
        pool[i][0] = eval_rng_below(&rng, MODULUS);
        pool[i][1] = eval_rng_below(&rng, MODULUS);
    }
    eval_text_printf(&out->text, "Sums modulo %d:", MODULUS);
    for (int32_t i = 1; i <= n_part; i++) {
        const int32_t *pair = pool[eval_rng_below(&rng, n_pool)];
        eval_text_printf(&out->text, " #%d %d&%d", (int)i, (int)pair[0], (int)pair[1]);
        total = write_part(&text, i, pair, total);
    }
    eval_text_add(&out->text, ".\n\n");
    eval_text_printf(&text, "Answer: %d.", (int)total);
    pith_status status = PITH_OK;
    if (text.failed)
        status = eval_fail(err, PITH_NOMEM, "derivation: no memory for a text");
    else
        eval_strings_add(&out->refs, text.data);
    eval_text_free(&text);
    return status != PITH_OK ? status : eval_prompt_check(out, err);
}

/* ---- the answer ---- */

/* Bytes of the first line of text that starts with head, without spaces at its end; *at becomes its
   start, NULL when there is none. */
static size_t find_line(const char *text, const char *head, const char **at)
{
    for (const char *line = text; line != NULL;) {
        if (strncmp(line, head, strlen(head)) == 0) {
            size_t len = strcspn(line, "\n");
            while (len > 0 && (line[len - 1] == ' ' || line[len - 1] == '\r'))
                len--;
            *at = line;
            return len;
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    *at = NULL;
    return 0;
}

/* Whether the lines of both texts that start with head are the same. */
static bool same_line(const char *a, const char *b, const char *head)
{
    const char *x, *y;
    size_t n = find_line(a, head, &x), m = find_line(b, head, &y);
    return x != NULL && y != NULL && n == m && memcmp(x, y, n) == 0;
}

void eval_derivation_score(const char *answer, const char *expected, int32_t n_part,
                           struct derivation_score *out)
{
    const char *text = eval_visible(answer);
    size_t len = strlen(text);
    while (len > 0 && strchr(" \n\r\t", text[len - 1]) != NULL)
        len--;
    int32_t n = 0;
    for (int32_t i = 1; i <= n_part; i++) {
        char head[HEAD_SIZE];
        snprintf(head, sizeof(head), "Part #%d ", (int)i);
        n += same_line(text, expected, head);
    }
    out->parts = n_part > 0 ? (double)n / n_part : 0.0;
    out->answer = same_line(text, expected, "Answer:");
    out->whole = len == strlen(expected) && memcmp(text, expected, len) == 0;
}

/* ---- the run ---- */

struct derivation_run {
    const struct eval_setup *setup;
    const struct eval_derivation_params *params;
    struct eval_run *run;
    struct eval_counter counter;
    int32_t n_done;
    int32_t n_right;
    json_t *rows;
};

struct cell {
    int32_t answer, whole;
    double parts;
    json_t *texts; /* NULL unless texts are kept */
};

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "derivation: no memory for results");
}

/* Makes an item; *n_predict is how much may be written. */
static pith_status make_item(const struct derivation_run *r, int32_t n_part, int32_t sample,
                             struct eval_prompt *out, int32_t *n_predict, pith_error *err)
{
    pith_status status = eval_derivation_make(r->setup->seed, n_part, sample, out, err);
    *n_predict = r->params->n_predict;
    if (status != PITH_OK || *n_predict > 0)
        return status;
    return eval_prompt_predict(out, &r->counter, n_predict, err);
}

static pith_status run_item(struct derivation_run *r, int32_t n_part, int32_t sample,
                            struct cell *cell, pith_error *err)
{
    /* A model that was trained on these texts goes on with the next. */
    static const char *const stop[] = {"\nSums modulo"};
    struct eval_prompt p = {0};
    struct eval_answer a = {0};
    int32_t n_predict = 0;
    pith_status status = make_item(r, n_part, sample, &p, &n_predict, err);
    if (status == PITH_OK)
        status = eval_prompt_ask(r->run, r->setup, &p, n_predict, NULL, stop, 1, &a, err);
    if (status == PITH_OK) {
        struct derivation_score s;
        eval_derivation_score(a.text, p.refs.at[0], n_part, &s);
        cell->answer += s.answer;
        cell->whole += s.whole;
        cell->parts += s.parts;
        if (cell->texts != NULL &&
            !eval_keep_text(cell->texts, &p, a.text, NULL, s.answer ? 1.0 : 0.0))
            status = no_memory(err);
    }
    eval_answer_free(&a);
    eval_prompt_free(&p);
    return status;
}

static pith_status add_row(struct derivation_run *r, int32_t n_part, const struct cell *c,
                           pith_error *err)
{
    int32_t n = r->params->n_sample;
    struct eval_interval i = eval_wilson(c->answer, n);
    json_t *row = json_pack("{s:i, s:i, s:f, s:f, s:f, s:f, s:f}", "parts", (int)n_part, "n",
                            (int)n, "score", (double)c->answer / n, "low", i.low, "high", i.high,
                            "parts_right", c->parts / n, "whole", (double)c->whole / n);
    if (row != NULL && c->texts != NULL && json_object_set(row, "texts", c->texts) != 0) {
        json_decref(row);
        row = NULL;
    }
    if (row == NULL || json_array_append_new(r->rows, row) != 0)
        return no_memory(err);
    r->n_right += c->answer;
    return PITH_OK;
}

static pith_status run_row(struct derivation_run *r, int32_t n_part, pith_error *err)
{
    struct cell cell = {.texts = r->setup->keep_text ? json_array() : NULL};
    pith_status status = PITH_OK;
    if (r->setup->keep_text && cell.texts == NULL)
        status = no_memory(err);
    double n_item = (double)r->params->n_part * r->params->n_sample;
    for (int32_t i = 0; i < r->params->n_sample && status == PITH_OK; i++) {
        status = eval_progress(r->run, r->n_done / n_item, err, "%d parts", (int)n_part);
        if (status == PITH_OK)
            status = run_item(r, n_part, i, &cell, err);
        r->n_done++;
    }
    if (status == PITH_OK)
        status = add_row(r, n_part, &cell, err);
    json_decref(cell.texts);
    return status;
}

/* Makes every item once, to learn how many tokens the longest takes. */
static pith_status measure_items(const struct derivation_run *r, int32_t *longest, pith_error *err)
{
    pith_status status = PITH_OK;
    *longest = 0;
    for (int32_t k = 0; k < r->params->n_part; k++) {
        for (int32_t i = 0; i < r->params->n_sample && status == PITH_OK; i++) {
            struct eval_prompt p = {0};
            int32_t n_predict = 0, n_token = 0;
            status = make_item(r, r->params->parts[k], i, &p, &n_predict, err);
            if (status == PITH_OK)
                status = r->counter.count(r->counter.user, p.text.data, NULL, &n_token, err);
            if (n_token + n_predict > *longest)
                *longest = n_token + n_predict;
            eval_prompt_free(&p);
        }
    }
    return status;
}

static pith_status check_params(const struct eval_derivation_params *p, pith_error *err)
{
    if (p->n_part < 1)
        return eval_fail(err, PITH_INVALID, "derivation: no number of parts is given");
    if (p->n_sample < 1)
        return eval_fail(err, PITH_INVALID, "derivation: samples = %d is not positive",
                         (int)p->n_sample);
    return eval_check_predict("derivation", p->n_predict, 0, err);
}

static json_t *settings_of(const struct derivation_run *r)
{
    json_t *parts = json_array();
    for (int32_t i = 0; i < r->params->n_part; i++)
        json_array_append_new(parts, json_integer(r->params->parts[i]));
    return json_pack("{s:o, s:i, s:i, s:I, s:b}", "parts", parts, "samples",
                     (int)r->params->n_sample, "answer_tokens", (int)r->params->n_predict, "seed",
                     (json_int_t)r->setup->seed, "chat", (int)r->setup->chat);
}

pith_status eval_derivation(const struct eval_setup *setup,
                            const struct eval_derivation_params *params, json_t **result,
                            pith_error *err)
{
    struct derivation_run r = {
        .setup = setup, .params = params, .counter = eval_counter_of(setup), .rows = json_array()};
    int32_t longest = 0;
    pith_status status = r.rows != NULL ? check_params(params, err) : no_memory(err);
    if (status == PITH_OK)
        status = measure_items(&r, &longest, err);
    if (status == PITH_OK)
        status = eval_run_create(setup, longest, &r.run, err);
    for (int32_t i = 0; i < params->n_part && status == PITH_OK; i++)
        status = run_row(&r, params->parts[i], err);
    if (status == PITH_OK)
        status = eval_scored(
            eval_result(r.run, "derivation", r.n_done, settings_of(&r), json_incref(r.rows)),
            eval_wilson(r.n_right, r.n_done), result, err);
    json_decref(r.rows);
    eval_run_free(r.run);
    return status;
}
