/*
 * rows.c - the entries of a lane as floats: the store's, with keys as attention sees them. Callers'
 * libraries like a key as a row, while the store gives the keys of a page side by side.
 */
#include "policy/rows.h"

#include <math.h>

/* Rotates n keys that lie side by side, dimension d at key + d * row, on by delta positions. */
static void rotate(const struct pi_rope *rope, int32_t delta, float *key, int32_t n, int32_t row)
{
    for (int32_t f = 0; f < rope->n_pair; f++) {
        double angle = delta * rope->freq[f];
        float c = (float)cos(angle), s = (float)sin(angle);
        float *a = key + (size_t)(rope->adjacent ? 2 * f : f) * (size_t)row;
        float *b = a + (size_t)(rope->adjacent ? 1 : rope->n_pair) * (size_t)row;
        for (int32_t j = 0; j < n; j++) {
            float x = a[j], y = b[j];
            a[j] = x * c - y * s;
            b[j] = x * s + y * c;
        }
    }
}

void policy_run_keys(const struct policy_model *m, const struct kv_seq *kv, int32_t layer,
                     int32_t head, int32_t i, float *key)
{
    struct kv_run run = kv_lane_run(kv, layer, head, i);
    const struct pi_rope *rope = policy_rope(m, layer);
    kv_lane_run_keys(kv, layer, head, i, key);
    if (run.delta != 0 && rope != NULL)
        rotate(rope, run.delta, key, run.n, m->g.page_len);
}

size_t policy_rows_page(const struct kv_geometry *g)
{
    return (size_t)pi_max(g->dim_k, g->dim_v) * (size_t)g->page_len;
}

/* The entries from .. end - 1 that are in run i. */
static void copy_run(const struct policy_model *m, const struct kv_seq *kv, int32_t layer,
                     int32_t head, int32_t i, int32_t from, int32_t end, float *page, float *k,
                     float *v)
{
    struct kv_run run = kv_lane_run(kv, layer, head, i);
    size_t dim_k = (size_t)m->g.dim_k, dim_v = (size_t)m->g.dim_v, len = (size_t)m->g.page_len;
    int32_t first = (int32_t)pi_max(from, run.slot);
    int32_t last = (int32_t)pi_min(end, run.slot + run.n);
    if (first >= last)
        return;
    if (k != NULL) {
        policy_run_keys(m, kv, layer, head, i, page);
        for (int32_t s = first; s < last; s++)
            for (size_t d = 0; d < dim_k; d++)
                k[(size_t)(s - from) * dim_k + d] = page[d * len + (size_t)(s - run.slot)];
    }
    if (v != NULL) {
        kv_lane_run_values(kv, layer, head, i, page);
        memcpy(v + (size_t)(first - from) * dim_v, page + (size_t)(first - run.slot) * dim_v,
               (size_t)(last - first) * dim_v * sizeof(*v));
    }
}

void policy_rows(const struct policy_model *m, const struct kv_seq *kv, int32_t layer, int32_t head,
                 int32_t from, int32_t n, float *page, float *k, float *v)
{
    for (int32_t i = 0; i < kv_lane_runs(kv, layer, head); i++)
        copy_run(m, kv, layer, head, i, from, from + n, page, k, v);
}
