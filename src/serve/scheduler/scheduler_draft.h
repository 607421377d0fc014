/*
 * scheduler_draft.h - drafts of answers that run.
 */
#ifndef PI_SCHEDULER_DRAFT_H
#define PI_SCHEDULER_DRAFT_H

#include "engine/draft.h"
#include "pith/scheduler.h"

struct sched_answer;

/* The scheduler's part, which scheduler_draft.c writes; scheduler_step.c notes costs. */
struct sched_draft {
    pith_draft_params params; /* the scheduler's params.draft points to it */
    float *rows; /* [n_max + 4][n_vocab] of a step's drafts; owned; NULL: there are none */
    struct draft_cost cost; /* of steps in which no prompt is read */
};

/* An answer's part, which scheduler_draft.c writes. */
struct answer_draft {
    bool started;      /* its sequence knows what it drafts by */
    int32_t n_take;    /* tokens of a draft, while the step is planned */
    float *rows;       /* [n][n_vocab] of the draft: a part of the scheduler's */
    int32_t first_row; /* position of the first of them */
    int32_t n;         /* as in the result */
    int32_t n_accepted;
    int32_t tokens[DRAFT_MOST + 1]; /* the next token, and what is drafted behind it */
};

/* Makes the drafts that params.draft asks for. The statuses of pith_draft_check, NOMEM. */
pith_status scheduler_start_drafts(struct pith_scheduler *s, pith_error *err);
/* Adds drafts to what is planned, where that suits. */
void scheduler_plan_drafts(struct pith_scheduler *s);
/* An answer's next token and its draft, n together. */
pith_batch_item scheduler_draft_item(struct sched_answer *a, int32_t n);
/* Chooses tokens from the rows of a draft that was evaluated, until one was not drafted. */
void scheduler_use_draft(struct pith_scheduler *s, struct sched_answer *a);
/* Forgets what of a draft did not come true, where there is one. */
void scheduler_end_draft(struct pith_scheduler *s, struct sched_answer *a);

#endif
