/*
 * view_text.h - a text that grows, for numbers in runs: Jansson's lists of them would take ten
 * times as long to write. Once memory is short it stays failed.
 */
#ifndef PI_SERVE_VIEW_TEXT_H
#define PI_SERVE_VIEW_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct view_text {
    char *data; /* [len] owned, not terminated */
    size_t len;
    size_t cap;
    bool failed;
};

void view_text_free(struct view_text *t);
void view_text_char(struct view_text *t, char c);
void view_text_number(struct view_text *t, uint32_t n);
/* A blank, but at the beginning. */
void view_text_gap(struct view_text *t);

#endif
