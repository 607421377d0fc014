/*
 * span.c - replaces stretches of a lane. The entries of a stretch are given back, and references to
 * other entries, or counts, take their place. The remaining entries of the stretch's first page
 * stay in place, and the rest of its last page moves to the front. Invariant: a lane holds no more
 * pages than before, apart from references. If a replacement fails, nothing has changed.
 */
#include "kv/span.h"
#include "kv/lane_internal.h"
#include "kv/page.h"
#include "kv/pool_internal.h"
#include "kv/seq_internal.h"

/* The part of a lane's pages to give back. */
struct span {
    int32_t first; /* table entry of the first slot, */
    int32_t head;  /* and entries before it there */
    int32_t last;  /* table entry after the stretch; n_live: none, */
    int32_t gone;  /* and entries of the stretch there */
    int32_t begin; /* table entries begin .. last - 1 go */
};

pith_status kv_seq_reserve_runs(struct kv_seq *seq, int32_t n, pith_error *err)
{
    int64_t cap = 0;
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++)
        cap = pi_max(cap, (int64_t)seq->lane[l].n_page + n);
    if (cap <= seq->cap)
        return PITH_OK;
    cap = pi_min(pi_max(cap, (int64_t)seq->cap + seq->cap / 2), INT32_MAX);
    if (!kv_seq_grow(seq, (int32_t)cap))
        return pi_fail(err, PITH_NOMEM, "no memory for page tables of %lld entries in %d lanes",
                       (long long)cap, kv_lane_count(seq->cache));
    return PITH_OK;
}

/* ---- checks of arguments ---- */

static pith_status check_count_once(const struct kv_lane *lane, int32_t i, const char *field,
                                    pith_error *err)
{
    if (lane->table[i].n_folded > 0)
        return pi_fail(err, PITH_INVALID, "%s: page %d counts %d times", field, i,
                       1 + lane->table[i].n_folded);
    return PITH_OK;
}

static pith_status find_span(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot,
                             int32_t n, struct span *out, pith_error *err)
{
    const struct kv_cache *cache = seq->cache;
    if (slot < 0 || n < 1 || n > lane->len - slot)
        return pi_fail(err, PITH_INVALID, "slot: %d entries from %d on are not in 0..%d", n, slot,
                       lane->len - 1);
    *out = (struct span){.last = lane->n_live};
    out->first = kv_lane_find(cache, lane, slot, &out->head);
    if (slot + n < lane->len)
        out->last = kv_lane_find(cache, lane, slot + n, &out->gone);
    out->begin = out->first + (out->head > 0);
    if (out->first == out->last && out->head > 0)
        return pi_fail(err, PITH_INVALID,
                       "slot: %d entries from %d on lie in the middle of page %d", n, slot,
                       out->first);
    for (int32_t i = out->first; i < out->last + (out->gone > 0); i++)
        PI_TRY(check_count_once(lane, i, "slot", err));
    if (out->gone > 0 && lane->kind->n_ref[lane->table[out->last].page] > 1 &&
        !kv_pages_fit(cache, lane->kind, 1))
        return pi_fail(err, PITH_KV_FULL, "no page for the entries from slot %d of %d on", slot + n,
                       lane->len);
    return PITH_OK;
}

/* The table entry that from_slot begins; *n_run receives how many the n entries lie in. */
static pith_status find_from(const struct kv_cache *cache, const struct kv_lane *from,
                             int32_t from_slot, int32_t n, int32_t *index, int32_t *n_run,
                             pith_error *err)
{
    int32_t entry;
    if (from_slot < 0 || n > from->len - from_slot)
        return pi_fail(err, PITH_INVALID, "from_slot: %d entries from %d on are not in 0..%d", n,
                       from_slot, from->len - 1);
    *index = kv_lane_find(cache, from, from_slot, &entry);
    if (entry > 0)
        return pi_fail(err, PITH_INVALID, "from_slot: %d does not begin a page", from_slot);
    *n_run = 0;
    for (int32_t left = n; left > 0; left -= from->table[*index + (*n_run)++].n)
        ;
    return PITH_OK;
}

/* Whether the first n positions of a page stay in range when they are read `delta` later than they
   are. */
static pith_status check_delta(const struct kv_class *kind, const struct kv_page_ref *ref,
                               int32_t n, int32_t delta, pith_error *err)
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

int64_t kv_lane_span_takes(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                           int32_t n)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    int32_t gone = 0, i = 0;
    if (slot + n < lane->len)
        i = kv_lane_find(seq->cache, lane, slot + n, &gone);
    bool copied = gone > 0 && lane->kind->n_ref[lane->table[i].page] > 1;
    return copied ? kv_pages_bytes(lane->kind, 1) : 0;
}

/* ---- changing the table ---- */

/* Makes the pages of the stretch n_new table entries, which are still to be written. */
static void cut_out(struct kv_cache *cache, struct kv_lane *lane, const struct span *s,
                    int32_t n_new)
{
    struct kv_page_ref *table = kv_lane_edit(lane);
    if (s->gone > 0) {
        struct kv_page_ref *ref = &table[s->last];
        kv_page_unshare(cache, lane->kind, ref);
        const struct kv_page_part rest = {ref->page, s->gone, 0, ref->n - s->gone};
        kv_page_move(cache, lane->kind, ref->page, &rest, 1);
        ref->n = (uint8_t)rest.n;
    }
    if (s->head > 0) {
        table[s->first].n = (uint8_t)s->head;
        table[s->first].closed = false;
    }
    for (int32_t i = s->begin; i < s->last; i++)
        kv_page_drop(cache, lane->kind, lane->table[i].page);
    memmove(&table[s->begin + n_new], &table[s->last],
            (size_t)(lane->n_page - s->last) * sizeof(*table));
    lane->n_page += n_new - (s->last - s->begin);
}

/* ---- other entries ---- */

/* Writes the references to n entries of `from`, whose pages are counted already. */
static void put_refs(const struct kv_cache *cache, struct kv_lane *lane, const struct span *s,
                     const struct kv_lane *from, int32_t index, int32_t n, int32_t delta)
{
    struct kv_page_ref *table = kv_lane_edit(lane);
    for (int32_t i = 0; n > 0; i++) {
        struct kv_page_ref ref = from->table[index + i];
        ref.delta += delta;
        ref.n = (uint8_t)pi_min(ref.n, n);
        n -= ref.n;
        ref.closed = n == 0 && s->last == lane->n_live && ref.n < cache->g.page_len;
        table[s->begin + i] = ref;
    }
}

static pith_status check_refs(const struct kv_lane *from, int32_t index, int32_t n, int32_t delta,
                              pith_error *err)
{
    for (int32_t i = index; n > 0; n -= from->table[i++].n) {
        const struct kv_page_ref *ref = &from->table[i];
        PI_TRY(check_count_once(from, i, "from_slot", err));
        PI_TRY(check_delta(from->kind, ref, (int32_t)pi_min(ref->n, n), delta, err));
    }
    return PITH_OK;
}

pith_status kv_seq_share_span(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                              int32_t n, const struct kv_seq *from_seq, int32_t from_slot,
                              int32_t delta, pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    struct span s;
    int32_t index, n_run;
    if (from_seq->cache != cache)
        return pi_fail(err, PITH_INVALID, "from_seq belongs to another cache");
    if (from_seq == seq && from_slot > slot - n)
        return pi_fail(err, PITH_INVALID, "from_slot: %d entries from %d on do not lie before %d",
                       n, from_slot, slot);
    const struct kv_lane *from = kv_lane_at(from_seq, layer, head);
    PI_TRY(find_span(seq, lane, slot, n, &s, err));
    PI_TRY(find_from(cache, from, from_slot, n, &index, &n_run, err));
    PI_TRY(check_refs(from, index, n, delta, err));
    if (lane->n_page + n_run - (s.last - s.begin) > seq->cap)
        return pi_fail(err, PITH_NOMEM, "no room for %d more table entries in %d", n_run, seq->cap);
    kv_marks_share(seq, lane, slot, from_seq, from_slot, n);
    for (int32_t i = 0; i < n_run; i++)
        kv_page_ref_add(cache, lane->kind, from->table[index + i].page);
    cut_out(cache, lane, &s, n_run);
    put_refs(cache, lane, &s, from, index, n, delta);
    if (lane->victim > slot && lane->victim <= slot + n)
        lane->victim = 0;
    lane->unordered = lane->unordered || from->unordered;
    kv_lane_recount(cache, lane);
    return PITH_OK;
}

/* ---- counting for others ---- */

static pith_status check_counts(const struct kv_lane *lane, int32_t index, int32_t n,
                                pith_error *err)
{
    for (int32_t i = index; n > 0; n -= lane->table[i++].n) {
        if (lane->table[i].n > n)
            return pi_fail(err, PITH_INVALID, "from_slot: page %d holds %d entries, not %d", i,
                           lane->table[i].n, n);
        if (lane->table[i].n_folded + 2 > KV_COUNT_MAX)
            return pi_fail(err, PITH_INVALID,
                           "from_slot: page %d would count %d times, more than the %d that are "
                           "told",
                           i, lane->table[i].n_folded + 2, KV_COUNT_MAX);
    }
    return PITH_OK;
}

pith_status kv_seq_fold_span(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot,
                             int32_t n, int32_t from_slot, pith_error *err)
{
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    struct span s;
    int32_t index, n_run;
    if (from_slot > slot - n)
        return pi_fail(err, PITH_INVALID, "from_slot: %d entries from %d on do not lie before %d",
                       n, from_slot, slot);
    PI_TRY(find_span(seq, lane, slot, n, &s, err));
    PI_TRY(find_from(seq->cache, lane, from_slot, n, &index, &n_run, err));
    PI_TRY(check_counts(lane, index, n, err));
    for (int32_t i = 0; i < n_run; i++)
        kv_lane_edit(lane)[index + i].n_folded++;
    kv_marks_move(seq, lane, slot, slot + n, lane->len - slot - n);
    cut_out(seq->cache, lane, &s, 0);
    if (lane->victim > slot + n)
        lane->victim -= n;
    else if (lane->victim > slot || (lane->victim > from_slot && lane->victim <= from_slot + n))
        lane->victim = 0;
    kv_lane_recount(seq->cache, lane);
    return PITH_OK;
}
