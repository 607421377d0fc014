/*
 * test_load_moe.c - files of families with experts: the default of an absent key, and a sentence
 * for each key and tensor that does not fit.
 */
#define _POSIX_C_SOURCE 200809L

#include "changed_file.h"
#include "model/model.h"
#include "pith/inspect.h"

TEST_GROUP(make_folder, remove_folder);

#define SMALL                                                                                      \
    "layers=2 width=64 heads=2 kv_heads=1 head_dim=32 ff=64 expert_ff=32 vocab=40 experts=8"
#define QWEN "arch=qwen3moe " SMALL
#define GLM "arch=glm4moe " SMALL
#define OSS "arch=gpt-oss " SMALL

/* ---- absent keys ---- */

TEST(absent_keys_have_presets)
{
    static const struct {
        const char *words;
        struct change c;
        struct pi_moe_rule rule;
    } files[] = {
        {QWEN, {0}, {8, 2, 1, 1, 32, 0, PI_MOE_SOFTMAX, PI_MOE_SILU, true, 1}},
        /* the dense width, divided by the number of experts of a token */
        {QWEN,
         {.drop = "qwen3moe.expert_feed_forward_length"},
         {8, 2, 1, 1, 32, 0, PI_MOE_SOFTMAX, PI_MOE_SILU, true, 1}},
        /* this family does not read it */
        {QWEN,
         {.key = "qwen3moe.expert_weights_scale", .number = 3},
         {8, 2, 1, 1, 32, 0, PI_MOE_SOFTMAX, PI_MOE_SILU, true, 1}},
        {GLM, {0}, {8, 2, 1, 1, 32, 32, PI_MOE_SIGMOID, PI_MOE_SILU, false, 1}},
        {GLM,
         {.drop = "glm4moe.expert_weights_norm"},
         {8, 2, 1, 1, 32, 32, PI_MOE_SIGMOID, PI_MOE_SILU, false, 1}},
        {GLM,
         {.key = "glm4moe.expert_gating_func", .value = 0},
         {8, 2, 1, 1, 32, 32, PI_MOE_SIGMOID, PI_MOE_SILU, false, 1}},
        {GLM " groups=4 groups_used=2 norm=1 gating=1",
         {.key = "glm4moe.expert_weights_scale", .number = 2.5f},
         {8, 2, 4, 2, 32, 32, PI_MOE_SOFTMAX, PI_MOE_SILU, true, 2.5f}},
        {OSS, {0}, {8, 2, 1, 1, 32, 0, PI_MOE_SOFTMAX_CHOSEN, PI_MOE_OAI, false, 1}},
    };
    for (size_t i = 0; i < PI_LEN(files); i++) {
        pith_model *m = model_at(changed(files[i].words, &files[i].c));
        const struct pi_moe_rule *got = &m->hp.moe, *want = &files[i].rule;
        assert_int_equal(got->n_expert, want->n_expert);
        assert_int_equal(got->n_used, want->n_used);
        assert_int_equal(got->n_group, want->n_group);
        assert_int_equal(got->n_group_used, want->n_group_used);
        assert_int_equal(got->n_ff, want->n_ff);
        assert_int_equal(got->n_ff_shared, want->n_ff_shared);
        assert_int_equal(got->gating, want->gating);
        assert_int_equal(got->act, want->act);
        assert_int_equal(got->norm, want->norm);
        assert_true(got->scale == want->scale);
        pith_model_free(m);
    }
}

/* A token reads the chosen experts, the shared one, and one row of the embedding. */
TEST(counts_the_bytes_that_a_token_reads)
{
    pith_model_info info;
    pith_model *m = NULL;
    check(
        pith_model_load(changed(GLM " layers=3 mtp=1 lead=1", &(struct change){0}), NULL, &m, &err),
        &err);
    pith_model_get_info(m, &info);
    int64_t attention = 64 + 64 * 64 + 2 * 32 * 64 + 64 * 64, dense = 64 + 3 * 64 * 64;
    int64_t experts = 64 + 8 * 64 + 8 + 3 * 32 * 64 * (2 + 1);
    assert_int_equal(info.n_expert, 8);
    assert_int_equal(info.n_expert_used, 2);
    assert_int_equal(info.n_ff_shared, 32);
    assert_int_equal(info.token_bytes, 4 * (2 * attention + dense + experts + 64 + 40 * 64));
    pith_model_free(m);
}

/* ---- mistakes ---- */

static const struct mistake mistakes[] = {
    {QWEN, {.drop = "qwen3moe.expert_count"}, "qwen3moe.expert_count is missing"},
    {QWEN, {.drop = "qwen3moe.expert_used_count"}, "qwen3moe.expert_used_count is missing"},
    {QWEN,
     {.key = "qwen3moe.expert_count", .value = 5000},
     "qwen3moe.expert_count: 5000 is not in 1..4096"},
    {QWEN,
     {.key = "qwen3moe.expert_used_count", .value = 9},
     "qwen3moe.expert_used_count: 9 is not in 1..8"},
    {QWEN,
     {.key = "qwen3moe.expert_feed_forward_length", .value = 0},
     "qwen3moe.expert_feed_forward_length: 0 is not in 1..16777216"},
    {QWEN " ff=1",
     {.drop = "qwen3moe.expert_feed_forward_length"},
     "qwen3moe.expert_feed_forward_length is missing"},
    {QWEN,
     {.key = "qwen3moe.expert_count", .value = 4},
     "tensor \"blk.0.ffn_gate_inp.weight\": shape [8][64] where the metadata asks for [4][64]"},
    {QWEN,
     {.key = "qwen3moe.expert_feed_forward_length", .value = 33},
     "tensor \"blk.0.ffn_gate_exps.weight\": shape [8][32][64] where the metadata asks for "
     "[8][33][64]"},
    {QWEN,
     {.tensor = "blk.1.ffn_down_exps.weight", .ne = {32, 64, 7}},
     "tensor \"blk.1.ffn_down_exps.weight\": shape [7][64][32] where the metadata asks for "
     "[8][64][32]"},
    {QWEN, {.drop = "blk.1.ffn_up_exps.weight"}, "tensor \"blk.1.ffn_up_exps.weight\" is missing"},
    {QWEN,
     {.drop = "blk.0.ffn_gate_inp.weight"},
     "tensor \"blk.0.ffn_gate_inp.weight\" is missing"},
    {GLM,
     {.key = "glm4moe.expert_gating_func", .value = 4},
     "glm4moe.expert_gating_func: 4 is not supported (1 softmax, 2 sigmoid are)"},
    {GLM " groups_used=2",
     {.key = "glm4moe.expert_group_count", .value = 3},
     "glm4moe.expert_group_count: 3 does not divide 8 experts"},
    {GLM " groups=4",
     {.key = "glm4moe.expert_group_used_count", .value = 4},
     "glm4moe.expert_group_used_count: 4 of 4 groups cannot give 2 of 8 experts"},
    {GLM " groups=4 used=3",
     {.key = "glm4moe.expert_group_used_count", .value = 1},
     "glm4moe.expert_group_used_count: 1 of 4 groups cannot give 3 of 8 experts"},
    {GLM,
     {.key = "glm4moe.expert_weights_scale", .number = -1},
     "glm4moe.expert_weights_scale: -1 is not in 0..1e+06"},
    {GLM,
     {.key = "glm4moe.leading_dense_block_count", .value = 3},
     "glm4moe.leading_dense_block_count: 3 is not in 0..2"},
    {GLM,
     {.key = "glm4moe.nextn_predict_layers", .value = 2},
     "glm4moe.nextn_predict_layers: 2 is not in 0..1"},
    {GLM,
     {.key = "glm4moe.expert_shared_count", .value = 65},
     "glm4moe.expert_shared_count: 65 is not in 0..64"},
    {GLM, {.drop = "blk.1.exp_probs_b.bias"}, "tensor \"blk.1.exp_probs_b.bias\" is missing"},
    {GLM, {.drop = "blk.1.ffn_up_shexp.weight"}, "tensor \"blk.1.ffn_up_shexp.weight\" is missing"},
    {GLM, {.drop = "blk.0.ffn_up.weight"}, "tensor \"blk.0.ffn_up.weight\" is missing"},
    {OSS,
     {.drop = "gpt-oss.attention.sliding_window"},
     "gpt-oss.attention.sliding_window is missing"},
    {OSS, {.drop = "blk.1.attn_sinks.weight"}, "tensor \"blk.1.attn_sinks.weight\" is missing"},
    {OSS,
     {.tensor = "blk.1.attn_sinks.weight", .ne = {3, 1, 1}},
     "tensor \"blk.1.attn_sinks.weight\": shape [1][3] where the metadata asks for [1][2]"},
    {OSS, {.drop = "blk.1.attn_output.bias"}, "tensor \"blk.1.attn_output.bias\" is missing"},
    {OSS,
     {.tensor = "blk.0.ffn_up_exps.bias", .ne = {32, 7, 1}},
     "tensor \"blk.0.ffn_up_exps.bias\": shape [7][32] where the metadata asks for [8][32]"},
    {OSS " type=MXFP4",
     {.tensor = "blk.1.ffn_up_exps.weight", .byte = 255},
     "tensor \"blk.1.ffn_up_exps.weight\": a scale of MXFP4 is above 2^96, no weight's"},
};

TEST(each_mistake_has_its_sentence)
{
    check_mistakes(mistakes, PI_LEN(mistakes));
}
