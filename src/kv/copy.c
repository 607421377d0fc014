/*
 * copy.c - entries on their way to another sequence, of the same cache or of another one, and lanes
 * that are emptied and filled again. It knows neither why they go nor who wants them. Invariant: an
 * entry that is copied keeps its position, and where both lanes store it alike its bytes.
 */
#include "kv/store.h"

/* ---- emptying ---- */

void kv_lane_clear(struct kv_seq *seq, int32_t layer, int32_t head)
{
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    int32_t n_own = 0;
    for (int32_t i = 0; i < lane->n_page; i++) {
        const struct kv_page_ref ref = {.page = lane->table[i].page};
        if (lane->kind->n_ref[ref.page] > 1)
            kv_page_drop(seq->cache, lane->kind, ref.page);
        else
            lane->table[n_own++] = ref;
    }
    lane->n_page = n_own;
    lane->n_live = lane->len = lane->top = lane->aim = 0;
    lane->ragged = lane->unordered = false;
}

/* ---- single entries ---- */

#define MOST_DIM 16384 /* of a head: kv_geometry_check */

/* An entry's place. */
struct place {
    const struct kv_cache *cache;
    const struct kv_class *kind;
    uint8_t *page;
    int32_t *pos; /* as stored */
    int32_t slot; /* in the page */
    int32_t delta;
};

static struct place place_of(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot)
{
    struct place p = {.cache = seq->cache, .kind = lane->kind};
    const struct kv_page_ref *ref = &lane->table[kv_lane_find(seq->cache, lane, slot, &p.slot)];
    p.page = kv_page_at(lane->kind, ref->page);
    p.pos = kv_page_pos(lane->kind, ref->page) + p.slot;
    p.delta = ref->delta;
    return p;
}

/* Elements of 2 or 4 bytes, some of them apart: strides count elements. */
static void copy_elements(const uint8_t *from, size_t from_stride, uint8_t *to, size_t to_stride,
                          size_t n, size_t size)
{
    if (size == sizeof(uint16_t)) {
        const uint16_t *a = (const uint16_t *)(const void *)from;
        uint16_t *b = (uint16_t *)(void *)to;
        for (size_t i = 0; i < n; i++)
            b[i * to_stride] = a[i * from_stride];
    } else {
        const uint32_t *a = (const uint32_t *)(const void *)from;
        uint32_t *b = (uint32_t *)(void *)to;
        for (size_t i = 0; i < n; i++)
            b[i * to_stride] = a[i * from_stride];
    }
}

/* The bytes that a plane of keys has of an entry. */
static void copy_plane(const struct place *from, const struct kv_plane *a, const struct place *to,
                       const struct kv_plane *b)
{
    bool beside = from->kind->layout.side_by_side, to_beside = to->kind->layout.side_by_side;
    size_t from_slot = (size_t)from->slot, to_slot = (size_t)to->slot;
    const uint8_t *in = from->page + a->at + from_slot * (beside ? a->element : a->row);
    uint8_t *out = to->page + b->at + to_slot * (to_beside ? b->element : b->row);
    if (a->row == 0)
        return;
    if (!beside && !to_beside)
        memcpy(out, in, a->row);
    else
        copy_elements(in, beside ? (size_t)from->cache->g.page_len : 1, out,
                      to_beside ? (size_t)to->cache->g.page_len : 1, a->row / a->element,
                      a->element);
}

static void copy_key(const struct place *from, const struct place *to, const float *shift)
{
    float row[MOST_DIM];
    if (shift == NULL && from->kind->type_k == to->kind->type_k) {
        for (int32_t i = 0; i < KV_N_PLANE; i++)
            copy_plane(from, &from->kind->k.plane[i], to, &to->kind->k.plane[i]);
        return;
    }
    kv_page_read_key(from->cache, from->kind, from->page, from->slot, row);
    for (int32_t d = 0; shift != NULL && d < from->cache->g.dim_k; d++)
        row[d] += shift[d];
    kv_page_write_keys(to->cache, to->kind, to->page, to->slot, 1, row, 0);
}

static void copy_value(const struct place *from, const struct place *to)
{
    float row[MOST_DIM];
    if (from->kind->type_v == to->kind->type_v) {
        for (int32_t i = 0; i < KV_N_PLANE; i++) {
            const struct kv_plane *a = &from->kind->v.plane[i], *b = &to->kind->v.plane[i];
            memcpy(to->page + b->at + (size_t)to->slot * b->row,
                   from->page + a->at + (size_t)from->slot * a->row, a->row);
        }
        return;
    }
    kv_page_read_value(from->cache, from->kind, from->page, from->slot, row);
    kv_page_write_values(to->cache, to->kind, to->page, to->slot, 1, row, 0);
}

static void copy_entry(const struct place *from, const struct place *to, int32_t lane,
                       const float *shift)
{
    assert(from->delta == 0 && to->delta == 0);
    copy_key(from, to, shift);
    copy_value(from, to);
    *to->pos = *from->pos;
    kv_index_write(to->cache, to->kind, lane, to->page, to->slot, 1);
}

/* ---- filling ---- */

void kv_lane_extend(struct kv_seq *seq, int32_t layer, int32_t head, int32_t n)
{
    struct kv_cache *cache = seq->cache;
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    while (n > 0) {
        struct kv_page_ref *last = &lane->table[kv_lane_open_page(cache, lane)];
        int32_t part = (int32_t)pi_min(n, cache->g.page_len - last->n);
        assert(lane->kind->n_ref[last->page] == 1);
        last->n = (uint8_t)(last->n + part);
        lane->len += part;
        n -= part;
    }
    lane->aim = 0;
}

void kv_lane_fill(const struct kv_copy *c, int32_t from_slot, int32_t to_slot)
{
    const struct kv_lane *from = kv_lane_at(c->from, c->from_layer, c->from_head);
    const struct kv_lane *to = kv_lane_at(c->to, c->to_layer, c->to_head);
    const struct place a = place_of(c->from, from, from_slot), b = place_of(c->to, to, to_slot);
    copy_entry(&a, &b, (int32_t)(to - c->to->lane), c->shift);
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
            kv_index_finish(seq->cache, lane->kind, kv_page_at(lane->kind, ref->page));
        kv_marks_start(seq, lane, at, ref, i == first ? entry : 0,
                       ref->n - (i == first ? entry : 0));
        at += ref->n - (i == first ? entry : 0);
        lane->unordered = lane->unordered || page_falls(lane, i);
    }
    if (lane->unordered)
        find_top(lane, was_unordered ? first : 0);
}

enum {
    TURN_BYTES = 1 << 15, /* of a page's keys that are turned on the stack: f16 of 256 dimensions */
    TURN_FROM = 16,       /* entries of a page from which on that is faster than picking them */
};

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

/* Fills entries with those of one page whose keys lie side by side: all keys of the page are turned
   once, and picked from there. */
static void fill_turned(const struct kv_copy *c, const int32_t *slots, int32_t n, int32_t to_slot)
{
    const struct kv_lane *from = kv_lane_at(c->from, c->from_layer, c->from_head);
    const struct kv_lane *to = kv_lane_at(c->to, c->to_layer, c->to_head);
    uint64_t turned[TURN_BYTES / sizeof(uint64_t)];
    struct place a = place_of(c->from, from, slots[0]);
    const int32_t *first = a.pos - a.slot;
    int32_t begin = slots[0] - a.slot;
    kv_columns_to_rows(c->from->cache, from->kind, a.page, (uint8_t *)turned);
    for (int32_t i = 0; i < n; i++) {
        const struct place b = place_of(c->to, to, to_slot + i);
        assert(a.delta == 0 && b.delta == 0);
        a.slot = slots[i] - begin;
        for (int32_t p = 0; p < KV_N_PLANE; p++) {
            const struct kv_plane *x = &from->kind->k.plane[p], *y = &to->kind->k.plane[p];
            memcpy(b.page + y->at + (size_t)b.slot * y->row,
                   (const uint8_t *)turned + x->at + (size_t)a.slot * x->row, x->row);
        }
        copy_value(&a, &b);
        *b.pos = first[a.slot];
        kv_index_write(c->to->cache, to->kind, (int32_t)(to - c->to->lane), b.page, b.slot, 1);
    }
}

void kv_seq_copy(const struct kv_copy *c, const int32_t *slots, int32_t n)
{
    const struct kv_lane *from = kv_lane_at(c->from, c->from_layer, c->from_head);
    const struct kv_lane *to = kv_lane_at(c->to, c->to_layer, c->to_head);
    const struct kv_class *a = from->kind, *b = to->kind;
    int32_t begin = to->len;
    bool turns = a->layout.side_by_side && !b->layout.side_by_side && a->type_k == b->type_k &&
                 a->layout.v <= TURN_BYTES && c->shift == NULL;
    kv_lane_extend(c->to, c->to_layer, c->to_head, n);
    for (int32_t i = 0, n_here; i < n; i += n_here) {
        n_here = count_in_page(c->from, from, slots + i, n - i);
        if (turns && n_here >= TURN_FROM)
            fill_turned(c, slots + i, n_here, begin + i);
        for (int32_t j = 0; j < n_here && !(turns && n_here >= TURN_FROM); j++)
            kv_lane_fill(c, slots[i + j], begin + i + j);
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
    kv_page_export(lane->kind, lane->table[i].page, out);
}

void kv_lane_put_page(struct kv_seq *seq, int32_t layer, int32_t head, const uint8_t *data,
                      int32_t n)
{
    struct kv_lane *lane = kv_lane_at(seq, layer, head);
    assert(lane->n_live < lane->n_page && n >= 1 && n <= seq->cache->g.page_len);
    struct kv_page_ref *ref = &lane->table[lane->n_live++];
    int32_t slot = lane->len;
    assert(lane->kind->n_ref[ref->page] == 1);
    kv_page_import(lane->kind, ref->page, data);
    ref->n = (uint8_t)n;
    lane->ragged = lane->ragged || (lane->n_live > 1 && ref[-1].n < seq->cache->g.page_len);
    lane->len += n;
    lane->aim = 0;
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
    lane->aim = 0;
    memmove(lane->table, lane->table + 1, (size_t)lane->n_page * sizeof(*lane->table));
    /* Positions are looked through where that can change what they are known for; else a lane that
       is in order by now may still count as unordered. */
    if (had_top || lane->ragged || lane->n_live == 0)
        kv_lane_recount(seq->cache, lane);
}
