/*
 * needle.h - the texts of the needle task: a fact at a given depth of a haystack of a given length,
 * and a question about it. Others of the fact's form are decoys.
 */
#ifndef PI_EVAL_NEEDLE_H
#define PI_EVAL_NEEDLE_H

#include "answers.h"
#include "haystack.h"

struct needle_item {
    uint64_t seed;
    int32_t repeat; /* index of the text in its cell */
    int32_t length; /* tokens of the whole prompt */
    double depth;
};

/* A prompt and what its answer is checked with. Zero it before use. */
struct needle_text {
    struct eval_prompt prompt; /* refs: "WORD NUMBER" */
    char *word;                /* these and below: owned */
    char *number;
    char *question;
    char *needle;
    char *before; /* the text in front of the needle, some tens of bytes */
    char *after;
    double at; /* the share of the haystack's tokens that stands before the needle */
};
void eval_needle_text_free(struct needle_text *t);

/* Makes the longest prompt of at most item->length tokens. The haystack begins at its start (repeat
   0) or at a sentence that is drawn, and is cut behind a word. The needle stands at the end of the
   sentence nearest to depth, counted in tokens; decoys at ends of sentences that are drawn. INVALID
   when the length is too small or a parameter is not valid. */
pith_status eval_needle_make(const struct eval_needle_params *params,
                             const struct needle_item *item, const struct eval_counter *counter,
                             struct needle_text *out, pith_error *err);

#endif
