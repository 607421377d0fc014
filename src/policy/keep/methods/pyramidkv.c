/*
 * pyramidkv.c - SnapKV's score with more of the budget in the first layers. Cai, Zhang, Gao, Liu,
 * Liu, Lu, Xiong, Dong, Chang, Hu, Xiao, "PyramidKV: Dynamic KV Cache Compression based on
 * Pyramidal Information Funneling", 2024 (arXiv 2406.02069), section 3.2: lower layers attend
 * widely, upper ones to a few entries.
 *
 * It adds a rule, layers=pyramidkv:BETA (split.c): with base = budget - window, layer l of L keeps
 *
 *   window + max - l (max - min) / (L - 1),   min = base / BETA,  max = 2 base - min
 *
 * entries, so that the mean is the budget. The authors' code rounds min and the step down. That
 * leaves its layers up to L - 1 entries more each and their sum above the budget. Here each layer's
 * number is rounded down. That code also lowers max to the prompt's length and splits evenly where
 * the prompt is shorter than two bases. Here the split is known before any text is, so that memory
 * is, too. A layer whose budget is more than the text keeps all of it.
 */
#include "policy/keep/methods/snapkv.h"

static const struct policy_param own_params[] = {SNAPKV_PARAMS, {0}};

const struct keep_policy keep_pyramidkv = {
    .name = "pyramidkv",
    .summary = "the same as snapkv, with more budget for the first layers",
    .citation =
        "Cai et al., PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information "
        "Funneling, 2024, arXiv 2406.02069",
    .defaults = "window=32,layers=pyramidkv:20",
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
