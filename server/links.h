/*
 * links.h - the connections that there are, and a thread that looks after them every 50 ms. It sees
 * whether a client whose answer is being made is still there, and whether a reader keeps up. It
 * also sees whether a request comes in within its time, and whether a stream is silent.
 */
#ifndef SERVER_LINKS_H
#define SERVER_LINKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct exchange;
struct server;

/* Seconds in which a new or idle connection is to send the head of a request, if the server's
   timeout is not shorter. */
#define LINK_IDLE_S 60.0

struct link {
    struct link *prev, *next;
    int fd;
    uint64_t serial;
    double since;        /* when it came, or its request began or ended */
    struct exchange *ex; /* being received or answered; NULL: idle */
    bool whole;          /* its body has come */
    bool hung_up;        /* its client was found gone */
};

struct links {
    pthread_mutex_t lock;
    struct link *head;
    int32_t n;
    uint64_t next_serial;
    pthread_t thread;
    bool runs;
    bool stops;
};

/* False: no thread could be made. */
bool links_start(struct server *s);
/* Ends the thread; the connections stay. */
void links_stop(struct server *s);
void links_destroy(struct links *links);

/* NULL: no memory. */
struct link *link_add(struct server *s, int fd);
void link_remove(struct server *s, struct link *link);
/* A request begins (ex) or is over (NULL). */
void link_begin(struct server *s, struct link *link, struct exchange *ex);
/* Its body has come: from now on its client is watched. */
void link_whole(struct server *s, struct link *link);
/* Ends every answer: links_stop comes before. */
void links_abort(struct server *s);

#endif
