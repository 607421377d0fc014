/*
 * arch_llama.c - Llama 1, 2, 3 and models with the same layout (Mistral, TinyLlama, SmolLM...).
 * Files of this family store q and k so that rotary pairs are adjacent. Biases are optional.
 */
#include "model/load.h"

static const struct pi_arch_part parts[] = {PI_ARCH_ATTENTION, PI_ARCH_FFN};

static void rope_keys(struct pi_rope_keys *keys)
{
    keys->longrope = true;
}

const struct pi_arch pi_arch_llama = {
    .name = "llama",
    .rope_adjacent = true,
    .part = parts,
    .n_part = PI_LEN(parts),
    .rope = rope_keys,
};
