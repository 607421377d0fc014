/*
 * wait.h - waiting for a word that another thread changes: a moment of the processor, and sleep.
 */
#ifndef PI_WAIT_H
#define PI_WAIT_H

#include <stdatomic.h>

#include "base/base.h"

/* Nanoseconds of the clock of pi_time_s. */
int64_t pi_time_ns(void);

/* Tells the processor that a loop waits: a thread beside, on the same core, computes faster. */
void pi_wait_pause(void);

/* Sleeps while the word has that value, until pi_wait_wake; may return early without a reason. */
void pi_wait_sleep(_Atomic uint32_t *word, uint32_t value);

/* Wakes one thread that sleeps at the word, which the caller has changed before. The word may be
   gone in the meantime. */
void pi_wait_wake(_Atomic uint32_t *word);

/* In a process that fork has made, where no other thread waits. */
void pi_wait_forked(void);

#endif
