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
};

/* Scratch of one pass; one thread at a time uses it, and its workers through it. */
struct pi_pass;

/* A pass of at most max_tok tokens. model is borrowed until pi_pass_free. NOMEM. */
pith_status pi_pass_create(const struct pith_model *model, const struct kv_geometry *geometry,
                           int32_t max_tok, int32_t n_thread, struct pi_pass **out,
                           pith_error *err);
void pi_pass_free(struct pi_pass *pass);

/* Appends the items' keys and values to their lanes and leaves the hidden states of all tokens, in
   item order, for pi_pass_logits. Token ids are in range, the sum of n_tok is at most max_tok. */
void pi_pass_run(struct pi_pass *pass, const struct pi_pass_item *items, int32_t n_item);

/* out[i] = logits [n_vocab] of the token with index rows[i] in the last pass; n <= max_tok. */
void pi_pass_logits(struct pi_pass *pass, const int32_t *rows, int32_t n, float *out);

#endif
