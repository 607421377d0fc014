/*
 * traits.c - which policies go together, and what they imply for everything else. It must not know
 * who asks. Invariant: a trait depends on the options alone, so that it holds for as long as the
 * engine does.
 */
#include "policy/traits/traits.h"

/* The weights that a keep policy is shown would be those of what was read. */
static pith_status check_read(const struct policy_set *set, uint32_t needs, pith_error *err)
{
    const struct read_config *read = &set->read;
    if (read->policy == NULL)
        return PITH_OK;
    if ((needs & KEEP_NEED_WEIGHTS) != 0)
        return pi_fail(err, PITH_INVALID,
                       "read: %s: keep %s needs the attention of every token to all entries, so "
                       "that nothing can be read in part",
                       read->policy->name, set->keep.policy->name);
    if ((needs & KEEP_NEED_STEP_WEIGHTS) != 0 && read->rules.phase != READ_PROMPT)
        return pi_fail(err, PITH_INVALID,
                       "read: %s: keep %s needs the attention of every generated token to all "
                       "entries; with phase=prompt both work",
                       read->policy->name, set->keep.policy->name);
    return PITH_OK;
}

static struct engine_traits list_policies(const struct policy_set *set)
{
    struct engine_traits t = {
        .evicts = set->keep.policy != NULL,
        .reads_parts = set->read.policy != NULL,
        .recalls_kv = set->recall.kind == RECALL_KV,
        .recalls_text = set->recall.kind == RECALL_TEXT,
        .shares = set->share.kind != SHARE_NONE,
    };
    t.full = !t.evicts && !t.reads_parts && !t.recalls_kv && !t.recalls_text && !t.shares;
    return t;
}

/* What is read in parts or comes back depends on what is evaluated together; so do rounds that wait
   for a prompt's end, and what a prompt's end overwrites. Weights of steps are gathered token by
   token, and steps are what a share policy compares. A prefix of others fits where the sequence
   would hold the same entries and nothing else, and the policy saw nothing of them. */
static void conclude(struct engine_traits *t, bool waits)
{
    bool recalls = t->recalls_kv || t->recalls_text;
    bool weighs_steps = (t->needs & KEEP_NEED_STEP_WEIGHTS) != 0;
    t->remembers = t->state_size > 0 || t->n_mark > 0;
    t->bounded = t->evicts;
    t->cuts_prompts = !t->reads_parts && !recalls && !t->overwrites && !waits;
    t->counts_steps = !t->cuts_prompts || t->shares || weighs_steps;
    t->takes_prefixes =
        !t->reads_parts && !recalls && !t->remembers && !t->overwrites && !weighs_steps;
    /* What a sequence with a share policy generates stays its own, so that what it shares depends
       on nobody who holds its pages. */
    if (t->takes_prefixes)
        t->publishes = t->shares ? ENGINE_PUBLISHES_PROMPTS : ENGINE_PUBLISHES_ALL;
    t->hides = t->evicts ? "keep" : t->reads_parts ? "read" : NULL;
}

pith_status engine_traits_compute(const struct policy_set *set, const struct keep *keep,
                                  struct engine_traits *out, pith_error *err)
{
    *out = list_policies(set);
    if (keep != NULL) {
        out->needs = keep_needs(keep);
        out->state_size = keep_state_size(keep);
        out->n_mark = keep_n_mark(keep);
        out->overwrites = keep_overwrites(keep);
    }
    conclude(out, keep != NULL && keep_waits(keep, INT32_MAX));
    return check_read(set, out->needs, err);
}

void engine_traits_set_windows(struct engine_traits *t)
{
    t->takes_prefixes = false;
    t->publishes = ENGINE_PUBLISHES_NOTHING;
}

int64_t policy_set_bytes(const struct policy_set *set, const struct kv_geometry *g,
                         struct keep_point to)
{
    return keep_bytes_to(&set->keep, g, to) +
           recall_bytes_at(&set->recall, &set->keep, g, to.n_token) +
           share_bytes_at(&set->share, g, to.n_token, keep_most_at(&set->keep, to.n_token));
}
