/*
 * page.h - pages moved and copied whole or in part.
 */
#ifndef PI_KV_PAGE_H
#define PI_KV_PAGE_H

#include "kv/store.h"

/* Entries next to each other on their way to another place. */
struct kv_page_part {
    int32_t from; /* their page */
    int32_t from_slot;
    int32_t to_slot;
    int32_t n;
};

/* A page of a lane on its way to be filled. */
struct kv_page_goal {
    int32_t page;
    int32_t n_part;
    bool full; /* it has page_len entries then */
};

/* Moves of a lane, its goals in the order of its table. No part comes from an earlier page of the
   table than its goal, nor from an earlier place of the same page. */
struct kv_lane_moves {
    const struct kv_class *kind;
    const void *lane; /* the same for all calls of a lane */
    bool first;       /* no other goals of this compaction came before */
    int32_t n_goal, n_part;
    const struct kv_page_goal *goal; /* [n_goal] */
    const struct kv_page_part *part; /* [n_part] of the goals, one behind the other */
};

/* Copies entries as stored, their positions too, into a page. Parts may come from the page itself,
   from further up than they go and in ascending order. */
void kv_page_move(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                  const struct kv_page_part *part, int32_t n_part);
/* The positions of entries that a device moves. */
void kv_page_move_pos(const struct kv_class *kind, int32_t to, const struct kv_page_part *part,
                      int32_t n_part);
/* All of a page, index and positions included. */
void kv_page_copy(const struct kv_cache *cache, const struct kv_class *kind, int32_t to,
                  int32_t from);
/* A page as one stretch of layout.bytes and back: the entries, the positions, the index. */
void kv_page_export(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                    uint8_t *out);
void kv_page_import(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                    const uint8_t *bytes);
/* A page as files have it, layout.saved bytes: keys entry by entry, no index, positions last. And
   back, which makes the index of all places anew: another table entry may see more of the page. */
void kv_page_save(const struct kv_cache *cache, const struct kv_class *kind, int32_t page,
                  uint8_t *out);
void kv_page_load(const struct kv_cache *cache, const struct kv_class *kind, int32_t lane,
                  int32_t page, const uint8_t *bytes);

#endif
