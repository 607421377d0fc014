/*
 * count.h - the bytes that several sequences hold together.
 */
#ifndef PI_KV_COUNT_H
#define PI_KV_COUNT_H

#include "base/base.h"

struct kv_seq;

/* Bytes of the sequence's pages, but for those that were counted already: a series of calls over
   several sequences counts each page once, until kv_seq_uncount was called for each of them. In
   between nothing but kv_lane functions. */
int64_t kv_seq_count_bytes(struct kv_seq *seq);
void kv_seq_uncount(struct kv_seq *seq);

#endif
