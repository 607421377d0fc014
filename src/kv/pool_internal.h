/*
 * pool_internal.h - pages taken, counted and given back.
 */
#ifndef PI_KV_POOL_INTERNAL_H
#define PI_KV_POOL_INTERNAL_H

#include "kv/state_internal.h"
#include "kv/store.h"

/* Takes a free page of a class, with one reference, as entry n of a table. It is the one after the
   page of entry n - 1 if that is free. Else it begins a run of pages, >= 1, that the table should
   have side by side from here on. -1 if the budget has no bytes left for it. */
int32_t kv_page_take(struct kv_cache *cache, const struct kv_class *kind,
                     const struct kv_page_ref *table, int32_t n, int32_t run);
void kv_page_ref_add(struct kv_cache *cache, const struct kv_class *kind, int32_t page);
/* Gives one reference back; the page is free when it was the last. */
void kv_page_drop(struct kv_cache *cache, const struct kv_class *kind, int32_t page);
/* The same of a block that holds the page, which some table entry points to or another block holds.
 */
void kv_page_hold(struct kv_cache *cache, const struct kv_class *kind, int32_t page);
void kv_page_release(struct kv_cache *cache, const struct kv_class *kind, int32_t page);

/* Gives a table entry a page of its own, with the entries it holds, where others point to it too.
   The bytes for it are free. */
void kv_page_unshare(struct kv_cache *cache, const struct kv_class *kind, struct kv_page_ref *ref);

/* Whether one more holder of a page that is to write to it has to copy it: all do but the last.
   n_entry notes the charge; the caller clears it. */
bool kv_page_charge(const struct kv_class *kind, int32_t page);

/* NOMEM: a device has no memory left for pages of that many bytes, though the budget has. */
pith_status kv_cache_secure(const struct kv_cache *cache, int64_t bytes, pith_error *err);
/* pi_device.check of its devices. */
pith_status kv_cache_check(const struct kv_cache *cache, pith_error *err);

/* Bytes that the budget has left. Kept states give way, so their bytes are among them. */
static inline int64_t kv_free_bytes(const struct kv_cache *cache)
{
    int64_t kept = cache->state != NULL ? kv_state_kept_bytes(cache) : 0;
    return cache->budget - cache->used + kept;
}

#endif
