/*
 * arch_llama.c - Llama 1, 2, 3 and what shares their layout (Mistral, TinyLlama, SmolLM...). Files of
 * this family store q and k so that rotary pairs are adjacent. Biases are optional.
 */
#include "model/arch.h"

static const struct pi_tensor_spec spec[] = {
    PI_SPEC_VECTOR(attn_norm, "attn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(wq, "attn_q", PI_DIM_Q, PI_DIM_EMBD),
    PI_SPEC_MATRIX(wk, "attn_k", PI_DIM_K, PI_DIM_EMBD),
    PI_SPEC_MATRIX(wv, "attn_v", PI_DIM_V, PI_DIM_EMBD),
    PI_SPEC_VECTOR(bq, "attn_q.bias", PI_DIM_Q, false),
    PI_SPEC_VECTOR(bk, "attn_k.bias", PI_DIM_K, false),
    PI_SPEC_VECTOR(bv, "attn_v.bias", PI_DIM_V, false),
    PI_SPEC_MATRIX(wo, "attn_output", PI_DIM_EMBD, PI_DIM_O),
    PI_SPEC_VECTOR(bo, "attn_output.bias", PI_DIM_EMBD, false),
    PI_SPEC_VECTOR(ffn_norm, "ffn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(w_gate, "ffn_gate", PI_DIM_FF, PI_DIM_EMBD),
    PI_SPEC_MATRIX(w_up, "ffn_up", PI_DIM_FF, PI_DIM_EMBD),
    PI_SPEC_MATRIX(w_down, "ffn_down", PI_DIM_EMBD, PI_DIM_FF),
};

const struct pi_arch pi_arch_llama = {
    .name = "llama",
    .rope_adjacent = true,
    .spec = spec,
    .n_spec = PI_LEN(spec),
};
