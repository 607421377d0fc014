/*
 * tova.c - what the newest query looks at. Oren, Hassid, Yarden, Adi, Schwartz, "Transformers are
 * Multi-State RNNs", EMNLP 2024 (arXiv 2401.06104), section 3.2 (Token Omission Via Attention):
 * with alpha the attention of the last token,
 *
 *   score(i) = mean over all query heads of the layer of alpha_hi
 *
 * One set serves all KV heads of a layer (granularity=layer,combine=mean), and one entry goes for
 * each that comes in (overwrite=on). Nothing is protected, and the new entry competes.
 *
 * Departures. The authors' code cuts a prompt once, at its end. Here rounds keep it within budget +
 * slack while it is read, each by the last query at that time.
 */
#include "policy/keep/rules/policy.h"

/* mean over the rows of weight [n_group][stride] */
static void average(const float *weight, size_t stride, int32_t n_group, int32_t n, float *out)
{
    memcpy(out, weight, (size_t)n * sizeof(*out));
    for (int32_t g = 1; g < n_group; g++)
        for (int32_t i = 0; i < n; i++)
            out[i] += weight[(size_t)g * stride + (size_t)i];
    for (int32_t i = 0; n_group > 1 && i < n; i++)
        out[i] /= (float)n_group;
}

static uint32_t needs(const void *params)
{
    (void)params;
    return KEEP_NEED_ROWS;
}

static size_t state_size(const void *params, const struct policy_model *model, const void *data)
{
    (void)params;
    (void)data;
    return keep_queries_size(model, 1);
}

static size_t scratch_size(const void *params, const struct policy_model *model, const void *data,
                           int32_t n)
{
    (void)params;
    (void)data;
    return keep_queries_sums_scratch(model, 1, n);
}

static void observe(const void *params, const struct keep_view *view,
                    const struct pi_pass_tap_rows *rows)
{
    (void)params;
    keep_queries_observe(view, 1, rows);
}

static void learn(const void *params, const struct keep_view *view, const struct pi_pass_rows *rows,
                  int32_t item, struct kv_learn_job *job)
{
    (void)params;
    keep_queries_learn(view, 1, rows, item, job);
}

static size_t learn_head(const void *params, const struct policy_model *model)
{
    (void)params;
    return keep_queries_head(model, 1);
}

static int32_t words(const void *params, struct keep_word *out)
{
    (void)params;
    out[0] = (struct keep_word){.word = KV_NOTE_LAST, .group = KV_GROUP_MEAN, .step = true};
    return 1;
}

static bool silent(const void *params, const struct keep_view *view, int32_t layer)
{
    (void)params;
    (void)layer;
    return keep_queries_count(view, 1) == 0;
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const float *weight;
    size_t stride;
    (void)params;
    keep_queries_sums(view, lane, 1, lane->scratch, &weight, &stride);
    average(weight, stride, view->model->n_group, lane->n, out);
}

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    (void)params;
    (void)room;
    keep_queries_votes(view, 1, job);
}

const struct keep_policy keep_tova = {
    .name = "tova",
    .summary = "entries that the newest query attends to",
    .citation = "Oren et al., Transformers are Multi-State RNNs, EMNLP 2024, arXiv 2401.06104",
    .defaults = "granularity=layer,combine=mean,overwrite=on",
    .needs = needs,
    .state_size = state_size,
    .scratch_size = scratch_size,
    .observe = observe,
    .learn = learn,
    .learn_head = learn_head,
    .words = words,
    .notes_steps = true,
    .silent = silent,
    .score = score,
    .weigh = weigh,
};
