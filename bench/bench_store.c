/*
 * bench_store.c - what attention costs over each pair of storage types, against f16 for both with
 * the same threads: one layer of 8 KV heads, one token's query group behind T entries, and a
 * prompt's chunk of 128 tokens.
 *
 *   flat     random queries and keys whose weights are all much the same: every value counts
 *   peaked   the same with logits that spread so far that most weights are small: of values whose
 *            type is rotated those are not decoded (cpu/attend.h: drop)
 *   prompt   the chunk, flat
 *
 * All pairs take turns in every round, and a ratio is the median over the rounds of f16's time
 * divided by a pair's in the same round, so that a machine with other work on it disturbs both
 * alike; --best compares the best rounds, where that is not enough. Beside it stand the bytes that
 * a pair reads, and the time that the measured bandwidth of memory takes for them.
 *
 * usage: bench_store [options]; see usage()
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/os.h"
#include "base/threads.h"
#include "kv/kv.h"
#include "noise.h"
#include "pith/inspect.h"

enum {
    N_HEAD = 8,
    PAGE_LEN = 64,
    APPEND = 64, /* tokens that go to every head in turn: pages of a head lie scattered */
    CHUNK = 128,
    MAX_LIST = 8,
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

struct list {
    int32_t of[MAX_LIST];
    int32_t n;
};

struct options {
    struct list depths, dims, groups, threads;
    int32_t n_round;
    bool best;
    bool csv;
};

/* The cache of one pair, and what a call takes. */
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

static void stop(const pith_error *err)
{
    fprintf(stderr, "bench_store: %s\n", err->message);
    exit(1);
}

static void *memory(size_t size)
{
    void *block = pi_mem_alloc(PI_MEM_OTHER, size);
    if (block == NULL)
        stop(&(pith_error){.message = "no memory"});
    return block;
}

static void side_open(struct side *s, const struct bench *b, const char *const pair[2])
{
    pith_error err = {0};
    *s = (struct side){.g = {.n_layer = 1,
                             .n_head = N_HEAD,
                             .dim_k = b->dim,
                             .dim_v = b->dim,
                             .page_len = PAGE_LEN,
                             .type_k = kv_type_find(pair[0]),
                             .type_v = kv_type_find(pair[1])}};
    if (kv_cache_create(&s->g, kv_bytes_for_tokens(&s->g, b->depth), &s->cache, &err) != PITH_OK ||
        kv_seq_create(s->cache, &s->seq, &err) != PITH_OK)
        stop(&err);
    size_t row = (size_t)b->dim, n = (size_t)APPEND * row;
    float *k = memory(n * sizeof(float)), *v = memory(n * sizeof(float));
    for (int32_t pos = 0; pos < b->depth; pos += APPEND) {
        if (kv_seq_reserve(s->seq, APPEND, &err) != PITH_OK)
            stop(&err);
        for (int32_t h = 0; h < N_HEAD; h++) {
            fill_random(k, n, (uint32_t)(2 * (pos + h) + 1));
            fill_random(v, n, (uint32_t)(2 * (pos + h) + 2));
            kv_seq_append(s->seq, 0, h, pos, APPEND, k, row, v, row);
        }
    }
    pi_mem_free(k);
    pi_mem_free(v);
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

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int32_t n)
{
    qsort(x, (size_t)n, sizeof(*x), compare);
    return x[n / 2];
}

/* One kind of data and of calls over all pairs. */
static void measure(struct bench *b, const struct options *o, const char *name,
                    const pith_machine *m)
{
    static double time[N_PAIR][MAX_ROUND], ratio[MAX_ROUND], alone[MAX_ROUND];
    for (int32_t r = -1; r < o->n_round; r++) /* the first round warms up */
        for (int32_t i = 0; i < N_PAIR; i++) {
            b->now = &b->side[i];
            double t = seconds(b, m->n_thread);
            if (r >= 0)
                time[i][r] = t;
        }
    double first = 0.0;
    for (int32_t i = 0; i < N_PAIR; i++) {
        const struct kv_geometry *g = &b->side[i].g;
        double bytes = (double)kv_bytes_for_tokens(g, b->depth);
        for (int32_t r = 0; r < o->n_round; r++) {
            ratio[r] = time[0][r] / time[i][r];
            alone[r] = time[i][r];
        }
        double by = median(ratio, o->n_round), us = 1e6 * median(alone, o->n_round);
        if (o->best) {
            us = 1e6 * alone[0]; /* in order now */
            first = i == 0 ? us : first;
            by = first / us;
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
    b->n_tok = (int32_t)pi_min(kv_attend_tile(b->n_group), CHUNK);
    b->n_item = CHUNK / b->n_tok;
    b->scale = (float)(FLAT / spread);
    measure(b, o, "prompt", m);
}

/* ---- options ---- */

static void usage(void)
{
    fputs("usage: bench_store [options]\n"
          "  --depth N,...    entries (4096,16384,32768)\n"
          "  --dim N,...      head sizes (64,128)\n"
          "  --group N,...    query heads that share a KV head (2,4,7)\n"
          "  --threads N,...  threads (1 and all)\n"
          "  --rounds N       rounds, 1 to 101 (15)\n"
          "  --best           the best rounds instead of medians, on a machine with other work\n"
          "  --cpu LEVEL      scalar, avx2, avx512, amx, neon\n"
          "  --csv\n",
          stderr);
    exit(2);
}

static struct list list_read(const char *text, int32_t most)
{
    struct list l = {.n = 0};
    while (l.n < MAX_LIST && *text != '\0') {
        char *end;
        long x = strtol(text, &end, 10);
        if (end == text || x < 1 || x > most)
            usage();
        l.of[l.n++] = (int32_t)x;
        text = *end == ',' ? end + 1 : end;
    }
    if (l.n == 0 || *text != '\0')
        usage();
    return l;
}

static void options_read(struct options *o, int argc, char **argv)
{
    pith_error err = {0};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--csv") == 0)
            o->csv = true;
        else if (strcmp(argv[i], "--best") == 0)
            o->best = true;
        else if (strcmp(argv[i], "--depth") == 0 && ++i)
            o->depths = list_read(value, 1 << 20);
        else if (strcmp(argv[i], "--dim") == 0 && ++i)
            o->dims = list_read(value, 512);
        else if (strcmp(argv[i], "--group") == 0 && ++i)
            o->groups = list_read(value, 64);
        else if (strcmp(argv[i], "--threads") == 0 && ++i)
            o->threads = list_read(value, pi_thread_count());
        else if (strcmp(argv[i], "--rounds") == 0 && ++i)
            o->n_round = list_read(value, MAX_ROUND).of[0];
        else if (strcmp(argv[i], "--cpu") == 0 && ++i) {
            if (pith_cpu_level_set(value, &err) != PITH_OK)
                stop(&err);
        } else {
            usage();
        }
    }
}

int main(int argc, char **argv)
{
    struct options o = {.depths = {{4096, 16384, 32768}, 3},
                        .dims = {{64, 128}, 2},
                        .groups = {{2, 4, 7}, 3},
                        .threads = {{1, pi_thread_count()}, pi_thread_count() > 1 ? 2 : 1},
                        .n_round = 15};
    options_read(&o, argc, argv);
    pith_machine machine[MAX_LIST];
    pith_error err = {0};
    for (int32_t i = 0; i < o.threads.n; i++)
        if (pith_machine_measure(o.threads.of[i], &machine[i], &err) != PITH_OK)
            stop(&err);
    puts(o.csv ? "data,threads,dim,depth,group,k,v,us,times_f16,MB,bound_us"
               : "data    threads  dim  depth group  K      V              us  x f16       MB   "
                 "bound us");
    for (int32_t i = 0; i < o.dims.n * o.depths.n * o.groups.n; i++) {
        struct bench b = {.dim = o.dims.of[i / o.groups.n / o.depths.n],
                          .depth = o.depths.of[i / o.groups.n % o.depths.n] / APPEND * APPEND,
                          .n_group = o.groups.of[i % o.groups.n]};
        if (b.depth < CHUNK)
            usage();
        bench_open(&b);
        for (int32_t j = 0; j < o.threads.n; j++)
            measure_all(&b, &o, &machine[j]);
        bench_close(&b);
    }
    return 0;
}
