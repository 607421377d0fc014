/*
 * host.h - the matrices of a model as the processor has them: which are packed, and who needs them.
 * Where layers are on a GPU alone, the processor's packing is there only until the GPU has its own.
 */
#ifndef PI_HOST_H
#define PI_HOST_H

#include "model/plan.h"

struct pi_host;

/* Of a plan whose matrices have their places, all packed or none. It takes the plan's list of
   matrices. NOMEM. */
pith_status pi_host_create(struct pi_plan *plan, struct pith_model *model, int32_t n_thread,
                           bool packed, pith_error *err);
void pi_host_free(struct pith_model *model);

/* The matrices whose structs lie in [begin, end) of the model are packed until they are
   given back. One thread at a time: the list of placed weights has a lock. FORMAT, IO, NOMEM
   as pi_pack_all, and nothing is taken. */
pith_status pi_host_take(const struct pith_model *model, const void *begin, const void *end,
                         pith_error *err);
/* Gives them back. They stay packed for the next one, or, with `drop` and where no other
   has them, give their memory up. */
void pi_host_give(const struct pith_model *model, const void *begin, const void *end, bool drop);

#endif
