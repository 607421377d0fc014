/*
 * eval.h - a batch that is evaluated: eval.c writes it, and its hooks see it.
 */
#ifndef PI_EVAL_H
#define PI_EVAL_H

#include "engine/keep.h"
#include "engine/recall.h"
#include "model/forward.h"

/* The progress of the running batch with one of its items. Each verb's `note` and `copy` write
   its own part; eval.c writes the rest, and keep.c sets `evicted`. */
struct pi_item_state {
    int32_t n_done; /* tokens evaluated */
    bool evicted;   /* a keep round ran, or entries were overwritten: there is no way back */
    bool undone;    /* a pass was stopped: lanes may hold entries behind n_done's */
    bool stays;     /* at the end: what was evaluated is a part of the sequence */
    bool cut;       /* at the end: entries of the evaluation were cut off again */
    struct pi_item_keep keep;
    struct read_tally read;        /* the sequence's as it was before */
    struct pi_recall_point recall; /* likewise */
};

/* An item's part of the next pass. Verbs lower and fill it, in their order. */
struct pi_item_plan {
    int32_t n_done; /* tokens of the item that were evaluated before */
    int32_t left;   /* and those that are left */
    int32_t room;   /* tokens that the pass has room for */
    int32_t index;  /* of the part in the pass */
    int32_t until;  /* tokens before something of the sequence is due */
    int32_t n_take; /* tokens that it gives */
    bool together;  /* all `until` tokens go into one pass */
    bool chunked;   /* n_take is decided */
    bool stays;     /* the pass cannot be taken back */
    bool watched;   /* as in struct pi_pass_item, likewise what follows */
    int32_t n_read;
    bool recall;
    struct kv_seq *guests;
};

/* The engine's part. */
struct pi_batch {
    struct pi_pass_item *part;   /* [chunk] items of the running pass; owned, like all arrays */
    int32_t *item_of;            /* [chunk] item of the batch that a part comes from */
    struct pi_item_state *state; /* [n_state] per item of the running batch */
    int32_t n_state;
    float *logits;                    /* [pi_batch_rows][n_vocab] */
    int32_t rows[PI_PASS_LOGITS];     /* row of the pass, per row of logits */
    int32_t row_item[PI_PASS_LOGITS]; /* item of the batch */
    int32_t row_pos[PI_PASS_LOGITS];  /* position */
    /* Tokens that a cancelled evaluation has read stay in the sequence; generate.c sets it. */
    bool keeps_read;
};

/* Rows of logits that are computed together, at most PI_PASS_LOGITS and the chunk. With a large
   vocabulary they are fewer on the processor, which gains little from more. */
int32_t pi_batch_rows(const struct pith_model *model, bool in_host, int32_t chunk);

/* Room of the engine's chunk and vocabulary. NOMEM; any stage is freed by pi_batch_free. */
pith_status pi_batch_create(struct pith_engine *e, pith_error *err);
void pi_batch_free(struct pith_engine *e);

/* Tokens of an item, and of its prompt that follow in later items. */
static inline int32_t pi_item_tokens(const pith_batch_item *item)
{
    return item->n_token + item->n_rest;
}

/* Room for an item's tokens until its first keep round, and everything else that it needs before
   its batch is evaluated. Doing it again takes nothing more. KV_FULL, NOMEM. */
pith_status pi_item_reserve(struct pith_engine *e, const pith_batch_item *item, pith_error *err);

#endif
