/*
 * jinja.h - chat templates: a language that models' files carry, as jinja2 and the transformers
 * library read it. Text is parsed once into a tree; a tree renders any number of conversations, on
 * any number of threads. docs/templates.md says what is supported.
 */
#ifndef PI_JINJA_H
#define PI_JINJA_H

#include "text/value/jinja_value.h"

struct jinja_template;

/* UNSUPPORTED for a template that is not of the language, or of a part of it that is not there. */
pith_status jinja_template_parse(const char *text, size_t len, struct jinja_template **out,
                                 pith_error *err);
void jinja_template_free(struct jinja_template *t);

/* A rendered text: bytes, and of each whether a user wrote it. */
struct jinja_text {
    char *data;    /* [len], terminated; owned */
    uint8_t *user; /* [len], 1: a user's; NULL: all as from_user; owned */
    size_t len;
    bool from_user;
    bool asked_thinking; /* the template looked whether to think */
};

struct jinja_given {
    const int64_t *now;      /* seconds since 1970 for strftime_now; NULL: it is absent */
    const int64_t *call_now; /* for templates that call it all the same; NULL: they fail */
    const struct jinja_limits *limits; /* NULL: the usual ones */
};

/* Fills variables for a run: a dict in the heap. Failures go to the heap. */
typedef void jinja_fill_fn(void *user, struct jinja_heap *h, struct jinja_value variables);

/* Renders with the variables that fill sets. INVALID: the template failed or raised an exception,
   or a limit was met; UNSUPPORTED; NOMEM. */
pith_status jinja_render(const struct jinja_template *t, jinja_fill_fn *fill, void *user,
                         const struct jinja_given *given, struct jinja_text *out, pith_error *err);
void jinja_text_free(struct jinja_text *text);

#endif
