/*
 * pool.h - a cache: pools of pages under one budget of bytes.
 */
#ifndef PI_KV_POOL_H
#define PI_KV_POOL_H

#include "base/base.h"
#include "device/device.h"
#include "kv/geometry.h"

struct kv_cache;

/* The bytes of pages in use never exceed budget_bytes, and on no device what the geometry says that
   it has room for. Where all pages have one size, the budget is rounded down to whole pages.
   INVALID, with the numbers, when not one token fits in every lane or when the budget is more than
   can be addressed; NOMEM. */
pith_status kv_cache_create(const struct kv_geometry *g, int64_t budget_bytes,
                            struct kv_cache **out, pith_error *err);
void kv_cache_free(struct kv_cache *cache); /* every sequence is freed before */
/* Bytes of a cache beside its pages, of which there are n_page in all, of n_kind forms. */
int64_t kv_cache_bytes_at(int32_t n_kind, int64_t n_page);
/* Many small caches in mappings of the caller. The first gives the bytes of a cache of pages of one
   form: lists and positions of the host, and pages of its device. All are multiples of 64. The
   second makes such a cache in zeroed bytes, which are borrowed until it is freed. The statuses of
   kv_cache_create. */
struct kv_cache_bytes {
    size_t lists, positions, pages;
};
struct kv_cache_place {
    uint8_t *lists, *positions;
    struct pi_at pages;
};
pith_status kv_cache_sizes(const struct kv_geometry *g, int64_t budget_bytes,
                           struct kv_cache_bytes *out, pith_error *err);
pith_status kv_cache_create_in(const struct kv_geometry *g, int64_t budget_bytes,
                               const struct kv_cache_place *place, struct kv_cache **out,
                               pith_error *err);

/* Gives the memory of free pages back to the system. */
void kv_cache_give_back(struct kv_cache *cache);
/* Bounds the bytes of pages below the budget, where what stands beside pages takes more than its
   part of a common budget. Pages that are taken stay: what is free may be negative. Free pages
   above the limit give their memory back. A limit above the budget is the budget. */
void kv_cache_set_limit(struct kv_cache *cache, int64_t bytes);
/* Bytes of the cache's lists, and of all sequences' tables and marks. */
int64_t kv_cache_beside_bytes(const struct kv_cache *cache);
const struct kv_geometry *kv_cache_geometry(const struct kv_cache *cache);
/* Whether there is room for pages, when kept states give way. */
bool kv_cache_fits(const struct kv_cache *cache, const struct kv_need *need);
/* Bytes that lanes can still take which all grow alike; and without the limit. */
int64_t kv_cache_free_bytes(const struct kv_cache *cache);
int64_t kv_cache_unlimited_bytes(const struct kv_cache *cache);
/* Pages and states on one device. The used and idle bytes of all devices sum to the cache's. */
struct kv_device_parts {
    int64_t most; /* that can be there */
    int64_t used, peak, idle;
};
void kv_cache_device_parts(const struct kv_cache *cache, const struct pi_device *device,
                           struct kv_device_parts *out);
void kv_cache_stats(const struct kv_cache *cache, pith_kv_stats *out);
void kv_cache_reset_peak(struct kv_cache *cache); /* to the present use */

/* Where the memory of a cache goes, in bytes. */
struct kv_parts {
    int64_t held;   /* pages in use, but for states */
    int64_t states; /* of recurrent layers, kept ones included */
    int64_t idle;   /* free pages that were used, and whose memory waits for the next ones */
    int64_t tables; /* lists, lane heads and page tables */
    int64_t marks;  /* floats beside entries */
    int64_t aside;  /* of sequences that were swapped out, in host memory */
};

void kv_cache_parts(const struct kv_cache *cache, struct kv_parts *out);

#endif
