/*
 * move_avx512.c - moving columns with AVX-512. A register collects 64 bytes of a row, with a masked
 * load for each part that reaches into them, and is stored once. Masked bytes are not accessed, so
 * a load may begin before its matrix or end after it.
 */
#include <immintrin.h>

#include "cpu/kernels.h"

/* The bytes that one part adds to a block of 64: lane i is byte i of the address. */
struct piece {
    uintptr_t from; /* of the block's first lane, in row 0 */
    __mmask64 mask;
};

/* The pieces of the block that begins `at` bytes into a row. */
static int32_t find_pieces(const struct pi_move *m, size_t at, struct piece *out)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_part; i++) {
        const struct pi_move_part *part = &m->part[i];
        size_t begin = pi_max(part->to_at, at), end = pi_min(part->to_at + part->n, at + 64);
        if (begin < end)
            out[n++] = (struct piece){
                (uintptr_t)part->from + part->from_at - part->to_at + at,
                ~(uint64_t)0 >> (64 - (end - begin)) << (begin - at),
            };
    }
    return n;
}

static inline __m512i load(const struct piece *p, size_t offset, __m512i rest)
{
    return _mm512_mask_loadu_epi8(rest, p->mask, (const void *)(p->from + offset));
}

/* The first three pieces in registers: hardly a block has more. */
static void move_block(uint8_t *to, const struct piece *piece, int32_t n, int32_t n_row,
                       size_t row_size)
{
    static const struct piece none = {0, 0};
    const struct piece a = piece[0], b = n > 1 ? piece[1] : none, c = n > 2 ? piece[2] : none;
    __mmask64 all = 0;
    for (int32_t i = 0; i < n; i++)
        all |= piece[i].mask;
    for (int32_t r = 0; r < n_row; r++) {
        size_t offset = (size_t)r * row_size;
        __m512i x = load(&a, offset, _mm512_setzero_si512());
        if (n > 1)
            x = load(&b, offset, x);
        if (n > 2)
            x = load(&c, offset, x);
        for (int32_t i = 3; i < n; i++)
            x = load(&piece[i], offset, x);
        _mm512_mask_storeu_epi8(to + offset, all, x);
    }
}

static void move_columns(const struct pi_move *m)
{
    struct piece piece[PI_MOVE_PARTS];
    for (size_t at = 0; at < m->row_size; at += 64) {
        int32_t n = find_pieces(m, at, piece);
        if (n > 0)
            move_block(m->to + at, piece, n, m->n_row, m->row_size);
    }
}

void pi_move_init_avx512(struct pi_move_kernels *k)
{
    k->columns = move_columns;
}
