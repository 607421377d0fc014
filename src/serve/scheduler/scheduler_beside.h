/*
 * scheduler_beside.h - what stands beside pages, where one budget holds both.
 */
#ifndef PI_SCHEDULER_BESIDE_H
#define PI_SCHEDULER_BESIDE_H

#include "engine/account.h"
#include "pith/scheduler.h"

struct sched_answer;
struct slot;

/* The scheduler's part, which scheduler_beside.c writes. Of a sequence's own bytes the engine's sum
   has tables and text already: these are its `known` part. */
struct sched_beside {
    int64_t room;    /* bytes of the budget for pages and all beside them; 0: there is none */
    int64_t limit;   /* of pages now */
    int64_t engine;  /* as pi_engine_beside said last; -1: it is to be asked again */
    int64_t outside; /* of other sequences of the engine, but for the known part */
    int64_t parked;  /* own bytes of parked conversations that have their pages */
    int64_t known;   /* of parked: the known part */
    int64_t away;    /* the known part of sequences in host memory */
};

/* An answer's part, likewise. */
struct answer_beside {
    int32_t n;         /* tokens of the two bounds */
    int64_t own_at;    /* own bytes of its sequence, at most */
    int64_t shared_at; /* and of the engine's buffers, however many run */
    struct pi_own own; /* of a sequence in host memory, where `swapped` counts it */
};

void scheduler_beside_begin(struct pith_scheduler *s);
/* Where nothing of the scheduler's runs: counts what other sequences have. */
void scheduler_beside_look_outside(struct pith_scheduler *s);

/* Counts what is parked in a slot, with its pages (sign 1), or no longer counts it (-1). */
void scheduler_beside_park(struct pith_scheduler *s, struct slot *slot, int sign);
/* The same of a sequence that waits in host memory. */
void scheduler_beside_away(struct pith_scheduler *s, const struct pi_own *own, int sign);

/* The most bytes of pages beside which an answer, with its siblings, has its own bytes up to its
   target; parked conversations give way. */
int64_t scheduler_beside_limit(struct pith_scheduler *s, struct sched_answer *a);
/* Whether a copy of an answer's sequence fits beside all that runs and is parked, with all that was
   set aside. Parked conversations make room for it, those first that were used longest ago. Over
   ranks it is not asked. */
bool scheduler_beside_fits_copy(struct pith_scheduler *s, const struct sched_answer *a);

/* Limits pages to what stands beside them now, or may come to. */
void scheduler_beside_bound(struct pith_scheduler *s);
/* The same, and takes the pages above the limit from who gives way. */
void scheduler_beside_settle(struct pith_scheduler *s);

#endif
