/*
 * owner.h - one call at a time: an engine belongs to the thread that is in one of its calls. Other
 * threads are told BUSY. A sequence that they free meanwhile goes when the call ends. An engine
 * lives until its caller, its sequences and its schedulers have let it go.
 */
#ifndef PI_OWNER_H
#define PI_OWNER_H

#include <stdatomic.h>

#include "base/base.h"
#include "pith/pith.h"

/* The engine's part; owner.c writes it. */
struct pi_owner {
    _Atomic uintptr_t thread; /* that is in a call, or frees (owner.c); 0: none is */
    int32_t depth;            /* of its calls, which call others */
    bool passing;             /* a batch is evaluated: its callbacks may not call */
    _Atomic int32_t n_holder; /* who hold the engine, beside the caller of pith_engine_create */
    struct pith_seq *_Atomic left; /* freed while another call ran, a list by `left` */
};

/* Begins a call. BUSY: another thread is in one, or a batch of this one is evaluated. */
pith_status pi_engine_enter(struct pith_engine *e, pith_error *err);
/* Ends it, and returns status. The engine may be gone then. */
pith_status pi_engine_leave(struct pith_engine *e, pith_status status);

/* Holds an engine; it is let go by pith_engine_free. */
void pi_engine_hold(struct pith_engine *e);

/* ---- the calls themselves, of the files that their names say ---- */

/* engine.c */
void pi_engine_destroy(struct pith_engine *e);
void pi_seq_destroy(struct pith_seq *seq);
pith_status pi_seq_create(struct pith_engine *e, struct pith_seq **out, pith_error *err);
pith_status pi_seq_fork(const struct pith_seq *from, struct pith_seq **out, pith_error *err);
pith_status pi_seq_truncate(struct pith_seq *seq, int32_t n_token, pith_error *err);
/* eval.c */
pith_status pi_batch_eval(struct pith_engine *e, const pith_batch_item *items, int32_t n_item,
                          pith_progress_fn *progress, void *user, pith_error *err);
pith_status pi_seq_sync(struct pith_seq *seq, const int32_t *tokens, int32_t n_token,
                        pith_progress_fn *progress, void *user, pith_error *err);
/* files.c */
pith_status pi_seq_save(const struct pith_seq *seq, const char *path, pith_error *err);
pith_status pi_seq_load(struct pith_engine *e, const char *path, struct pith_seq **out,
                        pith_error *err);
/* keep.c */
pith_status pi_seq_keep_round(struct pith_seq *seq, pith_error *err);
pith_status pi_seq_set_budget(struct pith_seq *seq, const char *budget, pith_error *err);
pith_status pi_seq_mark_prompt(struct pith_seq *seq, int32_t n_token, pith_error *err);

#endif
