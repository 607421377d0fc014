/*
 * scheduler.h - the scheduler's insides, shared by scheduler*.c: requests, their answers, and where
 * each of them is. scheduler.c has the inbox and the public functions, scheduler_list.c shows all
 * of it. Each other file has a header with its parts of these structs. scheduler_admit.h has memory
 * and admission, scheduler_slot.h parked conversations and how a request finds one.
 * scheduler_beside.h has what stands beside pages. scheduler_step.h has a step, scheduler_draft.h
 * drafts in it, scheduler_ask.h recall of text, and scheduler_result.h tokens and ends.
 * scheduler_ranks.h has what ranks tell each other.
 *
 * An answer is in one place: in the queue, or running, or ended. A request's answers are queued
 * together until its prompt was read; one that was put back is queued alone. Fields that the lock
 * guards are named; everything else belongs to the thread that steps.
 */
#ifndef PI_SCHEDULER_H
#define PI_SCHEDULER_H

#include "base/hash.h"
#include "base/lock.h"
#include "engine/output.h"
#include "engine/schedule.h"
#include "pith/scheduler.h"
#include "serve/scheduler/prefix.h"
#include "serve/scheduler/scheduler_admit.h"
#include "serve/scheduler/scheduler_ask.h"
#include "serve/scheduler/scheduler_beside.h"
#include "serve/scheduler/scheduler_draft.h"
#include "serve/scheduler/scheduler_ranks.h"
#include "serve/scheduler/scheduler_result.h"
#include "serve/scheduler/scheduler_slot.h"
#include "serve/scheduler/scheduler_step.h"

enum answer_state {
    ANSWER_QUEUED,     /* in the queue, with the siblings that are forked from it */
    ANSWER_SIBLING,    /* waits for the prompt that answer 0 of the request reads */
    ANSWER_READING,    /* its known tokens are not all in the sequence yet */
    ANSWER_GENERATING, /* `next` is to be evaluated */
    ANSWER_ENDED,
};

struct sched_answer {
    struct request *request;
    int32_t index;
    enum answer_state state;
    pith_seq *seq;              /* owned; NULL where nothing is there of it */
    struct kv_swapped *swapped; /* owned; NULL: the sequence has its pages, or there is none */
    struct pi_output out;       /* owned, from the first admission on */
    bool has_out;
    bool has_next; /* next was chosen, and is not evaluated yet */
    int32_t next;
    struct answer_tokens known; /* that are read before generation goes on */
    struct answer_room room;
    struct answer_beside beside;
    struct answer_park park;
    struct answer_step step;
    struct answer_draft draft;
    struct answer_ask ask;
    struct answer_tally tally;
};

/* One block of memory with all that it points to. */
struct request {
    int64_t id;
    int32_t priority;
    int32_t n_prompt;
    int32_t *prompt; /* [n_prompt] */
    pith_generate_params params;
    int32_t *forced; /* [n_forced] */
    int32_t n_forced;
    int32_t n_answer;
    struct sched_answer *answer; /* [n_answer] */
    int32_t n_left;              /* answers that have not ended */
    int32_t slot;                /* -1: none, PITH_SLOT_ANY: the answer's */
    uint64_t session;
    int32_t mark; /* tokens that are marked as the prompt in a fresh sequence */
    int32_t n_pin;
    int32_t n_ask;       /* tokens that its question finds at most; 0: it asks nothing */
    double budget_scale; /* its sequence's own budget, as in keep_point */
    uint64_t salt;       /* and of it, so that what was kept under another is never found */
    pith_prompt_logits_fn *on_prompt;
    bool no_logits;     /* on_token looks at none */
    bool any_cancelled; /* some answer ended so */
    bool any_failed;
    bool in_queue; /* it counts as waiting: nothing of it was ever admitted */
    double submitted_at;
    double deadline; /* of pi_time_s; infinite: none */
    pith_answer_token_fn *on_token;
    pith_answer_done_fn *on_done;
    void *user;
    struct request *next; /* of the inbox or of those that are to be freed */
    struct request *next_late;
    bool is_late;
    struct request *next_ending; /* guarded by the lock: of those that were cancelled */
    bool cancelled;              /* likewise: it was */
};

/* The part that other threads may touch: scheduler.c writes it, and the lock guards all of it. */
struct sched_inbox {
    struct pi_lock lock;
    struct request *first, *last; /* in order of submission */
    struct request *cancelled;    /* by next_ending */
    struct request **live;        /* [n_live] all that have not ended, by id; owned */
    int32_t n_live, cap_live;
    int32_t n_waiting; /* of them: in_queue */
    int64_t next_id;
    int64_t n_refused;
    bool closing;
    double stirred_at;          /* a step began, looked whether it is wanted, or ended */
    pith_scheduler_stats shown; /* of the last step's end */
};

struct pith_scheduler {
    pith_engine *engine; /* held */
    pith_scheduler_params params;
    struct prefix_cache *prefix; /* owned; NULL: nothing is reused */
    int64_t kv_bytes;            /* of the engine */
    struct sched_inbox inbox;

    /* Of the thread that steps: */
    bool stepping;                 /* guards against steps within callbacks */
    struct sched_answer **running; /* [n_running] by admission, some ended since; owned */
    int32_t n_running;
    struct request *dead; /* ended, to be freed when no file looks at them any more */
    bool prefixes_changed;
    pith_scheduler_stats stats;
    struct sched_room room;
    struct sched_beside beside;
    struct sched_park park;
    struct sched_step step;
    struct sched_draft draft;
    struct sched_ranks ranks;
};

/* A sum over whole numbers, from PI_HASH_EMPTY on. */
static inline uint64_t scheduler_sum(uint64_t sum, int64_t number)
{
    return pi_hash_number(sum, (uint64_t)number, 8);
}

/* Brings what was submitted into the queue, and tells other ranks of it; returns what was cancelled
   since the last call, linked by next_ending. now: of the step. */
struct request *scheduler_collect(struct pith_scheduler *s, double now);
/* Queues a request of rank 0, with the id, salt, scale of the budget and times of `as`. NOMEM;
   BUSY, which rank 0 would have said. */
pith_status scheduler_adopt(struct pith_scheduler *s, const pith_request *request,
                            const struct request *as, pith_error *err);
/* Frees requests that have ended; no file looks at them any more. */
void scheduler_free_dead(struct pith_scheduler *s);
/* Whether the request was not cancelled, and is not late. All ranks ask together. */
bool scheduler_is_wanted(struct pith_scheduler *s, const struct request *r);
/* The request does not count as waiting any longer. */
void scheduler_left_queue(struct pith_scheduler *s, struct request *r);
/* The request has ended: it cannot be found from now on. */
void scheduler_forget(struct pith_scheduler *s, struct request *r);

#endif
