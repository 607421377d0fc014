/*
 * saved.c - what a policy remembers of a sequence, in a file: whether the options there are those
 * of an engine, and whether bytes can be a state. It knows no files.
 */
#include "keep/rounds.h"

static bool is_same(const struct keep_param *param, const void *a, const void *b)
{
    const uint8_t *x = (const uint8_t *)a + param->offset, *y = (const uint8_t *)b + param->offset;
    const struct keep_budget *p = (const void *)x, *q = (const void *)y;
    switch (param->type) {
    case KEEP_TYPE_BUDGET:
        return p->unit == q->unit && p->value == q->value;
    case KEEP_TYPE_REAL:
        return memcmp(x, y, sizeof(double)) == 0;
    case KEEP_TYPE_TEXT:
        return strcmp((const char *)x, (const char *)y) == 0;
    case KEEP_TYPE_COUNT:
    case KEEP_TYPE_CHOICE:
        break;
    }
    return memcmp(x, y, sizeof(int32_t)) == 0;
}

static bool are_same(const struct keep_param *params, const void *a, const void *b)
{
    for (; params != NULL && params->key != NULL; params++)
        if (!is_same(params, a, b))
            return false;
    return true;
}

bool keep_config_same(const struct keep_config *a, const struct keep_config *b)
{
    return a->policy == b->policy &&
           (a->policy == NULL || (are_same(keep_rule_params, &a->rules, &b->rules) &&
                                  are_same(a->policy->params, &a->params, &b->params)));
}

bool keep_state_sound(const struct keep *k, const void *state)
{
    const struct keep_policy *p = k->config.policy;
    return p->sound == NULL || k->state_size == 0 ||
           p->sound(&k->config.params, &k->model, k->data, state);
}
