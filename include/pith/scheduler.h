/*
 * scheduler.h - many requests in one engine and one KV budget.
 */
#ifndef PITH_SCHEDULER_H
#define PITH_SCHEDULER_H

#include "pith/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- many requests ------------------------------------------------------------------------ */

/*
 * A scheduler runs many requests in one engine and one KV budget: continuous batching. In each step
 * every running request generates a token, and what is left of the step's tokens reads prompts in
 * chunks. A request is admitted when the memory that it will take is set aside. Under a keep policy
 * that is all of it, which is constant, so that nothing is ever preempted. Without one it is a
 * share of the memory by which it may still grow (`reserve`). Where memory runs out all the same,
 * cached prefixes go first, and then the request that was admitted last waits. Its entries are
 * computed again later, or, where a policy had altered them, kept in host memory meanwhile.
 *
 * Prefixes of prompts that requests have in common are computed once. Full pages are found again by
 * a hash of all tokens before them, while a sequence uses them and until the memory is needed.
 *
 * A request may have its conversation kept (PITH_SLOT_ANY), or name a slot for it. When its answer
 * ends, its sequence stays parked. The next request whose prompt begins with its tokens goes on
 * from it: each turn is read once. Parked memory is a part of the one budget. Where another request
 * needs it, unused cached prefixes go first, and then the conversation that was used longest ago. A
 * prefix can be had again from its tokens alone; the state that a keep policy or recall has of a
 * session can not.
 *
 * The promise: each request gets the tokens that it would get alone, whatever the company and the
 * order, and ends in a defined state. One thread at a time runs steps and owns the engine. No other
 * thread may evaluate the engine's other sequences meanwhile. Any thread may call submit, cancel
 * and wait.
 */
typedef struct pith_scheduler pith_scheduler;

/* How a page of the cache of prefixes changes. */
typedef enum pith_prefix_change {
    PITH_PREFIX_STORED,
    PITH_PREFIX_REMOVED,
    PITH_PREFIX_CLEARED, /* of all pages at once */
} pith_prefix_change;

typedef struct pith_prefix_event {
    pith_prefix_change change;
    bool first;            /* with STORED: a text begins with the page, and parent is none */
    uint64_t hash;         /* of the page's tokens and all before them; with CLEARED 0 */
    uint64_t parent;       /* with STORED: of the page before it */
    const int32_t *tokens; /* [page_len] with STORED, valid during the call; else NULL */
    int32_t page_len;
} pith_prefix_event;

/* Called on the thread that runs the step. It must not touch the scheduler. */
typedef void pith_prefix_fn(void *user, const pith_prefix_event *event);

typedef struct pith_scheduler_params {
    int32_t n_seq;       /* most answers that run at the same time (default 256) */
    int32_t n_queue;     /* most requests that wait; further ones are refused (default 1024) */
    int32_t step_tokens; /* most tokens of a step; 0 (default): the engine's chunk while nothing is
                            generated, and 128 otherwise. A request that generates has a token in
                            any case. Where the cut of a prompt matters (a read policy, recall, a
                            keep policy that overwrites) the first of a step is read whole */
    double reserve;      /* 0 to 1: the share of a request's possible growth that is set aside when
                            it is admitted. Below 0 (default): 1 under a keep policy. Also where an
                            answer could neither be computed again nor go to host memory
                            (swap_bytes 0). Else 0.5 */
    double watermark;    /* 0 to 1: the share of the KV memory that admitting leaves free (default
                            0.01); a request that would run alone ignores it */
    bool no_prefix;      /* nothing is reused across requests (default false) */
    bool pressure;       /* where memory runs out, before a request is put back: a keep round on the
                            largest, then pages shared at looser thresholds. Answers then depend on
                            company (default false) */
    int32_t n_ctx;       /* most tokens of a sequence, where that is less than the model's context;
                            0 (default): what model, policy and memory allow. A longer prompt is
                            CONTEXT, and an answer that comes to it ends as PITH_STOP_LENGTH */
    int64_t swap_bytes;  /* host memory for requests that cannot be computed again, and for parked
                            conversations as far as those leave room. It is for pages and for
                            all that such sequences have beside them. Where it is full such a
                            request ends as PITH_STOP_FULL, and a conversation is dropped. Default
                            1 GiB */
    int32_t max_preempt; /* a request that was put back so often is set aside for in full (default
                            3) */
    int32_t n_slot; /* slots that requests may name: 0 to n_slot - 1 (default 64). 0: nothing is
                            parked at all. Requests that name none park in places of their own, as
                            many as there is memory for */
    const pith_draft_params *draft; /* copied; NULL (default): nothing is drafted. Drafts are a part
                                       of steps in which no prompt is read, at most four answers run
                                       and no request waits for memory. Rows of logits are kept for
                                       n_max + 4 tokens, in memory of the scheduler's own */
    pith_prefix_fn *on_prefix; /* told of pages of texts without cache_salt; NULL (default): none */
    void *prefix_user;
    bool led; /* over ranks (ranks.h): rank 0 alone submits, cancels and steps, and the others call
                 pith_scheduler_follow. Default false: every rank does the same by itself */
    uint32_t reserved[1];
} pith_scheduler_params;

PITH_API void pith_scheduler_params_default(pith_scheduler_params *out);

/* A token of an answer, valid during the call. */
typedef struct pith_answer_token {
    int64_t request;
    int32_t answer;   /* 0 to n_answer - 1 */
    int32_t token;    /* -1: text that had been held back, at the answer's end */
    const char *text; /* [len] whole characters that are certain now; may be none */
    size_t len;
    const float *logits;   /* [n_vocab] that the token was chosen from; NULL without a token, and
                              where the request wants none */
    pith_sampler *sampler; /* which chose it, for pith_sampler_chances; NULL without a token */
    uint32_t reserved[6];
} pith_answer_token;

/* Called on the thread that runs the step. Return false to end the answer as PITH_STOP_CALLER. It
   may submit and cancel, and must not step. */
typedef bool pith_answer_token_fn(void *user, const pith_answer_token *token);

/* The logits [n_vocab] that follow the prompt's token number `index`, valid during the call. Called
   on the thread that runs the step, in order and once for each. It must not touch the scheduler or
   its engine, but for cancelling. Return false to end the request as PITH_STOP_CALLER. */
typedef bool pith_prompt_logits_fn(void *user, int64_t request, int32_t index, int32_t token,
                                   const float *logits);

/* Why an answer reused no more than n_cached tokens. */
typedef enum pith_reuse {
    PITH_REUSE_NONE,    /* nothing kept it: all of a parked conversation was reused */
    PITH_REUSE_NEW,     /* no parked conversation goes on with it: only what prompts begin with was
                           looked for */
    PITH_REUSE_DIFFERS, /* the conversation's tokens are others from `differs_at` on */
    PITH_REUSE_DROPPED, /* the conversation was dropped for others' memory */
    PITH_REUSE_SALT,    /* what its slot holds was parked under another cache_salt */
    PITH_REUSE_POLICY,  /* it differs from `differs_at` on, and a policy, or layers with windows or
                           states, allow no way back to there. Or it can no longer be pinned or
                           shown as the request wants it */
    PITH_REUSE_OFF,     /* its slot is -1: no parked conversation was looked for */
    PITH_REUSE_SHORT,   /* it differs from `differs_at` on, and what both begin with is less than a
                           page, for which no copy is made */
} pith_reuse;

/* pith_request.slot: the conversation is found by its tokens, and stays. */
#define PITH_SLOT_ANY (-2)

/* Slots and places of conversations are numbered below this. */
#define PITH_SLOT_MAX (1 << 20)

/* How an answer ended. */
typedef struct pith_answer_result {
    int64_t request;
    int32_t answer;
    pith_status status;      /* OK; CANCELLED: by pith_scheduler_cancel, by its deadline, or by
                                freeing the scheduler; or what made its evaluation fail */
    const char *message;     /* with another status than OK: one sentence, valid during the call */
    pith_stop_reason reason; /* with OK */
    int32_t n_prompt;        /* tokens of the prompt that were computed for it */
    int32_t n_cached;        /* and those that were there already: of a request's second answer and
                                those behind it, all */
    pith_reuse reuse;        /* why not more */
    int32_t differs_at;      /* with DIFFERS, POLICY and SHORT: the first token that is another,
                                or the prompt's length; else -1 */
    int32_t n_generated;
    int32_t n_preempted;    /* times that it was put back */
    double queue_s;         /* from submission to admission; all times are seconds */
    double prompt_s;        /* from there to the first token */
    double generate_s;      /* from there to the end */
    pith_share_stats share; /* these count from the sequence's beginning, in a slot from its first
                               request's */
    pith_keep_stats keep;
    pith_recall_stats recall;
    int32_t n_draft; /* tokens that were drafted, and of them those that came true */
    int32_t n_draft_accepted;
    int32_t slot;        /* where its conversation stays; n_slot and above: in a place of its own;
                            -1: nowhere */
    int32_t n_from_park; /* of n_cached: tokens of a parked conversation, not of a prefix */
    int64_t n_evicted;   /* of keep.evicted: entries that went since the request began */
    int32_t n_predict;  /* the most tokens that it could get: its parameter's number, or fewer where
                          no more had room; -1: no number was given */
    int64_t held_bytes; /* of pages at its end, those that others hold, too, included */
    int64_t full_bytes; /* that its tokens would take without any policy */
    int32_t n_recalled; /* tokens of recalled text in front of its question. Of a request's first
                           answer they are counted in n_prompt */
    pith_read_stats read;
    uint32_t reserved[4];
} pith_answer_result;

typedef void pith_answer_done_fn(void *user, const pith_answer_result *result);

typedef struct pith_request {
    const int32_t *prompt; /* [n_prompt] copied */
    int32_t n_prompt;
    const pith_generate_params *params; /* copied, strings and biases included; NULL: the defaults.
                                           progress and recalled are not looked at. With
                                           recall `text` its message's question finds text, which
                                           is read in front of it as pith_generate does, and stays
                                           in a parked conversation. The next request goes on from
                                           that without the text. Requests with on_prompt ask
                                           nothing */
    int32_t n_answer;      /* 1 (default) to n_seq: answers to one prompt, which is computed once;
                              the seed of answer i is that of params plus i */
    int32_t priority;      /* higher ones are admitted first and put back last. Default 0 */
    double deadline_s;     /* seconds from submission in which it is to end; 0 (default): none */
    const int32_t *forced; /* [n_forced] copied: the first tokens of every answer, in the place of
                              sampled ones. They count as such (stop strings, end tokens,
                              n_predict); NULL: none */
    int32_t n_forced;
    pith_answer_token_fn *on_token; /* may be NULL */
    pith_answer_done_fn *on_done;   /* called once for each answer; may be NULL */
    void *user;
    /* Where the sequence stays when its answer ends. PITH_SLOT_ANY: in a place of its own. 0 and
       above: in this slot, in which one request at a time runs, while further ones wait for it;
       n_answer is 1. With both, it goes on from the parked conversation that has most of the
       prompt. That is all of its tokens where the prompt begins with them, or, where forgetting is
       exact, those that both have. Among equals the slot's own counts, then `session`'s, then the
       one that was used last. A cancelled answer is parked, too, if its sequence is that of a fresh
       one of its tokens. A failed one is not. -1 (default): it is not parked, and goes on from
       none. The scheduler's n_slot and above, which results name: as PITH_SLOT_ANY */
    int32_t slot;
    int32_t n_pin; /* under a keep policy with pin-prompt: the first n_pin tokens are never evicted,
                      in the place of the whole prompt. In a slot these are the session's first
                      tokens, so that its memory stays constant. 0 (default): the prompt, in a slot
                      that of the first request */
    uint64_t cache_salt; /* what is cached is found only by requests of the same salt, so that
                            others learn nothing from times. Default 0 */
    pith_prompt_logits_fn *on_prompt; /* shows logits of the prompt; may be NULL */
    int32_t prompt_from;              /* the first token that it shows: those before may be cached;
                                         default 0 */
    uint64_t session; /* stands for the name of a conversation, which is preferred among those that
                         have as much of the prompt; default 0: none */
    const char *budget; /* of its sequence, as pith_seq_set_budget. Entries that were kept under
                           another budget are not reused. NULL (default): the engine's */
    bool no_logits;     /* on_token gets no logits, which then need not leave a GPU */
    uint32_t reserved[3];
} pith_request;

PITH_API void pith_request_default(pith_request *out);

/* params may be NULL. The engine must outlive the scheduler, and so must that of params->draft.
   INVALID (a value out of range, named), UNSUPPORTED (recall of text with a session that all
   requests would share), the statuses of pith_draft_check, NOMEM. */
PITH_API pith_status pith_scheduler_create(pith_engine *engine, const pith_scheduler_params *params,
                                           pith_scheduler **out, pith_error *err);

/* Ends what waits and runs as CANCELLED, and frees the scheduler, its sequences and its cached
   prefixes. NULL is ignored. */
PITH_API void pith_scheduler_free(pith_scheduler *scheduler);

/* Queues a request, whose id is above those before. BUSY: the queue is full. KV_FULL: the prompt
   can never fit, with the numbers. CONTEXT: the prompt is longer than the model's trained context;
   that of a slot under a keep policy may be. INVALID: a parameter, named; or pinned tokens (the
   prompt, or n_pin) that a keep policy's budget does not hold. CANCELLED: the scheduler is being
   freed. NOMEM. Thread-safe. */
PITH_API pith_status pith_scheduler_submit(pith_scheduler *scheduler, const pith_request *request,
                                           int64_t *id, pith_error *err);

/* The most tokens, prompt and answer together, that a request can come to have: the tokens that the
   memory holds for it alone. Where no policy evicts, the model's trained context is a limit, too.
   n_predict is a ceiling: an answer that would go beyond ends there, as one of its length. With
   n_predict -1 and nothing that ends it, an answer gets as many tokens as the model was trained on.
   Thread-safe. */
PITH_API int32_t pith_scheduler_room(const pith_scheduler *scheduler, const pith_request *request);

/* Ends a request's answers at the next step, wherever it is: NOT_FOUND when it has ended already. A
   step that is running looks after each pass of at most `chunk` tokens (pith_engine_params) whether
   what it reads is still wanted. Thread-safe. */
PITH_API pith_status pith_scheduler_cancel(pith_scheduler *scheduler, int64_t id);

/* Does one step: what was cancelled or is late ends, then tokens as described above. *idle (may be
   NULL): there is nothing to do. A request's failure is its own (on_done). BUSY: a step is running,
   this is a callback of it. */
PITH_API pith_status pith_scheduler_step(pith_scheduler *scheduler, bool *idle, pith_error *err);

/* Steps until there is nothing to do. */
PITH_API pith_status pith_scheduler_run(pith_scheduler *scheduler, pith_error *err);

/* On another rank than 0, with params.led: takes part in rank 0's steps until that frees its
   scheduler. It sleeps while nothing is to do. Callbacks are rank 0's alone. INVALID: this rank has
   nothing to follow. INTERNAL: it came to another state than rank 0; NOMEM. With both all ranks are
   to end. */
PITH_API pith_status pith_scheduler_follow(pith_scheduler *scheduler, pith_error *err);

/* Waits until there is something to do, at most `seconds`; true: there is. Thread-safe. */
PITH_API bool pith_scheduler_wait(pith_scheduler *scheduler, double seconds);

/* ---- what is there -------------------------------------------------------------------------- */

typedef enum pith_item_state {
    PITH_ITEM_WAITING,    /* in the queue: for memory, or for its slot */
    PITH_ITEM_READING,    /* its prompt */
    PITH_ITEM_GENERATING, /* its answer */
    PITH_ITEM_SWAPPED,    /* in the queue, and its pages in host memory */
    PITH_ITEM_PARKED,     /* a slot's, of no request */
} pith_item_state;

typedef struct pith_scheduler_item {
    int64_t id; /* of the request; of a parked conversation, the id of its last answer, 0 after
                   pith_scheduler_slot_restore */
    int32_t answer;
    int32_t slot; /* -1: none */
    pith_item_state state;
    int32_t n_prompt; /* tokens of the prompt; of a parked conversation, of its last prompt */
    int32_t n_done;   /* tokens that its sequence holds: of n_prompt while it reads */
    int32_t n_generated;
    int32_t n_cached;
    int64_t held_bytes;  /* of pages, those that others hold, too, included */
    int64_t aside_bytes; /* set aside beyond them, for what it may still grow by */
    const pith_seq *seq; /* valid during the call; NULL: nothing is in the KV memory of it */
    int64_t full_bytes;  /* of pages that its tokens would take without any policy */
    uint32_t reserved[6];
} pith_scheduler_item;

/* Return false to see no more. It may submit and cancel, nothing else of the scheduler. */
typedef bool pith_scheduler_item_fn(void *user, const pith_scheduler_item *item);

/* Shows each answer that runs, in the order of admission, then those that wait, in that of the
   queue, then what is parked, by slot. On the thread that steps, between steps or in a callback. */
PITH_API void pith_scheduler_each(pith_scheduler *scheduler, pith_scheduler_item_fn *fn,
                                  void *user);

/* Writes the conversation that is parked in a slot to a file, reads it back (pith_seq_save,
   pith_seq_load), or erases it. *n_token (may be NULL) receives its tokens. On the thread that
   steps, between steps. A restored sequence takes the place of the slot's conversation, and belongs
   to requests of cache_salt. Unused cached prefixes and then parked conversations make room for it.
   Of a conversation that has a place of its own, `slot` is the place that pith_scheduler_each
   shows. INVALID (a slot that there is not),
   NOT_FOUND (nothing is parked in it), BUSY (a request runs in it; or a step is running). Also the
   statuses of pith_seq_save and pith_seq_load. */
PITH_API pith_status pith_scheduler_slot_save(pith_scheduler *scheduler, int32_t slot,
                                              const char *path, int32_t *n_token, pith_error *err);
PITH_API pith_status pith_scheduler_slot_restore(pith_scheduler *scheduler, int32_t slot,
                                                 const char *path, uint64_t cache_salt,
                                                 int32_t *n_token, pith_error *err);
PITH_API pith_status pith_scheduler_slot_erase(pith_scheduler *scheduler, int32_t slot,
                                               int32_t *n_token, pith_error *err);

typedef struct pith_scheduler_stats {
    int64_t n_step;
    int64_t n_done;      /* requests that ended, of which */
    int64_t n_cancelled; /* cancelled or late, in the queue, reading the prompt, or generating */
    int64_t n_failed;
    int64_t n_refused; /* at submission */
    int32_t n_waiting; /* requests in the queue now */
    int32_t n_running; /* answers now, of which */
    int32_t n_reading; /* are reading their prompt */
    int32_t n_swapped; /* and are in host memory */
    int32_t peak_running;
    int64_t prompt_tokens;    /* computed, those that were computed again included */
    int64_t cached_tokens;    /* of prompts, found */
    int64_t generated_tokens; /* handed out */
    int64_t recomputed_tokens;
    int64_t preempted_recompute;
    int64_t preempted_swap;
    int64_t prefix_pages;    /* in the cache now, each in all lanes */
    int64_t prefix_bytes;    /* of them, that no sequence uses */
    int64_t prefix_dropped;  /* pages that made room */
    int64_t swapped_bytes;   /* in host memory now */
    int32_t n_parked;        /* conversations that are parked now */
    int64_t parked_bytes;    /* of pages that are parked, each once */
    int64_t parked_dropped;  /* conversations that made room, so far */
    int64_t pressure_rounds; /* with `pressure` */
    int64_t pressure_shared; /* pages, likewise */
    double seconds;          /* in steps */
    double schedule_s;       /* of them: not evaluating, sampling or in callbacks */
    double share_s;          /* of them: comparing pages */
    int64_t drafted_tokens;  /* and of them those that came true */
    int64_t accepted_tokens;
    int64_t parked_found;  /* requests that went on from a parked conversation */
    int64_t parked_tokens; /* of cached_tokens: those that were parked */
    int64_t
        reuse_differs;    /* requests whose conversation was parked, and of which not all was reused
                              because it differs, */
    int64_t reuse_policy; /* because a policy or layers allow no way back, */
    int64_t reuse_dropped;    /* because it had made room, */
    int32_t n_parked_swapped; /* of n_parked: those whose pages are in host memory */
    uint32_t reserved1;
    int64_t reuse_short; /* or because less than a page of it is the same */
} pith_scheduler_stats;

/* Thread-safe; the numbers are as of the last step's end. */
PITH_API void pith_scheduler_get_stats(pith_scheduler *scheduler, pith_scheduler_stats *out);

/* Bytes of pages in use that no request can have at once. It could have cached prefixes that no
   sequence uses, and what parked conversations alone hold. On the thread that steps, between
   steps. */
PITH_API int64_t pith_scheduler_claimed_bytes(pith_scheduler *scheduler);

/* Seconds since a step last began, read a chunk of a prompt or ended; since the scheduler was made
   where there was none. A thread that hangs in a step shows so. Thread-safe. */
PITH_API double pith_scheduler_silence(pith_scheduler *scheduler);

#ifdef __cplusplus
}
#endif

#endif
