/* Moving columns: every level against bytes that are copied one by one. Rows and parts have any
   size, come from the matrix itself and from others, and start unaligned. */
#include <string.h>

#include "testing.h"

#include "cpu/kernels.h"

#define MAX_ROW 300
#define MAX_ROWS 5
#define MARGIN 64
#define MATRIX (MAX_ROW * MAX_ROWS)
#define N_MATRIX 3

struct case_ {
    uint8_t bytes[N_MATRIX][MARGIN + MATRIX + MARGIN];
    struct pi_move_part part[PI_MOVE_PARTS];
    int32_t source[PI_MOVE_PARTS]; /* which matrix; 0 is the one that is moved to */
    struct pi_move move;
    size_t start;
};

/* Parts as packing makes them: of matrix 0 first, further up than they go, then of others. */
static void make_parts(struct case_ *c, uint64_t *rng)
{
    size_t size = c->move.row_size, to = rng_below(rng, 3), from = to;
    int32_t n = 0, source = 0, most = (int32_t)(1 + rng_below(rng, PI_MOVE_PARTS));
    size_t longest = 1 + rng_below(rng, size);
    while (n < most && to < size) {
        if (source < N_MATRIX - 1 && (from >= size || rng_below(rng, 4) == 0)) {
            source++;
            from = rng_below(rng, size);
        }
        size_t len = 1 + rng_below(rng, longest);
        len = pi_min(len, pi_min(size - to, from < size ? size - from : 0));
        if (len == 0)
            break;
        c->source[n] = source;
        c->part[n++] = (struct pi_move_part){.from_at = from, .to_at = to, .n = len};
        to += len + (rng_below(rng, 8) == 0);
        from += len + rng_below(rng, 4);
        if (source == 0 && from < to)
            from = to;
    }
    c->move.n_part = n;
}

static void make_case(struct case_ *c, size_t row_size, uint64_t *rng)
{
    for (int32_t m = 0; m < N_MATRIX; m++)
        for (size_t i = 0; i < sizeof(c->bytes[m]); i++)
            c->bytes[m][i] = (uint8_t)rng_next(rng);
    c->start = MARGIN - rng_below(rng, 8);
    c->move.row_size = row_size;
    c->move.n_row = (int32_t)(1 + rng_below(rng, MAX_ROWS));
    make_parts(c, rng);
}

/* Points a case that was copied to its own bytes. */
static struct pi_move *point(struct case_ *c)
{
    c->move.to = c->bytes[0] + c->start;
    c->move.part = c->part;
    for (int32_t i = 0; i < c->move.n_part; i++)
        c->part[i].from = c->bytes[c->source[i]] + c->start;
    return &c->move;
}

/* The contract's result: it reads everything before it writes anything. */
static void move_slowly(const struct case_ *before, struct case_ *c)
{
    for (int32_t i = 0; i < c->move.n_part; i++) {
        const struct pi_move_part *p = &c->part[i];
        for (int32_t r = 0; r < c->move.n_row; r++) {
            size_t row = c->start + (size_t)r * c->move.row_size;
            for (size_t b = 0; b < p->n; b++)
                c->bytes[0][row + p->to_at + b] = before->bytes[c->source[i]][row + p->from_at + b];
        }
    }
}

TEST(every_level_moves_columns_as_bytes)
{
    static struct case_ c, want, got;
    for (int32_t level = 0; level < PI_CPU_N_LEVEL; level++) {
        struct pi_kernels k;
        uint64_t rng = 3;
        int64_t n_part = 0, n_self = 0;
        if (!pi_kernels_fill((enum pi_cpu_level)level, &k))
            continue;
        for (int32_t i = 0; i < 20 * MAX_ROW; i++) {
            make_case(&c, 1 + (size_t)i % MAX_ROW, &rng);
            want = got = c;
            move_slowly(&c, &want);
            k.move.columns(point(&got));
            for (int32_t m = 0; m < N_MATRIX; m++)
                assert_memory_equal(got.bytes[m], want.bytes[m], sizeof(want.bytes[m]));
            n_part += c.move.n_part;
            n_self += c.move.n_part > 1 && c.source[1] == 0;
        }
        assert_true(n_part > 40 * MAX_ROW); /* the cases are worth it */
        assert_true(n_self > 5 * MAX_ROW);
    }
}
