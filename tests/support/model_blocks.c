/*
 * model_blocks.c - random blocks. The quants of a block are random bits, which every reader of the
 * type must decode alike. Only the f16 scales are chosen, so that the weights have mean 0 and the
 * wanted standard deviation. All bytes come from operations that round alike on every machine: +,
 * *, / and sqrt of doubles, and the exact conversions of base/half.h.
 */
#include <math.h>

#include "base/half.h"
#include "model_blocks.h"

#define SCALE_SPREAD 0.25 /* block scales lie within 1 +- this of the tensor's */

/* splitmix64 (Steele, Lea, Flood 2014), as in testing.h. */
static uint64_t next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in (-1, 1) from the upper bits, times sqrt 3: variance 1. */
static double uniform(uint64_t bits)
{
    return ((double)(int64_t)(bits >> 40) + 0.5) * 0x1p-23 * sqrt(3.0) - sqrt(3.0);
}

static void put_u16(uint8_t *dst, uint16_t value)
{
    dst[0] = (uint8_t)value;
    dst[1] = (uint8_t)(value >> 8);
}

/*
 * How the weights of a block follow from its random bits:
 *   symmetric   w = d * s * q              s a random signed sub-block scale, or 1; q about 0
 *   affine      w = d * s * q + m * t      s, t random unsigned sub-block scales, or 1; q from 0
 * With m = -d * centre, centre the mean of q, affine weights have mean 0 as well. unit is the
 * standard deviation of the weights for d = 1.
 */
struct block_rule {
    enum pi_dtype type;
    int32_t d_offset;   /* of the f16 d in the block */
    int32_t m_offset;   /* of the f16 offset, -1: symmetric */
    int32_t m_sign;     /* how the format adds the offset: 1, or -1 where it subtracts */
    int32_t q_low, q_n; /* q is uniform over q_low .. q_low + q_n - 1 */
    int32_t s_low, s_n; /* so are s and t */
};

static const struct block_rule rules[] = {
    {PI_DTYPE_Q8_0, 0, -1, 0, -128, 256, 1, 1},      {PI_DTYPE_Q4_0, 0, -1, 0, -8, 16, 1, 1},
    {PI_DTYPE_Q5_0, 0, -1, 0, -16, 32, 1, 1},        {PI_DTYPE_Q3_K, 108, -1, 0, -4, 8, -32, 64},
    {PI_DTYPE_Q6_K, 208, -1, 0, -32, 64, -128, 256}, {PI_DTYPE_Q4_1, 0, 2, 1, 0, 16, 1, 1},
    {PI_DTYPE_Q5_1, 0, 2, 1, 0, 32, 1, 1},           {PI_DTYPE_Q2_K, 80, 82, -1, 0, 4, 0, 16},
    {PI_DTYPE_Q4_K, 0, 2, -1, 0, 16, 0, 64},         {PI_DTYPE_Q5_K, 0, 2, -1, 0, 32, 0, 64},
};

/* Types whose codes are numbers of a table: the standard deviation of these, and where d is. IQ4_XS
   has scales of 6 bits about zero, too. */
#define IQ4_DEVIATION 72.6
#define IQ4_XS_DEVIATION (IQ4_DEVIATION * 18.5)
#define MXFP4_DEVIATION 5.85

static double mean_of(int32_t low, int32_t n)
{
    return low + (n - 1) / 2.0;
}

static double mean_square_of(int32_t low, int32_t n)
{
    double mean = mean_of(low, n);
    return ((double)n * n - 1) / 12 + mean * mean;
}

/* Var(s q - c t) = E[s^2] E[q^2] - (E[s] E[q])^2 + c^2 Var(t), for independent s, q, t. */
static double unit_of(const struct block_rule *r)
{
    double centre = r->m_offset < 0 ? 0 : mean_of(r->q_low, r->q_n);
    double mean_s = mean_of(r->s_low, r->s_n), square_s = mean_square_of(r->s_low, r->s_n);
    double product = mean_s * mean_of(r->q_low, r->q_n);
    double variance = square_s * mean_square_of(r->q_low, r->q_n) - product * product +
                      centre * centre * (square_s - mean_s * mean_s);
    return sqrt(variance);
}

static const struct block_rule *find_rule(enum pi_dtype type)
{
    for (size_t i = 0; i < PI_LEN(rules); i++)
        if (rules[i].type == type)
            return &rules[i];
    return NULL;
}

/* The f16 pairs (d, offset) that blocks choose from, by one random byte. */
struct scale_table {
    uint16_t d[256], m[256];
};

static void fill_scales(struct scale_table *table, const struct block_rule *r, double std)
{
    double base = std / unit_of(r), centre = mean_of(r->q_low, r->q_n);
    for (int32_t i = 0; i < 256; i++) {
        double d = base * (1 + SCALE_SPREAD * ((i / 2) * 4 + 2 - 256) / 256.0);
        if (r->m_offset < 0 && i % 2 == 1)
            d = -d; /* quantisers of symmetric types write scales of either sign */
        table->d[i] = pi_f16_from_f32((float)d);
        table->m[i] = pi_f16_from_f32((float)(-r->m_sign * d * centre));
    }
}

/* The exponent e of 2^(e - 128), for weights of about this standard deviation. */
static int32_t exponent_of(double std)
{
    int32_t e = 128;
    for (double scale = MXFP4_DEVIATION; scale > std * 1.4; scale /= 2)
        e--;
    return e;
}

static void fill_words(uint64_t *state, uint8_t *dst, size_t size)
{
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = next(state);
        for (size_t i = 0; i < 8 && at + i < size; i++)
            dst[at + i] = (uint8_t)(word >> (8 * i));
    }
}

static void fill_blocks(const struct block_rule *r, const struct pi_dtype_traits *type,
                        uint64_t state, double std, uint8_t *dst, size_t size)
{
    struct scale_table table;
    fill_scales(&table, r, std);
    fill_words(&state, dst, size);
    for (uint8_t *block = dst; block < dst + size; block += type->block_bytes) {
        uint8_t choice = (uint8_t)(next(&state) >> 56);
        put_u16(block + r->d_offset, table.d[choice]);
        if (r->m_offset >= 0)
            put_u16(block + r->m_offset, table.m[choice]);
        /* No quantiser writes -128 in Q8_0, and kernels may rely on that. */
        for (int32_t i = 2; r->type == PI_DTYPE_Q8_0 && i < type->block_bytes; i++)
            block[i] = block[i] == 0x80 ? 0x81 : block[i];
    }
}

/* Random bytes, but for scales: f16 at the start of a block, or exponents of two values. */
static void fill_table_blocks(const struct pi_dtype_traits *type, uint64_t state, double std,
                              uint8_t *dst, size_t size)
{
    double unit = type->type == PI_DTYPE_IQ4_XS ? IQ4_XS_DEVIATION : IQ4_DEVIATION;
    int32_t e = exponent_of(std);
    fill_words(&state, dst, size);
    for (uint8_t *block = dst; block < dst + size; block += type->block_bytes) {
        uint64_t bits = next(&state);
        double spread = 1 + SCALE_SPREAD * ((double)(bits >> 56) - 128) / 128.0;
        if (type->type == PI_DTYPE_MXFP4)
            block[0] = (uint8_t)(e - (int32_t)(bits >> 63));
        else
            put_u16(block, pi_f16_from_f32((float)(std / unit * spread)));
    }
}

static void fill_floats(enum pi_dtype type, uint64_t state, double std, uint8_t *dst, size_t size)
{
    size_t step = type == PI_DTYPE_F32 ? 4 : 2;
    for (size_t at = 0; at < size; at += step) {
        float value = (float)(std * uniform(next(&state)));
        uint32_t bits = pi_bits_from_f32(value);
        if (type == PI_DTYPE_F32) {
            put_u16(dst + at, (uint16_t)bits);
            put_u16(dst + at + 2, (uint16_t)(bits >> 16));
        } else {
            put_u16(dst + at,
                    type == PI_DTYPE_F16 ? pi_f16_from_f32(value) : pi_bf16_from_f32(value));
        }
    }
}

void blocks_fill(const struct pi_dtype_traits *type, uint64_t stream, double std, uint8_t *dst,
                 size_t size)
{
    const struct block_rule *rule = find_rule(type->type);
    if (rule != NULL)
        fill_blocks(rule, type, stream, std, dst, size);
    else if (type->encode == NULL)
        fill_table_blocks(type, stream, std, dst, size);
    else
        fill_floats(type->type, stream, std, dst, size);
}

void blocks_vector(uint64_t stream, double mean, double std, float *dst, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        dst[i] = (float)(mean + std * uniform(next(&stream)));
}
