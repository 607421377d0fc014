/* picture.h - the KV memory drawn in characters: one row per lane, one cell per page. */
#ifndef CLI_PICTURE_H
#define CLI_PICTURE_H

#include <stdio.h>

#include "session.h"

/* Positions [begin, end) whose pages are marked, and what the legend calls them. */
struct picture_mark {
    int32_t begin;
    int32_t end;
    const char *what;
};

/* Draws the pages of the session's sequence and the account of its engine. marks: ends with what
   NULL; may be NULL. Colours only on a terminal, block characters only in a UTF-8 locale. */
void picture_print(FILE *out, const struct session *s, const struct picture_mark *marks);

#endif
