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
   FORMAT, UNSUPPORTED, NOMEM. After a failure pith_model_free frees the allocated parts. */
pith_status pi_load_hparams(struct pith_model *model, pith_error *err);

/* The keys of a rotation, of a file's ARCH.rope.*. */
struct pi_rope_keys {
    const char *base;    /* the base's key, "freq_base" */
    float preset;        /* the base where the file does not say */
    bool plain;          /* the file's scaling and frequency factors are not for this one */
    bool adjacent;       /* as in pi_rope */
    int32_t n_rot;       /* rotated dimensions */
    bool longrope;       /* tensors of factors for short and for long contexts are looked for */
    bool log_multiplier; /* YaRN's log multiplier counts */
    bool log_in_scale;   /* where there is one, the family's scale includes YaRN's factor of
                         magnitudes */
    int32_t n_ctx_train; /* trained context */
    int32_t n_ctx;       /* positions in use, which the factors are chosen by */
};

/* Base, scaling (linear or YaRN) and the frequency factors of the tensor rope_freqs.weight.
   UNSUPPORTED for another scaling, FORMAT for values out of range, NOMEM. */
pith_status pi_rope_load(struct pi_rope *rope, const struct pi_gguf *g, const char *arch,
                         const struct pi_rope_keys *keys, pith_error *err);

/* The keys of the model's main rotation, before the family changes them. */
struct pi_rope_keys pi_rope_keys_of(const struct pith_model *m);

#define PI_MOST_CAP 1e6f /* of scores or logits */

/* ---- keys ARCH.NAME (load_keys.c): FORMAT names the key and its value ---- */

/* In min..max; *out keeps its preset where the key is absent, unless it is required. An array with
   a value for each layer will do where all are alike; UNSUPPORTED where they are not. */
pith_status pi_key_count(const struct pith_model *m, const char *name, int32_t min, int32_t max,
                         bool required, int32_t *out, pith_error *err);
pith_status pi_key_number(const struct pith_model *m, const char *name, float min, float max,
                          bool required, float *out, pith_error *err);
/* *out keeps its preset where the key is absent. */
pith_status pi_key_bool(const struct pith_model *m, const char *name, bool *out, pith_error *err);
/* out [n_layer]: an array of truth values, or a period n: all layers but each n-th are true, none
   for 1, all for 0. Absent: the given period. */
pith_status pi_key_pattern(const struct pith_model *m, const char *name, int32_t period, bool *out,
                           pith_error *err);
/* attention.sliding_window, or the preset, for the layers of its pattern. */
pith_status pi_load_windows(struct pith_model *m, int32_t preset, int32_t period, pith_error *err);

/* Reads ARCH.expert_* where the family has experts, and leaves out of each layer either these or
   the dense feed-forward. model->layer has all parts. FORMAT, UNSUPPORTED. */
pith_status pi_load_moe(struct pith_model *model, pith_error *err);

/* ---- tensors (load_find.c) ---- */

int64_t pi_dim_len(const struct pi_hparams *hp, enum pi_dim dim);

/* Where a tensor of the model stands in the file. */
struct pi_source {
    const struct pi_gguf_tensor *stored; /* the file's, which may have other rows, too */
    const struct pi_gguf_tensor *spare;  /* another one that may have these rows; NULL: none */
    struct pi_gguf_tensor tensor;        /* the rows that are its own */
    int64_t slab_rows;                   /* from one slab's first to the next one's */
    bool there;
    bool turned; /* its rows are columns there */
};

/* A tensor of layer l, or its rows in a whole one. FORMAT where a whole one has others. */
pith_status pi_find_tensor(const struct pith_model *m, int32_t l, const struct pi_tensor_spec *spec,
                           struct pi_source *out, pith_error *err);

struct pi_beside;

/* Finds, checks and packs every tensor of the file at path, or maps weights that were packed
   before. model->hp and model->parts are set. The function of `beside` has returned when it
   succeeds. FORMAT, UNSUPPORTED, NOMEM, CANCELLED. After a failure pith_model_free frees the
   allocated parts. */
pith_status pi_load_weights(struct pith_model *model, const char *path,
                            const pith_model_params *params, struct pi_beside *beside,
                            pith_error *err);

#endif
