/* engine.h - the engine's and the sequences' insides, shared by the files of engine/. */
#ifndef PI_ENGINE_H
#define PI_ENGINE_H

#include "engine/memory.h"
#include "model/forward.h"
#include "model/model.h"
#include "policy/recall/text.h"
#include "policy/traits/traits.h"
#include "pith/inspect.h"

#define PI_LOGITS_ROWS 16 /* rows of logits made at once: bounds the scratch, reuses the weights */

/* How far a sequence's recalls are. */
struct pi_recall_point {
    int64_t n_recall; /* passes that chose guests, or texts that were found */
    int32_t n_step;   /* tokens evaluated alone since the last */
    int32_t end;      /* tokens in the sequence when the guests were chosen; 0: there are none */
};

/* What the running batch has done with one of its items. */
struct pi_item_state {
    int32_t n_done;      /* tokens evaluated */
    bool evicted;        /* a keep round ran: there is no way back */
    bool undone;         /* a pass was stopped: lanes may hold entries behind those of n_done */
    uint8_t *keep_state; /* [keep_state_size] the policy's block as it was before, a part of
                            pith_engine.keep_states; NULL where it was not copied */
    size_t marks; /* where the entries' marks as they were before begin in pith_engine.marks */
    struct read_tally read;        /* the sequence's as it was before */
    struct pi_recall_point recall; /* likewise */
};

/* An engine's recall. */
struct pi_recall {
    struct recall_tier *tier; /* owned; NULL: text */
    struct recall_text *text; /* owned; NULL: kv */
    int32_t *take;            /* [n_layer][n_head] guests that room is made for */
    int32_t n_guest_seq;      /* sequences of guests in the cache */
};

/* A sequence's. */
struct pi_seq_recall {
    struct recall_store *store; /* owned; NULL without kv */
    struct kv_seq *guests;      /* owned; NULL until there can be some */
    struct keep_point room;     /* the point whose guests there is room for */
    float *asked;      /* [n_layer][n_head][n_asked][n_group][dim_k] the queries that asked last,
                          room for `last` tokens; owned; NULL until there are some */
    int32_t n_asked;   /* tokens that asked last; 0: none */
    int32_t asked_pos; /* the first one's position */
    bool *found;       /* [n_layer][n_head] they found something in this lane; owned */
    bool alone;        /* the running item is a token that asks only where it misses something */
    double *seconds;   /* [n_layer][n_head] spent remembering and choosing; owned */
    struct recall_text_seq *text; /* owned; NULL without text */
    int64_t n_recall;             /* struct pi_recall_point */
    int32_t n_step;
    int32_t end;
    int32_t n_found; /* spans of the text that was found last */
};

/* Who is told how far the running evaluation is. */
struct pi_advance {
    pith_advance_fn *fn; /* NULL: nobody */
    void *user;
    int64_t n_done; /* tokens of the passes that are done */
    int64_t n_pass; /* of the running pass */
    int64_t n_told; /* of n_token, last */
    int64_t n_token;
    bool can_stop; /* there is a way back to before the running pass */
    bool stopped;  /* fn returned false in the running evaluation */
    float *state;  /* [cap] the sequence's recurrent state before the pass; owned */
    size_t cap;
};

struct pith_engine {
    const struct pith_model *model; /* borrowed until the engine is freed */
    struct kv_cache *kv;            /* owned */
    struct kv_geometry lanes;       /* of it those that policies work on, which have no window */
    struct pi_pass *pass;           /* owned */
    struct policy_set policies;
    struct engine_traits traits; /* of them: the only place to look for which there are */
    struct keep *keep;           /* owned; NULL: the full cache */
    struct read *read;           /* owned; NULL: everything is read */
    struct pi_recall *recall;    /* owned; NULL: what is evicted does not come back */
    struct pi_repeat *repeat;    /* owned; NULL: nothing is repeated */
    struct share *share;         /* owned; NULL: every page stands where it was written */
    struct pith_seq *first;      /* all sequences, for the account of memory */
    int64_t memory_bytes;        /* of all that grows with them; 0: nothing was said */
    char *keep_text;             /* the policy as it was given, owned; "" for the full cache */
    int32_t chunk;
    int32_t n_thread;
    struct pi_pass_item *pass_item; /* [chunk] items of the running pass */
    int32_t *batch_of;              /* [chunk] item of the batch that a pass item comes from */
    int32_t *step_of;               /* [chunk] number of a pass item among its steps, -1: no step */
    struct pi_item_state *state;    /* [n_state] per item of the running batch */
    int32_t n_state;
    uint8_t *keep_states; /* [n_keep_state][keep_state_size] owned; NULL until a copy is made */
    int32_t n_keep_state;
    float *marks; /* of the batch's entries, for the way back; owned */
    size_t cap_marks;
    bool told_clipped;                /* that entries were more than their storage type holds */
    bool has_marks;                   /* the running batch's are in it */
    float *logits;                    /* [PI_LOGITS_ROWS][n_vocab] */
    int32_t rows[PI_LOGITS_ROWS];     /* row of the pass, per row of logits */
    int32_t row_item[PI_LOGITS_ROWS]; /* item of the batch */
    int32_t row_pos[PI_LOGITS_ROWS];  /* position */
    pith_tap_fn *tap;                 /* NULL: nobody listens */
    void *tap_user;
    bool tap_stopped; /* the tap returned false in the running batch */
    struct pi_advance advance;
    bool keeps_read; /* what a cancelled evaluation has read stays in the sequence */
};

struct pith_seq {
    struct pith_engine *engine;
    struct pith_seq *prev, *next; /* the engine's list */
    struct pi_memory memory;
    int32_t *tokens; /* [cap], owned */
    int32_t n_token;
    int32_t cap;
    float *logits; /* [n_vocab], owned; NULL until the first are wanted */
    bool has_logits;
    int32_t n_prompt;    /* the first positions, marked as the prompt; 0: nothing is */
    int32_t pinned;      /* the first position of what recall put in; 0: nothing is */
    double budget_scale; /* as in keep_point */
    struct keep_tally tally;
    struct read_tally read;
    void *keep_state; /* [keep_state_size] the policy's block, owned; NULL where it has none */
    bool uneven;      /* keep_lanes_agree may not hold: it was loaded */
    bool foreign;     /* nobody knows what its tokens read: it was loaded */
    struct pi_seq_recall recall;
    struct share_seq *share; /* its steps, owned; NULL without a share policy */
    struct pi_draft *draft;  /* what it drafts by, owned; NULL until it does */
    int32_t n_draft;         /* so many last tokens of the running evaluation are a draft */
    int32_t n_ahead;         /* tokens of a draft behind n_token, whose entries are there */
    bool is_ahead;           /* a draft was evaluated, and is not done with */
};

/* Installs the pass's tap where somebody wants to see rows (the caller's tap or the keep policy),
   and takes it out where nobody does. NOMEM leaves what was. */
pith_status pi_engine_update_tap(struct pith_engine *e, pith_tap_fn *fn, void *user,
                                 pith_error *err);

/* Lets the pass show attention weights to the keep policy where that wants them. NOMEM. */
pith_status pi_engine_start_watch(struct pith_engine *e, pith_error *err);

/* Lets the pass show entries that it wrote to the keep policy where that wants them. NOMEM. */
pith_status pi_engine_start_write(struct pith_engine *e, pith_error *err);

/* ---- repeat.c ---- */

/* Makes what the policy needs to see of repetitions, where it wants them, and lets the pass show
   it. NOMEM; UNSUPPORTED without a tokenizer. */
pith_status pi_engine_start_repeat(struct pith_engine *e, pith_error *err);
void pi_engine_stop_repeat(struct pith_engine *e);

/* Bytes of pages that must be free when an item is in, for the time that its text is repeated in. */
int64_t pi_item_repeat_bytes(const struct pith_engine *e, const pith_batch_item *item);

/* Before the round of a sequence of n_token tokens: repeats what nobody has judged of it. The pages
   were counted; NOMEM leaves it as it was. What the last pass computed is gone then. */
pith_status pi_seq_repeat(struct pith_seq *seq, int32_t n_token, pith_error *err);

/* Whether the watch is shown the attention of an item of n_token tokens. */
bool pi_engine_watches(const struct pith_engine *e, int32_t n_token);

/* Memory for what a batch's watched items are shown, before its first pass. NOMEM. */
pith_status pi_engine_reserve_watch(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                    pith_error *err);

/* Copies what the policy changes of the batch's sequences (their blocks, their entries' marks) for
   the way back of an evaluation that can be stopped. NOMEM. */
pith_status pi_engine_save(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                           pith_error *err);

/* Gives a sequence the copy back, where one was made. Its entries are those of before again. */
void pi_engine_restore(struct pith_engine *e, struct pith_seq *seq,
                       const struct pi_item_state *state);

/* ---- advance.c ---- */

/* Before an evaluation of n_token tokens in all; asked: somebody wants to know how far it is. */
void pi_advance_begin(struct pith_engine *e, int64_t n_token, bool asked);
/* Before a pass with n_tok tokens. can_stop: what the pass writes can be taken back. */
void pi_advance_pass(struct pith_engine *e, int64_t n_tok, bool can_stop);
/* After it. CANCELLED: the evaluation is to end. */
pith_status pi_advance_passed(struct pith_engine *e, pith_error *err);
/* After the evaluation. */
void pi_advance_end(struct pith_engine *e);
/* Copies the recurrent state of a sequence before a pass, and puts it back. Nothing where the model
   has none. False: no memory. */
bool pi_advance_save_state(struct pith_engine *e, const struct pith_seq *seq);
void pi_advance_restore_state(struct pith_engine *e, const struct pith_seq *seq);

/* Opens the read policy and lets the pass ask it, where the options have one. INVALID: an engine
   chunk that is shorter than the policy's. Its statuses. */
pith_status pi_engine_start_read(struct pith_engine *e, const struct policy_model *model,
                                 pith_error *err);

/* Memory for what a batch reads, before its first pass. NOMEM. */
pith_status pi_engine_reserve_read(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                   pith_error *err);

/* Tokens that an item gives to a pass with room for `most`, until its next keep round is due after
   `until` tokens; *n_read receives how many of them are read in chunks. May be 0. */
int32_t pi_engine_take(const struct pith_engine *e, const pith_batch_item *item, int32_t n_done,
                       int32_t most, int32_t until, int32_t *n_read);
/* Of n of the tokens that are left of a prompt as many as end where a chunk does and leave no
   single one; with a read policy and without rounds. `some`: one chunk at least. */
int32_t pi_engine_part(const struct pith_engine *e, int32_t n, int32_t left, bool some);

/* ---- recall.c ---- */

/* What a question finds (recall_text_find), so much that it can be pinned until that is answered:
   the keep budget holds it beside what is protected, *n_before tokens in front of it (a question
   may be about them), n_rest tokens of the question and some of an answer. Runs a keep round first
   where a lane is over its budget. NULL: nothing is found, or there is no recall `text`. NOMEM,
   INVALID. */
pith_status pi_seq_find_text(struct pith_seq *seq, const char *question, size_t len, int32_t n_rest,
                             char **text, int32_t *n_before, pith_error *err);

/* Opens what the options have, and lets the pass ask it. INVALID: more tokens that choose together
   than a chunk; the statuses of the tier and of the store of text. */
pith_status pi_engine_start_recall(struct pith_engine *e, const struct policy_model *model,
                                   pith_error *err);
void pi_engine_stop_recall(struct pith_engine *e); /* every sequence is freed before */

/* Of a sequence that is being made, freed, forked (its tokens and cache are copied already), or
   forgets what follows n_token tokens; whole: nothing of what is left was ever evicted. NOMEM. */
pith_status pi_seq_start_recall(struct pith_seq *seq, pith_error *err);
void pi_seq_stop_recall(struct pith_seq *seq);
pith_status pi_seq_fork_recall(const struct pith_seq *from, struct pith_seq *to, pith_error *err);
void pi_seq_truncate_recall(struct pith_seq *seq, int32_t n_token, bool whole);

/* Before a keep round: what it evicts is remembered. */
void pi_seq_witness(struct pith_seq *seq);
/* Before tokens are appended: what the first of them overwrites is remembered. */
void pi_seq_remember_aims(struct pith_seq *seq);
/* After an evaluation that evicted: text of what went is stored. */
void pi_seq_update_text(struct pith_seq *seq);

/* Room for the guests of an item that can recall, and the tier's for choosing them, and for what an
   item's queries are remembered in. KV_FULL, NOMEM. */
pith_status pi_engine_reserve_guests(struct pith_engine *e, const pith_batch_item *item,
                                     pith_error *err);
/* Of an item's next `most` tokens those before its recall: its last tokens are not cut from each
   other but by a round. */
int32_t pi_engine_until_recall(const struct pith_engine *e, const pith_batch_item *item,
                               int32_t n_done, int32_t most);
/* Whether the item's tokens from n_done on choose guests: they are a part of one pass up to its
   next round. */
bool pi_engine_recalls(const struct pith_engine *e, const pith_batch_item *item, int32_t n_done);
/* Whether a round that would fall among tokens that choose together comes before them. */
bool pi_engine_rounds_early(const struct pith_engine *e, const pith_batch_item *item,
                            int32_t n_done);
/* After a round behind the last token of an evaluation, or at a step: the queries that asked last
   choose again, since they passed over what it evicted. */
void pi_seq_ask_again(struct pith_seq *seq);
/* After a pass with a part of the sequence; step: it was evaluated alone. */
void pi_seq_note_recall(struct pith_seq *seq, const struct pi_pass_item *part, bool step);
struct pi_recall_point pi_seq_recall_point(const struct pith_seq *seq);
/* After an evaluation that began there; undone: the sequence is as it was. */
void pi_seq_finish_recall(struct pith_seq *seq, const struct pi_recall_point *before, bool undone);
/* Tokens of an item, and those of its prompt that follow in later items. */
static inline int32_t pi_item_tokens(const pith_batch_item *item)
{
    return item->n_token + item->n_rest;
}

/* Of the first `same` of n_token tokens, which are there already, those that leave as many to
   evaluate as recall together in a fresh sequence. */
int32_t pi_engine_recall_reusable(const struct pith_engine *e, int32_t same, int32_t n_token);

/* ---- share.c ---- */

/* Opens what the options have. The statuses of share_create. */
pith_status pi_engine_start_share(struct pith_engine *e, const struct policy_model *model,
                                  pith_error *err);

/* Of a sequence that is being made, forked (its cache is copied already), forgets what follows
   n_token tokens (its cache has), or was read from a file (its tokens are there). NOMEM. */
pith_status pi_seq_start_share(struct pith_seq *seq, pith_error *err);
pith_status pi_seq_fork_share(const struct pith_seq *from, struct pith_seq *to, pith_error *err);
void pi_seq_truncate_share(struct pith_seq *seq, int32_t n_token);
void pi_seq_load_share(struct pith_seq *seq);
void pi_seq_note_share_round(struct pith_seq *seq); /* a keep round ran */
/* Of the first `same` tokens those before which nothing was shared. */
int32_t pi_seq_share_reusable(const struct pith_seq *seq, int32_t same);
/* Lets all of its tokens be as a prompt's, which is no step. */
void pi_seq_forget_steps(struct pith_seq *seq);

/* Before an item is evaluated, and before room is made for it: a token that is evaluated alone may
   begin a step. NOMEM. */
pith_status pi_seq_begin_share(struct pith_seq *seq, const pith_batch_item *item, pith_error *err);
/* After it, when n_done of its tokens are a part of the sequence: those of all, or none. */
void pi_seq_finish_share(struct pith_seq *seq, const pith_batch_item *item, int32_t n_done);

/* One keep round of a sequence of n_token tokens, whose memory is there. */
pith_status pi_seq_round(struct pith_seq *seq, int32_t n_token, pith_error *err);

/* What a text means as a sequence's own budget (pith_seq_set_budget): keep_point's scale. Its
   statuses. */
pith_status pi_engine_read_budget(const struct pith_engine *e, const char *budget, double *scale,
                                  pith_error *err);
/* Of a sequence without tokens. */
void pi_seq_set_scale(struct pith_seq *seq, double scale);

/* Where a sequence stands after the first n_done tokens of its item. */
struct keep_point pi_seq_point(const struct pith_seq *seq, int32_t n_done);

/* What a policy is shown of a sequence whose next token gets position n_token. */
struct keep_view pi_seq_view(const struct pith_seq *seq, int32_t n_token);

/* A sequence with a policy's empty state and no cache yet. NOMEM. */
pith_status pi_seq_alloc(struct pith_engine *e, struct pith_seq **out, pith_error *err);

/* Replaces the token list of a sequence that is fresh. NOMEM. */
pith_status pi_seq_set_tokens(struct pith_seq *seq, const int32_t *tokens, int32_t n,
                              pith_error *err);

/* Room for n more tokens in the list. NOMEM. */
pith_status pi_seq_grow(struct pith_seq *seq, int32_t n, pith_error *err);

/* Tokens of the beginning of tokens [n] that the sequence holds and a sync need not evaluate again,
   so that the result is that of a fresh sequence. All of them where the sequence goes on from its
   end; where it must forget, no more than every lane still has the entries of, nothing where the
   keep policy remembers something (traits.remembers), which saw what is forgotten, and with a read
   policy only what it has read whole and would again. */
int32_t pi_seq_reusable(const struct pith_seq *seq, const int32_t *tokens, int32_t n);

#endif
