/*
 * index.c - the places of a page's parts beside its entries. They allow scoring without reading all
 * of K (index.h). A device makes them.
 */
#include "kv/index.h"
#include "kv/index_internal.h"
#include "kv/store.h"

/* ---- the layout ---- */

static pith_status check_index_dim(const struct kv_geometry *g, pith_error *err)
{
    bool wanted = (g->index & KV_INDEX_PROJ) != 0;
    if (!wanted && g->index_dim != 0)
        return pi_fail(err, PITH_INVALID, "index_dim: %d, and no keys are projected", g->index_dim);
    if (wanted && (g->index_dim < 1 || g->index_dim > g->dim_k))
        return pi_fail(err, PITH_INVALID, "index_dim: %d is not in 1..%d", g->index_dim, g->dim_k);
    if (wanted && g->dim_k > KV_INDEX_DIM_MAX)
        return pi_fail(err, PITH_UNSUPPORTED, "index: keys of %d dimensions are not projected",
                       g->dim_k);
    return PITH_OK;
}

pith_status kv_index_check(const struct kv_geometry *g, pith_error *err)
{
    const uint32_t all = KV_INDEX_NORM | KV_INDEX_UNIT8 | KV_INDEX_COLUMNS | KV_INDEX_PROJ |
                         KV_INDEX_BOUNDS | KV_INDEX_VALUE_SUM | KV_INDEX_ROWS;
    if ((g->index & ~all) != 0)
        return pi_fail(err, PITH_INVALID, "index: %u has bits beyond %u", g->index, all);
    return check_index_dim(g, err);
}

/* Adds a part of n rows to the layout where the geometry wants it. */
static size_t place(const struct kv_geometry *g, enum kv_index part, size_t n, size_t row_bytes,
                    struct kv_page_layout *layout)
{
    size_t offset = layout->bytes;
    if ((g->index & (uint32_t)part) != 0)
        layout->bytes += pi_align(n * row_bytes, 64);
    return offset;
}

/* The same of rows of an entry each. */
static size_t place_rows(const struct kv_geometry *g, enum kv_index part, size_t row_bytes,
                         struct kv_page_layout *layout)
{
    layout->entry += (g->index & (uint32_t)part) != 0 ? row_bytes : 0;
    return place(g, part, (size_t)g->page_len, row_bytes, layout);
}

void kv_index_place(const struct kv_geometry *g, struct kv_page_layout *layout)
{
    size_t dim = (size_t)g->dim_k;
    layout->norm = place_rows(g, KV_INDEX_NORM, sizeof(float), layout);
    layout->unit = place_rows(g, KV_INDEX_UNIT8, kv_unit_dim(g), layout);
    layout->unit_scale = place_rows(g, KV_INDEX_UNIT8, sizeof(float), layout);
    layout->columns = place_rows(g, KV_INDEX_COLUMNS, dim * sizeof(uint16_t), layout);
    layout->proj = place_rows(g, KV_INDEX_PROJ, (size_t)g->index_dim * sizeof(uint16_t), layout);
    size_t bounds = 2 * dim * sizeof(float), sum = (size_t)g->dim_v * sizeof(float);
    layout->bounds = place(g, KV_INDEX_BOUNDS, 1, bounds, layout);
    layout->value_sum = place(g, KV_INDEX_VALUE_SUM, 1, sum, layout);
    layout->whole = ((g->index & KV_INDEX_BOUNDS) != 0 ? bounds : 0) +
                    ((g->index & KV_INDEX_VALUE_SUM) != 0 ? sum : 0);
}

void kv_cache_set_projection(struct kv_cache *cache, const float *matrix)
{
    assert(cache->first == NULL && (cache->g.index & KV_INDEX_PROJ) != 0);
    cache->projection = matrix;
}
