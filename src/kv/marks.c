/*
 * marks.c - floats beside the entries of a lane, for a caller that records something about each
 * entry. It owns their layout, and moves them with the entries' slots. They are outside of pages
 * because sequences share pages: a note about an entry belongs to one sequence alone. It must not
 * know their meaning. The norms of values, which the store itself computes, lie after them and move
 * with them. Invariant: marks of slots at and beyond a lane's length are arbitrary; an entry's
 * marks are set when it is written. The host's marks of a lane's first n_there
 * entries are out of date: its device has them. Work that the host does pulls them to the
 * host first.
 */
#include "kv/marks.h"
#include "device/device.h"
#include "kv/marks_internal.h"

void kv_cache_set_marks(struct kv_cache *cache, int32_t n_mark, bool value_norm)
{
    assert(cache->first == NULL && n_mark >= 0);
    cache->n_mark = n_mark;
    cache->value_norm = value_norm;
}

void kv_cache_note_marks(struct kv_cache *cache)
{
    assert(cache->first == NULL);
    cache->marks_noted = cache->n_mark > 0 || cache->value_norm;
}

void kv_cache_note_places(struct kv_cache *cache)
{
    assert(cache->first == NULL && !cache->places);
    cache->n_mark++;
    cache->places = cache->marks_noted = true;
}

bool kv_lane_finds_victim(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    bool finds =
        seq->cache->places && pi_at_some(lane->marks) && lane->kind->device->victims != NULL;
    for (int32_t i = 0; finds && i < lane->n_live; i++)
        finds = lane->table[i].delta == 0 && lane->table[i].n_folded == 0;
    return finds;
}

static size_t number_of(const struct kv_seq *seq, const struct kv_lane *lane)
{
    return (size_t)(lane - seq->lane);
}

float *kv_lane_marks_place(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i)
{
    assert(i >= 0 && i < seq->cache->n_mark);
    if (seq->marks == NULL) /* no lane has had room for an entry yet */
        return NULL;
    return kv_marks_at(seq, number_of(seq, kv_lane_at(seq, layer, head)), i);
}

const uint16_t *kv_lane_norms_place(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    assert(seq->cache->value_norm);
    if (seq->marks == NULL)
        return NULL;
    return kv_norms_at(seq, number_of(seq, kv_lane_at(seq, layer, head)));
}

/* ---- devices ---- */

/* Row i of a lane, or with n_mark its norms, to the host. */
static void read_row(const struct kv_seq *seq, const struct kv_lane *lane, int32_t i)
{
    size_t n = (size_t)kv_marks_there(lane), l = number_of(seq, lane);
    struct pi_at from = pi_at_add(lane->marks, (size_t)i * kv_marks_row(seq));
    bool norms = i == seq->cache->n_mark;
    if (n > 0)
        lane->kind->device->download(NULL, from, n * (norms ? sizeof(uint16_t) : sizeof(float)),
                                     norms ? (void *)kv_norms_at(seq, l)
                                           : (void *)kv_marks_at(seq, l, i));
}

void kv_marks_pull(const struct kv_seq *seq, struct kv_lane *lane)
{
    for (int32_t i = 0; lane->n_there > 0 && i < seq->cache->n_mark + seq->cache->value_norm; i++)
        read_row(seq, lane, i);
    lane->n_there = 0;
}

float *kv_lane_marks(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i)
{
    kv_marks_pull(seq, kv_lane_at(seq, layer, head));
    return kv_lane_marks_place(seq, layer, head, i);
}

const float *kv_lane_read_marks(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i)
{
    read_row(seq, kv_lane_at(seq, layer, head), i);
    return kv_lane_marks_place(seq, layer, head, i);
}

const uint16_t *kv_lane_norms(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    read_row(seq, kv_lane_at(seq, layer, head), seq->cache->n_mark);
    return kv_lane_norms_place(seq, layer, head);
}

/* Bytes of a lane's on its device. */
static size_t lane_size(const struct kv_seq *seq)
{
    return pi_align((size_t)(seq->cache->n_mark + seq->cache->value_norm) * kv_marks_row(seq), 256);
}

void kv_marks_release(struct kv_cache *cache, struct pi_at *there)
{
    for (int32_t k = 0; there != NULL && k < cache->n_kind; k++)
        if (pi_at_some(there[k]))
            cache->kind[k].device->free(cache->kind[k].device, there[k]);
    pi_mem_free(there);
}

bool kv_marks_reserve(struct kv_seq *seq, const struct kv_seq *lanes, int32_t cap)
{
    struct kv_cache *cache = seq->cache;
    struct kv_seq sized = {.cache = cache, .cap = cap};
    bool ok = true;
    if (!cache->marks_noted)
        return true;
    seq->there = pi_mem_alloc_n(PI_MEM_TABLE, (size_t)cache->n_kind, sizeof(*seq->there));
    for (int32_t k = 0; seq->there != NULL && k < cache->n_kind && ok; k++) {
        struct pi_device *d = cache->kind[k].device;
        size_t n = 0;
        for (int32_t l = 0; l < kv_lane_count(cache); l++)
            n += lanes->lane[l].kind == &cache->kind[k];
        if (n == 0 || d->pack_marks == NULL)
            continue;
        seq->there[k] = d->alloc(d, PI_MEM_TABLE, n * lane_size(&sized));
        ok = pi_at_some(seq->there[k]);
    }
    ok = ok && seq->there != NULL;
    if (!ok) {
        kv_marks_release(cache, seq->there);
        seq->there = NULL;
    }
    return ok;
}

void kv_marks_settle(struct kv_seq *seq)
{
    const struct kv_cache *cache = seq->cache;
    for (int32_t k = 0; seq->there != NULL && k < cache->n_kind; k++) {
        struct pi_at at = seq->there[k];
        for (int32_t l = 0; pi_at_some(at) && l < kv_lane_count(cache); l++) {
            struct kv_lane *lane = &seq->lane[l];
            if (lane->kind != &cache->kind[k])
                continue;
            assert(lane->n_there == 0);
            lane->marks = at;
            at = pi_at_add(at, lane_size(seq));
        }
    }
}

/* ---- the block ---- */

/* Bytes of the marks of n pages. Pages have a multiple of 16 entries, so that parts lie aligned. */
static size_t part_size(const struct kv_cache *cache, int64_t n)
{
    return (size_t)n * (size_t)cache->g.page_len * kv_mark_bytes(cache);
}

/* The next size of a block that is too small. */
static size_t roomy(size_t size)
{
    return size + size / 8;
}

int64_t kv_marks_bytes_at(const struct kv_geometry *g, size_t mark_size, int64_t n_page)
{
    return (int64_t)roomy((size_t)(n_page * g->page_len) * mark_size);
}

/* Row i of a lane whose part begins at a place of a block: a mark, or with n_mark the norms. */
static uint8_t *row_in(const struct kv_cache *cache, uint8_t *block, size_t at, int32_t cap,
                       int32_t i)
{
    return block + at + (size_t)i * (size_t)cap * (size_t)cache->g.page_len * sizeof(float);
}

/* Moves a lane's rows to a part of another size or place. Within a block the part either does not
   begin earlier and is no smaller, or it does not begin later and is no larger. So no row is
   written where another one is still to be read. */
static void move_part(const struct kv_seq *seq, struct kv_lane *lane, uint8_t *block, size_t at,
                      int32_t cap)
{
    const struct kv_cache *cache = seq->cache;
    int32_t n_row = cache->n_mark + cache->value_norm;
    bool up = at > lane->mark_at || cap > lane->mark_cap;
    for (int32_t j = 0; lane->len > 0 && j < n_row; j++) {
        int32_t i = up ? n_row - 1 - j : j;
        memmove(row_in(cache, block, at, cap, i),
                row_in(cache, seq->marks, lane->mark_at, lane->mark_cap, i),
                (size_t)lane->len * (i < cache->n_mark ? sizeof(float) : sizeof(uint16_t)));
    }
    lane->mark_at = at;
    lane->mark_cap = cap;
}

/* Bytes of the parts that lanes want. */
static size_t wanted_size(const struct kv_seq *seq)
{
    size_t size = 0;
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++)
        size += part_size(seq->cache, seq->lane[l].mark_wanted);
    return size;
}

/* Lays the parts out anew within the block: first together, then `more` pages larger than
   wanted. */
static void lay_out_again(struct kv_seq *seq, int32_t more)
{
    int32_t n_lane = kv_lane_count(seq->cache);
    size_t at = 0, end = wanted_size(seq) + part_size(seq->cache, (int64_t)n_lane * more);
    for (int32_t l = 0; l < n_lane; l++) {
        struct kv_lane *lane = &seq->lane[l];
        move_part(seq, lane, seq->marks, at, (int32_t)pi_min(lane->mark_cap, lane->mark_wanted));
        at += part_size(seq->cache, lane->mark_cap);
    }
    for (int32_t l = n_lane - 1; l >= 0; l--) {
        int32_t cap = seq->lane[l].mark_wanted + more;
        end -= part_size(seq->cache, cap);
        move_part(seq, &seq->lane[l], seq->marks, end, cap);
    }
}

/* The same in another block, which is the sequence's then. */
static void lay_out_in(struct kv_seq *seq, uint8_t *block, size_t size, int32_t more)
{
    size_t at = 0;
    for (int32_t l = 0; l < kv_lane_count(seq->cache); l++) {
        move_part(seq, &seq->lane[l], block, at, seq->lane[l].mark_wanted + more);
        at += part_size(seq->cache, seq->lane[l].mark_cap);
    }
    pi_mem_free(seq->marks);
    seq->cache->table_bytes += (int64_t)size - (int64_t)seq->marks_size;
    seq->marks = block;
    seq->marks_size = size;
}

size_t kv_marks_lack(const struct kv_seq *seq, int64_t n_page)
{
    const struct kv_cache *cache = seq->cache;
    for (int32_t l = 0; l < kv_lane_count(cache); l++) {
        struct kv_lane *lane = &seq->lane[l];
        lane->mark_wanted =
            (int32_t)pi_max(lane->mark_wanted, pi_ceil_div(lane->len, cache->g.page_len));
    }
    size_t size = wanted_size(seq), least = part_size(cache, n_page);
    size = least > size ? least : size;
    return size <= seq->marks_size ? 0 : seq->marks == NULL ? size : roomy(size);
}

void kv_marks_fit(struct kv_seq *seq, uint8_t *block, size_t size)
{
    int32_t n_lane = kv_lane_count(seq->cache);
    size_t all = block != NULL ? size : seq->marks_size, each = part_size(seq->cache, n_lane);
    bool fits = true;
    if (all == 0)
        return;
    for (int32_t l = 0; l < n_lane; l++)
        fits = fits && seq->lane[l].mark_wanted <= seq->lane[l].mark_cap;
    /* All lanes share the room that is left, so that one that grows seldom moves others. */
    int32_t more = (int32_t)pi_min((all - wanted_size(seq)) / each, 64);
    if (block != NULL)
        lay_out_in(seq, block, size, more);
    else if (!fits)
        lay_out_again(seq, more);
}

/* Copies the marks of n slots of lane number l of a sequence to the same lane of another. */
static void copy_slots(const struct kv_seq *to_seq, const struct kv_seq *from_seq, size_t l,
                       int32_t to, int32_t from, int32_t n)
{
    const struct kv_cache *cache = to_seq->cache;
    for (int32_t i = 0; n > 0 && i < cache->n_mark; i++)
        memmove(kv_marks_at(to_seq, l, i) + to, kv_marks_at(from_seq, l, i) + from,
                (size_t)n * sizeof(float));
    if (n > 0 && cache->value_norm)
        memmove(kv_norms_at(to_seq, l) + to, kv_norms_at(from_seq, l) + from,
                (size_t)n * sizeof(uint16_t));
}

void kv_marks_copy(const struct kv_seq *from, const struct kv_seq *to)
{
    for (size_t l = 0; l < (size_t)kv_lane_count(from->cache); l++) {
        if (from->lane[l].len == 0)
            continue;
        kv_marks_pull(from, &from->lane[l]);
        copy_slots(to, from, l, 0, 0, from->lane[l].len);
    }
}

/* ---- entries ---- */

void kv_marks_clear(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot,
                    const int32_t *pos, int32_t n)
{
    int32_t n_mark = seq->cache->n_mark;
    if (n_mark == 0)
        return;
    size_t at = number_of(seq, lane);
    for (int32_t i = 0; i < n_mark; i++)
        memset(kv_marks_at(seq, at, i) + slot, 0, (size_t)n * sizeof(float));
    for (int32_t i = 0; seq->cache->places && i < n; i++) {
        const int32_t place = pos[i] + 1;
        memcpy(kv_marks_at(seq, at, n_mark - 1) + slot + i, &place, sizeof(place));
    }
}

void kv_marks_start(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot,
                    const struct kv_page_ref *ref, int32_t entry, int32_t n)
{
    const struct kv_cache *cache = seq->cache;
    size_t at = number_of(seq, lane);
    kv_marks_pull(seq, &seq->lane[at]);
    kv_marks_clear(seq, lane, slot, kv_page_pos(lane->kind, ref->page) + entry, n);
    if (cache->value_norm)
        lane->kind->device->norms(cache, lane->kind, ref->page, entry, n,
                                  kv_norms_at(seq, at) + slot);
}

void kv_marks_start_lane(const struct kv_seq *seq, const struct kv_lane *lane)
{
    int32_t slot = 0;
    for (int32_t i = 0; i < lane->n_live && seq->marks != NULL; i++) {
        kv_marks_start(seq, lane, slot, &lane->table[i], 0, lane->table[i].n);
        slot += lane->table[i].n;
    }
}

void kv_marks_keep(const struct kv_seq *seq, const struct kv_lane *lane, const int32_t *slots,
                   int32_t n)
{
    size_t at = number_of(seq, lane);
    struct kv_lane *own = &seq->lane[at];
    if (n > 0 && own->n_there >= own->len) {
        own->kind->device->pack_marks(seq, own, slots, n);
        own->n_there = n;
        return;
    }
    kv_marks_pull(seq, own);
    for (int32_t i = 0; n > 0 && i < seq->cache->n_mark; i++) {
        float *mark = kv_marks_at(seq, at, i);
        for (int32_t j = 0; j < n; j++)
            mark[j] = mark[slots[j]];
    }
    if (n > 0 && seq->cache->value_norm) {
        uint16_t *norm = kv_norms_at(seq, at);
        for (int32_t j = 0; j < n; j++)
            norm[j] = norm[slots[j]];
    }
}

void kv_marks_move(const struct kv_seq *seq, const struct kv_lane *lane, int32_t to, int32_t from,
                   int32_t n)
{
    kv_marks_pull(seq, &seq->lane[number_of(seq, lane)]);
    copy_slots(seq, seq, number_of(seq, lane), to, from, n);
}

void kv_marks_share(const struct kv_seq *seq, const struct kv_lane *lane, int32_t to,
                    const struct kv_seq *from_seq, int32_t from, int32_t n)
{
    size_t at = number_of(seq, lane);
    kv_marks_pull(seq, &seq->lane[at]);
    kv_marks_pull(from_seq, &from_seq->lane[at]);
    copy_slots(seq, from_seq, at, to, from, n);
}
