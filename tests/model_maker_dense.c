/*
 * model_maker_dense.c - the dense families beside Llama's and Qwen's: their tensors and keys.
 */
#include <string.h>

#include "model_maker_family.h"

static void llama_layer(struct maker *m, int32_t l)
{
    maker_attention(m, l);
    maker_ffn(m, l);
}

static const struct maker_family families[] = {
    {.arch = "smollm3", .layer = llama_layer},
};

const struct maker_group maker_dense = {
    .family = families,
    .n_family = PI_LEN(families),
};
