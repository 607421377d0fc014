/*
 * divergence.c - how far a cache policy moves the model's expectations. At every position of a text
 * the distribution under the full cache is compared with the one under the measured cache.
 *
 *   KL(full || policy) = sum_i p_i (log p_i - log q_i), in nats
 *
 * Both caches read the same few tokens in turn, so that logits of those few are in memory and not a
 * whole chunk's. With 150,000 tokens in a vocabulary a chunk would take gigabytes. The sums are
 * taken in double, and equal logits give exactly 0.
 */
#include "chunks.h"
#include "pith/inspect.h"
#include "pith/policy.h"
#include "reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_TOP 5
#define N_BUCKET 8                      /* spans of a chunk that have rows of their own */
#define LOGITS_BYTES ((size_t)64 << 20) /* of the full cache that are held at a time */
#define MAX_STEP 512                    /* more tokens at once read no faster */

/* The figures of one position. */
struct found {
    double kl;
    float top1; /* 1 where both would choose the same token */
    float top5; /* share of the N_TOP likeliest that are the same */
};

struct task {
    const struct eval_setup *setup;
    const struct eval_divergence_params *params;
    struct eval_chunks chunks;
    struct eval_run *run; /* of the measured cache */
    pith_engine *full;    /* owned */
    float *logits;        /* [n_step][n_vocab] of the full cache at positions from .. */
    int32_t from;
    int32_t n_step; /* tokens read at once */
    int32_t n_vocab;
    int32_t *tokens;     /* [n_ctx] */
    struct found *found; /* [n_chunk][n_ctx] */
    int32_t *first;      /* [n_chunk] tokens at the first round; -1: none */
    double *sorted;      /* [n_chunk * n_ctx] scratch */
    json_t *rows;
    int64_t evicted;
    struct found *at; /* of the running chunk */
    pith_error bad;   /* why logits are none; status 0: they are */
};

static void task_free(struct task *t)
{
    free(t->logits);
    free(t->tokens);
    free(t->found);
    free(t->first);
    free(t->sorted);
    json_decref(t->rows);
    pith_engine_free(t->full);
    eval_run_free(t->run);
    eval_chunks_free(&t->chunks);
}

/* ---- two distributions ---- */

/* The N_TOP greatest, greatest first; ties go to the lower id. Returns how many there are. */
static int32_t find_top(const float *logits, int32_t n, int32_t *top)
{
    int32_t n_top = 0;
    for (int32_t id = 0; id < n; id++) {
        if (n_top == N_TOP && !(logits[id] > logits[top[N_TOP - 1]]))
            continue;
        int32_t i = n_top < N_TOP ? n_top++ : N_TOP - 1;
        for (; i > 0 && logits[id] > logits[top[i - 1]]; i--)
            top[i] = top[i - 1];
        top[i] = id;
    }
    return n_top;
}

/* log(sum exp(logits - max)); eval_log_sum is in float as llama-perplexity has it, too coarse for
   differences. */
static double log_sum(const float *logits, int32_t n, float max)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)max);
    return log(sum);
}

static struct found compare(const float *full, const float *other, int32_t n)
{
    int32_t top[N_TOP], top_other[N_TOP], same = 0;
    int32_t n_top = find_top(full, n, top);
    find_top(other, n, top_other);
    for (int32_t i = 0; i < n_top; i++)
        for (int32_t j = 0; j < n_top; j++)
            same += top[i] == top_other[j];
    double max = (double)full[top[0]], max_other = (double)other[top_other[0]], kl = 0.0;
    double sum = log_sum(full, n, full[top[0]]), sum_other = log_sum(other, n, other[top_other[0]]);
    for (int32_t i = 0; i < n; i++) {
        double p = (double)full[i] - max - sum, q = (double)other[i] - max_other - sum_other;
        if (p > -700.0) /* exp(-700) is about the smallest double: what is below adds nothing */
            kl += exp(p) * (p - q);
    }
    /* The sum of many terms of both signs is no less than 0 but for rounding. */
    return (struct found){kl > 0.0 ? kl : 0.0, top[0] == top_other[0] ? 1.0f : 0.0f,
                          (float)same / (float)n_top};
}

/* ---- reading ---- */

static bool hold(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct task *t = user;
    (void)seq;
    memcpy(t->logits + (size_t)(pos - t->from) * (size_t)t->n_vocab, logits,
           (size_t)t->n_vocab * sizeof(*logits));
    return pith_logits_check(t->setup->model, logits, &t->bad) == PITH_OK;
}

static bool judge(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct task *t = user;
    (void)seq;
    t->at[pos] =
        compare(t->logits + (size_t)(pos - t->from) * (size_t)t->n_vocab, logits, t->n_vocab);
    return pith_logits_check(t->setup->model, logits, &t->bad) == PITH_OK;
}

static pith_status read_step(struct task *t, pith_seq *full, pith_seq *measured, double *seconds,
                             pith_error *err)
{
    int32_t left = t->chunks.n_ctx - t->from;
    pith_batch_item item = {.seq = full,
                            .tokens = t->tokens + t->from,
                            .n_token = left < t->n_step ? left : t->n_step,
                            .logits = PITH_LOGITS_ALL,
                            .on_logits = hold,
                            .user = t};
    pith_status status = pith_batch_eval(t->full, &item, 1, eval_progress_step, t->run, err);
    double start = eval_clock_s();
    if (status == PITH_OK) {
        item.seq = measured;
        item.on_logits = judge;
        status =
            pith_batch_eval(eval_run_engine(t->run), &item, 1, eval_progress_step, t->run, err);
    }
    *seconds += eval_clock_s() - start;
    t->from += item.n_token;
    return t->bad.status != PITH_OK ? eval_fail(err, t->bad.status, "%s", t->bad.message) : status;
}

static pith_status read_chunk(struct task *t, int32_t chunk, pith_error *err)
{
    pith_seq *full = NULL, *measured = NULL;
    pith_keep_stats keep;
    pith_kv_stats kv;
    struct eval_answer cost = {.n_prompt = t->chunks.n_ctx};
    t->from = 0;
    t->at = t->found + (size_t)chunk * (size_t)t->chunks.n_ctx;
    eval_chunks_read(&t->chunks, chunk, t->tokens);
    pith_status status = pith_seq_create(t->full, &full, err);
    if (status == PITH_OK)
        status = pith_seq_create(eval_run_engine(t->run), &measured, err);
    while (status == PITH_OK && t->from < t->chunks.n_ctx) {
        double done = chunk + (double)t->from / t->chunks.n_ctx;
        status = eval_progress(t->run, done / t->chunks.n_chunk, err, "chunk %d of %d",
                               (int)chunk + 1, (int)t->chunks.n_chunk);
        if (status == PITH_OK)
            status = read_step(t, full, measured, &cost.prompt_s, err);
    }
    if (status == PITH_OK) {
        pith_seq_keep_stats(measured, &keep);
        pith_engine_kv_stats(eval_run_engine(t->run), &kv);
        t->first[chunk] = eval_first_eviction(&keep);
        t->evicted += keep.evicted;
        eval_account(measured, &cost);
        cost.kv_peak_bytes = kv.peak_bytes;
        eval_run_add(t->run, &cost);
    }
    pith_seq_free(measured);
    pith_seq_free(full);
    return status;
}

/* ---- figures ---- */

struct tally {
    struct eval_moments kl, top1, top5;
    struct eval_moments kl_chunk; /* means of chunks */
    double max;
    double *sorted; /* [kl.n] */
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Adds positions [from, to) of a chunk. */
static void add_span(const struct task *t, int32_t chunk, int32_t from, int32_t to,
                     struct tally *out)
{
    const struct found *f = t->found + (size_t)chunk * (size_t)t->chunks.n_ctx;
    struct eval_moments kl = {0};
    for (int32_t i = from; i < to; i++) {
        out->sorted[out->kl.n + kl.n] = f[i].kl;
        eval_moments_add(&kl, f[i].kl);
        eval_moments_add(&out->top1, (double)f[i].top1);
        eval_moments_add(&out->top5, (double)f[i].top5);
        out->max = f[i].kl > out->max ? f[i].kl : out->max;
    }
    eval_moments_join(&out->kl, &kl);
    if (kl.n > 0)
        eval_moments_add(&out->kl_chunk, eval_moments_mean(&kl));
}

/* Value at rank p of n sorted values, between neighbours by their distance. */
static double quantile(const double *sorted, int64_t n, double p)
{
    if (n == 0)
        return (double)NAN;
    double at = p * (double)(n - 1);
    int64_t low = (int64_t)at;
    if (low >= n - 1)
        return sorted[n - 1];
    return sorted[low] + (at - (double)low) * (sorted[low + 1] - sorted[low]);
}

/* Woodruff, "Confidence intervals for medians and other position measures", JASA 47 (1952). The
   values at the ranks p +- sqrt(p (1 - p) / n) enclose one standard error on either side. */
static double quantile_se(const double *sorted, int64_t n, double p)
{
    if (n < 2)
        return (double)NAN;
    double half = sqrt(p * (1.0 - p) / (double)n);
    return 0.5 *
           (quantile(sorted, n, fmin(p + half, 1.0)) - quantile(sorted, n, fmax(p - half, 0.0)));
}

static bool set_mean(json_t *o, const char *key, const char *key_se, const struct eval_moments *m)
{
    return eval_set(o, key, eval_number(eval_moments_mean(m))) &&
           eval_set(o, key_se, eval_number(eval_moments_se(m)));
}

static bool set_figures(json_t *o, struct tally *t)
{
    int64_t n = t->kl.n;
    qsort(t->sorted, (size_t)n, sizeof(*t->sorted), compare_doubles);
    return eval_set(o, "tokens", json_integer(n)) && set_mean(o, "kl_mean", "kl_se", &t->kl) &&
           eval_set(o, "kl_median", eval_number(quantile(t->sorted, n, 0.5))) &&
           eval_set(o, "kl_median_se", eval_number(quantile_se(t->sorted, n, 0.5))) &&
           eval_set(o, "kl_p99", eval_number(quantile(t->sorted, n, 0.99))) &&
           eval_set(o, "kl_p99_se", eval_number(quantile_se(t->sorted, n, 0.99))) &&
           eval_set(o, "kl_max", n > 0 ? eval_number(t->max) : json_null()) &&
           set_mean(o, "top1", "top1_se", &t->top1) && set_mean(o, "top5", "top5_se", &t->top5);
}

/* A row of one chunk, or of the span [from, to) of all chunks (chunk -1). */
static bool add_row(struct task *t, int32_t chunk, int32_t from, int32_t to)
{
    struct tally tally = {.sorted = t->sorted};
    json_t *row = json_object();
    for (int32_t i = 0; i < t->chunks.n_chunk; i++)
        if (chunk < 0 || i == chunk)
            add_span(t, i, from, to, &tally);
    return json_array_append_new(t->rows, row) == 0 &&
           eval_set(row, "of", json_string(chunk < 0 ? "span" : "chunk")) &&
           eval_set(row, "chunk", chunk < 0 ? json_null() : json_integer(chunk + 1)) &&
           eval_set(row, "from", json_integer(from)) && eval_set(row, "to", json_integer(to)) &&
           set_figures(row, &tally);
}

static bool add_rows(struct task *t)
{
    int32_t n_ctx = t->chunks.n_ctx, n_bucket = n_ctx < N_BUCKET ? n_ctx : N_BUCKET;
    for (int32_t i = 0; i < t->chunks.n_chunk; i++)
        if (!add_row(t, i, 0, n_ctx))
            return false;
    for (int32_t b = 0; b < n_bucket; b++)
        if (!add_row(t, -1, (int32_t)((int64_t)n_ctx * b / n_bucket),
                     (int32_t)((int64_t)n_ctx * (b + 1) / n_bucket)))
            return false;
    return true;
}

/* Of all positions, or of those behind the first round of their chunk; *n receives how many. */
static bool set_all(struct task *t, json_t *o, bool behind, int64_t *n)
{
    struct tally tally = {.sorted = t->sorted};
    int32_t n_ctx = t->chunks.n_ctx;
    for (int32_t i = 0; i < t->chunks.n_chunk; i++) {
        int32_t round = t->first[i] >= 0 && t->first[i] < n_ctx ? t->first[i] : n_ctx;
        add_span(t, i, behind ? round : 0, n_ctx, &tally);
    }
    *n = tally.kl.n;
    return set_figures(o, &tally) &&
           eval_set(o, "kl_se_chunks", eval_number(eval_moments_se(&tally.kl_chunk))) &&
           (behind || eval_set(o, "score", eval_number(eval_moments_mean(&tally.top1))));
}

static bool set_summary(struct task *t, json_t *summary)
{
    int64_t n_all, n_after = 0;
    bool ok = set_all(t, summary, false, &n_all);
    if (ok && !eval_is_full(&t->setup->engine)) {
        json_t *after = json_object();
        ok = eval_set(summary, "after_first_eviction", after) && set_all(t, after, true, &n_after);
    }
    return ok && eval_chunks_note(&t->chunks, t->setup, t->evicted, n_after, summary);
}

static pith_status make_result(struct task *t, json_t **result, pith_error *err)
{
    const pith_engine_params *e = &t->setup->engine;
    bool ok = add_rows(t);
    json_t *settings =
        json_pack("{s:i, s:i, s:I, s:s?, s:s?, s:s*}", "n_ctx", (int)t->chunks.n_ctx, "chunks",
                  (int)t->chunks.n_chunk, "text_bytes", (json_int_t)t->params->text_len, "type_k",
                  e->type_k, "type_v", e->type_v, "reference_type", t->params->reference_type);
    json_t *r =
        eval_result(t->run, "divergence", t->chunks.n_chunk, settings, json_incref(t->rows));
    json_t *summary = json_object_get(r, "summary");
    if (!ok || summary == NULL || !set_summary(t, summary)) {
        json_decref(r);
        return eval_fail(err, PITH_NOMEM, "no memory for the result of divergence");
    }
    *result = r;
    return PITH_OK;
}

/* ---- the whole ---- */

static pith_status task_make(struct task *t, pith_error *err)
{
    const struct eval_divergence_params *p = t->params;
    pith_model_info info;
    pith_model_get_info(t->setup->model, &info);
    pith_status status = eval_check_recall(t->setup, "divergence", err);
    if (status == PITH_OK)
        status = eval_chunks_make(t->setup, p->text, p->text_len, p->n_ctx, p->n_chunk, 1,
                                  &t->chunks, err);
    if (status == PITH_OK)
        status = eval_run_create(t->setup, p->n_ctx, &t->run, err);
    pith_engine_params full = eval_full_params(&t->setup->engine, p->reference_type);
    if (status == PITH_OK)
        status = eval_size_memory(t->setup->model, p->n_ctx, 1, &full, err);
    if (status == PITH_OK)
        status = pith_engine_create(t->setup->model, &full, &t->full, err);
    if (status != PITH_OK)
        return status;
    size_t n_vocab = (size_t)info.n_vocab, n_ctx = (size_t)p->n_ctx;
    size_t n_step = LOGITS_BYTES / sizeof(float) / n_vocab;
    if (t->setup->most_bytes > 0 && n_step > EVAL_BOUNDED_STEP)
        n_step = EVAL_BOUNDED_STEP;
    n_step = n_step < 1 ? 1 : n_step > MAX_STEP ? MAX_STEP : n_step;
    t->n_vocab = info.n_vocab;
    t->n_step = (int32_t)(n_step > n_ctx ? n_ctx : n_step);
    t->logits = malloc((size_t)t->n_step * n_vocab * sizeof(*t->logits));
    t->tokens = malloc(n_ctx * sizeof(*t->tokens));
    t->found = calloc((size_t)t->chunks.n_chunk * n_ctx, sizeof(*t->found));
    t->first = calloc((size_t)t->chunks.n_chunk, sizeof(*t->first));
    t->sorted = calloc((size_t)t->chunks.n_chunk * n_ctx, sizeof(*t->sorted));
    t->rows = json_array();
    if (t->logits == NULL || t->tokens == NULL || t->found == NULL || t->first == NULL ||
        t->sorted == NULL || t->rows == NULL)
        return eval_fail(err, PITH_NOMEM, "no memory for %d chunks of %d tokens",
                         (int)t->chunks.n_chunk, (int)p->n_ctx);
    return PITH_OK;
}

pith_status eval_divergence(const struct eval_setup *setup,
                            const struct eval_divergence_params *params, json_t **result,
                            pith_error *err)
{
    struct task t = {.setup = setup, .params = params};
    pith_status status = task_make(&t, err);
    for (int32_t i = 0; status == PITH_OK && i < t.chunks.n_chunk; i++)
        status = read_chunk(&t, i, err);
    if (status == PITH_OK)
        status = make_result(&t, result, err);
    task_free(&t);
    return status;
}
