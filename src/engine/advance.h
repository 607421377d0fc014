/*
 * advance.h - tells the caller how far the running evaluation is, and hears whether it goes on.
 */
#ifndef PI_ADVANCE_H
#define PI_ADVANCE_H

#include "base/base.h"

/* The engine's part, which advance.c writes. */
struct pi_advance {
    pith_advance_fn *fn; /* NULL: the caller asked for nothing */
    void *user;
    int64_t n_done; /* tokens of the passes that are done */
    int64_t n_pass; /* of the running pass */
    int64_t n_told; /* of n_token, last */
    int64_t n_token;
    bool can_stop; /* there is a way back to before the running pass */
    bool stopped;  /* fn returned false in the running evaluation */
    float *state;  /* [cap] the sequence's recurrent state before the pass; owned */
    size_t cap;
};

/* Before an evaluation of n_token tokens in all; asked: the caller wants to know how far it is. */
void pi_advance_begin(struct pith_engine *e, int64_t n_token, bool asked);
/* Before a pass with n_tok tokens. can_stop: what the pass writes can be taken back. */
void pi_advance_pass(struct pith_engine *e, int64_t n_tok, bool can_stop);
/* After it. CANCELLED: the evaluation is to end. */
pith_status pi_advance_passed(struct pith_engine *e, pith_error *err);
/* After the evaluation. */
void pi_advance_end(struct pith_engine *e);
/* Copies the recurrent state of a sequence before a pass, and puts it back. Nothing where the model
   has none. False: no memory. */
bool pi_advance_save_state(struct pith_engine *e, const struct pith_seq *seq);
void pi_advance_restore_state(struct pith_engine *e, const struct pith_seq *seq);

#endif
