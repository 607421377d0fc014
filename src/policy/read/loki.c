/*
 * loki.c - keys in few dimensions. Singhania, Singh, He, Feizi, Bhatele, "Loki: Low-rank Keys for
 * Efficient Sparse Attention", NeurIPS 2024 (arXiv 2406.02542), and the authors' code
 * (hpcgroup/loki, methods/pca_topk): keys of a layer and KV head lie near a space of fewer
 * dimensions than they have. With P the eigenvectors of the covariance of a text's keys, by falling
 * eigenvalue, and P_r the first r of them,
 *
 *   score(t) = (q P_r) . (k_t P_r) / sqrt(d)
 *
 * and the keys of highest score are read, in all their dimensions. P is found once for a model
 * (`pith calibrate loki`, loki_fit.c); the r numbers k P_r of every key are stored beside it
 * (KV_INDEX_PROJ). r = 64 is the number of QuoKA's comparison, and 16 to 64 or a share of the
 * variance the authors'. k is 25% of the entries, the authors having 12.5, 25 and 50. Instead of 1
 * / sqrt(d) any factor gives the same order.
 *
 * Departures. The authors choose for every query head and every query. Here the query heads of a KV
 * head and the queries of a chunk choose together, by the mean of their scores. That is the score
 * of their mean. (It is their sum over the group, in the same order.) With rank=softmax they choose
 * by the mean of their softmax weights, which is not. With a share of the variance the authors take
 * one r for each layer, here the largest of them serves all. They store K in the basis P and
 * nothing beside it, where k P_r is a part of the key. Here K stays as the model made it.
 */
#include "base/mem.h"
#include "policy/identity.h"
#include "policy/read/projection.h"
#include "policy/read/together.h"

struct params {
    char projection[POLICY_TEXT_SIZE];
    struct policy_budget n_dim; /* r: a number, or a share of the variance */
    int32_t rank;
};

struct data {
    float *matrix; /* [n_layer][n_head][index_dim][dim_k] */
};

/* ---- the basis ---- */

static pith_status check(const void *params, const struct read_rules *rules,
                         const struct kv_geometry *g, pith_error *err)
{
    const struct params *p = params;
    (void)rules;
    (void)g;
    if (p->projection[0] == '\0')
        return pi_fail(err, PITH_INVALID,
                       "read: loki: projection=FILE is wanted, which pith calibrate loki writes");
    if (p->n_dim.unit == POLICY_UNIT_BYTES)
        return pi_fail(err, PITH_INVALID,
                       "read: loki: r: %lld bytes is no number of dimensions (64) or share of the "
                       "variance (90%%)",
                       (long long)p->n_dim.value);
    return PITH_OK;
}

/* The dimensions that r asks for. projection: NULL where none could be read. */
static int32_t count_dims(const struct params *p, const struct pith_projection *projection,
                          int32_t dim_k)
{
    int64_t n = dim_k;
    if (p->n_dim.unit == POLICY_UNIT_TOKENS)
        n = p->n_dim.value;
    else if (p->n_dim.unit == POLICY_UNIT_SHARE && projection != NULL)
        n = pith_projection_rank(projection, -1, -1, (double)p->n_dim.value / 1e6);
    return (int32_t)pi_min(n, dim_k);
}

/* The dimensions of a share of the variance stand in the file. Where that cannot be read, open says
   so. */
static uint32_t index_of(const void *params, const struct kv_geometry *g, int32_t *dim)
{
    const struct params *p = params;
    struct pith_projection *projection = NULL;
    if (p->n_dim.unit == POLICY_UNIT_SHARE && p->projection[0] != '\0' &&
        pith_projection_load(p->projection, &projection, NULL) != PITH_OK)
        projection = NULL;
    *dim = count_dims(p, projection, g->dim_k);
    pith_projection_free(projection);
    return KV_INDEX_PROJ;
}

/* The first index_dim vectors of every lane. */
static float *take_matrix(const struct pith_projection *p, const struct kv_geometry *g)
{
    size_t lane = (size_t)g->index_dim * (size_t)g->dim_k;
    size_t n_lane = (size_t)g->n_layer * (size_t)g->n_head;
    float *matrix = pi_mem_alloc_n(PI_MEM_OTHER, n_lane * lane, sizeof(*matrix));
    for (int32_t l = 0; matrix != NULL && l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            memcpy(matrix + ((size_t)l * (size_t)g->n_head + (size_t)h) * lane,
                   projection_vector(p, l, h), lane * sizeof(*matrix));
    return matrix;
}

static pith_status open_data(const void *params, const struct policy_model *model, void **data,
                             pith_error *err)
{
    const struct params *p = params;
    const struct kv_geometry *g = &model->g;
    struct pith_projection *projection = NULL;
    struct data *d = pi_mem_alloc(PI_MEM_OTHER, sizeof(*d));
    if (d == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a projection");
    pith_status status = pith_projection_load(p->projection, &projection, err);
    if (status == PITH_OK)
        status = projection_check_fits(
            projection, g->n_layer, g->n_head, g->dim_k,
            model->model != NULL ? pi_model_fingerprint(model->model) : 0, err);
    if (status == PITH_OK && count_dims(p, projection, g->dim_k) != g->index_dim)
        status = pi_fail(err, PITH_INVALID,
                         "read: loki: r: the file asks for %d dimensions, and for %d when the "
                         "cache was laid out: it was unreadable then, or was another",
                         count_dims(p, projection, g->dim_k), g->index_dim);
    if (status == PITH_OK && (d->matrix = take_matrix(projection, g)) == NULL)
        status =
            pi_fail(err, PITH_NOMEM, "no memory for a projection to %d dimensions", g->index_dim);
    pith_projection_free(projection);
    if (status == PITH_OK)
        *data = d;
    else
        pi_mem_free(d);
    return status;
}

static void close_data(void *data)
{
    struct data *d = data;
    pi_mem_free(d->matrix);
    pi_mem_free(d);
}

static const float *projection_of(const void *data)
{
    return ((const struct data *)data)->matrix;
}

/* ---- scores ---- */

static size_t scratch_size(const void *params, const struct policy_model *model, int32_t n,
                           int32_t n_tok)
{
    struct read_soft soft;
    size_t used = 0;
    (void)params;
    read_soft_place(model, n, n_tok, NULL, &used, &soft);
    return used;
}

static int32_t n_set(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)model;
    (void)n_tok;
    return ((const struct params *)params)->rank == READ_RANK_LOGITS;
}

static int32_t n_vector(const void *params, const struct policy_model *model, int32_t n_tok)
{
    (void)params;
    (void)model;
    (void)n_tok;
    return 1;
}

static void ask(const void *params, const struct read_view *view, const struct read_chunk *c,
                struct kv_score_job *jobs)
{
    if (((const struct params *)params)->rank == READ_RANK_SOFTMAX)
        *jobs = read_soft_job(view, c, KV_SCORE_PROJ, 0, c->n_group);
    else
        read_ask_means(view, c, KV_SCORE_PROJ, 1, jobs);
}

static void score(const void *params, const struct read_view *view, const struct read_chunk *c,
                  float *out)
{
    const struct params *p = params;
    struct read_soft soft;
    size_t used = 0;
    read_soft_place(view->model, c->n, c->n_tok, c->scratch, &used, &soft);
    if (p->rank == READ_RANK_SOFTMAX)
        read_mean_weights(view, c, KV_SCORE_PROJ, 0, c->n_group, &soft, out);
    else
        read_clean(out, c->n);
}

static bool picks(const void *params, const struct policy_model *model, int32_t n_tok)
{
    bool soft = ((const struct params *)params)->rank == READ_RANK_SOFTMAX;
    return read_can_pick(model, n_tok * model->n_group, soft);
}

static const struct policy_param own_params[] = {
    {"projection", POLICY_TYPE_TEXT, offsetof(struct params, projection), 0, 0, "",
     "the file of bases that pith calibrate loki wrote for this model", NULL},
    {"r", POLICY_TYPE_BUDGET, offsetof(struct params, n_dim), 1, 8192, "64",
     "dimensions that are scored, all where a head has no more. Or the share of the variance that "
     "they have (90%), by the lane that needs most",
     NULL},
    {"rank", POLICY_TYPE_CHOICE, offsetof(struct params, rank), 0, 0, "logits",
     "the queries of a chunk and the heads of a group add up logits, or their softmax",
     read_rank_words},
    {0},
};

static const struct policy_preset presets[] = {
    {"quoka", "gate=0,budget=1024,r=64,rank=softmax", "as QuoKA compares with it"},
    {0},
};

const struct read_policy read_loki = {
    .name = "loki",
    .summary = "keys in the few dimensions in which they vary",
    .citation = "Singhania et al., Loki: Low-rank Keys for Efficient Sparse Attention, NeurIPS "
                "2024, arXiv 2406.02542",
    .defaults = "budget=25%,gate=1",
    .params = own_params,
    .params_size = sizeof(struct params),
    .presets = presets,
    .file = "projection=FILE, which pith calibrate loki writes",
    .open = open_data,
    .close = close_data,
    .check = check,
    .index = index_of,
    .projection = projection_of,
    .scratch_size = scratch_size,
    .n_set = n_set,
    .ask = ask,
    .n_vector = n_vector,
    .picks = picks,
    .score = score,
};
