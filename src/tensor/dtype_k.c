/*
 * dtype_k.c - the K types Q2_K to Q6_K. Every super-block passes through one unpacked form (levels,
 * small scales, small minimums). So the bit layouts stand in pairs of pack and unpack and the
 * search for good scales is written once. Invariant: decode(unpack(pack(b))) is exact, and the
 * arithmetic is that of the format: x = (d * scale) * level - (dmin * min).
 */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "base/half.h"
#include "tensor/dtype_k.h"

#define N_GROUP_MAX 16

/* A super-block, unpacked. Groups are 16 weights (Q2_K, Q3_K, Q6_K) or 32 (Q4_K, Q5_K). */
struct super_block {
    float d, dmin;
    int scale[N_GROUP_MAX]; /* [PI_K_LEN / group] */
    int min[N_GROUP_MAX];   /* the same; 0 for types without minimums */
    int level[PI_K_LEN];    /* with their sign for types without minimums */
};

/* Blocks as bytes: no alignment is assumed. */
struct block_q2_k {
    uint8_t scale[16]; /* low half scale, high half minimum */
    uint8_t q[64];
    uint8_t d[2], dmin[2];
};

struct block_q3_k {
    uint8_t high[32]; /* bit c of byte i: the third bit of weight 32 c + i */
    uint8_t q[64];
    uint8_t scale[12];
    uint8_t d[2];
};

struct block_q4_k {
    uint8_t d[2], dmin[2];
    uint8_t scale[12]; /* scales and minimums of 6 bits */
    uint8_t q[128];
};

struct block_q5_k {
    uint8_t d[2], dmin[2];
    uint8_t scale[12];
    uint8_t high[32]; /* bit c of byte i: the fifth bit of weight 32 c + i */
    uint8_t q[128];
};

struct block_q6_k {
    uint8_t low[128];
    uint8_t high[64];
    int8_t scale[16];
    uint8_t d[2];
};

static_assert(sizeof(struct block_q2_k) == PI_Q2_K_BYTES, "q2_k");
static_assert(sizeof(struct block_q3_k) == PI_Q3_K_BYTES, "q3_k");
static_assert(sizeof(struct block_q4_k) == PI_Q4_K_BYTES, "q4_k");
static_assert(sizeof(struct block_q5_k) == PI_Q5_K_BYTES, "q5_k");
static_assert(sizeof(struct block_q6_k) == PI_Q6_K_BYTES, "q6_k");

static float load_f16(const uint8_t *p)
{
    return pi_f32_from_f16((uint16_t)(p[0] | p[1] << 8));
}

static void store_f16(uint8_t *p, float v)
{
    const uint16_t h = pi_f16_from_f32(v);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* ---- layouts ---- */

/* Two bits: byte 32 h + i holds weights 128 h + 32 c + i, c = 0..3, from the low bits up. */
static void unpack_pairs(const uint8_t *q, int *level)
{
    for (int c = 0; c < 8; c++)
        for (int i = 0; i < 32; i++)
            level[32 * c + i] = q[32 * (c / 4) + i] >> (2 * (c % 4)) & 3;
}

static void pack_pairs(const int *level, uint8_t *q)
{
    memset(q, 0, 64);
    for (int c = 0; c < 8; c++)
        for (int i = 0; i < 32; i++)
            q[32 * (c / 4) + i] |= (uint8_t)((level[32 * c + i] & 3) << (2 * (c % 4)));
}

/* Four bits: byte 32 h + i holds weights 64 h + i (low half) and 64 h + 32 + i (high half). */
static void unpack_nibbles(const uint8_t *q, int *level)
{
    for (int c = 0; c < 8; c++)
        for (int i = 0; i < 32; i++)
            level[32 * c + i] = q[32 * (c / 2) + i] >> (4 * (c % 2)) & 15;
}

static void pack_nibbles(const int *level, uint8_t *q)
{
    memset(q, 0, 128);
    for (int c = 0; c < 8; c++)
        for (int i = 0; i < 32; i++)
            q[32 * (c / 2) + i] |= (uint8_t)((level[32 * c + i] & 15) << (4 * (c % 2)));
}

/* One more bit per weight, at position bit of the level: bit c of byte i for weight 32 c + i. */
static void add_high_bits(const uint8_t *high, int bit, int *level)
{
    for (int c = 0; c < 8; c++)
        for (int i = 0; i < 32; i++)
            level[32 * c + i] |= (high[i] >> c & 1) << bit;
}

static void take_high_bits(const int *level, int bit, uint8_t *high)
{
    memset(high, 0, 32);
    for (int c = 0; c < 8; c++)
        for (int i = 0; i < 32; i++)
            high[i] |= (uint8_t)((level[32 * c + i] >> bit & 1) << c);
}

/* Eight scales and eight minimums of 6 bits in 12 bytes. The first four of each are in the low bits
   of bytes 0-3 and 4-7. The low halves of the others share bytes 8-11, and the two high bits sit on
   top of bytes 0-3 and 4-7. */
static void unpack_scales_min(const uint8_t *s, int *scale, int *min)
{
    for (int j = 0; j < 4; j++) {
        scale[j] = s[j] & 63;
        min[j] = s[j + 4] & 63;
        scale[j + 4] = (s[j + 8] & 15) | s[j] >> 6 << 4;
        min[j + 4] = s[j + 8] >> 4 | s[j + 4] >> 6 << 4;
    }
}

static void pack_scales_min(const int *scale, const int *min, uint8_t *s)
{
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(min[j] | min[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

/* Sixteen scales of 6 bits, stored plus 32. Low halves are in bytes 0-7 (scale j and j + 8 share
   one), the two high bits of scale j in byte 8 + j % 4. */
static void unpack_scales_q3(const uint8_t *s, int *scale)
{
    for (int j = 0; j < 16; j++) {
        int low = s[j % 8] >> (4 * (j / 8)) & 15;
        int high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
        scale[j] = (low | high << 4) - 32;
    }
}

static void pack_scales_q3(const int *scale, uint8_t *s)
{
    memset(s, 0, 12);
    for (int j = 0; j < 16; j++) {
        int v = scale[j] + 32;
        s[j % 8] |= (uint8_t)((v & 15) << (4 * (j / 8)));
        s[8 + j % 4] |= (uint8_t)(v >> 4 << (2 * (j / 4)));
    }
}

/* Six bits. Byte 64 h + 32 (c % 2) + i of low holds weights 128 h + 32 c + i for c and c + 2. The
   two high bits of weight 128 h + 32 c + i are bits 2 c of byte 32 h + i of high. */
static void unpack_six(const struct block_q6_k *b, int *level)
{
    for (int c = 0; c < 8; c++) {
        const int h = c / 4, k = c % 4;
        for (int i = 0; i < 32; i++) {
            int low = b->low[64 * h + 32 * (k % 2) + i] >> (4 * (k / 2)) & 15;
            int high = b->high[32 * h + i] >> (2 * k) & 3;
            level[32 * c + i] = (low | high << 4) - 32;
        }
    }
}

static void pack_six(const int *level, struct block_q6_k *b)
{
    memset(b->low, 0, sizeof(b->low));
    memset(b->high, 0, sizeof(b->high));
    for (int c = 0; c < 8; c++) {
        const int h = c / 4, k = c % 4;
        for (int i = 0; i < 32; i++) {
            int v = level[32 * c + i] + 32;
            b->low[64 * h + 32 * (k % 2) + i] |= (uint8_t)((v & 15) << (4 * (k / 2)));
            b->high[32 * h + i] |= (uint8_t)(v >> 4 << (2 * k));
        }
    }
}

/* ---- decoding ---- */

static void decode_block(const struct super_block *b, int group, float *dst)
{
    for (int j = 0; j < PI_K_LEN / group; j++) {
        const float d = b->d * (float)b->scale[j];
        const float m = b->dmin * (float)b->min[j];
        for (int i = j * group; i < (j + 1) * group; i++)
            dst[i] = d * (float)b->level[i] - m;
    }
}

void pi_q2_k_decode(const void *src, float *dst, int64_t n)
{
    const struct block_q2_k *p = src;
    struct super_block b;
    for (; n > 0; n -= PI_K_LEN, dst += PI_K_LEN, p++) {
        b.d = load_f16(p->d);
        b.dmin = load_f16(p->dmin);
        for (int j = 0; j < 16; j++) {
            b.scale[j] = p->scale[j] & 15;
            b.min[j] = p->scale[j] >> 4;
        }
        unpack_pairs(p->q, b.level);
        decode_block(&b, 16, dst);
    }
}

void pi_q3_k_decode(const void *src, float *dst, int64_t n)
{
    const struct block_q3_k *p = src;
    struct super_block b = {0};
    for (; n > 0; n -= PI_K_LEN, dst += PI_K_LEN, p++) {
        b.d = load_f16(p->d);
        unpack_scales_q3(p->scale, b.scale);
        unpack_pairs(p->q, b.level);
        add_high_bits(p->high, 2, b.level);
        for (int i = 0; i < PI_K_LEN; i++)
            b.level[i] -= 4;
        decode_block(&b, 16, dst);
    }
}

void pi_q4_k_decode(const void *src, float *dst, int64_t n)
{
    const struct block_q4_k *p = src;
    struct super_block b;
    for (; n > 0; n -= PI_K_LEN, dst += PI_K_LEN, p++) {
        b.d = load_f16(p->d);
        b.dmin = load_f16(p->dmin);
        unpack_scales_min(p->scale, b.scale, b.min);
        unpack_nibbles(p->q, b.level);
        decode_block(&b, 32, dst);
    }
}

void pi_q5_k_decode(const void *src, float *dst, int64_t n)
{
    const struct block_q5_k *p = src;
    struct super_block b;
    for (; n > 0; n -= PI_K_LEN, dst += PI_K_LEN, p++) {
        b.d = load_f16(p->d);
        b.dmin = load_f16(p->dmin);
        unpack_scales_min(p->scale, b.scale, b.min);
        unpack_nibbles(p->q, b.level);
        add_high_bits(p->high, 4, b.level);
        decode_block(&b, 32, dst);
    }
}

void pi_q6_k_decode(const void *src, float *dst, int64_t n)
{
    const struct block_q6_k *p = src;
    struct super_block b = {0};
    for (; n > 0; n -= PI_K_LEN, dst += PI_K_LEN, p++) {
        b.d = load_f16(p->d);
        for (int j = 0; j < 16; j++)
            b.scale[j] = p->scale[j];
        unpack_six(p, b.level);
        decode_block(&b, 16, dst);
    }
}

/* ---- the search ---- */

/* v rounded to the nearest integer (ties to even), cut to [lo, hi]; NaN gives lo. */
static int round_level(float v, int lo, int hi)
{
    if (!(v > (float)lo))
        return lo;
    return v < (float)hi ? (int)lrintf(v) : hi;
}

/* How much an error in each weight of a group counts: large weights matter more, but none is free.
   w = rms(super-block) + |x|. */
static void importance(const float *x, int n, float rms, float *w)
{
    for (int i = 0; i < n; i++)
        w[i] = rms + fabsf(x[i]);
}

static float block_rms(const float *x)
{
    float sum = 0.0f;
    for (int i = 0; i < PI_K_LEN; i++)
        sum += x[i] * x[i];
    return sqrtf(sum / PI_K_LEN);
}

/* The scale s >= 0 and minimum m >= 0 that make sum w (s q - m - x)^2 small over levels q in [0,
   max]. For each trial scale the levels are rounded and s and m follow by weighted least squares.
   At that optimum the error is sum w x^2 - gain, so the largest gain wins. */
static float fit_with_min(const float *x, const float *w, int n, int max, float *min)
{
    float lo = 0.0f, hi = x[0], sw = 0.0f, swx = 0.0f;
    for (int i = 0; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
        sw += w[i];
        swx += w[i] * x[i];
    }
    *min = -lo;
    if (!(hi > lo))
        return 0.0f;
    float best_scale = (hi - lo) / (float)max, best_gain = -INFINITY;
    for (int step = -10; step <= 10; step++) {
        const float inverse = ((float)max + 0.1f * (float)step) / (hi - lo);
        float swq = 0.0f, swqq = 0.0f, swqx = 0.0f;
        for (int i = 0; i < n; i++) {
            const float q = (float)round_level((x[i] - lo) * inverse, 0, max);
            swq += w[i] * q;
            swqq += w[i] * q * q;
            swqx += w[i] * q * x[i];
        }
        const float det = sw * swqq - swq * swq;
        if (!(det > 0.0f))
            continue;
        float s = (sw * swqx - swq * swx) / det;
        float m = (swq * swqx - swqq * swx) / det;
        if (m < 0.0f) { /* the format has no negative minimum */
            m = 0.0f;
            s = swqx / swqq;
        }
        const float gain = s * swqx - m * swx;
        if (gain > best_gain) {
            best_gain = gain;
            best_scale = s;
            *min = m;
        }
    }
    return best_scale;
}

/* The scale s, of either sign, that makes sum w (s q - x)^2 small over levels q in [-half, half -
   1]. The weight of largest magnitude goes near -half. The error at the least-squares s is sum w
   x^2 - (sum w q x)^2 / sum w q^2. */
static float fit_around_zero(const float *x, const float *w, int n, int half)
{
    float extreme = 0.0f, best_scale = 0.0f, best_gain = -1.0f;
    for (int i = 0; i < n; i++)
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    if (extreme == 0.0f)
        return 0.0f;
    for (int step = -10; step <= 10; step++) {
        const float inverse = -((float)half + 0.1f * (float)step) / extreme;
        float swqq = 0.0f, swqx = 0.0f;
        for (int i = 0; i < n; i++) {
            const float q = (float)round_level(x[i] * inverse, -half, half - 1);
            swqq += w[i] * q * q;
            swqx += w[i] * q * x[i];
        }
        if (swqq > 0.0f && swqx * swqx > best_gain * swqq) {
            best_gain = swqx * swqx / swqq;
            best_scale = swqx / swqq;
        }
    }
    return best_scale;
}

/* ---- encoding ---- */

/* A factor that survives the trip through f16, saturated so that no block becomes infinite. */
static float as_f16(float v)
{
    const float limit = 65504.0f;
    v = v > limit ? limit : v < -limit ? -limit : v;
    return pi_f32_from_f16(pi_f16_from_f32(v));
}

static float divide(float a, float b)
{
    return b != 0.0f ? a / b : 0.0f;
}

static void encode_with_min(const float *x, int group, int max, int scale_max,
                            struct super_block *b)
{
    const int n_group = PI_K_LEN / group;
    const float rms = block_rms(x);
    float scale[N_GROUP_MAX], min[N_GROUP_MAX], w[32];
    float scale_top = 0.0f, min_top = 0.0f;
    for (int j = 0; j < n_group; j++) {
        importance(x + j * group, group, rms, w);
        scale[j] = fit_with_min(x + j * group, w, group, max, &min[j]);
        scale_top = scale[j] > scale_top ? scale[j] : scale_top;
        min_top = min[j] > min_top ? min[j] : min_top;
    }
    b->d = as_f16(scale_top / (float)scale_max);
    b->dmin = as_f16(min_top / (float)scale_max);
    for (int j = 0; j < n_group; j++) {
        b->scale[j] = round_level(divide(scale[j], b->d), 0, scale_max);
        b->min[j] = round_level(divide(min[j], b->dmin), 0, scale_max);
        const float d = b->d * (float)b->scale[j], m = b->dmin * (float)b->min[j];
        for (int i = j * group; i < (j + 1) * group; i++)
            b->level[i] = round_level(divide(x[i] + m, d), 0, max);
    }
}

/* Small scales lie in [-scale_half, scale_half - 1]; the extreme one takes -scale_half. */
static void encode_around_zero(const float *x, int half, int scale_half, struct super_block *b)
{
    const int group = 16, n_group = PI_K_LEN / group;
    const float rms = block_rms(x);
    float scale[N_GROUP_MAX], w[16], extreme = 0.0f;
    for (int j = 0; j < n_group; j++) {
        importance(x + j * group, group, rms, w);
        scale[j] = fit_around_zero(x + j * group, w, group, half);
        extreme = fabsf(scale[j]) > fabsf(extreme) ? scale[j] : extreme;
    }
    b->d = as_f16(extreme / (float)-scale_half);
    for (int j = 0; j < n_group; j++) {
        b->scale[j] = round_level(divide(scale[j], b->d), -scale_half, scale_half - 1);
        const float d = b->d * (float)b->scale[j];
        for (int i = j * group; i < (j + 1) * group; i++)
            b->level[i] = round_level(divide(x[i], d), -half, half - 1);
    }
}

void pi_q2_k_encode(const float *src, void *dst, int64_t n)
{
    struct block_q2_k *p = dst;
    struct super_block b;
    for (; n > 0; n -= PI_K_LEN, src += PI_K_LEN, p++) {
        encode_with_min(src, 16, 3, 15, &b);
        for (int j = 0; j < 16; j++)
            p->scale[j] = (uint8_t)(b.scale[j] | b.min[j] << 4);
        pack_pairs(b.level, p->q);
        store_f16(p->d, b.d);
        store_f16(p->dmin, b.dmin);
    }
}

void pi_q3_k_encode(const float *src, void *dst, int64_t n)
{
    struct block_q3_k *p = dst;
    struct super_block b;
    for (; n > 0; n -= PI_K_LEN, src += PI_K_LEN, p++) {
        encode_around_zero(src, 4, 32, &b);
        for (int i = 0; i < PI_K_LEN; i++)
            b.level[i] += 4;
        take_high_bits(b.level, 2, p->high);
        pack_pairs(b.level, p->q);
        pack_scales_q3(b.scale, p->scale);
        store_f16(p->d, b.d);
    }
}

void pi_q4_k_encode(const float *src, void *dst, int64_t n)
{
    struct block_q4_k *p = dst;
    struct super_block b;
    for (; n > 0; n -= PI_K_LEN, src += PI_K_LEN, p++) {
        encode_with_min(src, 32, 15, 63, &b);
        store_f16(p->d, b.d);
        store_f16(p->dmin, b.dmin);
        pack_scales_min(b.scale, b.min, p->scale);
        pack_nibbles(b.level, p->q);
    }
}

void pi_q5_k_encode(const float *src, void *dst, int64_t n)
{
    struct block_q5_k *p = dst;
    struct super_block b;
    for (; n > 0; n -= PI_K_LEN, src += PI_K_LEN, p++) {
        encode_with_min(src, 32, 31, 63, &b);
        store_f16(p->d, b.d);
        store_f16(p->dmin, b.dmin);
        pack_scales_min(b.scale, b.min, p->scale);
        take_high_bits(b.level, 4, p->high);
        pack_nibbles(b.level, p->q);
    }
}

void pi_q6_k_encode(const float *src, void *dst, int64_t n)
{
    struct block_q6_k *p = dst;
    struct super_block b;
    for (; n > 0; n -= PI_K_LEN, src += PI_K_LEN, p++) {
        encode_around_zero(src, 32, 128, &b);
        for (int j = 0; j < 16; j++)
            p->scale[j] = (int8_t)b.scale[j];
        pack_six(b.level, p);
        store_f16(p->d, b.d);
    }
}
