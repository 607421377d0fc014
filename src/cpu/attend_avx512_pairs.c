/*
 * attend_avx512_pairs.c - attention of many rows over keys of bf16 and rounded values (attend.h) on
 * processors that multiply pairs of bf16. One instruction adds two dimensions of keys, or the
 * values of two entries, to a register of sums. It must not know anything else of attention.
 * Invariant: the bits of attend.h.
 *
 * A pair is 32 bits with the first number in the high half. vdpbf16ps adds the product of the high
 * halves first and rounds after each product. Keys lie side by side, two dimensions to a pair, and
 * values entry by entry, two entries to a pair. Both are put in pairs once for all rows of a call.
 * A missing second dimension is 0, which adds nothing; an unused second entry has a weight of 0.
 */
#include "cpu/kernels.h"
#include "cpu/lanes_avx512.h"

#include "cpu/bits_avx512.h" /* whose `bits` is a name in those */

#include "cpu/attend_transpose.h"

enum {
    VEC = 16,
    CHUNK = 32, /* numbers of a register */
    PAIRS = PI_ATTEND_SLOTS / 2,
};

/* ---- pairs -------------------------------------------------------------------------------- */

/* Where the halves of 16 pairs come from, number `from` on of each of two registers. */
TILE __m512i zip_order(int32_t from)
{
    const __m512i to = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17,
                                        16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i second = _mm512_maskz_set1_epi16(0x55555555u, CHUNK);
    __m512i number = _mm512_add_epi16(_mm512_srli_epi16(to, 1), _mm512_set1_epi16((short)from));
    return _mm512_or_si512(number, second);
}

/* out[i] = a[i], b[i] for i < n. */
TILE void zip(const uint16_t *a, const uint16_t *b, int32_t n, uint32_t *out)
{
    const __m512i lower = zip_order(0), upper = zip_order(CHUNK / 2);
    int32_t i = 0;
    for (; i + CHUNK <= n; i += CHUNK) {
        __m512i x = _mm512_loadu_si512(a + i), y = _mm512_loadu_si512(b + i);
        _mm512_storeu_si512(out + i, _mm512_permutex2var_epi16(x, lower, y));
        _mm512_storeu_si512(out + i + VEC, _mm512_permutex2var_epi16(x, upper, y));
    }
    if (i == n)
        return;
    const __mmask32 some = (1u << (n - i)) - 1u;
    __m512i x = _mm512_maskz_loadu_epi16(some, a + i), y = _mm512_maskz_loadu_epi16(some, b + i);
    _mm512_mask_storeu_epi32(out + i, (__mmask16)some, _mm512_permutex2var_epi16(x, lower, y));
    _mm512_mask_storeu_epi32(out + i + VEC, (__mmask16)(some >> VEC),
                             _mm512_permutex2var_epi16(x, upper, y));
}

/* Keys that are stored entry by entry. The stored pairs, which have the first number in the low
   half, are transposed, and then their halves are exchanged. */
static void pair_key_rows(const struct pi_attend_page *page, uint32_t *out)
{
    const int32_t len = page->page_len, dim = page->dim_k, n_pair = dim / 2;
    const uint16_t *k = page->k;
    transpose(4, (const uint8_t *)k, (size_t)dim * sizeof(*k), (uint8_t *)out,
              (size_t)len * sizeof(*out), len, n_pair, (const uint8_t *)k + page->next, page->far);
    for (int32_t i = 0; i < n_pair * len; i += VEC)
        _mm512_storeu_si512(out + i, _mm512_rol_epi32(_mm512_loadu_si512(out + i), 16));
    for (int32_t s = 0; dim % 2 != 0 && s < len; s++)
        out[n_pair * len + s] = (uint32_t)k[s * dim + dim - 1] << 16;
}

static void pair_k(const struct pi_attend_page *page, uint32_t *out)
{
    static const uint16_t none[PI_ATTEND_SLOTS];
    const int32_t len = page->page_len, dim = page->dim_k;
    const uint16_t *k = page->k;
    if (!page->columns) {
        pair_key_rows(page, out);
        return;
    }
    for (int32_t d = 0; d < dim; d += 2, k += 2 * len, out += len)
        zip(k, d + 1 < dim ? k + len : none, len, out);
}

static void pair_v(const struct pi_attend_page *page, uint32_t *out)
{
    const uint16_t *v = page->v;
    for (int32_t s = 0; s < page->page_len; s += 2, v += 2 * page->v_pitch, out += page->dim_v)
        zip(v, v + page->v_pitch, page->dim_v, out);
}

/* In place: row i of pairs takes the place of row i, which none of the later ones is made of. */
static void pair_rounded(const struct pi_attend_page *page, uint32_t *v)
{
    const __m512i high = _mm512_set1_epi32((int32_t)0xffff0000u);
    const int32_t dim = page->dim_v;
    uint32_t *out = v;
    for (int32_t s = 0; s < page->page_len; s += 2, v += 2 * dim, out += dim)
        for (int32_t d = 0; d < dim; d += VEC) { /* a multiple of 16 */
            __m512i first = _mm512_and_si512(_mm512_loadu_si512(v + d), high);
            __m512i second = _mm512_srli_epi32(_mm512_loadu_si512(v + dim + d), 16);
            _mm512_storeu_si512(out + d, _mm512_or_si512(first, second));
        }
}

/* ---- logits ------------------------------------------------------------------------------- */

TILE __m512bh pairs_load(const uint32_t *p)
{
    return (__m512bh)_mm512_loadu_si512(p);
}

TILE __m512bh pair_set1(const uint32_t *p)
{
    return (__m512bh)_mm512_set1_epi32((int32_t)*p);
}

/* All rows times the slots from s0 on (n_vec registers). */
TILE void logits_tile(const int32_t n_row, const int32_t n_vec, const struct pi_attend_page *page,
                      const struct pi_attend_rows *rows, int32_t s0)
{
    const uint32_t *k = (const uint32_t *)page->k + s0, *q = rows->q_pair;
    const vec factor = vec_set1(rows->scale);
    __m512 acc[PI_ATTEND_ROWS][4];
    __m512bh key[4];
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            acc[r][j] = vec_zero();
    }
    for (int32_t d = 0; d < page->dim_k; d += 2) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            key[j] = pairs_load(k + j * VEC);
        UNROLL
        for (int32_t r = 0; r < n_row; r++) {
            const __m512bh qr = pair_set1(q + r);
            UNROLL
            for (int32_t j = 0; j < n_vec; j++)
                acc[r][j] = _mm512_dpbf16_ps(acc[r][j], key[j], qr);
        }
        k += page->page_len;
        q += n_row;
    }
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            vec_store(rows->x + r * PI_ATTEND_SLOTS + s0 + j * VEC,
                      vec_clamp(vec_mul(acc[r][j], factor)));
    }
}

/* ---- values ------------------------------------------------------------------------------- */

/* Weights in pairs. */
struct weights {
    _Alignas(64) uint32_t of[PI_ATTEND_ROWS][PAIRS];
};

/* Sixteen weights; weights of coded values include the entries' scales. */
TILE __m512 weights_load(const struct pi_attend_page *page, const float *x, int32_t s,
                         const bool coded)
{
    if (s >= page->n)
        return vec_zero();
    return coded ? vec_mul(vec_load(x + s), vec_load_f16(page->v_scale + s)) : vec_load(x + s);
}

/* Slots from n to the next multiple of 16 have weights of 0; those behind are not read. */
TILE void weights_pair(const struct pi_attend_page *page, const struct pi_attend_rows *rows,
                       const bool coded, struct weights *to)
{
    const __m512 least = vec_set1(coded ? PI_ATTEND_ROUNDED_LEAST : PI_ATTEND_BF16_LEAST);
    for (int32_t r = 0; r < rows->n_row; r++)
        for (int32_t s = 0; s < page->n; s += CHUNK) {
            const float *x = rows->x + r * PI_ATTEND_SLOTS;
            __m512 a = weights_load(page, x, s, coded), b = weights_load(page, x, s + VEC, coded);
            __mmask32 kept = _mm512_kunpackw(_mm512_cmp_ps_mask(b, least, _CMP_NLT_UQ),
                                             _mm512_cmp_ps_mask(a, least, _CMP_NLT_UQ));
            __m512i w = (__m512i)_mm512_maskz_cvtne2ps_pbh(kept, b, a);
            _mm512_store_si512(to->of[r] + s / 2, _mm512_rol_epi32(w, 16));
        }
}

/* Most maxima stay as they are, and then the sums do. */
TILE void sums_rescale(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    const __m512 least = vec_set1(PI_ATTEND_ROUNDED_LEAST_SUM);
    for (int32_t r = 0; r < rows->n_row; r++) {
        float *o = rows->o + (size_t)r * rows->o_stride;
        const __m512 c = vec_set1(rows->rescale[r]);
        for (int32_t d = 0; rows->rescale[r] != 1.0f && d < page->dim_v; d += VEC) {
            const int32_t left = page->dim_v - d;
            const __mmask16 there = left >= VEC ? 0xffff : (__mmask16)((1u << left) - 1u);
            __m512 x = vec_mul(_mm512_maskz_loadu_ps(there, o + d), c);
            __mmask16 kept = _mm512_cmp_ps_mask(_mm512_abs_ps(x), least, _CMP_NLT_UQ);
            _mm512_mask_storeu_ps(o + d, there, _mm512_maskz_mov_ps(kept, x));
        }
    }
}

/* All rows times the dimensions from d0 on: n_vec registers, or with `part` the dimensions of a
   mask. */
TILE void values_tile(const int32_t n_row, const int32_t n_vec, const bool part, __mmask16 there,
                      const struct pi_attend_page *page, const struct pi_attend_rows *rows,
                      const struct weights *weights, int32_t d0)
{
    const uint32_t *v = (const uint32_t *)page->v + d0;
    __m512 acc[PI_ATTEND_ROWS][4];
    __m512bh value[4];
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        const float *o = rows->o + (size_t)r * rows->o_stride + d0;
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            acc[r][j] = part ? _mm512_maskz_loadu_ps(there, o) : vec_load(o + j * VEC);
    }
    for (int32_t i = 0; i < (page->n + 1) / 2; i++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            value[j] =
                part ? (__m512bh)_mm512_maskz_loadu_epi32(there, v) : pairs_load(v + j * VEC);
        UNROLL
        for (int32_t r = 0; r < n_row; r++) {
            const __m512bh w = pair_set1(&weights->of[r][i]);
            UNROLL
            for (int32_t j = 0; j < n_vec; j++)
                acc[r][j] = _mm512_dpbf16_ps(acc[r][j], value[j], w);
        }
        v += page->dim_v;
    }
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        float *o = rows->o + (size_t)r * rows->o_stride + d0;
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            if (part)
                _mm512_mask_storeu_ps(o, there, acc[r][j]);
            else
                vec_store(o + j * VEC, acc[r][j]);
    }
}

/* ---- one function per height -------------------------------------------------------------- */

/* Up to 24 sums, the pairs and a broadcast share 32 registers. */
TILE int32_t tile_vecs(int32_t n_row)
{
    return n_row <= 6 ? 4 : 2;
}

TILE void logits_rows(const int32_t n_row, const struct pi_attend_page *page,
                      const struct pi_attend_rows *rows)
{
    const int32_t across = (page->n + 15) / 16, wide = tile_vecs(n_row);
    int32_t i = 0;
    for (; i + wide <= across; i += wide)
        logits_tile(n_row, wide, page, rows, i * VEC);
    for (; i < across; i++)
        logits_tile(n_row, 1, page, rows, i * VEC);
}

TILE void values_rows(const int32_t n_row, const struct pi_attend_page *page,
                      const struct pi_attend_rows *rows, const struct weights *weights)
{
    const int32_t across = page->dim_v / VEC, left = page->dim_v % VEC, wide = tile_vecs(n_row);
    int32_t i = 0;
    for (; i + wide <= across; i += wide)
        values_tile(n_row, wide, false, 0, page, rows, weights, i * VEC);
    for (; i < across; i++)
        values_tile(n_row, 1, false, 0, page, rows, weights, i * VEC);
    if (left > 0)
        values_tile(n_row, 1, true, (__mmask16)((1u << left) - 1u), page, rows, weights, i * VEC);
}

/* Logits, or with weights values. */
TILE void tile_rows(const int32_t n_row, const struct pi_attend_page *page,
                    const struct pi_attend_rows *rows, const struct weights *weights)
{
    if (weights == NULL)
        logits_rows(n_row, page, rows);
    else
        values_rows(n_row, page, rows, weights);
}

/* Heights are constants, so that sums stay in registers. */
TILE void tile_all(const struct pi_attend_page *page, const struct pi_attend_rows *rows,
                   const struct weights *weights)
{
    switch (rows->n_row) {
    case 1:
        tile_rows(1, page, rows, weights);
        break;
    case 2:
        tile_rows(2, page, rows, weights);
        break;
    case 3:
        tile_rows(3, page, rows, weights);
        break;
    case 4:
        tile_rows(4, page, rows, weights);
        break;
    case 5:
        tile_rows(5, page, rows, weights);
        break;
    case 6:
        tile_rows(6, page, rows, weights);
        break;
    case 7:
        tile_rows(7, page, rows, weights);
        break;
    case 8:
        tile_rows(8, page, rows, weights);
        break;
    case 9:
        tile_rows(9, page, rows, weights);
        break;
    case 10:
        tile_rows(10, page, rows, weights);
        break;
    case 11:
        tile_rows(11, page, rows, weights);
        break;
    default:
        tile_rows(12, page, rows, weights);
        break;
    }
}

static void logits_paired(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    tile_all(page, rows, NULL);
}

static void values_paired(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    struct weights weights;
    if (page->v_table != NULL)
        weights_pair(page, rows, true, &weights);
    else
        weights_pair(page, rows, false, &weights);
    sums_rescale(page, rows);
    tile_all(page, rows, &weights);
}

void pi_attend_init_avx512_pairs(struct pi_attend_kernels *k)
{
    k->pair_k = pair_k;
    k->pair_v = pair_v;
    k->pair_rounded = pair_rounded;
    k->logits_paired = logits_paired;
    k->values_paired = values_paired;
}
