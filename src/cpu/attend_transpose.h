/*
 * attend_transpose.h - transposes keys, from one entry after the other, as pages store them, to
 * entries side by side, as the lanes of a register need them. Written once for every vector level;
 * a part of attend_tile.h, and of attend_avx512_pairs.c. A level defines
 *
 *   LANES                    16-byte lanes of a register: 1, 2 or 4
 *   bits                     such a register
 *   bits_load(p, step)       LANES 1: 16 bytes at p; 2: 32 bytes at p; 4: 32 bytes at p and 32 at
 *                            p + step
 *   bits_zip_low(size, a, b), bits_zip_high      within each lane: the lower (upper) elements of
 *                            `size` bytes, 2 or 4, of a and b by turns, beginning with a's
 *   bits_even(a, b), bits_odd      the even (odd) lanes of a, then those of b; LANES 2 and 4
 *   bits_store(p, x, n)      the first n lanes
 *   line_prefetch(p)         brings a line to the first level of cache, _far to the second
 *
 * A lane is a row of N = 16 / size elements. N consecutive registers hold an N x N matrix in each
 * of their lanes. A round zips registers i and i + N / 2 to registers 2 * i and 2 * i + 1. log2(N)
 * rounds transpose all the matrices: register j then holds element j of N rows. Two neighbouring
 * lanes began as 32 bytes of the same row. So even lanes hold elements 0.. of their rows and odd
 * lanes elements N.. .
 */
#ifndef PI_ATTEND_TRANSPOSE_H
#define PI_ATTEND_TRANSPOSE_H

#include "cpu/unrolled.h"

TILE void prefetch_lines(const uint8_t *at, size_t size, bool far)
{
    if (far)
        for (size_t i = 0; i < size; i += 64)
            line_prefetch_far(at + i);
    else
        for (size_t i = 0; i < size; i += 64)
            line_prefetch(at + i);
}

/* Hides the distance between pointers from the compiler. Otherwise it would keep every sum of them
   in a register, and there are too few registers. */
#define OPAQUE(p) __asm__("" : "+r"(p))

/* Elements that a unit takes of a row, and rows of a whole unit. */
#define UNIT_LEN(size) (16 / (size) * (LANES > 1 ? 2 : 1))
#define UNIT_ROWS(size) (LANES * 16 / (size))

/* Bytes that a transposition prefetches for each element that it reads. The kernels that read its
   output prefetch the rest, so that the memory is busy throughout. */
#define ASKED(size) ((size) / 2)

/* Loads rows in, in + in_row, ... into N registers and transposes their lanes. */
TILE void transpose_lanes(const int32_t size, const uint8_t *in, size_t in_row, size_t step,
                          bits *a)
{
    const int32_t n = 16 / size;
    bits b[8];
    UNROLL
    for (int32_t i = 0; i < n; i++) {
        a[i] = bits_load(in, step);
        in += in_row;
        OPAQUE(in);
    }
    UNROLL
    for (int32_t round = 1; round < n; round *= 2) {
        UNROLL
        for (int32_t i = 0; i < n / 2; i++) {
            b[2 * i] = bits_zip_low(size, a[i], a[i + n / 2]);
            b[2 * i + 1] = bits_zip_high(size, a[i], a[i + n / 2]);
        }
        UNROLL
        for (int32_t i = 0; i < n; i++)
            a[i] = b[i];
    }
}

/* UNIT_LEN elements of n_group * N rows; n_group is LANES or half of it. */
TILE void transpose_unit(const int32_t size, const int32_t n_group, const uint8_t *in,
                         size_t in_row, uint8_t *out, size_t out_row)
{
    const int32_t n = 16 / size;
    const size_t step = (size_t)n * in_row;
    bits a[8], b[8];
    transpose_lanes(size, in, in_row, step, a);
    if (LANES > 1 && n_group == LANES)
        transpose_lanes(size, in + (size_t)(n * LANES / 2) * in_row, in_row, step, b);
    UNROLL
    for (int32_t i = 0; i < n; i++) {
        const bits second = LANES > 1 && n_group == LANES ? b[i] : a[i];
        bits_store(out + (size_t)i * out_row, LANES > 1 ? bits_even(a[i], second) : a[i], n_group);
        if (LANES > 1)
            bits_store(out + (size_t)(i + n) * out_row, bits_odd(a[i], second), n_group);
    }
}

/* As many rows, from row `first` on, as go into units of n_group groups; returns the first row that
   is left. A last unit of a row goes back over elements that were done. Prefetched lines begin at
   *next, which advances; far: into the second level of cache. */
TILE int32_t transpose_units(const int32_t size, const int32_t n_group, const uint8_t *in,
                             size_t in_row, uint8_t *out, size_t out_row, int32_t first,
                             int32_t n_row, int32_t n_dim, const uint8_t **next, bool far)
{
    const int32_t n = 16 / size * n_group;
    for (; first + n <= n_row; first += n)
        for (int32_t d = 0; d < n_dim; d += UNIT_LEN(size)) {
            d = (int32_t)pi_min(d, n_dim - UNIT_LEN(size));
            transpose_unit(size, n_group, in + (size_t)first * in_row + (size_t)(d * size), in_row,
                           out + (size_t)d * out_row + (size_t)(first * size), out_row);
            prefetch_lines(*next, (size_t)(n * UNIT_LEN(size) * ASKED(size)), far);
            *next += n * UNIT_LEN(size) * ASKED(size);
        }
    return first;
}

/* out[d][r] = in[r][d] for r < n_row, a multiple of 16, and d < n_dim, elements of `size` bytes;
   rows are in_row and out_row bytes apart. Prefetched lines begin at `next`. */
TILE void transpose(const int32_t size, const uint8_t *in, size_t in_row, uint8_t *out,
                    size_t out_row, int32_t n_row, int32_t n_dim, const uint8_t *next, bool far)
{
    int32_t r = 0;
    if (n_dim >= UNIT_LEN(size)) {
        r = transpose_units(size, LANES, in, in_row, out, out_row, r, n_row, n_dim, &next, far);
        if (UNIT_ROWS(size) > 16)
            r = transpose_units(size, LANES / 2, in, in_row, out, out_row, r, n_row, n_dim, &next,
                                far);
    }
    for (; r < n_row; r++)
        for (int32_t d = 0; d < n_dim; d++)
            memcpy(out + (size_t)d * out_row + (size_t)(r * size),
                   in + (size_t)r * in_row + (size_t)(d * size), (size_t)size);
}

#endif
