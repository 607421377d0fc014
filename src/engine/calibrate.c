/*
 * calibrate.c - evaluates a text for its statistics: which tokens, in which sequences, and whose
 * queries count. The sums are policy/keep/learn/calibrate.c's. Invariant: the engine's tap is unset
 * and its sequences are gone afterwards, however it ends.
 */
#include "policy/keep/learn/calibrate.h"

#include <math.h>

#include "base/mem.h"
#include "engine/engine.h"

void pith_calibrate_params_default(pith_calibrate_params *out)
{
    *out = (pith_calibrate_params){
        .select = PITH_SELECT_ALL, .n_generate = 512, .n_centre = 1, .n_sample = 8192, .text = ""};
    pith_sample_params_default(&out->sample);
}

/* A calibration that runs. */
struct run {
    pith_engine *engine;
    const pith_calibrate_params *params;
    struct calibration *sums;
    const int32_t *tokens; /* [n_token] the text */
    int32_t n_token;
    int32_t piece;  /* most tokens of a piece */
    int64_t n_done; /* tokens evaluated, of n_all */
    int64_t n_all;
    double share;  /* of the whole that evaluating is; finding centres is the rest */
    int32_t begin; /* the running piece is tokens [begin, end) of the text */
    int32_t end;
    uint8_t *select; /* [chunk] of the rows being shown */
};

/* ---- which queries count ---- */

/* Whether token i of the running piece, counted from its first, is selected. */
static bool selects(const struct run *r, int32_t i)
{
    const pith_calibrate_params *p = r->params;
    if (p->select == PITH_SELECT_GENERATED)
        return i >= r->end - r->begin;
    if (p->select == PITH_SELECT_RANGES) {
        int32_t at = r->begin + i, lo = 0, hi = p->n_range;
        while (lo < hi) { /* the first range that ends after the token */
            int32_t mid = lo + (hi - lo) / 2;
            if (p->ranges[mid].end <= at)
                lo = mid + 1;
            else
                hi = mid;
        }
        return lo < p->n_range && at >= p->ranges[lo].begin;
    }
    return true;
}

static bool show(void *user, const pith_tap_rows *rows)
{
    struct run *r = user;
    for (int32_t t = 0; t < rows->n_token; t++)
        r->select[t] = selects(r, rows->pos0 + t);
    calibration_add(r->sums, rows, r->select);
    return true;
}

/* Tokens of the text that the selection takes. */
static int64_t count_selected(const pith_calibrate_params *p, int32_t n_token, int64_t n_piece)
{
    int64_t n = 0;
    if (p->select == PITH_SELECT_ALL)
        return n_token;
    if (p->select == PITH_SELECT_GENERATED)
        return n_piece * p->n_generate;
    for (int32_t i = 0; i < p->n_range; i++)
        n += pi_max(0, pi_min(p->ranges[i].end, n_token) - p->ranges[i].begin);
    return n;
}

/* ---- checks ---- */

static pith_status check_params(const pith_calibrate_params *p, pith_error *err)
{
    PI_TRY(pi_check_range("select", p->select, PITH_SELECT_ALL, PITH_SELECT_RANGES, err));
    PI_TRY(pi_check_range("n_centre", p->n_centre, 1, STATS_MAX_CENTRE, err));
    PI_TRY(pi_check_range("n_sample", p->n_sample, p->n_centre, 1 << 24, err));
    PI_TRY(pi_check_range("n_generate", p->n_generate, 1, 1 << 24, err));
    PI_TRY(pi_check_range("n_ctx", p->n_ctx, 0, INT32_MAX, err));
    PI_TRY(pi_check_range("n_range", p->n_range, 0, STATS_MAX_RANGE, err));
    if (p->select == PITH_SELECT_RANGES && p->n_range > 0 && p->ranges == NULL)
        return pi_fail(err, PITH_INVALID, "ranges: NULL, and n_range says %d", p->n_range);
    for (int32_t i = 0; p->select == PITH_SELECT_RANGES && i < p->n_range; i++)
        if (p->ranges[i].begin < (i > 0 ? p->ranges[i - 1].end : 0) ||
            p->ranges[i].end <= p->ranges[i].begin)
            return pi_fail(err, PITH_INVALID,
                           "range %d: tokens %d to %d are empty or begin before the range before "
                           "them ends",
                           i, p->ranges[i].begin, p->ranges[i].end);
    if (p->text != NULL && strlen(p->text) > STATS_MAX_TEXT)
        return pi_fail(err, PITH_INVALID, "text: %zu bytes are more than %d", strlen(p->text),
                       STATS_MAX_TEXT);
    return PITH_OK;
}

static pith_status check_engine(const pith_engine *e, const int32_t *tokens, int32_t n_token,
                                pith_error *err)
{
    if (e == NULL || tokens == NULL)
        return pi_fail(err, PITH_INVALID, "engine and tokens must not be NULL");
    if (e->traits.hides != NULL)
        return pi_fail(err, PITH_INVALID,
                       "an engine with a %s policy does not show what full attention sees",
                       e->traits.hides);
    if (n_token < 1)
        return pi_fail(err, PITH_INVALID, "n_token: %d tokens say nothing", n_token);
    return PITH_OK;
}

/* ---- evaluating ---- */

/* Tells the caller of n tokens beyond those that are done; false: it wants no more. */
static bool report(const struct run *r, double n)
{
    const pith_calibrate_params *p = r->params;
    double done = ((double)r->n_done + n) / (double)r->n_all;
    return p->progress == NULL || p->progress(p->progress_user, r->share * done);
}

static bool go_on(void *user, double fraction)
{
    const struct run *r = user;
    return report(r, fraction * (double)(r->end - r->begin));
}

static bool go_on_searching(void *user, double fraction)
{
    const struct run *r = user;
    const pith_calibrate_params *p = r->params;
    return p->progress == NULL ||
           p->progress(p->progress_user, r->share + (1.0 - r->share) * fraction);
}

/* The tokens that follow the piece, one by one: what matters is their queries, so the last one is
   evaluated, too. */
static pith_status generate(struct run *r, pith_seq *seq, pith_error *err)
{
    const pith_calibrate_params *p = r->params;
    pith_sampler *sampler = NULL;
    pith_sample_params sample = p->sample;
    sample.seed += (uint64_t)r->begin; /* pieces differ */
    PI_TRY(pith_sampler_create(&sample, r->engine->model->hp.n_vocab, &sampler, err));
    for (int32_t i = r->begin; i < r->end; i++)
        pith_sampler_accept(sampler, r->tokens[i]);
    pith_status status = PITH_OK;
    for (int32_t i = 0; status == PITH_OK && i < p->n_generate; i++) {
        status = pith_logits_check(r->engine->model, pith_seq_logits(seq), err);
        if (status != PITH_OK)
            break;
        int32_t token = pith_sampler_sample(sampler, pith_seq_logits(seq));
        pith_sampler_accept(sampler, token);
        status = pith_seq_eval(seq, &token, 1, err);
        r->n_done++;
        if (status == PITH_OK && !report(r, 0.0))
            status = pi_fail(err, PITH_CANCELLED, "the calibration was cancelled");
    }
    pith_sampler_free(sampler);
    return status;
}

static pith_status read_piece(struct run *r, pith_error *err)
{
    bool more = r->params->select == PITH_SELECT_GENERATED;
    pith_seq *seq = NULL;
    PI_TRY(pith_seq_create(r->engine, &seq, err));
    pith_batch_item item = {.seq = seq,
                            .tokens = r->tokens + r->begin,
                            .n_token = r->end - r->begin,
                            .logits = more ? PITH_LOGITS_LAST : PITH_LOGITS_NONE};
    pith_status status = pith_batch_eval(r->engine, &item, 1, go_on, r, err);
    r->n_done += r->end - r->begin;
    if (status == PITH_OK && more)
        status = generate(r, seq, err);
    pith_seq_free(seq);
    return status;
}

static pith_status read_all(struct run *r, pith_error *err)
{
    for (r->begin = 0; r->begin < r->n_token; r->begin = r->end) {
        r->end = (int32_t)pi_min(r->n_token, (int64_t)r->begin + r->piece);
        PI_TRY(read_piece(r, err));
    }
    return PITH_OK;
}

/* ---- the result ---- */

pith_status pi_engine_name_stats(const struct pith_engine *e, const char *text,
                                 struct pith_stats *s, pith_error *err)
{
    const char *model = pi_model_name(e->model);
    text = text != NULL ? text : "";
    s->model = policy_name(model, (size_t)pi_min((int64_t)strlen(model), STATS_MAX_TEXT));
    s->text = policy_name(text, strlen(text));
    if (s->model == NULL || s->text == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the names of model and text");
    return PITH_OK;
}

static pith_status set_names(const struct run *r, struct pith_stats *s, pith_error *err)
{
    const pith_calibrate_params *p = r->params;
    s->select = p->select;
    s->n_token = r->n_done;
    if (p->select == PITH_SELECT_RANGES) {
        s->range = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)p->n_range, sizeof(*s->range));
        if (s->range != NULL)
            memcpy(s->range, p->ranges, (size_t)p->n_range * sizeof(*s->range));
        s->n_range = s->range != NULL ? p->n_range : 0;
    }
    if (p->select == PITH_SELECT_RANGES && s->range == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the names of model and text");
    return pi_engine_name_stats(r->engine, p->text, s, err);
}

/* Calibrates with what check_params accepted. */
static pith_status calibrate(struct run *r, struct pith_stats **out, pith_error *err)
{
    const pith_calibrate_params *p = r->params;
    pith_engine *e = r->engine;
    int64_t n_piece = pi_ceil_div(r->n_token, r->piece);
    int64_t n_select = count_selected(p, r->n_token, n_piece);
    if (n_select == 0)
        return pi_fail(err, PITH_INVALID, "none of the %d tokens is selected", r->n_token);
    if (n_select < p->n_centre)
        return pi_fail(err, PITH_INVALID, "n_centre: %d centres of %lld queries", p->n_centre,
                       (long long)n_select);
    r->n_all = r->n_token + (p->select == PITH_SELECT_GENERATED ? n_select : 0);
    r->share = p->n_centre > 1 ? 0.5 : 1.0;
    PI_TRY(calibration_create(e->model, p->n_centre, p->n_sample, n_select, &r->sums, err));
    r->select = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)e->chunk, 1);
    if (r->select == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a selection");
    PI_TRY(pith_engine_set_tap(e, show, r, err));
    pith_status status = read_all(r, err);
    pith_engine_set_tap(e, NULL, NULL, NULL);
    PI_TRY(status);
    struct calibration_search how = {.seed = p->seed,
                                     .n_thread = r->engine->n_thread,
                                     .progress = go_on_searching,
                                     .progress_user = r};
    PI_TRY(calibration_finish(r->sums, &how, out, err));
    return set_names(r, *out, err);
}

pith_status pith_calibrate(pith_engine *engine, const int32_t *tokens, int32_t n_token,
                           const pith_calibrate_params *params, pith_stats **out, pith_error *err)
{
    pith_calibrate_params defaults;
    struct pith_stats *s = NULL;
    pith_calibrate_params_default(&defaults);
    const pith_calibrate_params *p = params != NULL ? params : &defaults;
    if (out == NULL)
        return pi_fail(err, PITH_INVALID, "pith_calibrate: out must not be NULL");
    PI_TRY(check_engine(engine, tokens, n_token, err));
    PI_TRY(check_params(p, err));
    int32_t n_train = engine->model->hp.n_ctx_train;
    int32_t n_ctx = p->n_ctx > 0 ? p->n_ctx : n_train;
    if (p->n_ctx == 0 && p->select == PITH_SELECT_GENERATED) {
        n_ctx -= p->n_generate; /* room for what follows */
        if (n_ctx < 1)
            return pi_fail(err, PITH_INVALID,
                           "n_generate: %d tokens leave none of the model's context of %d",
                           p->n_generate, n_train);
    }
    struct run r = {
        .engine = engine, .params = p, .tokens = tokens, .n_token = n_token, .piece = n_ctx};
    pith_status status = calibrate(&r, &s, err);
    calibration_free(r.sums);
    pi_mem_free(r.select);
    if (status != PITH_OK) {
        pith_stats_free(s);
        return status;
    }
    *out = s;
    return PITH_OK;
}

/* ---- curves ---- */

pith_status pith_stats_curve(const pith_stats *s, const pith_model *model, int32_t layer,
                             int32_t head, const double *distance, int32_t n, double *out,
                             pith_error *err)
{
    if (s == NULL || model == NULL || out == NULL || (n > 0 && distance == NULL))
        return pi_fail(err, PITH_INVALID, "pith_stats_curve: no argument may be NULL");
    PI_TRY(pith_stats_check(s, model, err));
    if (layer < 0 || layer >= s->n_layer || head < 0 || head >= s->n_head)
        return pi_fail(err, PITH_NOT_FOUND, "layer %d, head %d: there are %d layers of %d heads",
                       layer, head, s->n_layer, s->n_head);
    if (s->k == NULL)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s statistics hold no keys; pith calibrate gathers them", s->format);
    struct stats_row q = stats_q(s, layer, head), k = stats_k(s, layer, head);
    /* Rotation multiplies both sides by the magnitude, and leaves other dimensions alone. */
    const struct pi_rope *rope = pi_model_kv_rope(model, layer);
    const double *freq = rope->freq, scale = pow((double)rope->magnitude, 2.0);
    double flat = stats_predict(&q, &k, freq, 0, s->n_flat, 0.0);
    for (int32_t i = 0; i < n; i++)
        out[i] = scale * stats_predict(&q, &k, freq, s->n_pair, 0, distance[i]) + flat;
    return PITH_OK;
}

#define MAX_DISTANCES 64

/* Correlations of curves with logits while a text is read. */
struct check {
    const struct pith_stats *s;
    const struct pith_model *model;
    float *key;        /* [n_layer][n_token][n_head_kv][dim_k] */
    double *sum;       /* [n_layer][n_head] of correlations */
    double *curve;     /* [n_layer][n_head][n_distance] */
    int32_t *distance; /* [n_distance] */
    int32_t n_distance;
    int32_t n_token;
};

/* 1, 2, 3, 5, 8, 12, 18, ...: below max. */
static int32_t fill_distances(int32_t max, int32_t *out)
{
    int32_t n = 0;
    for (int64_t d = 1; d < max && n < MAX_DISTANCES; d = (3 * d + 1) / 2)
        out[n++] = (int32_t)d;
    return n;
}

static double dot(const float *a, const float *b, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Queries of the text's second half, so that each sees every distance. */
static bool compare(void *user, const pith_tap_rows *rows)
{
    struct check *c = user;
    const struct pi_hparams *hp = &c->model->hp;
    size_t dim = (size_t)hp->dim_k, n_kv = (size_t)hp->n_head_kv, n_head = (size_t)hp->n_head;
    size_t group = n_head / n_kv;
    if (rows->layer >= hp->n_layer_full)
        return true;
    float *key = c->key + (size_t)rows->layer * (size_t)c->n_token * n_kv * dim;
    double logit[MAX_DISTANCES];
    memcpy(key + (size_t)rows->pos0 * n_kv * dim, rows->k,
           (size_t)rows->n_token * n_kv * dim * sizeof(*key));
    for (int32_t t = 0; t < rows->n_token; t++) {
        int32_t pos = rows->pos0 + t;
        if (pos < c->n_token / 2)
            continue;
        for (size_t h = 0; h < n_head; h++) {
            const float *q = rows->q + ((size_t)t * n_head + h) * dim;
            size_t lane = (size_t)rows->layer * n_head + h;
            for (int32_t i = 0; i < c->n_distance; i++)
                logit[i] = dot(q, key + ((size_t)(pos - c->distance[i]) * n_kv + h / group) * dim,
                               hp->dim_k);
            c->sum[lane] +=
                stats_correlate(logit, c->curve + lane * (size_t)c->n_distance, c->n_distance);
        }
    }
    return true;
}

static pith_status fill_curves(struct check *c, pith_error *err)
{
    double distance[MAX_DISTANCES];
    for (int32_t i = 0; i < c->n_distance; i++)
        distance[i] = c->distance[i];
    for (int32_t l = 0; l < c->s->n_layer; l++)
        for (int32_t h = 0; h < c->s->n_head; h++)
            PI_TRY(pith_stats_curve(c->s, c->model, l, h, distance, c->n_distance,
                                    c->curve + ((size_t)l * (size_t)c->s->n_head + (size_t)h) *
                                                   (size_t)c->n_distance,
                                    err));
    return PITH_OK;
}

static pith_status reconstruct(struct check *c, pith_engine *e, const int32_t *tokens,
                               pith_error *err)
{
    const struct pi_hparams *hp = &c->model->hp;
    size_t n_layer = (size_t)hp->n_layer_full, n_lane = n_layer * (size_t)hp->n_head;
    size_t n_key = n_layer * (size_t)hp->n_head_kv * (size_t)hp->dim_k;
    pith_seq *seq = NULL;
    c->key = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)c->n_token, n_key * sizeof(*c->key));
    c->sum = pi_mem_alloc_n(PI_MEM_OTHER, n_lane, sizeof(*c->sum));
    c->curve = pi_mem_alloc_n(PI_MEM_OTHER, n_lane * (size_t)c->n_distance, sizeof(*c->curve));
    if (c->key == NULL || c->sum == NULL || c->curve == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the keys of %d tokens", c->n_token);
    PI_TRY(fill_curves(c, err));
    PI_TRY(pith_seq_create(e, &seq, err));
    pith_status status = pith_engine_set_tap(e, compare, c, err);
    pith_batch_item item = {
        .seq = seq, .tokens = tokens, .n_token = c->n_token, .logits = PITH_LOGITS_NONE};
    if (status == PITH_OK)
        status = pith_batch_eval(e, &item, 1, NULL, NULL, err);
    pith_engine_set_tap(e, NULL, NULL, NULL);
    pith_seq_free(seq);
    return status;
}

pith_status pith_stats_reconstruct(const pith_stats *s, pith_engine *engine, const int32_t *tokens,
                                   int32_t n_token, double *out, pith_error *err)
{
    int32_t distance[MAX_DISTANCES];
    if (s == NULL || out == NULL)
        return pi_fail(err, PITH_INVALID, "pith_stats_reconstruct: stats and out must not be NULL");
    PI_TRY(check_engine(engine, tokens, n_token, err));
    PI_TRY(pith_stats_check(s, engine->model, err));
    struct check c = {.s = s, .model = engine->model, .distance = distance, .n_token = n_token};
    c.n_distance = fill_distances(n_token / 2, distance);
    if (c.n_distance < 4)
        return pi_fail(err, PITH_INVALID, "n_token: %d tokens are too few for a curve", n_token);
    pith_status status = reconstruct(&c, engine, tokens, err);
    size_t n_lane = (size_t)s->n_layer * (size_t)s->n_head;
    for (size_t i = 0; status == PITH_OK && i < n_lane; i++)
        out[i] = c.sum[i] / (double)(n_token - n_token / 2);
    pi_mem_free(c.key);
    pi_mem_free(c.sum);
    pi_mem_free(c.curve);
    return status;
}
