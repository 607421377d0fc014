/*
 * bench_score.c - the TriAttention score beside its bound: keys scored per second, and their bytes
 * against the bandwidth of memory, measured by the same program. Lanes together exceed the caches
 * and are scored one after the other, as a round does.
 *
 * usage: bench_score [options]; see --help
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "policy/keep/rules/options.h"
#include "rig.h"
#include "tensor/rope.h"

#define POOL_BYTES ((int64_t)128 << 20) /* several times the caches */
#define N_HEAD 8
#define DEPTH 2048 /* entries of a lane */
#define WARM 64    /* queries that the centres are made of */
#define MIN_SECONDS 0.5

struct options {
    bool csv;
    int32_t n_group;
    int32_t page_len;
    int32_t n_thread;
    const char *keep;
    const char *cpu;
};

static const struct option option_table[] = {
    RIG_CSV(csv),
    RIG_INT("--group", n_group, 1, 128, "query heads that share a KV head"),
    RIG_INT("--page", page_len, 16, 64, "entries of a page"),
    RIG_INT("--threads", n_thread, 1, 1024, "at once"),
    RIG_TEXT("--keep", "OPTIONS", keep, "none", "of the policy"),
    RIG_CPU(cpu),
    {0},
};

struct bench {
    struct policy_model model;
    struct pi_rope rope;
    struct keep_config config;
    struct keep_view view;
    struct kv_cache *cache;
    struct kv_seq *seq;
    void *data;
    size_t scratch_size;
    uint8_t *scratch; /* [n_thread][scratch_size] */
    float *score;     /* [n_thread][DEPTH] */
    double *best;     /* [n_lane] seconds of a lane at its fastest */
    bool *evictable;  /* [DEPTH] */
    int32_t *pos;     /* [DEPTH] */
};

/* Centres of all heads from random queries. */
static void learn(struct bench *b)
{
    const struct keep_policy *p = b->config.policy;
    size_t n = (size_t)WARM * (size_t)(N_HEAD * b->model.n_group * b->model.g.dim_k);
    float *q = memory(n * sizeof(*q));
    struct pi_pass_item item = {.n_tok = WARM};
    struct pi_pass_tap_rows rows = {.item = &item, .q_pre = q};
    for (; rows.layer < b->model.g.n_layer; rows.layer++) {
        fill_random(q, n, (uint32_t)rows.layer + 9);
        p->observe(&b->config.params, &b->view, &rows);
    }
    p->begin(&b->config.params, &b->view);
    pi_mem_free(q);
}

static void bench_open(struct bench *b, enum kv_type type, int32_t dim, const struct options *o)
{
    pith_error err = {0};
    struct kv_geometry g =
        lanes_shape_of(POOL_BYTES, DEPTH, lanes_shape(N_HEAD, dim, o->page_len, type));
    *b = (struct bench){.rope = {.n_pair = dim / 2, .magnitude = 1.0f}};
    b->rope.freq = memory((size_t)b->rope.n_pair * sizeof(double));
    for (int32_t f = 0; f < b->rope.n_pair; f++)
        b->rope.freq[f] = 1.0 / (1.0 + 37.0 * f);
    b->model =
        (struct policy_model){.g = g, .n_group = o->n_group, .scale = 1.0f, .rope = &b->rope};
    check(keep_config_set(&keep_triattention, o->keep, &b->config, &err), &err);
    check(keep_triattention.open(&b->config.params, &b->model, &b->data, &err), &err);
    lanes_open(&g, DEPTH, &b->cache, &b->seq);
    size_t state = keep_triattention.state_size(&b->config.params, &b->model, b->data);
    b->view = (struct keep_view){.kv = b->seq,
                                 .n_token = DEPTH,
                                 .state = memory(state + 1),
                                 .model = &b->model,
                                 .data = b->data};
    if (state > 0)
        learn(b);
    b->scratch_size =
        pi_align(keep_triattention.scratch_size(&b->config.params, &b->model, b->data, DEPTH), 64);
    b->scratch = memory((size_t)o->n_thread * b->scratch_size);
    b->score = memory((size_t)o->n_thread * DEPTH * sizeof(float));
    b->evictable = memory(DEPTH);
    b->pos = memory(DEPTH * sizeof(int32_t));
    b->best = memory((size_t)(g.n_layer * N_HEAD) * sizeof(double));
    memset(b->evictable, 1, DEPTH);
    for (int32_t i = 0; i < DEPTH; i++)
        b->pos[i] = i;
}

static void bench_close(struct bench *b)
{
    keep_triattention.close(b->data);
    kv_seq_free(b->seq);
    kv_cache_free(b->cache);
    pi_mem_free(b->rope.freq);
    pi_mem_free(b->view.state);
    pi_mem_free(b->scratch);
    pi_mem_free(b->score);
    pi_mem_free(b->evictable);
    pi_mem_free(b->pos);
    pi_mem_free(b->best);
}

static void score_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct bench *b = ctx;
    for (int64_t at = begin; at < end; at++) {
        double start = pi_time_s();
        struct keep_lane lane = {.layer = (int32_t)at / N_HEAD,
                                 .head = (int32_t)at % N_HEAD,
                                 .n = DEPTH,
                                 .pos = b->pos,
                                 .evictable = b->evictable,
                                 .n_evictable = DEPTH,
                                 .scratch = b->scratch + (size_t)thread * b->scratch_size};
        keep_triattention.score(&b->config.params, &b->view, &lane,
                                b->score + (size_t)thread * DEPTH);
        double took = pi_time_s() - start;
        b->best[at] = took < b->best[at] ? took : b->best[at];
    }
}

/* Keys per second, every lane at its fastest of several rounds. A lane takes a millisecond, which
   other processes seldom interrupt; they do interrupt a round. */
static double keys_per_s(struct bench *b, int32_t n_thread)
{
    int64_t n_lane = (int64_t)b->model.g.n_layer * N_HEAD;
    double sum = 0.0, start = pi_time_s();
    for (int64_t i = 0; i < n_lane; i++)
        b->best[i] = 1e30;
    do
        pi_parallel_items(n_thread, n_lane, score_lanes, b);
    while (pi_time_s() - start < MIN_SECONDS);
    for (int64_t i = 0; i < n_lane; i++)
        sum += b->best[i];
    return n_thread * (double)(n_lane * DEPTH) / sum;
}

static void run(const struct options *o, const pith_machine *m)
{
    static const int32_t dims[] = {64, 128};
    static const enum kv_type types[] = {KV_TYPE_F16, KV_TYPE_Q8_0};
    static const double bits[KV_N_TYPE] = {32, 16, 8.5};
    for (size_t i = 0; i < PI_LEN(types) * PI_LEN(dims); i++) {
        enum kv_type type = types[i / PI_LEN(dims)];
        int32_t dim = dims[i % PI_LEN(dims)];
        struct bench b;
        bench_open(&b, type, dim, o);
        double keys = keys_per_s(&b, o->n_thread), bytes = keys * bits[type] / 8 * dim;
        printf(o->csv ? "%d,%s,%d,%d,%d,%.2f,%.2f,%.2f,%.0f\n"
                      : "%7d  %-5s %4d %6d %5d  %9.2f %8.2f %8.2f %4.0f%%\n",
               o->n_thread, kv_type_name(type), dim, o->n_group, o->page_len, keys / 1e6,
               bytes / 1e9, m->read_bytes_per_s / 1e9, 100 * bytes / m->read_bytes_per_s);
        fflush(stdout);
        bench_close(&b);
    }
}

int main(int argc, char **argv)
{
    struct options o = {.n_group = 2, .page_len = 64, .n_thread = 1};
    rig_options(argc, argv, option_table, &o);
    pith_machine machine = machine_of(o.n_thread);
    puts(o.csv ? "threads,type,dim,group,page,score_Mkeysps,score_GBps,read_GBps,score_pct"
               : "threads  type   dim  group  page   scored           read\n"
                 "                                  M keys/s     GB/s     GB/s");
    run(&o, &machine);
    return 0;
}
