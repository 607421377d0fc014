/*
 * matmul_blocked_float.h - the loops around a level's products with float weights, as
 * matmul_blocked.h has them for quantised ones. Weights are read in place; the first tile of each
 * block of columns asks memory for the block that follows.
 */
#ifndef PI_MATMUL_BLOCKED_FLOAT_H
#define PI_MATMUL_BLOCKED_FLOAT_H

#include "cpu/matmul_layout.h"

#define PI_FLOAT_TILE_GROUP_MAX 4
#define PI_FLOAT_BLOCK_COL 64            /* columns whose weights stay in the first cache */
#define PI_FLOAT_SLAB_BYTES (256 * 1024) /* of activations, that stay in the second */
#define PI_FLOAT_SLAB_TOK 512

/* n_group groups times n_tok tokens over n_col columns. */
struct pi_float_tile {
    int32_t n_tok;
    int32_t n_group;
    int32_t n_col;
    const uint8_t *group[PI_FLOAT_TILE_GROUP_MAX]; /* each [n_col][PI_GROUP] */
    const uint8_t *ahead[PI_FLOAT_TILE_GROUP_MAX]; /* what to ask memory for meanwhile, as long */
    const float *x;                                /* [n_tok], x_stride apart: [n_col] */
    size_t x_stride;
    float *out;        /* [n_tok], out_stride apart: [n_group][PI_GROUP] */
    size_t out_stride; /* out is added to, unless first */
    bool first;
};

typedef void pi_float_tile_fn(const struct pi_float_tile *tile);

struct pi_float_kernels {
    pi_float_tile_fn *tile;
    int32_t tile_tok;
    int32_t tile_group;
    int32_t elem_bytes;
};

struct pi_float_blocked {
    const struct pi_float_kernels *k;
    const struct pi_matrix *w;
    const struct pi_act *a;
    int32_t tok_begin, n_tok; /* of the slab in work */
    int32_t col_begin, n_col;
};

/* The columns from c on of groups [g, g + n), and the block to prefetch. That is the next block of
   the same groups or, at the slab's end, the first block of the next groups. */
static void float_columns(const struct pi_float_blocked *m, int32_t g, int32_t n, int32_t c,
                          struct pi_float_tile *tile)
{
    size_t col_bytes = (size_t)m->k->elem_bytes * PI_GROUP;
    int32_t next_group = g, next_col = c + tile->n_col;
    if (next_col == m->col_begin + m->n_col) {
        next_group = g + n;
        next_col = m->col_begin;
    }
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *group = m->w->data + (size_t)(g + i) * m->w->group_bytes;
        int32_t next = next_group + i < m->w->n_group ? next_group + i : g + i;
        tile->group[i] = group + (size_t)c * col_bytes;
        tile->ahead[i] =
            m->w->data + (size_t)next * m->w->group_bytes + (size_t)next_col * col_bytes;
    }
}

/* Groups [g, g + n) times a slab, tile by tile and block of columns by block. */
static void float_groups(const struct pi_float_blocked *m, int32_t g, int32_t n, float *out,
                         size_t out_stride)
{
    const struct pi_float_kernels *k = m->k;
    int32_t n_tile = (int32_t)pi_ceil_div(m->n_tok, k->tile_tok);
    int32_t end = m->col_begin + m->n_col;
    struct pi_float_tile tile = {.n_group = n, .x_stride = (size_t)m->a->n_col};
    tile.out_stride = out_stride;
    for (int32_t c = m->col_begin; c < end; c += PI_FLOAT_BLOCK_COL) {
        tile.n_col = (int32_t)pi_min(PI_FLOAT_BLOCK_COL, end - c);
        tile.first = c == 0;
        float_columns(m, g, n, c, &tile);
        for (int32_t i = 0; i < n_tile; i++) {
            int32_t t = (int32_t)((int64_t)m->n_tok * i / n_tile);
            tile.n_tok = (int32_t)((int64_t)m->n_tok * (i + 1) / n_tile) - t;
            tile.x = m->a->x + (size_t)(m->tok_begin + t) * tile.x_stride + c;
            tile.out = out + (size_t)t * out_stride;
            k->tile(&tile);
            memcpy(tile.ahead, tile.group, sizeof(tile.ahead)); /* asked for; now the cached ones */
        }
    }
}

/* A group with missing rows is multiplied in the scratch, its rows carried there and back. */
static void float_edge(const struct pi_float_blocked *m, int32_t g, float *out, size_t out_stride,
                       float *edge)
{
    size_t row_bytes = ((size_t)m->w->n_row - (size_t)g * PI_GROUP) * sizeof(float);
    memset(edge, 0, (size_t)m->n_tok * PI_GROUP * sizeof(float));
    if (m->col_begin > 0)
        for (int32_t t = 0; t < m->n_tok; t++)
            memcpy(edge + (size_t)t * PI_GROUP, out + (size_t)t * out_stride, row_bytes);
    float_groups(m, g, 1, edge, PI_GROUP);
    for (int32_t t = 0; t < m->n_tok; t++)
        memcpy(out + (size_t)t * out_stride, edge + (size_t)t * PI_GROUP, row_bytes);
}

/* pi_matmul_fn of a float type; scratch holds the edge. */
static void mul_blocked_float(const struct pi_float_kernels *k, const struct pi_matrix *w,
                              const struct pi_act *a, int32_t group_begin, int32_t group_end,
                              float *out, size_t out_stride, void *scratch)
{
    _Static_assert(PI_FLOAT_SLAB_TOK * PI_GROUP * 4 <= PI_MATMUL_SCRATCH_FIXED, "edge too large");
    if (group_begin >= group_end)
        return;
    struct pi_float_blocked m = {.k = k, .w = w, .a = a};
    int32_t full_end = (int32_t)pi_min(group_end, w->n_row / PI_GROUP);
    for (int32_t t = 0; t < a->n_tok; t += m.n_tok) {
        m.tok_begin = t;
        m.n_tok = (int32_t)pi_min(PI_FLOAT_SLAB_TOK, a->n_tok - t);
        int32_t col_step = PI_FLOAT_SLAB_BYTES / 4 / m.n_tok / 64 * 64;
        for (int32_t c = 0; c < w->n_col; c += col_step) {
            float *dst = out + (size_t)t * out_stride;
            m.col_begin = c;
            m.n_col = (int32_t)pi_min(col_step, w->n_col - c);
            for (int32_t g = group_begin; g < full_end;) {
                int32_t n = (int32_t)pi_min(k->tile_group, full_end - g);
                float_groups(&m, g, n, dst + (size_t)g * PI_GROUP, out_stride);
                g += n;
            }
            if (full_end < group_end)
                float_edge(&m, full_end, dst + (size_t)full_end * PI_GROUP, out_stride, scratch);
        }
    }
}

#endif
