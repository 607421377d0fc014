/*
 * centre.h - a constant that keys of a lane have in common, taken off before they are stored.
 * Every score q.k of a query in the lane then falls by the same q.m, which softmax does not see.
 */
#ifndef PI_CENTRE_H
#define PI_CENTRE_H

#include "model/model.h"

/* Positions over which the rotated bias is averaged. A pair that rotates several times within them
   has a mean near 0. */
#define PI_CENTRE_POSITIONS 4096

/* The mean of each lane's rotated key bias over the first positions, out [n_layer_kv][n_head_kv]
   [dim_k]; the caller frees it with pi_mem_free. UNSUPPORTED where keys have no bias or are
   normalised after it, NOMEM. */
pith_status pi_centre_create(const struct pith_model *model, float **out, pith_error *err);

#endif
