/*
 * snapkv.c - what the last queries look at. Li, Huang, Yang, Venkitesh, Locatelli, Ye, Cai, Lewis,
 * Chen, "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024 (arXiv
 * 2404.14469), section 4 and Listing 1: with W queries at the end (the observation window) and
 * alpha the causal softmax over all keys,
 *
 *   vote(i)  = sum over the last W queries t of alpha_ti        for i before the window
 *   score(i) = vote pooled over `kernel` neighbours in the order of the text
 *
 * and the window itself stays. avg counts zeros beyond the ends in its divisor, max leaves them
 * out, as the authors' avg_pool1d and max_pool1d do.
 *
 * Departures. The authors cut once, after the prompt; here every round does, by the last W queries
 * of then. They keep a set per query head, which multiplies the KV heads. Here the query heads of a
 * KV head decide together before pooling (group=mean: Ada-KV's and KVCache-Factory's form for
 * grouped queries). softmax=before is the form of LongFlow's code, which leaves the window out of
 * the softmax; it takes group=sum with it. No word has this softmax: it looks at rows of logits.
 */
#include <float.h>

#include "base/mem.h"
#include "cpu/expf.h"
#include "policy/keep/methods/snapkv.h"

/* ---- scores ---- */

/* A call's scratch. */
struct work {
    float *vote;    /* [n] of a query head */
    float *all;     /* [n] of the group */
    float *sorted;  /* [n] in the order of the text */
    float *pooled;  /* [n] */
    int32_t *order; /* [n] slots in that order */
    void *queries;  /* of keep_queries_sums or, with softmax=before, keep_queries_logits */
};

static size_t lay_out(const struct snapkv_form *form, const struct policy_model *model, int32_t n,
                      void *base, struct work *w)
{
    size_t used = 0, count = (size_t)n;
    w->vote = pi_mem_part(base, &used, count, sizeof(float));
    w->all = pi_mem_part(base, &used, count, sizeof(float));
    w->sorted = pi_mem_part(base, &used, count, sizeof(float));
    w->pooled = pi_mem_part(base, &used, count, sizeof(float));
    w->order = pi_mem_part(base, &used, count, sizeof(int32_t));
    size_t size = form->softmax == SNAPKV_BEFORE
                      ? keep_queries_logits_scratch(model, form->n_query, n)
                      : keep_queries_sums_scratch(model, form->n_query, n);
    w->queries = pi_mem_part(base, &used, size, 1);
    return used;
}

size_t snapkv_score_scratch(const struct snapkv_form *form, const struct policy_model *model,
                            int32_t n)
{
    struct work w;
    return lay_out(form, model, n, NULL, &w);
}

/* vote(i) += alpha_i of a row of logits, whose softmax is over the first n entries in the order of
   the text alone. */
static void add_before(const float *logit, const int32_t *order, int32_t n, float *weight,
                       float *vote)
{
    float max = -FLT_MAX, sum = 0.0f;
    for (int32_t i = 0; i < n; i++)
        max = logit[order[i]] > max ? logit[order[i]] : max;
    for (int32_t i = 0; i < n; i++) {
        float x = logit[order[i]] - max;
        weight[i] = x < PI_EXP_MIN ? 0.0f : pi_expf(x);
        sum += weight[i];
    }
    for (int32_t i = 0; i < n; i++)
        vote[order[i]] += weight[i] / sum;
}

/* all = the votes of a group's heads as one; head g is added. */
static void fold_head(int32_t group, int32_t g, const float *vote, int32_t n, float *all)
{
    if (g == 0) {
        memcpy(all, vote, (size_t)n * sizeof(*all));
        return;
    }
    for (int32_t i = 0; i < n; i++)
        all[i] = group != SNAPKV_MAX ? all[i] + vote[i] : vote[i] > all[i] ? vote[i] : all[i];
}

/* w->all [n] from the last queries; the first n_before in the order of the text are scored. */
static void take_votes(const struct snapkv_form *form, const struct keep_view *view,
                       const struct keep_lane *lane, int32_t n_before, struct work *w)
{
    int32_t count = keep_queries_count(view, form->n_query), n_group = view->model->n_group;
    bool before = form->softmax == SNAPKV_BEFORE;
    const float *row;
    size_t stride;
    if (before)
        keep_queries_logits(view, lane, form->n_query, w->queries, &row, &stride);
    else
        keep_queries_sums(view, lane, form->n_query, w->queries, &row, &stride);
    for (int32_t g = 0; g < n_group; g++) {
        const float *vote = before ? w->vote : row + (size_t)g * stride;
        if (before)
            memset(w->vote, 0, (size_t)lane->n * sizeof(*w->vote));
        for (int32_t t = 0; before && t < count; t++)
            add_before(row + ((size_t)t * (size_t)n_group + (size_t)g) * stride, w->order, n_before,
                       w->sorted, w->vote);
        fold_head(form->group, g, vote, lane->n, w->all);
    }
    for (int32_t i = 0; form->group == SNAPKV_MEAN && i < lane->n; i++)
        w->all[i] /= (float)n_group;
}

void snapkv_score(const struct snapkv_form *form, const struct keep_view *view,
                  const struct keep_lane *lane, void *scratch, float *out)
{
    struct work w;
    int32_t n_before = 0;
    lay_out(form, view->model, lane->n, scratch, &w);
    policy_pool_order(lane->pos, lane->n, w.order);
    while (n_before < lane->n && lane->pos[w.order[n_before]] < view->n_token - form->n_query)
        n_before++;
    take_votes(form, view, lane, n_before, &w);
    for (int32_t i = 0; i < n_before; i++)
        w.sorted[i] = w.all[w.order[i]];
    policy_pool((enum policy_pool_kind)form->pool, form->kernel, w.sorted, n_before, w.pooled);
    for (int32_t i = 0; i < lane->n; i++)
        out[w.order[i]] = i < n_before ? w.pooled[i] : FLT_MAX;
}

static_assert((int)SNAPKV_MEAN == (int)KV_GROUP_MEAN && (int)SNAPKV_MAX == (int)KV_GROUP_MAX &&
                  (int)SNAPKV_SUM == (int)KV_GROUP_SUM && (int)SNAPKV_ALL == (int)KV_VOTES_ALL &&
                  (int)SNAPKV_BEFORE == (int)KV_VOTES_BEFORE,
              "words of kv/weigh.h");

void snapkv_votes(const struct snapkv_form *form, const struct keep_view *view,
                  struct kv_weigh_job *job)
{
    keep_queries_votes(view, form->n_query, job);
    job->votes.softmax = (enum kv_votes_softmax)form->softmax;
    job->votes.group = (enum kv_group)form->group;
    job->votes.largest = form->pool == POLICY_POOL_MAX;
    job->votes.kernel = form->kernel;
    job->votes.before = view->n_token - form->n_query;
}

/* ---- members of a policy ---- */

uint32_t snapkv_needs(const void *params)
{
    (void)params;
    return KEEP_NEED_ROWS;
}

size_t snapkv_state_size(const void *params, const struct policy_model *model, const void *data)
{
    (void)data;
    return keep_queries_size(model, ((const struct snapkv_form *)params)->n_query);
}

size_t snapkv_scratch_size(const void *params, const struct policy_model *model, const void *data,
                           int32_t n)
{
    (void)data;
    return snapkv_score_scratch(params, model, n);
}

void snapkv_observe(const void *params, const struct keep_view *view,
                    const struct pi_pass_tap_rows *rows)
{
    keep_queries_observe(view, ((const struct snapkv_form *)params)->n_query, rows);
}

void snapkv_learn(const void *params, const struct keep_view *view, const struct pi_pass_rows *rows,
                  int32_t item, struct kv_learn_job *job)
{
    keep_queries_learn(view, ((const struct snapkv_form *)params)->n_query, rows, item, job);
}

size_t snapkv_learn_head(const void *params, const struct policy_model *model)
{
    return keep_queries_head(model, ((const struct snapkv_form *)params)->n_query);
}

bool snapkv_silent(const void *params, const struct keep_view *view, int32_t layer)
{
    (void)layer;
    return keep_queries_count(view, ((const struct snapkv_form *)params)->n_query) == 0;
}

void snapkv_score_lane(const void *params, const struct keep_view *view,
                       const struct keep_lane *lane, float *out)
{
    snapkv_score(params, view, lane, lane->scratch, out);
}

void snapkv_weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    (void)room;
    snapkv_votes(params, view, job);
}

/* ---- the policy ---- */

const char *const snapkv_pool_words[] = {
    [POLICY_POOL_AVG] = "avg", [POLICY_POOL_MAX] = "max", NULL};
const char *const snapkv_group_words[] = {
    [SNAPKV_MEAN] = "mean", [SNAPKV_MAX] = "max", [SNAPKV_SUM] = "sum", NULL};
const char *const snapkv_softmax_words[] = {[SNAPKV_ALL] = "all", [SNAPKV_BEFORE] = "before", NULL};

static const struct policy_param own_params[] = {SNAPKV_PARAMS, {0}};

const struct keep_policy keep_snapkv = {
    .name = "snapkv",
    .summary = "entries that the last queries attend to",
    .citation = "Li et al., SnapKV: LLM Knows What You are Looking for Before Generation, NeurIPS "
                "2024, arXiv 2404.14469",
    .defaults = "window=32",
    .params = own_params,
    .params_size = sizeof(struct snapkv_form),
    .needs = snapkv_needs,
    .state_size = snapkv_state_size,
    .scratch_size = snapkv_scratch_size,
    .observe = snapkv_observe,
    .learn = snapkv_learn,
    .learn_head = snapkv_learn_head,
    .silent = snapkv_silent,
    .score = snapkv_score_lane,
    .weigh = snapkv_weigh,
};
