/*
 * arch.c - the table of families, and what families share.
 */
#include "model/arch.h"

static const struct pi_arch *const families[] = {&pi_arch_llama, &pi_arch_qwen2, &pi_arch_qwen3};

const struct pi_arch *pi_arch_find(const char *name, size_t len)
{
    for (size_t i = 0; i < PI_LEN(families); i++)
        if (strlen(families[i]->name) == len && !memcmp(families[i]->name, name, len))
            return families[i];
    return NULL;
}

const struct pi_tensor_spec pi_spec_ffn[PI_SPEC_FFN_LEN] = {
    PI_SPEC_VECTOR(ffn_norm, "ffn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(w_gate, "ffn_gate", PI_DIM_FF, PI_DIM_EMBD),
    PI_SPEC_MATRIX(w_up, "ffn_up", PI_DIM_FF, PI_DIM_EMBD),
    PI_SPEC_MATRIX(w_down, "ffn_down", PI_DIM_EMBD, PI_DIM_FF),
};

/* ---- a layer's list of blocks ---- */

bool pi_layer_has(const struct pi_layer *layer, const struct pi_block *block)
{
    for (int32_t i = 0; i < layer->n_block; i++)
        if (layer->block[i].block == block)
            return true;
    return false;
}

void pi_layer_leave_out(struct pi_layer *layer, const struct pi_block *block)
{
    int32_t n = 0;
    for (int32_t i = 0; i < layer->n_block; i++)
        if (layer->block[i].block != block)
            layer->block[n++] = layer->block[i];
    layer->n_block = n;
}
