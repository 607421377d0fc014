/*
 * expected.c - the attention that queries to come are expected to give. Alessio Devoto, Maximilian
 * Jeblick, Simon Jegou, "Expected Attention: KV Cache Compression by Estimating Attention from
 * Future Queries Distribution", 2025 (arXiv 2510.00636); ExpectedAttentionPress in NVIDIA's
 * kvpress. Queries before rotation are taken to be Gaussian. Their mean is mu and their covariance
 * S, both of the text's queries so far (the first `skip` tokens left out). R is the mean of the
 * rotations to the next F = `future` positions, which is no rotation itself:
 *
 *   R = (1 / F) sum of R_p, p = n .. n + F - 1,   mu' = R mu,   S' = R S R^T
 *   x_h(i) = scale mu'_h . k_i + scale^2 / 2 k_i' S'_h k_i       log E exp(scale q.k_i), q Gaussian
 *   score(i) = mean over the group's heads h of softmax over i of x_h(i), plus epsilon, times |v_i|
 *
 * with k_i as it is stored, rotated. The softmax is over all entries but the oldest that always
 * stay (kvpress: all but the sinks). score=log is the logarithm of that. score=logit leaves the
 * softmax's sum out: its numbers do not depend on which entries are there.
 *
 * Departures. kvpress computes the queries again from the layer's inputs, once, after the prompt;
 * here they are added as the model makes them. scripts/golden/expected.py --kvpress finds the same
 * scores in both. Sums are floats, centred on the first query that counts, because a query's mean
 * can be many times its deviation. They are added token by token, so that they do not depend on how
 * a text is cut.
 */
#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "cpu/expf.h"
#include "cpu/kernels.h"
#include "policy/keep/rules/policy.h"

#define BLOCK 4 /* tokens that are added in one run over the sums */

enum { SCORE_SHARE, SCORE_LOG, SCORE_LOGIT };

struct params {
    int32_t future;
    int32_t skip;
    int32_t covariance; /* 1: on */
    int32_t vnorm;      /* 1: on */
    double epsilon;
    int32_t score;
};

/* ---- what is known of the queries ---- */

/* Sums of one query head. */
struct sums {
    float *first;  /* [dim] the first query that counts */
    float *sum;    /* [dim] of x = q - first */
    float *square; /* [dim (dim + 1) / 2] of x_i x_j, j >= i, row by row; NULL without covariance */
};

static size_t square_len(size_t dim)
{
    return dim * (dim + 1) / 2;
}

static size_t sums_len(const struct params *p, const struct policy_model *m)
{
    size_t dim = (size_t)m->g.dim_k;
    return 2 * dim + (p->covariance ? square_len(dim) : 0);
}

static size_t n_query_head(const struct policy_model *m)
{
    return (size_t)m->g.n_head * (size_t)m->n_group;
}

/* A state is counts [n_layer], then sums [n_layer][n_head * n_group]. */
static size_t state_size(const void *params, const struct policy_model *m, const void *data)
{
    (void)data;
    return (size_t)m->g.n_layer *
           (sizeof(int64_t) + n_query_head(m) * sums_len(params, m) * sizeof(float));
}

static int64_t *count_at(const struct keep_view *view, int32_t layer)
{
    return (int64_t *)view->state + layer;
}

static struct sums sums_at(const struct params *p, const struct keep_view *view, int32_t layer,
                           size_t head)
{
    const struct policy_model *m = view->model;
    size_t dim = (size_t)m->g.dim_k;
    float *base = (float *)(void *)((int64_t *)view->state + m->g.n_layer);
    base += ((size_t)layer * n_query_head(m) + head) * sums_len(p, m);
    return (struct sums){base, base + dim, p->covariance ? base + 2 * dim : NULL};
}

/* Where the device has a head's sums. */
static struct pi_at moments_at(const struct params *p, const struct keep_view *view, int32_t layer,
                               size_t head)
{
    const struct policy_model *m = view->model;
    size_t at = ((size_t)layer * n_query_head(m) + head) * sums_len(p, m);
    return pi_at_item(pi_at_add(view->there, (size_t)m->g.n_layer * sizeof(int64_t)), at);
}

/* Counts that no sequence reaches could not go on counting. */
static bool sound(const void *params, const struct policy_model *m, const void *data,
                  const void *state)
{
    const int64_t *count = state;
    (void)params;
    (void)data;
    for (int32_t l = 0; l < m->g.n_layer; l++)
        if (count[l] < 0 || count[l] > INT64_MAX / 2)
            return false;
    return true;
}

static uint32_t needs(const void *params)
{
    (void)params;
    return KEEP_NEED_ROWS;
}

/* s[j] += (q[i] - first[i]) (q[j] - first[j]) for j >= i of `BLOCK` queries, one after the other.
   These are the additions of any cut of the tokens, in a quarter of the runs over s. */
static void add_block(const struct sums *h, const float *q, size_t stride, int32_t dim)
{
    const float *restrict a = q, *restrict b = q + stride, *restrict c = q + 2 * stride,
                          *restrict d = q + 3 * stride, *restrict f = h->first;
    float *restrict s = h->square;
    for (int32_t i = 0; i < dim; i++) {
        float xa = a[i] - f[i], xb = b[i] - f[i], xc = c[i] - f[i], xd = d[i] - f[i];
        s -= i; /* s[j] is that of (i, j) */
        for (int32_t j = i; j < dim; j++) {
            float x = s[j] + xa * (a[j] - f[j]);
            x += xb * (b[j] - f[j]);
            x += xc * (c[j] - f[j]);
            s[j] = x + xd * (d[j] - f[j]);
        }
        s += dim;
    }
}

static void add_one(const struct sums *h, const float *restrict q, int32_t dim)
{
    const float *restrict f = h->first;
    float *restrict s = h->square;
    for (int32_t i = 0; i < dim; i++) {
        float x = q[i] - f[i];
        s -= i;
        for (int32_t j = i; j < dim; j++)
            s[j] += x * (q[j] - f[j]);
        s += dim;
    }
}

static void add_queries(const struct sums *h, const float *q, size_t stride, int32_t n, int32_t dim)
{
    int32_t t = 0;
    for (int32_t k = 0; k < n; k++)
        for (int32_t i = 0; i < dim; i++)
            h->sum[i] += q[(size_t)k * stride + (size_t)i] - h->first[i];
    for (; h->square != NULL && t + BLOCK <= n; t += BLOCK)
        add_block(h, q + (size_t)t * stride, stride, dim);
    for (; h->square != NULL && t < n; t++)
        add_one(h, q + (size_t)t * stride, dim);
}

static void observe(const void *params, const struct keep_view *view,
                    const struct pi_pass_tap_rows *rows)
{
    const struct params *p = params;
    const struct policy_model *m = view->model;
    int32_t dim = m->g.dim_k, n = rows->item->n_tok;
    int32_t first = (int32_t)pi_max(0, pi_min(n, (int64_t)p->skip - view->n_token));
    size_t n_head = n_query_head(m), stride = n_head * (size_t)dim;
    int64_t *count = count_at(view, rows->layer);
    for (size_t h = 0; first < n && h < n_head; h++) {
        const float *q = rows->q_pre + (size_t)first * stride + h * (size_t)dim;
        struct sums s = sums_at(p, view, rows->layer, h);
        if (*count == 0)
            memcpy(s.first, q, (size_t)dim * sizeof(*q));
        add_queries(&s, q, stride, n - first, dim);
    }
    *count += n - first;
}

static void learn(const void *params, const struct keep_view *view, const struct pi_pass_rows *rows,
                  int32_t item, struct kv_learn_job *job)
{
    const struct params *p = params;
    const struct policy_model *m = view->model;
    int32_t n = rows->items[item].n_tok;
    int32_t first = (int32_t)pi_max(0, pi_min(n, (int64_t)p->skip - view->n_token));
    size_t row = n_query_head(m) * (size_t)m->g.dim_k;
    int64_t *count = count_at(view, rows->layer);
    *job = (struct kv_learn_job){
        .kind = KV_LEARN_MOMENTS,
        .from = pi_at_item(rows->q_pre, (size_t)(rows->row0[item] + first) * row),
        .to = moments_at(p, view, rows->layer, 0),
        .n_tok = n - first,
        .n = (int32_t)row,
        .n_head = (int32_t)n_query_head(m),
        .square = p->covariance != 0,
        .begins = *count == 0,
    };
    *count += n - first;
}

static size_t learn_head(const void *params, const struct policy_model *model)
{
    (void)params;
    return (size_t)model->g.n_layer * sizeof(int64_t);
}

static bool silent(const void *params, const struct keep_view *view, int32_t layer)
{
    (void)params;
    return *count_at(view, layer) == 0;
}

/* ---- the queries to come ---- */

/* Pair f of a vector. */
static void pair_at(const struct pi_rope *rope, int32_t f, int32_t *a, int32_t *b)
{
    *a = rope->adjacent ? 2 * f : f;
    *b = rope->adjacent ? 2 * f + 1 : rope->n_pair + f;
}

/* turn [n_pair][2]: mean of (cos, sin) of angles freq p, p = n .. n + F - 1. That is (cos, sin) of
   the angle in the middle, freq (n + (F - 1) / 2), times sin(F freq / 2) / (F sin(freq / 2)). */
static void mean_rotation(const struct pi_rope *rope, int32_t n, int32_t n_future, double *turn)
{
    for (int32_t f = 0; f < rope->n_pair; f++) {
        double half = rope->freq[f] / 2.0, middle = 2.0 * half * (n + (n_future - 1) / 2.0);
        double down = sin(half), length = rope->magnitude;
        if (fabs(down) > 1e-12)
            length *= sin(n_future * half) / (n_future * down);
        turn[2 * f] = length * cos(middle);
        turn[2 * f + 1] = length * sin(middle);
    }
}

/* x [dim] of elements `step` apart becomes R x. */
static void turn_vector(const struct pi_rope *rope, const double *turn, float *x, size_t step)
{
    for (int32_t f = 0; f < rope->n_pair; f++) {
        int32_t i, j;
        pair_at(rope, f, &i, &j);
        double a = (double)x[(size_t)i * step], b = (double)x[(size_t)j * step];
        x[(size_t)i * step] = (float)(a * turn[2 * f] - b * turn[2 * f + 1]);
        x[(size_t)j * step] = (float)(a * turn[2 * f + 1] + b * turn[2 * f]);
    }
}

/* mu [dim] and S [dim][dim] of a head before rotation. S is that of x, as it does not change when
   all queries are moved. */
static void take_moments(const struct sums *h, int64_t count, int32_t dim, float *mu, float *cov)
{
    double n = (double)count;
    const float *square = h->square;
    for (int32_t i = 0; i < dim; i++)
        mu[i] = (float)((double)h->first[i] + (double)h->sum[i] / n);
    for (int32_t i = 0; square != NULL && i < dim; i++)
        for (int32_t j = i; j < dim; j++) {
            double c = (double)*square++ / n - (double)h->sum[i] / n * ((double)h->sum[j] / n);
            cov[(size_t)i * (size_t)dim + (size_t)j] = (float)c;
            cov[(size_t)j * (size_t)dim + (size_t)i] = (float)c;
        }
}

/* ---- scores ---- */

/* A call's scratch. */
struct work {
    double *turn; /* [n_pair][2] */
    double *norm; /* [n] |v| */
    float *mu;    /* [dim] */
    float *cov;   /* [dim][dim] */
    float *key;   /* [dim][page_len] */
    float *line;  /* [dim][page_len] S' times these */
    float *value; /* [page_len][dim_v] */
    float *x;     /* [n] of a head */
    bool *counts; /* [n] entries that the softmax is over */
};

static size_t lay_out(const struct policy_model *m, int32_t n, void *base, struct work *w)
{
    size_t used = 0, dim = (size_t)m->g.dim_k, len = (size_t)m->g.page_len;
    w->turn = pi_mem_part(base, &used, 2 * (size_t)m->rope->n_pair, sizeof(double));
    w->norm = pi_mem_part(base, &used, (size_t)n, sizeof(double));
    w->mu = pi_mem_part(base, &used, dim, sizeof(float));
    w->cov = pi_mem_part(base, &used, dim * dim, sizeof(float));
    w->key = pi_mem_part(base, &used, dim * len, sizeof(float));
    w->line = pi_mem_part(base, &used, dim * len, sizeof(float));
    w->value = pi_mem_part(base, &used, (size_t)m->g.dim_v * len, sizeof(float));
    w->x = pi_mem_part(base, &used, (size_t)n, sizeof(float));
    w->counts = pi_mem_part(base, &used, (size_t)n, sizeof(bool));
    return used;
}

static size_t scratch_size(const void *params, const struct policy_model *model, const void *data,
                           int32_t n)
{
    struct work w;
    (void)params;
    (void)data;
    return lay_out(model, n, NULL, &w);
}

/* mu' and S' of a query head. */
static void expect_queries(const struct params *p, const struct keep_view *view, int32_t layer,
                           size_t head, struct work *w)
{
    const struct policy_model *m = view->model;
    const struct pi_rope *rope = policy_rope(m, layer);
    size_t dim = (size_t)m->g.dim_k;
    struct sums s = sums_at(p, view, layer, head);
    take_moments(&s, *count_at(view, layer), m->g.dim_k, w->mu, w->cov);
    turn_vector(rope, w->turn, w->mu, 1);
    for (size_t i = 0; p->covariance && i < dim; i++)
        turn_vector(rope, w->turn, w->cov + i, dim);
    for (size_t i = 0; p->covariance && i < dim; i++)
        turn_vector(rope, w->turn, w->cov + i * dim, 1);
}

/* w->x [n] of a query head, by runs. */
static void take_logits(const struct params *p, const struct keep_view *view,
                        const struct keep_lane *lane, struct work *w)
{
    const struct policy_model *m = view->model;
    int32_t n_run = kv_lane_runs(view->kv, lane->layer, lane->head), dim = m->g.dim_k;
    size_t len = (size_t)m->g.page_len;
    float half = p->covariance ? 0.5f * m->scale : 0.0f;
    for (int32_t r = 0; r < n_run; r++) {
        struct keep_run run = keep_run_at(view, lane, r);
        float *restrict x = w->x + run.slot;
        keep_run_keys(view, lane, r, w->key);
        const struct pi_vec_score product = {.key = w->key,
                                             .stride = len,
                                             .n = run.n,
                                             .dim = dim,
                                             .n_pair = m->rope->n_pair,
                                             .adjacent = m->rope->adjacent,
                                             .n_query = dim,
                                             .w = w->cov,
                                             .out = w->line,
                                             .out_stride = len};
        if (p->covariance)
            pi_kernels()->vec.score(&product);
        memset(x, 0, (size_t)run.n * sizeof(*x));
        for (int32_t d = 0; d < dim; d++) {
            const float *key = w->key + (size_t)d * len, *line = w->line + (size_t)d * len;
            for (int32_t j = 0; j < run.n; j++)
                x[j] += key[j] * (w->mu[d] + (p->covariance ? half * line[j] : 0.0f));
        }
        for (int32_t j = 0; j < run.n; j++)
            x[j] *= m->scale;
    }
}

/* Sets counts: all but the oldest of those that always stay. */
static void take_counts(const struct keep_lane *lane, bool *counts)
{
    int32_t oldest = INT32_MAX;
    for (int32_t i = 0; i < lane->n; i++)
        if (lane->evictable[i] && lane->pos[i] < oldest)
            oldest = lane->pos[i];
    for (int32_t i = 0; i < lane->n; i++)
        counts[i] = lane->pos[i] >= oldest;
}

/* w->norm [n]. */
static void take_norms(const struct keep_view *view, const struct keep_lane *lane, struct work *w)
{
    int32_t n_run = kv_lane_runs(view->kv, lane->layer, lane->head), dim = view->model->g.dim_v;
    for (int32_t r = 0; r < n_run; r++) {
        struct keep_run run = keep_run_at(view, lane, r);
        keep_run_values(view, lane, r, w->value);
        for (int32_t j = 0; j < run.n; j++) {
            const float *v = w->value + (size_t)j * (size_t)dim;
            double sum = 0.0;
            for (int32_t d = 0; d < dim; d++)
                sum += (double)v[d] * (double)v[d];
            w->norm[run.slot + j] = sqrt(sum);
        }
    }
}

/* A value that is no number becomes the lowest, and one beyond floats their largest. */
static float finite(double x)
{
    return x > -FLT_MAX ? (float)(x < FLT_MAX ? x : FLT_MAX) : -FLT_MAX;
}

/* The logarithm of the sum over what counts of exp(x): w->x becomes finite. */
static double log_sum(const struct work *w, int32_t n)
{
    float max = -FLT_MAX;
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        w->x[i] = finite((double)w->x[i]);
        max = w->counts[i] && w->x[i] > max ? w->x[i] : max;
    }
    for (int32_t i = 0; i < n; i++)
        if (w->counts[i] && w->x[i] - max >= PI_EXP_MIN)
            sum += (double)pi_expf(w->x[i] - max);
    return (double)max + log(sum);
}

/* out = log(exp(out) + exp(x - down)); first: x - down. */
static void add_logs(const struct work *w, int32_t n, double down, bool first, float *out)
{
    for (int32_t i = 0; i < n; i++) {
        double x = (double)w->x[i] - down, y = (double)out[i];
        double high = x > y ? x : y, low = x > y ? y : x;
        out[i] = finite(first ? x : high + log1p(exp(low - high)));
    }
}

/* The score from the logarithm of the sum over n_group heads. */
static float finish(const struct params *p, double sum, double n_group, double norm)
{
    double x = sum - log(n_group);
    norm = p->vnorm ? norm : 1.0;
    if (p->score != SCORE_LOGIT && p->epsilon > 0.0)
        x = log(exp(x) + p->epsilon);
    x += log(norm + DBL_MIN);
    return finite(p->score == SCORE_SHARE ? exp(x) : x);
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const struct params *p = params;
    const struct policy_model *m = view->model;
    struct work w;
    lay_out(m, lane->n, lane->scratch, &w);
    mean_rotation(policy_rope(m, lane->layer), view->n_token, p->future, w.turn);
    take_counts(lane, w.counts);
    if (p->vnorm)
        take_norms(view, lane, &w);
    for (int32_t g = 0; g < m->n_group; g++) {
        size_t head = (size_t)lane->head * (size_t)m->n_group + (size_t)g;
        expect_queries(p, view, lane->layer, head, &w);
        take_logits(p, view, lane, &w);
        double sum = log_sum(&w, lane->n);
        add_logs(&w, lane->n, p->score == SCORE_LOGIT ? 0.0 : sum, g == 0, out);
    }
    for (int32_t i = 0; i < lane->n; i++)
        out[i] = finish(p, (double)out[i], m->n_group, p->vnorm ? w.norm[i] : 1.0);
}

static size_t weigh_size(const void *params, const struct policy_model *model, const void *data)
{
    (void)params;
    (void)data;
    return 2 * (size_t)model->rope->n_pair * sizeof(double);
}

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    const struct params *p = params;
    const struct policy_model *m = view->model;
    mean_rotation(policy_rope(m, job->layer), view->n_token, p->future, room);
    job->kind = KV_WEIGH_EXPECTED;
    job->expected = (struct kv_weigh_expected){
        .moments = moments_at(p, view, job->layer, (size_t)job->head * (size_t)m->n_group),
        .count = *count_at(view, job->layer),
        .turn = room,
        .n_group = m->n_group,
        .scale = m->scale,
        .square = p->covariance != 0,
        .norm = p->vnorm != 0,
        .sum = p->score != SCORE_LOGIT,
        .share = p->score == SCORE_SHARE,
        .epsilon = p->score != SCORE_LOGIT ? p->epsilon : 0.0,
    };
}

/* ---- the options ---- */

/* Nothing is shared; what the policy cannot work without is looked for. */
static pith_status open_data(const void *params, const struct policy_model *model, void **out,
                             pith_error *err)
{
    (void)params;
    *out = NULL;
    if (model->rope == NULL)
        return pi_fail(err, PITH_INVALID,
                       "expected: it is not known how the keys were rotated, so that no attention "
                       "can be predicted");
    return PITH_OK;
}

static const char *const score_words[] = {"share", "log", "logit", NULL};

#define AT(member) offsetof(struct params, member)
static const struct policy_param own_params[] = {
    {"future", POLICY_TYPE_COUNT, AT(future), 1, 1 << 20, "512",
     "positions after the text at which queries are expected", NULL},
    {"skip", POLICY_TYPE_COUNT, AT(skip), 0, 1 << 20, "4",
     "queries of this many first tokens do not count", NULL},
    {"covariance", POLICY_TYPE_CHOICE, AT(covariance), 0, 0, "on",
     "off: queries are their mean alone, without a spread", policy_switch_words},
    {"vnorm", POLICY_TYPE_CHOICE, AT(vnorm), 0, 0, "on",
     "off: attention without the size of the value", policy_switch_words},
    {"epsilon", POLICY_TYPE_REAL, AT(epsilon), 0, 1000, "0",
     "added to the attention, so that values count where there is none", NULL},
    {"score", POLICY_TYPE_CHOICE, AT(score), 0, 0, "log",
     "share: the share of a lane's attention, as above. log: its logarithm, which orders a lane "
     "alike and can be mapped to importance. logit: without the softmax's sum, so that a score "
     "does not depend on the other entries",
     score_words},
    {0},
};
#undef AT

const struct keep_policy keep_expected = {
    .name = "expected",
    .summary = "entries that future queries are expected to attend to",
    .citation = "Devoto, Jeblick, Jegou, Expected Attention: KV Cache Compression by Estimating "
                "Attention from Future Queries Distribution, 2025, arXiv 2510.00636",
    .defaults = "sinks=4",
    .params = own_params,
    .params_size = sizeof(struct params),
    .open = open_data,
    .needs = needs,
    .state_size = state_size,
    .sound = sound,
    .scratch_size = scratch_size,
    .observe = observe,
    .learn = learn,
    .learn_head = learn_head,
    .learns_before_rope = true,
    .silent = silent,
    .score = score,
    .weigh = weigh,
    .weigh_size = weigh_size,
};
