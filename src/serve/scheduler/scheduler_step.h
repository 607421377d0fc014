/*
 * scheduler_step.h - one step: its plan, and what it evaluates.
 */
#ifndef PI_SCHEDULER_STEP_H
#define PI_SCHEDULER_STEP_H

#include "pith/scheduler.h"

struct sched_answer;

/* The scheduler's part, which scheduler_step.c writes; a sequence that takes pages while the
   step is planned takes them from `spare`. */
struct sched_step {
    struct sched_answer **item_of; /* [params.n_seq] the answer that an item is of; owned */
    pith_batch_item *items;        /* [params.n_seq] of the step; owned */
    int32_t n_item;
    int32_t tokens_left;  /* of the step that is planned */
    int64_t spare;        /* bytes that are free and that no answer in it can come to need */
    bool takes_memory;    /* what it reads has its pages: those that come take theirs, too */
    double next_deadline; /* none is earlier */
    double user_s;        /* of this step: evaluating, sampling, in callbacks */
};

/* An answer's part, which scheduler_step.c writes. */
struct answer_step {
    int32_t n_take;  /* tokens of it in the step that is planned */
    int32_t n_shown; /* tokens of the prompt whose logits are shown, or not asked for */
    bool not_finite; /* one of these rows is not */
    bool unwanted;   /* the caller's callback wants no more */
};

/* Whether n more tokens of an answer have their memory even if all its pages are shared: then its
   lanes need not be looked at. Where an answer waits to be admitted beside it, what this one takes
   is to be taken first. */
bool scheduler_is_roomy(struct pith_scheduler *s, int32_t n);
/* A step that may be done: pith_scheduler_step's. */
void scheduler_run_step(struct pith_scheduler *s);
/* Brings what pith_scheduler_get_stats shows up to date. */
void scheduler_show(struct pith_scheduler *s);

#endif
