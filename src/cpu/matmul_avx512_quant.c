/*
 * matmul_avx512_quant.c - products with quantised weights on AVX-512 with VNNI. The 32-bit lanes are
 * the 16 rows of a group; codes are unsigned bytes, multiplied by four activations that are
 * broadcast to all lanes. It must not know the loops around tiles (matmul_blocked.h) nor the bits of
 * any type (matmul_avx512_codes.h). Invariant: the arithmetic is exactly matmul.h's.
 */
#include "cpu/matmul_avx512_codes.h"
#include "cpu/matmul_avx512.h"
#include "cpu/matmul_blocked.h"

#define TILE_TOK 6 /* 2 groups x 6 tokens: 12 integer and 12 float accumulators of 32 registers */

#define PREFETCH_BYTES 8192 /* between words that are read and words that are asked for */

/* Four activations, to every row. */
INLINE __m512i four(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof(v));
    return _mm512_set1_epi32(v);
}

/* What the product of a token and a scale's columns starts from. */
INLINE __m512i dot_start(const int32_t *aux, bool has_min)
{
    return has_min ? _mm512_setzero_si512() : _mm512_set1_epi32(*aux);
}

INLINE __m512 sum_of(const int32_t *aux)
{
    float sum;
    memcpy(&sum, aux, sizeof(sum));
    return _mm512_set1_ps(sum);
}

/* ---- tiles -------------------------------------------------------------------------------- */

/* Codes [word_begin, word_end) of a block of 32 columns times the tile's activations. */
INLINE void tile_dots(const struct pi_tile *p, int32_t block, int32_t word_begin, int32_t word_end,
                      int32_t n_tok, int32_t n_group,
                      __m512i dot[PI_TILE_GROUP_MAX][TILE_TOK])
{
#pragma GCC unroll 8
    for (int32_t i = word_begin; i < word_end; i++) {
        size_t at = (size_t)block * PI_CODE_BYTES + (size_t)i * PI_WORD_BYTES;
        __m512i code[PI_TILE_GROUP_MAX];
        for (int32_t g = 0; g < n_group; g++)
            code[g] = _mm512_load_si512(p->panel[g].code + at);
#pragma GCC unroll 6
        for (int32_t t = 0; t < n_tok; t++) {
            __m512i q = four(p->q + (size_t)t * p->q_stride + block * PI_ACT_BLOCK + i * 4);
            for (int32_t g = 0; g < n_group; g++)
                dot[g][t] = _mm512_dpbusd_epi32(dot[g][t], code[g], q);
        }
    }
}

/* A scale over 32 columns: the accumulators stay in registers. */
INLINE void tile_32(const struct pi_tile *p, int32_t n_tok, int32_t n_group, bool has_min)
{
    __m512 acc[PI_TILE_GROUP_MAX][TILE_TOK];
    __m512i dot[PI_TILE_GROUP_MAX][TILE_TOK];
#pragma GCC unroll 6
    for (int32_t t = 0; t < n_tok; t++)
        for (int32_t g = 0; g < n_group; g++)
            acc[g][t] = p->first
                            ? _mm512_setzero_ps()
                            : _mm512_loadu_ps(p->out + (size_t)t * p->out_stride + g * PI_GROUP);
    for (int32_t b = 0; b < p->n_block; b++) {
#pragma GCC unroll 6
        for (int32_t t = 0; t < n_tok; t++)
            for (int32_t g = 0; g < n_group; g++)
                dot[g][t] = dot_start(p->aux + (size_t)t * p->aux_stride + b, has_min);
        tile_dots(p, b, 0, 8, n_tok, n_group, dot);
#pragma GCC unroll 6
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
#pragma GCC unroll 6
    for (int32_t t = 0; t < n_tok; t++)
        for (int32_t g = 0; g < n_group; g++)
            _mm512_storeu_ps(p->out + (size_t)t * p->out_stride + g * PI_GROUP, acc[g][t]);
}

/* Two scales per 32 columns: the terms take the registers, the accumulators live in the output. */
INLINE void tile_16(const struct pi_tile *p, int32_t n_tok, int32_t n_group, bool has_min)
{
    const struct pi_tile tile = *p; /* stores to the output cannot change this copy */
    p = &tile;
    __m512 term[PI_TILE_GROUP_MAX][TILE_TOK];
    __m512i dot[PI_TILE_GROUP_MAX][TILE_TOK];
    for (int32_t b = 0; b < p->n_block; b++) {
#pragma GCC unroll 2
        for (int32_t half = 0; half < 2; half++) {
            int32_t sub = 2 * b + half;
#pragma GCC unroll 6
            for (int32_t t = 0; t < n_tok; t++)
                for (int32_t g = 0; g < n_group; g++)
                    dot[g][t] = dot_start(p->aux + (size_t)t * p->aux_stride + sub, has_min);
            tile_dots(p, b, half * 4, half * 4 + 4, n_tok, n_group, dot);
#pragma GCC unroll 6
            for (int32_t t = 0; t < n_tok; t++)
                for (int32_t g = 0; g < n_group; g++) {
                    __m512 scale = _mm512_load_ps(p->panel[g].scale + sub * PI_GROUP);
                    __m512 value = _mm512_cvtepi32_ps(dot[g][t]);
                    term[g][t] = half == 0 ? _mm512_mul_ps(value, scale)
                                           : _mm512_fmadd_ps(value, scale, term[g][t]);
                }
        }
#pragma GCC unroll 6
        for (int32_t t = 0; t < n_tok; t++) {
            __m512 x_scale = _mm512_set1_ps(p->x_scale[(size_t)t * p->x_stride + (size_t)b]);
            const int32_t *aux = p->aux + (size_t)t * p->aux_stride + 2 * b;
            for (int32_t g = 0; g < n_group; g++) {
                float *out = p->out + (size_t)t * p->out_stride + g * PI_GROUP;
                const float *min = p->panel[g].min + 2 * b * PI_GROUP;
                __m512 value = term[g][t];
                if (has_min) {
                    value = _mm512_fmadd_ps(_mm512_load_ps(min), sum_of(aux), value);
                    value = _mm512_fmadd_ps(_mm512_load_ps(min + PI_GROUP), sum_of(aux + 1), value);
                }
                __m512 acc = p->first && b == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(out);
                _mm512_storeu_ps(out, _mm512_fmadd_ps(value, x_scale, acc));
            }
        }
    }
}

INLINE void tile_of(const struct pi_tile *p, int32_t n_tok, int32_t n_group, int32_t sub_len,
                    bool has_min)
{
    if (sub_len == 32)
        tile_32(p, n_tok, n_group, has_min);
    else
        tile_16(p, n_tok, n_group, has_min);
}

/* Enters the version with the tile's numbers as constants. */
INLINE void tile_enter(const struct pi_tile *p, int32_t sub_len, bool has_min)
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

static void tile_32_zero(const struct pi_tile *p) { tile_enter(p, 32, false); }
static void tile_32_min(const struct pi_tile *p) { tile_enter(p, 32, true); }
static void tile_16_zero(const struct pi_tile *p) { tile_enter(p, 16, false); }
static void tile_16_min(const struct pi_tile *p) { tile_enter(p, 16, true); }

/* ---- panels ------------------------------------------------------------------------------- */

/* A type as constants; block_word counts the 32-bit words of a block's payload. */
struct shape {
    int32_t block_len;
    int32_t block_word;
    int32_t n_half;
    int32_t sub_len;
    bool has_min;
    codes_fn *codes;
    scales_fn *scales;
};

INLINE const __m512i *block_words(const struct shape *s, const uint8_t *group, int32_t block)
{
    return (const __m512i *)(const void *)group + (size_t)block * (size_t)s->block_word;
}

INLINE const uint16_t *block_halves(const struct shape *s, const uint8_t *group, int32_t n_block,
                                    int32_t block)
{
    const __m512i *end = block_words(s, group, n_block);
    return (const uint16_t *)(const void *)end + (size_t)block * (size_t)(s->n_half * PI_GROUP);
}

/* Bytes of a group that 32 columns take. */
INLINE int32_t block_step(const struct shape *s)
{
    return (s->block_word * PI_WORD_BYTES + s->n_half * PI_GROUP * 2) * 32 / s->block_len;
}

INLINE void prefetch_lines(const char *from, int32_t n_byte)
{
    for (int32_t i = 0; i < n_byte; i += 64)
        _mm_prefetch(from + i, _MM_HINT_T0);
}

INLINE void decode(const struct shape s, const struct pi_matrix *w, const uint8_t *group,
                   int32_t col_begin, int32_t n_col, uint8_t *room, struct pi_panel *panel)
{
    int32_t n_block = w->n_col / s.block_len, first = col_begin / s.block_len;
    int32_t n_sub = s.block_len / s.sub_len;
    bool in_place = s.codes == codes_q8_0;
    panel->code = in_place ? (const uint8_t *)block_words(&s, group, first) : room;
    for (int32_t b = 0; b < n_col / s.block_len; b++) {
        const __m512i *words = block_words(&s, group, first + b);
        s.scales(words, block_halves(&s, group, n_block, first + b),
                 panel->scale + b * n_sub * PI_GROUP, panel->min + b * n_sub * PI_GROUP);
        for (int32_t i = 0; i < s.block_len / 32 && !in_place; i++, room += PI_CODE_BYTES) {
            __m512i code[8];
            s.codes(words, i, code);
            for (int32_t j = 0; j < 8; j++)
                _mm512_store_si512(room + j * PI_WORD_BYTES, code[j]);
        }
    }
}

/* ---- few tokens --------------------------------------------------------------------------- */

/* Codes [begin, end) of 32 columns times one token, in two chains. */
INLINE __m512 few_dot(const __m512i code[8], int32_t begin, int32_t end, const int8_t *q,
                      __m512i start)
{
    __m512i even = start, odd = _mm512_setzero_si512();
    for (int32_t i = begin; i < end; i += 2) {
        even = _mm512_dpbusd_epi32(even, code[i], four(q + 4 * i));
        odd = _mm512_dpbusd_epi32(odd, code[i + 1], four(q + 4 * i + 4));
    }
    return _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
}

/* What 32 columns give for one token, before the activations' scale. */
INLINE __m512 few_term(const struct shape *s, const __m512i code[8], const float *scale,
                       const float *min, const int8_t *q, const int32_t *aux)
{
    __m512 d = _mm512_load_ps(scale);
    if (s->sub_len == 32) {
        __m512 term = _mm512_mul_ps(few_dot(code, 0, 8, q, dot_start(aux, s->has_min)), d);
        return s->has_min ? _mm512_fmadd_ps(_mm512_load_ps(min), sum_of(aux), term) : term;
    }
    __m512 term = _mm512_mul_ps(few_dot(code, 0, 4, q, dot_start(aux, s->has_min)), d);
    term = _mm512_fmadd_ps(few_dot(code, 4, 8, q, dot_start(aux + 1, s->has_min)),
                           _mm512_load_ps(scale + PI_GROUP), term);
    if (!s->has_min)
        return term;
    term = _mm512_fmadd_ps(_mm512_load_ps(min), sum_of(aux), term);
    return _mm512_fmadd_ps(_mm512_load_ps(min + PI_GROUP), sum_of(aux + 1), term);
}

/* Streams a group from memory. The processor's own prefetching does not keep up with the groups'
   short runs of words and halves, so lines are asked for here: of the words some distance ahead, of
   the halves those of the next group. */
INLINE void few(const struct shape s, const struct pi_matrix *w, const uint8_t *group,
                const struct pi_tile *p, const int32_t n_tok)
{
    const int32_t n_block = w->n_col / s.block_len, n_sub = 32 / s.sub_len;
    const int32_t step = block_step(&s);
    _Alignas(64) float scale[PI_SUB_MAX * PI_GROUP], min[PI_SUB_MAX * PI_GROUP];
    const char *ahead = (const char *)group + PREFETCH_BYTES;
    int32_t at = 0; /* blocks of 32 columns done */
    __m512 acc[PI_FEW_PART_MAX];
#pragma GCC unroll 8
    for (int32_t t = 0; t < n_tok; t++)
        acc[t] = _mm512_setzero_ps();
    for (int32_t b = 0; b < n_block; b++) {
        const __m512i *words = block_words(&s, group, b);
        const uint16_t *halves = block_halves(&s, group, n_block, b);
        _mm_prefetch((const char *)halves + w->group_bytes, _MM_HINT_T1);
        s.scales(words, halves, scale, min);
        for (int32_t i = 0; i < s.block_len / 32; i++, at++) {
            __m512i code[8];
            prefetch_lines(ahead, step);
            ahead += step;
            s.codes(words, i, code);
#pragma GCC unroll 8
            for (int32_t t = 0; t < n_tok; t++) {
                __m512 term = few_term(&s, code, scale + i * n_sub * PI_GROUP,
                                       min + i * n_sub * PI_GROUP,
                                       p->q + (size_t)t * p->q_stride + at * PI_ACT_BLOCK,
                                       p->aux + (size_t)t * p->aux_stride + at * n_sub);
                __m512 x_scale = _mm512_set1_ps(p->x_scale[(size_t)t * p->x_stride + (size_t)at]);
                acc[t] = _mm512_fmadd_ps(term, x_scale, acc[t]);
            }
        }
    }
#pragma GCC unroll 8
    for (int32_t t = 0; t < n_tok; t++)
        _mm512_storeu_ps(p->out + (size_t)t * p->out_stride, acc[t]);
}

INLINE void few_enter(const struct shape s, const struct pi_matrix *w, const uint8_t *group,
                      const struct pi_tile *p)
{
    switch (p->n_tok) {
    case 1:
        few(s, w, group, p, 1);
        break;
    case 2:
        few(s, w, group, p, 2);
        break;
    case 3:
        few(s, w, group, p, 3);
        break;
    case 4:
        few(s, w, group, p, 4);
        break;
    case 5:
        few(s, w, group, p, 5);
        break;
    case 6:
        few(s, w, group, p, 6);
        break;
    case 7:
        few(s, w, group, p, 7);
        break;
    default:
        few(s, w, group, p, 8);
        break;
    }
}

/* ---- the types ---------------------------------------------------------------------------- */

/* The compiler builds a type's functions from its constants. */
#define QUANT_TYPE(name, ...)                                                                      \
    static void decode_##name(const struct pi_matrix *w, const uint8_t *group, int32_t col_begin,  \
                              int32_t n_col, uint8_t *room, struct pi_panel *panel)                \
    {                                                                                              \
        decode((struct shape){__VA_ARGS__}, w, group, col_begin, n_col, room, panel);              \
    }                                                                                              \
    static void few_##name(const struct pi_matrix *w, const uint8_t *group,                        \
                           const struct pi_tile *p)                                                \
    {                                                                                              \
        few_enter((struct shape){__VA_ARGS__}, w, group, p);                                       \
    }

QUANT_TYPE(q8_0, 32, 8, 1, 32, false, codes_q8_0, scales_plain)
QUANT_TYPE(q4_0, 32, 4, 1, 32, false, codes_q4, scales_plain)
QUANT_TYPE(q4_1, 32, 4, 2, 32, true, codes_q4, scales_with_min)
QUANT_TYPE(q5_0, 32, 5, 1, 32, false, codes_q5, scales_plain)
QUANT_TYPE(q5_1, 32, 5, 2, 32, true, codes_q5, scales_with_min)
QUANT_TYPE(q2_k, 256, 20, 2, 16, true, codes_q2_k, scales_q2_k)
QUANT_TYPE(q3_k, 256, 27, 1, 16, false, codes_q3_k, scales_q3_k)
QUANT_TYPE(q4_k, 256, 35, 2, 32, true, codes_q4_k, scales_q45_k)
QUANT_TYPE(q5_k, 256, 43, 2, 32, true, codes_q5_k, scales_q45_k)
QUANT_TYPE(q6_k, 256, 52, 1, 16, false, codes_q6_k, scales_q6_k)

#define QUANT_KERNELS(name, tile_fn, zero_code)                                                    \
    {.decode = decode_##name, .tile = tile_fn, .few = few_##name, .zero = zero_code,               \
     .few_part = PI_FEW_PART_MAX, .tile_tok = TILE_TOK, .tile_group = PI_TILE_GROUP_MAX}

/* In the order of pi_matmul_index; the float types before have none. */
static const struct pi_quant_kernels kernels[PI_MATMUL_N_TYPE] = {
    [3] = QUANT_KERNELS(q8_0, tile_32_zero, 128), [4] = QUANT_KERNELS(q4_0, tile_32_zero, 8),
    [5] = QUANT_KERNELS(q4_1, tile_32_min, 0),    [6] = QUANT_KERNELS(q5_0, tile_32_zero, 16),
    [7] = QUANT_KERNELS(q5_1, tile_32_min, 0),    [8] = QUANT_KERNELS(q2_k, tile_16_min, 0),
    [9] = QUANT_KERNELS(q3_k, tile_16_zero, 4),   [10] = QUANT_KERNELS(q4_k, tile_32_min, 0),
    [11] = QUANT_KERNELS(q5_k, tile_32_min, 0),   [12] = QUANT_KERNELS(q6_k, tile_16_zero, 32),
};

static void mul_quantised(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                          int32_t group_end, float *out, size_t out_stride, void *scratch)
{
    mul_blocked(&kernels[pi_matmul_index(w->type)], w, a, group_begin, group_end, out, out_stride,
                scratch);
}

void pi_matmul_init_avx512_quant(struct pi_matmul_kernels *k)
{
    for (int32_t i = 0; i < PI_MATMUL_N_TYPE; i++)
        if (kernels[i].tile != NULL)
            k->mul[i] = mul_quantised;
}
