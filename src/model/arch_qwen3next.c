/*
 * arch_qwen3next.c - Qwen3-Next. Every fourth layer has attention, the others a gated delta net,
 * and all have experts. Value heads of the delta net that share a key head lie side by side. Older
 * files have one tensor for the rows of queries, keys, values and output gates.
 */
#include <stdio.h>

#include "model/delta.h"

static const struct pi_tensor_spec delta[] = {
    PI_SPEC_DELTA,
    PI_SPEC_SLABS(delta.mix, "attn_qkv.weight", PI_DIM_MIX, PI_DIM_EMBD, false, PI_DIM_NONE),
    PI_SPEC_SLABS(delta.z, "attn_gate.weight", PI_DIM_VALUES, PI_DIM_EMBD, false, PI_DIM_NONE),
    PI_SPEC_SLABS(delta.mix_z, "ssm_in.weight", PI_DIM_MIX_VALUES, PI_DIM_EMBD, false, PI_DIM_NONE),
    PI_SPEC_MATRIX(delta.beta_alpha, "ssm_ba", PI_DIM_2_VALUE_HEADS, PI_DIM_EMBD),
};

static const struct pi_arch_part parts[] = {
    PI_ARCH_PART(pi_block_delta, delta),
    PI_ARCH_NORMED_ATTENTION,
    {&pi_block_moe, pi_spec_delta_experts, PI_SPEC_DELTA_EXPERTS_LEN},
};

static bool has(const struct pith_model *m, int32_t l, const char *tensor)
{
    char name[64];
    snprintf(name, sizeof(name), "blk.%d.%s.weight", l, tensor);
    return pi_gguf_find_tensor(&m->gguf, name) != NULL;
}

/* The projections come in one of two forms. */
static pith_status read_layers(struct pith_model *m, pith_error *err)
{
    PI_TRY(pi_delta_read(m, false, err));
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        if (m->layer[l].delta_layer < 0 || has(m, l, "ssm_in"))
            continue;
        if (!has(m, l, "attn_qkv") || !has(m, l, "attn_gate"))
            return pi_fail(err, PITH_FORMAT,
                           "tensor \"blk.%d.%s.weight\" is missing, and \"blk.%d.ssm_in.weight\" "
                           "in its place",
                           l, has(m, l, "attn_qkv") ? "attn_gate" : "attn_qkv", l);
    }
    return PITH_OK;
}

const struct pi_arch pi_arch_qwen3next = {
    .name = "qwen3next",
    .rope_adjacent = false,
    .part = parts,
    .n_part = PI_LEN(parts),
    .moe = &pi_delta_moe,
    .read = read_layers,
};
