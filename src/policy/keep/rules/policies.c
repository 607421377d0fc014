/*
 * policies.c - the table of keep policies, their options and their public listing. Nothing else of
 * the library names a policy.
 */
#include "policy/keep/rules/options.h"
#include "pith/policy.h"

static const struct keep_policy *const policies[] = {
    &keep_streaming,    &keep_random,       &keep_snapkv,   &keep_pyramidkv, &keep_adakv,
    &keep_tova,         &keep_rkv,          &keep_h2o,      &keep_vatp,      &keep_scissorhands,
    &keep_raas,         &keep_lazyeviction, &keep_knorm,    &keep_keydiff,   &keep_vnorm,
    &keep_triattention, &keep_expected,     &keep_longflow, &keep_kvzap,     &keep_kvzip,
};

const struct keep_policy *keep_policy_at(int32_t i)
{
    return i >= 0 && (size_t)i < PI_LEN(policies) ? policies[i] : NULL;
}

static const char *name_at(int32_t i)
{
    const struct keep_policy *p = keep_policy_at(i);
    return p != NULL ? p->name : NULL;
}

/* ---- a policy's options ---- */

static struct policy_options options_of(const struct keep_policy *policy, struct keep_config *c)
{
    return (struct policy_options){
        .verb = "keep",
        .name = policy->name,
        .rules = keep_rule_params,
        .rule_fields = c != NULL ? &c->rules : NULL,
        .own = policy->params,
        .own_fields = c != NULL ? &c->params : NULL,
        .defaults = policy->defaults,
        .presets = policy->presets,
    };
}

pith_status keep_config_set(const struct keep_policy *policy, const char *options,
                            struct keep_config *out, pith_error *err)
{
    struct keep_config c = {.policy = policy};
    struct policy_options o = options_of(policy, &c);
    assert(policy->params_size <= KEEP_PARAMS_SIZE);
    PI_TRY(policy_options_read(&o, options, err));
    if (policy->settle != NULL)
        policy->settle(&c.params, &c.rules);
    PI_TRY(keep_rules_agree(&c.rules, err));
    PI_TRY(keep_overwrite_check(&c, err));
    if (policy->repeated != NULL && c.rules.rounds != KEEP_PROMPT_END)
        return pi_fail(err, PITH_INVALID,
                       "keep: %s: rounds: a text is repeated when its last token is in: say "
                       "rounds=prompt-end",
                       policy->name);
    PI_TRY(keep_allot_check(&c, err));
    if (keep_config_places(&c) && c.rules.segments > 0)
        return pi_fail(err, PITH_INVALID,
                       "keep: %s: segments: %d: positions of the cache are for one gap behind the "
                       "first entries, and segments leave several",
                       policy->name, c.rules.segments);
    if (c.rules.budget.unit == POLICY_UNIT_TOKENS)
        c.n_budget = (int32_t)c.rules.budget.value;
    keep_config_limit_pins(&c, NULL);
    if (c.rules.budget.unit == POLICY_UNIT_TOKENS) {
        PI_TRY(keep_config_check(&c, c.n_budget, err));
    }
    *out = c;
    return PITH_OK;
}

pith_status keep_config_parse(const char *text, struct keep_config *out, pith_error *err)
{
    int32_t index;
    const char *options;
    PI_TRY(policy_find("keep", text, name_at, &index, &options, err));
    if (index >= 0)
        return keep_config_set(keep_policy_at(index), options, out, err);
    *out = (struct keep_config){0};
    return PITH_OK;
}

/* ---- the verb ---- */

/* Steps that devices of GPU kind have kernels for. */
static uint32_t gpu_of(const struct keep_policy *p)
{
    struct keep_config c;
    uint32_t watches = KEEP_NEED_WEIGHTS | KEEP_NEED_STEP_WEIGHTS;
    if (keep_config_set(p, NULL, &c, NULL) != PITH_OK)
        return 0;
    bool asks = (keep_config_needs(&c) & watches) != 0;
    return (p->weigh != NULL ? PITH_GPU_ROUNDS : 0) | (asks ? PITH_ASKS_NOTES : 0) |
           (asks && keep_config_notes(&c) ? PITH_GPU_NOTES : 0) |
           (c.rules.overwrite ? PITH_ASKS_STEPS : 0) | (keep_config_finds(&c) ? PITH_GPU_STEPS : 0);
}

static bool ranks_lanes(const struct keep_policy *p)
{
    struct keep_config c;
    return p->comparable != NULL && keep_config_set(p, NULL, &c, NULL) == PITH_OK &&
           p->comparable(&c.params);
}

static bool list_at(int32_t i, struct policy_listed *out)
{
    const struct keep_policy *p = keep_policy_at(i);
    if (p == NULL)
        return false;
    *out = (struct policy_listed){.summary = p->summary,
                                  .citation = p->citation,
                                  .options = options_of(p, NULL),
                                  .file = p->file,
                                  .gpu = gpu_of(p),
                                  .ranks_lanes = ranks_lanes(p)};
    return true;
}

static pith_status check_option(const char *text, pith_error *err)
{
    struct keep_config config;
    return keep_config_parse(text, &config, err);
}

const struct policy_verb keep_verb = {list_at, check_option};
