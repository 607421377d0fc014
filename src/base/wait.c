/*
 * wait.c - sleep over the futex of Linux, or over one lock and condition for all words elsewhere
 * (and with PITH_NO_FUTEX, so that tests reach it). It does not know the purpose of a wait.
 * Invariant: a thread does not sleep on when its word was changed before pi_wait_wake.
 */
#define _GNU_SOURCE
#include "base/wait.h"

#include <pthread.h>
#include <time.h>

int64_t pi_time_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void pi_wait_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* "yield" does nothing on most cores */
#endif
}

#if defined(__linux__) && !defined(PITH_NO_FUTEX)

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(_Atomic uint32_t) == sizeof(uint32_t), "the kernel reads the word");

void pi_wait_sleep(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

void pi_wait_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void pi_wait_forked(void) {}

#else

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} all = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};

void pi_wait_sleep(_Atomic uint32_t *word, uint32_t value)
{
    pthread_mutex_lock(&all.mutex);
    if (atomic_load(word) == value)
        pthread_cond_wait(&all.changed, &all.mutex);
    pthread_mutex_unlock(&all.mutex);
}

void pi_wait_wake(_Atomic uint32_t *word)
{
    (void)word;
    pthread_mutex_lock(&all.mutex);
    pthread_cond_broadcast(&all.changed);
    pthread_mutex_unlock(&all.mutex);
}

void pi_wait_forked(void)
{
    pthread_mutex_init(&all.mutex, NULL);
    pthread_cond_init(&all.changed, NULL);
}

#endif
