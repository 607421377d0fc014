/*
 * bench_store.c - the time of attention over each pair of storage types, against f16 for both with
 * the same threads. It measures one layer of 8 KV heads: one token's query group behind T entries,
 * and a prompt's chunk of 128 tokens.
 *
 *   flat     random queries and keys whose weights are all much the same: every value counts
 *   peaked   the same with logits that spread so far that most weights are small: of values whose
 *            type is rotated those are not decoded (cpu/attend.h: drop)
 *   prompt   the chunk, flat
 *
 * All pairs take turns in every round. A ratio divides f16's time by a pair's time in the same
 * round, so that other work disturbs both alike. The program prints the median over the rounds.
 * Where that is not enough, --best compares the best rounds. Beside it stand the bytes that a pair
 * reads, and the time that the measured bandwidth of memory takes for them.
 *
 * usage: bench_store [options]; see --help
 */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/os.h"
#include "rig.h"

enum {
    N_HEAD = 8,
    PAGE_LEN = 64,
    CHUNK = 128,
    MAX_ROUND = 101,
};

/* Logits' standard deviations of the two kinds of data. */
#define FLAT 0.5
#define PEAKED 10.0

static const char *const pairs[][2] = {
    {"f16", "f16"},       {"q8_0", "q8_0"},     {"q8_0", "f16"},     {"q8_0", "q4_0"},
    {"q8_0", "turbo4"},   {"q8_0", "turbo3"},   {"q8_0", "turbo2"},  {"f16", "turbo3"},
    {"turbo4", "turbo4"}, {"turbo3", "turbo3"}, {"turbo2", "turbo2"}};
enum { N_PAIR = sizeof(pairs) / sizeof(pairs[0]) };

struct options {
    struct option_ints depths, dims, groups, threads;
    int32_t n_round;
    bool best;
    bool csv;
    const char *cpu;
};

static const struct option option_table[] = {
    RIG_INTS("--depth", depths, 2 * APPEND, 1 << 20, "entries"),
    RIG_INTS("--dim", dims, 1, 512, "head sizes"),
    RIG_INTS("--group", groups, 1, 64, "query heads that share a KV head"),
    RIG_INTS("--threads", threads, 1, 1024, "at once"),
    RIG_INT("--rounds", n_round, 1, MAX_ROUND, "rounds"),
    RIG_FLAG("--best", best, "the best rounds instead of medians, on a machine with other work"),
    RIG_CPU(cpu),
    RIG_CSV(csv),
    {0},
};

/* The cache of one pair, and the buffers of a call. */
struct side {
    struct kv_geometry g;
    struct kv_cache *cache;
    struct kv_seq *seq;
    size_t scratch_size;
};

struct bench {
    struct side side[N_PAIR];
    int32_t depth;
    int32_t dim;
    int32_t n_group;
    const struct side *now; /* what is measured: */
    int32_t n_tok;          /* per item */
    int32_t n_item;         /* of a head */
    float scale;
    float *q;         /* [CHUNK][n_group][dim] */
    float *out;       /* [thread][CHUNK][n_group][dim] */
    uint8_t *scratch; /* [thread][scratch_size] */
    size_t scratch_size;
};

static void side_open(struct side *s, const struct bench *b, const char *const pair[2])
{
    *s = (struct side){.g = lanes_shape(N_HEAD, b->dim, PAGE_LEN, kv_type_find(pair[0]))};
    s->g.type_v = kv_type_find(pair[1]);
    lanes_open(&s->g, b->depth, &s->cache, &s->seq);
}

static void bench_open(struct bench *b)
{
    int32_t n_thread = pi_thread_count();
    size_t rows = (size_t)(CHUNK * b->n_group * b->dim);
    for (int32_t i = 0; i < N_PAIR; i++) {
        side_open(&b->side[i], b, pairs[i]);
        size_t size = kv_attend_scratch_bytes(&b->side[i].g, CHUNK * b->n_group);
        b->scratch_size = size > b->scratch_size ? pi_align(size, 64) : b->scratch_size;
    }
    b->q = memory(rows * sizeof(float));
    b->out = memory((size_t)n_thread * rows * sizeof(float));
    b->scratch = memory((size_t)n_thread * b->scratch_size);
    fill_random(b->q, rows, 7);
}

static void bench_close(struct bench *b)
{
    for (int32_t i = 0; i < N_PAIR; i++) {
        kv_seq_free(b->side[i].seq);
        kv_cache_free(b->side[i].cache);
    }
    pi_mem_free(b->q);
    pi_mem_free(b->out);
    pi_mem_free(b->scratch);
}

/* Item i: some tokens of a head. */
static void attend_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct bench *b = ctx;
    size_t row = (size_t)(b->n_group * b->dim);
    for (int64_t i = begin; i < end; i++) {
        int32_t t = (int32_t)(i % b->n_item) * b->n_tok;
        const struct kv_attend_job job = {
            .seq = b->now->seq,
            .head = (int32_t)(i / b->n_item),
            .n_tok = b->n_tok,
            .n_group = b->n_group,
            .pos0 = b->depth - b->n_item * b->n_tok + t,
            .q = b->q + (size_t)t * row,
            .q_stride = row,
            .scale = b->scale,
            .out = b->out + (size_t)thread * CHUNK * row,
            .out_stride = row,
        };
        kv_attend(&job, b->scratch + (size_t)thread * b->scratch_size);
    }
}

static double seconds(struct bench *b, int32_t n_thread)
{
    double start = pi_time_s();
    pi_parallel_items(n_thread, (int64_t)N_HEAD * b->n_item, attend_items, b);
    return pi_time_s() - start;
}

static double least(const double *x, int32_t n)
{
    double least = x[0];
    for (int32_t i = 1; i < n; i++)
        least = fmin(least, x[i]);
    return least;
}

/* One kind of data and of calls over all pairs. */
static void measure(struct bench *b, const struct options *o, const char *name,
                    const pith_machine *m)
{
    static double time[N_PAIR][MAX_ROUND], ratio[MAX_ROUND];
    for (int32_t r = -1; r < o->n_round; r++) /* the first round warms up */
        for (int32_t i = 0; i < N_PAIR; i++) {
            b->now = &b->side[i];
            double t = seconds(b, m->n_thread);
            if (r >= 0)
                time[i][r] = t;
        }
    for (int32_t i = 0; i < N_PAIR; i++) {
        const struct kv_geometry *g = &b->side[i].g;
        double bytes = (double)kv_bytes_for_tokens(g, b->depth);
        for (int32_t r = 0; r < o->n_round; r++)
            ratio[r] = time[0][r] / time[i][r];
        double by = median_of(ratio, o->n_round), us = 1e6 * median_of(time[i], o->n_round);
        if (o->best) {
            us = 1e6 * least(time[i], o->n_round);
            by = 1e6 * least(time[0], o->n_round) / us;
        }
        printf(o->csv ? "%s,%d,%d,%d,%d,%s,%s,%.1f,%.3f,%.1f,%.1f\n"
                      : "%-7s %7d %4d %6d %5d  %-6s %-6s %10.1f %6.2f %8.1f %10.1f\n",
               name, m->n_thread, b->dim, b->depth, b->n_group, kv_type_name(g->type_k),
               kv_type_name(g->type_v), us, by, bytes / 1e6, 1e6 * bytes / m->read_bytes_per_s);
    }
    fflush(stdout);
}

static void measure_all(struct bench *b, const struct options *o, const pith_machine *m)
{
    double spread = sqrt((double)b->dim) / 3.0; /* of q.k, both uniform in -1..1 */
    b->n_tok = 1;
    b->n_item = 1;
    b->scale = (float)(FLAT / spread);
    measure(b, o, "flat", m);
    b->scale = (float)(PEAKED / spread);
    measure(b, o, "peaked", m);
    if (b->depth > 4096)
        return;
    b->n_tok = (int32_t)pi_min(kv_attend_tile(&b->side[0].g, b->n_group), CHUNK);
    b->n_item = CHUNK / b->n_tok;
    b->scale = (float)(FLAT / spread);
    measure(b, o, "prompt", m);
}

int main(int argc, char **argv)
{
    struct options o = {.depths = {{4096, 16384, 32768}, 3},
                        .dims = {{64, 128}, 2},
                        .groups = {{2, 4, 7}, 3},
                        .threads = {{1, pi_thread_count()}, pi_thread_count() > 1 ? 2 : 1},
                        .n_round = 15};
    pith_machine machine[OPTION_INTS_MAX];
    rig_options(argc, argv, option_table, &o);
    for (int32_t i = 0; i < o.threads.n; i++)
        machine[i] = machine_of(o.threads.value[i]);
    puts(o.csv ? "data,threads,dim,depth,group,k,v,us,times_f16,MB,bound_us"
               : "data    threads  dim  depth group  K      V              us  x f16       MB   "
                 "bound us");
    for (int32_t i = 0; i < o.dims.n * o.depths.n * o.groups.n; i++) {
        struct bench b = {.dim = o.dims.value[i / o.groups.n / o.depths.n],
                          .depth = o.depths.value[i / o.groups.n % o.depths.n] / APPEND * APPEND,
                          .n_group = o.groups.value[i % o.groups.n]};
        bench_open(&b);
        for (int32_t j = 0; j < o.threads.n; j++)
            measure_all(&b, &o, &machine[j]);
        bench_close(&b);
    }
    return 0;
}
