/*
 * kv_check.h - the common part of the tests of the KV store. It has the account recomputed from the
 * page tables alone, and a digest of everything that a failure must leave alone. It also has rows
 * of numbers by seed.
 */
#ifndef KV_CHECK_H
#define KV_CHECK_H

#include "device/cpu/pages.h"

/* A cache with a budget of n_page pages, the largest where they differ. */
struct kv_cache *kv_check_cache(const struct kv_geometry *g, int32_t n_page);

/* The pages of that size that are free. */
int32_t kv_check_free(const struct kv_cache *cache);

/* A row of n floats after it was stored and read: a second implementation of the storage types. */
void kv_check_stored(enum kv_type type, const float *row, int32_t n, float *out);

/* Asserts that every counter of the cache and its statistics agree with the tables of its
   sequences. other_table_bytes: what else is allocated with the tag of tables. */
void kv_check_account(const struct kv_cache *cache, int64_t other_table_bytes);

/* Changes when a table, a count, a statistic or a byte of a page in use changes. */
uint64_t kv_check_digest(const struct kv_cache *cache);

/* Fills a row of n floats that only key decides, of magnitude 1 or so. */
void kv_check_row(uint64_t key, float *row, int32_t n);

/* Reserves and appends n entries from position pos0 on to every lane; rows follow from key, lane
   and position. Returns the status of the reservation. */
pith_status kv_check_append(struct kv_seq *seq, uint64_t key, int32_t pos0, int32_t n);

/* Asserts that two sequences, perhaps of different caches, hold the same entries in the same pages
   and at the same deltas. */
void kv_check_same(const struct kv_seq *a, const struct kv_seq *b);

#endif
