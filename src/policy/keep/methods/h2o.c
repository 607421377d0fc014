/*
 * h2o.c - heavy hitters: the entries that got most attention so far, and the most recent ones.
 * Zhenyu Zhang, Ying Sheng, Tianyi Zhou, Tianlong Chen, Lianmin Zheng, Ruisi Cai, Zhao Song,
 * Yuandong Tian, Christopher Re, Clark Barrett, Zhangyang Wang, Beidi Chen, "H2O: Heavy-Hitter
 * Oracle for Efficient Generative Inference of Large Language Models", NeurIPS 2023, arXiv
 * 2306.14048, Algorithm 1. The authors' code adds up every row of the prompt, so that early
 * entries, which more rows see, are favoured.
 *
 *   score(i) = sum over queries t of alpha_ti         average=on: divided by the number of queries
 *                                                     that saw i (ObservedAttention of kvpress)
 *
 * with alpha the softmax over what was live then. Half of the budget is recent: the rule `recent`.
 * The authors' code is written for one query head per KV head; `group` says what several do.
 *
 * Sums are floats. After n queries a sum is off by at most n * 2^-24 of itself. That is where each
 * query gives the entry less than 2^-25 of its sum, which is then lost: 3 % after a million. Where
 * rounding goes both ways it is about sqrt(n) * 2^-24, 6e-5. So entries change places only where
 * their sums are that close, and in every run alike. A sum that is large beside the others, and so
 * most likely to stand still, is not near the border of the choice.
 */
#include "policy/keep/rules/attention.h"

struct params {
    int32_t group;
    int32_t average;
    int32_t prompt;
};

enum { MARK_SUM, MARK_SEEN }; /* the second where the average is wanted */

static uint32_t needs(const void *params)
{
    return keep_prompt_need(((const struct params *)params)->prompt);
}

static int32_t n_mark(const void *params)
{
    return ((const struct params *)params)->average ? 2 : 1;
}

static int32_t words(const void *params, struct keep_word *out)
{
    const struct params *p = params;
    out[0] =
        (struct keep_word){.word = KV_NOTE_SUM, .group = (enum kv_group)p->group, .mark = MARK_SUM};
    out[1] = (struct keep_word){.word = KV_NOTE_SEEN, .mark = MARK_SEEN}; /* exact below 2^24 */
    return p->average ? 2 : 1;
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *restrict out)
{
    const struct params *p = params;
    memcpy(out, keep_marks(view, lane->layer, lane->head, MARK_SUM),
           (size_t)lane->n * sizeof(*out));
    if (!p->average)
        return;
    const float *restrict seen = keep_marks(view, lane->layer, lane->head, MARK_SEEN);
    for (int32_t i = 0; i < lane->n; i++)
        out[i] /= seen[i] > 1.0f ? seen[i] : 1.0f; /* none has seen it: a sum of 0 */
}

static const struct policy_param own_params[] = {
    KEEP_GROUP_PARAM(struct params, "mean"),
    {"average", POLICY_TYPE_CHOICE, offsetof(struct params, average), 0, 0, "off",
     "on: attention per query that saw the entry, as kvpress's ObservedAttention",
     policy_switch_words},
    KEEP_PROMPT_PARAM(struct params, "on"),
    {0},
};

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    const struct params *p = params;
    (void)view;
    (void)room;
    job->kind = p->average ? KV_WEIGH_MARK_MEAN : KV_WEIGH_MARK;
}

const struct keep_policy keep_h2o = {
    .name = "h2o",
    .summary = "entries that got most attention so far, and recent entries",
    .citation = "Zhang, Sheng, Zhou, Chen, Zheng, Cai, Song, Tian, Re, Barrett, Wang, Chen, H2O: "
                "Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models, "
                "NeurIPS 2023, arXiv 2306.14048",
    .defaults = "recent=0.5,overwrite=on",
    .params = own_params,
    .params_size = sizeof(struct params),
    .needs = needs,
    .n_mark = n_mark,
    .words = words,
    .scores_steps = true,
    .score = score,
    .weigh = weigh,
};
