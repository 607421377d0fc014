/*
 * events_none.c - events.h in a build without libzmq: nothing is published, and who asks is told
 * so.
 */
#include <stdio.h>

#include "events.h"

pith_status events_start(const struct events_setup *setup, struct events **out, pith_error *err)
{
    (void)setup;
    *out = NULL;
    return events_check("", err);
}

pith_status events_check(const char *config, pith_error *err)
{
    (void)config;
    err->status = PITH_UNSUPPORTED;
    snprintf(err->message, sizeof(err->message),
             "--kv-events-config: this build has no libzmq (cmake -DPITH_EVENTS=ON)");
    return PITH_UNSUPPORTED;
}

void events_stop(struct events *e)
{
    (void)e;
}

void events_note(void *user, const pith_prefix_event *event)
{
    (void)user;
    (void)event;
}

void events_flush(struct events *e)
{
    (void)e;
}

void events_count(struct events *e, int64_t *n_sent, int64_t *n_lost)
{
    (void)e;
    *n_sent = *n_lost = 0;
}
