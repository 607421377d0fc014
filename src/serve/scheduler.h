/*
 * scheduler.h - the scheduler's insides, shared by scheduler*.c: requests, their answers, and where
 * each of them is. scheduler.c has the queue and the public functions, scheduler_admit.c memory and
 * admission, scheduler_slot.c what is parked, scheduler_find.c which of it a request goes on from,
 * scheduler_retell.c a prompt in the parked tokens,
 * scheduler_step.c a step, scheduler_draft.c drafts in it, scheduler_result.c tokens and ends,
 * scheduler_list.c shows all of it.
 *
 * An answer is in one place: in the queue (a request's answers together, until its prompt was read;
 * one that was put back alone), or running, or ended. What the lock guards is said; everything else
 * belongs to the thread that steps.
 */
#ifndef PI_SCHEDULER_H
#define PI_SCHEDULER_H

#include "base/lock.h"
#include "engine/draft.h"
#include "engine/output.h"
#include "engine/schedule.h"
#include "pith/scheduler.h"
#include "serve/prefix.h"

enum answer_state {
    ANSWER_QUEUED,     /* in the queue, with the siblings that are forked from it */
    ANSWER_SIBLING,    /* waits for the prompt that answer 0 of the request reads */
    ANSWER_READING,    /* its known tokens are not all in the sequence yet */
    ANSWER_GENERATING, /* `next` is to be evaluated */
    ANSWER_ENDED,
};

struct request;

struct answer {
    struct request *request;
    int32_t index;
    enum answer_state state;
    struct answer *prev, *next_in_queue; /* of the queue */
    pith_seq *seq;                       /* owned; NULL where nothing is there of it */
    struct kv_swapped *swapped; /* owned; NULL: the sequence has its pages, or there is none */
    struct pi_output out;       /* owned, from the first admission on */
    bool has_out;
    int32_t *known;  /* [n_known] owned: what was evaluated before it was put back; NULL: the
                        prompt, which is the request's */
    int32_t n_known; /* tokens that are read before generation goes on */
    bool retold;     /* known is the prompt, in the tokens that its slot has for it */
    bool has_next;   /* next was chosen, and is not evaluated yet */
    int32_t next;
    int32_t n_take;      /* tokens of it in the step that is planned */
    bool new_here;       /* it was admitted in this step */
    int32_t target;      /* tokens that memory is set aside for */
    int64_t set_aside;   /* under a keep policy: these bytes */
    int64_t admission;   /* counts up: which was admitted last */
    int32_t n_computed;  /* tokens that were evaluated before it was put back */
    int32_t n_published; /* tokens whose pages were offered to the cache of prefixes */
    int32_t mark;        /* the first positions of its sequence, marked as the prompt */
    bool parts;          /* its sequence forgot some of what its slot held, so that what is read
                            counts as one prompt */
    int32_t slot;        /* where it is parked when it ends; -1: nowhere, or not known yet */
    int32_t from;        /* the slot whose conversation it goes on from; -1: none */
    bool branches;       /* its sequence is a copy of what is parked, which stays */
    bool untouched;      /* its sequence came from a slot, and nothing was evaluated since */
    bool torn;           /* an evaluation was stopped: its sequence is no fresh one's */
    int32_t n_before;    /* tokens that its sequence had in its slot, and what was read of them */
    struct read_tally read_before;
    int32_t n_shown;  /* tokens of the prompt whose logits are shown, or not asked for */
    bool not_finite;  /* one of these rows is not */
    bool unwanted;    /* who was shown them wants no more */
    int32_t n_prompt; /* as in the result */
    int32_t n_cached;
    int32_t n_from_park; /* of n_cached */
    int64_t n_evicted;   /* entries that its sequence had lost when it came to it */
    pith_reuse reuse;
    int32_t differs_at;
    int32_t n_preempted;
    bool drafts;          /* its sequence knows what it drafts by */
    int32_t n_draft_take; /* tokens of a draft, while the step is planned */
    float *rows;          /* [n_take][n_vocab] of the draft: a part of the scheduler's */
    int32_t first_row;    /* position of the first of them */
    int32_t n_draft;      /* as in the result */
    int32_t n_draft_accepted;
    int32_t draft[DRAFT_MOST + 1]; /* next, and what is drafted behind it */
    double admitted_at;            /* for the first time; 0: never */
    double first_at;               /* the first token; 0: none yet */
    double share_s;                /* of the sequence's statistics: counted already */
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
    struct answer *answer; /* [n_answer] */
    int32_t n_left;        /* answers that have not ended */
    int32_t slot;          /* -1: none, PITH_SLOT_ANY: the answer's */
    uint64_t session;
    int32_t mark; /* tokens that are marked as the prompt in a fresh sequence */
    int32_t n_pin;
    double budget_scale; /* its sequence's own budget, as in keep_point */
    uint64_t salt;       /* and of it, so that what was kept under another is never found */
    pith_prompt_logits_fn *on_prompt;
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

/* Where a request's sequence stays for the next one. Requests name the first of them; the others
   are places for conversations that are found by their tokens. */
struct slot {
    pith_seq *seq;       /* owned; NULL: nothing is parked */
    struct answer *runs; /* was admitted in it, and has not ended; NULL: nobody */
    uint64_t salt;       /* of what is parked */
    uint64_t session;    /* likewise */
    int64_t stamp;       /* counts up, another for everything that is parked */
    int64_t parked_at;   /* counts up: which was used last */
    bool dropped;        /* what was parked made room */
    bool held;           /* what is parked may not make room now */
    bool is_return;      /* a place to return to: a conversation as it was before its last answer */
    int32_t back; /* the slot that has such a place for what runs or is parked here; -1: none */
    int64_t back_stamp; /* of it: whether it is still there */
    int64_t request;    /* as in pith_scheduler_item */
    int32_t n_prompt;
    int32_t n_generated;
    int32_t n_cached;
};

/* A conversation that made room: whose prompt begins with its tokens is told so. */
struct gone {
    uint64_t salt;
    uint64_t hash; /* of the tokens */
    int32_t n;     /* 0: none */
};

#define N_GONE 64

struct pith_scheduler {
    pith_engine *engine; /* borrowed */
    pith_scheduler_params params;
    struct prefix_cache *prefix; /* owned; NULL: nothing is reused */
    int64_t kv_bytes;            /* of the engine */
    bool stepping;               /* guards against steps within callbacks */

    struct pi_lock lock;
    /* Guarded by the lock: */
    struct request *inbox, *inbox_last; /* in order of submission */
    struct request *cancelled;          /* by next_ending */
    struct request **live;              /* [n_live] all that have not ended, by id; owned */
    int32_t n_live, cap_live;
    int32_t n_waiting; /* of them: in_queue */
    int64_t next_id;
    int64_t n_refused;
    bool closing;
    pith_scheduler_stats shown; /* of the last step's end */

    /* Of the thread that steps: */
    struct answer *first, *last; /* the queue: by priority, then by id, then by index */
    struct answer **running; /* [n_running] by admission, with such as have ended since; owned */
    int32_t n_running;
    int32_t n_place;         /* answers that run, siblings included */
    struct answer **item_of; /* [params.n_seq] whose an item is; owned */
    pith_batch_item *items;  /* [params.n_seq] of the step; owned */
    int32_t n_item;
    struct request *dead; /* ended, to be freed when nobody looks at them any more */
    double next_deadline; /* none is earlier */
    int64_t n_admission;
    int64_t set_aside;        /* the sum of the running answers' */
    int64_t outside;          /* bytes of pages that other sequences of the engine hold */
    struct slot *slot;        /* [n_slot] owned; it moves when a place is added */
    int32_t n_slot;           /* at least params.n_slot */
    struct gone gone[N_GONE]; /* a ring */
    int32_t next_gone;
    int64_t n_park;       /* times that something was parked */
    int32_t n_return;     /* of stats.n_parked, places to return to */
    int64_t parked_bytes; /* what scheduler_parked_bytes said last */
    bool parked_changed;  /* and that it is to be counted anew */
    int32_t tokens_left;  /* of the step that is planned */
    int64_t spare;        /* bytes that are free and that nobody in it can come to need */
    bool put_back;        /* some answer was, in this step */
    bool prefixes_changed;
    int64_t swapped_bytes;
    pith_draft_params draft; /* params.draft points to it */
    float *rows; /* [n_max + 4][n_vocab] of a step's drafts; owned; NULL: there are none */
    struct draft_cost cost; /* of steps in which no prompt is read */
    double user_s;          /* of this step: evaluating, sampling, in callbacks */
    pith_scheduler_stats stats;
};

/* ---- scheduler.c ---- */

/* Brings what was submitted into the queue; returns what was cancelled since the last call, linked
   by next_ending. */
struct request *scheduler_collect(struct pith_scheduler *s);
/* Frees requests that have ended; nobody looks at them any more. */
void scheduler_free_dead(struct pith_scheduler *s);
/* Whether nobody cancelled the request, and it is not late. */
bool scheduler_is_wanted(struct pith_scheduler *s, const struct request *r);
/* The request does not count as waiting any longer. */
void scheduler_left_queue(struct pith_scheduler *s, struct request *r);
/* The request has ended: nobody finds it from now on. */
void scheduler_forget(struct pith_scheduler *s, struct request *r);

/* ---- scheduler_admit.c ---- */

/* The queue. */
void scheduler_enqueue(struct pith_scheduler *s, struct answer *a);
void scheduler_dequeue(struct pith_scheduler *s, struct answer *a);

/* Answers that leave when a does: it and, before its prompt was read, its siblings. */
int32_t scheduler_places(const struct answer *a);

/* The most tokens that a sequence of the request can come to hold, and the bytes of KV memory that
   n tokens of it take with a mark. */
int32_t scheduler_final(const struct pith_scheduler *s, const struct request *r);
int64_t scheduler_bytes(const struct pith_scheduler *s, const struct request *r, int32_t mark,
                        int32_t n);

/* The share of what answers may still grow by that is set aside. */
double scheduler_reserve(const struct pith_scheduler *s);

/* Admits the first of the queue where its memory can be set aside: it runs then. False: it waits,
   or it failed and has ended, or there is none; *again: another may be tried. */
bool scheduler_admit_first(struct pith_scheduler *s, bool *again);
/* Brings the figures of the prefixes up to date where prefixes_changed says that they are not:
   whoever begins, ends, publishes or drops sets it. It looks at every page, so not in every step.
 */
void scheduler_look_at_prefixes(struct pith_scheduler *s);

/* Frees or takes memory away from somebody, so that an answer that runs (NULL: whoever) may get
   `bytes` more; the step is to be planned anew. Who was admitted in this step gives way to all
   others. False: nobody has any to give. */
bool scheduler_relieve(struct pith_scheduler *s, struct answer *needy, int64_t bytes);

/* How many of the answer's known tokens others' prefixes have, and of them those in pages that
   nobody uses; there are prefixes. */
int32_t scheduler_find_prefix(const struct pith_scheduler *s, const struct answer *a,
                              int32_t *n_unused);
/* Drops prefixes that nobody uses, then what is parked, until so many bytes of pages are free. */
bool scheduler_make_room(struct pith_scheduler *s, int64_t bytes);
/* Takes an answer out of those that run; what it has set aside is free for others. */
void scheduler_stop_running(struct pith_scheduler *s, struct answer *a);

/* ---- scheduler_step.c ---- */

/* Whether so much is free that n more tokens of an answer have their memory, whatever it shares:
   then nobody looks at its lanes for that. Where somebody waits to be admitted beside it, what it
   takes is to be taken first. */
bool scheduler_is_roomy(struct pith_scheduler *s, int32_t n);
/* Brings what pith_scheduler_get_stats shows up to date. */
void scheduler_show(struct pith_scheduler *s);

/* ---- scheduler_find.c ---- */

/* How many tokens of a parked conversation an answer without a sequence goes on from, which is in
   a->from then; 0: none, or others' prefixes have more. Says in a->reuse why not more. */
int32_t scheduler_find(struct pith_scheduler *s, struct answer *a);
/* Gives the sequence that was found to the answer, with so many tokens; its mark is the answer's.
   Where others may go on from it, too, the answer gets a copy. KV_FULL, NOMEM: it got none. */
pith_status scheduler_take(struct pith_scheduler *s, struct answer *a, int32_t n, pith_error *err);

/* ---- scheduler_slot.c ---- */

/* The answer's slot; NULL: it has none, or none yet. */
struct slot *scheduler_slot_of(const struct pith_scheduler *s, const struct answer *a);
/* Whether nobody but the answer runs in the slot that its request names. */
bool scheduler_slot_is_free(const struct pith_scheduler *s, const struct answer *a);
/* The answer runs in its slot from now on, or in a place that is found for it. What the slot holds
   goes to another place, unless it is the same conversation in other words. */
void scheduler_slot_enter(struct pith_scheduler *s, struct answer *a);
/* Nobody runs in the answer's slot any more. A place that was found for it is no longer its. */
void scheduler_slot_leave(struct pith_scheduler *s, struct answer *a);
/* Parks the answer's sequence, or gives it back untouched. */
void scheduler_slot_park(struct pith_scheduler *s, struct answer *a);
/* Takes out what is parked. */
pith_seq *scheduler_slot_empty(struct pith_scheduler *s, struct slot *slot);
/* Parks a copy of the answer's sequence, whose prompt is read and which a keep policy allows no way
   back: a request that has another answer there goes on from it. */
void scheduler_slot_mark_return(struct pith_scheduler *s, struct answer *a);
/* Tokens that a parked sequence and a prompt begin with, of at most n. */
int32_t scheduler_common(const pith_seq *seq, const struct request *r);
/* Whether a conversation of the prompt's beginning made room. */
bool scheduler_is_gone(const struct pith_scheduler *s, const struct request *r, int32_t *n);

/* ---- scheduler_retell.c ---- */

/* Makes a->known the prompt as the parked sequence tells it: all of its tokens, and what the prompt
   has behind their text. False: the prompt's text does not begin with theirs, or does not go on. */
bool scheduler_retell(const pith_seq *seq, struct answer *a);
/* The prompt is the request's again. */
void scheduler_untell(struct answer *a);

/* Bytes of pages that are parked, each once; and of those that nobody who runs has, too. */
int64_t scheduler_parked_bytes(struct pith_scheduler *s);
int64_t scheduler_parked_alone_bytes(const struct pith_scheduler *s);
/* Drops what was used longest ago, places to return to first. False: nothing is parked. */
bool scheduler_slot_drop(struct pith_scheduler *s);
void scheduler_slot_clear(struct pith_scheduler *s, struct slot *slot);

/* ---- scheduler_draft.c ---- */

/* What params.draft asks for. The statuses of pith_draft_check, NOMEM. */
pith_status scheduler_start_drafts(struct pith_scheduler *s, pith_error *err);
/* Adds drafts to what is planned, where that suits. */
void scheduler_plan_drafts(struct pith_scheduler *s);
/* An answer's next token and its draft, n together. */
pith_batch_item scheduler_draft_item(struct answer *a, int32_t n);
/* Chooses tokens from the rows of a draft that was evaluated, until one was not drafted. */
void scheduler_use_draft(struct pith_scheduler *s, struct answer *a);
/* Forgets what of a draft did not come true, where there is one. */
void scheduler_end_draft(struct pith_scheduler *s, struct answer *a);

/* ---- scheduler_result.c ---- */

/* The answer has its prompt in its sequence, with logits: makes its siblings, and each its first
   token. */
void scheduler_start_answers(struct pith_scheduler *s, struct answer *a);
/* Chooses the next token from the sequence's logits, hands it out, and ends what it ends. */
void scheduler_choose(struct pith_scheduler *s, struct answer *a);

/* Remembers the sequence's pages for others. */
void scheduler_publish(struct pith_scheduler *s, struct answer *a);

/* Ends an answer as OK, with the text that was held back. */
void scheduler_end(struct pith_scheduler *s, struct answer *a, pith_stop_reason reason);
/* Ends an answer, and its siblings that wait for its prompt, for why. */
void scheduler_fail(struct pith_scheduler *s, struct answer *a, const pith_error *why);
/* Ends what is left of a request. */
void scheduler_fail_request(struct pith_scheduler *s, struct request *r, const pith_error *why);

#endif
