/*
 * matmul_neon_quant.c - products with quantised weights on NEON with the dot product instructions
 * of Armv8.2. The 32-bit lanes of four registers are the 16 rows of a group. Codes are signed
 * bytes; an instruction multiplies them by four activations that it selects from a register of
 * sixteen. It must not know the loops around tiles (matmul_blocked.h) nor the bits of any type
 * (matmul_quant.h). Invariant: the arithmetic is exactly matmul.h's.
 */
#include <arm_neon.h>

#include "cpu/matmul_blocked.h"
#include "cpu/matmul_neon.h"

/* ---- instructions for matmul_quant.h ------------------------------------------------------ */

typedef uint32x4_t lanes;
typedef float32x4_t flanes;
enum { N_PART = 4, FEW_PART = 4, CODES_IN_PLACE = false, DOT_ASKS = false };

/* clang-format off */
PI_INLINE lanes bytes(int value) { return vreinterpretq_u32_u8(vdupq_n_u8((uint8_t)value)); }
PI_INLINE lanes lanes_zero(void) { return vdupq_n_u32(0); }
PI_INLINE lanes lanes_load(const uint8_t *p) { return vreinterpretq_u32_u8(vld1q_u8(p)); }
PI_INLINE void lanes_store(uint8_t *p, lanes x) { vst1q_u8(p, vreinterpretq_u8_u32(x)); }
PI_INLINE flanes flanes_load(const float *p) { return vld1q_f32(p); }
PI_INLINE void flanes_store(float *p, flanes x) { vst1q_f32(p, x); }
PI_INLINE flanes flanes_set1(const float *p) { return vld1q_dup_f32(p); }
PI_INLINE flanes flanes_mul(flanes a, flanes b) { return vmulq_f32(a, b); }
PI_INLINE flanes flanes_fma(flanes a, flanes b, flanes c) { return vfmaq_f32(c, a, b); }
PI_INLINE flanes flanes_int(lanes x) { return vcvtq_f32_s32(vreinterpretq_s32_u32(x)); }
PI_INLINE flanes flanes_neg(flanes x) { return vnegq_f32(x); }
PI_INLINE lanes lanes_plus(lanes x, int32_t n) { return vaddq_u32(x, vdupq_n_u32((uint32_t)n)); }
PI_INLINE lanes lanes_panel(lanes x, int32_t zero) { (void)zero; return x; }
/* clang-format on */

/* Signed again. */
PI_INLINE lanes lanes_q8_0(lanes x)
{
    return veorq_u32(x, bytes(0x80));
}

PI_INLINE void lanes_prefetch(const char *p)
{
    __builtin_prefetch(p);
}

PI_INLINE flanes flanes_half(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

/* A shift by -n goes right, by n left. */
PI_INLINE lanes lanes_field(lanes x, int32_t n, int mask)
{
    return vandq_u32(vshlq_u32(x, vdupq_n_s32(-n)), bytes(mask));
}

PI_INLINE lanes lanes_with_high(lanes code, lanes x, int32_t n, int mask)
{
    return vorrq_u32(code, lanes_field(x, n, mask));
}

PI_INLINE lanes lanes_with_bits(lanes code, lanes x, int32_t i)
{
    static const uint32_t rows[4] = {0x00000000u, 0x04040404u, 0x08080808u, 0x0c0c0c0cu};
    /* Byte i / 2 of each row's word, four times. */
    uint8x16_t pick = vreinterpretq_u8_u32(
        vaddq_u32(vld1q_u32(rows), vdupq_n_u32((uint32_t)(i / 2) * 0x01010101u)));
    uint8x16_t bit = vreinterpretq_u8_u32(vdupq_n_u32(i % 2 == 0 ? 0x08040201u : 0x80402010u));
    uint8x16_t set = vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_u32(x), pick), bit);
    return vorrq_u32(code, vandq_u32(vreinterpretq_u32_u8(set), bytes(16)));
}

PI_INLINE lanes lanes_byte(lanes x, int32_t i)
{
    return vandq_u32(vshlq_u32(x, vdupq_n_s32(-i * 8)), vdupq_n_u32(255));
}

PI_INLINE lanes lanes_sbyte(lanes x, int32_t i)
{
    int32x4_t up = vreinterpretq_s32_u32(vshlq_u32(x, vdupq_n_s32(24 - i * 8)));
    return vreinterpretq_u32_s32(vshrq_n_s32(up, 24));
}

PI_INLINE lanes lanes_table(lanes x, const uint8_t *table)
{
    return vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_u32(x)));
}

PI_INLINE lanes lanes_u8(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof(four));
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}

PI_INLINE lanes lanes_u16(const uint16_t *p)
{
    return vmovl_u16(vld1_u16(p));
}

PI_INLINE flanes flanes_exponent(lanes x)
{
    lanes bits = vmaxq_u32(vshlq_n_u32(x, 23), vdupq_n_u32(0x00400000));
    return vmulq_f32(vreinterpretq_f32_u32(bits), vdupq_n_f32(0.5f));
}

/* sum + code times activations 4 n .. 4 n + 3 of q; the instruction wants n as a literal. */
PI_INLINE lanes add_dot(lanes sum, lanes code, int8x16_t q, int32_t n)
{
    int32x4_t s = vreinterpretq_s32_u32(sum);
    int8x16_t c = vreinterpretq_s8_u32(code);
    if (n == 0)
        s = vdotq_laneq_s32(s, c, q, 0);
    else if (n == 1)
        s = vdotq_laneq_s32(s, c, q, 1);
    else if (n == 2)
        s = vdotq_laneq_s32(s, c, q, 2);
    else
        s = vdotq_laneq_s32(s, c, q, 3);
    return vreinterpretq_u32_s32(s);
}

struct shape;

PI_INLINE lanes dot(const struct shape *s, const lanes code[8], int32_t begin, int32_t end,
                    const int8_t *q, struct pi_ask ask)
{
    (void)ask;
    (void)s;
    lanes sum[2] = {lanes_zero(), lanes_zero()};
    PI_UNROLL
    for (int32_t half = begin / 4; half < end / 4; half++) {
        int8x16_t x = vld1q_s8(q + half * 16);
        PI_UNROLL
        for (int32_t i = 0; i < 4; i++)
            sum[half] = add_dot(sum[half], code[half * 4 + i], x, i);
    }
    return vaddq_u32(sum[0], sum[1]);
}

#include "cpu/matmul_quant.h"

/* ---- tiles -------------------------------------------------------------------------------- */

#define TILE_TOK 4 /* 4 tokens x 4 parts: 16 integer accumulators of 32 registers */

/* sums += codes of 16 columns, from word first on, times the tile's tokens, for n_part parts of the
   rows from part on. */
PI_INLINE void tile_dots(const struct pi_tile *p, const uint8_t *code, const int8_t *q,
                         int32_t half, int32_t part, int32_t n_part, int32_t n_tok,
                         lanes sums[TILE_TOK][N_PART])
{
    int8x16_t x[TILE_TOK];
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++)
        x[t] = vld1q_s8(q + (size_t)t * p->q_stride + half * 16);
    PI_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        PI_UNROLL
        for (int32_t r = 0; r < n_part; r++) {
            lanes c = word_at(code, half * 4 + i, part + r);
            PI_UNROLL
            for (int32_t t = 0; t < n_tok; t++)
                sums[t][r] = add_dot(sums[t][r], c, x[t], i);
        }
    }
}

/* One block of 32 columns of n_part parts of the rows; the accumulators live in the output. */
PI_INLINE void tile_block(const struct pi_tile *p, size_t block, const struct shape s, int32_t part,
                          int32_t n_part, int32_t n_tok)
{
    const uint8_t *code = p->panel[0].code + block * PI_CODE_BYTES;
    const int8_t *q = p->q + block * PI_ACT_BLOCK;
    const size_t n_sub = (size_t)(32 / s.sub_len), row = (size_t)part * 4;
    const float *scale = p->panel[0].scale + block * n_sub * PI_GROUP + row;
    const float *min = p->panel[0].min + block * n_sub * PI_GROUP + row;
    const int32_t *aux = p->aux + block * n_sub;
    flanes term[TILE_TOK][N_PART];
    PI_UNROLL
    for (size_t i = 0; i < n_sub; i++) {
        lanes sums[TILE_TOK][N_PART];
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++) {
            PI_UNROLL
            for (int32_t r = 0; r < n_part; r++)
                sums[t][r] =
                    s.has_min
                        ? lanes_zero()
                        : vreinterpretq_u32_s32(vld1q_dup_s32(aux + (size_t)t * p->aux_stride + i));
        }
        tile_dots(p, code, q, (int32_t)i, part, n_part, n_tok, sums);
        if (n_sub == 1)
            tile_dots(p, code, q, 1, part, n_part, n_tok, sums);
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++) {
            PI_UNROLL
            for (int32_t r = 0; r < n_part; r++) {
                flanes d = flanes_load(scale + i * PI_GROUP + (size_t)r * 4);
                flanes value = flanes_int(sums[t][r]);
                term[t][r] = i == 0 ? flanes_mul(value, d) : flanes_fma(value, d, term[t][r]);
            }
        }
    }
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++) {
        flanes x_scale = flanes_set1(p->x_scale + (size_t)t * p->x_stride + block);
        PI_UNROLL
        for (int32_t r = 0; r < n_part; r++) {
            float *out = p->out + (size_t)t * p->out_stride + row + (size_t)r * 4;
            for (size_t i = 0; i < n_sub && s.has_min; i++)
                term[t][r] = flanes_fma(flanes_load(min + i * PI_GROUP + (size_t)r * 4),
                                        sum_of(aux + (size_t)t * p->aux_stride + i), term[t][r]);
            flanes acc = p->first && block == 0 ? vdupq_n_f32(0.0f) : flanes_load(out);
            flanes_store(out, flanes_fma(term[t][r], x_scale, acc));
        }
    }
}

/* Two scales per block leave registers for half of the rows. */
PI_INLINE void tile_tokens(const struct pi_tile *p, const struct shape s, int32_t n_tok)
{
    const struct pi_tile tile = *p; /* stores to the output cannot change this copy */
    const int32_t n_part = s.sub_len == 32 ? N_PART : N_PART / 2;
    for (size_t b = 0; b < (size_t)tile.n_block; b++)
        for (int32_t part = 0; part < N_PART; part += n_part)
            tile_block(&tile, b, s, part, n_part, n_tok);
}

/* Enters the version with the number of tokens as a constant. */
PI_INLINE void tile_enter(const struct pi_tile *p, const struct shape s)
{
    if (p->n_tok == 1)
        tile_tokens(p, s, 1);
    else if (p->n_tok == 2)
        tile_tokens(p, s, 2);
    else if (p->n_tok == 3)
        tile_tokens(p, s, 3);
    else
        tile_tokens(p, s, 4);
}

/* Types that differ in their bits only share a tile. */
/* clang-format off */
static void tile_32(const struct pi_tile *p) { tile_enter(p, shape_q8_0); }
static void tile_32_min(const struct pi_tile *p) { tile_enter(p, shape_q4_1); }
static void tile_16(const struct pi_tile *p) { tile_enter(p, shape_q6_k); }
static void tile_16_min(const struct pi_tile *p) { tile_enter(p, shape_q2_k); }
/* clang-format on */

/* ---- the types ---------------------------------------------------------------------------- */

QUANT_TYPES(QUANT_FEW)

#define QUANT_KERNELS(name, tile_fn, zero_code)                                                    \
    {                                                                                              \
        .decode = decode_##name, .tile = tile_fn, .few = few_##name, .zero = zero_code,            \
        .tile_zero = zero_code, .few_tok = PI_FEW_TOK_MAX, .few_part = FEW_PART,                   \
        .tile_tok = TILE_TOK, .tile_group = 1                                                      \
    }

/* In the order of pi_matmul_index; the float types before have none. */
static const struct pi_quant_kernels kernels[PI_MATMUL_N_TYPE] = {
    [3] = QUANT_KERNELS(q8_0, tile_32, 0),      [4] = QUANT_KERNELS(q4_0, tile_32, 8),
    [5] = QUANT_KERNELS(q4_1, tile_32_min, 0),  [6] = QUANT_KERNELS(q5_0, tile_32, 16),
    [7] = QUANT_KERNELS(q5_1, tile_32_min, 0),  [8] = QUANT_KERNELS(q2_k, tile_16_min, 0),
    [9] = QUANT_KERNELS(q3_k, tile_16, 4),      [10] = QUANT_KERNELS(q4_k, tile_32_min, 0),
    [11] = QUANT_KERNELS(q5_k, tile_32_min, 0), [12] = QUANT_KERNELS(q6_k, tile_16, 32),
    [13] = QUANT_KERNELS(iq4_nl, tile_32, 0),   [14] = QUANT_KERNELS(iq4_xs, tile_32, 0),
    [15] = QUANT_KERNELS(mxfp4, tile_32, 12),
};

static void mul_quantised(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                          int32_t group_end, float *out, size_t out_stride, void *scratch)
{
    mul_blocked(&kernels[pi_matmul_index(w->type)], w, a, group_begin, group_end, out, out_stride,
                scratch);
}

void pi_matmul_init_neon_quant(struct pi_matmul_kernels *k)
{
    for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++)
        if (kernels[i].tile != NULL)
            k->mul[i] = mul_quantised;
}
