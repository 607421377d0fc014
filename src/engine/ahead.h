/*
 * ahead.h - entries ahead of a sequence's end. They are of drafted tokens, until each came true or
 * is forgotten. draft.h has the order of calls.
 */
#ifndef PI_AHEAD_H
#define PI_AHEAD_H

#include "base/base.h"

/* A sequence's part, which ahead.c writes. */
struct pi_ahead {
    int32_t n_draft; /* the last tokens of the running evaluation that are a draft */
    int32_t n_ahead; /* tokens of a draft behind n_token, whose entries are there */
    bool is_ahead;   /* a draft was evaluated, and is not done with */
};

/* Before an evaluation whose last n_draft tokens are a draft. */
void pi_seq_begin_ahead(struct pith_seq *seq, int32_t n_draft);
/* After it; ok: it did not fail. The draft's tokens are no part of the sequence yet. */
void pi_seq_end_ahead(struct pith_seq *seq, bool ok);
/* Gives the sequence the row of logits behind its last token. It has room for one. */
void pi_seq_set_logits(struct pith_seq *seq, const float *row);
/* Whether the next token ahead is this one: it is a part of the sequence then. */
bool pi_seq_take_ahead(struct pith_seq *seq, int32_t token);
/* Forgets what is ahead, and learns from that. Does nothing where nothing was. */
void pi_seq_drop_ahead(struct pith_seq *seq);

#endif
