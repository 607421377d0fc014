/*
 * policies.c - the table of keep policies, and its public listing. Nothing else of the library
 * names a policy.
 */
#include "keep/keep.h"

static const struct keep_policy *const policies[] = {
    &keep_streaming,
    &keep_random,
    &keep_snapkv,
    &keep_pyramidkv,
    &keep_adakv,
    &keep_tova,
    &keep_rkv,
    &keep_h2o,
    &keep_vatp,
    &keep_scissorhands,
    &keep_raas,
    &keep_lazyeviction,
    &keep_knorm,
    &keep_keydiff,
    &keep_vnorm,
    &keep_triattention,
    &keep_longflow,
};

const struct keep_policy *keep_policy_at(int32_t i)
{
    return i >= 0 && (size_t)i < PI_LEN(policies) ? policies[i] : NULL;
}

static int32_t count_params(const struct keep_param *params)
{
    int32_t n = 0;
    while (params != NULL && params[n].key != NULL)
        n++;
    return n;
}

static int32_t count_presets(const struct keep_preset *presets)
{
    int32_t n = 0;
    while (presets != NULL && presets[n].name != NULL)
        n++;
    return n;
}

pith_status pith_keep_policy(int32_t i, pith_policy_info *out)
{
    const struct keep_policy *p = keep_policy_at(i);
    if (p == NULL)
        return PITH_NOT_FOUND;
    *out = (pith_policy_info){
        .name = p->name,
        .summary = p->summary,
        .citation = p->citation,
        .n_param = count_params(keep_rule_params) + count_params(p->params),
        .n_preset = count_presets(p->presets),
    };
    return PITH_OK;
}

pith_status pith_keep_param(int32_t i, int32_t j, pith_param_info *out)
{
    static const char *const types[] = {
        [KEEP_TYPE_COUNT] = "count",   [KEEP_TYPE_BUDGET] = "budget", [KEEP_TYPE_REAL] = "real",
        [KEEP_TYPE_CHOICE] = "choice", [KEEP_TYPE_TEXT] = "text",
    };
    const struct keep_policy *p = keep_policy_at(i);
    int32_t n_rule = count_params(keep_rule_params);
    if (p == NULL || j < 0 || j >= n_rule + count_params(p->params))
        return PITH_NOT_FOUND;
    const struct keep_param *param = j < n_rule ? &keep_rule_params[j] : &p->params[j - n_rule];
    *out = (pith_param_info){
        .key = param->key,
        .type = types[param->type],
        .help = param->help,
        .min = param->min,
        .max = param->max,
        .shared = j < n_rule,
    };
    keep_param_fallback(p, param, out->fallback, sizeof(out->fallback));
    return PITH_OK;
}

pith_status pith_keep_preset(int32_t i, int32_t j, pith_preset_info *out)
{
    const struct keep_policy *p = keep_policy_at(i);
    if (p == NULL || j < 0 || j >= count_presets(p->presets))
        return PITH_NOT_FOUND;
    const struct keep_preset *preset = &p->presets[j];
    *out = (pith_preset_info){
        .name = preset->name, .options = preset->options, .help = preset->help};
    return PITH_OK;
}

pith_status pith_keep_check(const char *keep, pith_error *err)
{
    struct keep_config config;
    return keep_config_parse(keep, &config, err);
}
