/*
 * test_kv_codec.c - the storage types bit by bit: every page length, many head sizes, every place
 * in a page, and numbers that no type can hold.
 */
#include <float.h>
#include <math.h>

#include "base/half.h"
#include "device/cpu/wht.h"
#include "kv_check.h"
#include "testing.h"
#include "kv_shape.h"

#define MAX_ROW 260 /* head size and stride */

/* Where kv/class.h says that value (entry, dimension) lies, read without the codec. */
static float stored_value(const struct kv_cache *cache, const uint8_t *page, bool is_k, int32_t s,
                          int32_t d)
{
    const struct kv_geometry *g = &cache->g;
    int32_t dim = is_k ? g->dim_k : g->dim_v;
    enum kv_type type = is_k ? g->type_k : g->type_v;
    int32_t group = is_k ? cache->kind[0].group_k : cache->kind[0].group_v;
    int32_t bits = type == KV_TYPE_Q8_0                          ? 8
                   : type <= KV_TYPE_F16 || type == KV_TYPE_BF16 ? 0
                   : type <= KV_TYPE_TURBO4                      ? 4
                                                                 : 2;
    size_t at = (size_t)(s * dim + d), high_at = at;
    size_t scale_at = (size_t)(s * (dim / group) + d / group);
    if (is_k && g->index == 0) { /* side by side, codes as many as 4 bytes hold */
        int32_t n = bits > 0 ? 32 / bits : 1;
        at = (size_t)((d / n * g->page_len + s) * n + d % n);
        high_at = (size_t)((d / 16 * g->page_len + s) * 16 + d % 16);
        scale_at = (size_t)(d / group * g->page_len + s);
    }
    const struct kv_page_layout *layout = &cache->kind[0].layout;
    const uint8_t *part = page + (is_k ? layout->k : layout->v);
    const uint8_t *scales = page + (is_k ? layout->k_scale : layout->v_scale);
    uint16_t half;
    float f;
    switch (type) {
    case KV_TYPE_F32:
        memcpy(&f, part + 4 * at, 4);
        return f;
    case KV_TYPE_F16:
        memcpy(&half, part + 2 * at, 2);
        return pi_f32_from_f16(half);
    case KV_TYPE_BF16:
        memcpy(&half, part + 2 * at, 2);
        return pi_f32_from_bf16(half);
    case KV_TYPE_Q8_0:
        memcpy(&half, scales + 2 * scale_at, 2);
        return pi_f32_from_f16(half) * (float)(int8_t)part[at];
    default:
        break;
    }
    const uint8_t *high = page + (is_k ? layout->k_high : layout->v_high);
    int32_t code = bits == 4 ? part[at / 2] >> 4 * (at % 2) & 15 : part[at / 4] >> 2 * (at % 4) & 3;
    if (type == KV_TYPE_TURBO3)
        code |= (high[high_at / 8] >> high_at % 8 & 1) << 2;
    memcpy(&half, scales + 2 * scale_at, 2);
    return pi_f32_from_f16(half) *
           (type == KV_TYPE_Q4_0 ? (float)(code - 8) : kv_codec_table(type, group)[code]);
}

/* The same of a row, turned back where the type is rotated. */
static void stored_row(const struct kv_cache *cache, const uint8_t *page, bool is_k, int32_t s,
                       float *out)
{
    const struct kv_part *part = is_k ? &cache->kind[0].k : &cache->kind[0].v;
    for (int32_t d = 0; d < part->dim; d++)
        out[d] = stored_value(cache, page, is_k, s, d);
    if (kv_type_is_rotated(is_k ? cache->g.type_k : cache->g.type_v))
        kv_wht(out, part->dim, part->group, true);
}

/* Rows of all magnitudes, and everything that is no ordinary number. */
static float strange(uint64_t *rng)
{
    static const float special[] = {
        0.0f,     -0.0f,           INFINITY, -INFINITY, NAN,      65504.0f, 65519.9f,
        65520.0f, -70000.f,        1e30f,    FLT_MAX,   -FLT_MAX, 1e-40f,   9e-13f,
        9.1e-13f, 9.09494702e-13f, 5.9e-8f,  2.9e-8f,   6.1e-5f,  1e-8f,    8319008.0f,
        9e6f,     0.333333f,       1e-20f,   FLT_MIN};
    if (rng_below(rng, 6) == 0)
        return special[rng_below(rng, PI_LEN(special))];
    return ldexpf(rng_float(rng), (int)rng_below(rng, 40) - 20);
}

/* Entries at every place of a page with every type, head size and count, bit for bit. */
static void check_codec(enum kv_type type, int32_t page_len, int32_t dim_k, int32_t dim_v,
                        uint32_t index, uint64_t *rng)
{
    struct kv_geometry g = {1,   1,   dim_k, dim_v, page_len, type, type, index, 0,
                            {0}, {0}, NULL,  0,     0,        0,    NULL, {0}};
    struct kv_cache *cache = kv_check_cache(&g, 1);
    uint8_t *page = kv_page_at(cache->kind, 0);
    static float k[64 * MAX_ROW], v[64 * MAX_ROW];
    float want[MAX_ROW], got[MAX_ROW], stored[MAX_ROW];
    for (int32_t slot = 0; slot < page_len;) {
        int32_t n = 1 + (int32_t)rng_below(rng, (uint64_t)(page_len - slot));
        size_t k_stride = (size_t)dim_k + rng_below(rng, 4);
        size_t v_stride = (size_t)dim_v + rng_below(rng, 4);
        for (size_t i = 0; i < PI_LEN(k); i++) {
            k[i] = strange(rng);
            v[i] = strange(rng);
        }
        kv_page_write_keys(cache, cache->kind, page, slot, n, k, k_stride);
        kv_page_write_values(cache, cache->kind, page, slot, n, v, v_stride);
        for (int32_t i = 0; i < n; i++) {
            kv_check_stored(type, k + (size_t)i * k_stride, dim_k, want);
            kv_page_read_key(cache, cache->kind, page, slot + i, got);
            stored_row(cache, page, true, slot + i, stored);
            for (int32_t d = 0; d < dim_k; d++) {
                assert_true(isfinite(got[d]));
                assert_memory_equal(&got[d], &want[d], sizeof(float));
                assert_memory_equal(&got[d], &stored[d], sizeof(float));
            }
            kv_check_stored(type, v + (size_t)i * v_stride, dim_v, want);
            kv_page_read_value(cache, cache->kind, page, slot + i, got);
            stored_row(cache, page, false, slot + i, stored);
            for (int32_t d = 0; d < dim_v; d++) {
                assert_true(isfinite(got[d]));
                assert_memory_equal(&got[d], &want[d], sizeof(float));
                assert_memory_equal(&got[d], &stored[d], sizeof(float));
            }
        }
        slot += n;
    }
    kv_cache_free(cache);
}

TEST(codes_are_right_bit_by_bit)
{
    static const int32_t dims[] = {1, 2, 3, 7, 16, 31, 33, 64, 80, 96, 127, 128, 129, 256};
    static const int32_t page_lens[] = {16, 32, 64};
    uint64_t rng = 5;
    for (size_t p = 0; p < 2 * PI_LEN(page_lens); p++) {
        uint32_t index = p % 2 == 0 ? 0 : KV_INDEX_ROWS;
        for (size_t i = 0; i < PI_LEN(dims); i++) {
            int32_t other = dims[rng_below(&rng, PI_LEN(dims))];
            check_codec(KV_TYPE_F32, page_lens[p / 2], dims[i], other, index, &rng);
            check_codec(KV_TYPE_F16, page_lens[p / 2], dims[i], other, index, &rng);
            check_codec(KV_TYPE_BF16, page_lens[p / 2], dims[i], other, index, &rng);
        }
        for (int32_t dim = 32; dim <= 256; dim += 32) {
            check_codec(KV_TYPE_Q8_0, page_lens[p / 2], dim, 288 - dim, index, &rng);
            check_codec(KV_TYPE_Q4_0, page_lens[p / 2], dim, 288 - dim, index, &rng);
        }
        for (int32_t dim = 16; dim <= 256; dim += 16)
            check_codec((enum kv_type)(KV_TYPE_TURBO4 + rng_below(&rng, 3)), page_lens[p / 2], dim,
                        272 - dim, index, &rng);
    }
}

/* The error of storing: half a step of the type's grid. */
TEST(codec_errors_are_bounded)
{
    uint64_t rng = 6;
    for (int type = 0; type <= KV_TYPE_Q4_0; type++) { /* test_kv_turbo has the others */
        struct kv_geometry g = KV_SHAPE(1, 1, 32, 32, 16, (enum kv_type)type, (enum kv_type)type);
        struct kv_cache *cache = kv_check_cache(&g, 1);
        for (int t = 0; t < 500; t++) {
            float row[32], got[32], max = 0.0f;
            for (int d = 0; d < 32; d++) {
                row[d] = rng_float(&rng);
                max = fmaxf(max, fabsf(row[d]));
            }
            kv_page_write_values(cache, cache->kind, kv_page_at(cache->kind, 0), 3, 1, row, 32);
            kv_page_read_value(cache, cache->kind, kv_page_at(cache->kind, 0), 3, got);
            for (int d = 0; d < 32; d++) {
                /* q8_0: half a step, and the scale's rounding to f16 times up to 127 steps. q4_0:
                   likewise, plus a step that is missing at one end */
                float bound = type == KV_TYPE_F32    ? 0.0f
                              : type == KV_TYPE_F16  ? 0x1p-11f * fabsf(row[d]) + 0x1p-25f
                              : type == KV_TYPE_Q8_0 ? max / 254.0f + max * 0x1p-11f
                                                     : max / 8.0f + max * 0x1p-11f;
                assert_true(fabsf(row[d] - got[d]) <= bound * 1.001f);
            }
        }
        kv_cache_free(cache);
    }
}

/* Moves keep the bytes; slots around them stay. */
TEST(moves_keep_the_bytes)
{
    uint64_t rng = 8;
    for (int type = 0; type < KV_N_TYPE; type++) {
        struct kv_geometry g = KV_SHAPE(1, 1, 96, 64, 32, (enum kv_type)type, (enum kv_type)type);
        struct kv_cache *cache = kv_check_cache(&g, 2);
        uint8_t *a = kv_page_at(cache->kind, 0), *b = kv_page_at(cache->kind, 1);
        float row[96], got[96];
        for (int32_t s = 0; s < 32; s++) {
            kv_check_row(rng_next(&rng), row, 96);
            kv_page_write_keys(cache, cache->kind, a, s, 1, row, 96);
            kv_page_write_values(cache, cache->kind, a, s, 1, row, 96);
        }
        for (int32_t s = 0; s < 32; s++) {
            kv_page_pos(cache->kind, 0)[s] = 100 + s;
            kv_page_move(cache, cache->kind, 1, &(struct kv_page_part){0, s, 31 - s, 1}, 1);
            assert_int_equal(kv_page_pos(cache->kind, 1)[31 - s], 100 + s);
        }
        for (int32_t s = 0; s < 32; s++) {
            kv_page_read_key(cache, cache->kind, a, s, row);
            kv_page_read_key(cache, cache->kind, b, 31 - s, got);
            assert_memory_equal(row, got, 96 * sizeof(float));
            kv_page_read_value(cache, cache->kind, a, s, row);
            kv_page_read_value(cache, cache->kind, b, 31 - s, got);
            assert_memory_equal(row, got, 64 * sizeof(float));
        }
        kv_cache_free(cache);
    }
}
