/*
 * share.c - the share policy's side of an engine: which evaluations are steps. It says what happens
 * to a sequence's steps when it is forked, cut or read from a file. Which pages are shared is the
 * policy's choice (share/). Invariant: a sequence's steps are told of every token that it holds,
 * once.
 */
#include "engine/schedule.h"

static bool has_share(const struct engine_traits *traits)
{
    return traits->shares;
}

static pith_status open_share(struct pith_engine *e, const pith_engine_params *params,
                              const struct policy_model *model, pith_error *err)
{
    (void)params;
    return share_create(&e->policies.share, model, e->n_worker, &e->share, err);
}

static void close_share(struct pith_engine *e)
{
    share_free(e->share);
    e->share = NULL;
}

/* ---- a sequence ---- */

static pith_status start_steps(struct pith_seq *seq, pith_error *err)
{
    return share_seq_create(seq->engine->share, seq, &seq->share, err);
}

static void stop_steps(struct pith_seq *seq)
{
    share_seq_free(seq->share);
    seq->share = NULL;
}

static pith_status fork_steps(const struct pith_seq *from, struct pith_seq *to, pith_error *err)
{
    stop_steps(to);
    return share_seq_fork(from->share, to, to->memory.kv, &to->share, err);
}

static void truncate_steps(struct pith_seq *seq, int32_t n_token, bool whole)
{
    (void)whole;
    share_seq_truncate(seq->share, n_token);
}

static pith_status load_steps(struct pith_seq *seq, struct pi_saved *saved, const char *path,
                              pith_error *err)
{
    (void)saved;
    (void)path;
    (void)err;
    if (seq->n_token > 0)
        share_seq_set_loaded(seq->share);
    return PITH_OK;
}

/* The tokens before which nothing was shared. */
static int32_t unaltered(const struct pith_seq *seq, int32_t n)
{
    return (int32_t)pi_min(n, share_seq_first_change(seq->share));
}

static int32_t reusable(const struct pith_seq *seq, int32_t same, int32_t n_token)
{
    (void)n_token;
    return unaltered(seq, same);
}

static void forget_steps(struct pith_seq *seq)
{
    share_seq_forget(seq->share);
}

static int64_t remembered(const struct pith_seq *seq)
{
    return seq->share != NULL ? (int64_t)share_seq_bytes(seq->share) : 0;
}

int64_t pi_seq_relieve_share(struct pith_seq *seq)
{
    kv_seq_trim(seq->memory.kv);
    return seq->share != NULL ? share_seq_scan(seq->share, seq->memory.kv) : 0;
}

/* ---- an evaluation ---- */

/* A token that is evaluated alone may begin a step. */
static pith_status begin_step(struct pith_engine *e, const pith_batch_item *item, pith_error *err)
{
    struct pith_seq *seq = item->seq;
    (void)e;
    if (item->n_token != 1)
        return PITH_OK;
    return share_seq_begin(seq->share, seq->memory.kv, seq->n_token, err);
}

static void note_round(struct pith_seq *seq, const pith_batch_item *item, int32_t left)
{
    (void)item;
    (void)left;
    share_seq_note_round(seq->share);
}

static void finish_item(const pith_batch_item *item, const struct pi_item_state *state)
{
    struct pith_seq *seq = item->seq;
    if (state->stays && state->n_done > 0)
        share_seq_note(seq->share, seq->memory.kv, seq->tokens, seq->n_token, item->n_token == 1);
    else
        share_seq_cancel(seq->share);
}

const struct seq_hooks pi_share_hooks = {
    .name = "share",
    .has = has_share,
    .open = open_share,
    .close = close_share,
    .start = start_steps,
    .stop = stop_steps,
    .fork = fork_steps,
    .truncate = truncate_steps,
    .load = load_steps,
    .reusable = reusable,
    .unaltered = unaltered,
    .as_prompt = forget_steps,
    .remembered = remembered,
    .reserve = begin_step,
    .after_round = note_round,
    .after = finish_item,
};

/* ---- the public part ---- */

pith_status pith_engine_set_share_log(pith_engine *e, pith_share_fn *fn, void *user, bool all,
                                      pith_error *err)
{
    if (e == NULL || e->share == NULL)
        return pi_fail(err, PITH_INVALID,
                       "pith_engine_set_share_log: the engine has no share policy");
    share_set_log(e->share, fn, user, all);
    return PITH_OK;
}

void pith_seq_share_stats(const pith_seq *seq, pith_share_stats *out)
{
    *out = (pith_share_stats){0};
    if (seq->share != NULL)
        share_seq_stats(seq->share, out);
}
