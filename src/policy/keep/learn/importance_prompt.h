/*
 * importance_prompt.h - the tokens around a text that a model is to repeat: "TEXT, Repeat the
 * previous context exactly." as a user's message of its own template, and the opening of the
 * answer.
 */
#ifndef PI_KEEP_IMPORTANCE_PROMPT_H
#define PI_KEEP_IMPORTANCE_PROMPT_H

#include "model/shape.h"

/* Before the text, and between the text and its repetition. */
struct importance_prompt {
    int32_t *before; /* owned, as is the other */
    int32_t n_before;
    int32_t *middle;
    int32_t n_middle;
};

/* For a model without a chat template that Pith knows, it is the tokens that the model wants before
   a text, and the sentence itself. UNSUPPORTED without a tokenizer; NOMEM. */
pith_status importance_prompt_create(const struct pith_model *model, struct importance_prompt *out,
                                     pith_error *err);
void importance_prompt_free(struct importance_prompt *p);

#endif
