/*
 * reader.c - reads chunks through one cache and scores them. It knows neither what else reads them
 * nor what becomes of the figures.
 *
 * Invariant: a group leaves no page in use, so that the peak of each is its own.
 */
#include "reader.h"
#include "pith/inspect.h"
#include "pith/policy.h"

#include <math.h>
#include <stdlib.h>

/* One sequence of a group, as its callback gets it. */
struct reader_scorer {
    const int32_t *ids; /* [n_ctx] as in the text */
    double *nll;        /* [n_scored] */
    const pith_model *model;
    pith_error *bad; /* of the reader */
    int32_t first;   /* position of the first that is scored */
    int32_t n_ctx;
    int32_t n_vocab;
};

/* ---- memory ---- */

int32_t eval_reader_side_by_side(const struct eval_chunks *chunks, int32_t n_batch)
{
    int32_t n = n_batch / chunks->n_ctx > 1 ? n_batch / chunks->n_ctx : 1;
    return n < chunks->n_chunk ? n : chunks->n_chunk;
}

static bool allocate(struct eval_reader *r)
{
    size_t n = (size_t)r->n_seq;
    r->nll = calloc(n * (size_t)r->n_scored, sizeof(*r->nll));
    r->first_round = calloc(n, sizeof(*r->first_round));
    r->evicted = calloc(n, sizeof(*r->evicted));
    r->rounds = calloc(n, sizeof(*r->rounds));
    r->scorers = calloc(n, sizeof(*r->scorers));
    r->items = calloc(n, sizeof(*r->items));
    r->seqs = calloc(n, sizeof(pith_seq *));
    r->tokens = calloc(n * (size_t)r->chunks->n_ctx, sizeof(*r->tokens));
    return r->nll != NULL && r->first_round != NULL && r->evicted != NULL && r->rounds != NULL &&
           r->scorers != NULL && r->items != NULL && r->seqs != NULL && r->tokens != NULL;
}

pith_status eval_reader_make(const struct eval_chunks *chunks, const pith_model *model,
                             pith_engine *engine, struct eval_run *run, int32_t n_batch,
                             int32_t n_seq, const char *what, struct eval_reader *out,
                             pith_error *err)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    *out = (struct eval_reader){
        .chunks = chunks,
        .run = run,
        .engine = engine,
        .what = what,
        .n_seq = n_seq,
        .n_batch = n_batch < chunks->n_ctx ? n_batch : chunks->n_ctx,
        .first = chunks->n_ctx / 2,
        .n_scored = chunks->n_ctx - chunks->n_ctx / 2 - 1,
        .n_vocab = info.n_vocab,
        .model = model,
    };
    if (n_batch < 1)
        return eval_fail(err, PITH_INVALID, "n_batch: %d is not positive", (int)n_batch);
    if (!allocate(out))
        return eval_fail(err, PITH_NOMEM, "no memory for %d chunks of %d tokens", (int)n_seq,
                         (int)chunks->n_ctx);
    return PITH_OK;
}

void eval_reader_free(struct eval_reader *r)
{
    free(r->nll);
    free(r->first_round);
    free(r->evicted);
    free(r->rounds);
    free(r->scorers);
    free(r->items);
    free(r->seqs);
    free(r->tokens);
    *r = (struct eval_reader){0};
}

/* ---- reading ---- */

static bool score(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct reader_scorer *s = user;
    (void)seq;
    if (pos < s->first || pos > s->n_ctx - 2)
        return true;
    float max;
    double log_sum = eval_log_sum(logits, s->n_vocab, &max);
    s->nll[pos - s->first] = -((double)(logits[s->ids[pos + 1]] - max) - log_sum);
    return pith_logits_check(s->model, logits, s->bad) == PITH_OK;
}

/* Reads positions [from, to) of the group's chunks, which lie all before or all behind the first
   that is scored. */
static pith_status read_span(struct eval_reader *r, int32_t n, int32_t from, int32_t to,
                             pith_error *err)
{
    for (int32_t i = 0; i < n; i++)
        r->items[i] = (pith_batch_item){
            .seq = r->seqs[i],
            .tokens = r->tokens + (size_t)i * (size_t)r->chunks->n_ctx + from,
            .n_token = to - from,
            .logits = from < r->first ? PITH_LOGITS_NONE : PITH_LOGITS_ALL,
            .on_logits = score,
            .user = &r->scorers[i],
        };
    r->bad = (pith_error){0};
    pith_status status = pith_batch_eval(r->engine, r->items, n, eval_progress_step, r->run, err);
    return r->bad.status != PITH_OK ? eval_fail(err, r->bad.status, "%s", r->bad.message) : status;
}

static pith_status read_batches(struct eval_reader *r, int32_t n, double fraction, double share,
                                pith_error *err)
{
    pith_status status = PITH_OK;
    int32_t n_ctx = r->chunks->n_ctx;
    for (int32_t from = 0, to; from < n_ctx && status == PITH_OK; from = to) {
        int32_t batch_end = (from / r->n_batch + 1) * r->n_batch;
        to = from < r->first ? r->first : n_ctx;
        to = batch_end < to ? batch_end : to;
        status = eval_progress(r->run, fraction + share * from / n_ctx, err,
                               "%.100s, chunks of %d tokens", r->what, (int)n_ctx);
        if (status == PITH_OK)
            status = read_span(r, n, from, to, err);
    }
    return status;
}

/* Adds the policies' work for each sequence of the group, and the memory that it took. The chunks
   of a group grow alike, so that the peak is n times that of one. */
static void account(struct eval_reader *r, int32_t n)
{
    pith_keep_stats keep;
    pith_kv_stats kv;
    for (int32_t i = 0; i < n; i++) {
        eval_account(r->seqs[i], &r->cost);
        pith_seq_keep_stats(r->seqs[i], &keep);
        r->first_round[i] = eval_first_eviction(&keep);
        r->evicted[i] = keep.evicted;
        r->rounds[i] = keep.rounds;
    }
    pith_engine_kv_stats(r->engine, &kv);
    r->cost.n_prompt = n * r->chunks->n_ctx;
    r->cost.kv_peak_bytes = (kv.peak_bytes + n - 1) / n;
    r->kv_end_bytes = (kv.used_bytes + n - 1) / n;
}

pith_status eval_reader_read(struct eval_reader *r, int32_t chunk, int32_t n, double fraction,
                             double share, pith_error *err)
{
    pith_status status = PITH_OK;
    size_t n_ctx = (size_t)r->chunks->n_ctx;
    r->cost = (struct eval_answer){0};
    pith_engine_kv_reset_peak(r->engine);
    double start = eval_clock_s();
    for (int32_t i = 0; i < n && status == PITH_OK; i++) {
        r->scorers[i] = (struct reader_scorer){
            .ids = r->chunks->ids + (size_t)(chunk + i) * n_ctx,
            .nll = r->nll + (size_t)i * (size_t)r->n_scored,
            .first = r->first,
            .n_ctx = r->chunks->n_ctx,
            .n_vocab = r->n_vocab,
            .model = r->model,
            .bad = &r->bad,
        };
        eval_chunks_read(r->chunks, chunk + i, r->tokens + (size_t)i * n_ctx);
        status = pith_seq_create(r->engine, &r->seqs[i], err);
    }
    if (status == PITH_OK)
        status = read_batches(r, n, fraction, share, err);
    r->cost.prompt_s = eval_clock_s() - start;
    if (status == PITH_OK)
        account(r, n);
    for (int32_t i = 0; i < n; i++) {
        pith_seq_free(r->seqs[i]);
        r->seqs[i] = NULL;
    }
    return status;
}

int32_t eval_first_eviction(const pith_keep_stats *keep)
{
    int32_t round = keep->first_round_at, over = keep->first_overwrite_at;
    return round >= 0 && (over < 0 || round <= over) ? round : over;
}

int32_t eval_reader_after(const struct eval_reader *r, int32_t i)
{
    int32_t first = r->first_round[i];
    if (first < 0 || first - r->first > r->n_scored)
        return r->n_scored;
    return first > r->first ? first - r->first : 0;
}

/* ---- figures ---- */

void eval_tally_add(struct eval_tally *t, const double *nll, const double *full, int32_t from,
                    int32_t n)
{
    struct eval_moments diff = {0};
    for (int32_t k = from; k < n; k++) {
        eval_moments_add(&t->nll, nll[k]);
        if (full == NULL)
            continue;
        eval_moments_add(&t->full, full[k]);
        eval_moments_add(&diff, nll[k] - full[k]);
    }
    eval_moments_join(&t->diff, &diff);
    if (diff.n > 0)
        eval_moments_add(&t->diff_chunk, eval_moments_mean(&diff));
}

bool eval_set_perplexity(json_t *object, const char *key, const char *key_se,
                         const struct eval_moments *nll)
{
    double value = exp(eval_moments_mean(nll));
    return eval_set(object, key, eval_number(value)) &&
           eval_set(object, key_se, eval_number(value * eval_moments_se(nll)));
}
