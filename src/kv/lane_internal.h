/*
 * lane_internal.h - the table of a lane.
 */
#ifndef PI_KV_LANE_INTERNAL_H
#define PI_KV_LANE_INTERNAL_H

#include "kv/store.h"

/* The table, to be changed. Its version becomes a number that no table had before. So a device that
   keeps a list of the pages sees that it is out of date. */
struct kv_page_ref *kv_lane_edit(struct kv_lane *lane);
/* Entry i of it, for changes that no list shows: of `closed`, and of n where it is the last one. */
static inline struct kv_page_ref *kv_lane_ref(struct kv_lane *lane, int32_t i)
{
    return (struct kv_page_ref *)&lane->table[i];
}
/* kv_page_unshare of entry i. */
void kv_lane_unshare(struct kv_cache *cache, struct kv_lane *lane, int32_t i);
/* The table index of a slot's page, 0 <= slot < len; *entry receives its place there. */
int32_t kv_lane_find(const struct kv_cache *cache, const struct kv_lane *lane, int32_t slot,
                     int32_t *entry);
/* The table index of the page that the next entry goes to, for which there is room. */
int32_t kv_lane_open_page(const struct kv_cache *cache, struct kv_lane *lane);
/* Gives back the pages from table index `begin` on; entries in them are lost. */
void kv_lane_drop_from(struct kv_cache *cache, struct kv_lane *lane, int32_t begin);
/* As kv_lane_breaks. */
int32_t kv_lane_count_breaks(const struct kv_lane *lane);
/* Finds out anew whether an unordered lane still is one, and its top. */
void kv_lane_find_order(struct kv_lane *lane);
/* Recomputes len, n_live and ragged from the table, and of an unordered lane top and whether it
   still is one. */
void kv_lane_recount(const struct kv_cache *cache, struct kv_lane *lane);

/* Free places of the page that the next entry may be written to. A page that is read at a delta
   takes no new entries: their keys are rotated at their true positions. Nor does one that counts
   more than once, or one that was closed. */
static inline int32_t kv_lane_tail_room(const struct kv_cache *cache, const struct kv_lane *lane)
{
    if (lane->n_live == 0)
        return 0;
    const struct kv_page_ref *last = &lane->table[lane->n_live - 1];
    return last->delta != 0 || last->n_folded > 0 || last->closed ? 0 : cache->g.page_len - last->n;
}

#endif
