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

bool kv_marks_size(const struct kv_cache *cache, int32_t cap, size_t *size)
{
    return pi_mul_size((size_t)kv_lane_count(cache), (size_t)cap, size) &&
           pi_mul_size(*size, (size_t)cache->g.page_len, size) &&
           pi_mul_size(*size, kv_mark_bytes(cache), size);
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
        kv_marks_pull(from, &from->lane[l]);
        copy_slots(to, from, l, 0, 0, from->lane[l].len);
    }
}

/* ---- entries ---- */

void kv_marks_clear(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot,
                    const int32_t *pos, int32_t n)
{
    size_t at = number_of(seq, lane);
    int32_t n_mark = seq->cache->n_mark;
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
