/*
 * test_kv_turbo.c - the storage types of few bits: the rotation, the tables, the specification's
 * vectors, and the error of coding at every head size. No byte of a page makes reading leave its
 * memory.
 */
#include <jansson.h>
#include <math.h>

#include "base/half.h"
#include "cpu/kernels.h"
#include "device/cpu/wht.h"
#include "kv_check.h"
#include "testing.h"
#include "near.h"

#define VECTORS PITH_SOURCE_DIR "/tests/vectors/v3.json"
#define MAX_DIM 256
#define PAGE_LEN 16

static const enum kv_type turbo[] = {KV_TYPE_TURBO4, KV_TYPE_TURBO3, KV_TYPE_TURBO2};

static int32_t bits_of(enum kv_type type)
{
    return type == KV_TYPE_TURBO3 ? 3 : type == KV_TYPE_TURBO2 ? 2 : 4;
}

static double square_distance(const float *a, const float *b, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

/* Box and Muller's transform. */
static float gaussian(uint64_t *rng)
{
    double u = ((double)rng_below(rng, 1u << 30) + 0.5) / (1u << 30);
    double v = ((double)rng_below(rng, 1u << 30) + 0.5) / (1u << 30);
    return (float)(sqrt(-2.0 * log(u)) * cos(2.0 * 3.14159265358979323846 * v));
}

/* ---- the rotation ---- */

static const uint8_t sign_mask[2][16] = {{0xa6, 0xfc, 0x95, 0x1b, 0xb6, 0xa6, 0x07, 0xbd, 0x44,
                                          0xc4, 0x39, 0x5b, 0x56, 0xaf, 0x0d, 0xb6},
                                         {0x6f, 0x11, 0x53, 0xe9, 0x23, 0x70, 0x9d, 0xc0, 0x85,
                                          0xca, 0x5a, 0x48, 0x9d, 0x9a, 0x5a, 0x41}};

static double sign_at(int which, int32_t i)
{
    return sign_mask[which][i / 8] >> i % 8 & 1 ? 1.0 : -1.0;
}

static int parity(int32_t x)
{
    int bits = 0;
    for (; x != 0; x &= x - 1)
        bits++;
    return bits % 2;
}

/* Against the definition, S2 H S1 / sqrt(group) with H[i][j] = (-1)^(bits of i & j), term by
   term. */
TEST(rotation_is_the_transform)
{
    uint64_t rng = 1;
    for (int32_t group = 16; group <= 128; group *= 2) {
        float x[128], y[128];
        for (int32_t i = 0; i < group; i++)
            x[i] = y[i] = gaussian(&rng);
        kv_wht(y, group, group, false);
        for (int32_t i = 0; i < group; i++) {
            double sum = 0.0;
            for (int32_t j = 0; j < group; j++)
                sum += sign_at(0, j) * (double)x[j] * (parity(i & j) ? -1.0 : 1.0);
            assert_float_equal(y[i], (float)(sign_at(1, i) * sum / sqrt(group)), 2e-6);
        }
    }
}

TEST(rotation_keeps_products)
{
    uint64_t rng = 2;
    for (int t = 0; t < 400; t++) {
        int32_t group = 16 << t % 4;
        float q[MAX_DIM], k[MAX_DIM], q_turned[MAX_DIM], k_turned[MAX_DIM];
        for (int32_t i = 0; i < MAX_DIM; i++) {
            q[i] = q_turned[i] = gaussian(&rng);
            k[i] = k_turned[i] = gaussian(&rng) * (i % 16 == 3 ? 20.0f : 1.0f);
        }
        kv_wht(q_turned, MAX_DIM, group, false);
        kv_wht(k_turned, MAX_DIM, group, false);
        double size = sqrt(dot(q, q, MAX_DIM) * dot(k, k, MAX_DIM));
        assert_true(fabs(dot(q_turned, k_turned, MAX_DIM) - dot(q, k, MAX_DIM)) < 1e-5 * size);
        assert_true(square_distance(k_turned, k, MAX_DIM) > 0.1 * dot(k, k, MAX_DIM));
        kv_wht(k_turned, MAX_DIM, group, true);
        assert_true(sqrt(square_distance(k_turned, k, MAX_DIM)) < 1e-6 * sqrt(dot(k, k, MAX_DIM)));
    }
}

/* ---- the tables ---- */

static double density(double x)
{
    return exp(-0.5 * x * x) / sqrt(2.0 * 3.14159265358979323846);
}

static double share_below(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0));
}

/* Each centroid is the mean of N(0, 1) over its cell, whose bounds are the midpoints to its
   neighbours: the fixed point of Lloyd-Max. A table of fewer codes is repeated. */
TEST(tables_are_lloyd_max)
{
    for (size_t t = 0; t < PI_LEN(turbo); t++)
        for (int32_t group = 16; group <= 128; group *= 2) {
            const float *table = kv_codec_table(turbo[t], group);
            int32_t n = 1 << bits_of(turbo[t]);
            for (int32_t c = 0; c < n; c++) {
                double root = sqrt(group), low = -40.0, high = 40.0;
                if (c > 0)
                    low = 0.5 * root * ((double)table[c - 1] + (double)table[c]);
                if (c < n - 1)
                    high = 0.5 * root * ((double)table[c] + (double)table[c + 1]);
                double mean =
                    (density(low) - density(high)) / (share_below(high) - share_below(low));
                assert_float_equal((float)(root * (double)table[c]), (float)mean, 2e-6);
                for (int32_t again = c; again < KV_CODE_MAX; again += n)
                    assert_float_equal(table[again], table[c], 0.0f);
            }
        }
    const float *q4 = kv_codec_table(KV_TYPE_Q4_0, 32);
    for (int32_t c = 0; c < KV_CODE_MAX; c++)
        assert_float_equal(q4[c], (float)(c - 8), 0.0f);
    assert_null(kv_codec_table(KV_TYPE_F16, 1));
}

/* ---- the spec's vectors ---- */

static void floats(const json_t *list, float *out)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (float)json_number_value(json_array_get(list, i));
}

static void to_hex(const uint8_t *bytes, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* The spec's own way: codes of the group at its length, and a scale that keeps the length. */
static uint16_t encode_as_spec(const float *x, int32_t group, const float *table, int32_t bits,
                               uint8_t *code)
{
    float row[128], length = (float)sqrt(dot(x, x, group));
    double square = 0.0;
    memcpy(row, x, (size_t)group * sizeof(*row));
    kv_wht(row, group, group, false);
    pi_kernels()->vec.table_codes(row, group, table, 1 << bits, length, code);
    for (int32_t i = 0; i < group; i++)
        square += (double)table[code[i]] * (double)table[code[i]];
    return pi_f16_from_f32((float)((double)length / sqrt(square)));
}

/* A vector of the spec with the table that it was made with: rotation, codes, packing and decoding
   are the spec's. Indices that lie too close to a threshold for f32 are not compared. */
static void check_vector(const json_t *want, const float *x, const float *table, int32_t bits)
{
    uint8_t code[128], low[64], high[16];
    float got[128], back[128];
    char hex[136];
    bool sure = json_number_value(json_object_get(want, "min_distance_to_a_threshold")) > 5e-6;
    uint16_t scale = encode_as_spec(x, 128, table, bits, code);
    if (!sure)
        return;
    assert_float_equal(sqrt(dot(x, x, 128)), json_number_value(json_object_get(want, "norm")),
                       1e-4);
    snprintf(hex, sizeof(hex), "0x%04x", scale);
    assert_string_equal(hex, text_of(want, "norm_fp16_bits"));
    for (size_t i = 0; i < 128; i++)
        assert_int_equal(code[i],
                         json_integer_value(json_array_get(json_object_get(want, "indices"), i)));
    kv_codes_pack(code, 128, bits, low, high);
    to_hex(low, bits == 4 ? 64 : 32, hex);
    assert_string_equal(hex, text_of(want, "qs"));
    if (bits == 3) {
        to_hex(high, 16, hex);
        assert_string_equal(hex, text_of(want, "signs"));
    }
    kv_codes_unpack(low, high, 128, bits, code);
    for (int32_t i = 0; i < 128; i++)
        got[i] = pi_f32_from_f16(scale) * table[code[i]];
    if (bits == 3) {
        floats(json_object_get(want, "dequant_rotated"), back);
        assert_true(square_distance(got, back, 128) < 1e-10 * dot(back, back, 128));
    }
    kv_wht(got, 128, 128, true);
    if (bits == 3) {
        floats(json_object_get(want, "dequant_unrotated"), back);
        assert_true(square_distance(got, back, 128) < 1e-10 * dot(back, back, 128));
    }
    double error = square_distance(got, x, 128) / dot(x, x, 128);
    assert_float_equal(error, json_number_value(json_object_get(want, "rel_sq_err")), 1e-5);
}

TEST(codes_are_those_of_the_vectors)
{
    static const char *const names[] = {"turbo4", "turbo3", "turbo2"};
    static const char *const keys[] = {"centroids4_fork", "centroids3", "centroids2"};
    json_t *root = json_load_file(VECTORS, 0, NULL), *all = json_object_get(root, "turbo");
    assert_int_equal(json_array_size(all), 4);
    for (size_t i = 0; i < 4; i++)
        for (size_t t = 0; t < PI_LEN(turbo); t++) {
            const json_t *vector = json_array_get(all, i);
            float x[128], table[16];
            floats(json_object_get(vector, "x"), x);
            floats(json_object_get(json_object_get(root, "turbo_tables"), keys[t]), table);
            check_vector(json_object_get(vector, names[t]), x, table, bits_of(turbo[t]));
        }
    for (size_t t = 0; t < PI_LEN(turbo); t++) {
        char bits[2] = {(char)('0' + bits_of(turbo[t])), '\0'};
        const float *mine = kv_codec_table(turbo[t], 64);
        const json_t *lloyd = json_object_get(json_object_get(root, "lloyd_max_N01"), bits);
        float table[16];
        floats(json_object_get(lloyd, "centroids_unit_sigma"), table);
        for (int32_t c = 0; c < 1 << bits_of(turbo[t]); c++)
            assert_float_equal(8.0f * mine[c], table[c], 1e-6);
        if (turbo[t] != KV_TYPE_TURBO4) /* here without its second, always zero scale */
            assert_float_equal(kv_type_bits(turbo[t], 128),
                               json_number_value(json_object_get(
                                   json_object_get(root, "bits_per_value"), names[t])),
                               0.0);
    }
    json_decref(root);
}

/* ---- pages ---- */

static struct kv_geometry geometry(enum kv_type type, int32_t dim, uint32_t index)
{
    return (struct kv_geometry){.n_layer = 1,
                                .n_head = 1,
                                .dim_k = dim,
                                .dim_v = dim,
                                .page_len = PAGE_LEN,
                                .type_k = type,
                                .type_v = type,
                                .index = index};
}

/* The mean relative squared error of Gaussian rows, as keys. */
static double distortion(enum kv_type type, int32_t dim, uint32_t index, int32_t n)
{
    struct kv_geometry g = geometry(type, dim, index);
    struct kv_cache *cache = kv_check_cache(&g, 1);
    uint8_t *page = kv_page_at(cache->kind, 0);
    uint64_t rng = 7;
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        float row[MAX_DIM], got[MAX_DIM];
        for (int32_t d = 0; d < dim; d++)
            row[d] = gaussian(&rng);
        kv_page_write_keys(cache, cache->kind, page, i % PAGE_LEN, 1, row, 0);
        kv_page_read_key(cache, cache->kind, page, i % PAGE_LEN, got);
        sum += square_distance(got, row, dim) / dot(row, row, dim);
    }
    kv_cache_free(cache);
    return sum / n;
}

/* The decoded group in its rotated form. */
static void decoded(const float *table, uint16_t scale, const uint8_t *code, int32_t n, float *out)
{
    for (int32_t i = 0; i < n; i++)
        out[i] = pi_f32_from_f16(scale) * table[code[i]];
}

/* The spec's figures for 2,000 vectors of 128 dimensions (v3.json, mse_reference), within 5 %. */
TEST(distortions_are_those_of_the_specification)
{
    static const double reference[] = {0.0091936, 0.033533, 0.118076};
    for (size_t t = 0; t < PI_LEN(turbo); t++) {
        const float *table = kv_codec_table(turbo[t], 128);
        uint64_t rng = 7;
        double sum = 0.0;
        for (int i = 0; i < 2000; i++) {
            float row[128], got[128];
            uint8_t code[128];
            for (int32_t d = 0; d < 128; d++)
                row[d] = gaussian(&rng);
            uint16_t scale = encode_as_spec(row, 128, table, bits_of(turbo[t]), code);
            decoded(table, scale, code, 128, got);
            kv_wht(row, 128, 128, false);
            sum += square_distance(got, row, 128) / dot(row, row, 128);
        }
        assert_true(fabs(sum / 2000 / reference[t] - 1.0) < 0.05);
    }
}

/* The error after the search, within 3 % of figures from numpy in double (4,000 vectors, the same
   five stretches). The figure of q8_0 is the specification's. Other head sizes lie near the error
   of their groups' tables. */
TEST(distortions_are_those_of_doubles)
{
    static const struct {
        enum kv_type type;
        double at_128, at_64;
    } cases[] = {{KV_TYPE_TURBO2, 0.12995, 0.12669},
                 {KV_TYPE_TURBO3, 0.03296, 0.03074},
                 {KV_TYPE_TURBO4, 0.00808, 0.00729},
                 {KV_TYPE_Q8_0, 2.8213e-5, 2.8213e-5}};
    static const int32_t dims[] = {80, 96, 192, 256};
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        double at_128 = distortion(cases[i].type, 128, KV_INDEX_ROWS, 2000);
        double at_64 = distortion(cases[i].type, 64, 0, 2000);
        assert_true(fabs(at_128 / cases[i].at_128 - 1.0) < 0.03);
        assert_true(fabs(at_64 / cases[i].at_64 - 1.0) < 0.03);
        for (size_t j = 0; j < PI_LEN(dims); j++) {
            if (kv_type_group(cases[i].type, dims[j]) == 0)
                continue;
            /* Coordinates of short unit vectors are less spread than a Gaussian, which costs
               less. */
            double x = distortion(cases[i].type, dims[j], j % 2 ? KV_INDEX_ROWS : 0, 600);
            assert_true(x < 1.08 * cases[i].at_128 && x > 0.45 * cases[i].at_128);
        }
    }
}

/* Checks every group. Its direction is no worse than with the specification's codes. Its product
   with the decoded group is the decoded group's square, and its scale is finite. */
TEST(encoding_is_fitted)
{
    uint64_t rng = 13;
    int32_t better = 0, n = 0;
    for (size_t t = 0; t < PI_LEN(turbo); t++)
        for (int32_t group = 16; group <= 128; group *= 2)
            for (int i = 0; i < 200; i++, n++) {
                const float *table = kv_codec_table(turbo[t], group);
                float row[128], got[2][128];
                uint8_t code[128];
                double cosine[2], square;
                for (int32_t d = 0; d < group; d++)
                    row[d] = gaussian(&rng) * (i % 2 && d == 5 ? 12.0f : 1.0f);
                uint16_t scale = kv_coded_encode(row, group, table, bits_of(turbo[t]), code);
                decoded(table, scale, code, group, got[0]);
                scale = encode_as_spec(row, group, table, bits_of(turbo[t]), code);
                decoded(table, scale, code, group, got[1]);
                kv_wht(row, group, group, false);
                square = dot(row, row, group);
                for (int k = 0; k < 2; k++)
                    cosine[k] = dot(row, got[k], group) / sqrt(square * dot(got[k], got[k], group));
                assert_true(cosine[0] > cosine[1] - 1e-6);
                better += cosine[0] > cosine[1] + 1e-4;
                assert_float_equal(dot(row, got[0], group), square, square * 0x1p-10);
            }
    assert_true(better > n / 2);
}

/* A row with one nonzero dimension has no larger error than a Gaussian row, because of the
   rotation. Its length is kept. */
TEST(one_dimension_alone_costs_no_more)
{
    for (size_t t = 0; t < PI_LEN(turbo); t++)
        for (int32_t d = 0; d < 64; d++) {
            struct kv_geometry g = geometry(turbo[t], 64, 0);
            struct kv_cache *cache = kv_check_cache(&g, 1);
            float row[64] = {0}, got[64];
            row[d] = 3.0f;
            kv_page_write_values(cache, cache->kind, kv_page_at(cache->kind, 0), 5, 1, row, 0);
            kv_page_read_value(cache, cache->kind, kv_page_at(cache->kind, 0), 5, got);
            assert_float_equal(sqrt(dot(got, got, 64)), 3.0, 3.0 * 0x1p-11);
            assert_float_equal(got[d], 3.0f, 0.01f);
            kv_cache_free(cache);
        }
}

static void get_entry(const struct kv_class *kind, const uint8_t *page, int32_t slot, uint8_t *out)
{
    kv_page_get_side(kind, KV_SIDE_K, page, slot, out);
    kv_page_get_side(kind, KV_SIDE_V, page, slot, out + kv_part_bytes(&kind->k));
}

static void put_entry(const struct kv_class *kind, uint8_t *page, int32_t slot, const uint8_t *in)
{
    kv_page_put_side(kind, KV_SIDE_K, page, slot, in);
    kv_page_put_side(kind, KV_SIDE_V, page, slot, in + kv_part_bytes(&kind->k));
}

/* An entry as a row of bytes is the same from either layout, and goes into either. */
TEST(rows_and_columns_hold_the_same_entries)
{
    static const int32_t dims[] = {32, 64, 96, 128, 160, 192, 256};
    uint64_t rng = 9;
    for (int type = 0; type < KV_N_TYPE; type++)
        for (size_t i = 0; i < PI_LEN(dims); i++) {
            struct kv_geometry rows = geometry((enum kv_type)type, dims[i], KV_INDEX_ROWS);
            struct kv_geometry columns = geometry((enum kv_type)type, dims[i], 0);
            struct kv_cache *a = kv_check_cache(&rows, 1), *b = kv_check_cache(&columns, 1);
            uint8_t *x = kv_page_at(a->kind, 0), *y = kv_page_at(b->kind, 0);
            uint8_t one[4096], two[4096];
            float row[MAX_DIM], back[2][MAX_DIM];
            size_t k = kv_part_bytes(&a->kind->k), size = k + kv_part_bytes(&a->kind->v);
            assert_int_equal(k, kv_part_bytes(&b->kind->k));
            assert_int_equal(size, 2 * dims[i] * kv_type_bits((enum kv_type)type, dims[i]) / 8);
            for (int32_t s = 0; s < PAGE_LEN; s++) {
                for (int32_t d = 0; d < dims[i]; d++)
                    row[d] = gaussian(&rng);
                kv_page_write_keys(a, a->kind, x, s, 1, row, 0);
                kv_page_write_keys(b, b->kind, y, s, 1, row, 0);
                kv_page_write_values(a, a->kind, x, s, 1, row, 0);
                kv_page_write_values(b, b->kind, y, s, 1, row, 0);
            }
            for (int32_t s = 0; s < PAGE_LEN; s++) {
                int32_t to = PAGE_LEN - 1 - s;
                get_entry(a->kind, x, s, one);
                get_entry(b->kind, y, s, two);
                assert_memory_equal(one, two, size);
                kv_page_read_key(a, a->kind, x, s, back[0]);
                kv_page_read_key(b, b->kind, y, s, back[1]);
                assert_memory_equal(back[0], back[1], (size_t)dims[i] * sizeof(float));
                put_entry(a->kind, x, to, one);
                put_entry(b->kind, y, to, one);
                kv_page_read_key(b, b->kind, y, to, back[1]);
                assert_memory_equal(back[0], back[1], (size_t)dims[i] * sizeof(float));
                get_entry(a->kind, x, to, two);
                assert_memory_equal(one, two, size);
            }
            kv_cache_free(a);
            kv_cache_free(b);
        }
}

/* For any bytes in a page, reading stays within it, and finite scales give finite values. */
TEST(any_bytes_are_read_within_the_page)
{
    static const int32_t dims[] = {64, 80, 96, 128, 192, 256};
    uint64_t rng = 11;
    for (int type = KV_TYPE_Q4_0; type <= KV_TYPE_TURBO2; type++)
        for (size_t i = 0; i < 2 * PI_LEN(dims); i++) {
            int32_t dim = dims[i / 2];
            struct kv_geometry g = geometry((enum kv_type)type, dim, i % 2 ? KV_INDEX_ROWS : 0);
            if (kv_type_group((enum kv_type)type, dim) == 0)
                continue;
            struct kv_cache *cache = kv_check_cache(&g, 1);
            const struct kv_class *kind = cache->kind;
            uint8_t *page = test_malloc(kind->layout.stride); /* guarded on both sides */
            float out[MAX_DIM];
            for (int t = 0; t < 20; t++) {
                for (size_t b = 0; b < kind->layout.stride; b++)
                    page[b] = (uint8_t)rng_below(&rng, 256);
                for (int p = 0; p < 2; p++) {
                    const struct kv_plane *scale =
                        (p ? &kind->v : &kind->k)->plane + KV_PLANE_SCALE;
                    for (size_t b = 1; t % 2 && b < scale->row * PAGE_LEN; b += 2)
                        page[scale->at + b] &= 0xbf; /* the exponent is not the largest */
                }
                for (int32_t s = 0; s < PAGE_LEN; s++)
                    for (int p = 0; p < 2; p++) {
                        if (p)
                            kv_page_read_value(cache, kind, page, s, out);
                        else
                            kv_page_read_key(cache, kind, page, s, out);
                        for (int32_t d = 0; t % 2 && d < dim; d++)
                            assert_true(isfinite(out[d]));
                    }
            }
            test_free(page);
            kv_cache_free(cache);
        }
}

/* A lane read page by page gives the bits of single entries, for every type and either layout. */
TEST(runs_give_the_bits_of_entries)
{
    static const int32_t dims[] = {32, 96, 128};
    for (int type = 0; type < KV_N_TYPE; type++)
        for (size_t i = 0; i < 2 * PI_LEN(dims); i++) {
            int32_t dim = dims[i / 2];
            struct kv_geometry g = geometry((enum kv_type)type, dim, i % 2 ? KV_INDEX_ROWS : 0);
            struct kv_cache *cache = kv_check_cache(&g, 4);
            struct kv_seq *seq;
            float keys[128 * PAGE_LEN], values[128 * PAGE_LEN], row[128];
            assert_int_equal(kv_seq_create(cache, &seq, NULL), PITH_OK);
            assert_int_equal(kv_check_append(seq, 5, 0, 3 * PAGE_LEN - 5), PITH_OK);
            for (int32_t s = 0; s < kv_lane_len(seq, 0, 0); s++) {
                if (s % PAGE_LEN == 0) {
                    kv_lane_run_keys(seq, 0, 0, s / PAGE_LEN, keys);
                    kv_lane_run_values(seq, 0, 0, s / PAGE_LEN, values);
                }
                kv_lane_key(seq, 0, 0, s, row);
                for (int32_t d = 0; d < dim; d++)
                    assert_memory_equal(&row[d], &keys[d * PAGE_LEN + s % PAGE_LEN], sizeof(*row));
                kv_lane_value(seq, 0, 0, s, row);
                assert_memory_equal(row, values + s % PAGE_LEN * dim, (size_t)dim * sizeof(*row));
            }
            kv_seq_free(seq);
            kv_cache_free(cache);
        }
}

TEST(groups_follow_the_head_size)
{
    static const struct {
        int32_t dim, group;
        double bits_3;
    } cases[] = {{64, 64, 3.25},  {80, 16, 4.0},     {96, 32, 3.5}, {128, 128, 3.125},
                 {192, 64, 3.25}, {256, 128, 3.125}, {16, 16, 4.0}};
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        assert_int_equal(kv_type_group(KV_TYPE_TURBO3, cases[i].dim), cases[i].group);
        assert_float_equal(kv_type_bits(KV_TYPE_TURBO3, cases[i].dim), cases[i].bits_3, 0.0);
    }
    assert_int_equal(kv_type_group(KV_TYPE_TURBO2, 72), 0);
    assert_int_equal(kv_type_group(KV_TYPE_Q4_0, 80), 0);
    assert_int_equal(kv_type_group(KV_TYPE_F16, 7), 1);
    assert_float_equal(kv_type_bits(KV_TYPE_TURBO4, 128), 4.125, 0.0);
    assert_float_equal(kv_type_bits(KV_TYPE_Q4_0, 64), 4.5, 0.0);
    struct kv_geometry g = geometry(KV_TYPE_TURBO3, 72, 0);
    assert_int_equal(kv_geometry_check(&g, &err), PITH_UNSUPPORTED);
    assert_string_equal(err.message, "type_k: turbo3 stores blocks of 16 dimensions, and the head "
                                     "size 72 is no multiple");
}
