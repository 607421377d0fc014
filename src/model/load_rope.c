/*
 * load_rope.c - frequencies of rotary positions, from the file's metadata.
 *
 * freq[i] = base^(-2i / n_rot), then, following the files' conventions (llama.cpp b-series, YaRN
 * paper arXiv:2309.00071 section 3):
 *   frequency factors   freq[i] /= factor[i]                                    (Llama 3.1)
 *   linear              freq[i] /= s
 *   yarn                freq[i] = freq[i] * (r_i + (1 - r_i) / s), where r_i falls from 1 to 0
 *                       between the pairs that turn beta_fast and beta_slow times over the
 *                       original context; cos and sin times attn_factor * (1 + 0.1 ln s), and with
 *                       a log multiplier u divided by 1 + 0.1 u ln s, or in DeepSeek's family times
 *                       attn_factor alone
 *   longrope            as linear, with one of two tensors of frequency factors: the long ones
 *                       where the context is above the original one
 */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "model/load.h"
#include "tensor/dtype.h"

#define PI_TAU 6.283185307179586476925

enum rope_scaling { SCALING_NONE, SCALING_LINEAR, SCALING_YARN, SCALING_LONGROPE };

static const struct {
    const char *name;
    enum rope_scaling scaling;
} scalings[] = {
    {"none", SCALING_NONE},
    {"linear", SCALING_LINEAR},
    {"yarn", SCALING_YARN},
    {"longrope", SCALING_LONGROPE},
};

/* An optional float under ARCH.rope.NAME; *out keeps its preset when the key is absent. */
static pith_status optional_f32(const struct pi_gguf *g, const char *arch, const char *name,
                                float *out, pith_error *err)
{
    char key[128];
    snprintf(key, sizeof(key), "%s.rope.%s", arch, name);
    pith_status status = pi_gguf_f32(g, key, out, err);
    if (status == PITH_NOT_FOUND)
        return PITH_OK;
    PI_TRY(status);
    if (!isfinite(*out))
        return pi_fail(err, PITH_FORMAT, "%s: %g is not a finite number", key, (double)*out);
    return PITH_OK;
}

static pith_status read_scaling(const struct pi_gguf *g, const char *arch,
                                const struct pi_rope_keys *keys, enum rope_scaling *out,
                                pith_error *err)
{
    char key[128];
    struct pi_str name;
    snprintf(key, sizeof(key), "%s.rope.scaling.type", arch);
    pith_status status = pi_gguf_str(g, key, &name, err);
    *out = SCALING_LINEAR; /* files from before the key existed carry a linear factor, or none */
    if (status == PITH_NOT_FOUND)
        return PITH_OK;
    PI_TRY(status);
    for (size_t i = 0; i < PI_LEN(scalings); i++)
        if (strlen(scalings[i].name) == name.len &&
            !memcmp(scalings[i].name, name.data, name.len) &&
            (scalings[i].scaling != SCALING_LONGROPE || keys->longrope)) {
            *out = scalings[i].scaling;
            return PITH_OK;
        }
    return pi_fail(
        err, PITH_UNSUPPORTED, "%s: \"%.*s\" is not supported (none, linear, yarn%s are)", key,
        (int)pi_min((int64_t)name.len, 40), name.data, keys->longrope ? ", longrope" : "");
}

/* The context before scaling: the trained one where the file does not say. */
static pith_status read_original(const struct pi_gguf *g, const char *arch,
                                 const struct pi_rope_keys *keys, uint32_t *out, pith_error *err)
{
    char key[128];
    *out = (uint32_t)keys->n_ctx_train;
    snprintf(key, sizeof(key), "%s.rope.scaling.original_context_length", arch);
    pith_status status = pi_gguf_u32(g, key, out, err);
    return status == PITH_NOT_FOUND ? PITH_OK : status;
}

/* The pair index at which a wave turns n_turn times over n_ctx positions. */
static double yarn_pair(int32_t n_rot, double n_ctx, double n_turn, double base)
{
    return n_rot * log(n_ctx / (n_turn * PI_TAU)) / (2 * log(base));
}

static pith_status apply_yarn(struct pi_rope *rope, const struct pi_gguf *g, const char *arch,
                              const struct pi_rope_keys *keys, double base, double factor,
                              pith_error *err)
{
    int32_t n_rot = keys->n_rot;
    float fast = 32, slow = 1, log_mul = 0;
    uint32_t n_original;
    PI_TRY(optional_f32(g, arch, "scaling.yarn_beta_fast", &fast, err));
    PI_TRY(optional_f32(g, arch, "scaling.yarn_beta_slow", &slow, err));
    if (keys->log_multiplier || keys->log_in_scale)
        PI_TRY(optional_f32(g, arch, "scaling.yarn_log_multiplier", &log_mul, err));
    PI_TRY(read_original(g, arch, keys, &n_original, err));
    if (n_original == 0 || fast <= 0 || slow <= 0 || base <= 1)
        return pi_fail(err, PITH_FORMAT,
                       "%s.rope: YaRN needs an original context (%u), betas (%g, %g) above 0 and a "
                       "base (%g) above 1",
                       arch, n_original, (double)fast, (double)slow, base);
    double low = fmax(0, floor(yarn_pair(n_rot, n_original, fast, base)));
    double high = fmin(n_rot - 1, ceil(yarn_pair(n_rot, n_original, slow, base)));
    for (int32_t i = 0; i < rope->n_pair; i++) {
        double y = (i - low) / fmax(0.001, high - low);
        double keep = 1 - fmin(1, fmax(0, y));
        rope->freq[i] *= keep + (1 - keep) / factor;
    }
    if (keys->log_in_scale && log_mul != 0)
        return PITH_OK;
    rope->magnitude *= (float)(1 + 0.1 * log(factor));
    if (log_mul != 0 && factor > 1)
        rope->magnitude /= (float)(1 + 0.1 * (double)log_mul * log(factor));
    return PITH_OK;
}

/* The tensor of the model's own factors, "" where it has none. Of two that are for contexts of
   different lengths it is the one for this context. */
static pith_status name_factors(const struct pi_gguf *g, const char *arch,
                                const struct pi_rope_keys *keys, const char **out, pith_error *err)
{
    static const char *const names[] = {"rope_factors_short.weight", "rope_factors_long.weight"};
    uint32_t n_original;
    bool has[2];
    *out = pi_gguf_find_tensor(g, "rope_freqs.weight") != NULL ? "rope_freqs.weight" : "";
    for (int i = 0; i < 2; i++)
        has[i] = keys->longrope && pi_gguf_find_tensor(g, names[i]) != NULL;
    if (!has[0] && !has[1])
        return PITH_OK;
    PI_TRY(read_original(g, arch, keys, &n_original, err));
    *out = names[(uint32_t)keys->n_ctx > n_original];
    if (has[0] && has[1])
        return PITH_OK;
    return pi_fail(err, PITH_FORMAT, "tensor \"%s\" is missing beside \"%s\"", names[has[0]],
                   names[has[1]]);
}

/* Divides by the model's own factors, one per pair. */
static pith_status apply_factors(struct pi_rope *rope, const struct pi_gguf *g, const char *name,
                                 pith_error *err)
{
    const struct pi_gguf_tensor *t = pi_gguf_find_tensor(g, name);
    if (t == NULL)
        return PITH_OK;
    if (t->type != PI_DTYPE_F32 || t->ne[0] != rope->n_pair || t->n_dim != 1)
        return pi_fail(err, PITH_FORMAT,
                       "tensor \"%s\": %lld values of type %u, expected %d of F32", name,
                       (long long)t->ne[0], t->type, rope->n_pair);
    for (int32_t i = 0; i < rope->n_pair; i++) {
        float factor;
        memcpy(&factor, t->data + (size_t)i * sizeof(factor), sizeof(factor));
        if (!(factor > 0) || !isfinite(factor))
            return pi_fail(err, PITH_FORMAT, "tensor \"%s\": factor %d is %g, not above 0", name, i,
                           (double)factor);
        rope->freq[i] /= factor;
    }
    return PITH_OK;
}

/* Applies pi_rope_load's scaling to a rotation with the plain frequencies of its base. */
static pith_status apply_scaling(struct pi_rope *rope, const struct pi_gguf *g, const char *arch,
                                 const struct pi_rope_keys *keys, double base, pith_error *err)
{
    float factor = 0;
    enum rope_scaling scaling;
    const char *factors;
    PI_TRY(optional_f32(g, arch, "scale_linear", &factor, err));
    PI_TRY(optional_f32(g, arch, "scaling.factor", &factor, err));
    PI_TRY(optional_f32(g, arch, "scaling.attn_factor", &rope->magnitude, err));
    PI_TRY(read_scaling(g, arch, keys, &scaling, err));
    if (factor < 0)
        return pi_fail(err, PITH_FORMAT, "%s.rope: scaling factor %g must be positive", arch,
                       (double)factor);
    if (factor == 0) /* absent */
        factor = 1;
    rope->factor = scaling == SCALING_NONE ? 1 : factor;
    rope->linear = scaling == SCALING_LINEAR;
    PI_TRY(name_factors(g, arch, keys, &factors, err));
    PI_TRY(apply_factors(rope, g, factors, err));
    if (scaling == SCALING_YARN)
        return apply_yarn(rope, g, arch, keys, base, factor, err);
    for (int32_t i = 0; i < rope->n_pair && scaling != SCALING_NONE; i++)
        rope->freq[i] /= factor;
    return PITH_OK;
}

pith_status pi_rope_load(struct pi_rope *rope, const struct pi_gguf *g, const char *arch,
                         const struct pi_rope_keys *keys, pith_error *err)
{
    float base = keys->preset;
    PI_TRY(optional_f32(g, arch, keys->base, &base, err));
    if (!(base > 0))
        return pi_fail(err, PITH_FORMAT, "%s.rope.%s: base %g must be positive", arch, keys->base,
                       (double)base);
    rope->n_pair = keys->n_rot / 2;
    rope->adjacent = keys->adjacent;
    rope->base = base;
    rope->magnitude = 1;
    rope->factor = 1;
    rope->freq = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)rope->n_pair, sizeof(double));
    if (rope->freq == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for %d rotary frequencies", rope->n_pair);
    for (int32_t i = 0; i < rope->n_pair; i++)
        rope->freq[i] = pow(base, -2.0 * i / keys->n_rot);
    return keys->plain ? PITH_OK : apply_scaling(rope, g, arch, keys, base, err);
}
