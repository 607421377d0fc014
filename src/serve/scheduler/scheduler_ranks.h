/*
 * scheduler_ranks.h - a scheduler over several ranks (base/ranks.h). All ranks plan the same steps
 * from the same state. Rank 0 tells all others what comes from outside: the time, and whether a
 * request is still wanted. With params.led it also tells them of requests and of the tokens that
 * it chose.
 */
#ifndef PI_SCHEDULER_RANKS_H
#define PI_SCHEDULER_RANKS_H

#include "pith/scheduler.h"

struct request;

enum sched_role {
    SCHED_ALONE,   /* one rank: nothing below does anything */
    SCHED_EQUAL,   /* every rank submits the same requests */
    SCHED_LEADS,   /* rank 0 of several, with params.led */
    SCHED_FOLLOWS, /* another rank, likewise: it has no requests of its own */
};

/* The scheduler's part, which scheduler_ranks.c writes. */
struct sched_ranks {
    enum sched_role role;
    bool at_once;   /* each result is told by itself: what follows from it may need other ranks */
    bool unlike;    /* ranks run out of pages one before the other */
    uint8_t *bytes; /* [cap] owned; n of them are a message */
    size_t n, cap;
    size_t at;  /* of a follower: what it has read of the message */
    double now; /* rank 0's time of the step that a follower takes part in */
};

/* Before the first step. swap_bytes becomes this rank's part. Where ranks are unlike there are no
   prefixes: these would be dropped one before the other. */
void scheduler_ranks_begin(struct pith_scheduler *s);

/* Rank 0's time. */
double scheduler_ranks_now(struct pith_scheduler *s, double now);
/* Rank 0's answer to a question that other ranks might answer otherwise. */
bool scheduler_ranks_agree(const struct pith_scheduler *s, bool answer);

/* The least of all ranks' numbers, where they are unlike and submit the same requests. */
int64_t scheduler_ranks_least(const struct pith_scheduler *s, int64_t number);
/* Rank 0's choice, where ranks are unlike. */
void scheduler_ranks_choose(const struct pith_scheduler *s, int32_t *choice);
/* Whether something fits on all ranks, where they are unlike; and the status that all come to. */
bool scheduler_ranks_fit(const struct pith_scheduler *s, bool fits);
pith_status scheduler_ranks_status(const struct pith_scheduler *s, pith_status status,
                                   pith_error *err);

/* The leader tells its followers of a step: requests that came, by `next`, and those that were
   cancelled, by `next_ending`. */
void scheduler_ranks_tell_step(struct pith_scheduler *s, const struct request *came,
                               const struct request *cancelled, double now);

/* Around results of a step. scheduler_ranks_share gives the leader's to followers: at once, or all
   of them in one message. */
void scheduler_ranks_open(struct pith_scheduler *s);
void scheduler_ranks_share(struct pith_scheduler *s, void *data, size_t size);
void scheduler_ranks_close(struct pith_scheduler *s);

/* Whether another rank decides on tokens. */
bool scheduler_ranks_follows(const struct pith_scheduler *s);

/* The leader tells of slot i that it was erased, and at last of its end. */
void scheduler_ranks_tell_erase(struct pith_scheduler *s, int32_t i);
void scheduler_ranks_tell_end(struct pith_scheduler *s);

#endif
