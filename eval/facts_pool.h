/*
 * facts_pool.h - facts to hide in texts, each with a question about it.
 */
#ifndef PI_EVAL_FACTS_POOL_H
#define PI_EVAL_FACTS_POOL_H

#include "eval.h"
#include "prompt.h"

#define FACTS_OF_TEXT 10

enum eval_facts_style {
    EVAL_FACTS_POOL, /* sentences of all kinds and lengths, asked for in a chat */
    EVAL_FACTS_PITH, /* "The password of Maria is copper lantern.", what pith's models know */
};

/* The facts of one text. Zero it before use. */
struct facts_picked {
    struct eval_strings sentence; /* [FACTS_OF_TEXT], each */
    struct eval_strings question;
    struct eval_strings prefix; /* opening of the answer; "": none */
    struct eval_strings answer; /* a whole right answer */
    struct eval_strings wanted; /* the part of it that an answer must hold */
};

/* Draws the facts of text index: no fact twice in a text. No fact of the pool comes twice in as
   many texts of a seed as the pool is large. NOMEM. */
pith_status eval_facts_pick(enum eval_facts_style style, uint64_t seed, int32_t text,
                            struct facts_picked *out, pith_error *err);
void eval_facts_picked_free(struct facts_picked *d);

#endif
