/*
 * row.c - see row.h. Invariant: a sequence with has_logits has its row in `logits`, or it is
 * `there` and comes when it is asked for.
 */
#include "engine/engine.h"

void pi_row_open(struct pith_seq *seq)
{
    struct pi_device *d = pi_pass_device(seq->engine->pass);
    if (seq->row != NULL || !pi_pass_finds_best(seq->engine->pass))
        return;
    struct pi_row *row = pi_mem_alloc(PI_MEM_OTHER, sizeof(*row));
    if (row == NULL)
        return;
    row->at = d->alloc(d, PI_MEM_OTHER, (size_t)seq->engine->model->hp.n_vocab * sizeof(float));
    seq->row = row;
    if (!pi_at_some(row->at))
        pi_row_free(seq);
}

void pi_row_free(struct pith_seq *seq)
{
    struct pi_device *d = pi_pass_device(seq->engine->pass);
    if (seq->row == NULL)
        return;
    d->free(d, seq->row->at);
    pi_mem_free(seq->row);
    seq->row = NULL;
}

void pi_row_is_here(struct pith_seq *seq)
{
    if (seq->row != NULL)
        seq->row->there = false;
}

const struct pi_best *pi_row_best(const struct pith_seq *seq)
{
    bool known = seq->has_logits && seq->row != NULL && seq->row->there && seq->row->best.n > 0;
    return known ? &seq->row->best : NULL;
}

const float *pith_seq_logits(const pith_seq *seq)
{
    if (!seq->has_logits)
        return NULL;
    if (seq->row != NULL && seq->row->there) {
        pi_pass_fetch_row(seq->engine->pass, seq->row->at, seq->logits);
        seq->row->there = false;
    }
    return seq->logits;
}
