/*
 * attention.c - what the query heads of one KV head gave to an entry, as one number. Plain loops
 * over entries side by side, which compilers turn into vector code; no entry's number depends on
 * where a block begins.
 */
#include "policy/keep/rules/attention.h"

const char *const keep_group_words[] = {
    [KEEP_GROUP_MEAN] = "mean", [KEEP_GROUP_MAX] = "max", [KEEP_GROUP_SUM] = "sum", NULL};
const char *const keep_switch_words[] = {"off", "on", NULL};

void keep_group_weights(const struct keep_attention *a, enum keep_group how, int32_t begin,
                        int32_t n, float *restrict out)
{
    const float *row = a->weight + begin;
    float part = 1.0f / (float)a->n_group;
    memcpy(out, row, (size_t)n * sizeof(*out));
    for (int32_t g = 1; g < a->n_group; g++) {
        row += a->stride;
        if (how == KEEP_GROUP_MAX)
            for (int32_t i = 0; i < n; i++)
                out[i] = row[i] > out[i] ? row[i] : out[i];
        else
            for (int32_t i = 0; i < n; i++)
                out[i] += row[i];
    }
    if (how == KEEP_GROUP_MEAN)
        for (int32_t i = 0; i < n; i++)
            out[i] *= part;
}
