/*
 * marks_internal.h - where marks lie and how they follow their entries.
 */
#ifndef PI_KV_MARKS_INTERNAL_H
#define PI_KV_MARKS_INTERNAL_H

#include "kv/store.h"

/* Bytes beside an entry. */
static inline size_t kv_mark_bytes(const struct kv_cache *cache)
{
    return (size_t)cache->n_mark * sizeof(float) + (cache->value_norm ? sizeof(uint16_t) : 0);
}

/* Mark i of the slots of lane number l. */
static inline float *kv_marks_at(const struct kv_seq *seq, size_t l, int32_t i)
{
    const struct kv_lane *lane = &seq->lane[l];
    size_t row = (size_t)lane->mark_cap * (size_t)seq->cache->g.page_len;
    return (float *)(void *)(seq->marks + lane->mark_at) + (size_t)i * row;
}

/* The norms of the values of its slots. */
static inline uint16_t *kv_norms_at(const struct kv_seq *seq, size_t l)
{
    return (uint16_t *)(void *)kv_marks_at(seq, l, seq->cache->n_mark);
}

/* Bytes of a row of a lane on its device: a mark of every slot. */
static inline size_t kv_marks_row(const struct kv_seq *seq)
{
    return (size_t)seq->cap * (size_t)seq->cache->g.page_len * sizeof(float);
}

/* Entries of a lane whose marks are its device's. */
static inline int32_t kv_marks_there(const struct kv_lane *lane)
{
    return lane->n_there < lane->len ? lane->n_there : lane->len;
}

/* Memory of devices for marks, for room for cap table entries; false: there is none. seq has its
   lanes' classes, and gets the memory alone: kv_marks_settle gives lanes their parts. */
bool kv_marks_reserve(struct kv_seq *seq, const struct kv_seq *lanes, int32_t cap);
void kv_marks_settle(struct kv_seq *seq);
void kv_marks_release(struct kv_cache *cache, struct pi_at *there);
/* The host gets a lane's marks, which the device forgets. */
void kv_marks_pull(const struct kv_seq *seq, struct kv_lane *lane);

/* Bytes of a larger block; 0: the block is large enough. Every lane needs room for the marks of
   mark_wanted pages, or of its entries where those are more. All together need room for n_page. */
size_t kv_marks_lack(const struct kv_seq *seq, int64_t n_page);
/* After that: gives every lane its room, in such a block (the sequence owns it then) or, with NULL,
   in its own. Other lanes may lose room beyond what they want. */
void kv_marks_fit(struct kv_seq *seq, uint8_t *block, size_t size);
/* Bytes of the block at most, for n_page pages of all lanes together. */
int64_t kv_marks_bytes_at(const struct kv_geometry *g, size_t mark_size, int64_t n_page);
/* Copies the marks of all entries to a sequence with as much room. */
void kv_marks_copy(const struct kv_seq *from, const struct kv_seq *to);
/* Sets the marks of slots slot .. slot + n to 0, not the norms. pos [n]: their positions. */
void kv_marks_clear(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot,
                    const int32_t *pos, int32_t n);
/* Sets the marks of slots slot .. slot + n to 0, whose entries are new, and their norms. The values
   were written to places entry .. entry + n of a page. */
void kv_marks_start(const struct kv_seq *seq, const struct kv_lane *lane, int32_t slot,
                    const struct kv_page_ref *ref, int32_t entry, int32_t n);
/* The same for every entry of a lane. */
void kv_marks_start_lane(const struct kv_seq *seq, const struct kv_lane *lane);
/* Packs the marks of the given slots, n of them, ascending, into the first ones. */
void kv_marks_keep(const struct kv_seq *seq, const struct kv_lane *lane, const int32_t *slots,
                   int32_t n);
/* Moves the marks of n slots next to each other. */
void kv_marks_move(const struct kv_seq *seq, const struct kv_lane *lane, int32_t to, int32_t from,
                   int32_t n);
/* The same to the lane of that layer and head of another sequence, or of the same. */
void kv_marks_share(const struct kv_seq *seq, const struct kv_lane *lane, int32_t to,
                    const struct kv_seq *from_seq, int32_t from, int32_t n);

#endif
