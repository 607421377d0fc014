/*
 * queue.c - the queues between HTTP, workers and the model thread.
 *
 * Invariant: an exchange is in one queue at most, linked through its own `next`.
 */
#define _POSIX_C_SOURCE 200809L

#include "queue.h"

#include <time.h>

#include "exchange.h"

void queue_init(struct queue *q)
{
    pthread_condattr_t attr;
    *q = (struct queue){.closed = false};
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->more, &attr);
    pthread_condattr_destroy(&attr);
}

void queue_destroy(struct queue *q)
{
    while (q->head != NULL)
        exchange_release(queue_pop(q, 0.0));
    pthread_cond_destroy(&q->more);
    pthread_mutex_destroy(&q->lock);
}

bool queue_push(struct queue *q, struct exchange *ex)
{
    pthread_mutex_lock(&q->lock);
    bool taken = !q->closed;
    if (taken) {
        exchange_hold(ex);
        ex->next = NULL;
        *(q->tail != NULL ? &q->tail->next : &q->head) = ex;
        q->tail = ex;
        pthread_cond_signal(&q->more);
    }
    pthread_mutex_unlock(&q->lock);
    return taken;
}

static struct timespec deadline(double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double at = (double)t.tv_nsec * 1e-9 + seconds;
    t.tv_sec += (time_t)at;
    t.tv_nsec = (long)((at - (double)(time_t)at) * 1e9);
    return t;
}

struct exchange *queue_pop(struct queue *q, double seconds)
{
    struct timespec until = deadline(seconds > 0.0 ? seconds : 0.0);
    pthread_mutex_lock(&q->lock);
    while (q->head == NULL && !q->closed && seconds != 0.0) {
        if (seconds < 0.0)
            pthread_cond_wait(&q->more, &q->lock);
        else if (pthread_cond_timedwait(&q->more, &q->lock, &until) != 0)
            break;
    }
    struct exchange *ex = q->head;
    if (ex != NULL) {
        q->head = ex->next;
        if (q->head == NULL)
            q->tail = NULL;
        ex->next = NULL;
    }
    pthread_mutex_unlock(&q->lock);
    return ex;
}

void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
}

bool queue_closed(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    bool closed = q->closed;
    pthread_mutex_unlock(&q->lock);
    return closed;
}
