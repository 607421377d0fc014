/*
 * state_internal.h - states as pages.
 */
#ifndef PI_KV_STATE_INTERNAL_H
#define PI_KV_STATE_INTERNAL_H

#include "kv/store.h"

/* The class of states, and the pools of their later parts; returns the number of parts. */
int32_t kv_state_classes_make(const struct kv_geometry *g, struct kv_class *first,
                              struct kv_class more[KV_PART_MOST]);
/* Of a sequence that is made, forked (of `from`), or freed. */
void kv_state_start(struct kv_seq *seq);
void kv_state_fork(const struct kv_seq *from, struct kv_seq *seq);
void kv_state_drop(struct kv_seq *seq);
/* Bytes that its own state lacks before it can be written to; and takes them. */
int64_t kv_state_lacks(const struct kv_seq *seq);
void kv_state_reserve(struct kv_seq *seq);
void kv_state_trim(struct kv_seq *seq); /* gives back that of no token */
void kv_state_forget_kept(struct kv_seq *seq);
/* Copies its floats out, where it has one; false: none. */
bool kv_state_save(const struct kv_seq *seq, uint8_t *out);
/* Makes the state of a fresh sequence that after n_token tokens; there is room. */
void kv_state_load(struct kv_seq *seq, const uint8_t *bytes, int32_t n_token);
/* Forgets kept states that are not shared until there is room for a page of a class. */
void kv_state_give_way(struct kv_cache *cache, const struct kv_class *kind);
/* As kv_seq_truncate. */
void kv_state_truncate(struct kv_seq *seq, int32_t n_token);
/* Lets a page, which counts one more then, be the state of a sequence that has none. */
void kv_state_adopt(struct kv_seq *seq, int32_t page, int32_t n_token);
/* The page of a state after n_token tokens; -1: there is none. */
int32_t kv_state_find(const struct kv_seq *seq, int32_t n_token);
/* Bytes of the kept states that are not shared. */
int64_t kv_state_kept_bytes(const struct kv_cache *cache);
/* Bytes of a sequence's own state, unless its page is marked in n_entry, which it is then; and
   unmarks it. */
int64_t kv_state_count(const struct kv_seq *seq);
void kv_state_uncount(const struct kv_seq *seq);
int64_t kv_state_held_bytes(const struct kv_seq *seq);

#endif
