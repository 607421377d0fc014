/*
 * placed.h - a model's weights on a device. On the processor they are the model's own.
 */
#ifndef PI_PLACED_H
#define PI_PLACED_H

#include "device/device.h"
#include "model/model.h"

/* The matrices of a layer, and how many of them lie one behind the other. */
#define PI_LAYER_MATRICES(X)                                                                       \
    X(wq, 1)                                                                                       \
    X(wk, 1)                                                                                       \
    X(wv, 1)                                                                                       \
    X(wo, 1)                                                                                       \
    X(w_gate, 1)                                                                                   \
    X(w_up, 1)                                                                                     \
    X(w_down, 1)                                                                                   \
    X(w_query_a, 1)                                                                                \
    X(w_query_b, 1)                                                                                \
    X(w_latent, 1)                                                                                 \
    X(w_absorb, hp->n_head)                                                                        \
    X(w_expand, hp->n_head)                                                                        \
    X(w_mix, 1)                                                                                    \
    X(w_z, 1)                                                                                      \
    X(w_mix_z, 1)                                                                                  \
    X(w_beta, 1)                                                                                   \
    X(w_alpha, 1)                                                                                  \
    X(w_beta_alpha, 1)                                                                             \
    X(w_delta_out, 1)                                                                              \
    X(w_router, 1)                                                                                 \
    X(w_gate_exps, hp->moe.n_expert)                                                               \
    X(w_up_exps, hp->moe.n_expert)                                                                 \
    X(w_down_exps, hp->moe.n_expert)                                                               \
    X(w_gate_shared, 1)                                                                            \
    X(w_up_shared, 1)                                                                              \
    X(w_down_shared, 1)

/* Named as in pi_layer, which has their shapes. */
struct pi_placed_layer {
#define PI_PLACED_FIELD(name, n_slab) struct pi_weight name;
    PI_LAYER_MATRICES(PI_PLACED_FIELD)
#undef PI_PLACED_FIELD
};

struct pi_placed {
    struct pi_device *device;
    const struct pith_model *model;
    struct pi_placed_layer *layer; /* [n_layer] */
    struct pi_weight embd, output; /* embd without data: rows are read from the file */
    struct pi_at vectors;          /* all of the model's, where they are there */
};

/* NOMEM; what there is then is freed by the other. model is borrowed until then. */
pith_status pi_placed_make(const struct pith_model *model, struct pi_device *device,
                           struct pi_placed *out, pith_error *err);
void pi_placed_free(struct pi_placed *placed);

/* A vector of the model there; none for NULL. */
static inline struct pi_at pi_placed_vector(const struct pi_placed *placed, const float *vector)
{
    if (vector == NULL)
        return (struct pi_at){0};
    return pi_at_item(placed->vectors, (size_t)(vector - placed->model->vectors));
}

#endif
