/*
 * attend_rounded.h - rounded values (attend.h) for every vector level: weights with their scales,
 * sums and the table; a part of attend_codes.h, whose tiles do the rest.
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
    const vec least = vec_set1(PI_ATTEND_ROUNDED_LEAST);
    for (int32_t s = 0; s < page_vecs(page) * VEC; s += VEC) {
        vec scaled = vec_mul(vec_load(p + s), vec_load_f16(page->v_scale + s));
        vec_store(w + s, vec_bf16(at_least(scaled, least)));
    }
}

/* Sums that no rescaling touches stay as they are. */
TILE void rounded_sums(const struct pi_attend_page *page, float *o, float c)
{
    const vec factor = vec_set1(c), least = vec_set1(PI_ATTEND_ROUNDED_LEAST_SUM);
    for (int32_t d = 0; c != 1.0f && d < page->dim_v; d += VEC)
        vec_store(o + d, at_least(vec_mul(vec_load(o + d), factor), least));
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

#endif
