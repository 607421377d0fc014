/*
 * matmul.h - weight matrices packed for the processor, and their product with activations.
 *
 * A matrix has n_row output features and n_col input features. Packing interleaves groups of
 * PI_GROUP rows, so that one register holds the same input position of 16 rows. Products need no
 * sum across a register, and every output is accumulated over the input in ascending order. So the
 * bits do not depend on the number of tokens multiplied together.
 */
#ifndef PI_MATMUL_H
#define PI_MATMUL_H

#include "base/base.h"
#include "tensor/dtype.h"

#define PI_GROUP 16            /* rows of a packed group */
#define PI_ACT_BLOCK 32        /* activations that share a scale */
#define PI_ACT_LEAST 0x1p-120f /* where all of them are below it, they are 0 */

struct pi_matrix {
    enum pi_dtype type;
    int32_t n_row;
    int32_t n_col;
    int32_t n_group; /* ceil(n_row / PI_GROUP); the last group's missing rows are zero */
    size_t group_bytes;
    uint8_t *data; /* [n_group][group_bytes], 64-byte aligned */
};

/* Number i of matrices of one shape and type that lie one after the other; *first is number 0. */
static inline struct pi_matrix pi_matrix_slab(const struct pi_matrix *first, int32_t i)
{
    struct pi_matrix w = *first;
    w.data += (size_t)i * (size_t)w.n_group * w.group_bytes;
    return w;
}

/*
 * Activations of n_tok tokens. Matrices of float types (F32, F16, BF16) read x; quantised ones read
 * the int8 copy, made once per input by vec.h's quantise kernel:
 *   x[t][c] ~ scale[t][c / 32] * q[t][c],  q in [-127, 127]
 *   sum16[t][c / 16] = sum of q over those 16 (for types whose scales span 16 or 32 weights)
 * n_col is padded with zeros to a multiple of 32 in q.
 */
struct pi_act {
    int32_t n_tok;
    int32_t n_col;
    const float *x;       /* [n_tok][n_col] */
    const int8_t *q;      /* [n_tok][ceil(n_col/32)*32] */
    const float *scale;   /* [n_tok][ceil(n_col/32)] */
    const int16_t *sum16; /* [n_tok][ceil(n_col/32)*2] */
    bool far;             /* pi_matmul_kernels.far */
};

/*
 * out[t][row] = dot(w[row], x[t]) for the rows of groups [group_begin, group_end) and all tokens;
 * out has out_stride floats per token and only rows < n_row are written. scratch is per thread,
 * pi_matmul_scratch_bytes() long, 64-byte aligned; its contents do not matter.
 *
 * The arithmetic is fixed, for every level and every path, so that all give the same bits. fma is
 * the fused multiply-add, * rounds to f32, integer sums are exact; acc starts at 0.
 *
 * Float types, for ascending column c:
 *   acc = fma(w[c], x[c], acc)
 * Quantised types, for each ascending block b of 32 columns, with weight = s * (code - zero) + m:
 *   dot  = sum over the block of (code - zero) * q, an integer below 2^24
 *   term = (float)dot * s                             scales over 32 columns
 *   term = fma((float)dot1, s1, (float)dot0 * s0)     scales over 16 columns (halves 0 and 1)
 *   term = fma(m, (float)(sum of q), term)            where the type has minimums: once, or for
 *                                                     half 0, then half 1
 *   acc  = fma(term, scale[t][b], acc)
 */
typedef void pi_matmul_fn(const struct pi_matrix *w, const struct pi_act *a, int32_t group_begin,
                          int32_t group_end, float *out, size_t out_stride, void *scratch);

/* One entry per weight type: matmul[type index], see pi_matmul_index. */
enum { PI_MATMUL_N_TYPE = 16 };

/* Runs n_step steps of the level's widest int8 dot product (or f32 fused multiply-add) on registers
   alone. Returns the operations done, where a multiplication and an addition are two: the peak that
   pith_machine_measure reports. */
typedef int64_t pi_probe_fn(int64_t n_step);

struct pi_matmul_kernels {
    pi_matmul_fn *mul[PI_MATMUL_N_TYPE];
    pi_probe_fn *probe_int8;
    pi_probe_fn *probe_f32;
    bool far; /* products of a few tokens should prefetch weights into the second level of cache,
                 line by line, not into the first (kernels.c) */
};

/* Place of a type in the table, -1 for a type that has no kernels. */
int32_t pi_matmul_index(enum pi_dtype type);

/* True when the product reads pi_act's x rather than q, scale and sum16. */
bool pi_matmul_is_float(enum pi_dtype type);

/* Bytes of a packed group for a matrix of n_col columns; 0 when n_col does not fit the type's
 * block. */
size_t pi_matmul_group_bytes(enum pi_dtype type, int32_t n_col);

/* Packs n_row_here <= 16 consecutive rows, stored as the GGUF file has them, into one group;
   missing rows become zero. Lossless: pi_matmul_unpack_row gives back exactly the values of dtype
   decode. */
void pi_matmul_pack_group(enum pi_dtype type, int32_t n_col, const void *rows, int32_t n_row_here,
                          void *group);

/* Block number `block` of a row in the bytes that a file has, pi_dtype_traits.block_bytes; of float
   types a weight. */
void pi_matmul_file_block(const struct pi_matrix *w, int32_t row, int32_t block, void *out);

/* A number that changes when the bytes of packed groups would: files of them are known by it. */
uint64_t pi_matmul_layout_sum(void);

/* The values of one row, [n_col] (embedding look-up). */
void pi_matmul_unpack_row(const struct pi_matrix *w, int32_t row, float *out);

/* The largest magnitude of them. */
float pi_matmul_row_most(const struct pi_matrix *w, int32_t row);

/*
 * A thread's scratch has a fixed part and a part that grows with the columns. The fixed part holds
 * a panel of decoded weights, scales and sums of activations and the rows of a partial group
 * (matmul_blocked.h).
 */
#define PI_MATMUL_SCRATCH_FIXED (160 * 1024)
#define PI_MATMUL_SCRATCH_PER_COL 8

size_t pi_matmul_scratch_bytes(int32_t n_col_max);

#endif
