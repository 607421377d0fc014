/* kv_shape.h - a cache's geometry in a line: one type of keys and one of values, and no more. */
#ifndef PI_TEST_KV_SHAPE_H
#define PI_TEST_KV_SHAPE_H

#include "kv/geometry.h"

#define KV_SHAPE(layers, heads, k, v, page, of_k, of_v)                                            \
    {                                                                                              \
        .n_layer = (layers), .n_head = (heads), .dim_k = (k), .dim_v = (v), .page_len = (page),    \
        .type_k = (of_k), .type_v = (of_v)                                                         \
    }

#endif
