/*
 * pool.c - the pools of pages, one for each class of them: which page is free, who points to it,
 * and the account of bytes, which is one for all. It knows neither what an entry is worth nor what
 * an attention call reads, but that it reads a lane from its first page to its last: memory that is
 * read in order is faster, so pages of a lane are taken side by side. Invariants: a page is taken
 * exactly when its reference count is positive; used bytes never exceed the budget, nor do those of
 * pages that the system may have given memory.
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
    if (kv_type_group(type, dim) == 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "%s: %s stores blocks of %d dimensions, and the head size %d is no multiple",
                       field, codec->name, codec->block > 0 ? codec->block : KV_CODEC_GROUP, dim);
    return PITH_OK;
}

/* Layers without a window. */
static int32_t full_layers(const struct kv_geometry *g)
{
    int32_t n = g->window != NULL ? 0 : g->n_layer;
    while (n < g->n_layer && g->window[n] == 0)
        n++;
    return n;
}

struct kv_geometry kv_full_lanes(const struct kv_geometry *g)
{
    struct kv_geometry full = *g;
    full.n_layer = full_layers(g);
    full.window = NULL;
    return full;
}

/* Layers that edges are counted in: those without a window, or all where each has one. */
static int32_t edged_layers(const struct kv_geometry *g)
{
    int32_t n = full_layers(g);
    return n > 0 ? n : g->n_layer;
}

static pith_status check_edge(const char *field, const struct kv_edge *edge,
                              const struct kv_geometry *g, int32_t dim, pith_error *err)
{
    if (edge->first == 0 && edge->last == 0)
        return PITH_OK;
    if (edge->first < 0 || edge->last < 0 || (int64_t)edge->first + edge->last > edged_layers(g))
        return pi_fail(err, PITH_INVALID,
                       "%s: the first %d and the last %d layers are not so many of %d", field,
                       edge->first, edge->last, edged_layers(g));
    return check_type(field, edge->type, dim, err);
}

static pith_status check_windows(const struct kv_geometry *g, pith_error *err)
{
    if (g->window == NULL)
        return PITH_OK;
    PI_TRY(check_count("step_len", g->step_len, INT32_MAX, err));
    for (int32_t l = 0; l < g->n_layer; l++) {
        if (g->window[l] < 0)
            return pi_fail(err, PITH_INVALID, "window: %d of layer %d is negative", g->window[l],
                           l);
        if (l > 0 && g->window[l] == 0 && g->window[l - 1] > 0)
            return pi_fail(err, PITH_INVALID, "window: layer %d has none, and layer %d has one", l,
                           l - 1);
    }
    return PITH_OK;
}

static bool same_edge(const struct kv_edge *a, const struct kv_edge *b)
{
    bool none_a = a->first == 0 && a->last == 0, none_b = b->first == 0 && b->last == 0;
    return none_a || none_b ? none_a == none_b
                            : a->type == b->type && a->first == b->first && a->last == b->last;
}

/* Of a type of keys that values are parts of. */
static pith_status check_split(const struct kv_geometry *g, enum kv_type type, pith_error *err)
{
    int32_t group = kv_type_group(type, g->dim_k);
    if (g->v_in_k % group != 0 || g->dim_v % group != 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "type_k: %s has groups of %d dimensions, and one of them would hold both "
                       "rotated dimensions and values of a latent lane (%d and %d)",
                       kv_codecs[type].name, group, g->v_in_k, g->dim_v);
    return PITH_OK;
}

/* Values that are parts of keys are stored as these are. */
static pith_status check_latent(const struct kv_geometry *g, pith_error *err)
{
    if (g->v_in_k == 0)
        return PITH_OK;
    if (g->v_in_k < 0 || g->v_in_k > g->dim_k - g->dim_v)
        return pi_fail(err, PITH_INVALID, "v_in_k: keys of %d have no %d dimensions from %d on",
                       g->dim_k, g->dim_v, g->v_in_k);
    if (g->type_k != g->type_v || !same_edge(&g->edge_k, &g->edge_v))
        return pi_fail(err, PITH_UNSUPPORTED,
                       "type_v: values of this model are parts of its keys, so that type_v must be "
                       "type_k (%s, and edges alike)",
                       kv_codecs[g->type_k].name);
    PI_TRY(check_split(g, g->type_k, err));
    return g->edge_k.first + g->edge_k.last > 0 ? check_split(g, g->edge_k.type, err) : PITH_OK;
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
    PI_TRY(check_edge("type_k", &g->edge_k, g, g->dim_k, err));
    PI_TRY(check_edge("type_v", &g->edge_v, g, g->dim_v, err));
    PI_TRY(check_latent(g, err));
    PI_TRY(check_windows(g, err));
    return kv_index_check(g, err);
}

static bool on_edge(const struct kv_geometry *g, const struct kv_edge *edge, int32_t layer)
{
    int32_t n = edged_layers(g);
    return layer < edge->first || (layer < n && layer >= n - edge->last);
}

enum kv_type kv_layer_type_k(const struct kv_geometry *g, int32_t layer)
{
    return on_edge(g, &g->edge_k, layer) ? g->edge_k.type : g->type_k;
}

enum kv_type kv_layer_type_v(const struct kv_geometry *g, int32_t layer)
{
    return on_edge(g, &g->edge_v, layer) ? g->edge_v.type : g->type_v;
}

struct pi_device *kv_geometry_device(const struct kv_geometry *g)
{
    return g->device != NULL ? g->device : pi_device_default();
}

/* ---- classes ---- */

/* Adds a part of P rows to the layout and returns its offset. */
static size_t place(const struct kv_geometry *g, size_t row_bytes, struct kv_page_layout *layout)
{
    size_t offset = layout->bytes;
    layout->entry += row_bytes;
    layout->bytes += pi_align((size_t)g->page_len * row_bytes, PART_ALIGN);
    return offset;
}

static void place_part(const struct kv_geometry *g, enum kv_type type, int32_t dim,
                       struct kv_page_layout *layout, struct kv_part *out)
{
    const struct kv_codec *codec = &kv_codecs[type];
    size_t bits[KV_N_PLANE] = {(size_t)codec->bits, (size_t)codec->bits_high, 0};
    *out = (struct kv_part){
        .type = type, .codec = codec, .dim = dim, .group = kv_type_group(type, dim)};
    for (int32_t i = 0; i < KV_N_PLANE; i++) {
        size_t row = (size_t)dim * bits[i] / 8;
        if (i == KV_PLANE_SCALE && out->group > 1)
            row = (size_t)(dim / out->group) * sizeof(uint16_t);
        bool wide = i == KV_PLANE_LOW && codec->bits != 16;
        out->plane[i] = (struct kv_plane){place(g, row, layout), row, wide ? 4 : 2, row};
    }
}

/* The dimensions of keys that are values. Groups are the keys', whatever the size of a value. */
static struct kv_part part_of_keys(const struct kv_geometry *g, const struct kv_part *k)
{
    struct kv_part out = *k;
    out.dim = g->dim_v;
    for (int32_t i = 0; i < KV_N_PLANE; i++) {
        struct kv_plane *p = &out.plane[i];
        p->at += p->row * (size_t)g->v_in_k / (size_t)g->dim_k;
        p->row = p->row * (size_t)g->dim_v / (size_t)g->dim_k;
    }
    return out;
}

void kv_class_make(const struct kv_geometry *g, enum kv_type type_k, enum kv_type type_v,
                   struct kv_class *out)
{
    struct kv_page_layout *at = &out->layout;
    *out = (struct kv_class){.type_k = type_k, .type_v = type_v};
    at->side_by_side = g->index == 0 && g->v_in_k == 0;
    place_part(g, type_k, g->dim_k, at, &out->k);
    at->k_end = at->bytes;
    place_part(g, type_v, g->v_in_k > 0 ? 0 : g->dim_v, at, &out->v);
    out->value = g->v_in_k > 0 ? part_of_keys(g, &out->k) : out->v;
    out->v_pitch = g->v_in_k > 0 ? g->dim_k : g->dim_v;
    out->group_k = out->k.group;
    out->group_v = out->value.group;
    at->k = out->k.plane[KV_PLANE_LOW].at;
    at->k_high = out->k.plane[KV_PLANE_HIGH].at;
    at->k_scale = out->k.plane[KV_PLANE_SCALE].at;
    at->v = out->value.plane[KV_PLANE_LOW].at;
    at->v_high = out->value.plane[KV_PLANE_HIGH].at;
    at->v_scale = out->value.plane[KV_PLANE_SCALE].at;
    size_t pos = (size_t)g->page_len * sizeof(int32_t);
    at->stored = at->bytes;
    at->saved = at->stored + pos;
    kv_index_place(g, at);
    at->stride = at->bytes;
    at->bytes += pos;
    at->entry += sizeof(int32_t);
    out->page_len = g->page_len;
}

size_t kv_layer_page_bytes(const struct kv_geometry *g, int32_t layer)
{
    struct kv_class kind;
    kv_class_make(g, kv_layer_type_k(g, layer), kv_layer_type_v(g, layer), &kind);
    return kind.layout.bytes;
}

/* Layers from this one on that have the same types, which only change at edges, and window. */
static int32_t count_alike(const struct kv_geometry *g, int32_t layer)
{
    int32_t n = edged_layers(g);
    const int32_t ends[] = {g->edge_k.first, n - g->edge_k.last, g->edge_v.first,
                            n - g->edge_v.last};
    int32_t end = g->n_layer;
    for (size_t i = 0; i < PI_LEN(ends); i++)
        if (ends[i] > layer)
            end = (int32_t)pi_min(end, ends[i]);
    for (int32_t l = layer + 1; g->window != NULL && l < end; l++)
        if (kv_layer_window(g, l) != kv_layer_window(g, layer))
            end = l;
    return end - layer;
}

size_t kv_page_bytes(const struct kv_geometry *g)
{
    size_t most = 0;
    for (int32_t l = 0; l < g->n_layer; l += count_alike(g, l)) {
        size_t bytes = kv_layer_page_bytes(g, l);
        most = bytes > most ? bytes : most;
    }
    return most;
}

int64_t kv_bytes_for_tokens(const struct kv_geometry *g, int64_t n_token)
{
    size_t sum = 0, bytes;
    if (n_token <= 0)
        return 0;
    for (int32_t l = 0; l < g->n_layer; l += count_alike(g, l)) {
        int64_t n_page = (n_token - 1) / g->page_len + 1;
        if (kv_layer_window(g, l) > 0)
            n_page = pi_min(n_page, kv_window_pages(g, kv_layer_window(g, l)));
        if (!pi_mul_size(kv_layer_page_bytes(g, l), (size_t)count_alike(g, l) * (size_t)g->n_head,
                         &bytes) ||
            !pi_mul_size(bytes, (size_t)n_page, &bytes) || bytes > INT64_MAX - sum)
            return INT64_MAX;
        sum += bytes;
    }
    return (int64_t)sum;
}

/* ---- the pools ---- */

int32_t kv_classes_make(const struct kv_geometry *g, struct kv_class kind[KV_CLASS_MAX])
{
    int32_t n = 0;
    for (int32_t l = 0; l < g->n_layer; l += count_alike(g, l)) {
        enum kv_type k = kv_layer_type_k(g, l), v = kv_layer_type_v(g, l);
        int32_t i = 0;
        while (i < n && (kind[i].type_k != k || kind[i].type_v != v))
            i++;
        if (i < n)
            continue;
        assert(i < KV_CLASS_MAX);
        kv_class_make(g, k, v, &kind[i]);
        kind[i].number = n++;
    }
    return n;
}

const struct kv_class *kv_class_of(const struct kv_class *kind, const struct kv_geometry *g,
                                   int32_t layer)
{
    enum kv_type k = kv_layer_type_k(g, layer), v = kv_layer_type_v(g, layer);
    while (kind->type_k != k || kind->type_v != v)
        kind++;
    return kind;
}

int64_t kv_bytes_of_state(const struct kv_geometry *g)
{
    return (int64_t)pi_align(g->state_bytes, PART_ALIGN);
}

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
                       "lanes with a page each, and a state of %lld bytes for the recurrent "
                       "layers)",
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
    for (int32_t i = 0; i < cache->n_kind; i++)
        cache->kind[i].n_page = (int32_t)(budget / kv_pages_bytes(&cache->kind[i], 1));
    cache->budget =
        cache->n_kind > 1 ? budget : kv_pages_bytes(&cache->kind[0], cache->kind[0].n_page);
    return PITH_OK;
}

/* The lists lie in one block, so that a large pool costs memory only for pages in use. */
static size_t size_of_lists(const struct kv_class *kind)
{
    size_t n = (size_t)kind->n_page;
    return 3 * ((n + 63) / 64 * sizeof(uint64_t)) + 2 * n * sizeof(int32_t) + n;
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
    kind->n_ref = (int32_t *)(void *)(at + 3 * bits);
    kind->n_held = (int32_t *)(void *)(at + 3 * bits + ref_size);
    kind->n_entry = at + 3 * bits + 2 * ref_size;
}

/* Bytes of all pages, and of their positions. */
static void size_pool(struct kv_class *kind)
{
    kind->pool_size = (size_t)kind->n_page * kind->layout.stride;
    kind->pos_size = (size_t)kind->n_page * (kind->layout.bytes - kind->layout.stride);
}

/* Pages stand where lanes have their runs, and a run is filled long after it is begun: in small
   pages of the system only what was filled takes memory. */
static bool map_class(struct pi_device *d, struct kv_class *kind)
{
    size_pool(kind);
    kind->pool = d->map(d, PI_MEM_KV, kind->pool_size);
    if (kind->pos_size > 0)
        kind->pos = pi_mem_map(PI_MEM_KV, kind->pos_size);
    void *lists = pi_mem_map(PI_MEM_TABLE, size_of_lists(kind));
    if (lists != NULL)
        place_lists(kind, lists);
    return pi_at_some(kind->pool) && (kind->pos_size == 0 || kind->pos != NULL) && lists != NULL;
}

/* A cache without memory for its pages. */
static pith_status make_cache(const struct kv_geometry *g, int64_t budget_bytes,
                              struct kv_cache **out, pith_error *err)
{
    PI_TRY(kv_geometry_check(g, err));
    struct kv_cache *cache = pi_mem_alloc(PI_MEM_TABLE, sizeof(*cache));
    if (cache == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a KV cache");
    cache->g = *g;
    cache->device = kv_geometry_device(g);
    cache->table_bytes = (int64_t)sizeof(*cache);
    cache->clipped = INT32_MAX;
    cache->n_kind = kv_classes_make(g, cache->kind);
    if (g->state_bytes > 0) {
        cache->state = &cache->kind[cache->n_kind];
        kv_state_class_make(g, cache->state);
        cache->state->number = cache->n_kind++;
    }
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
    PI_TRY(make_cache(g, budget_bytes, &cache, err));
    for (int32_t i = 0; i < cache->n_kind; i++) {
        if (!map_class(cache->device, &cache->kind[i])) {
            pith_status status = pi_fail(err, PITH_NOMEM, "no memory for a KV pool of %lld bytes",
                                         (long long)cache->budget);
            kv_cache_free(cache);
            return status;
        }
        cache->table_bytes += (int64_t)cache->kind[i].lists_size;
    }
    *out = cache;
    return PITH_OK;
}

pith_status kv_cache_sizes(const struct kv_geometry *g, int64_t budget_bytes, size_t *lists,
                           size_t *pool, pith_error *err)
{
    struct kv_cache *cache;
    PI_TRY(make_cache(g, budget_bytes, &cache, err));
    assert(cache->n_kind == 1);
    *lists = pi_align(size_of_lists(&cache->kind[0]), PART_ALIGN);
    *pool = (size_t)cache->kind[0].n_page * cache->kind[0].layout.bytes;
    kv_cache_free(cache);
    return PITH_OK;
}

pith_status kv_cache_create_in(const struct kv_geometry *g, int64_t budget_bytes, uint8_t *lists,
                               uint8_t *pool, struct kv_cache **out, pith_error *err)
{
    struct kv_cache *cache;
    PI_TRY(make_cache(g, budget_bytes, &cache, err));
    struct kv_class *kind = &cache->kind[0];
    assert(cache->n_kind == 1 && cache->device->in_host);
    cache->borrowed = true;
    size_pool(kind);
    kind->pool = (struct pi_at){(uintptr_t)pool};
    kind->pos = (int32_t *)(void *)(pool + kind->pool_size);
    place_lists(kind, lists);
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
        pi_mem_unmap(PI_MEM_TABLE, cache->kind[i].lists, cache->kind[i].lists_size);
        cache->device->unmap(cache->device, PI_MEM_KV, cache->kind[i].pool,
                             cache->kind[i].pool_size);
        pi_mem_unmap(PI_MEM_KV, cache->kind[i].pos, cache->kind[i].pos_size);
    }
    pi_mem_free(cache);
}

const struct kv_geometry *kv_cache_geometry(const struct kv_cache *cache)
{
    return &cache->g;
}

/* ---- memory ---- */

/* Bytes of pages that the system may have given memory. */
static int64_t resident_bytes(const struct kv_cache *cache)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < cache->n_kind; i++)
        bytes += kv_pages_bytes(&cache->kind[i], cache->kind[i].n_resident);
    return bytes;
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

/* Gives the memory of n pages back. Where they begin or end within a page of the system, that one
   stays. */
static void drop_pages(struct pi_device *d, struct kv_class *kind, int32_t begin, int32_t n)
{
    d->drop(d, pi_at_add(kind->pool, (size_t)begin * kind->layout.stride),
            (size_t)n * kind->layout.stride);
    if (kind->pos != NULL)
        pi_mem_drop(kv_page_pos(kind, begin), (size_t)n * (size_t)kind->page_len * sizeof(int32_t));
}

/* The same of a class's free pages, run by run. */
static void give_back(struct pi_device *d, struct kv_class *kind)
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
            drop_pages(d, kind, begin, p - begin);
        begin = p + 1;
    }
}

void kv_cache_give_back(struct kv_cache *cache)
{
    for (int32_t i = 0; i < cache->n_kind; i++)
        give_back(cache->device, &cache->kind[i]);
}

/* Before a page is touched that was not: free ones give their memory up for it where all would hold
   more than the budget, first those of other classes. With a single class they never do. */
static void make_resident(struct kv_cache *cache, struct kv_class *kind, int32_t page)
{
    if (bit_of(kind->resident, page))
        return;
    int64_t most = cache->budget - kv_pages_bytes(kind, 1);
    for (int32_t i = 0; i < cache->n_kind && resident_bytes(cache) > most; i++)
        if (i != kind->number)
            give_back(cache->device, &cache->kind[i]);
    if (resident_bytes(cache) > most)
        give_back(cache->device, kind);
    set_bit(kind->resident, page, true);
    kind->n_resident++;
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
    int64_t begin = kind->low_word * (int64_t)64, first = begin;
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
 * A free page for entry n of a table: the one behind the page of entry n - 1. Where that is taken a
 * new run begins, and what the table cannot fill yet is left to it. What is left is no promise:
 * where no other page is free, anybody takes it.
 */
static int32_t choose_page(const struct kv_class *kind, const struct kv_page_ref *table, int32_t n,
                           int32_t run)
{
    int32_t page = n > 0 ? table[n - 1].page + 1 : kind->n_page, found;
    if (page < kind->n_page && !bit_of(kind->taken, page))
        return page;
    page = find_run(kind, run, &found);
    for (int32_t i = 1; i < found; i++)
        set_bit(kind->left, page + i, true);
    return found > 0 ? page : lowest_free(kind);
}

int32_t kv_page_take(struct kv_cache *cache, const struct kv_class *of,
                     const struct kv_page_ref *table, int32_t n, int32_t run)
{
    struct kv_class *kind = &cache->kind[of->number];
    if (cache->state != NULL)
        kv_state_give_way(cache, kv_pages_bytes(kind, 1));
    if (cache->budget - cache->used < kv_pages_bytes(kind, 1))
        return -1;
    while (kind->taken[kind->low_word] == UINT64_MAX)
        kind->low_word++;
    int32_t page = choose_page(kind, table, n, run);
    assert(page < kind->n_page && kind->n_ref[page] == 0);
    make_resident(cache, kind, page);
    set_bit(kind->taken, page, true);
    set_bit(kind->left, page, false);
    kind->n_ref[page] = 1;
    kind->n_used++;
    cache->used += kv_pages_bytes(kind, 1);
    cache->peak = pi_max(cache->peak, cache->used);
    return page;
}

/* Table entries that point to a page. */
static int32_t count_entries(const struct kv_class *kind, int32_t page)
{
    return kind->n_ref[page] - kind->n_held[page];
}

/* A page of which n entries are left, where one more was, or the other way round, with sign -1 and
   1: what is shared beyond the first. */
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
    note_shared(kind, count_entries(kind, page), 1);
    kind->n_ref[page]++;
}

/* What was left to the lane that ends with the page is left no longer. */
static void make_free(struct kv_cache *cache, struct kv_class *kind, int32_t page)
{
    set_bit(kind->taken, page, false);
    kind->low_word = (int32_t)pi_min(kind->low_word, page / 64);
    for (int32_t p = page + 1; p < kind->n_page && bit_of(kind->left, p); p++)
        set_bit(kind->left, p, false);
    kind->n_used--;
    cache->used -= kv_pages_bytes(kind, 1);
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

int64_t kv_cache_free_bytes(const struct kv_cache *cache)
{
    return kv_free_bytes(cache);
}

/* Bytes of states, and of entries that some lane sees, each page counted once, with the most that any lane sees of
   it. Counting a page clears its mark, so that the marks are all zero between calls. */
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
    for (const struct kv_seq *seq = cache->first; seq != NULL; seq = seq->next) {
        size_t size = 0;
        if (seq->marks != NULL && kv_marks_size(cache, seq->cap, &size))
            out->marks += (int64_t)size;
    }
    out->tables -= out->marks;
}

void kv_cache_reset_peak(struct kv_cache *cache)
{
    cache->peak = cache->used;
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
    out->n_page = out->n_page_used + kv_free_bytes(cache) / out->page_bytes;
}
