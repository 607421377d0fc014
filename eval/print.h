/*
 * print.h - a result of eval.h as text: a table for people, CSV of its rows, JSON of all of it. One
 * printer for all tasks: it knows the shape and no figure.
 */
#ifndef PI_EVAL_PRINT_H
#define PI_EVAL_PRINT_H

#include "eval.h"

/* Prints the result's head, its rows under their keys, then the figures of the summary, one per
   line. A "note" of the summary ends it as a sentence. Out of memory shows in out->failed, as for
   every text. */
void eval_print_table(const json_t *result, struct eval_text *out);

/* Prints the rows, with a header, as RFC 4180 has it (lines end with CR LF). A value that is a list
   or an object is its JSON. A result without rows has no columns: nothing is added. */
void eval_print_csv(const json_t *result, struct eval_text *out);

/* The whole result, indented, and a newline. */
void eval_print_json(const json_t *result, struct eval_text *out);

#endif
