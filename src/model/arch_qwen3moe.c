/*
 * arch_qwen3moe.c - Qwen 3's mixtures of experts (30B-A3B, 235B-A22B): the layers of Qwen 3 with
 * experts in place of the feed-forward. The weights of the chosen experts always add up to one; no
 * key of a file says it.
 */
#include "model/arch.h"

static const struct pi_tensor_spec attention[] = {
    PI_SPEC_VECTOR(attn.norm, "attn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(attn.wq, "attn_q", PI_DIM_Q, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wk, "attn_k", PI_DIM_K, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wv, "attn_v", PI_DIM_V, PI_DIM_EMBD),
    PI_SPEC_VECTOR(attn.bq, "attn_q.bias", PI_DIM_Q, false),
    PI_SPEC_VECTOR(attn.bk, "attn_k.bias", PI_DIM_K, false),
    PI_SPEC_VECTOR(attn.bv, "attn_v.bias", PI_DIM_V, false),
    PI_SPEC_VECTOR(attn.q_norm, "attn_q_norm.weight", PI_DIM_HEAD_K, true),
    PI_SPEC_VECTOR(attn.k_norm, "attn_k_norm.weight", PI_DIM_HEAD_K, true),
    PI_SPEC_MATRIX(attn.wo, "attn_output", PI_DIM_EMBD, PI_DIM_O),
};

static const struct pi_tensor_spec experts[] = {
    PI_SPEC_VECTOR(moe.norm, "ffn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(moe.router, "ffn_gate_inp", PI_DIM_EXPERT, PI_DIM_EMBD),
    PI_SPEC_ALL_EXPERTS,
};

static const struct pi_arch_part parts[] = {PI_ARCH_PART(pi_block_attention, attention),
                                            PI_ARCH_PART(pi_block_moe, experts)};

static const struct pi_moe_rule rule = {
    .gating = PI_MOE_SOFTMAX,
    .act = PI_MOE_SILU,
    .norm = true,
    .scale = 1,
};

const struct pi_arch pi_arch_qwen3moe = {
    .name = "qwen3moe",
    .rope_adjacent = false,
    .part = parts,
    .n_part = PI_LEN(parts),
    .moe = &rule,
};
