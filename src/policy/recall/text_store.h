/*
 * text_store.h - spans of text in a SQLite database. It has sessions, their spans, an index of the
 * words of each session (FTS5), and vectors where there is an embedding model. Every change is one
 * transaction: all of it is there afterwards, or nothing, also when the process is killed.
 *
 * Times are seconds since 1970, given by the caller. Failures: BUSY (another process has the
 * database locked), FORMAT (not a database of Pith's, or damaged), IO, NOMEM. The sentence names
 * the file and SQLite's reason.
 */
#ifndef PI_RECALL_TEXT_STORE_H
#define PI_RECALL_TEXT_STORE_H

#include "policy/recall/text_embed.h"
#include "policy/recall/text_rank.h"
#include "policy/recall/text_spans.h"

struct text_store;

/* Opens or makes the database at path, "" for one in memory. Deletes sessions that were not used
   for ttl seconds (0: never), which the other calls do, too. wait_ms: how long a lock of another
   process is waited for. */
pith_status text_store_open(const char *path, int64_t ttl, int32_t wait_ms, int64_t now,
                            struct text_store **out, pith_error *err);
void text_store_close(struct text_store *store); /* NULL is ignored */
/* Bytes of memory that it takes: its pages (all of them where there is no file) and its
   statements. */
int64_t text_store_bytes(const struct text_store *store);

/* The changes of a session. */
struct text_change {
    const char *session;  /* is made when it is not there */
    const char *timeline; /* whose spans these are: ranges of several sequences in one session name
                             different tokens */
    const struct text_hit *add; /* [n_add] */
    int32_t n_add;
    const struct text_span *drop; /* [n_drop] spans of the timeline; it need not have them */
    int32_t n_drop;
};

/* Drops and then adds. Nothing is added where another timeline of the session has a span with the
   same range or a wider one, and the same text. A span of another timeline in a narrower range
   whose text lies in an added one goes: an earlier process read the same conversation. *n_written
   receives the spans that were added. */
pith_status text_store_change(struct text_store *store, const struct text_change *change,
                              int64_t now, int32_t *n_written, pith_error *err);

/* The spans of a session that a question finds, best first, with their scores (text_rank). embed:
   NULL without a model; spans that have no vector of it yet get one first. */
pith_status text_store_find(struct text_store *store, const char *session, const char *question,
                            size_t len, struct text_embed *embed,
                            const struct text_ranking *ranking, int64_t now, struct text_hits *hits,
                            pith_error *err);

/* The ranges of all spans of a session, ascending, without text. */
pith_status text_store_list(struct text_store *store, const char *session, int64_t now,
                            struct text_hits *hits, pith_error *err);

/* Deletes a session, which need not be there. */
pith_status text_store_forget(struct text_store *store, const char *session, pith_error *err);

/* A name that no other session has: 32 hexadecimal digits at random. */
#define TEXT_NAME_SIZE 33
void text_name_fresh(char out[TEXT_NAME_SIZE]);

#endif
