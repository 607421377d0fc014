/*
 * calibrate.c - the mean query of every head. It takes queries where they are handed to rotation:
 * after bias and norm, before the rotation, each token once, and counts them per layer. Sums are
 * double, so that a million tokens lose nothing. It must not know which tokens a caller selects.
 */
#include "policy/keep/learn/calibrate.h"

#include <math.h>

#include "base/mem.h"
#include "base/threads.h"
#include "policy/keep/learn/centres.h"

struct calibration {
    const struct pith_model *model; /* borrowed */
    const struct pi_hparams *hp;    /* the model's */
    const struct pi_rope *rope;     /* the model's */
    int32_t n_flat;
    int32_t n_centre;
    int32_t n_sample;
    int64_t n_select; /* expected */
    int64_t *count;   /* [n_layer] queries added */
    double *q;        /* [n_layer][n_head][row] sums */
    double *k;        /* [n_layer][n_head_kv][row] */
    float *sample;    /* [n_layer][n_head][n_sample][dim_k]; NULL with one centre */
    int32_t *n_taken; /* [n_layer] of sample */
    float *key;       /* [dim_k] a key that is turned back */
    float *turn;      /* [2 * n_pair] cosines and sines */
};

static size_t row_len(const struct calibration *c)
{
    return 3 * (size_t)c->rope->n_pair + (size_t)c->n_flat;
}

pith_status calibration_create(const struct pith_model *model, int32_t n_centre, int32_t n_sample,
                               int64_t n_select, struct calibration **out, pith_error *err)
{
    const struct pi_hparams *hp = pi_model_hparams(model);
    PI_TRY(pi_model_check_full(model, "calibrate", err));
    struct calibration *c = pi_mem_alloc(PI_MEM_OTHER, sizeof(*c));
    size_t n_layer = (size_t)hp->n_layer_full, n_head = (size_t)hp->n_head,
           n_kv = (size_t)hp->n_head_kv;
    if (c == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a calibration");
    c->model = model;
    c->hp = hp;
    c->rope = pi_model_rope(model);
    c->n_flat = hp->dim_k - 2 * c->rope->n_pair;
    c->n_centre = n_centre;
    c->n_sample = (int32_t)pi_min(n_sample, n_select);
    c->n_select = n_select;
    size_t row = row_len(c), n_kept = n_layer * n_head * (size_t)c->n_sample;
    c->count = pi_mem_alloc_n(PI_MEM_OTHER, n_layer, sizeof(*c->count));
    c->n_taken = pi_mem_alloc_n(PI_MEM_OTHER, n_layer, sizeof(*c->n_taken));
    c->q = pi_mem_alloc_n(PI_MEM_OTHER, n_layer * n_head * row, sizeof(*c->q));
    c->k = pi_mem_alloc_n(PI_MEM_OTHER, n_layer * n_kv * row, sizeof(*c->k));
    c->key = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)hp->dim_k, sizeof(*c->key));
    c->turn = pi_mem_alloc_n(PI_MEM_OTHER, 2 * (size_t)c->rope->n_pair + 1, sizeof(*c->turn));
    if (n_centre > 1)
        c->sample = pi_mem_alloc_n(PI_MEM_OTHER, n_kept * (size_t)hp->dim_k, sizeof(*c->sample));
    if (c->count && c->n_taken && c->q && c->k && c->key && c->turn &&
        (n_centre == 1 || c->sample != NULL)) {
        *out = c;
        return PITH_OK;
    }
    calibration_free(c);
    return pi_fail(err, PITH_NOMEM,
                   "no memory for the sums of %d layers and %d queries of every head",
                   hp->n_layer_full, n_centre > 1 ? (int32_t)pi_min(n_sample, n_select) : 0);
}

void calibration_free(struct calibration *c)
{
    if (c == NULL)
        return;
    pi_mem_free(c->count);
    pi_mem_free(c->n_taken);
    pi_mem_free(c->q);
    pi_mem_free(c->k);
    pi_mem_free(c->sample);
    pi_mem_free(c->key);
    pi_mem_free(c->turn);
    pi_mem_free(c);
}

/* ---- adding ---- */

/* Whether query number i of n is one of the m that are kept, evenly spaced. */
static bool is_sample(int64_t i, int64_t n, int64_t m, int64_t n_taken)
{
    return n_taken < m && i == (int64_t)(((double)n_taken + 0.5) * (double)n / (double)m);
}

static void take_sample(struct calibration *c, int32_t layer, const float *q)
{
    const struct pi_hparams *hp = c->hp;
    size_t dim = (size_t)hp->dim_k, n_sample = (size_t)c->n_sample;
    for (size_t h = 0; h < (size_t)hp->n_head; h++) {
        size_t lane = (size_t)layer * (size_t)hp->n_head + h;
        memcpy(c->sample + (lane * n_sample + (size_t)c->n_taken[layer]) * dim, q + h * dim,
               dim * sizeof(*q));
    }
    c->n_taken[layer]++;
}

void calibration_add(struct calibration *c, const pith_tap_rows *rows, const uint8_t *select)
{
    const struct pi_hparams *hp = c->hp;
    size_t dim = (size_t)hp->dim_k, n_head = (size_t)hp->n_head, n_kv = (size_t)hp->n_head_kv;
    size_t row = row_len(c);
    if (rows->layer >= hp->n_layer_full)
        return;
    const struct pi_rope *rope = pi_model_kv_rope(c->model, rows->layer);
    double *q_sum = c->q + (size_t)rows->layer * n_head * row;
    double *k_sum = c->k + (size_t)rows->layer * n_kv * row;
    for (int32_t t = 0; t < rows->n_token; t++) {
        if (select != NULL && !select[t])
            continue;
        const float *q = rows->q_pre + (size_t)t * n_head * dim;
        const float *k = rows->k + (size_t)t * n_kv * dim;
        for (size_t h = 0; h < n_head; h++)
            stats_add(c->rope, c->n_flat, q + h * dim, q_sum + h * row);
        for (size_t h = 0; h < n_kv; h++) {
            pi_rope_turn_back(rope, rows->pos0 + t, k + h * dim, hp->dim_k, c->turn, c->key);
            stats_add(c->rope, c->n_flat, c->key, k_sum + h * row);
        }
        if (c->sample != NULL &&
            is_sample(c->count[rows->layer], c->n_select, c->n_sample, c->n_taken[rows->layer]))
            take_sample(c, rows->layer, q);
        c->count[rows->layer]++;
    }
}

/* ---- finishing ---- */

static void average(const double *sum, size_t n_lane, size_t row, int64_t count, float *out)
{
    for (size_t i = 0; i < n_lane * row; i++)
        out[i] = count > 0 ? (float)(sum[i] / (double)count) : 0.0f;
}

/* The centres of some heads as work for threads. */
struct search {
    const struct calibration *c;
    struct pith_stats *s;
    uint64_t seed;
    int64_t first;       /* head of these, layers after one another */
    size_t scratch_size; /* of one thread: k-means, then owners, then sums */
    size_t owner_at;
    size_t sum_at;
    uint8_t *scratch; /* [n_thread][scratch_size] */
};

/* Rows and shares of a head's centres from who owns each sample. */
static void fill_centres(const struct search *w, size_t lane, int32_t n, const int32_t *owner,
                         double *sum)
{
    const struct calibration *c = w->c;
    size_t row = row_len(c), dim = (size_t)c->hp->dim_k, k = (size_t)c->n_centre;
    const float *x = c->sample + lane * (size_t)c->n_sample * dim;
    for (size_t j = 0; j < k; j++) {
        int64_t count = 0;
        memset(sum, 0, row * sizeof(*sum));
        for (int32_t i = 0; i < n; i++)
            if (owner[i] == (int32_t)j) {
                stats_add(c->rope, c->n_flat, x + (size_t)i * dim, sum);
                count++;
            }
        average(sum, 1, row, count, w->s->centre + (lane * k + j) * row);
        w->s->weight[lane * k + j] = (float)((double)count / (double)n);
    }
}

static void search_heads(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct search *w = ctx;
    const struct calibration *c = w->c;
    uint8_t *scratch = w->scratch + (size_t)thread * w->scratch_size;
    int32_t *owner = (int32_t *)(void *)(scratch + w->owner_at);
    double *sum = (double *)(void *)(scratch + w->sum_at);
    int32_t dim = c->hp->dim_k;
    for (int64_t lane = w->first + begin; lane < w->first + end; lane++) {
        int32_t n = c->n_taken[lane / c->hp->n_head];
        if (n == 0)
            continue;
        centres_find(c->sample + (size_t)lane * (size_t)c->n_sample * (size_t)dim, n, dim,
                     c->n_centre, w->seed + (uint64_t)lane * 0x9e3779b97f4a7c15u, scratch, owner);
        fill_centres(w, (size_t)lane, n, owner, sum);
    }
}

/* As many heads at a time as there are threads: they take about as long, and between them one can
   cancel. */
static pith_status search_all(struct search *w, const struct calibration_search *how,
                              pith_error *err)
{
    int64_t n_lane = (int64_t)w->s->n_layer * w->s->n_head;
    for (int64_t n; w->first < n_lane; w->first += n) {
        n = pi_min(how->n_thread, n_lane - w->first);
        pi_parallel_items(how->n_thread, n, search_heads, w);
        if (how->progress != NULL &&
            !how->progress(how->progress_user, (double)(w->first + n) / (double)n_lane))
            return pi_fail(err, PITH_CANCELLED, "the calibration was cancelled");
    }
    return PITH_OK;
}

static pith_status find_centres(const struct calibration *c, const struct calibration_search *how,
                                struct pith_stats *s, pith_error *err)
{
    struct search w = {.c = c, .s = s, .seed = how->seed};
    w.owner_at = pi_align(centres_scratch(c->n_sample, c->hp->dim_k, c->n_centre), 64);
    w.sum_at = w.owner_at + pi_align((size_t)c->n_sample * sizeof(int32_t), 64);
    w.scratch_size = w.sum_at + pi_align(row_len(c) * sizeof(double), 64);
    w.scratch = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)how->n_thread, w.scratch_size);
    if (w.scratch == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory to find %d centres", c->n_centre);
    pith_status status = search_all(&w, how, err);
    pi_mem_free(w.scratch);
    return status;
}

static pith_status fill(const struct calibration *c, const struct calibration_search *how,
                        struct pith_stats *s, pith_error *err)
{
    const struct pi_hparams *hp = c->hp;
    size_t row = row_len(c), n_head = (size_t)hp->n_head, n_kv = (size_t)hp->n_head_kv;
    s->n_layer = hp->n_layer_full;
    s->n_head = hp->n_head;
    s->n_head_kv = hp->n_head_kv;
    s->n_pair = c->rope->n_pair;
    s->n_flat = c->n_flat;
    s->n_centre = c->n_centre;
    s->pairing = c->rope->adjacent ? PITH_PAIRING_ADJACENT : PITH_PAIRING_HALF;
    s->magnitude = c->rope->magnitude;
    s->fingerprint = pi_model_fingerprint(c->model);
    s->format = "pith 2";
    PI_TRY(stats_check_shape(s, err));
    PI_TRY(stats_alloc(s, true, true, err));
    memcpy(s->freq, c->rope->freq, (size_t)s->n_pair * sizeof(*s->freq));
    for (size_t l = 0; l < (size_t)hp->n_layer_full; l++) {
        s->count[l] = c->count[l];
        average(c->q + l * n_head * row, n_head, row, c->count[l], s->q + l * n_head * row);
        average(c->k + l * n_kv * row, n_kv, row, c->count[l], s->k + l * n_kv * row);
    }
    if (c->n_centre > 1)
        PI_TRY(find_centres(c, how, s, err));
    return stats_check(s, err);
}

pith_status calibration_finish(const struct calibration *c, const struct calibration_search *how,
                               struct pith_stats **out, pith_error *err)
{
    struct pith_stats *s = NULL;
    PI_TRY(stats_new(&s, err));
    pith_status status = fill(c, how, s, err);
    if (status != PITH_OK) {
        pith_stats_free(s);
        return status;
    }
    *out = s;
    return PITH_OK;
}
