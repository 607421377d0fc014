/*
 * listing.c - the policies of every verb and their options as the public header shows them. Also
 * whether two structs that a table filled are equal. It reads no text.
 */
#include "base/near.h"
#include "policy/policy.h"
#include "pith/policy.h"

static const struct policy_verb *const verbs[PITH_N_VERB] = {
    [PITH_KEEP] = &keep_verb,
    [PITH_READ] = &read_verb,
    [PITH_RECALL] = &recall_verb,
    [PITH_SHARE] = &share_verb,
};

static const struct policy_verb *verb_of(pith_verb verb)
{
    return verb >= PITH_KEEP && verb < PITH_N_VERB ? verbs[verb] : NULL;
}

static bool find(pith_verb verb, int32_t i, struct policy_listed *out)
{
    const struct policy_verb *v = verb_of(verb);
    return v != NULL && v->at(i, out);
}

static int32_t count_params(const struct policy_param *params)
{
    int32_t n = 0;
    while (params != NULL && params[n].key != NULL)
        n++;
    return n;
}

static int32_t count_presets(const struct policy_preset *presets)
{
    int32_t n = 0;
    while (presets != NULL && presets[n].name != NULL)
        n++;
    return n;
}

const char *pith_verb_name(pith_verb verb)
{
    struct policy_listed p;
    return find(verb, 0, &p) ? p.options.verb : "";
}

pith_status pith_policy_get(pith_verb verb, int32_t i, pith_policy_info *out)
{
    struct policy_listed p;
    if (!find(verb, i, &p))
        return PITH_NOT_FOUND;
    *out = (pith_policy_info){
        .name = p.options.name,
        .summary = p.summary,
        .citation = p.citation,
        .n_param = count_params(p.options.rules) + count_params(p.options.own),
        .n_preset = count_presets(p.options.presets),
        .file = p.file != NULL ? p.file : "",
        .gpu = p.gpu,
        .ranks_lanes = p.ranks_lanes,
    };
    return PITH_OK;
}

pith_status pith_policy_get_param(pith_verb verb, int32_t i, int32_t j, pith_param_info *out)
{
    static const char *const types[] = {
        [POLICY_TYPE_COUNT] = "count", [POLICY_TYPE_BUDGET] = "budget",
        [POLICY_TYPE_REAL] = "real",   [POLICY_TYPE_CHOICE] = "choice",
        [POLICY_TYPE_TEXT] = "text",   [POLICY_TYPE_SIZE] = "size",
    };
    struct policy_listed p;
    if (!find(verb, i, &p))
        return PITH_NOT_FOUND;
    const struct policy_options *o = &p.options;
    int32_t n_rule = count_params(o->rules);
    if (j < 0 || j >= n_rule + count_params(o->own))
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

pith_status pith_policy_get_preset(pith_verb verb, int32_t i, int32_t j, pith_preset_info *out)
{
    struct policy_listed p;
    if (!find(verb, i, &p) || j < 0 || j >= count_presets(p.options.presets))
        return PITH_NOT_FOUND;
    const struct policy_preset *preset = &p.options.presets[j];
    *out =
        (pith_preset_info){.name = preset->name, .options = preset->options, .help = preset->help};
    return PITH_OK;
}

pith_status pith_policy_check(pith_verb verb, const char *text, pith_error *err)
{
    const struct policy_verb *v = verb_of(verb);
    if (v == NULL)
        return pi_fail(err, PITH_INVALID, "pith_policy_check: verb %d: there is no such verb",
                       (int)verb);
    return v->check(text, err);
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

const char *pith_nearest(const char *word, const char *const *names, size_t n)
{
    return pi_nearest(word, strlen(word), names, n);
}
