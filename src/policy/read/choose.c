/*
 * choose.c - which entries are read, given their scores, and one choice out of several heads'
 * choices. It knows no lane and no policy. Pure functions of numbers.
 */
#include "policy/read/reading.h"

static int32_t first_of(const struct read_rules *rules, int32_t n_read)
{
    return (int32_t)pi_min(rules->sinks, n_read);
}

static int32_t last_of(const struct read_rules *rules, int32_t n_read)
{
    return (int32_t)pi_min(rules->recent, n_read - first_of(rules, n_read));
}

struct kv_choose_job read_choice(const struct read_rules *rules, const float *score, int32_t n,
                                 int32_t n_read, int32_t *slots)
{
    int32_t first = first_of(rules, n_read), last = last_of(rules, n_read);
    assert(n_read >= 0 && n_read <= n);
    return (struct kv_choose_job){.score = score + first,
                                  .n = n - first - last,
                                  .k = n_read - first - last,
                                  .slots = slots + first};
}

void read_fill(const struct read_rules *rules, int32_t n, int32_t n_read, int32_t *slots)
{
    int32_t first = first_of(rules, n_read), last = last_of(rules, n_read);
    for (int32_t i = 0; i < first; i++)
        slots[i] = i;
    for (int32_t i = first; i < n_read - last; i++)
        slots[i] += first;
    for (int32_t i = 0; i < last; i++)
        slots[n_read - last + i] = n - last + i;
}

/* ---- one choice for several heads ---- */

#define EMPTY (-1) /* no position */

size_t read_union_size(int32_t n_most)
{
    size_t size = 1;
    while (size < 2 * (size_t)n_most)
        size *= 2;
    return size;
}

/* Adds a position to a set. Its size is a power of two and larger than the number of positions;
   false: it was there. */
static bool set_add(int32_t *set, size_t size, int32_t pos)
{
    size_t at = ((uint32_t)pos * UINT32_C(2654435769)) & (size - 1); /* Knuth's multiplier */
    while (set[at] != EMPTY && set[at] != pos)
        at = (at + 1) & (size - 1);
    if (set[at] == pos)
        return false;
    set[at] = pos;
    return true;
}

int32_t read_unite(const int32_t *const *best, const int32_t *n_best, int32_t n_head,
                   int32_t n_most, int32_t *out, int32_t *set)
{
    size_t size = read_union_size(n_most);
    int32_t n = 0, longest = 0;
    for (size_t i = 0; i < size; i++)
        set[i] = EMPTY;
    for (int32_t h = 0; h < n_head; h++)
        longest = (int32_t)pi_max(longest, n_best[h]);
    for (int32_t rank = 0; rank < longest; rank++)
        for (int32_t h = 0; h < n_head && n < n_most; h++)
            if (rank < n_best[h] && set_add(set, size, best[h][rank]))
                out[n++] = best[h][rank];
    return n;
}
