/*
 * reply.h - tokens of the scheduler made the reply of an API: one JSON document, or a stream of
 * server-sent events. It knows no socket, and no clock but for
 * timings_per_token: bytes are appended to a buffer of the
 * caller's, whole documents and whole events.
 *
 * A reply without stream appends nothing until the last answer has ended. A stream holds back
 * nothing but what the engine does (stop strings, unfinished characters) and, with tools, what may
 * become a call.
 *
 * Threads: one owner at a time; the request must outlive the reply.
 */
#ifndef PI_SERVE_REPLY_H
#define PI_SERVE_REPLY_H

#include "serve/api/request.h"

/* Bytes to send. Zero it before use; serve_bytes_free after. */
struct serve_bytes {
    char *data; /* [len] */
    size_t len, cap;
};

bool serve_bytes_add(struct serve_bytes *b, const char *data, size_t len); /* false: no memory */
void serve_bytes_free(struct serve_bytes *b);

struct serve_reply;

/* now: seconds since 1970, for "created". id: what makes the reply's id unique, at most 32
   characters, copied. NOMEM. */
pith_status serve_reply_create(const struct serve_request *r, int64_t now, const char *id,
                               struct serve_reply **out);
void serve_reply_free(struct serve_reply *reply);

/* The request was taken: a stream says what it begins with, and its code is known. Nothing where
   there is no stream. */
bool serve_reply_open(struct serve_reply *reply, struct serve_bytes *out);
/* Whole events that a stream of the reply's API may be sent at any time to keep it alive. */
const char *serve_reply_beat(const struct serve_reply *reply);
/* i is the prompt, as of serve_request_get. False: there was no memory, and the connection should
   be closed. */
bool serve_reply_token(struct serve_reply *reply, int32_t i, const pith_answer_token *token,
                       struct serve_bytes *out);
bool serve_reply_done(struct serve_reply *reply, int32_t i, const pith_answer_result *result,
                      struct serve_bytes *out);
/* Whether an answer may end: it took longer than t_max_predict_ms allows, or has the only call that
   it may have. */
bool serve_reply_is_over(const struct serve_reply *reply, int32_t i, int32_t answer);
/* Logits [n_vocab] of the prompt's token at pos, for serve_request_wants_prompt: they say how
   likely the token at pos + 1 is. In the order of positions, before the first token. */
bool serve_reply_prompt(struct serve_reply *reply, int32_t i, int32_t pos, const float *logits);
/* How far prompt i was read, for serve_request_wants_progress. Only streams say it. */
bool serve_reply_progress(struct serve_reply *reply, int32_t i, int32_t n_cached, int32_t n_read,
                          double seconds, struct serve_bytes *out);
/* A request that could not be submitted, or that the server ends: its document, or where events
   went out already, the event that says so. The reply is then finished. */
bool serve_reply_fail(struct serve_reply *reply, const struct serve_fault *fault,
                      struct serve_bytes *out);

/* The HTTP status; 0: not known yet. It is known when the first bytes are there. */
int serve_reply_code(const struct serve_reply *reply);
/* Whether the bytes are text/event-stream; else application/json. Once the code is known. */
bool serve_reply_is_events(const struct serve_reply *reply);
bool serve_reply_finished(const struct serve_reply *reply);
/* Why it failed: code 0 if it did not. */
const struct serve_fault *serve_reply_fault(const struct serve_reply *reply);

/* The document of a request that was refused, in the form of its API. */
bool serve_fault_write(const struct serve_fault *fault, enum serve_api api,
                       struct serve_bytes *out);
/* {"input_tokens": N}, for count_tokens. */
bool serve_count_write(const struct serve_request *r, struct serve_bytes *out);
/* {"token_ids": [...]} of a chat, and a list of these for texts: what vLLM's /render answers. */
bool serve_render_write(const struct serve_request *r, struct serve_bytes *out);

#endif
