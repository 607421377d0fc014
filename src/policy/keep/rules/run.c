/*
 * run.c - a policy's way to keys, values and marks: the store's, with keys as attention sees them.
 */
#include <math.h>

#include "policy/keep/rules/keep.h"

struct keep_run keep_run_at(const struct keep_view *view, const struct keep_lane *lane, int32_t i)
{
    struct kv_run run = kv_lane_run(view->kv, lane->layer, lane->head, i);
    return (struct keep_run){.slot = run.slot, .n = run.n};
}

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

void keep_run_keys(const struct keep_view *view, const struct keep_lane *lane, int32_t i,
                   float *key)
{
    struct kv_run run = kv_lane_run(view->kv, lane->layer, lane->head, i);
    int32_t row = view->model->g.page_len;
    kv_lane_run_keys(view->kv, lane->layer, lane->head, i, key);
    const struct pi_rope *rope = policy_rope(view->model, lane->layer);
    if (run.delta != 0 && rope != NULL)
        rotate(rope, run.delta, key, run.n, row);
}

void keep_run_values(const struct keep_view *view, const struct keep_lane *lane, int32_t i,
                     float *value)
{
    kv_lane_run_values(view->kv, lane->layer, lane->head, i, value);
}

const float *keep_marks(const struct keep_view *view, int32_t layer, int32_t head, int32_t i)
{
    return kv_lane_read_marks(view->kv, layer, head, i);
}

float *keep_marks_to_write(const struct keep_view *view, int32_t layer, int32_t head, int32_t i)
{
    return kv_lane_marks(view->kv, layer, head, i);
}

const uint16_t *keep_norms(const struct keep_view *view, int32_t layer, int32_t head)
{
    return kv_lane_norms(view->kv, layer, head);
}
