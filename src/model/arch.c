/*
 * arch.c - the table of families, and their common parts.
 */
#include <stdio.h>

#include "model/arch.h"

static const struct pi_arch *const families[] = {
    &pi_arch_llama,   &pi_arch_qwen2,  &pi_arch_qwen3,     &pi_arch_smollm3,   &pi_arch_gemma2,
    &pi_arch_gemma3,  &pi_arch_phi3,   &pi_arch_mistral3,  &pi_arch_qwen3moe,  &pi_arch_glm4moe,
    &pi_arch_gpt_oss, &pi_arch_qwen35, &pi_arch_qwen35moe, &pi_arch_qwen3next, &pi_arch_deepseek2,
};

const struct pi_arch *pi_arch_find(const char *name, size_t len)
{
    for (size_t i = 0; i < PI_LEN(families); i++)
        if (strlen(families[i]->name) == len && !memcmp(families[i]->name, name, len))
            return families[i];
    return NULL;
}

void pi_arch_list(char *out, size_t cap)
{
    size_t len = 0;
    for (size_t i = 0; i < PI_LEN(families) && len < cap; i++)
        len += (size_t)snprintf(out + len, cap - len, "%s%s", i > 0 ? ", " : "", families[i]->name);
}

const struct pi_tensor_spec pi_spec_attention[PI_SPEC_ATTENTION_LEN] = {
    PI_SPEC_VECTOR(attn.norm, "attn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(attn.wq, "attn_q", PI_DIM_Q, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wk, "attn_k", PI_DIM_K, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wv, "attn_v", PI_DIM_V, PI_DIM_EMBD),
    PI_SPEC_VECTOR(attn.bq, "attn_q.bias", PI_DIM_Q, false),
    PI_SPEC_VECTOR(attn.bk, "attn_k.bias", PI_DIM_K, false),
    PI_SPEC_VECTOR(attn.bv, "attn_v.bias", PI_DIM_V, false),
    PI_SPEC_MATRIX(attn.wo, "attn_output", PI_DIM_EMBD, PI_DIM_O),
    PI_SPEC_VECTOR(attn.bo, "attn_output.bias", PI_DIM_EMBD, false),
};

const struct pi_tensor_spec pi_spec_normed_attention[PI_SPEC_NORMED_ATTENTION_LEN] = {
    PI_SPEC_VECTOR(attn.norm, "attn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(attn.wq, "attn_q", PI_DIM_Q, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wk, "attn_k", PI_DIM_K, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wv, "attn_v", PI_DIM_V, PI_DIM_EMBD),
    PI_SPEC_VECTOR(attn.q_norm, "attn_q_norm.weight", PI_DIM_HEAD_K, true),
    PI_SPEC_VECTOR(attn.k_norm, "attn_k_norm.weight", PI_DIM_HEAD_K, true),
    PI_SPEC_MATRIX(attn.wo, "attn_output", PI_DIM_EMBD, PI_DIM_O),
};

const struct pi_tensor_spec pi_spec_ffn[PI_SPEC_FFN_LEN] = {
    PI_SPEC_VECTOR(ffn.norm, "ffn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(ffn.gate, "ffn_gate", PI_DIM_FF, PI_DIM_EMBD),
    PI_SPEC_MATRIX(ffn.up, "ffn_up", PI_DIM_FF, PI_DIM_EMBD),
    PI_SPEC_MATRIX(ffn.down, "ffn_down", PI_DIM_EMBD, PI_DIM_FF),
};

/* ---- a layer's list of blocks ---- */

bool pi_arch_has(const struct pi_arch *arch, const struct pi_block *block)
{
    for (int32_t i = 0; i < arch->n_part; i++)
        if (arch->part[i].block == block)
            return true;
    return false;
}

bool pi_layer_has(const struct pi_layer *layer, const struct pi_block *block)
{
    for (int32_t i = 0; i < layer->n_block; i++)
        if (layer->block[i].block == block)
            return true;
    return false;
}

bool pi_layer_attends(const struct pi_layer *layer)
{
    return pi_layer_has(layer, &pi_block_attention) || pi_layer_has(layer, &pi_block_latent);
}

void pi_layer_leave_out(struct pi_layer *layer, const struct pi_block *block)
{
    int32_t n = 0;
    for (int32_t i = 0; i < layer->n_block; i++)
        if (layer->block[i].block != block)
            layer->block[n++] = layer->block[i];
    layer->n_block = n;
}
