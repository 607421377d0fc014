/*
 * http.h - the server's side of libmicrohttpd: listening, receiving, responding.
 */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include "server.h"

/* Takes the door over: s->daemon and s->port. */
pith_status http_start(struct server *s, pith_error *err);
/* New connections are no longer accepted; those that are open stay. */
void http_close(struct server *s);
/* Ends every connection. Nothing may be suspended any more. */
void http_stop(struct server *s);

#endif
