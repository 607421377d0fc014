/*
 * count.h - the bytes that several sequences hold together.
 */
#ifndef PI_KV_COUNT_H
#define PI_KV_COUNT_H

#include "base/base.h"

struct kv_seq;

/* Bytes of the sequence's pages that were not counted yet. A series of calls over several sequences
   counts each page once. Call kv_seq_uncount for each sequence at the end, and only kv_lane
   functions in between. */
int64_t kv_seq_count_bytes(struct kv_seq *seq);
void kv_seq_uncount(struct kv_seq *seq);

#endif
