/*
 * test_load_latent.c - files of families with multi-head latent attention: the scale of their
 * scores, and a sentence for each key and tensor that does not fit.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>

#include "changed_file.h"
#include "model/model.h"

TEST_GROUP(make_folder, remove_folder);

#define SMALL                                                                                      \
    "arch=deepseek2 layers=2 width=64 heads=2 head_dim=24 rot=8 rank=32 value_dim=20 ff=64 "       \
    "expert_ff=32 vocab=40 experts=4"
#define NEW SMALL " query_rank=16"
#define OLD SMALL " query_rank=16 old=1"
#define LITE SMALL

/* ---- what keys make ---- */

TEST(the_keys_make_the_scale_of_scores)
{
    const double s = log(40.0);
    const struct {
        const char *words;
        double magnitude, scale;
    } files[] = {
        {NEW, 1, 1 / sqrt(24)},
        {NEW " scaling=yarn factor=40 ctx_orig=64 log_mul=0.0707", 1,
         pow(1 + 0.0707 * s, 2) / sqrt(24)},
        {NEW " scaling=yarn factor=40 ctx_orig=64 log_mul=0.1", 1, pow(1 + 0.1 * s, 2) / sqrt(24)},
        {NEW " scaling=yarn factor=40 ctx_orig=64", 1 + 0.1 * s, pow(1 + 0.1 * s, 2) / sqrt(24)},
        {OLD " scaling=yarn factor=40 ctx_orig=64 log_mul=0.0707", 1,
         pow(1 + 0.0707 * s, 2) / sqrt(24)},
    };
    for (size_t i = 0; i < PI_LEN(files); i++) {
        pith_model *m = model_at(changed(files[i].words, &(struct change){0}));
        assert_true(fabs((double)m->rope.magnitude - files[i].magnitude) < 1e-6);
        assert_true(fabs((double)m->hp.attn_scale - files[i].scale) < 1e-6);
        assert_int_equal(m->hp.latent.dim_key, 16);
        assert_int_equal(m->hp.latent.dim_out, 20);
        pith_model_free(m);
    }
}

/* The router's rule where a file does not say one. */
TEST(the_rule_of_the_router_has_a_preset)
{
    pith_model *m = model_at(changed(NEW, &(struct change){0}));
    assert_int_equal(m->hp.moe.gating, PI_MOE_SOFTMAX);
    assert_null(m->layer[1].moe.choice_bias);
    pith_model_free(m);
    check(pith_model_load(changed(NEW " gating=2", &(struct change){0}), NULL, &m, &err), &err);
    assert_int_equal(m->hp.moe.gating, PI_MOE_SIGMOID);
    assert_non_null(m->layer[1].moe.choice_bias);
    pith_model_free(m);
}

/* A count that a file has for each layer. */
TEST(takes_a_count_for_each_layer)
{
    pith_model *m = model_at(changed(NEW " ff_list=1", &(struct change){0}));
    assert_int_equal(m->hp.moe.n_ff, 32);
    pith_model_free(m);
}

/* ---- mistakes ---- */

#define KEY "deepseek2."
#define T0 "blk.0."

static const struct mistake mistakes[] = {
    {NEW, {.drop = KEY "attention.kv_lora_rank"}, KEY "attention.kv_lora_rank is missing"},
    {NEW,
     {.key = KEY "attention.kv_lora_rank", .value = 0},
     KEY "attention.kv_lora_rank: 0 is not in 1..16384"},
    {NEW,
     {.key = KEY "attention.kv_lora_rank", .value = 64},
     KEY "attention.key_length: 40, where the lane of latent attention has 72"},
    {NEW,
     {.key = KEY "attention.value_length", .value = 20},
     KEY "attention.value_length: 20, where the lane of latent attention has 32"},
    {NEW,
     {.key = KEY "attention.head_count_kv", .value = 2},
     KEY "attention.head_count_kv: 2, where the lane of latent attention has 1"},
    {NEW,
     {.drop = KEY "attention.key_length_mla"},
     KEY "attention.key_length_mla is missing beside value_length_mla"},
    {NEW,
     {.drop = KEY "attention.value_length_mla"},
     KEY "attention.value_length_mla is missing beside key_length_mla"},
    {NEW,
     {.key = KEY "attention.key_length_mla", .value = 8},
     KEY "rope.dimension_count: 8 leaves nothing of a head size of 8"},
    {NEW,
     {.key = KEY "attention.key_length_mla", .value = 26},
     "tensor \"blk.0.attn_q_b.weight\": shape [48][16] where the metadata asks for [52][16]"},
    {NEW,
     {.key = KEY "attention.value_length_mla", .value = 21},
     "tensor \"blk.0.attn_v_b.weight\": shape [2][20][32] where the metadata asks for [2][21][32]"},
    {NEW, {.drop = KEY "attention.q_lora_rank"}, KEY "attention.q_lora_rank is missing"},
    {NEW,
     {.key = KEY "attention.q_lora_rank", .value = 17},
     "tensor \"blk.0.attn_q_a.weight\": shape [16][64] where the metadata asks for [17][64]"},
    {NEW, {.drop = KEY "rope.dimension_count"}, KEY "rope.dimension_count is missing"},
    {NEW,
     {.key = KEY "rope.dimension_count", .value = 7},
     KEY "rope.dimension_count: 7 is odd or above the head size 40"},
    {NEW,
     {.key = KEY "rope.scaling.yarn_log_multiplier", .number = -1},
     KEY "rope.scaling.yarn_log_multiplier: -1 is not in 0..1000"},
    {NEW,
     {.key = KEY "attention.temperature_scale", .number = 0.1f},
     KEY "attention.temperature_length is missing"},
    {NEW,
     {.key = KEY "expert_gating_func", .value = 4},
     KEY "expert_gating_func: 4 is not supported (1 softmax, 2 sigmoid are)"},
    {NEW " ff_list=2",
     {0},
     KEY "expert_feed_forward_length: 33 in layer 1 and 32 in the first are not supported"},
    {NEW, {.drop = T0 "attn_q_a.weight"}, "tensor \"blk.0.attn_q_a.weight\" is missing"},
    {NEW, {.drop = T0 "attn_q_a_norm.weight"}, "tensor \"blk.0.attn_q_a_norm.weight\" is missing"},
    {NEW, {.drop = T0 "attn_q_b.weight"}, "tensor \"blk.0.attn_q_b.weight\" is missing"},
    {LITE, {.drop = "blk.1.attn_q.weight"}, "tensor \"blk.1.attn_q.weight\" is missing"},
    {NEW, {.drop = T0 "attn_kv_a_mqa.weight"}, "tensor \"blk.0.attn_kv_a_mqa.weight\" is missing"},
    {NEW,
     {.tensor = T0 "attn_kv_a_mqa.weight", .ne = {64, 32, 1}},
     "tensor \"blk.0.attn_kv_a_mqa.weight\": shape [32][64] where the metadata asks for [40][64]"},
    {NEW,
     {.drop = T0 "attn_kv_a_norm.weight"},
     "tensor \"blk.0.attn_kv_a_norm.weight\" is missing"},
    {NEW, {.drop = T0 "attn_k_b.weight"}, "tensor \"blk.0.attn_k_b.weight\" is missing"},
    {NEW, {.drop = T0 "attn_v_b.weight"}, "tensor \"blk.0.attn_v_b.weight\" is missing"},
    {NEW,
     {.tensor = T0 "attn_k_b.weight", .ne = {16, 32, 1}},
     "tensor \"blk.0.attn_k_b.weight\": shape [32][16] where the metadata asks for [2][32][16]"},
    {OLD, {.drop = T0 "attn_kv_b.weight"}, "tensor \"blk.0.attn_k_b.weight\" is missing"},
    {OLD,
     {.tensor = T0 "attn_kv_b.weight", .ne = {32, 71, 1}},
     "tensor \"blk.0.attn_k_b.weight\" is missing, and \"blk.0.attn_kv_b.weight\" has 71 rows, not "
     "the 72 with it"},
    {OLD,
     {.tensor = T0 "attn_kv_b.weight", .ne = {31, 72, 1}},
     "tensor \"blk.0.attn_k_b.weight\": shape [2][16][31] where the metadata asks for [2][16][32]"},
    {NEW, {.drop = T0 "attn_output.weight"}, "tensor \"blk.0.attn_output.weight\" is missing"},
    {NEW, {.drop = "blk.1.ffn_up_shexp.weight"}, "tensor \"blk.1.ffn_up_shexp.weight\" is missing"},
};

TEST(each_mistake_has_its_sentence)
{
    check_mistakes(mistakes, PI_LEN(mistakes));
}
