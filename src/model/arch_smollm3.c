/*
 * arch_smollm3.c - SmolLM 3: Llama's layers, but every fourth one rotates neither queries nor keys.
 * The number four is the family's: no key of a file says it.
 */
#include "model/arch.h"

#define UNROTATED_EVERY 4

static const struct pi_arch_part parts[] = {PI_ARCH_ATTENTION, PI_ARCH_FFN};

static pith_status read_layers(struct pith_model *m, pith_error *err)
{
    (void)err;
    for (int32_t l = UNROTATED_EVERY - 1; l < m->hp.n_layer; l += UNROTATED_EVERY)
        m->layer[l].rope = NULL;
    return PITH_OK;
}

const struct pi_arch pi_arch_smollm3 = {
    .name = "smollm3",
    .rope_adjacent = true,
    .part = parts,
    .n_part = PI_LEN(parts),
    .read = read_layers,
};
