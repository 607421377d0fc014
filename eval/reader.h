/*
 * reader.h - one cache that reads chunks of a text, several side by side, and what it thinks of
 * their tokens: what perplexity and stack share.
 *
 * The tokens behind the middle of a chunk are scored: the logits of positions n_ctx/2 .. n_ctx-2,
 * nll = -(logit - max - log(sum exp(logit - max))).
 */
#ifndef PI_EVAL_READER_H
#define PI_EVAL_READER_H

#include "chunks.h"

struct reader_scorer; /* reader.c */

struct eval_reader {
    const struct eval_chunks *chunks; /* borrowed */
    struct eval_run *run;             /* borrowed: whose progress is told */
    pith_engine *engine;              /* borrowed */
    const char *what;                 /* is being done, for progress; borrowed */
    int32_t n_seq;                    /* chunks that are read side by side at most */
    int32_t n_batch;                  /* tokens of a chunk that are read at once */
    int32_t n_scored;                 /* tokens of a chunk that are scored, .. */
    int32_t first;                    /* .. the first by the logits of this position */
    int32_t n_vocab;
    const pith_model *model; /* borrowed */
    pith_error bad; /* why the logits of the span that is read are none; status 0: they are */

    /* Of the group that was read last. */
    double *nll;             /* [n_seq][n_scored] owned */
    int32_t *first_round;    /* [n_seq] tokens at the first eviction, -1: none; owned */
    int64_t *evicted;        /* [n_seq] owned */
    int64_t *rounds;         /* [n_seq] owned */
    struct eval_answer cost; /* of the group: seconds, what the policies did, and of one chunk .. */
    int64_t kv_end_bytes;    /* .. beside its peak the pages in use at its end */

    struct reader_scorer *scorers; /* [n_seq] owned, like what follows */
    pith_batch_item *items;        /* [n_seq] */
    pith_seq **seqs;               /* [n_seq] */
    int32_t *tokens;               /* [n_seq][n_ctx] as they are read */
};

/* Tokens in the sequence when the first entry went, by a round or because a token took its place;
   -1: none did. */
int32_t eval_first_eviction(const pith_keep_stats *keep);

/* The chunks that n_batch tokens hold whole, at least one and at most all: as many are read side by
   side. */
int32_t eval_reader_side_by_side(const struct eval_chunks *chunks, int32_t n_batch);

/* For the engine, which must hold n_seq chunks. The caller frees, also after a failure. INVALID
   (n_batch is not positive), NOMEM. */
pith_status eval_reader_make(const struct eval_chunks *chunks, const pith_model *model,
                             pith_engine *engine, struct eval_run *run, int32_t n_batch,
                             int32_t n_seq, const char *what, struct eval_reader *out,
                             pith_error *err);
void eval_reader_free(struct eval_reader *r);

/* Reads chunks [chunk, chunk + n), n <= n_seq, each in a sequence of its own from position 0. The
   group is a share of the task, of which a fraction lies before it. The statuses of
   pith_batch_eval, CANCELLED. */
pith_status eval_reader_read(struct eval_reader *r, int32_t chunk, int32_t n, double fraction,
                             double share, pith_error *err);

/* The first of the scored tokens of sequence i that is behind its first round: its logits are of a
   position behind the round. n_scored where there is none. */
int32_t eval_reader_after(const struct eval_reader *r, int32_t i);

/* ---- figures ---- */

/* Of a set of tokens: how well they were predicted, also by another cache, and the differences. */
struct eval_tally {
    struct eval_moments nll;
    struct eval_moments full;
    struct eval_moments diff;       /* nll less full, per token */
    struct eval_moments diff_chunk; /* its means of chunks */
};

/* Adds tokens [from, n) of a chunk; full NULL: there is nothing to compare with. */
void eval_tally_add(struct eval_tally *t, const double *nll, const double *full, int32_t from,
                    int32_t n);

/* Sets the perplexity of a mean nll and its error: d exp(m) = exp(m) dm. False: no memory. */
bool eval_set_perplexity(json_t *object, const char *key, const char *key_se,
                         const struct eval_moments *nll);

#endif
