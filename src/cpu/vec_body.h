/*
 * vec_body.h - the kernels of vec.h as plain loops. Each vec_LEVEL.c includes this file and is
 * compiled with its level's flags, so that the compiler makes the level's instructions out of one
 * text. The loops leave it no freedom: every sum has its order written out, every fused operation
 * is an fmaf, contraction is off. All levels therefore give the same bits. A level whose compilers
 * do badly with vec_quantize_block defines VEC_OWN_QUANTIZE_BLOCK and writes it itself.
 */
#include <math.h>

#include "base/half.h"
#include "cpu/expf.h"
#include "cpu/kernels.h"
#include "cpu/unrolled.h"

#define VEC_LANES 16 /* partial sums of a reduction: a register of the widest level */

/* Partial sum j takes x[j], x[j + 16], ...; then halves are added: 8, 4, 2, 1. Squares of floats
   are exact in double. */
static double vec_sum_squares(const float *x, int32_t n)
{
    double s[VEC_LANES] = {0};
    int32_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        for (int32_t j = 0; j < VEC_LANES; j++)
            s[j] += (double)x[i + j] * (double)x[i + j];
    for (int32_t j = 0; i + j < n; j++)
        s[j] += (double)x[i + j] * (double)x[i + j];
    for (int32_t half = VEC_LANES / 2; half > 0; half /= 2)
        for (int32_t j = 0; j < half; j++)
            s[j] += s[j + half];
    return s[0];
}

static void vec_rms_norm(const float *x, const float *gain, float *out, int32_t n, float eps)
{
    float r = (float)(1.0 / sqrt(vec_sum_squares(x, n) / n + (double)eps));
    for (int32_t i = 0; i < n; i++)
        out[i] = x[i] * r * gain[i];
}

static void vec_add(float *restrict x, const float *restrict y, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        x[i] += y[i];
}

/* Beyond the exponential's range its ends will do: the quotient is 0 or its dividend there. */
TILE float vec_exp_range(float x)
{
    x = x < PI_EXP_MIN ? PI_EXP_MIN : x;
    return x > PI_EXP_MAX ? PI_EXP_MAX : x;
}

TILE float vec_silu(float x)
{
    return x / (1.0f + pi_expf(vec_exp_range(-x)));
}

static void vec_silu_mul(float *restrict gate, const float *restrict up, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        gate[i] = vec_silu(gate[i]) * up[i];
}

static void vec_oai_mul(float *restrict gate, const float *restrict up, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        float g = gate[i] < 7.0f ? gate[i] : 7.0f;
        float u = up[i] < 7.0f ? up[i] : 7.0f;
        u = u > -7.0f ? u : -7.0f;
        float x = -1.702f * g; /* above PI_EXP_MIN */
        x = x > PI_EXP_MAX ? PI_EXP_MAX : x;
        gate[i] = g / (1.0f + pi_expf(x)) * (u + 1.0f);
    }
}

/* The exponent's ends do here, too. Beyond its upper one x / 1e38 is as good as 0. */
static void vec_gelu_mul(float *restrict gate, const float *restrict up, int32_t n)
{
    const float minus_two_root = -1.5957691216f, cube = 0.044715f;
    for (int32_t i = 0; i < n; i++) {
        float g = gate[i], x = minus_two_root * fmaf(cube * g * g, g, g);
        x = x < PI_EXP_MIN ? PI_EXP_MIN : x;
        x = x > PI_EXP_MAX ? PI_EXP_MAX : x;
        gate[i] = g / (1.0f + pi_expf(x)) * up[i];
    }
}

/* tanh(y) = (1 - e) / (1 + e), e = exp(-2 |y|), with the sign of y. */
static void vec_soft_cap(float *x, float cap, int32_t n)
{
    const float scale = -2.0f / cap;
    for (int32_t i = 0; i < n; i++) {
        float y = fabsf(x[i]) * scale;
        y = y < PI_EXP_MIN ? PI_EXP_MIN : y;
        float e = pi_expf(y);
        x[i] = copysignf(cap * ((1.0f - e) / (1.0f + e)), x[i]);
    }
}

static void vec_rope_adjacent(float *x, const float *cs, int32_t n_pair)
{
    for (int32_t i = 0; i < n_pair; i++) {
        float a = x[2 * i], b = x[2 * i + 1], c = cs[2 * i], s = cs[2 * i + 1];
        x[2 * i] = fmaf(a, c, -(b * s));
        x[2 * i + 1] = fmaf(a, s, b * c);
    }
}

static void vec_rope_halves(float *restrict lo, float *restrict hi, const float *restrict cs,
                            int32_t n_pair)
{
    for (int32_t i = 0; i < n_pair; i++) {
        float a = lo[i], b = hi[i], c = cs[2 * i], s = cs[2 * i + 1];
        lo[i] = fmaf(a, c, -(b * s));
        hi[i] = fmaf(a, s, b * c);
    }
}

static void vec_rope(float *x, const float *cs, int32_t n_pair, bool adjacent)
{
    if (adjacent)
        vec_rope_adjacent(x, cs, n_pair);
    else
        vec_rope_halves(x, x + n_pair, cs, n_pair);
}

#if !defined(VEC_OWN_QUANTIZE_BLOCK)
/* One block of 32. Adding and subtracting 1.5 * 2^23 rounds to the nearest even integer. */
static void vec_quantize_block(const float *restrict x, int8_t *restrict q, float *restrict scale,
                               int16_t *restrict sum16)
{
    const float round = 12582912.0f;
    float m[VEC_LANES];
    int32_t code[PI_ACT_BLOCK];
    for (int32_t j = 0; j < VEC_LANES; j++) {
        float a = fabsf(x[j]), b = fabsf(x[j + VEC_LANES]);
        m[j] = a > b ? a : b;
    }
    for (int32_t half = VEC_LANES / 2; half > 0; half /= 2)
        for (int32_t j = 0; j < half; j++)
            m[j] = m[j] > m[j + half] ? m[j] : m[j + half];
    float inverse = m[0] >= PI_ACT_LEAST ? 127.0f / m[0] : 0.0f;
    *scale = m[0] / 127.0f;
    for (int32_t j = 0; j < PI_ACT_BLOCK; j++)
        code[j] = (int32_t)(x[j] * inverse + round - round);
    for (int32_t j = 0; j < PI_ACT_BLOCK; j++)
        q[j] = (int8_t)code[j];
    int32_t sum[2] = {0, 0};
    for (int32_t j = 0; j < VEC_LANES; j++)
        sum[0] += code[j];
    for (int32_t j = 0; j < VEC_LANES; j++)
        sum[1] += code[j + VEC_LANES];
    sum16[0] = (int16_t)sum[0];
    sum16[1] = (int16_t)sum[1];
}
#endif

static void vec_quantize(const float *x, int32_t n, int8_t *q, float *scale, int16_t *sum16)
{
    int32_t n_whole = n / PI_ACT_BLOCK;
    for (int32_t b = 0; b < n_whole; b++)
        vec_quantize_block(x + b * PI_ACT_BLOCK, q + b * PI_ACT_BLOCK, scale + b, sum16 + 2 * b);
    if (n % PI_ACT_BLOCK != 0) {
        float tail[PI_ACT_BLOCK] = {0};
        memcpy(tail, x + n_whole * PI_ACT_BLOCK, (size_t)(n % PI_ACT_BLOCK) * sizeof(float));
        vec_quantize_block(tail, q + n_whole * PI_ACT_BLOCK, scale + n_whole, sum16 + 2 * n_whole);
    }
}

static void vec_f16_from_f32(const float *restrict x, uint16_t *restrict out, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        out[i] = pi_f16_from_f32(x[i]);
}

static void vec_f32_from_f16(const uint16_t *restrict x, float *restrict out, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        out[i] = pi_f32_from_f16(x[i]);
}

#define VEC_TILE 32 /* keys whose sums stay in registers: two of the widest for each query */
#define VEC_EACH(i) for (int32_t i = 0; i < n; i++)

/* n keys from j on by 1, 2 or 4 queries. The counts and whether moduli count are constants where
   this is called, so that every loop over keys becomes registers. Sums are written out one by one:
   as an array of arrays compilers keep them in memory. */
TILE void vec_score_tile(const struct pi_vec_score *s, int32_t query, int32_t j,
                         const int32_t n_query, const int32_t n, const bool moduli)
{
    float s0[VEC_TILE], s1[VEC_TILE], s2[VEC_TILE], s3[VEC_TILE];
    size_t dim = (size_t)s->dim, n_pair = (size_t)s->n_pair, next = s->e_stride;
    size_t step = s->adjacent ? 2 : 1, other = s->adjacent ? 1 : n_pair;
    const float *w = s->w + (size_t)query * dim;
    const float *e = moduli ? s->e + (size_t)query * next : w;
    VEC_EACH(i) s0[i] = s1[i] = s2[i] = s3[i] = 0.0f;
    for (size_t f = 0; f < n_pair; f++) {
        const float *restrict a = s->key + f * step * s->stride + j;
        const float *restrict b = a + other * s->stride;
        const float *wa = w + f * step, *wb = wa + other, *we = e + (moduli ? f : 0);
        VEC_EACH(i)
        {
            float x = a[i], y = b[i], m = moduli ? sqrtf(x * x + y * y) : 0.0f;
            s0[i] = s0[i] + wa[0] * x + wb[0] * y;
            s0[i] = moduli ? s0[i] + we[0] * m : s0[i];
            if (n_query > 1) {
                s1[i] = s1[i] + wa[dim] * x + wb[dim] * y;
                s1[i] = moduli ? s1[i] + we[next] * m : s1[i];
            }
            if (n_query > 2) {
                s2[i] = s2[i] + wa[2 * dim] * x + wb[2 * dim] * y;
                s2[i] = moduli ? s2[i] + we[2 * next] * m : s2[i];
                s3[i] = s3[i] + wa[3 * dim] * x + wb[3 * dim] * y;
                s3[i] = moduli ? s3[i] + we[3 * next] * m : s3[i];
            }
        }
    }
    for (size_t d = 2 * n_pair; d < dim; d++) {
        const float *restrict a = s->key + d * s->stride + j;
        VEC_EACH(i)
        {
            s0[i] += w[d] * a[i];
            s1[i] += n_query > 1 ? w[dim + d] * a[i] : 0.0f;
            s2[i] += n_query > 2 ? w[2 * dim + d] * a[i] : 0.0f;
            s3[i] += n_query > 2 ? w[3 * dim + d] * a[i] : 0.0f;
        }
    }
    float *out = s->out + (size_t)query * s->out_stride + j;
    VEC_EACH(i) out[i] = s0[i];
    for (int32_t i = 0; n_query > 1 && i < n; i++)
        out[s->out_stride + (size_t)i] = s1[i];
    for (int32_t i = 0; n_query > 2 && i < n; i++) {
        out[2 * s->out_stride + (size_t)i] = s2[i];
        out[3 * s->out_stride + (size_t)i] = s3[i];
    }
}

/* All queries on n keys. */
TILE void vec_score_keys(const struct pi_vec_score *s, int32_t j, const int32_t n,
                         const bool moduli)
{
    int32_t q = 0;
    for (; q + 4 <= s->n_query; q += 4)
        vec_score_tile(s, q, j, 4, n, moduli);
    for (; q + 2 <= s->n_query; q += 2)
        vec_score_tile(s, q, j, 2, n, moduli);
    if (q < s->n_query)
        vec_score_tile(s, q, j, 1, n, moduli);
}

TILE void vec_score_all(const struct pi_vec_score *s, const bool moduli)
{
    int32_t j = 0;
    for (; j + VEC_TILE <= s->n; j += VEC_TILE)
        vec_score_keys(s, j, VEC_TILE, moduli);
    for (; j + VEC_LANES <= s->n; j += VEC_LANES)
        vec_score_keys(s, j, VEC_LANES, moduli);
    for (; j < s->n; j++)
        vec_score_keys(s, j, 1, moduli);
}

static void vec_score(const struct pi_vec_score *s)
{
    if (s->e != NULL)
        vec_score_all(s, true);
    else
        vec_score_all(s, false);
}

TILE double vec_sum_of(const float *x, int32_t n, double mean, const bool square)
{
    double s[VEC_LANES] = {0};
    int32_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        for (int32_t j = 0; j < VEC_LANES; j++) {
            double d = (double)x[i + j] - mean;
            s[j] += square ? d * d : d;
        }
    for (int32_t j = 0; i + j < n; j++) {
        double d = (double)x[i + j] - mean;
        s[j] += square ? d * d : d;
    }
    for (int32_t half = VEC_LANES / 2; half > 0; half /= 2)
        for (int32_t j = 0; j < half; j++)
            s[j] += s[j + half];
    return s[0];
}

static double vec_sum(const float *x, int32_t n, double mean, bool square)
{
    return square ? vec_sum_of(x, n, mean, true) : vec_sum_of(x, n, mean, false);
}

static void vec_standardise(float *x, int32_t n, double mean, double scale)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = (float)(((double)x[i] - mean) * scale);
}

static void vec_take_max(float *restrict z, const float *restrict x, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        z[i] = x[i] > z[i] ? x[i] : z[i];
}

/* Before a loop that writes nothing which it reads. Clang, which has no word for this alone, checks
   when it runs. */
#if defined(__clang__)
#define VEC_APART
#else
#define VEC_APART _Pragma("GCC ivdep")
#endif

/* The usual length of a part, for which there is a loop that knows its end. */
#define VEC_PART 64

/* More rows than have a loop of their own below, or parts of other lengths. */
static void vec_weigh_many(const struct pi_vec_weigh *p, const float *part, int32_t begin,
                           int32_t end)
{
    for (; begin < end; begin += VEC_PART) {
        int32_t n = end - begin < VEC_PART ? end - begin : VEC_PART;
        const uint16_t *factor = p->factor + begin;
        float *out = p->out + begin, sum[VEC_PART];
        for (int32_t r = 0; r < p->n_row; r++) {
            const float *w = p->w + (size_t)r * p->stride + begin;
            float c = part != NULL ? p->c[r] * part[r] : p->c[r];
            for (int32_t i = 0; i < n; i++)
                sum[i] = r == 0 ? c * w[i] : fmaf(c, w[i], sum[i]);
        }
        VEC_APART
        for (int32_t i = 0; i < n; i++) {
            float x = sum[i] * pi_f32_from_bf16(factor[i]);
            out[i] = p->add ? out[i] + x : x;
        }
    }
}

/* 1 to 4 rows of a part of the usual length: the count is a constant where this is called. */
TILE void vec_weigh_few(const struct pi_vec_weigh *p, const int32_t n_row, const bool add,
                        const float *part, int32_t begin)
{
    const float *w = p->w + begin;
    const uint16_t *factor = p->factor + begin;
    const float *w1 = w + (n_row > 1 ? p->stride : 0), *w2 = w1 + (n_row > 2 ? p->stride : 0);
    const float *w3 = w2 + (n_row > 3 ? p->stride : 0);
    float *out = p->out + begin, c[4] = {0};
    for (int32_t r = 0; r < n_row; r++)
        c[r] = part != NULL ? p->c[r] * part[r] : p->c[r];
    VEC_APART
    for (int32_t i = 0; i < VEC_PART; i++) {
        float s = c[0] * w[i];
        s = n_row > 1 ? fmaf(c[1], w1[i], s) : s;
        s = n_row > 2 ? fmaf(c[2], w2[i], s) : s;
        s = n_row > 3 ? fmaf(c[3], w3[i], s) : s;
        s *= pi_f32_from_bf16(factor[i]);
        out[i] = add ? out[i] + s : s;
    }
}

TILE void vec_weigh_parts(const struct pi_vec_weigh *p, const int32_t n_row, const bool add)
{
    const float *part = p->part;
    for (int32_t j = 0, begin = 0; j < p->n_part; begin = p->end[j++]) {
        if (n_row <= 4 && p->end[j] - begin == VEC_PART)
            vec_weigh_few(p, n_row, add, part, begin);
        else
            vec_weigh_many(p, part, begin, p->end[j]);
        part = part != NULL ? part + p->part_stride : NULL;
    }
}

TILE void vec_weigh_rows(const struct pi_vec_weigh *p, const int32_t n_row)
{
    if (p->add)
        vec_weigh_parts(p, n_row, true);
    else
        vec_weigh_parts(p, n_row, false);
}

static void vec_weigh(const struct pi_vec_weigh *p)
{
    switch (p->n_row) {
    case 1:
        vec_weigh_rows(p, 1);
        break;
    case 2:
        vec_weigh_rows(p, 2);
        break;
    case 3:
        vec_weigh_rows(p, 3);
        break;
    case 4:
        vec_weigh_rows(p, 4);
        break;
    default:
        vec_weigh_rows(p, INT32_MAX);
    }
}

/* x where its age is in range, else infinity, so that no entry in range is higher. NaN is 0. */
TILE float vec_in_range(float x, int32_t age, int32_t lo, int32_t hi)
{
    float y = x == x ? x : 0.0f;
    return ((age >= lo) & (age < hi)) ? y : INFINITY;
}

/* Three short passes over data in the first cache: the lowest x, the lowest age among its entries,
   and the index of that entry. */
static int32_t vec_lowest(const float *x, const int32_t *age, int32_t n, int32_t lo, int32_t hi)
{
    float least[VEC_LANES];
    int32_t oldest[VEC_LANES], i = 0, whole = n / VEC_LANES * VEC_LANES;
    for (int32_t j = 0; j < VEC_LANES; j++) {
        least[j] = INFINITY;
        oldest[j] = INT32_MAX;
    }
    for (i = 0; i < whole; i += VEC_LANES)
        for (int32_t j = 0; j < VEC_LANES; j++) {
            float y = vec_in_range(x[i + j], age[i + j], lo, hi);
            least[j] = y < least[j] ? y : least[j];
        }
    for (; i < n; i++) {
        float y = vec_in_range(x[i], age[i], lo, hi);
        least[0] = y < least[0] ? y : least[0];
    }
    for (int32_t j = 1; j < VEC_LANES; j++)
        least[0] = least[j] < least[0] ? least[j] : least[0];
    float lowest = least[0];
    for (i = 0; i < whole; i += VEC_LANES)
        for (int32_t j = 0; j < VEC_LANES; j++) {
            bool same = vec_in_range(x[i + j], age[i + j], lo, hi) == lowest;
            bool may = same & (age[i + j] >= lo) & (age[i + j] < hi);
            int32_t a = may ? age[i + j] : INT32_MAX;
            oldest[j] = a < oldest[j] ? a : oldest[j];
        }
    for (; i < n; i++) {
        bool same = vec_in_range(x[i], age[i], lo, hi) == lowest;
        bool may = same & (age[i] >= lo) & (age[i] < hi);
        int32_t a = may ? age[i] : INT32_MAX;
        oldest[0] = a < oldest[0] ? a : oldest[0];
    }
    for (int32_t j = 1; j < VEC_LANES; j++)
        oldest[0] = oldest[j] < oldest[0] ? oldest[j] : oldest[0];
    if (oldest[0] == INT32_MAX)
        return -1;
    for (i = 0; i + VEC_LANES <= n; i += VEC_LANES) {
        int32_t found = 0;
        for (int32_t j = 0; j < VEC_LANES; j++)
            found |= age[i + j] == oldest[0];
        if (found)
            break;
    }
    while (age[i] != oldest[0])
        i++;
    return i;
}

/* The bits of floats from 0 to infinity, read as integers, have the order of the floats; all other
   floats have higher bits. Compilers vectorise extremes of integers in any order. */
static inline uint32_t vec_bits(const float *x)
{
    uint32_t bits;
    memcpy(&bits, x, sizeof(bits));
    return bits;
}

TILE uint32_t vec_low_bits(const float *x, const int32_t n, uint32_t *high)
{
    uint32_t low = UINT32_MAX, top = *high;
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits = vec_bits(x + i);
        low = bits < low ? bits : low;
        top = bits > top ? bits : top;
    }
    *high = top;
    return low;
}

/* Where the lowest is is looked for in the block that has it. */
#define VEC_BLOCK 256

static int32_t vec_single_lowest(const float *x, int32_t n)
{
    uint32_t lowest = UINT32_MAX, high = 0, infinite = 0x7f800000u;
    int32_t begin = 0, n_low = 0, at = 0;
    bool twice = false;
    for (int32_t i = 0; i < n; i += VEC_BLOCK) {
        uint32_t low = n - i >= VEC_BLOCK ? vec_low_bits(x + i, VEC_BLOCK, &high)
                                          : vec_low_bits(x + i, n - i, &high);
        twice = low < lowest ? false : twice || low == lowest;
        begin = low < lowest ? i : begin;
        lowest = low < lowest ? low : lowest;
    }
    if (twice || lowest == 0 || lowest == infinite || high > infinite)
        return -1;
    n = n - begin < VEC_BLOCK ? n - begin : VEC_BLOCK;
    for (int32_t i = 0; i < n; i++) {
        bool same = vec_bits(x + begin + i) == lowest;
        n_low += same;
        at += same ? i : 0;
    }
    return n_low == 1 ? begin + at : -1;
}

static float vec_distance(const float *x, const float *y, int32_t n)
{
    float s[VEC_LANES] = {0};
    int32_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        for (int32_t j = 0; j < VEC_LANES; j++) {
            float d = x[i + j] - y[i + j];
            s[j] += d * d;
        }
    for (int32_t j = 0; i + j < n; j++) {
        float d = x[i + j] - y[i + j];
        s[j] += d * d;
    }
    for (int32_t half = VEC_LANES / 2; half > 0; half /= 2)
        for (int32_t j = 0; j < half; j++)
            s[j] += s[j + half];
    return s[0];
}

#define VEC_GROUP 128 /* elements of a group */

/* Turns signs as the bits say, n a multiple of 16. */
static void vec_signs(const float *restrict x, int32_t n, const uint32_t *bits, float scale,
                      float *restrict out)
{
    for (int32_t i = 0; i < n; i += VEC_LANES) {
        uint32_t minus = ~(bits[i / 32] >> (i % 32));
        for (int32_t j = 0; j < VEC_LANES; j++) {
            uint32_t sign = (minus >> j) << 31;
            out[i + j] = pi_f32_from_bits(pi_bits_from_f32(x[i + j] * scale) ^ sign);
        }
    }
}

/* Each round writes sums of neighbours to the first half and differences to the second. So the
   elements that meet in the next round are neighbours again, and the last round restores the
   order. */
static void vec_butterflies(const float *restrict x, int32_t n, float *restrict out)
{
    for (int32_t i = 0; i < n / 2; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        out[i] = a + b;
        out[n / 2 + i] = a - b;
    }
}

static void vec_wht(float *x, int32_t n, const uint32_t *before, const uint32_t *after, float scale)
{
    float buffer[2][VEC_GROUP];
    int32_t from = 0;
    vec_signs(x, n, before, 1.0f, buffer[0]);
    for (int32_t i = 1; i < n; i *= 2, from = 1 - from)
        vec_butterflies(buffer[from], n, buffer[1 - from]);
    vec_signs(buffer[from], n, after, scale, x);
}

#define VEC_CODES 16 /* of a table at most */

/* bound[k]: what x must reach to be code k. */
static void vec_bounds(const float *table, int32_t n_code, float length, float *bound)
{
    for (int32_t k = 1; k < n_code; k++)
        bound[k] = 0.5f * (table[k - 1] + table[k]) * length;
}

/* Loops over elements stand inside those over codes, which compilers make wide. */
static void vec_table_codes(const float *restrict x, int32_t n, const float *table, int32_t n_code,
                            float length, uint8_t *restrict code)
{
    float bound[VEC_CODES];
    int32_t count[VEC_GROUP] = {0};
    vec_bounds(table, n_code, length, bound);
    for (int32_t k = 1; k < n_code; k++) {
        float least = bound[k];
        for (int32_t i = 0; i < n; i++)
            count[i] += x[i] >= least;
    }
    for (int32_t i = 0; i < n; i++)
        code[i] = (uint8_t)count[i];
}

/* Sum of a[i] b[i], sixteen partial sums; n is a multiple of 16. */
static float vec_dot(const float *a, const float *b, int32_t n)
{
    float s[VEC_LANES] = {0};
    for (int32_t i = 0; i + VEC_LANES <= n; i += VEC_LANES)
        for (int32_t j = 0; j < VEC_LANES; j++)
            s[j] += a[i + j] * b[i + j];
    for (int32_t half = VEC_LANES / 2; half > 0; half /= 2)
        for (int32_t j = 0; j < half; j++)
            s[j] += s[j + half];
    return s[0];
}

static void vec_table_fit(const float *restrict x, int32_t n, const float *table, int32_t n_code,
                          float length, float *along, float *own)
{
    float bound[VEC_CODES], c[VEC_GROUP];
    vec_bounds(table, n_code, length, bound);
    for (int32_t i = 0; i < n; i++)
        c[i] = table[0];
    for (int32_t k = 1; k < n_code; k++) {
        float step = table[k] - table[k - 1], least = bound[k];
        for (int32_t i = 0; i < n; i++)
            c[i] += x[i] >= least ? step : 0.0f;
    }
    *along = vec_dot(x, c, n);
    *own = vec_dot(c, c, n);
}

#include "cpu/vec_delta.h"
#include "cpu/vec_logprob.h"

static void vec_init(struct pi_vec_kernels *k)
{
    k->sigmoid_mul = vec_sigmoid_mul;
    k->unit = vec_unit;
    k->product = vec_product;
    k->conv = vec_conv;
    k->delta = vec_delta;
    k->wht = vec_wht;
    k->rms_norm = vec_rms_norm;
    k->largest = vec_largest;
    k->exp_sum = vec_exp_sum;
    k->add = vec_add;
    k->silu_mul = vec_silu_mul;
    k->oai_mul = vec_oai_mul;
    k->gelu_mul = vec_gelu_mul;
    k->soft_cap = vec_soft_cap;
    k->rope = vec_rope;
    k->quantize = vec_quantize;
    k->f16_from_f32 = vec_f16_from_f32;
    k->f32_from_f16 = vec_f32_from_f16;
    k->score = vec_score;
    k->sum = vec_sum;
    k->standardise = vec_standardise;
    k->take_max = vec_take_max;
    k->weigh = vec_weigh;
    k->lowest = vec_lowest;
    k->single_lowest = vec_single_lowest;
    k->distance = vec_distance;
    k->table_codes = vec_table_codes;
    k->table_fit = vec_table_fit;
}
