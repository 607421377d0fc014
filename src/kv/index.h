/*
 * index.h - parts of a page beside its entries, for policies that score without reading all of K.
 */
#ifndef PI_KV_INDEX_H
#define PI_KV_INDEX_H

#include "base/base.h"

struct kv_cache;

/* Parts of a page beside its entries, for policies that score without reading all of K (index.c).
   Their bytes are bytes of the page. Each part is a function of the stored keys or values: it does
   not depend on how an entry came to its place. */
enum kv_index {
    KV_INDEX_NORM = 1 << 0,      /* 1 / |k| of every entry, f32; 0 for a key of zeros */
    KV_INDEX_UNIT8 = 1 << 1,     /* k / |k| of every entry as int8 codes with one f32 scale */
    KV_INDEX_COLUMNS = 1 << 2,   /* the keys once more, f16, with entries side by side */
    KV_INDEX_PROJ = 1 << 3,      /* every key times its lane's matrix, index_dim f16 values */
    KV_INDEX_BOUNDS = 1 << 4,    /* of a full page: each dimension's least and largest value, f32 */
    KV_INDEX_VALUE_SUM = 1 << 5, /* of a full page: the sum of its values, f32 */
    KV_INDEX_ROWS =
        1 << 6, /* no part, but keys entry by entry, as with any other part. Reading single
                               keys is then fast, since each is a few lines of memory. Without an
                               index keys lie side by side, and reading all is faster */
};

/* The matrices of KV_INDEX_PROJ, [n_layer][n_head][index_dim][dim_k], borrowed until the cache is
   freed; no sequence exists yet. */
void kv_cache_set_projection(struct kv_cache *cache, const float *matrix);

#endif
