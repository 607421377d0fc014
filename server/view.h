/*
 * view.h - viewers of the cache: streams of documents that the model thread makes. Everything here
 * is the model thread's.
 */
#ifndef SERVER_VIEW_H
#define SERVER_VIEW_H

#include <stdbool.h>
#include <stdint.h>

struct server;

/* After each step: sends what is new, a few times a second. idle: it found nothing to do. */
void view_tick(struct server *s, bool idle);
/* A request of a conversation was submitted: its viewers follow it. 0: of none. */
void view_note(struct server *s, uint64_t session, int64_t id);
/* Ends every stream; those that come later are refused. */
void view_close(struct server *s);

#endif
