/*
 * threads.h - one parallel loop, over OpenMP. Bodies write disjoint ranges, so results never
 * depend on the number of threads or on who took which item.
 */
#ifndef PI_THREADS_H
#define PI_THREADS_H

#include "base/base.h"

/* Bytes between what two threads write: processors fetch cache lines in pairs. */
#define PI_APART 128

/* Does items [begin, end) of a loop; thread is in [0, n_thread) and may index per-thread scratch. */
typedef void pi_job_fn(void *ctx, int64_t begin, int64_t end, int32_t thread);

/* Splits [0, n) into one contiguous range per thread: items of equal cost, streaming memory. */
void pi_parallel_ranges(int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx);

/* Hands out items one by one, neighbours to one thread until that has done its share, and then what
   others have left, from the end: items of unequal cost. */
void pi_parallel_items(int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx);

/* Processors this process may run on, at least 1. */
int32_t pi_thread_count(void);

#endif
