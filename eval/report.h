/*
 * report.h - one HTML page from files of results. The page stands alone: it is JSON, a style and a
 * script that draws (sheet.h), and it asks the network for nothing.
 */
#ifndef PI_EVAL_REPORT_H
#define PI_EVAL_REPORT_H

#include "eval.h"

/* Notes of the reading, for the command to tell. */
struct eval_report_notes {
    int32_t n_result;     /* on the page */
    int32_t n_superseded; /* left out: a later line has the same cell and seed */
    int32_t n_ignored;    /* lines that are no result */
    int32_t n_cut;        /* files that end within a line */
};

/* Adds the page to *html, which the caller frees. paths [n_path] are JSONL files of results; notes
   may be NULL. IO, FORMAT (no result in any file), NOMEM. */
pith_status eval_report(const char *const *paths, int32_t n_path, struct eval_text *html,
                        struct eval_report_notes *notes, pith_error *err);

#endif
