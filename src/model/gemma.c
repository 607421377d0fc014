/*
 * gemma.c - the common part of Gemma 2 and 3.
 */
#include <math.h>

#include "model/gemma.h"

const struct pi_tensor_spec pi_spec_gemma_ffn[PI_SPEC_GEMMA_FFN_LEN] = {
    PI_SPEC_VECTOR(ffn.norm, "ffn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(ffn.gate, "ffn_gate", PI_DIM_FF, PI_DIM_EMBD),
    PI_SPEC_MATRIX(ffn.up, "ffn_up", PI_DIM_FF, PI_DIM_EMBD),
    PI_SPEC_MATRIX(ffn.down, "ffn_down", PI_DIM_EMBD, PI_DIM_FF),
    PI_SPEC_VECTOR(ffn.post_norm, "post_ffw_norm.weight", PI_DIM_EMBD, true),
};

void pi_gemma_set(struct pi_hparams *hp, int32_t layers_27b)
{
    hp->gelu = true;
    hp->embd_scale = sqrtf((float)hp->n_embd);
    if (hp->n_layer == layers_27b)
        hp->attn_scale = 1.0f / sqrtf((float)(hp->n_embd / hp->n_head));
}
