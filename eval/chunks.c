/*
 * chunks.c - texts in chunks, the memory of two caches, means with their errors. It knows neither
 * of the tasks that use it.
 */
#include "chunks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the text ---- */

/* BOS if the model's texts begin with it, else -1. */
static pith_status find_bos(const pith_model *model, int32_t *bos, pith_error *err)
{
    int32_t *ids = NULL, n = 0;
    pith_status status = eval_tokenize(model, "", 0, PITH_TOKENIZE_BOS, &ids, &n, err);
    if (status == PITH_OK)
        *bos = n > 0 && ids[0] == pith_token_bos(model) ? ids[0] : -1;
    free(ids);
    return status;
}

static pith_status count_chunks(struct eval_chunks *c, int32_t n_chunk, int32_t at_least,
                                pith_error *err)
{
    int32_t n = c->n_id / c->n_ctx;
    if (n < at_least)
        return eval_fail(err, PITH_INVALID,
                         "text: its %d tokens are fewer than the %lld that a chunk of %d needs",
                         (int)c->n_id, (long long)at_least * c->n_ctx, (int)c->n_ctx);
    c->n_chunk = n_chunk > 0 && n_chunk < n ? n_chunk : n;
    return PITH_OK;
}

pith_status eval_chunks_make(const struct eval_setup *setup, const char *text, size_t text_len,
                             int32_t n_ctx, int32_t n_chunk, int32_t at_least,
                             struct eval_chunks *out, pith_error *err)
{
    struct eval_chunks c = {.n_ctx = n_ctx};
    if (n_ctx < 4 || n_ctx > EVAL_MAX_TOKENS)
        return eval_fail(err, PITH_INVALID, "n_ctx: %d tokens of a chunk are not in 4..%d",
                         (int)n_ctx, EVAL_MAX_TOKENS);
    if (n_chunk < 0)
        return eval_fail(err, PITH_INVALID, "n_chunk: %d is negative", (int)n_chunk);
    pith_status status = find_bos(setup->model, &c.bos, err);
    if (status == PITH_OK)
        status =
            eval_tokenize(setup->model, text, text_len, PITH_TOKENIZE_BOS, &c.ids, &c.n_id, err);
    if (status == PITH_OK)
        status = count_chunks(&c, n_chunk, at_least, err);
    if (status != PITH_OK) {
        eval_chunks_free(&c);
        return status;
    }
    *out = c;
    return PITH_OK;
}

void eval_chunks_free(struct eval_chunks *c)
{
    free(c->ids);
    *c = (struct eval_chunks){0};
}

void eval_chunks_read(const struct eval_chunks *c, int32_t i, int32_t *out)
{
    memcpy(out, c->ids + (size_t)i * (size_t)c->n_ctx, (size_t)c->n_ctx * sizeof(*out));
    if (c->bos >= 0)
        out[0] = c->bos;
}

bool eval_chunks_note(const struct eval_chunks *c, const struct eval_setup *setup, int64_t evicted,
                      int64_t n_after, json_t *summary)
{
    struct eval_text note = {0};
    pith_model_info info;
    pith_model_get_info(setup->model, &info);
    if (eval_is_plain(&setup->engine))
        eval_text_add(&note, "Nothing was evicted: no keep policy was given.");
    else if (eval_is_full(&setup->engine))
        eval_text_add(&note, "Nothing was evicted: a read policy chooses what is looked at.");
    else if (evicted == 0)
        eval_text_add(&note, "Nothing was evicted: no chunk was long enough for a round of the "
                             "policy, so the measured cache is full, too.");
    else if (n_after == 0)
        eval_text_add(&note, "Entries were evicted, but only behind the last token that counts.");
    if (c->n_ctx > info.n_ctx_train)
        eval_text_printf(&note,
                         "%sChunks of %d tokens are longer than the %d of the model's training.",
                         note.len > 0 ? " " : "", (int)c->n_ctx, (int)info.n_ctx_train);
    bool ok = !note.failed && (note.len == 0 || eval_set(summary, "note", json_string(note.data)));
    eval_text_free(&note);
    return ok;
}

/* ---- the caches ---- */

pith_engine_params eval_full_params(const pith_engine_params *measured, const char *reference_type)
{
    pith_engine_params p = *measured;
    p.keep = NULL;
    p.keep_score = NULL;
    p.read = NULL;
    p.recall = NULL;
    p.share = NULL;
    p.kv_bytes = 0;
    p.kv_tokens = 0;
    p.memory_bytes = 0;
    if (reference_type != NULL) {
        p.type_k = reference_type;
        p.type_v = reference_type;
    }
    return p;
}

/* ---- figures ---- */

void eval_moments_add(struct eval_moments *m, double value)
{
    m->sum += value;
    m->sum2 += value * value;
    m->n++;
}

void eval_moments_join(struct eval_moments *m, const struct eval_moments *other)
{
    m->sum += other->sum;
    m->sum2 += other->sum2;
    m->n += other->n;
}

double eval_moments_mean(const struct eval_moments *m)
{
    return m->n > 0 ? m->sum / (double)m->n : (double)NAN;
}

double eval_moments_se(const struct eval_moments *m)
{
    if (m->n < 2)
        return (double)NAN;
    double mean = m->sum / (double)m->n;
    double variance = m->sum2 / (double)m->n - mean * mean;
    return variance > 0.0 ? sqrt(variance / (double)(m->n - 1)) : 0.0;
}

double eval_log_sum(const float *logits, int32_t n, float *max)
{
    float most = logits[0];
    double sum = 0.0;
    for (int32_t i = 1; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int32_t i = 0; i < n; i++)
        sum += (double)expf(logits[i] - most);
    *max = most;
    return log(sum);
}

bool eval_set(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}
