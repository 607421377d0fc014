/*
 * block.h - the part of blocks (kv_block in kv.h) that lanes with windows have. kv_block_hold holds
 * the pages of the other lanes alone, since those of a window may be gone. A sequence can begin with
 * blocks of which the last kv_block_reach have them: that is what its windows see.
 */
#ifndef PI_KV_BLOCK_H
#define PI_KV_BLOCK_H

#include "kv/kv.h"

/* Pages that a window sees beside the one that is written next, from a page's beginning on. */
static inline int32_t kv_window_reach(const struct kv_geometry *g, int32_t window)
{
    return window > 0 ? (int32_t)pi_ceil_div((int64_t)window - 1, g->page_len) : 0;
}

/* The most of all layers; 0: none has a window. */
int32_t kv_block_reach(const struct kv_geometry *g);

/* Holds the pages of lanes with windows, too, of the run that the block is; false: one is gone, and
   nothing is held. */
bool kv_block_hold_windows(const struct kv_seq *seq, int32_t index, struct kv_block *block);
void kv_block_drop_windows(struct kv_cache *cache, struct kv_block *block);
/* True without windows. */
bool kv_block_has_windows(const struct kv_cache *cache, const struct kv_block *block);
/* Whether it has some and nobody else has one of them: dropping them frees kv_block_window_bytes. */
bool kv_block_windows_are_alone(const struct kv_cache *cache, const struct kv_block *block);
int64_t kv_block_window_bytes(const struct kv_cache *cache);

#endif
