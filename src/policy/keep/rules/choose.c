/*
 * choose.c - which entries stay, given their scores: the rule, as a choice of the device's and what
 * is left. It knows no lane, no policy and no cache.
 */
#include "policy/keep/rules/keep.h"
#include "policy/positions.h"

struct kv_choose_job keep_choice(const int32_t *pos, const float *score, int32_t n,
                                 struct keep_span span, int32_t segments, int32_t n_evict,
                                 int32_t *slots)
{
    int32_t first = policy_first_from(pos, n, span.lo);
    int32_t last = (int32_t)pi_max(first, policy_first_from(pos, n, span.hi));
    assert(n_evict >= 0 && n_evict <= last - first);
    return (struct kv_choose_job){.score = score + first,
                                  .n = last - first,
                                  .k = n_evict,
                                  .lowest = true,
                                  .n_part = segments,
                                  .pos = pos + first,
                                  .lo = span.lo,
                                  .hi = span.hi,
                                  .slots = slots + n - n_evict};
}

/* The choice lies at the end of slots, where each is read before its place is written. */
int32_t keep_rest(const struct kv_choose_job *choice, const int32_t *pos, int32_t n, int32_t *slots)
{
    int32_t first = (int32_t)(choice->pos - pos), n_kept = 0;
    for (int32_t i = 0, begin = 0; i <= choice->k; i++) {
        int32_t end = i < choice->k ? choice->slots[i] + first : n;
        for (int32_t s = begin; s < end; s++)
            slots[n_kept++] = s;
        begin = end + 1;
    }
    return n_kept;
}
