/*
 * schedule.h - the scheduler's questions to sequences beyond the public header. They are the memory
 * they will take, which tokens may be read again or by others, and waiting in host memory. The
 * functions stand in sequence.c, what helps under pressure beside what it changes.
 */
#ifndef PI_ENGINE_SCHEDULE_H
#define PI_ENGINE_SCHEDULE_H

#include "engine/engine.h"

/* Bytes of KV memory that to.n_token tokens of one sequence take in this engine, at most on the
   way. The first to.n_prompt of them are marked as the prompt; 0: pith_kv_estimate of its own
   params. */
int64_t pi_engine_bytes_at(const struct pith_engine *e, struct keep_point to);

/* Bytes of pages that the sequence's tokens would take without any policy. */
int64_t pi_seq_full_bytes(const struct pith_seq *seq);

/* Bytes of the pages in the sequence's tables, guests of recall and those that others have, too,
   included. */
int64_t pi_seq_held_bytes(const struct pith_seq *seq);

/* The same of several sequences, each page once: kv_seq_count_bytes and kv_seq_uncount. */
int64_t pi_seq_count_bytes(const struct pith_seq *seq);
void pi_seq_uncount(const struct pith_seq *seq);

/* Gives back pages that were reserved and hold nothing. */
void pi_seq_trim(struct pith_seq *seq);

/* The tokens from the beginning whose entries are as without any policy, in full pages, and are of
   use to others (engine_traits.takes_prefixes). They may be published. With a share policy they are
   tokens of the marked prompt at most. */
int32_t pi_seq_unaltered(const struct pith_seq *seq);

/* Whether the sequence's state cannot be had again by evaluating its tokens as one prompt. Its
   prompt is marked. */
bool pi_seq_altered(const struct pith_seq *seq);

/* Whether it can go to host memory: it has no guests of recall. */
bool pi_seq_can_swap(const struct pith_seq *seq);

/* To host memory and back; the sequence must not be used in between. NOMEM, KV_FULL leave it as it
   was; UNSUPPORTED: it has guests of recall. */
pith_status pi_seq_swap_out(struct pith_seq *seq, struct kv_swapped **out, pith_error *err);
pith_status pi_seq_swap_in(struct pith_seq *seq, struct kv_swapped *swapped, pith_error *err);

/* Under memory pressure: a keep round though none is due, or a looser scan for pages to share.
   Returns the bytes that came free. Reserved memory is not to be counted on afterwards. */
int64_t pi_seq_relieve_keep(struct pith_seq *seq);
int64_t pi_seq_relieve_share(struct pith_seq *seq);

#endif
