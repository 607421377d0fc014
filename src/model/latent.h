/*
 * latent.h - what families with multi-head latent attention share: their keys. The block is
 * latent.c.
 */
#ifndef PI_LATENT_H
#define PI_LATENT_H

#include "model/load.h"

/* Reads the shape of latent attention, and makes the model's head sizes and KV heads those of its
   lanes. FORMAT. */
pith_status pi_latent_read(struct pith_model *m, pith_error *err);

#endif
