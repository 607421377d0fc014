/*
 * block.c - pages that are kept even if no sequence uses them any more. A block has one page of
 * every lane, of the same run of entries, and another sequence can begin with it. It knows no
 * tokens. A block holds or lacks the pages of lanes with windows. A sequence can begin with blocks
 * if the last ones have the entries that its windows see. Where there are states, the last block
 * must also have the state after it. Invariant: the pages of a block are full. The account counts
 * them as used, but for no lane.
 */
#include "kv/block.h"
#include "base/mem.h"
#include "kv/lane.h"
#include "kv/lane_internal.h"
#include "kv/pool_internal.h"
#include "kv/seq_internal.h"

#define NOT_HELD (-1) /* the page of a lane with a window */

int64_t kv_block_head_bytes(const struct kv_geometry *g)
{
    return (int64_t)(sizeof(struct kv_block) +
                     (size_t)g->n_layer * (size_t)g->n_head * sizeof(int32_t));
}

static size_t block_size(const struct kv_cache *cache)
{
    return (size_t)kv_block_head_bytes(&cache->g);
}

static int32_t window_of(const struct kv_cache *cache, int32_t l)
{
    return kv_layer_window(&cache->g, l / cache->g.n_head);
}

static bool is_whole(const struct kv_seq *seq, int32_t l, const struct kv_page_ref *ref)
{
    return ref->n == seq->cache->g.page_len && ref->delta == 0 && ref->n_folded == 0 &&
           !seq->lane[l].unordered;
}

static pith_status check_run(const struct kv_seq *seq, int32_t l, int32_t index, pith_error *err)
{
    const struct kv_lane *lane = &seq->lane[l];
    int32_t layer = l / seq->cache->g.n_head, head = l % seq->cache->g.n_head;
    if (index < 0 || index >= lane->n_live)
        return pi_fail(err, PITH_INVALID,
                       "index: %d is not in 0..%d, the runs of layer %d, head %d", index,
                       lane->n_live - 1, layer, head);
    if (!is_whole(seq, l, &lane->table[index]))
        return pi_fail(err, PITH_INVALID,
                       "index: run %d of layer %d, head %d is no full page as it was written",
                       index, layer, head);
    return PITH_OK;
}

pith_status kv_block_hold(const struct kv_seq *seq, int32_t index, struct kv_block **out,
                          pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        if (window_of(cache, l) == 0)
            PI_TRY(check_run(seq, l, index, err));
    struct kv_block *block = pi_mem_alloc(PI_MEM_TABLE, block_size(cache));
    if (block == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a block of %d pages", kv_lane_count(cache));
    for (int32_t l = 0; l < kv_lane_count(cache); l++) {
        block->page[l] = NOT_HELD;
        if (window_of(cache, l) > 0)
            continue;
        block->page[l] = seq->lane[l].table[index].page;
        kv_page_hold(cache, seq->lane[l].kind, block->page[l]);
    }
    block->state = -1;
    block->next = cache->block;
    if (cache->block != NULL)
        cache->block->prev = block;
    cache->block = block;
    cache->table_bytes += (int64_t)block_size(cache);
    *out = block;
    return PITH_OK;
}

/* The class of lane number l. */
static const struct kv_class *class_of(const struct kv_cache *cache, int32_t l)
{
    return kv_class_of(cache->kind, &cache->g, l / cache->g.n_head);
}

void kv_block_drop(struct kv_cache *cache, struct kv_block *block)
{
    if (block == NULL)
        return;
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        if (block->page[l] != NOT_HELD)
            kv_page_release(cache, class_of(cache, l), block->page[l]);
    if (block->state >= 0)
        kv_page_release(cache, cache->state, block->state);
    if (block->prev != NULL)
        block->prev->next = block->next;
    else
        cache->block = block->next;
    if (block->next != NULL)
        block->next->prev = block->prev;
    cache->table_bytes -= (int64_t)block_size(cache);
    pi_mem_free(block);
}

bool kv_block_is_alone(const struct kv_cache *cache, const struct kv_block *block)
{
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        if (block->page[l] != NOT_HELD && class_of(cache, l)->n_ref[block->page[l]] > 1)
            return false;
    return true;
}

/* The bytes of a page of each lane with a window, or of each without. */
static int64_t page_bytes(const struct kv_cache *cache, bool windows)
{
    int64_t bytes = 0;
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        if ((window_of(cache, l) > 0) == windows)
            bytes += (int64_t)class_of(cache, l)->layout.bytes;
    return bytes;
}

int64_t kv_block_bytes(const struct kv_cache *cache)
{
    return page_bytes(cache, false);
}

int64_t kv_block_held_bytes(const struct kv_cache *cache, const struct kv_block *block)
{
    int64_t state = block->state >= 0 ? kv_bytes_of_state(&cache->g) : 0;
    return kv_block_bytes(cache) + state;
}

bool kv_block_ends(const struct kv_cache *cache, const struct kv_block *block)
{
    return cache->state == NULL || block->state >= 0;
}

void kv_block_hold_state(const struct kv_seq *seq, int32_t n_token, struct kv_block *block)
{
    int32_t page = seq->cache->state != NULL ? kv_state_find(seq, n_token) : -1;
    if (page < 0 || block->state >= 0)
        return;
    block->state = page;
    kv_page_hold(seq->cache, seq->cache->state, page);
}

bool kv_block_state_is_spare(const struct kv_cache *cache, const struct kv_block *block)
{
    for (const struct kv_seq *seq = cache->first; seq != NULL && block->state >= 0; seq = seq->next)
        if (seq->state.page == block->state)
            return false;
    return block->state >= 0;
}

bool kv_block_drop_state(struct kv_cache *cache, struct kv_block *block)
{
    if (block->state < 0)
        return false;
    kv_page_release(cache, cache->state, block->state);
    block->state = -1;
    return true;
}

/* ---- lanes with windows ---- */

int64_t kv_block_window_bytes(const struct kv_cache *cache)
{
    return page_bytes(cache, true);
}

int32_t kv_block_reach(const struct kv_geometry *g)
{
    int32_t most = 0;
    for (int32_t l = 0; g->window != NULL && l < g->n_layer; l++)
        most = (int32_t)pi_max(most, kv_window_reach(g, g->window[l]));
    return most;
}

/* The page of a lane with a window that holds the positions of run `index`; NULL: it is gone, or
   not full yet. */
static const struct kv_page_ref *window_run(const struct kv_seq *seq, int32_t l, int32_t index)
{
    const struct kv_lane *lane = &seq->lane[l];
    int32_t len = seq->cache->g.page_len;
    if (lane->n_live == 0)
        return NULL;
    int32_t i = index - kv_page_pos(lane->kind, lane->table[0].page)[0] / len;
    if (i < 0 || i >= lane->n_live || !is_whole(seq, l, &lane->table[i]))
        return NULL;
    return kv_page_pos(lane->kind, lane->table[i].page)[0] == index * len ? &lane->table[i] : NULL;
}

bool kv_block_has_windows(const struct kv_cache *cache, const struct kv_block *block)
{
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        if (block->page[l] == NOT_HELD)
            return false;
    return true;
}

bool kv_block_hold_windows(const struct kv_seq *seq, int32_t index, struct kv_block *block)
{
    struct kv_cache *cache = seq->cache;
    if (kv_block_has_windows(cache, block))
        return true;
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        if (window_of(cache, l) > 0 && window_run(seq, l, index) == NULL)
            return false;
    for (int32_t l = 0; l < kv_lane_count(cache); l++) {
        if (window_of(cache, l) == 0)
            continue;
        block->page[l] = window_run(seq, l, index)->page;
        kv_page_hold(cache, seq->lane[l].kind, block->page[l]);
    }
    return true;
}

bool kv_block_windows_are_alone(const struct kv_cache *cache, const struct kv_block *block)
{
    bool some = false;
    for (int32_t l = 0; l < kv_lane_count(cache); l++) {
        if (window_of(cache, l) == 0)
            continue;
        if (block->page[l] == NOT_HELD || class_of(cache, l)->n_ref[block->page[l]] > 1)
            return false;
        some = true;
    }
    return some;
}

void kv_block_drop_windows(struct kv_cache *cache, struct kv_block *block)
{
    for (int32_t l = 0; l < kv_lane_count(cache); l++)
        if (window_of(cache, l) > 0 && block->page[l] != NOT_HELD) {
            kv_page_release(cache, class_of(cache, l), block->page[l]);
            block->page[l] = NOT_HELD;
        }
}

/* ---- another sequence's beginning ---- */

/* The first of n blocks that lane number l needs: a lane with a window does not see earlier
   ones. */
static int32_t first_seen(const struct kv_cache *cache, int32_t l, int32_t n)
{
    int32_t window = window_of(cache, l);
    return window == 0 ? 0 : (int32_t)pi_max(0, n - kv_window_reach(&cache->g, window));
}

/* Whether every block has a page of lane number l, and the lane itself holds only full pages of
   earlier positions. */
static bool can_follow(const struct kv_seq *seq, int32_t l, struct kv_block *const *blocks,
                       int32_t n)
{
    const struct kv_lane *lane = &seq->lane[l];
    for (int32_t i = 0; i < n; i++)
        if (blocks[i]->page[l] == NOT_HELD)
            return false;
    if (n == 0)
        return true;
    int32_t len = seq->cache->g.page_len, pos = kv_page_pos(lane->kind, blocks[0]->page[l])[0];
    if (lane->n_page != lane->n_live || lane->unordered)
        return false;
    for (int32_t i = 0; i < lane->n_live; i++) {
        const struct kv_page_ref *ref = &lane->table[i];
        if (ref->n < len || kv_page_pos(lane->kind, ref->page)[ref->n - 1] + ref->delta >= pos)
            return false;
    }
    for (int32_t i = 1; i < n; i++)
        if (kv_page_pos(lane->kind, blocks[i - 1]->page[l])[len - 1] >=
            kv_page_pos(lane->kind, blocks[i]->page[l])[0])
            return false;
    return true;
}

static void append_pages(struct kv_seq *seq, int32_t l, struct kv_block *const *blocks, int32_t n)
{
    struct kv_cache *cache = seq->cache;
    struct kv_lane *lane = &seq->lane[l];
    for (int32_t i = 0; i < n; i++) {
        struct kv_page_ref *ref = &kv_lane_edit(lane)[lane->n_page++];
        *ref = (struct kv_page_ref){.page = blocks[i]->page[l], .n = (uint8_t)cache->g.page_len};
        kv_page_ref_add(cache, lane->kind, ref->page);
        kv_marks_start(seq, lane, lane->len + i * cache->g.page_len, ref, 0, ref->n);
    }
    kv_lane_recount(cache, lane);
}

pith_status kv_seq_append_blocks(struct kv_seq *seq, struct kv_block *const *blocks, int32_t n,
                                 pith_error *err)
{
    const struct kv_cache *cache = seq->cache;
    int32_t n_lane = kv_lane_count(cache), cap = 0;
    if (n == 0)
        return PITH_OK;
    if (!kv_block_ends(cache, blocks[n - 1]) || (cache->state != NULL && seq->state.page >= 0))
        return pi_fail(err, PITH_INVALID,
                       "block: the last one has no state, or the sequence has one");
    for (int32_t l = 0; l < n_lane; l++) {
        int32_t first = first_seen(cache, l, n);
        if (!can_follow(seq, l, blocks + first, n - first))
            return pi_fail(err, PITH_INVALID,
                           "block: layer %d, head %d does not hold full pages of earlier positions",
                           l / cache->g.n_head, l % cache->g.n_head);
        seq->lane[l].mark_wanted = seq->lane[l].n_page + n;
        cap = (int32_t)pi_max(cap, seq->lane[l].n_page + n);
    }
    if (cap > seq->cap)
        cap = (int32_t)pi_max(cap, kv_table_room(seq->cap));
    if (!kv_seq_grow(seq, cap))
        return pi_fail(err, PITH_NOMEM, "no memory for page tables of %d entries in %d lanes", cap,
                       n_lane);
    for (int32_t l = 0; l < n_lane; l++)
        append_pages(seq, l, blocks + first_seen(cache, l, n), n - first_seen(cache, l, n));
    if (cache->state != NULL)
        kv_state_adopt(seq, blocks[n - 1]->state, kv_lane_last(seq, 0, 0) + 1);
    return PITH_OK;
}
