/*
 * move.h - moving columns of a matrix of bytes: what packing a page costs. Part of the kernel table
 * (kernels.h).
 */
#ifndef PI_CPU_MOVE_H
#define PI_CPU_MOVE_H

#include "base/base.h"

/* n bytes next to each other of every row, n > 0. */
struct pi_move_part {
    const uint8_t *from; /* [n_row][row_size] */
    size_t from_at;      /* bytes into a row */
    size_t to_at;
    size_t n;
};

/* The matrix to move to. For every row r and every part:
       to[r * row_size + to_at + i] = from[r * row_size + from_at + i],  0 <= i < n
   No two parts are moved to the same byte, and to_at ascends from part to part. Parts may come from
   the same matrix, in ascending order, from no lower place than they go to. The next such part then
   begins at or after from_at + n. Any other matrix does not overlap it. No other byte is written
   to. */
struct pi_move {
    uint8_t *to;                     /* [n_row][row_size], any alignment */
    const struct pi_move_part *part; /* [n_part] */
    int32_t n_part;                  /* at most PI_MOVE_PARTS */
    int32_t n_row;
    size_t row_size;
};

enum { PI_MOVE_PARTS = 64 };

struct pi_move_kernels {
    void (*columns)(const struct pi_move *m);
};

#endif
