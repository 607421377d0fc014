/*
 * text_spans.h - which tokens are evicted, the spans that they make, and the text of a span. Pure
 * functions: they know no store.
 */
#ifndef PI_RECALL_TEXT_SPANS_H
#define PI_RECALL_TEXT_SPANS_H

#include "kv/kv.h"
#include "model/shape.h"

/* Tokens [first, last) of a sequence. */
struct text_span {
    int32_t first;
    int32_t last;
};

/* A growing list, ascending by first and, as no span lies in another, by last. Zero it before
   use. */
struct text_spans {
    struct text_span *span; /* [n], owned */
    int32_t n;
    int32_t cap;
};

void text_spans_free(struct text_spans *spans);

/* Entries that the lanes of kv, which has read n_token tokens, hold less than one per token and
   lane. O(lanes). */
int64_t text_missing(const struct kv_seq *kv, const struct kv_geometry *g, int32_t n_token);

/* gone[p] = 1 where at least the share `lost` of the lanes, and at least one, has no entry that was
   written at position p. Else it is 0, for p < n_token. O(entries). NOMEM. */
pith_status text_evicted(const struct kv_seq *kv, const struct kv_geometry *g, int32_t n_token,
                         double lost, uint8_t *gone, pith_error *err);

#define TEXT_PIECE 128 /* evicted tokens in one span at most, where a run of them is longer */

/* The spans of the positions that are gone. Each run is widened by `bleed` tokens on both sides,
   within the tokens, and runs whose widened ranges meet are one. A span that would be longer than
   TEXT_PIECE + 2 * bleed is cut, because a question needs one place and a message holds few
   characters. It is cut at multiples of TEXT_PIECE, each piece with its own bleed, so that a run
   that grows changes its ends alone. NOMEM. */
pith_status text_cut(const uint8_t *gone, int32_t n_token, int32_t bleed, struct text_spans *out,
                     pith_error *err);

/* The spans that a has and b has not, both ascending. NOMEM. */
pith_status text_spans_minus(const struct text_spans *a, const struct text_spans *b,
                             struct text_spans *out, pith_error *err);

/* The text of tokens, control tokens left out. It is well-formed UTF-8 without control characters
   but line ends and tabs, and without blanks at its ends. Parts of characters at the ends are
   dropped. "" where nothing is left. A pi_mem block that the caller frees. NOMEM, INTERNAL. */
pith_status text_of_tokens(const struct pith_model *model, const int32_t *tokens, int32_t n,
                           char **out, pith_error *err);

/* Makes bytes such text in place; returns the length. For text that others wrote. */
size_t text_clean(char *text, size_t len);

#endif
