/*
 * loki_fit.c - principal components of keys. Of the n keys x of a layer and KV head
 *
 *   m = (1/n) sum x,  C = (1/n) sum x x^T - m m^T
 *
 * The basis is C's eigenvectors, the one of largest eigenvalue first (Singhania et al., Loki;
 * hpcgroup/loki, pca_analysis/pca.py). Sums are double, so that a million tokens lose nothing. m is
 * not kept: it moves all scores of a query alike.
 */
#include "policy/read/loki_fit.h"

#include <math.h>

#include "base/mem.h"
#include "base/threads.h"
#include "policy/identity.h"
#include "policy/read/eigen.h"

struct loki_fit {
    const struct pith_model *model; /* borrowed */
    const struct pi_hparams *hp;    /* the model's */
    pith_projection_keys keys;
    int32_t n_thread;
    int64_t n_token; /* added, in the last layer */
    double *sum;     /* [n_layer][n_head_kv][dim_k] */
    double *product; /* [n_layer][n_head_kv][dim_k][dim_k], of which the lower triangle is kept */
    float *plain;    /* [n_thread][dim_k] a key that is turned back */
    float *turn;     /* [n_thread][2 * n_pair] cosines and sines */
};

pith_status loki_fit_create(const struct pith_model *model, pith_projection_keys keys,
                            int32_t n_thread, struct loki_fit **out, pith_error *err)
{
    const struct pi_hparams *hp = pi_model_hparams(model);
    size_t n_lane = (size_t)hp->n_layer_full * (size_t)hp->n_head_kv, dim = (size_t)hp->dim_k;
    size_t thread = (size_t)n_thread, n_pair = (size_t)pi_model_rope(model)->n_pair;
    PI_TRY(pi_model_check_full(model, "calibrate", err));
    struct loki_fit *f = pi_mem_alloc(PI_MEM_OTHER, sizeof(*f));
    if (f != NULL) {
        f->model = model;
        f->hp = hp;
        f->keys = keys;
        f->n_thread = n_thread;
        f->sum = pi_mem_alloc_n(PI_MEM_OTHER, n_lane * dim, sizeof(*f->sum));
        f->product = pi_mem_alloc_n(PI_MEM_OTHER, n_lane * dim * dim, sizeof(*f->product));
        f->plain = pi_mem_alloc_n(PI_MEM_OTHER, thread * dim, sizeof(*f->plain));
        f->turn = pi_mem_alloc_n(PI_MEM_OTHER, thread * 2 * n_pair + 1, sizeof(*f->turn));
        if (f->sum != NULL && f->product != NULL && f->plain != NULL && f->turn != NULL) {
            *out = f;
            return PITH_OK;
        }
    }
    loki_fit_free(f);
    return pi_fail(err, PITH_NOMEM, "no memory for the covariances of %d layers of %d KV heads",
                   hp->n_layer_full, hp->n_head_kv);
}

void loki_fit_free(struct loki_fit *f)
{
    if (f == NULL)
        return;
    pi_mem_free(f->sum);
    pi_mem_free(f->product);
    pi_mem_free(f->plain);
    pi_mem_free(f->turn);
    pi_mem_free(f);
}

/* ---- adding ---- */

/* The rows of one layer as work for threads. */
struct addition {
    struct loki_fit *f;
    const pith_tap_rows *rows;
};

static void add_key(const float *x, int32_t dim, double *sum, double *product)
{
    for (int32_t i = 0; i < dim; i++) {
        double *row = product + (size_t)i * (size_t)dim, at = (double)x[i];
        sum[i] += at;
        for (int32_t j = 0; j <= i; j++)
            row[j] += at * (double)x[j];
    }
}

/* KV heads [begin, end): tokens in order, whichever thread has the head. */
static void add_heads(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct addition *a = ctx;
    const struct pi_rope *rope = pi_model_kv_rope(a->f->model, a->rows->layer);
    int32_t n_head = a->f->hp->n_head_kv, dim = a->f->hp->dim_k;
    float *plain = a->f->plain + (size_t)thread * (size_t)dim;
    float *turn = a->f->turn + (size_t)thread * 2 * (size_t)rope->n_pair;
    for (int64_t h = begin; h < end; h++) {
        size_t lane = (size_t)a->rows->layer * (size_t)n_head + (size_t)h, row = (size_t)dim;
        for (int32_t t = 0; t < a->rows->n_token; t++) {
            const float *x = a->rows->k + ((size_t)t * (size_t)n_head + (size_t)h) * row;
            if (a->f->keys == PITH_KEYS_PLAIN) {
                pi_rope_turn_back(rope, a->rows->pos0 + t, x, dim, turn, plain);
                x = plain;
            }
            add_key(x, dim, a->f->sum + lane * row, a->f->product + lane * row * row);
        }
    }
}

void loki_fit_add(struct loki_fit *f, const pith_tap_rows *rows)
{
    struct addition a = {f, rows};
    if (rows->layer >= f->hp->n_layer_full)
        return;
    pi_parallel_items(f->n_thread, f->hp->n_head_kv, add_heads, &a);
    if (rows->layer == f->hp->n_layer_full - 1)
        f->n_token += rows->n_token;
}

/* ---- finishing ---- */

/* The bases of some lanes as work for threads. */
struct search {
    const struct loki_fit *f;
    struct pith_projection *p;
    int64_t first;   /* lane of these */
    double *scratch; /* [n_thread][dim * (2 * dim + 1)] covariance, vectors, values */
};

/* The covariance of a lane's keys. Rounding can leave a variance of keys that are all alike a
   little off 0, which check_values would not have. */
static void covariance(const struct loki_fit *f, size_t lane, double *out)
{
    size_t dim = (size_t)f->hp->dim_k;
    const double *sum = f->sum + lane * dim, *product = f->product + lane * dim * dim;
    double n = (double)f->n_token;
    for (size_t i = 0; i < dim; i++)
        for (size_t j = 0; j <= i; j++)
            out[i * dim + j] = out[j * dim + i] =
                product[i * dim + j] / n - (sum[i] / n) * (sum[j] / n);
}

static void search_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct search *w = ctx;
    int32_t n_head = w->p->n_head, dim = w->p->dim;
    size_t size = (size_t)dim * (size_t)dim;
    double *a = w->scratch + (size_t)thread * (2 * size + (size_t)dim);
    double *vector = a + size, *value = vector + size;
    for (int64_t lane = w->first + begin; lane < w->first + end; lane++) {
        int32_t layer = (int32_t)(lane / n_head), head = (int32_t)(lane % n_head);
        float *out_value = projection_value(w->p, layer, head);
        float *out_vector = projection_vector(w->p, layer, head);
        covariance(w->f, (size_t)lane, a);
        eigen_symmetric(a, dim, value, vector);
        for (int32_t i = 0; i < dim; i++)
            out_value[i] = value[i] > 0.0 ? (float)value[i] : 0.0f;
        for (size_t i = 0; i < size; i++)
            out_vector[i] = (float)vector[i];
    }
}

/* As many lanes at a time as there are threads: they take about as long, and between them one can
   cancel. */
static pith_status search_all(struct search *w, pith_progress_fn *progress, void *user,
                              pith_error *err)
{
    int64_t n_lane = (int64_t)w->p->n_layer * w->p->n_head;
    for (int64_t n; w->first < n_lane; w->first += n) {
        n = pi_min(w->f->n_thread, n_lane - w->first);
        pi_parallel_items(w->f->n_thread, n, search_lanes, w);
        if (progress != NULL && !progress(user, (double)(w->first + n) / (double)n_lane))
            return pi_fail(err, PITH_CANCELLED, "the calibration was cancelled");
    }
    return PITH_OK;
}

static pith_status check_sums(const struct loki_fit *f, pith_error *err)
{
    const struct pi_hparams *hp = f->hp;
    size_t dim = (size_t)hp->dim_k;
    for (size_t lane = 0; lane < (size_t)hp->n_layer_full * (size_t)hp->n_head_kv; lane++)
        for (size_t i = 0; i < dim; i++)
            if (!isfinite(f->product[lane * dim * dim + i * dim + i]))
                return pi_fail(err, PITH_FORMAT, "layer %d, head %d: a key is no number",
                               (int32_t)lane / hp->n_head_kv, (int32_t)lane % hp->n_head_kv);
    return PITH_OK;
}

pith_status loki_fit_finish(const struct loki_fit *f, const char *text, pith_progress_fn *progress,
                            void *user, struct pith_projection **out, pith_error *err)
{
    const struct pi_hparams *hp = f->hp;
    struct pith_projection shape = {.n_layer = hp->n_layer_full,
                                    .n_head = hp->n_head_kv,
                                    .dim = hp->dim_k,
                                    .keys = f->keys,
                                    .fingerprint = pi_model_fingerprint(f->model),
                                    .n_token = f->n_token};
    struct search w = {.f = f};
    size_t size = (size_t)hp->dim_k * (2 * (size_t)hp->dim_k + 1);
    PI_TRY(check_sums(f, err));
    PI_TRY(projection_check_shape(&shape, err));
    PI_TRY(projection_new(&shape, pi_model_name(f->model), text, &w.p, err));
    w.scratch = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)f->n_thread * size, sizeof(double));
    pith_status status =
        w.scratch != NULL
            ? search_all(&w, progress, user, err)
            : pi_fail(err, PITH_NOMEM, "no memory for eigenvectors of %d dimensions", hp->dim_k);
    pi_mem_free(w.scratch);
    if (status == PITH_OK)
        status = projection_check(w.p, err);
    if (status != PITH_OK) {
        pith_projection_free(w.p);
        return status;
    }
    *out = w.p;
    return PITH_OK;
}
