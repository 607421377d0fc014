/*
 * attend_codes.h - keys and values of 4, 3 and 2 bits, as attend_tile.h has wider types. Written
 * once for every vector level; a part of that header, whose operations it uses. A code becomes a
 * number by a look-up in registers and never goes to memory. A level defines
 *
 *   ivec                    VEC integers of 32 bits
 *   struct table            the numbers of a type's codes
 *   table_load(type, p)  table_mul(type, t, v)      the latter times v, each
 *   table_at(type, &t, i)   the numbers of the codes in the lowest bits of i, whatever is above
 *   ivec_words(p) ivec_halves(p)       VEC words of 32 bits, of 16
 *   ivec_left2(a) ivec_right(a, n)     shifts by 2; by 1, 2 or 4
 *   ivec_third(a, b)        a with the third bit of b, whatever is above
 *   codes_row(type, n_vec, low, high, out)      the codes of the next n_vec * VEC (at least 8)
 *                           dimensions of an entry, whatever is above
 *   code_key_vecs(n_row) code_value_vecs(n_row) registers across, of a tile n_row high
 */
#ifndef PI_ATTEND_CODES_H
#define PI_ATTEND_CODES_H

enum {
    CODE_DIMS = 256,     /* dimensions of keys that are put side by side at once */
    CODE_GROUP_MIN = 16, /* the shortest group */
};

/* Codes of a word of keys side by side. */
TILE int32_t word_len(enum pi_attend_type type)
{
    return 32 / pi_attend_code_bits(type);
}

/* ---- keys --------------------------------------------------------------------------------- */

/* Dimensions of keys side by side. The words and halves to prefetch, in a page that is read later,
   lie `next` bytes behind them. */
struct code_keys {
    const uint8_t *low; /* words, [n_dim / word_len] rows */
    size_t low_pitch;   /* bytes from one row to the next */
    const uint8_t *high;
    size_t high_pitch;
    const uint16_t *stored_scale; /* [n_dim / group][scale_pitch], or NULL and */
    const float *scale;           /* the same as f32 */
    int32_t scale_pitch;
    int32_t group;
    int32_t d0;
    int32_t n_dim;
    const uint8_t *next_low;
    const uint8_t *next_high;
};

/* Room for keys that a page has entry by entry. */
struct code_block {
    _Alignas(64) uint32_t low[CODE_DIMS / 8][PI_ATTEND_SLOTS];
    uint16_t high[CODE_DIMS / 16][PI_ATTEND_SLOTS];
    float scale[CODE_DIMS / CODE_GROUP_MIN][PI_ATTEND_SLOTS];
};

/* All keys of a page that lie side by side already. */
TILE struct code_keys code_keys_stored(const enum pi_attend_type type,
                                       const struct pi_attend_page *page)
{
    const size_t len = (size_t)page->page_len;
    const uint8_t *low = page->k, *high = type == PI_ATTEND_CODE3 ? page->k_high : low;
    return (struct code_keys){.low = low,
                              .low_pitch = len * 4,
                              .high = high,
                              .high_pitch = len * 2,
                              .stored_scale = page->k_scale,
                              .scale_pitch = page->page_len,
                              .group = page->k_group,
                              .n_dim = page->dim_k,
                              .next_low = low + page->next,
                              .next_high = high + page->next};
}

/* Puts dimensions d0 .. of the first n slots (a multiple of 16) side by side. */
TILE struct code_keys code_keys_turn(const enum pi_attend_type type,
                                     const struct pi_attend_page *page, int32_t n, int32_t d0,
                                     struct code_block *block)
{
    const int32_t left = page->dim_k - d0, n_dim = left < CODE_DIMS ? left : CODE_DIMS;
    const int32_t n_group = page->dim_k / page->k_group;
    const size_t row = (size_t)(page->dim_k / 8 * pi_attend_code_bits(type));
    const size_t high_row = (size_t)(page->dim_k / 8);
    const uint8_t *low = (const uint8_t *)page->k + d0 / 8 * pi_attend_code_bits(type);
    const uint8_t *high = type == PI_ATTEND_CODE3 ? (const uint8_t *)page->k_high + d0 / 8 : low;
    transpose_4(low, row, (uint8_t *)block->low, sizeof(block->low[0]), n, n_dim / word_len(type),
                low, false);
    if (type == PI_ATTEND_CODE3)
        transpose_2(high, high_row, (uint8_t *)block->high, sizeof(block->high[0]), n, n_dim / 16,
                    high, false);
    for (int32_t b = 0; b < n_dim / page->k_group; b++)
        for (int32_t s = 0; s < n; s += VEC)
            vec_store(
                block->scale[b] + s,
                vec_load_f16_step(page->k_scale + s * n_group + d0 / page->k_group + b, n_group));
    return (struct code_keys){.low = (const uint8_t *)block->low,
                              .low_pitch = sizeof(block->low[0]),
                              .high = (const uint8_t *)block->high,
                              .high_pitch = sizeof(block->high[0]),
                              .scale = block->scale[0],
                              .scale_pitch = PI_ATTEND_SLOTS,
                              .group = page->k_group,
                              .d0 = d0,
                              .n_dim = n_dim,
                              .next_low = low + page->next,
                              .next_high = high + page->next};
}

/* Of VEC slots and a block of dimensions. */
TILE vec code_scale(const struct code_keys *keys, int32_t block, int32_t s)
{
    const size_t at = (size_t)block * (size_t)keys->scale_pitch + (size_t)s;
    return keys->stored_scale != NULL ? vec_load_f16(keys->stored_scale + at)
                                      : vec_load(keys->scale + at);
}

/* The words of an element row, on their way from one code to the next. */
struct code_words {
    ivec low[4];
    ivec high[4];
    vec scale[4];
};

/* Before the first group's scales are there. */
TILE void words_start(const int32_t n_vec, struct code_words *w)
{
    UNROLL
    for (int32_t j = 0; j < n_vec; j++)
        w->scale[j] = vec_zero();
}

TILE void words_load(const enum pi_attend_type type, const int32_t n_vec,
                     const struct code_keys *keys, int32_t d, int32_t s0, struct code_words *w)
{
    const size_t e = (size_t)(d / word_len(type));
    UNROLL
    for (int32_t j = 0; j < n_vec; j++) {
        int32_t s = s0 + j * VEC;
        w->low[j] = ivec_words(keys->low + e * keys->low_pitch + (size_t)s * 4);
        if (type == PI_ATTEND_CODE3)
            w->high[j] = ivec_left2(ivec_halves(keys->high + e * keys->high_pitch + (size_t)s * 2));
        if (d % keys->group == 0)
            w->scale[j] = code_scale(keys, d / keys->group, s);
    }
}

/* Asks for as many bytes of a later page as words_load reads. */
TILE void words_ask(const enum pi_attend_type type, const int32_t n_vec,
                    const struct code_keys *keys, int32_t d, int32_t s0)
{
    const size_t e = (size_t)(d / word_len(type));
    prefetch_lines(keys->next_low + e * keys->low_pitch + (size_t)s0 * 4, (size_t)(n_vec * VEC * 4),
                   false);
    if (type == PI_ATTEND_CODE3)
        prefetch_lines(keys->next_high + e * keys->high_pitch + (size_t)s0 * 2,
                       (size_t)(n_vec * VEC * 2), false);
}

/* The number of the next dimension, of vector j. */
TILE vec words_next(const enum pi_attend_type type, const struct table *table, struct code_words *w,
                    int32_t j)
{
    ivec code = type == PI_ATTEND_CODE3 ? ivec_third(w->low[j], w->high[j]) : w->low[j];
    w->low[j] = ivec_right(w->low[j], pi_attend_code_bits(type));
    if (type == PI_ATTEND_CODE3)
        w->high[j] = ivec_right(w->high[j], 1);
    return vec_mul(table_at(type, table, code), w->scale[j]);
}

/* Rows r0.. times the slots from s0 on, as logits_tile. */
TILE void code_logits_tile(const enum pi_attend_type type, const int32_t n_row, const int32_t n_vec,
                           const struct pi_attend_page *page, const struct code_keys *keys,
                           const struct pi_attend_rows *rows, int32_t r0, int32_t s0)
{
    vec acc[PI_ATTEND_ROWS_STORED][4], k[4];
    const struct table table = table_load(type, page->k_table);
    const float *q = rows->q + (size_t)keys->d0 * (size_t)rows->n_row + r0;
    float *x = rows->x + r0 * PI_ATTEND_SLOTS + s0;
    struct code_words w;
    words_start(n_vec, &w);
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            acc[r][j] = keys->d0 == 0 ? vec_zero() : vec_load(x + r * PI_ATTEND_SLOTS + j * VEC);
    }
    for (int32_t d = 0; d < keys->n_dim; d += word_len(type)) {
        words_load(type, n_vec, keys, d, s0, &w);
        words_ask(type, n_vec, keys, d, s0);
        for (int32_t i = 0; i < word_len(type); i += 4) {
            UNROLL
            for (int32_t c = 0; c < 4; c++) {
                UNROLL
                for (int32_t j = 0; j < n_vec; j++)
                    k[j] = words_next(type, &table, &w, j);
                UNROLL
                for (int32_t r = 0; r < n_row; r++) {
                    vec qr = vec_set1(q[r]);
                    UNROLL
                    for (int32_t j = 0; j < n_vec; j++)
                        acc[r][j] = vec_fma(k[j], qr, acc[r][j]);
                }
                q += rows->n_row;
            }
        }
    }
    bool last = keys->d0 + keys->n_dim == page->dim_k;
    vec factor = vec_set1(rows->scale);
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            vec_store(x + r * PI_ATTEND_SLOTS + j * VEC,
                      last ? vec_clamp(vec_mul(acc[r][j], factor)) : acc[r][j]);
    }
}

TILE void code_logits_rows(const enum pi_attend_type type, const int32_t n_row,
                           const struct pi_attend_page *page, const struct code_keys *keys,
                           const struct pi_attend_rows *rows)
{
    int32_t i = 0, n = page_vecs(page);
    if (code_key_vecs(n_row) >= 4)
        for (; i + 4 <= n; i += 4)
            code_logits_tile(type, n_row, 4, page, keys, rows, 0, i * VEC);
    if (code_key_vecs(n_row) >= 2)
        for (; i + 2 <= n; i += 2)
            code_logits_tile(type, n_row, 2, page, keys, rows, 0, i * VEC);
    for (; (code_key_vecs(n_row) == 1 || VEC == 16) && i < n; i++) /* others come in pairs */
        code_logits_tile(type, n_row, 1, page, keys, rows, 0, i * VEC);
}

/* ---- values ------------------------------------------------------------------------------- */

/* An entry's planes from a dimension on, and how far apart entries are. */
struct code_values {
    const uint8_t *low;
    const uint8_t *high;
    size_t pitch;
    size_t high_pitch;
};

TILE struct code_values code_values_of(const enum pi_attend_type type,
                                       const struct pi_attend_page *page, int32_t d0)
{
    const uint8_t *low = page->v, *high = type == PI_ATTEND_CODE3 ? page->v_high : low;
    return (struct code_values){.low = low + d0 / 8 * pi_attend_code_bits(type),
                                .high = high + d0 / 8,
                                .pitch = (size_t)(page->v_pitch / 8 * pi_attend_code_bits(type)),
                                .high_pitch = (size_t)(page->v_pitch / 8)};
}

/* Asks for the lines of a later page that begin where an entry lies in this one. */
TILE void entry_ask(const enum pi_attend_type type, const struct code_values *v, ptrdiff_t next,
                    size_t s)
{
    for (size_t at = pi_align(s * v->pitch, 64); at < (s + 1) * v->pitch; at += 64)
        line_prefetch(v->low + next + at);
    if (type == PI_ATTEND_CODE3)
        for (size_t at = pi_align(s * v->high_pitch, 64); at < (s + 1) * v->high_pitch; at += 64)
            line_prefetch(v->high + next + at);
}

/* The scales of a page's entries for n_block blocks of dimensions from a block on. */
struct code_scales {
    float of[4][PI_ATTEND_SLOTS];
};

ONCE void code_scales_load(const struct pi_attend_page *page, int32_t block, int32_t n_block,
                           struct code_scales *to)
{
    const int32_t step = page->v_pitch / page->v_group;
    for (int32_t b = 0; b < n_block; b++)
        for (int32_t s = 0; s < (page->n + 15) / 16 * 16; s += VEC)
            vec_store(to->of[b] + s, vec_load_f16_step(page->v_scale + s * step + block + b, step));
}

/* The numbers that scales multiply in a tile of values. Where an entry has one scale in the tile,
   they multiply the table once; otherwise each number. The product is the same. With rounded values
   the weights include the scales. */
enum code_scaled { CODE_TABLE, CODE_NUMBERS, CODE_WEIGHTS };

/* All rows times n_vec vectors of dimensions from d0 on, for the needed slots. */
TILE void code_values_tile(const enum pi_attend_type type, const int32_t n_row, const int32_t n_vec,
                           const enum code_scaled scaled, const struct pi_attend_page *page,
                           const struct pi_attend_rows *rows, int32_t d0)
{
    vec acc[PI_ATTEND_ROWS_STORED][4], v[4];
    ivec code[4];
    const struct code_values from = code_values_of(type, page, d0);
    const struct table table = table_load(type, page->v_table);
    const int32_t group = page->v_group;
    struct code_scales scales;
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        vec c = vec_set1(rows->rescale[r]);
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            acc[r][j] = vec_mul(vec_load(rows->o + (size_t)r * rows->o_stride + d0 + j * VEC), c);
    }
    if (scaled != CODE_WEIGHTS)
        code_scales_load(page, d0 / group,
                         scaled == CODE_TABLE ? 1 : (n_vec * VEC + group - 1) / group, &scales);
    for (uint64_t need = rows->need; need != 0; need &= need - 1) {
        const size_t s = (size_t)__builtin_ctzll(need);
        if (d0 == 0)
            entry_ask(type, &from, page->next, s);
        codes_row(type, n_vec, from.low + s * from.pitch, from.high + s * from.high_pitch, code);
        struct table here = table;
        if (scaled == CODE_TABLE)
            here = table_mul(type, table, vec_set1(scales.of[0][s]));
        UNROLL
        for (int32_t j = 0; j < n_vec; j++) {
            v[j] = table_at(type, &here, code[j]);
            if (scaled == CODE_NUMBERS)
                v[j] = vec_mul(v[j], vec_set1(scales.of[j * VEC / group][s]));
        }
        UNROLL
        for (int32_t r = 0; r < n_row; r++) {
            vec p = vec_set1(rows->x[(size_t)r * PI_ATTEND_SLOTS + s]);
            UNROLL
            for (int32_t j = 0; j < n_vec; j++)
                acc[r][j] = vec_fma(v[j], p, acc[r][j]);
        }
    }
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            vec_store(rows->o + (size_t)r * rows->o_stride + d0 + j * VEC, acc[r][j]);
    }
}

TILE void code_values_rows(const enum pi_attend_type type, const int32_t n_row,
                           const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    int32_t i = 0, n = page->dim_v / VEC, group = page->v_group;
    if (code_value_vecs(n_row) >= 4 && group >= 4 * VEC)
        for (; i + 4 <= n; i += 4)
            code_values_tile(type, n_row, 4, CODE_TABLE, page, rows, i * VEC);
    if (code_value_vecs(n_row) >= 4 && CODE_GROUP_MIN < 4 * VEC && group < 4 * VEC)
        for (; i + 4 <= n; i += 4)
            code_values_tile(type, n_row, 4, CODE_NUMBERS, page, rows, i * VEC);
    if (code_value_vecs(n_row) >= 2 && group >= 2 * VEC)
        for (; i + 2 <= n; i += 2)
            code_values_tile(type, n_row, 2, CODE_TABLE, page, rows, i * VEC);
    if (code_value_vecs(n_row) >= 2 && CODE_GROUP_MIN < 2 * VEC && group < 2 * VEC)
        for (; i + 2 <= n; i += 2)
            code_values_tile(type, n_row, 2, CODE_NUMBERS, page, rows, i * VEC);
    for (; (code_value_vecs(n_row) == 1 || VEC == 16) && i < n; i++) /* others come in pairs */
        code_values_tile(type, n_row, 1, CODE_TABLE, page, rows, i * VEC);
}

/* Call it after weights, table and sums have been rounded (attend_rounded.h). */
TILE void code_rounded_rows(const enum pi_attend_type type, const int32_t n_row,
                            const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    int32_t i = 0, n = page->dim_v / VEC;
    if (code_value_vecs(n_row) >= 4)
        for (; i + 4 <= n; i += 4)
            code_values_tile(type, n_row, 4, CODE_WEIGHTS, page, rows, i * VEC);
    if (code_value_vecs(n_row) >= 2)
        for (; i + 2 <= n; i += 2)
            code_values_tile(type, n_row, 2, CODE_WEIGHTS, page, rows, i * VEC);
    for (; (code_value_vecs(n_row) == 1 || VEC == 16) && i < n; i++) /* others come in pairs */
        code_values_tile(type, n_row, 1, CODE_WEIGHTS, page, rows, i * VEC);
}

/* ---- one function per type and height ----------------------------------------------------- */

/* Logits of keys side by side, or with keys NULL values; heights are constants. */
TILE void code_rows(const enum pi_attend_type type, const int32_t n_row, const bool rounded,
                    const struct pi_attend_page *page, const struct code_keys *keys,
                    const struct pi_attend_rows *rows)
{
    if (keys != NULL)
        code_logits_rows(type, n_row, page, keys, rows);
    else if (rounded)
        code_rounded_rows(type, n_row, page, rows);
    else
        code_values_rows(type, n_row, page, rows);
}

TILE void code_all(const enum pi_attend_type type, const bool rounded,
                   const struct pi_attend_page *page, const struct code_keys *keys,
                   const struct pi_attend_rows *rows)
{
    switch (rows->n_row) {
    case 1:
        code_rows(type, 1, rounded, page, keys, rows);
        break;
    case 2:
        code_rows(type, 2, rounded, page, keys, rows);
        break;
    case 3:
        code_rows(type, 3, rounded, page, keys, rows);
        break;
    case 4:
        code_rows(type, 4, rounded, page, keys, rows);
        break;
    case 5:
        code_rows(type, 5, rounded, page, keys, rows);
        break;
    case 6:
        code_rows(type, 6, rounded, page, keys, rows);
        break;
    case 7:
        code_rows(type, 7, rounded, page, keys, rows);
        break;
    case 8:
        code_rows(type, 8, rounded, page, keys, rows);
        break;
    default:
        break;
    }
}

TILE void code_logits(const enum pi_attend_type type, const struct pi_attend_page *page,
                      const struct pi_attend_rows *rows)
{
    struct code_block block;
    for (int32_t d = 0, end; d < page->dim_k; d = end) {
        const struct code_keys keys =
            page->columns ? code_keys_stored(type, page)
                          : code_keys_turn(type, page, page_vecs(page) * VEC, d, &block);
        code_all(type, false, page, &keys, rows);
        end = keys.d0 + keys.n_dim;
    }
}

/* Nothing is left to do where no row needs a slot and no maximum has moved. */
TILE bool code_idle(const struct pi_attend_rows *rows)
{
    bool idle = rows->need == 0;
    for (int32_t r = 0; r < rows->n_row && idle; r++)
        idle = rows->rescale[r] == 1.0f;
    return idle;
}

TILE void code_values(const enum pi_attend_type type, const struct pi_attend_page *page,
                      const struct pi_attend_rows *rows)
{
    if (!code_idle(rows))
        code_all(type, false, page, NULL, rows);
}

TILE void code_values_rounded(const enum pi_attend_type type, const struct pi_attend_page *page,
                              const struct pi_attend_rows *rows)
{
    float w[PI_ATTEND_ROWS_STORED * PI_ATTEND_SLOTS], rescale[PI_ATTEND_ROWS_STORED];
    float table[PI_ATTEND_CODES];
    struct pi_attend_page rounded_page = *page;
    struct pi_attend_rows rounded = *rows;
    if (code_idle(rows))
        return;
    rounded_rows(page, rows, w, rescale);
    rounded_table(page->v_table, table);
    rounded_page.v_table = table;
    rounded.x = w;
    rounded.rescale = rescale;
    code_all(type, true, &rounded_page, NULL, &rounded);
}

/* ---- decoding ----------------------------------------------------------------------------- */

TILE void code_decode_block(const enum pi_attend_type type, const struct pi_attend_page *page,
                            const struct code_keys *keys, float *out)
{
    const struct table table = table_load(type, page->k_table);
    const int32_t len = page->page_len;
    for (int32_t s = 0; s < len; s += VEC) {
        struct code_words w;
        float *to = out + (size_t)keys->d0 * (size_t)len + s;
        words_start(1, &w);
        for (int32_t d = 0; d < keys->n_dim; d += word_len(type)) {
            words_load(type, 1, keys, d, s, &w);
            UNROLL
            for (int32_t i = 0; i < word_len(type); i++, to += len)
                vec_store(to, words_next(type, &table, &w, 0));
        }
    }
}

TILE void code_decode_k(const enum pi_attend_type type, const struct pi_attend_page *page,
                        float *out)
{
    struct code_block block;
    if (page->columns) {
        const struct code_keys keys = code_keys_stored(type, page);
        code_decode_block(type, page, &keys, out);
        return;
    }
    for (int32_t d = 0; d < page->dim_k; d += CODE_DIMS) {
        const struct code_keys keys = code_keys_turn(type, page, page->page_len, d, &block);
        code_decode_block(type, page, &keys, out);
    }
}

/* 16 dimensions at a time, which share a scale; rounded values have it elsewhere. */
TILE void code_decode_v(const enum pi_attend_type type, const bool rounded,
                        const struct pi_attend_page *page, const float *numbers, float *out)
{
    const struct code_values from = code_values_of(type, page, 0);
    const struct table table = table_load(type, numbers);
    const uint16_t *scale = page->v_scale;
    for (int32_t s = 0; s < page->page_len; s++) {
        const uint8_t *low = from.low + (size_t)s * from.pitch;
        const uint8_t *high = from.high + (size_t)s * from.high_pitch;
        for (int32_t d = 0; d < page->dim_v; d += 16, out += 16) {
            ivec code[16 / VEC];
            codes_row(type, 16 / VEC, low + d / 8 * pi_attend_code_bits(type), high + d / 8, code);
            vec factor = vec_set1_f16(scale + d / page->v_group);
            UNROLL
            for (int32_t j = 0; j < 16 / VEC; j++) {
                vec number = table_at(type, &table, code[j]);
                vec_store(out + j * VEC, rounded ? number : vec_mul(number, factor));
            }
        }
        scale += page->v_pitch / page->v_group;
    }
}

TILE void code_decode_rounded(const enum pi_attend_type type, const struct pi_attend_page *page,
                              float *out)
{
    float table[PI_ATTEND_CODES];
    rounded_table(page->v_table, table);
    code_decode_v(type, true, page, table, out);
}

static void logits_code4(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    code_logits(PI_ATTEND_CODE4, page, rows);
}

static void values_code4(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    code_values(PI_ATTEND_CODE4, page, rows);
}

static void decode_k_code4(const struct pi_attend_page *page, float *out)
{
    code_decode_k(PI_ATTEND_CODE4, page, out);
}

static void decode_v_code4(const struct pi_attend_page *page, float *out)
{
    code_decode_v(PI_ATTEND_CODE4, false, page, page->v_table, out);
}

static void values_rounded_code4(const struct pi_attend_page *page,
                                 const struct pi_attend_rows *rows)
{
    code_values_rounded(PI_ATTEND_CODE4, page, rows);
}

static void decode_rounded_code4(const struct pi_attend_page *page, float *out)
{
    code_decode_rounded(PI_ATTEND_CODE4, page, out);
}

static void logits_code3(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    code_logits(PI_ATTEND_CODE3, page, rows);
}

static void values_code3(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    code_values(PI_ATTEND_CODE3, page, rows);
}

static void decode_k_code3(const struct pi_attend_page *page, float *out)
{
    code_decode_k(PI_ATTEND_CODE3, page, out);
}

static void decode_v_code3(const struct pi_attend_page *page, float *out)
{
    code_decode_v(PI_ATTEND_CODE3, false, page, page->v_table, out);
}

static void values_rounded_code3(const struct pi_attend_page *page,
                                 const struct pi_attend_rows *rows)
{
    code_values_rounded(PI_ATTEND_CODE3, page, rows);
}

static void decode_rounded_code3(const struct pi_attend_page *page, float *out)
{
    code_decode_rounded(PI_ATTEND_CODE3, page, out);
}

static void logits_code2(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    code_logits(PI_ATTEND_CODE2, page, rows);
}

static void values_code2(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    code_values(PI_ATTEND_CODE2, page, rows);
}

static void decode_k_code2(const struct pi_attend_page *page, float *out)
{
    code_decode_k(PI_ATTEND_CODE2, page, out);
}

static void decode_v_code2(const struct pi_attend_page *page, float *out)
{
    code_decode_v(PI_ATTEND_CODE2, false, page, page->v_table, out);
}

static void values_rounded_code2(const struct pi_attend_page *page,
                                 const struct pi_attend_rows *rows)
{
    code_values_rounded(PI_ATTEND_CODE2, page, rows);
}

static void decode_rounded_code2(const struct pi_attend_page *page, float *out)
{
    code_decode_rounded(PI_ATTEND_CODE2, page, out);
}

static void codes_init(struct pi_attend_kernels *k)
{
    k->round_weights = round_weights;
    k->logits[PI_ATTEND_CODE4] = logits_code4;
    k->values[PI_ATTEND_CODE4] = values_code4;
    k->decode_k[PI_ATTEND_CODE4] = decode_k_code4;
    k->decode_v[PI_ATTEND_CODE4] = decode_v_code4;
    k->values_rounded[PI_ATTEND_CODE4] = values_rounded_code4;
    k->decode_rounded[PI_ATTEND_CODE4] = decode_rounded_code4;
    k->logits[PI_ATTEND_CODE3] = logits_code3;
    k->values[PI_ATTEND_CODE3] = values_code3;
    k->decode_k[PI_ATTEND_CODE3] = decode_k_code3;
    k->decode_v[PI_ATTEND_CODE3] = decode_v_code3;
    k->values_rounded[PI_ATTEND_CODE3] = values_rounded_code3;
    k->decode_rounded[PI_ATTEND_CODE3] = decode_rounded_code3;
    k->logits[PI_ATTEND_CODE2] = logits_code2;
    k->values[PI_ATTEND_CODE2] = values_code2;
    k->decode_k[PI_ATTEND_CODE2] = decode_k_code2;
    k->decode_v[PI_ATTEND_CODE2] = decode_v_code2;
    k->values_rounded[PI_ATTEND_CODE2] = values_rounded_code2;
    k->decode_rounded[PI_ATTEND_CODE2] = decode_rounded_code2;
}

#endif
