/*
 * model_maker_latent.c - families with multi-head latent attention: their tensors and keys. The
 * words head_dim and rot describe a head's key before compression.
 */
#include "model_maker_family.h"

#define GAIN_ROUTER 2

static const struct maker_word words[] = {
    {"rank", 32, 1, 1 << 16},      /* of the lane's vector */
    {"query_rank", 0, 0, 1 << 16}, /* 0: queries are made at once */
    {"value_dim", 24, 1, 1 << 16}, /* of a head */
    {"old", 0, 0, 1},              /* 1: keys and values of heads come from one matrix */
    {"fused_exps", 0, 0, 1},       /* 1: the experts' gate and up are one tensor */
    {"ff_list", 0, 0, 2},          /* expert_ff for each layer; 2: and the last one's is another */
    {"temp_len", 0, 0, 1 << 20},   /* of the word temperature; 0: none */
};

/* ---- keys ---- */

static pith_status lane_keys(struct maker *m)
{
    const struct model_spec *s = maker_spec(m);
    int32_t rank = maker_count(m, "rank"), value = maker_count(m, "value_dim");
    bool old = maker_count(m, "old") != 0;
    PI_TRY(maker_key_count(m, "attention.kv_lora_rank", rank));
    PI_TRY(maker_key_count(m, "attention.head_count_kv", old ? s->heads : 1));
    PI_TRY(maker_key_count(m, "attention.key_length", old ? s->head_dim : rank + maker_rot(m)));
    PI_TRY(maker_key_count(m, "attention.value_length", old ? value : rank));
    if (maker_count(m, "query_rank") > 0)
        PI_TRY(maker_key_count(m, "attention.q_lora_rank", maker_count(m, "query_rank")));
    if (old)
        return PITH_OK;
    PI_TRY(maker_key_count(m, "attention.key_length_mla", s->head_dim));
    return maker_key_count(m, "attention.value_length_mla", value);
}

static pith_status key_if(struct maker *m, const char *name, const char *word)
{
    return maker_count(m, word) > 0 ? maker_key_count(m, name, maker_count(m, word)) : PITH_OK;
}

static pith_status width_key(struct maker *m)
{
    int32_t list[100], n = maker_spec(m)->layers, ff = maker_count(m, "expert_ff");
    if (maker_count(m, "ff_list") == 0 || n > (int32_t)PI_LEN(list))
        return maker_key_count(m, "expert_feed_forward_length", ff);
    for (int32_t l = 0; l < n; l++)
        list[l] = ff + (maker_count(m, "ff_list") == 2 && l == n - 1);
    return maker_key_counts(m, "expert_feed_forward_length", list, n);
}

static pith_status expert_keys(struct maker *m)
{
    PI_TRY(maker_key_count(m, "expert_count", maker_count(m, "experts")));
    PI_TRY(maker_key_count(m, "expert_used_count", maker_count(m, "used")));
    PI_TRY(width_key(m));
    PI_TRY(maker_key_count(m, "expert_shared_count", maker_count(m, "shared")));
    PI_TRY(maker_key_count(m, "leading_dense_block_count", maker_count(m, "lead")));
    PI_TRY(maker_key_bool(m, "expert_weights_norm", maker_count(m, "norm") != 0));
    PI_TRY(key_if(m, "expert_gating_func", "gating"));
    PI_TRY(key_if(m, "expert_group_count", "groups"));
    PI_TRY(key_if(m, "expert_group_used_count", "groups_used"));
    PI_TRY(key_if(m, "nextn_predict_layers", "mtp"));
    return maker_number(m, "expert_scale") > 0
               ? maker_key_number(m, "expert_weights_scale", maker_number(m, "expert_scale"))
               : PITH_OK;
}

static pith_status keys(struct maker *m)
{
    PI_TRY(lane_keys(m));
    PI_TRY(expert_keys(m));
    if (maker_number(m, "log_mul") > 0)
        PI_TRY(maker_key_number(m, "rope.scaling.yarn_log_multiplier", maker_number(m, "log_mul")));
    if (maker_count(m, "temp_len") == 0)
        return PITH_OK;
    PI_TRY(maker_key_number(m, "attention.temperature_scale", maker_number(m, "temperature")));
    return maker_key_count(m, "attention.temperature_length", maker_count(m, "temp_len"));
}

/* ---- tensors ---- */

static void query_tensors(struct maker *m, int32_t l)
{
    const struct model_spec *s = maker_spec(m);
    int32_t low = maker_count(m, "query_rank"), n = s->heads * s->head_dim;
    if (low == 0) {
        maker_matrix(m, "attn_q", l, n, s->width, MAKER_GAIN_SCORE);
        return;
    }
    maker_matrix(m, "attn_q_a", l, low, s->width, 1);
    maker_vector(m, "attn_q_a_norm.weight", l, low, 1, MAKER_STD_NORM);
    maker_matrix(m, "attn_q_b", l, n, low, MAKER_GAIN_SCORE);
}

static void attention(struct maker *m, int32_t l)
{
    const struct model_spec *s = maker_spec(m);
    int32_t rank = maker_count(m, "rank"), value = maker_count(m, "value_dim");
    int32_t nope = s->head_dim - maker_rot(m);
    maker_vector(m, "attn_norm.weight", l, s->width, 1, MAKER_STD_NORM);
    query_tensors(m, l);
    maker_matrix(m, "attn_kv_a_mqa", l, rank + maker_rot(m), s->width, 1);
    maker_vector(m, "attn_kv_a_norm.weight", l, rank, 1, MAKER_STD_NORM);
    if (maker_count(m, "old") != 0) {
        maker_matrix(m, "attn_kv_b", l, s->heads * (nope + value), rank, 1);
    } else {
        maker_slabs(m, "attn_k_b", l, s->heads, rank, nope, MAKER_GAIN_SCORE);
        maker_slabs(m, "attn_v_b", l, s->heads, value, rank, 1);
    }
    maker_matrix(m, "attn_output", l, s->width, s->heads * value, 1);
}

static void experts(struct maker *m, int32_t l)
{
    int32_t width = maker_spec(m)->width, n = maker_count(m, "experts");
    int32_t ff = maker_count(m, "expert_ff"), shared = ff * maker_count(m, "shared");
    maker_vector(m, "ffn_norm.weight", l, width, 1, MAKER_STD_NORM);
    maker_matrix(m, "ffn_gate_inp", l, n, width, GAIN_ROUTER);
    if (maker_count(m, "gating") == 2)
        maker_vector(m, "exp_probs_b.bias", l, n, 0, MAKER_STD_BIAS);
    if (maker_count(m, "fused_exps") != 0) {
        maker_slabs(m, "ffn_gate_up_exps", l, n, 2 * ff, width, 1);
    } else {
        maker_slabs(m, "ffn_gate_exps", l, n, ff, width, 1);
        maker_slabs(m, "ffn_up_exps", l, n, ff, width, 1);
    }
    maker_slabs(m, "ffn_down_exps", l, n, width, ff, 1);
    if (shared == 0)
        return;
    maker_matrix(m, "ffn_gate_shexp", l, shared, width, 1);
    maker_matrix(m, "ffn_up_shexp", l, shared, width, 1);
    maker_matrix(m, "ffn_down_shexp", l, width, shared, 1);
}

static void layer(struct maker *m, int32_t l)
{
    const struct model_spec *s = maker_spec(m);
    attention(m, l);
    if (l < maker_count(m, "lead"))
        maker_ffn(m, l);
    else
        experts(m, l);
    if (l < s->layers - maker_count(m, "mtp"))
        return;
    maker_matrix(m, "nextn.eh_proj", l, s->width, 2 * s->width, 1);
    maker_vector(m, "nextn.enorm.weight", l, s->width, 1, MAKER_STD_NORM);
    maker_vector(m, "nextn.hnorm.weight", l, s->width, 1, MAKER_STD_NORM);
}

static const struct maker_family families[] = {
    {.arch = "deepseek2",
     .without = "attention.head_count_kv attention.key_length attention.value_length",
     .keys = keys,
     .layer = layer},
};

const struct maker_group maker_latent = {
    .family = families,
    .n_family = PI_LEN(families),
    .word = words,
    .n_word = PI_LEN(words),
};
