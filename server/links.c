/*
 * links.c - the thread that looks after connections. It reads nothing and writes nothing: sockets
 * are libmicrohttpd's. It asks whether the other side hung up, and shuts what is to end, which
 * libmicrohttpd then notices. A step of the model can take minutes, so that it is here that a
 * stream which has nothing to say is kept alive.
 *
 * Invariant: a link's socket is open while the link is in the list, so under the lock it is that
 * client's and no other's.
 */
#define _GNU_SOURCE /* POLLRDHUP */

#include "links.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "state.h"

#define LOOK_MS 50
#define SEND_BYTES                                                                                 \
    (128 << 10) /* of the system's buffer of a connection, which else grows to 4 MiB */

struct link *link_add(struct server *s, int fd)
{
    int on = 1, room = SEND_BYTES;
    struct link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return NULL;
    /* A client whose machine is gone never hangs up: the system asks for it. */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    link->fd = fd;
    link->since = server_now();
    pthread_mutex_lock(&s->links.lock);
    link->serial = ++s->links.next_serial;
    link->next = s->links.head;
    if (link->next != NULL)
        link->next->prev = link;
    s->links.head = link;
    s->links.n++;
    pthread_mutex_unlock(&s->links.lock);
    return link;
}

void link_remove(struct server *s, struct link *link)
{
    if (link == NULL)
        return;
    pthread_mutex_lock(&s->links.lock);
    *(link->prev != NULL ? &link->prev->next : &s->links.head) = link->next;
    if (link->next != NULL)
        link->next->prev = link->prev;
    s->links.n--;
    pthread_mutex_unlock(&s->links.lock);
    free(link);
}

void link_begin(struct server *s, struct link *link, struct exchange *ex)
{
    if (link == NULL)
        return;
    pthread_mutex_lock(&s->links.lock);
    link->ex = ex;
    link->whole = false;
    link->since = server_now();
    pthread_mutex_unlock(&s->links.lock);
}

void link_whole(struct server *s, struct link *link)
{
    if (link == NULL)
        return;
    pthread_mutex_lock(&s->links.lock);
    link->whole = true;
    pthread_mutex_unlock(&s->links.lock);
}

/* ---- the thread ---- */

/* Under the lock: shuts what is late or given up, and lets silent streams say that they live.
   Whether the client is to be asked after. */
static bool look_at(struct server *s, struct link *link, double now)
{
    double timeout = s->config.timeout_s;
    double idle = timeout < LINK_IDLE_S ? timeout : LINK_IDLE_S;
    bool late =
        link->ex == NULL ? now - link->since > idle : !link->whole && now - link->since > timeout;
    if (late || (link->ex != NULL && exchange_must_shut(link->ex, now, timeout)))
        shutdown(link->fd, SHUT_RDWR);
    else if (link->ex != NULL && link->whole)
        exchange_tell(link->ex, now);
    return link->ex != NULL && link->whole && !link->hung_up;
}

struct watched {
    struct pollfd *fd;
    uint64_t *serial;
    int n, cap;
};

static bool watched_grow(struct watched *w, int n)
{
    if (n <= w->cap)
        return true;
    struct pollfd *fd = realloc(w->fd, (size_t)n * 2 * sizeof(*fd));
    if (fd != NULL)
        w->fd = fd;
    uint64_t *serial = realloc(w->serial, (size_t)n * 2 * sizeof(*serial));
    if (serial != NULL)
        w->serial = serial;
    if (fd == NULL || serial == NULL)
        return false;
    w->cap = n * 2;
    return true;
}

static void gather(struct server *s, struct watched *w)
{
    double now = server_now();
    w->n = 0;
    pthread_mutex_lock(&s->links.lock);
    bool room = watched_grow(w, s->links.n);
    for (struct link *link = s->links.head; link != NULL; link = link->next) {
        if (!look_at(s, link, now) || !room)
            continue;
        w->fd[w->n] = (struct pollfd){.fd = link->fd, .events = POLLRDHUP};
        w->serial[w->n++] = link->serial;
    }
    pthread_mutex_unlock(&s->links.lock);
}

/* The client of a link hung up. */
static void hang_up(struct server *s, uint64_t serial)
{
    struct exchange *ex = NULL;
    pthread_mutex_lock(&s->links.lock);
    for (struct link *link = s->links.head; link != NULL; link = link->next)
        if (link->serial == serial && link->ex != NULL) {
            link->hung_up = true;
            ex = link->ex;
            exchange_hold(ex);
        }
    pthread_mutex_unlock(&s->links.lock);
    if (ex != NULL)
        exchange_gone(ex);
    exchange_release(ex);
}

static void *loop(void *user)
{
    struct server *s = user;
    struct watched w = {0};
    bool stops = false;
    while (!stops) {
        gather(s, &w);
        int n = poll(w.fd, (nfds_t)w.n, LOOK_MS);
        for (int i = 0; i < w.n && n > 0; i++)
            if ((w.fd[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
                hang_up(s, w.serial[i]);
        memory_give_back(s);
        pthread_mutex_lock(&s->links.lock);
        stops = s->links.stops;
        pthread_mutex_unlock(&s->links.lock);
    }
    free(w.fd);
    free(w.serial);
    return NULL;
}

bool links_start(struct server *s)
{
    s->links.runs = pthread_create(&s->links.thread, NULL, loop, s) == 0;
    return s->links.runs;
}

void links_stop(struct server *s)
{
    if (!s->links.runs)
        return;
    pthread_mutex_lock(&s->links.lock);
    s->links.stops = true;
    pthread_mutex_unlock(&s->links.lock);
    pthread_join(s->links.thread, NULL);
    s->links.runs = false;
}

void links_abort(struct server *s)
{
    pthread_mutex_lock(&s->links.lock);
    for (struct link *link = s->links.head; link != NULL; link = link->next) {
        if (link->ex != NULL)
            exchange_abort(link->ex);
        shutdown(link->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&s->links.lock);
}

void links_destroy(struct links *links)
{
    while (links->head != NULL) {
        struct link *link = links->head;
        links->head = link->next;
        free(link);
    }
    pthread_mutex_destroy(&links->lock);
}
