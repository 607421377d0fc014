/*
 * text_snippets.h - the text that is inserted from the spans that were found. It is the sentences
 * around the words of a question, several short ones rather than one long span. Pure functions:
 * they know no store.
 */
#ifndef PI_RECALL_TEXT_SNIPPETS_H
#define PI_RECALL_TEXT_SNIPPETS_H

#include "policy/recall/text_rank.h"

struct text_wish {
    const char *question; /* [len] UTF-8 */
    size_t len;
    double meaning; /* 0: words alone decide, and a span that shares no rare word with the question
                       is not inserted. Else the part of a hit's own score, which knows more than
                       words */
    int32_t chars;  /* most characters (code points) of the text */
};

/* The text to insert: a heading and the best sentences of the hits, in the order of their tokens.
   Each has its neighbours where there is room. Parts that do not follow each other stand on lines
   of their own. Words of a question weigh the more the fewer sentences have them. A sentence that
   has no room is cut around the words. *text: a pi_mem block that the caller frees, NULL where
   nothing is worth it; *n_part the parts in it. NOMEM. */
pith_status text_snippets(const struct text_hits *hits, const struct text_wish *wish, char **text,
                          int32_t *n_part, pith_error *err);

#endif
