/*
 * marks.h - floats beside the entries of a lane, and the norms of their values.
 */
#ifndef PI_KV_MARKS_H
#define PI_KV_MARKS_H

#include "base/base.h"

struct kv_cache;
struct kv_seq;

/* From now on every entry of a new sequence has n_mark floats beside it, its marks. They are 0 when
   the entry is appended, and the caller may change them. They follow the entry until it is dropped
   or overwritten. A fork, and a sequence that shares entries, get copies. A snapshot has none:
   after a load they are 0.
   With value_norm the L1 norm of the entry's value stands beside them. Appending and loading set
   it, and it never changes. It is the norm of the value as it is stored, summed in ascending order
   of dimensions. It is rounded to bf16, since steps read it at every token.
   The bytes of both count with page tables. No sequence exists yet. */
void kv_cache_set_marks(struct kv_cache *cache, int32_t n_mark, bool value_norm);
/* Attention notes the marks (kv/note.h), and few others write them. Devices that can have them in
   their own memory then, and the host gets what it asks for. */
void kv_cache_note_marks(struct kv_cache *cache);

/* Behind the marks the position of every entry lies as another one. So devices can choose the entry
   that a step overwrites (kv/victim.h). Callers do not see that mark. */
void kv_cache_note_places(struct kv_cache *cache);
/* Whether the device of a lane can: where entries are read at the positions of their own. */
bool kv_lane_finds_victim(const struct kv_seq *seq, int32_t layer, int32_t head);

/* Mark i of every slot, [length]; kv_cache_set_marks. The thread that has the lane may write. Valid
   until the sequence gets more room (reserve, fork, load) or the lane's slots change, or attention
   notes them. A device that has them is asked for them, and gets them back with the next entry. */
float *kv_lane_marks(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i);
/* The same to read alone: a device keeps them. */
const float *kv_lane_read_marks(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i);
/* The norms of the values of every slot, bf16 [length], likewise. */
const uint16_t *kv_lane_norms(const struct kv_seq *seq, int32_t layer, int32_t head);
/* Where the host has them; their contents may be out of date. NULL: no lane has had room yet. */
float *kv_lane_marks_place(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i);
const uint16_t *kv_lane_norms_place(const struct kv_seq *seq, int32_t layer, int32_t head);

#endif
