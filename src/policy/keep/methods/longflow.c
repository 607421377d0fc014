/*
 * longflow.c - the entry that the newest query would miss least goes, one for each that comes in.
 * Yi Su, Zhenxu Tian, Dan Qiao, Yuechi Zhou, Juntao Li, Min Zhang, "LongFlow: Efficient KV Cache
 * Compression for Reasoning Models", section 3. Removing entry i changes the output of query head
 * h, o_h = sum_i alpha_hi v_i, by
 *
 *   o_h - o_h^(-i) = alpha_hi / (1 - alpha_hi) * (v_i - o_h)        exact, for this query
 *                 ~= alpha_hi v_i                                   with the softmax's sum as it
 * was
 *
 * As alpha_hi >= 0, the L1 norm of the second is a product of two numbers: the weight, and the norm
 * of the value. The norm is computed once, when the entry is written, and rounded to 8 bits (bf16,
 * in which all is in the authors' code):
 *
 *   score(i) = mean over query heads h of alpha_hi * ||v_i||_1      score=l1
 *   score(i) = mean over h of alpha_hi / (1 - alpha_hi) * ||v_i - o_h||_2        score=exact
 *
 * The lowest score over all heads of a layer (granularity=layer, the authors' code) or of a KV head
 * is overwritten by the next token. normalise=off weighs with exp(x_hi), x_hi the logit, in the
 * place of alpha_hi. The paper's kernel sums that up before it divides; heads with a large sum
 * decide then. Logits may be of any size: what is handed on is relative to the largest sum of the
 * group, whose logarithm goes with it.
 *
 * score=l1 is a word of attention's. score=exact reads every value once more, which no word does:
 * it looks at rows.
 *
 * Prompts that fill the budget are cut by the attention of their last queries (snapkv.h), in the
 * form of the authors' code. That is softmax over the keys before the last 32 alone, summed over
 * queries and heads, averaged over 5 neighbours.
 */
#include <float.h>
#include <math.h>

#include "cpu/kernels.h"
#include "policy/keep/methods/snapkv.h"

enum { SCORE_L1, SCORE_EXACT };

struct params {
    struct snapkv_form form; /* first; of group and softmax see form_of */
    int32_t score;
    int32_t normalise;
    int32_t newest;
};

/* ---- steps ---- */

static uint32_t needs(const void *params)
{
    (void)params;
    return KEEP_NEED_ROWS | KEEP_NEED_VALUE_NORM;
}

/* The values of a page, where they are read again. */
static size_t step_scratch(const void *params, const struct policy_model *model, const void *data,
                           int32_t n)
{
    const struct params *p = params;
    (void)data;
    (void)n;
    if (p->score == SCORE_L1)
        return 0;
    return (size_t)model->g.dim_v * (size_t)model->g.page_len * sizeof(float);
}

/* An entry that has all of a head's attention is the head's whole output. The output without it is
   unknown, so it stays. */
static float exact_loss(float alpha, const float *v, const float *o, int32_t dim)
{
    float rest = 1.0f - alpha;
    if (rest <= 0.0f)
        return FLT_MAX;
    return alpha / rest * sqrtf(pi_kernels()->vec.distance(v, o, dim));
}

static void step_exact(const struct keep_view *view, const struct keep_attention *a, float *value,
                       float *out)
{
    const struct keep_lane lane = {.layer = a->layer, .head = a->head, .n = a->n};
    int32_t dim = view->model->g.dim_v, n_run = kv_lane_runs(view->kv, a->layer, a->head);
    float part = 1.0f / (float)a->n_group;
    for (int32_t r = 0; r < n_run; r++) {
        struct keep_run run = keep_run_at(view, &lane, r);
        keep_run_values(view, &lane, r, value);
        for (int32_t j = 0; j < run.n && run.slot + j < a->n; j++) {
            float sum = 0.0f;
            for (int32_t g = 0; g < a->n_group; g++)
                sum += exact_loss(a->weight[(size_t)g * a->stride + (size_t)(run.slot + j)],
                                  value + (size_t)j * (size_t)dim, a->out + (size_t)g * (size_t)dim,
                                  dim);
            sum *= part;
            out[run.slot + j] = a->add ? out[run.slot + j] + sum : sum;
        }
    }
}

static void step(const void *params, const struct keep_view *view, const struct keep_attention *a,
                 float *out)
{
    const struct params *p = params;
    step_exact(view, a, a->scratch, out);
    if (p->newest)
        out[a->slot] = INFINITY;
}

static int32_t words(const void *params, struct keep_word *out)
{
    const struct params *p = params;
    out[0] = (struct keep_word){.word = KV_NOTE_NORM,
                                .group = KV_GROUP_MEAN,
                                .step = true,
                                .plain = !p->normalise,
                                .newest = p->newest != 0};
    return p->score == SCORE_L1 ? 1 : 0;
}

/* ---- prompts ---- */

static struct snapkv_form form_of(const void *params)
{
    struct snapkv_form form = ((const struct params *)params)->form;
    form.pool = POLICY_POOL_AVG;
    form.group = SNAPKV_SUM;
    form.softmax = SNAPKV_BEFORE;
    return form;
}

static size_t scratch_size(const void *params, const struct policy_model *model, const void *data,
                           int32_t n)
{
    struct snapkv_form form = form_of(params);
    (void)data;
    return snapkv_score_scratch(&form, model, n);
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    struct snapkv_form form = form_of(params);
    snapkv_score(&form, view, lane, lane->scratch, out);
}

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    struct snapkv_form form = form_of(params);
    (void)room;
    snapkv_votes(&form, view, job);
}

/* The last positions of the prompt always stay, something must be chosen from what is before them,
   and one place is for the next token. A share is not checked. While it is less, all that it holds
   are of the last positions, of which, as equals, the older go. */
static pith_status check(const void *params, const struct keep_rules *rules, int32_t n_budget,
                         pith_error *err)
{
    const struct params *p = params;
    (void)rules;
    if (n_budget >= p->form.n_query + 2)
        return PITH_OK;
    return pi_fail(
        err, PITH_INVALID,
        "keep: longflow: a budget of %d entries is below %d, prompt-window=%d and 2 more", n_budget,
        p->form.n_query + 2, p->form.n_query);
}

/* ---- the policy ---- */

static const char *const score_words[] = {[SCORE_L1] = "l1", [SCORE_EXACT] = "exact", NULL};

#define AT(member) .offset = offsetof(struct params, member)
static const struct policy_param own_params[] = {
    {"score", POLICY_TYPE_CHOICE, AT(score), 0, 0, "l1",
     "l1: the weight times the L1 norm of the value. exact: alpha / (1 - alpha) x ||v - o||, the "
     "L2 norm of the real change; reads every value once more",
     score_words},
    {"normalise", POLICY_TYPE_CHOICE, AT(normalise), 0, 0, "on",
     "off: exp(logit) in the place of alpha, the paper's un-normalised quantity; heads with large "
     "sums decide",
     policy_switch_words},
    {"newest", POLICY_TYPE_CHOICE, AT(newest), 0, 0, "off",
     "on: the entry just written is not the next to go", policy_switch_words},
    {"prompt-window", POLICY_TYPE_COUNT, AT(form.n_query), 1, 4096, "32",
     "the last queries of a prompt that fills the budget; by their attention the rest is cut, and "
     "their positions stay",
     NULL},
    {"kernel", POLICY_TYPE_COUNT, AT(form.kernel), 1, 4095, "5",
     "neighbours that this attention is averaged over; 1: none", NULL},
    {0},
};
#undef AT

const struct keep_policy keep_longflow = {
    .name = "longflow",
    .summary = "entries that the newest query would miss most",
    .citation = "Su, Tian, Qiao, Zhou, Li, Zhang, LongFlow: Efficient KV Cache Compression for "
                "Reasoning Models; code yisunlp/LongFLow",
    .defaults = "overwrite=on,granularity=layer",
    .params = own_params,
    .params_size = sizeof(struct params),
    .needs = needs,
    .check = check,
    .state_size = snapkv_state_size,
    .scratch_size = scratch_size,
    .observe = snapkv_observe,
    .learn = snapkv_learn,
    .learn_head = snapkv_learn_head,
    .words = words,
    .step = step,
    .step_adds = true,
    .step_scratch = step_scratch,
    .silent = snapkv_silent,
    .score = score,
    .weigh = weigh,
};
