/*
 * batch.h - a line of a batch: a request in the layout of OpenAI's batch files, and the line of the
 * output that answers it (docs/batch.md). src/serve/api reads the body and writes the reply. A line
 * that is no request or has no name is answered by its number.
 *
 * Threads: one owner of a line at a time.
 */
#ifndef PI_SERVE_BATCH_H
#define PI_SERVE_BATCH_H

#include <jansson.h>

#include "pith/scheduler.h"

/* The settings that the lines of a file share. Strings and the model are borrowed until the last
   line is freed. */
struct serve_batch_setup {
    const pith_model *model;     /* NULL: lines are judged only, no prompts are made */
    const char *template_name;   /* of a chat template that comes along; NULL: the next */
    const char *template_text;   /* a chat template; NULL: the model's own */
    const char *system;          /* a chat without system message begins with this; NULL: none */
    bool no_thinking;            /* unless a request says otherwise */
    bool no_bos;                 /* the tokens that the model wants around a text are left out */
    bool plain_prompts;          /* names of special tokens in prompts are text, not those tokens */
    pith_generate_params params; /* of requests that do not say */
};

struct serve_batch_line;

/* Reads the file's line with this number, text [len] without its newline. any_seed is what "seed":
   -1 means. OK: the line may be refused, serve_batch_failed. FORMAT: it is no JSON object or has no
   usable custom_id; *out is a refused line then, too. NOMEM: *out is NULL. */
pith_status serve_batch_read(const char *text, size_t len, int64_t number,
                             const struct serve_batch_setup *setup, uint64_t any_seed,
                             struct serve_batch_line **out, pith_error *err);
void serve_batch_free(struct serve_batch_line *line);

/* Refuses a line whose custom_id is that of line `first`, too. */
void serve_batch_refuse_twin(struct serve_batch_line *line, int64_t first);

const char *serve_batch_name(const struct serve_batch_line *line); /* custom_id; NULL: none */
bool serve_batch_is_chat(const struct serve_batch_line *line);
bool serve_batch_failed(const struct serve_batch_line *line); /* refused, or failed later */
/* Of all its prompts together; 0: it is refused. */
int32_t serve_batch_n_answer(const struct serve_batch_line *line);

/* Begins the reply of a line that is not refused. now: seconds since 1970. False: no memory. */
bool serve_batch_open(struct serve_batch_line *line, int64_t now);
/* Requests to submit, one for each prompt. *params is the caller's, needed until the request is
   submitted; slot, salt, callbacks and user of the request are the caller's to set. */
int32_t serve_batch_n_prompt(const struct serve_batch_line *line);
void serve_batch_get(const struct serve_batch_line *line, int32_t i, pith_generate_params *params,
                     pith_request *out);
/* A request was not taken: its status and message, and what goes with a prompt that is too long. */
void serve_batch_fail(struct serve_batch_line *line, pith_status status, const char *message,
                      int64_t n_prompt, int64_t n_ctx);
/* Takes a token, or the end of an answer, of prompt i. False: no memory. */
bool serve_batch_token(struct serve_batch_line *line, int32_t i, const pith_answer_token *token);
/* Whether that answer has the only call that it may have, and may end. */
bool serve_batch_is_over(const struct serve_batch_line *line, int32_t i, int32_t answer);
bool serve_batch_done(struct serve_batch_line *line, int32_t i, const pith_answer_result *result);

/* The line of the output, once all answers have ended or it failed. The caller frees; NULL: no
   memory. */
json_t *serve_batch_answer(const struct serve_batch_line *line);

#endif
