/*
 * load_keys.c - typed reads of a model's own keys, ARCH.NAME, for load.c and the families. A key
 * that is out of range is refused in one sentence; one that may be absent keeps its preset.
 */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "model/load.h"

#define KEY_LEN 128

static const char *full_key(const struct pith_model *m, const char *name, char key[KEY_LEN])
{
    snprintf(key, KEY_LEN, "%s.%s", m->arch->name, name);
    return key;
}

/* Of an array with a value for each layer, all alike. */
static pith_status read_alike(const struct pi_gguf_kv *kv, const char *key, uint32_t *out,
                              pith_error *err)
{
    bool known = kv->item_type == PI_GGUF_U32 || kv->item_type == PI_GGUF_I32;
    if (!known || kv->n_item == 0)
        return pi_fail(err, PITH_FORMAT, "%s: %llu values of type %s are no integers of layers",
                       key, (unsigned long long)kv->n_item, pi_gguf_type_name(kv->item_type));
    int64_t first = pi_gguf_item_int(kv, 0);
    for (uint64_t i = 1; i < kv->n_item; i++)
        if (pi_gguf_item_int(kv, i) != first)
            return pi_fail(err, PITH_UNSUPPORTED,
                           "%s: %lld in layer %llu and %lld in the first are not supported", key,
                           (long long)pi_gguf_item_int(kv, i), (unsigned long long)i,
                           (long long)first);
    if (first < 0)
        return pi_fail(err, PITH_FORMAT, "%s: %lld is negative", key, (long long)first);
    *out = (uint32_t)first;
    return PITH_OK;
}

pith_status pi_key_count(const struct pith_model *m, const char *name, int32_t min, int32_t max,
                         bool required, int32_t *out, pith_error *err)
{
    char key[KEY_LEN];
    uint32_t value;
    const struct pi_gguf_kv *kv = pi_gguf_find(&m->gguf, full_key(m, name, key));
    if (kv == NULL)
        return required ? pi_fail(err, PITH_FORMAT, "%s is missing", key) : PITH_OK;
    PI_TRY(kv->type == PI_GGUF_ARRAY ? read_alike(kv, key, &value, err)
                                     : pi_gguf_u32(&m->gguf, key, &value, err));
    if (value > INT32_MAX || (int32_t)value < min || (int32_t)value > max)
        return pi_fail(err, PITH_FORMAT, "%s: %u is not in %d..%d", key, value, min, max);
    *out = (int32_t)value;
    return PITH_OK;
}

pith_status pi_key_number(const struct pith_model *m, const char *name, float min, float max,
                          bool required, float *out, pith_error *err)
{
    char key[KEY_LEN];
    float value;
    pith_status status = pi_gguf_f32(&m->gguf, full_key(m, name, key), &value, err);
    if (status == PITH_NOT_FOUND)
        return required ? pi_fail(err, PITH_FORMAT, "%s is missing", key) : PITH_OK;
    PI_TRY(status);
    if (!(value >= min && value <= max))
        return pi_fail(err, PITH_FORMAT, "%s: %g is not in %g..%g", key, (double)value, (double)min,
                       (double)max);
    *out = value;
    return PITH_OK;
}

pith_status pi_key_bool(const struct pith_model *m, const char *name, bool *out, pith_error *err)
{
    char key[KEY_LEN];
    pith_status status = pi_gguf_bool(&m->gguf, full_key(m, name, key), out, err);
    return status == PITH_NOT_FOUND ? PITH_OK : status;
}

/* The array under a key of one truth value per layer. */
static pith_status read_flags(const struct pith_model *m, const struct pi_gguf_kv *kv,
                              const char *key, bool *out, pith_error *err)
{
    bool known = kv->item_type == PI_GGUF_BOOL || kv->item_type == PI_GGUF_U32 ||
                 kv->item_type == PI_GGUF_I32;
    if (!known || kv->n_item < (uint64_t)m->hp.n_layer)
        return pi_fail(err, PITH_FORMAT,
                       "%s: %llu values of type %s, where each of %d layers has a truth value", key,
                       (unsigned long long)kv->n_item, pi_gguf_type_name(kv->item_type),
                       m->hp.n_layer);
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        out[l] = pi_gguf_item_int(kv, (uint64_t)l) != 0;
    return PITH_OK;
}

pith_status pi_key_pattern(const struct pith_model *m, const char *name, int32_t period, bool *out,
                           pith_error *err)
{
    char key[KEY_LEN];
    const struct pi_gguf_kv *kv = pi_gguf_find(&m->gguf, full_key(m, name, key));
    if (kv != NULL && kv->type == PI_GGUF_ARRAY)
        return read_flags(m, kv, key, out, err);
    PI_TRY(pi_key_count(m, name, 0, INT32_MAX, false, &period, err));
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        out[l] = period == 0 || l % period < period - 1;
    return PITH_OK;
}

pith_status pi_load_windows(struct pith_model *m, int32_t preset, int32_t period, pith_error *err)
{
    int32_t window = preset;
    PI_TRY(pi_key_count(m, "attention.sliding_window", 0, INT32_MAX, false, &window, err));
    bool *slides = pi_mem_alloc_n(PI_MEM_MODEL, (size_t)m->hp.n_layer, sizeof(*slides));
    if (slides == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the windows of %d layers", m->hp.n_layer);
    pith_status status = pi_key_pattern(m, "attention.sliding_window_pattern", period, slides, err);
    for (int32_t l = 0; l < m->hp.n_layer && status == PITH_OK; l++)
        m->layer[l].window = slides[l] ? window : 0;
    pi_mem_free(slides);
    return status;
}
