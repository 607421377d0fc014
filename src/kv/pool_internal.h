/*
 * pool_internal.h - pages taken, counted and given back.
 */
#ifndef PI_KV_POOL_INTERNAL_H
#define PI_KV_POOL_INTERNAL_H

#include "kv/state_internal.h"
#include "kv/store.h"

/* Marks a page whose bytes are copied beside passes. After settling, later calls find all of them
   copied, and none is marked. A marked page that is taken or shared settles. */
void kv_page_moves(struct kv_cache *cache, const struct kv_class *kind, int32_t page);
void kv_cache_settle(struct kv_cache *cache);

/* Takes a free page of a class, with one reference, as entry n of a table. It is the one after the
   page of entry n - 1 if that is free. Else it begins a run of pages, >= 1, that the table should
   have side by side from here on. -1 if the budget has no bytes left for it. */
int32_t kv_page_take(struct kv_cache *cache, const struct kv_class *kind,
                     const struct kv_page_ref *table, int32_t n, int32_t run);
void kv_page_ref_add(struct kv_cache *cache, const struct kv_class *kind, int32_t page);
/* Gives one reference back; the page is free when it was the last. */
void kv_page_drop(struct kv_cache *cache, const struct kv_class *kind, int32_t page);
/* The same of a block that holds the page, which some table entry points to or another block
   holds. */
void kv_page_hold(struct kv_cache *cache, const struct kv_class *kind, int32_t page);
void kv_page_release(struct kv_cache *cache, const struct kv_class *kind, int32_t page);

/* Gives a table entry a page of its own, with the entries it holds, where others point to it too.
   The bytes for it are free. */
void kv_page_unshare(struct kv_cache *cache, const struct kv_class *kind, struct kv_page_ref *ref);

/* Whether one more holder of a page that is to write to it has to copy it: all do but the last.
   n_entry notes the charge; the caller clears it. */
bool kv_page_charge(const struct kv_class *kind, int32_t page);

/* ---- room.c ---- */

/* Bytes of n pages of a class, and of all pages with memory: a state has parts on several
   devices. */
struct kv_need kv_need_of_pages(const struct kv_cache *cache, const struct kv_class *kind,
                                int64_t n);
struct kv_need kv_resident_need(const struct kv_cache *cache);
/* n pages of a class are taken, or given back where n is negative. */
void kv_charge_pages(struct kv_cache *cache, struct kv_class *kind, int32_t n);
/* Bytes that there can be on the device of a part, and pages of a class. */
int64_t kv_most_on(const struct kv_cache *cache, int32_t part);
int64_t kv_most_pages(const struct kv_cache *cache, const struct kv_class *kind);
/* INVALID: a device has no room for a token. */
pith_status kv_check_devices(const struct kv_cache *cache, pith_error *err);

/* Whether there is room for n more pages of a class when kept states give way. */
bool kv_pages_fit(const struct kv_cache *cache, const struct kv_class *kind, int64_t n);
/* Whether there is room for one more page with kept states as they are. */
bool kv_page_fits_now(const struct kv_cache *cache, const struct kv_class *kind);
/* KV_FULL with the numbers where there is no room: `what`, as "a lane takes pages", begins the
   sentence. NOMEM: a device has no memory left, though the budget has. */
pith_status kv_cache_secure(const struct kv_cache *cache, const struct kv_need *need,
                            const char *what, pith_error *err);
/* pi_device.check of its devices. */
pith_status kv_cache_check(const struct kv_cache *cache, pith_error *err);

/* Bytes that are free on every device: for pages of any lanes. */
int64_t kv_least_free(const struct kv_cache *cache);

/* Bytes that the limit has left, negative where it is passed. Kept states give way, so their bytes
   are among them. */
static inline int64_t kv_free_bytes(const struct kv_cache *cache)
{
    int64_t kept = cache->state != NULL ? kv_state_kept_bytes(cache) : 0;
    return cache->limit - cache->used + kept;
}

#endif
