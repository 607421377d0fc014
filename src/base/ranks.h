/*
 * ranks.h - one model over several processes. Rank r of n computes a range of the output rows of
 * every matrix, and rows are gathered. No rank adds up a part of a sum, so the bits are the same
 * as in one process. With one rank every function returns at once. ranks_mpi.c or ranks_one.c is
 * behind it.
 *
 * All ranks call the gathering functions in the same order; each waits for the others.
 */
#ifndef PI_RANKS_H
#define PI_RANKS_H

#include "base/base.h"
#include "pith/ranks.h"

/* Of the process. */
const pith_ranks_info *pi_ranks(void);

/* On this thread pi_ranks says so, for estimates, until this is called with NULL. Nothing is sent
   meanwhile. */
void pi_ranks_pretend(const pith_ranks_info *ranks);

#define PI_RANKS_MOST 256

/* ---- parts (ranks.c) ---- */

/* INVALID where there is no such split, or not a weight for each of n_rank ranks. */
pith_status pi_ranks_check_parts(pith_split split, const int32_t *weight, int32_t n_weight,
                                 int32_t n_rank, pith_error *err);

/* Of n units rank r has those from pi_ranks_from(n, r) on, up to pi_ranks_from(n, r + 1). It is a
   part by its weight, and one at least where there are as many units as ranks. */
int32_t pi_ranks_from(int32_t n, int32_t r);

/* Whether each of several ranks has some layers, and each some rows of every layer. */
bool pi_ranks_by_layers(void);
bool pi_ranks_by_rows(void);

/* How many this rank has. */
static inline int32_t pi_ranks_own(int32_t n)
{
    int32_t r = pi_ranks()->rank;
    return pi_ranks_from(n, r + 1) - pi_ranks_from(n, r);
}

/* ---- messages ---- */

/* rows [n_tok][own units] become rows [n_tok][n_unit] in the same memory. */
void pi_ranks_gather(void *rows, int32_t n_tok, int32_t n_unit, size_t unit_bytes);

/* The same, but the other ranks' units come to rank 0 alone. */
void pi_ranks_collect(void *rows, int32_t n_tok, int32_t n_unit, size_t unit_bytes);

/* As pi_ranks_gather, of codes with their scales and sums (cpu/matmul.h): 40 bytes for 32 values. A
   unit is n_block blocks of 32. */
void pi_ranks_gather_int8(int8_t *q, float *scale, int16_t *sum16, int32_t n_tok, int32_t n_unit,
                          int32_t n_block);

/* Memory for `size` bytes of this rank, which pi_ranks_share then gathers. It returns the bytes of
   all ranks, one behind the other: size[r] of rank r, which all know. They stay until the next
   message. */
void *pi_ranks_write(size_t size);
const uint8_t *pi_ranks_share(const size_t *size);
/* Where each knows its own alone: size [n_rank]. */
void pi_ranks_learn_sizes(size_t own, size_t *size);

/* Rank 0's bytes, to all. */
void pi_ranks_tell(void *data, size_t size);

/* Rank 0 ends the sleep of all others, who take less than a hundredth of a processor meanwhile. A
   message to all follows. */
void pi_ranks_wake(void);
void pi_ranks_sleep(void);

/* The least of all ranks' numbers, and their sum. */
int64_t pi_ranks_least(int64_t number);
int64_t pi_ranks_sum(int64_t number);

/* The status of the first rank that failed, with its sentence; OK where all succeeded. */
pith_status pi_ranks_agree(pith_status status, pith_error *err);

/* INVALID where a number of `what` is not the same on all ranks. */
pith_status pi_ranks_same(const char *what, uint64_t number, pith_error *err);

/* ---- layers: from one rank to the next ---- */

/* Where the split is PITH_SPLIT_AUTO, rank 0 decides. layer_s: seconds in which a layer's weights
   are read; 0: rows will not do. */
void pi_ranks_choose(double layer_s);

/* From the rank before this one, which waits for them. */
void pi_ranks_receive(void *rows, size_t size);
/* To the rank behind it. The rows are copied, and this rank goes on. */
void pi_ranks_hand_on(const void *rows, size_t size);
/* Rows that were handed on only move while MPI is called: for those who compute long. */
void pi_ranks_move(void);

/* The last rank's bytes, to all, or to rank 0 alone. */
void pi_ranks_tell_last(void *data, size_t size);
void pi_ranks_give_first(void *data, size_t size);

#endif
