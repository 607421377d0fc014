/*
 * share.c - the share policy's side of an engine: which evaluations are steps, and what becomes of
 * a sequence's steps when it is forked, cut or read from a file. What is shared is the policy's
 * (share/). Invariant: a sequence's steps are told of every token that it holds, once.
 */
#include "engine/engine.h"

/* ---- an engine's ---- */

pith_status pi_engine_start_share(struct pith_engine *e, const struct policy_model *model,
                                  pith_error *err)
{
    if (!e->traits.shares)
        return PITH_OK;
    return share_create(&e->policies.share, model, e->n_thread, &e->share, err);
}

pith_status pith_engine_set_share_log(pith_engine *e, pith_share_fn *fn, void *user, bool all,
                                      pith_error *err)
{
    if (e == NULL || !e->traits.shares)
        return pi_fail(err, PITH_INVALID,
                       "pith_engine_set_share_log: the engine has no share policy");
    share_set_log(e->share, fn, user, all);
    return PITH_OK;
}

/* ---- a sequence's ---- */

pith_status pi_seq_start_share(struct pith_seq *seq, pith_error *err)
{
    if (!seq->engine->traits.shares)
        return PITH_OK;
    return share_seq_create(seq->engine->share, seq, &seq->share, err);
}

pith_status pi_seq_fork_share(const struct pith_seq *from, struct pith_seq *to, pith_error *err)
{
    if (!from->engine->traits.shares)
        return PITH_OK;
    share_seq_free(to->share);
    to->share = NULL;
    return share_seq_fork(from->share, to, to->memory.kv, &to->share, err);
}

void pi_seq_truncate_share(struct pith_seq *seq, int32_t n_token)
{
    if (seq->engine->traits.shares)
        share_seq_truncate(seq->share, n_token);
}

void pi_seq_load_share(struct pith_seq *seq)
{
    if (seq->engine->traits.shares && seq->n_token > 0)
        share_seq_set_foreign(seq->share);
}

void pi_seq_note_share_round(struct pith_seq *seq)
{
    if (seq->engine->traits.shares)
        share_seq_note_round(seq->share);
}

int32_t pi_seq_share_reusable(const struct pith_seq *seq, int32_t same)
{
    if (!seq->engine->traits.shares)
        return same;
    return (int32_t)pi_min(same, share_seq_first_change(seq->share));
}

void pi_seq_forget_steps(struct pith_seq *seq)
{
    if (seq->engine->traits.shares)
        share_seq_forget(seq->share);
}

/* ---- evaluations ---- */

pith_status pi_seq_begin_share(struct pith_seq *seq, const pith_batch_item *item, pith_error *err)
{
    if (!seq->engine->traits.shares || item->n_token != 1)
        return PITH_OK;
    return share_seq_begin(seq->share, seq->memory.kv, seq->n_token, err);
}

void pi_seq_finish_share(struct pith_seq *seq, const pith_batch_item *item, int32_t n_done)
{
    if (!seq->engine->traits.shares)
        return;
    if (n_done > 0)
        share_seq_note(seq->share, seq->memory.kv, seq->tokens, seq->n_token, item->n_token == 1);
    else
        share_seq_cancel(seq->share);
}

/* ---- the public part ---- */

void pith_seq_share_stats(const pith_seq *seq, pith_share_stats *out)
{
    *out = (pith_share_stats){0};
    if (seq->engine->traits.shares)
        share_seq_stats(seq->share, out);
}
