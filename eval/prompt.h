/*
 * prompt.h - the results of the tasks' generators: a prompt, the opening of its answer, and the
 * words of a right answer. Also how a prompt is fitted to a number of tokens.
 *
 * A generator is a pure function of its parameters, the seed and the index of the item. It learns
 * the lengths of texts from a counter, so it runs without a model in the tests.
 */
#ifndef PI_EVAL_PROMPT_H
#define PI_EVAL_PROMPT_H

#include "eval.h"
#include "voices.h"

/* Copies of strings. Zero it before use. */
struct eval_strings {
    char **at; /* [n] owned */
    int32_t n;
    int32_t cap;
    bool failed; /* out of memory: later calls do nothing */
};
void eval_strings_add(struct eval_strings *s, const char *text);
void eval_strings_printf(struct eval_strings *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
bool eval_strings_has(const struct eval_strings *s, const char *text);
void eval_strings_clear(struct eval_strings *s); /* keeps the memory of the list */
void eval_strings_free(struct eval_strings *s);

/* A copy that the caller frees; NULL: no memory. */
char *eval_copy(const char *text);

/* Zero it before use. */
struct eval_prompt {
    struct eval_text text;    /* the user's message */
    struct eval_text prefix;  /* opening of the answer; empty: none */
    struct eval_strings refs; /* what the answer must hold, in this order */
    int32_t n_token;          /* of text and prefix together, as eval_fit counted them */
};
void eval_prompt_clear(struct eval_prompt *p);
void eval_prompt_free(struct eval_prompt *p);

/* NOMEM when a part of the prompt could not be stored, else PITH_OK. */
pith_status eval_prompt_check(const struct eval_prompt *p, pith_error *err);

/* Sets *n to the tokens of a whole prompt, the chat template's and BOS included. */
typedef pith_status eval_count_fn(void *user, const char *text, const char *prefix, int32_t *n,
                                  pith_error *err);
struct eval_counter {
    eval_count_fn *count;
    void *user;
};

/* The counter of a setup's model; setup is borrowed as long as the counter is used. */
struct eval_counter eval_counter_of(const struct eval_setup *setup);

/* Writes the prompt of this size to *out, which is empty. The same size must give the same prompt,
   and a larger one no shorter text. */
typedef pith_status eval_build_fn(void *user, int32_t size, struct eval_prompt *out,
                                  pith_error *err);

/* Builds the prompt of the largest size in [min_size, max_size] that takes at most n_token tokens
   and sets out->n_token. INVALID when min_size takes more; the sentence begins with name. NOMEM,
   and what the counter or the builder fails with. */
pith_status eval_fit(const char *name, eval_build_fn *build, void *user, int32_t min_size,
                     int32_t max_size, int32_t n_token, const struct eval_counter *counter,
                     struct eval_prompt *out, pith_error *err);

/* INVALID, with the task named, when lengths [n] is empty or one of them is not between 1 and
   EVAL_MAX_TOKENS; sets *longest. */
pith_status eval_check_lengths(const char *task, const int32_t *lengths, int32_t n,
                               int32_t *longest, pith_error *err);
/* The same for the tokens of an answer, which are between least and EVAL_MAX_TOKENS. */
pith_status eval_check_predict(const char *task, int32_t n_predict, int32_t least, pith_error *err);

/* Tokens of the prompt, which the caller frees, and whether eval_thinks of its answer. */
pith_status eval_prompt_encode(const struct eval_setup *setup, const struct eval_prompt *p,
                               int32_t **ids, int32_t *n_id, bool *thinks, pith_error *err);

/* Puts the mark of an open thinking block before the text of an answer. */
pith_status eval_open_thinking(struct eval_answer *a, pith_error *err);

/* Encodes the prompt and asks it: eval_ask of its tokens. Where eval_thinks, the answer begins with
   the mark of the thinking block that the prompt has opened, so that checkers know it. */
pith_status eval_prompt_ask(struct eval_run *run, const struct eval_setup *setup,
                            const struct eval_prompt *p, int32_t n_predict,
                            const pith_sample_params *sample, const char *const *stop,
                            int32_t n_stop, struct eval_answer *out, pith_error *err);

/* The tokens of a right answer as the model would go on with it. Behind white space, which the
   opening of the answer or a chat template ends with, it is as it is. Elsewhere it has a space in
   front. Where eval_thinks, what closes the thinking block comes first and does not count. The
   caller frees with eval_given_free, also on failure. */
pith_status eval_prompt_given(const struct eval_setup *setup, const struct eval_prompt *p,
                              const char *answer, struct eval_given *out, pith_error *err);

/* eval_prompt_ask, greedily, and the given answer heard before (eval_ask_given). */
pith_status eval_prompt_ask_given(struct eval_run *run, const struct eval_setup *setup,
                                  const struct eval_prompt *p, int32_t n_predict,
                                  const char *const *stop, int32_t n_stop, struct eval_given *given,
                                  struct eval_answer *out, pith_error *err);

/* Sets *n_predict to the tokens that refs[0], a whole right answer, takes behind the prompt, and a
   quarter and 8 more. A wrong answer may be a little longer before it comes to its end. */
pith_status eval_prompt_predict(const struct eval_prompt *p, const struct eval_counter *counter,
                                int32_t *n_predict, pith_error *err);

/* Appends {"prompt", "prefix", "answer", "verdict" or "score"} to texts, a JSON array; verdict NULL
   means the score is given. False when out of memory. */
bool eval_keep_text(json_t *texts, const struct eval_prompt *p, const char *answer,
                    const char *verdict, double score);

/* Adds "score", "low" and "high" to the summary of a result, which may be NULL (out of memory) and
   is stolen, and sets *out. NOMEM. */
pith_status eval_scored(json_t *result, struct eval_interval score, json_t **out, pith_error *err);

#endif
