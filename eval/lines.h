/*
 * lines.h - files of JSON Lines: one JSON value per line, blank lines left out.
 */
#ifndef PI_EVAL_LINES_H
#define PI_EVAL_LINES_H

#include "eval.h"

/* Takes the value of a line, which is the caller's until it returns. Lines count from 1. */
typedef pith_status eval_line_fn(void *user, const json_t *json, int32_t line, pith_error *err);

/* Gives every line to on_line, in order, until one fails. FORMAT: a line that is no JSON, with its
   number, or a file without a line; what begins the sentence. */
pith_status eval_lines_read(const char *text, size_t len, const char *what, eval_line_fn *on_line,
                            void *user, pith_error *err);

/* Makes room for one more in an array of n elements: the array, perhaps elsewhere. NULL: no memory,
   and the old one is as it was. */
void *eval_lines_grow(void *array, int32_t n, int32_t *cap, size_t size);

#endif
