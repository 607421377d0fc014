/*
 * placed.h - a model's weights on devices, each stage's once: they belong to the model, and its
 * engines share them. On the processor they are the model's own.
 */
#ifndef PI_PLACED_H
#define PI_PLACED_H

#include "device/device.h"
#include "model/forward.h"
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
    struct pi_placed *next; /* of the model's, of another stage */
    int32_t n_user;         /* of the list's lock */
    struct pi_device *device;
    const struct pith_model *model;
    struct pi_stage stage;
    struct pi_placed_layer *layer; /* [layers of the stage] */
    struct pi_weight embd, output; /* of the first and the last stage; embd without data: rows are
                                      read from the file */
    struct pi_at vectors;          /* all of the model's, where they are there */
    bool on_host;                  /* these weights are the host's own, which it has taken, */
    int32_t n_taken;               /* and the number of layers that it has taken */
};

/* A list of a model's placed weights, and its lock. NOMEM. No weights are in use when it is freed;
   NULL is ignored. */
pith_status pi_placed_list_create(struct pi_placed_list **out, pith_error *err);
void pi_placed_list_free(struct pi_placed_list *list);

/* How far the packing of some stages is. fn is told, where it is not NULL. */
struct pi_packing {
    pith_progress_fn *fn;
    void *user;
    int32_t n_done, n; /* parts: layers, and the ends of each stage */
};

/* The parts of a stage that are not packed. */
int32_t pi_placed_missing(const struct pith_model *model, const struct pi_stage *stage);

/* The model's weights of a stage on its device. The first who takes them has them packed, and the
   last who gives them back frees them. The model outlives that. Any thread may call; NULL is
   ignored. NOMEM; CANCELLED where progress says so. */
pith_status pi_placed_take(const struct pith_model *model, const struct pi_stage *stage,
                           struct pi_packing *packing, const struct pi_placed **out,
                           pith_error *err);
void pi_placed_give(const struct pi_placed *placed);

/* Whether a stage's weights are packed already. */
bool pi_placed_has(const struct pith_model *model, const struct pi_stage *stage);

/* A vector of the model there; none for NULL. */
static inline struct pi_at pi_placed_vector(const struct pi_placed *placed, const float *vector)
{
    if (vector == NULL)
        return (struct pi_at){0};
    return pi_at_item(placed->vectors, (size_t)(vector - placed->model->vectors));
}

#endif
