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

/* The byte of text [len] that is in front of the question of a message in it: pith_recall_question
   of the message, at its last occurrence, with a label "question:" and from the beginning of its
   line, where that is near, or else of its word, but no farther back than the message. *out
   receives the question. Returns 0 where there is none, or text does not hold it. */
size_t pi_question_place(const char *text, size_t len, const char *message, size_t message_len,
                         struct pi_question *out);

/* The same in tokens, whose text is that of their bytes, special tokens included. NOMEM, and
   INVALID for a token that is none. */
pith_status pi_question_find(const pith_model *model, const int32_t *ids, int32_t n_id,
                             const char *message, size_t message_len, struct pi_question *out,
                             pith_error *err);

#endif
