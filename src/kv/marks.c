/*
 * marks.c - floats beside the entries of a lane, for a caller that records something about each
 * entry. It owns their layout, and moves them with the entries' slots. They are outside of pages
 * because sequences share pages: a note about an entry belongs to one sequence alone. It must not
 * know their meaning. The norms of values, which the store itself computes, lie after them and move
 * with them. Invariant: marks of slots at and beyond a lane's length are arbitrary; an entry's
 * marks are set when it is written.
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

float *kv_lane_marks(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i)
{
    assert(i >= 0 && i < seq->cache->n_mark);
    if (seq->marks == NULL) /* no lane has had room for an entry yet */
        return NULL;
    return kv_marks_at(seq, (size_t)(kv_lane_at(seq, layer, head) - seq->lane), i);
}

const uint16_t *kv_lane_norms(const struct kv_seq *seq, int32_t layer, int32_t head)
{
    assert(seq->cache->value_norm);
    if (seq->marks == NULL)
        return NULL;
    return kv_norms_at(seq, (size_t)(kv_lane_at(seq, layer, head) - seq->lane));
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
    for (size_t l = 0; l < (size_t)kv_lane_count(from->cache); l++)
        copy_slots(to, from, l, 0, 0, from->lane[l].len);
}

/* ---- entries ---- */

void kv_marks_clear(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot, int32_t n)
{
    size_t at = (size_t)(lane - seq->lane);
    for (int32_t i = 0; i < seq->cache->n_mark; i++)
        memset(kv_marks_at(seq, at, i) + slot, 0, (size_t)n * sizeof(float));
}

void kv_marks_start(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot,
                    const struct kv_page_ref *ref, int32_t entry, int32_t n)
{
    const struct kv_cache *cache = seq->cache;
    size_t at = (size_t)(lane - seq->lane);
    kv_marks_clear(seq, lane, slot, n);
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
    size_t at = (size_t)(lane - seq->lane);
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
    copy_slots(seq, seq, (size_t)(lane - seq->lane), to, from, n);
}

void kv_marks_share(const struct kv_seq *seq, const struct kv_lane *lane, int32_t to,
                    const struct kv_seq *from_seq, int32_t from, int32_t n)
{
    copy_slots(seq, from_seq, (size_t)(lane - seq->lane), to, from, n);
}
