/*
 * weights.h - how much of a model a generated token reads.
 */
#ifndef BENCH_WEIGHTS_H
#define BENCH_WEIGHTS_H

#include <string.h>

#include "pith/inspect.h"

/* Bytes of weights: an embedding that is no output matrix, too, is read by row. */
static inline double generation_bytes(const pith_model *model)
{
    pith_model_info info;
    pith_tensor_info t;
    double embedding = 0.0, output = 0.0;
    pith_model_get_info(model, &info);
    for (int64_t i = 0; pith_model_tensor(model, i, &t) == PITH_OK; i++) {
        if (strcmp(t.name, "token_embd.weight") == 0)
            embedding = (double)t.bytes;
        if (strcmp(t.name, "output.weight") == 0)
            output = (double)t.bytes;
    }
    return (double)info.weight_bytes - (output > 0.0 ? embedding : 0.0);
}

#endif
