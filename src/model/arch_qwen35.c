/*
 * arch_qwen35.c - Qwen 3.5. Every fourth layer has attention, whose output is gated and which
 * rotates a part of a head. The others have a gated delta net. Value head h of the delta net has
 * key head h modulo their number. qwen35moe has experts in place of the feed-forward.
 */
#include "model/delta.h"

static const struct pi_tensor_spec delta[] = {
    PI_SPEC_DELTA,
    PI_SPEC_MATRIX(delta.mix, "attn_qkv", PI_DIM_MIX, PI_DIM_EMBD),
    PI_SPEC_MATRIX(delta.z, "attn_gate", PI_DIM_VALUES, PI_DIM_EMBD),
    PI_SPEC_MATRIX(delta.beta, "ssm_beta", PI_DIM_VALUE_HEADS, PI_DIM_EMBD),
    PI_SPEC_MATRIX(delta.alpha, "ssm_alpha", PI_DIM_VALUE_HEADS, PI_DIM_EMBD),
};

static const struct pi_tensor_spec ffn[] = {
    PI_SPEC_VECTOR(ffn.norm, "post_attention_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(ffn.gate, "ffn_gate", PI_DIM_FF, PI_DIM_EMBD),
    PI_SPEC_MATRIX(ffn.up, "ffn_up", PI_DIM_FF, PI_DIM_EMBD),
    PI_SPEC_MATRIX(ffn.down, "ffn_down", PI_DIM_EMBD, PI_DIM_FF),
};

static const struct pi_arch_part parts[] = {
    PI_ARCH_PART(pi_block_delta, delta),
    PI_ARCH_NORMED_ATTENTION,
    PI_ARCH_PART(pi_block_ffn, ffn),
};

static const struct pi_arch_part moe_parts[] = {
    PI_ARCH_PART(pi_block_delta, delta),
    PI_ARCH_NORMED_ATTENTION,
    {&pi_block_moe, pi_spec_delta_experts, PI_SPEC_DELTA_EXPERTS_LEN},
};

static pith_status read_layers(struct pith_model *m, pith_error *err)
{
    PI_TRY(pi_delta_check_sections(m, err));
    return pi_delta_read(m, true, err);
}

const struct pi_arch pi_arch_qwen35 = {
    .name = "qwen35",
    .rope_adjacent = false,
    .part = parts,
    .n_part = PI_LEN(parts),
    .read = read_layers,
};

const struct pi_arch pi_arch_qwen35moe = {
    .name = "qwen35moe",
    .rope_adjacent = false,
    .part = moe_parts,
    .n_part = PI_LEN(moe_parts),
    .moe = &pi_delta_moe,
    .read = read_layers,
};
