/* jinja_json.h - JSON text to values and back, as Python's json module does it. */
#ifndef PI_JINJA_JSON_H
#define PI_JINJA_JSON_H

#include "text/value/jinja_value.h"

/* Reads all of text[0..len); strings and keys are marked as a user's. Of equal keys the last
   counts. A failure says at which byte. */
struct jinja_value jinja_json_read(struct jinja_heap *h, const char *text, size_t len);

struct jinja_json_style {
    const struct jinja_str *indent;        /* NULL: on one line */
    const struct jinja_str *comma, *colon; /* between items, behind keys */
    bool ascii;                            /* other characters as \uXXXX */
    bool sort_keys;
};

/* json.dumps of a value. */
void jinja_json_write(struct jinja_buf *b, struct jinja_value v,
                      const struct jinja_json_style *style);

#endif
