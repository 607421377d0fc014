/*
 * choose.c - which entries go, given their scores. It knows no lane, no policy and no cache. A pure
 * function of numbers; takes the same time for every order of them.
 */
#include "policy/keep/rules/keep.h"
#include "policy/keep/rules/positions.h"
#include "policy/keep/rules/rank.h"

#define GONE UINT32_MAX /* no number has this rank */

/* The k-th lowest of n ranks (k >= 1), found byte by byte from the top. *n_tie receives how many
   equal ranks are among the k lowest. */
static uint32_t find_rank(const uint32_t *rank, int32_t n, int32_t k, int32_t *n_tie)
{
    uint32_t found = 0, known = 0; /* bits of the answer so far, and which they are */
    for (int32_t shift = 24; shift >= 0; shift -= 8) {
        int32_t count[256] = {0};
        uint32_t byte = 0;
        for (int32_t i = 0; i < n; i++)
            if ((rank[i] & known) == found)
                count[rank[i] >> shift & 0xff]++;
        while (k > count[byte])
            k -= count[byte++];
        found |= byte << shift;
        known |= 0xffu << shift;
    }
    *n_tie = k;
    return found;
}

/* The k lowest of n ranks become GONE, of equals the first; those that are gone stay so. */
static void drop_lowest(uint32_t *rank, int32_t n, int32_t k)
{
    int32_t n_tie;
    if (k == 0)
        return;
    uint32_t last = find_rank(rank, n, k, &n_tie);
    for (int32_t i = 0; i < n; i++)
        if (rank[i] < last || (rank[i] == last && n_tie-- > 0))
            rank[i] = GONE;
}

/* Quotas of triattention-v3 (docs/policies.md). The span's positions fall into parts of equal
   length, part of position p = (p - lo) * segments / (hi - lo). A part that holds n of all n_all
   entries loses n * n_evict / n_all of them, both rounded down. In whole numbers, where the
   authors' code rounds to f32: a quotient that is a whole number stays one. Returns how many went.
 */
static int32_t drop_quotas(const int32_t *pos, uint32_t *rank, int32_t n, struct keep_span span,
                           int32_t segments, int32_t n_evict)
{
    int32_t n_gone = 0;
    int64_t length = (int64_t)span.hi - span.lo;
    for (int32_t s = 0, begin = 0; s < segments; s++) {
        int32_t end = begin;
        while (end < n && ((int64_t)pos[end] - span.lo) * segments < (s + 1) * length)
            end++;
        int32_t quota = (int32_t)((int64_t)(end - begin) * n_evict / n);
        drop_lowest(rank + begin, end - begin, quota);
        n_gone += quota;
        begin = end;
    }
    return n_gone;
}

int32_t keep_choose(const int32_t *pos, const float *score, int32_t n, struct keep_span span,
                    int32_t segments, int32_t n_evict, uint32_t *rank, int32_t *slots)
{
    int32_t first = keep_first_from(pos, n, span.lo);
    int32_t last = (int32_t)pi_max(first, keep_first_from(pos, n, span.hi));
    int32_t n_gone = 0, n_kept = 0;
    assert(n_evict >= 0 && n_evict <= last - first);
    for (int32_t i = first; i < last; i++)
        rank[i] = keep_rank_of(score[i]);
    if (segments > 0 && n_evict > 0)
        n_gone = drop_quotas(pos + first, rank + first, last - first, span, segments, n_evict);
    drop_lowest(rank + first, last - first, n_evict - n_gone);
    for (int32_t i = 0; i < n; i++)
        if (i < first || i >= last || rank[i] != GONE)
            slots[n_kept++] = i;
    return n_kept;
}
