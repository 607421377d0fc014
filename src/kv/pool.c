/*
 * pool.c - the pools of pages, one for each class: the free pages, the references to each page, and
 * one account of bytes for all. It knows neither the worth of an entry nor how attention reads. But
 * it assumes that attention reads a lane from its first page to its last. Reading memory in order
 * is faster, so a lane takes pages side by side. Invariants: a page is taken exactly when its
 * reference count is positive. Neither the used bytes nor the bytes of pages with physical memory
 * exceed the budget. On one of several devices they do not exceed its room.
 */
#include "kv/pool.h"
#include "base/mem.h"
#include "device/device.h"
#include "kv/marks_internal.h"
#include "kv/page.h"
#include "kv/pool_internal.h"

#define LIST_ALIGN 64
/* No system that Pith runs on gives a process more than 47 bits of addresses. */
#define MAX_BUDGET ((int64_t)1 << 47)

/* ---- the pools ---- */

/* The number of pages of each class that a budget pays for. */
static pith_status count_pages(struct kv_cache *cache, int64_t budget, pith_error *err)
{
    const struct kv_geometry *g = &cache->g;
    int64_t state = kv_bytes_of_state(g);
    int64_t least = kv_bytes_for_tokens(g, 1) + state, smallest = INT64_MAX;
    for (int32_t i = 0; i < cache->n_kind; i++)
        smallest = pi_min(smallest, kv_pages_bytes(&cache->kind[i], 1));
    if (budget < least && state > 0)
        return pi_fail(err, PITH_INVALID,
                       "KV budget: %lld bytes are less than the %lld that one token takes (%d "
                       "lanes with a page each, and a recurrent state of %lld)",
                       (long long)budget, (long long)least, g->n_layer * g->n_head,
                       (long long)state);
    if (budget < least)
        return pi_fail(
            err, PITH_INVALID,
            "KV budget: %lld bytes are less than the %lld that one token takes (%d lanes "
            "with a page of %s%lld bytes each)",
            (long long)budget, (long long)least, g->n_layer * g->n_head,
            cache->n_kind > 1 ? "up to " : "", (long long)kv_page_bytes(g));
    if (budget > MAX_BUDGET / cache->n_kind || budget / smallest > INT32_MAX)
        return pi_fail(
            err, PITH_INVALID, "KV budget: %lld bytes are more than the %lld that can be addressed",
            (long long)budget, (long long)pi_min(MAX_BUDGET / cache->n_kind, smallest * INT32_MAX));
    cache->budget = budget;
    PI_TRY(kv_check_devices(cache, err));
    for (int32_t i = 0; i < cache->n_kind; i++)
        cache->kind[i].n_page = (int32_t)kv_most_pages(cache, &cache->kind[i]);
    if (cache->n_kind == 1)
        cache->budget = kv_pages_bytes(&cache->kind[0], cache->kind[0].n_page);
    cache->limit = cache->budget;
    return PITH_OK;
}

/* The lists lie in one block, so that a large pool costs memory only for pages in use. */
static size_t size_of_lists(const struct kv_class *kind)
{
    size_t n = (size_t)kind->n_page;
    return 4 * ((n + 63) / 64 * sizeof(uint64_t)) + 2 * n * sizeof(int32_t) + n;
}

int64_t kv_cache_bytes_at(int32_t n_kind, int64_t n_page)
{
    const struct kv_class all = {.n_page = (int32_t)pi_min(n_page, INT32_MAX)}, one = {.n_page = 1};
    return (int64_t)(sizeof(struct kv_cache) + size_of_lists(&all)) +
           n_kind * (int64_t)(sizeof(struct kv_class) + size_of_lists(&one));
}

static void place_lists(struct kv_class *kind, void *lists)
{
    size_t n = (size_t)kind->n_page;
    size_t bits = (n + 63) / 64 * sizeof(uint64_t), ref_size = n * sizeof(int32_t);
    uint8_t *at = lists;
    kind->lists = lists;
    kind->lists_size = size_of_lists(kind);
    kind->taken = lists;
    kind->left = (uint64_t *)(void *)(at + bits);
    kind->resident = (uint64_t *)(void *)(at + 2 * bits);
    kind->moving = (uint64_t *)(void *)(at + 3 * bits);
    kind->n_ref = (int32_t *)(void *)(at + 4 * bits);
    kind->n_held = (int32_t *)(void *)(at + 4 * bits + ref_size);
    kind->n_entry = at + 4 * bits + 2 * ref_size;
}

/* Bytes of the positions of all pages. A state has none. */
static void size_pos(struct kv_class *kind)
{
    kind->pos_size = (size_t)kind->n_page * (size_t)kind->page_len * sizeof(*kind->pos);
}

/* Pages lie in the runs of their lanes, and a run is filled long after it begins. With small pages
   of the system only the filled part takes physical memory. */
static bool map_pool(struct kv_class *kind)
{
    kind->pool_size = (size_t)kind->n_page * kind->layout.stride;
    kind->pool = kind->device->map(kind->device, PI_MEM_KV, kind->pool_size);
    return pi_at_some(kind->pool);
}

static bool map_class(struct kv_class *kind)
{
    size_pos(kind);
    if (kind->pos_size > 0)
        kind->pos = pi_mem_map(PI_MEM_KV, kind->pos_size);
    void *lists = pi_mem_map(PI_MEM_TABLE, size_of_lists(kind));
    if (lists != NULL)
        place_lists(kind, lists);
    return map_pool(kind) && (kind->pos_size == 0 || kind->pos != NULL) && lists != NULL;
}

/* A cache without memory for its pages. */
static pith_status make_cache(const struct kv_geometry *g, int64_t budget_bytes,
                              struct kv_cache **out, pith_error *err)
{
    PI_TRY(kv_geometry_check(g, err));
    struct kv_class kind[KV_CLASS_MAX], more[KV_PART_MOST];
    int32_t n_kind = kv_classes_make(g, kind), n_state = 0;
    if (g->state_bytes > 0) {
        n_state = kv_state_classes_make(g, &kind[n_kind], more);
        kind[n_kind].number = n_kind;
        n_kind++;
    }
    int32_t n_more = n_state > 0 ? n_state - 1 : 0;
    size_t size = sizeof(struct kv_cache) + (size_t)(n_kind + n_more) * sizeof(*kind);
    struct kv_cache *cache = pi_mem_alloc(PI_MEM_TABLE, size);
    if (cache == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a KV cache");
    cache->g = *g;
    cache->kind = (struct kv_class *)(void *)(cache + 1);
    cache->more = cache->kind + n_kind;
    cache->n_kind = n_kind;
    cache->n_more = n_more;
    memcpy(cache->kind, kind, (size_t)n_kind * sizeof(*kind));
    memcpy(cache->more, more, (size_t)n_more * sizeof(*more));
    cache->state = n_state > 0 ? &cache->kind[n_kind - 1] : NULL;
    cache->table_bytes = (int64_t)size;
    cache->clipped = INT32_MAX;
    pith_status status = count_pages(cache, budget_bytes, err);
    if (status != PITH_OK) {
        kv_cache_free(cache);
        return status;
    }
    *out = cache;
    return PITH_OK;
}

pith_status kv_cache_create(const struct kv_geometry *g, int64_t budget_bytes,
                            struct kv_cache **out, pith_error *err)
{
    struct kv_cache *cache;
    bool ok = true;
    PI_TRY(make_cache(g, budget_bytes, &cache, err));
    for (int32_t i = 0; i < cache->n_kind && ok; i++) {
        ok = map_class(&cache->kind[i]);
        cache->table_bytes += (int64_t)cache->kind[i].lists_size;
    }
    for (int32_t i = 0; i < cache->n_more && ok; i++) {
        cache->more[i].n_page = cache->state->n_page;
        ok = map_pool(&cache->more[i]);
    }
    if (!ok) {
        pith_status status = pi_fail(err, PITH_NOMEM, "no memory for a KV pool of %lld bytes",
                                     (long long)cache->budget);
        kv_cache_free(cache);
        return status;
    }
    *out = cache;
    return PITH_OK;
}

pith_status kv_cache_sizes(const struct kv_geometry *g, int64_t budget_bytes,
                           struct kv_cache_bytes *out, pith_error *err)
{
    struct kv_cache *cache;
    PI_TRY(make_cache(g, budget_bytes, &cache, err));
    assert(cache->n_kind == 1);
    struct kv_class *kind = &cache->kind[0];
    size_pos(kind);
    *out = (struct kv_cache_bytes){
        .lists = pi_align(size_of_lists(kind), LIST_ALIGN),
        .positions = pi_align(kind->pos_size, LIST_ALIGN),
        .pages = pi_align((size_t)kind->n_page * kind->layout.stride, LIST_ALIGN)};
    kv_cache_free(cache);
    return PITH_OK;
}

pith_status kv_cache_create_in(const struct kv_geometry *g, int64_t budget_bytes,
                               const struct kv_cache_place *place, struct kv_cache **out,
                               pith_error *err)
{
    struct kv_cache *cache;
    PI_TRY(make_cache(g, budget_bytes, &cache, err));
    struct kv_class *kind = &cache->kind[0];
    assert(cache->n_kind == 1);
    cache->borrowed = true;
    size_pos(kind);
    kind->pool_size = (size_t)kind->n_page * kind->layout.stride;
    kind->pool = place->pages;
    kind->pos = (int32_t *)(void *)place->positions;
    place_lists(kind, place->lists);
    cache->table_bytes += (int64_t)kind->lists_size;
    *out = cache;
    return PITH_OK;
}

void kv_cache_free(struct kv_cache *cache)
{
    if (cache == NULL)
        return;
    assert(cache->first == NULL && cache->block == NULL);
    for (int32_t i = 0; i < cache->n_kind && !cache->borrowed; i++) {
        struct kv_class *kind = &cache->kind[i];
        pi_mem_unmap(PI_MEM_TABLE, kind->lists, kind->lists_size);
        kind->device->unmap(kind->device, PI_MEM_KV, kind->pool, kind->pool_size);
        pi_mem_unmap(PI_MEM_KV, kind->pos, kind->pos_size);
    }
    for (int32_t i = 0; i < cache->n_more; i++)
        cache->more[i].device->unmap(cache->more[i].device, PI_MEM_KV, cache->more[i].pool,
                                     cache->more[i].pool_size);
    pi_mem_free(cache);
}

const struct kv_geometry *kv_cache_geometry(const struct kv_cache *cache)
{
    return &cache->g;
}

/* ---- memory ---- */

static bool resident_fits(const struct kv_cache *cache, const struct kv_need *more)
{
    struct kv_need n = kv_resident_need(cache);
    bool fits = n.all + more->all <= cache->limit;
    for (int32_t i = 0; i < cache->g.devices.n; i++)
        fits = fits && (more->part[i] == 0 || n.part[i] + more->part[i] <= kv_most_on(cache, i));
    return fits;
}

static bool bit_of(const uint64_t *words, int32_t page)
{
    return (words[page / 64] >> (page % 64) & 1) != 0;
}

static void set_bit(uint64_t *words, int32_t page, bool on)
{
    uint64_t bit = (uint64_t)1 << (page % 64);
    words[page / 64] = on ? words[page / 64] | bit : words[page / 64] & ~bit;
}

static void drop_of_pool(const struct kv_class *kind, int32_t begin, int32_t n)
{
    kind->device->drop(kind->device, pi_at_add(kind->pool, (size_t)begin * kind->layout.stride),
                       (size_t)n * kind->layout.stride);
}

/* Gives the memory of n pages back. Where they begin or end within a page of the system, that one
   stays. */
static void drop_pages(const struct kv_cache *cache, struct kv_class *kind, int32_t begin,
                       int32_t n)
{
    drop_of_pool(kind, begin, n);
    for (int32_t i = 0; kind == cache->state && i < cache->n_more; i++)
        drop_of_pool(&cache->more[i], begin, n);
    if (kind->pos != NULL)
        pi_mem_drop(kv_page_pos(kind, begin), (size_t)n * (size_t)kind->page_len * sizeof(int32_t));
}

/* The same of a class's free pages, run by run. */
static void give_back(const struct kv_cache *cache, struct kv_class *kind)
{
    for (int32_t p = 0, begin = 0; p <= kind->n_page; p++) {
        if (p < kind->n_page && p % 64 == 0 && begin == p && kind->resident[p / 64] == 0) {
            p += 63; /* none of these was touched */
            begin = p + 1;
            continue;
        }
        if (p < kind->n_page && bit_of(kind->resident, p) && !bit_of(kind->taken, p)) {
            set_bit(kind->resident, p, false);
            kind->n_resident--;
            continue;
        }
        if (begin < p)
            drop_pages(cache, kind, begin, p - begin);
        begin = p + 1;
    }
}

void kv_cache_give_back(struct kv_cache *cache)
{
    for (int32_t i = 0; i < cache->n_kind; i++)
        give_back(cache, &cache->kind[i]);
}

void kv_cache_set_limit(struct kv_cache *cache, int64_t bytes)
{
    cache->limit = pi_min(bytes, cache->budget);
    if (kv_resident_need(cache).all > pi_max(cache->limit, cache->used))
        kv_cache_give_back(cache);
}

int64_t kv_cache_beside_bytes(const struct kv_cache *cache)
{
    return cache->table_bytes;
}

/* Called before the first use of a page's memory. Where all classes would exceed the limit, or
   classes of a device its room, free pages give their physical memory up. Other classes come first.
   With a single class, and the budget as the limit, they never do. */
static void make_resident(struct kv_cache *cache, struct kv_class *kind, int32_t page)
{
    if (bit_of(kind->resident, page))
        return;
    struct kv_need need = kv_need_of_pages(cache, kind, 1);
    for (int32_t i = 0; i < cache->n_kind && !resident_fits(cache, &need); i++)
        if (i != kind->number)
            give_back(cache, &cache->kind[i]);
    if (!resident_fits(cache, &need))
        give_back(cache, kind);
    set_bit(kind->resident, page, true);
    kind->n_resident++;
}

pith_status kv_cache_check(const struct kv_cache *cache, pith_error *err)
{
    for (int32_t i = 0; i < cache->n_kind; i++)
        PI_TRY(cache->kind[i].device->check(cache->kind[i].device, err));
    return PITH_OK;
}

/* ---- pages ---- */

/* The number of the lowest clear bit of a word that has one. */
static int32_t lowest_clear(uint64_t word)
{
    int32_t bit = 0;
    for (int32_t width = 32; width > 0; width /= 2) {
        uint64_t low = (((uint64_t)1 << width) - 1) << bit;
        if ((word & low) == low)
            bit += width;
    }
    return bit;
}

static int32_t lowest_set(uint64_t word)
{
    return lowest_clear(~word);
}

/* The first of `run` pages side by side that are neither taken nor left to a lane, or else of the
   longest such stretch. *n receives how many, at most run; 0: there are none. */
static int32_t find_run(const struct kv_class *kind, int32_t run, int32_t *n)
{
    int64_t begin = kind->open_word * (int64_t)64, first = begin;
    *n = 0;
    for (int64_t p = begin; p < kind->n_page && *n < run;) {
        uint64_t busy = (kind->taken[p / 64] | kind->left[p / 64]) >> (p % 64);
        p = pi_min(p + (busy == 0 ? 64 - p % 64 : lowest_set(busy)), kind->n_page);
        if (p - begin > *n) {
            *n = (int32_t)pi_min(p - begin, run);
            first = begin;
        }
        if (busy == 0 || p == kind->n_page)
            continue;
        busy >>= lowest_set(busy);
        begin = p += busy == UINT64_MAX ? 64 : lowest_clear(busy);
    }
    return (int32_t)first;
}

static int32_t lowest_free(const struct kv_class *kind)
{
    return kind->low_word * 64 + lowest_clear(kind->taken[kind->low_word]);
}

/*
 * A free page for entry n of a table: the one after the page of entry n - 1. Where that page is
 * taken, a new run begins, and the pages that the table cannot fill yet are reserved for it. The
 * reservation is no promise: where no other page is free, any lane takes a reserved one.
 */
static int32_t choose_page(struct kv_class *kind, const struct kv_page_ref *table, int32_t n,
                           int32_t run)
{
    int32_t page = n > 0 ? table[n - 1].page + 1 : kind->n_page, found;
    if (page < kind->n_page && !bit_of(kind->taken, page))
        return page;
    while ((kind->open_word + 1) * (int64_t)64 <= kind->n_page &&
           (kind->taken[kind->open_word] | kind->left[kind->open_word]) == UINT64_MAX)
        kind->open_word++;
    page = find_run(kind, run, &found);
    for (int32_t i = 1; i < found; i++)
        set_bit(kind->left, page + i, true);
    return found > 0 ? page : lowest_free(kind);
}

void kv_page_moves(struct kv_cache *cache, const struct kv_class *of, int32_t page)
{
    set_bit(cache->kind[of->number].moving, page, true);
    cache->moving = true;
}

void kv_cache_settle(struct kv_cache *cache)
{
    for (int32_t i = 0; cache->moving && i < cache->n_kind; i++) {
        struct kv_class *kind = &cache->kind[i];
        memset(kind->moving, 0, ((size_t)kind->n_page + 63) / 64 * sizeof(*kind->moving));
        if (kind->device->settle != NULL)
            kind->device->settle(kind->device);
    }
    for (int32_t i = 0; cache->moving && i < cache->n_more; i++)
        if (cache->more[i].device->settle != NULL)
            cache->more[i].device->settle(cache->more[i].device);
    cache->moving = false;
}

int32_t kv_page_take(struct kv_cache *cache, const struct kv_class *of,
                     const struct kv_page_ref *table, int32_t n, int32_t run)
{
    struct kv_class *kind = &cache->kind[of->number];
    if (cache->state != NULL)
        kv_state_give_way(cache, kind);
    if (!kv_page_fits_now(cache, kind))
        return -1;
    while (kind->taken[kind->low_word] == UINT64_MAX)
        kind->low_word++;
    int32_t page = choose_page(kind, table, n, run);
    assert(page < kind->n_page && kind->n_ref[page] == 0);
    if (bit_of(kind->moving, page))
        kv_cache_settle(cache);
    make_resident(cache, kind, page);
    set_bit(kind->taken, page, true);
    set_bit(kind->left, page, false);
    kind->n_ref[page] = 1;
    kv_charge_pages(cache, kind, 1);
    return page;
}

/* Table entries that point to a page. */
static int32_t count_entries(const struct kv_class *kind, int32_t page)
{
    return kind->n_ref[page] - kind->n_held[page];
}

/* A page to which n table entries refer gains one (sign 1) or has lost one (sign -1). Updates the
   counts of shared pages and of references beyond the first. */
static void note_shared(struct kv_class *kind, int32_t n, int32_t sign)
{
    if (n >= 1)
        kind->n_ref_extra += sign;
    if (n == 1)
        kind->n_shared += sign;
}

void kv_page_ref_add(struct kv_cache *cache, const struct kv_class *of, int32_t page)
{
    struct kv_class *kind = &cache->kind[of->number];
    assert(kind->n_ref[page] > 0);
    if (bit_of(kind->moving, page))
        kv_cache_settle(cache);
    note_shared(kind, count_entries(kind, page), 1);
    kind->n_ref[page]++;
}

/* Pages reserved for the lane that ends with this page are reserved no longer. */
static void make_free(struct kv_cache *cache, struct kv_class *kind, int32_t page)
{
    set_bit(kind->taken, page, false);
    kind->low_word = (int32_t)pi_min(kind->low_word, page / 64);
    kind->open_word = (int32_t)pi_min(kind->open_word, page / 64);
    for (int32_t p = page + 1; p < kind->n_page && bit_of(kind->left, p); p++)
        set_bit(kind->left, p, false);
    kv_charge_pages(cache, kind, -1);
}

void kv_page_drop(struct kv_cache *cache, const struct kv_class *of, int32_t page)
{
    struct kv_class *kind = &cache->kind[of->number];
    assert(count_entries(kind, page) > 0);
    kind->n_ref[page]--;
    note_shared(kind, count_entries(kind, page), -1);
    if (kind->n_ref[page] == 0)
        make_free(cache, kind, page);
}

void kv_page_hold(struct kv_cache *cache, const struct kv_class *of, int32_t page)
{
    struct kv_class *kind = &cache->kind[of->number];
    assert(kind->n_ref[page] > 0);
    if (bit_of(kind->moving, page))
        kv_cache_settle(cache);
    kind->n_held[page]++;
    kind->n_ref[page]++;
}

void kv_page_release(struct kv_cache *cache, const struct kv_class *of, int32_t page)
{
    struct kv_class *kind = &cache->kind[of->number];
    assert(kind->n_held[page] > 0);
    kind->n_held[page]--;
    if (--kind->n_ref[page] == 0)
        make_free(cache, kind, page);
}

void kv_page_unshare(struct kv_cache *cache, const struct kv_class *kind, struct kv_page_ref *ref)
{
    if (kind->n_ref[ref->page] == 1)
        return;
    int32_t own = kv_page_take(cache, kind, NULL, 0, 1);
    assert(own >= 0);
    kv_page_copy(cache, kind, own, ref->page);
    kv_page_drop(cache, kind, ref->page);
    ref->page = own;
}

/* Charges stop counting at 255; of a page that has more holders each is charged. */
bool kv_page_charge(const struct kv_class *kind, int32_t page)
{
    uint8_t *mark = &kind->n_entry[page];
    if (*mark >= kind->n_ref[page] - 1)
        return false;
    *mark = (uint8_t)pi_min(*mark + 1, UINT8_MAX);
    return true;
}

/* ---- the account ---- */

/* Bytes of states, and of entries that some lane sees, each page counted once, with the most that
   any lane sees of it. Counting a page clears its mark, so that the marks are all zero between
   calls. */
static int64_t count_live(const struct kv_cache *cache)
{
    int64_t bytes = 0;
    int32_t n_lane = kv_lane_count(cache);
    for (const struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next)
        bytes += kv_state_count(seq);
    for (const struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next)
        kv_state_uncount(seq);
    for (int counting = 0; counting < 2; counting++)
        for (const struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next)
            for (int32_t l = 0; l < n_lane; l++)
                for (int32_t i = 0; i < seq->lane[l].n_live; i++) {
                    const struct kv_class *kind = seq->lane[l].kind;
                    const struct kv_page_ref *ref = &seq->lane[l].table[i];
                    uint8_t *mark = &kind->n_entry[ref->page];
                    if (counting)
                        bytes += *mark * (int64_t)kind->layout.entry +
                                 (*mark == cache->g.page_len ? (int64_t)kind->layout.whole : 0);
                    *mark = counting ? 0 : (uint8_t)pi_max(*mark, ref->n);
                }
    return bytes;
}

void kv_cache_parts(const struct kv_cache *cache, struct kv_parts *out)
{
    *out = (struct kv_parts){.tables = cache->table_bytes, .aside = cache->aside_bytes};
    for (int32_t i = 0; i < cache->n_kind; i++) {
        const struct kv_class *kind = &cache->kind[i];
        int64_t used = kv_pages_bytes(kind, kind->n_used);
        out->held += kind == cache->state ? 0 : used;
        out->states += kind == cache->state ? used : 0;
        out->idle += kv_pages_bytes(kind, kind->n_resident) - used;
    }
    for (const struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next)
        out->marks += (int64_t)seq->marks_size;
    out->tables -= out->marks;
}

void kv_cache_reset_peak(struct kv_cache *cache)
{
    cache->peak = cache->used;
    cache->most_on = cache->on;
}

void kv_cache_stats(const struct kv_cache *cache, pith_kv_stats *out)
{
    *out = (pith_kv_stats){
        .reserved_bytes = cache->budget,
        .used_bytes = cache->used,
        .peak_bytes = cache->peak,
        .live_bytes = count_live(cache),
        .table_bytes = cache->table_bytes,
        .page_bytes = (int64_t)kv_page_bytes(&cache->g),
        .n_seq = cache->n_seq,
        .page_len = cache->g.page_len,
    };
    for (int32_t i = 0; i < cache->n_kind; i++) {
        const struct kv_class *kind = &cache->kind[i];
        out->shared_bytes += kv_pages_bytes(kind, kind->n_shared);
        out->saved_bytes += kv_pages_bytes(kind, kind->n_ref_extra);
        out->n_page_used += kind == cache->state ? 0 : kind->n_used;
    }
    out->n_page =
        out->n_page_used + (kv_free_bytes(cache) + cache->budget - cache->limit) / out->page_bytes;
}
