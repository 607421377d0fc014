/*
 * codec.c - the storage types: how rows of floats become bytes of a page and back. store.h draws the
 * layouts. It knows pages and slots, no lanes. Invariant: whatever is written, reading it back gives
 * finite numbers.
 */
#include <float.h>
#include <math.h>

#include "base/half.h"
#include "kv/store.h"

#define Q8_BLOCK 32
#define F16_MAX 65504.0f

/* NaN becomes 0, the rest the nearest value in -limit..limit. */
static inline float clean(float x, float limit)
{
    float y = x < limit ? x : limit;
    y = y > -limit ? y : -limit;
    return x == x ? y : 0.0f;
}

/* ---- f32 ---- */

static void f32_k_write(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                        const float *rows, size_t stride)
{
    int32_t dim = cache->g.dim_k, len = cache->g.page_len;
    float *k = (float *)(void *)(page + cache->layout.k);
    for (int32_t d = 0; d < dim; d++)
        for (int32_t i = 0; i < n; i++)
            k[d * len + slot + i] = clean(rows[(size_t)i * stride + (size_t)d], FLT_MAX);
}

static void f32_v_write(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                        const float *rows, size_t stride)
{
    int32_t dim = cache->g.dim_v;
    float *v = (float *)(void *)(page + cache->layout.v) + (size_t)slot * (size_t)dim;
    for (int32_t i = 0; i < n; i++)
        for (int32_t d = 0; d < dim; d++)
            v[i * dim + d] = clean(rows[(size_t)i * stride + (size_t)d], FLT_MAX);
}

static void f32_k_read(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out)
{
    const float *k = (const float *)(const void *)(page + cache->layout.k);
    for (int32_t d = 0; d < cache->g.dim_k; d++)
        out[d] = k[d * cache->g.page_len + slot];
}

static void f32_v_read(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out)
{
    size_t size = (size_t)cache->g.dim_v * sizeof(float);
    memcpy(out, page + cache->layout.v + (size_t)slot * size, size);
}

static void f32_k_move(const struct kv_cache *cache, uint8_t *to, int32_t to_slot,
                       const uint8_t *from, int32_t from_slot)
{
    float *a = (float *)(void *)(to + cache->layout.k);
    const float *b = (const float *)(const void *)(from + cache->layout.k);
    int32_t len = cache->g.page_len;
    for (int32_t d = 0; d < cache->g.dim_k; d++)
        a[d * len + to_slot] = b[d * len + from_slot];
}

static void f32_v_move(const struct kv_cache *cache, uint8_t *to, int32_t to_slot,
                       const uint8_t *from, int32_t from_slot)
{
    size_t size = (size_t)cache->g.dim_v * sizeof(float);
    memcpy(to + cache->layout.v + (size_t)to_slot * size,
           from + cache->layout.v + (size_t)from_slot * size, size);
}

/* ---- f16 ---- */

static void f16_k_write(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                        const float *rows, size_t stride)
{
    int32_t dim = cache->g.dim_k, len = cache->g.page_len;
    uint16_t *k = (uint16_t *)(void *)(page + cache->layout.k);
    for (int32_t d = 0; d < dim; d++)
        for (int32_t i = 0; i < n; i++)
            k[d * len + slot + i] =
                pi_f16_from_f32(clean(rows[(size_t)i * stride + (size_t)d], F16_MAX));
}

static void f16_v_write(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                        const float *rows, size_t stride)
{
    int32_t dim = cache->g.dim_v;
    uint16_t *v = (uint16_t *)(void *)(page + cache->layout.v) + (size_t)slot * (size_t)dim;
    for (int32_t i = 0; i < n; i++)
        for (int32_t d = 0; d < dim; d++)
            v[i * dim + d] = pi_f16_from_f32(clean(rows[(size_t)i * stride + (size_t)d], F16_MAX));
}

static void f16_k_read(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out)
{
    const uint16_t *k = (const uint16_t *)(const void *)(page + cache->layout.k);
    for (int32_t d = 0; d < cache->g.dim_k; d++)
        out[d] = pi_f32_from_f16(k[d * cache->g.page_len + slot]);
}

static void f16_v_read(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out)
{
    int32_t dim = cache->g.dim_v;
    const uint16_t *v = (const uint16_t *)(const void *)(page + cache->layout.v) + slot * dim;
    for (int32_t d = 0; d < dim; d++)
        out[d] = pi_f32_from_f16(v[d]);
}

static void f16_k_move(const struct kv_cache *cache, uint8_t *to, int32_t to_slot,
                       const uint8_t *from, int32_t from_slot)
{
    uint16_t *a = (uint16_t *)(void *)(to + cache->layout.k);
    const uint16_t *b = (const uint16_t *)(const void *)(from + cache->layout.k);
    int32_t len = cache->g.page_len;
    for (int32_t d = 0; d < cache->g.dim_k; d++)
        a[d * len + to_slot] = b[d * len + from_slot];
}

static void f16_v_move(const struct kv_cache *cache, uint8_t *to, int32_t to_slot,
                       const uint8_t *from, int32_t from_slot)
{
    size_t size = (size_t)cache->g.dim_v * sizeof(uint16_t);
    memcpy(to + cache->layout.v + (size_t)to_slot * size,
           from + cache->layout.v + (size_t)from_slot * size, size);
}

/* ---- q8_0 ---- */

/* One block as ggml's q8_0 has it: d = max|x| / 127 in f32, code = round(x / d) to nearest, halves
   away from zero, the scale stored is d in f16. Codes are 0 where the stored scale is 0. Returns the
   scale. */
static uint16_t q8_encode(const float *x, int8_t *codes)
{
    float clean_x[Q8_BLOCK], max = 0.0f;
    for (int32_t i = 0; i < Q8_BLOCK; i++) {
        clean_x[i] = clean(x[i], F16_MAX * 127.0f);
        max = fmaxf(max, fabsf(clean_x[i]));
    }
    float d = max / 127.0f;
    uint16_t scale = pi_f16_from_f32(d);
    float inverse = (scale & 0x7fffu) != 0 ? 1.0f / d : 0.0f;
    for (int32_t i = 0; i < Q8_BLOCK; i++)
        codes[i] = (int8_t)roundf(clean_x[i] * inverse);
    return scale;
}

static void q8_k_write(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                       const float *rows, size_t stride)
{
    int32_t len = cache->g.page_len;
    int8_t *k = (int8_t *)(page + cache->layout.k);
    uint16_t *scale = (uint16_t *)(void *)(page + cache->layout.k_scale);
    for (int32_t i = 0; i < n; i++)
        for (int32_t b = 0; b < cache->g.dim_k / Q8_BLOCK; b++) {
            int8_t codes[Q8_BLOCK];
            scale[b * len + slot + i] =
                q8_encode(rows + (size_t)i * stride + (size_t)b * Q8_BLOCK, codes);
            for (int32_t d = 0; d < Q8_BLOCK; d++)
                k[(b * Q8_BLOCK + d) * len + slot + i] = codes[d];
        }
}

static void q8_v_write(const struct kv_cache *cache, uint8_t *page, int32_t slot, int32_t n,
                       const float *rows, size_t stride)
{
    int32_t dim = cache->g.dim_v, n_block = dim / Q8_BLOCK;
    int8_t *v = (int8_t *)(page + cache->layout.v) + slot * dim;
    uint16_t *scale = (uint16_t *)(void *)(page + cache->layout.v_scale) + slot * n_block;
    for (int32_t i = 0; i < n; i++)
        for (int32_t b = 0; b < n_block; b++)
            scale[i * n_block + b] = q8_encode(rows + (size_t)i * stride + (size_t)b * Q8_BLOCK,
                                               v + i * dim + b * Q8_BLOCK);
}

static void q8_k_read(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out)
{
    int32_t len = cache->g.page_len;
    const int8_t *k = (const int8_t *)(page + cache->layout.k);
    const uint16_t *scale = (const uint16_t *)(const void *)(page + cache->layout.k_scale);
    for (int32_t d = 0; d < cache->g.dim_k; d++)
        out[d] = pi_f32_from_f16(scale[d / Q8_BLOCK * len + slot]) * (float)k[d * len + slot];
}

static void q8_v_read(const struct kv_cache *cache, const uint8_t *page, int32_t slot, float *out)
{
    int32_t dim = cache->g.dim_v, n_block = dim / Q8_BLOCK;
    const int8_t *v = (const int8_t *)(page + cache->layout.v) + slot * dim;
    const uint16_t *scale =
        (const uint16_t *)(const void *)(page + cache->layout.v_scale) + slot * n_block;
    for (int32_t d = 0; d < dim; d++)
        out[d] = pi_f32_from_f16(scale[d / Q8_BLOCK]) * (float)v[d];
}

static void q8_k_move(const struct kv_cache *cache, uint8_t *to, int32_t to_slot,
                      const uint8_t *from, int32_t from_slot)
{
    int32_t len = cache->g.page_len, dim = cache->g.dim_k;
    uint16_t *a = (uint16_t *)(void *)(to + cache->layout.k_scale);
    const uint16_t *b = (const uint16_t *)(const void *)(from + cache->layout.k_scale);
    for (int32_t d = 0; d < dim; d++)
        to[cache->layout.k + (size_t)(d * len + to_slot)] =
            from[cache->layout.k + (size_t)(d * len + from_slot)];
    for (int32_t d = 0; d < dim / Q8_BLOCK; d++)
        a[d * len + to_slot] = b[d * len + from_slot];
}

static void q8_v_move(const struct kv_cache *cache, uint8_t *to, int32_t to_slot,
                      const uint8_t *from, int32_t from_slot)
{
    size_t size = (size_t)cache->g.dim_v;
    size_t scale_size = size / Q8_BLOCK * sizeof(uint16_t);
    memcpy(to + cache->layout.v + (size_t)to_slot * size,
           from + cache->layout.v + (size_t)from_slot * size, size);
    memcpy(to + cache->layout.v_scale + (size_t)to_slot * scale_size,
           from + cache->layout.v_scale + (size_t)from_slot * scale_size, scale_size);
}

/* ---- the table ---- */

const struct kv_codec kv_codecs[KV_N_TYPE] = {
    [KV_TYPE_F32] = {"f32", 4, 1, 0, f32_k_write, f32_v_write, f32_k_read, f32_v_read, f32_k_move,
                     f32_v_move},
    [KV_TYPE_F16] = {"f16", 2, 1, 0, f16_k_write, f16_v_write, f16_k_read, f16_v_read, f16_k_move,
                     f16_v_move},
    [KV_TYPE_Q8_0] = {"q8_0", 1, Q8_BLOCK, 2, q8_k_write, q8_v_write, q8_k_read, q8_v_read,
                      q8_k_move, q8_v_move},
};

enum kv_type kv_type_find(const char *name)
{
    for (int i = 0; i < KV_N_TYPE; i++)
        if (strcmp(name, kv_codecs[i].name) == 0)
            return (enum kv_type)i;
    return KV_N_TYPE;
}

const char *kv_type_name(enum kv_type type) { return kv_codecs[type].name; }
