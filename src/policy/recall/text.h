/*
 * text.h - recall as text. The tokens that a sequence's lanes have evicted are written as text to a
 * store. A new turn's question finds the best of it again, to be inserted in front of that
 * question.
 *
 * The store is a SQLite database, in memory or in a file that survives the process, or an outside
 * service with longctx-svc's endpoints. A store that cannot be opened, read or written never stops
 * a run. It says so once (pi_log, a warning), and from then on nothing is stored and nothing is
 * found.
 *
 * Sessions are strictly separate: nothing of one, no statistics either, changes what is found in
 * another. A sequence has a session of its own, which ends with it. With a name (`session=`) all
 * sequences of the engine share the session of that name, which stays in the store.
 *
 * One thread at a time uses a store and the states that belong to it.
 */
#ifndef PI_RECALL_TEXT_H
#define PI_RECALL_TEXT_H

#include "kv/kv.h"
#include "model/shape.h"
#include "policy/recall/recall.h"
#include "policy/recall/text_embed.h"
#include "policy/recall/text_rank.h"

struct recall_text;     /* an engine's */
struct recall_text_seq; /* what was stored of one sequence */

/* model is borrowed until recall_text_close; its tokenizer makes the text. An embedding model is
   loaded here, by open_embed, and works with n_thread threads. INVALID (options that do not go
   together, a url that is none). UNSUPPORTED (a model without tokenizer, or an embedding model that
   gives no vector). The statuses of loading it, NOMEM. A store that does not open is no failure:
   see above. */
pith_status recall_text_open(const struct recall_text_options *o, const struct pith_model *model,
                             text_embed_open_fn *open_embed, int32_t n_thread,
                             struct recall_text **out, pith_error *err);
void recall_text_close(struct recall_text *t); /* every state is freed before; NULL is ignored */

/* Why the store is no longer used, one sentence; NULL while it is. Valid until it is closed. */
const char *recall_text_problem(const struct recall_text *t);

/* The state of a new sequence. NOMEM. */
pith_status recall_text_seq_create(struct recall_text *t, struct recall_text_seq **out,
                                   pith_error *err);
/* A session without a name is deleted from the store. NULL is ignored. */
void recall_text_seq_free(struct recall_text_seq *s);
/* The state of a fork. It finds the spans that its origin had stored, and neither finds the other's
   later ones, unless the session has a name. NOMEM. */
pith_status recall_text_seq_fork(const struct recall_text_seq *from, struct recall_text_seq **out,
                                 pith_error *err);
/* Forgets, in the store too, spans with tokens at positions >= n_token: they may come differently.
   The rest of such a span's evicted tokens is stored anew by the next update. */
void recall_text_seq_truncate(struct recall_text_seq *s, int32_t n_token);

/* After an evaluation: stores the spans that kv, which has read tokens [n_token], lacks. A token is
   lacking where at least the option's share of the lanes lost it. Costs O(lanes) when nothing was
   evicted since the last call, else O(entries). */
void recall_text_update(struct recall_text_seq *s, const struct kv_seq *kv, const int32_t *tokens,
                        int32_t n_token);

/* Before a turn: the text to insert (text_snippets.h) that a question finds in the session, of at
   most `room` tokens. The question is UTF-8; pith_recall_question cuts it out of a user's message.
   *text is a terminated pi_mem block that the caller frees, or NULL where nothing is found, and
   *n_span the number of parts in it. Brings the store up to date first, as recall_text_update.
   NOMEM. */
pith_status recall_text_find(struct recall_text_seq *s, const struct kv_seq *kv,
                             const int32_t *tokens, int32_t n_token, const char *question,
                             size_t len, int32_t room, char **text, int32_t *n_span,
                             pith_error *err);

/* Bytes of memory that the store takes; 0 with an outside one. */
int64_t recall_text_bytes(const struct recall_text *t);
/* A sequence's share of them: as much as each that stored something. */
int64_t recall_text_seq_bytes(const struct recall_text_seq *s);

struct recall_text_counts {
    int64_t n_span;   /* spans that the sequence's evicted tokens make, as of the last update */
    int64_t n_stored; /* spans that were written, those counted that were replaced later */
    int64_t n_found;  /* spans that finds have returned */
    double seconds;   /* spent in updates and finds */
};
void recall_text_count(const struct recall_text_seq *s, struct recall_text_counts *out);

/* The ranges of all spans that the store has of the sequence's session, written by any sequence,
   without text. A measurement compares them with the place of a fact. The statuses of the store;
   hits is zeroed before and freed by the caller (text_hits_free). */
pith_status recall_text_list(struct recall_text_seq *s, struct text_hits *hits, pith_error *err);

#endif
