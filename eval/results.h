/*
 * results.h - files of results: JSON Lines, one result of eval.h per line, as `pith eval sweep`
 * appends them and `pith eval report` reads them.
 */
#ifndef PI_EVAL_RESULTS_H
#define PI_EVAL_RESULTS_H

#include "eval.h"

struct results {
    json_t *lines;         /* array of the results, in file order; owned by the struct */
    int64_t whole_bytes;   /* of the file up to the end of its last whole line */
    int32_t n_ignored;     /* whole lines that are no result; empty lines are not counted */
    int32_t first_ignored; /* the first of them, counted from 1 */
    bool cut;              /* the file ends within a line: a write was interrupted .. */
    bool cut_is_result;    /* .. that of a result, as far as the line tells */
};

/* Reads a file. A line counts when it ends with a newline and is an object with the task (text),
   the summary (object) and the rows (list). Every result has these. A cut line is left out. The
   caller frees with results_free. IO, NOMEM. */
pith_status results_read(const char *path, struct results *out, pith_error *err);
void results_free(struct results *r);

/* Reads a file that is one result over many lines, as --json writes it, in place of the content of
 * *r. r stays as it is when the file is no such thing. IO, NOMEM. */
pith_status results_read_one(const char *path, struct results *r, pith_error *err);

/* The number at a key; NAN when there is none, or one beyond 1e18 on either side, which no task
   measures. object may be NULL. */
double results_number(const json_t *object, const char *key);
/* The text at a key, NULL when there is none; object may be NULL. Borrowed from the object. */
const char *results_text(const json_t *object, const char *key);

/* A row's score: the number, or whether the checker's verdict is the full one; NAN without. */
double results_score(const json_t *row);
/* How many texts a row sums up, 1 where it does not say. */
double results_texts(const json_t *row);

#endif
