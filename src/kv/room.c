/*
 * room.c - bytes of pages: what is used of the budget and on each device, and whether there is room
 * for more. It gives no page out and knows no lane. Invariant: what is charged for the parts of
 * several devices sums to what is charged for all.
 */
#include "device/device.h"
#include "kv/pool.h"
#include "kv/pool_internal.h"

/* Bytes of a class's pages on each device: a state has parts on several. */
struct kv_need kv_need_of_pages(const struct kv_cache *cache, const struct kv_class *kind,
                                int64_t n)
{
    struct kv_need need = {0};
    if (kind == cache->state)
        need = kv_need_of_state(&cache->g);
    else
        kv_need_add(&need, kind->part, kv_pages_bytes(kind, 1));
    need.all *= n;
    for (int32_t i = 0; i < KV_PART_MOST; i++)
        need.part[i] *= n;
    return need;
}

/* Bytes that there can be on the device of a part. */
int64_t kv_most_on(const struct kv_cache *cache, int32_t part)
{
    int64_t most = part < cache->g.devices.n ? cache->g.devices.part[part].most : 0;
    return most > 0 ? pi_min(most, cache->budget) : cache->budget;
}

/* Whether there is room for `need` when n_kept states give way. Else *part gets the part that lacks
   it, -1 for all together, and *n_free the bytes that are free there. */
static bool has_room(const struct kv_cache *cache, const struct kv_need *need, int64_t n_kept,
                     int32_t *part, int64_t *n_free)
{
    struct kv_need kept = {0};
    if (n_kept > 0)
        kept = kv_need_of_pages(cache, cache->state, n_kept);
    *part = -1;
    *n_free = cache->limit - cache->used + kept.all;
    if (need->all > 0 && need->all > *n_free) /* what takes nothing fits beyond a limit, too */
        return false;
    for (int32_t i = 0; i < cache->g.devices.n; i++) {
        int64_t there = kv_most_on(cache, i) - cache->on.part[i] + kept.part[i];
        if (need->part[i] <= there)
            continue;
        *part = i;
        *n_free = there;
        return false;
    }
    return true;
}

/* Kept states give way, where each sequence's alone holds them. */
static int64_t count_kept(const struct kv_cache *cache)
{
    return cache->state != NULL ? kv_state_kept_bytes(cache) / kv_pages_bytes(cache->state, 1) : 0;
}

bool kv_cache_fits(const struct kv_cache *cache, const struct kv_need *need)
{
    int32_t part;
    int64_t n_free;
    return has_room(cache, need, count_kept(cache), &part, &n_free);
}

bool kv_pages_fit(const struct kv_cache *cache, const struct kv_class *kind, int64_t n)
{
    struct kv_need need = kv_need_of_pages(cache, kind, n);
    return kv_cache_fits(cache, &need);
}

bool kv_page_fits_now(const struct kv_cache *cache, const struct kv_class *kind)
{
    struct kv_need need = kv_need_of_pages(cache, kind, 1);
    int32_t part;
    int64_t n_free;
    return has_room(cache, &need, 0, &part, &n_free);
}

/* n pages of a class are taken, or given back where n is negative. */
void kv_charge_pages(struct kv_cache *cache, struct kv_class *kind, int32_t n)
{
    struct kv_need need = kv_need_of_pages(cache, kind, n);
    kind->n_used += n;
    kv_need_join(&cache->on, &need);
    cache->used = cache->on.all;
    cache->peak = pi_max(cache->peak, cache->used);
    for (int32_t i = 0; i < cache->g.devices.n; i++)
        cache->most_on.part[i] = pi_max(cache->most_on.part[i], cache->on.part[i]);
}

/* ---- limits ---- */

/* Whether each device has room for a token. */
pith_status kv_check_devices(const struct kv_cache *cache, pith_error *err)
{
    struct kv_need one = kv_need_for_tokens(&cache->g, 1);
    for (int32_t i = 0; i < cache->g.devices.n; i++)
        if (one.part[i] > kv_most_on(cache, i))
            return pi_fail(
                err, PITH_INVALID,
                "KV budget: %s has room for %lld bytes of pages, less than the %lld that "
                "one token takes there",
                cache->g.devices.part[i].device->name, (long long)kv_most_on(cache, i),
                (long long)one.part[i]);
    return PITH_OK;
}

/* Pages of a class that there can be at most. */
int64_t kv_most_pages(const struct kv_cache *cache, const struct kv_class *kind)
{
    struct kv_need one = kv_need_of_pages(cache, kind, 1);
    int64_t n = cache->budget / one.all;
    for (int32_t i = 0; i < cache->g.devices.n; i++)
        if (one.part[i] > 0)
            n = pi_min(n, kv_most_on(cache, i) / one.part[i]);
    return n;
}

/* ---- memory ---- */

/* Bytes of pages that the system may have given memory. */
struct kv_need kv_resident_need(const struct kv_cache *cache)
{
    struct kv_need sum = {0};
    for (int32_t i = 0; i < cache->n_kind; i++) {
        struct kv_need n = kv_need_of_pages(cache, &cache->kind[i], cache->kind[i].n_resident);
        kv_need_join(&sum, &n);
    }
    return sum;
}

static pith_status spare(struct pi_device *d, int64_t bytes, pith_error *err)
{
    if (bytes <= 0 || d->spare(d, (size_t)bytes))
        return PITH_OK;
    return pi_fail(err, PITH_NOMEM, "%s: no memory is left for %lld bytes of pages", d->name,
                   (long long)bytes);
}

/* Each device has memory for what is not there yet. */
static pith_status spare_all(const struct kv_cache *cache, const struct kv_need *need,
                             pith_error *err)
{
    const struct kv_geometry *g = &cache->g;
    struct kv_need there = kv_resident_need(cache);
    if (cache->borrowed) /* the memory is the caller's concern */
        return PITH_OK;
    if (g->devices.n == 0)
        return spare(kv_geometry_device(g), need->all + cache->used - there.all, err);
    for (int32_t i = 0; i < g->devices.n; i++)
        PI_TRY(spare(g->devices.part[i].device, need->part[i] + cache->on.part[i] - there.part[i],
                     err));
    return PITH_OK;
}

pith_status kv_cache_secure(const struct kv_cache *cache, const struct kv_need *need,
                            const char *what, pith_error *err)
{
    int32_t part;
    int64_t n_free;
    if (has_room(cache, need, count_kept(cache), &part, &n_free))
        return spare_all(cache, need, err);
    if (part < 0)
        return pi_fail(err, PITH_KV_FULL, "%s of %lld bytes, and %lld of %lld are free", what,
                       (long long)need->all, (long long)n_free, (long long)cache->limit);
    return pi_fail(err, PITH_KV_FULL, "%s of %lld bytes on %s, and %lld of %lld are free there",
                   what, (long long)need->part[part], cache->g.devices.part[part].device->name,
                   (long long)n_free, (long long)kv_most_on(cache, part));
}

/* ---- what is free ---- */

/* A device that is full before the others bounds them all. */
static int64_t count_free(const struct kv_cache *cache, int64_t bytes)
{
    struct kv_need one = {0}, kept = {0};
    if (cache->g.devices.n == 0)
        return bytes;
    for (int32_t l = 0; l < cache->g.n_layer; l++)
        kv_need_add(&one, kv_layer_part(&cache->g, l), (int64_t)kv_layer_page_bytes(&cache->g, l));
    if (cache->state != NULL)
        kept = kv_need_of_pages(cache, cache->state, count_kept(cache));
    for (int32_t i = 0; i < cache->g.devices.n; i++) {
        int64_t there = kv_most_on(cache, i) - cache->on.part[i] + kept.part[i];
        if (one.part[i] > 0)
            bytes = pi_min(bytes, (int64_t)((double)there / (double)one.part[i] * (double)one.all));
    }
    return bytes;
}

int64_t kv_cache_free_bytes(const struct kv_cache *cache)
{
    return count_free(cache, kv_free_bytes(cache));
}

int64_t kv_cache_unlimited_bytes(const struct kv_cache *cache)
{
    return count_free(cache, kv_free_bytes(cache) + cache->budget - cache->limit);
}

int64_t kv_least_free(const struct kv_cache *cache)
{
    int64_t bytes = kv_free_bytes(cache);
    for (int32_t i = 0; i < cache->g.devices.n; i++)
        bytes = pi_min(bytes, kv_most_on(cache, i) - cache->on.part[i]);
    return bytes;
}

void kv_cache_device_parts(const struct kv_cache *cache, const struct pi_device *device,
                           struct kv_device_parts *out)
{
    struct kv_need there = kv_resident_need(cache);
    const struct kv_devices *d = &cache->g.devices;
    *out = (struct kv_device_parts){0};
    if (d->n == 0 && device == kv_geometry_device(&cache->g))
        *out = (struct kv_device_parts){cache->budget, cache->used, cache->peak,
                                        there.all - cache->used};
    for (int32_t i = 0; i < d->n; i++)
        if (d->part[i].device == device)
            *out =
                (struct kv_device_parts){kv_most_on(cache, i), cache->on.part[i],
                                         cache->most_on.part[i], there.part[i] - cache->on.part[i]};
}
