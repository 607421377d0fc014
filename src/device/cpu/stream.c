/*
 * stream.c - a stream of a device of the processor's kind: its kernels, its threads and their
 * scratch. Operations are done when they return, so waiting does nothing.
 */
#include "device/cpu/cpu.h"

int32_t cpu_threads_for(const struct cpu_stream *s, int64_t work)
{
    return pi_threads_worth(s->base.n_thread, work);
}

static void run_backwards(int64_t n, pi_job_fn *fn, void *ctx)
{
    for (int64_t i = n - 1; i >= 0; i--)
        fn(ctx, i, i + 1, 0);
}

void cpu_ranges(const struct cpu_stream *s, int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx)
{
    if (s->backwards)
        run_backwards(n, fn, ctx);
    else
        pi_parallel_ranges(n_thread, n, fn, ctx);
}

void cpu_items(const struct cpu_stream *s, int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx)
{
    if (s->backwards)
        run_backwards(n, fn, ctx);
    else
        pi_parallel_items(n_thread, n, fn, ctx);
}

struct pi_stream *cpu_stream_make(struct pi_device *d, const struct pi_stream_shape *shape,
                                  const struct pi_kernels *cpu, bool backwards)
{
    struct cpu_stream *s = pi_mem_alloc(PI_MEM_SCRATCH, sizeof(*s));
    size_t matmul = shape->widest > 0 ? pi_matmul_scratch_bytes((int32_t)shape->widest) : 64;
    if (s == NULL)
        return NULL;
    s->base = (struct pi_stream){d, shape->n_thread};
    s->cpu = cpu;
    s->backwards = backwards;
    s->scratch_size = pi_align(shape->attend_size > matmul ? shape->attend_size : matmul, 64);
    s->scratch = pi_mem_alloc_n(PI_MEM_SCRATCH, (size_t)shape->n_thread, s->scratch_size);
    if (s->scratch == NULL) {
        pi_mem_free(s);
        return NULL;
    }
    atomic_fetch_add(&d->bytes, (int64_t)pi_mem_size(s->scratch));
    return &s->base;
}

void cpu_stream_free(struct pi_stream *stream)
{
    if (stream == NULL)
        return;
    struct cpu_stream *s = cpu_stream_of(stream);
    atomic_fetch_sub(&stream->device->bytes, (int64_t)pi_mem_size(s->scratch));
    pi_mem_free(s->scratch);
    pi_mem_free(s);
}

void cpu_wait(struct pi_stream *s)
{
    (void)s;
}
