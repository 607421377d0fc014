/*
 * rkv.c - looked at, and not said twice. Cai, Xiao, Sun, Luo, Zhang, Wan, Li, Zhou, Chang, Gu,
 * Dong, Anandkumar, Asi, Hu, "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models",
 * 2025 (arXiv 2505.24133), section 3, in the form of the authors' code (r1_kv.py). For the entries
 * i before the last W queries t, with x_ti the largest raw logit among the query heads of the KV
 * head,
 *
 *   importance(i) = max over `kernel` neighbours of  mean over t of  softmax over i of x_ti
 *   redundancy(j) = softmax over all n entries of  (1 / n) sum over i != j of cos(k_i, k_j)
 *   score(i)      = lambda importance(i) - (1 - lambda) redundancy(i)
 *
 * Of the cosines of each key i the last one above `threshold` counts as 0 (similar=last). So of a
 * group that says the same the youngest is not counted redundant. In the authors' code a key
 * without any finds the first column instead, whose cosine is lost (quirk=on). The paper says
 * lambda = 0.1, the code's class has 0.07.
 *
 * The sum of a column is a dot product with the sum of all unit keys. The last similar key of each
 * is searched from the youngest backwards, a block of keys against blocks of rows, until all rows
 * have theirs. That is n^2 cosines at worst, none of which is stored.
 *
 * Departures: rounds that come while a prompt is read; keys that have no length count as unlike
 * all others. The softmax is over raw logits of all heads together, which no word of attention's
 * has: it looks at rows.
 */
#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "cpu/kernels.h"
#include "policy/keep/rules/policy.h"
#include "policy/pool.h"

#define BLOCK PI_ATTEND_SLOTS /* keys that lie side by side */
#define LEAST_NORM 1e-12f     /* below, a key points nowhere */

enum { SIMILAR_LAST, SIMILAR_OFF };

struct params {
    int32_t n_query;
    int32_t kernel;
    int32_t similar;
    int32_t quirk;
    double lambda;
    double threshold;
};

/* ---- scratch ---- */

struct work {
    float *unit;     /* [blocks][dim_k][BLOCK] unit keys in the order of the text */
    float *key;      /* [dim_k][page_len] */
    float *row;      /* [dim_k][PI_ATTEND_ROWS] */
    float *cosine;   /* [PI_ATTEND_ROWS][BLOCK] */
    double *sum;     /* [dim_k] of all unit keys */
    double *mean;    /* [n] of the columns */
    float *softmax;  /* [n] */
    float *vote;     /* [n] */
    float *pooled;   /* [n] */
    int32_t *order;  /* [n] slots in the order of the text */
    int32_t *place;  /* [n] of a slot in that order */
    int32_t *active; /* [n] rows that look for their last similar key */
    void *queries;   /* of keep_queries_logits */
};

static size_t lay_out(const struct params *p, const struct policy_model *m, int32_t n_entry,
                      void *base, struct work *w)
{
    size_t used = 0, dim = (size_t)m->g.dim_k, n = (size_t)n_entry;
    w->unit = pi_mem_part(base, &used, pi_align(n, BLOCK) * dim, sizeof(float));
    w->key = pi_mem_part(base, &used, dim * (size_t)m->g.page_len, sizeof(float));
    w->row = pi_mem_part(base, &used, dim * PI_ATTEND_ROWS, sizeof(float));
    w->cosine = pi_mem_part(base, &used, (size_t)PI_ATTEND_ROWS * BLOCK, sizeof(float));
    w->sum = pi_mem_part(base, &used, dim, sizeof(double));
    w->mean = pi_mem_part(base, &used, n, sizeof(double));
    w->softmax = pi_mem_part(base, &used, n, sizeof(float));
    w->vote = pi_mem_part(base, &used, n, sizeof(float));
    w->pooled = pi_mem_part(base, &used, n, sizeof(float));
    w->order = pi_mem_part(base, &used, n, sizeof(int32_t));
    w->place = pi_mem_part(base, &used, n, sizeof(int32_t));
    w->active = pi_mem_part(base, &used, n, sizeof(int32_t));
    w->queries = pi_mem_part(base, &used, keep_queries_logits_scratch(m, p->n_query, n_entry), 1);
    return used;
}

/* ---- redundancy ---- */

/* Element d of the unit key i in the order of the text. */
static size_t at(const struct kv_geometry *g, int32_t i, int32_t d)
{
    return ((size_t)(i / BLOCK) * (size_t)g->dim_k + (size_t)d) * BLOCK + (size_t)(i % BLOCK);
}

static void fill_units(const struct keep_view *view, const struct keep_lane *lane, struct work *w)
{
    const struct kv_geometry *g = &view->model->g;
    int32_t n_run = kv_lane_runs(view->kv, lane->layer, lane->head);
    memset(w->unit, 0, pi_align((size_t)lane->n, BLOCK) * (size_t)g->dim_k * sizeof(float));
    for (int32_t r = 0; r < n_run; r++) {
        struct keep_run run = keep_run_at(view, lane, r);
        keep_run_keys(view, lane, r, w->key);
        for (int32_t j = 0; j < run.n; j++) {
            const float *key = w->key + j;
            float norm = 0.0f;
            for (int32_t d = 0; d < g->dim_k; d++)
                norm += key[d * g->page_len] * key[d * g->page_len];
            norm = sqrtf(norm);
            /* Too short for a direction, or too long for its square. */
            if (!(norm >= LEAST_NORM) || !(norm <= FLT_MAX))
                continue;
            for (int32_t d = 0; d < g->dim_k; d++)
                w->unit[at(g, w->place[run.slot + j], d)] = key[d * g->page_len] / norm;
        }
    }
}

/* mean[j] = sum over i != j of cos(k_i, k_j): the unit key's dot product with the sum of all, less
   that with itself. */
static void sum_columns(const struct kv_geometry *g, int32_t n, struct work *w)
{
    for (int32_t d = 0; d < g->dim_k; d++) {
        w->sum[d] = 0.0;
        for (int32_t i = 0; i < n; i++)
            w->sum[d] += (double)w->unit[at(g, i, d)];
    }
    memset(w->mean, 0, (size_t)n * sizeof(*w->mean));
    for (int32_t first = 0; first < n; first += BLOCK)
        for (int32_t d = 0; d < g->dim_k; d++) {
            const float *u = w->unit + at(g, first, d);
            double sum = w->sum[d];
            for (int32_t j = 0; j < BLOCK && first + j < n; j++)
                w->mean[first + j] += (double)u[j] * (sum - (double)u[j]);
        }
}

/* cosine[r][j] of some rows with the keys of a block. */
static void take_cosines(const struct kv_geometry *g, const int32_t *rows, int32_t n_row,
                         int32_t first, int32_t n, struct work *w)
{
    static const int32_t nowhere[BLOCK];
    struct pi_attend_page page = {.k = w->unit + at(g, first, 0),
                                  .pos = nowhere,
                                  .page_len = BLOCK,
                                  .n = n,
                                  .dim_k = g->dim_k};
    struct pi_attend_rows job = {
        .n_row = n_row, .q = w->row, .scale = 1.0f, .all_visible = true, .x = w->cosine};
    for (int32_t d = 0; d < g->dim_k; d++)
        for (int32_t r = 0; r < n_row; r++)
            w->row[d * n_row + r] = w->unit[at(g, rows[r], d)];
    pi_kernels()->attend.logits_decoded(&page, &job);
}

/* Takes the last cosine above the threshold of row i off its column, within a block; false: there
   is none. */
static bool drop_last(const struct params *p, int32_t i, const float *cosine, int32_t first,
                      int32_t n, double *mean)
{
    for (int32_t j = n - 1; j >= 0; j--)
        if (first + j != i && cosine[j] > (float)p->threshold) {
            mean[first + j] -= (double)cosine[j];
            return true;
        }
    return false;
}

static void drop_similar(const struct params *p, const struct kv_geometry *g, int32_t n,
                         struct work *w)
{
    int32_t n_active = n;
    for (int32_t i = 0; i < n; i++)
        w->active[i] = i;
    for (int32_t first = (n - 1) / BLOCK * BLOCK; first >= 0 && n_active > 0; first -= BLOCK) {
        int32_t n_key = (int32_t)pi_min(BLOCK, n - first), n_left = 0;
        for (int32_t i = 0; i < n_active; i += PI_ATTEND_ROWS) {
            int32_t n_row = (int32_t)pi_min(PI_ATTEND_ROWS, n_active - i);
            take_cosines(g, w->active + i, n_row, first, n_key, w);
            for (int32_t r = 0; r < n_row; r++)
                if (!drop_last(p, w->active[i + r], w->cosine + (size_t)r * BLOCK, first, n_key,
                               w->mean))
                    w->active[n_left++] = w->active[i + r];
        }
        n_active = n_left;
    }
    for (int32_t i = 0; p->quirk && i < n_active; i++)
        for (int32_t d = 0; w->active[i] != 0 && d < g->dim_k; d++)
            w->mean[0] -= (double)w->unit[at(g, w->active[i], d)] * (double)w->unit[at(g, 0, d)];
}

/* softmax [n] = redundancy, in the order of the text. */
static void take_redundancy(const struct params *p, const struct keep_view *view,
                            const struct keep_lane *lane, struct work *w)
{
    double max = -DBL_MAX, sum = 0.0;
    int32_t n = lane->n;
    fill_units(view, lane, w);
    sum_columns(&view->model->g, n, w);
    if (p->similar == SIMILAR_LAST)
        drop_similar(p, &view->model->g, n, w);
    for (int32_t i = 0; i < n; i++) {
        w->mean[i] /= n;
        max = w->mean[i] > max ? w->mean[i] : max;
    }
    for (int32_t i = 0; i < n; i++) {
        w->softmax[i] = pi_expf((float)(w->mean[i] - max)); /* a mean cosine is within -1..1 */
        sum += (double)w->softmax[i];
    }
    for (int32_t i = 0; i < n; i++)
        w->softmax[i] = (float)((double)w->softmax[i] / sum);
}

/* ---- importance ---- */

/* pooled [n] = importance of the first n entries in the order of the text. */
static void take_importance(const struct params *p, const struct keep_view *view,
                            const struct keep_lane *lane, int32_t n, struct work *w)
{
    int32_t count = keep_queries_count(view, p->n_query), n_group = view->model->n_group;
    const float *logit;
    size_t stride;
    float *x = w->pooled; /* until the end */
    keep_queries_logits(view, lane, p->n_query, w->queries, &logit, &stride);
    memset(w->vote, 0, (size_t)n * sizeof(*w->vote));
    for (int32_t t = 0; t < count; t++) {
        float max = -FLT_MAX, sum = 0.0f;
        for (int32_t i = 0; i < n; i++) {
            const float *of_head = logit + (size_t)t * (size_t)n_group * stride + w->order[i];
            x[i] = of_head[0];
            for (int32_t g = 1; g < n_group; g++)
                x[i] = fmaxf(x[i], of_head[(size_t)g * stride]);
            max = fmaxf(max, x[i]);
        }
        for (int32_t i = 0; i < n; i++) {
            x[i] = x[i] - max < PI_EXP_MIN ? 0.0f : pi_expf(x[i] - max);
            sum += x[i];
        }
        for (int32_t i = 0; i < n; i++)
            w->vote[i] += x[i] / sum / (float)count;
    }
    policy_pool(POLICY_POOL_MAX, p->kernel, w->vote, n, w->pooled);
}

/* ---- members ---- */

static uint32_t needs(const void *params)
{
    (void)params;
    return KEEP_NEED_ROWS;
}

static size_t state_size(const void *params, const struct policy_model *model, const void *data)
{
    (void)data;
    return keep_queries_size(model, ((const struct params *)params)->n_query);
}

static size_t scratch_size(const void *params, const struct policy_model *model, const void *data,
                           int32_t n)
{
    struct work w;
    (void)data;
    return lay_out(params, model, n, NULL, &w);
}

static void observe(const void *params, const struct keep_view *view,
                    const struct pi_pass_tap_rows *rows)
{
    keep_queries_observe(view, ((const struct params *)params)->n_query, rows);
}

static void learn(const void *params, const struct keep_view *view, const struct pi_pass_rows *rows,
                  int32_t item, struct kv_learn_job *job)
{
    keep_queries_learn(view, ((const struct params *)params)->n_query, rows, item, job);
}

static size_t learn_head(const void *params, const struct policy_model *model)
{
    return keep_queries_head(model, ((const struct params *)params)->n_query);
}

static bool silent(const void *params, const struct keep_view *view, int32_t layer)
{
    (void)layer;
    return keep_queries_count(view, ((const struct params *)params)->n_query) == 0;
}

/* Entries at the positions of the last queries are not scored; they go last. */
static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const struct params *p = params;
    struct work w;
    int32_t n = 0;
    lay_out(p, view->model, lane->n, lane->scratch, &w);
    policy_pool_order(lane->pos, lane->n, w.order);
    for (int32_t i = 0; i < lane->n; i++)
        w.place[w.order[i]] = i;
    while (n < lane->n && lane->pos[w.order[n]] < view->n_token - p->n_query)
        n++;
    take_redundancy(p, view, lane, &w);
    take_importance(p, view, lane, n, &w);
    for (int32_t i = 0; i < lane->n; i++)
        out[w.order[i]] = i < n ? (float)(p->lambda * (double)w.pooled[i] -
                                          (1.0 - p->lambda) * (double)w.softmax[i])
                                : FLT_MAX;
}

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    const struct params *p = params;
    (void)room;
    keep_queries_votes(view, p->n_query, job);
    job->kind = KV_WEIGH_UNLIKE;
    job->votes.softmax = KV_VOTES_TOGETHER;
    job->votes.largest = true;
    job->votes.kernel = p->kernel;
    job->votes.before = view->n_token - p->n_query;
    job->unlike = (struct kv_weigh_unlike){.lambda = p->lambda,
                                           .threshold = (float)p->threshold,
                                           .last = p->similar == SIMILAR_LAST,
                                           .quirk = p->quirk != 0};
}

static const char *const similar_words[] = {[SIMILAR_LAST] = "last", [SIMILAR_OFF] = "off", NULL};
#define AT(member) offsetof(struct params, member)
static const struct policy_param own_params[] = {
    {"queries", POLICY_TYPE_COUNT, AT(n_query), 1, 4096, "8",
     "the last queries; entries at their positions go last", NULL},
    {"kernel", POLICY_TYPE_COUNT, AT(kernel), 1, 4095, "7",
     "neighbours of which the largest importance counts; 1: none", NULL},
    {"lambda", POLICY_TYPE_REAL, AT(lambda), 0, 1000, "0.1",
     "weight of importance (the paper and the README; the class in the code has 0.07)", NULL},
    {"similar", POLICY_TYPE_CHOICE, AT(similar), 0, 0, "last",
     "each key's last similar one is not counted; off: all are", similar_words},
    {"threshold", POLICY_TYPE_REAL, AT(threshold), 0, 1000, "0.5",
     "the cosine above which keys are similar", NULL},
    {"quirk", POLICY_TYPE_CHOICE, AT(quirk), 0, 0, "on",
     "on: as in the authors' code, a key that has no similar one does not count its cosine with "
     "the oldest entry",
     policy_switch_words},
    {0},
};
#undef AT

const struct keep_policy keep_rkv = {
    .name = "rkv",
    .summary = "entries that the last queries attend to and other keys do not repeat",
    .citation = "Cai et al., R-KV: Redundancy-aware KV Cache Compression for Reasoning Models, "
                "2025, arXiv 2505.24133",
    .defaults = "window=8,slack=128",
    .params = own_params,
    .params_size = sizeof(struct params),
    .needs = needs,
    .state_size = state_size,
    .scratch_size = scratch_size,
    .observe = observe,
    .learn = learn,
    .learn_head = learn_head,
    .silent = silent,
    .score = score,
    .weigh = weigh,
};
