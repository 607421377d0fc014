/*
 * queue.c - streams that do nothing until a call waits for them. An operation on a stream is stored
 * with copies of everything that its arguments point to, so that the host may overwrite these.
 * Invariant: operations on one stream run in the order of the calls. A call that waits for all runs
 * the oldest stream last.
 */
#include <pthread.h>

#include "device/checked/checked.h"
#include "device/cpu/cpu.h"

/* Of a stream's waiting operations. When it is full they run. */
#define ROOM ((size_t)4 << 20)

struct task {
    struct task *next;
    const struct checked_kind *kind;
    max_align_t args[]; /* kind->size bytes */
};

struct checked_queue {
    struct task *first, **last;
    uint8_t *room; /* [ROOM] */
    size_t used;
};

struct checked_stream {
    struct pi_stream base;
    struct pi_stream *inner;
    struct checked_queue queue;
    struct checked_stream *next; /* that was opened before */
};

/* Of all queues, and of the list of streams. It is held while operations of a queue run: these call
   no function back. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct checked_stream *newest;

static struct checked_stream *stream_of(struct pi_stream *s)
{
    return (struct checked_stream *)s;
}

struct pi_stream *checked_inner(struct pi_stream *s)
{
    return stream_of(s)->inner;
}

/* ---- the queue ---- */

static void clear(struct checked_queue *q)
{
    q->first = NULL;
    q->last = &q->first;
    q->used = 0;
}

static void run_queue(struct checked_stream *s)
{
    if (s->queue.first == NULL)
        return;
    checked_enter(CHECKED_ALL);
    for (const struct task *t = s->queue.first; t != NULL; t = t->next)
        t->kind->run(s->inner, t->args);
    checked_leave(CHECKED_ALL);
    clear(&s->queue);
}

static void *take(struct checked_queue *q, size_t n)
{
    n = pi_align(n, sizeof(max_align_t));
    if (n > ROOM - q->used)
        return NULL;
    void *part = q->room + q->used;
    q->used += n;
    return part;
}

void *checked_keep(struct checked_queue *q, const void *data, size_t n)
{
    void *copy = take(q, n);
    if (copy != NULL && n > 0)
        memcpy(copy, data, n);
    return copy;
}

/* False: there is no room, and the queue is as it was. */
static bool put(struct checked_queue *q, const struct checked_kind *kind, const void *args)
{
    size_t used = q->used;
    struct task *t = take(q, sizeof(*t) + kind->size);
    if (t != NULL) {
        *t = (struct task){.kind = kind};
        memcpy(t->args, args, kind->size);
    }
    if (t == NULL || (kind->copy != NULL && !kind->copy(q, t->args))) {
        q->used = used;
        return false;
    }
    *q->last = t;
    q->last = &t->next;
    return true;
}

void checked_ask(struct pi_stream *stream, const struct checked_kind *kind, const void *args)
{
    struct checked_stream *s = stream_of(stream);
    pthread_mutex_lock(&lock);
    if (!put(&s->queue, kind, args)) {
        run_queue(s);
        if (!put(&s->queue, kind, args)) {
            checked_enter(CHECKED_ALL);
            kind->run(s->inner, args);
            checked_leave(CHECKED_ALL);
        }
    }
    pthread_mutex_unlock(&lock);
}

void checked_wait(struct pi_stream *stream)
{
    pthread_mutex_lock(&lock);
    if (stream != NULL)
        run_queue(stream_of(stream));
    for (struct checked_stream *s = newest; s != NULL && stream == NULL; s = s->next)
        run_queue(s);
    pthread_mutex_unlock(&lock);
}

/* ---- streams ---- */

struct pi_stream *checked_open(struct pi_device *d, const struct pi_stream_shape *shape)
{
    struct pi_stream_shape own = *shape;
    struct checked_stream *s = pi_mem_alloc(PI_MEM_SCRATCH, sizeof(*s));
    if (s == NULL)
        return NULL;
    own.n_thread = 1;
    s->base = (struct pi_stream){d, shape->n_thread};
    s->inner = cpu_stream_make(d, &own, pi_kernels(), true);
    s->queue.room = pi_mem_alloc(PI_MEM_SCRATCH, ROOM);
    if (s->inner == NULL || s->queue.room == NULL) {
        cpu_stream_free(s->inner);
        pi_mem_free(s->queue.room);
        pi_mem_free(s);
        return NULL;
    }
    clear(&s->queue);
    pthread_mutex_lock(&lock);
    s->next = newest;
    newest = s;
    pthread_mutex_unlock(&lock);
    return &s->base;
}

void checked_close(struct pi_stream *stream)
{
    struct checked_stream *s = stream_of(stream), **at = &newest;
    if (s == NULL)
        return;
    pthread_mutex_lock(&lock);
    run_queue(s);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&lock);
    cpu_stream_free(s->inner);
    pi_mem_free(s->queue.room);
    pi_mem_free(s);
}
