/*
 * pool.c - the pool of pages: one mapping, which page is free, who points to it, and the account of
 * bytes. It knows neither what an entry is worth nor what an attention call reads. Invariant: a
 * page is taken exactly when its reference count is positive, so that used bytes never exceed the
 * budget.
 */
#include "kv/store.h"

#define PART_ALIGN 64
#define MAX_DIM 16384
#define MAX_LANE (1 << 20)
/* No system that Pith runs on gives a process more than 47 bits of addresses. */
#define MAX_BUDGET ((int64_t)1 << 47)

/* ---- geometry ---- */

static pith_status check_count(const char *field, int32_t value, int32_t max, pith_error *err)
{
    if (value < 1 || value > max)
        return pi_fail(err, PITH_INVALID, "%s: %d is not in 1..%d", field, value, max);
    return PITH_OK;
}

static pith_status check_type(const char *field, enum kv_type type, int32_t dim, pith_error *err)
{
    if ((int)type < 0 || type >= KV_N_TYPE)
        return pi_fail(err, PITH_INVALID, "%s: %d is no storage type", field, (int)type);
    const struct kv_codec *codec = &kv_codecs[type];
    if (dim % codec->block != 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s: %s stores blocks of %d dimensions, and the head size %d is no multiple",
                       field, codec->name, codec->block, dim);
    return PITH_OK;
}

pith_status kv_geometry_check(const struct kv_geometry *g, pith_error *err)
{
    PI_TRY(check_count("n_layer", g->n_layer, MAX_LANE, err));
    PI_TRY(check_count("n_head", g->n_head, MAX_LANE / g->n_layer, err));
    PI_TRY(check_count("dim_k", g->dim_k, MAX_DIM, err));
    PI_TRY(check_count("dim_v", g->dim_v, MAX_DIM, err));
    if (g->page_len != 16 && g->page_len != 32 && g->page_len != 64)
        return pi_fail(err, PITH_INVALID, "page_len: %d is not 16, 32 or 64", g->page_len);
    PI_TRY(check_type("type_k", g->type_k, g->dim_k, err));
    PI_TRY(check_type("type_v", g->type_v, g->dim_v, err));
    return kv_index_check(g, err);
}

static size_t value_bytes(enum kv_type type, int32_t dim)
{
    return (size_t)dim * (size_t)kv_codecs[type].value_bytes;
}

static size_t scale_bytes(enum kv_type type, int32_t dim)
{
    const struct kv_codec *codec = &kv_codecs[type];
    return (size_t)(dim / codec->block) * (size_t)codec->scale_bytes;
}

/* Adds a part of P rows to the layout and returns its offset. */
static size_t place(const struct kv_geometry *g, size_t row_bytes, struct kv_page_layout *layout)
{
    size_t offset = layout->bytes;
    layout->entry += row_bytes;
    layout->bytes += pi_align((size_t)g->page_len * row_bytes, PART_ALIGN);
    return offset;
}

void kv_page_layout_make(const struct kv_geometry *g, struct kv_page_layout *out)
{
    *out = (struct kv_page_layout){.side_by_side = g->index == 0};
    out->k = place(g, value_bytes(g->type_k, g->dim_k), out);
    out->k_scale = place(g, scale_bytes(g->type_k, g->dim_k), out);
    out->v = place(g, value_bytes(g->type_v, g->dim_v), out);
    out->v_scale = place(g, scale_bytes(g->type_v, g->dim_v), out);
    out->pos = place(g, sizeof(int32_t), out);
    out->stored = out->bytes;
    kv_index_place(g, out);
}

size_t kv_page_bytes(const struct kv_geometry *g)
{
    struct kv_page_layout layout;
    kv_page_layout_make(g, &layout);
    return layout.bytes;
}

int64_t kv_bytes_for_tokens(const struct kv_geometry *g, int64_t n_token)
{
    size_t n_page, bytes;
    if (n_token <= 0)
        return 0;
    if (!pi_mul_size((size_t)((n_token - 1) / g->page_len + 1),
                     (size_t)g->n_layer * (size_t)g->n_head, &n_page) ||
        !pi_mul_size(n_page, kv_page_bytes(g), &bytes) || bytes > INT64_MAX)
        return INT64_MAX;
    return (int64_t)bytes;
}

/* ---- the pool ---- */

/* The number of pages that a budget pays for. */
static pith_status count_pages(const struct kv_geometry *g, int64_t budget, int32_t *out,
                               pith_error *err)
{
    int64_t page = (int64_t)kv_page_bytes(g), least = kv_bytes_for_tokens(g, 1);
    if (budget < least)
        return pi_fail(
            err, PITH_INVALID,
            "KV budget: %lld bytes are less than the %lld that one token takes (%d lanes "
            "with a page of %lld bytes each)",
            (long long)budget, (long long)least, g->n_layer * g->n_head, (long long)page);
    if (budget > MAX_BUDGET || budget / page > INT32_MAX)
        return pi_fail(err, PITH_INVALID,
                       "KV budget: %lld bytes are more than the %lld that can be addressed",
                       (long long)budget, (long long)pi_min(MAX_BUDGET, page * INT32_MAX));
    *out = (int32_t)(budget / page);
    return PITH_OK;
}

/* The three arrays lie in one mapping, so that a large pool costs memory only for pages in use. */
static bool map_lists(struct kv_cache *cache)
{
    size_t n = (size_t)cache->n_page;
    size_t taken_size = (n + 63) / 64 * sizeof(uint64_t), ref_size = n * sizeof(int32_t);
    cache->lists_size = taken_size + ref_size + n;
    cache->lists = pi_mem_map(PI_MEM_TABLE, cache->lists_size);
    if (cache->lists == NULL)
        return false;
    cache->taken = cache->lists;
    cache->n_ref = (int32_t *)(void *)((uint8_t *)cache->lists + taken_size);
    cache->n_entry = (uint8_t *)cache->lists + taken_size + ref_size;
    return true;
}

pith_status kv_cache_create(const struct kv_geometry *g, int64_t budget_bytes,
                            struct kv_cache **out, pith_error *err)
{
    int32_t n_page = 0;
    PI_TRY(kv_geometry_check(g, err));
    PI_TRY(count_pages(g, budget_bytes, &n_page, err));
    struct kv_cache *cache = pi_mem_alloc(PI_MEM_TABLE, sizeof(*cache));
    if (cache == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a KV cache");
    cache->g = *g;
    kv_page_layout_make(g, &cache->layout);
    cache->n_page = n_page;
    cache->n_free = n_page;
    cache->pool_size = (size_t)n_page * cache->layout.bytes;
    cache->pool = pi_mem_map(PI_MEM_KV, cache->pool_size);
    if (cache->pool == NULL || !map_lists(cache)) {
        pith_status status =
            pi_fail(err, PITH_NOMEM, "no memory for a KV pool of %zu bytes", cache->pool_size);
        kv_cache_free(cache);
        return status;
    }
    cache->table_bytes = (int64_t)(sizeof(*cache) + cache->lists_size);
    *out = cache;
    return PITH_OK;
}

void kv_cache_free(struct kv_cache *cache)
{
    if (cache == NULL)
        return;
    assert(cache->first == NULL);
    pi_mem_unmap(PI_MEM_TABLE, cache->lists, cache->lists_size);
    pi_mem_unmap(PI_MEM_KV, cache->pool, cache->pool_size);
    pi_mem_free(cache);
}

const struct kv_geometry *kv_cache_geometry(const struct kv_cache *cache)
{
    return &cache->g;
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

int32_t kv_page_take(struct kv_cache *cache)
{
    if (cache->n_free == 0)
        return -1;
    while (cache->taken[cache->low_word] == UINT64_MAX)
        cache->low_word++;
    int32_t bit = lowest_clear(cache->taken[cache->low_word]);
    int32_t page = cache->low_word * 64 + bit;
    assert(page < cache->n_page && cache->n_ref[page] == 0);
    cache->taken[cache->low_word] |= (uint64_t)1 << bit;
    cache->n_ref[page] = 1;
    cache->n_free--;
    cache->n_page_peak = (int32_t)pi_max(cache->n_page_peak, cache->n_page - cache->n_free);
    return page;
}

void kv_page_ref_add(struct kv_cache *cache, int32_t page)
{
    assert(cache->n_ref[page] > 0);
    if (cache->n_ref[page]++ == 1)
        cache->n_page_shared++;
    cache->n_ref_extra++;
}

void kv_page_drop(struct kv_cache *cache, int32_t page)
{
    int32_t left = --cache->n_ref[page];
    assert(left >= 0);
    if (left > 0) {
        cache->n_ref_extra--;
        if (left == 1)
            cache->n_page_shared--;
        return;
    }
    int32_t word = page / 64;
    cache->taken[word] &= ~((uint64_t)1 << (page % 64));
    cache->low_word = (int32_t)pi_min(cache->low_word, word);
    cache->n_free++;
}

void kv_page_unshare(struct kv_cache *cache, struct kv_page_ref *ref)
{
    if (cache->n_ref[ref->page] == 1)
        return;
    int32_t own = kv_page_take(cache);
    assert(own >= 0);
    memcpy(kv_page_at(cache, own), kv_page_at(cache, ref->page), cache->layout.bytes);
    kv_page_drop(cache, ref->page);
    ref->page = own;
}

/* ---- the account ---- */

/* Bytes of entries that some lane sees, each page counted once, with the most that any lane sees of
   it. Counting a page clears its mark, so that the marks are all zero between calls. */
static int64_t count_live(const struct kv_cache *cache)
{
    int64_t n = 0, n_full = 0;
    int32_t n_lane = kv_lane_count(cache);
    for (int counting = 0; counting < 2; counting++)
        for (const struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next)
            for (int32_t l = 0; l < n_lane; l++)
                for (int32_t i = 0; i < seq->lane[l].n_live; i++) {
                    const struct kv_page_ref *ref = &seq->lane[l].table[i];
                    uint8_t *mark = &cache->n_entry[ref->page];
                    n += counting ? *mark : 0;
                    n_full += counting && *mark == cache->g.page_len;
                    *mark = counting ? 0 : (uint8_t)pi_max(*mark, ref->n);
                }
    return n * (int64_t)cache->layout.entry + n_full * (int64_t)cache->layout.whole;
}

void kv_cache_reset_peak(struct kv_cache *cache)
{
    cache->n_page_peak = cache->n_page - cache->n_free;
}

void kv_cache_stats(const struct kv_cache *cache, pith_kv_stats *out)
{
    int64_t page = (int64_t)cache->layout.bytes, n_used = cache->n_page - cache->n_free;
    *out = (pith_kv_stats){
        .reserved_bytes = cache->n_page * page,
        .used_bytes = n_used * page,
        .peak_bytes = cache->n_page_peak * page,
        .live_bytes = count_live(cache),
        .shared_bytes = cache->n_page_shared * page,
        .saved_bytes = cache->n_ref_extra * page,
        .table_bytes = cache->table_bytes,
        .page_bytes = page,
        .n_page = cache->n_page,
        .n_page_used = n_used,
        .n_seq = cache->n_seq,
    };
}
