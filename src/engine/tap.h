/*
 * tap.h - which functions see the rows that a pass computes.
 */
#ifndef PI_TAP_H
#define PI_TAP_H

#include "model/forward.h"
#include "pith/inspect.h"

/* The engine's part. tap.c writes it; a verb's open may set `learn`. */
struct pi_tap {
    pith_tap_fn *fn; /* the caller's; NULL: none */
    void *user;
    bool stopped; /* fn returned false in the running batch */
    /* A policy that learns from rows; NULL: none does. wants: which rows, of a layer's tokens from
       pos0 on (PI_TAP_Q and so on; 0: none). */
    void (*learn)(struct pith_seq *seq, const struct pi_pass_tap_rows *rows);
    uint32_t (*wants)(const struct pith_seq *seq, int32_t pos0, int32_t layer);
};

/* Installs the pass's tap where the caller's tap or a policy wants to see rows, and takes it out
   where neither does. NOMEM leaves what was. */
pith_status pi_engine_update_tap(struct pith_engine *e, pith_tap_fn *fn, void *user,
                                 pith_error *err);

#endif
