/*
 * lock.h - what threads hand each other goes through a lock: one mutex, and a way to wait until
 * what it guards has changed. No thread calls back to a user while holding it.
 */
#ifndef PI_LOCK_H
#define PI_LOCK_H

#include <pthread.h>

#include "base/base.h"

struct pi_lock {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
};

/* NOMEM: the system has no more of them. */
pith_status pi_lock_init(struct pi_lock *lock, pith_error *err);
void pi_lock_destroy(struct pi_lock *lock); /* no thread holds it or waits */

void pi_lock_take(struct pi_lock *lock);
void pi_lock_give(struct pi_lock *lock);

/* Wakes all threads that wait; the caller holds the lock. */
void pi_lock_wake(struct pi_lock *lock);

/* Gives the lock, which the caller holds, waits to be woken until a time of pi_time_s, and takes it
   again. Returns false once that time has come; true may come without a reason, too. */
bool pi_lock_wait(struct pi_lock *lock, double until);

#endif
