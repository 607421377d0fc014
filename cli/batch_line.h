/*
 * batch_line.h - one line of a batch: a request in the layout of OpenAI's batch files
 * (docs/batch.md). A line that is no request or has no name cannot be answered: its fault is a
 * failure. Of a line that has a name, the fault is the answer that it gets. src/serve reads the
 * body.
 */
#ifndef CLI_BATCH_LINE_H
#define CLI_BATCH_LINE_H

#include <jansson.h>

#include "serve/json.h"
#include "serve/api/request.h"

/* Zero it before use. Everything it points to is its own, freed by batch_line_free. */
struct batch_line {
    json_t *json;
    struct serve_numbers numbers; /* of json */
    const char *custom_id;        /* NULL: the line has none, and fault says so */
    enum serve_api api;
    struct serve_request *request; /* NULL: it is refused */
    struct serve_fault fault;      /* why */
};

/* Reads a line [len] without its newline. Where the setup has no model, it is judged only. FORMAT
   (no JSON object, no usable custom_id), NOMEM; else OK, and out->fault tells whether it is refused.
   With a failure nothing is left to free. */
pith_status batch_line_parse(const char *text, size_t len, const struct serve_setup *setup,
                             struct batch_line *out, pith_error *err);
void batch_line_free(struct batch_line *line);

/* The beginning of a text, in buf [BATCH_SHOW], on one line; returns buf. */
#define BATCH_SHOW 64
const char *batch_show_text(const char *text, size_t len, char *buf);

#endif
