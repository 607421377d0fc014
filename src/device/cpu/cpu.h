/*
 * cpu.h - the inside of a device of the processor's kind: its streams, and the operations that its
 * files give to the table (device.h describes each).
 */
#ifndef PI_DEVICE_CPU_H
#define PI_DEVICE_CPU_H

#include "base/threads.h"
#include "cpu/kernels.h"
#include "device/cpu/ptr.h"

struct cpu_stream {
    struct pi_stream base;
    const struct pi_kernels *cpu;
    bool backwards;   /* loops run from the last item to the first, on one thread */
    uint8_t *scratch; /* [n_thread][scratch_size] of kernels */
    size_t scratch_size;
};

static inline struct cpu_stream *cpu_stream_of(struct pi_stream *s)
{
    return (struct cpu_stream *)s;
}

static inline void *cpu_scratch(const struct cpu_stream *s, int32_t thread)
{
    return s->scratch + (size_t)thread * s->scratch_size;
}

/* Threads for a loop of this many multiplications. */
int32_t cpu_threads_for(const struct cpu_stream *s, int64_t work);
/* pi_parallel_ranges and pi_parallel_items, in the stream's order. */
void cpu_ranges(const struct cpu_stream *s, int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx);
void cpu_items(const struct cpu_stream *s, int32_t n_thread, int64_t n, pi_job_fn *fn, void *ctx);

/* A stream on a device, with the kernels of a table. */
struct pi_stream *cpu_stream_make(struct pi_device *d, const struct pi_stream_shape *shape,
                                  const struct pi_kernels *cpu, bool backwards);
void cpu_stream_free(struct pi_stream *s);

/* The int8 copy of row t of n values; nothing where act is none. */
void cpu_quantize(const struct cpu_stream *s, const struct pi_int8 *act, const float *row,
                  int64_t t, int32_t n);
/* The factor of row t's query. */
float cpu_temperature(const struct pi_temperature *temp, const int32_t *pos, int64_t t);

/* Rows [begin, end) of a body. */
typedef void cpu_rows_fn(const struct cpu_stream *s, const void *args, int64_t begin, int64_t end);
extern cpu_rows_fn *const cpu_bodies[PI_ROWS_N_BODY];
cpu_rows_fn cpu_moe_choose_rows, cpu_moe_gather_rows, cpu_moe_hidden_rows, cpu_moe_sum_rows;
cpu_rows_fn cpu_delta_in_rows, cpu_delta_unit_rows, cpu_delta_out_rows;
cpu_rows_fn cpu_latent_low_rows, cpu_latent_in_rows, cpu_latent_query_rows, cpu_latent_gather_rows;

/* ---- the table's ---- */

struct pi_at cpu_alloc(struct pi_device *d, enum pi_mem_tag tag, size_t size);
void cpu_free(struct pi_device *d, struct pi_at at);
struct pi_at cpu_map(struct pi_device *d, enum pi_mem_tag tag, size_t size);
void cpu_unmap(struct pi_device *d, enum pi_mem_tag tag, struct pi_at at, size_t size);
pith_status cpu_check(struct pi_device *d, pith_error *err);
bool cpu_spare(struct pi_device *d, size_t size);
void cpu_drop(struct pi_device *d, struct pi_at at, size_t size);

void cpu_rows(struct pi_stream *s, enum pi_rows_body body, const void *args, int64_t n_row,
              int64_t work);
void cpu_product(struct pi_stream *s, const struct pi_product *p);
void cpu_product_heads(struct pi_stream *s, const struct pi_product_heads *p);
void cpu_product_experts(struct pi_stream *s, const struct pi_product_experts *p);
void cpu_moe_sort(struct pi_stream *s, const struct pi_moe_rule *rule,
                  const struct pi_moe_places *places, int32_t n_tok);
void cpu_delta_conv(struct pi_stream *s, const struct pi_delta_rows *d, struct pi_at w,
                    const struct pi_delta_item *items, int32_t n);
void cpu_delta_turn(struct pi_stream *s, const struct pi_delta_rows *d,
                    const struct pi_delta_item *items, int32_t n);
void cpu_wait(struct pi_stream *s);

#endif
