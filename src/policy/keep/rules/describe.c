/*
 * describe.c - what the options of a keep policy come to, for programs that show it. It decides
 * nothing: the values are those that the rules work with, defaults and presets included.
 */
#include "policy/keep/rules/options.h"
#include "pith/policy.h"

/* The word that a choice among the shared rules stands for; offset is that of its field. */
static const char *choice_word(size_t offset, int32_t value)
{
    for (const struct policy_param *p = keep_rule_params; p->key != NULL; p++)
        if (p->offset == offset && p->words != NULL)
            return p->words[value];
    return "";
}

pith_status pith_keep_get_rules(const char *keep, pith_keep_rules *out, pith_error *err)
{
    static const char *const units[] = {"entries", "share", "bytes"};
    struct keep_config config;
    if (out == NULL)
        return pi_fail(err, PITH_INVALID, "pith_keep_get_rules: out must not be NULL");
    PI_TRY(keep_config_parse(keep, &config, err));
    *out = (pith_keep_rules){.granularity = "", .budget_unit = ""};
    if (config.policy == NULL)
        return PITH_OK;
    const struct keep_rules *r = &config.rules;
    *out = (pith_keep_rules){
        .policy = config.policy->name,
        .granularity = choice_word(offsetof(struct keep_rules, granularity), r->granularity),
        .slack = r->slack,
        .prefix = r->prefix,
        .sinks = r->sinks,
        .window = keep_window_at(r, config.n_budget),
        .segments = r->segments,
        .pin_prompt = r->pin_prompt != 0,
        .pin_most = keep_pin_most(r, 0.0),
        .overwrite = r->overwrite != 0,
        .budget_unit = units[r->budget.unit],
        .budget = (double)r->budget.value / (r->budget.unit == POLICY_UNIT_SHARE ? 1e6 : 1.0),
    };
    return PITH_OK;
}
