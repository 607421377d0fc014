/*
 * batch_answer.h - lines of the output file of a batch (docs/batch.md). src/serve writes the
 * answer; here it gets a name.
 */
#ifndef CLI_BATCH_ANSWER_H
#define CLI_BATCH_ANSWER_H

#include "batch_line.h"
#include "serve/api/reply.h"

/* 32 digits made of the request's name and the line's number, into buf [33]; returns buf. */
const char *batch_answer_id(const char *custom_id, int64_t number, char *buf);

/* The line of a request that was answered, with the document [len]; and of one that was refused or
   failed. The caller frees. */
json_t *batch_answer_line(const char *custom_id, int64_t number, const char *document, size_t len);
json_t *batch_fault_line(const char *custom_id, int64_t number, const struct serve_fault *fault);
/* The same of a line without a name of its own (custom_id is NULL, or another line's): it is known by
   its number. */
json_t *batch_wrong_line(const char *custom_id, int64_t number, const struct serve_fault *fault);

#endif
