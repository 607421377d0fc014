/*
 * threads.c - the parallel loops. It owns no state: OpenMP keeps the threads.
 */
#include <omp.h>
#include <stdatomic.h>

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

/* ---- items ---- */

#define MAX_SPAN 64
#define SPAN_ITEMS ((int64_t)UINT32_MAX) /* of a loop, at most */

/* Items [begin, end) that nobody has taken yet: begin in the lower half, so that both change at
   once. */
struct span {
    _Alignas(PI_APART) _Atomic uint64_t items;
};

static uint64_t items_of(uint64_t begin, uint64_t end)
{
    return end << 32 | begin;
}

/* Takes the first item, or the last one; -1 where none is left. */
static int64_t take(struct span *span, bool first)
{
    uint64_t items = atomic_load_explicit(&span->items, memory_order_relaxed);
    for (;;) {
        uint64_t begin = items & UINT32_MAX, end = items >> 32;
        uint64_t left = first ? items_of(begin + 1, end) : items_of(begin, end - 1);
        if (begin >= end)
            return -1;
        if (atomic_compare_exchange_weak_explicit(&span->items, &items, left, memory_order_relaxed,
                                                  memory_order_relaxed))
            return (int64_t)(first ? begin : end - 1);
    }
}

static void work(struct span *span, bool first, pi_job_fn *fn, void *ctx, int32_t thread)
{
    for (int64_t i = take(span, first); i >= 0; i = take(span, first))
        fn(ctx, i, i + 1, thread);
}

/* Neighbours go to one thread, one after the other: what it asked memory for behind an item belongs
   to the next. Who has done his own takes from the ends of what others have. */
void pi_parallel_items(int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx)
{
    if (n_thread <= 1 || n <= 1) {
        if (n > 0)
            fn(ctx, 0, n, 0);
        return;
    }
    struct span spans[MAX_SPAN];
    int32_t n_span = (int32_t)pi_min(n_thread, MAX_SPAN);
    assert(n <= SPAN_ITEMS);
    for (int32_t i = 0; i < n_span; i++)
        atomic_init(&spans[i].items,
                    items_of((uint64_t)(n * i / n_span), (uint64_t)(n * (i + 1) / n_span)));
#pragma omp parallel num_threads(n_thread)
    {
        int32_t thread = omp_get_thread_num();
        for (int32_t i = 0; i < n_span; i++)
            work(&spans[(thread + i) % n_span], i == 0, fn, ctx, thread);
    }
}

int32_t pi_thread_count(void) { return omp_get_num_procs(); }
