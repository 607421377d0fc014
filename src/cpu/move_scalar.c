/*
 * move_scalar.c - moving columns in plain C, part by part. A part has the same number of bytes in
 * every row, so the code looks at that number once.
 */
#include "cpu/kernels.h"

/* Copies n bytes, size..2 * size of them, of every row. It reads all of a row's part before it
   writes, because both places may overlap. */
#define MOVE_ENDS(size)                                                                            \
    for (int32_t r = 0; r < n_row; r++, to += row_size, from += row_size) {                        \
        uint8_t first[size], last[size];                                                           \
        memcpy(first, from, size);                                                                 \
        memcpy(last, from + n - (size), size);                                                     \
        memcpy(to, first, size);                                                                   \
        memcpy(to + n - (size), last, size);                                                       \
    }

static void move_part(uint8_t *to, const uint8_t *from, size_t n, size_t row_size, int32_t n_row)
{
    if (n > 128) {
        for (int32_t r = 0; r < n_row; r++, to += row_size, from += row_size)
            memmove(to, from, n);
    } else if (n >= 64) {
        MOVE_ENDS(64)
    } else if (n >= 32) {
        MOVE_ENDS(32)
    } else if (n >= 16) {
        MOVE_ENDS(16)
    } else if (n >= 8) {
        MOVE_ENDS(8)
    } else if (n >= 4) {
        MOVE_ENDS(4)
    } else if (n >= 2) {
        MOVE_ENDS(2)
    } else {
        MOVE_ENDS(1)
    }
}

static void move_columns(const struct pi_move *m)
{
    for (int32_t i = 0; i < m->n_part; i++) {
        const struct pi_move_part *part = &m->part[i];
        move_part(m->to + part->to_at, part->from + part->from_at, part->n, m->row_size, m->n_row);
    }
}

void pi_move_init_scalar(struct pi_move_kernels *k)
{
    *k = (struct pi_move_kernels){.columns = move_columns};
}
