/*
 * placed.h - a model's weights on a device. On the processor they are the model's own.
 */
#ifndef PI_PLACED_H
#define PI_PLACED_H

#include "device/device.h"
#include "model/model.h"

/* The matrices of a layer, named as in pi_layer, which has their shapes. */
struct pi_placed_layer {
    struct {
        struct pi_weight wq, wk, wv, wo;
    } attn;
    struct {
        struct pi_weight gate, up, down;
    } ffn;
    struct {
        struct pi_weight query, query_a, query_b, compress, absorb, expand, out;
    } latent;
    struct {
        struct pi_weight mix, z, mix_z, beta, alpha, beta_alpha, out;
    } delta;
    struct {
        struct pi_weight router, gate, up, down, shared_gate, shared_up, shared_down;
    } moe;
};

struct pi_placed {
    struct pi_device *device;
    const struct pith_model *model;
    struct pi_placed_layer *layer; /* [n_layer] */
    struct pi_weight embd, output; /* embd without data: rows are read from the file */
    struct pi_at vectors;          /* all of the model's, where they are there */
};

/* After NOMEM the other function frees the present part. model is borrowed until then. */
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
