/*
 * question.h - where in a prompt's tokens its question begins: what recall `text` finds for it is
 * read in front of it.
 */
#ifndef PI_QUESTION_H
#define PI_QUESTION_H

#include "model/model.h"

struct pi_question {
    int32_t at;       /* the token that it begins with, or lies in; 0: the prompt has no question */
    const char *text; /* [len] a part of the message, without white space around it */
    size_t len;
};

/* The byte of text [len] in front of which recalled text for a message in it is read. It is 0
   where the text holds no such message. That is the beginning of its question
   (pith_recall_question), at its last occurrence, with a label "question:" and the beginning of
   that line. It is the end of the message where the question opens it. Where nothing follows the
   message, no template marks it as a user's, and it may be a text to be continued. It then has a
   question only where a label or a question mark at its end says so. *out receives the question; at
   stays 0. */
size_t pi_question_place(const char *text, size_t len, const char *message, size_t message_len,
                         struct pi_question *out);

/* The same in tokens, whose text is that of their bytes, special tokens included. NOMEM, and
   INVALID for a token that is none. */
pith_status pi_question_find(const pith_model *model, const int32_t *ids, int32_t n_id,
                             const char *message, size_t message_len, struct pi_question *out,
                             pith_error *err);

/* The token that a part of the prompt's text begins with, at its last occurrence, or in; 0: there
   is none. As pi_question_find. */
pith_status pi_prompt_find(const pith_model *model, const int32_t *ids, int32_t n_id,
                           const char *part, int32_t *at, pith_error *err);

#endif
