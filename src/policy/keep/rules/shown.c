/*
 * shown.c - shows a policy what happens between rounds: rows of passes, entries that were stored,
 * the weights of a repeated text. The view is completed, and the policy does the rest.
 */
#include "policy/keep/rules/rounds.h"

void keep_observe(const struct keep *k, const struct keep_view *view,
                  const struct pi_pass_tap_rows *rows)
{
    struct keep_view whole = keep_view_complete(k, view);
    if ((keep_needs(k) & KEEP_NEED_ROWS) != 0)
        k->config.policy->observe(&k->config.params, &whole, rows);
}

bool keep_observes(const struct keep *k, const struct keep_view *view, int32_t layer)
{
    const struct keep_policy *p = k->config.policy;
    struct keep_view whole = keep_view_complete(k, view);
    return p->observes == NULL || p->observes(&k->config.params, &whole, layer);
}

void keep_learn(const struct keep *k, const struct keep_view *view, const struct pi_pass_rows *rows,
                int32_t item, struct kv_learn_job *job)
{
    struct keep_view whole = keep_view_complete(k, view);
    k->config.policy->learn(&k->config.params, &whole, rows, item, job);
}

void keep_written(const struct keep *k, const struct keep_view *view,
                  const struct pi_pass_written *w)
{
    struct keep_view whole = keep_view_complete(k, view);
    k->config.policy->written(&k->config.params, &whole, w);
}

void keep_predict(const struct keep *k, const struct keep_view *view,
                  const struct pi_pass_entries *rows, int32_t at, struct kv_predict_job *job)
{
    struct keep_view whole = keep_view_complete(k, view);
    k->config.policy->predict(&k->config.params, &whole, rows, at, job);
}

void keep_repeated(const struct keep *k, const struct keep_view *view, const struct keep_repeat *r)
{
    struct keep_view whole = keep_view_complete(k, view);
    k->config.policy->repeated(&k->config.params, &whole, r);
}
