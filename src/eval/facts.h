/*
 * facts.h - files of contexts with questions about them, one JSON object per line, as texts or as
 * token ids.
 */
#ifndef PI_EVAL_FACTS_H
#define PI_EVAL_FACTS_H

#include "eval.h"

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
   X}], "id": TEXT}, where a PART is a text or a list of ids, neither empty, and "at" and "id" may
   be absent. Empty lines are passed over. FORMAT (which line, question and field), NOMEM. The
   caller frees with eval_facts_free, also on failure. */
pith_status eval_facts_parse(const char *text, size_t len, struct facts_file *out, pith_error *err);
void eval_facts_free(struct facts_file *f);

struct eval_facts_params {
    const char *path;  /* such a file */
    int32_t n_context; /* the first so many of its lines; 0: all */
};

/* Reads each context under the full cache, cuts it once (pith_seq_keep_round), and asks every
   question of a fork of what is left, greedily; an answer is right when all its tokens are. Rows:
   one per context; docs/eval.md describes the figures. INVALID (a policy with a slack of its own, a
   budget in bytes), FORMAT, and as pith_seq_eval. */
pith_status eval_facts(const struct eval_setup *setup, const struct eval_facts_params *params,
                       json_t **result, pith_error *err);

#endif
