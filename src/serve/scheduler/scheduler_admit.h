/*
 * scheduler_admit.h - memory: the queue, which answers may begin, and which have to give way.
 */
#ifndef PI_SCHEDULER_ADMIT_H
#define PI_SCHEDULER_ADMIT_H

#include "pith/scheduler.h"

struct request;
struct sched_answer;

/* The scheduler's part. scheduler_admit.c writes it; scheduler_result.c gives a part of an
   answer's memory to its siblings. */
struct sched_room {
    struct sched_answer *first, *last; /* the queue: by priority, then by id, then by index */
    int32_t n_active;                  /* answers that run, siblings included */
    int64_t n_admission;
    int64_t set_aside; /* the sum of the running answers' */
    int64_t outside;   /* bytes of pages that other sequences of the engine hold */
    int64_t swapped;   /* bytes in host memory; scheduler_slot.c counts parked ones in */
    bool put_back;     /* some answer was, in this step */
};

/* An answer's part, which scheduler_admit.c writes; scheduler_result.c fills in a sibling's. */
struct answer_room {
    struct sched_answer *prev, *next; /* in the queue */
    int32_t target;                   /* tokens that memory is set aside for */
    int64_t set_aside;                /* under a keep policy: these bytes */
    int64_t admission;                /* counts up: which was admitted last */
    bool new_here;                    /* it was admitted in this step */
    int32_t n_preempted;              /* times that it was put back */
};

/* The tokens that an answer reads before it generates. scheduler_admit.c writes them when an answer
   is put back, scheduler_retell.c where its slot has others for the same text. */
struct answer_tokens {
    int32_t *list; /* [n] owned: what was evaluated before it was put back; NULL: the prompt, which
                      is the request's */
    int32_t n;
    bool retold;        /* list is the prompt, in the tokens that its slot has for it */
    int32_t n_more;     /* of n: tokens that the request's prompt lacks */
    int32_t n_computed; /* tokens that were evaluated before it was put back */
    int32_t mark;       /* the first positions of its sequence, marked as the prompt */
};

/* The queue. */
void scheduler_enqueue(struct pith_scheduler *s, struct sched_answer *a);
void scheduler_dequeue(struct pith_scheduler *s, struct sched_answer *a);

/* Answers that leave when a does: it and, before its prompt was read, its siblings. */
int32_t scheduler_group_size(const struct sched_answer *a);

/* The most tokens that a sequence of the request can come to hold. And the bytes of KV memory
   that n tokens of it take with a mark. */
int32_t scheduler_final(const struct pith_scheduler *s, const struct request *r);
int64_t scheduler_bytes(const struct pith_scheduler *s, const struct request *r, int32_t mark,
                        int32_t n);

/* Pages that the running answers may still take of those that were set aside for them. */
int64_t scheduler_growth(const struct pith_scheduler *s);

/* The share of the possible growth of answers that is set aside. */
double scheduler_reserve(const struct pith_scheduler *s);

/* Admits the first of the queue where its memory can be set aside: it runs then. False: it waits,
   or it failed and has ended, or there is none; *again: another may be tried. */
bool scheduler_admit_first(struct pith_scheduler *s, bool *again);
/* Brings the figures of the prefixes up to date where prefixes_changed says that they are not. Code
   that begins or ends a sequence, publishes or drops prefixes sets it. It looks at every page, so
   not in every step. */
void scheduler_look_at_prefixes(struct pith_scheduler *s);

/* Frees memory, or takes it from an answer that runs, so that `needy` may get `bytes` more
   (NULL: any answer). The step is to be planned anew. An answer that was admitted in this step
   gives way to all others. False: nothing can be freed. */
bool scheduler_relieve(struct pith_scheduler *s, struct sched_answer *needy, int64_t bytes);

/* How many of the answer's known tokens others' prefixes have, and of them those in pages that are
   not in use; there are prefixes. */
int32_t scheduler_find_prefix(const struct pith_scheduler *s, const struct sched_answer *a,
                              int32_t *n_unused);
/* Drops prefixes that are not in use, then takes pages of parked conversations, until `bytes` of
   pages are free. */
bool scheduler_make_room(struct pith_scheduler *s, int64_t bytes);
/* Removes an answer from the running ones; its reserved memory is free for others. */
void scheduler_stop_running(struct pith_scheduler *s, struct sched_answer *a);

#endif
