/*
 * lane.c - one lane: where a slot lies, keeping some of its entries, pointing at another page. It
 * decides nothing about which entries are worth keeping. Invariant: len, n_live and ragged agree
 * with the table, and positions ascend within every page.
 */
#include "kv/store.h"

/* ---- the table ---- */

int32_t kv_lane_find(const struct kv_cache *cache, const struct kv_lane *lane, int32_t slot,
                     int32_t *entry)
{
    assert(slot >= 0 && slot < lane->len);
    int32_t i = 0;
    if (!lane->ragged) {
        i = slot / cache->g.page_len;
        *entry = slot % cache->g.page_len;
        return i;
    }
    while (slot >= lane->table[i].n)
        slot -= lane->table[i++].n;
    *entry = slot;
    return i;
}

void kv_lane_drop_from(struct kv_cache *cache, struct kv_lane *lane, int32_t begin)
{
    for (int32_t i = begin; i < lane->n_page; i++)
        kv_page_drop(cache, lane->table[i].page);
    lane->n_page = begin;
    if (begin < lane->n_live)
        kv_lane_recount(cache, lane);
}

void kv_lane_recount(const struct kv_cache *cache, struct kv_lane *lane)
{
    lane->len = 0;
    lane->n_live = 0;
    lane->ragged = false;
    for (int32_t i = 0; i < lane->n_page && lane->table[i].n > 0; i++) {
        if (i > 0 && lane->table[i - 1].n < cache->g.page_len)
            lane->ragged = true;
        lane->len += lane->table[i].n;
        lane->n_live++;
    }
}

/* ---- queries ---- */

int32_t kv_lane_len(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return kv_lane_at(seq, layer, head)->len;
}

int32_t kv_lane_pages(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    return kv_lane_at(seq, layer, head)->n_page;
}

int32_t kv_lane_pos(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    int32_t entry;
    const struct kv_page_ref *ref = &lane->table[kv_lane_find(seq->cache, lane, slot, &entry)];
    return kv_page_pos(seq->cache, ref->page)[entry] + ref->delta;
}

void kv_lane_positions(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t *out,
                       int32_t n)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    assert(n <= lane->len);
    for (int32_t p = 0; n > 0; p++) {
        const struct kv_page_ref *ref = &lane->table[p];
        const int32_t *pos = kv_page_pos(seq->cache, ref->page);
        int32_t part = (int32_t)pi_min(ref->n, n);
        for (int32_t i = 0; i < part; i++)
            *out++ = pos[i] + ref->delta;
        n -= part;
    }
}

void kv_lane_key(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot, float *out)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    int32_t entry, i = kv_lane_find(seq->cache, lane, slot, &entry);
    const uint8_t *page = kv_page_at(seq->cache, lane->table[i].page);
    kv_page_read_key(seq->cache, page, entry, out);
}

void kv_lane_value(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot, float *out)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    int32_t entry, i = kv_lane_find(seq->cache, lane, slot, &entry);
    const uint8_t *page = kv_page_at(seq->cache, lane->table[i].page);
    kv_page_read_value(seq->cache, page, entry, out);
}

/* ---- keeping some entries ---- */

/* Walks kept slots and the places they move to. An entry never moves back in the table, nor up
   within a page that it stays in, so moving them in order overwrites nothing that is still to be
   read. A new page is opened when the last is full, the delta changes or the position falls. */
struct packer {
    const struct kv_cache *cache;
    const struct kv_lane *lane;
    int32_t from;       /* table index of the source page */
    int32_t from_begin; /* its first slot */
    int32_t from_end;
    int32_t delta;
    int32_t entry; /* of the slot in its page */
    int32_t pos;   /* as stored */
    int32_t to;    /* table index of the destination, -1 before the first slot */
    int32_t to_entry;
    int32_t to_delta;
    bool opened; /* the slot is the first of its destination */
};

static void packer_start(const struct kv_cache *cache, const struct kv_lane *lane, struct packer *p)
{
    *p = (struct packer){.cache = cache, .lane = lane, .to = -1};
    if (lane->n_live > 0) {
        p->from_end = lane->table[0].n;
        p->delta = lane->table[0].delta;
    }
}

static void packer_next(struct packer *p, int32_t slot)
{
    while (slot >= p->from_end) {
        const struct kv_page_ref *ref = &p->lane->table[++p->from];
        p->from_begin = p->from_end;
        p->from_end += ref->n;
        p->delta = ref->delta;
    }
    int32_t before = p->pos;
    p->entry = slot - p->from_begin;
    p->pos = kv_page_pos(p->cache, p->lane->table[p->from].page)[p->entry];
    p->to_entry++;
    p->opened = p->to < 0 || p->to_entry == p->cache->g.page_len || p->delta != p->to_delta ||
                p->pos <= before;
    if (p->opened) {
        p->to++;
        p->to_entry = 0;
        p->to_delta = p->delta;
    }
}

static bool packer_stays(const struct packer *p)
{
    return p->from == p->to && p->entry == p->to_entry;
}

/* Shared pages that keeping these slots writes to, each of which takes a free page. */
static int32_t count_copies(const struct kv_cache *cache, const struct kv_lane *lane,
                            const int32_t *slots, int32_t n)
{
    struct packer p;
    int32_t n_copy = 0;
    bool written = false;
    packer_start(cache, lane, &p);
    for (int32_t j = 0; j < n; j++) {
        packer_next(&p, slots[j]);
        if (p.opened)
            written = false;
        if (packer_stays(&p) || written)
            continue;
        written = true;
        if (cache->n_ref[lane->table[p.to].page] > 1)
            n_copy++;
    }
    return n_copy;
}

/* Moves the kept entries to their places; the pages for copies are free. */
static void pack(struct kv_cache *cache, struct kv_lane *lane, const int32_t *slots, int32_t n)
{
    struct packer p;
    packer_start(cache, lane, &p);
    for (int32_t j = 0; j < n; j++) {
        packer_next(&p, slots[j]);
        struct kv_page_ref *to = &lane->table[p.to];
        if (!packer_stays(&p)) {
            /* The old contents matter when entries before this one stayed, or when this and later
               ones come from the same page. */
            kv_page_unshare(cache, to, !p.opened || p.from == p.to);
            kv_page_move(cache, kv_page_at(cache, to->page), p.to_entry,
                         kv_page_at(cache, lane->table[p.from].page), p.entry);
        }
        to->delta = p.to_delta;
        to->n = p.to_entry + 1;
    }
    kv_lane_drop_from(cache, lane, p.to + 1);
    kv_lane_recount(cache, lane);
}

static pith_status check_slots(const struct kv_lane *lane, const int32_t *slots, int32_t n,
                               pith_error *err)
{
    if (n < 0 || n > lane->len)
        return pi_fail(err, PITH_INVALID, "%d entries cannot be kept of %d", n, lane->len);
    for (int32_t j = 0; j < n; j++)
        if (slots[j] < 0 || slots[j] >= lane->len || (j > 0 && slots[j] <= slots[j - 1]))
            return pi_fail(err, PITH_INVALID,
                           "slot %d of those to keep is %d: it must be above the one before and "
                           "below %d",
                           j, slots[j], lane->len);
    return PITH_OK;
}

pith_status kv_seq_compact(struct kv_seq *seq, int32_t layer, int32_t head, const int32_t *slots,
                           int32_t n, pith_error *err)
{
    struct kv_cache *cache = seq->cache;
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    PI_TRY(check_slots(lane, slots, n, err));
    int32_t n_copy = count_copies(cache, lane, slots, n);
    if (n_copy > cache->n_free)
        return pi_fail(err, PITH_KV_FULL,
                       "keeping %d of %d entries copies %d shared pages, and %d of %d are free", n,
                       lane->len, n_copy, cache->n_free, cache->n_page);
    pack(cache, lane, slots, n);
    return PITH_OK;
}

/* ---- sharing ---- */

static pith_status check_full(const struct kv_cache *cache, const struct kv_lane *lane, int32_t i,
                              const char *field, pith_error *err)
{
    if (i < 0 || i >= lane->n_live)
        return pi_fail(err, PITH_INVALID, "%s: %d is not in 0..%d", field, i, lane->n_live - 1);
    if (lane->table[i].n != cache->g.page_len)
        return pi_fail(err, PITH_INVALID, "%s: page %d holds %d entries, not %d", field, i,
                       lane->table[i].n, cache->g.page_len);
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
    PI_TRY(check_full(cache, lane, page_index, "page_index", err));
    PI_TRY(check_full(cache, from, from_index, "from_index", err));
    struct kv_page_ref ref = from->table[from_index];
    const int32_t *pos = kv_page_pos(cache, ref.page);
    int64_t whole = (int64_t)ref.delta + delta;
    if (pos[0] + whole < 0 || pos[ref.n - 1] + whole > INT32_MAX || whole < INT32_MIN ||
        whole > INT32_MAX)
        return pi_fail(err, PITH_INVALID, "delta: %d moves positions %lld..%lld out of range",
                       delta, (long long)pos[0] + ref.delta, (long long)pos[ref.n - 1] + ref.delta);
    ref.delta = (int32_t)whole;
    kv_page_ref_add(cache, ref.page);
    kv_page_drop(cache, lane->table[page_index].page);
    lane->table[page_index] = ref;
    return PITH_OK;
}
