/*
 * attend_avx512_bf16.c - rounded values (attend.h) on processors that multiply pairs of bf16. One
 * instruction adds two entries to a register of sums, and one look-up finds the numbers of both. It
 * replaces attend_avx512.c's functions for them and must not know anything else of attention.
 * Invariant: the bits of attend.h.
 *
 * A lane of 32 bits holds the entry of an even slot in its high half and the next entry in its low
 * half. vdpbf16ps adds the product of the high halves first and rounds after each product, so
 * entries are added in ascending order. The kernel reads both entries of a pair or neither; an
 * unneeded entry has weight 0.
 */
#include "cpu/kernels.h"
#include "cpu/lanes_avx512.h"
#include "cpu/unrolled.h"

enum {
    VEC = 16,
    CHUNK = 32, /* words of 16 bits of a register */
    PAIRS = PI_ATTEND_SLOTS / 2,
};

/* A page's codes, in which words of 16 bits of the two entries of a pair take turns, the second
   entry's first, and its weights. */
struct pairs {
    _Alignas(64) uint16_t low[PI_ATTEND_SLOTS * PI_ATTEND_ROUNDED_DIM / 4];
    _Alignas(64) uint16_t high[PI_ATTEND_SLOTS * PI_ATTEND_ROUNDED_DIM / 16];
    _Alignas(64) uint32_t weight[PI_ATTEND_ROWS_STORED][PAIRS];
    uint32_t need; /* the pairs that are read, bit by bit; at least one */
};

/* ---- pairs -------------------------------------------------------------------------------- */

/* Source positions of the words in a register of pairs; entries have n_word words each, a power of
   two. Word 2 i + 1 of a pair is word i of its first entry, and word 2 i is word i of the
   second. */
TILE __m512i zip_order(int32_t n_word)
{
    const __m512i to = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17,
                                        16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i in_pair = _mm512_set1_epi16((short)(2 * n_word - 1));
    __m512i pair = _mm512_andnot_si512(in_pair, to);
    __m512i word = _mm512_srli_epi16(_mm512_and_si512(in_pair, to), 1);
    __m512i second = _mm512_maskz_set1_epi16(0x55555555u, (short)n_word);
    return _mm512_or_si512(_mm512_or_si512(pair, word), second);
}

/* Entries of a register each. */
TILE void zip_long(const uint8_t *from, ptrdiff_t next, uint32_t need, uint16_t *to)
{
    const __m512i lower = zip_order(CHUNK);
    const __m512i upper = _mm512_add_epi16(lower, _mm512_set1_epi16(CHUNK / 2));
    for (; need != 0; need &= need - 1) {
        const size_t at = (size_t)__builtin_ctz(need) * 2 * CHUNK;
        const uint8_t *first = from + 2 * at, *second = first + 2 * CHUNK;
        line_prefetch(first + next);
        line_prefetch(second + next);
        __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
        _mm512_store_si512(to + at, _mm512_permutex2var_epi16(a, lower, b));
        _mm512_store_si512(to + at + CHUNK, _mm512_permutex2var_epi16(a, upper, b));
    }
}

/* Interleaves n_entry entries (an even number) of n_word words each into pairs. It also prefetches
   the same lines of a later page. */
TILE void zip(const uint8_t *from, ptrdiff_t next, int32_t n_word, int32_t n_entry, uint32_t need,
              uint16_t *to)
{
    if (n_word == CHUNK) {
        zip_long(from, next, need, to);
        return;
    }
    const __m512i order = zip_order(n_word);
    const int32_t n_pair = CHUNK / 2 / n_word, end = n_word * n_entry; /* pairs of a register */
    const uint32_t here = (1u << n_pair) - 1u;
    for (int32_t i = 0; i < end; i += CHUNK, need >>= n_pair) {
        if ((need & here) == 0)
            continue;
        line_prefetch(from + next + 2 * i);
        const __mmask32 some = end - i >= CHUNK ? ~0u : (1u << (end - i)) - 1u;
        __m512i words = _mm512_maskz_loadu_epi16(some, from + 2 * i);
        _mm512_store_si512(to + i, _mm512_permutexvar_epi16(order, words));
    }
}

TILE void pairs_codes(const enum pi_attend_type type, const struct pi_attend_page *page,
                      struct pairs *to)
{
    const int32_t n = page->n + page->n % 2;
    zip(page->v, page->next, page->dim_v * pi_attend_code_bits(type) / 16, n, to->need, to->low);
    if (type == PI_ATTEND_CODE3)
        zip(page->v_high, page->next, page->dim_v / 16, n, to->need, to->high);
}

/* Lanes whose magnitude is not below a bound. */
TILE __mmask16 at_least(__m512 x, __m512 least)
{
    return _mm512_cmp_ps_mask(_mm512_abs_ps(x), least, _CMP_NLT_UQ);
}

TILE void pairs_weights(const struct pi_attend_page *page, const struct pi_attend_rows *rows,
                        struct pairs *to)
{
    const __m512 least = _mm512_set1_ps(PI_ATTEND_ROUNDED_LEAST);
    for (int32_t s = 0; s < page->n; s += VEC) {
        const __m512 scale =
            _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(page->v_scale + s)));
        for (int32_t r = 0; r < rows->n_row; r++) {
            __m512 w = _mm512_mul_ps(_mm512_load_ps(rows->x + r * PI_ATTEND_SLOTS + s), scale);
            __m256i b = (__m256i)_mm512_maskz_cvtneps_pbh(at_least(w, least), w);
            _mm256_store_si256((__m256i *)(void *)(to->weight[r] + s / 2), _mm256_rol_epi32(b, 16));
        }
    }
}

/* ---- numbers ------------------------------------------------------------------------------ */

/*
 * 16 dimensions of an entry are 2 words of 8 codes, or 4 of 4. A broadcast of these words repeats a
 * word in every second or fourth lane. So lane l holds code l / 2 of word l % 2, or code l / 4 of
 * word l % 4. The function returns that order.
 */
TILE __m512i lane_dims(const enum pi_attend_type type)
{
    return type == PI_ATTEND_CODE4
               ? _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)
               : _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
}

/* The lane of a dimension. */
TILE __m512i dim_lanes(const enum pi_attend_type type)
{
    return type == PI_ATTEND_CODE4
               ? _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)
               : _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
}

/* The shift of each lane's words, and the numbers of a table, twice. */
struct decoder {
    __m512i by;
    __m512i third_by;
    __m512i numbers;
};

TILE struct decoder decoder_of(const enum pi_attend_type type, const float *table)
{
    const int32_t bits = pi_attend_code_bits(type), n_code = 16 / bits;
    const __m512i dims = lane_dims(type);
    __m512i code = _mm512_and_si512(dims, _mm512_set1_epi32(n_code - 1));
    __m256i numbers = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(table));
    return (struct decoder){.by = _mm512_mullo_epi32(code, _mm512_set1_epi32(bits)),
                            .third_by = _mm512_sub_epi32(dims, _mm512_set1_epi32(2)),
                            .numbers = _mm512_broadcast_i64x4(numbers)};
}

/* Numbers of 16 dimensions of a pair. The look-up takes the lowest five bits of a half; numbers
   repeat themselves, so that those above a code do not matter. The third bits are all in one word
   of each entry. */
TILE __m512bh numbers_at(const enum pi_attend_type type, const struct decoder *d,
                         const uint16_t *low, const uint16_t *high)
{
    __m512i code;
    int64_t words;
    int32_t thirds;
    memcpy(&words, low, sizeof(words));
    if (type == PI_ATTEND_CODE4)
        code = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(const void *)low));
    else
        code = _mm512_set1_epi64(words);
    code = _mm512_srlv_epi32(code, d->by);
    if (type == PI_ATTEND_CODE3) {
        memcpy(&thirds, high, sizeof(thirds));
        __m512i third = _mm512_rorv_epi32(_mm512_set1_epi32(thirds), d->third_by);
        code = _mm512_ternarylogic_epi32(code, third, _mm512_set1_epi32(0x00040004), 0xd8);
    }
    return (__m512bh)_mm512_permutexvar_epi16(code, d->numbers);
}

/* ---- tiles -------------------------------------------------------------------------------- */

TILE __m512 rescaled(const float *o, float c)
{
    const __m512 least = _mm512_set1_ps(c == 1.0f ? 0.0f : PI_ATTEND_ROUNDED_LEAST_SUM);
    __m512 x = _mm512_mul_ps(_mm512_loadu_ps(o), _mm512_set1_ps(c));
    return _mm512_maskz_mov_ps(at_least(x, least), x);
}

/* All rows times n_vec vectors of dimensions from d0 on. The look-up of a pair runs beside the
   multiplication of the pair before it. The loop does one look-up too many at the end, so that it
   has no branch. */
TILE void tile(const enum pi_attend_type type, const int32_t n_row, const int32_t n_vec,
               const struct pi_attend_page *page, const struct pi_attend_rows *rows,
               const struct pairs *pairs, int32_t d0)
{
    const struct decoder decoder = decoder_of(type, page->v_table);
    const __m512i to_lane = lane_dims(type), to_dim = dim_lanes(type);
    const size_t pitch = (size_t)(page->dim_v * pi_attend_code_bits(type) / 8);
    const size_t high_pitch = (size_t)(page->dim_v / 8);
    const uint16_t *low = pairs->low + d0 * pi_attend_code_bits(type) / 8,
                   *high = pairs->high + d0 / 8;
    float *o = rows->o + d0;
    __m512 acc[PI_ATTEND_ROWS_STORED][4];
    __m512bh v[4], after[4];
    const uint32_t last = 1u << (31 - __builtin_clz(pairs->need));
    uint32_t need = pairs->need;
    size_t p, then = (size_t)__builtin_ctz(need);
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            acc[r][j] = _mm512_permutexvar_ps(
                to_lane, rescaled(o + (size_t)r * rows->o_stride + j * VEC, rows->rescale[r]));
    }
    UNROLL
    for (int32_t j = 0; j < n_vec; j++)
        after[j] =
            numbers_at(type, &decoder, low + then * pitch + j * 2 * pi_attend_code_bits(type),
                       high + then * high_pitch + j * 2);
    do {
        p = then;
        need &= need - 1;
        then = (size_t)__builtin_ctz(need | last);
        UNROLL
        for (int32_t j = 0; j < n_vec; j++) {
            v[j] = after[j];
            after[j] =
                numbers_at(type, &decoder, low + then * pitch + j * 2 * pi_attend_code_bits(type),
                           high + then * high_pitch + j * 2);
        }
        UNROLL
        for (int32_t r = 0; r < n_row; r++) {
            const __m512bh w = (__m512bh)_mm512_set1_epi32((int32_t)pairs->weight[r][p]);
            UNROLL
            for (int32_t j = 0; j < n_vec; j++)
                acc[r][j] = _mm512_dpbf16_ps(acc[r][j], v[j], w);
        }
    } while (need != 0);
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            _mm512_storeu_ps(o + (size_t)r * rows->o_stride + j * VEC,
                             _mm512_permutexvar_ps(to_dim, acc[r][j]));
    }
}

/* Up to 20 sums, the numbers of two pairs, a weight and what numbers take share 32 registers. */
TILE void tiles(const enum pi_attend_type type, const int32_t n_row,
                const struct pi_attend_page *page, const struct pi_attend_rows *rows,
                const struct pairs *pairs)
{
    const int32_t n = page->dim_v / VEC;
    int32_t i = 0;
    if (n_row <= 5)
        for (; i + 4 <= n; i += 4)
            tile(type, n_row, 4, page, rows, pairs, i * VEC);
    for (; i + 2 <= n; i += 2)
        tile(type, n_row, 2, page, rows, pairs, i * VEC);
    for (; i < n; i++)
        tile(type, n_row, 1, page, rows, pairs, i * VEC);
}

/* Heights are constants, so that sums stay in registers. */
TILE void tiles_all(const enum pi_attend_type type, const struct pi_attend_page *page,
                    const struct pi_attend_rows *rows, const struct pairs *pairs)
{
    switch (rows->n_row) {
    case 1:
        tiles(type, 1, page, rows, pairs);
        break;
    case 2:
        tiles(type, 2, page, rows, pairs);
        break;
    case 3:
        tiles(type, 3, page, rows, pairs);
        break;
    case 4:
        tiles(type, 4, page, rows, pairs);
        break;
    case 5:
        tiles(type, 5, page, rows, pairs);
        break;
    case 6:
        tiles(type, 6, page, rows, pairs);
        break;
    case 7:
        tiles(type, 7, page, rows, pairs);
        break;
    case 8:
        tiles(type, 8, page, rows, pairs);
        break;
    default:
        break;
    }
}

/* Nothing is left to do where no row needs a slot and no maximum has moved. Where only the latter
   has, the first pair is read, whose weights are 0. */
TILE void values_rounded(const enum pi_attend_type type, const struct pi_attend_page *page,
                         const struct pi_attend_rows *rows)
{
    struct pairs pairs;
    const uint64_t need = rows->need;
    bool idle = need == 0;
    for (int32_t r = 0; r < rows->n_row && idle; r++)
        idle = rows->rescale[r] == 1.0f;
    if (idle)
        return;
    pairs.need = need != 0 ? (uint32_t)_pext_u64(need | need >> 1, 0x5555555555555555u) : 1;
    pairs_weights(page, rows, &pairs);
    pairs_codes(type, page, &pairs);
    tiles_all(type, page, rows, &pairs);
}

static void values_rounded_code4(const struct pi_attend_page *page,
                                 const struct pi_attend_rows *rows)
{
    values_rounded(PI_ATTEND_CODE4, page, rows);
}

static void values_rounded_code3(const struct pi_attend_page *page,
                                 const struct pi_attend_rows *rows)
{
    values_rounded(PI_ATTEND_CODE3, page, rows);
}

static void values_rounded_code2(const struct pi_attend_page *page,
                                 const struct pi_attend_rows *rows)
{
    values_rounded(PI_ATTEND_CODE2, page, rows);
}

void pi_attend_init_avx512_bf16(struct pi_attend_kernels *k)
{
    k->values_rounded[PI_ATTEND_CODE4] = values_rounded_code4;
    k->values_rounded[PI_ATTEND_CODE3] = values_rounded_code3;
    k->values_rounded[PI_ATTEND_CODE2] = values_rounded_code2;
}
