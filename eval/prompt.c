/*
 * prompt.c - prompts, their fitting to a length, and asking them. It knows no task.
 *
 * Invariant: what eval_fit returns was counted as it stands and takes no more than it may.
 */
#include "prompt.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists of strings ---- */

char *eval_copy(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = malloc(size);
    if (copy != NULL)
        memcpy(copy, text, size);
    return copy;
}

void eval_strings_add(struct eval_strings *s, const char *text)
{
    if (s->failed)
        return;
    if (s->n == s->cap) {
        int32_t cap = s->cap > 0 ? 2 * s->cap : 8;
        char **at = realloc(s->at, (size_t)cap * sizeof(*at));
        s->failed = at == NULL;
        if (s->failed)
            return;
        s->at = at;
        s->cap = cap;
    }
    char *copy = eval_copy(text);
    s->failed = copy == NULL;
    if (!s->failed)
        s->at[s->n++] = copy;
}

void eval_strings_printf(struct eval_strings *s, const char *fmt, ...)
{
    char text[512]; /* longer strings are cut: no caller has such */
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    eval_strings_add(s, text);
}

bool eval_strings_has(const struct eval_strings *s, const char *text)
{
    for (int32_t i = 0; i < s->n; i++) {
        if (strcmp(s->at[i], text) == 0)
            return true;
    }
    return false;
}

void eval_strings_clear(struct eval_strings *s)
{
    for (int32_t i = 0; i < s->n; i++)
        free(s->at[i]);
    s->n = 0;
    s->failed = false;
}

void eval_strings_free(struct eval_strings *s)
{
    eval_strings_clear(s);
    free(s->at);
    *s = (struct eval_strings){0};
}

/* ---- prompts ---- */

void eval_prompt_clear(struct eval_prompt *p)
{
    eval_text_clear(&p->text);
    eval_text_clear(&p->prefix);
    eval_strings_clear(&p->refs);
    p->n_token = 0;
}

void eval_prompt_free(struct eval_prompt *p)
{
    eval_text_free(&p->text);
    eval_text_free(&p->prefix);
    eval_strings_free(&p->refs);
    p->n_token = 0;
}

pith_status eval_prompt_check(const struct eval_prompt *p, pith_error *err)
{
    if (p->text.failed || p->prefix.failed || p->refs.failed)
        return eval_fail(err, PITH_NOMEM, "eval: no memory for a prompt");
    return PITH_OK;
}

static const char *text_of(const struct eval_prompt *p)
{
    return p->text.data != NULL ? p->text.data : "";
}

static const char *prefix_of(const struct eval_prompt *p)
{
    return p->prefix.len > 0 ? p->prefix.data : NULL;
}

static pith_status count_encoded(void *user, const char *text, const char *prefix, int32_t *n,
                                 pith_error *err)
{
    int32_t *ids = NULL;
    pith_status status = eval_encode(user, text, prefix, &ids, n, err);
    free(ids);
    return status;
}

struct eval_counter eval_counter_of(const struct eval_setup *setup)
{
    /* eval_encode takes the setup as const; the counter's user pointer cannot say so. */
    return (struct eval_counter){count_encoded, (void *)setup};
}

/* ---- fitting ---- */

struct fit {
    eval_build_fn *build;
    void *user;
    const struct eval_counter *counter;
    struct eval_prompt *out;
};

static pith_status measure(const struct fit *f, int32_t size, pith_error *err)
{
    eval_prompt_clear(f->out);
    pith_status status = f->build(f->user, size, f->out, err);
    if (status == PITH_OK)
        status = eval_prompt_check(f->out, err);
    if (status != PITH_OK)
        return status;
    return f->counter->count(f->counter->user, text_of(f->out), prefix_of(f->out), &f->out->n_token,
                             err);
}

/* A size strictly between lo and hi, where a straight line through both reaches n_token. Every
   third round is a bisection, so that a bent curve cannot make the search slow. */
static int32_t guess(int64_t lo, int64_t lo_token, int64_t hi, int64_t hi_token, int64_t n_token,
                     int round)
{
    int64_t mid = (lo + hi) / 2;
    if (round % 3 != 2 && hi_token > lo_token)
        mid = lo + (n_token - lo_token) * (hi - lo) / (hi_token - lo_token);
    return (int32_t)(mid <= lo ? lo + 1 : mid >= hi ? hi - 1 : mid);
}

/* How far to go on from a size that fits: four times as far as before until rise tokens over run
   sizes predict the end. Then it goes a little beyond that. */
static int64_t next_step(int64_t step, int64_t run, int64_t rise, int64_t left)
{
    if (run < 16 || rise < 1)
        return 4 * step;
    return left * run / rise * 17 / 16 + 1;
}

pith_status eval_fit(const char *name, eval_build_fn *build, void *user, int32_t min_size,
                     int32_t max_size, int32_t n_token, const struct eval_counter *counter,
                     struct eval_prompt *out, pith_error *err)
{
    struct fit f = {build, user, counter, out};
    pith_status status = measure(&f, min_size, err);
    if (status != PITH_OK)
        return status;
    if (out->n_token > n_token)
        return eval_fail(err, PITH_INVALID, "%s: %d tokens are too few, its own text takes %d",
                         name, (int)n_token, (int)out->n_token);

    int64_t lo = min_size, lo_token = out->n_token, hi = lo, hi_token = -1;
    int64_t base = lo, base_token = lo_token; /* of the slope that predicts the end */
    for (int64_t step = 1; hi < max_size;
         step = next_step(step, lo - base, lo_token - base_token, n_token - lo_token)) {
        hi = lo + step < max_size ? lo + step : max_size;
        status = measure(&f, (int32_t)hi, err);
        if (status != PITH_OK)
            return status;
        hi_token = out->n_token;
        if (hi_token > n_token)
            break;
        lo = hi;
        lo_token = hi_token;
    }
    if (hi_token <= n_token) /* the largest fits; it is the last one built */
        return PITH_OK;

    for (int round = 0; hi - lo > 1; round++) {
        int32_t mid = guess(lo, lo_token, hi, hi_token, n_token, round);
        status = measure(&f, mid, err);
        if (status != PITH_OK)
            return status;
        if (out->n_token <= n_token) {
            lo = mid;
            lo_token = out->n_token;
        } else {
            hi = mid;
            hi_token = out->n_token;
        }
    }
    return measure(&f, (int32_t)lo, err);
}

/* ---- asking ---- */

pith_status eval_check_lengths(const char *task, const int32_t *lengths, int32_t n,
                               int32_t *longest, pith_error *err)
{
    *longest = 0;
    if (n < 1)
        return eval_fail(err, PITH_INVALID, "%s: no length is given", task);
    for (int32_t i = 0; i < n; i++) {
        if (lengths[i] < 1 || lengths[i] > EVAL_MAX_TOKENS)
            return eval_fail(err, PITH_INVALID, "%s: a length of %d tokens is not between 1 and %d",
                             task, (int)lengths[i], EVAL_MAX_TOKENS);
        *longest = lengths[i] > *longest ? lengths[i] : *longest;
    }
    return PITH_OK;
}

pith_status eval_check_predict(const char *task, int32_t n_predict, int32_t least, pith_error *err)
{
    if (n_predict >= least && n_predict <= EVAL_MAX_TOKENS)
        return PITH_OK;
    return eval_fail(err, PITH_INVALID, "%s: answer tokens = %d is not between %d and %d", task,
                     (int)n_predict, (int)least, EVAL_MAX_TOKENS);
}

/* Puts the mark of the thinking block in front of an answer. */
pith_status eval_open_thinking(struct eval_answer *a, pith_error *err)
{
    struct eval_text t = {0};
    eval_text_add(&t, "<think>\n");
    eval_text_add_n(&t, a->text, a->len);
    if (t.failed) {
        eval_text_free(&t);
        return eval_fail(err, PITH_NOMEM, "eval: no memory for an answer");
    }
    free(a->text);
    a->text = t.data;
    a->len = t.len;
    return PITH_OK;
}

pith_status eval_prompt_encode(const struct eval_setup *setup, const struct eval_prompt *p,
                               int32_t **ids, int32_t *n_id, bool *thinks, pith_error *err)
{
    *thinks = false;
    pith_status status = eval_encode(setup, text_of(p), prefix_of(p), ids, n_id, err);
    if (status == PITH_OK && prefix_of(p) == NULL)
        status = eval_thinks(setup, thinks, err);
    return status;
}

pith_status eval_prompt_ask(struct eval_run *run, const struct eval_setup *setup,
                            const struct eval_prompt *p, int32_t n_predict,
                            const pith_sample_params *sample, const char *const *stop,
                            int32_t n_stop, struct eval_answer *out, pith_error *err)
{
    int32_t *ids = NULL, n_id = 0;
    bool thinks = false;
    pith_status status = eval_prompt_encode(setup, p, &ids, &n_id, &thinks, err);
    if (status == PITH_OK)
        status = eval_ask(run, ids, n_id, text_of(p), n_predict, sample, stop, n_stop, out, err);
    if (status == PITH_OK && thinks)
        status = eval_open_thinking(out, err);
    free(ids);
    return status;
}

pith_status eval_prompt_ask_given(struct eval_run *run, const struct eval_setup *setup,
                                  const struct eval_prompt *p, int32_t n_predict,
                                  const char *const *stop, int32_t n_stop, struct eval_given *given,
                                  struct eval_answer *out, pith_error *err)
{
    int32_t *ids = NULL, n_id = 0;
    bool thinks = false;
    pith_status status = eval_prompt_encode(setup, p, &ids, &n_id, &thinks, err);
    if (status == PITH_OK)
        status =
            eval_ask_given(run, ids, n_id, text_of(p), n_predict, stop, n_stop, given, out, err);
    if (status == PITH_OK && thinks)
        status = eval_open_thinking(out, err);
    free(ids);
    return status;
}

/* Whether an answer behind this prompt has a space in front. */
static bool wants_space(const struct eval_setup *setup, const struct eval_prompt *p)
{
    if (prefix_of(p) == NULL && setup->chat)
        return false;
    const struct eval_text *last = prefix_of(p) != NULL ? &p->prefix : &p->text;
    return last->len > 0 && strchr(" \t\r\n", last->data[last->len - 1]) == NULL;
}

/* Tokens of the prompt with so much of its answer. */
static pith_status encode_opened(const struct eval_setup *setup, const struct eval_prompt *p,
                                 const char *answer, int32_t **ids, int32_t *n_id, pith_error *err)
{
    struct eval_text opened = {0};
    eval_text_add(&opened, p->prefix.len > 0 ? p->prefix.data : "");
    eval_text_add(&opened, answer[0] != '\0' && wants_space(setup, p) ? " " : "");
    eval_text_add(&opened, answer);
    pith_status status =
        opened.failed ? eval_fail(err, PITH_NOMEM, "eval: no memory for an answer") : PITH_OK;
    if (status == PITH_OK)
        status = eval_encode(setup, text_of(p), opened.data, ids, n_id, err);
    eval_text_free(&opened);
    return status;
}

static bool begins_with(const int32_t *ids, int32_t n_id, const int32_t *part, int32_t n)
{
    return n <= n_id && memcmp(ids, part, (size_t)n * sizeof(*part)) == 0;
}

pith_status eval_prompt_given(const struct eval_setup *setup, const struct eval_prompt *p,
                              const char *answer, struct eval_given *out, pith_error *err)
{
    int32_t *asked = NULL, *opened = NULL, *whole = NULL, n_asked = 0, n_opened = 0, n_whole = 0;
    pith_status status = eval_encode(setup, text_of(p), prefix_of(p), &asked, &n_asked, err);
    if (status == PITH_OK)
        status = encode_opened(setup, p, "", &opened, &n_opened, err);
    if (status == PITH_OK)
        status = encode_opened(setup, p, answer, &whole, &n_whole, err);
    *out = (struct eval_given){0};
    if (status == PITH_OK && begins_with(whole, n_whole, asked, n_asked) && n_whole > n_asked) {
        out->n_id = n_whole - n_asked;
        out->n_quiet = begins_with(whole, n_whole, opened, n_opened) ? n_opened - n_asked : 0;
        memmove(whole, whole + n_asked, (size_t)out->n_id * sizeof(*whole));
        out->ids = whole;
        whole = NULL;
    } else if (status == PITH_OK) { /* its first token would take in the prompt's last */
        status = eval_tokenize(setup->model, answer, strlen(answer), 0, &out->ids, &out->n_id, err);
    }
    free(asked);
    free(opened);
    free(whole);
    return status;
}

pith_status eval_prompt_predict(const struct eval_prompt *p, const struct eval_counter *counter,
                                int32_t *n_predict, pith_error *err)
{
    struct eval_text with = {0};
    int32_t without = 0, all = 0;
    eval_text_add(&with, p->prefix.len > 0 ? p->prefix.data : "");
    eval_text_add(&with, p->refs.at[0]);
    pith_status status =
        with.failed ? eval_fail(err, PITH_NOMEM, "eval: no memory for an answer") : PITH_OK;
    if (status == PITH_OK)
        status = counter->count(counter->user, text_of(p), prefix_of(p), &without, err);
    if (status == PITH_OK)
        status = counter->count(counter->user, text_of(p), with.data, &all, err);
    eval_text_free(&with);
    int32_t n = all > without ? all - without : 0;
    *n_predict = n + n / 4 + 8;
    return status;
}

bool eval_keep_text(json_t *texts, const struct eval_prompt *p, const char *answer,
                    const char *verdict, double score)
{
    json_t *entry = json_object();
    bool ok = json_object_set_new(entry, "prompt", eval_json_text(text_of(p))) == 0;
    ok = ok && json_object_set_new(entry, "prefix",
                                   eval_json_text(p->prefix.len > 0 ? p->prefix.data : "")) == 0;
    ok = ok && json_object_set_new(entry, "answer", eval_json_text(answer)) == 0;
    ok = ok && (verdict != NULL ? json_object_set_new(entry, "verdict", json_string(verdict))
                                : json_object_set_new(entry, "score", json_real(score))) == 0;
    if (!ok) {
        json_decref(entry);
        return false;
    }
    return json_array_append_new(texts, entry) == 0;
}

pith_status eval_scored(json_t *result, struct eval_interval score, json_t **out, pith_error *err)
{
    json_t *summary = result != NULL ? json_object_get(result, "summary") : NULL;
    if (summary == NULL || json_object_set_new(summary, "score", json_real(score.mean)) != 0 ||
        json_object_set_new(summary, "low", json_real(score.low)) != 0 ||
        json_object_set_new(summary, "high", json_real(score.high)) != 0) {
        json_decref(result);
        return eval_fail(err, PITH_NOMEM, "eval: no memory for a result");
    }
    *out = result;
    return PITH_OK;
}
