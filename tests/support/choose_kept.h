/* choose_kept.h - the choice of a round in one lane. */
#ifndef CHOOSE_KEPT_H
#define CHOOSE_KEPT_H

#include "base/mem.h"
#include "policy/keep/rules/keep.h"
#include "testing.h"

/* The slots that stay, ascending; returns their number. */
static inline int32_t choose_kept(const int32_t *pos, const float *score, int32_t n,
                                  struct keep_span span, int32_t segments, int32_t n_evict,
                                  int32_t *slots)
{
    size_t size = kv_choose_scratch_bytes(n);
    void *scratch = test_malloc(size);
    struct kv_choose_job job = keep_choice(pos, score, n, span, segments, n_evict, slots);
    memset(scratch, 0xff, size);
    kv_choose(&job, scratch);
    int32_t n_kept = keep_rest(&job, pos, n, slots);
    test_free(scratch);
    return n_kept;
}

#endif
