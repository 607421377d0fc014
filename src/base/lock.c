/*
 * lock.c - the lock over POSIX threads. Invariant: times are of the monotonic clock, so that
 * setting the machine's clock wakes no thread.
 */
#define _GNU_SOURCE
#include "base/lock.h"

#include <math.h>
#include <time.h>

pith_status pi_lock_init(struct pi_lock *lock, pith_error *err)
{
    pthread_condattr_t attr;
    if (pthread_mutex_init(&lock->mutex, NULL) != 0)
        return pi_fail(err, PITH_NOMEM, "the system has no memory for a mutex");
    bool ok = pthread_condattr_init(&attr) == 0;
    if (ok) {
        ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
             pthread_cond_init(&lock->changed, &attr) == 0;
        pthread_condattr_destroy(&attr);
    }
    if (ok)
        return PITH_OK;
    pthread_mutex_destroy(&lock->mutex);
    return pi_fail(err, PITH_NOMEM, "the system has no memory for a condition variable");
}

void pi_lock_destroy(struct pi_lock *lock)
{
    pthread_cond_destroy(&lock->changed);
    pthread_mutex_destroy(&lock->mutex);
}

void pi_lock_take(struct pi_lock *lock)
{
    pthread_mutex_lock(&lock->mutex);
}
void pi_lock_give(struct pi_lock *lock)
{
    pthread_mutex_unlock(&lock->mutex);
}
void pi_lock_wake(struct pi_lock *lock)
{
    pthread_cond_broadcast(&lock->changed);
}

bool pi_lock_wait(struct pi_lock *lock, double until)
{
    double whole = floor(until);
    struct timespec at = {(time_t)whole, (long)((until - whole) * 1e9)};
    return pthread_cond_timedwait(&lock->changed, &lock->mutex, &at) == 0;
}
