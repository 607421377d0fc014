/*
 * sheet.h - a page that shows JSON: the report of results, or a map of positions. Its style and its
 * script stand in the file, and it asks the network for nothing (page/sheet.html).
 */
#ifndef PI_EVAL_SHEET_H
#define PI_EVAL_SHEET_H

#include "eval.h"

/* A string of any bytes as JSON: what is no UTF-8 becomes U+FFFD. NULL: no memory. */
json_t *sheet_text(const char *text);

/* Adds the page that shows data to *html, which the caller frees. Takes data; NULL counts as out of
   memory. NOMEM. */
pith_status sheet_write(json_t *data, struct eval_text *html, pith_error *err);

#endif
