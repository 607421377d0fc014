/*
 * split.h - which layers of a model are on which device, and the KV memory that fits beside them.
 */
#ifndef PI_SPLIT_H
#define PI_SPLIT_H

#include "model/forward.h"
#include "model/model.h"
#include "pith/pith.h"

enum { PI_SPLIT_MOST = KV_PART_MOST - 2 }; /* devices; the processor may come before and after */

struct pi_split {
    const struct pith_model *model;
    struct kv_geometry *geometry;
    int32_t max_tok; /* of a pass */
    int32_t n_ctx;   /* tokens of the longest sequence */
    int32_t n_device;
    struct pi_device *device[PI_SPLIT_MOST];
    double share[PI_SPLIT_MOST]; /* of the layers on them */
};

/* The devices that params name, and their shares. INVALID, UNSUPPORTED as pi_device_find. */
pith_status pi_split_open(struct pi_split *s, const pith_engine_params *params, pith_error *err);

/* The stages of n_gpu_layers as in params. kv: bytes of pages, which the engine has at least; 0 is
   least. *most gets how many bytes of pages there can be. NOMEM, with the numbers: a device has no
   room for it. It sets the geometry's devices. */
pith_status pi_split_plan(const struct pi_split *s, int32_t n_gpu_layers, int64_t kv,
                          struct pi_stages *stages, int64_t *most, pith_error *err);

/* Bounds the pages on each of several GPUs, of kv bytes in all: by what is free there beside
   weights and buffers. It is the share of the GPU's layers at least. */
void pi_split_bound(const struct pi_split *s, const struct pi_stages *stages, int64_t kv);

/* Bytes of a stage's weights, as the file has them. */
int64_t pi_split_weights(const struct pith_model *model, const struct pi_stage *stage);

/* Half of the free memory of the first device; 0: it does not say. */
int64_t pi_split_half(const struct pi_split *s);

#endif
