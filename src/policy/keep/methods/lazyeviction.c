/*
 * lazyeviction.c - entries whose attention comes back: how long ago an entry was last of use,
 * against how long it was of no use before. Haoyue Zhang et al., "LazyEviction: Lagged KV Eviction
 * with Attention Pattern Observation for Efficient Long Reasoning", 2025, arXiv 2506.15969. Every W
 * steps (the rules slack and window) entries are scored. t is the step of the last query, TS(i) the
 * last step with alpha_i >= threshold, and MRI(i) the largest gap between two such steps:
 *
 *   score=code    score(i) = 2 / (1 + exp(1 + (t - TS) / (MRI + 1e-5)))
 *                            + (MRI = 0 ? 0 : 2 / (1 + exp(MRI - 1)))
 *   score=notes   score(i) = 2 sigmoid(-(t - TS) / MRI) + 2 sigmoid(-1 / MRI)
 *
 * The first is the authors' code, whose second term prefers small MRI. The second stands in notes
 * on the paper and prefers large ones, as its prose does. At MRI = 0 both of its terms are 0, their
 * limits. An entry begins with TS one step before the first query that it is shown to and MRI 0.
 *
 * The code has TS and MRI for every query head, as it expands K and V. Here they are the KV head's.
 * `group` makes one weight of a group's, and with max an entry was of use when any of its heads
 * made use of it. TS is then the latest of theirs, and MRI never above the largest of theirs. A gap
 * of all heads lies within a gap of the head that ends it. The code keeps both in the type of its
 * weights, of which f16 knows no odd steps above 2,048. Here they are floats, exact below 2^24
 * tokens.
 */
#include <math.h>

#include "policy/keep/rules/attention.h"

enum { SCORE_CODE, SCORE_NOTES };

struct params {
    double threshold;
    int32_t score;
    int32_t group;
    int32_t prompt;
};

/* MARK_LAST is TS + 2 where a step is a token's position: 0 in an entry that was not shown yet. */
enum { MARK_LAST, MARK_GAP, N_MARK };
#define STEP_BASE 2

static uint32_t needs(const void *params)
{
    return keep_prompt_need(((const struct params *)params)->prompt);
}

static int32_t n_mark(const void *params)
{
    (void)params;
    return N_MARK;
}

static int32_t words(const void *params, struct keep_word *out)
{
    const struct params *p = params;
    out[0] = (struct keep_word){.word = KV_NOTE_GAPS,
                                .group = (enum kv_group)p->group,
                                .mark = MARK_LAST,
                                .threshold = (float)p->threshold};
    return 1;
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double worth(int32_t how, double ago, double mri)
{
    if (how == SCORE_CODE)
        return 2.0 * sigmoid(-1.0 - ago / (mri + 1e-5)) +
               (mri > 0.0 ? 2.0 * sigmoid(1.0 - mri) : 0.0);
    return mri > 0.0 ? 2.0 * sigmoid(-ago / mri) + 2.0 * sigmoid(-1.0 / mri) : 0.0;
}

/* An entry that no query saw yet, in a prompt that does not count, is taken for one that its own
   token has just used. TS is then t, and MRI is 1. */
static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const struct params *p = params;
    const float *last = keep_marks(view, lane->layer, lane->head, MARK_LAST);
    const float *gap = keep_marks(view, lane->layer, lane->head, MARK_GAP);
    float now = (float)(view->n_token - 1 + STEP_BASE);
    for (int32_t i = 0; i < lane->n; i++) {
        bool shown = last[i] > 0.0f;
        out[i] = (float)worth(p->score, shown ? now - last[i] : 0.0, shown ? gap[i] : 1.0);
    }
}

static const char *const score_words[] = {[SCORE_CODE] = "code", [SCORE_NOTES] = "notes", NULL};

static const struct policy_param own_params[] = {
    {"threshold", POLICY_TYPE_REAL, offsetof(struct params, threshold), 0, 1000, "1e-4",
     "the weight from which on a query makes use of an entry", NULL},
    {"score", POLICY_TYPE_CHOICE, offsetof(struct params, score), 0, 0, "code",
     "code: the formula of the authors' code. notes: a formula of notes on the paper, which "
     "prefers long waits where the code prefers short ones",
     score_words},
    KEEP_GROUP_PARAM(struct params, "max"),
    KEEP_PROMPT_PARAM(struct params, "off"),
    {0},
};

static const struct policy_preset presets[] = {
    {"gsm8k", "window=101,slack=101", "the authors' W for GSM8K"},
    {"math", "window=175,slack=175", "for MATH; what holds without a preset"},
    {"aime", "window=363,slack=363", "for AIME"},
    {0},
};

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    const struct params *p = params;
    (void)room;
    job->kind = KV_WEIGH_MARK_GAPS;
    job->gaps = (struct kv_weigh_gaps){.now = (float)(view->n_token - 1 + STEP_BASE),
                                       .code = p->score == SCORE_CODE};
}

const struct keep_policy keep_lazyeviction = {
    .name = "lazyeviction",
    .summary = "entries whose attention is due to recur",
    .citation = "Zhang et al., LazyEviction: Lagged KV Eviction with Attention Pattern Observation "
                "for Efficient Long Reasoning, 2025, arXiv 2506.15969",
    .defaults = "window=175,slack=175",
    .params = own_params,
    .params_size = sizeof(struct params),
    .presets = presets,
    .needs = needs,
    .n_mark = n_mark,
    .words = words,
    .score = score,
    .weigh = weigh,
};
