/*
 * gather.c - entries of a lane that somebody chose, put together in tiles: pages of GATHER_LEN
 * entries in scratch, as stored, that the kernels of attention read like any other page. It knows
 * neither queries nor who chose. Invariant: a tile holds entries of one delta, and in a lane that
 * was not overwritten their positions ascend.
 */
#include "cpu/kernels.h"
#include "kv/store.h"

/* The geometry of a tile. */
static struct kv_geometry tile_of(const struct kv_geometry *g)
{
    struct kv_geometry tile = *g;
    tile.page_len = KV_GATHER_LEN;
    tile.index = KV_INDEX_ROWS;
    tile.index_dim = 0;
    return tile;
}

size_t kv_gather_bytes(const struct kv_geometry *g)
{
    struct kv_geometry tile = tile_of(g);
    return kv_page_bytes(&tile);
}

static void add_part(struct kv_gather *g, size_t from, size_t to, int32_t size)
{
    if (size > 0)
        g->part[g->n_part++] = (struct kv_gather_part){from, to, (size_t)size};
}

static void add_parts(struct kv_gather *g)
{
    const struct kv_geometry *shape = &g->cache->g;
    const struct kv_page_layout *a = &g->cache->layout, *b = &g->layout;
    const struct kv_codec *k = &kv_codecs[shape->type_k], *v = &kv_codecs[shape->type_v];
    add_part(g, a->k, b->k, shape->dim_k * k->value_bytes);
    add_part(g, a->k_scale, b->k_scale, shape->dim_k / k->block * k->scale_bytes);
    add_part(g, a->v, b->v, shape->dim_v * v->value_bytes);
    add_part(g, a->v_scale, b->v_scale, shape->dim_v / v->block * v->scale_bytes);
    add_part(g, a->pos, b->pos, (int32_t)sizeof(int32_t));
}

void kv_gather_start(struct kv_gather *g, const struct kv_cache *cache, const struct kv_lane *lane,
                     const int32_t *slots, int32_t n, uint8_t *tile)
{
    struct kv_geometry geometry = tile_of(&cache->g);
    assert(!cache->layout.side_by_side);
    *g = (struct kv_gather){.cache = cache, .lane = lane, .slots = slots, .n = n, .tile = tile};
    kv_page_layout_make(&geometry, &g->layout);
    add_parts(g);
    memset(tile, 0, g->layout.bytes); /* places that hold no entry are finite */
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

bool kv_gather_next(struct kv_gather *g, int32_t *n, int32_t *delta)
{
    struct kv_cursor *c = &g->here;
    int32_t last = -1;
    *n = 0;
    while (c->at < g->n && *n < KV_GATHER_LEN) {
        int32_t entry = find_next(g, c);
        const struct kv_page_ref *ref = &g->lane->table[c->index];
        const int32_t *pos = kv_page_pos(g->cache, ref->page);
        bool falls = !g->lane->unordered && pos[entry] <= last;
        if (*n > 0 && (ref->delta != *delta || falls))
            break;
        int32_t run = count_run(g, c, KV_GATHER_LEN - *n);
        const uint8_t *page = kv_page_at(g->cache, ref->page);
        for (const struct kv_gather_part *p = g->part; p < g->part + g->n_part; p++)
            memcpy(g->tile + p->to + (size_t)*n * p->size, page + p->from + (size_t)entry * p->size,
                   (size_t)run * p->size);
        *delta = ref->delta;
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
        const uint8_t *page = kv_page_at(g->cache, g->lane->table[c->index].page);
        for (const struct kv_gather_part *p = g->part; p < g->part + g->n_part; p++) {
            size_t from = p->from + (size_t)entry * p->size, first = from / 64 * 64;
            pi_kernels()->attend.prefetch(page + first, from + (size_t)run * p->size - first);
        }
        c->at += run;
    }
}
