/*
 * kvzip.c - the entries that repeating the text looks at: what the cheaper policies approximate.
 * Jang-Hyun Kim, Jinuk Kim, Sangwoo Kwon, Jae W. Lee, Sangdoo Yun, Hyun Oh Song, "KVzip:
 * Query-Agnostic KV Cache Compression with Context Reconstruction", NeurIPS 2025 (arXiv
 * 2505.23416); KVzip+ from Jegou, Jeblick, "KVzap", 2026 (arXiv 2601.07891). Over the queries j of
 * the repeated text and the query heads h of a group, with a the softmax over all entries:
 *
 *   score=attention   score(i) = log max over j, h of a(h, j, i)
 *   score=plus        score(i) = log max over j, h of a(h, j, i) |Wo_h v_i| / |x_j|
 *
 * x_j: the layer's input after its norm at query j; Wo_h: head h's part of the output projection.
 * The engine runs the repetition (repeat.c) when a prompt is in, before its round; the score is the
 * entry's mark. An entry that is repeated once more keeps the greater score. An entry that was
 * never scored, a generated token's, has a mark of 0. It stays until a prompt ends again, as long
 * as there are others.
 *
 * Departures. The authors look at a part of 2,048 tokens with a softmax over that part, the sinks
 * and the repetition. Here it is over everything, and every part scores every entry. They have
 * logarithms nowhere, which changes no order.
 */
#include <float.h>
#include <math.h>

#include "model/shape.h"
#include "policy/keep/learn/importance_target.h"
#include "policy/keep/rules/policy.h"

enum { SCORE_ATTENTION, SCORE_PLUS };

struct params {
    int32_t score;
};

static uint32_t needs(const void *params)
{
    bool plus = ((const struct params *)params)->score == SCORE_PLUS;
    return KEEP_NEED_REPEAT | (plus ? KEEP_NEED_REPEAT_SCALED : 0);
}

static int32_t n_mark(const void *params)
{
    (void)params;
    return 1;
}

static bool comparable(const void *params)
{
    (void)params;
    return true;
}

/* Data: what |Wo_h v| is computed from; NULL without it. */
static pith_status open_data(const void *params, const struct policy_model *model, void **out,
                             pith_error *err)
{
    struct importance_gram *gram = NULL;
    *out = NULL;
    if (model->model == NULL)
        return pi_fail(err, PITH_UNSUPPORTED, "kvzip: without a model nothing can be repeated");
    if (((const struct params *)params)->score == SCORE_PLUS)
        PI_TRY(importance_gram_create(model->model, 1, &gram, err));
    *out = gram;
    return PITH_OK;
}

static void close_data(void *data)
{
    importance_gram_free(data);
}

/* The largest weight of a query head of the group, by what the value adds where that counts. */
static double most_of(const struct keep_view *view, const struct keep_repeat *r, int32_t i,
                      const float *value)
{
    double most = 0.0;
    for (int32_t g = 0; g < r->n_group; g++) {
        double x = (double)r->most[(size_t)g * (size_t)r->n + (size_t)i];
        if (view->data != NULL && x > most / FLT_MAX)
            x *= importance_norm(view->data, r->layer, r->head * r->n_group + g, value);
        most = x > most ? x : most;
    }
    return most;
}

static void repeated(const void *params, const struct keep_view *view, const struct keep_repeat *r)
{
    const struct keep_lane lane = {.layer = r->layer, .head = r->head, .n = r->n};
    int32_t n_run = kv_lane_runs(view->kv, r->layer, r->head);
    float *mark = keep_marks_to_write(view, r->layer, r->head, 0);
    (void)params;
    for (int32_t k = 0; k < n_run; k++) {
        struct keep_run run = keep_run_at(view, &lane, k);
        if (view->data != NULL)
            keep_run_values(view, &lane, k, r->scratch);
        for (int32_t j = 0; j < run.n; j++) {
            int32_t i = run.slot + j;
            double most =
                most_of(view, r, i, r->scratch + (size_t)j * (size_t)view->model->g.dim_v);
            float x = (float)log(most > IMPORTANCE_LEAST ? most : IMPORTANCE_LEAST);
            x = x != 0.0f ? x : -FLT_MIN; /* 0 means not scored yet */
            mark[i] = mark[i] == 0.0f || x > mark[i] ? x : mark[i];
        }
    }
}

static void score(const void *params, const struct keep_view *view, const struct keep_lane *lane,
                  float *out)
{
    const float *mark = keep_marks(view, lane->layer, lane->head, 0);
    (void)params;
    for (int32_t i = 0; i < lane->n; i++)
        out[i] = mark[i] != 0.0f ? mark[i] : FLT_MAX;
}

static void weigh(const void *params, const struct keep_view *view, struct kv_weigh_job *job,
                  void *room)
{
    (void)params;
    (void)view;
    (void)room;
    job->kind = KV_WEIGH_MARK_OR_MOST;
}

static const char *const score_words[] = {"attention", "plus", NULL};

static const struct policy_param own_params[] = {
    {"score", POLICY_TYPE_CHOICE, offsetof(struct params, score), 0, 0, "attention",
     "attention: the largest attention while the prompt is repeated (KVzip). plus: the same, "
     "weighted by the value's effect on the layer's output (KVzip+)",
     score_words},
    {0},
};

const struct keep_policy keep_kvzip = {
    .name = "kvzip",
    .summary = "entries that the model looks at when it repeats the prompt",
    .citation = "Kim, Kim, Kwon, Lee, Yun, Song, KVzip: Query-Agnostic KV Cache Compression with "
                "Context Reconstruction, NeurIPS 2025, arXiv 2505.23416",
    .defaults = "sinks=4,window=128,rounds=prompt-end,granularity=global",
    .params = own_params,
    .params_size = sizeof(struct params),
    .comparable = comparable,
    .open = open_data,
    .close = close_data,
    .needs = needs,
    .n_mark = n_mark,
    .repeated = repeated,
    .marks_there = true,
    .score = score,
    .weigh = weigh,
};
