/*
 * sequence.c - the scheduler's questions to sequences: the memory that they will take, whether
 * their state can be computed again, whether others may begin with it. And waiting in host memory.
 * Which of them wait is the scheduler's. Invariant: nothing here changes the results of a
 * sequence's tokens.
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
    int64_t bytes = pi_memory_bytes(&seq->memory);
    for (int32_t i = 0; i < seq->engine->n_verb; i++)
        if (pi_verbs_beside(seq, i) != NULL)
            bytes += kv_seq_held_bytes(pi_verbs_beside(seq, i));
    return bytes;
}

int64_t pi_seq_count_bytes(const struct pith_seq *seq)
{
    int64_t bytes = kv_seq_count_bytes(seq->memory.kv);
    for (int32_t i = 0; i < seq->engine->n_verb; i++)
        if (pi_verbs_beside(seq, i) != NULL)
            bytes += kv_seq_count_bytes(pi_verbs_beside(seq, i));
    return bytes;
}

void pi_seq_uncount(const struct pith_seq *seq)
{
    kv_seq_uncount(seq->memory.kv);
    for (int32_t i = 0; i < seq->engine->n_verb; i++)
        if (pi_verbs_beside(seq, i) != NULL)
            kv_seq_uncount(pi_verbs_beside(seq, i));
}

void pi_seq_trim(struct pith_seq *seq)
{
    kv_seq_trim(seq->memory.kv);
    for (int32_t i = 0; i < seq->engine->n_verb; i++)
        if (pi_verbs_beside(seq, i) != NULL)
            kv_seq_trim(pi_verbs_beside(seq, i));
}

/* ---- what evaluations depend on ---- */

bool pi_seq_altered(const struct pith_seq *seq)
{
    return seq->is_loaded || seq->text.asked ||
           (seq->engine->traits.counts_steps && seq->n_token > seq->n_prompt);
}

int32_t pi_seq_unaltered(const struct pith_seq *seq)
{
    enum engine_publishes publishes = seq->engine->traits.publishes;
    if (publishes == ENGINE_PUBLISHES_NOTHING || seq->is_loaded)
        return 0;
    int32_t n = seq->n_token;
    if (publishes == ENGINE_PUBLISHES_PROMPTS)
        n = (int32_t)pi_min(n, seq->n_prompt);
    return pi_verbs_unaltered(seq, n);
}

/* ---- host memory ---- */

bool pi_seq_can_swap(const struct pith_seq *seq)
{
    for (int32_t i = 0; i < seq->engine->n_verb; i++)
        if (pi_verbs_beside(seq, i) != NULL)
            return false;
    return true;
}

pith_status pi_seq_swap_out(struct pith_seq *seq, struct kv_swapped **out, pith_error *err)
{
    if (!pi_seq_can_swap(seq))
        return pi_fail(err, PITH_UNSUPPORTED, "%s", engine_guests_stay);
    int32_t gap = pi_seq_first_gap(seq);
    struct pi_own own = pi_seq_own(seq);
    PI_TRY(pi_memory_swap_out(&seq->memory, out, err));
    seq->away = own;
    seq->is_away = true;
    seq->away_gap = gap;
    return PITH_OK;
}

pith_status pi_seq_swap_in(struct pith_seq *seq, struct kv_swapped *swapped, pith_error *err)
{
    PI_TRY(pi_memory_swap_in(&seq->memory, swapped, err));
    seq->is_away = false;
    return PITH_OK;
}
