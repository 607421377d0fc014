/*
 * listing.c - tables of options as the public header shows them, and whether two structs that a
 * table filled say the same. It reads no text.
 */
#include "policy/policy.h"

int32_t policy_count_params(const struct policy_param *params)
{
    int32_t n = 0;
    while (params != NULL && params[n].key != NULL)
        n++;
    return n;
}

int32_t policy_count_presets(const struct policy_preset *presets)
{
    int32_t n = 0;
    while (presets != NULL && presets[n].name != NULL)
        n++;
    return n;
}

pith_status policy_param_info(const struct policy_options *o, int32_t j, pith_param_info *out)
{
    static const char *const types[] = {
        [POLICY_TYPE_COUNT] = "count", [POLICY_TYPE_BUDGET] = "budget",
        [POLICY_TYPE_REAL] = "real",   [POLICY_TYPE_CHOICE] = "choice",
        [POLICY_TYPE_TEXT] = "text",   [POLICY_TYPE_SIZE] = "size",
    };
    int32_t n_rule = policy_count_params(o->rules);
    if (j < 0 || j >= n_rule + policy_count_params(o->own))
        return PITH_NOT_FOUND;
    const struct policy_param *param = j < n_rule ? &o->rules[j] : &o->own[j - n_rule];
    *out = (pith_param_info){
        .key = param->key,
        .type = types[param->type],
        .help = param->help,
        .min = param->min,
        .max = param->max,
        .shared = j < n_rule,
    };
    policy_param_fallback(o->defaults, param, out->fallback, sizeof(out->fallback));
    return PITH_OK;
}

pith_status policy_preset_info(const struct policy_options *o, int32_t j, pith_preset_info *out)
{
    if (j < 0 || j >= policy_count_presets(o->presets))
        return PITH_NOT_FOUND;
    const struct policy_preset *preset = &o->presets[j];
    *out =
        (pith_preset_info){.name = preset->name, .options = preset->options, .help = preset->help};
    return PITH_OK;
}

static bool is_same(const struct policy_param *param, const void *a, const void *b)
{
    const uint8_t *x = (const uint8_t *)a + param->offset, *y = (const uint8_t *)b + param->offset;
    const struct policy_budget *p = (const void *)x, *q = (const void *)y;
    switch (param->type) {
    case POLICY_TYPE_BUDGET:
        return p->unit == q->unit && p->value == q->value;
    case POLICY_TYPE_REAL:
        return memcmp(x, y, sizeof(double)) == 0;
    case POLICY_TYPE_SIZE:
        return memcmp(x, y, sizeof(int64_t)) == 0;
    case POLICY_TYPE_TEXT:
        return strcmp((const char *)x, (const char *)y) == 0;
    case POLICY_TYPE_COUNT:
    case POLICY_TYPE_CHOICE:
        break;
    }
    return memcmp(x, y, sizeof(int32_t)) == 0;
}

bool policy_fields_same(const struct policy_param *params, const void *a, const void *b)
{
    for (; params != NULL && params->key != NULL; params++)
        if (!is_same(params, a, b))
            return false;
    return true;
}
