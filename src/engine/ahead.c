/*
 * ahead.c - entries ahead of a sequence's end: drafted tokens have them until each came true or is
 * forgotten. It knows nothing of where drafts come from.
 *
 * Invariant: n_token counts what was chosen, and lanes hold n_ahead tokens more. Nothing else may
 * look into them meanwhile. No keep round fell into the pass, and windows have let nothing go. So
 * cutting the lanes leaves the same entries as a pass without a draft.
 */
#include "engine/draft.h"

void pi_seq_begin_ahead(struct pith_seq *seq, int32_t n_draft)
{
    assert(!seq->ahead.is_ahead);
    seq->ahead.n_draft = n_draft;
}

void pi_seq_end_ahead(struct pith_seq *seq, bool ok)
{
    if (ok) {
        seq->ahead.is_ahead = true;
        seq->ahead.n_ahead = seq->ahead.n_draft;
        seq->n_token -= seq->ahead.n_draft;
    }
    seq->ahead.n_draft = 0;
}

void pi_seq_set_logits(struct pith_seq *seq, const float *row)
{
    memcpy(seq->logits, row, (size_t)seq->engine->model->hp.n_vocab * sizeof(*row));
    seq->has_logits = true;
    pi_row_is_here(seq);
}

bool pi_seq_take_ahead(struct pith_seq *seq, int32_t token)
{
    if (seq->ahead.n_ahead == 0 || seq->tokens[seq->n_token] != token)
        return false;
    seq->ahead.n_ahead--;
    seq->n_token++;
    seq->draft->n_came++;
    return true;
}

void pi_seq_drop_ahead(struct pith_seq *seq)
{
    struct pi_draft *d = seq->draft;
    if (!seq->ahead.is_ahead)
        return;
    if (seq->ahead.n_ahead > 0)
        keep_truncate(seq->engine->keep.handle, seq->memory.kv, seq->n_token);
    seq->ahead.n_ahead = 0;
    seq->ahead.is_ahead = false;
    pi_memory_settle(&seq->memory, false);
    draft_gauge_note(&d->gauge, d->kind, d->n, d->n_came);
    d->n_draft += d->n;
    d->n_accepted += d->n_came;
    d->n = d->n_came = 0;
}
