/*
 * load.h - from a parsed file to packed weights: the parts of pith_model_load that need care.
 */
#ifndef PI_LOAD_H
#define PI_LOAD_H

#include "model/arch.h"
#include "model/model.h"

/* pith_model_load of a file of a family that is given; NULL: the one that the file names. */
pith_status pi_model_load(const char *path, const pith_model_params *params,
                          const struct pi_arch *arch, pith_model **out, pith_error *err);

/* Reads and checks the shape of the network and of its layers. model->gguf and model->arch are set.
   FORMAT, UNSUPPORTED, NOMEM. What was allocated is freed by pith_model_free. */
pith_status pi_load_hparams(struct pith_model *model, pith_error *err);

/* Reads ARCH.rope.* of the file: base, linear or YaRN scaling, and the frequency factors of the
   tensor rope_freqs.weight. n_rot is the number of rotated dimensions, n_ctx the trained context.
   UNSUPPORTED for another scaling, FORMAT for values out of range, NOMEM. */
pith_status pi_rope_load(struct pi_rope *rope, const struct pi_gguf *g, const char *arch,
                         int32_t n_rot, int32_t n_ctx, bool adjacent, pith_error *err);

/* Reads ARCH.expert_* where the family has experts, and leaves out of each layer either these or the
   dense feed-forward. model->layer has all parts. FORMAT, UNSUPPORTED. */
pith_status pi_load_moe(struct pith_model *model, pith_error *err);

/* Finds, checks and packs every tensor. model->hp and model->file are set. FORMAT, UNSUPPORTED,
   NOMEM, CANCELLED. What was allocated is freed by pith_model_free. */
pith_status pi_load_weights(struct pith_model *model, const pith_model_params *params,
                            pith_error *err);

#endif
