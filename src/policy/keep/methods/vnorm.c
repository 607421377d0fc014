/*
 * vnorm.c - values of large norm, a control: an entry whose value is small adds little to what
 * attention reads, however much attention it gets. The norm alone asks no query and no key; VATP
 * (Guo et al., "Attention Score is Not All You Need for Token Importance Indicator in KV Cache
 * Reduction: Value Also Matters", EMNLP 2024, arXiv 2406.12335) multiplies attention by it.
 */
#include <math.h>

#include "policy/keep/rules/policy.h"

enum { NORM_L2, NORM_L1 };

struct params {
    int32_t norm;
};

static size_t scratch_size(const void *params, const struct policy_model *model, const void *data,
                           int32_t n)
{
    (void)params;
    (void)data;
    (void)n;
    return (size_t)model->g.dim_v * (size_t)model->g.page_len * sizeof(float);
}

/* l2: sqrt(sum_d v[d]^2); l1: sum_d |v[d]|, which VATP takes. */
static float norm_of(const float *v, int32_t dim, int32_t norm)
{
    float sum = 0.0f;
    for (int32_t d = 0; d < dim; d++)
        sum += norm == NORM_L1 ? fabsf(v[d]) : v[d] * v[d];
    return norm == NORM_L1 ? sum : sqrtf(sum);
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const struct params *p = params;
    int32_t n_run = kv_lane_runs(view->kv, lane->layer, lane->head);
    int32_t dim = view->model->g.dim_v;
    float *value = lane->scratch; /* [page_len][dim_v] */
    for (int32_t r = 0; r < n_run; r++) {
        struct keep_run run = keep_run_at(view, lane, r);
        keep_run_values(view, lane, r, value);
        for (int32_t j = 0; j < run.n; j++)
            out[run.slot + j] = norm_of(value + (size_t)j * (size_t)dim, dim, p->norm);
    }
}

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    const struct params *p = params;
    (void)view;
    (void)room;
    job->kind = p->norm == NORM_L1 ? KV_WEIGH_VALUE_L1 : KV_WEIGH_VALUE_L2;
}

static const char *const norm_words[] = {"l2", "l1", NULL};

static const struct policy_param own_params[] = {
    {"norm", POLICY_TYPE_CHOICE, offsetof(struct params, norm), 0, 0, "l2",
     "l2: the root of the sum of squares. l1: the sum of moduli", norm_words},
    {0},
};

const struct keep_policy keep_vnorm = {
    .name = "vnorm",
    .summary = "values of largest norm",
    .citation = "a control; Guo et al., Attention Score is Not All You Need for Token Importance "
                "Indicator in KV Cache Reduction, EMNLP 2024, arXiv 2406.12335, multiply by it",
    .params = own_params,
    .params_size = sizeof(struct params),
    .scratch_size = scratch_size,
    .score = score,
    .weigh = weigh,
};
