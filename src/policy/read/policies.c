/*
 * policies.c - the table of read policies, their options and their public listing. Nothing else of
 * the library names a policy.
 */
#include "policy/read/reading.h"

static const struct read_policy *const policies[] = {
    &read_quoka,       &read_sampleattention, &read_sparq,  &read_loki,    &read_lessismore,
    &read_tidaldecode, &read_quest,           &read_snapkv, &read_keydiff,
};

const struct read_policy *read_policy_at(int32_t i)
{
    return i >= 0 && (size_t)i < PI_LEN(policies) ? policies[i] : NULL;
}

static const char *name_at(int32_t i)
{
    const struct read_policy *p = read_policy_at(i);
    return p != NULL ? p->name : NULL;
}

/* ---- a policy's options ---- */

static struct policy_options options_of(const struct read_policy *policy, struct read_config *c)
{
    return (struct policy_options){
        .verb = "read",
        .name = policy->name,
        .rules = read_rule_params,
        .rule_fields = c != NULL ? &c->rules : NULL,
        .own = policy->params,
        .own_fields = c != NULL ? &c->params : NULL,
        .defaults = policy->defaults,
        .presets = policy->presets,
    };
}

pith_status read_config_set(const struct read_policy *policy, const char *options,
                            struct read_config *out, pith_error *err)
{
    struct read_config c = {.policy = policy};
    struct policy_options o = options_of(policy, &c);
    assert(policy->params_size <= READ_PARAMS_SIZE);
    PI_TRY(policy_options_read(&o, options, err));
    PI_TRY(read_rules_check(&c.rules, err));
    *out = c;
    return PITH_OK;
}

pith_status read_config_parse(const char *text, struct read_config *out, pith_error *err)
{
    int32_t index;
    const char *options;
    PI_TRY(policy_find("read", text, name_at, &index, &options, err));
    if (index >= 0)
        return read_config_set(read_policy_at(index), options, out, err);
    *out = (struct read_config){0};
    return PITH_OK;
}

pith_status read_config_fit(const struct read_config *c, struct kv_geometry *g, pith_error *err)
{
    struct kv_geometry fitted = *g;
    if (c->policy == NULL)
        return PITH_OK;
    fitted.index = KV_INDEX_ROWS; /* single entries are picked */
    fitted.index_dim = 0;
    if (c->policy->index != NULL)
        fitted.index |= c->policy->index(&c->params, g, &fitted.index_dim);
    PI_TRY(kv_geometry_check(&fitted, err));
    if (c->policy->check != NULL)
        PI_TRY(c->policy->check(&c->params, &c->rules, &fitted, err));
    *g = fitted;
    return PITH_OK;
}

/* ---- the verb ---- */

static bool list_at(int32_t i, struct policy_listed *out)
{
    const struct read_policy *p = read_policy_at(i);
    if (p == NULL)
        return false;
    *out = (struct policy_listed){p->summary, p->citation, options_of(p, NULL), p->file, 0, false};
    return true;
}

static pith_status check_option(const char *text, pith_error *err)
{
    struct read_config config;
    return read_config_parse(text, &config, err);
}

const struct policy_verb read_verb = {list_at, check_option};
