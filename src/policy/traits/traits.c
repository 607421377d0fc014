/*
 * traits.c - what policies that go together imply for everything else. It must not know who asks.
 * Invariant: a trait depends on the options alone, so that it holds for as long as the engine does.
 */
#include "policy/traits/traits.h"

/* How the choices of a lane or layer depend on others. */
static void list_lanes(const struct policy_set *set, struct engine_traits *t)
{
    const struct keep_config *keep = &set->keep;
    const struct read_policy *read = set->read.policy;
    if (keep->policy != NULL) {
        const struct keep_rules *r = &keep->rules;
        t->bytes = r->budget.unit == POLICY_UNIT_BYTES;
        t->uneven_heads = strcmp(r->heads, "even") != 0 || strcmp(r->split, "even") != 0;
        t->uneven_layers = strcmp(r->layers, "even") != 0;
        t->lanes_apart = r->granularity == KEEP_LAYER_HEAD;
        t->heads_share = keep_config_allots(keep) && !keep_config_is_global(keep);
    }
    t->reads_for_all = read != NULL && read->role != NULL;
    t->reads_file = read != NULL && read->projection != NULL;
}

static struct engine_traits list_policies(const struct policy_set *set)
{
    const struct kv_type_choice *k = &set->k;
    struct engine_traits t = {
        .evicts = set->keep.policy != NULL,
        .reads_parts = set->read.policy != NULL,
        .recalls_kv = set->recall.kind == RECALL_KV,
        .recalls_text = set->recall.kind == RECALL_TEXT,
        .shares = set->share.kind != SHARE_NONE,
        .centred = k->centre,
        .coarse_keys =
            !k->force && (kv_type_is_rotated(k->type) || kv_type_is_rotated(k->edge.type)),
        .keep = set->keep.policy != NULL ? set->keep.policy->name : NULL,
        .read = set->read.policy != NULL ? set->read.policy->name : NULL,
        .needs = keep_config_needs(&set->keep),
        .n_mark = keep_config_marks(&set->keep),
        .overwrites = set->keep.rules.overwrite != 0,
        .waits = set->keep.policy != NULL && set->keep.rules.rounds == KEEP_PROMPT_END,
    };
    list_lanes(set, &t);
    t.full = !t.evicts && !t.reads_parts && !t.recalls_kv && !t.recalls_text && !t.shares;
    return t;
}

/* Chunks that choose together end where a round comes, whose time is not known before. Rounds that
   wait for a prompt's end depend on the tokens that are evaluated together, and so do the entries
   that a prompt's end overwrites. Weights of steps are gathered token by token, and a share policy
   compares steps. Read policies and recall treat a token that is evaluated alone unlike a
   prompt's. */
struct engine_traits engine_traits_compute(const struct policy_set *set)
{
    struct engine_traits t = list_policies(set);
    bool rounds_cut_chunks = t.reads_parts && (t.evicts || t.recalls_kv);
    t.remembers = (t.needs & KEEP_NEED_ROWS) != 0 || t.n_mark > 0;
    t.bounded = t.evicts;
    t.cuts_prompts = !rounds_cut_chunks && !t.overwrites && !t.waits;
    t.counts_steps = !t.cuts_prompts || t.shares || t.reads_parts || t.recalls_kv ||
                     (t.needs & KEEP_NEED_STEP_WEIGHTS) != 0;
    t.takes_prefixes = engine_traits_check(&t, PITH_USE_PREFIX, NULL) == PITH_OK;
    /* Tokens that a sequence with a share policy generates stay its own. So the pages that it
       shares do not depend on other holders of its pages. */
    if (t.takes_prefixes)
        t.publishes = t.shares ? ENGINE_PUBLISHES_PROMPTS : ENGINE_PUBLISHES_ALL;
    t.hides = t.evicts ? "keep" : t.reads_parts ? "read" : NULL;
    return t;
}
