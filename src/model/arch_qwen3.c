/*
 * arch_qwen3.c - Qwen 3: every head of q and k is normalised before its rotation; no biases.
 */
#include "model/arch.h"

static const struct pi_arch_part parts[] = {PI_ARCH_NORMED_ATTENTION, PI_ARCH_FFN};

const struct pi_arch pi_arch_qwen3 = {
    .name = "qwen3",
    .rope_adjacent = false,
    .part = parts,
    .n_part = PI_LEN(parts),
};
