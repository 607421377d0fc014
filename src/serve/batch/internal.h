/*
 * internal.h - what line.c and answer.c share.
 */
#ifndef PI_SERVE_BATCH_INTERNAL_H
#define PI_SERVE_BATCH_INTERNAL_H

#include "serve/api/reply.h"
#include "serve/batch/batch.h"
#include "serve/json.h"

struct serve_batch_line {
    int64_t number;           /* in its file */
    struct serve_setup setup; /* which the request borrows */
    json_t *json;
    struct serve_numbers numbers; /* of json */
    const char *custom_id;        /* NULL: the line has none, and fault says so */
    bool nameless;                /* that, or custom_id is another line's */
    enum serve_api api;
    struct serve_request *request; /* NULL: it is refused */
    struct serve_fault fault;      /* why it is refused or failed */
    struct serve_reply *reply;     /* NULL: not open */
    struct serve_bytes bytes;      /* the document, once the reply is finished */
};

#endif
