/*
 * fuzz_keep.c - the options of a keep policy from any text, fitted to a shape that the first two
 * bytes choose. A finding is a sanitizer's report, a refusal without a sentence, or accepted rules
 * that contradict themselves.
 */
#include <stdlib.h>

#include "policy/keep/rules/options.h"
#include "pith/policy.h"
#include "policy_options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The number of entries that a budget must hold: the first ones, the window, and with overwriting
   the entry to be replaced. The window can be a part of the budget itself. */
static int64_t protects(const struct keep_rules *r, int32_t budget)
{
    return pi_max(r->prefix, r->sinks) + (int64_t)keep_window_at(r, budget) + r->overwrite;
}

/* Overwriting needs a choice per layer, by a score for steps, and without a delay. */
static void check_overwrite(const struct keep_config *c)
{
    const struct keep_rules *r = &c->rules;
    require(r->overwrite == 0 || r->overwrite == 1);
    require(!r->overwrite ||
            (keep_policy_steps(c->policy) && r->batch == 0 && !keep_config_places(c) &&
             (r->granularity == KEEP_LAYER || r->granularity == KEEP_LAYER_HEAD)));
}

/* A lane's budget holds the protected entries, or all tokens where they are fewer. Its mean exceeds
   the budget by at most the slack, and where rounds wait for a multiple of `batch` tokens, by at
   most both. Rounds that wait for the prompt's end have no such limit. */
static void check_rules(const struct keep_config *c, const struct kv_geometry *g)
{
    const struct keep_rules *r = &c->rules;
    require(r->slack >= 1 && r->prefix >= 0 && r->sinks >= 0 && r->window >= 0);
    require(r->recent >= 0.0 && r->recent < 1.0 && r->batch >= 0);
    check_overwrite(c);
    for (int64_t n = 1; n <= INT32_MAX; n *= 3) {
        struct keep_point at = {.n_token = (int32_t)n};
        int64_t budget = keep_budget_at(c, at.n_token), most = keep_most_at(c, at.n_token);
        require(budget >= 1 && budget >= pi_min(n, protects(r, (int32_t)budget)));
        require(most <= n && (most == n || most >= budget));
        require(r->rounds == KEEP_PROMPT_END || most <= budget + r->slack + r->batch);
        require(keep_bytes_at(c, g, at.n_token) >= 0);
        for (int32_t i = 0; i < g->n_layer * g->n_head; i++) {
            int32_t own = keep_lane_budget_at(c, i / g->n_head, i % g->n_head, at);
            require(own >= 1 && own >= pi_min(n, protects(r, own)));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct keep_config c;
    pith_error err = {0};
    if (size < 2)
        return 0;
    struct kv_geometry g = policy_geometry(data);
    char *text = policy_text(data, size);
    pith_status status = keep_config_parse(text, &c, &err);
    require(pith_policy_check(PITH_KEEP, text, NULL) == status);
    if (status == PITH_OK)
        status = keep_config_fit(&c, &g, &err);
    /* A value that names no way to share a budget is read as the name of a file, which does not
       exist. */
    require(status == PITH_OK ||
            ((status == PITH_INVALID || status == PITH_IO) && err.message[0] != '\0'));
    if (status == PITH_OK && c.policy != NULL)
        check_rules(&c, &g);
    free(text);
    return 0;
}
