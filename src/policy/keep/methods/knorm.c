/*
 * knorm.c - keys of small norm. Devoto, Zhao, Scardapane, Minervini, "A Simple and Effective L2
 * Norm-Based Strategy for KV Cache Compression", EMNLP 2024 (arXiv 2406.11430), section 3: keys of
 * low norm are those that receive much attention. KnormPress in NVIDIA's kvpress.
 *
 * Departure: layers are treated alike; the paper leaves the first two alone, which the rule
 * `layers` can come near. A model that normalises its keys (Qwen3) has norms that hardly differ.
 */
#include <math.h>

#include "policy/keep/rules/policy.h"

static size_t scratch_size(const void *params, const struct policy_model *model, const void *data,
                           int32_t n)
{
    (void)params;
    (void)data;
    (void)n;
    return (size_t)model->g.dim_k * (size_t)model->g.page_len * sizeof(float);
}

/* score(i) = -sqrt(sum_d k_i[d]^2), which rotation does not change. */
static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const struct kv_geometry *g = &view->model->g;
    int32_t n_run = kv_lane_runs(view->kv, lane->layer, lane->head), len = g->page_len;
    float *key = lane->scratch; /* [dim_k][page_len] */
    (void)params;
    for (int32_t r = 0; r < n_run; r++) {
        struct keep_run run = keep_run_at(view, lane, r);
        float *sum = out + run.slot;
        keep_run_keys(view, lane, r, key);
        memset(sum, 0, (size_t)run.n * sizeof(*sum));
        for (int32_t d = 0; d < g->dim_k; d++)
            for (int32_t j = 0; j < run.n; j++)
                sum[j] += key[(size_t)d * (size_t)len + (size_t)j] *
                          key[(size_t)d * (size_t)len + (size_t)j];
        for (int32_t j = 0; j < run.n; j++)
            sum[j] = -sqrtf(sum[j]);
    }
}

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    (void)params;
    (void)view;
    (void)room;
    job->kind = KV_WEIGH_KEY;
    job->lowest = true;
}

const struct keep_policy keep_knorm = {
    .name = "knorm",
    .summary = "keys of smallest norm",
    .citation = "Devoto et al., A Simple and Effective L2 Norm-Based Strategy for KV Cache "
                "Compression, EMNLP 2024, arXiv 2406.11430",
    .scratch_size = scratch_size,
    .score = score,
    .weigh = weigh,
};
