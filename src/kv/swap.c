/*
 * swap.c - moves a sequence's memory to host memory and back. Pages are copied as they are, index
 * included; tables, marks and lane heads change hands. It does not decide which sequence has to
 * wait. Invariant: either the sequence holds everything or the swapped block does.
 */
#include "kv/swap.h"
#include "base/mem.h"
#include "kv/marks_internal.h"
#include "kv/page.h"
#include "kv/pool_internal.h"
#include "kv/seq.h"
#include "kv/seq_internal.h"

struct kv_swapped {
    struct kv_cache *cache;
    struct kv_lane *lane;      /* [n_layer][n_head] heads; owned */
    struct kv_page_ref *table; /* the sequence's, where the heads' tables lie; owned. A page is 0,
                                  the next of data, or -1 - i, that of its lane's entry i */
    uint8_t *marks;            /* the sequence's; owned */
    struct pi_at *there;       /* likewise; the lanes know their parts */
    int32_t cap;               /* of table and marks, which the cache's account goes on to count */
    uint8_t *data;             /* [data_size] pages, lane by lane, and the state; owned */
    int64_t data_size;
    struct kv_state state; /* its page is 0 where there is one */
};

/* ---- out ---- */

/* Bytes of the state, and of the pages of all lanes, each once: a page belongs to one lane of the
   sequence. */
static int64_t count_bytes(const struct kv_seq *seq)
{
    int64_t bytes = seq->state.page >= 0 ? kv_pages_bytes(seq->cache->state, 1) : 0;
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++) {
        const struct kv_lane *lane = &seq->lane[l];
        uint8_t *met = lane->kind->n_entry;
        for (int32_t i = 0; i < lane->n_live; i++) {
            bytes += met[lane->table[i].page] ? 0 : kv_pages_bytes(lane->kind, 1);
            met[lane->table[i].page] = 1;
        }
        for (int32_t i = 0; i < lane->n_live; i++)
            met[lane->table[i].page] = 0;
    }
    return bytes;
}

/* Copies a lane's pages to `to` and gives them back. A page that occurs twice is copied once, and
   its later table entries name the first one. Returns the end of the written bytes. */
static uint8_t *take_lane(struct kv_cache *cache, struct kv_lane *lane, uint8_t *to)
{
    const struct kv_class *kind = lane->kind;
    for (int32_t i = 0, first; i < lane->n_live; i++) {
        int32_t page = lane->table[i].page;
        if (!kind->n_entry[page]) {
            kind->n_entry[page] = 1;
            kv_page_export(cache, kind, page, to);
            to += kind->layout.bytes;
            continue;
        }
        for (first = 0; lane->table[first].page != page;)
            first++;
        kv_page_drop(cache, kind, page);
        lane->table[i].page = -1 - first;
    }
    for (int32_t i = 0; i < lane->n_live; i++)
        if (lane->table[i].page >= 0) {
            kind->n_entry[lane->table[i].page] = 0;
            kv_page_drop(cache, kind, lane->table[i].page);
            lane->table[i].page = 0;
        }
    return to;
}

/* Likewise the sequence's own state. Kept states can be computed again and are not taken. */
static struct kv_state take_state(struct kv_seq *seq, uint8_t *to)
{
    struct kv_state state = seq->state;
    if (kv_state_save(seq, to))
        state.page = 0;
    kv_state_drop(seq);
    return state;
}

pith_status kv_seq_swap_out(struct kv_seq *seq, struct kv_swapped **out, pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    size_t n_lane = (size_t)kv_lane_count(cache);
    struct kv_swapped *s = pi_mem_alloc(PI_MEM_OTHER, sizeof(*s));
    int64_t size = count_bytes(seq);
    struct kv_lane *lane = pi_mem_alloc_n(PI_MEM_OTHER, n_lane, sizeof(*lane));
    uint8_t *data = pi_mem_alloc(PI_MEM_OTHER, (size_t)size), *at = data;
    if (s == NULL || lane == NULL || data == NULL) {
        pi_mem_free(s);
        pi_mem_free(lane);
        pi_mem_free(data);
        return pi_fail(err, PITH_NOMEM, "no host memory for a sequence's pages of %lld bytes",
                       (long long)size);
    }
    kv_seq_trim(seq);
    for (size_t l = 0; l < n_lane; l++) {
        at = take_lane(cache, &seq->lane[l], at);
        lane[l] = seq->lane[l];
        seq->lane[l] = (struct kv_lane){.kind = lane[l].kind, .window = lane[l].window};
    }
    struct kv_state state = take_state(seq, at);
    *s = (struct kv_swapped){cache,    lane, seq->table, seq->marks, seq->there,
                             seq->cap, data, size,       state};
    seq->table = NULL;
    seq->marks = NULL;
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
    pi_mem_free(s->lane);
    pi_mem_free(s->data);
    pi_mem_free(s);
}

/* Gives a lane's table pages again, with the contents at `from`; returns the end of the bytes that
   were read. */
static const uint8_t *give_lane(struct kv_cache *cache, struct kv_lane *lane, const uint8_t *from)
{
    const struct kv_class *kind = lane->kind;
    for (int32_t i = 0; i < lane->n_live; i++) {
        struct kv_page_ref *ref = &lane->table[i];
        if (ref->page < 0) {
            ref->page = lane->table[-1 - ref->page].page;
            kv_page_ref_add(cache, kind, ref->page);
            continue;
        }
        ref->page = kv_page_take(cache, kind, lane->table, i,
                                 (int32_t)pi_max(lane->most, lane->n_live) - i);
        assert(ref->page >= 0);
        kv_page_import(cache, kind, ref->page, from);
        from += kind->layout.bytes;
    }
    return from;
}

static void give_state(struct kv_seq *seq, struct kv_state state, const uint8_t *from)
{
    if (state.page >= 0)
        kv_state_load(seq, from, state.n_token);
}

pith_status kv_seq_swap_in(struct kv_seq *seq, struct kv_swapped *s, pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    const uint8_t *at = s->data;
    if (s->data_size > kv_free_bytes(cache))
        return pi_fail(err, PITH_KV_FULL,
                       "a sequence that comes back takes pages of %lld bytes, and %lld of %lld are "
                       "free",
                       (long long)s->data_size, (long long)kv_free_bytes(cache),
                       (long long)cache->budget);
    PI_TRY(kv_cache_secure(cache, s->data_size, err));
    assert(cache == s->cache && seq->cap == 0);
    for (int32_t l = 0; l < kv_lane_count(cache); l++) {
        assert(seq->lane[l].n_page == 0);
        seq->lane[l] = s->lane[l];
        at = give_lane(cache, &seq->lane[l], at);
    }
    give_state(seq, s->state, at);
    seq->table = s->table;
    seq->marks = s->marks;
    seq->there = s->there;
    seq->cap = s->cap;
    free_rest(s);
    return PITH_OK;
}

void kv_swapped_free(struct kv_swapped *s)
{
    if (s == NULL)
        return;
    s->cache->table_bytes -= kv_room_bytes(s->cache, s->cap);
    pi_mem_free(s->table);
    pi_mem_free(s->marks);
    kv_marks_release(s->cache, s->there);
    free_rest(s);
}

int64_t kv_swapped_host_bytes(const struct kv_swapped *s)
{
    return (int64_t)sizeof(*s) + kv_lane_count(s->cache) * (int64_t)sizeof(*s->lane) + s->data_size;
}

int64_t kv_swapped_pool_bytes(const struct kv_swapped *s)
{
    return s->data_size;
}
