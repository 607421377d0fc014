/*
 * attend.h - attention of query rows over one page of entries at a time. A row is one query head of
 * one token. Rows that share a KV head are computed together, so that a page is read once for all
 * of them. kv/attend.c walks a lane page by page with these kernels.
 *
 * A page holds page_len entries (16, 32 or 64), and the first n are in use. kv/class.h draws its
 * layout: K [page_len][dim_k] or transposed, V [page_len][v_pitch]. q8_0 is codes with one f16
 * scale per 32 dimensions of an entry. Types of 4, 3 and 2 bits hold codes and one f16 scale per
 * group of dimensions. A table of the page gives each code's value. K, V, scales and tables may
 * start at any address that suits their type. Entries beyond n hold finite values, which are read
 * and multiplied by zero.
 *
 * A logit is a sum over the dimensions in ascending order. A lane of a register computes it alone,
 * and the other lanes compute the logits of other entries. So kernels need keys transposed: the
 * entries of one dimension side by side. Where a page stores them otherwise, a kernel for few rows
 * transposes keys while it reads them. For many rows, decode_k writes a transposed page of f32
 * once, and logits_decoded reads it. Values need no transposition: there the lanes are dimensions,
 * as they are stored.
 *
 * The arithmetic is fixed, for every level and every path, so that all give the same bits. fma is
 * the fused multiply-add, other operators round to f32. A stored value is exact in f32: f16 and
 * bf16 widen. The product of an f16 scale and a code has at most 18 significant bits. Of the types
 * with a table it is scale * table[code], rounded once. For row r and the slots s of a page, in the
 * order of the lane's pages:
 *
 *   x[s]  = clamp(scale * (acc = fma(k[d][s], q[d], acc), d ascending, from 0))
 *           clamp limits to [-FLT_MAX, FLT_MAX] and turns NaN into -FLT_MAX, so that finite inputs
 *           never give NaN however large the products
 *   s is visible when s < n, pos[s] <= limit[r] and the caller has not made x[s] -INFINITY before
 *           the softmax, as it does for entries before a row's window; a row that sees no slot
 *           stays unchanged below
 *   m'    = max(m, x[s] of the visible s)
 *   c     = m' > m ? E(m - m') : 1
 *   p[s]  = visible ? E(x[s] - m') : 0
 *   sum16[i] = p[i] + p[i + 16] + p[i + 32] + p[i + 48], added in this order, as far as slots go
 *   sum   = tree over sum16: i with i + 8, then i + 4, i + 2, i + 1
 *   l'    = fma(l, c, sum)
 *   o[d]  = fma(v[s][d], p[s], o[d]), s ascending, from o[d] * c
 *
 * Before the first page m = -INFINITY, l = 0 and o = 0. A row with a sink, which is a logit without
 * an entry, starts from m = sink and l = 1. Invisible slots add an exact zero, so pages without a
 * visible slot may be skipped. (The sign of a zero in o may change; the caller's last step removes
 * it.) The bits of a row depend neither on the rows beside it nor on entries that it does not see.
 * Values must stay below FLT_MAX divided by the entries of a lane.
 *
 * Where keys are q8_0, queries are codes, too. A block of 32 dimensions of a query has codes and a
 * scale u, as vec.h's quantize makes them. The sum of a block's products of codes is exact, in 32
 * bits and in f32:
 *
 *   x[s]  = clamp(scale * (acc = fma(dot[b], scale_k[b][s] * u[b], acc), b ascending, from 0))
 *   dot[b] = sum of code_k[d][s] * code_q[d] over the dimensions d of block b
 *
 * Where the caller asks for it (drop), values ignore small weights: p[s] < PI_ATTEND_SMALL * l'
 * becomes 0 in x. The sum and the tap use the weight before that. Each row is treated by itself
 * here, too. Entries of coded values that no row of a call needs then are not decoded.
 *
 * E(x) is expf.h's exponential for x >= -87 and 0 below (-INFINITY included). E(0) = 1 exactly, so
 * a row that sees one entry returns its value, unless that is rounded.
 *
 * Coded values may be rounded where each entry has one group (v_group == dim_v == v_pitch). Scale
 * and weight then become one number in bf16, and the table's numbers become bf16, too. Attention of
 * several rows over codes is bound by its products, not by the bytes. Processors that multiply
 * pairs of bf16 add two entries at once. An entry changes by less than 2^-7 of it, where coding has
 * changed it by a tenth and more (docs/store.md has what is measured). Outputs over the same
 * entries in other pages differ by as much, since weights are relative to the maximum so far.
 *
 *   B(y)    = y rounded to 8 bits, to nearest, ties to even (bf16)
 *   Z(y, e) = |y| < e ? 0 : y
 *   w[s]    = B(Z(p[s] * scale[s], PI_ATTEND_ROUNDED_LEAST))
 *   o[d]    = fma(B(table[code[s][d]]), w[s], o[d]), s ascending,
 *             from c == 1 ? o[d] : Z(o[d] * c, PI_ATTEND_ROUNDED_LEAST_SUM)
 *
 * The instructions for pairs (AVX512-BF16's vdpbf16ps: two products, the sum rounded after each)
 * take subnormal numbers for zero. No number is subnormal here. Numbers of a table are 0 or at
 * least 2^-20, so their rounded values are multiples of 2^-27. A weight is a multiple of 2^-87 and
 * a product one of 2^-114. A rescaled sum is 0 or a multiple of 2^-123. Sums of multiples of 2^-123
 * are multiples of it, and rounding keeps them so: a sum is 0 or above 2^-126.
 *
 * Where keys or values are bf16, queries and weights are rounded to bf16 as well, so that both
 * products of attention come in pairs. The caller rounds queries: q = B(Z(q,
 * PI_ATTEND_BF16_LEAST)), to the largest finite number instead of infinity (pi_attend_bf16). Values
 * of bf16 use the formulas above with a scale of 1, the stored value for the table's number, and
 * PI_ATTEND_BF16_LEAST for PI_ATTEND_ROUNDED_LEAST. Every slot is read. Here, too, no sum is
 * subnormal. A stored number is 0 or at least PI_ATTEND_BF16_STORED, and so a multiple of 2^-47. A
 * query's number or a weight is one of 2^-67, and a product one of 2^-114.
 */
#ifndef PI_ATTEND_H
#define PI_ATTEND_H

#include "base/base.h"
#include "cpu/expf.h"

#define PI_ATTEND_SLOTS 64      /* most entries of a page; floats from one row of x to the next */
#define PI_ATTEND_ROWS 12       /* most rows of one call on decoded pages */
#define PI_ATTEND_ROWS_STORED 8 /* most rows of one call on pages as stored */
#define PI_ATTEND_SMALL 1e-6f   /* share of a row's sum below which a weight is dropped */
#define PI_ATTEND_ROUNDED_LEAST 0x1p-80f      /* a rounded weight below it is 0 */
#define PI_ATTEND_ROUNDED_LEAST_SUM 0x1p-100f /* and so is a rescaled sum of rounded values */
#define PI_ATTEND_ROUNDED_DIM 128             /* most dimensions of rounded values */
#define PI_ATTEND_BF16_LEAST 0x1p-60f         /* queries and weights for bf16 are 0 below it */
#define PI_ATTEND_BF16_STORED 0x1p-40f        /* and stored bf16 values are 0 below this */
#define PI_ATTEND_CODES 16 /* of a table; a table of fewer bits is repeated until it is full */

/* Optional results of a call. A page's slots begin at the pointers. */
struct pi_attend_tap {
    float *logits; /* row r's visible x, and -INFINITY for the others: n floats; NULL: not wanted */
    float *weight; /* row r's p, 0 where nothing is visible: n floats and those up to the next
                      multiple of 16; NULL: not wanted */
    size_t stride; /* floats from one row to the next */
};

/* B(Z(x, least)), B to the largest finite number instead of infinity. Without branches, so that
   compilers make loops of it wide. */
static inline uint16_t pi_attend_bf16(float x, float least)
{
    const uint32_t most = 0x7f7f0000u;
    uint32_t bits = pi_bits_from_f32(x), size = bits & 0x7fffffffu;
    uint32_t kept = size < pi_bits_from_f32(least) ? 0 : bits;
    kept = size > most ? (bits & 0x80000000u) | most : kept;
    return (uint16_t)((kept + 0x7fffu + (kept >> 16 & 1u)) >> 16);
}

/*
 * Codes are packed little end first. Codes of 4 bits lie in nibbles, the lower one first; codes of
 * 2 bits from the lowest two bits of a byte on. Codes of 3 bits have their lower two bits in the
 * same order. Their third bits form a second plane, bit d % 8 of byte d / 8 for dimension d. Head
 * sizes of these types are multiples of 16, and so are groups, powers of two that divide the head
 * size.
 */
enum pi_attend_type {
    PI_ATTEND_F32,
    PI_ATTEND_F16,
    PI_ATTEND_BF16,
    PI_ATTEND_Q8_0,
    PI_ATTEND_CODE4,
    PI_ATTEND_CODE3,
    PI_ATTEND_CODE2,
    PI_ATTEND_N_TYPE
};

/* Bits of a code in its low plane. */
static inline int32_t pi_attend_code_bits(enum pi_attend_type type)
{
    return type == PI_ATTEND_CODE4 ? 4 : 2;
}

struct pi_attend_page {
    const void *k;      /* [page_len][dim_k] values or codes. With columns: [dim_k][page_len], q8_0
                           [dim_k / 4][page_len][4], CODE4 [dim_k / 8][page_len][4], CODE3 and CODE2
                           [dim_k / 16][page_len][4]. For logits_decoded: f32 [dim_k][page_len]; for
                           logits_paired: pairs */
    const void *k_high; /* CODE3: [page_len][dim_k / 8], with columns [dim_k / 16][page_len][2] */
    const uint16_t *k_scale; /* [page_len][dim_k / 32], with columns [dim_k / 32][page_len]. q8_0
                                only; codes have k_group for 32 */
    const float *k_table;    /* [PI_ATTEND_CODES], codes only */
    const void *v;           /* [page_len][v_pitch] values or codes, dim_v of them in use */
    const void *v_high;      /* CODE3: [page_len][v_pitch / 8] */
    const uint16_t *v_scale; /* [page_len][v_pitch / 32], q8_0 only, and of codes with v_group */
    const float *v_table;    /* as k_table */
    const int32_t *pos;      /* [page_len] */
    int32_t k_group;         /* dimensions that share a scale, of codes only */
    int32_t v_group;
    int32_t page_len;
    int32_t n;    /* entries in use, 1..page_len */
    bool columns; /* keys lie side by side */
    int32_t dim_k;
    int32_t dim_v;
    int32_t v_pitch; /* dimensions from one entry's values to the next one's: dim_v, or where they
                        are parts of keys dim_k */
    ptrdiff_t next;  /* bytes from this page to a later one, whose lines kernels prefetch while they
                        read this one (not values of f32); 0 at the end */
    bool far; /* of f16, bf16 and q8_0 they ask for it into the second level of cache, not into the
                 first */
};

/* Queries in codes, and where they are written. */
struct pi_attend_codes {
    uint32_t *code; /* words of four codes, [dim_k / 4][n_row], the first in the lowest byte */
    float *scale;   /* [dim_k / 32][n_row] */
    int32_t *sum;   /* [dim_k / 32][n_row] of the codes of a block */
};

struct pi_attend_rows {
    int32_t n_row;
    const float *q;         /* [dim_k][n_row]; rounded where keys are bf16 */
    const uint32_t *q_pair; /* the same in pairs, [(dim_k + 1) / 2][n_row], logits_paired only */
    struct pi_attend_codes q_codes; /* the same as they meet q8_0, where q is not looked at */
    float scale;
    const int32_t *limit; /* [n_row] largest position (as stored in the page) that a row sees */
    bool all_visible;     /* every row sees all n entries: limit is not looked at */
    float *x;             /* [n_row][PI_ATTEND_SLOTS] logits, then weights; 64-byte aligned */
    float *max;           /* [n_row] m */
    float *sum;           /* [n_row] l */
    float *rescale;       /* [n_row] c */
    uint64_t need; /* bit s for each slot s < n that values of codes reads: all slots, or the result
                      of drop (x is 0 in the others). Other types read all */
    float *o;      /* [n_row] rows, o_stride floats apart */
    size_t o_stride;
};

/* Each reads and writes the members of rows that its line names. Slots from n to the next multiple
   of 16 are computed but never visible; slots beyond that are left alone. */
struct pi_attend_kernels {
    /* x from q and K as stored. At most PI_ATTEND_ROWS_STORED rows, on q8_0 PI_ATTEND_ROWS. */
    void (*logits[PI_ATTEND_N_TYPE])(const struct pi_attend_page *page,
                                     const struct pi_attend_rows *rows);
    /* x from q and K as decode_k leaves it. At most PI_ATTEND_ROWS rows. */
    void (*logits_decoded)(const struct pi_attend_page *page, const struct pi_attend_rows *rows);
    /* x becomes p; max, sum and rescale are updated; tap (may be NULL) gets the results that it
       asks for. */
    void (*softmax)(const struct pi_attend_page *page, const struct pi_attend_rows *rows,
                    const struct pi_attend_tap *tap);
    /* x[s] = 0 where it is below PI_ATTEND_SMALL times the row's sum, s < n; returns the slots
       where some row has more than 0 left. Follows softmax. */
    uint64_t (*drop)(const struct pi_attend_page *page, const struct pi_attend_rows *rows);
    /* o from rescale, x (weights) and V. At most PI_ATTEND_ROWS rows on f32, PI_ATTEND_ROWS_STORED
       on the other types. */
    void (*values[PI_ATTEND_N_TYPE])(const struct pi_attend_page *page,
                                     const struct pi_attend_rows *rows);
    /* The same with rounded values; bf16, of which these are the only ones, and codes. */
    void (*values_rounded[PI_ATTEND_N_TYPE])(const struct pi_attend_page *page,
                                             const struct pi_attend_rows *rows);
    /* The other half of that, for values[PI_ATTEND_F32] on the output of decode_rounded: x becomes
       w, o is rescaled, and rescale becomes 1. At most PI_ATTEND_ROWS rows. Pages without v_table
       are bf16. */
    void (*round_weights)(const struct pi_attend_page *page, const struct pi_attend_rows *rows);
    /* All page_len entries of K as f32 and side by side, out [dim_k][page_len]. */
    void (*decode_k[PI_ATTEND_N_TYPE])(const struct pi_attend_page *page, float *out);
    /* K of q8_0 that is not side by side as a page with columns has it, its scales behind it. */
    void (*turn_k)(const struct pi_attend_page *page, uint8_t *out);
    /* All page_len entries of V as f32, out [page_len][dim_v]. */
    void (*decode_v[PI_ATTEND_N_TYPE])(const struct pi_attend_page *page, float *out);
    /* The numbers of V's codes as rounded values have them, without scales, as f32, out
       [page_len][dim_v]; of bf16 the same as decode_v. */
    void (*decode_rounded[PI_ATTEND_N_TYPE])(const struct pi_attend_page *page, float *out);
    /* Keys of bf16 and rounded values as pairs, for many rows. A pair is two numbers in 32 bits,
       the first in the high half. NULL where the processor cannot multiply pairs. Then
       logits_decoded, round_weights and values[PI_ATTEND_F32] on decoded pages give the same
       bits. */

    /* All of K, out [(dim_k + 1) / 2][page_len] pairs of dimensions; a last one's second is 0. */
    void (*pair_k)(const struct pi_attend_page *page, uint32_t *out);
    /* All of V of bf16, out [page_len / 2][dim_v] pairs of entries. */
    void (*pair_v)(const struct pi_attend_page *page, uint32_t *out);
    /* The same for the output of decode_rounded, in place. */
    void (*pair_rounded)(const struct pi_attend_page *page, uint32_t *v);
    /* x from q_pair and K as pair_k leaves it. At most PI_ATTEND_ROWS rows. */
    void (*logits_paired)(const struct pi_attend_page *page, const struct pi_attend_rows *rows);
    /* o from rescale, x (weights) and V in pairs, with the page's scales. At most PI_ATTEND_ROWS
       rows. */
    void (*values_paired)(const struct pi_attend_page *page, const struct pi_attend_rows *rows);

    /* x[i] *= factor for i < n: weights of pages on their way to the row's last maximum. */
    void (*scale)(float *x, int32_t n, float factor);
    /* x[i] = E(x[i] - max) * factor for i < n. */
    void (*decay)(float *x, int32_t n, float max, float factor);
    /* Asks for the lines of [at, at + size) to be brought into the caches; changes nothing. */
    void (*prefetch)(const void *at, size_t size);
    /* The same into the first level of cache, for lines that are read soon. */
    void (*prefetch_near)(const void *at, size_t size);
    bool far; /* what suits this processor as that of a page (kernels.c) */
};

#endif
