/*
 * block.h - blocks: pages that are kept for a cache of prefixes, even when their sequence is gone.
 */
#ifndef PI_KV_BLOCK_H
#define PI_KV_BLOCK_H

#include "base/base.h"
#include "kv/geometry.h"

struct kv_cache;
struct kv_seq;

/* The pages of run `index` in all lanes of a sequence. Every lane's run there is a full page
   without delta that counts once, and no lane was overwritten. Blocks are dropped before the cache
   is freed. */
struct kv_block;
/* INVALID, NOMEM. */
pith_status kv_block_hold(const struct kv_seq *seq, int32_t index, struct kv_block **out,
                          pith_error *err);
/* Bytes of a block beside its pages. */
int64_t kv_block_head_bytes(const struct kv_geometry *g);
void kv_block_drop(struct kv_cache *cache, struct kv_block *block); /* NULL is ignored */
/* Whether no sequence, and no other block, has a page of it: dropping it frees kv_block_held_bytes.
   A state that a sequence keeps is free then. */
bool kv_block_is_alone(const struct kv_cache *cache, const struct kv_block *block);
int64_t kv_block_bytes(const struct kv_cache *cache); /* of the pages of any block */
/* Of its pages and its state. */
int64_t kv_block_held_bytes(const struct kv_cache *cache, const struct kv_block *block);
/* Holds the state after n_token tokens, where the sequence has one and the block lies there; a
   block has one at most. Whether a sequence can begin with blocks of which this is the last. */
void kv_block_hold_state(const struct kv_seq *seq, int32_t n_token, struct kv_block *block);
bool kv_block_ends(const struct kv_cache *cache, const struct kv_block *block);
/* Whether a block holds a state that is no sequence's own: dropping it frees its bytes. One that a
   sequence keeps is free then. And drops what it holds; false: nothing. */
bool kv_block_state_is_spare(const struct kv_cache *cache, const struct kv_block *block);
bool kv_block_drop_state(struct kv_cache *cache, struct kv_block *block);
/* Appends blocks, of ascending positions, to every lane of a sequence. Its lanes hold full pages of
   earlier positions only, and reserve none. Counts go up, nothing is copied. With states the
   sequence is empty, and takes the state of the last block. INVALID, NOMEM leave it as it was. */
pith_status kv_seq_append_blocks(struct kv_seq *seq, struct kv_block *const *blocks, int32_t n,
                                 pith_error *err);

/* ---- windows: kv_block_hold holds the pages of the other lanes alone, since a window may have
   dropped its own. A sequence can begin with blocks if the last kv_block_reach of them have pages
   of windows: its queries see no more. ---- */

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
/* Whether it has such pages, and no sequence or other block has one of them: dropping them frees
   kv_block_window_bytes. */
bool kv_block_windows_are_alone(const struct kv_cache *cache, const struct kv_block *block);
int64_t kv_block_window_bytes(const struct kv_cache *cache);

#endif
