/*
 * arch_mistral3.c - Ministral 3 and Mistral Small 3.1: Llama's layers. YaRN may have a log
 * multiplier, and queries beyond the context of training may be multiplied by a number that grows
 * with their position.
 */
#include <stdint.h>

#include "model/load.h"

#define MOST_TEMPERATURE 1e3f

static const struct pi_arch_part parts[] = {PI_ARCH_ATTENTION, PI_ARCH_FFN};

static void rope_keys(struct pi_rope_keys *keys)
{
    keys->longrope = true;
    keys->log_multiplier = true;
}

static pith_status read_layers(struct pith_model *m, pith_error *err)
{
    struct pi_hparams *hp = &m->hp;
    hp->temp_len = hp->n_ctx_train;
    PI_TRY(pi_key_count(m, "rope.scaling.original_context_length", 1, INT32_MAX, false,
                        &hp->temp_len, err));
    return pi_key_number(m, "attention.temperature_scale", 0, MOST_TEMPERATURE, false,
                         &hp->temp_scale, err);
}

const struct pi_arch pi_arch_mistral3 = {
    .name = "mistral3",
    .rope_adjacent = true,
    .part = parts,
    .n_part = PI_LEN(parts),
    .rope = rope_keys,
    .read = read_layers,
};
