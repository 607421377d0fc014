/*
 * view.h - those who watch the cache: streams of what the model thread says of it. Everything here
 * is the model thread's.
 */
#ifndef SERVER_VIEW_H
#define SERVER_VIEW_H

#include <stdbool.h>

struct server;

/* After each step: sends what is new, a few times a second. idle: it found nothing to do. */
void view_tick(struct server *s, bool idle);
/* Ends every stream; those that come later are refused. */
void view_close(struct server *s);

#endif
