/*
 * scheduler_result.h - tokens of a step's logits, and ends.
 */
#ifndef PI_SCHEDULER_RESULT_H
#define PI_SCHEDULER_RESULT_H

#include "pith/scheduler.h"

struct request;
struct sched_answer;

/* An answer's part: figures of its result. The files that come to know them write them;
   scheduler_result.c hands them out. */
struct answer_tally {
    int32_t n_prompt; /* as in the result */
    int32_t n_cached;
    int32_t n_from_park; /* of n_cached */
    int64_t n_evicted;   /* entries that its sequence had lost when it came to it */
    pith_reuse reuse;
    int32_t differs_at;
    int32_t n_published; /* tokens whose pages were offered to the cache of prefixes */
    double admitted_at;  /* for the first time; 0: never */
    double first_at;     /* the first token; 0: none yet */
    double share_s;      /* of the sequence's statistics: counted already */
};

/* The answer has its prompt in its sequence, with logits: makes its siblings, and each its first
   token. */
void scheduler_start_answers(struct pith_scheduler *s, struct sched_answer *a);
/* Chooses the next token from the sequence's logits, hands it out, and ends what it ends. */
void scheduler_choose(struct pith_scheduler *s, struct sched_answer *a);

/* Remembers the sequence's pages for others. */
void scheduler_publish(struct pith_scheduler *s, struct sched_answer *a);

/* Ends an answer as OK, with the text that was held back. */
void scheduler_end(struct pith_scheduler *s, struct sched_answer *a, pith_stop_reason reason);
/* Ends an answer, and its siblings that wait for its prompt, for why. */
void scheduler_fail(struct pith_scheduler *s, struct sched_answer *a, const pith_error *why);
/* Ends what is left of a request. */
void scheduler_fail_request(struct pith_scheduler *s, struct request *r, const pith_error *why);

#endif
