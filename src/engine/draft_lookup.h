/*
 * draft_lookup.h - drafts from the text itself: what followed the same words before. It owns a copy
 * of a sequence's tokens with an index of their last one, two and three, and knows neither models
 * nor sequences.
 */
#ifndef PI_DRAFT_LOOKUP_H
#define PI_DRAFT_LOOKUP_H

#include "base/base.h"

#define DRAFT_GRAM_MOST 3 /* tokens that are looked up */

struct draft_lookup {
    int32_t *token;                 /* [n] owned */
    int32_t *link[DRAFT_GRAM_MOST]; /* [n] the last place before with the same hash of the n-gram
                                       that ends there, -1: none; owned */
    int32_t *head[DRAFT_GRAM_MOST]; /* [mask + 1] the last place of a hash, -1: none; owned */
    int32_t n, cap;
    uint32_t mask;
    int32_t source; /* the place that token source_at matched when something was drafted last; -1 */
    int32_t source_at;
};

/* Frees the parts of a zeroed or used one. */
void draft_lookup_free(struct draft_lookup *l);

/* Bytes of its arrays. */
size_t draft_lookup_bytes(const struct draft_lookup *l);

/* Makes the tokens [n] the index's. New ones are added, and where others stood there it begins
   anew. NOMEM leaves it empty. */
pith_status draft_lookup_set(struct draft_lookup *l, const int32_t *tokens, int32_t n);

/* The place of the text that goes on as the tokens do, as its best guess. It is where the most
   tokens match, and of equals the one that follows the last draft's. out [most] receives what
   stands behind it. Returns the tokens, 0 where nothing matches; *kind: draft_gauge.h's. */
int32_t draft_lookup_find(struct draft_lookup *l, int32_t most, int32_t *out, int *kind);

#endif
