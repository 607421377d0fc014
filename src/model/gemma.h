/*
 * gemma.h - the common part of Gemma 2 and 3: the tensors of the feed-forward, and settings without
 * a key in their files.
 */
#ifndef PI_GEMMA_H
#define PI_GEMMA_H

#include "model/load.h"

#define PI_SPEC_GEMMA_FFN_LEN 5
extern const struct pi_tensor_spec pi_spec_gemma_ffn[PI_SPEC_GEMMA_FFN_LEN];
#define PI_ARCH_GEMMA_FFN                                                                          \
    {                                                                                              \
        &pi_block_ffn, pi_spec_gemma_ffn, PI_SPEC_GEMMA_FFN_LEN                                    \
    }

/* The gate, the scale of embeddings, and the scale of scores of the size with layers_27b layers,
   which differs. */
void pi_gemma_set(struct pi_hparams *hp, int32_t layers_27b);

#endif
