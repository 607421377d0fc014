/*
 * door.h - the port before there is a model. Probes and proxies are told that it is being loaded:
 * 503 and {"status": "loading model"}, and on /health/live 200.
 */
#ifndef SERVER_DOOR_H
#define SERVER_DOOR_H

#include "server.h"

int32_t door_port(const struct server_door *door);

/* Ends the answers and frees the door. The caller closes the socket, which still listens: who
   connects meanwhile waits. */
int door_take(struct server_door *door);

#endif
