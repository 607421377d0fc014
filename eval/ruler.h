/*
 * ruler.h - the generators of RULER's tasks: retrieval from a haystack, variable tracking, common
 * and frequent words, questions among documents. Wording and sizes are the benchmark's, words are
 * our own.
 */
#ifndef PI_EVAL_RULER_H
#define PI_EVAL_RULER_H

#include "haystack.h"
#include "words.h"

struct ruler_task;

/* A question of SQuAD or HotpotQA. */
struct ruler_question {
    char *query;
    struct eval_strings answers; /* one of them is enough */
    int32_t *doc; /* [n_doc] places of its own documents, then of those near them; owned */
    int32_t n_doc, n_own;
};

/* A file of either. */
struct ruler_qa {
    struct eval_strings docs;        /* sorted, each once */
    struct ruler_question *question; /* [n] owned */
    int32_t n, cap;
};

/* Reads a file of SQuAD, else of HotpotQA, which the caller frees, also on failure. IO, FORMAT,
   NOMEM. */
pith_status eval_ruler_qa_read(const char *path, bool squad, struct ruler_qa *out, pith_error *err);
void eval_ruler_qa_free(struct ruler_qa *qa);

/* One item that is wanted. */
struct ruler_item {
    uint64_t seed;
    int32_t sample;
    int32_t length; /* tokens, the answer included */
    enum eval_haystack haystack;
    const char *text; /* [text_len] prose, or NULL: borrowed */
    size_t text_len;
    const struct ruler_qa *qa; /* of qa_1 and qa_2: of a file; borrowed */
    bool example;              /* vt and cwe: one worked example stands before the question */
};

/* An item while it is built. */
struct ruler_build {
    const struct ruler_task *task;
    const struct ruler_item *item;
    struct eval_strings pool; /* words of cwe, code words of fwe, most frequent first */
    struct eval_text example; /* the worked example, empty without */
};

/* Makes what does not depend on the size; b is zero but for task and item. */
typedef pith_status ruler_prepare_fn(struct ruler_build *b, const struct eval_counter *counter,
                                     pith_error *err);

struct ruler_task {
    const char *name;
    int32_t n_predict;           /* tokens of the answer */
    int32_t min_size;            /* of the units of build: lines, words, .. */
    enum eval_haystack haystack; /* what RULER has; TEXT gives way to NOISE without a text */
    ruler_prepare_fn *prepare;   /* may be NULL */
    eval_build_fn *build;        /* user is a struct ruler_build */
};

#define RULER_N_TASK 13
extern const struct ruler_task eval_ruler_tasks[RULER_N_TASK];

/* NULL when there is no such task. */
const struct ruler_task *eval_ruler_find(const char *name);

/* The haystack that an item of the task gets: NOISE, TEXT or NEEDLES. vt has no NEEDLES and takes
   NOISE; cwe and fwe have none and say TASK. */
enum eval_haystack eval_ruler_haystack(const struct ruler_task *task,
                                       const struct ruler_item *item);

/* Makes the item of the largest size that fits. INVALID when the length is too small. */
pith_status eval_ruler_make(const struct ruler_task *task, const struct ruler_item *item,
                            const struct eval_counter *counter, struct eval_prompt *out,
                            pith_error *err);

/* ---- shared by the generators ---- */

/* A stream of random numbers of the item; streams of different purposes are independent. */
enum ruler_stream { RULER_FACTS, RULER_PLACES, RULER_FILL, RULER_EXAMPLE };
struct eval_rng eval_ruler_rng(const struct ruler_build *b, enum ruler_stream stream);

/* Draws a word of a list. */
const char *eval_word(const struct eval_word_list *list, struct eval_rng *rng);

/* Draws a word of one to three syllables, most of them in no dictionary; buf holds 24 bytes. */
#define EVAL_INVENTED_SIZE 24
void eval_invent(struct eval_rng *rng, char *buf);

/* ruler_niah.c */
pith_status eval_build_niah(void *user, int32_t size, struct eval_prompt *out, pith_error *err);
/* ruler_track.c */
pith_status eval_prepare_vt(struct ruler_build *b, const struct eval_counter *counter,
                            pith_error *err);
pith_status eval_build_vt(void *user, int32_t size, struct eval_prompt *out, pith_error *err);
/* ruler_qa.c */
pith_status eval_build_qa(void *user, int32_t size, struct eval_prompt *out, pith_error *err);
/* ruler_count.c */
pith_status eval_prepare_cwe(struct ruler_build *b, const struct eval_counter *counter,
                             pith_error *err);
pith_status eval_build_cwe(void *user, int32_t size, struct eval_prompt *out, pith_error *err);
pith_status eval_prepare_fwe(struct ruler_build *b, const struct eval_counter *counter,
                             pith_error *err);
pith_status eval_build_fwe(void *user, int32_t size, struct eval_prompt *out, pith_error *err);

#endif
