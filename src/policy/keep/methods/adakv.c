/*
 * adakv.c - SnapKV's score, and a layer's budget for the KV heads that have use for it. Feng, Lv,
 * Cao, Xie, Zhou, "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient
 * LLM Inference", 2024 (arXiv 2407.11550): entries of all heads of a layer compete, which loses
 * least of the attention that the last queries gave. A head is sure of a fifth of an even share
 * (floor=0.2 in the authors' code); allot.c has the formula. Lanes differ in length then, and their
 * pages with them.
 *
 * The score is pooled by maximum over 7 neighbours, as the authors' runs do. Departures as in
 * snapkv.c; the code's scaling by a head's share of mass (normalize) is not here, and every layer
 * takes part (its option skip).
 */
#include "policy/keep/methods/snapkv.h"

struct params {
    struct snapkv_form form; /* first: snapkv.h's members read it */
    double floor;
};

static double allot_floor(const void *params)
{
    return ((const struct params *)params)->floor;
}

static const struct policy_param own_params[] = {
    SNAPKV_PARAMS,
    {"floor", POLICY_TYPE_REAL, offsetof(struct params, floor), 0, 1000, "0.2",
     "the least part of an even share that each head gets: 1 is even, 0 leaves all to the scores",
     NULL},
    {0},
};

const struct keep_policy keep_adakv = {
    .name = "adakv",
    .summary = "the same as snapkv, with a budget per layer that its KV heads share by score",
    .citation = "Feng et al., Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation "
                "for Efficient LLM Inference, 2024, arXiv 2407.11550",
    .defaults = "window=32,pool=max,kernel=7",
    .params = own_params,
    .params_size = sizeof(struct params),
    .needs = snapkv_needs,
    .state_size = snapkv_state_size,
    .scratch_size = snapkv_scratch_size,
    .observe = snapkv_observe,
    .learn = snapkv_learn,
    .learn_head = snapkv_learn_head,
    .silent = snapkv_silent,
    .score = snapkv_score_lane,
    .weigh = snapkv_weigh,
    .allot_floor = allot_floor,
};
