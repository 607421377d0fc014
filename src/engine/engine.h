/* engine.h - the engine's and the sequences' insides, shared by the files of engine/. */
#ifndef PI_ENGINE_H
#define PI_ENGINE_H

#include "keep/keep.h"
#include "kv/kv.h"
#include "model/forward.h"
#include "model/model.h"

#define PI_LOGITS_ROWS 8 /* rows of logits made at once: bounds the scratch, reuses the weights */

/* What the running batch has done with one of its items. */
struct pi_item_state {
    int32_t n_done;      /* tokens evaluated */
    bool evicted;        /* a keep round ran: there is no way back */
    uint8_t *keep_state; /* [keep_state_size] the policy's block as it was before, a part of
                            pith_engine.keep_states; NULL where it has none */
};

struct pith_engine {
    const struct pith_model *model; /* borrowed until the engine is freed */
    struct kv_cache *kv;            /* owned */
    struct pi_pass *pass;           /* owned */
    struct keep *keep;              /* owned; NULL: the full cache */
    int32_t chunk;
    int32_t n_thread;
    struct pi_pass_item *pass_item; /* [chunk] items of the running pass */
    int32_t *batch_of;              /* [chunk] item of the batch that a pass item comes from */
    struct pi_item_state *state;    /* [n_state] per item of the running batch */
    int32_t n_state;
    uint8_t *keep_states;             /* [n_state][keep_state_size] owned */
    float *logits;                    /* [PI_LOGITS_ROWS][n_vocab] */
    int32_t rows[PI_LOGITS_ROWS];     /* row of the pass, per row of logits */
    int32_t row_item[PI_LOGITS_ROWS]; /* item of the batch */
    int32_t row_pos[PI_LOGITS_ROWS];  /* position */
    pith_tap_fn *tap;                 /* NULL: nobody listens */
    void *tap_user;
    bool tap_stopped; /* the tap returned false in the running batch */
};

struct pith_seq {
    struct pith_engine *engine;
    struct kv_seq *kv; /* owned */
    int32_t *tokens;   /* [cap], owned */
    int32_t n_token;
    int32_t cap;
    float *logits; /* [n_vocab], owned; NULL until the first are wanted */
    bool has_logits;
    int32_t n_prompt; /* the first positions, marked as the prompt; 0: nothing is */
    struct keep_tally tally;
    void *keep_state; /* [keep_state_size] the policy's block, owned; NULL where it has none */
};

/* Installs the pass's tap where somebody wants to see rows (the caller's tap or the keep policy),
   and takes it out where nobody does. NOMEM leaves what was. */
pith_status pi_engine_update_tap(struct pith_engine *e, pith_tap_fn *fn, void *user,
                                 pith_error *err);

/* Room for n more tokens in the list. NOMEM. */
pith_status pi_seq_grow(struct pith_seq *seq, int32_t n, pith_error *err);

/* Tokens of the beginning of tokens [n] that the sequence holds and a sync need not evaluate again,
   so that the result is that of a fresh sequence. All of them where the sequence goes on from its
   end; where it must forget, no more than every lane still has the entries of, and nothing where
   the keep policy has a state, which saw what is forgotten. */
int32_t pi_seq_reusable(const struct pith_seq *seq, const int32_t *tokens, int32_t n);

#endif
