/*
 * keydiff.c - keys that differ from the others. Park, Jones, Morse, Goel, Lee, Lott, "KeyDiff: Key
 * Similarity-Based KV Cache Eviction for Long-Context LLM Inference in Resource-Constrained
 * Environments", 2025 (arXiv 2504.15364): no query is looked at; a key that points where all do is
 * the one to lose. KeyDiffPress in NVIDIA's kvpress.
 *
 * The paper evicts after blocks of 128 tokens, which is the default slack of the rules. The anchor
 * is taken over all entries that are live then, protected ones included.
 */
#include <math.h>

#include "policy/keep/rules/policy.h"

#define LEAST_NORM 1e-12f /* of a key or the anchor; below, it points nowhere */

/* A call's scratch. */
struct work {
    float *anchor; /* [dim_k] */
    float *norm;   /* [page_len] */
    float *dot;    /* [page_len] */
    float *key;    /* [dim_k][page_len] */
};

static struct work lay_out(const struct kv_geometry *g, float *base)
{
    size_t dim = (size_t)g->dim_k, len = (size_t)g->page_len;
    return (struct work){base, base + dim, base + dim + len, base + dim + 2 * len};
}

static size_t scratch_size(const void *params, const struct policy_model *model, const void *data,
                           int32_t n)
{
    (void)params;
    (void)data;
    (void)n;
    size_t dim = (size_t)model->g.dim_k, len = (size_t)model->g.page_len;
    return (dim + 2 * len + dim * len) * sizeof(float); /* as place takes them */
}

/* norm[j] = max(|k_j|, LEAST_NORM) of the keys in w->key. */
static void take_norms(struct work *w, const struct kv_geometry *g, int32_t n)
{
    memset(w->norm, 0, (size_t)n * sizeof(*w->norm));
    for (int32_t d = 0; d < g->dim_k; d++) {
        const float *row = w->key + (size_t)d * (size_t)g->page_len;
        for (int32_t j = 0; j < n; j++)
            w->norm[j] += row[j] * row[j];
    }
    for (int32_t j = 0; j < n; j++)
        w->norm[j] = fmaxf(sqrtf(w->norm[j]), LEAST_NORM);
}

/* anchor = (1 / n) sum_j k_j / |k_j|. */
static void make_anchor(struct work *w, const struct keep_view *view, const struct keep_lane *lane,
                        int32_t n_run)
{
    const struct kv_geometry *g = &view->model->g;
    memset(w->anchor, 0, (size_t)g->dim_k * sizeof(*w->anchor));
    for (int32_t r = 0; r < n_run; r++) {
        struct keep_run run = keep_run_at(view, lane, r);
        keep_run_keys(view, lane, r, w->key);
        take_norms(w, g, run.n);
        for (int32_t d = 0; d < g->dim_k; d++) {
            const float *row = w->key + (size_t)d * (size_t)g->page_len;
            for (int32_t j = 0; j < run.n; j++)
                w->anchor[d] += row[j] / w->norm[j];
        }
    }
    for (int32_t d = 0; d < g->dim_k; d++)
        w->anchor[d] /= (float)lane->n;
}

/* score(i) = -cos(k_i, anchor) = -k_i . anchor / (|k_i| |anchor|) */
static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const struct kv_geometry *g = &view->model->g;
    int32_t n_run = kv_lane_runs(view->kv, lane->layer, lane->head);
    struct work w = lay_out(g, lane->scratch);
    float length = 0.0f;
    (void)params;
    make_anchor(&w, view, lane, n_run);
    for (int32_t d = 0; d < g->dim_k; d++)
        length += w.anchor[d] * w.anchor[d];
    length = fmaxf(sqrtf(length), LEAST_NORM);
    for (int32_t r = 0; r < n_run; r++) {
        struct keep_run run = keep_run_at(view, lane, r);
        keep_run_keys(view, lane, r, w.key);
        take_norms(&w, g, run.n);
        memset(w.dot, 0, (size_t)run.n * sizeof(*w.dot));
        for (int32_t d = 0; d < g->dim_k; d++) {
            const float *row = w.key + (size_t)d * (size_t)g->page_len;
            for (int32_t j = 0; j < run.n; j++)
                w.dot[j] += row[j] * w.anchor[d];
        }
        for (int32_t j = 0; j < run.n; j++) {
            float cosine = w.dot[j] / (w.norm[j] * length);
            /* Keys stored as f32 can be so long that the products are infinite. */
            out[run.slot + j] = cosine == cosine ? -cosine : 0.0f;
        }
    }
}

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    (void)params;
    (void)view;
    (void)room;
    job->kind = KV_WEIGH_ALIKE;
    job->lowest = true;
}

const struct keep_policy keep_keydiff = {
    .name = "keydiff",
    .summary = "keys least like the mean key",
    .citation = "Park et al., KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM "
                "Inference in Resource-Constrained Environments, 2025, arXiv 2504.15364",
    .scratch_size = scratch_size,
    .score = score,
    .weigh = weigh,
};
