/*
 * swap.c - moves a sequence's memory to host memory and back. Pages are copied as they are, index
 * included; tables, marks and lane heads change hands. Where a device can, pages come and go beside
 * the passes of other sequences. It does not decide which sequence has to wait.
 *
 * Invariants: either the sequence holds everything or the swapped block does. Pages that may still
 * be on their way are marked, and taking one settles (pool.c). The pages of a sequence that comes
 * back are its alone until it settles (kv_seq_land).
 */
#include "kv/swap.h"
#include "base/mem.h"
#include "device/device.h"
#include "kv/lane_internal.h"
#include "kv/marks_internal.h"
#include "kv/page.h"
#include "kv/pool_internal.h"
#include "kv/seq.h"
#include "kv/seq_internal.h"

/* Pages of one device, lane by lane, and its part of the state. */
struct block {
    struct pi_device *device;
    uint8_t *data; /* [size] of its alloc_host, where it has that; owned */
    size_t size;
};

struct kv_swapped {
    struct kv_cache *cache;
    struct kv_lane *lane;      /* [n_layer][n_head] heads; owned */
    struct kv_page_ref *table; /* the sequence's, where the heads' tables lie; owned. A page is 0,
                                  the next of its block, or -1 - i, that of its lane's entry i */
    uint8_t *marks;            /* the sequence's; owned; the heads know their parts */
    size_t marks_size;
    struct pi_at *there; /* likewise; the lanes know their parts */
    int32_t cap;         /* of the table: the cache's account goes on to count it and marks */
    int32_t *pos;        /* positions of the pages of all lanes; owned */
    struct block block[KV_PART_MOST]; /* [parts of the geometry's devices, or 1] */
    struct kv_need need;              /* of pages for all of it */
    struct kv_state state;            /* its page is 0 where there is one */
};

static int32_t count_parts(const struct kv_cache *cache)
{
    return (int32_t)pi_max(cache->g.devices.n, 1);
}

static struct pi_device *device_of(const struct kv_cache *cache, int32_t part)
{
    return cache->g.devices.n > 0 ? cache->g.devices.part[part].device
                                  : kv_geometry_device(&cache->g);
}

/* ---- copies ---- */

enum { PIECES = 256 };

/* Pieces of one device that go together. Neighbours on both sides are one. */
struct mover {
    struct kv_swapped *s;
    bool out;
    uint8_t *at[KV_PART_MOST]; /* in each block, where the next piece goes */
    int32_t *pos;              /* likewise of positions */
    bool shared;               /* another sequence has one of the pages, and may write to it */
    int32_t part, n;
    struct pi_carry piece[PIECES];
};

static void start(struct mover *m, struct kv_swapped *s, bool out)
{
    *m = (struct mover){.s = s, .out = out, .pos = s->pos};
    for (int32_t i = 0; i < KV_PART_MOST; i++)
        m->at[i] = s->block[i].data;
}

static void carry_now(struct pi_device *d, const struct pi_carry *p, bool out)
{
    if (out)
        pi_download_to(d, NULL, p->at, p->size, p->host);
    else
        d->upload(NULL, p->host, p->size, p->at);
}

static void flush(struct mover *m)
{
    struct pi_device *d = m->s->block[m->part].device;
    for (int32_t i = 0; d->carry == NULL && i < m->n; i++)
        carry_now(d, &m->piece[i], m->out);
    if (d->carry != NULL && m->n > 0)
        d->carry(d, m->piece, m->n, m->out);
    m->n = 0;
}

static void move(struct mover *m, int32_t part, struct pi_at at, size_t size)
{
    struct pi_carry *last = m->n > 0 ? &m->piece[m->n - 1] : NULL;
    uint8_t *host = m->at[part];
    m->at[part] += size;
    if (last != NULL && part == m->part && last->at.at + last->size == at.at) {
        last->size += size;
        return;
    }
    if (m->n == PIECES || part != m->part)
        flush(m);
    m->part = part;
    m->piece[m->n++] = (struct pi_carry){at, host, size};
}

/* A page and its positions. */
static void move_page(struct mover *m, const struct kv_class *kind, int32_t page)
{
    int32_t *pos = kv_page_pos(kind, page);
    size_t size = (size_t)kind->page_len * sizeof(*pos);
    if (m->out)
        memcpy(m->pos, pos, size);
    else
        memcpy(pos, m->pos, size);
    m->pos += kind->page_len;
    m->shared = m->shared || kind->n_ref[page] > 1;
    if (kind->device->carry != NULL)
        kv_page_moves(m->s->cache, kind, page);
    move(m, kind->part, pi_at_add(kind->pool, (size_t)page * kind->layout.stride),
         kind->layout.stride);
}

/* The pages of a lane, each once: it may be in several places. */
static void move_lane(struct mover *m, const struct kv_lane *lane)
{
    uint8_t *met = lane->kind->n_entry;
    for (int32_t i = 0; i < lane->n_live; i++) {
        if (!met[lane->table[i].page])
            move_page(m, lane->kind, lane->table[i].page);
        met[lane->table[i].page] = 1;
    }
    for (int32_t i = 0; i < lane->n_live; i++)
        met[lane->table[i].page] = 0;
}

static void move_state(struct mover *m, const struct kv_cache *cache, int32_t page)
{
    for (int32_t i = 0; i <= cache->n_more; i++) {
        const struct kv_class *of = i == 0 ? cache->state : &cache->more[i - 1];
        int32_t part = 0;
        m->shared = m->shared || cache->state->n_ref[page] > 1;
        while (device_of(cache, part) != of->device)
            part++;
        if (of->device->carry != NULL)
            kv_page_moves(m->s->cache, cache->state, page);
        move(m, part, pi_at_add(of->pool, (size_t)page * of->layout.stride), of->layout.stride);
    }
}

/* ---- the block ---- */

static void free_data(struct kv_swapped *s)
{
    for (int32_t i = 0; i < KV_PART_MOST; i++) {
        struct block *b = &s->block[i];
        if (b->data != NULL && b->device->free_host != NULL)
            b->device->free_host(b->device, b->data, b->size);
        else
            pi_mem_free(b->data);
        b->data = NULL;
    }
    pi_mem_free(s->pos);
    pi_mem_free(s->lane);
    pi_mem_free(s);
}

/* Room for the pages of a sequence, whose number and bytes are counted. */
static bool alloc_data(struct kv_swapped *s, const struct kv_seq *seq, const size_t *size,
                       int64_t n_page)
{
    const struct kv_cache *cache = seq->cache;
    size_t page_len = (size_t)cache->g.page_len;
    bool ok = true;
    s->cache = seq->cache;
    s->lane = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)kv_lane_count(cache), sizeof(*s->lane));
    s->pos = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_page, page_len * sizeof(*s->pos));
    for (int32_t i = 0; i < count_parts(cache); i++) {
        struct block *b = &s->block[i];
        *b = (struct block){.device = device_of(cache, i), .size = size[i]};
        if (b->size > 0)
            b->data = b->device->alloc_host != NULL ? b->device->alloc_host(b->device, b->size)
                                                    : pi_mem_alloc(PI_MEM_OTHER, b->size);
        ok = ok && (b->size == 0 || b->data != NULL);
    }
    return ok && s->lane != NULL && s->pos != NULL;
}

/* ---- out ---- */

/* Bytes of the state, and of the pages of all lanes, each once: a page belongs to one lane of the
   sequence. size [parts]: without positions. */
static struct kv_need count_bytes(const struct kv_seq *seq, size_t *size, int64_t *n_page)
{
    struct kv_need need = {0};
    *n_page = 0;
    if (seq->state.page >= 0)
        need = kv_need_of_state(&seq->cache->g);
    for (int32_t i = 0; i < KV_PART_MOST; i++)
        size[i] = (size_t)need.part[i];
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++) {
        const struct kv_lane *lane = &seq->lane[l];
        uint8_t *met = lane->kind->n_entry;
        for (int32_t i = 0; i < lane->n_live; i++) {
            if (met[lane->table[i].page])
                continue;
            kv_need_add(&need, lane->kind->part, kv_pages_bytes(lane->kind, 1));
            size[lane->kind->part] += lane->kind->layout.stride;
            ++*n_page;
            met[lane->table[i].page] = 1;
        }
        for (int32_t i = 0; i < lane->n_live; i++)
            met[lane->table[i].page] = 0;
    }
    return need;
}

/* Gives a lane's pages back. Of a page that occurs twice the later table entries name the first. */
static void take_lane(struct kv_cache *cache, struct kv_lane *lane)
{
    const struct kv_class *kind = lane->kind;
    struct kv_page_ref *table = kv_lane_edit(lane);
    for (int32_t i = 0, first; i < lane->n_live; i++) {
        int32_t page = lane->table[i].page;
        if (!kind->n_entry[page]) {
            kind->n_entry[page] = 1;
            continue;
        }
        for (first = 0; lane->table[first].page != page;)
            first++;
        kv_page_drop(cache, kind, page);
        table[i].page = -1 - first;
    }
    for (int32_t i = 0; i < lane->n_live; i++)
        if (lane->table[i].page >= 0) {
            kind->n_entry[lane->table[i].page] = 0;
            kv_page_drop(cache, kind, lane->table[i].page);
            table[i].page = 0;
        }
}

/* Likewise the sequence's own state. Kept states can be computed again and are not taken. */
static struct kv_state take_state(struct kv_seq *seq, struct mover *m)
{
    struct kv_state state = seq->state;
    if (state.page >= 0) {
        move_state(m, seq->cache, state.page);
        state.page = 0;
    }
    kv_state_drop(seq);
    return state;
}

pith_status kv_seq_swap_out(struct kv_seq *seq, struct kv_swapped **out, pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    size_t size[KV_PART_MOST];
    int64_t n_page;
    struct mover m;
    kv_seq_land(seq, true);
    struct kv_swapped *s = pi_mem_alloc(PI_MEM_OTHER, sizeof(*s));
    struct kv_need need = count_bytes(seq, size, &n_page);
    if (s == NULL || !alloc_data(s, seq, size, n_page)) {
        if (s != NULL)
            free_data(s);
        return pi_fail(err, PITH_NOMEM, "no host memory for a sequence's pages of %lld bytes",
                       (long long)need.all);
    }
    s->need = need;
    start(&m, s, true);
    kv_seq_trim(seq);
    for (int32_t l = 0; l < kv_lane_count(cache); l++) {
        move_lane(&m, &seq->lane[l]);
        take_lane(cache, &seq->lane[l]);
        s->lane[l] = seq->lane[l];
        seq->lane[l] = (struct kv_lane){.kind = s->lane[l].kind, .window = s->lane[l].window};
    }
    s->state = take_state(seq, &m);
    flush(&m);
    if (m.shared)
        kv_cache_settle(cache);
    s->table = seq->table;
    s->marks = seq->marks;
    s->marks_size = seq->marks_size;
    s->there = seq->there;
    s->cap = seq->cap;
    seq->table = NULL;
    seq->marks = NULL;
    seq->marks_size = 0;
    seq->there = NULL;
    seq->cap = 0;
    cache->aside_bytes += kv_swapped_host_bytes(s);
    *out = s;
    return PITH_OK;
}

/* ---- in ---- */

static void free_rest(struct kv_swapped *s)
{
    s->cache->aside_bytes -= kv_swapped_host_bytes(s);
    free_data(s);
}

/* Gives a lane's table pages again. */
static void give_lane(struct kv_cache *cache, struct kv_lane *lane)
{
    const struct kv_class *kind = lane->kind;
    struct kv_page_ref *table = kv_lane_edit(lane);
    for (int32_t i = 0; i < lane->n_live; i++) {
        struct kv_page_ref *ref = &table[i];
        if (ref->page < 0) {
            ref->page = lane->table[-1 - ref->page].page;
            kv_page_ref_add(cache, kind, ref->page);
            continue;
        }
        ref->page = kv_page_take(cache, kind, lane->table, i,
                                 (int32_t)pi_max(lane->most, lane->n_live) - i);
        assert(ref->page >= 0);
    }
}

/* Taking a page may settle, so that all are taken before the first is marked. */
static void give_pages(struct kv_seq *seq, struct kv_swapped *s)
{
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++) {
        assert(seq->lane[l].n_page == 0);
        seq->lane[l] = s->lane[l];
        give_lane(seq->cache, &seq->lane[l]);
    }
    if (s->state.page < 0)
        return;
    kv_state_reserve(seq);
    seq->state.n_token = s->state.n_token;
}

pith_status kv_seq_swap_in(struct kv_seq *seq, struct kv_swapped *s, pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    struct mover m;
    PI_TRY(kv_cache_secure(cache, &s->need, "a sequence that comes back takes pages", err));
    assert(cache == s->cache && seq->cap == 0 && seq->arriving == NULL);
    give_pages(seq, s);
    start(&m, s, false);
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        move_lane(&m, &seq->lane[l]);
    if (seq->state.page >= 0)
        move_state(&m, cache, seq->state.page);
    flush(&m);
    seq->table = s->table;
    seq->marks = s->marks;
    seq->marks_size = s->marks_size;
    seq->there = s->there;
    seq->cap = s->cap;
    seq->on_the_way = cache->moving;
    if (cache->moving)
        seq->arriving = s;
    else
        free_rest(s);
    return PITH_OK;
}

void kv_seq_land(struct kv_seq *seq, bool whole)
{
    struct kv_swapped *s = seq->arriving;
    if (s == NULL)
        return;
    bool first = seq->on_the_way;
    if (first)
        kv_cache_settle(seq->cache);
    seq->on_the_way = false;
    if (first && !whole)
        return; /* a pass later the host's memory is free without a wait */
    seq->arriving = NULL;
    free_rest(s);
}

void kv_swapped_free(struct kv_swapped *s)
{
    if (s == NULL)
        return;
    s->cache->table_bytes -= kv_room_bytes(s->cache, s->cap) + (int64_t)s->marks_size;
    pi_mem_free(s->table);
    pi_mem_free(s->marks);
    kv_marks_release(s->cache, s->there);
    free_rest(s);
}

static int64_t host_bytes(const struct kv_cache *cache, int64_t pages)
{
    return (int64_t)sizeof(struct kv_swapped) +
           kv_lane_count(cache) * (int64_t)sizeof(struct kv_lane) + pages;
}

int64_t kv_seq_swap_bytes(const struct kv_seq *seq)
{
    return host_bytes(seq->cache, kv_seq_held_bytes(seq));
}

int64_t kv_swapped_host_bytes(const struct kv_swapped *s)
{
    return host_bytes(s->cache, s->need.all);
}

int64_t kv_swapped_pool_bytes(const struct kv_swapped *s)
{
    return s->need.all;
}
