/*
 * run.c - a policy's way to keys, values and marks: the store's, with keys as attention sees them.
 */
#include "policy/keep/rules/policy.h"
#include "policy/rows.h"

struct keep_run keep_run_at(const struct keep_view *view, const struct keep_lane *lane, int32_t i)
{
    struct kv_run run = kv_lane_run(view->kv, lane->layer, lane->head, i);
    return (struct keep_run){.slot = run.slot, .n = run.n};
}

void keep_run_keys(const struct keep_view *view, const struct keep_lane *lane, int32_t i,
                   float *key)
{
    policy_run_keys(view->model, view->kv, lane->layer, lane->head, i, key);
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
