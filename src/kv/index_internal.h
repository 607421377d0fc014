/*
 * index_internal.h - the index as a part of the layout.
 */
#ifndef PI_KV_INDEX_INTERNAL_H
#define PI_KV_INDEX_INTERNAL_H

#include "kv/class.h"

/* index.c. */
enum { KV_INDEX_DIM_MAX = 1024 }; /* the largest head size whose keys can be projected */

/* Codes of a key in KV_INDEX_UNIT8: the dimensions, padded to a multiple of 4. */
static inline size_t kv_unit_dim(const struct kv_geometry *g)
{
    return pi_align((size_t)g->dim_k, 4);
}

/* The part of kv_geometry_check about the index. */
pith_status kv_index_check(const struct kv_geometry *g, pith_error *err);
/* Adds the parts of the index to a layout that has all others. */
void kv_index_place(const struct kv_geometry *g, struct kv_page_layout *layout);

#endif
