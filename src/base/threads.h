/*
 * threads.h - parallel loops. Bodies write disjoint ranges, so results never depend on the number
 * of threads or on the thread that took an item. The calling thread does the items that no helper
 * has begun, so a loop never waits for a thread that the system does not run. Loops may stand
 * inside of loops, and any number of threads may run loops at the same time.
 */
#ifndef PI_THREADS_H
#define PI_THREADS_H

#include "base/base.h"

/* Bytes between what two threads write: processors fetch cache lines in pairs. */
#define PI_APART 128

/* The most threads that a caller may ask for. */
#define PI_THREADS_MOST 1024

/* Does items [begin, end) of a loop; thread is in [0, n_thread) and may index per-thread
   scratch. */
typedef void pi_job_fn(void *ctx, int64_t begin, int64_t end, int32_t thread);

/* Splits [0, n) into contiguous ranges, neighbours to one thread: items of equal cost, streaming
   memory. A thread may get several ranges. */
void pi_parallel_ranges(int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx);

/* Hands out items one by one, neighbours to one thread until that has done its share. Then it takes
   items that others have left, from the end: items are of unequal cost. */
void pi_parallel_items(int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx);

/* Processors this process may use, at least 1, counted at the first call. No loop has more threads
   than that, however many it asks for: they would wait for each other. */
int32_t pi_thread_count(void);

/* Of n_thread threads how many a loop of this many multiplications is worth: one, where waking and
   awaiting others costs more than they save. */
int32_t pi_threads_worth(int32_t n_thread, int64_t work);

/* For tests: as if this were the number of processors; 0: the real number. No loop runs
   meanwhile. */
void pi_thread_assume(int32_t n_processor);

#endif
