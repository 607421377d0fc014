/*
 * state.h - states: the memory of layers without lanes, for all tokens up to one position.
 */
#ifndef PI_KV_STATE_H
#define PI_KV_STATE_H

#include "base/base.h"
#include "device/device.h"

struct kv_seq;

/* A state is one block of floats, state_bytes of them, all 0 before the first token. Its bytes
   count in the budget as pages do. kv_seq_reserve makes room for the sequence's own state, which a
   fork shares until it is written to. Beside it a sequence may keep states of earlier positions,
   which it can be truncated to. Kept states take free bytes alone, and count as free: they give way
   to pages. */

/* The most that are kept of a sequence. */
enum { KV_STATES_KEPT = 3 };

/* The sequence's state from one of its bytes on, to be read and written to on the device that has
   it; room was reserved. */
struct pi_at kv_seq_state(const struct kv_seq *seq, size_t offset);
/* The same to the host and back, state_bytes of it. */
void kv_seq_read_state(const struct kv_seq *seq, void *out);
void kv_seq_write_state(const struct kv_seq *seq, const void *state);
/* Notes that the state is now the one after n_token tokens. Does nothing if the cache has no
   states. */
void kv_seq_note_state(struct kv_seq *seq, int32_t n_token);
/* Keeps a copy of the state where there is room. The one that is missed least gives way where there
   are as many as there may be. */
void kv_seq_keep_state(struct kv_seq *seq);
/* The most tokens, n_token at most, after which there is a state; n_token where the cache has
   none. */
int32_t kv_seq_state_reach(const struct kv_seq *seq, int32_t n_token);
/* Before a fork of `from` is truncated to n_token tokens, for which `from` has a state: gives it
   that one. It has none of those that `from` keeps, so that they still give way to pages. */
void kv_seq_borrow_state(struct kv_seq *seq, const struct kv_seq *from, int32_t n_token);
/* Remembers that the state after n_token tokens should be kept; -1: none, as at first. */
void kv_seq_want_state(struct kv_seq *seq, int32_t n_token);
int32_t kv_seq_wanted_state(const struct kv_seq *seq);

#endif
