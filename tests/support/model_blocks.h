/*
 * model_blocks.h - random weights of every GGUF type, written as the blocks the type is stored in.
 */
#ifndef MODEL_BLOCKS_H
#define MODEL_BLOCKS_H

#include "tensor/dtype.h"

/* Fills size bytes of dst, whole blocks of a type, with weights of mean 0 and standard deviation
   std. stream names the sequence of random numbers: the same stream gives the same bytes. */
void blocks_fill(const struct pi_dtype_traits *type, uint64_t stream, double std, uint8_t *dst,
                 size_t size);

/* n floats, mean + std * (uniform of variance 1). */
void blocks_vector(uint64_t stream, double mean, double std, float *dst, int32_t n);

#endif
