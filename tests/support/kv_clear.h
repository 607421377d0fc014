/* kv_clear.h - empties every lane of a sequence, whose pages stay. */
#ifndef PI_TEST_KV_CLEAR_H
#define PI_TEST_KV_CLEAR_H

#include "kv/kv.h"

static inline void clear_lanes(struct kv_seq *seq, int32_t n_layer, int32_t n_head)
{
    for (int32_t l = 0; l < n_layer; l++)
        for (int32_t h = 0; h < n_head; h++)
            kv_lane_clear(seq, l, h);
}

#endif
