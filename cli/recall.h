/*
 * recall.h - what `--recall` adds to the commands: lines of their reports, and in a conversation
 * what is found for a message.
 */
#ifndef CLI_RECALL_H
#define CLI_RECALL_H

#include "session.h"

/* Whether the session has a --recall that is not "none". */
bool recall_is_on(const struct session *s);

/* Tokens that a form of recall, which may be NULL, can add to a prompt. */
int64_t recall_most_tokens(const char *recall);

/* Entries that are back beside the lanes now. */
int64_t recall_guests(const struct session *s);

/* The line of a report on standard error; nothing without --recall. */
void recall_report(const struct session *s, const pith_generate_result *r);

/* A line where the answer leaned on entries that are gone (pith_recall_stats.doubt). */
void recall_doubt(const struct session *s);

/* The same as members of a report's JSON; NULL where there is no memory. */
json_t *recall_json(const struct session *s, const pith_generate_result *r);

/* A line that says that recall exists, where a keep policy evicted entries and nothing recalls
   them. */
void recall_hint(const struct session *s);

/* The text that the store has for a user's message that is about to be added to a conversation,
   NULL where there is none. The caller frees it with pith_recall_free. */
char *recall_find(const struct session *s, const char *message, size_t len);

/* The message with that in front of its question, on lines of its own; the caller frees data, which
   is terminated. */
struct cli_text recall_join(const char *message, size_t len, const char *found);

#endif
