/*
 * saved.c - a policy's state of a sequence, in a file. It checks whether the options there are the
 * engine's, and whether bytes can be a state. It knows no files.
 */
#include "policy/keep/rules/rounds.h"

bool keep_config_same(const struct keep_config *a, const struct keep_config *b)
{
    return a->policy == b->policy &&
           (a->policy == NULL || (policy_fields_same(keep_rule_params, &a->rules, &b->rules) &&
                                  policy_fields_same(a->policy->params, &a->params, &b->params)));
}

bool keep_state_sound(const struct keep *k, const void *state)
{
    const struct keep_policy *p = k->config.policy;
    return p->sound == NULL || k->state_size == 0 ||
           p->sound(&k->config.params, &k->model, k->data, state);
}
