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
    {"final_cap", -1, -1, 1e6},   /* of logits */
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
    return number_key(m, "final_logit_softcapping", "final_cap");
}

/* Norms of what blocks add. */
static void gemma_layer(struct maker *m, int32_t l)
{
    maker_attention(m, l);
    maker_vector(m, "post_attention_norm.weight", l, maker_spec(m)->width, 1, MAKER_STD_NORM);
    maker_ffn(m, l);
    maker_vector(m, "post_ffw_norm.weight", l, maker_spec(m)->width, 1, MAKER_STD_NORM);
}

static void gemma3_layer(struct maker *m, int32_t l)
{
    int32_t n = maker_spec(m)->head_dim;
    gemma_layer(m, l);
    maker_vector(m, "attn_q_norm.weight", l, n, MAKER_GAIN_SCORE, MAKER_STD_NORM);
    maker_vector(m, "attn_k_norm.weight", l, n, MAKER_GAIN_SCORE, MAKER_STD_NORM);
}

static const struct maker_family families[] = {
    {.arch = "smollm3", .layer = llama_layer},
    {.arch = "gemma3",
     .without = "rope.dimension_count rope.freq_base",
     .keys = gemma_keys,
     .layer = gemma3_layer},
};

const struct maker_group maker_dense = {
    .family = families,
    .n_family = PI_LEN(families),
    .word = words,
    .n_word = PI_LEN(words),
};
