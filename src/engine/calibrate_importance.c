/*
 * calibrate_importance.c - makes a model repeat texts and learns from it how important entries are.
 * Each text is read twice. With its repetition it gives the targets
 * (policy/keep/learn/importance_target.c), the centres of its queries
 * (policy/keep/learn/calibrate.c) and the measures of features. Alone it gives the sums of the fit
 * (policy/keep/learn/importance_sums.c) and the scores of policies that look at entries alone
 * (policy/keep/learn/importance_score.c). Other policies read it in engines of their own.
 * Invariant: the engine's pass has neither tap nor watch afterwards, however it ends.
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "engine/calibrate_resume.h"
#include "engine/engine.h"
#include "policy/keep/learn/calibrate.h"
#include "policy/keep/learn/importance_prompt.h"
#include "policy/keep/learn/importance_score.h"
#include "policy/keep/learn/importance_sums.h"
#include "policy/keep/learn/importance_target.h"

#define N_QUANTILE 64
#define HELD_EVERY 5 /* text 4, 9, 14, ...: what R^2 is measured on */
#define FIRST_KEY 4  /* positions before are looked at by every query: sinks, no text */
#define MAX_TEXT (1 << 20)

void pith_importance_params_default(pith_importance_params *out)
{
    *out = (pith_importance_params){.text = ""};
}

/* A calibration that runs. */
struct run {
    pith_engine *engine;
    const pith_importance_params *params;
    struct importance_prompt prompt;
    struct importance_gram *gram;
    struct importance_sums *sums;
    struct calibration *centres;
    struct pith_stats *stats;
    struct importance_score **score; /* [n_keep] */
    float *y;                        /* [n_lane][n_sample] targets, texts one after the other */
    int64_t *first;                  /* [n_text + 1] sample of a text's first target */
    int32_t *tokens; /* [longest] of the text that is read, with what is around it */
    uint8_t *select; /* [chunk] */
    int32_t longest; /* before, text, middle, text: of the longest text */
    int32_t n_lane;
    int64_t n_done; /* tokens evaluated, of n_all */
    int64_t n_all;
    /* The text that is read: */
    int32_t i;
    int32_t begin, end;               /* positions of its targets */
    struct importance_target *target; /* NULL: its targets are known from an earlier run */
    struct pi_resume resume;
};

/* ---- texts ---- */

/* Positions of the entries of text i that have targets. */
static void place_text(struct run *r, int32_t i)
{
    r->i = i;
    r->end = r->prompt.n_before + r->params->texts[i].n_token;
    r->begin = (int32_t)pi_min(pi_max(r->prompt.n_before, FIRST_KEY), r->end);
}

/* Tokens of the text with what is before it; whole: and of the request and the repetition. */
static int32_t fill_tokens(struct run *r, bool whole)
{
    const pith_importance_text *text = &r->params->texts[r->i];
    const struct {
        const int32_t *tokens;
        int32_t n;
    } part[] = {{r->prompt.before, r->prompt.n_before},
                {text->tokens, text->n_token},
                {r->prompt.middle, r->prompt.n_middle},
                {text->tokens, text->n_token}};
    int32_t n = 0;
    for (size_t i = 0; i < (whole ? 4 : 2); i++) {
        memcpy(r->tokens + n, part[i].tokens, (size_t)part[i].n * sizeof(*r->tokens));
        n += part[i].n;
    }
    return n;
}

static bool is_held(const struct run *r)
{
    return r->i % HELD_EVERY == HELD_EVERY - 1;
}

/* Targets of the text that is read; two lanes' targets are n_sample floats apart. */
static float *targets_of(const struct run *r)
{
    return r->y + r->first[r->i];
}

/* ---- evaluating ---- */

static pith_status report(struct run *r, int32_t n, pith_error *err)
{
    const pith_importance_params *p = r->params;
    r->n_done += n;
    if (p->progress != NULL && !p->progress(p->progress_user, (double)r->n_done / (double)r->n_all))
        return pi_fail(err, PITH_CANCELLED, "the calibration was cancelled");
    return PITH_OK;
}

/* Appends tokens [at, end) of the text to a sequence in passes of at most a chunk. Where that is
   cancelled the sequence is thrown away. */
static pith_status evaluate(struct run *r, struct kv_seq *kv, int32_t at, int32_t end, bool watched,
                            pith_error *err)
{
    pith_status status = PITH_OK;
    pi_advance_begin(r->engine, end - at, true);
    while (at < end && status == PITH_OK) {
        struct pi_pass_item item = {.kv = kv,
                                    .tokens = r->tokens + at,
                                    .n_tok = (int32_t)pi_min(r->engine->chunk, end - at),
                                    .pos0 = at,
                                    .owner = r,
                                    .watched = watched};
        pi_advance_pass(r->engine, item.n_tok, true);
        if (!pi_pass_run(r->engine->pass, &item, 1))
            status = pi_fail(err, PITH_CANCELLED, "the calibration was cancelled");
        else
            status = pi_pass_check(r->engine->pass, err);
        at += item.n_tok;
        kv_seq_slide(kv, true);
        if (status == PITH_OK)
            status = pi_advance_passed(r->engine, err);
        if (status == PITH_OK)
            status = report(r, item.n_tok, err);
    }
    pi_advance_end(r->engine);
    return status;
}

/* ---- the first reading ---- */

static void add_centres(struct run *r, const struct pi_pass_tap_rows *in)
{
    const pith_tap_rows rows = {.layer = in->layer,
                                .n_token = in->item->n_tok,
                                .pos0 = in->item->pos0,
                                .q_pre = in->q_pre,
                                .k = in->k};
    for (int32_t t = 0; t < rows.n_token; t++)
        r->select[t] = rows.pos0 + t >= r->begin && rows.pos0 + t < r->end;
    calibration_add(r->centres, &rows, r->select);
}

static void show_first(void *user, const struct pi_pass_tap_rows *rows)
{
    struct run *r = user;
    if (r->target != NULL)
        importance_target_rows(r->target, rows, r->engine->n_thread);
    if (rows->item->pos0 >= r->end)
        return;
    importance_sums_measure(r->sums, rows, r->begin, r->end);
    add_centres(r, rows);
}

static void show_attention(void *user, const struct pi_pass_attention *a, int32_t thread)
{
    const struct run *r = user;
    (void)thread;
    importance_target_attended(r->target, a);
}

/* Targets weigh what each query gave by what the values add: no word does. */
static void plan_rows(void *user, struct pi_pass_watched *lanes, int32_t n)
{
    (void)user;
    for (int32_t i = 0; i < n; i++)
        lanes[i].rows = true;
}

static void take_targets(const struct run *r)
{
    int32_t n_head = r->engine->model->hp.n_head_kv;
    size_t n_sample = (size_t)r->first[r->params->n_text];
    for (int32_t lane = 0; lane < r->n_lane; lane++)
        importance_target_lane(r->target, lane / n_head, lane % n_head,
                               targets_of(r) + (size_t)lane * n_sample);
}

/* Entries of the text that is read, which have targets. */
static int64_t text_len(const struct run *r)
{
    return r->first[r->i + 1] - r->first[r->i];
}

/* A text whose targets are known is read alone, for the sums that all texts add to. */
static pith_status read_again(struct run *r, struct kv_seq *kv, pith_error *err)
{
    int32_t n = fill_tokens(r, false);
    PI_TRY(report(r, r->prompt.n_middle + r->params->texts[r->i].n_token, err));
    PI_TRY(kv_seq_reserve(kv, n, err));
    return evaluate(r, kv, 0, n, false, err);
}

static pith_status repeat_text(struct run *r, struct kv_seq *kv, pith_error *err)
{
    size_t stride = (size_t)r->first[r->params->n_text];
    if (pi_resume_read(&r->resume, targets_of(r), r->n_lane, text_len(r), stride))
        return read_again(r, kv, err);
    int32_t n = fill_tokens(r, true), n_middle = r->prompt.n_middle;
    struct importance_span span = {r->begin, r->end, r->end + n_middle, n};
    PI_TRY(importance_target_create(r->engine->model, r->gram, &span, &r->target, err));
    PI_TRY(kv_seq_reserve(kv, n, err));
    PI_TRY(evaluate(r, kv, 0, span.query_begin, false, err));
    PI_TRY(evaluate(r, kv, span.query_begin, n, true, err));
    take_targets(r);
    pi_resume_write(&r->resume, targets_of(r), r->n_lane, text_len(r), stride);
    return PITH_OK;
}

/* Reads every text by a function, in a sequence of its own. */
static pith_status read_each(struct run *r,
                             pith_status (*read)(struct run *r, struct kv_seq *kv, pith_error *err),
                             pith_error *err)
{
    pith_status status = PITH_OK;
    for (int32_t i = 0; i < r->params->n_text && status == PITH_OK; i++) {
        struct kv_seq *kv = NULL;
        place_text(r, i);
        PI_TRY(kv_seq_create(r->engine->kv, &kv, err));
        status = read(r, kv, err);
        kv_seq_free(kv);
        importance_target_free(r->target);
        r->target = NULL;
    }
    return status;
}

/* ---- the second reading ---- */

static void show_second(void *user, const struct pi_pass_tap_rows *rows)
{
    struct run *r = user;
    importance_sums_add(r->sums, rows, r->begin, r->end, targets_of(r),
                        (size_t)r->first[r->params->n_text], is_held(r));
}

static void score_entries(struct run *r, int32_t s, const struct kv_seq *kv, void *state)
{
    importance_score_add(r->score[s], kv, r->tokens, r->end, state, r->begin, r->end, targets_of(r),
                         (size_t)r->first[r->params->n_text]);
}

static pith_status read_text(struct run *r, struct kv_seq *kv, pith_error *err)
{
    int32_t n = fill_tokens(r, false);
    PI_TRY(kv_seq_reserve(kv, n, err));
    PI_TRY(evaluate(r, kv, 0, n, false, err));
    for (int32_t s = 0; s < r->params->n_keep; s++)
        if (importance_score_is_alone(r->score[s]))
            score_entries(r, s, kv, NULL);
    return PITH_OK;
}

/* ---- policies that see the pass ---- */

static pith_status score_text(struct run *r, int32_t s, pith_engine *e, pith_error *err)
{
    pith_seq *seq = NULL;
    int32_t n = fill_tokens(r, false);
    PI_TRY(pith_seq_create(e, &seq, err));
    pith_status status = pith_seq_eval(seq, r->tokens, n, err);
    if (status == PITH_OK)
        score_entries(r, s, seq->memory.kv, (void *)(uintptr_t)pi_seq_keep_state(seq));
    pith_seq_free(seq);
    return status == PITH_OK ? report(r, n, err) : status;
}

static pith_status score_all(struct run *r, int32_t s, pith_error *err)
{
    const struct kv_geometry *g = kv_cache_geometry(r->engine->kv);
    pith_engine *e = NULL;
    pith_engine_params p;
    pith_status status = PITH_OK;
    pith_engine_params_default(&p);
    p.n_thread = r->engine->n_thread;
    p.device = pith_engine_device(r->engine);
    p.chunk = r->engine->chunk;
    p.page_len = g->page_len;
    p.kv_bytes = 2 * (kv_bytes_for_tokens(g, r->longest) + kv_bytes_of_state(g));
    p.keep = importance_score_text(r->score[s]);
    PI_TRY(pith_engine_create(r->engine->model, &p, &e, err));
    for (int32_t i = 0; i < r->params->n_text && status == PITH_OK; i++) {
        place_text(r, i);
        status = score_text(r, s, e, err);
    }
    pith_engine_free(e);
    return status;
}

/* ---- the result ---- */

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Of n ascending values, linear between them. */
static float quantile_of(const float *x, int64_t n, double q)
{
    double at = fmax(0.0, fmin((double)(n - 1), q * (double)n - 0.5));
    int64_t i = (int64_t)at;
    double part = at - (double)i;
    return (float)((double)x[i] * (1.0 - part) + (double)x[i + 1 < n ? i + 1 : i] * part);
}

/* Mean, deviation and quantiles of every lane's targets; sorts a copy. */
static pith_status describe(const struct run *r, struct stats_importance *m, pith_error *err)
{
    int64_t n = r->first[r->params->n_text];
    float *copy = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n, sizeof(*copy));
    if (copy == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %lld targets", (long long)n);
    for (int32_t lane = 0; lane < r->n_lane; lane++) {
        double sum = 0.0, square = 0.0;
        memcpy(copy, r->y + (size_t)lane * (size_t)n, (size_t)n * sizeof(*copy));
        for (int64_t i = 0; i < n; i++)
            sum += (double)copy[i];
        for (int64_t i = 0; i < n; i++)
            square += pow((double)copy[i] - sum / (double)n, 2.0);
        m->mean[lane] = (float)(sum / (double)n);
        m->deviation[lane] = (float)sqrt(square / (double)n);
        qsort(copy, (size_t)n, sizeof(*copy), compare);
        for (int32_t i = 0; i < m->n_quantile; i++)
            m->quantile[lane * m->n_quantile + i] = quantile_of(copy, n, (i + 0.5) / m->n_quantile);
    }
    pi_mem_free(copy);
    return PITH_OK;
}

static pith_status set_names(const struct run *r, pith_error *err)
{
    r->stats->select = PITH_SELECT_ALL;
    r->stats->n_token = r->first[r->params->n_text];
    return pi_engine_name_stats(r->engine, r->params->text, r->stats, err);
}

static pith_status make_importance(struct run *r, pith_error *err)
{
    const struct pi_hparams *hp = &r->engine->model->hp;
    const struct stats_importance shape = {.n_layer = hp->n_layer_full,
                                           .n_lane = r->n_lane,
                                           .n_embd = r->params->hidden ? hp->n_embd : 0,
                                           .n_feature = hp->dim_k + IMPORTANCE_KEY_EXTRA,
                                           .n_quantile = N_QUANTILE,
                                           .n_map = r->params->n_keep};
    PI_TRY(stats_importance_create(&shape, &r->stats->importance, err));
    PI_TRY(importance_sums_fit(r->sums, r->stats->importance, err));
    PI_TRY(describe(r, r->stats->importance, err));
    for (int32_t s = 0; s < r->params->n_keep; s++)
        PI_TRY(importance_score_fit(r->score[s], &r->stats->importance->map[s], err));
    r->stats->format = "pith 2";
    return stats_check(r->stats, err);
}

/* ---- all of it ---- */

static pith_status open_scores(struct run *r, pith_error *err)
{
    const pith_importance_params *p = r->params;
    const struct policy_model model = pi_engine_policy_model(r->engine);
    if (p->path != NULL && p->n_keep > 0)
        PI_TRY(pith_stats_save(r->stats, p->path, err));
    for (int32_t s = 0; s < p->n_keep; s++) {
        PI_TRY(importance_score_create(p->keep[s], p->path, r->longest, &model, r->engine->n_thread,
                                       &r->score[s], err));
        if (!importance_score_is_alone(r->score[s])) /* readings that were not counted */
            r->n_all += r->first[p->n_text] + (int64_t)p->n_text * r->prompt.n_before;
    }
    return PITH_OK;
}

/* Both readings, with the pass's tap and watch. */
static pith_status read_twice(struct run *r, pith_error *err)
{
    struct pi_pass *pass = r->engine->pass;
    struct pi_pass_watch watch = {r, plan_rows, show_attention, NULL, 0};
    struct calibration_search how = {.n_thread = r->engine->n_thread};
    PI_TRY(pi_pass_set_tap(pass, &(struct pi_pass_tap){.fn = show_first, .user = r}, err));
    PI_TRY(pi_pass_set_watch(pass, &watch, err));
    PI_TRY(pi_pass_reserve_watch(pass, r->longest, err));
    pith_status status = read_each(r, repeat_text, err);
    pi_pass_set_watch(pass, NULL, NULL);
    PI_TRY(status);
    importance_sums_bound(r->sums);
    PI_TRY(calibration_finish(r->centres, &how, &r->stats, err));
    PI_TRY(set_names(r, err));
    PI_TRY(open_scores(r, err));
    PI_TRY(pi_pass_set_tap(pass, &(struct pi_pass_tap){.fn = show_second, .user = r}, err));
    return read_each(r, read_text, err);
}

static pith_status calibrate(struct run *r, pith_error *err)
{
    pith_engine *e = r->engine;
    pith_status status = read_twice(r, err);
    pi_pass_set_watch(e->pass, NULL, NULL);
    pi_engine_update_tap(e, NULL, NULL, NULL);
    PI_TRY(status);
    for (int32_t s = 0; s < r->params->n_keep; s++)
        if (!importance_score_is_alone(r->score[s]))
            PI_TRY(score_all(r, s, err));
    return make_importance(r, err);
}

static pith_status check(const pith_engine *e, const pith_importance_params *p, pith_error *err)
{
    if (e == NULL || p == NULL || (p->n_text > 0 && p->texts == NULL) ||
        (p->n_keep > 0 && p->keep == NULL))
        return pi_fail(err, PITH_INVALID, "engine, params, texts and keep must not be NULL");
    if (!e->traits.full)
        return pi_fail(err, PITH_INVALID,
                       "an engine with policies does not show what full attention sees");
    if (p->n_text < 1 || p->n_text > MAX_TEXT)
        return pi_fail(err, PITH_INVALID, "n_text: %d is not in 1..%d", p->n_text, MAX_TEXT);
    if (p->n_keep < 0 || p->n_keep > STATS_MAX_MAP)
        return pi_fail(err, PITH_INVALID, "n_keep: %d is not in 0..%d", p->n_keep, STATS_MAX_MAP);
    for (int32_t i = 0; i < p->n_keep; i++)
        PI_TRY(importance_score_check(p->keep[i], err));
    for (int32_t i = 0; i < p->n_text; i++) {
        if (p->texts[i].n_token < 2 * FIRST_KEY || p->texts[i].n_token > INT32_MAX / 4)
            return pi_fail(err, PITH_INVALID, "text %d: %d tokens are not in %d..%d", i,
                           p->texts[i].n_token, 2 * FIRST_KEY, INT32_MAX / 4);
        for (int32_t t = 0; t < p->texts[i].n_token; t++)
            if (p->texts[i].tokens[t] < 0 || p->texts[i].tokens[t] >= e->model->hp.n_vocab)
                return pi_fail(err, PITH_INVALID, "text %d, token %d: id %d is not in 0..%d", i, t,
                               p->texts[i].tokens[t], e->model->hp.n_vocab - 1);
    }
    if (p->text != NULL && strlen(p->text) > STATS_MAX_TEXT)
        return pi_fail(err, PITH_INVALID, "text: %zu bytes are more than %d", strlen(p->text),
                       STATS_MAX_TEXT);
    return PITH_OK;
}

/* The sum of all that targets depend on: the model, and tokens as they are read. */
static uint64_t resume_key(const struct run *r)
{
    struct pi_sum sum;
    const pith_importance_params *p = r->params;
    uint64_t model = pi_model_fingerprint(r->engine->model);
    pith_model_info info; /* files of one model in other types give other targets */
    pith_model_get_info(r->engine->model, &info);
    pi_sum_start(&sum);
    pi_sum_add(&sum, &info.file_bytes, sizeof(info.file_bytes));
    pi_sum_add(&sum, &model, sizeof(model));
    pi_sum_add(&sum, r->prompt.before, (size_t)r->prompt.n_before * sizeof(int32_t));
    pi_sum_add(&sum, r->prompt.middle, (size_t)r->prompt.n_middle * sizeof(int32_t));
    for (int32_t i = 0; i < p->n_text; i++) {
        pi_sum_add(&sum, &p->texts[i].n_token, sizeof(p->texts[i].n_token));
        pi_sum_add(&sum, p->texts[i].tokens, (size_t)p->texts[i].n_token * sizeof(int32_t));
    }
    return pi_sum_value(&sum);
}

/* The amount of work by the texts and the model, and the arrays for it. */
static pith_status prepare(struct run *r, pith_error *err)
{
    const pith_importance_params *p = r->params;
    pith_engine *e = r->engine;
    const struct pi_hparams *hp = &e->model->hp;
    int32_t n_around = r->prompt.n_before + r->prompt.n_middle;
    r->n_lane = hp->n_layer_full * hp->n_head_kv;
    r->first = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)p->n_text + 1, sizeof(*r->first));
    if (r->first == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %d texts", p->n_text);
    for (int32_t i = 0; i < p->n_text; i++) {
        int32_t n = p->texts[i].n_token;
        place_text(r, i);
        r->first[i + 1] = r->first[i] + (r->end - r->begin);
        r->longest = (int32_t)pi_max(r->longest, n_around + 2 * n);
        r->n_all += n_around + 2 * n + r->prompt.n_before + n;
    }
    size_t n_sample = (size_t)r->first[p->n_text];
    r->y = pi_mem_alloc_n(PI_MEM_OTHER, n_sample, (size_t)r->n_lane * sizeof(*r->y));
    r->tokens = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)r->longest, sizeof(*r->tokens));
    r->select = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)e->chunk, 1);
    r->score = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)p->n_keep, sizeof(*r->score));
    if (r->y == NULL || r->tokens == NULL || r->select == NULL || r->score == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the targets of %zu tokens", n_sample);
    PI_TRY(pi_resume_open(&r->resume, p->resume, resume_key(r), err));
    PI_TRY(calibration_create(e->model, 1, 1, (int64_t)n_sample, &r->centres, err));
    PI_TRY(importance_sums_create(e->model, p->hidden, e->chunk, e->n_thread, &r->sums, err));
    return importance_gram_create(e->model, e->n_thread, &r->gram, err);
}

static void clean_up(struct run *r)
{
    for (int32_t s = 0; r->score != NULL && s < r->params->n_keep; s++)
        importance_score_free(r->score[s]);
    importance_prompt_free(&r->prompt);
    importance_gram_free(r->gram);
    importance_sums_free(r->sums);
    pi_resume_close(&r->resume);
    importance_target_free(r->target);
    calibration_free(r->centres);
    void *const parts[] = {r->score, r->y, r->first, r->tokens, r->select};
    for (size_t i = 0; i < PI_LEN(parts); i++)
        pi_mem_free(parts[i]);
}

pith_status pith_calibrate_importance(pith_engine *engine, const pith_importance_params *params,
                                      pith_stats **out, pith_error *err)
{
    struct run r = {.engine = engine, .params = params};
    if (out == NULL)
        return pi_fail(err, PITH_INVALID, "pith_calibrate_importance: out must not be NULL");
    PI_TRY(check(engine, params, err));
    PI_TRY(importance_prompt_create(engine->model, &r.prompt, err));
    pith_status status = prepare(&r, err);
    if (status == PITH_OK)
        status = calibrate(&r, err);
    clean_up(&r);
    if (status != PITH_OK) {
        pith_stats_free(r.stats);
        return status;
    }
    *out = r.stats;
    return PITH_OK;
}
