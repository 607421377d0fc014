/*
 * delta.h - the common part of families with gated delta nets: their keys, their layers with one,
 * and the bytes of their state.
 */
#ifndef PI_DELTA_H
#define PI_DELTA_H

#include "model/arch.h"

/* The tensors of the block but for the projections, which families store differently. */
#define PI_SPEC_DELTA                                                                              \
    PI_SPEC_VECTOR(delta.norm, "attn_norm.weight", PI_DIM_EMBD, true),                             \
        PI_SPEC_SLABS(delta.conv, "ssm_conv1d.weight", PI_DIM_CONV, PI_DIM_NONE, true,             \
                      PI_DIM_MIX),                                                                 \
        PI_SPEC_VECTOR(delta.dt, "ssm_dt.bias", PI_DIM_VALUE_HEADS, true),                         \
        PI_SPEC_VECTOR(delta.a, "ssm_a", PI_DIM_VALUE_HEADS, true),                                \
        PI_SPEC_VECTOR(delta.head_norm, "ssm_norm.weight", PI_DIM_DELTA, true),                    \
        PI_SPEC_MATRIX(delta.out, "ssm_out", PI_DIM_EMBD, PI_DIM_VALUES)

/* Experts, of which one takes every token. */
#define PI_SPEC_DELTA_EXPERTS_LEN 9
extern const struct pi_tensor_spec pi_spec_delta_experts[PI_SPEC_DELTA_EXPERTS_LEN];
extern const struct pi_moe_rule pi_delta_moe;

/* Reads the keys ssm.*, and leaves a delta net in the layers that attention.recurrent_layers or
   full_attention_interval names and attention, its output gated, in the others. tiled: as in
   pi_delta_shape. FORMAT. */
pith_status pi_delta_read(struct pith_model *m, bool tiled, pith_error *err);

/* Checks that rope.dimension_sections leave no pair to the fourth position, which text has not:
   then the rotation of text is the plain one. FORMAT, UNSUPPORTED. */
pith_status pi_delta_check_sections(const struct pith_model *m, pith_error *err);

/* Bytes of a sequence's state; 0 where no layer has one. */
size_t pi_delta_state_bytes(const struct pi_delta_shape *shape);

#endif
