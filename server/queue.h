/*
 * queue.h - exchanges on their way from one thread to another, first in, first out. A queue holds a
 * reference of each. Its length is bounded by the number of connections, as each has one exchange.
 */
#ifndef SERVER_QUEUE_H
#define SERVER_QUEUE_H

#include <pthread.h>
#include <stdbool.h>

struct exchange;

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct exchange *head, *tail;
    bool closed;
};

void queue_init(struct queue *q);
/* The rest of the queue is released. */
void queue_destroy(struct queue *q);

/* Wakes one thread that waits. False: the queue is closed, and the exchange is not taken. */
bool queue_push(struct queue *q, struct exchange *ex);
/* The next one, whose reference is the caller's; waits for it at most `seconds`, below 0
   without end. NULL: there is none, or the queue is closed and empty. */
struct exchange *queue_pop(struct queue *q, double seconds);
/* Nothing more comes in; all threads that wait are woken. */
void queue_close(struct queue *q);
bool queue_closed(struct queue *q);

#endif
