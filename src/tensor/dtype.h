/*
 * dtype.h - the weight types of GGUF files: their sizes and the plain conversion of rows. One table
 * line per type. These conversions define the formats; the fast paths in cpu/ are checked against
 * them.
 */
#ifndef PI_DTYPE_H
#define PI_DTYPE_H

#include "base/base.h"

/* Values are GGUF's own. */
enum pi_dtype {
    PI_DTYPE_F32 = 0,
    PI_DTYPE_F16 = 1,
    PI_DTYPE_Q4_0 = 2,
    PI_DTYPE_Q4_1 = 3,
    PI_DTYPE_Q5_0 = 6,
    PI_DTYPE_Q5_1 = 7,
    PI_DTYPE_Q8_0 = 8,
    PI_DTYPE_Q2_K = 10,
    PI_DTYPE_Q3_K = 11,
    PI_DTYPE_Q4_K = 12,
    PI_DTYPE_Q5_K = 13,
    PI_DTYPE_Q6_K = 14,
    PI_DTYPE_IQ4_NL = 20,
    PI_DTYPE_IQ4_XS = 23,
    PI_DTYPE_BF16 = 30,
    PI_DTYPE_MXFP4 = 39,
};

struct pi_dtype_traits {
    enum pi_dtype type;
    const char *name;
    int32_t block_len; /* weights of a block; a row is a whole number of blocks */
    int32_t block_bytes;
    void (*decode)(const void *src, float *dst, int64_t n); /* n a multiple of block_len */
    void (*encode)(const float *src, void *dst, int64_t n); /* NULL: the type is only read */
};

/* NULL for a type that is not in the table. */
const struct pi_dtype_traits *pi_dtype_find(uint32_t type);
const struct pi_dtype_traits *pi_dtype_find_name(const char *name); /* "Q4_K", any case */

/* Bytes of a row of n weights; n must be a multiple of block_len. */
static inline size_t pi_dtype_row_bytes(const struct pi_dtype_traits *t, int64_t n)
{
    return (size_t)(n / t->block_len) * (size_t)t->block_bytes;
}

#endif
