/*
 * draft.h - tokens that are evaluated before they are chosen. A sequence has at most one draft at a
 * time; generate.c and the scheduler run the passes.
 *
 * The order of calls: pi_draft_find gives the tokens to evaluate behind the next one. Then come
 * pi_seq_begin_ahead, the evaluation with the logits of every token, and pi_seq_end_ahead. The
 * sequence then ends behind its next token, and the draft's entries stand ahead of it. For each
 * token that is chosen pi_seq_take_ahead tells whether it was drafted, and the sequence ends behind
 * it. When one was not, or the text has ended, pi_seq_drop_ahead forgets the rest: the sequence is
 * what it would be.
 */
#ifndef PI_DRAFT_H
#define PI_DRAFT_H

#include "engine/draft_gauge.h"
#include "engine/draft_lookup.h"
#include "engine/engine.h"

/* The sources of a sequence's drafts, and their estimates. */
struct pi_draft {
    pith_draft_params params;
    struct draft_gauge gauge;
    struct draft_lookup lookup; /* owned */
    struct pith_seq *model;     /* of params.engine, owned; NULL: none, or not yet */
    bool model_failed;          /* it could not go on, for want of memory mostly */
    int kind;                   /* of the draft that runs */
    int32_t n;                  /* its tokens; 0: none runs */
    int32_t n_came;             /* of them, so far */
    int32_t n_draft;            /* since pi_seq_start_draft: all tokens of drafts, */
    int32_t n_accepted;         /* and those that came true */
};

/* ---- draft.c ---- */

/* Lets the sequence draft so; what it learnt under the same params stays. The statuses of
   pith_draft_check; NOMEM. */
pith_status pi_seq_start_draft(struct pith_seq *seq, const pith_draft_params *params,
                               pith_error *err);
/* Gives back what the drafting model holds of the sequence's tokens: none are drafted for now. */
void pi_seq_rest_draft(struct pith_seq *seq);

/* A draft of at most `most` tokens behind the token `next`, which the sequence does not hold yet:
   out [most]. It is for a pass with n_row rows, that one included. It ends before a keep round is
   due. 0: nothing is drafted, for lack of memory, too. */
int32_t pi_draft_find(struct pith_seq *seq, const struct draft_cost *cost, int32_t next,
                      int32_t n_row, int32_t most, int32_t *out);

/* ---- draft_model.c ---- */

/* How likely all of a draft must be to come true, by the model's own account. */
struct draft_limits {
    double row;  /* with a token that was found, so that it is worth a row of the pass */
    double next; /* so far, so that another token is worth being looked for */
};

/* The time of the drafting model to follow the tokens [n]: out [most]. *seconds that it took, 0
   where it had to read much first. below: ids that the other model has. Returns the tokens, or -1:
   it failed. */
int32_t draft_model_find(struct pith_seq *model, const int32_t *tokens, int32_t n, int32_t below,
                         int32_t most, const struct draft_limits *limits, int32_t *out,
                         double *seconds);

#endif
