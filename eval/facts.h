/*
 * facts.h - texts with facts and questions about them. They are made here and read under the
 * policy's own rounds. Or they come from files of one JSON object per line, as texts or as token
 * ids.
 */
#ifndef PI_EVAL_FACTS_H
#define PI_EVAL_FACTS_H

#include "facts_pool.h"

/* Tokens, or a text that becomes tokens. */
struct facts_part {
    char *text;   /* owned; NULL: the file has ids */
    int32_t *ids; /* [n_id] owned; of a text once it is encoded */
    int32_t n_id;
};

struct facts_question {
    struct facts_part ask;
    struct facts_part answer;
    double at; /* the share of the context before the fact, [0, 1]; -1: the file does not say */
};

struct facts_item {
    char *name; /* what the file calls it, or its line; owned */
    struct facts_part context;
    struct facts_question *question; /* [n_question] owned */
    int32_t n_question;
};

struct facts_file {
    struct facts_item *item; /* [n] owned */
    int32_t n;
};

/* Reads text [len]: lines of {"context": PART, "questions": [{"ask": PART, "answer": PART, "at":
   X}], "id": TEXT}. A PART is a text or a list of ids, neither empty; "at" and "id" may be absent.
   Empty lines are passed over. FORMAT (which line, question and field), NOMEM. The caller frees
   with eval_facts_free, also on failure. */
pith_status eval_facts_parse(const char *text, size_t len, struct facts_file *out, pith_error *err);
void eval_facts_free(struct facts_file *f);

struct eval_facts_params {
    const char *path;  /* such a file */
    int32_t n_context; /* the first n_context of its lines; 0: all */
};

/* Reads each context under the full cache, cuts it once (pith_seq_keep_round), and asks every
   question of a fork of the rest, greedily. An answer is right when all its tokens are. Rows: one
   per context; docs/eval.md describes the figures. INVALID (a policy with a slack of its own, a
   budget in bytes), FORMAT, and as pith_seq_eval. */
pith_status eval_facts(const struct eval_setup *setup, const struct eval_facts_params *params,
                       json_t **result, pith_error *err);

/* ---- texts that are made ---- */

struct eval_facts_texts_params {
    enum eval_facts_style style;
    const char *haystack; /* [haystack_len]; NULL: RULER's noise */
    size_t haystack_len;
    const int32_t *lengths; /* [n_length] tokens of the whole prompt with its longest question */
    int32_t n_length;
    int32_t n_text;    /* of each length */
    int32_t n_predict; /* most tokens of an answer */
    bool paired;       /* also under the full cache */
};

/* Reads each text, up to its question, as one prompt under the policy's own rounds. Then it asks
   FACTS_OF_TEXT questions, each of a fork of that one reading. A generated answer is right when it
   holds the wanted words; beside it stands the probability of the whole right answer. Rows: one per
   fact; docs/eval.md describes the figures. The prompt's mark (pith_seq_mark_prompt) ends before
   the question. INVALID, and as pith_batch_eval. */
pith_status eval_facts_texts(const struct eval_setup *setup,
                             const struct eval_facts_texts_params *params, json_t **result,
                             pith_error *err);

/* A text with its facts. Zero it before use. */
struct facts_text {
    struct facts_picked facts;
    struct eval_text text;    /* up to the question */
    double at[FACTS_OF_TEXT]; /* the share of the haystack's bytes before each fact */
};
void eval_facts_text_free(struct facts_text *t);

/* The depth that fact i is asked to stand at: 0.05, 0.15, .. 0.95. */
double eval_facts_depth(int32_t i);

/* Makes text index: a haystack from a sentence that is drawn. It is cut behind a word so that the
   prompt with the longest question takes at most length tokens. Each fact stands at the end of the
   sentence nearest to its depth. INVALID (the length is too small), NOMEM. */
pith_status eval_facts_text_make(const struct eval_facts_texts_params *params, uint64_t seed,
                                 int32_t index, int32_t length, const struct eval_counter *counter,
                                 struct facts_text *out, pith_error *err);

#endif
