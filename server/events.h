/*
 * events.h - tells routers over ZeroMQ which prefixes the cache has, in vLLM's format
 * (docs/fleet.md). The thread that has the model only appends to a list; a thread of this file
 * sends.
 */
#ifndef SERVER_EVENTS_H
#define SERVER_EVENTS_H

#include "pith/scheduler.h"

struct events;

struct events_setup {
    const char *config; /* JSON, as --kv-events-config takes it */
    const char *model;  /* its name, of the topic */
    int32_t page_len;
};

/* Whether a configuration can be used, as far as that is known before there is a model. INVALID,
   UNSUPPORTED, as below. */
pith_status events_check(const char *config, pith_error *err);

/* Begins to publish; *out stays NULL where the configuration wants nothing published. INVALID (a
   key or a value, named), IO (an endpoint), UNSUPPORTED (a build without libzmq), NOMEM. */
pith_status events_start(const struct events_setup *setup, struct events **out, pith_error *err);
void events_stop(struct events *e); /* NULL is ignored, here and below */

/* A pith_prefix_fn; user is the struct events. Never waits for a socket. */
void events_note(void *user, const pith_prefix_event *event);
/* All changes so far are one batch, which goes out now. */
void events_flush(struct events *e);

/* Batches that were sent, and changes that were lost as the list was full. */
void events_count(struct events *e, int64_t *n_sent, int64_t *n_lost);

#endif
