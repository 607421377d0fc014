/*
 * arch_deepseek2.c - DeepSeek V2, V3 and R1, Kimi K2, GLM 4.7 Flash: latent attention. The first
 * layers have a dense feed-forward, the others experts, one of which takes every token.
 */
#include "model/latent.h"

static const struct pi_tensor_spec attention[] = {
    PI_SPEC_VECTOR(latent.norm, "attn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(latent.query, "attn_q", PI_DIM_QUERIES_ONCE, PI_DIM_EMBD),
    PI_SPEC_MATRIX(latent.query_a, "attn_q_a", PI_DIM_LOW, PI_DIM_EMBD),
    PI_SPEC_VECTOR(latent.query_a_norm, "attn_q_a_norm.weight", PI_DIM_LOW, true),
    PI_SPEC_MATRIX(latent.query_b, "attn_q_b", PI_DIM_QUERIES, PI_DIM_LOW),
    PI_SPEC_MATRIX(latent.compress, "attn_kv_a_mqa", PI_DIM_LATENT, PI_DIM_EMBD),
    PI_SPEC_VECTOR(latent.compress_norm, "attn_kv_a_norm.weight", PI_DIM_RANK, true),
    PI_SPEC_SLABS(latent.absorb, "attn_k_b.weight", PI_DIM_RANK, PI_DIM_HEAD_KEY, true,
                  PI_DIM_HEADS),
    PI_SPEC_SLABS(latent.expand, "attn_v_b.weight", PI_DIM_HEAD_OUT, PI_DIM_RANK, true,
                  PI_DIM_HEADS),
    PI_SPEC_MATRIX(latent.out, "attn_output", PI_DIM_EMBD, PI_DIM_OUTS),
};

static const struct pi_tensor_spec experts[] = {
    PI_SPEC_VECTOR(moe.norm, "ffn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(moe.router, "ffn_gate_inp", PI_DIM_EXPERT, PI_DIM_EMBD),
    PI_SPEC_VECTOR(moe.choice_bias, "exp_probs_b.bias", PI_DIM_EXPERT, false),
    PI_SPEC_ALL_EXPERTS,
    PI_SPEC_SHARED_EXPERT,
};

static const struct pi_arch_part parts[] = {PI_ARCH_PART(pi_block_latent, attention), PI_ARCH_FFN,
                                            PI_ARCH_PART(pi_block_moe, experts)};

static const struct pi_moe_rule rule = {
    .gating = PI_MOE_SOFTMAX,
    .act = PI_MOE_SILU,
    .scale = 1,
};

static void rope_keys(struct pi_rope_keys *keys)
{
    keys->log_in_scale = true;
}

/* Early files of GLM 4.7 Flash, which no key tells from the others, do not say how the router
   chooses. */
static bool is_early_glm(const struct pith_model *m)
{
    const struct pi_gguf_tensor *embd = pi_gguf_find_tensor(&m->gguf, "token_embd.weight");
    return embd != NULL && embd->ne[1] == 154880 && (m->hp.n_layer == 47 || m->hp.n_layer == 48);
}

static pith_status read_layers(struct pith_model *m, pith_error *err)
{
    int32_t gating = 0;
    PI_TRY(pi_key_count(m, "expert_gating_func", 0, INT32_MAX, false, &gating, err));
    if (gating == 0 && is_early_glm(m))
        m->hp.moe.gating = PI_MOE_SIGMOID;
    return pi_latent_read(m, err);
}

const struct pi_arch pi_arch_deepseek2 = {
    .name = "deepseek2",
    .rope_adjacent = true,
    .part = parts,
    .n_part = PI_LEN(parts),
    .moe = &rule,
    .moe_keys = true,
    .rope = rope_keys,
    .read = read_layers,
};
