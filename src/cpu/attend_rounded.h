/*
 * attend_rounded.h - rounded values (attend.h) for every vector level: weights with their scales,
 * sums and the table; values of bf16. A part of attend_tile.h; the tiles of that header and of
 * attend_codes.h do the rest.
 */
#ifndef PI_ATTEND_ROUNDED_H
#define PI_ATTEND_ROUNDED_H

/* attend.h's Z. */
TILE vec at_least(vec x, vec least)
{
    vec magnitude = vec_max(x, vec_sub(vec_zero(), x));
    return mask_pick(mask_below(magnitude, least), vec_zero(), x);
}

/* A row's weights, for all vectors of the page. */
TILE void rounded_weights(const struct pi_attend_page *page, const float *p, float *w)
{
    const bool scaled = page->v_table != NULL;
    const vec least = vec_set1(scaled ? PI_ATTEND_ROUNDED_LEAST : PI_ATTEND_BF16_LEAST);
    for (int32_t s = 0; s < page_vecs(page) * VEC; s += VEC) {
        vec x = vec_load(p + s);
        if (scaled)
            x = vec_mul(x, vec_load_f16(page->v_scale + s));
        vec_store(w + s, vec_bf16(at_least(x, least)));
    }
}

/* Sums that no rescaling touches stay as they are. */
TILE void rounded_sums(const struct pi_attend_page *page, float *o, float c)
{
    const vec factor = vec_set1(c), least = vec_set1(PI_ATTEND_ROUNDED_LEAST_SUM);
    for (int32_t d = 0; c != 1.0f && d < page->dim_v; d += VEC) {
        const int32_t n = page->dim_v - d;
        store_some(o + d, at_least(vec_mul(load_some(o + d, n), factor), least), n);
    }
}

TILE void rounded_rows(const struct pi_attend_page *page, const struct pi_attend_rows *rows,
                       float *w, float *rescale)
{
    for (int32_t r = 0; r < rows->n_row; r++) {
        rounded_weights(page, rows->x + r * PI_ATTEND_SLOTS, w + r * PI_ATTEND_SLOTS);
        rounded_sums(page, rows->o + (size_t)r * rows->o_stride, rows->rescale[r]);
        rescale[r] = 1.0f;
    }
}

static void round_weights(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    rounded_rows(page, rows, rows->x, rows->rescale);
}

TILE void rounded_table(const float *table, float *out)
{
    for (int32_t i = 0; i < PI_ATTEND_CODES; i += VEC)
        vec_store(out + i, vec_bf16(vec_load(table + i)));
}

static void values_bf16(const struct pi_attend_page *page, const struct pi_attend_rows *rows)
{
    _Alignas(64) float w[PI_ATTEND_ROWS_STORED * PI_ATTEND_SLOTS];
    float rescale[PI_ATTEND_ROWS_STORED];
    struct pi_attend_rows rounded = *rows;
    rounded_rows(page, rows, w, rescale);
    rounded.x = w;
    rounded.rescale = rescale;
    tile_all(PI_ATTEND_BF16, page, NULL, &rounded);
}

#endif
