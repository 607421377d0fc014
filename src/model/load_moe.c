/*
 * load_moe.c - the shape of a mixture of experts, from the file's metadata: the number of experts,
 * their choice, and the first layers without them.
 */
#include "model/load.h"

#define MAX_WIDTH (1 << 24)
#define MAX_SCALE 1e6f
#define MAX_SHARED 64

static pith_status read_gating(const struct pith_model *model, struct pi_moe_rule *rule,
                               pith_error *err)
{
    int32_t gating = 0; /* as good as absent */
    PI_TRY(pi_key_count(model, "expert_gating_func", 0, INT32_MAX, false, &gating, err));
    if (gating > PI_MOE_SIGMOID)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s.expert_gating_func: %d is not supported (1 softmax, 2 sigmoid are)",
                       model->arch->name, gating);
    if (gating > 0)
        rule->gating = (enum pi_moe_gating)gating;
    return PITH_OK;
}

/* How the weights of the chosen are made. */
static pith_status read_weights(const struct pith_model *model, struct pi_moe_rule *rule,
                                pith_error *err)
{
    PI_TRY(pi_key_bool(model, "expert_weights_norm", &rule->norm, err));
    PI_TRY(pi_key_number(model, "expert_weights_scale", 0, MAX_SCALE, false, &rule->scale, err));
    if (rule->scale == 0) /* as good as absent */
        rule->scale = 1;
    return PITH_OK;
}

static pith_status read_groups(const struct pith_model *model, struct pi_moe_rule *rule,
                               pith_error *err)
{
    const char *a = model->arch->name;
    int32_t n = 0, n_used = 0;
    PI_TRY(pi_key_count(model, "expert_group_count", 0, PI_MOE_MAX_GROUP, false, &n, err));
    PI_TRY(
        pi_key_count(model, "expert_group_used_count", 0, PI_MOE_MAX_GROUP, false, &n_used, err));
    rule->n_group = rule->n_group_used = 1;
    if (n <= 1)
        return PITH_OK;
    if (rule->n_expert % n != 0)
        return pi_fail(err, PITH_FORMAT, "%s.expert_group_count: %d does not divide %d experts", a,
                       n, rule->n_expert);
    if (n_used < 1 || n_used >= n || n_used * (rule->n_expert / n) < rule->n_used)
        return pi_fail(err, PITH_FORMAT,
                       "%s.expert_group_used_count: %d of %d groups cannot give %d of %d experts",
                       a, n_used, n, rule->n_used, rule->n_expert);
    rule->n_group = n;
    rule->n_group_used = n_used;
    return PITH_OK;
}

static pith_status read_widths(const struct pith_model *model, struct pi_moe_rule *rule,
                               pith_error *err)
{
    int32_t n_shared = 0;
    rule->n_ff = model->hp.n_ff / rule->n_used;
    PI_TRY(
        pi_key_count(model, "expert_feed_forward_length", 1, MAX_WIDTH, false, &rule->n_ff, err));
    PI_TRY(pi_key_count(model, "expert_shared_count", 0, MAX_SHARED, false, &n_shared, err));
    rule->n_ff_shared = (int32_t)pi_min((int64_t)n_shared * rule->n_ff, MAX_WIDTH);
    PI_TRY(pi_key_count(model, "expert_shared_feed_forward_length", 1, MAX_WIDTH, false,
                        &rule->n_ff_shared, err));
    if (rule->n_ff < 1)
        return pi_fail(err, PITH_FORMAT, "%s.expert_feed_forward_length is missing",
                       model->arch->name);
    return PITH_OK;
}

static pith_status read_rule(struct pith_model *model, pith_error *err)
{
    struct pi_moe_rule *rule = &model->hp.moe;
    *rule = *model->arch->moe;
    PI_TRY(pi_key_count(model, "expert_count", 1, PI_MOE_MAX_EXPERT, true, &rule->n_expert, err));
    PI_TRY(pi_key_count(model, "expert_used_count", 1, rule->n_expert, true, &rule->n_used, err));
    if (model->arch->moe_keys) {
        PI_TRY(read_gating(model, rule, err));
        PI_TRY(read_weights(model, rule, err));
    }
    PI_TRY(read_groups(model, rule, err));
    return read_widths(model, rule, err);
}

/* A file of a family without experts must not have some. */
static pith_status refuse_experts(const struct pith_model *model, pith_error *err)
{
    int32_t n = 0;
    PI_TRY(pi_key_count(model, "expert_count", 0, INT32_MAX, false, &n, err));
    if (n > 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s.expert_count: a mixture of %d experts is not supported",
                       model->arch->name, n);
    return PITH_OK;
}

pith_status pi_load_moe(struct pith_model *model, pith_error *err)
{
    int32_t n_dense = 0;
    if (model->arch->moe == NULL)
        return refuse_experts(model, err);
    PI_TRY(read_rule(model, err));
    PI_TRY(pi_key_count(model, "leading_dense_block_count", 0, model->hp.n_layer, false, &n_dense,
                        err));
    for (int32_t l = 0; l < model->hp.n_layer; l++) {
        bool dense = l < n_dense && pi_arch_has(model->arch, &pi_block_ffn);
        pi_layer_leave_out(&model->layer[l], dense ? &pi_block_moe : &pi_block_ffn);
    }
    return PITH_OK;
}
