/*
 * keep.h - the keep policy's part of an engine, of its sequences and of a running evaluation. The
 * files keep*.c and repeat.c write it; all others ask by the functions below, which hold without a
 * keep policy, too.
 */
#ifndef PI_ENGINE_KEEP_H
#define PI_ENGINE_KEEP_H

#include "policy/keep/rules/keep.h"
#include "policy/traits/traits.h"

struct pi_item_state;
struct pi_pass_attention;
struct pi_saved;

/* Of an engine. */
struct pi_keep {
    struct keep *handle;        /* the running policy, owned; NULL: the full cache */
    char *text;                 /* the policy as it was given, owned; NULL without one */
    struct pi_repeat *repeat;   /* owned; NULL: nothing is repeated */
    int32_t *step_of;           /* [chunk] number of a pass's part among its steps, -1: no step */
    int32_t n_step;             /* steps in the running pass */
    struct kv_learn_job *learn; /* [chunk] of a layer's items, owned; NULL: no device learns */
    struct kv_predict_job *predict; /* [chunk][n_head] likewise */
    struct keep_block *states;      /* [n_state] copies, owned; NULL until one is made */
    int32_t n_state;
    float *marks; /* of the batch's entries, for the way back; owned */
    size_t cap_marks;
    bool has_marks; /* the running batch's are in it */
};

/* Of a sequence. */
struct pi_seq_keep {
    struct keep_tally tally;
    double scale;            /* its own budget, as in keep_point */
    struct keep_block block; /* the policy's, owned; state NULL where it has none */
    bool may_disagree;       /* keep_lanes_agree may not hold: it was loaded */
};

/* Of an item of the running batch. */
struct pi_item_keep {
    const struct keep_block
        *block;   /* the policy's as it was before, of pi_keep.states; NULL where it
                                       was not copied */
    size_t marks; /* where the entries' marks as they were before begin in pi_keep.marks */
};

/* ---- keep.c: what others ask ---- */

/* Where a sequence stands after the first n_done tokens of its item. */
struct keep_point pi_seq_point(const struct pith_seq *seq, int32_t n_done);

/* A policy's view of a sequence whose next token gets position n_token. */
struct keep_view pi_seq_view(const struct pith_seq *seq, int32_t n_token);

/* The policy's block of a sequence, all of it on the host; NULL where it has none. */
const void *pi_seq_keep_state(const struct pith_seq *seq);

/* Whether an early keep round of the sequence would evict something. */
bool pi_seq_is_over_budget(const struct pith_seq *seq);

/* Of an item's next n tokens those that are appended before its next keep round. */
int32_t pi_item_until_round(const struct pith_engine *e, const pith_batch_item *item,
                            int32_t n_done, int32_t n);

/* Of the next n tokens of a sequence those that come before a keep round is due. */
int32_t pi_seq_until_round(const struct pith_seq *seq, int32_t n);

/* The most entries that a lane comes to hold in an item's evaluation. */
int64_t pi_item_longest(const struct pith_engine *e, const pith_batch_item *item);

/* Bytes of pages that the keep rounds of items, all reserved, can take beyond what they give
   back. */
struct kv_need pi_items_lack(struct pith_engine *e, const pith_batch_item *items, int32_t n);

/* Whether rounds of the engine run passes of their own, after which the last pass's rows are
   gone. */
bool pi_engine_rounds_run_passes(const struct pith_engine *e);

/* Whether the engine pins what is marked as the prompt. */
bool pi_engine_pins(const struct pith_engine *e);
/* Whether a sequence may grow past the model's context. */
bool pi_engine_passes_context(const struct pith_engine *e);
/* Whether a prompt is held whole behind a mark that covers a part of it. */
bool pi_engine_holds_prompts(const struct pith_engine *e);
/* Whether a sequence can go back to any of its tokens, as far as policies and states go. */
bool pi_engine_goes_back(const struct pith_engine *e);

/* The meaning of a text as a sequence's own budget (pith_seq_set_budget): keep_point's scale.
   Its statuses. */
pith_status pi_engine_read_budget(const struct pith_engine *e, const char *budget, double *scale,
                                  pith_error *err);
/* Of a sequence without tokens. */
void pi_seq_set_scale(struct pith_seq *seq, double scale);

/* ---- keep_watch.c: what the pass shows ---- */

/* Lets the pass show the policy what it wants to see: rows, attention weights, entries that were
   written. NOMEM. */
pith_status pi_keep_watch(struct pith_engine *e, pith_error *err);

/* Whether the watch is shown the attention of an item of n_token tokens. */
bool pi_keep_watches(const struct pith_engine *e, int32_t n_token);
/* Behind a pass of n_pass parts: its steps get the victims that the device found. */
void pi_keep_learn_victims(struct pith_engine *e, int32_t n_pass);

/* Memory for showing a batch's watched items, before its first pass. NOMEM. */
pith_status pi_keep_reserve_watch(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                                  pith_error *err);

/* ---- keep_copy.c: the way back of an evaluation that can be stopped ---- */

/* Copies what the policy changes of the batch's sequences: their blocks, their entries' marks.
   NOMEM. */
pith_status pi_keep_copy(struct pith_engine *e, const pith_batch_item *items, int32_t n,
                         pith_error *err);
/* Gives a sequence the copy back, where one was made. Its entries are again those from before. */
void pi_keep_restore(struct pith_engine *e, struct pith_seq *seq, const struct pi_item_keep *copy);

/* ---- keep_file.c: hooks save and load ---- */

pith_status pi_keep_save(const struct pith_seq *seq, void **bytes, size_t *size, pith_error *err);
pith_status pi_keep_load(struct pith_seq *seq, struct pi_saved *saved, const char *path,
                         pith_error *err);

/* Bytes of marks beside an entry. */
size_t pi_keep_mark_size(const struct policy_set *policies, const struct kv_geometry *g);

/* ---- repeat.c ---- */

/* Makes what the policy needs to see of repetitions, where it wants them, and lets the pass show
   it. NOMEM; UNSUPPORTED without a tokenizer. */
pith_status pi_keep_start_repeat(struct pith_engine *e, pith_error *err);
void pi_keep_stop_repeat(struct pith_engine *e);

/* Bytes that it remembers of the text that was repeated last. */
int64_t pi_keep_repeat_bytes(const struct pith_engine *e);

/* Bytes of pages that must be free when an item is in, for the time that its text is repeated
   in. */
int64_t pi_item_repeat_bytes(const struct pith_engine *e, const pith_batch_item *item);

/* Before the round of a sequence of n_token tokens: repeats the tokens whose entries have no mark
   yet. The pages were counted; NOMEM leaves it as it was. The rows of the last pass are gone
   then. */
pith_status pi_seq_repeat(struct pith_seq *seq, int32_t n_token, pith_error *err);

#endif
