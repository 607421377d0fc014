/*
 * test_family_keys.c - wrong values in files of single families, each refused with one sentence,
 * and the layers of a correct file. The models are small and random, with a word that breaks one
 * thing.
 */
#define _POSIX_C_SOURCE 200809L

#include "changed_file.h"
#include "mem_used.h"
#include "status.h"
#include "pith/inspect.h"

TEST_GROUP(make_folder, remove_folder);

#define SMALL "width=32 heads=2 kv_heads=1 head_dim=16 ff=32 vocab=50 ctx=64"

static pith_status load(const char *words, pith_model **out, pith_error *why)
{
    char all[512];
    snprintf(all, sizeof(all), SMALL " %s", words);
    check(model_make_of(all, in_folder("model.gguf"), why), why);
    *out = NULL;
    return pith_model_load(in_folder("model.gguf"), NULL, out, why);
}

TEST(each_mistake_has_its_sentence)
{
    static const struct {
        const char *words, *sentence;
    } mistakes[] = {
        {"arch=gemma3 final_cap=2000000",
         "gemma3.final_logit_softcapping: 2e+06 is not in 0..1e+06"},
        {"arch=gemma3 window=4 base_swa=0", "gemma3.rope.freq_base_swa: base 0 must be positive"},
        {"arch=gemma3 lack=1", "tensor \"blk.0.post_ffw_norm.weight\" is missing"},
        {"arch=gemma2 attn_cap=2000000", "gemma2.attn_logit_softcapping: 2e+06 is not in 0..1e+06"},
        {"arch=gemma2 lack=1", "tensor \"blk.0.post_ffw_norm.weight\" is missing"},
        {"arch=phi3 longrope=2",
         "tensor \"rope_factors_short.weight\" is missing beside \"rope_factors_long.weight\""},
        {"arch=phi3 longrope=3",
         "tensor \"rope_factors_long.weight\" is missing beside \"rope_factors_short.weight\""},
        {"arch=phi3 longrope=1 rot=12 factors=5",
         "tensor \"rope_factors_short.weight\": 5 values of type 0, expected 6 of F32"},
        {"arch=phi3 fused=1 heads=4 rot=8",
         "tensor \"blk.0.attn_q.weight\" is missing, and "
         "\"blk.0.attn_qkv.weight\" has 96 rows, not the 48 with it"},
        {"arch=mistral3 temperature=2000",
         "mistral3.attention.temperature_scale: 2000 is not in 0..1000"},
        {"arch=qwen2 scaling=longrope", "qwen2.rope.scaling.type: \"longrope\" is not supported "
                                        "(none, linear, yarn are)"},
    };
    for (size_t i = 0; i < PI_LEN(mistakes); i++) {
        err = (pith_error){0};
        pith_model *model;
        if (load(mistakes[i].words, &model, &err) == PITH_OK)
            fail_msg("%s: loads", mistakes[i].words);
        if (strstr(err.message, mistakes[i].sentence) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", err.message, mistakes[i].sentence);
        mem_check(NULL);
    }
}

TEST(layers_are_told_as_they_are)
{
    pith_model *model;
    pith_layer_info layer;
    check(load("arch=gemma3 layers=7 window=9 base=50000", &model, &err), &err);
    for (int32_t l = 0; l < 7; l++) {
        assert_int_equal(pith_model_layer(model, l, &layer), PITH_OK);
        assert_int_equal(layer.lanes, l == 5 ? 0 : l < 5 ? l + 1 : l); /* windows come last */
        assert_int_equal(layer.window, l == 5 ? 0 : 9);
        assert_int_equal(layer.n_rot, 16);
        assert_true(layer.base == (l == 5 ? 50000.0f : 10000.0f));
    }
    assert_int_equal(pith_model_layer(model, 7, &layer), PITH_RANGE);
    assert_int_equal(pith_model_layer(model, -1, &layer), PITH_RANGE);
    pith_model_free(model);
    check(load("arch=smollm3 layers=4", &model, &err), &err);
    assert_int_equal(pith_model_layer(model, 3, &layer), PITH_OK);
    assert_int_equal(layer.n_rot, 0);
    assert_int_equal(layer.window, 0);
    pith_model_free(model);
}

/* The factors match the context that the caller asked for. */
TEST(the_context_chooses_rope_factors)
{
    pith_model_params params;
    pith_attention_info is_long, is_short;
    pith_model *model, *other = NULL;
    check(load("arch=phi3 longrope=1 ctx_orig=32", &model, &err), &err);
    pith_model_get_attention(model, &is_long);
    pith_model_params_default(&params);
    params.n_ctx = 32;
    check(pith_model_load(in_folder("model.gguf"), &params, &other, &err), &err);
    pith_model_get_attention(other, &is_short);
    assert_int_equal(is_long.n_pair, is_short.n_pair);
    for (int32_t i = 0; i < is_long.n_pair; i++)
        assert_true(is_short.freq[i] > 1.5 * is_long.freq[i]);
    pith_model_free(other);
    pith_model_free(model);
    params.n_ctx = -1;
    assert_int_equal(pith_model_load(in_folder("model.gguf"), &params, &other, &err), PITH_INVALID);
    assert_string_equal(err.message, "n_ctx: -1 is negative");
    params.n_thread = INT32_MAX;
    assert_int_equal(pith_model_load(in_folder("model.gguf"), &params, &other, &err), PITH_INVALID);
    assert_string_equal(err.message, "n_thread: 2147483647 is not in 0..1024");
}

TEST(refuses_tensors_that_nothing_reads)
{
    static const struct mistake mistakes[] = {
        {"arch=gemma3 " SMALL,
         {.extra = "blk.0.attn_q.bias"},
         "tensor \"blk.0.attn_q.bias\": gemma3 models with such a tensor are not supported"},
        {"arch=mistral3 " SMALL,
         {.extra = "blk.1.ffn_down.bias"},
         "tensor \"blk.1.ffn_down.bias\": mistral3 models with such a tensor are not supported"},
        {"arch=llama " SMALL,
         {.extra = "output.bias"},
         "tensor \"output.bias\": llama models with such a tensor are not supported"},
    };
    static const struct {
        const char *words;
        struct change c;
    } fine[] = {
        {"arch=qwen2 layers=2 " SMALL,
         {.extra = "blk.2.nextn.eh_proj.weight"}}, /* a layer behind */
        {"arch=deepseek2 layers=2 width=48 heads=3 head_dim=24 rot=8 rank=32 value_dim=20 vocab=50 "
         "ff=32",
         {.extra = "blk.0.attn_kv_b.weight"}}, /* beside attn_k_b and attn_v_b */
    };
    check_mistakes(mistakes, PI_LEN(mistakes));
    for (size_t i = 0; i < PI_LEN(fine); i++) {
        pith_model *m = model_at(changed(fine[i].words, &fine[i].c));
        pith_model_free(m);
    }
}
