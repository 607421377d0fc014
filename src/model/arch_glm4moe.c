/*
 * arch_glm4moe.c - GLM 4.5 and 4.6. Half of a head is rotated. The first layers have a dense
 * feed-forward, the others experts, one of which takes every token. Each of the router's
 * probabilities is a sigmoid of its own, and a bias counts in choosing alone.
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
    PI_SPEC_VECTOR(attn.q_norm, "attn_q_norm.weight", PI_DIM_HEAD_K, false),
    PI_SPEC_VECTOR(attn.k_norm, "attn_k_norm.weight", PI_DIM_HEAD_K, false),
    PI_SPEC_MATRIX(attn.wo, "attn_output", PI_DIM_EMBD, PI_DIM_O),
};

/* These families name ffn_norm like a norm after attention. */
static const struct pi_tensor_spec ffn[] = {
    PI_SPEC_VECTOR(ffn.norm, "post_attention_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(ffn.gate, "ffn_gate", PI_DIM_FF, PI_DIM_EMBD),
    PI_SPEC_MATRIX(ffn.up, "ffn_up", PI_DIM_FF, PI_DIM_EMBD),
    PI_SPEC_MATRIX(ffn.down, "ffn_down", PI_DIM_EMBD, PI_DIM_FF),
};

static const struct pi_tensor_spec experts[] = {
    PI_SPEC_VECTOR(moe.norm, "post_attention_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(moe.router, "ffn_gate_inp", PI_DIM_EXPERT, PI_DIM_EMBD),
    PI_SPEC_VECTOR(moe.choice_bias, "exp_probs_b.bias", PI_DIM_EXPERT, true),
    PI_SPEC_ALL_EXPERTS,
    PI_SPEC_SHARED_EXPERT,
};

static const struct pi_arch_part parts[] = {PI_ARCH_PART(pi_block_attention, attention),
                                            PI_ARCH_PART(pi_block_ffn, ffn),
                                            PI_ARCH_PART(pi_block_moe, experts)};

static const struct pi_moe_rule rule = {
    .gating = PI_MOE_SIGMOID,
    .act = PI_MOE_SILU,
    .scale = 1,
};

const struct pi_arch pi_arch_glm4moe = {
    .name = "glm4moe",
    .rope_adjacent = false,
    .part = parts,
    .n_part = PI_LEN(parts),
    .moe = &rule,
    .moe_keys = true,
};
