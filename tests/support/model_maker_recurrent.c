/*
 * model_maker_recurrent.c - families with gated delta nets: most layers have no attention, and
 * every few layers one has attention with a gate.
 *
 * Words: delta_keys and delta_values are numbers of heads, delta_dim a head's size, taps the length
 * of the convolution; legacy=1 writes Qwen3-Next's older tensors. interval is the distance of
 * layers with attention; listed=1 names them in an array.
 */
#include <string.h>

#include "model_maker_family.h"

enum { MOST_LAYERS = 1000 };

static const struct maker_word words[] = {
    {"delta_keys", 2, 1, 4096}, {"delta_values", 6, 1, 4096}, {"delta_dim", 16, 1, 1024},
    {"taps", 4, 2, 16},         {"interval", 4, 1, 1000},     {"legacy", 0, 0, 1},
    {"listed", 0, 0, 1},
};

static bool attends(const struct maker *m, int32_t l)
{
    return (l + 1) % maker_count(m, "interval") == 0 ||
           l >= maker_spec(m)->layers - maker_count(m, "mtp");
}

/* ---- keys ---- */

static pith_status delta_keys(struct maker *m)
{
    int32_t n_value = maker_count(m, "delta_values"), dim = maker_count(m, "delta_dim");
    bool list[MOST_LAYERS];
    PI_TRY(maker_key_count(m, "ssm.conv_kernel", maker_count(m, "taps")));
    PI_TRY(maker_key_count(m, "ssm.state_size", dim));
    PI_TRY(maker_key_count(m, "ssm.group_count", maker_count(m, "delta_keys")));
    PI_TRY(maker_key_count(m, "ssm.time_step_rank", n_value));
    PI_TRY(maker_key_count(m, "ssm.inner_size", n_value * dim));
    if (maker_count(m, "listed") == 0)
        return maker_key_count(m, "full_attention_interval", maker_count(m, "interval"));
    for (int32_t l = 0; l < maker_spec(m)->layers; l++)
        list[l] = !attends(m, l);
    return maker_key_bools(m, "attention.recurrent_layers", list, maker_spec(m)->layers);
}

/* The keys of families with experts (model_maker_experts.c). */
static pith_status moe_keys(struct maker *m)
{
    PI_TRY(maker_key_count(m, "expert_count", maker_count(m, "experts")));
    PI_TRY(maker_key_count(m, "expert_used_count", maker_count(m, "used")));
    PI_TRY(maker_key_count(m, "expert_feed_forward_length", maker_count(m, "expert_ff")));
    if (maker_count(m, "mtp") > 0)
        PI_TRY(maker_key_count(m, "nextn_predict_layers", maker_count(m, "mtp")));
    return maker_key_count(m, "expert_shared_feed_forward_length", maker_spec(m)->ff);
}

/* Sections that leave no pair to the fourth position: a third each, the first ones more. */
static pith_status qwen35_keys(struct maker *m)
{
    int32_t n = maker_rot(m) / 2;
    const int32_t section[4] = {(n + 2) / 3, (n + 1) / 3, n / 3, 0};
    PI_TRY(maker_key_counts(m, "rope.dimension_sections", section, 4));
    return delta_keys(m);
}

static pith_status qwen35moe_keys(struct maker *m)
{
    PI_TRY(moe_keys(m));
    return qwen35_keys(m);
}

static pith_status qwen3next_keys(struct maker *m)
{
    PI_TRY(moe_keys(m));
    return delta_keys(m);
}

/* ---- tensors ---- */

/* Queries and their gates, a head's after the other's. */
static void gated_attention(struct maker *m, int32_t l)
{
    const struct model_spec *s = maker_spec(m);
    int32_t n_q = s->heads * s->head_dim, n_kv = s->kv_heads * s->head_dim;
    maker_matrix(m, "attn_q", l, 2 * n_q, s->width, 1);
    maker_matrix(m, "attn_k", l, n_kv, s->width, 1);
    maker_matrix(m, "attn_v", l, n_kv, s->width, 1);
    maker_vector(m, "attn_q_norm.weight", l, s->head_dim, MAKER_GAIN_SCORE, MAKER_STD_NORM);
    maker_vector(m, "attn_k_norm.weight", l, s->head_dim, MAKER_GAIN_SCORE, MAKER_STD_NORM);
    maker_matrix(m, "attn_output", l, s->width, n_q, 1);
}

/* The tensors of a delta net except its projections. */
static void delta_rest(struct maker *m, int32_t l)
{
    int32_t n_key = maker_count(m, "delta_keys"), n_value = maker_count(m, "delta_values");
    int32_t dim = maker_count(m, "delta_dim"), taps = maker_count(m, "taps");
    maker_vectors(m, "ssm_conv1d.weight", l, dim * (2 * n_key + n_value), taps, 0, 0.6);
    maker_vector(m, "ssm_dt.bias", l, n_value, 0, 1);
    maker_vector(m, "ssm_a", l, n_value, -0.3, 0.15); /* below 0 */
    maker_vector(m, "ssm_norm.weight", l, dim, 1, MAKER_STD_NORM);
    maker_matrix(m, "ssm_out", l, maker_spec(m)->width, n_value * dim, 1);
}

static void qwen35_delta(struct maker *m, int32_t l)
{
    int32_t width = maker_spec(m)->width, dim = maker_count(m, "delta_dim");
    int32_t n_key = maker_count(m, "delta_keys"), n_value = maker_count(m, "delta_values");
    maker_matrix(m, "attn_qkv", l, dim * (2 * n_key + n_value), width, 1);
    maker_matrix(m, "attn_gate", l, dim * n_value, width, 1);
    maker_matrix(m, "ssm_beta", l, n_value, width, 1);
    maker_matrix(m, "ssm_alpha", l, n_value, width, 1);
    delta_rest(m, l);
}

/* Rows of a key head together in older files. */
static void qwen3next_delta(struct maker *m, int32_t l)
{
    int32_t width = maker_spec(m)->width, dim = maker_count(m, "delta_dim");
    int32_t n_key = maker_count(m, "delta_keys"), n_value = maker_count(m, "delta_values");
    if (maker_count(m, "legacy") != 0) {
        maker_matrix(m, "ssm_in", l, dim * (2 * n_key + 2 * n_value), width, 1);
    } else {
        maker_matrix(m, "attn_qkv", l, dim * (2 * n_key + n_value), width, 1);
        maker_matrix(m, "attn_gate", l, dim * n_value, width, 1);
    }
    maker_matrix(m, "ssm_ba", l, 2 * n_value, width, 1);
    delta_rest(m, l);
}

/* Routers as long as in model_maker_experts.c. */
static void moe_tensors(struct maker *m, int32_t l)
{
    const struct model_spec *s = maker_spec(m);
    int32_t n = maker_count(m, "experts"), ff = maker_count(m, "expert_ff");
    maker_matrix(m, "ffn_gate_inp", l, n, s->width, 2);
    maker_slabs(m, "ffn_gate_exps", l, n, ff, s->width, 1);
    maker_slabs(m, "ffn_up_exps", l, n, ff, s->width, 1);
    maker_slabs(m, "ffn_down_exps", l, n, s->width, ff, 1);
    maker_vector(m, "ffn_gate_inp_shexp.weight", l, s->width, 0, 0.2);
    maker_matrix(m, "ffn_gate_shexp", l, s->ff, s->width, 1);
    maker_matrix(m, "ffn_up_shexp", l, s->ff, s->width, 1);
    maker_matrix(m, "ffn_down_shexp", l, s->width, s->ff, 1);
    if (l < s->layers - maker_count(m, "mtp"))
        return;
    maker_matrix(m, "nextn.eh_proj", l, s->width, 2 * s->width, 1);
    maker_vector(m, "nextn.enorm.weight", l, s->width, 1, MAKER_STD_NORM);
    maker_vector(m, "nextn.hnorm.weight", l, s->width, 1, MAKER_STD_NORM);
}

static void mixer(struct maker *m, int32_t l, void (*delta)(struct maker *m, int32_t l))
{
    maker_vector(m, "attn_norm.weight", l, maker_spec(m)->width, 1, MAKER_STD_NORM);
    if (attends(m, l))
        gated_attention(m, l);
    else
        delta(m, l);
    maker_vector(m, "post_attention_norm.weight", l, maker_spec(m)->width, 1, MAKER_STD_NORM);
}

static void qwen35moe_layer(struct maker *m, int32_t l)
{
    mixer(m, l, qwen35_delta);
    moe_tensors(m, l);
}

static void qwen3next_layer(struct maker *m, int32_t l)
{
    mixer(m, l, qwen3next_delta);
    moe_tensors(m, l);
}

static void qwen35_layer(struct maker *m, int32_t l)
{
    const struct model_spec *s = maker_spec(m);
    mixer(m, l, qwen35_delta);
    maker_matrix(m, "ffn_gate", l, s->ff, s->width, 1);
    maker_matrix(m, "ffn_up", l, s->ff, s->width, 1);
    maker_matrix(m, "ffn_down", l, s->width, s->ff, 1);
}

static const struct maker_family families[] = {
    {.arch = "qwen35", .keys = qwen35_keys, .layer = qwen35_layer},
    {.arch = "qwen35moe", .keys = qwen35moe_keys, .layer = qwen35moe_layer},
    {.arch = "qwen3next", .keys = qwen3next_keys, .layer = qwen3next_layer},
};

const struct maker_group maker_recurrent = {
    .family = families,
    .n_family = PI_LEN(families),
    .word = words,
    .n_word = PI_LEN(words),
};
