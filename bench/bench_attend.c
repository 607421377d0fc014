/*
 * bench_attend.c - attention over lanes beside its bounds, both measured by the same program.
 * Generation is bound by the bandwidth of memory, reading prompts by the peak of fused
 * multiply-adds.
 *
 *   decode   one token's query group per lane over lanes that together exceed the caches; bytes are
 *            those of the keys, values and scales that the calls read
 *   prefill  the last 512 tokens of lanes; operations are two per multiply-add of the visible pairs
 *
 * usage: bench_attend [options]; see --help
 */
#include <stdio.h>

#include "base/mem.h"
#include "rig.h"

/* Several times the caches, and more than a share of the last one of big servers: half of 128 MB
   were seen to stay there. */
#define POOL_BYTES ((int64_t)256 << 20)
#define N_HEAD 8
#define CHUNK 512 /* tokens of a prompt read together */
#define MIN_SECONDS 0.4

struct options {
    bool csv;
    int32_t n_group;
    int32_t page_len;
    int32_t n_thread; /* 0: 1 and all */
    const char *cpu;
};

static const struct option option_table[] = {
    RIG_CSV(csv),
    RIG_INT("--group", n_group, 1, 128, "query heads that share a KV head"),
    RIG_INT("--page", page_len, 16, 64, "entries of a page"),
    RIG_INT("--threads", n_thread, 0, 1024, "0: 1 and all"),
    RIG_CPU(cpu),
    {0},
};

struct bench {
    struct kv_geometry g;
    struct kv_cache *cache;
    struct kv_seq *seq;
    int32_t depth;
    int32_t n_group;
    int32_t tile;
    int32_t n_tile; /* 0: decode */
    int32_t n_lane; /* used by a round */
    float *q;       /* [CHUNK][n_group][dim_k] */
    float *out;     /* [n_thread][CHUNK][n_group][dim_v] */
    size_t scratch_size;
    uint8_t *scratch; /* [n_thread][scratch_size] */
};

/* As many layers as the pool takes, each lane `depth` entries long. */
static void bench_open(struct bench *b, enum kv_type type, int32_t dim, int32_t depth,
                       const struct options *o)
{
    *b = (struct bench){.depth = depth, .n_group = o->n_group};
    b->g = lanes_shape_of(POOL_BYTES, depth, lanes_shape(N_HEAD, dim, o->page_len, type));
    int32_t n_thread = pi_thread_count();
    b->tile = (int32_t)pi_min(kv_attend_tile(&b->g, b->n_group), CHUNK);
    b->scratch_size = pi_align(kv_attend_scratch_bytes(&b->g, b->tile * b->n_group), 64);
    b->scratch = memory((size_t)n_thread * b->scratch_size);
    size_t row = (size_t)b->n_group * (size_t)dim;
    b->q = memory(CHUNK * row * sizeof(float));
    b->out = memory((size_t)n_thread * CHUNK * row * sizeof(float));
    fill_random(b->q, CHUNK * row, 1);
    lanes_open(&b->g, depth, &b->cache, &b->seq);
}

static void bench_close(struct bench *b)
{
    kv_seq_free(b->seq);
    kv_cache_free(b->cache);
    pi_mem_free(b->q);
    pi_mem_free(b->out);
    pi_mem_free(b->scratch);
}

/* One lane of a decode round, or one tile of a lane of a prefill round. */
static void attend_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct bench *b = ctx;
    for (int64_t at = begin; at < end; at++) {
        int32_t lane = (int32_t)(b->n_tile == 0 ? at : at / b->n_tile);
        int32_t t = b->n_tile == 0 ? CHUNK - 1 : (int32_t)(at % b->n_tile) * b->tile;
        size_t row = (size_t)b->n_group * (size_t)b->g.dim_k;
        struct kv_attend_job job = {
            .seq = b->seq,
            .layer = lane / N_HEAD,
            .head = lane % N_HEAD,
            .n_tok = (int32_t)pi_min(b->tile, CHUNK - t),
            .n_group = b->n_group,
            .pos0 = b->depth - CHUNK + t,
            .q = b->q + (size_t)t * row,
            .q_stride = row,
            .scale = 0.1f,
            .out = b->out + (size_t)thread * CHUNK * row,
            .out_stride = row,
        };
        kv_attend(&job, b->scratch + (size_t)thread * b->scratch_size);
    }
}

static double round_seconds(struct bench *b, int32_t n_lane, int32_t n_thread)
{
    int64_t n_item = (int64_t)n_lane * (b->n_tile == 0 ? 1 : b->n_tile);
    return best_round(MIN_SECONDS, n_thread, n_item, attend_items, b);
}

static double decode_bytes_per_s(struct bench *b, int32_t n_thread)
{
    int32_t n_lane = b->g.n_layer * N_HEAD;
    double bytes = kv_type_bits(b->g.type_k, b->g.dim_k) / 8 * b->g.dim_k +
                   kv_type_bits(b->g.type_v, b->g.dim_v) / 8 * b->g.dim_v;
    b->n_tile = 0;
    return bytes * b->depth * n_lane / round_seconds(b, n_lane, n_thread);
}

static double prefill_flop_per_s(struct bench *b, int32_t n_thread)
{
    int32_t n_lane = n_thread; /* a short round has a better chance of an undisturbed processor */
    n_lane = n_lane < b->g.n_layer * N_HEAD ? n_lane : b->g.n_layer * N_HEAD;
    double pairs = (double)CHUNK * (b->depth - CHUNK) + 0.5 * CHUNK * (CHUNK + 1);
    double flop = 2.0 * (b->g.dim_k + b->g.dim_v) * pairs * b->n_group * n_lane;
    b->n_tile = (int32_t)pi_ceil_div(CHUNK, b->tile);
    return flop / round_seconds(b, n_lane, n_thread);
}

static void print_row(const struct options *o, const struct bench *b, const pith_machine *m,
                      double bytes, double flop)
{
    const char *format =
        o->csv ? "%d,%s,%d,%d,%d,%d,%.2f,%.2f,%.0f,%.1f,%.1f,%.0f\n"
               : "%7d  %-5s %4d %6d %6d %5d  %8.2f %8.2f %4.0f%%  %9.1f %9.1f %4.0f%%\n";
    printf(format, m->n_thread, kv_type_name(b->g.type_k), b->g.dim_k, b->depth, b->n_group,
           b->g.page_len, bytes / 1e9, m->read_bytes_per_s / 1e9, 100 * bytes / m->read_bytes_per_s,
           flop / 1e9, m->f32_flop_per_s / 1e9, 100 * flop / m->f32_flop_per_s);
    fflush(stdout);
}

static void run(const struct options *o, const pith_machine *machine, int32_t n_machine)
{
    static const int32_t dims[] = {64, 128}, depths[] = {512, 4096, 16384};
    static const enum kv_type types[] = {KV_TYPE_F16, KV_TYPE_BF16, KV_TYPE_Q8_0};
    for (size_t i = 0; i < PI_LEN(types) * PI_LEN(dims) * PI_LEN(depths); i++) {
        struct bench b;
        bench_open(&b, types[i / PI_LEN(depths) / PI_LEN(dims)],
                   dims[i / PI_LEN(depths) % PI_LEN(dims)], depths[i % PI_LEN(depths)], o);
        for (int32_t j = 0; j < n_machine; j++)
            print_row(o, &b, &machine[j], decode_bytes_per_s(&b, machine[j].n_thread),
                      prefill_flop_per_s(&b, machine[j].n_thread));
        bench_close(&b);
    }
}

int main(int argc, char **argv)
{
    struct options o = {.n_group = 2, .page_len = 64};
    pith_machine machine[2];
    rig_options(argc, argv, option_table, &o);
    int32_t n_machine = machines_of(o.n_thread, machine);
    puts(o.csv ? "threads,type,dim,depth,group,page,decode_GBps,read_GBps,decode_pct,"
                 "prefill_GFLOPps,fma_GFLOPps,prefill_pct"
               : "threads  type   dim  depth  group  page   decode     read         prefill      "
                 "peak\n                                            GB/s     GB/s         GFLOP/s "
                 "  GFLOP/s");
    run(&o, machine, n_machine);
    return 0;
}
