/*
 * latent.h - the keys of families with multi-head latent attention. The block is latent.c.
 */
#ifndef PI_LATENT_H
#define PI_LATENT_H

#include "model/load.h"

/* Reads the shape of latent attention, and sets the model's head sizes and number of KV heads as
   the lanes have them. FORMAT. */
pith_status pi_latent_read(struct pith_model *m, pith_error *err);

#endif
