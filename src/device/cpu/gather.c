/*
 * gather.c - chosen entries of a lane, put together in tiles. A tile is a page of GATHER_LEN
 * entries in scratch, as stored, which the kernels of attention read like any other page. It must
 * not know the queries, nor the choice. Invariant: a tile holds entries with one delta that count
 * equally often. In a lane that was not overwritten their positions ascend.
 */
#include "cpu/kernels.h"
#include "device/cpu/pages.h"

/* A tile as a page of its own geometry. */
static struct kv_class tile_of(const struct kv_geometry *g, enum kv_type type_k,
                               enum kv_type type_v)
{
    struct kv_geometry shape = *g;
    struct kv_class tile;
    shape.page_len = KV_GATHER_LEN;
    shape.index = KV_INDEX_ROWS;
    shape.index_dim = 0;
    kv_class_make(&shape, type_k, type_v, &tile);
    return tile;
}

size_t kv_gather_bytes(const struct kv_geometry *g)
{
    size_t most = 0;
    for (int32_t l = 0; l < g->n_layer; l++) {
        struct kv_class tile = tile_of(g, kv_layer_type_k(g, l), kv_layer_type_v(g, l));
        most = (size_t)pi_max((int64_t)most, (int64_t)tile.layout.stride);
    }
    return most;
}

static void add_part(struct kv_gather *g, size_t from, size_t to, size_t size)
{
    if (size > 0)
        g->part[g->n_part++] = (struct kv_gather_part){from, to, size};
}

static void add_parts(struct kv_gather *g, const struct kv_class *tile)
{
    const struct kv_class *kind = g->lane->kind;
    for (int32_t i = 0; i < KV_N_PLANE; i++)
        add_part(g, kind->k.plane[i].at, tile->k.plane[i].at, kind->k.plane[i].row);
    for (int32_t i = 0; i < KV_N_PLANE; i++)
        add_part(g, kind->v.plane[i].at, tile->v.plane[i].at, kind->v.plane[i].row);
}

void kv_gather_start(struct kv_gather *g, const struct kv_cache *cache, const struct kv_lane *lane,
                     const int32_t *slots, int32_t n, uint8_t *tile)
{
    struct kv_class form = tile_of(&cache->g, lane->kind->type_k, lane->kind->type_v);
    assert(!lane->kind->layout.side_by_side);
    *g = (struct kv_gather){.cache = cache, .lane = lane, .slots = slots, .n = n, .tile = tile};
    g->layout = form.layout;
    add_parts(g, &form);
    memset(tile, 0, g->layout.stride); /* places that hold no entry are finite */
}

/* The entry of the next slot, in the page that the cursor then stands at. */
static int32_t find_next(const struct kv_gather *g, struct kv_cursor *c)
{
    int32_t slot = g->slots[c->at], len = g->cache->g.page_len;
    assert(slot >= 0 && slot < g->lane->len && (c->at == 0 || slot > g->slots[c->at - 1]));
    if (!g->lane->ragged) {
        c->index = slot / len;
        c->begin = c->index * len;
    }
    while (slot >= c->begin + g->lane->table[c->index].n)
        c->begin += g->lane->table[c->index++].n;
    return slot - c->begin;
}

/* How many of the following slots, at most n, lie next to each other in the page. */
static int32_t count_run(const struct kv_gather *g, const struct kv_cursor *c, int32_t n)
{
    const int32_t *slots = g->slots + c->at;
    int32_t run = 1, end = c->begin + g->lane->table[c->index].n;
    n = (int32_t)pi_min(n, g->n - c->at);
    while (run < n && slots[run] == slots[0] + run && slots[run] < end)
        run++;
    return run;
}

bool kv_gather_next(struct kv_gather *g, int32_t *n, int32_t *delta, int32_t *n_folded)
{
    struct kv_cursor *c = &g->here;
    int32_t last = -1;
    *n = 0;
    while (c->at < g->n && *n < KV_GATHER_LEN) {
        int32_t entry = find_next(g, c);
        const struct kv_page_ref *ref = &g->lane->table[c->index];
        const int32_t *pos = kv_page_pos(g->lane->kind, ref->page);
        bool falls = !g->lane->unordered && pos[entry] <= last;
        if (*n > 0 && (ref->delta != *delta || ref->n_folded != *n_folded || falls))
            break;
        int32_t run = count_run(g, c, KV_GATHER_LEN - *n);
        const uint8_t *page = kv_page_at(g->lane->kind, ref->page);
        for (const struct kv_gather_part *p = g->part; p < g->part + g->n_part; p++)
            memcpy(g->tile + p->to + (size_t)*n * p->size, page + p->from + (size_t)entry * p->size,
                   (size_t)run * p->size);
        memcpy(g->pos + *n, pos + entry, (size_t)run * sizeof(*pos));
        *delta = ref->delta;
        *n_folded = ref->n_folded;
        last = pos[entry + run - 1];
        *n += run;
        c->at += run;
    }
    return *n > 0;
}

void kv_gather_ask(struct kv_gather *g, int32_t end)
{
    struct kv_cursor *c = &g->asked;
    end = (int32_t)pi_min(end, g->n);
    if (c->at < g->here.at)
        *c = g->here;
    while (c->at < end) {
        int32_t entry = find_next(g, c);
        int32_t run = count_run(g, c, end - c->at);
        int32_t number = g->lane->table[c->index].page;
        const uint8_t *page = kv_page_at(g->lane->kind, number);
        pi_kernels()->attend.prefetch(kv_page_pos(g->lane->kind, number) + entry,
                                      (size_t)run * sizeof(int32_t));
        for (const struct kv_gather_part *p = g->part; p < g->part + g->n_part; p++) {
            size_t from = p->from + (size_t)entry * p->size, first = from / 64 * 64;
            pi_kernels()->attend.prefetch(page + first, from + (size_t)run * p->size - first);
        }
        c->at += run;
    }
}
