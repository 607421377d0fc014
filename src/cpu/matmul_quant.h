/*
 * matmul_quant.h - the part of products with quantised weights that all levels share. It has the
 * bits of every packed type, the decoding of panels, and products of a few tokens. All of it is
 * written in `lanes`, a register of 32-bit lanes that are rows of a group. A level brings only its
 * instructions: its file includes this header once, after defining
 *
 *   lanes, flanes                 the registers, of integers and of f32
 *   N_PART                        registers that hold 16 rows
 *   FEW_PART                      tokens that few takes together, 4 or 8
 *   CODES_IN_PLACE                Q8_0's packed words are the level's operands as they are
 *   DOT_ASKS                      dot heeds what it is to ask for
 *   lanes_load/store, flanes_load/store/set1/mul/fma/neg, flanes_half (f16), flanes_int
 *   lanes_q8_0(x)                 Q8_0's codes as the level multiplies them
 *   lanes_panel(x, zero)          codes, whose zero is given, as the level's panels have them
 *   lanes_field(x, n, mask)       each row's word shifted right by n, then masked per byte
 *   lanes_with_high(c, x, n, m)   c | (word shifted right by n, or left by -n; masked per byte);
 *                                 what the mask keeps has not left its byte
 *   lanes_with_bits(c, x, i)      c + 16 in each byte k whose bit 4 i + k is set in the row's word
 *   lanes_byte(x, i), lanes_sbyte byte i of each row's word, as a number, unsigned and signed
 *   lanes_plus(x, n)              n added to each row
 *   lanes_table(x, table)         each byte's number, 0..15, replaced by the table's
 *   lanes_u8(p), lanes_u16(p)     the rows' bytes or 16 bits from p on, as numbers
 *   flanes_exponent(x)            dtype_table.h's pi_mxfp4_scale of each row
 *   lanes_prefetch(p)             asks memory for a line
 *   dot(shape, code, begin, end, q, ask)
 *                                 codes [begin, end) of 8 times q, four columns each; code i is
 *                                 step i of ask
 *
 * matmul_pack.c's functions for one row describe the bits.
 */
#ifndef PI_MATMUL_QUANT_H
#define PI_MATMUL_QUANT_H

#include "cpu/matmul_blocked.h"
#include "tensor/dtype_table.h"

#define PREFETCH_BYTES 8192 /* between words that are read and words that are asked for */

/*
 * A type as constants. For a block of a group, codes gives the 8 registers of the columns [32 sub,
 * 32 sub + 32) of one part of the rows. scales gives the block's scales and minimums, each
 * [block_len / sub_len][PI_GROUP].
 */
typedef void codes_fn(const uint8_t *words, int32_t sub, int32_t part, lanes code[8]);
typedef void scales_fn(const uint8_t *words, const uint16_t *halves, float *scale, float *min);

struct shape {
    int32_t block_len;
    int32_t block_word; /* 32-bit words of a block's payload */
    int32_t n_half;     /* as of pi_matmul_layout */
    int32_t sub_len;
    bool has_min;
    int32_t max_code; /* the largest magnitude of a code */
    int32_t zero;     /* the code of weight 0 in packed words */
    codes_fn *codes;
    scales_fn *scales;
};

/* ---- pieces ------------------------------------------------------------------------------- */

PI_INLINE lanes word_at(const uint8_t *words, int32_t i, int32_t part)
{
    return lanes_load(words + (size_t)i * PI_WORD_BYTES + (size_t)part * sizeof(lanes));
}

PI_INLINE float *part_of(float *rows, int32_t sub, int32_t part)
{
    return rows + sub * PI_GROUP + part * (PI_GROUP / N_PART);
}

PI_INLINE flanes half_at(const uint16_t *halves, int32_t i, int32_t part)
{
    return flanes_half(halves + i * PI_GROUP + part * (PI_GROUP / N_PART));
}

PI_INLINE void store_product(float *dst, flanes d, lanes n)
{
    flanes_store(dst, flanes_mul(d, flanes_int(n)));
}

/* ---- blocks of 32 ------------------------------------------------------------------------- */

PI_INLINE void codes_q8_0(const uint8_t *words, int32_t sub, int32_t part, lanes code[8])
{
    (void)sub;
    PI_UNROLL
    for (int32_t i = 0; i < 8; i++)
        code[i] = lanes_q8_0(word_at(words, i, part));
}

PI_INLINE void codes_q4(const uint8_t *words, int32_t sub, int32_t part, lanes code[8])
{
    (void)sub;
    PI_UNROLL
    for (int32_t i = 0; i < 4; i++) {
        code[i] = lanes_field(word_at(words, i, part), 0, 15);
        code[i + 4] = lanes_field(word_at(words, i, part), 4, 15);
    }
}

/* The first word has a row's 32 high bits, one per column. */
PI_INLINE void codes_q5(const uint8_t *words, int32_t sub, int32_t part, lanes code[8])
{
    lanes high = word_at(words, 0, part);
    codes_q4(words + PI_WORD_BYTES, sub, part, code);
    PI_UNROLL
    for (int32_t i = 0; i < 8; i++)
        code[i] = lanes_with_bits(code[i], high, i);
}

PI_INLINE void scales_plain(const uint8_t *words, const uint16_t *halves, float *scale, float *min)
{
    (void)words;
    (void)min;
    for (int32_t p = 0; p < N_PART; p++)
        flanes_store(part_of(scale, 0, p), half_at(halves, 0, p));
}

PI_INLINE void scales_with_min(const uint8_t *words, const uint16_t *halves, float *scale,
                               float *min)
{
    scales_plain(words, halves, scale, min);
    scales_plain(words, halves + PI_GROUP, min, NULL);
}

/* ---- blocks of 256 ------------------------------------------------------------------------ */

PI_INLINE void codes_q2_k(const uint8_t *words, int32_t sub, int32_t part, lanes code[8])
{
    PI_UNROLL
    for (int32_t i = 0; i < 8; i++)
        code[i] = lanes_field(word_at(words, 4 + sub / 4 * 8 + i, part), sub % 4 * 2, 3);
}

PI_INLINE void scales_q2_k(const uint8_t *words, const uint16_t *halves, float *scale, float *min)
{
    for (int32_t p = 0; p < N_PART; p++) {
        flanes d = half_at(halves, 0, p), neg_dmin = flanes_neg(half_at(halves, 1, p));
        for (int32_t i = 0; i < 16; i++) {
            lanes word = word_at(words, i / 4, p);
            store_product(part_of(scale, i, p), d, lanes_byte(lanes_field(word, 0, 15), i % 4));
            store_product(part_of(min, i, p), neg_dmin,
                          lanes_byte(lanes_field(word, 4, 15), i % 4));
        }
    }
}

PI_INLINE void codes_q3_k(const uint8_t *words, int32_t sub, int32_t part, lanes code[8])
{
    PI_UNROLL
    for (int32_t i = 0; i < 8; i++) {
        lanes low = lanes_field(word_at(words, 8 + sub / 4 * 8 + i, part), sub % 4 * 2, 3);
        code[i] = lanes_with_high(low, word_at(words, i, part), sub - 2, 4);
    }
}

/* 12 bytes: first the low nibbles of scales 0..7 and 8..15, then the high bits. Byte i has the 2
   high bits of scale 4 j + i from bit 2 j on. */
PI_INLINE void scales_q3_k(const uint8_t *words, const uint16_t *halves, float *scale, float *min)
{
    (void)min;
    for (int32_t p = 0; p < N_PART; p++) {
        flanes d = half_at(halves, 0, p);
        for (int32_t j = 0; j < 4; j++) {
            lanes low = lanes_field(word_at(words, 24 + j % 2, p), j / 2 * 4, 15);
            lanes four = lanes_with_high(low, word_at(words, 26, p), j * 2 - 4, 48);
            for (int32_t i = 0; i < 4; i++)
                store_product(part_of(scale, 4 * j + i, p), d,
                              lanes_plus(lanes_byte(four, i), -32));
        }
    }
}

/* 12 bytes. Scales 0..3 and minimums 0..3 are the low 6 bits of the first eight. Scales and
   minimums 4..7 are nibbles of the last four and the high 2 bits of the first eight. */
PI_INLINE void scales_q45_k(const uint8_t *words, const uint16_t *halves, float *scale, float *min)
{
    for (int32_t p = 0; p < N_PART; p++) {
        flanes d = half_at(halves, 0, p), neg_dmin = flanes_neg(half_at(halves, 1, p));
        lanes w0 = word_at(words, 0, p), w1 = word_at(words, 1, p), w2 = word_at(words, 2, p);
        lanes scales[2], mins[2];
        scales[0] = lanes_field(w0, 0, 63);
        mins[0] = lanes_field(w1, 0, 63);
        scales[1] = lanes_with_high(lanes_field(w2, 0, 15), w0, 2, 48);
        mins[1] = lanes_with_high(lanes_field(w2, 4, 15), w1, 2, 48);
        PI_UNROLL
        for (int32_t i = 0; i < 8; i++) {
            store_product(part_of(scale, i, p), d, lanes_byte(scales[i / 4], i % 4));
            store_product(part_of(min, i, p), neg_dmin, lanes_byte(mins[i / 4], i % 4));
        }
    }
}

PI_INLINE void codes_q4_k(const uint8_t *words, int32_t sub, int32_t part, lanes code[8])
{
    PI_UNROLL
    for (int32_t i = 0; i < 8; i++)
        code[i] = lanes_field(word_at(words, 3 + sub / 2 * 8 + i, part), sub % 2 * 4, 15);
}

PI_INLINE void codes_q5_k(const uint8_t *words, int32_t sub, int32_t part, lanes code[8])
{
    PI_UNROLL
    for (int32_t i = 0; i < 8; i++) {
        lanes low = lanes_field(word_at(words, 11 + sub / 2 * 8 + i, part), sub % 2 * 4, 15);
        code[i] = lanes_with_high(low, word_at(words, 3 + i, part), sub - 4, 16);
    }
}

PI_INLINE void codes_q6_k(const uint8_t *words, int32_t sub, int32_t part, lanes code[8])
{
    PI_UNROLL
    for (int32_t i = 0; i < 8; i++) {
        int32_t at = sub / 4 * 16 + sub % 2 * 8 + i;
        lanes low = lanes_field(word_at(words, at, part), sub % 4 / 2 * 4, 15);
        lanes high = word_at(words, 32 + sub / 4 * 8 + i, part);
        code[i] = lanes_with_high(low, high, sub % 4 * 2 - 4, 48);
    }
}

PI_INLINE void scales_q6_k(const uint8_t *words, const uint16_t *halves, float *scale, float *min)
{
    (void)min;
    for (int32_t p = 0; p < N_PART; p++) {
        flanes d = half_at(halves, 0, p);
        for (int32_t i = 0; i < 16; i++)
            store_product(part_of(scale, i, p), d,
                          lanes_sbyte(word_at(words, 48 + i / 4, p), i % 4));
    }
}

/* ---- numbers of a table ------------------------------------------------------------------- */

/* pi_iq4_table and pi_mxfp4_table, above their zeros. */
static const uint8_t iq4_codes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                      129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t mxfp4_codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

PI_INLINE void codes_iq4_nl(const uint8_t *words, int32_t sub, int32_t part, lanes code[8])
{
    codes_q4(words, sub, part, code);
    PI_UNROLL
    for (int32_t i = 0; i < 8; i++)
        code[i] = lanes_q8_0(lanes_table(code[i], iq4_codes));
}

PI_INLINE void codes_iq4_xs(const uint8_t *words, int32_t sub, int32_t part, lanes code[8])
{
    codes_iq4_nl(words + (size_t)(1 + sub * 4) * PI_WORD_BYTES, sub, part, code);
}

/* The low 4 bits of 8 scales are in one word, their high 2 bits in the second halves. */
PI_INLINE void scales_iq4_xs(const uint8_t *words, const uint16_t *halves, float *scale, float *min)
{
    (void)min;
    for (int32_t p = 0; p < N_PART; p++) {
        flanes d = half_at(halves, 0, p);
        lanes low = word_at(words, 0, p);
        lanes high = lanes_u16(halves + PI_GROUP + p * (PI_GROUP / N_PART));
        PI_UNROLL
        for (int32_t i = 0; i < 8; i++) {
            lanes four = lanes_byte(lanes_field(low, i % 2 * 4, 15), i / 2);
            lanes six = lanes_byte(lanes_with_high(four, high, 2 * i - 4, 48), 0);
            store_product(part_of(scale, i, p), d, lanes_plus(six, -32));
        }
    }
}

PI_INLINE void codes_mxfp4(const uint8_t *words, int32_t sub, int32_t part, lanes code[8])
{
    codes_q4(words, sub, part, code);
    PI_UNROLL
    for (int32_t i = 0; i < 8; i++)
        code[i] = lanes_table(code[i], mxfp4_codes);
}

PI_INLINE void scales_mxfp4(const uint8_t *words, const uint16_t *halves, float *scale, float *min)
{
    const uint8_t *exponents = (const uint8_t *)halves;
    (void)words;
    (void)min;
    for (int32_t p = 0; p < N_PART; p++)
        flanes_store(part_of(scale, 0, p),
                     flanes_exponent(lanes_u8(exponents + p * (PI_GROUP / N_PART))));
}

/* ---- blocks and panels -------------------------------------------------------------------- */

PI_INLINE const uint8_t *block_words(const struct shape *s, const uint8_t *group, int32_t block)
{
    return group + (size_t)block * (size_t)(s->block_word * PI_WORD_BYTES);
}

PI_INLINE const uint16_t *block_halves(const struct shape *s, const uint8_t *group, int32_t n_block,
                                       int32_t block)
{
    const uint8_t *end = block_words(s, group, n_block);
    return (const uint16_t *)(const void *)(end + (size_t)block * pi_matmul_scale_bytes(s->n_half) *
                                                      PI_GROUP);
}

/* Codes of the columns [32 sub, 32 sub + 32) of a block, as the level's panels have them. */
PI_INLINE void decode_codes(const struct shape *s, const uint8_t *words, int32_t sub, uint8_t *room)
{
    for (int32_t p = 0; p < N_PART; p++) {
        lanes code[8];
        s->codes(words, sub, p, code);
        PI_UNROLL
        for (int32_t j = 0; j < 8; j++)
            lanes_store(room + (size_t)j * PI_WORD_BYTES + (size_t)p * sizeof(lanes),
                        lanes_panel(code[j], s->zero));
    }
}

/* pi_decode_fn of a shape. */
PI_INLINE void decode(const struct shape s, const struct pi_matrix *w, const uint8_t *group,
                      int32_t col_begin, int32_t n_col, uint8_t *room, struct pi_panel *panel)
{
    int32_t n_block = w->n_col / s.block_len, first = col_begin / s.block_len;
    int32_t n_sub = s.block_len / s.sub_len;
    bool in_place = CODES_IN_PLACE && s.codes == codes_q8_0;
    panel->code = in_place ? block_words(&s, group, first) : room;
    for (int32_t b = 0; b < n_col / s.block_len; b++) {
        const uint8_t *words = block_words(&s, group, first + b);
        s.scales(words, block_halves(&s, group, n_block, first + b),
                 panel->scale + b * n_sub * PI_GROUP, panel->min + b * n_sub * PI_GROUP);
        for (int32_t i = 0; i < s.block_len / 32 && !in_place; i++, room += PI_CODE_BYTES)
            decode_codes(&s, words, i, room);
    }
}

/* ---- few tokens --------------------------------------------------------------------------- */

PI_INLINE flanes sum_of(const int32_t *aux)
{
    return flanes_set1((const float *)(const void *)aux);
}

/* (float)dot of one token from the sum of its products; aux as in pi_tile. */
PI_INLINE flanes few_dot(const struct shape *s, lanes sum, const int32_t *aux)
{
    return flanes_int(s->has_min ? sum : lanes_plus(sum, *aux));
}

/* The term of 32 columns for one token, before the activations' scale. The sums of their products
   are all in `first`, or one half in `first` and one in `second`. */
PI_INLINE flanes few_term(const struct shape *s, lanes first, lanes second, const float *scale,
                          const float *min, const int32_t *aux)
{
    flanes term = flanes_mul(few_dot(s, first, aux), flanes_load(scale));
    if (s->sub_len == 32)
        return s->has_min ? flanes_fma(flanes_load(min), sum_of(aux), term) : term;
    term = flanes_fma(few_dot(s, second, aux + 1), flanes_load(scale + PI_GROUP), term);
    if (!s->has_min)
        return term;
    term = flanes_fma(flanes_load(min), sum_of(aux), term);
    return flanes_fma(flanes_load(min + PI_GROUP), sum_of(aux + 1), term);
}

/* Packed bytes of 32 columns. */
PI_INLINE int32_t few_bytes(const struct shape *s)
{
    int32_t scales = (int32_t)pi_matmul_scale_bytes(s->n_half) * PI_GROUP;
    return (s->block_word * PI_WORD_BYTES + scales) * 32 / s->block_len;
}

/* Asks for as many packed bytes as 32 columns take. Processors' own prefetching does not keep up
   with the groups' short runs of words and halves. */
PI_INLINE void few_ask(const struct shape *s, const char *ahead)
{
    for (int32_t j = 0; j < few_bytes(s); j += 64)
        lanes_prefetch(ahead + j);
}

/* The same, for later: beside n steps, of which the next are numbered from first on. */
PI_INLINE struct pi_ask few_ask_beside(const struct shape *s, const char *ahead, int32_t first,
                                       int32_t n)
{
    return (struct pi_ask){ahead, (few_bytes(s) + 63) / 64, first, n};
}

/* pi_few_fn of a shape and a number of tokens. It prefetches words some distance ahead, at once or,
   with far, beside the products, and the halves of the next group. */
PI_INLINE void few(const struct shape s, const struct pi_matrix *w, const uint8_t *group,
                   const struct pi_tile *p, const int32_t n_tok)
{
    const int32_t n_block = w->n_col / s.block_len, n_sub = 32 / s.sub_len;
    _Alignas(64) float scale[PI_SUB_MAX * PI_GROUP], min[PI_SUB_MAX * PI_GROUP];
    const char *ahead = (const char *)group + PREFETCH_BYTES;
    const bool beside = DOT_ASKS && p->far;
    int32_t at = 0; /* blocks of 32 columns done */
    flanes acc[FEW_PART][N_PART];
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++) {
        PI_UNROLL
        for (int32_t r = 0; r < N_PART; r++)
            acc[t][r] = flanes_int(lanes_zero());
    }
    for (int32_t b = 0; b < n_block; b++) {
        const uint8_t *words = block_words(&s, group, b);
        const uint16_t *halves = block_halves(&s, group, n_block, b);
        lanes_prefetch((const char *)halves + w->group_bytes);
        s.scales(words, halves, scale, min);
        for (int32_t i = 0; i < s.block_len / 32; i++, at++, ahead += few_bytes(&s)) {
            const char *asked = ahead;
            if (!beside) { /* the lines prefetched beside the products are in the cache then */
                few_ask(&s, ahead);
                asked = (const char *)words;
            }
            PI_UNROLL
            for (int32_t r = 0; r < N_PART; r++) {
                lanes code[8];
                s.codes(words, i, r, code);
                PI_UNROLL
                for (int32_t t = 0; t < n_tok; t++) {
                    const int8_t *q = p->q + (size_t)t * p->q_stride + at * PI_ACT_BLOCK;
                    const struct pi_ask ask =
                        few_ask_beside(&s, asked, (r * n_tok + t) * 8, N_PART * n_tok * 8);
                    lanes first = dot(&s, code, 0, 8 / n_sub, q, ask);
                    lanes second = n_sub == 2 ? dot(&s, code, 4, 8, q, ask) : first;
                    flanes term = few_term(&s, first, second, part_of(scale, i * n_sub, r),
                                           part_of(min, i * n_sub, r),
                                           p->aux + (size_t)t * p->aux_stride + at * n_sub);
                    const float *x_scale = p->x_scale + (size_t)t * p->x_stride + at;
                    acc[t][r] = flanes_fma(term, flanes_set1(x_scale), acc[t][r]);
                }
            }
        }
    }
    PI_UNROLL
    for (int32_t t = 0; t < n_tok; t++) {
        PI_UNROLL
        for (int32_t r = 0; r < N_PART; r++)
            flanes_store(part_of(p->out + (size_t)t * p->out_stride, 0, r), acc[t][r]);
    }
}

/* ---- the types ---------------------------------------------------------------------------- */

static const struct shape shape_q8_0 = {32, 8, 1, 32, false, 128, 128, codes_q8_0, scales_plain};
static const struct shape shape_q4_0 = {32, 4, 1, 32, false, 15, 8, codes_q4, scales_plain};
static const struct shape shape_q4_1 = {32, 4, 2, 32, true, 15, 0, codes_q4, scales_with_min};
static const struct shape shape_q5_0 = {32, 5, 1, 32, false, 31, 16, codes_q5, scales_plain};
static const struct shape shape_q5_1 = {32, 5, 2, 32, true, 31, 0, codes_q5, scales_with_min};
static const struct shape shape_q2_k = {256, 20, 2, 16, true, 3, 0, codes_q2_k, scales_q2_k};
static const struct shape shape_q3_k = {256, 27, 1, 16, false, 7, 4, codes_q3_k, scales_q3_k};
static const struct shape shape_q4_k = {256, 35, 2, 32, true, 15, 0, codes_q4_k, scales_q45_k};
static const struct shape shape_q5_k = {256, 43, 2, 32, true, 31, 0, codes_q5_k, scales_q45_k};
static const struct shape shape_q6_k = {256, 52, 1, 16, false, 63, 32, codes_q6_k, scales_q6_k};
static const struct shape shape_iq4_nl = {32,           4,           1, 32, false, 128, 128,
                                          codes_iq4_nl, scales_plain};
static const struct shape shape_iq4_xs = {256,          33,           2, 32, false, 128, 128,
                                          codes_iq4_xs, scales_iq4_xs};
static const struct shape shape_mxfp4 = {32, 4, 0, 32, false, 24, 12, codes_mxfp4, scales_mxfp4};

/* Enter the version with the number of tokens as a constant. */
PI_INLINE void few_many(const struct shape s, const struct pi_matrix *w, const uint8_t *group,
                        const struct pi_tile *p)
{
    if (p->n_tok == 5)
        few(s, w, group, p, 5);
    else if (p->n_tok == 6)
        few(s, w, group, p, 6);
    else if (p->n_tok == 7)
        few(s, w, group, p, 7);
    else
        few(s, w, group, p, 8);
}

PI_INLINE void few_enter(const struct shape s, const struct pi_matrix *w, const uint8_t *group,
                         const struct pi_tile *p)
{
    if (p->n_tok == 1)
        few(s, w, group, p, 1);
    else if (p->n_tok == 2)
        few(s, w, group, p, 2);
    else if (p->n_tok == 3)
        few(s, w, group, p, 3);
    else if (p->n_tok == 4)
        few(s, w, group, p, 4);
    else if (FEW_PART > 4)
        few_many(s, w, group, p);
}

/* The functions of a type, built by the compiler from its constants: decode_* of all, and few_*
   where a level asks for them by QUANT_TYPES(QUANT_FEW). */
#define QUANT_DECODE(name)                                                                         \
    static void decode_##name(const struct pi_matrix *w, const uint8_t *group, int32_t col_begin,  \
                              int32_t n_col, uint8_t *room, struct pi_panel *panel)                \
    {                                                                                              \
        decode(shape_##name, w, group, col_begin, n_col, room, panel);                             \
    }

#define QUANT_FEW(name)                                                                            \
    static void few_##name(const struct pi_matrix *w, const uint8_t *group,                        \
                           const struct pi_tile *p)                                                \
    {                                                                                              \
        few_enter(shape_##name, w, group, p);                                                      \
    }

#define QUANT_TYPES(function)                                                                      \
    function(q8_0) function(q4_0) function(q4_1) function(q5_0) function(q5_1) function(q2_k)      \
        function(q3_k) function(q4_k) function(q5_k) function(q6_k) function(iq4_nl)               \
            function(iq4_xs) function(mxfp4)

QUANT_TYPES(QUANT_DECODE)

#endif
