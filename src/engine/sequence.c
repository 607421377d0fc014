/*
 * sequence.c - the scheduler's questions to sequences: the memory that they will take, whether
 * their state can be computed again, whether others may begin with it. And waiting in host memory.
 * Which of them wait is the scheduler's. Invariant: nothing here changes the results of a
 * sequence's tokens.
 */
#include "base/ranks.h"
#include "engine/over_ranks.h"
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

/* ---- what others may begin with ---- */

/* A lane without a gap below p has position i in slot i up to there. Positions ascend but where
   one was overwritten, and then that slot is the gap. Lanes with a window are pi_memory_reach's. */
int32_t pi_seq_first_gap(const struct pith_seq *seq)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->engine->kv);
    const struct keep *keep = seq->engine->keep.handle;
    int32_t gap = seq->n_token;
    for (int32_t l = 0; l < g->n_layer; l++)
        for (int32_t h = 0; kv_layer_window(g, l) == 0 && h < g->n_head; h++) {
            int32_t low = 0, high = (int32_t)pi_min(gap, kv_lane_len(seq->memory.kv, l, h));
            bool unordered = kv_lane_unordered(seq->memory.kv, l, h);
            while (unordered && low < high && keep_position(keep, seq->memory.kv, l, h, low) == low)
                low++;
            while (!unordered && low < high) {
                int32_t mid = low + (high - low) / 2;
                if (keep_position(keep, seq->memory.kv, l, h, mid) == mid)
                    low = mid + 1;
                else
                    high = mid;
            }
            gap = low;
        }
    return keep != NULL ? (int32_t)pi_ranks_least(gap) : gap;
}

/* Of `same` tokens those that no lane has a gap before; all but the last of n at most. */
static int32_t before_gap(const struct pith_seq *seq, int32_t same, int32_t n)
{
    int32_t gap = seq->is_away ? seq->away_gap : pi_seq_first_gap(seq);
    return (int32_t)pi_min(pi_min(same, n - 1), gap);
}

int32_t pi_seq_policies_reach(const struct pith_seq *seq, int32_t same, int32_t n)
{
    return pi_verbs_reusable(seq, before_gap(seq, same, n), n);
}

/* While it is away it is not known what its windows and states reach. Ranks with other layers may
   have neither. */
static int32_t away_reach(const struct pith_seq *seq, int32_t same)
{
    const struct kv_geometry *g = kv_cache_geometry(seq->engine->kv);
    int32_t n = g->window == NULL && g->state_bytes == 0 ? same : 0;
    return pi_ranks_by_layers() ? (int32_t)pi_ranks_least(n) : n;
}

int32_t pi_seq_reusable(const struct pith_seq *seq, const int32_t *tokens, int32_t n)
{
    int32_t same = 0;
    while (same < n && same < seq->n_token && tokens[same] == seq->tokens[same])
        same++;
    if (same == seq->n_token && (same < n || seq->has_logits))
        return same;
    same = before_gap(seq, same, n);
    int32_t before;
    do { /* until all agree */
        before = same;
        same = pi_verbs_reusable(seq, same, n);
        same = seq->is_away ? away_reach(seq, same) : pi_memory_reach(&seq->memory, same);
    } while (same != before);
    return same;
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
