/*
 * engine.h - the engine's and the sequences' insides, shared by the files of engine/. The fields of
 * one file are a part, declared in that file's header with its writer. The others are engine.c's.
 */
#ifndef PI_ENGINE_H
#define PI_ENGINE_H

#include "engine/advance.h"
#include "engine/ahead.h"
#include "engine/eval.h"
#include "engine/keep.h"
#include "engine/memory.h"
#include "engine/owner.h"
#include "engine/recall.h"
#include "engine/row.h"
#include "engine/tap.h"
#include "engine/verbs.h"
#include "model/forward.h"
#include "model/model.h"
#include "policy/traits/traits.h"
#include "pith/inspect.h"

struct pith_engine {
    const struct pith_model *model; /* held until the engine is freed */
    struct kv_cache *kv;            /* owned */
    struct kv_geometry lanes;       /* of it those that policies work on, which have no window */
    struct pi_pass *pass;           /* owned */
    struct pi_stages stages;        /* the pass's */
    struct pith_seq *first;         /* all sequences, for the account of memory */
    int64_t memory_bytes;           /* of all that grows with them; 0: nothing was said */
    float *sample_row;              /* [n_vocab] scratch of the sampler that chooses; owned */
    int32_t chunk;
    int32_t n_thread;
    int32_t n_worker; /* threads of rounds and recalls (pi_account_workers) */
    struct policy_set policies;
    struct engine_traits traits;                 /* of them: what follows from which there are */
    const struct seq_hooks *verb[PI_VERBS_MOST]; /* [n_verb] in the order of verbs.c's table */
    int32_t n_verb;

    /* ---- the files' parts ---- */
    struct pi_owner owner;
    struct pi_batch batch;
    struct pi_advance advance;
    struct pi_tap tap;
    bool told_clipped; /* store.c: that entries were more than their storage type holds */
    struct pi_keep keep;
    struct read *read; /* read.c; owned; NULL: everything is read */
    struct pi_recall recall;
    struct recall_text *recall_text; /* recall_text.c; owned; NULL: no text comes back */
    struct share *share; /* share.c; owned; NULL: every page stands where it was written */
};

struct pith_seq {
    struct pith_engine *engine;
    struct pith_seq *prev, *next; /* the engine's list */
    struct pith_seq *left;        /* owner.c's list */
    struct pi_memory memory;
    int32_t *tokens; /* [cap], owned */
    int32_t n_token;
    int32_t cap;
    float *logits; /* [n_vocab], owned; NULL until the first are wanted */
    bool has_logits;
    struct pi_row *row; /* row.c: the row where it is on the device; owned; NULL: it never is */
    bool is_loaded;     /* from a file: what its tokens read is not known */
    int32_t n_prompt;   /* the first positions, marked as the prompt; 0: nothing is */
    int32_t pinned;     /* the first position of recalled text; 0: nothing is pinned */
    bool is_away;       /* its lanes are in host memory: sequence.c */
    int32_t away_gap;   /* what pi_seq_first_gap said when they left */
    struct pi_own away; /* what it had beside pages then, which waits with it */

    /* ---- the files' parts ---- */
    struct pi_seq_keep keep;
    struct read_tally read; /* read.c */
    struct pi_seq_recall recall;
    struct pi_seq_text text;
    struct share_seq *share; /* share.c: its steps, owned; NULL without a share policy */
    struct pi_draft *draft;  /* draft.c: what it drafts by, owned; NULL until it does */
    struct pi_ahead ahead;
    struct pith_generation *generation; /* generate.c: the last that was begun; NULL: it is over */
};

/* ---- read.c ---- */

/* Whether prompts are read in chunks, which choose together what they read. */
bool pi_engine_reads_chunks(const struct pith_engine *e);

/* Of n of the tokens that are left of a prompt as many as end where a chunk does and leave no
   single one. It is for a read policy without rounds. `some`: one chunk at least. */
int32_t pi_engine_part(const struct pith_engine *e, int32_t n, int32_t left, bool some);

/* ---- engine.c ---- */

/* A sequence with the verbs' parts and no cache yet. NOMEM. */
pith_status pi_seq_alloc(struct pith_engine *e, struct pith_seq **out, pith_error *err);

/* Replaces the token list of a sequence that is fresh. NOMEM. */
pith_status pi_seq_set_tokens(struct pith_seq *seq, const int32_t *tokens, int32_t n,
                              pith_error *err);

/* Room for n more tokens in the list, and for an eighth of all, or PI_SEQ_GROWTH. NOMEM. */
enum { PI_SEQ_GROWTH = 64 };
pith_status pi_seq_grow(struct pith_seq *seq, int32_t n, pith_error *err);

/* The lowest position that some lane has no entry of; n_token when there is none. */
int32_t pi_seq_first_gap(const struct pith_seq *seq);

/* Tokens of the beginning of tokens [n] that the sequence holds and a sync need not evaluate
   again: the result is a fresh sequence's. All of them where the sequence goes on from its end.
   Where it must forget some, no more than every lane still has the entries of, and no more than
   each verb allows (hook `reusable`). A sequence that is away goes back only as far as was noted
   when it left. */
int32_t pi_seq_reusable(const struct pith_seq *seq, const int32_t *tokens, int32_t n);

/* The same of `same` tokens that both have, as far as policies decide: what windows and recurrent
   layers forgot is left out. */
int32_t pi_seq_policies_reach(const struct pith_seq *seq, int32_t same, int32_t n);

/* The model as policies see it; stats are not set. */
struct policy_model pi_engine_policy_model(const struct pith_engine *e);

/* ---- generate.c ---- */

/* The sequence goes away or begins another generation: the last one ends here. */
void pi_generation_detach(struct pith_seq *seq);
/* Another call looks at all of the sequence, or changes it: tokens that were drafted ahead go. */
void pi_generation_settle(struct pith_seq *seq);

/* ---- calibrate.c ---- */

/* Sets the names of the model and of a text (NULL: "") in statistics. NOMEM. */
pith_status pi_engine_name_stats(const struct pith_engine *e, const char *text,
                                 struct pith_stats *s, pith_error *err);

#endif
