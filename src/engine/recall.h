/*
 * recall.h - recall's parts of an engine, of a sequence and of a running evaluation. recall.c
 * writes the parts for entries, recall_text.c the parts for text.
 */
#ifndef PI_ENGINE_RECALL_H
#define PI_ENGINE_RECALL_H

#include "policy/recall/text.h"

struct pith_engine;
struct pith_seq;

struct pi_recall_asked;

/* An engine's recall of entries. */
struct pi_recall {
    struct recall_tier *tier;      /* owned; NULL: entries do not come back */
    int32_t *take;                 /* [n_layer][n_head] guests that room is made for; owned */
    int32_t n_guest_seq;           /* sequences of guests in the cache */
    struct pi_recall_asked *asked; /* [chunk][n_head] lanes that a device scores for; owned */
};

/* A lane and its question to the tier. */
struct pi_recall_asked {
    struct pith_seq *seq;
    struct recall_ask ask;
};

/* How far a sequence's recalls are. */
struct pi_recall_point {
    int64_t n_recall; /* passes that chose guests */
    int32_t n_step;   /* tokens evaluated alone since the last */
    int32_t end;      /* tokens in the sequence when the guests were chosen; 0: there are none */
    float doubt;      /* pith_recall_stats.doubt of the steps since then */
};

/* A sequence's recall of entries. */
struct pi_seq_recall {
    struct recall_store *store; /* owned; NULL without recall of entries */
    struct kv_seq *guests;      /* owned; NULL until there can be some */
    struct keep_point room;     /* the point whose guests there is room for */
    float *asked;      /* [n_layer][n_head][n_asked][n_group][dim_k] the queries that asked last,
                          room for `last` tokens; owned; NULL until there are some */
    int32_t n_asked;   /* tokens that asked last; 0: none */
    int32_t asked_pos; /* the first one's position */
    bool *found;       /* [n_layer][n_head] they found something in this lane; owned */
    float *missed;     /* [n_layer][n_head] shares of the running step that are not there; owned */
    bool alone;        /* the running item is a token that asks only where it misses something */
    double *seconds;   /* [n_layer][n_head] spent remembering and choosing; owned */
    struct pi_recall_point point;
};

/* Tokens of a sequence that no prompt has: a text that was found, and read in front of a
   question. */
struct pi_insert {
    int32_t from;
    int32_t n;
};

/* A sequence's recall of text. */
struct pi_seq_text {
    struct recall_text_seq *store; /* owned; NULL without recall of text */
    int64_t n_recall;              /* texts that were found */
    int32_t n_found;               /* spans of the text that was found last */
    struct pi_insert *insert;      /* [n_insert] ascending; owned. The scheduler notes them */
    int32_t n_insert;
    bool asked; /* a question searched the store, for which a round may have come early */
};

/* Whether a turn's last tokens are one pass, which chooses what comes back: where it was stopped
   the sequence is no fresh one's. */
bool pi_engine_ends_together(const struct pith_engine *e);

/* Whether a round that would fall among an item's tokens that choose together comes before them. */
bool pi_item_rounds_early(const struct pith_engine *e, const pith_batch_item *item, int32_t n_done);

/* Fills in the figures of recall of text. */
void pi_text_stats(const struct pith_seq *seq, pith_recall_stats *out);

/* Whether questions of the engine search a store of text. */
bool pi_engine_finds_text(const struct pith_engine *e);

/* The text that a question finds (recall_text_find), at most as much as can be pinned until it
   is answered. The keep budget then holds it beside the protected entries. It also holds
   *n_before tokens in front of it, which a question may be about, n_rest tokens of the question
   and some of an answer. Runs a keep round first where a lane is over its budget. NULL: nothing
   is found, or the engine has no recall of text. NOMEM, INVALID. */
pith_status pi_seq_find_text(struct pith_seq *seq, const char *question, size_t len, int32_t n_rest,
                             char **text, int32_t *n_before, pith_error *err);

/* Tokens that a line's end in front may take beside what was found. */
#define PI_TEXT_LINE_TOKENS 2

/* The n tokens of a text that was found, on lines of its own behind the sequence's tokens. They
   stand in a block that the caller frees, between room for n_head and n_tail others. NOMEM. */
pith_status pi_seq_text_tokens(const struct pith_seq *seq, const char *found, int32_t n_head,
                               int32_t n_tail, int32_t **out, int32_t *n, pith_error *err);

/* Notes that the sequence's next n tokens are such a text. NOMEM. */
pith_status pi_seq_note_insert(struct pith_seq *seq, int32_t n, pith_error *err);

/* The tokens of such texts among the sequence's first n. */
int32_t pi_seq_inserted(const struct pith_seq *seq, int32_t n);

#endif
