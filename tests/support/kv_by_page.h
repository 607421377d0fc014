/*
 * kv_by_page.h - for tests of shared pages: stretches of whole pages, told by the numbers of the
 * pages instead of slots.
 */
#ifndef PI_TEST_KV_BY_PAGE_H
#define PI_TEST_KV_BY_PAGE_H

#include "device/cpu/pages.h"
#include "testing.h"

/* Slot and length of a page of a lane; where there is no such page the slot lies outside, and the
   length is 0. */
static inline struct kv_run page_find(const struct kv_seq *seq, int32_t layer, int32_t head,
                                      int32_t i)
{
    if (i >= 0 && i < kv_lane_runs(seq, layer, head))
        return kv_lane_run(seq, layer, head, i);
    return (struct kv_run){.slot = i < 0 ? -1 : kv_lane_len(seq, layer, head)};
}

/* Replaces the entries of page `index` by entries from page from_index on, of another sequence or
   earlier in the same one. */
static inline pith_status page_share(struct kv_seq *seq, int32_t layer, int32_t head, int32_t index,
                                     const struct kv_seq *from_seq, int32_t from_index,
                                     int32_t delta, pith_error *why)
{
    const struct kv_run to = page_find(seq, layer, head, index);
    const struct kv_run from = page_find(from_seq, layer, head, from_index);
    return kv_seq_share_span(seq, layer, head, to.slot, to.n, from_seq, from.slot, delta, why);
}

/* Lets an earlier page, or several, count for page `index`. */
static inline pith_status page_fold(struct kv_seq *seq, int32_t layer, int32_t head, int32_t index,
                                    int32_t into_index, pith_error *why)
{
    const struct kv_run gone = page_find(seq, layer, head, index);
    const struct kv_run into = page_find(seq, layer, head, into_index);
    return kv_seq_fold_span(seq, layer, head, gone.slot, gone.n, into.slot, why);
}

/* Lets page `index` be read delta positions later than it is: a fork's, which is the same page, has
   its place. */
static inline pith_status page_move(struct kv_seq *seq, int32_t layer, int32_t head, int32_t index,
                                    int32_t delta, pith_error *why)
{
    struct kv_seq *fork;
    assert_int_equal(kv_seq_fork(seq, &fork, NULL), PITH_OK);
    pith_status status = page_share(seq, layer, head, index, fork, index, delta, why);
    kv_seq_free(fork);
    return status;
}

/* Closes the last page of every lane: the next entry begins another page, even if the last one has
   room. */
static inline void pages_close(struct kv_seq *seq)
{
    const struct kv_geometry *g = &seq->cache->g;
    for (int32_t l = 0; l < g->n_layer * g->n_head; l++) {
        int32_t layer = l / g->n_head, head = l % g->n_head;
        int32_t last = kv_lane_runs(seq, layer, head) - 1;
        if (kv_lane_room(seq, layer, head) > 0)
            assert_int_equal(page_move(seq, layer, head, last, 0, NULL), PITH_OK);
        assert_int_equal(kv_lane_room(seq, layer, head), 0);
    }
}

#endif
