/*
 * machine.c - what this machine can do, measured: read and copy bandwidth of memory, peak
 * arithmetic of the kernel level in use. It owns the measuring buffers for the time of the call.
 * Each figure is the best of several rounds: disturbances only ever slow a round down. Large caches
 * ask for a large buffer, whose rounds take long. There are fewer then, as `pith plan` waits for
 * them.
 */
#include <math.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os.h"
#include "base/processors.h"
#include "base/threads.h"
#include "cpu/kernels.h"
#include "cpu/machine.h"
#include "cpu/unrolled.h"
#include "pith/inspect.h"

#define N_ROUND 8           /* at most */
#define ROUNDS_LEAST 3      /* however long they take */
#define ROUNDS_TIME_S 0.1   /* after which no further round begins */
#define READ_AHEAD_LINES 64 /* into the first level of cache */
#define READ_AHEAD_FAR 128  /* into the second */
#define PROBE_STEPS 2000000
#define N_CACHE 4                        /* of the last level, which a buffer does not stay in */
#define BYTES_USUAL ((int64_t)128 << 20) /* without a large cache */
#define BYTES_LEAST ((int64_t)64 << 20)

struct measure {
    size_t size;     /* of the buffer */
    uint8_t *buffer; /* [size] is read, its first half copied to the second */
    pi_probe_fn *probe;
    int64_t *result; /* [n_thread] operations of each probe */
};

/* Lines are asked for ahead, as the kernels do: the processor's own prefetching stops at the
   borders of small pages. */
TILE void read_ahead(const uint64_t *words, int64_t begin, int64_t end, const bool far)
{
    uint64_t sum[8] = {0};
    for (int64_t i = begin * 8; i < end * 8; i += 8) {
        if (far)
            __builtin_prefetch(words + i + READ_AHEAD_FAR * 8, 0, 2);
        else
            __builtin_prefetch(words + i + READ_AHEAD_LINES * 8, 0, 3);
        for (int32_t j = 0; j < 8; j++)
            sum[j] += words[i + j];
    }
    for (int32_t j = 1; j < 8; j++)
        sum[0] += sum[j];
    __asm__ volatile("" : : "r"(sum[0])); /* it is looked at, as far as the compiler knows */
}

/* Items are cache lines. */
static void read_near(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct measure *m = ctx;
    (void)thread;
    read_ahead((const uint64_t *)(const void *)m->buffer, begin, end, false);
}

static void read_far(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct measure *m = ctx;
    (void)thread;
    read_ahead((const uint64_t *)(const void *)m->buffer, begin, end, true);
}

/* The faster of two ways to read. Reading into the first level, Intel's processors gave 34 GB/s in
   one run and 22 in the next, for an unknown reason. AMD's are slower into the second. */
double pi_machine_read(const void *buffer, size_t size, int32_t n_thread)
{
    struct measure m = {.buffer = (uint8_t *)(uintptr_t)buffer};
    double start = pi_time_s();
    pi_parallel_ranges(n_thread, (int64_t)(size / 64), read_near, &m);
    double middle = pi_time_s();
    pi_parallel_ranges(n_thread, (int64_t)(size / 64), read_far, &m);
    return (double)size / fmin(middle - start, pi_time_s() - middle);
}

/* Gives each page of the buffer memory of its own, near the processor that will read it. */
static void fill_lines(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct measure *m = ctx;
    (void)thread;
    memset(m->buffer + begin * 64, 1, (size_t)(end - begin) * 64);
}

static void copy_lines(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct measure *m = ctx;
    (void)thread;
    memcpy(m->buffer + m->size / 2 + begin * 64, m->buffer + begin * 64,
           (size_t)(end - begin) * 64);
}

static void probe(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct measure *m = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        m->result[i] = m->probe(PROBE_STEPS);
}

/* Units per second in the best round, where work(n items) does `units` or, if 0, sums the
   results. */
static double best_rate(struct measure *m, pi_job_fn *work, int64_t n, double units,
                        int32_t n_thread)
{
    double best = 0.0, total = 0.0;
    for (int32_t i = 0; i < N_ROUND && (i < ROUNDS_LEAST || total < ROUNDS_TIME_S); i++) {
        double start = pi_time_s();
        pi_parallel_ranges(n_thread, n, work, m);
        double seconds = pi_time_s() - start;
        double done = units;
        total += seconds;
        for (int64_t k = 0; units == 0.0 && k < n; k++)
            done += (double)m->result[k];
        if (done > best * seconds)
            best = done / seconds;
    }
    return best;
}

/* A few times the last level of cache, where the system knows it, and half of free memory at most.
   0: that is too little, as caches would be measured. */
static size_t buffer_size(void)
{
    int64_t total, unused, size = (int64_t)PI_MACHINE_BYTES;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0)
        size = pi_min(size, pi_max(N_CACHE * cache, BYTES_USUAL));
#endif
    pi_memory_size(&total, &unused);
    if (unused >= 0)
        size = pi_min(size, unused / 2);
    return size >= BYTES_LEAST ? (size_t)(size >> 20 << 20) : 0;
}

pith_status pith_machine_measure(int32_t n_thread, pith_machine *out, pith_error *err)
{
    if (n_thread < 0 || n_thread > 1024)
        return pi_fail(err, PITH_INVALID, "n_thread: %d is not between 0 and 1024", n_thread);
    if (n_thread == 0)
        n_thread = pi_thread_count();
    struct measure m = {.size = buffer_size()};
    m.buffer = m.size > 0 ? pi_mem_map_whole(PI_MEM_OTHER, m.size) : NULL;
    m.result = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_thread, sizeof(*m.result));
    pith_status status = PITH_OK;
    if (m.buffer == NULL || m.result == NULL) {
        status = pi_fail(err, PITH_NOMEM, "no memory for a measuring buffer");
    } else {
        const struct pi_kernels *cpu = pi_kernels();
        pith_machine machine = {.n_thread = n_thread};
        int64_t n_line = (int64_t)(m.size / 64);
        pi_parallel_ranges(n_thread, n_line, fill_lines, &m); /* not the shared page of zeros */
        machine.read_bytes_per_s = fmax(best_rate(&m, read_near, n_line, (double)m.size, n_thread),
                                        best_rate(&m, read_far, n_line, (double)m.size, n_thread));
        machine.copy_bytes_per_s = best_rate(&m, copy_lines, n_line / 2, (double)m.size, n_thread);
        m.probe = cpu->matmul.probe_f32;
        machine.f32_flop_per_s = best_rate(&m, probe, n_thread, 0.0, n_thread);
        m.probe = cpu->matmul.probe_int8;
        machine.int8_op_per_s = best_rate(&m, probe, n_thread, 0.0, n_thread);
        *out = machine;
    }
    pi_mem_free(m.result);
    if (m.buffer != NULL)
        pi_mem_unmap(PI_MEM_OTHER, m.buffer, m.size);
    return status;
}
