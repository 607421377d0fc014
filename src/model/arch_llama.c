/*
 * arch_llama.c - Llama 1, 2, 3 and what shares their layout (Mistral, TinyLlama, SmolLM...). Files of
 * this family store q and k so that rotary pairs are adjacent. Biases are optional.
 */
#include "model/arch.h"

static const struct pi_tensor_spec attention[] = {
    PI_SPEC_VECTOR(attn_norm, "attn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(wq, "attn_q", PI_DIM_Q, PI_DIM_EMBD),
    PI_SPEC_MATRIX(wk, "attn_k", PI_DIM_K, PI_DIM_EMBD),
    PI_SPEC_MATRIX(wv, "attn_v", PI_DIM_V, PI_DIM_EMBD),
    PI_SPEC_VECTOR(bq, "attn_q.bias", PI_DIM_Q, false),
    PI_SPEC_VECTOR(bk, "attn_k.bias", PI_DIM_K, false),
    PI_SPEC_VECTOR(bv, "attn_v.bias", PI_DIM_V, false),
    PI_SPEC_MATRIX(wo, "attn_output", PI_DIM_EMBD, PI_DIM_O),
    PI_SPEC_VECTOR(bo, "attn_output.bias", PI_DIM_EMBD, false),
};

static const struct pi_arch_part parts[] = {PI_ARCH_PART(pi_block_attention, attention),
                                            PI_ARCH_FFN};

const struct pi_arch pi_arch_llama = {
    .name = "llama",
    .rope_adjacent = true,
    .part = parts,
    .n_part = PI_LEN(parts),
};
