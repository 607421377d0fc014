/*
 * relay.h - layers that read what another chose: the order of layers that TidalDecode and
 * LessIsMore share. A few first layers read everything. One layer reads everything and chooses, the
 * layers behind it read its choice, and farther on one more chooses anew.
 */
#ifndef PI_READ_RELAY_H
#define PI_READ_RELAY_H

#include "policy/read/read.h"

struct relay_form {
    int32_t source;   /* the layer that chooses first */
    int32_t reselect; /* the layer that chooses anew; 0: by the model's depth (relay_reselect) */
};

/* The layer that chooses anew in a model of n_layer layers; n_layer or more: none does. */
int32_t relay_reselect(const struct relay_form *form, int32_t n_layer);

/* Members of a policy whose params begin with a struct relay_form. */
enum read_role relay_role(const void *params, const struct policy_model *model, int32_t layer);
pith_status relay_check(const void *params, const struct read_rules *rules,
                        const struct kv_geometry *g, pith_error *err);

/* Rows of their parameter tables. */
/* clang-format off */
#define RELAY_PARAMS                                                                               \
    {"source", POLICY_TYPE_COUNT, offsetof(struct relay_form, source), 0, 4095, "2",               \
     "the layer that chooses first; layers before it read everything. A model of 3 layers or "     \
     "fewer wants it lower", NULL},                                                                \
    {"reselect", POLICY_TYPE_COUNT, offsetof(struct relay_form, reselect), 0, 4096, "0",           \
     "the layer that chooses anew; 0: as the authors have it, scaled to the model", NULL}
/* clang-format on */

#endif
