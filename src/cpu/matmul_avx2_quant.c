/*
 * matmul_avx2_quant.c - products with quantised weights on AVX2. The 32-bit lanes of two registers
 * are the 16 rows of a group. Pairs of columns are multiplied into 16 bits and summed there as long
 * as the type's codes cannot overflow. It must not know the loops around tiles (matmul_blocked.h)
 * nor the bits of any type (matmul_quant.h). Invariant: the arithmetic is exactly matmul.h's.
 */
#include <immintrin.h>

#include "cpu/matmul_avx2.h"
#include "cpu/matmul_blocked.h"

/* ---- instructions for matmul_quant.h ------------------------------------------------------ */

typedef __m256i lanes;
typedef __m256 flanes;
enum { N_PART = 2, FEW_PART = 4, CODES_IN_PLACE = false, DOT_ASKS = false };

/* clang-format off */
PI_INLINE lanes bytes(int value) { return _mm256_set1_epi8((char)value); }
PI_INLINE lanes lanes_zero(void) { return _mm256_setzero_si256(); }
PI_INLINE void lanes_store(uint8_t *p, lanes x) { _mm256_store_si256((__m256i *)(void *)p, x); }
PI_INLINE flanes flanes_load(const float *p) { return _mm256_load_ps(p); }
PI_INLINE void flanes_store(float *p, flanes x) { _mm256_storeu_ps(p, x); }
PI_INLINE flanes flanes_set1(const float *p) { return _mm256_set1_ps(*p); }
PI_INLINE flanes flanes_mul(flanes a, flanes b) { return _mm256_mul_ps(a, b); }
PI_INLINE flanes flanes_fma(flanes a, flanes b, flanes c) { return _mm256_fmadd_ps(a, b, c); }
PI_INLINE flanes flanes_int(lanes x) { return _mm256_cvtepi32_ps(x); }
PI_INLINE flanes flanes_neg(flanes x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }
PI_INLINE lanes lanes_plus(lanes x, int32_t n) { return _mm256_add_epi32(x, _mm256_set1_epi32(n)); }
PI_INLINE lanes lanes_panel(lanes x, int32_t zero) { (void)zero; return x; }
/* clang-format on */

/* Signed again. */
PI_INLINE lanes lanes_q8_0(lanes x)
{
    return _mm256_xor_si256(x, bytes(0x80));
}

PI_INLINE void lanes_prefetch(const char *p)
{
    _mm_prefetch(p, _MM_HINT_T0);
}

PI_INLINE lanes lanes_load(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

PI_INLINE flanes flanes_half(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p));
}

PI_INLINE lanes lanes_field(lanes x, int32_t n, int mask)
{
    return _mm256_and_si256(_mm256_srlv_epi32(x, _mm256_set1_epi32(n)), bytes(mask));
}

/* A shift by a negative number, as unsigned, gives 0. */
PI_INLINE lanes lanes_with_high(lanes code, lanes x, int32_t n, int mask)
{
    lanes right = _mm256_srlv_epi32(x, _mm256_set1_epi32(n));
    lanes left = _mm256_sllv_epi32(x, _mm256_set1_epi32(-n));
    return _mm256_or_si256(code, _mm256_and_si256(_mm256_or_si256(right, left), bytes(mask)));
}

PI_INLINE lanes lanes_with_bits(lanes code, lanes x, int32_t i)
{
    /* Byte i / 2 of each row's word, four times. */
    lanes pick =
        _mm256_add_epi32(_mm256_set1_epi32(i / 2 * 0x01010101),
                         _mm256_setr_epi32(0x00000000, 0x04040404, 0x08080808, 0x0c0c0c0c,
                                           0x00000000, 0x04040404, 0x08080808, 0x0c0c0c0c));
    lanes bit = _mm256_set1_epi32(i % 2 == 0 ? 0x08040201 : (int32_t)0x80402010u);
    lanes set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(x, pick), bit), bit);
    return _mm256_or_si256(code, _mm256_and_si256(set, bytes(16)));
}

PI_INLINE lanes lanes_byte(lanes x, int32_t i)
{
    return _mm256_and_si256(_mm256_srlv_epi32(x, _mm256_set1_epi32(i * 8)), _mm256_set1_epi32(255));
}

PI_INLINE lanes lanes_sbyte(lanes x, int32_t i)
{
    return _mm256_srai_epi32(_mm256_sllv_epi32(x, _mm256_set1_epi32(24 - i * 8)), 24);
}

PI_INLINE lanes lanes_table(lanes x, const uint8_t *table)
{
    __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), x);
}

PI_INLINE lanes lanes_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

PI_INLINE lanes lanes_u16(const uint16_t *p)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

PI_INLINE flanes flanes_exponent(lanes x)
{
    lanes bits = _mm256_max_epi32(_mm256_slli_epi32(x, 23), _mm256_set1_epi32(0x00400000));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5f));
}

/* Four activations, to every row. */
PI_INLINE lanes four(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof(v));
    return _mm256_set1_epi32(v);
}

/* Products of codes and activations, added in pairs to 16 bits. They cannot overflow: unsigned
   codes are below 64, and codes of 8 bits give at most 2 * 128 * 127 < 2^15. */
PI_INLINE lanes pairs(lanes code, lanes q, int32_t max_code)
{
    if (max_code < 128)
        return _mm256_maddubs_epi16(code, q);
    return _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(q, code));
}

/* How many registers of pairs may be added in 16 bits; a power of two, at most 8. */
PI_INLINE int32_t pairs_max(int32_t max_code)
{
    return max_code <= 15 ? 8 : max_code <= 31 ? 4 : max_code <= 63 ? 2 : 1;
}

PI_INLINE lanes widen(lanes sums)
{
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

struct shape;
PI_INLINE int32_t shape_max_code(const struct shape *s);

PI_INLINE lanes dot(const struct shape *s, const lanes code[8], int32_t begin, int32_t end,
                    const int8_t *q, struct pi_ask ask)
{
    (void)ask;
    int32_t max_code = shape_max_code(s), step = (int32_t)pi_min(pairs_max(max_code), end - begin);
    lanes sum = lanes_zero();
    PI_UNROLL
    for (int32_t i = begin; i < end; i += step) {
        lanes sums = pairs(code[i], four(q + 4 * i), max_code);
        PI_UNROLL
        for (int32_t j = i + 1; j < i + step; j++)
            sums = _mm256_add_epi16(sums, pairs(code[j], four(q + 4 * j), max_code));
        sum = _mm256_add_epi32(sum, widen(sums));
    }
    return sum;
}

#include "cpu/matmul_quant.h"

PI_INLINE int32_t shape_max_code(const struct shape *s)
{
    return s->max_code;
}

/* ---- tiles -------------------------------------------------------------------------------- */

#define TILE_TOK 4 /* sums of 16 bits of 4 tokens and 2 parts, of 16 registers */

/* dot32 += codes [begin, end) of 32 columns times the tile's tokens. The loop over codes stays a
   loop: unrolled, the compiler would hold many products at once and spill them. */
PI_INLINE void tile_dots(const struct pi_tile *p, const uint8_t *code, const int8_t *q,
                         int32_t begin, int32_t end, int32_t n_tok, int32_t max_code,
                         lanes dot32[TILE_TOK][N_PART])
{
    int32_t step = (int32_t)pi_min(pairs_max(max_code), end - begin);
    for (int32_t i = begin; i < end; i += step) {
        lanes sums[TILE_TOK][N_PART];
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++)
            sums[t][0] = sums[t][1] = lanes_zero();
#pragma GCC unroll 1
        for (int32_t j = i; j < i + step; j++) {
            lanes low = word_at(code, j, 0), high = word_at(code, j, 1);
            PI_UNROLL
            for (int32_t t = 0; t < n_tok; t++) {
                lanes x = four(q + (size_t)t * p->q_stride + j * 4);
                sums[t][0] = _mm256_add_epi16(sums[t][0], pairs(low, x, max_code));
                sums[t][1] = _mm256_add_epi16(sums[t][1], pairs(high, x, max_code));
            }
        }
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++) {
            PI_UNROLL
            for (int32_t r = 0; r < N_PART; r++)
                dot32[t][r] = _mm256_add_epi32(dot32[t][r], widen(sums[t][r]));
        }
    }
}

/* One block of 32 columns; the accumulators live in the output. */
PI_INLINE void tile_block(const struct pi_tile *p, size_t block, const struct shape s,
                          int32_t n_tok)
{
    const uint8_t *code = p->panel[0].code + block * PI_CODE_BYTES;
    const int8_t *q = p->q + block * PI_ACT_BLOCK;
    const size_t n_sub = (size_t)(32 / s.sub_len);
    const float *scale = p->panel[0].scale + block * n_sub * PI_GROUP;
    const float *min = p->panel[0].min + block * n_sub * PI_GROUP;
    const int32_t *aux = p->aux + block * n_sub;
    flanes term[TILE_TOK][N_PART];
    PI_UNROLL
    for (size_t i = 0; i < n_sub; i++) {
        lanes dot32[TILE_TOK][N_PART];
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++)
            dot32[t][0] = dot32[t][1] = s.has_min || s.max_code == 128
                                            ? lanes_zero()
                                            : _mm256_set1_epi32(aux[(size_t)t * p->aux_stride + i]);
        int32_t n_word = s.sub_len / 4, first = (int32_t)i * n_word;
        tile_dots(p, code, q, first, first + n_word, n_tok, s.max_code, dot32);
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++) {
            PI_UNROLL
            for (int32_t r = 0; r < N_PART; r++) {
                flanes d = flanes_load(scale + i * PI_GROUP + (size_t)r * 8);
                flanes value = flanes_int(dot32[t][r]);
                term[t][r] = i == 0 ? flanes_mul(value, d) : flanes_fma(value, d, term[t][r]);
            }
        }
    }
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++) {
        flanes x_scale = flanes_set1(p->x_scale + (size_t)t * p->x_stride + block);
        PI_UNROLL
        for (int32_t r = 0; r < N_PART; r++) {
            float *out = p->out + (size_t)t * p->out_stride + r * 8;
            for (size_t i = 0; i < n_sub && s.has_min; i++)
                term[t][r] = flanes_fma(flanes_load(min + i * PI_GROUP + (size_t)r * 8),
                                        sum_of(aux + (size_t)t * p->aux_stride + i), term[t][r]);
            flanes acc = p->first && block == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(out);
            flanes_store(out, flanes_fma(term[t][r], x_scale, acc));
        }
    }
}

PI_INLINE void tile_tokens(const struct pi_tile *p, const struct shape s, int32_t n_tok)
{
    const struct pi_tile tile = *p; /* stores to the output cannot change this copy */
    for (size_t b = 0; b < (size_t)tile.n_block; b++)
        tile_block(&tile, b, s, n_tok);
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

/* Types whose panels have the same layout share a tile. */
/* clang-format off */
static void tile_8(const struct pi_tile *p) { tile_enter(p, shape_q8_0); }
static void tile_4(const struct pi_tile *p) { tile_enter(p, shape_q4_0); }
static void tile_4_min(const struct pi_tile *p) { tile_enter(p, shape_q4_1); }
static void tile_5(const struct pi_tile *p) { tile_enter(p, shape_q5_0); }
static void tile_5_min(const struct pi_tile *p) { tile_enter(p, shape_q5_1); }
static void tile_2_min(const struct pi_tile *p) { tile_enter(p, shape_q2_k); }
static void tile_3(const struct pi_tile *p) { tile_enter(p, shape_q3_k); }
static void tile_6(const struct pi_tile *p) { tile_enter(p, shape_q6_k); }
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
    [3] = QUANT_KERNELS(q8_0, tile_8, 0),      [4] = QUANT_KERNELS(q4_0, tile_4, 8),
    [5] = QUANT_KERNELS(q4_1, tile_4_min, 0),  [6] = QUANT_KERNELS(q5_0, tile_5, 16),
    [7] = QUANT_KERNELS(q5_1, tile_5_min, 0),  [8] = QUANT_KERNELS(q2_k, tile_2_min, 0),
    [9] = QUANT_KERNELS(q3_k, tile_3, 4),      [10] = QUANT_KERNELS(q4_k, tile_4_min, 0),
    [11] = QUANT_KERNELS(q5_k, tile_5_min, 0), [12] = QUANT_KERNELS(q6_k, tile_6, 32),
    [13] = QUANT_KERNELS(iq4_nl, tile_8, 0),   [14] = QUANT_KERNELS(iq4_xs, tile_8, 0),
    [15] = QUANT_KERNELS(mxfp4, tile_5, 12),
};

static void mul_quantised(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                          int32_t group_end, float *out, size_t out_stride, void *scratch)
{
    mul_blocked(&kernels[pi_matmul_index(w->type)], w, a, group_begin, group_end, out, out_stride,
                scratch);
}

void pi_matmul_init_avx2_quant(struct pi_matmul_kernels *k)
{
    for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++)
        if (kernels[i].tile != NULL)
            k->mul[i] = mul_quantised;
}
