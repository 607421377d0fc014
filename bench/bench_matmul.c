/*
 * bench_matmul.c - products with packed weights beside their bounds, both measured by the same
 * program. One token is bound by the bandwidth of memory, a prompt by the peak of the processor's
 * dot products. Weights are larger than the caches and are read as a pass reads them: in chunks of
 * groups that threads take from a common loop.
 *
 * usage: bench_matmul [options]; see --help
 */
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "base/mem.h"
#include "cpu/kernels.h"
#include "cpu/matmul_layout.h"
#include "rig.h"

#define WEIGHT_BYTES ((size_t)160 << 20) /* of the matrix of one-token products */
#define PROMPT_ROWS 3072                 /* of the matrix of prompts */
#define CHUNKS_PER_THREAD 8
#define MIN_SECONDS 0.3

static const int32_t few_tokens[] = {2, 4, 8, 16};
enum { N_FEW = sizeof(few_tokens) / sizeof(few_tokens[0]) };

struct options {
    bool csv;
    int32_t n_thread; /* 0: 1 and all */
    int32_t n_col;
    int32_t n_tok;
    const char *type; /* NULL: all */
    const char *cpu;
};

static const struct option option_table[] = {
    RIG_CSV(csv),
    RIG_INT("--threads", n_thread, 0, 1024, "0: 1 and all"),
    RIG_INT("--cols", n_col, 256, 1 << 20, "columns of a matrix, rounded down to 256"),
    RIG_INT("--tokens", n_tok, 1, 1 << 16, "of a prompt"),
    RIG_TEXT("--type", "NAME", type, "all", "of the weights"),
    RIG_CPU(cpu),
    {0},
};

/* The line of one type and number of threads. */
struct result {
    double vector_bytes_per_s; /* one token */
    double few_ratio[N_FEW];   /* time of n tokens over n times the time of one */
    double prompt_ops_per_s;
};

struct bench {
    struct pi_matrix w;
    struct pi_act act; /* of the most tokens */
    float *out;        /* [n_tok][n_row] */
    size_t scratch_size;
    uint8_t *scratch; /* [n_thread][scratch_size] */
    int32_t chunk;
};

/* Pages of the system, which weights lie in. */
static void *map(size_t size)
{
    void *block = pi_mem_map(PI_MEM_OTHER, size);
    if (block == NULL)
        stop(&(pith_error){.message = "no memory"});
    return block;
}

/* One group of random codes with scales near 1/64, 16 rows as a file has them. */
static void random_rows(const struct pi_matmul_layout *layout, int32_t n_col, uint8_t *rows)
{
    uint32_t seed = 1;
    size_t n_block = (size_t)(n_col / layout->block_len) * PI_GROUP;
    for (size_t b = 0; b < n_block; b++, rows += layout->block_bytes) {
        for (int32_t i = 0; i < layout->block_bytes; i++)
            rows[i] = (uint8_t)(random_u32(&seed) >> 24);
        for (int32_t i = 0; i < layout->n_half; i++)
            memcpy(rows + layout->half_offset[i], &(uint16_t){0x2400}, 2);
        if (layout->payload_bytes == 0) /* keep floats finite: 0x3c.. is near 1 in all three */
            rows[layout->block_bytes - 1] = 0x3c;
    }
}

static void matrix_fill(struct pi_matrix *w, enum pi_dtype type, int32_t n_col, int32_t n_group)
{
    const struct pi_matmul_layout *layout = pi_matmul_layout(type);
    w->type = type;
    w->n_col = n_col;
    w->n_group = n_group;
    w->n_row = n_group * PI_GROUP;
    w->group_bytes = pi_matmul_group_bytes(type, n_col);
    w->data = map((size_t)n_group * w->group_bytes);
    uint8_t *rows = map(w->group_bytes);
    random_rows(layout, n_col, rows);
    pi_matmul_pack_group(type, n_col, rows, PI_GROUP, w->data);
    for (int32_t g = 1; g < n_group; g++)
        memcpy(w->data + (size_t)g * w->group_bytes, w->data, w->group_bytes);
    pi_mem_unmap(PI_MEM_OTHER, rows, w->group_bytes);
}

static void act_fill(struct pi_act *a, int32_t n_tok, int32_t n_col)
{
    uint32_t seed = 2;
    size_t n = (size_t)n_tok * (size_t)n_col, n_block = n / PI_ACT_BLOCK;
    float *x = map(n * 4), *scale = map(n_block * 4);
    int8_t *q = map(n);
    int16_t *sum16 = map(n_block * 4);
    for (size_t i = 0; i < n; i++) {
        q[i] = (int8_t)((int32_t)(random_u32(&seed) >> 24) % 255 - 127);
        sum16[i / 16] = (int16_t)(sum16[i / 16] + q[i]);
        scale[i / PI_ACT_BLOCK] = 0x1p-7f;
        x[i] = (float)q[i] * 0x1p-7f;
    }
    *a = (struct pi_act){n_tok, n_col, x, q, scale, sum16, pi_kernels()->matmul.far};
}

static void multiply(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct bench *b = ctx;
    pi_matmul_fn *mul = pi_kernels()->matmul.mul[pi_matmul_index(b->w.type)];
    for (int64_t i = begin; i < end; i++)
        mul(&b->w, &b->act, (int32_t)i * b->chunk,
            (int32_t)pi_min((i + 1) * b->chunk, b->w.n_group), b->out, (size_t)b->w.n_row,
            b->scratch + (size_t)thread * b->scratch_size);
}

static double best_seconds(struct bench *b, int32_t n_tok, int32_t n_thread)
{
    b->act.n_tok = n_tok;
    b->chunk = (int32_t)pi_max(1, b->w.n_group / (n_thread * CHUNKS_PER_THREAD));
    return best_round(MIN_SECONDS, n_thread, pi_ceil_div(b->w.n_group, b->chunk), multiply, b);
}

static struct result measure(enum pi_dtype type, int32_t n_thread, const struct options *o)
{
    struct result r;
    size_t group_bytes = pi_matmul_group_bytes(type, o->n_col);
    struct bench b = {.scratch_size = pi_align(pi_matmul_scratch_bytes(o->n_col), 64)};
    size_t scratch_bytes = b.scratch_size * (size_t)n_thread;
    int32_t max_tok = (int32_t)pi_max(o->n_tok, few_tokens[N_FEW - 1]);
    b.scratch = map(scratch_bytes);
    act_fill(&b.act, max_tok, o->n_col);
    matrix_fill(&b.w, type, o->n_col, (int32_t)(WEIGHT_BYTES / group_bytes));
    size_t weight_bytes = (size_t)b.w.n_group * group_bytes;
    size_t out_bytes = (size_t)b.w.n_row * (size_t)few_tokens[N_FEW - 1] * 4;
    size_t prompt_bytes = (size_t)PROMPT_ROWS * (size_t)o->n_tok * 4;
    out_bytes = out_bytes > prompt_bytes ? out_bytes : prompt_bytes;
    b.out = map(out_bytes);
    double one = best_seconds(&b, 1, n_thread);
    r.vector_bytes_per_s = (double)weight_bytes / one;
    for (int32_t i = 0; i < N_FEW; i++)
        r.few_ratio[i] = best_seconds(&b, few_tokens[i], n_thread) / (one * few_tokens[i]);
    b.w.n_group = (int32_t)pi_min(b.w.n_group, PROMPT_ROWS / PI_GROUP);
    b.w.n_row = b.w.n_group * PI_GROUP;
    r.prompt_ops_per_s =
        2.0 * b.w.n_row * (double)o->n_col * o->n_tok / best_seconds(&b, o->n_tok, n_thread);
    size_t n = (size_t)max_tok * (size_t)o->n_col;
    pi_mem_unmap(PI_MEM_OTHER, b.scratch, scratch_bytes);
    pi_mem_unmap(PI_MEM_OTHER, b.w.data, weight_bytes);
    pi_mem_unmap(PI_MEM_OTHER, b.out, out_bytes);
    pi_mem_unmap(PI_MEM_OTHER, (void *)(uintptr_t)b.act.x, n * 4);
    pi_mem_unmap(PI_MEM_OTHER, (void *)(uintptr_t)b.act.q, n);
    pi_mem_unmap(PI_MEM_OTHER, (void *)(uintptr_t)b.act.scale, n / PI_ACT_BLOCK * 4);
    pi_mem_unmap(PI_MEM_OTHER, (void *)(uintptr_t)b.act.sum16, n / 16 * 2);
    return r;
}

/* ---- the table ---------------------------------------------------------------------------- */

static void print_head(const struct options *o, const pith_machine *m)
{
    if (o->csv)
        return;
    printf("%s, %d threads: read %.1f GB/s, int8 %.0f GOP/s, f32 %.0f GFLOP/s\n", pith_cpu_level(),
           m->n_thread, m->read_bytes_per_s * 1e-9, m->int8_op_per_s * 1e-9,
           m->f32_flop_per_s * 1e-9);
    printf("%-5s %8s %5s", "type", "GB/s", "bound");
    for (int32_t i = 0; i < N_FEW; i++)
        printf("  x%-4d", few_tokens[i]);
    printf(" %8s %5s\n", "GOP/s", "bound");
}

static void print_line(const struct options *o, const pith_machine *m, enum pi_dtype type,
                       const struct result *r)
{
    double peak = pi_matmul_is_float(type) ? m->f32_flop_per_s : m->int8_op_per_s;
    const char *name = pi_dtype_find((uint32_t)type)->name;
    double gb = r->vector_bytes_per_s * 1e-9, gop = r->prompt_ops_per_s * 1e-9;
    if (o->csv) {
        printf("%s,%d,%s,%d,%.2f,%.2f", pith_cpu_level(), m->n_thread, name, o->n_col, gb,
               m->read_bytes_per_s * 1e-9);
        for (int32_t i = 0; i < N_FEW; i++)
            printf(",%.3f", r->few_ratio[i]);
        printf(",%d,%.1f,%.1f\n", o->n_tok, gop, peak * 1e-9);
    } else {
        printf("%-5s %8.2f %4.0f%%", name, gb, 100.0 * r->vector_bytes_per_s / m->read_bytes_per_s);
        for (int32_t i = 0; i < N_FEW; i++)
            printf("  %-5.2f", r->few_ratio[i]);
        printf(" %8.1f %4.0f%%\n", gop, 100.0 * r->prompt_ops_per_s / peak);
    }
    fflush(stdout);
}

static void run(const pith_machine *m, const struct options *o)
{
    static const enum pi_dtype types[] = {
        PI_DTYPE_Q8_0, PI_DTYPE_Q4_K, PI_DTYPE_Q6_K, PI_DTYPE_F16,  PI_DTYPE_BF16,
        PI_DTYPE_F32,  PI_DTYPE_Q4_0, PI_DTYPE_Q4_1, PI_DTYPE_Q5_0, PI_DTYPE_Q5_1,
        PI_DTYPE_Q2_K, PI_DTYPE_Q3_K, PI_DTYPE_Q5_K};
    print_head(o, m);
    for (size_t i = 0; i < PI_LEN(types); i++) {
        if (o->type != NULL && strcmp(o->type, pi_dtype_find((uint32_t)types[i])->name) != 0)
            continue;
        struct result r = measure(types[i], m->n_thread, o);
        print_line(o, m, types[i], &r);
    }
}

int main(int argc, char **argv)
{
    struct options o = {.n_col = 1024, .n_tok = 512};
    pith_machine machine[2];
    rig_options(argc, argv, option_table, &o);
    o.n_col = o.n_col / 256 * 256;
    if (o.csv)
        printf("level,threads,type,cols,gb_per_s,read_gb_per_s,x2,x4,x8,x16,tokens,gop_per_s,"
               "peak_gop_per_s\n");
    int32_t n_machine = machines_of(o.n_thread, machine);
    for (int32_t i = 0; i < n_machine; i++)
        run(&machine[i], &o);
    return 0;
}
