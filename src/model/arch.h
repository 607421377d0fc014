/*
 * arch.h - families of networks. A family is one const struct in one file and one line in arch.c's
 * table; it says how its tensors are named and shaped and how its rotary pairs lie. The pass
 * (forward.c) knows no family: it does what the loaded tensors ask for.
 */
#ifndef PI_ARCH_H
#define PI_ARCH_H

#include "model/model.h"

/* Lengths that tensors are made of. */
enum pi_dim {
    PI_DIM_NONE, /* a vector's missing second dimension */
    PI_DIM_EMBD,
    PI_DIM_FF,
    PI_DIM_Q,      /* n_head * dim_k */
    PI_DIM_K,      /* n_head_kv * dim_k */
    PI_DIM_V,      /* n_head_kv * dim_v */
    PI_DIM_O,      /* n_head * dim_v */
    PI_DIM_HEAD_K, /* dim_k */
};

/* One tensor of a layer: "blk.N.NAME" goes to the field at offset of struct pi_layer. */
struct pi_tensor_spec {
    const char *name;
    size_t offset;
    enum pi_dim row; /* output features, or the length of a vector */
    enum pi_dim col; /* input features; PI_DIM_NONE: a vector of floats */
    bool required;
};

struct pi_arch {
    const char *name; /* general.architecture */
    bool rope_adjacent;
    const struct pi_tensor_spec *spec; /* [n_spec] */
    int32_t n_spec;
};

/* NULL when the family is unknown. */
const struct pi_arch *pi_arch_find(const char *name, size_t len);

/* The tensors that every family of this kind has: norms, q k v o, gated feed-forward. */
#define PI_SPEC_MATRIX(field, tensor, row, col)                                                    \
    {tensor ".weight", offsetof(struct pi_layer, field), row, col, true}
#define PI_SPEC_VECTOR(field, tensor, row, required)                                               \
    {tensor, offsetof(struct pi_layer, field), row, PI_DIM_NONE, required}

extern const struct pi_arch pi_arch_llama;
extern const struct pi_arch pi_arch_qwen2;
extern const struct pi_arch pi_arch_qwen3;

#endif
