/*
 * load_ranks.h - what of a model is a rank's (base/ranks.h). By rows it has some KV heads with
 * their query heads, and some rows of the feed-forward in units of 32. Heads of recurrent layers go
 * with the KV heads. With latent attention query heads are divided, and each rank has a layer's
 * lane with the matrices that make its vectors. It has some rows of every other matrix. Vectors of
 * the model's width are whole. By layers its model is one of fewer layers, and loading alone knows
 * where they begin. The last rank has the output.
 */
#ifndef PI_LOAD_RANKS_H
#define PI_LOAD_RANKS_H

#include "model/arch.h"
#include "model/plan.h"

/* Of a model whose layers are known, and not listed yet: sets hp->whole, and leaves this rank's
   layers alone where ranks have layers. UNSUPPORTED where the family, or the shape, cannot be split
   over the ranks that there are. */
pith_status pi_load_ranks_divide(struct pith_model *model, pith_error *err);

/* The matrix, or vector, that was planned last becomes this rank's rows of it, or its slabs where
   there is one for each head. row PI_DIM_NONE: of no layer. */
void pi_load_ranks_matrix(struct pi_plan *plan, const struct pi_hparams *hp, enum pi_dim row,
                          enum pi_dim slab);
void pi_load_ranks_vector(struct pi_plan *plan, const struct pi_hparams *hp,
                          const struct pi_tensor_spec *spec);

/* Of n rows that a matrix has, those that stay on one rank. */
int32_t pi_ranks_row_unit(int32_t n);

/* From here on the shape is this rank's, and hp->whole that of all. UNSUPPORTED where int8 copies
   of a rank's heads would differ from the same part of a whole row's. */
pith_status pi_load_ranks_shape(struct pith_model *model, pith_error *err);

#endif
