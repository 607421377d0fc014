/*
 * batch_line.h - one line of a batch: a request as JSON, in the layout of OpenAI's batch files
 * (docs/batch.md). What a line says wrong is told with field and value: of a line that nobody could
 * answer, because it is no request or has no name, as a failure; of one that has a name, as the
 * answer that it gets.
 */
#ifndef CLI_BATCH_LINE_H
#define CLI_BATCH_LINE_H

#include <jansson.h>

#include "pith/pith.h"

#define BATCH_STOPS_MAX 16
#define BATCH_TOP_MAX 20 /* of top_logprobs */
#define BATCH_ANSWERS_MAX 128

enum batch_endpoint { BATCH_CHAT, BATCH_TEXT };

/* Why a request is refused. */
struct batch_fault {
    int code;          /* as of HTTP: 400, 404, 405; 0: it is not */
    const char *type;  /* constant: "invalid_request_error" */
    const char *param; /* constant: the key; NULL: none */
    char message[256]; /* one sentence that names field and value */
};

struct batch_prompt {
    const char *text; /* [len]; NULL: ids */
    size_t len;
    int32_t *ids; /* [n_id] */
    int32_t n_id;
};

/* Zero it before use. Everything it points to is its own, freed by batch_line_free. */
struct batch_line {
    json_t *json;
    void *block; /* the memory of what follows */
    const char *custom_id;
    enum batch_endpoint endpoint;
    const char *model;            /* NULL: not given */
    struct pith_message *message; /* [n_message] of BATCH_CHAT */
    int32_t n_message;
    struct batch_prompt *prompt; /* [n_prompt] of BATCH_TEXT */
    int32_t n_prompt;
    pith_generate_params params;
    int32_t n_answer;
    int32_t top_logprobs; /* so many beside each token; -1: no logprobs */
    bool no_thinking;
    struct batch_fault fault;
};

/* Reads a line [len] without its newline; what it does not say is as in defaults. FORMAT (no JSON
   object, no usable custom_id), NOMEM; else OK, and out->fault tells whether it is refused. With a
   failure nothing is left to free. */
pith_status batch_line_parse(const char *text, size_t len, const struct batch_line *defaults,
                             struct batch_line *out, pith_error *err);
void batch_line_free(struct batch_line *line);

/* Refuses the request. */
void batch_line_fault(struct batch_line *line, int code, const char *type, const char *param,
                      const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* The beginning of a text, in buf [BATCH_SHOW], on one line; returns buf. */
#define BATCH_SHOW 64
const char *batch_show_text(const char *text, size_t len, char *buf);

#endif
