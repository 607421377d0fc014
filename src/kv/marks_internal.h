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
    size_t row = (size_t)seq->cap * (size_t)seq->cache->g.page_len;
    float *first = (float *)(void *)seq->marks;
    return first + (l * (size_t)seq->cache->n_mark + (size_t)i) * row;
}

/* The norms of the values of its slots. */
static inline uint16_t *kv_norms_at(const struct kv_seq *seq, size_t l)
{
    size_t row = (size_t)seq->cap * (size_t)seq->cache->g.page_len;
    float *behind = kv_marks_at(seq, (size_t)kv_lane_count(seq->cache), 0);
    return (uint16_t *)(void *)behind + l * row;
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

/* An entry's marks, and the norm of its value. The bytes of a sequence's with room for cap
   table entries; false: too many. */
bool kv_marks_size(const struct kv_cache *cache, int32_t cap, size_t *size);
/* Copies the marks of all entries into the block of another sequence, or one with more room. */
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
