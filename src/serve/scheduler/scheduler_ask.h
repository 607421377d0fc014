/*
 * scheduler_ask.h - recall of text: a prompt is read up to its question, which searches the text
 * that its sequence lost. The text that it finds is read in front of it.
 */
#ifndef PI_SCHEDULER_ASK_H
#define PI_SCHEDULER_ASK_H

#include "pith/scheduler.h"

struct request;
struct sched_answer;

/* An answer's part, which scheduler_ask.c writes. */
struct answer_ask {
    int32_t place;    /* the known token that the question begins with; 0: there is none */
    int32_t at;       /* the same where it is asked, else 0 */
    const char *text; /* [len] of the request's message: the question */
    size_t len;
    bool looked;   /* `place` is of the known tokens */
    bool found;    /* the search was made: the known tokens hold what it found */
    bool accepted; /* so does the sampler */
    int32_t n;     /* tokens that were found */
};

/* The most tokens that a request's question may find, for which memory is set aside; 0: it asks
   nothing. */
int32_t scheduler_ask_most(const struct pith_scheduler *s, const struct request *r);

/* Looks where the question begins in the answer's known tokens, of which its sequence will hold
   n_parked from the start. Costs O(known tokens), once for each list of them. */
void scheduler_ask_look(struct pith_scheduler *s, struct sched_answer *a, int32_t n_parked);

/* Searches where the answer's sequence has read all before its question. A search that fails finds
   nothing, and says so in the log. */
void scheduler_ask(struct pith_scheduler *s, struct sched_answer *a);

/* The known tokens up to which the answer reads next: its question, or all of them. */
int32_t scheduler_ask_end(const struct sched_answer *a);

/* The known tokens are others: nothing was asked. */
void scheduler_ask_forget(struct sched_answer *a);

#endif
