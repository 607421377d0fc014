/*
 * arch_phi3.c - Phi 3, 3.5 and 4: Llama's layers with rotary pairs in halves of the first n_rot
 * dimensions. Files hold q, k and v in one matrix, gate and up in another. Long contexts have
 * rotary factors of their own, known by their tensors. The window that Phi-3-mini's files name is
 * not applied, as llama.cpp does not, whose numbers are compared with.
 */
#include "model/load.h"

static const struct pi_arch_part parts[] = {PI_ARCH_ATTENTION, PI_ARCH_FFN};

static void rope_keys(struct pi_rope_keys *keys)
{
    keys->longrope = true;
}

const struct pi_arch pi_arch_phi3 = {
    .name = "phi3",
    .rope_adjacent = false,
    .part = parts,
    .n_part = PI_LEN(parts),
    .rope = rope_keys,
};
