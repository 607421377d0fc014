/*
 * vatp.c - value-aware token pruning: the attention that an entry got so far, times the norm of its
 * value. Zhiyu Guo, Hidetaka Kamigaito, Taro Watanabe, "Attention Score is Not All You Need for
 * Token Importance Indicator in KV Cache Reduction: Value Also Matters", EMNLP 2024, arXiv
 * 2406.12335, with H2O as what it is applied to (the authors' --h2o --apval).
 *
 *   score(i) = (sum over queries t of alpha_ti) * |v_i|_1
 *
 * The authors' code adds alpha * |v_i|_1 query by query, which is the same: the norm is the entry's
 * own. It is that of the value as it is stored, so that it belongs to what attention adds up, and
 * rounded to 8 bits. The first 20 tokens always stay (the code sets their scores to the largest
 * float at the end of the prompt). Their values are small, their attention is not, and without this
 * rule they would go. Half of the budget is recent, as in the README's run. h2o.c says how floats
 * round.
 */
#include <float.h>

#include "base/half.h"
#include "policy/keep/rules/attention.h"

struct params {
    int32_t group;
    int32_t prompt;
};

enum { MARK_SUM, N_MARK };

static uint32_t needs(const void *params)
{
    return keep_prompt_need(((const struct params *)params)->prompt) | KEEP_NEED_VALUE_NORM;
}

static int32_t n_mark(const void *params)
{
    (void)params;
    return N_MARK;
}

static int32_t words(const void *params, struct keep_word *out)
{
    const struct params *p = params;
    out[0] =
        (struct keep_word){.word = KV_NOTE_SUM, .group = (enum kv_group)p->group, .mark = MARK_SUM};
    return 1;
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *restrict out)
{
    const uint16_t *restrict norms = keep_norms(view, lane->layer, lane->head);
    const float *restrict sum = keep_marks(view, lane->layer, lane->head, MARK_SUM);
    (void)params;
    for (int32_t i = 0; i < lane->n; i++) {
        float norm = pi_f32_from_bf16(norms[i]);
        out[i] = sum[i] * (norm < FLT_MAX ? norm : FLT_MAX); /* 0 * infinity would be no number */
    }
}

static const struct policy_param own_params[] = {
    KEEP_GROUP_PARAM(struct params, "mean"),
    KEEP_PROMPT_PARAM(struct params, "on"),
    {0},
};

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    (void)params;
    (void)view;
    (void)room;
    job->kind = KV_WEIGH_MARK_NORM;
}

const struct keep_policy keep_vatp = {
    .name = "vatp",
    .summary = "the same as h2o, weighted by the size of the value",
    .citation = "Guo, Kamigaito, Watanabe, Attention Score is Not All You Need for Token "
                "Importance Indicator in KV Cache Reduction: Value Also Matters, EMNLP 2024, "
                "arXiv 2406.12335",
    .defaults = "recent=0.5,sinks=20,overwrite=on",
    .params = own_params,
    .params_size = sizeof(struct params),
    .needs = needs,
    .n_mark = n_mark,
    .words = words,
    .scores_steps = true,
    .score = score,
    .weigh = weigh,
};
