/*
 * share.c - pages that stand in more than one place of a lane, or of several: ending a page early,
 * pointing a table entry at another page, letting one page count for two; the same of stretches
 * that begin and end within pages are span.c's. It decides nothing about what is alike. Invariant:
 * only tables, counts and marks change, no byte of a page.
 */
#include "kv/store.h"

void kv_seq_close(struct kv_seq *seq)
{
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++) {
        struct kv_lane *lane = &seq->lane[l];
        if (lane->n_live > 0 && lane->table[lane->n_live - 1].n < seq->cache->g.page_len)
            lane->table[lane->n_live - 1].closed = true;
    }
}

/* Whether there is such a table entry with entries. */
static pith_status check_index(const struct kv_lane *lane, int32_t i, const char *field,
                               pith_error *err)
{
    if (i < 0 || i >= lane->n_live)
        return pi_fail(err, PITH_INVALID, "%s: %d is not in 0..%d", field, i, lane->n_live - 1);
    return PITH_OK;
}

/* Whether the next entry goes elsewhere. */
static pith_status check_ended(const struct kv_cache *cache, const struct kv_lane *lane, int32_t i,
                               pith_error *err)
{
    PI_TRY(check_index(lane, i, "page_index", err));
    if (i == lane->n_live - 1 && kv_lane_tail_room(cache, lane) > 0)
        return pi_fail(err, PITH_INVALID,
                       "page_index: page %d holds %d of %d entries and was not closed", i,
                       lane->table[i].n, cache->g.page_len);
    return PITH_OK;
}

static int32_t first_slot(const struct kv_lane *lane, int32_t i)
{
    int32_t slot = 0;
    for (int32_t p = 0; p < i; p++)
        slot += lane->table[p].n;
    return slot;
}

/* ---- another page ---- */

pith_status kv_check_delta(const struct kv_class *kind, const struct kv_page_ref *ref, int32_t n,
                           int32_t delta, pith_error *err)
{
    const int32_t *pos = kv_page_pos(kind, ref->page);
    int64_t whole = (int64_t)ref->delta + delta, low = pos[0], high = pos[0];
    for (int32_t i = 1; i < n; i++) {
        low = pi_min(low, pos[i]);
        high = pi_max(high, pos[i]);
    }
    if (low + whole < 0 || high + whole > INT32_MAX || whole < INT32_MIN || whole > INT32_MAX)
        return pi_fail(err, PITH_INVALID, "delta: %d moves positions %lld..%lld out of range",
                       delta, (long long)low + ref->delta, (long long)high + ref->delta);
    return PITH_OK;
}

static pith_status check_share(const struct kv_cache *cache, const struct kv_lane *lane,
                               int32_t page_index, const struct kv_lane *from, int32_t from_index,
                               pith_error *err)
{
    PI_TRY(check_ended(cache, lane, page_index, err));
    PI_TRY(check_index(from, from_index, "from_index", err));
    const struct kv_page_ref *to = &lane->table[page_index], *ref = &from->table[from_index];
    if (ref->n < to->n)
        return pi_fail(err, PITH_INVALID, "from_index: page %d holds %d entries, not %d",
                       from_index, ref->n, to->n);
    if (to->more > 0 || ref->more > 0)
        return pi_fail(err, PITH_INVALID, "%s: page %d counts %d times",
                       to->more > 0 ? "page_index" : "from_index",
                       to->more > 0 ? page_index : from_index,
                       1 + (to->more > 0 ? to->more : ref->more));
    return PITH_OK;
}

pith_status kv_seq_share_page(struct kv_seq *seq, int32_t layer, int32_t head, int32_t page_index,
                              const struct kv_seq *from_seq, int32_t from_index, int32_t delta,
                              pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    if (from_seq->cache != cache)
        return pi_fail(err, PITH_INVALID, "from_seq belongs to another cache");
    const struct kv_lane *from = kv_lane_at(from_seq, layer, head);
    PI_TRY(check_share(cache, lane, page_index, from, from_index, err));
    struct kv_page_ref *to = &lane->table[page_index], ref = from->table[from_index];
    PI_TRY(kv_check_delta(lane->kind, &ref, to->n, delta, err));
    int32_t slot = first_slot(lane, page_index), from_slot = first_slot(from, from_index);
    for (int32_t i = 0; i < cache->n_mark; i++)
        memmove(kv_lane_marks(seq, layer, head, i) + slot,
                kv_lane_marks(from_seq, layer, head, i) + from_slot, to->n * sizeof(float));
    ref.delta += delta;
    ref.n = to->n;
    ref.closed = ref.n < cache->g.page_len && (to->closed || page_index == lane->n_live - 1);
    kv_page_ref_add(cache, lane->kind, ref.page);
    kv_page_drop(cache, lane->kind, to->page);
    *to = ref;
    if (lane->aim > slot && lane->aim <= slot + ref.n)
        lane->aim = 0;
    lane->unordered = lane->unordered || from->unordered;
    if (lane->unordered)
        kv_lane_find_order(lane);
    return PITH_OK;
}

/* ---- counting for another page ---- */

static pith_status check_fold(const struct kv_cache *cache, const struct kv_lane *lane,
                              int32_t page_index, int32_t into_index, pith_error *err)
{
    PI_TRY(check_ended(cache, lane, page_index, err));
    if (into_index < 0 || into_index >= page_index)
        return pi_fail(err, PITH_INVALID, "into_index: %d is not in 0..%d", into_index,
                       page_index - 1);
    const struct kv_page_ref *page = &lane->table[page_index], *into = &lane->table[into_index];
    if (page->n != into->n)
        return pi_fail(err, PITH_INVALID, "into_index: page %d holds %d entries, not %d",
                       into_index, into->n, page->n);
    if (page->more + into->more + 2 > KV_COUNT_MAX)
        return pi_fail(err, PITH_INVALID,
                       "into_index: page %d would count %d times, more than the %d that are told",
                       into_index, page->more + into->more + 2, KV_COUNT_MAX);
    return PITH_OK;
}

pith_status kv_seq_fold_page(struct kv_seq *seq, int32_t layer, int32_t head, int32_t page_index,
                             int32_t into_index, pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    PI_TRY(check_fold(cache, lane, page_index, into_index, err));
    const struct kv_page_ref gone = lane->table[page_index];
    struct kv_page_ref *into = &lane->table[into_index];
    int32_t slot = first_slot(lane, page_index), into_slot = first_slot(lane, into_index);
    kv_marks_move(seq, lane, slot, slot + gone.n, lane->len - slot - gone.n);
    into->more = (uint16_t)(into->more + gone.more + 1);
    kv_page_drop(cache, lane->kind, gone.page);
    lane->n_page--;
    memmove(&lane->table[page_index], &lane->table[page_index + 1],
            (size_t)(lane->n_page - page_index) * sizeof(*lane->table));
    if (lane->aim > slot + gone.n)
        lane->aim -= gone.n;
    else if (lane->aim > slot || (lane->aim > into_slot && lane->aim <= into_slot + into->n))
        lane->aim = 0;
    kv_lane_recount(cache, lane);
    return PITH_OK;
}
