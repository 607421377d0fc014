/*
 * owner.c - see owner.h. It owns who is in an engine, who holds it, and what was freed meanwhile.
 * The public functions that change sequences stand here: each begins a call, does what another file
 * says, and ends it.
 *
 * Invariant: a sequence is changed and freed by the owner alone. A sequence on the list `left`
 * holds its engine, so that the engine is there until the list is empty.
 */
#include <sched.h>

#include "engine/engine.h"

/* In `thread` beside the thread: it only frees, so others wait for it and it takes no call. */
enum { FREEING = 1 };

/* A number that no other thread has now, without FREEING's bit. */
static uintptr_t this_thread(void)
{
    static _Thread_local int64_t at;
    return (uintptr_t)&at;
}

pith_status pi_engine_enter(struct pith_engine *e, pith_error *err)
{
    struct pi_owner *o = &e->owner;
    uintptr_t me = this_thread();
    for (uintptr_t now = 0; !atomic_compare_exchange_strong(&o->thread, &now, me); now = 0) {
        if (now == me && o->passing)
            return pi_fail(err, PITH_BUSY,
                           "the engine is evaluating: its callbacks cannot call it");
        if (now == me) {
            o->depth++;
            return PITH_OK;
        }
        if ((now & FREEING) == 0 || now == (me | FREEING))
            return pi_fail(err, PITH_BUSY, "another thread is in a call of the engine");
        sched_yield();
    }
    o->depth = 1;
    pi_engine_hold(e);
    return PITH_OK;
}

/* Frees what others freed meanwhile. */
static void free_left(struct pith_engine *e)
{
    struct pith_seq *seq = atomic_exchange(&e->owner.left, NULL);
    while (seq != NULL) {
        struct pith_seq *next = seq->left;
        pi_seq_destroy(seq);
        seq = next;
    }
}

/* Does that while no thread is in a call. A thread that is in one does it at the end. */
static void free_idle(struct pith_engine *e)
{
    struct pi_owner *o = &e->owner;
    for (uintptr_t none = 0;
         atomic_load(&o->left) != NULL &&
         atomic_compare_exchange_strong(&o->thread, &none, this_thread() | FREEING);
         none = 0) {
        free_left(e);
        atomic_store(&o->thread, 0);
    }
}

pith_status pi_engine_leave(struct pith_engine *e, pith_status status)
{
    struct pi_owner *o = &e->owner;
    if (--o->depth > 0)
        return status;
    free_left(e);
    atomic_store(&o->thread, 0);
    free_idle(e);
    pith_engine_free(e);
    return status;
}

void pi_engine_hold(struct pith_engine *e)
{
    atomic_fetch_add(&e->owner.n_holder, 1);
}

void pith_engine_free(pith_engine *e)
{
    if (e != NULL && atomic_fetch_sub(&e->owner.n_holder, 1) == 0)
        pi_engine_destroy(e);
}

void pith_seq_free(pith_seq *seq)
{
    if (seq == NULL)
        return;
    struct pith_engine *e = seq->engine;
    if (atomic_load(&e->owner.thread) == this_thread() && !e->owner.passing) {
        pi_seq_destroy(seq);
        return;
    }
    /* The list may be emptied, and the engine gone, once the sequence is on it. */
    pi_engine_hold(e);
    seq->left = atomic_load(&e->owner.left);
    while (!atomic_compare_exchange_weak(&e->owner.left, &seq->left, seq))
        continue;
    free_idle(e);
    pith_engine_free(e);
}

/* ---- calls ---- */

/* Begins a call about a sequence that is not a generation's own. */
static pith_status enter_seq(const struct pith_seq *seq, pith_error *err)
{
    PI_TRY(pi_engine_enter(seq->engine, err));
    if (seq->engine->owner.depth == 1)
        pi_generation_settle((struct pith_seq *)(uintptr_t)seq);
    return PITH_OK;
}

pith_status pith_seq_create(pith_engine *e, pith_seq **out, pith_error *err)
{
    PI_TRY(pi_engine_enter(e, err));
    return pi_engine_leave(e, pi_seq_create(e, out, err));
}

pith_status pith_seq_fork(const pith_seq *from, pith_seq **out, pith_error *err)
{
    PI_TRY(enter_seq(from, err));
    return pi_engine_leave(from->engine, pi_seq_fork(from, out, err));
}

pith_status pith_seq_truncate(pith_seq *seq, int32_t n_token, pith_error *err)
{
    PI_TRY(enter_seq(seq, err));
    return pi_engine_leave(seq->engine, pi_seq_truncate(seq, n_token, err));
}

pith_status pith_seq_mark_prompt(pith_seq *seq, int32_t n_token, pith_error *err)
{
    PI_TRY(enter_seq(seq, err));
    return pi_engine_leave(seq->engine, pi_seq_mark_prompt(seq, n_token, err));
}

pith_status pith_seq_set_budget(pith_seq *seq, const char *budget, pith_error *err)
{
    PI_TRY(enter_seq(seq, err));
    return pi_engine_leave(seq->engine, pi_seq_set_budget(seq, budget, err));
}

pith_status pith_seq_keep_round(pith_seq *seq, pith_error *err)
{
    PI_TRY(enter_seq(seq, err));
    return pi_engine_leave(seq->engine, pi_seq_keep_round(seq, err));
}

pith_status pith_seq_save(const pith_seq *seq, const char *path, pith_error *err)
{
    PI_TRY(enter_seq(seq, err));
    return pi_engine_leave(seq->engine, pi_seq_save(seq, path, err));
}

pith_status pith_seq_load(pith_engine *e, const char *path, pith_seq **out, pith_error *err)
{
    PI_TRY(pi_engine_enter(e, err));
    return pi_engine_leave(e, pi_seq_load(e, path, out, err));
}

pith_status pith_batch_eval(pith_engine *e, const pith_batch_item *items, int32_t n_item,
                            pith_progress_fn *progress, void *user, pith_error *err)
{
    if (e == NULL || (n_item > 0 && items == NULL) || n_item < 0)
        return pi_fail(err, PITH_INVALID, "pith_batch_eval: no engine or no items");
    PI_TRY(pi_engine_enter(e, err));
    for (int32_t i = 0; i < n_item && e->owner.depth == 1; i++)
        if (items[i].seq != NULL && items[i].seq->engine == e)
            pi_generation_settle(items[i].seq);
    e->owner.passing = true;
    pith_status status =
        n_item > 0 ? pi_batch_eval(e, items, n_item, progress, user, err) : PITH_OK;
    e->owner.passing = false;
    return pi_engine_leave(e, status);
}

pith_status pith_seq_sync(pith_seq *seq, const int32_t *tokens, int32_t n_token,
                          pith_progress_fn *progress, void *user, pith_error *err)
{
    PI_TRY(enter_seq(seq, err));
    return pi_engine_leave(seq->engine, pi_seq_sync(seq, tokens, n_token, progress, user, err));
}
