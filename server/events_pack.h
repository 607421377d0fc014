/*
 * events_pack.h - changes of the cache of prefixes as vLLM's routers read them: batches in msgpack.
 */
#ifndef SERVER_EVENTS_PACK_H
#define SERVER_EVENTS_PACK_H

#include "pith/scheduler.h"
#include "serve/api/reply.h"

/* Appends a change to a list of records; false: no memory. All pages of a list are as long. */
bool pack_add(struct serve_bytes *records, const pith_prefix_event *event);

/* Appends [time, [event, ...], 0] with the events that a list of records comes to. Pages that
   follow each other in a text are one event, and so are removed ones. False: no memory. */
bool pack_batch(const struct serve_bytes *records, int32_t page_len, double time,
                struct serve_bytes *out);

#endif
