/*
 * memory.h - all that a sequence remembers of its tokens: the lanes of its layers with attention.
 * Code that copies, cuts, stores or puts away a sequence as a whole asks this; code that looks into
 * lanes (policies, attention) takes kv. The state of recurrent layers, which is valid for one
 * position alone, belongs here, too. States of a few earlier positions are kept beside it, to which
 * the sequence can go back; they are chosen by positions alone.
 */
#ifndef PI_MEMORY_H
#define PI_MEMORY_H

#include "kv/kv.h"

struct pi_memory {
    struct kv_seq *kv; /* owned; NULL until it is made */
};

/* Of a zeroed object; what they make is freed by pi_memory_free. Statuses of kv's functions. */
pith_status pi_memory_create(struct pi_memory *m, struct kv_cache *cache, pith_error *err);
pith_status pi_memory_fork(const struct pi_memory *from, struct pi_memory *m, pith_error *err);
/* extra: the caller's bytes, as in kv_seq_save and kv_seq_load. */
pith_status pi_memory_save(const struct pi_memory *m, const void *extra, size_t size,
                           const char *path, pith_error *err);
pith_status pi_memory_load(struct pi_memory *m, struct kv_cache *cache, const char *path,
                           void **extra, size_t *size, pith_error *err);
void pi_memory_free(struct pi_memory *m);

/* Room for n more tokens, of which a pass takes no more than the cache's step_len. KV_FULL, NOMEM
   leave everything as it was. */
pith_status pi_memory_reserve(struct pi_memory *m, int32_t n, pith_error *err);
/* After a pass: forgets what no later token sees. more: the reservation goes on. */
void pi_memory_settle(struct pi_memory *m, bool more);
/* Of the tokens [from, to), which are evaluated together, those that the first pass may have at
   most. The state after them should be kept. All where there is no state. */
int32_t pi_memory_until_state(const struct pi_memory *m, int32_t from, int32_t to);
/* After that pass, which ended at n_token, in an evaluation up to `to`. */
void pi_memory_note(struct pi_memory *m, int32_t n_token, int32_t to);

/* The most tokens, n_token at most, after which the sequence could go on. Tokens behind that
   must be read again. Ranks that have layers find it together, so that all of them call this. */
int32_t pi_memory_reach(const struct pi_memory *m, int32_t n_token);
/* Forgets what follows n_token tokens, which reach answered. */
void pi_memory_truncate(struct pi_memory *m, int32_t n_token);

/* To host memory and back; kv_seq_swap_out, kv_seq_swap_in. */
pith_status pi_memory_swap_out(struct pi_memory *m, struct kv_swapped **out, pith_error *err);
pith_status pi_memory_swap_in(struct pi_memory *m, struct kv_swapped *swapped, pith_error *err);

int64_t pi_memory_bytes(const struct pi_memory *m); /* of pages, reserved ones included */

#endif
