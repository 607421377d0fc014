/*
 * sample.cuh - the best tokens of a row of logits, so that a row need not leave the device. Every
 * token has a key of its own: its logit, then its number, the lower first. So the order of threads
 * decides nothing.
 */
#ifndef PI_GPU_SAMPLE_CUH
#define PI_GPU_SAMPLE_CUH

#include "device/gpu/gpu.h"

enum { SAMPLE_THREADS = 1024, SAMPLE_AHEAD = 8 };

/* Larger for better tokens, 0 for none. -0 counts as 0. */
DEV uint64_t sample_key(uint32_t bits, int id)
{
    uint32_t u = bits == 0x80000000u ? 0 : bits;
    u = u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (0xffffffffu - (uint32_t)id);
}

/* f(i, bits) of the thread's part of a row. Loads are asked for several at a time: f may store. */
template <class F> DEV void sample_each(const uint32_t *x, int n, int thread, F f)
{
    for (int first = thread; first < n; first += SAMPLE_THREADS * SAMPLE_AHEAD) {
        uint32_t bits[SAMPLE_AHEAD];
        for (int j = 0; j < SAMPLE_AHEAD; j++) {
            const int i = first + j * SAMPLE_THREADS;
            bits[j] = i < n ? x[i] : 0;
        }
        for (int j = 0; j < SAMPLE_AHEAD; j++) {
            const int i = first + j * SAMPLE_THREADS;
            if (i < n)
                f(i, bits[j]);
        }
    }
}

/* Sorts a key of each thread, the largest first. */
DEV void sample_sort(uint64_t *key, int thread)
{
    for (int size = 2; size <= SAMPLE_THREADS; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            const int other = thread ^ step;
            sync_block();
            if (other > thread) {
                const uint64_t a = key[thread], b = key[other];
                if ((a < b) == ((thread & size) == 0)) {
                    key[thread] = b;
                    key[other] = a;
                }
            }
        }
    sync_block();
}

/* A block takes a row. At least GPU_BEST of the threads' own best tokens are as good as the one at
   GPU_BEST among them, so the best of all are that good, too. They are few, unless the row is made
   for the opposite. Then, and where a logit is not finite, n is 0. */
KERNEL(1024, 1) best_rows(const gpu_best_args &a)
{
    SHARED(smem);
    uint64_t *key = (uint64_t *)smem;                   /* [SAMPLE_THREADS] */
    int32_t *count = (int32_t *)(key + SAMPLE_THREADS); /* collected; rows that are not finite */
    const int thread = (int)threadIdx.x;
    const uint32_t *x = AT(const uint32_t, a.x) + (size_t)blockIdx.x * (size_t)a.n;
    uint32_t *keep = AT(uint32_t, AT(const gpu_at, a.keep)[blockIdx.x]);
    gpu_best *out = AT(gpu_best, a.out) + blockIdx.x;
    uint64_t mine = 0;
    bool bad = false;
    if (thread < 2)
        count[thread] = 0;
    sync_block();
    sample_each(x, a.n, thread, [&](int i, uint32_t bits) {
        const uint64_t k = sample_key(bits, i);
        keep[i] = bits;
        mine = k > mine ? k : mine;
        bad = bad || (bits & 0x7f800000u) == 0x7f800000u;
    });
    key[thread] = mine;
    if (bad)
        atomic_next(count + 1);
    sample_sort(key, thread);
    const uint64_t least = key[GPU_BEST - 1];
    sync_block();
    key[thread] = 0;
    sync_block();
    sample_each(x, a.n, thread, [&](int i, uint32_t bits) {
        const uint64_t k = sample_key(bits, i);
        if (k >= least) {
            const int32_t at = atomic_next(count);
            if (at < SAMPLE_THREADS)
                key[at] = k;
        }
    });
    sample_sort(key, thread);
    const int n = count[0] < GPU_BEST ? count[0] : GPU_BEST;
    if (thread == 0)
        out->n = count[0] > SAMPLE_THREADS || count[1] > 0 ? 0 : n;
    if (thread < n) {
        const uint32_t id = 0xffffffffu - (uint32_t)key[thread];
        out->id[thread] = (int32_t)id;
        out->logit[thread] = AT(const float, a.x)[(size_t)blockIdx.x * (size_t)a.n + id];
    }
}

#endif
