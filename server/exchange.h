/*
 * exchange.h - one request and its answer: the body that came in, and the bytes that go out. Any
 * thread may append to the answer; the HTTP thread alone takes from it and speaks to the
 * connection.
 *
 * While there is nothing to send the connection is suspended, and appending resumes it. A suspended
 * connection notices nothing of its client, so links.c watches its socket.
 */
#ifndef SERVER_EXCHANGE_H
#define SERVER_EXCHANGE_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "serve/api/reply.h"
#include "weigh.h"

struct MHD_Connection;
struct link;
struct route;
struct server;
struct exchange;

/* Called once, with the exchange locked, when its client is gone or too slow: it must not touch the
   exchange. */
typedef void exchange_gone_fn(void *user);

struct exchange {
    struct server *server;
    struct MHD_Connection *connection; /* the HTTP thread's */
    struct link *link;                 /* likewise */
    const struct route *route;         /* NULL: there is none */
    struct exchange *next;             /* in a queue */
    void (*task)(struct exchange *);   /* what the queue's thread does with it */
    void *work;                        /* of the task's */
    char *path;                        /* owned */
    struct serve_bytes body;           /* whole when a task sees it */
    struct body_weight weight;         /* of the bytes so far, where it is to be parsed */
    int64_t weighed;                   /* of it, in count.json_bytes */
    struct serve_fault fault;          /* why it is refused, known before the body has come */
    const char *allow;                 /* constant: the header of that name; NULL: none */
    const char *content_type;          /* constant; NULL: JSON or events */
    const char *challenge;             /* constant: WWW-Authenticate; NULL: none */
    int32_t slot;                      /* of the path; -1: none */
    uint64_t session;                  /* of the header X-Session-ID; 0: none */
    char action[16];                   /* these of the query; "": none */
    char request_id[129];              /* of x-request-id, given back; "": none, or an odd one */
    char trace[129];                   /* of traceparent, likewise */
    int64_t query_id;                  /* -1: none */
    int32_t query_answer;              /* 0: none */
    int32_t retry_after;               /* seconds; 0: the header is left out */
    double start;
    bool dispatched; /* the HTTP thread's: it is another thread's now, or answered */
    bool counts;     /* a drain waits for it */
    bool closes;     /* the connection ends with the answer */

    pthread_mutex_t lock; /* of the fields below */
    int refs;
    bool suspended;
    bool gone;    /* the client reads the answer no more */
    bool aborted; /* the connection is to be closed, half an answer or not */
    bool events;
    const char *beat; /* text that a stream sends after a second of silence; NULL: none */
    double said_at;   /* when something was appended */
    bool ended;       /* nothing more is appended */
    bool waits;       /* it is one of count.n_answer */
    int code;         /* of HTTP; 0: not known yet */
    struct serve_bytes out;
    size_t sent;  /* bytes of out that were taken */
    size_t n_out; /* bytes that were ever appended to it */
    double behind_since;
    exchange_gone_fn *on_gone;
    void *on_gone_user;
};

/* NULL: no memory. The reference is the caller's. */
struct exchange *exchange_create(struct server *s, struct MHD_Connection *connection,
                                 const char *path);
/* Frees the body, and the room that it has among all bodies. */
void exchange_drop_body(struct exchange *ex);
void exchange_hold(struct exchange *ex);
void exchange_release(struct exchange *ex); /* NULL is ignored */

/* ---- the answer, from any thread ---- */

/* The status of an answer whose bytes follow bit by bit as events. beat is constant, whole events:
   it is sent whenever nothing else was for EXCHANGE_BEAT_S. NULL: never. */
void exchange_open_events(struct exchange *ex, const char *beat);
#define EXCHANGE_BEAT_S 1.0
/* Appends. False: the client is gone, or fell too far behind. */
bool exchange_send(struct exchange *ex, const char *data, size_t len);
/* It counts as a request to the model from the one call until the answer is whole, or the other. */
void exchange_begin_wait(struct exchange *ex);
void exchange_end_wait(struct exchange *ex);
/* The answer is whole. code counts unless it was known before. */
void exchange_end(struct exchange *ex, int code);
/* The answer cannot be had, for want of memory: the connection is closed. */
void exchange_abort(struct exchange *ex);
/* A whole answer. The value is freed. */
void exchange_json(struct exchange *ex, int code, json_t *value);
void exchange_text(struct exchange *ex, const char *content_type, const char *text, size_t len);
/* A refusal in the form of the route's API. */
void exchange_refuse(struct exchange *ex, const struct serve_fault *fault);
void exchange_refuse_with(struct exchange *ex, int code, const char *type, const char *param,
                          const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Whether the client is gone. */
bool exchange_is_gone(struct exchange *ex);
/* fn NULL takes it back; false: the client is gone already. */
bool exchange_on_gone(struct exchange *ex, exchange_gone_fn *fn, void *user);
/* The client went away before the end. */
void exchange_gone(struct exchange *ex);
/* Sends the beat of a stream that is silent. */
void exchange_tell(struct exchange *ex, double now);
/* Whether the socket is to be shut: the exchange is aborted, or its reader is behind for longer
   than `timeout_s`, which aborts it. */
bool exchange_must_shut(struct exchange *ex, double now, double timeout_s);

/* ---- on the HTTP thread ---- */

/* The request is over: the rest of the answer is not read. whole: all of it was sent. */
void exchange_finish(struct exchange *ex, bool whole);
/* Whether a response can be given to libmicrohttpd; if not, the connection is suspended. *lost: it
   is to be closed. *size: bytes of the answer, -1: not known yet. */
bool exchange_ready(struct exchange *ex, bool *lost, int64_t *size);
/* Takes at most max bytes; one of the values below if there are none. */
ssize_t exchange_take(struct exchange *ex, char *buf, size_t max);
#define EXCHANGE_END (-1)
#define EXCHANGE_LOST (-2)

#endif
