/*
 * arch_gpt_oss.c - OpenAI's gpt-oss: every other layer sees a window, each query head has a sink,
 * which takes a share of its attention, and everything has biases. A router's softmax runs over the
 * chosen experts alone, and the experts' activations are clamped.
 */
#include "model/load.h"

#define WINDOW_EVERY 2 /* the last of each group of layers sees everything */

static const struct pi_tensor_spec attention[] = {
    PI_SPEC_VECTOR(attn.norm, "attn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(attn.wq, "attn_q", PI_DIM_Q, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wk, "attn_k", PI_DIM_K, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wv, "attn_v", PI_DIM_V, PI_DIM_EMBD),
    PI_SPEC_VECTOR(attn.bq, "attn_q.bias", PI_DIM_Q, false),
    PI_SPEC_VECTOR(attn.bk, "attn_k.bias", PI_DIM_K, false),
    PI_SPEC_VECTOR(attn.bv, "attn_v.bias", PI_DIM_V, false),
    PI_SPEC_VECTOR(attn.sinks, "attn_sinks.weight", PI_DIM_HEADS, true),
    PI_SPEC_MATRIX(attn.wo, "attn_output", PI_DIM_EMBD, PI_DIM_O),
    PI_SPEC_VECTOR(attn.bo, "attn_output.bias", PI_DIM_EMBD, true),
};

/* This family names ffn_norm like a norm after attention. */
static const struct pi_tensor_spec experts[] = {
    PI_SPEC_VECTOR(moe.norm, "post_attention_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(moe.router, "ffn_gate_inp", PI_DIM_EXPERT, PI_DIM_EMBD),
    PI_SPEC_VECTOR(moe.router_bias, "ffn_gate_inp.bias", PI_DIM_EXPERT, true),
    PI_SPEC_EXPERTS(moe.gate, "ffn_gate_exps", PI_DIM_FF_EXPERT, PI_DIM_EMBD),
    PI_SPEC_EXPERTS_BIAS(moe.gate_bias, "ffn_gate_exps", PI_DIM_FF_EXPERT),
    PI_SPEC_EXPERTS(moe.up, "ffn_up_exps", PI_DIM_FF_EXPERT, PI_DIM_EMBD),
    PI_SPEC_EXPERTS_BIAS(moe.up_bias, "ffn_up_exps", PI_DIM_FF_EXPERT),
    PI_SPEC_EXPERTS(moe.down, "ffn_down_exps", PI_DIM_EMBD, PI_DIM_FF_EXPERT),
    PI_SPEC_EXPERTS_BIAS(moe.down_bias, "ffn_down_exps", PI_DIM_EMBD),
};

static const struct pi_arch_part parts[] = {PI_ARCH_PART(pi_block_attention, attention),
                                            PI_ARCH_PART(pi_block_moe, experts)};

static const struct pi_moe_rule rule = {
    .gating = PI_MOE_SOFTMAX_CHOSEN,
    .act = PI_MOE_OAI,
    .scale = 1,
};

/* A base for layers with a window, where the file has one of its own. Scaling is for all. */
static pith_status read_local_rope(struct pith_model *m, pith_error *err)
{
    struct pi_rope_keys keys = pi_rope_keys_of(m);
    if (pi_gguf_find(&m->gguf, "gpt-oss.rope.freq_base_swa") == NULL)
        return PITH_OK;
    keys.base = "freq_base_swa";
    PI_TRY(pi_rope_load(&m->rope_local, &m->gguf, m->arch->name, &keys, err));
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        if (m->layer[l].window > 0)
            m->layer[l].rope = &m->rope_local;
    return PITH_OK;
}

static pith_status read_layers(struct pith_model *m, pith_error *err)
{
    int32_t window;
    PI_TRY(pi_key_count(m, "attention.sliding_window", 1, INT32_MAX, true, &window, err));
    PI_TRY(pi_load_windows(m, window, WINDOW_EVERY, err));
    return read_local_rope(m, err);
}

const struct pi_arch pi_arch_gpt_oss = {
    .name = "gpt-oss",
    .rope_adjacent = false,
    .part = parts,
    .n_part = PI_LEN(parts),
    .moe = &rule,
    .read = read_layers,
};
