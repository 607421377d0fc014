/*
 * matmul_layout.h - the packed form of a weight matrix, for the matmul_* files only.
 *
 * A packed group holds 16 rows in exactly the bytes of the file's format, so packing only
 * transposes 32-bit words:
 *
 *   quantised types   A block of the file is its payload (codes, high bits, small scales) and one
 *                     or two f16. The group is
 *                         words  [n_block][payload_words][16 rows] of 32 bits, followed by
 *                         halves [n_block][n_half][16 rows] of f16, or for MXFP4 by
 *                         bytes  [n_block][16 rows]
 *   float types       [n_col][16 rows] of the float type
 *
 * A word of four one-byte codes, 16 times over, is one register of AVX-512 whose 32-bit lanes are
 * the rows. It is the operand of an int8 dot product. The bits of a word are as in the file. But
 * `flip` is xored into the payload, which turns Q8_0's signed codes into codes with zero point 128.
 * The group is padded with zeros to a multiple of 64 bytes.
 *
 * In every quantised type, with a scale and a minimum per row and `sub_len` columns,
 *   weight = scale * (code - zero) + minimum          (minimum only where has_min)
 * and scale and minimum, products of an f16 and an integer below 2^8, are exact in f32.
 */
#ifndef PI_MATMUL_LAYOUT_H
#define PI_MATMUL_LAYOUT_H

#include "cpu/matmul.h"

/*
 * Kernels are functions of counts, written once, and PI_INLINE makes the compiler inline them, so
 * that the counts become constants. A loop under PI_UNROLL is unrolled, so that arrays of registers
 * stay in registers. GCC and Clang give the pragma different meanings where the number is not the
 * loop's own.
 */
#if defined(PI_FEW_COPIES) && !defined(__clang__)
/* unrolled.h says why. */
#define PI_INLINE static inline
#define PI_UNROLL
#else
#define PI_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define PI_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PI_UNROLL _Pragma("GCC unroll 32")
#endif
#endif

#define PI_BLOCK_LEN_MAX 256 /* weights of a block */
#define PI_PAYLOAD_MAX 208   /* payload bytes of a block and row, of Q6_K */
#define PI_SUB_MAX 16        /* scales of a block */

struct pi_matmul_layout {
    enum pi_dtype type;
    int32_t block_len;   /* weights of a block */
    int32_t block_bytes; /* in the file */
    /* quantised types */
    int32_t payload_offset; /* in the file's block */
    int32_t payload_bytes;  /* 0 for float types */
    int32_t
        half_offset[2]; /* of d, then of the minimum's factor or, of IQ4_XS, of bits of scales */
    int32_t
        n_half; /* 0: a byte at half_offset[0] in their place, of the power of two that a scale
                   is */
    uint32_t flip;
    int32_t sub_len; /* weights that share a scale: 16 or 32 */
    int32_t zero;    /* the code of weight 0 */
    bool has_min;
};

/* NULL for a type without kernels. */
const struct pi_matmul_layout *pi_matmul_layout(enum pi_dtype type);

/* Bytes of a block's halves, or of the one byte in their place, of one row. */
static inline size_t pi_matmul_scale_bytes(int32_t n_half)
{
    return n_half > 0 ? (size_t)n_half * 2 : 1;
}

/* One row's block in plain form. */
struct pi_row_block {
    uint8_t code[PI_BLOCK_LEN_MAX];
    float scale[PI_SUB_MAX];
    float min[PI_SUB_MAX];
};

/* Reads row (0..15) of block number `block` of a packed group of quantised type. */
void pi_matmul_row_block(const struct pi_matmul_layout *layout, int32_t n_col, const uint8_t *group,
                         int32_t row, int32_t block, struct pi_row_block *out);

/* The f16 of a packed group: [n_block][n_half][PI_GROUP], or bytes [n_block][PI_GROUP]. */
static inline const uint16_t *pi_matmul_halves(const struct pi_matmul_layout *layout, int32_t n_col,
                                               const uint8_t *group)
{
    size_t n_block = (size_t)(n_col / layout->block_len);
    return (const uint16_t *)(const void *)(group +
                                            n_block * (size_t)layout->payload_bytes * PI_GROUP);
}

#endif
