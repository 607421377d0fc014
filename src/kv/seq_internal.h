/*
 * seq_internal.h - tables of a sequence.
 */
#ifndef PI_KV_SEQ_INTERNAL_H
#define PI_KV_SEQ_INTERNAL_H

#include "kv/marks_internal.h"
#include "kv/store.h"

/* Bytes of the tables of a sequence, with room for cap table entries in every lane. The list of
   where devices have marks is in them. */
static inline int64_t kv_room_bytes(const struct kv_cache *cache, int32_t cap)
{
    bool listed = cache->marks_noted && cap > 0;
    return kv_lane_count(cache) * (int64_t)cap * (int64_t)sizeof(struct kv_page_ref) +
           (listed ? cache->n_kind * (int64_t)sizeof(struct pi_at) : 0);
}

/* The next size of tables with room for cap entries, which no longer do. */
static inline int64_t kv_table_room(int64_t cap)
{
    return cap + cap / 8 + 1;
}

/* Later calls find the pages of a sequence that came back: to be called before a pass. The second
   call, or `whole`, frees the memory that they came from. */
void kv_seq_land(struct kv_seq *seq, bool whole);

/* Gives every lane room for cap table entries, and for the marks of mark_wanted pages; false: no
   memory, and nothing has changed. */
bool kv_seq_grow(struct kv_seq *seq, int32_t cap);

#endif
