/*
 * text_http.h - an outside store with the endpoints of longctx-svc (0.3.1), JSON over HTTP:
 *
 *   POST /evict/write     {"session_id", "chunks": [{"text", "token_range": [a, b], "layer",
 *                         "score"}]} -> {"accepted", "session_total"}
 *   POST /evict/retrieve  {"session_id", "query", "top_k", "score_floor", "hybrid_alpha"}
 *                         -> {"chunks": [as above], "session_total"}
 *   GET  /evict/dump?session_id=ID -> {"session_id", "session_total", "token_ranges": [[a, b]],
 *                         "layers": [], "scores": []}
 *
 * The service embeds, ranks and forgets idle sessions by its own rules; it never forgets a span
 * when asked. Redirects are not followed and no proxy is used: text goes to the host that was
 * named, or nowhere. Failures, each a sentence with the URL: IO (no connection, the time is up, a
 * status other than 200), FORMAT (an answer of another form). NOMEM.
 */
#ifndef PI_RECALL_TEXT_HTTP_H
#define PI_RECALL_TEXT_HTTP_H

#include "policy/recall/text_rank.h"

struct text_http;

#define TEXT_HTTP_TIMEOUT_MS 10000

/* url: "http://HOST:PORT" or https, perhaps with a path that endpoints are appended to; nothing is
   sent yet. timeout_ms is for each request, from connecting to the answer's last byte. INVALID (no
   such url), UNSUPPORTED (a build without HTTP), NOMEM. */
pith_status text_http_open(const char *url, int32_t timeout_ms, struct text_http **out,
                           pith_error *err);
void text_http_close(struct text_http *http); /* NULL is ignored */

/* Adds spans to a session, at most TEXT_HTTP_CHUNKS in a request, since the service has to embed
   them in time. Nothing is sent where n is 0. */
#define TEXT_HTTP_CHUNKS 64
pith_status text_http_write(struct text_http *http, const char *session,
                            const struct text_hit *hits, int32_t n, pith_error *err);

/* The spans that the service finds, in its order. Their scores are those that they were written
   with; their text is cleaned (text_clean), blank ones are left out. */
pith_status text_http_find(struct text_http *http, const char *session, const char *question,
                           size_t len, const struct text_ranking *ranking, struct text_hits *hits,
                           pith_error *err);

/* The ranges of all spans of a session, in the service's order, without text. */
pith_status text_http_list(struct text_http *http, const char *session, struct text_hits *hits,
                           pith_error *err);

#endif
