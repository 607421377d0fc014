/*
 * json.h - JSON in and out with every digit of its numbers. Jansson has whole numbers of 64 bits
 * and doubles. A number that is another one there keeps its text in a table beside the values, and
 * the text is what is written again. Code that asks gets such a number as a double.
 *
 * Threads: functions are thread-safe for different tables; one that is not added to may be read by
 * several.
 */
#ifndef PI_SERVE_JSON_H
#define PI_SERVE_JSON_H

#include <jansson.h>

#include "base/base.h"

/* Texts of numbers, by the values that stand for them. Zeroed: empty. */
struct serve_numbers {
    struct serve_number *slot; /* [cap] owned, a power of two */
    size_t n, cap;
    const struct serve_numbers *more; /* borrowed: looked at, too; NULL: none */
};
void serve_numbers_free(struct serve_numbers *numbers);

/* Reads text as Jansson does with these flags; a byte order mark in front is passed over.
   numbers holds a reference to each value of its own. NULL: it is no JSON, which *error tells
   (NULL: it is not asks), or there is no memory. */
json_t *serve_json_load(struct serve_numbers *numbers, const char *text, size_t len, size_t flags,
                        json_error_t *error);

/* A new number; digits [len] are JSON's. NULL: no memory. */
json_t *serve_json_number(struct serve_numbers *numbers, const char *digits, size_t len);

/* The text of a number that Jansson cannot write; NULL: it can, or value is none. */
const char *serve_json_digits(const struct serve_numbers *numbers, const json_t *value);

/* Writes value; flags: JSON_COMPACT or 0. The caller frees with free(). NULL: no memory. */
char *serve_json_dump(const struct serve_numbers *numbers, const json_t *value, size_t flags);
bool serve_json_write(const struct serve_numbers *numbers, const json_t *value, size_t flags,
                      json_dump_callback_t fn, void *user);

/* Whether text is one JSON value, numbers of any size included. */
bool serve_json_is_value(const char *text, size_t len);

/* A value, or the beginning of a text, as a sentence names it, in buf [SERVE_SHOW]; returns buf. */
#define SERVE_SHOW 64
const char *serve_show(const json_t *value, char *buf);
const char *serve_show_text(const char *text, size_t len, char *buf);

#endif
