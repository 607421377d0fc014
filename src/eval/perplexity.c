/*
 * perplexity.c - how well a model foretells a text: the protocol of llama-perplexity, so that
 * figures compare, and beside it the same tokens under the full cache, so that what a policy costs
 * is a difference token by token and not of two figures with errors of their own.
 *
 * Chunks of n_ctx tokens, each a sequence from position 0; the first token gives way to BOS where
 * the model begins texts with it. The tokens behind the middle are scored: the logits of positions
 * n_ctx/2 .. n_ctx-2, nll = -(logit - max - log(sum exp(logit - max))).
 */
#include "chunks.h"

#include <math.h>
#include <stdlib.h>

/* One cache and what it thinks of the running group of chunks. */
struct side {
    pith_engine *engine;        /* borrowed */
    double *nll;                /* [n_seq][n_scored] owned */
    int32_t *first;             /* [n_seq] tokens at the first round, -1: none; owned */
    int64_t *evicted;           /* [n_seq] owned */
    int64_t *rounds;            /* [n_seq] owned */
    struct eval_answer account; /* of the running group: what its policies did */
    double seconds;             /* of evaluation, all groups */
};

/* What one sequence of a group listens with. */
struct scorer {
    const int32_t *ids; /* [n_ctx] as in the text */
    double *nll;        /* [n_scored] */
    int32_t first;      /* position of the first that is scored */
    int32_t n_ctx;
    int32_t n_vocab;
};

/* A figure of all tokens, of all chunks, and its likes of the tokens behind the first round. */
struct tally {
    struct eval_moments nll;
    struct eval_moments full;
    struct eval_moments diff;       /* per token */
    struct eval_moments diff_chunk; /* means of chunks */
};

struct task {
    const struct eval_setup *setup;
    const struct eval_perplexity_params *params;
    struct eval_chunks chunks;
    struct eval_run *run; /* of the measured cache */
    pith_engine *full;    /* NULL: not paired */
    struct side measured, reference;
    struct scorer *scorers; /* [n_seq] */
    pith_batch_item *items; /* [n_seq] */
    pith_seq **seqs;        /* [n_seq] */
    int32_t *tokens;        /* [n_seq][n_ctx] as they are read */
    json_t *rows;
    struct tally all, after;
    int32_t n_seq;    /* chunks read side by side */
    int32_t n_batch;  /* tokens of a chunk that are read at once */
    int32_t n_scored; /* of a chunk */
    int32_t first;    /* position whose logits are the first scored */
    int64_t evicted;
};

/* ---- memory ---- */

static void side_free(struct side *s)
{
    free(s->nll);
    free(s->first);
    free(s->evicted);
    free(s->rounds);
}

static bool side_make(struct side *s, pith_engine *engine, int32_t n_seq, int32_t n_scored)
{
    size_t n = (size_t)n_seq;
    s->engine = engine;
    s->nll = calloc(n * (size_t)n_scored, sizeof(*s->nll));
    s->first = calloc(n, sizeof(*s->first));
    s->evicted = calloc(n, sizeof(*s->evicted));
    s->rounds = calloc(n, sizeof(*s->rounds));
    return s->nll != NULL && s->first != NULL && s->evicted != NULL && s->rounds != NULL;
}

static void task_free(struct task *t)
{
    side_free(&t->measured);
    side_free(&t->reference);
    free(t->scorers);
    free(t->items);
    free(t->seqs);
    free(t->tokens);
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
    if (p->n_batch < 1)
        return eval_fail(err, PITH_INVALID, "n_batch: %d is not positive", (int)p->n_batch);
    pith_status status =
        eval_chunks_make(t->setup, p->text, p->text_len, p->n_ctx, p->n_chunk, 2, &t->chunks, err);
    if (status != PITH_OK)
        return status;
    t->n_seq = p->n_batch / p->n_ctx > 1 ? p->n_batch / p->n_ctx : 1;
    if (t->n_seq > t->chunks.n_chunk)
        t->n_seq = t->chunks.n_chunk;
    t->n_batch = p->n_batch < p->n_ctx ? p->n_batch : p->n_ctx;
    t->first = p->n_ctx / 2;
    t->n_scored = p->n_ctx - t->first - 1;
    size_t n = (size_t)t->n_seq;
    t->scorers = calloc(n, sizeof(*t->scorers));
    t->items = calloc(n, sizeof(*t->items));
    t->seqs = calloc(n, sizeof(pith_seq *));
    t->tokens = calloc(n * (size_t)p->n_ctx, sizeof(*t->tokens));
    t->rows = json_array();
    status = make_engines(t, err);
    if (status != PITH_OK)
        return status;
    if (t->scorers == NULL || t->items == NULL || t->seqs == NULL || t->tokens == NULL ||
        t->rows == NULL ||
        !side_make(&t->measured, eval_run_engine(t->run), t->n_seq, t->n_scored) ||
        (t->full != NULL && !side_make(&t->reference, t->full, t->n_seq, t->n_scored)))
        return eval_fail(err, PITH_NOMEM, "no memory for %d chunks of %d tokens", (int)t->n_seq,
                         (int)p->n_ctx);
    return PITH_OK;
}

/* ---- reading ---- */

static bool score(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct scorer *s = user;
    (void)seq;
    if (pos < s->first || pos > s->n_ctx - 2)
        return true;
    float max;
    double log_sum = eval_log_sum(logits, s->n_vocab, &max);
    s->nll[pos - s->first] = -((double)(logits[s->ids[pos + 1]] - max) - log_sum);
    return true;
}

/* Reads positions [from, to) of the group's chunks, which lie all before or all behind the first
   that is scored. */
static pith_status read_span(struct task *t, struct side *s, int32_t n, int32_t from, int32_t to,
                             pith_error *err)
{
    for (int32_t i = 0; i < n; i++)
        t->items[i] = (pith_batch_item){
            .seq = t->seqs[i],
            .tokens = t->tokens + (size_t)i * (size_t)t->chunks.n_ctx + from,
            .n_token = to - from,
            .logits = from < t->first ? PITH_LOGITS_NONE : PITH_LOGITS_ALL,
            .on_logits = score,
            .user = &t->scorers[i],
        };
    return pith_batch_eval(s->engine, t->items, n, eval_progress_step, t->run, err);
}

static pith_status read_batches(struct task *t, struct side *s, int32_t n, double fraction,
                                double share, pith_error *err)
{
    pith_status status = PITH_OK;
    for (int32_t from = 0, to; from < t->chunks.n_ctx && status == PITH_OK; from = to) {
        int32_t ends[] = {t->chunks.n_ctx, (from / t->n_batch + 1) * t->n_batch,
                          from < t->first ? t->first : t->chunks.n_ctx};
        to = ends[0];
        for (int i = 1; i < 3; i++)
            to = ends[i] < to ? ends[i] : to;
        status = eval_progress(
            t->run, fraction + share * from / t->chunks.n_ctx, err, "%s, chunks of %d tokens",
            s == &t->measured ? "reading" : "the full cache", (int)t->chunks.n_ctx);
        if (status == PITH_OK)
            status = read_span(t, s, n, from, to, err);
    }
    return status;
}

/* What the policies did to each sequence of the group. */
static void read_keep(struct task *t, struct side *s, int32_t n)
{
    pith_keep_stats keep;
    s->account = (struct eval_answer){0};
    for (int32_t i = 0; i < n; i++) {
        eval_account(t->seqs[i], &s->account);
        pith_seq_keep_stats(t->seqs[i], &keep);
        s->first[i] = keep.first_round_at;
        s->evicted[i] = keep.evicted;
        s->rounds[i] = keep.rounds;
    }
}

/* Chunks [i, i + n) through one cache; a share of the whole task lies before it. */
static pith_status read_group(struct task *t, struct side *s, int32_t chunk, int32_t n,
                              double fraction, double share, pith_error *err)
{
    pith_model_info info;
    pith_status status = PITH_OK;
    double start = eval_clock_s();
    pith_model_get_info(t->setup->model, &info);
    for (int32_t i = 0; i < n && status == PITH_OK; i++) {
        t->scorers[i] = (struct scorer){
            .ids = t->chunks.ids + (size_t)(chunk + i) * (size_t)t->chunks.n_ctx,
            .nll = s->nll + (size_t)i * (size_t)t->n_scored,
            .first = t->first,
            .n_ctx = t->chunks.n_ctx,
            .n_vocab = info.n_vocab,
        };
        eval_chunks_read(&t->chunks, chunk + i, t->tokens + (size_t)i * (size_t)t->chunks.n_ctx);
        t->seqs[i] = NULL;
        status = pith_seq_create(s->engine, &t->seqs[i], err);
    }
    if (status == PITH_OK)
        status = read_batches(t, s, n, fraction, share, err);
    if (status == PITH_OK)
        read_keep(t, s, n);
    s->seconds += eval_clock_s() - start;
    for (int32_t i = 0; i < n; i++) {
        pith_seq_free(t->seqs[i]);
        t->seqs[i] = NULL;
    }
    return status;
}

/* ---- figures of a chunk ---- */

/* Adds tokens [from, n_scored) of sequence i to a tally. */
static void add_tokens(const struct task *t, int32_t i, int32_t from, struct tally *out)
{
    const double *nll = t->measured.nll + (size_t)i * (size_t)t->n_scored;
    const double *full =
        t->full != NULL ? t->reference.nll + (size_t)i * (size_t)t->n_scored : NULL;
    struct eval_moments diff = {0};
    for (int32_t k = from; k < t->n_scored; k++) {
        eval_moments_add(&out->nll, nll[k]);
        if (full == NULL)
            continue;
        eval_moments_add(&out->full, full[k]);
        eval_moments_add(&diff, nll[k] - full[k]);
    }
    eval_moments_join(&out->diff, &diff);
    if (diff.n > 0)
        eval_moments_add(&out->diff_chunk, eval_moments_mean(&diff));
}

static bool add_row(struct task *t, int32_t chunk, int32_t i, const struct tally *all,
                    const struct tally *after)
{
    json_t *row = json_object();
    int32_t first = t->measured.first[i];
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

/* A token is behind the first round when its logits are of a position that the round was before. */
static int32_t after_from(const struct task *t, int32_t i)
{
    int32_t first = t->measured.first[i];
    if (first < 0 || first - t->first > t->n_scored)
        return t->n_scored;
    return first > t->first ? first - t->first : 0;
}

static pith_status take_chunk(struct task *t, int32_t chunk, int32_t i, pith_error *err)
{
    struct tally all = {0}, after = {0};
    add_tokens(t, i, 0, &all);
    add_tokens(t, i, after_from(t, i), &after);
    add_tokens(t, i, 0, &t->all);
    add_tokens(t, i, after_from(t, i), &t->after);
    t->evicted += t->measured.evicted[i];
    if (!add_row(t, chunk, i, &all, &after))
        return eval_fail(err, PITH_NOMEM, "no memory for the figures of chunk %d", (int)chunk + 1);
    return PITH_OK;
}

/* ---- the whole ---- */

/* A mean nll with its error as a perplexity: d exp(m) = exp(m) dm. */
static bool set_perplexity(json_t *o, const char *key, const char *key_se,
                           const struct eval_moments *nll)
{
    double value = exp(eval_moments_mean(nll));
    return eval_set(o, key, eval_number(value)) &&
           eval_set(o, key_se, eval_number(value * eval_moments_se(nll)));
}

static bool set_paired(json_t *o, const struct tally *t)
{
    double ratio = exp(eval_moments_mean(&t->diff));
    return set_perplexity(o, "full_perplexity", "full_perplexity_se", &t->full) &&
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
           set_perplexity(o, "perplexity", "perplexity_se", &t->after.nll) &&
           (t->full == NULL || set_paired(o, &t->after));
}

static json_t *make_settings(const struct task *t)
{
    const struct eval_perplexity_params *p = t->params;
    const pith_engine_params *e = &t->setup->engine;
    return json_pack("{s:i, s:i, s:i, s:I, s:b, s:s?, s:s?, s:s*}", "n_ctx", (int)p->n_ctx,
                     "n_batch", (int)(t->n_seq > 1 ? t->n_seq * p->n_ctx : t->n_batch), "chunks",
                     (int)t->chunks.n_chunk, "text_bytes", (json_int_t)p->text_len, "paired",
                     t->full != NULL, "type_k", e->type_k, "type_v", e->type_v, "reference_type",
                     t->full != NULL ? p->reference_type : NULL);
}

static pith_status make_result(struct task *t, json_t **result, pith_error *err)
{
    json_t *r = eval_result(t->run, "perplexity", t->chunks.n_chunk, make_settings(t),
                            json_incref(t->rows));
    json_t *summary = json_object_get(r, "summary");
    bool ok = summary != NULL && eval_set(summary, "tokens", json_integer(t->all.nll.n)) &&
              set_perplexity(summary, "perplexity", "perplexity_se", &t->all.nll) &&
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
    double before = t->measured.seconds;
    pith_kv_stats kv;
    if (t->full != NULL)
        share /= 2.0;
    pith_engine_kv_reset_peak(t->measured.engine);
    pith_status status = read_group(t, &t->measured, chunk, n, fraction, share, err);
    if (status == PITH_OK && t->full != NULL)
        status = read_group(t, &t->reference, chunk, n, fraction + share, share, err);
    if (status != PITH_OK)
        return status;
    /* The chunks of a group grow alike, so the peak is n times that of one. */
    pith_engine_kv_stats(t->measured.engine, &kv);
    struct eval_answer cost = t->measured.account;
    cost.n_prompt = n * t->chunks.n_ctx;
    cost.prompt_s = t->measured.seconds - before;
    cost.kv_peak_bytes = (kv.peak_bytes + n - 1) / n;
    for (int32_t i = 0; i < n && status == PITH_OK; i++)
        status = take_chunk(t, chunk + i, i, err);
    eval_run_add(t->run, &cost);
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
