/*
 * model_maker_experts.c - families with mixtures of experts: their tensors and keys. Rows of routers
 * are long, so that choices are seldom between equals.
 */
#include <string.h>

#include "model_maker_family.h"

#define GAIN_ROUTER 2

static const struct maker_word words[] = {
    {"experts", 8, 1, 4096},
    {"used", 2, 1, 4096},
    {"expert_ff", 32, 1, 1 << 20},
    {"expert_scale", 0, 0, 1000}, /* 0: the file does not say */
};

static pith_status expert_keys(struct maker *m)
{
    PI_TRY(maker_key_count(m, "expert_count", maker_count(m, "experts")));
    PI_TRY(maker_key_count(m, "expert_used_count", maker_count(m, "used")));
    PI_TRY(maker_key_count(m, "expert_feed_forward_length", maker_count(m, "expert_ff")));
    if (maker_number(m, "expert_scale") > 0)
        PI_TRY(maker_key_number(m, "expert_weights_scale", maker_number(m, "expert_scale")));
    return PITH_OK;
}

/* The router and the experts' matrices. */
static void expert_matrices(struct maker *m, int32_t l)
{
    int32_t width = maker_spec(m)->width, n = maker_count(m, "experts");
    int32_t ff = maker_count(m, "expert_ff");
    maker_matrix(m, "ffn_gate_inp", l, n, width, GAIN_ROUTER);
    maker_slabs(m, "ffn_gate_exps", l, n, ff, width, 1);
    maker_slabs(m, "ffn_up_exps", l, n, ff, width, 1);
    maker_slabs(m, "ffn_down_exps", l, n, width, ff, 1);
}

static void qwen3moe_layer(struct maker *m, int32_t l)
{
    maker_attention(m, l);
    maker_vector(m, "ffn_norm.weight", l, maker_spec(m)->width, 1, MAKER_STD_NORM);
    expert_matrices(m, l);
}

static const struct maker_family families[] = {
    {.arch = "qwen3moe", .keys = expert_keys, .layer = qwen3moe_layer},
};

const struct maker_group maker_experts = {
    .family = families,
    .n_family = PI_LEN(families),
    .word = words,
    .n_word = PI_LEN(words),
};
