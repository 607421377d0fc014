/*
 * matmul_avx512_quant.c - products with quantised weights on AVX-512 with VNNI. The 32-bit lanes of
 * a register are the 16 rows of a group. Codes are unsigned bytes; a product multiplies them by
 * four activations that are broadcast to all lanes. It must not know the loops around tiles
 * (matmul_blocked.h) nor the bits of any type (matmul_quant.h). Invariant: the arithmetic is
 * exactly matmul.h's.
 */
#include <immintrin.h>

#include "cpu/matmul_avx512.h"
#include "cpu/matmul_layout.h"

enum { FEW_PART = 8, CODES_IN_PLACE = true, SIGNED_PANELS = false, DOT_ASKS = true };

#include "cpu/matmul_avx512_lanes.h"

#define TILE_TOK 6 /* 2 groups x 6 tokens: 12 integer and 12 float accumulators of 32 registers */
#define TILE_TOK_16 4 /* with two scales per 32 columns: 8 of each, and 8 terms */

/* The initial value of the product of a token and a scale's columns. */
PI_INLINE __m512i dot_start(const int32_t *aux, bool has_min)
{
    return has_min ? _mm512_setzero_si512() : _mm512_set1_epi32(*aux);
}

/* ---- tiles -------------------------------------------------------------------------------- */

/* Codes [word_begin, word_end) of a block of 32 columns times the tile's activations. */
PI_INLINE void tile_dots(const struct pi_tile *p, int32_t block, int32_t word_begin,
                         int32_t word_end, int32_t n_tok, int32_t n_group,
                         __m512i dot[PI_TILE_GROUP_MAX][TILE_TOK])
{
    PI_UNROLL
    for (int32_t i = word_begin; i < word_end; i++) {
        size_t at = (size_t)block * PI_CODE_BYTES + (size_t)i * PI_WORD_BYTES;
        __m512i code[PI_TILE_GROUP_MAX];
        for (int32_t g = 0; g < n_group; g++)
            code[g] = _mm512_load_si512(p->panel[g].code + at);
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++) {
            __m512i q = four(p->q + (size_t)t * p->q_stride + block * PI_ACT_BLOCK + i * 4);
            for (int32_t g = 0; g < n_group; g++)
                dot[g][t] = _mm512_dpbusd_epi32(dot[g][t], code[g], q);
        }
    }
}

/* The sums of earlier columns. */
PI_INLINE __m512 tile_start(const struct pi_tile *p, int32_t t, int32_t g)
{
    return p->first ? _mm512_setzero_ps()
                    : _mm512_loadu_ps(p->out + (size_t)t * p->out_stride + g * PI_GROUP);
}

/* A scale over 32 columns: the accumulators stay in registers. */
PI_INLINE void tile_32(const struct pi_tile *p, int32_t n_tok, int32_t n_group, bool has_min)
{
    __m512 acc[PI_TILE_GROUP_MAX][TILE_TOK];
    __m512i dot[PI_TILE_GROUP_MAX][TILE_TOK];
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++)
        for (int32_t g = 0; g < n_group; g++)
            acc[g][t] = tile_start(p, t, g);
    for (int32_t b = 0; b < p->n_block; b++) {
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++)
            for (int32_t g = 0; g < n_group; g++)
                dot[g][t] = dot_start(p->aux + (size_t)t * p->aux_stride + b, has_min);
        tile_dots(p, b, 0, 8, n_tok, n_group, dot);
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++) {
            __m512 x_scale = _mm512_set1_ps(p->x_scale[(size_t)t * p->x_stride + (size_t)b]);
            for (int32_t g = 0; g < n_group; g++) {
                __m512 scale = _mm512_load_ps(p->panel[g].scale + b * PI_GROUP);
                __m512 term = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[g][t]), scale);
                if (has_min)
                    term = _mm512_fmadd_ps(_mm512_load_ps(p->panel[g].min + b * PI_GROUP),
                                           sum_of(p->aux + (size_t)t * p->aux_stride + b), term);
                acc[g][t] = _mm512_fmadd_ps(term, x_scale, acc[g][t]);
            }
        }
    }
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++)
        for (int32_t g = 0; g < n_group; g++)
            _mm512_storeu_ps(p->out + (size_t)t * p->out_stride + g * PI_GROUP, acc[g][t]);
}

/* Two scales per 32 columns: sums, terms and accumulators share the registers. */
PI_INLINE void tile_16(const struct pi_tile *p, int32_t n_tok, int32_t n_group, bool has_min)
{
    __m512 acc[PI_TILE_GROUP_MAX][TILE_TOK_16], term[PI_TILE_GROUP_MAX][TILE_TOK_16];
    __m512i dot[PI_TILE_GROUP_MAX][TILE_TOK];
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++)
        for (int32_t g = 0; g < n_group; g++)
            acc[g][t] = tile_start(p, t, g);
    for (int32_t b = 0; b < p->n_block; b++) {
        PI_UNROLL
        for (int32_t half = 0; half < 2; half++) {
            int32_t sub = 2 * b + half;
            PI_UNROLL
            for (int32_t t = 0; t < n_tok; t++)
                for (int32_t g = 0; g < n_group; g++)
                    dot[g][t] = dot_start(p->aux + (size_t)t * p->aux_stride + sub, has_min);
            tile_dots(p, b, half * 4, half * 4 + 4, n_tok, n_group, dot);
            PI_UNROLL
            for (int32_t t = 0; t < n_tok; t++)
                for (int32_t g = 0; g < n_group; g++) {
                    __m512 scale = _mm512_load_ps(p->panel[g].scale + sub * PI_GROUP);
                    __m512 value = _mm512_cvtepi32_ps(dot[g][t]);
                    term[g][t] = half == 0 ? _mm512_mul_ps(value, scale)
                                           : _mm512_fmadd_ps(value, scale, term[g][t]);
                }
        }
        PI_UNROLL
        for (int32_t t = 0; t < n_tok; t++) {
            __m512 x_scale = _mm512_set1_ps(p->x_scale[(size_t)t * p->x_stride + (size_t)b]);
            const int32_t *aux = p->aux + (size_t)t * p->aux_stride + 2 * b;
            for (int32_t g = 0; g < n_group; g++) {
                const float *min = p->panel[g].min + 2 * b * PI_GROUP;
                __m512 value = term[g][t];
                if (has_min) {
                    value = _mm512_fmadd_ps(_mm512_load_ps(min), sum_of(aux), value);
                    value = _mm512_fmadd_ps(_mm512_load_ps(min + PI_GROUP), sum_of(aux + 1), value);
                }
                acc[g][t] = _mm512_fmadd_ps(value, x_scale, acc[g][t]);
            }
        }
    }
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++)
        for (int32_t g = 0; g < n_group; g++)
            _mm512_storeu_ps(p->out + (size_t)t * p->out_stride + g * PI_GROUP, acc[g][t]);
}

PI_INLINE void tile_of(const struct pi_tile *p, int32_t n_tok, int32_t n_group, int32_t sub_len,
                       bool has_min)
{
    if (sub_len == 32)
        tile_32(p, n_tok, n_group, has_min);
    else if (n_tok <= TILE_TOK_16)
        tile_16(p, n_tok, n_group, has_min);
}

/* Enters the version with the tile's numbers as constants. */
PI_INLINE void tile_enter(const struct pi_tile *p, int32_t sub_len, bool has_min)
{
    switch ((p->n_group - 1) * TILE_TOK + p->n_tok - 1) {
    case 0:
        tile_of(p, 1, 1, sub_len, has_min);
        break;
    case 1:
        tile_of(p, 2, 1, sub_len, has_min);
        break;
    case 2:
        tile_of(p, 3, 1, sub_len, has_min);
        break;
    case 3:
        tile_of(p, 4, 1, sub_len, has_min);
        break;
    case 4:
        tile_of(p, 5, 1, sub_len, has_min);
        break;
    case 5:
        tile_of(p, 6, 1, sub_len, has_min);
        break;
    case 6:
        tile_of(p, 1, 2, sub_len, has_min);
        break;
    case 7:
        tile_of(p, 2, 2, sub_len, has_min);
        break;
    case 8:
        tile_of(p, 3, 2, sub_len, has_min);
        break;
    case 9:
        tile_of(p, 4, 2, sub_len, has_min);
        break;
    case 10:
        tile_of(p, 5, 2, sub_len, has_min);
        break;
    default:
        tile_of(p, 6, 2, sub_len, has_min);
        break;
    }
}

/* clang-format off */
static void tile_32_zero(const struct pi_tile *p) { tile_enter(p, 32, false); }
static void tile_32_min(const struct pi_tile *p) { tile_enter(p, 32, true); }
static void tile_16_zero(const struct pi_tile *p) { tile_enter(p, 16, false); }
static void tile_16_min(const struct pi_tile *p) { tile_enter(p, 16, true); }
/* clang-format on */

/* The most tokens of each. */
enum {
    tile_32_zero_tok = TILE_TOK,
    tile_32_min_tok = TILE_TOK,
    tile_16_zero_tok = TILE_TOK_16,
    tile_16_min_tok = TILE_TOK_16
};

/* ---- the types ---------------------------------------------------------------------------- */

QUANT_TYPES(QUANT_FEW)

#define QUANT_KERNELS(name, tile_fn, zero_code)                                                    \
    {                                                                                              \
        .decode = decode_##name, .tile = tile_fn, .few = few_##name, .zero = zero_code,            \
        .tile_zero = zero_code, .few_tok = PI_FEW_TOK_MAX, .few_part = FEW_PART,                   \
        .tile_tok = tile_fn##_tok, .tile_group = PI_TILE_GROUP_MAX                                 \
    }

static const struct pi_quant_kernels kernels[PI_MATMUL_N_TYPE] = QUANT_TABLE;

void pi_matmul_quantised_avx512(const struct pi_matrix *w, const struct pi_act *a,
                                int32_t group_begin, int32_t group_end, float *out,
                                size_t out_stride, void *scratch)
{
    mul_blocked(&kernels[pi_matmul_index(w->type)], w, a, group_begin, group_end, out, out_stride,
                scratch);
}

void pi_matmul_init_avx512_quant(struct pi_matmul_kernels *k)
{
    for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++)
        if (kernels[i].tile != NULL)
            k->mul[i] = pi_matmul_quantised_avx512;
}
