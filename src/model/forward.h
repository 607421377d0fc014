/*
 * forward.h - the pass: tokens in, hidden states out, on the KV store. It knows no family and no
 * policy by name; it does what the model's tensors ask for.
 */
#ifndef PI_FORWARD_H
#define PI_FORWARD_H

#include "kv/kv.h"
#include "model/model.h"

/* Tokens of one sequence in a pass. Room for them was reserved in kv. */
struct pi_pass_item {
    struct kv_seq *kv;
    const int32_t *tokens; /* [n_tok] */
    int32_t n_tok;
    int32_t pos0; /* position of the first */
    void *owner;  /* whoever asked, for the tap; the pass does not look at it */
};

/* What one layer computed for the tokens of one item, before keys and values are stored. */
struct pi_pass_tap_rows {
    const struct pi_pass_item *item;
    int32_t layer;
    const float *q_pre; /* [n_tok][n_head][dim_k] before rope, after bias and norm */
    const float *q;     /* [n_tok][n_head][dim_k] after rope */
    const float *k;     /* [n_tok][n_head_kv][dim_k] after rope */
    const float *v;     /* [n_tok][n_head_kv][dim_v] */
};

/* Called on the thread that runs the pass; the rows are valid during the call. */
typedef void pi_pass_tap_fn(void *user, const struct pi_pass_tap_rows *rows);

/* Scratch of one pass; one thread at a time uses it, and its workers through it. */
struct pi_pass;

/* A pass of at most max_tok tokens. model is borrowed until pi_pass_free. NOMEM. */
pith_status pi_pass_create(const struct pith_model *model, const struct kv_geometry *geometry,
                           int32_t max_tok, int32_t n_thread, struct pi_pass **out,
                           pith_error *err);
void pi_pass_free(struct pi_pass *pass);

/* From now on fn sees every layer of every item, layers in order and items in order within a layer;
   NULL ends it. What queries were before rope costs memory of its own meanwhile: NOMEM, and nothing
   has changed then. No pass may be running. */
pith_status pi_pass_set_tap(struct pi_pass *pass, pi_pass_tap_fn *fn, void *user, pith_error *err);

/* Appends the items' keys and values to their lanes and leaves the hidden states of all tokens, in
   item order, for pi_pass_logits. Token ids are in range, the sum of n_tok is at most max_tok. */
void pi_pass_run(struct pi_pass *pass, const struct pi_pass_item *items, int32_t n_item);

/* out[i] = logits [n_vocab] of the token with index rows[i] in the last pass; n <= max_tok. */
void pi_pass_logits(struct pi_pass *pass, const int32_t *rows, int32_t n, float *out);

#endif
