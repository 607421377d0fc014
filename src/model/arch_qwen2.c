/*
 * arch_qwen2.c - Qwen 2 and 2.5: biases on q, k and v; rotary pairs are halves of the head.
 */
#include "model/arch.h"

static const struct pi_tensor_spec attention[] = {
    PI_SPEC_VECTOR(attn.norm, "attn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(attn.wq, "attn_q", PI_DIM_Q, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wk, "attn_k", PI_DIM_K, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wv, "attn_v", PI_DIM_V, PI_DIM_EMBD),
    PI_SPEC_VECTOR(attn.bq, "attn_q.bias", PI_DIM_Q, true),
    PI_SPEC_VECTOR(attn.bk, "attn_k.bias", PI_DIM_K, true),
    PI_SPEC_VECTOR(attn.bv, "attn_v.bias", PI_DIM_V, true),
    PI_SPEC_MATRIX(attn.wo, "attn_output", PI_DIM_EMBD, PI_DIM_O),
};

static const struct pi_arch_part parts[] = {PI_ARCH_PART(pi_block_attention, attention),
                                            PI_ARCH_FFN};

const struct pi_arch pi_arch_qwen2 = {
    .name = "qwen2",
    .rope_adjacent = false,
    .part = parts,
    .n_part = PI_LEN(parts),
};
