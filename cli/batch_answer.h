/*
 * batch_answer.h - the answers to a request of a batch, from tokens to a line of the output file
 * (docs/batch.md). Nothing here depends on the clock but the field "created".
 */
#ifndef CLI_BATCH_ANSWER_H
#define CLI_BATCH_ANSWER_H

#include "batch_line.h"
#include "pith/scheduler.h"

struct batch_token; /* a token with what the model thought of it and of others */

/* One answer. Zero it before use. */
struct batch_answer {
    char *text; /* [len]; owned */
    size_t len, cap;
    struct batch_token *token; /* [n_token], of requests with logprobs; owned */
    size_t n_token, cap_token;
    pith_stop_reason reason;
    int32_t n_generated;
    int32_t n_cached; /* tokens of the prompt that nobody had to compute */
};

/* Adds a token and its text. */
void batch_answer_add(struct batch_answer *answer, const struct batch_line *line,
                      const pith_model *model, const pith_answer_token *token);
void batch_answer_free(struct batch_answer *answer);

/* A request with all its answers, for the line that it becomes. */
struct batch_reply {
    const struct batch_line *line;
    int64_t number; /* of the line in the input, from 1 */
    const pith_model *model;
    const struct batch_answer *answer; /* [n_answer], those to one prompt together */
    int32_t n_answer;
    int64_t n_prompt_token; /* of all prompts */
};

/* The line of a request that was answered; of one that was refused (fault); of one that failed, as
   its status says. The caller frees. */
json_t *batch_reply_answered(const struct batch_reply *reply);
json_t *batch_reply_refused(const struct batch_reply *reply, const struct batch_fault *fault);
json_t *batch_reply_failed(const struct batch_reply *reply, pith_status status,
                           const char *message);

#endif
