/*
 * importance_sums.c - features of entries and layers, their means and deviations, and the sums of
 * their ridges. There is one ridge for each lane's keys, and one for each layer's input with all of
 * its lanes as targets. It must not know which texts are read. Invariant: tokens are added in order
 * by the thread that owns a sum, so that chunks and threads change no bit.
 */
#include "policy/keep/learn/importance_sums.h"

#include <math.h>

#include "base/mem.h"
#include "base/threads.h"
#include "policy/keep/learn/importance_fit.h"

/* The factors that standardise a group of features, and the bounds that clip it. */
struct scale {
    int32_t n;
    double *sum;    /* [n_group][n] */
    double *square; /* [n_group][n] */
    double *mean;   /* [n_group][n] */
    double *factor; /* [n_group][n] 1 / deviation; 0 where there is none */
    float *low;     /* [n_group][n] */
    float *high;    /* [n_group][n] */
};

struct importance_sums {
    const struct pith_model *model; /* borrowed */
    const struct pi_hparams *hp;    /* the model's */
    int32_t n_thread;
    int64_t count;           /* tokens measured */
    struct scale key;        /* of a lane */
    struct scale hidden;     /* of a layer; n 0: not wanted */
    double *key_block[2];    /* [n_lane][ridge] of texts to fit on, and of those held out */
    double *hidden_block[2]; /* [n_layer][ridge] */
    int64_t n_added[2];      /* tokens in each */
    float *feature;          /* [n_head_kv][max_tok][key.n] of the running layer */
    float *turn;             /* [n_head_kv][2 * n_pair] */
    double *z;               /* [max(n_head_kv * key.n, hidden.n)][max_tok] standardised */
};

void importance_key_features(const struct pith_model *model, int32_t layer, int32_t pos,
                             const float *k, const float *v, float *cs, float *out)
{
    const struct pi_hparams *hp = pi_model_hparams(model);
    int32_t dim_k = hp->dim_k, dim_v = hp->dim_v;
    double kk = 0.0, vv = 0.0;
    pi_rope_turn_back(pi_model_kv_rope(model, layer), pos, k, dim_k, cs, out);
    for (int32_t i = 0; i < dim_k; i++)
        kk += (double)out[i] * (double)out[i];
    for (int32_t i = 0; i < dim_v; i++)
        vv += (double)v[i] * (double)v[i];
    out[dim_k] = (float)sqrt(kk);
    out[dim_k + 1] = (float)sqrt(vv);
}

/* ---- objects ---- */

static bool alloc_scale(struct scale *s, size_t n_group, int32_t n)
{
    size_t len = n_group * (size_t)n;
    s->n = n;
    s->sum = pi_mem_alloc_n(PI_MEM_OTHER, len, sizeof(double));
    s->square = pi_mem_alloc_n(PI_MEM_OTHER, len, sizeof(double));
    s->mean = pi_mem_alloc_n(PI_MEM_OTHER, len, sizeof(double));
    s->factor = pi_mem_alloc_n(PI_MEM_OTHER, len, sizeof(double));
    s->low = pi_mem_alloc_n(PI_MEM_OTHER, len, sizeof(float));
    s->high = pi_mem_alloc_n(PI_MEM_OTHER, len, sizeof(float));
    return s->sum && s->square && s->mean && s->factor && s->low && s->high;
}

static void free_scale(struct scale *s)
{
    void *const parts[] = {s->sum, s->square, s->mean, s->factor, s->low, s->high};
    for (size_t i = 0; i < PI_LEN(parts); i++)
        pi_mem_free(parts[i]);
}

static size_t turn_len(const struct importance_sums *s)
{
    return 2 * ((size_t)pi_model_rope(s->model)->n_pair + 1);
}

static bool alloc_all(struct importance_sums *s, bool hidden, int32_t max_tok)
{
    const struct pi_hparams *hp = s->hp;
    size_t n_kv = (size_t)hp->n_head_kv, n_layer = (size_t)hp->n_layer_full,
           n_tok = (size_t)max_tok;
    int32_t n = hp->dim_k + IMPORTANCE_KEY_EXTRA, n_embd = hidden ? hp->n_embd : 0;
    size_t n_z = n_kv * (size_t)n;
    n_z = n_z > (size_t)n_embd ? n_z : (size_t)n_embd;
    bool ok = alloc_scale(&s->key, n_layer * n_kv, n) && alloc_scale(&s->hidden, n_layer, n_embd);
    for (int i = 0; i < 2; i++) {
        s->key_block[i] =
            pi_mem_alloc_n(PI_MEM_OTHER, n_layer * n_kv, ridge_len(n, 1) * sizeof(double));
        s->hidden_block[i] = pi_mem_alloc_n(PI_MEM_OTHER, hidden ? n_layer : 0,
                                            ridge_len(n_embd, hp->n_head_kv) * sizeof(double));
        ok = ok && s->key_block[i] != NULL && s->hidden_block[i] != NULL;
    }
    s->feature = pi_mem_alloc_n(PI_MEM_OTHER, n_kv * n_tok, (size_t)n * sizeof(float));
    s->turn = pi_mem_alloc_n(PI_MEM_OTHER, n_kv, turn_len(s) * sizeof(float));
    s->z = pi_mem_alloc_n(PI_MEM_OTHER, n_tok, n_z * sizeof(double));
    return ok && s->feature != NULL && s->turn != NULL && s->z != NULL;
}

pith_status importance_sums_create(const struct pith_model *model, bool hidden, int32_t max_tok,
                                   int32_t n_thread, struct importance_sums **out, pith_error *err)
{
    PI_TRY(pi_model_check_full(model, "calibrate", err));
    struct importance_sums *s = pi_mem_alloc(PI_MEM_OTHER, sizeof(*s));
    if (s != NULL) {
        s->model = model;
        s->hp = pi_model_hparams(model);
        s->n_thread = n_thread;
    }
    if (s == NULL || !alloc_all(s, hidden, max_tok)) {
        importance_sums_free(s);
        return pi_fail(err, PITH_NOMEM, "no memory for the sums of %d layers' features%s",
                       pi_model_hparams(model)->n_layer_full,
                       hidden ? ", of their inputs, too" : "");
    }
    *out = s;
    return PITH_OK;
}

void importance_sums_free(struct importance_sums *s)
{
    if (s == NULL)
        return;
    free_scale(&s->key);
    free_scale(&s->hidden);
    for (int i = 0; i < 2; i++) {
        pi_mem_free(s->key_block[i]);
        pi_mem_free(s->hidden_block[i]);
    }
    pi_mem_free(s->feature);
    pi_mem_free(s->turn);
    pi_mem_free(s->z);
    pi_mem_free(s);
}

/* ---- the arguments of a call ---- */

struct job {
    struct importance_sums *s;
    const struct pi_pass_tap_rows *rows;
    int32_t t0;     /* the first token of the rows that counts */
    int32_t n;      /* that count */
    const float *y; /* [n_head_kv][y_stride] of the layer, of token t0 on */
    size_t y_stride;
    int held;
};

/* Rows at positions [begin, end); false: none. */
static bool begin_job(struct importance_sums *s, const struct pi_pass_tap_rows *rows, int32_t begin,
                      int32_t end, struct job *out)
{
    int32_t pos0 = rows->item->pos0, n_tok = rows->item->n_tok;
    int32_t lo = (int32_t)pi_max(0, begin - pos0), hi = (int32_t)pi_min(n_tok, end - pos0);
    *out = (struct job){.s = s, .rows = rows, .t0 = lo, .n = hi - lo};
    return lo < hi;
}

/* The features of a KV head's keys in the running layer, [n][key.n]. */
static float *fill_features(const struct job *j, int32_t head)
{
    const struct importance_sums *s = j->s;
    const struct pi_hparams *hp = s->hp;
    size_t n = (size_t)s->key.n, n_kv = (size_t)hp->n_head_kv;
    float *turn = s->turn + (size_t)head * turn_len(s);
    float *out = s->feature + (size_t)head * (size_t)j->n * n;
    for (size_t i = 0; i < (size_t)j->n; i++) {
        size_t row = ((size_t)j->t0 + i) * n_kv + (size_t)head;
        importance_key_features(s->model, j->rows->layer, j->rows->item->pos0 + j->t0 + (int32_t)i,
                                j->rows->k + row * (size_t)hp->dim_k,
                                j->rows->v + row * (size_t)hp->dim_v, turn, out + i * n);
    }
    return out;
}

static const float *hidden_rows(const struct job *j)
{
    return j->rows->h + (size_t)j->t0 * (size_t)j->s->hp->n_embd;
}

/* ---- measuring ---- */

static void measure(const struct scale *s, size_t group, const float *x, int32_t n_row)
{
    size_t n = (size_t)s->n;
    double *sum = s->sum + group * n, *square = s->square + group * n;
    for (size_t i = 0; i < (size_t)n_row; i++)
        for (size_t f = 0; f < n; f++) {
            double value = (double)x[i * n + f];
            sum[f] += value;
            square[f] += value * value;
        }
}

static void measure_heads(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct job *j = ctx;
    size_t first = (size_t)j->rows->layer * (size_t)j->s->hp->n_head_kv;
    (void)thread;
    for (int32_t h = (int32_t)begin; h < (int32_t)end; h++)
        measure(&j->s->key, first + (size_t)h, fill_features(j, h), j->n);
}

void importance_sums_measure(struct importance_sums *s, const struct pi_pass_tap_rows *rows,
                             int32_t begin, int32_t end)
{
    struct job j;
    if (rows->layer >= s->hp->n_layer_full || !begin_job(s, rows, begin, end, &j))
        return;
    pi_parallel_items(s->n_thread, s->hp->n_head_kv, measure_heads, &j);
    if (s->hidden.n > 0)
        measure(&s->hidden, (size_t)rows->layer, hidden_rows(&j), j.n);
    if (rows->layer == 0)
        s->count += j.n;
}

static void bound(struct scale *s, size_t n_group, int64_t count)
{
    for (size_t i = 0; i < n_group * (size_t)s->n; i++) {
        double mean = s->sum[i] / (double)count;
        double variance = s->square[i] / (double)count - mean * mean;
        /* Rounding leaves a constant feature a little variance. */
        double deviation = variance > 1e-12 * mean * mean ? sqrt(variance) : 0.0;
        s->mean[i] = mean;
        s->factor[i] = deviation > 0.0 ? 1.0 / deviation : 0.0;
        s->low[i] = (float)(mean - IMPORTANCE_CLIP * deviation);
        s->high[i] = (float)(mean + IMPORTANCE_CLIP * deviation);
    }
}

void importance_sums_bound(struct importance_sums *s)
{
    size_t n_layer = (size_t)s->hp->n_layer_full;
    bound(&s->key, n_layer * (size_t)s->hp->n_head_kv, s->count);
    bound(&s->hidden, n_layer, s->count);
}

/* ---- adding ---- */

static void standardise(const struct scale *s, size_t group, const float *x, int32_t n_row,
                        double *z)
{
    size_t n = (size_t)s->n, at = group * n;
    for (size_t i = 0; i < (size_t)n_row; i++)
        for (size_t f = 0; f < n; f++) {
            float value = x[i * n + f], low = s->low[at + f], high = s->high[at + f];
            value = value < low ? low : value > high ? high : value;
            z[i * n + f] = ((double)value - s->mean[at + f]) * s->factor[at + f];
        }
}

/* The sums of a lane's keys. */
static struct ridge key_ridge(const struct importance_sums *s, int held, size_t lane)
{
    struct ridge r = ridge_at(s->key.n, 1, s->key_block[held] + lane * ridge_len(s->key.n, 1));
    r.count = s->n_added[held];
    return r;
}

static struct ridge hidden_ridge(const struct importance_sums *s, int held, size_t layer)
{
    int32_t n_kv = s->hp->n_head_kv;
    struct ridge r =
        ridge_at(s->hidden.n, n_kv, s->hidden_block[held] + layer * ridge_len(s->hidden.n, n_kv));
    r.count = s->n_added[held];
    return r;
}

static void add_heads(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct job *j = ctx;
    const struct importance_sums *s = j->s;
    size_t first = (size_t)j->rows->layer * (size_t)s->hp->n_head_kv;
    (void)thread;
    for (int32_t h = (int32_t)begin; h < (int32_t)end; h++) {
        double *z = s->z + (size_t)h * (size_t)j->n * (size_t)s->key.n;
        const float *y = j->y + (size_t)h * j->y_stride;
        struct ridge r = key_ridge(s, j->held, first + (size_t)h);
        standardise(&s->key, first + (size_t)h, fill_features(j, h), j->n, z);
        ridge_add_rows(&r, z, y, j->y_stride, j->n, 0, r.n);
        ridge_add_targets(&r, y, j->y_stride, j->n);
    }
}

static void standardise_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct job *j = ctx;
    size_t n = (size_t)j->s->hidden.n;
    (void)thread;
    standardise(&j->s->hidden, (size_t)j->rows->layer, hidden_rows(j) + (size_t)begin * n,
                (int32_t)(end - begin), j->s->z + (size_t)begin * n);
}

#define ROWS_PER_ITEM 16

static void add_hidden_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct job *j = ctx;
    struct ridge r = hidden_ridge(j->s, j->held, (size_t)j->rows->layer);
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        ridge_add_rows(&r, j->s->z, j->y, j->y_stride, j->n, (int32_t)i * ROWS_PER_ITEM,
                       (int32_t)pi_min(r.n, (i + 1) * ROWS_PER_ITEM));
}

static void add_hidden(struct job *j)
{
    struct importance_sums *s = j->s;
    struct ridge r = hidden_ridge(s, j->held, (size_t)j->rows->layer);
    pi_parallel_ranges(s->n_thread, j->n, standardise_rows, j);
    pi_parallel_items(s->n_thread, pi_ceil_div(r.n, ROWS_PER_ITEM), add_hidden_rows, j);
    ridge_add_targets(&r, j->y, j->y_stride, j->n);
}

void importance_sums_add(struct importance_sums *s, const struct pi_pass_tap_rows *rows,
                         int32_t begin, int32_t end, const float *y, size_t y_stride, bool held)
{
    struct job j;
    if (rows->layer >= s->hp->n_layer_full || !begin_job(s, rows, begin, end, &j))
        return;
    j.held = held;
    j.y_stride = y_stride;
    j.y = y + (size_t)rows->layer * (size_t)s->hp->n_head_kv * y_stride +
          (rows->item->pos0 + j.t0 - begin);
    pi_parallel_items(s->n_thread, s->hp->n_head_kv, add_heads, &j);
    if (s->hidden.n > 0)
        add_hidden(&j);
    if (rows->layer == s->hp->n_layer_full - 1)
        s->n_added[held] += j.n;
}

/* ---- fitting ---- */

/* One group's solution for its targets. */
struct solution {
    const struct scale *scale;
    size_t group;
    struct ridge fit, held;
    double alpha;
    float *weight; /* [n_target][n + 1] */
    float *r2;     /* [n_target] */
};

/* Turns weights of standardised features into weights of the raw ones: w_f factor_f, and the
   intercept less their means' part. */
static void unscale(const struct solution *q, const double *w, float *out)
{
    size_t n = (size_t)q->scale->n, at = q->group * n;
    double intercept = w[n];
    for (size_t f = 0; f < n; f++) {
        double weight = w[f] * q->scale->factor[at + f];
        out[f] = (float)weight;
        intercept -= weight * q->scale->mean[at + f];
    }
    out[n] = (float)intercept;
}

static void solve(struct solution *q, double *work)
{
    size_t n = (size_t)q->scale->n, n_target = (size_t)q->fit.n_target;
    double *w = work + ridge_len(q->fit.n, q->fit.n_target);
    ridge_solve(&q->fit, q->alpha, work, w);
    for (size_t k = 0; k < n_target; k++)
        q->r2[k] = q->fit.count > 0 && q->held.count > 0
                       ? (float)ridge_r2(&q->held, (int32_t)k, w + k * (n + 1))
                       : 0.0f;
    ridge_merge(&q->fit, &q->held);
    ridge_solve(&q->fit, q->alpha, work, w);
    for (size_t k = 0; k < n_target; k++)
        unscale(q, w + k * (n + 1), q->weight + k * (n + 1));
}

struct fit_job {
    struct importance_sums *s;
    struct stats_importance *out;
    double *work; /* [n_thread][work_len] */
    size_t work_len;
};

static void fit_layers(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct fit_job *j = ctx;
    struct importance_sums *s = j->s;
    struct stats_importance *m = j->out;
    size_t n_kv = (size_t)s->hp->n_head_kv, n = (size_t)s->key.n;
    double *work = j->work + (size_t)thread * j->work_len;
    for (size_t l = (size_t)begin; l < (size_t)end; l++) {
        for (size_t lane = l * n_kv; lane < (l + 1) * n_kv; lane++) {
            struct solution q = {&s->key,
                                 lane,
                                 key_ridge(s, 0, lane),
                                 key_ridge(s, 1, lane),
                                 IMPORTANCE_KEY_ALPHA,
                                 m->key_weight + lane * (n + 1),
                                 m->key_r2 + lane};
            solve(&q, work);
        }
        if (s->hidden.n == 0)
            continue;
        struct solution q = {&s->hidden,
                             l,
                             hidden_ridge(s, 0, l),
                             hidden_ridge(s, 1, l),
                             IMPORTANCE_HIDDEN_ALPHA,
                             m->hidden_weight + l * n_kv * ((size_t)s->hidden.n + 1),
                             m->hidden_r2 + l * n_kv};
        solve(&q, work);
    }
}

/* Doubles that solving a ridge takes: its matrix and right side, and its weights. */
static size_t work_len(int32_t n, int32_t n_target)
{
    return ridge_len(n, n_target) + (size_t)n_target * ((size_t)n + 1);
}

pith_status importance_sums_fit(struct importance_sums *s, struct stats_importance *out,
                                pith_error *err)
{
    size_t n_layer = (size_t)s->hp->n_layer_full, n_kv = (size_t)s->hp->n_head_kv;
    struct fit_job j = {.s = s, .out = out};
    j.work_len = work_len(s->key.n, 1);
    if (s->hidden.n > 0 && work_len(s->hidden.n, (int32_t)n_kv) > j.work_len)
        j.work_len = work_len(s->hidden.n, (int32_t)n_kv);
    j.work = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)s->n_thread, j.work_len * sizeof(*j.work));
    if (j.work == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory to solve for %d weights", s->key.n);
    pi_parallel_items(s->n_thread, (int64_t)n_layer, fit_layers, &j);
    pi_mem_free(j.work);
    size_t n_key = n_layer * n_kv * (size_t)s->key.n, n_hidden = n_layer * (size_t)s->hidden.n;
    memcpy(out->key_low, s->key.low, n_key * sizeof(float));
    memcpy(out->key_high, s->key.high, n_key * sizeof(float));
    if (n_hidden > 0) {
        memcpy(out->hidden_low, s->hidden.low, n_hidden * sizeof(float));
        memcpy(out->hidden_high, s->hidden.high, n_hidden * sizeof(float));
    }
    return PITH_OK;
}
