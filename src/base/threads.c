/*
 * threads.c - the parallel loops. It owns no state: OpenMP keeps the threads.
 */
#include <omp.h>

#include "base/threads.h"

void pi_parallel_ranges(int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx)
{
    if (n_thread <= 1 || n <= 1) {
        if (n > 0)
            fn(ctx, 0, n, 0);
        return;
    }
#pragma omp parallel num_threads(n_thread)
    {
        int32_t thread = omp_get_thread_num();
        int64_t n_part = omp_get_num_threads();
        int64_t begin = n * thread / n_part;
        int64_t end = n * (thread + 1) / n_part;
        if (begin < end)
            fn(ctx, begin, end, thread);
    }
}

void pi_parallel_items(int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx)
{
    if (n_thread <= 1 || n <= 1) {
        if (n > 0)
            fn(ctx, 0, n, 0);
        return;
    }
#pragma omp parallel for num_threads(n_thread) schedule(dynamic, 1)
    for (int64_t i = 0; i < n; i++)
        fn(ctx, i, i + 1, omp_get_thread_num());
}

int32_t pi_thread_count(void) { return omp_get_num_procs(); }
