/*
 * attend_coded.h - logits of q8_0 keys: integer products of the keys' codes and the queries' codes
 * (attend.h). Written once for every vector level; a part of attend_tile.h, whose operations it
 * uses.
 */
#ifndef PI_ATTEND_CODED_H
#define PI_ATTEND_CODED_H

enum { CODED_ROWS = 6 }; /* rows of a tile: two sums for each and register across */

/* Rows r0.. times the slots from s0 on, as logits_tile. */
TILE void coded_tile(const int32_t n_row, const int32_t n_vec, const bool far,
                     const struct pi_attend_page *page, const struct keys *keys,
                     const struct pi_attend_rows *rows, int32_t r0, int32_t s0)
{
    const int32_t asked = keys->asked, all = rows->n_row;
    const uint8_t *at = keys->at + s0 * 4;
    const uint8_t *next = keys->next == NULL ? NULL : keys->next + s0 * asked;
    const uint32_t *q = rows->q_codes.code + keys->d0 / 4 * all + r0;
    float *x = rows->x + r0 * PI_ATTEND_SLOTS + s0;
    vec acc[CODED_ROWS][4], scale[4];
    vint dot[CODED_ROWS][4], k[4];
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            acc[r][j] = keys->d0 == 0 ? vec_zero() : vec_load(x + r * PI_ATTEND_SLOTS + j * VEC);
    }
    for (int32_t b = 0; b < keys->n_dim / SCALE_LEN; b++) {
        const int32_t at_block = (keys->d0 / SCALE_LEN + b) * all + r0;
        UNROLL
        for (int32_t r = 0; r < n_row; r++) {
            UNROLL
            for (int32_t j = 0; j < n_vec; j++)
                dot[r][j] = vint_start(rows->q_codes.sum[at_block + r]);
        }
        for (int32_t i = 0; i < SCALE_LEN / 4; i++) {
            UNROLL
            for (int32_t j = 0; j < n_vec; j++)
                k[j] = vint_load(at + j * VEC * 4);
            UNROLL
            for (int32_t r = 0; r < n_row; r++) {
                const vint qr = vint_set1(q + r);
                UNROLL
                for (int32_t j = 0; j < n_vec; j++) {
                    if (next != NULL)
                        prefetch_beside(next, n_vec * VEC * asked, far, r * n_vec + j,
                                        n_row * n_vec);
                    dot[r][j] = vint_dot(dot[r][j], k[j], qr);
                }
            }
            q += all;
            at += keys->pitch;
            next = next == NULL ? NULL : next + keys->next_pitch;
        }
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            scale[j] = scale_of(keys, b, s0 + j * VEC);
        UNROLL
        for (int32_t r = 0; r < n_row; r++) {
            const vec unit = vec_set1(rows->q_codes.scale[at_block + r]);
            UNROLL
            for (int32_t j = 0; j < n_vec; j++)
                acc[r][j] = vec_fma(vint_floats(dot[r][j]), vec_mul(scale[j], unit), acc[r][j]);
        }
    }
    UNROLL
    for (int32_t r = 0; r < n_row; r++) {
        UNROLL
        for (int32_t j = 0; j < n_vec; j++)
            logit_store(page, keys, rows, x + r * PI_ATTEND_SLOTS + j * VEC, acc[r][j]);
    }
}

/* All slots for n_row rows, in tiles as wide as registers allow. */
TILE void coded_rows(const int32_t n_row, const bool far, const struct pi_attend_page *page,
                     const struct keys *keys, const struct pi_attend_rows *rows, int32_t r0)
{
    int32_t i = 0, n = page_vecs(page);
    if (coded_vecs(n_row) >= 4)
        for (; i + 4 <= n; i += 4)
            coded_tile(n_row, 4, far, page, keys, rows, r0, i * VEC);
    if (coded_vecs(n_row) >= 2)
        for (; i + 2 <= n; i += 2)
            coded_tile(n_row, 2, far, page, keys, rows, r0, i * VEC);
    for (; i < n; i++)
        coded_tile(n_row, 1, far, page, keys, rows, r0, i * VEC);
}

/* Heights are constants, so that each tile's sums stay in registers. */
TILE void coded_some(int32_t n_row, const bool far, const struct pi_attend_page *page,
                     const struct keys *keys, const struct pi_attend_rows *rows, int32_t r0)
{
    switch (n_row) {
    case 1:
        coded_rows(1, far, page, keys, rows, r0);
        break;
    case 2:
        coded_rows(2, far, page, keys, rows, r0);
        break;
    case 3:
        coded_rows(3, far, page, keys, rows, r0);
        break;
    case 4:
        coded_rows(4, far, page, keys, rows, r0);
        break;
    case 5:
        coded_rows(5, far, page, keys, rows, r0);
        break;
    default:
        coded_rows(6, far, page, keys, rows, r0);
        break;
    }
}

/* Tiles of much the same height. */
TILE void coded_all(const struct pi_attend_page *page, const struct keys *keys,
                    const struct pi_attend_rows *rows)
{
    const int32_t n_tile = (rows->n_row + CODED_ROWS - 1) / CODED_ROWS;
    for (int32_t i = 0, r = 0, end; i < n_tile; i++, r = end) {
        end = rows->n_row * (i + 1) / n_tile;
        if (page->far)
            coded_some(end - r, true, page, keys, rows, r);
        else
            coded_some(end - r, false, page, keys, rows, r);
    }
}

/* Pages that were turned for many rows have no next one, and are in the cache. */
static void logits_coded(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    struct key_block block;
    for (int32_t d = 0, end; d < page->dim_k; d = end) {
        struct keys keys = page->columns
                               ? keys_stored(PI_ATTEND_Q8_0, page)
                               : keys_turn(PI_ATTEND_Q8_0, page, page_vecs(page) * VEC, d, &block);
        if (page->columns && page->next == 0)
            keys.next = NULL;
        coded_all(page, &keys, rows);
        end = keys.d0 + keys.n_dim;
    }
}

#endif
