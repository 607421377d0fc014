/*
 * server.h - a model behind HTTP: what `pith serve` starts and stops. Routes and their formats
 * stand in docs/server.md.
 *
 * Threads: one of libmicrohttpd's has the sockets; two read bodies, render and tokenize; one owns
 * the engine and the scheduler; one looks after connections. The model thread never touches a
 * socket, and no other one the engine.
 */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "pith/policy.h"
#include "pith/scheduler.h"

struct server_door; /* door.h */

struct server_config {
    struct server_door *door; /* of server_open; server_start takes it over */
    const pith_model *model;  /* borrowed until server_stop, like everything here */
    pith_engine *engine;      /* of the model thread alone */
    const char *model_path;
    const char *alias;         /* the model's name in answers; NULL: its own */
    const char *template_name; /* of a chat template that comes along; NULL: the next */
    const char *template_text; /* a chat template; NULL: the model's own */
    const char *host;          /* a name or an address to listen on */
    int32_t port;              /* 0: any that is free */
    const char *const *keys;   /* [n_key] of which a client must have one; none: all may come in */
    int32_t n_key;
    const char *tls_key; /* PEM; NULL: no TLS */
    const char *tls_cert;
    const char *policy[PITH_N_VERB]; /* as the engine was made; NULL: none */
    const char *slot_folder;         /* where slots are saved; NULL: they are not */
    pith_scheduler_params schedule;
    pith_generate_params generate; /* of requests that do not say */
    bool random_seed;              /* unless a request has a seed, each has another one */
    int32_t n_ctx;                 /* most tokens that one request may have */
    int64_t n_block;               /* pages of all lanes that the KV memory holds */
    double hang_s;                 /* of silence after which the model's thread counts as hanging */
    double timeout_s;   /* of a body that does not come and a reader that does not read */
    int64_t body_max;   /* bytes of a body */
    int64_t json_max;   /* bytes that it may take when it is parsed */
    int64_t stream_max; /* bytes that a reader may be behind; four times that end it at once */
    int32_t n_connection;
    const char *events; /* JSON of events.h; NULL: nothing is published */
    bool log;           /* a line on standard error for each request */
};

struct server;

/* Listens where the configuration says (host, port, TLS, connections), before there is a model: who
   comes is told to wait. INVALID (a host, port, key or certificate, named, or config->events), IO
   (the address is taken), UNSUPPORTED (events), NOMEM. */
pith_status server_open(const struct server_config *config, struct server_door **out,
                        pith_error *err);

/* Starts to answer at config->door. As pith_scheduler_create, and INVALID, IO or UNSUPPORTED of
   config->events. */
pith_status server_start(const struct server_config *config, struct server **out, pith_error *err);

/* The port that it listens on. */
int32_t server_port(const struct server *s);

/* From now on new requests are refused with 503; those that run go on. */
void server_drain(struct server *s);
/* Waits until no request runs, at most `seconds`; true: none does. */
bool server_wait(struct server *s, double seconds);
/* Requests that run or wait. */
int32_t server_busy(struct server *s);

/* Ends what still runs and frees the server. NULL is ignored. */
void server_stop(struct server *s);

#endif
