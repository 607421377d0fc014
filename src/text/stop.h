/*
 * stop.h - a stream of text that ends at the first of some strings. An end that a later piece might
 * turn into one of them is held back. So the strings are found across any split of the text.
 *
 * The match that is complete first ends the text, of several that end together the longest. The
 * result depends on the text alone, not on how it was split.
 */
#ifndef PI_STOP_H
#define PI_STOP_H

#include "base/base.h"

struct pi_stop {
    const char *const *strings; /* [n_string], borrowed until pi_stop_free */
    const size_t *lens;         /* likewise; NULL: each ends with its zero */
    int32_t n_string;
    size_t longest; /* bytes */
    char *held;     /* [len] text not handed out yet, owned */
    size_t len;
    size_t cap;
};

/* INVALID for an empty string. stop is zeroed first, so that it may be freed after a failure. */
pith_status pi_stop_init(struct pi_stop *stop, const char *const *strings, const size_t *lens,
                         int32_t n_string, pith_error *err);
/* Bytes of string i. */
size_t pi_stop_len(const struct pi_stop *stop, int32_t i);
void pi_stop_free(struct pi_stop *stop);

/* Appends text. *n_certain: leading bytes of held that may be handed out now; *found: they end the
   text. The caller hands them out and drops them. NOMEM. */
pith_status pi_stop_push(struct pi_stop *stop, const char *text, size_t len, size_t *n_certain,
                         bool *found, pith_error *err);
void pi_stop_drop(struct pi_stop *stop, size_t n);

#endif
