/*
 * replay.c - `replay`: what policies do to recorded tensors, and what attention loses by it. They
 * run in the library's own store (engine/replay.h). The queries that come after a stop are those
 * that a read policy chooses for. They also judge the rest, by the reference arithmetic of lost.c
 * on the recorded numbers. It must not choose entries itself.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "engine/replay.h"
#include "eval.h"
#include "kept.h"
#include "lost.h"
#include "record.h"
#include "pith/policy.h"

#define N_MISSING_MAX 1024

/* Figures of one policy: sums over its rows. */
struct totals {
    double mass, error, share;
    double read; /* entries that were read of those that are left, a share */
    double n;    /* rows */
    struct pi_replay_stats stats;
};

/* Options of pith_engine_params that are tried. */
struct variant {
    const char *keep, *read; /* NULL: none; borrowed */
};

/* Everything of one call. Zero it before use; freed at any stage. */
struct replay {
    const struct eval_setup *setup;
    const struct eval_replay_params *params;
    struct eval_record record;
    struct variant *variants; /* [n_policy], owned */
    int32_t n_policy;
    struct totals *totals;    /* [n_policy], owned */
    int32_t p;                /* the running policy, and .. */
    struct pi_replay *policy; /* .. it at work; owned */
    const int32_t *at;        /* [n_at] stops */
    int32_t n_at;
    int32_t default_at;
    int32_t n_need;  /* tokens whose keys and values are read */
    float **k;       /* [n_layer] -> [n_need][n_head_kv][dim_k], owned */
    float **v;       /* [n_layer] -> [n_need][n_head_kv][dim_v], owned */
    float *q;        /* [n_query][n_head][dim_k] of one layer and stop, owned */
    int32_t *pos;    /* [n_need] positions of a lane, owned */
    bool *kept;      /* [n_need] owned */
    double *mean;    /* [n_need] mean weight of each entry, owned */
    double *scratch; /* of lost_measure, owned */
    json_t *rows;    /* owned */
};

static void replay_free(struct replay *r)
{
    for (int32_t l = 0; l < r->record.n_layer; l++) {
        if (r->k != NULL)
            free(r->k[l]);
        if (r->v != NULL)
            free(r->v[l]);
    }
    free(r->k);
    free(r->v);
    free(r->q);
    free(r->pos);
    free(r->kept);
    free(r->mean);
    free(r->scratch);
    free(r->totals);
    free(r->variants);
    json_decref(r->rows);
    pi_replay_free(r->policy);
    eval_record_close(&r->record);
}

/* ---- what is asked ---- */

static pith_status list_variants(struct replay *r, pith_error *err)
{
    const struct eval_replay_params *p = r->params;
    const pith_engine_params *engine = &r->setup->engine;
    int32_t n = p->n_policy + p->n_reader;
    r->n_policy = n > 0 ? n : 1;
    r->variants = calloc((size_t)r->n_policy, sizeof(*r->variants));
    if (r->variants == NULL)
        return eval_fail(err, PITH_NOMEM, "replay: no memory for %d policies", r->n_policy);
    for (int32_t i = 0; i < r->n_policy; i++) {
        struct variant *v = &r->variants[i];
        v->keep = i < p->n_policy ? p->policies[i] : engine->keep;
        v->read = i >= p->n_policy && i < n ? p->readers[i - p->n_policy] : engine->read;
    }
    return PITH_OK;
}

static pith_status check_params(const struct replay *r, pith_error *err)
{
    const struct eval_replay_params *p = r->params;
    for (int32_t i = 0; i < r->n_policy; i++) {
        PI_TRY(pith_policy_check(PITH_KEEP, r->variants[i].keep, err));
        PI_TRY(pith_policy_check(PITH_READ, r->variants[i].read, err));
    }
    if (p->path == NULL)
        return eval_fail(err, PITH_INVALID, "replay: no file of recorded tensors is given");
    if (p->n_query < 1)
        return eval_fail(err, PITH_INVALID, "replay: %d queries: there must be one at least",
                         p->n_query);
    if (p->n_missing < 0 || p->n_missing > N_MISSING_MAX)
        return eval_fail(err, PITH_INVALID, "replay: %d missing positions are not in 0..%d",
                         p->n_missing, N_MISSING_MAX);
    return PITH_OK;
}

/* Queries after a stop: fewer where the record ends. */
static int32_t n_query_at(const struct replay *r, int32_t at)
{
    int32_t left = r->record.n_token - at;
    return left < r->params->n_query ? left : r->params->n_query;
}

static pith_status check_stops(struct replay *r, pith_error *err)
{
    const struct eval_replay_params *p = r->params;
    int32_t n = r->record.n_token, previous = 0;
    r->at = p->at;
    r->n_at = p->n_at;
    if (p->n_at <= 0) {
        r->default_at = n - p->n_query;
        r->at = &r->default_at;
        r->n_at = 1;
        if (r->default_at < 1)
            return eval_fail(err, PITH_INVALID,
                             "replay: %s has %d tokens, and the last %d are to be queries: nothing "
                             "is left to keep",
                             p->path, n, p->n_query);
    }
    for (int32_t i = 0; i < r->n_at; i++) {
        if (r->at[i] <= previous || r->at[i] >= n)
            return eval_fail(err, PITH_INVALID, "replay: %s: stop %d is not in %d..%d", p->path,
                             r->at[i], previous + 1, n - 1);
        previous = r->at[i];
    }
    r->n_need = previous + n_query_at(r, previous);
    for (int32_t i = 0; i < r->n_need; i++)
        if (r->record.position[i] != i)
            return eval_fail(err, PITH_INVALID,
                             "replay: %s: positions[%d] is %d; every token from position 0 on is "
                             "needed",
                             p->path, i, r->record.position[i]);
    return PITH_OK;
}

/* ---- tensors ---- */

/* Rows [first, first + n) of t, of len floats each, which must be finite. */
static pith_status read_rows(const struct replay *r, const struct safetensor *t, int32_t first,
                             int32_t n, size_t len, float *out, pith_error *err)
{
    int64_t begin = (int64_t)first * (int64_t)len, n_value = (int64_t)n * (int64_t)len;
    if (!safetensor_read_f32(t, begin, n_value, out))
        return eval_fail(err, PITH_FORMAT, "replay: %s: %s has not %d tokens", r->params->path,
                         t->name, first + n);
    for (int64_t i = 0; i < n_value; i++)
        if (!isfinite(out[i]))
            return eval_fail(err, PITH_FORMAT, "replay: %s: %s of token %lld is not finite",
                             r->params->path, t->name, (long long)((begin + i) / (int64_t)len));
    return PITH_OK;
}

/* A new array of the first n_need rows of t. */
static pith_status load_rows(const struct replay *r, const struct safetensor *t, size_t len,
                             float **out, pith_error *err)
{
    if (len <= SIZE_MAX / sizeof(float) / (size_t)r->n_need)
        *out = malloc((size_t)r->n_need * len * sizeof(float));
    if (*out == NULL)
        return eval_fail(err, PITH_NOMEM, "replay: no memory for %s of %d tokens", t->name,
                         r->n_need);
    return read_rows(r, t, 0, r->n_need, len, *out, err);
}

static pith_status load_tensors(struct replay *r, pith_error *err)
{
    const struct eval_record *rec = &r->record;
    size_t n_layer = (size_t)rec->n_layer;
    size_t k_len = (size_t)rec->n_head_kv * (size_t)rec->dim_k;
    size_t v_len = (size_t)rec->n_head_kv * (size_t)rec->dim_v;
    r->k = calloc(n_layer, sizeof(*r->k));
    r->v = calloc(n_layer, sizeof(*r->v));
    if (r->k == NULL || r->v == NULL)
        return eval_fail(err, PITH_NOMEM, "replay: no memory for %d layers", rec->n_layer);
    for (int32_t l = 0; l < rec->n_layer; l++) {
        PI_TRY(load_rows(r, rec->layer[l].k, k_len, &r->k[l], err));
        PI_TRY(load_rows(r, rec->layer[l].v, v_len, &r->v[l], err));
    }
    return PITH_OK;
}

static struct lost_job make_job(const struct replay *r, int32_t layer, int32_t head, int32_t at)
{
    const struct eval_record *rec = &r->record;
    int32_t n_group = rec->n_head / rec->n_head_kv;
    size_t dim_k = (size_t)rec->dim_k, dim_v = (size_t)rec->dim_v;
    return (struct lost_job){
        .q = r->q + (size_t)head * (size_t)n_group * dim_k,
        .q_stride = (size_t)rec->n_head * dim_k,
        .k = r->k[layer] + (size_t)head * dim_k,
        .k_stride = (size_t)rec->n_head_kv * dim_k,
        .v = r->v[layer] + (size_t)head * dim_v,
        .v_stride = (size_t)rec->n_head_kv * dim_v,
        .n_query = n_query_at(r, at),
        .n_group = n_group,
        .n_read = at,
        .dim_k = rec->dim_k,
        .dim_v = rec->dim_v,
        .scale = (double)rec->attn_scale,
        .kept = r->kept,
    };
}

static pith_status make_scratch(struct replay *r, pith_error *err)
{
    size_t n = (size_t)r->n_need, n_query = (size_t)n_query_at(r, r->at[0]);
    for (int32_t i = 1; i < r->n_at; i++)
        n_query = (size_t)pi_max((int64_t)n_query, n_query_at(r, r->at[i]));
    size_t q_len = (size_t)r->record.n_head * (size_t)r->record.dim_k;
    if (q_len <= SIZE_MAX / sizeof(float) / n_query)
        r->q = malloc(n_query * q_len * sizeof(float));
    r->pos = calloc(n, sizeof(*r->pos));
    r->kept = calloc(n, sizeof(*r->kept));
    r->mean = calloc(n, sizeof(*r->mean));
    const struct lost_job job = {
        .n_read = r->n_need, .n_query = (int32_t)n_query, .dim_v = r->record.dim_v};
    r->scratch = calloc(lost_scratch_len(&job), sizeof(*r->scratch));
    r->totals = calloc((size_t)r->n_policy, sizeof(*r->totals));
    r->rows = json_array();
    if (r->q == NULL || r->pos == NULL || r->kept == NULL || r->mean == NULL ||
        r->scratch == NULL || r->totals == NULL || r->rows == NULL)
        return eval_fail(err, PITH_NOMEM, "replay: no memory for the attention over %d tokens",
                         r->n_need);
    return PITH_OK;
}

/* How the record's keys were rotated, where it says; the caller frees *freq. */
static pith_status read_rotation(const struct replay *r, struct pi_replay_shape *shape,
                                 double **freq, pith_error *err)
{
    const struct safetensor *t = safetensors_find(&r->record.st, "rope.freq");
    const char *pairing = safetensors_meta(&r->record.st, "rope_pairing");
    if (t == NULL || pairing == NULL)
        return PITH_OK;
    if (t->n_dim != 1 || t->dim[0] < 1 || t->dim[0] > r->record.dim_k / 2)
        return eval_fail(err, PITH_FORMAT, "replay: %s: rope.freq is no array of at most %d",
                         r->params->path, r->record.dim_k / 2);
    *freq = malloc((size_t)t->dim[0] * sizeof(**freq));
    if (*freq == NULL)
        return eval_fail(err, PITH_NOMEM, "replay: no memory for %lld frequencies",
                         (long long)t->dim[0]);
    if (!safetensor_read_f64(t, 0, t->dim[0], *freq))
        return eval_fail(err, PITH_FORMAT, "replay: %s: rope.freq is not of floats",
                         r->params->path);
    shape->n_pair = (int32_t)t->dim[0];
    shape->adjacent = strcmp(pairing, "adjacent") == 0;
    shape->freq = *freq;
    return PITH_OK;
}

static pith_status make_policy(struct replay *r, pith_error *err)
{
    const struct eval_record *rec = &r->record;
    const pith_engine_params *engine = &r->setup->engine;
    double *freq = NULL;
    struct pi_replay_shape shape = {
        .n_layer = rec->n_layer,
        .n_head = rec->n_head_kv,
        .dim_k = rec->dim_k,
        .dim_v = rec->dim_v,
        .page_len = engine->page_len > 0 ? engine->page_len : 64,
        .type_k = engine->type_k,
        .type_v = engine->type_v,
        .n_token = r->n_need,
        .n_group = rec->n_head / rec->n_head_kv,
        .scale = rec->attn_scale,
    };
    pith_status status = read_rotation(r, &shape, &freq, err);
    if (status == PITH_OK)
        status = pi_replay_create(&shape, r->variants[r->p].keep, r->variants[r->p].read,
                                  &r->policy, err);
    free(freq);
    return status;
}

/* ---- rows ---- */

/* "full", "streaming:budget=8", "read quoka:budget=8", or both with a comma. */
static void add_name(struct eval_text *t, const struct variant *v)
{
    const pith_engine_params params = {.keep = v->keep, .read = v->read};
    const char *read = eval_read(&params);
    if (read == NULL || !eval_is_full(&params))
        eval_text_add(t, eval_policy(&params));
    if (read != NULL)
        eval_text_printf(t, "%sread %s", eval_is_full(&params) ? "" : ", ", read);
}

/* NULL: no memory. */
static json_t *variant_name(const struct variant *v)
{
    struct eval_text text = {0};
    add_name(&text, v);
    json_t *name = text.failed ? NULL : eval_json_text(text.data);
    eval_text_free(&text);
    return name;
}

static bool reads_part(const struct variant *v)
{
    const pith_engine_params params = {.read = v->read};
    return eval_read(&params) != NULL;
}

/* The n positions in r->pos as "0-3,7,120-255"; NULL: no memory. */
static json_t *make_ranges(const struct replay *r, int32_t n_kept)
{
    struct eval_text text = {0};
    eval_kept_ranges(&text, r->pos, n_kept);
    json_t *ranges = text.failed ? NULL : json_string(text.data);
    eval_text_free(&text);
    return ranges;
}

/* The evicted or unread positions that had the most mass, heaviest first; of equals the older
   first. n is small, so the next is searched each time. Sets their mean to 0: it is not read
   afterwards. */
static json_t *make_missing(struct replay *r, int32_t at)
{
    json_t *list = json_array();
    for (int32_t i = 0; list != NULL && i < r->params->n_missing; i++) {
        int32_t top = -1;
        for (int32_t p = 0; p < at; p++)
            if (!r->kept[p] && r->mean[p] > 0.0 && (top < 0 || r->mean[p] > r->mean[top]))
                top = p;
        if (top < 0)
            break;
        json_t *item = json_pack("{s:i, s:f}", "position", (int)top, "mass", r->mean[top]);
        if (json_array_append_new(list, item) != 0) {
            json_decref(list);
            return NULL;
        }
        r->mean[top] = 0.0;
    }
    return list;
}

static pith_status add_row(struct replay *r, int32_t layer, int32_t head, int32_t at,
                           pith_error *err)
{
    struct lost lost;
    const struct variant *v = &r->variants[r->p];
    int32_t n_kept = pi_replay_lane(r->policy, layer, head, r->pos), n_read = n_kept;
    json_t *ranges = make_ranges(r, n_kept), *chosen = NULL;
    if (reads_part(v)) {
        n_read = pi_replay_chosen(r->policy, head, r->pos);
        chosen = make_ranges(r, n_read);
    }
    memset(r->kept, 0, (size_t)at * sizeof(*r->kept));
    for (int32_t i = 0; i < n_read; i++)
        r->kept[r->pos[i]] = true;
    const struct lost_job job = make_job(r, layer, head, at);
    lost_measure(&job, r->scratch, r->mean, &lost);
    json_t *missing = make_missing(r, at);
    json_t *row =
        json_pack("{s:o*, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:O, s:O*, s:O}",
                  "policy", r->n_policy > 1 ? variant_name(v) : NULL, "tokens", (int)at, "queries",
                  (int)job.n_query, "layer", (int)layer, "head", (int)head, "entries", (int)n_kept,
                  "lost_mass", lost.mass, "lost_mass_max", lost.mass_max, "lost_mass_best",
                  lost.mass_best, "output_error", lost.error, "output_error_max", lost.error_max,
                  "kept", ranges, "read", chosen, "missing", missing);
    json_decref(ranges);
    json_decref(chosen);
    json_decref(missing);
    if (json_array_append_new(r->rows, row) != 0)
        return eval_fail(err, PITH_NOMEM, "replay: no memory for a row");
    struct totals *totals = &r->totals[r->p];
    totals->mass += lost.mass;
    totals->error += lost.error;
    totals->share += (double)n_kept / at;
    totals->read += n_kept > 0 ? (double)n_read / n_kept : 1.0;
    totals->n += 1.0;
    return PITH_OK;
}

static pith_status tell_progress(const struct replay *r, int32_t stop, int32_t layer,
                                 pith_error *err)
{
    char what[64];
    double done = ((double)r->p * r->n_at + stop) * r->record.n_layer + layer;
    snprintf(what, sizeof(what), "%d tokens, layer %d", r->at[stop], layer);
    if (r->setup->progress != NULL &&
        !r->setup->progress(r->setup->progress_user,
                            done / ((double)r->n_policy * r->n_at * r->record.n_layer), what))
        return eval_fail(err, PITH_CANCELLED, "replay: cancelled");
    return PITH_OK;
}

static pith_status run_stop(struct replay *r, int32_t stop, pith_error *err)
{
    const struct eval_record *rec = &r->record;
    int32_t at = r->at[stop];
    size_t q_len = (size_t)rec->n_head * (size_t)rec->dim_k;
    PI_TRY(pi_replay_read(r->policy, at, rec->token, (const float *const *)r->k,
                          (const float *const *)r->v, err));
    PI_TRY(pi_replay_look(r->policy, n_query_at(r, at), (const float *const *)r->k,
                          (const float *const *)r->v, err));
    for (int32_t l = 0; l < rec->n_layer; l++) {
        PI_TRY(tell_progress(r, stop, l, err));
        PI_TRY(read_rows(r, rec->layer[l].q, at, n_query_at(r, at), q_len, r->q, err));
        pi_replay_choose(r->policy, l, r->q);
        for (int32_t h = 0; h < rec->n_head_kv; h++)
            PI_TRY(add_row(r, l, h, at, err));
    }
    return PITH_OK;
}

static pith_status run_policy(struct replay *r, int32_t p, pith_error *err)
{
    pi_replay_free(r->policy);
    r->policy = NULL;
    r->p = p;
    PI_TRY(make_policy(r, err));
    for (int32_t i = 0; i < r->n_at; i++)
        PI_TRY(run_stop(r, i, err));
    pi_replay_get_stats(r->policy, &r->totals[p].stats);
    return PITH_OK;
}

/* ---- the result ---- */

static const char *or_default(const char *text, const char *fallback)
{
    return text != NULL && text[0] != '\0' ? text : fallback;
}

static json_t *make_settings(const struct replay *r)
{
    const pith_engine_params *engine = &r->setup->engine;
    json_t *at = json_array();
    for (int32_t i = 0; at != NULL && i < r->n_at; i++)
        if (json_array_append_new(at, json_integer(r->at[i])) != 0) {
            json_decref(at);
            at = NULL;
        }
    json_t *settings = json_pack(
        "{s:o, s:i, s:O, s:i, s:i, s:s, s:s, s:i}", "file", eval_json_text(r->params->path),
        "n_token", (int)r->record.n_token, "at", at, "queries", (int)r->params->n_query, "missing",
        (int)r->params->n_missing, "type_k", or_default(engine->type_k, "f16"), "type_v",
        or_default(engine->type_v, "f16"), "page_len", (int)engine->page_len);
    json_decref(at);
    return settings;
}

/* policy, which is taken over, may be NULL. */
static json_t *make_figures(const struct totals *t, json_t *policy)
{
    return json_pack("{s:o*, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I}", "policy", policy, "score",
                     1.0 - t->mass / t->n, "lost_mass", t->mass / t->n, "output_error",
                     t->error / t->n, "kept_share", t->share / t->n, "read_share", t->read / t->n,
                     "kv_peak_bytes", (json_int_t)t->stats.kv_peak_bytes, "evicted",
                     (json_int_t)t->stats.n_evicted, "rounds", (json_int_t)t->stats.n_round);
}

/* The figures of each policy; NULL: no memory. */
static json_t *make_list(const struct replay *r)
{
    json_t *list = json_array();
    for (int32_t p = 0; p < r->n_policy; p++)
        if (json_array_append_new(
                list, make_figures(&r->totals[p], variant_name(&r->variants[p]))) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* The figures that the policies have in common; of several, the sums and the largest peak. */
static json_t *make_common(const struct replay *r)
{
    struct pi_replay_stats all = {0};
    for (int32_t p = 0; p < r->n_policy; p++) {
        const struct pi_replay_stats *s = &r->totals[p].stats;
        all.kv_peak_bytes = pi_max(all.kv_peak_bytes, s->kv_peak_bytes);
        all.n_evicted += s->n_evicted;
        all.n_round += s->n_round;
    }
    return json_pack("{s:o, s:I, s:I, s:I}", "policies", make_list(r), "kv_peak_bytes",
                     (json_int_t)all.kv_peak_bytes, "evicted", (json_int_t)all.n_evicted, "rounds",
                     (json_int_t)all.n_round);
}

static json_t *make_summary(const struct replay *r, double seconds)
{
    json_t *summary = r->n_policy == 1 ? make_figures(&r->totals[0], NULL) : make_common(r);
    json_t *cost = json_pack("{s:i, s:i, s:i, s:f, s:f, s:f}", "n", (int)json_array_size(r->rows),
                             "prompt_tokens", (int)r->at[r->n_at - 1], "generated_tokens", 0,
                             "seconds", seconds, "tokens_per_s", 0.0, "prompt_tokens_per_s", 0.0);
    if (summary == NULL || cost == NULL || json_object_update(summary, cost) != 0) {
        json_decref(summary);
        summary = NULL;
    }
    json_decref(cost);
    return summary;
}

/* The keep policy's options, "full" without; of several policies their names with " | " between
   them. */
static json_t *make_name(const struct replay *r)
{
    struct eval_text text = {0};
    if (r->n_policy == 1) {
        const pith_engine_params params = {.keep = r->variants[0].keep};
        return eval_json_text(eval_policy(&params));
    }
    for (int32_t p = 0; p < r->n_policy; p++) {
        struct eval_text one = {0};
        add_name(&one, &r->variants[p]);
        eval_text_printf(&text, "%s%s", p > 0 ? " | " : "", one.data != NULL ? one.data : "");
        text.failed = text.failed || one.failed;
        eval_text_free(&one);
    }
    json_t *name = text.failed ? NULL : json_string(text.data);
    eval_text_free(&text);
    return name;
}

static pith_status run(struct replay *r, json_t **result, pith_error *err)
{
    double start = eval_clock_s();
    if (eval_recall(&r->setup->engine) != NULL)
        return eval_fail(err, PITH_INVALID,
                         "replay: recall \"%.60s\" has no part in recorded tensors",
                         eval_recall(&r->setup->engine));
    if (r->setup->engine.share != NULL)
        return eval_fail(err, PITH_INVALID,
                         "replay: share \"%.60s\" has no part in recorded tensors",
                         r->setup->engine.share);
    PI_TRY(list_variants(r, err));
    PI_TRY(check_params(r, err));
    PI_TRY(eval_record_open(r->params->path, &r->record, err));
    PI_TRY(check_stops(r, err));
    PI_TRY(load_tensors(r, err));
    PI_TRY(make_scratch(r, err));
    for (int32_t p = 0; p < r->n_policy; p++)
        PI_TRY(run_policy(r, p, err));
    json_t *read = r->n_policy == 1 && reads_part(&r->variants[0])
                       ? eval_json_text(r->variants[0].read)
                       : NULL;
    *result = json_pack("{s:s, s:s, s:o, s:o*, s:o, s:o, s:O}", "task", "replay", "model",
                        r->record.model, "policy", make_name(r), "read", read, "settings",
                        make_settings(r), "summary", make_summary(r, eval_clock_s() - start),
                        "rows", r->rows);
    if (*result == NULL)
        return eval_fail(err, PITH_NOMEM, "replay: no memory for the result, or %s is not UTF-8",
                         r->params->path);
    return PITH_OK;
}

pith_status eval_replay(const struct eval_setup *setup, const struct eval_replay_params *params,
                        json_t **result, pith_error *err)
{
    struct replay r = {.setup = setup, .params = params};
    json_t *made = NULL;
    pith_status status = run(&r, &made, err);
    if (status == PITH_OK)
        *result = made;
    replay_free(&r);
    return status;
}
