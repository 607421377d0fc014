/*
 * text_rank.h - which words a question has, and how two scores become one rank. Pure functions:
 * they know no store.
 */
#ifndef PI_RECALL_TEXT_RANK_H
#define PI_RECALL_TEXT_RANK_H

#include "base/base.h"

/* A span that a store found or lists. */
struct text_hit {
    int32_t first; /* tokens [first, last) */
    int32_t last;
    int32_t layer; /* -1: of no one layer */
    double score;
    char *text; /* owned; NULL in a list of ranges */
};

/* Zero it before use. */
struct text_hits {
    struct text_hit *hit; /* [n], owned */
    int32_t n;
    int32_t cap;
};

/* Takes hit.text over, on failure too: then it is freed. NOMEM. */
pith_status text_hits_add(struct text_hits *hits, struct text_hit hit, pith_error *err);
void text_hits_free(struct text_hits *hits);

/* The words of a text, each followed by a space, terminated. They are runs of [a-z0-9] after making
   letters small, to which letters outside of ASCII belong as they are. Characters of scripts
   written without spaces are words of their own. Nothing in it means anything to a query language.
   A pi_mem block that the caller frees; NULL: no memory. */
char *text_words(const char *text, size_t len);

/* An expression of FTS5 that finds texts with any of the text's words. It has at most
   TEXT_QUERY_WORDS different ones, the first that come; "" where it has none. As text_words. */
#define TEXT_QUERY_WORDS 256
char *text_query(const char *text, size_t len);

/* One span of a session, on its way to a rank. */
struct text_score {
    int64_t id;
    int32_t first;
    bool matched;  /* it has words of the question */
    double words;  /* BM25, above 0; 0 where not matched */
    double cosine; /* of the embeddings */
    double score;  /* what they come to */
};

/* The settings that decide which spans are found. */
struct text_ranking {
    bool embedded; /* cosines are there */
    double alpha;  /* the cosine's share */
    double floor;
    int32_t top;
};

/* Scores the n spans that a session has (all of them, matched or not). It puts the found ones in
   front, best first, and returns their number. With b' = (b - min) / (max - min) over the session's
   BM25:
     embedded:  alpha * cosine + (1 - alpha) * b', or the cosine alone where max = min
     else:      b' where a word matched, 1 where max = min
   At least the floor, at most top; equal scores in order of first, then id. */
int32_t text_rank(struct text_score *spans, int32_t n, const struct text_ranking *ranking);

#endif
