/*
 * scheduler_slot.h - parked conversations, and which request goes on from one.
 */
#ifndef PI_SCHEDULER_SLOT_H
#define PI_SCHEDULER_SLOT_H

#include "engine/schedule.h"
#include "pith/scheduler.h"

struct request;
struct sched_answer;

/* Where a request's sequence stays for the next one. Requests name the first of them; the others
   are places for conversations that are found by their tokens. */
struct slot {
    pith_seq *seq;              /* owned; NULL: nothing is parked */
    struct kv_swapped *swapped; /* owned: its pages in host memory; NULL: it has its pages */
    struct sched_answer *runs;  /* was admitted in it, and has not ended; NULL: none */
    uint64_t salt;              /* of the parked conversation */
    uint64_t session;           /* likewise */
    int64_t stamp;              /* counts up, another for everything that is parked */
    int64_t parked_at;          /* counts up: which was used last */
    struct pi_own own;          /* its bytes beside pages, as it was parked: scheduler_beside.c */
    bool dropped;               /* what was parked made room */
    bool held;                  /* what is parked may not make room now */
    bool is_return; /* a place to return to: a conversation as it was before its last answer */
    int32_t back;   /* the slot that has such a place for what runs or is parked here; -1: none */
    int64_t back_stamp; /* of it: whether it is still there */
    int64_t request;    /* as in pith_scheduler_item */
    int32_t n_prompt;
    int32_t n_generated;
    int32_t n_cached;
};

/* A conversation that made room. A request whose prompt begins with its tokens is told so. */
struct gone {
    uint64_t salt;
    uint64_t hash; /* of the tokens */
    int32_t n;     /* 0: none */
};

#define N_GONE 64

/* The scheduler's part, which scheduler_slot.c writes. */
struct sched_park {
    struct slot *slot;        /* [n_slot] owned; it moves when a place is added */
    int32_t n_slot;           /* at least params.n_slot */
    struct gone gone[N_GONE]; /* a ring */
    int32_t next_gone;
    int64_t n_park;   /* times that something was parked */
    int32_t n_return; /* of stats.n_parked, places to return to */
    int64_t bytes;    /* what scheduler_parked_bytes said last */
    bool changed;     /* and that it is to be counted anew */
};

/* An answer's part, which scheduler_find.c and scheduler_slot.c write. scheduler_step.c notes that
   its sequence was touched or torn. */
struct answer_park {
    int32_t slot;   /* where it is parked when it ends; -1: nowhere, or not known yet */
    int32_t from;   /* the slot whose conversation it goes on from; -1: none */
    bool branches;  /* its sequence is a copy of a parked one, which stays */
    bool untouched; /* its sequence came from a slot, and nothing was evaluated since */
    bool torn;      /* an evaluation was stopped: its sequence is no fresh one's */
    /* Its sequence forgot a part of its slot's tokens, so that the tokens it reads count as one
       prompt. */
    bool parts;
    int32_t n_before; /* tokens that its sequence had in its slot, and what was read of them */
    struct read_tally read_before;
};

/* ---- scheduler_find.c ---- */

/* How many tokens of a parked conversation an answer without a sequence goes on from.
   a->park.from is its slot then; 0: none, or others' prefixes have more. Says in a->tally.reuse
   why not more. */
int32_t scheduler_find(struct pith_scheduler *s, struct sched_answer *a);
/* Gives the sequence that was found to the answer, with n of its tokens; its mark is the answer's.
   Where others may go on from it, too, the answer gets a copy. KV_FULL, NOMEM: it got none. */
pith_status scheduler_take(struct pith_scheduler *s, struct sched_answer *a, int32_t n,
                           pith_error *err);

/* ---- scheduler_slot.c ---- */

/* The answer's slot; NULL: it has none, or none yet. */
struct slot *scheduler_slot_of(const struct pith_scheduler *s, const struct sched_answer *a);
/* Whether no answer but this one runs in the slot that its request names. */
bool scheduler_slot_is_free(const struct pith_scheduler *s, const struct sched_answer *a);
/* The answer runs in its slot from now on, or in a place that is found for it. Another
   conversation in the slot goes to another place, unless it is the same in other words. */
void scheduler_slot_enter(struct pith_scheduler *s, struct sched_answer *a);
/* The answer no longer runs in its slot. A place that was found for it is no longer its. */
void scheduler_slot_leave(struct pith_scheduler *s, struct sched_answer *a);
/* Parks the answer's sequence, or gives it back untouched. */
void scheduler_slot_park(struct pith_scheduler *s, struct sched_answer *a);
/* Takes out what is parked, and has its pages. */
pith_seq *scheduler_slot_empty(struct pith_scheduler *s, struct slot *slot);
/* Parks a copy of the answer's sequence, whose prompt is read, where a policy or recurrent layers
   allow no way back. A request that has another answer there goes on from it. */
void scheduler_slot_mark_return(struct pith_scheduler *s, struct sched_answer *a);
/* Tokens that a parked sequence and a prompt begin with, what recall read in front of questions
   left out. */
int32_t scheduler_common(const pith_seq *seq, const struct request *r);
/* Whether a conversation of the prompt's beginning made room. */
bool scheduler_is_gone(const struct pith_scheduler *s, const struct request *r, int32_t *n);

/* Bytes of pages that are parked, each once; and of those that no running answer has, too. */
int64_t scheduler_parked_bytes(struct pith_scheduler *s);
int64_t scheduler_parked_alone_bytes(const struct pith_scheduler *s);
/* Takes the memory of the conversation that was used longest ago, places to return to first. They
   go to host memory where that has room, else the conversation is dropped. False: no parked
   conversation has any. */
bool scheduler_slot_give(struct pith_scheduler *s);
/* Makes room for `bytes` in host memory, for which parked conversations there are dropped. False:
   answers have too much of it. */
bool scheduler_host_room(struct pith_scheduler *s, int64_t bytes);
/* Gives a parked conversation its pages again. KV_FULL, NOMEM. */
pith_status scheduler_slot_bring(struct pith_scheduler *s, struct slot *slot, pith_error *err);
/* Bytes of pages that the parked sequence has, or takes when it comes back. */
int64_t scheduler_slot_bytes(const struct slot *slot);
void scheduler_slot_clear(struct pith_scheduler *s, struct slot *slot);

/* ---- scheduler_retell.c ---- */

/* Makes the answer's tokens the prompt as the parked sequence tells it: all of its tokens, and
   what the prompt has behind their text. False: the prompt's text does not begin with theirs, or
   does not go on. */
bool scheduler_retell(const pith_seq *seq, struct sched_answer *a);
/* Whether it would, but for memory. */
bool scheduler_can_retell(const pith_seq *seq, const struct request *r);
/* The prompt is the request's again. */
void scheduler_untell(struct sched_answer *a);

#endif
