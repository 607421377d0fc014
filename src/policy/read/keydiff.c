/*
 * keydiff.c - keys that differ from the others. Park, Jones, Morse, Goel, Lee, Lott, "KeyDiff: Key
 * Similarity-Based KV Cache Eviction for Long-Context LLM Inference in Resource-Constrained
 * Environments", 2025 (arXiv 2504.15364), KeyDiffPress in NVIDIA's kvpress. No query is looked at:
 *
 *   anchor   = (1/T) sum_t k[t] / |k[t]|      over the T keys before the chunk, as they are rotated
 *   score(t) = -cos(k[t], anchor) = -k[t].anchor / (|k[t]| |anchor|)
 *
 * Departures. The method evicts block by block; here nothing goes, and every chunk chooses anew
 * among all keys. The norms are taken on the way to the anchor, so that nothing is stored for them.
 * A key of zeros, and one whose squared length is beyond the range of f32, has no direction and
 * scores 0. policy/keep/methods/keydiff.c is the method as it evicts.
 */
#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "cpu/kernels.h"
#include "policy/read/together.h"

#define LANES 16 /* partial sums of a dimension of the anchor; divides every page length */

/* A call's scratch. */
struct work {
    float *anchor;  /* [dim_k] */
    float *part;    /* [dim_k] of the pages with one delta */
    float *sum;     /* [dim_k][LANES] of the same */
    float *cs;      /* [dim_k] cosines and sines of a delta */
    float *inverse; /* [n] 1 / |k|, and a page more */
    float *key;     /* [dim_k][page_len] */
    void *score;    /* of kv_score */
};

static size_t lay_out(const struct kv_geometry *g, int32_t n, void *base, struct work *w)
{
    size_t used = 0, dim = (size_t)g->dim_k, page = (size_t)g->page_len;
    w->anchor = pi_mem_part(base, &used, dim, sizeof(float));
    w->part = pi_mem_part(base, &used, dim, sizeof(float));
    w->sum = pi_mem_part(base, &used, dim * LANES, sizeof(float));
    w->cs = pi_mem_part(base, &used, dim + 1, sizeof(float));
    w->inverse = pi_mem_part(base, &used, (size_t)n + page, sizeof(float));
    w->key = pi_mem_part(base, &used, dim * page, sizeof(float));
    w->score = pi_mem_part(base, &used, kv_score_scratch_bytes(g, 1), 1);
    return used;
}

static size_t scratch_size(const void *params, const struct policy_model *model, int32_t n,
                           int32_t n_tok)
{
    struct work w;
    (void)params;
    (void)n_tok;
    return lay_out(&model->g, n, NULL, &w);
}

static float inverse_root(float square)
{
    return square > 0.0f ? 1.0f / sqrtf(square) : 0.0f;
}

/* inverse[j] = 1 / |k_j| of the n keys of a page, and 0 for what lies in it beyond them. */
static void take_norms(const float *restrict key, const struct kv_geometry *g, int32_t n,
                       float *restrict inverse)
{
    memset(inverse, 0, (size_t)g->page_len * sizeof(*inverse));
    for (int32_t d = 0; d < g->dim_k; d++)
        for (int32_t j = 0; j < g->page_len; j++)
            inverse[j] += key[(size_t)d * (size_t)g->page_len + (size_t)j] *
                          key[(size_t)d * (size_t)g->page_len + (size_t)j];
    for (int32_t j = 0; j < g->page_len; j++)
        inverse[j] = j < n ? inverse_root(inverse[j]) : 0.0f;
}

/* sum += the unit keys of a page, entry j to partial sum j % LANES. */
static void add_units(const float *key, const struct kv_geometry *g, const float *inverse,
                      float *restrict sum)
{
    for (int32_t d = 0; d < g->dim_k; d++) {
        const float *row = key + (size_t)d * (size_t)g->page_len;
        for (int32_t j = 0; j < g->page_len; j += LANES)
            for (int32_t i = 0; i < LANES; i++)
                sum[d * LANES + i] += row[j + i] * inverse[j + i];
    }
}

/* Adds the sum over the pages with a delta to the anchor, rotated as their keys are read, and
   begins the next. */
static void close_part(const struct policy_model *model, const struct pi_rope *rope, int32_t delta,
                       struct work *w)
{
    for (int32_t d = 0; d < model->g.dim_k; d++) {
        float *sum = w->sum + (size_t)d * LANES;
        for (int32_t half = LANES / 2; half > 0; half /= 2)
            for (int32_t i = 0; i < half; i++)
                sum[i] += sum[i + half];
        w->part[d] = sum[0];
    }
    if (delta != 0 && rope != NULL) {
        pi_rope_fill_delta(rope, delta, w->cs);
        pi_kernels()->vec.rope(w->part, w->cs, rope->n_pair, rope->adjacent);
    }
    for (int32_t d = 0; d < model->g.dim_k; d++)
        w->anchor[d] += w->part[d];
    memset(w->sum, 0, (size_t)model->g.dim_k * LANES * sizeof(*w->sum));
}

/* w->anchor over the first n slots, not divided by n, whose norms go to w->inverse. */
static void make_anchor(const struct read_view *view, const struct read_chunk *c, struct work *w)
{
    const struct kv_geometry *g = &view->model->g;
    const struct pi_rope *rope = policy_rope(view->model, c->layer);
    int32_t delta = 0;
    memset(w->anchor, 0, (size_t)g->dim_k * sizeof(*w->anchor));
    memset(w->sum, 0, (size_t)g->dim_k * LANES * sizeof(*w->sum));
    for (int32_t i = 0, slot = 0; slot < c->n; i++) {
        struct kv_run run = kv_lane_run(view->kv, c->layer, c->head, i);
        int32_t n = (int32_t)pi_min(run.n, c->n - slot);
        if (run.delta != delta)
            close_part(view->model, rope, delta, w);
        delta = run.delta;
        kv_lane_run_keys(view->kv, c->layer, c->head, i, w->key);
        take_norms(w->key, g, n, w->inverse + slot);
        add_units(w->key, g, w->inverse + slot, w->sum);
        slot += n;
    }
    close_part(view->model, rope, delta, w);
}

static float length_of(const float *x, int32_t dim)
{
    float sum = 0.0f;
    for (int32_t d = 0; d < dim; d++)
        sum += x[d] * x[d];
    return sum;
}

static void score(const void *params, const struct read_view *view, const struct read_chunk *c,
                  float *out)
{
    const struct policy_model *m = view->model;
    struct work w;
    (void)params;
    lay_out(&m->g, c->n, c->scratch, &w);
    make_anchor(view, c, &w);
    struct kv_score_job job = read_score_job(view, c, KV_SCORE_DOT, w.anchor, 1, c->n, out);
    kv_score(&job, w.score);
    float by = inverse_root(length_of(w.anchor, m->g.dim_k));
    for (int32_t s = 0; s < c->n; s++) {
        float cosine = out[s] * w.inverse[s] * by;
        out[s] = fabsf(cosine) <= FLT_MAX ? -cosine : 0.0f;
    }
}

const struct read_policy read_keydiff = {
    .name = "keydiff",
    .summary = "keys least like the mean key",
    .citation = "Park et al., KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM "
                "Inference in Resource-Constrained Environments, 2025, arXiv 2504.15364",
    .scratch_size = scratch_size,
    .score = score,
};
