/*
 * swap.h - the contents of a sequence, moved to host memory and back.
 */
#ifndef PI_KV_SWAP_H
#define PI_KV_SWAP_H

#include "base/base.h"

struct kv_seq;

/* The contents of a sequence, in host memory instead of pages. Where a device can, they are copied
   beside the passes of other sequences, and these functions do not wait for it. */
struct kv_swapped;
/* Empties the sequence, and gives its pages back, reserved ones too. A page that occurs in several
   places of the sequence is copied once, and occurs there again later. Pages shared with other
   sequences are copied, too. NOMEM leaves it as it was. */
pith_status kv_seq_swap_out(struct kv_seq *seq, struct kv_swapped **out, pith_error *err);
/* Puts the contents back into the sequence that they came from, bit for bit, and frees `swapped`.
   Marks, victims, closed pages and counts come back, too. The sequence was not touched in between.
   Takes no memory but pages; KV_FULL leaves both as they were. */
pith_status kv_seq_swap_in(struct kv_seq *seq, struct kv_swapped *swapped, pith_error *err);
void kv_swapped_free(struct kv_swapped *swapped); /* before the cache is; NULL is ignored */
/* Bytes of host memory that swapping out takes, at most. */
int64_t kv_seq_swap_bytes(const struct kv_seq *seq);
/* Page tables and marks aside, which the cache's statistics go on to count. */
int64_t kv_swapped_host_bytes(const struct kv_swapped *swapped);
int64_t kv_swapped_pool_bytes(const struct kv_swapped *swapped); /* that coming back takes */

#endif
