/*
 * dtype.c - the table of weight types, and the plain ones: floats and blocks of 32. The layouts are
 * the ones of GGUF files. Decoding is exact: one multiplication and at most one addition per
 * weight. Encoding is the formats' own recipe, so that the bytes equal other writers' bytes. It
 * knows nothing of files or kernels.
 */
#include <math.h>
#include <strings.h>

#include "base/half.h"
#include "tensor/dtype.h"
#include "tensor/dtype_k.h"
#include "tensor/dtype_table.h"

#define BLOCK_LEN 32

/* Blocks as bytes: no alignment is assumed. */
struct block_q8_0 {
    uint8_t d[2]; /* f16 scale */
    int8_t q[BLOCK_LEN];
};

struct block_q4_0 {
    uint8_t d[2];
    uint8_t q[BLOCK_LEN / 2]; /* weight i in the low half of byte i, weight 16 + i in the high */
};

struct block_q4_1 {
    uint8_t d[2];
    uint8_t m[2]; /* f16 minimum */
    uint8_t q[BLOCK_LEN / 2];
};

struct block_q5_0 {
    uint8_t d[2];
    uint8_t high[4]; /* bit i: the fifth bit of weight i */
    uint8_t q[BLOCK_LEN / 2];
};

struct block_q5_1 {
    uint8_t d[2];
    uint8_t m[2];
    uint8_t high[4];
    uint8_t q[BLOCK_LEN / 2];
};

static_assert(sizeof(struct block_q8_0) == 34, "q8_0");
static_assert(sizeof(struct block_q4_0) == 18, "q4_0");
static_assert(sizeof(struct block_q4_1) == 20, "q4_1");
static_assert(sizeof(struct block_q5_0) == 22, "q5_0");
static_assert(sizeof(struct block_q5_1) == 24, "q5_1");

static float load_f16(const uint8_t *p)
{
    return pi_f32_from_f16((uint16_t)(p[0] | p[1] << 8));
}

static void store_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void store_f16(uint8_t *p, float v)
{
    store_u16(p, pi_f16_from_f32(v));
}

/* ---- floats ---- */

static void f32_decode(const void *src, float *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof(float));
}

static void f32_encode(const float *src, void *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof(float));
}

static void f16_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++)
        dst[i] = load_f16(p + 2 * i);
}

static void f16_encode(const float *src, void *dst, int64_t n)
{
    uint8_t *p = dst;
    for (int64_t i = 0; i < n; i++)
        store_f16(p + 2 * i, src[i]);
}

static void bf16_decode(const void *src, float *dst, int64_t n)
{
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++)
        dst[i] = pi_f32_from_bf16((uint16_t)(p[2 * i] | p[2 * i + 1] << 8));
}

static void bf16_encode(const float *src, void *dst, int64_t n)
{
    uint8_t *p = dst;
    for (int64_t i = 0; i < n; i++)
        store_u16(p + 2 * i, pi_bf16_from_f32(src[i]));
}

/* ---- blocks of 32: levels and scales ---- */

/* v cut to [lo, hi] and towards zero; NaN gives lo, so that the cast is always defined. */
static int cut_level(float v, int lo, int hi)
{
    if (!(v > (float)lo))
        return lo;
    return v < (float)hi ? (int)v : hi;
}

/* The weight of largest magnitude, with its sign; the first of equals. */
static float find_extreme(const float *x)
{
    float extreme = 0.0f;
    for (int i = 0; i < BLOCK_LEN; i++)
        if (fabsf(x[i]) > fabsf(extreme))
            extreme = x[i];
    return extreme;
}

static void find_range(const float *x, float *lo, float *hi)
{
    *lo = *hi = x[0];
    for (int i = 1; i < BLOCK_LEN; i++) {
        *lo = x[i] < *lo ? x[i] : *lo;
        *hi = x[i] > *hi ? x[i] : *hi;
    }
}

static float inverse(float d)
{
    return d != 0.0f ? 1.0f / d : 0.0f;
}

static void unpack_nibbles(const uint8_t *q, int *level)
{
    for (int i = 0; i < BLOCK_LEN / 2; i++) {
        level[i] = q[i] & 15;
        level[i + BLOCK_LEN / 2] = q[i] >> 4;
    }
}

static void pack_nibbles(const int *level, uint8_t *q)
{
    for (int i = 0; i < BLOCK_LEN / 2; i++)
        q[i] = (uint8_t)((level[i] & 15) | (level[i + BLOCK_LEN / 2] & 15) << 4);
}

static void add_fifth_bits(const uint8_t *high, int *level)
{
    for (int i = 0; i < BLOCK_LEN; i++)
        level[i] |= (high[i / 8] >> (i % 8) & 1) << 4;
}

static void take_fifth_bits(const int *level, uint8_t *high)
{
    memset(high, 0, BLOCK_LEN / 8);
    for (int i = 0; i < BLOCK_LEN; i++)
        high[i / 8] |= (uint8_t)((level[i] >> 4 & 1) << (i % 8));
}

/* x = d * (level - half): the extreme weight takes level 0, so d has the opposite sign. */
static float levels_around_zero(const float *x, int half, int *level)
{
    const float d = find_extreme(x) / (float)-half;
    const float id = inverse(d);
    for (int i = 0; i < BLOCK_LEN; i++)
        level[i] = cut_level(x[i] * id + ((float)half + 0.5f), 0, 2 * half - 1);
    return d;
}

/* x = d * level + m. */
static float levels_above_min(const float *x, int max, int *level, float *m)
{
    float lo, hi;
    find_range(x, &lo, &hi);
    const float d = (hi - lo) / (float)max;
    const float id = inverse(d);
    for (int i = 0; i < BLOCK_LEN; i++)
        level[i] = cut_level((x[i] - lo) * id + 0.5f, 0, max);
    *m = lo;
    return d;
}

/* ---- blocks of 32: types ---- */

static void q8_0_decode(const void *src, float *dst, int64_t n)
{
    const struct block_q8_0 *b = src;
    for (int64_t k = 0; k < n / BLOCK_LEN; k++) {
        const float d = load_f16(b[k].d);
        for (int i = 0; i < BLOCK_LEN; i++)
            dst[k * BLOCK_LEN + i] = (float)b[k].q[i] * d;
    }
}

static void q8_0_encode(const float *src, void *dst, int64_t n)
{
    struct block_q8_0 *b = dst;
    for (int64_t k = 0; k < n / BLOCK_LEN; k++) {
        const float *x = src + k * BLOCK_LEN;
        const float d = fabsf(find_extreme(x)) / 127.0f;
        const float id = inverse(d);
        store_f16(b[k].d, d);
        for (int i = 0; i < BLOCK_LEN; i++)
            b[k].q[i] = (int8_t)cut_level(roundf(x[i] * id), -127, 127);
    }
}

static void q4_0_decode(const void *src, float *dst, int64_t n)
{
    const struct block_q4_0 *b = src;
    int level[BLOCK_LEN];
    for (int64_t k = 0; k < n / BLOCK_LEN; k++) {
        const float d = load_f16(b[k].d);
        unpack_nibbles(b[k].q, level);
        for (int i = 0; i < BLOCK_LEN; i++)
            dst[k * BLOCK_LEN + i] = (float)(level[i] - 8) * d;
    }
}

static void q4_0_encode(const float *src, void *dst, int64_t n)
{
    struct block_q4_0 *b = dst;
    int level[BLOCK_LEN];
    for (int64_t k = 0; k < n / BLOCK_LEN; k++) {
        store_f16(b[k].d, levels_around_zero(src + k * BLOCK_LEN, 8, level));
        pack_nibbles(level, b[k].q);
    }
}

static void q4_1_decode(const void *src, float *dst, int64_t n)
{
    const struct block_q4_1 *b = src;
    int level[BLOCK_LEN];
    for (int64_t k = 0; k < n / BLOCK_LEN; k++) {
        const float d = load_f16(b[k].d), m = load_f16(b[k].m);
        unpack_nibbles(b[k].q, level);
        for (int i = 0; i < BLOCK_LEN; i++)
            dst[k * BLOCK_LEN + i] = (float)level[i] * d + m;
    }
}

static void q4_1_encode(const float *src, void *dst, int64_t n)
{
    struct block_q4_1 *b = dst;
    int level[BLOCK_LEN];
    float m;
    for (int64_t k = 0; k < n / BLOCK_LEN; k++) {
        store_f16(b[k].d, levels_above_min(src + k * BLOCK_LEN, 15, level, &m));
        store_f16(b[k].m, m);
        pack_nibbles(level, b[k].q);
    }
}

static void q5_0_decode(const void *src, float *dst, int64_t n)
{
    const struct block_q5_0 *b = src;
    int level[BLOCK_LEN];
    for (int64_t k = 0; k < n / BLOCK_LEN; k++) {
        const float d = load_f16(b[k].d);
        unpack_nibbles(b[k].q, level);
        add_fifth_bits(b[k].high, level);
        for (int i = 0; i < BLOCK_LEN; i++)
            dst[k * BLOCK_LEN + i] = (float)(level[i] - 16) * d;
    }
}

static void q5_0_encode(const float *src, void *dst, int64_t n)
{
    struct block_q5_0 *b = dst;
    int level[BLOCK_LEN];
    for (int64_t k = 0; k < n / BLOCK_LEN; k++) {
        store_f16(b[k].d, levels_around_zero(src + k * BLOCK_LEN, 16, level));
        take_fifth_bits(level, b[k].high);
        pack_nibbles(level, b[k].q);
    }
}

static void q5_1_decode(const void *src, float *dst, int64_t n)
{
    const struct block_q5_1 *b = src;
    int level[BLOCK_LEN];
    for (int64_t k = 0; k < n / BLOCK_LEN; k++) {
        const float d = load_f16(b[k].d), m = load_f16(b[k].m);
        unpack_nibbles(b[k].q, level);
        add_fifth_bits(b[k].high, level);
        for (int i = 0; i < BLOCK_LEN; i++)
            dst[k * BLOCK_LEN + i] = (float)level[i] * d + m;
    }
}

static void q5_1_encode(const float *src, void *dst, int64_t n)
{
    struct block_q5_1 *b = dst;
    int level[BLOCK_LEN];
    float m;
    for (int64_t k = 0; k < n / BLOCK_LEN; k++) {
        store_f16(b[k].d, levels_above_min(src + k * BLOCK_LEN, 31, level, &m));
        store_f16(b[k].m, m);
        take_fifth_bits(level, b[k].high);
        pack_nibbles(level, b[k].q);
    }
}

/* ---- the table ---- */

static const struct pi_dtype_traits types[] = {
    {PI_DTYPE_F32, "F32", 1, 4, f32_decode, f32_encode},
    {PI_DTYPE_F16, "F16", 1, 2, f16_decode, f16_encode},
    {PI_DTYPE_BF16, "BF16", 1, 2, bf16_decode, bf16_encode},
    {PI_DTYPE_Q8_0, "Q8_0", BLOCK_LEN, sizeof(struct block_q8_0), q8_0_decode, q8_0_encode},
    {PI_DTYPE_Q4_0, "Q4_0", BLOCK_LEN, sizeof(struct block_q4_0), q4_0_decode, q4_0_encode},
    {PI_DTYPE_Q4_1, "Q4_1", BLOCK_LEN, sizeof(struct block_q4_1), q4_1_decode, q4_1_encode},
    {PI_DTYPE_Q5_0, "Q5_0", BLOCK_LEN, sizeof(struct block_q5_0), q5_0_decode, q5_0_encode},
    {PI_DTYPE_Q5_1, "Q5_1", BLOCK_LEN, sizeof(struct block_q5_1), q5_1_decode, q5_1_encode},
    {PI_DTYPE_Q2_K, "Q2_K", PI_K_LEN, PI_Q2_K_BYTES, pi_q2_k_decode, pi_q2_k_encode},
    {PI_DTYPE_Q3_K, "Q3_K", PI_K_LEN, PI_Q3_K_BYTES, pi_q3_k_decode, pi_q3_k_encode},
    {PI_DTYPE_Q4_K, "Q4_K", PI_K_LEN, PI_Q4_K_BYTES, pi_q4_k_decode, pi_q4_k_encode},
    {PI_DTYPE_Q5_K, "Q5_K", PI_K_LEN, PI_Q5_K_BYTES, pi_q5_k_decode, pi_q5_k_encode},
    {PI_DTYPE_Q6_K, "Q6_K", PI_K_LEN, PI_Q6_K_BYTES, pi_q6_k_decode, pi_q6_k_encode},
    {PI_DTYPE_IQ4_NL, "IQ4_NL", BLOCK_LEN, PI_IQ4_NL_BYTES, pi_iq4_nl_decode, NULL},
    {PI_DTYPE_IQ4_XS, "IQ4_XS", PI_K_LEN, PI_IQ4_XS_BYTES, pi_iq4_xs_decode, NULL},
    {PI_DTYPE_MXFP4, "MXFP4", BLOCK_LEN, PI_MXFP4_BYTES, pi_mxfp4_decode, NULL},
};

const struct pi_dtype_traits *pi_dtype_find(uint32_t type)
{
    for (size_t i = 0; i < PI_LEN(types); i++)
        if ((uint32_t)types[i].type == type)
            return &types[i];
    return NULL;
}

const struct pi_dtype_traits *pi_dtype_find_name(const char *name)
{
    for (size_t i = 0; i < PI_LEN(types); i++)
        if (strcasecmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}
