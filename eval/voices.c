/*
 * voices.c - continuations of sequences, many side by side. It knows neither prompts nor tasks.
 *
 * Invariant: every token is evaluated alone, as generation does it. So rounds, recall and read
 * policies see a given answer as they would see the same answer generated. Since results do not
 * depend on company, voices in one batch say the same as each by itself.
 */
#include "voices.h"

#include "pith/inspect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "chunks.h"

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "eval: no memory for answers");
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool eval_contains(const char *text, const char *part)
{
    for (; *text != '\0'; text++) {
        size_t i = 0;
        while (part[i] != '\0' && lower(text[i]) == lower(part[i]))
            i++;
        if (part[i] == '\0')
            return true;
    }
    return part[0] == '\0';
}

void eval_voice_free(struct eval_voice *v)
{
    eval_text_free(&v->text);
}

int32_t eval_likeliest(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static pith_status add_bytes(struct eval_voice *v, const pith_model *model, int32_t id,
                             pith_error *err)
{
    char piece[512]; /* longer tokens are runs of spaces and the like: no answer is in them */
    size_t len = 0;
    pith_status status = pith_token_bytes(model, id, false, piece, sizeof(piece), &len);
    if (status == PITH_RANGE)
        return PITH_OK;
    if (status != PITH_OK)
        return eval_fail(err, status, "token %d: %s", (int)id, pith_status_text(status));
    eval_text_add_n(&v->text, piece, len);
    return v->text.failed ? no_memory(err) : PITH_OK;
}

/* Takes the next token from the logits: of a given text the text's. */
static pith_status say_next(struct eval_voice *v, const pith_model *model, int32_t n_vocab,
                            int32_t *id, pith_error *err)
{
    const float *logits = pith_seq_logits(v->seq);
    pith_status finite = pith_logits_check(model, logits, err);
    if (finite != PITH_OK)
        return finite;
    if (v->given != NULL) {
        float max;
        *id = v->given[v->n_said];
        double sum = eval_log_sum(logits, n_vocab, &max);
        if (v->n_said >= v->n_quiet)
            v->logprob += (double)(logits[*id] - max) - sum;
        v->ended = ++v->n_said == v->n_given;
        return PITH_OK;
    }
    *id = eval_likeliest(logits, n_vocab);
    v->ended = pith_token_is_end(model, *id);
    if (v->ended)
        return PITH_OK;
    v->ended = ++v->n_said >= v->n_predict;
    pith_status status = add_bytes(v, model, *id, err);
    v->found = v->wanted != NULL && v->text.data != NULL && eval_contains(v->text.data, v->wanted);
    v->ended = v->ended || v->found;
    return status;
}

static bool is_room(pith_status status)
{
    return status == PITH_KV_FULL || status == PITH_CONTEXT;
}

/* Each by itself, where all together found no room. */
static pith_status evaluate_each(pith_engine *engine, struct eval_voice **of,
                                 const pith_batch_item *items, int32_t n, pith_error *err)
{
    for (int32_t i = 0; i < n; i++) {
        pith_status status = pith_batch_eval(engine, &items[i], 1, NULL, NULL, err);
        if (is_room(status)) {
            of[i]->ended = true;
            of[i]->logprob = (double)NAN;
        } else if (status != PITH_OK) {
            return status;
        }
    }
    return PITH_OK;
}

/* One token of each voice that has not ended; *n_left is how many go on. */
static pith_status step(pith_engine *engine, struct eval_voice *voices, int32_t n,
                        struct eval_voice **of, pith_batch_item *items, int32_t *ids,
                        int32_t *n_left, pith_error *err)
{
    const pith_model *model = pith_engine_model(engine);
    pith_model_info info;
    int32_t n_item = 0;
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < n; i++) {
        struct eval_voice *v = &voices[i];
        if (v->ended)
            continue;
        pith_status status = say_next(v, model, info.n_vocab, &ids[n_item], err);
        if (status != PITH_OK)
            return status;
        if (v->ended)
            continue;
        of[n_item] = v;
        items[n_item] = (pith_batch_item){.seq = v->seq, .tokens = &ids[n_item], .n_token = 1};
        n_item++;
    }
    *n_left = n_item;
    pith_status status = pith_batch_eval(engine, items, n_item, NULL, NULL, err);
    return is_room(status) ? evaluate_each(engine, of, items, n_item, err) : status;
}

pith_status eval_voices_speak(pith_engine *engine, struct eval_voice *voices, int32_t n,
                              pith_error *err)
{
    size_t count = (size_t)n;
    struct eval_voice **of = calloc(count, sizeof(struct eval_voice *));
    pith_batch_item *items = calloc(count, sizeof(*items));
    int32_t *ids = calloc(count, sizeof(*ids)), n_left = n;
    pith_status status = of != NULL && items != NULL && ids != NULL ? PITH_OK : no_memory(err);
    for (int32_t i = 0; i < n; i++)
        voices[i].ended = voices[i].given != NULL ? voices[i].n_given < 1 : voices[i].n_predict < 1;
    while (n_left > 0 && status == PITH_OK)
        status = step(engine, voices, n, of, items, ids, &n_left, err);
    free(of);
    free(items);
    free(ids);
    return status;
}

/* ---- one given answer ---- */

void eval_given_free(struct eval_given *g)
{
    free(g->ids);
    *g = (struct eval_given){0};
}

pith_status eval_given_hear(const pith_seq *seq, struct eval_given *given, pith_error *err)
{
    pith_seq *fork = NULL;
    pith_status status = pith_seq_fork(seq, &fork, err);
    struct eval_voice v = {
        .seq = fork, .given = given->ids, .n_given = given->n_id, .n_quiet = given->n_quiet};
    if (status == PITH_OK)
        status = eval_voices_speak(pith_seq_engine(seq), &v, 1, err);
    given->logprob = v.logprob;
    pith_seq_free(fork);
    return status;
}
