/*
 * state.h - what the files of server/ share: the server itself and its counters.
 *
 * Locks, in the order in which they are taken: links, an exchange's, a queue's or the scheduler's.
 */
#ifndef SERVER_STATE_H
#define SERVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "events.h"
#include "exchange.h"
#include "links.h"
#include "metrics.h"
#include "queue.h"
#include "serve/api/request.h"
#include "server.h"

#define SERVER_N_WORKER 2
#define JSONS_MAX 4 /* memory of all bodies as JSON, as multiples of the most that one takes */

enum server_stage {
    SERVER_RUNS,
    SERVER_DRAINS, /* what runs may end */
    SERVER_STOPS,  /* nothing waits any more */
};

/* The figures of /metrics beyond the scheduler's own numbers. */
struct server_counts {
    atomic_llong n_request;  /* of HTTP */
    atomic_llong n_refused;  /* answered with 4xx or 5xx */
    atomic_llong n_gone;     /* whose client went away before the end */
    atomic_llong n_dropped;  /* whose reader was too slow */
    atomic_llong evicted;    /* entries, of answers that ended */
    atomic_llong body_bytes; /* in memory now */
    atomic_llong json_bytes; /* that bodies take when they are parsed, at most */
    atomic_int n_answer;     /* requests to the model that run or wait */
};

struct serve_view;
struct http_answer; /* answer.c */
struct watch;       /* view.c */

#define SESSION_NOTES 64

/* The request that a conversation sent last. */
struct session_note {
    uint64_t session; /* 0: none */
    int64_t id;
};

enum { SERVER_DEVICES = 16 }; /* that one engine has pages on, at most */

struct server {
    struct server_config config;
    struct serve_setup requests;
    pith_model_info info;
    pith_scheduler *scheduler; /* stepped by the model thread */
    struct events *events;     /* NULL: nothing is published */
    struct MHD_Daemon *daemon;
    int32_t port;
    int listen_fd;    /* once no connection is accepted any more; -1: none */
    int64_t started;  /* seconds since 1970 */
    double started_s; /* of server_now */
    char boot[17];    /* makes ids of answers unique over restarts */
    atomic_int stage;
    atomic_bool large_ended; /* a request with a large body or answer: memory.c */
    atomic_llong next_id;
    struct server_counts count;

    struct queue to_workers; /* exchanges for the workers */
    struct queue to_model;   /* and for the model thread */
    pthread_t worker[SERVER_N_WORKER];
    pthread_t model_thread;
    int n_thread; /* of workers and then the model's that run */
    struct links links;
    struct watch *watches; /* the model thread's, and what follows */
    struct http_answer *answers;
    int32_t n_new;           /* prompts that the scheduler got since its last step */
    int n_progress;          /* of them, that want to know how far their prompt was read */
    struct serve_view *view; /* of GET /kv */
    struct session_note note[SESSION_NOTES]; /* [n_note % SESSION_NOTES] is the oldest */
    int64_t n_note;
    double viewed;  /* when viewers were told last */
    bool view_idle; /* and that nothing happens */

    pthread_mutex_t lock; /* of the fields below */
    pthread_cond_t quiet; /* n_open came to 0 */
    int32_t n_open;       /* exchanges that a drain waits for */
    pith_kv_stats kv;     /* as of the end of a step, at most 50 ms ago while there are steps */
    pith_kv_device pages[SERVER_DEVICES]; /* [n_pages] likewise, on each device */
    int32_t n_pages;
    pith_memory_stats memory; /* likewise */
    struct timings timing[N_TIMING];
    int64_t claimed_bytes;   /* likewise: pith_scheduler_claimed_bytes */
    pith_memory_stats draft; /* likewise, of the drafting model's engine; zero without one */
};

/* The name of the model in answers and metrics. */
const char *server_model_name(const struct server *s);

/* Seconds of a monotonic clock. */
double server_now(void);

/* A view of the server's engine. INVALID, NOMEM. */
pith_status server_make_view(struct server *s, struct serve_view **out, pith_error *err);

/* Cancels every answer: on the model thread. */
void answer_cancel_all(struct server *s);
/* Likewise, after a step: gives the scheduler prompts for which its queue had no room. Returns
   whether there were any. */
bool answer_go_on(struct server *s);
/* Likewise, after a step: tells the requests that want to know how far their prompts were read. */
void answer_tell_progress(struct server *s);

/* Of memory.c: at the start; when a request ended whose body or answer took so much; now and then,
   on a thread that may wait. */
void memory_keep_little(void);
void memory_note(struct server *s, size_t bytes);
void memory_give_back(struct server *s);

/* The loops of model_thread.c; user is the server. */
void *server_model_loop(void *user);
void *server_worker_loop(void *user);

#endif
