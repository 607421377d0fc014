/*
 * copy.c - entries on their way to another sequence, of the same cache or of another one, and lanes
 * that are emptied and filled again. It must not know why entries go. Invariant: an entry that is
 * copied keeps its position, and where both lanes store it alike its bytes.
 */
#include "kv/copy.h"
#include "device/device.h"
#include "kv/lane_internal.h"
#include "kv/marks_internal.h"
#include "kv/page.h"
#include "kv/pool_internal.h"
#include "kv/read_internal.h"

/* ---- emptying ---- */

void kv_lane_clear(struct kv_seq *seq, int32_t layer, int32_t head)
{
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    struct kv_page_ref *table = kv_lane_edit(lane);
    int32_t n_own = 0;
    for (int32_t i = 0; i < lane->n_page; i++) {
        const struct kv_page_ref ref = {.page = lane->table[i].page};
        if (lane->kind->n_ref[ref.page] > 1)
            kv_page_drop(seq->cache, lane->kind, ref.page);
        else
            table[n_own++] = ref;
    }
    lane->n_page = n_own;
    lane->n_live = lane->len = lane->top = lane->victim = 0;
    lane->ragged = lane->unordered = false;
}

/* ---- single entries ---- */

enum {
    MOST_DIM = 16384,                      /* of a head: kv_geometry_check */
    MOST_BYTES = MOST_DIM * sizeof(float), /* of a stored one */
};

/* One side of an entry, from one device to another: as it is stored where both store it alike. */
static void carry_side(const struct kv_place *from, const struct kv_place *to, enum kv_side side,
                       const float *shift)
{
    struct pi_device *a = from->kind->device, *b = to->kind->device;
    const struct kv_part *part = kv_place_part(from, side);
    float row[MOST_DIM];
    if (part->dim == 0)
        return;
    if (shift == NULL && part->type == kv_place_part(to, side)->type) {
        a->get_entry(from, side, (uint8_t *)row);
        b->put_entry(to, side, (const uint8_t *)row);
        return;
    }
    a->decode_entry(from, side, row);
    for (int32_t d = 0; shift != NULL && d < part->dim; d++)
        row[d] += shift[d];
    b->encode_entry(to, side, row);
}

/* n entries of one page, to places next to each other. */
static void copy_entries(const struct kv_copy *c, const struct kv_lane *from, const int32_t *slots,
                         int32_t n, const struct kv_lane *to, int32_t to_slot)
{
    struct kv_place a = kv_place_of(c->from, from, slots[0]), b;
    int32_t begin = slots[0] - a.slot;
    for (int32_t i = 0; i < n; i++) {
        b = kv_place_of(c->to, to, to_slot + i);
        kv_page_pos(b.kind, b.page)[b.slot] = kv_page_pos(a.kind, a.page)[slots[i] - begin];
    }
    if (from->kind->device == to->kind->device) {
        to->kind->device->fill(c, slots, n, to_slot);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        a.slot = slots[i] - begin;
        b = kv_place_of(c->to, to, to_slot + i);
        carry_side(&a, &b, KV_SIDE_K, c->shift);
        carry_side(&a, &b, KV_SIDE_V, NULL);
        b.kind->device->index(b.cache, b.kind, b.lane, b.page, b.slot, 1);
    }
}

/* ---- filling ---- */

void kv_lane_extend(struct kv_seq *seq, int32_t layer, int32_t head, int32_t n)
{
    struct kv_cache *cache = seq->cache;
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    lane->unbroken = 0;
    while (n > 0) {
        struct kv_page_ref *last = kv_lane_ref(lane, kv_lane_open_page(cache, lane));
        int32_t part = (int32_t)pi_min(n, cache->g.page_len - last->n);
        assert(lane->kind->n_ref[last->page] == 1);
        last->n = (uint8_t)(last->n + part);
        lane->len += part;
        n -= part;
    }
    lane->victim = 0;
}

void kv_lane_fill(const struct kv_copy *c, int32_t from_slot, int32_t to_slot)
{
    copy_entries(c, kv_lane_at(c->from, c->from_layer, c->from_head), &from_slot, 1,
                 kv_lane_at(c->to, c->to_layer, c->to_head), to_slot);
}

/* Whether positions fall in a page, or from the page before. */
static bool page_falls(const struct kv_lane *lane, int32_t i)
{
    const struct kv_page_ref *ref = &lane->table[i];
    const int32_t *pos = kv_page_pos(lane->kind, ref->page);
    bool falls = false;
    for (int32_t e = 1; e < ref->n; e++)
        falls = falls || pos[e] <= pos[e - 1];
    if (i > 0 && ref[-1].delta == ref->delta)
        falls = falls || pos[0] <= kv_page_pos(lane->kind, ref[-1].page)[ref[-1].n - 1];
    return falls;
}

static void find_top(struct kv_lane *lane, int32_t begin)
{
    lane->top = begin == 0 ? -1 : lane->top;
    for (int32_t i = begin; i < lane->n_live; i++) {
        const struct kv_page_ref *ref = &lane->table[i];
        const int32_t *pos = kv_page_pos(lane->kind, ref->page);
        for (int32_t e = 0; e < ref->n; e++)
            lane->top = (int32_t)pi_max(lane->top, pos[e] + ref->delta);
    }
}

void kv_lane_seal(struct kv_seq *seq, int32_t layer, int32_t head, int32_t slot)
{
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    bool was_unordered = lane->unordered;
    int32_t entry, first;
    if (slot == lane->len)
        return;
    first = kv_lane_find(seq->cache, lane, slot, &entry);
    for (int32_t i = first, at = slot; i < lane->n_live; i++) {
        const struct kv_page_ref *ref = &lane->table[i];
        if (ref->n == seq->cache->g.page_len)
            lane->kind->device->finish(seq->cache, lane->kind, ref->page);
        kv_marks_start(seq, lane, at, ref, i == first ? entry : 0,
                       ref->n - (i == first ? entry : 0));
        at += ref->n - (i == first ? entry : 0);
        lane->unordered = lane->unordered || page_falls(lane, i);
    }
    if (lane->unordered)
        find_top(lane, was_unordered ? first : 0);
}

/* How many of the slots, from the first on, lie in one page, in ascending order. */
static int32_t count_in_page(const struct kv_seq *seq, const struct kv_lane *lane,
                             const int32_t *slots, int32_t n)
{
    int32_t entry, i = 1;
    const struct kv_page_ref *ref = &lane->table[kv_lane_find(seq->cache, lane, slots[0], &entry)];
    int32_t end = slots[0] - entry + ref->n;
    while (i < n && slots[i] > slots[i - 1] && slots[i] < end)
        i++;
    return i;
}

void kv_seq_copy(const struct kv_copy *c, const int32_t *slots, int32_t n)
{
    const struct kv_lane *from = kv_lane_at(c->from, c->from_layer, c->from_head);
    const struct kv_lane *to = kv_lane_at(c->to, c->to_layer, c->to_head);
    int32_t begin = to->len;
    kv_lane_extend(c->to, c->to_layer, c->to_head, n);
    for (int32_t i = 0, n_here; i < n; i += n_here) {
        n_here = count_in_page(c->from, from, slots + i, n - i);
        copy_entries(c, from, slots + i, n_here, to, begin + i);
    }
    kv_lane_seal(c->to, c->to_layer, c->to_head, begin);
}

/* ---- whole pages ---- */

int32_t kv_lane_page(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i)
{
    return kv_lane_at(seq, layer, head)->table[i].page;
}

void kv_lane_get_page(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                      uint8_t *out)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    kv_page_export(seq->cache, lane->kind, lane->table[i].page, out);
}

void kv_lane_put_page(struct kv_seq *seq, int32_t layer, int32_t head, const uint8_t *data,
                      int32_t n)
{
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    assert(lane->n_live < lane->n_page && n >= 1 && n <= seq->cache->g.page_len);
    struct kv_page_ref *ref = &kv_lane_edit(lane)[lane->n_live++];
    int32_t slot = lane->len;
    assert(lane->kind->n_ref[ref->page] == 1);
    kv_page_import(seq->cache, lane->kind, ref->page, data);
    ref->n = (uint8_t)n;
    lane->ragged = lane->ragged || (lane->n_live > 1 && ref[-1].n < seq->cache->g.page_len);
    lane->len += n;
    lane->victim = 0;
    kv_lane_seal(seq, layer, head, slot);
}

void kv_lane_drop_first(struct kv_seq *seq, int32_t layer, int32_t head)
{
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    assert(lane->n_live > 0);
    const struct kv_page_ref first = lane->table[0];
    const int32_t *pos = kv_page_pos(lane->kind, first.page);
    bool had_top = false;
    for (int32_t e = 0; lane->unordered && e < first.n; e++)
        had_top = had_top || pos[e] + first.delta == lane->top;
    kv_marks_move(seq, lane, 0, first.n, lane->len - first.n);
    kv_page_drop(seq->cache, lane->kind, first.page);
    lane->n_page--;
    lane->n_live--;
    lane->len -= first.n;
    lane->victim = 0;
    memmove(kv_lane_edit(lane), lane->table + 1, (size_t)lane->n_page * sizeof(*lane->table));
    /* Positions are checked only where that can change the lane's known order. Otherwise a lane
       that is in order by now may still count as unordered. */
    if (had_top || lane->ragged || lane->n_live == 0)
        kv_lane_recount(seq->cache, lane);
}
