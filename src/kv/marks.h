/*
 * marks.h - floats beside the entries of a lane, and the norms of their values.
 */
#ifndef PI_KV_MARKS_H
#define PI_KV_MARKS_H

#include "base/base.h"

struct kv_cache;
struct kv_seq;

/* Every entry of the sequences that are made from now on has n_mark floats beside it, its marks: 0
   when it is appended, changed by whoever asked for them, and they stay with the entry wherever it
   is packed to, until it is dropped or overwritten; a fork gets a copy, and so does a sequence that
   shares another's entries, while a snapshot has none: after a load they are 0. With value_norm
   the L1 norm of its value stands beside them, set on the way in, also by a load, and never
   changed: of the value as it is stored, summed over the dimensions in ascending order, rounded to
   bf16, since steps read it at every token. Their bytes count as those of page tables.
   No sequence exists yet. */
void kv_cache_set_marks(struct kv_cache *cache, int32_t n_mark, bool value_norm);

/* Mark i of every slot, [length]; kv_cache_set_marks. Whoever has the lane may write. Valid until
   the sequence gets more room (reserve, fork, load) or the lane's slots change. */
float *kv_lane_marks(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i);
/* The norms of the values of every slot, bf16 [length], likewise; nobody writes. */
const uint16_t *kv_lane_norms(const struct kv_seq *seq, int32_t layer, int32_t head);

#endif
