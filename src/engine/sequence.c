/*
 * sequence.c - what the scheduler asks of sequences: the memory that they will take, whether their
 * state can be computed again, whether others may begin with it, and waiting in host memory. Who
 * has to wait is the scheduler's. Invariant: nothing here changes what a sequence computes from its
 * tokens; only under pressure (pi_seq_relieve_keep, pi_seq_relieve_share) it forgets or shares
 * earlier.
 */
#include "engine/schedule.h"

/* ---- memory ---- */

int64_t pi_engine_bytes_at(const struct pith_engine *e, struct keep_point to)
{
    return policy_set_bytes(&e->policies, kv_cache_geometry(e->kv), to) +
           kv_bytes_of_state(kv_cache_geometry(e->kv));
}

int64_t pi_seq_full_bytes(const struct pith_seq *seq)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->engine->kv);
    return kv_bytes_for_tokens(g, seq->n_token) + kv_bytes_of_state(g);
}

int64_t pi_seq_held_bytes(const struct pith_seq *seq)
{
    return pi_memory_bytes(&seq->memory) +
           (seq->recall.guests != NULL ? kv_seq_held_bytes(seq->recall.guests) : 0);
}

int64_t pi_seq_count_bytes(const struct pith_seq *seq)
{
    int64_t bytes = kv_seq_count_bytes(seq->memory.kv);
    return bytes + (seq->recall.guests != NULL ? kv_seq_count_bytes(seq->recall.guests) : 0);
}

void pi_seq_uncount(const struct pith_seq *seq)
{
    kv_seq_uncount(seq->memory.kv);
    if (seq->recall.guests != NULL)
        kv_seq_uncount(seq->recall.guests);
}

void pi_seq_trim(struct pith_seq *seq)
{
    kv_seq_trim(seq->memory.kv);
    if (seq->recall.guests != NULL)
        kv_seq_trim(seq->recall.guests);
}

/* ---- what evaluations depend on ---- */

bool pi_seq_altered(const struct pith_seq *seq)
{
    return seq->foreign || (seq->engine->traits.counts_steps && seq->n_token > seq->n_prompt);
}

int32_t pi_seq_unaltered(const struct pith_seq *seq)
{
    enum engine_publishes publishes = seq->engine->traits.publishes;
    if (publishes == ENGINE_PUBLISHES_NOTHING || seq->foreign || seq->tally.n_round > 0)
        return 0;
    int32_t n = seq->n_token;
    if (publishes == ENGINE_PUBLISHES_PROMPTS)
        n = (int32_t)pi_min(n, seq->n_prompt);
    return pi_seq_share_reusable(seq, n);
}

/* ---- host memory ---- */

bool pi_seq_can_swap(const struct pith_seq *seq)
{
    return seq->recall.guests == NULL;
}

pith_status pi_seq_swap_out(struct pith_seq *seq, struct kv_swapped **out, pith_error *err)
{
    if (!pi_seq_can_swap(seq))
        return pi_fail(err, PITH_UNSUPPORTED, "%s", engine_guests_stay);
    return pi_memory_swap_out(&seq->memory, out, err);
}

pith_status pi_seq_swap_in(struct pith_seq *seq, struct kv_swapped *swapped, pith_error *err)
{
    return pi_memory_swap_in(&seq->memory, swapped, err);
}

/* ---- under pressure ---- */

int64_t pi_seq_relieve_keep(struct pith_seq *seq)
{
    int64_t before = kv_cache_free_bytes(seq->engine->kv);
    kv_seq_trim(seq->memory.kv);
    if (pith_seq_keep_round(seq, NULL) != PITH_OK)
        return 0;
    return pi_max(0, kv_cache_free_bytes(seq->engine->kv) - before);
}

int64_t pi_seq_relieve_share(struct pith_seq *seq)
{
    kv_seq_trim(seq->memory.kv);
    return seq->engine->traits.shares ? share_seq_scan(seq->share, seq->memory.kv) : 0;
}
