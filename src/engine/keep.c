/*
 * keep.c - keep rounds that the caller asks for. When rounds come by themselves is eval.c's and
 * keep/budget.c's.
 *
 * Invariant: a round begins only when its memory is there, so that a sequence is cut whole or not
 * at all.
 */
#include "engine/engine.h"

pith_status pith_seq_keep_round(pith_seq *seq, pith_error *err)
{
    struct keep *keep = seq->engine->keep;
    struct keep_point at = {seq->n_token, seq->n_prompt};
    if (keep == NULL || !keep_over_budget(keep, seq->kv, at))
        return PITH_OK;
    PI_TRY(keep_prepare_round(keep, seq->kv, at, err));
    struct keep_view view = {.kv = seq->kv,
                             .tokens = seq->tokens,
                             .n_token = at.n_token,
                             .n_prompt = at.n_prompt,
                             .state = seq->keep_state};
    return keep_round(keep, seq->kv, &view, &seq->tally, err);
}
