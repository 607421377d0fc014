/*
 * note.c - a group's weights as one. Plain loops over entries side by side, which compilers turn
 * into vector code; no entry's number depends on where a block begins.
 */
#include "kv/note.h"

void kv_group_weights(const float *weight, size_t stride, int32_t n_group, enum kv_group how,
                      int32_t n, float *restrict out)
{
    float part = 1.0f / (float)n_group;
    memcpy(out, weight, (size_t)n * sizeof(*out));
    for (int32_t g = 1; g < n_group; g++) {
        const float *row = weight + (size_t)g * stride;
        if (how == KV_GROUP_MAX)
            for (int32_t i = 0; i < n; i++)
                out[i] = row[i] > out[i] ? row[i] : out[i];
        else
            for (int32_t i = 0; i < n; i++)
                out[i] += row[i];
    }
    if (how == KV_GROUP_MEAN)
        for (int32_t i = 0; i < n; i++)
            out[i] *= part;
}
