/*
 * arch_qwen3.c - Qwen 3: every head of q and k is normalised before its rotation; no biases.
 */
#include "model/arch.h"

static const struct pi_tensor_spec attention[] = {
    PI_SPEC_VECTOR(attn_norm, "attn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(wq, "attn_q", PI_DIM_Q, PI_DIM_EMBD),
    PI_SPEC_MATRIX(wk, "attn_k", PI_DIM_K, PI_DIM_EMBD),
    PI_SPEC_MATRIX(wv, "attn_v", PI_DIM_V, PI_DIM_EMBD),
    PI_SPEC_VECTOR(q_norm, "attn_q_norm.weight", PI_DIM_HEAD_K, true),
    PI_SPEC_VECTOR(k_norm, "attn_k_norm.weight", PI_DIM_HEAD_K, true),
    PI_SPEC_MATRIX(wo, "attn_output", PI_DIM_EMBD, PI_DIM_O),
};

static const struct pi_arch_part parts[] = {PI_ARCH_PART(pi_block_attention, attention),
                                            PI_ARCH_FFN};

const struct pi_arch pi_arch_qwen3 = {
    .name = "qwen3",
    .rope_adjacent = false,
    .part = parts,
    .n_part = PI_LEN(parts),
};
