/*
 * model_maker_experts.c - families with mixtures of experts: their tensors and keys. Rows of
 * routers are long, so that choices are seldom between equals.
 */
#include <string.h>

#include "model_maker_family.h"

#define GAIN_ROUTER 2

static const struct maker_word words[] = {
    {"experts", 8, 1, 4096},
    {"used", 2, 1, 4096},
    {"expert_ff", 32, 1, 1 << 20},
    {"expert_scale", 0, 0, 1000}, /* 0: the file does not say */
    {"gating", 0, 0, 9},          /* likewise */
    {"norm", 0, 0, 1},
    {"groups", 0, 0, 64}, /* likewise */
    {"groups_used", 0, 0, 64},
    {"shared", 1, 0, 8}, /* experts that take every token */
    {"lead", 1, 0, 100}, /* layers without experts, the first ones */
    {"mtp", 0, 0, 4},    /* blocks behind the layers */
    {"qk_norm", 0, 0, 1},
    {"theta_swa", 0, 0, 1e12}, /* 0: the file does not say */
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

/* ---- glm4moe ---- */

static pith_status key_if(struct maker *m, const char *name, const char *word)
{
    return maker_count(m, word) > 0 ? maker_key_count(m, name, maker_count(m, word)) : PITH_OK;
}

static pith_status glm4moe_keys(struct maker *m)
{
    PI_TRY(expert_keys(m));
    PI_TRY(key_if(m, "expert_gating_func", "gating"));
    PI_TRY(key_if(m, "expert_group_count", "groups"));
    PI_TRY(key_if(m, "expert_group_used_count", "groups_used"));
    PI_TRY(key_if(m, "nextn_predict_layers", "mtp"));
    PI_TRY(maker_key_bool(m, "expert_weights_norm", maker_count(m, "norm") != 0));
    PI_TRY(maker_key_count(m, "expert_shared_count", maker_count(m, "shared")));
    return maker_key_count(m, "leading_dense_block_count", maker_count(m, "lead"));
}

static void shared_matrices(struct maker *m, int32_t l)
{
    int32_t width = maker_spec(m)->width,
            ff = maker_count(m, "expert_ff") * maker_count(m, "shared");
    if (ff == 0)
        return;
    maker_matrix(m, "ffn_gate_shexp", l, ff, width, 1);
    maker_matrix(m, "ffn_up_shexp", l, ff, width, 1);
    maker_matrix(m, "ffn_down_shexp", l, width, ff, 1);
}

static void glm4moe_layer(struct maker *m, int32_t l)
{
    const struct model_spec *s = maker_spec(m);
    maker_attention(m, l);
    if (maker_count(m, "qk_norm") != 0) {
        maker_vector(m, "attn_q_norm.weight", l, s->head_dim, MAKER_GAIN_SCORE, MAKER_STD_NORM);
        maker_vector(m, "attn_k_norm.weight", l, s->head_dim, MAKER_GAIN_SCORE, MAKER_STD_NORM);
    }
    maker_vector(m, "post_attention_norm.weight", l, s->width, 1, MAKER_STD_NORM);
    if (l < maker_count(m, "lead")) {
        maker_matrix(m, "ffn_gate", l, s->ff, s->width, 1);
        maker_matrix(m, "ffn_up", l, s->ff, s->width, 1);
        maker_matrix(m, "ffn_down", l, s->width, s->ff, 1);
        return;
    }
    expert_matrices(m, l);
    maker_vector(m, "exp_probs_b.bias", l, maker_count(m, "experts"), 0, MAKER_STD_BIAS);
    shared_matrices(m, l);
    if (l < s->layers - maker_count(m, "mtp"))
        return;
    maker_matrix(m, "nextn.eh_proj", l, s->width, 2 * s->width, 1);
    maker_vector(m, "nextn.enorm.weight", l, s->width, 1, MAKER_STD_NORM);
    maker_vector(m, "nextn.hnorm.weight", l, s->width, 1, MAKER_STD_NORM);
}

/* ---- gpt-oss ---- */

static pith_status gpt_oss_keys(struct maker *m)
{
    PI_TRY(expert_keys(m));
    if (maker_number(m, "theta_swa") > 0)
        PI_TRY(maker_key_number(m, "rope.freq_base_swa", maker_number(m, "theta_swa")));
    int32_t window = maker_count(m, "window"); /* a word of the dense families, too */
    return maker_key_count(m, "attention.sliding_window", window > 0 ? window : 8);
}

/* A vector of each expert's. */
static void expert_biases(struct maker *m, const char *name, int32_t l, int32_t n)
{
    maker_vectors(m, name, l, maker_count(m, "experts"), n, 0, MAKER_STD_BIAS);
}

static void gpt_oss_layer(struct maker *m, int32_t l)
{
    const struct model_spec *s = maker_spec(m);
    int32_t ff = maker_count(m, "expert_ff");
    maker_attention(m, l);
    maker_vector(m, "attn_q.bias", l, s->heads * s->head_dim, 0, MAKER_STD_BIAS);
    maker_vector(m, "attn_k.bias", l, s->kv_heads * s->head_dim, 0, MAKER_STD_BIAS);
    maker_vector(m, "attn_v.bias", l, s->kv_heads * s->head_dim, 0, MAKER_STD_BIAS);
    maker_vector(m, "attn_output.bias", l, s->width, 0, MAKER_STD_BIAS);
    maker_vector(m, "attn_sinks.weight", l, s->heads, 0, 1);
    maker_vector(m, "post_attention_norm.weight", l, s->width, 1, MAKER_STD_NORM);
    expert_matrices(m, l);
    maker_vector(m, "ffn_gate_inp.bias", l, maker_count(m, "experts"), 0, MAKER_STD_BIAS);
    expert_biases(m, "ffn_gate_exps.bias", l, ff);
    expert_biases(m, "ffn_up_exps.bias", l, ff);
    expert_biases(m, "ffn_down_exps.bias", l, s->width);
}

/* ---- qwen3moe ---- */

static void qwen3moe_layer(struct maker *m, int32_t l)
{
    maker_attention(m, l);
    maker_vector(m, "ffn_norm.weight", l, maker_spec(m)->width, 1, MAKER_STD_NORM);
    expert_matrices(m, l);
}

static const struct maker_family families[] = {
    {.arch = "qwen3moe", .keys = expert_keys, .layer = qwen3moe_layer},
    {.arch = "glm4moe", .keys = glm4moe_keys, .layer = glm4moe_layer},
    {.arch = "gpt-oss", .keys = gpt_oss_keys, .layer = gpt_oss_layer},
};

const struct maker_group maker_experts = {
    .family = families,
    .n_family = PI_LEN(families),
    .word = words,
    .n_word = PI_LEN(words),
};
