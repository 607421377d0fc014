/*
 * advance.c - tells how far an evaluation is, from within its passes, and hears whether it shall go
 * on (pith_engine_params.on_advance). eval.c takes back the rest of a stopped pass.
 *
 * Invariant: a pass is only stopped where its caller has said that there is a way back. Elsewhere
 * the wish is remembered, and the evaluation ends with the pass.
 */
#include "base/mem.h"
#include "base/ranks.h"
#include "engine/engine.h"

static bool ask(void *user, int32_t n_done, int32_t n)
{
    struct pith_engine *e = user;
    struct pi_advance *a = &e->advance;
    /* A repetition's passes come behind the tokens' passes: it never goes back. */
    a->n_told = pi_max(a->n_told, a->n_done + a->n_pass * n_done / n);
    if (!a->stopped && !a->fn(a->user, a->n_told, a->n_token))
        a->stopped = true;
    return !(a->stopped && a->can_stop);
}

void pi_advance_begin(struct pith_engine *e, int64_t n_token, bool asked)
{
    struct pi_advance *a = &e->advance;
    a->n_done = a->n_pass = a->n_told = 0;
    a->n_token = n_token;
    a->can_stop = a->stopped = false;
    if (asked && a->fn != NULL)
        pi_pass_set_ask(e->pass, ask, e);
    else
        a->n_token = 0;
}

void pi_advance_pass(struct pith_engine *e, int64_t n_tok, bool can_stop)
{
    e->advance.n_pass = n_tok;
    e->advance.can_stop = can_stop;
}

pith_status pi_advance_passed(struct pith_engine *e, pith_error *err)
{
    struct pi_advance *a = &e->advance;
    a->n_done += a->n_pass;
    a->n_pass = 0;
    if (a->n_token > 0) /* over ranks as rank 0 wishes */
        pi_ranks_tell(&a->stopped, sizeof(a->stopped));
    return a->stopped ? pi_fail(err, PITH_CANCELLED, "the evaluation was cancelled") : PITH_OK;
}

void pi_advance_end(struct pith_engine *e)
{
    struct pi_advance *a = &e->advance;
    if (e->advance.fn != NULL && a->n_token > 0 && a->n_done == a->n_token && !a->stopped)
        a->fn(a->user, a->n_token, a->n_token); /* whose answer comes too late */
    pi_pass_set_ask(e->pass, NULL, NULL);
    a->n_token = 0;
}

/* ---- recurrent states, which a pass writes over ---- */

bool pi_advance_save_state(struct pith_engine *e, const struct pith_seq *seq)
{
    size_t size = kv_cache_geometry(e->kv)->state_bytes;
    struct pi_advance *a = &e->advance;
    if (size == 0)
        return true;
    if (size > a->cap) {
        float *grown = pi_mem_grow(PI_MEM_SCRATCH, a->state, size, 1);
        if (grown == NULL)
            return false;
        a->state = grown;
        a->cap = size;
    }
    kv_seq_read_state(seq->memory.kv, a->state);
    return true;
}

void pi_advance_restore_state(struct pith_engine *e, const struct pith_seq *seq)
{
    size_t size = kv_cache_geometry(e->kv)->state_bytes;
    if (size > 0)
        kv_seq_write_state(seq->memory.kv, e->advance.state);
}
