/*
 * perplexity.c - how well a model predicts a text: the protocol of llama-perplexity, so that
 * figures compare. Beside it the same tokens are read under the full cache. So a policy's cost is a
 * difference token by token and not of two figures with errors of their own.
 *
 * Chunks of n_ctx tokens, each a sequence from position 0; the first token gives way to BOS where
 * the model begins texts with it. Tokens behind the middle are scored (reader.h).
 */
#include "reader.h"

#include <math.h>

struct task {
    const struct eval_setup *setup;
    const struct eval_perplexity_params *params;
    struct eval_chunks chunks;
    struct eval_run *run; /* of the measured cache */
    pith_engine *full;    /* NULL: not paired */
    struct eval_reader measured, reference;
    json_t *rows;
    struct eval_tally all, after; /* of all tokens, and of those behind the first round */
    int32_t n_seq;                /* chunks read side by side */
    int64_t evicted;
};

/* ---- memory ---- */

static void task_free(struct task *t)
{
    eval_reader_free(&t->measured);
    eval_reader_free(&t->reference);
    json_decref(t->rows);
    pith_engine_free(t->full);
    eval_run_free(t->run);
    eval_chunks_free(&t->chunks);
}

static pith_status make_engines(struct task *t, pith_error *err)
{
    struct eval_setup setup = *t->setup;
    pith_status status =
        eval_size_memory(setup.model, t->chunks.n_ctx, t->n_seq, &setup.engine, err);
    if (status == PITH_OK)
        status = eval_run_create(&setup, 0, &t->run, err);
    if (status != PITH_OK || !t->params->paired)
        return status;
    pith_engine_params p = eval_full_params(&t->setup->engine, t->params->reference_type);
    status = eval_size_memory(setup.model, t->chunks.n_ctx, t->n_seq, &p, err);
    return status == PITH_OK ? pith_engine_create(setup.model, &p, &t->full, err) : status;
}

static pith_status task_make(struct task *t, pith_error *err)
{
    const struct eval_perplexity_params *p = t->params;
    const pith_model *model = t->setup->model;
    if (p->n_batch < 1)
        return eval_fail(err, PITH_INVALID, "n_batch: %d is not positive", (int)p->n_batch);
    pith_status status = eval_check_recall(t->setup, "perplexity", err);
    if (status == PITH_OK)
        status = eval_chunks_make(t->setup, p->text, p->text_len, p->n_ctx, p->n_chunk, 2,
                                  &t->chunks, err);
    if (status != PITH_OK)
        return status;
    pith_engine_params full = eval_full_params(&t->setup->engine, p->reference_type);
    t->n_seq = eval_seqs_that_fit(t->setup, p->paired ? &full : NULL, t->chunks.n_ctx,
                                  eval_reader_side_by_side(&t->chunks, p->n_batch));
    t->rows = json_array();
    if (t->rows == NULL)
        return eval_fail(err, PITH_NOMEM, "no memory for the figures of chunks");
    status = make_engines(t, err);
    if (status == PITH_OK)
        status = eval_reader_make(&t->chunks, model, eval_run_engine(t->run), t->run, p->n_batch,
                                  t->n_seq, "reading", &t->measured, err);
    if (status == PITH_OK && t->full != NULL)
        status = eval_reader_make(&t->chunks, model, t->full, t->run, p->n_batch, t->n_seq,
                                  "the full cache", &t->reference, err);
    return status;
}

/* ---- figures of a chunk ---- */

/* Adds tokens [from, n_scored) of sequence i to a tally. */
static void add_tokens(const struct task *t, int32_t i, int32_t from, struct eval_tally *out)
{
    size_t at = (size_t)i * (size_t)t->measured.n_scored;
    eval_tally_add(out, t->measured.nll + at, t->full != NULL ? t->reference.nll + at : NULL, from,
                   t->measured.n_scored);
}

static bool add_row(struct task *t, int32_t chunk, int32_t i, const struct eval_tally *all,
                    const struct eval_tally *after)
{
    json_t *row = json_object();
    int32_t first = t->measured.first_round[i];
    return json_array_append_new(t->rows, row) == 0 &&
           eval_set(row, "chunk", json_integer(chunk + 1)) &&
           eval_set(row, "tokens", json_integer(all->nll.n)) &&
           eval_set(row, "perplexity", eval_number(exp(eval_moments_mean(&all->nll)))) &&
           eval_set(row, "so_far", eval_number(exp(eval_moments_mean(&t->all.nll)))) &&
           eval_set(row, "full", eval_number(exp(eval_moments_mean(&all->full)))) &&
           eval_set(row, "diff", eval_number(eval_moments_mean(&all->diff))) &&
           eval_set(row, "evicted", json_integer(t->measured.evicted[i])) &&
           eval_set(row, "rounds", json_integer(t->measured.rounds[i])) &&
           eval_set(row, "first_round_at", first >= 0 ? json_integer(first) : json_null()) &&
           eval_set(row, "after_tokens", json_integer(after->nll.n)) &&
           eval_set(row, "after_diff", eval_number(eval_moments_mean(&after->diff)));
}

static pith_status add_chunk(struct task *t, int32_t chunk, int32_t i, pith_error *err)
{
    struct eval_tally all = {0}, after = {0};
    int32_t from = eval_reader_after(&t->measured, i);
    add_tokens(t, i, 0, &all);
    add_tokens(t, i, from, &after);
    add_tokens(t, i, 0, &t->all);
    add_tokens(t, i, from, &t->after);
    t->evicted += t->measured.evicted[i];
    if (!add_row(t, chunk, i, &all, &after))
        return eval_fail(err, PITH_NOMEM, "no memory for the figures of chunk %d", (int)chunk + 1);
    return PITH_OK;
}

/* ---- the whole ---- */

static bool set_paired(json_t *o, const struct eval_tally *t)
{
    double ratio = exp(eval_moments_mean(&t->diff));
    return eval_set_perplexity(o, "full_perplexity", "full_perplexity_se", &t->full) &&
           eval_set(o, "diff", eval_number(eval_moments_mean(&t->diff))) &&
           eval_set(o, "diff_se", eval_number(eval_moments_se(&t->diff))) &&
           eval_set(o, "diff_se_chunks", eval_number(eval_moments_se(&t->diff_chunk))) &&
           eval_set(o, "ratio", eval_number(ratio)) &&
           eval_set(o, "ratio_se", eval_number(ratio * eval_moments_se(&t->diff)));
}

static bool set_after(const struct task *t, json_t *summary)
{
    if (eval_is_full(&t->setup->engine))
        return true;
    json_t *o = json_object();
    return eval_set(summary, "after_first_eviction", o) &&
           eval_set(o, "tokens", json_integer(t->after.nll.n)) &&
           eval_set_perplexity(o, "perplexity", "perplexity_se", &t->after.nll) &&
           (t->full == NULL || set_paired(o, &t->after));
}

static json_t *make_settings(const struct task *t)
{
    const struct eval_perplexity_params *p = t->params;
    const pith_engine_params *e = &t->setup->engine;
    return json_pack("{s:i, s:i, s:i, s:I, s:b, s:s?, s:s?, s:s*}", "n_ctx", (int)p->n_ctx,
                     "n_batch", (int)(t->n_seq > 1 ? t->n_seq * p->n_ctx : t->measured.n_batch),
                     "chunks", (int)t->chunks.n_chunk, "text_bytes", (json_int_t)p->text_len,
                     "paired", t->full != NULL, "type_k", e->type_k, "type_v", e->type_v,
                     "reference_type", t->full != NULL ? p->reference_type : NULL);
}

static pith_status make_result(struct task *t, json_t **result, pith_error *err)
{
    json_t *r = eval_result(t->run, "perplexity", t->chunks.n_chunk, make_settings(t),
                            json_incref(t->rows));
    json_t *summary = json_object_get(r, "summary");
    bool ok = summary != NULL && eval_set(summary, "tokens", json_integer(t->all.nll.n)) &&
              eval_set_perplexity(summary, "perplexity", "perplexity_se", &t->all.nll) &&
              eval_set(summary, "nll", eval_number(eval_moments_mean(&t->all.nll))) &&
              eval_set(summary, "nll_se", eval_number(eval_moments_se(&t->all.nll))) &&
              (t->full == NULL || set_paired(summary, &t->all)) && set_after(t, summary) &&
              eval_chunks_note(&t->chunks, t->setup, t->evicted, t->after.nll.n, summary);
    if (!ok) {
        json_decref(r);
        return eval_fail(err, PITH_NOMEM, "no memory for the result of perplexity");
    }
    *result = r;
    return PITH_OK;
}

/* One group through both caches. */
static pith_status run_group(struct task *t, int32_t chunk, pith_error *err)
{
    int32_t left = t->chunks.n_chunk - chunk, n = left < t->n_seq ? left : t->n_seq;
    double fraction = (double)chunk / t->chunks.n_chunk, share = (double)n / t->chunks.n_chunk;
    if (t->full != NULL)
        share /= 2.0;
    pith_status status = eval_reader_read(&t->measured, chunk, n, fraction, share, err);
    if (status == PITH_OK && t->full != NULL)
        status = eval_reader_read(&t->reference, chunk, n, fraction + share, share, err);
    for (int32_t i = 0; i < n && status == PITH_OK; i++)
        status = add_chunk(t, chunk + i, i, err);
    if (status == PITH_OK)
        eval_run_add(t->run, &t->measured.cost);
    return status;
}

pith_status eval_perplexity(const struct eval_setup *setup,
                            const struct eval_perplexity_params *params, json_t **result,
                            pith_error *err)
{
    struct task t = {.setup = setup, .params = params};
    pith_status status = task_make(&t, err);
    for (int32_t i = 0; status == PITH_OK && i < t.chunks.n_chunk; i += t.n_seq)
        status = run_group(&t, i, err);
    if (status == PITH_OK)
        status = make_result(&t, result, err);
    task_free(&t);
    return status;
}
