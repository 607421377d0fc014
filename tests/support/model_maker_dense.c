/*
 * model_maker_dense.c - the dense families beside Llama's and Qwen's: their tensors and keys.
 */
#include <string.h>

#include "base/mem.h"
#include "model_maker_family.h"

/* -1: the file does not say. */
static const struct maker_word words[] = {
    {"window", -1, -1, 1 << 20},  /* attention.sliding_window */
    {"pattern", -1, -1, 1 << 10}, /* its period */
    {"pattern_array", 0, 0, 1},   /* 1: each layer's own, as the period says */
    {"base", -1, -1, 1e12},       /* rope.freq_base, where its preset is the family's */
    {"base_swa", -1, -1, 1e12},   /* of layers with a window */
    {"final_cap", -1, -1, 1e7},   /* of logits */
    {"attn_cap", -1, -1, 1e7},    /* of scores */
    {"attn_factor", -1, -1, 1e3}, /* rope.scaling.attn_factor */
    {"longrope", 0, 0, 3},        /* 1: tensors of factors for short and for long contexts; 2: the
                                     long ones alone, 3: the short ones */
    {"factors", 0, 0, 1 << 10},   /* of them; 0: as many as there are pairs */
    {"lack", 0, 0, 1},            /* 1: the norm behind the feed-forward is missing */
    {"fused", 0, 0, 1},           /* 1: q, k, v are one matrix, gate and up another */
    {"log_mul", -1, -1, 1e3},     /* rope.scaling.yarn_log_multiplier */
    {"temperature", -1, -1, 1e6}, /* attention.temperature_scale */
};

static void llama_layer(struct maker *m, int32_t l)
{
    maker_attention(m, l);
    maker_ffn(m, l);
}

/* ---- keys ---- */

/* A number under a key of the file's, unless its word is -1. */
static pith_status number_key(struct maker *m, const char *key, const char *word)
{
    double value = maker_number(m, word);
    return value < 0 ? PITH_OK : maker_key_number(m, key, value);
}

static pith_status count_key(struct maker *m, const char *key, const char *word)
{
    int32_t value = maker_count(m, word);
    return value < 0 ? PITH_OK : maker_key_count(m, key, value);
}

static pith_status pattern_key(struct maker *m)
{
    int32_t n = maker_spec(m)->layers, period = maker_count(m, "pattern");
    if (maker_count(m, "pattern_array") == 0)
        return count_key(m, "attention.sliding_window_pattern", "pattern");
    bool *slides = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n, sizeof(*slides));
    if (slides == NULL)
        return PITH_NOMEM;
    for (int32_t l = 0; l < n; l++)
        slides[l] = l % period < period - 1;
    pith_status status = maker_key_bools(m, "attention.sliding_window_pattern", slides, n);
    pi_mem_free(slides);
    return status;
}

/* ---- Gemma ---- */

static pith_status gemma_keys(struct maker *m)
{
    PI_TRY(count_key(m, "attention.sliding_window", "window"));
    PI_TRY(pattern_key(m));
    PI_TRY(number_key(m, "rope.freq_base", "base"));
    PI_TRY(number_key(m, "rope.freq_base_swa", "base_swa"));
    PI_TRY(number_key(m, "attn_logit_softcapping", "attn_cap"));
    return number_key(m, "final_logit_softcapping", "final_cap");
}

/* Norms after attention and feed-forward. */
static void gemma_layer(struct maker *m, int32_t l)
{
    maker_attention(m, l);
    maker_vector(m, "post_attention_norm.weight", l, maker_spec(m)->width, 1, MAKER_STD_NORM);
    maker_ffn(m, l);
    if (maker_count(m, "lack") == 0)
        maker_vector(m, "post_ffw_norm.weight", l, maker_spec(m)->width, 1, MAKER_STD_NORM);
}

static void gemma3_layer(struct maker *m, int32_t l)
{
    int32_t n = maker_spec(m)->head_dim;
    gemma_layer(m, l);
    maker_vector(m, "attn_q_norm.weight", l, n, MAKER_GAIN_SCORE, MAKER_STD_NORM);
    maker_vector(m, "attn_k_norm.weight", l, n, MAKER_GAIN_SCORE, MAKER_STD_NORM);
}

/* ---- Phi and Mistral ---- */

static pith_status phi3_keys(struct maker *m)
{
    const struct model_spec *s = maker_spec(m);
    PI_TRY(count_key(m, "attention.sliding_window", "window"));
    if (s->ctx_orig > 0)
        PI_TRY(maker_key_count(m, "rope.scaling.original_context_length", s->ctx_orig));
    return number_key(m, "rope.scaling.attn_factor", "attn_factor");
}

static void phi3_whole(struct maker *m)
{
    int32_t which = maker_count(m, "longrope"), n = maker_count(m, "factors");
    n = n > 0 ? n : maker_rot(m) / 2;
    if (which == 1 || which == 2)
        maker_vector(m, "rope_factors_long.weight", -1, n, 4, 0.5);
    if (which == 1 || which == 3)
        maker_vector(m, "rope_factors_short.weight", -1, n, 1.2, 0.1);
}

static void phi3_layer(struct maker *m, int32_t l)
{
    const struct model_spec *s = maker_spec(m);
    int32_t n_q = s->heads * s->head_dim, n_kv = s->kv_heads * s->head_dim;
    if (maker_count(m, "fused") == 0) {
        maker_attention(m, l);
    } else {
        maker_vector(m, "attn_norm.weight", l, s->width, 1, MAKER_STD_NORM);
        maker_matrix(m, "attn_qkv", l, n_q + 2 * n_kv, s->width, MAKER_GAIN_SCORE);
        if (s->bias)
            maker_vector(m, "attn_qkv.bias", l, n_q + 2 * n_kv, 0, MAKER_STD_BIAS);
        maker_matrix(m, "attn_output", l, s->width, n_q, 1);
    }
    maker_vector(m, "ffn_norm.weight", l, s->width, 1, MAKER_STD_NORM);
    maker_matrix(m, "ffn_up", l, 2 * s->ff, s->width, 1);
    maker_matrix(m, "ffn_down", l, s->width, s->ff, 1);
}

static pith_status mistral3_keys(struct maker *m)
{
    PI_TRY(number_key(m, "rope.scaling.yarn_log_multiplier", "log_mul"));
    return number_key(m, "attention.temperature_scale", "temperature");
}

static const struct maker_family families[] = {
    {.arch = "smollm3", .layer = llama_layer},
    {.arch = "gemma3",
     .without = "rope.dimension_count rope.freq_base",
     .keys = gemma_keys,
     .layer = gemma3_layer},
    {.arch = "gemma2",
     .without = "rope.dimension_count rope.freq_base",
     .keys = gemma_keys,
     .layer = gemma_layer,
     .no_output = true},
    {.arch = "phi3",
     .without = "attention.key_length attention.value_length",
     .keys = phi3_keys,
     .whole = phi3_whole,
     .layer = phi3_layer},
    {.arch = "mistral3", .keys = mistral3_keys, .layer = llama_layer},
};

const struct maker_group maker_dense = {
    .family = families,
    .n_family = PI_LEN(families),
    .word = words,
    .n_word = PI_LEN(words),
};
