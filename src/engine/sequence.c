/*
 * sequence.c - what the scheduler asks of sequences: the memory that they will take, whether their
 * state can be computed again, whether others may begin with it, and waiting in host memory. Who
 * has to wait is the scheduler's. Invariant: nothing here changes what a sequence computes from its
 * tokens; only under pressure (pi_seq_relieve_keep, pi_seq_relieve_share) it forgets or shares
 * earlier.
 */
#include "engine/schedule.h"

/* ---- memory ---- */

int64_t pi_engine_bytes_at(const struct pith_engine *e, int32_t n_token, int32_t n_prompt)
{
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    const struct keep_config *keep = e->keep != NULL ? keep_get_config(e->keep) : NULL;
    int64_t bytes = keep != NULL ? keep_bytes_to(keep, g, (struct keep_point){n_token, n_prompt})
                                 : kv_bytes_for_tokens(g, n_token);
    if (e->recall != NULL)
        bytes += recall_bytes_at(&e->recall->config, keep, g, n_token);
    if (e->share != NULL)
        bytes += share_bytes_at(share_get_config(e->share), g, n_token,
                                keep != NULL ? keep_most_at(keep, n_token) : n_token);
    return bytes;
}

int64_t pi_seq_held_bytes(const struct pith_seq *seq)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->engine->kv);
    int64_t bytes = 0;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; h < g->n_head; h++)
            bytes += kv_lane_pages(seq->kv, l, h) * (int64_t)kv_layer_page_bytes(g, l);
    return bytes;
}

/* ---- what evaluations depend on ---- */

bool pi_engine_cuts_prompts(const struct pith_engine *e)
{
    bool whole = e->keep != NULL && (keep_overwrites(e->keep) || keep_waits(e->keep, INT32_MAX));
    return e->read == NULL && e->recall == NULL && !whole;
}

bool pi_engine_counts_steps(const struct pith_engine *e)
{
    return !pi_engine_cuts_prompts(e) || e->share != NULL ||
           (e->keep != NULL && (keep_needs(e->keep) & KEEP_NEED_STEP_WEIGHTS) != 0);
}

bool pi_engine_takes_prefixes(const struct pith_engine *e)
{
    if (e->read != NULL || e->recall != NULL)
        return false;
    return e->keep == NULL ||
           (keep_state_size(e->keep) == 0 && keep_n_mark(e->keep) == 0 &&
            !keep_overwrites(e->keep) && (keep_needs(e->keep) & KEEP_NEED_STEP_WEIGHTS) == 0);
}

bool pi_seq_altered(const struct pith_seq *seq)
{
    return seq->foreign || (pi_engine_counts_steps(seq->engine) && seq->n_token > seq->n_prompt);
}

int32_t pi_seq_unaltered(const struct pith_seq *seq)
{
    if (!pi_engine_takes_prefixes(seq->engine) || seq->foreign || seq->tally.n_round > 0)
        return 0;
    /* What a sequence with a share policy generates stays its own, so that what it shares depends
       on nobody who holds its pages. */
    int32_t n = seq->n_token;
    if (seq->share != NULL)
        n = (int32_t)pi_min(n, seq->n_prompt);
    return pi_seq_share_reusable(seq, n);
}

/* ---- host memory ---- */

pith_status pi_seq_swap_out(struct pith_seq *seq, struct kv_swapped **out, pith_error *err)
{
    if (seq->recall.guests != NULL)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "a sequence with guests of recall cannot be put away");
    return kv_seq_swap_out(seq->kv, out, err);
}

pith_status pi_seq_swap_in(struct pith_seq *seq, struct kv_swapped *swapped, pith_error *err)
{
    return kv_seq_swap_in(seq->kv, swapped, err);
}

/* ---- under pressure ---- */

int64_t pi_seq_relieve_keep(struct pith_seq *seq)
{
    int64_t before = kv_cache_free_bytes(seq->engine->kv);
    kv_seq_trim(seq->kv);
    if (pith_seq_keep_round(seq, NULL) != PITH_OK)
        return 0;
    return pi_max(0, kv_cache_free_bytes(seq->engine->kv) - before);
}

int64_t pi_seq_relieve_share(struct pith_seq *seq)
{
    kv_seq_trim(seq->kv);
    return seq->share != NULL ? share_seq_scan(seq->share, seq->kv) : 0;
}
