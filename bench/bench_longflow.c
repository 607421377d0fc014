/*
 * bench_longflow.c - the time that choosing a victim adds to attention. It runs LongFlow's fused
 * step through the calls that the engine makes, between attention alone and two passes over the
 * same entries.
 *
 *   plain  kv_attend of one token's query group over every lane
 *   fused  the same with its weights handed on, the policy's step, and for each layer the choice:
 *          keys and values are read once, norms of values stand beside the entries
 *   two    attention; then keys are read again for the weights, and values again for their norms,
 *          as the kernel does that the authors ship (triton_kernel/attention.py). It is made of the
 *          same kernels, sums up a value once for all heads of its group and adds without atomics,
 *          so that what is slow about it is the second reading
 *
 * on lanes that together exceed the caches, and on one that stays in them. The three take turns
 * over all lanes. The time is the sum over the layers of the median over turns: a layer takes less
 * than a millisecond, which other processes seldom interrupt. Bytes are the bytes that plain must
 * read; the bound is the bandwidth of memory, measured by the same program.
 *
 * usage: bench_longflow [options]; see --help
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "base/mem.h"
#include "base/os.h"
#include "cpu/kernels.h"
#include "policy/keep/rules/keep.h"
#include "rig.h"

/* Several times the caches, and more than a share of the last one of big servers: half of 128 MB
   were seen to stay there. */
#define POOL_BYTES ((int64_t)256 << 20)
#define N_HEAD 8 /* lanes of a layer, which decide together */
#define MAX_ROUND 101
#define MIN_SECONDS                                                                                \
    2e-4                /* of a layer in a turn: a lane in the cache takes less, and is repeated   \
                         */
#define N_SUM 16        /* partial sums of a norm */
#define GOAL_PLAIN 1.05 /* fused / plain, at most */
#define GOAL_TWO 1.5    /* two / fused, at least */

enum way { PLAIN, FUSED, TWO, N_WAY };

struct options {
    bool csv;
    int32_t n_thread; /* 0: 1 and all */
    int32_t n_round;
    const char *lanes; /* one, many or both */
    const char *keep;  /* options of the policy beyond its budget */
    const char *cpu;
};

static const char *const lane_choices[] = {"one", "many", "both", NULL};

static const struct option option_table[] = {
    RIG_INT("--threads", n_thread, 0, 1024, "0: 1 and all"),
    RIG_INT("--rounds", n_round, 1, MAX_ROUND, "turns of each way"),
    {"--lanes", NULL, "WHICH", OPTION_CHOICE, offsetof(struct options, lanes),
     .choices = lane_choices, .help = "which are measured", .env = ""},
    RIG_TEXT("--keep", "KEYS", keep, "none", "of the policy beyond its budget"),
    RIG_CPU(cpu),
    RIG_CSV(csv),
    {0},
};

/* The buffers of one thread. */
struct worker {
    void *scratch; /* of kv_attend */
    float *out;    /* [n_group][dim] */
    float *weight; /* [n_group][stride] */
    struct kv_weight_parts parts;
    float *max;     /* [n_group] */
    float *sum;     /* [n_group] */
    float *factor;  /* [n_group] of TWO, like all that follow */
    float *value;   /* [page_len][dim] */
    uint16_t *norm; /* [stride], bf16 */
    float *row;     /* [stride] scores of a lane */
    float *score;   /* [stride] of a layer */
    int32_t *pos;   /* [stride] */
};

struct bench {
    struct policy_model model;
    struct keep_config config;
    struct keep *keep;
    struct kv_cache *cache;
    struct kv_seq *seq;
    struct keep_view view;
    int32_t n; /* entries of a lane, its budget */
    size_t stride;
    float *q; /* [n_head][n_group][dim] */
    int32_t n_thread;
    struct worker *worker; /* [n_thread] */
    int32_t *victim;       /* [n_layer] of TWO */
    int32_t n_repeat;
    double *seconds; /* [N_WAY][n_layer][MAX_ROUND] of a layer on its thread */
};

/* One place's figures. */
struct figures {
    double seconds[N_WAY]; /* of all lanes: the sum of their layers' medians over threads */
    double to_plain;       /* fused / plain */
    double to_two;         /* two / fused */
};

/* ---- the three ways, of one layer ---- */

static struct kv_attend_job job_of(const struct bench *b, int32_t layer, int32_t head,
                                   struct worker *w, struct kv_attend_tap *tap)
{
    size_t row = (size_t)b->model.n_group * (size_t)b->model.g.dim_k;
    return (struct kv_attend_job){
        .seq = b->seq,
        .layer = layer,
        .head = head,
        .n_tok = 1,
        .n_group = b->model.n_group,
        .pos0 = b->n - 1,
        .q = b->q + (size_t)head * row,
        .q_stride = row,
        .scale = b->model.scale,
        .out = w->out,
        .out_stride = row,
        .tap = tap,
    };
}

static void attend_plain(struct bench *b, int32_t layer, int32_t thread)
{
    for (int32_t h = 0; h < b->model.g.n_head; h++) {
        struct kv_attend_job job = job_of(b, layer, h, &b->worker[thread], NULL);
        kv_attend(&job, b->worker[thread].scratch);
    }
}

static void attend_fused(struct bench *b, int32_t layer, int32_t thread)
{
    struct worker *w = &b->worker[thread];
    struct kv_attend_tap tap = {
        .weight = w->weight, .row_stride = b->stride, .max = w->max, .sum = w->sum};
    for (int32_t h = 0; h < b->model.g.n_head; h++) {
        struct kv_attend_job job = job_of(b, layer, h, w, &tap);
        struct pi_pass_watched lane = {.layer = layer, .head = h, .slot = b->n - 1};
        keep_plan_lane(b->keep, &b->view, thread, &lane);
        tap.parts = lane.rows ? NULL : &w->parts;
        job.notes = lane.note;
        job.n_note = lane.n_note;
        kv_attend(&job, w->scratch);
        if (!lane.rows)
            continue;
        struct keep_attention a = {
            .layer = layer,
            .head = h,
            .n = b->n,
            .pos = b->n - 1,
            .n_group = b->model.n_group,
            .weight = w->weight,
            .stride = b->stride,
            .out = w->out,
            .slot = b->n - 1,
        };
        keep_attended(b->keep, &b->view, &a, thread, thread);
    }
    keep_choose_victims(b->keep, b->seq, &b->view, layer, thread, false);
}

/* The L1 norm of a value; several sums, so that a compiler can keep them side by side. */
static float norm_of(const float *v, int32_t dim)
{
    float part[N_SUM] = {0}, sum = 0.0f;
    for (int32_t d = 0; d < dim; d += N_SUM)
        for (int32_t i = 0; i < N_SUM; i++)
            part[i] += fabsf(v[d + i]);
    for (int32_t i = 0; i < N_SUM; i++)
        sum += part[i];
    return sum;
}

/* w->row = the scores of a lane, whose keys and values are read for them. */
static void score_again(struct bench *b, int32_t layer, int32_t head, struct worker *w)
{
    struct kv_attend_tap tap = {.weight = w->weight, .row_stride = b->stride};
    struct kv_attend_job job = job_of(b, layer, head, w, &tap);
    int32_t dim = b->model.g.dim_v, n_run = kv_lane_runs(b->seq, layer, head);
    job.out = NULL;
    kv_attend(&job, w->scratch);
    for (int32_t r = 0; r < n_run; r++) {
        struct kv_run run = kv_lane_run(b->seq, layer, head, r);
        kv_lane_run_values(b->seq, layer, head, r, w->value);
        for (int32_t j = 0; j < run.n; j++)
            w->norm[run.slot + j] =
                pi_bf16_from_f32(norm_of(w->value + (size_t)j * (size_t)dim, dim));
    }
    struct pi_vec_weigh weigh = {.w = w->weight,
                                 .stride = b->stride,
                                 .n_row = b->model.n_group,
                                 .c = w->factor,
                                 .end = &b->n,
                                 .n_part = 1,
                                 .factor = w->norm,
                                 .out = w->row};
    pi_kernels()->vec.weigh(&weigh);
}

static void attend_two(struct bench *b, int32_t layer, int32_t thread)
{
    struct worker *w = &b->worker[thread];
    for (int32_t h = 0; h < b->model.g.n_head; h++) {
        struct kv_attend_job job = job_of(b, layer, h, w, NULL);
        kv_attend(&job, w->scratch);
        score_again(b, layer, h, w);
        if (h == 0)
            memcpy(w->score, w->row, (size_t)b->n * sizeof(float));
        else
            pi_kernels()->vec.add(w->score, w->row, b->n);
    }
    kv_lane_positions(b->seq, layer, 0, w->pos, b->n);
    b->victim[layer] = pi_kernels()->vec.lowest(w->score, w->pos, b->n, 0, b->n);
}

struct turn {
    struct bench *b;
    void (*attend)(struct bench *b, int32_t layer, int32_t thread);
    double *seconds; /* [n_layer][MAX_ROUND] from the turn's column on; NULL: not wanted */
};

static void attend_layers(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct turn *t = ctx;
    for (int64_t l = begin; l < end; l++) {
        double start = pi_time_s();
        for (int32_t i = 0; i < t->b->n_repeat; i++)
            t->attend(t->b, (int32_t)l, thread);
        if (t->seconds != NULL)
            t->seconds[l * MAX_ROUND] = (pi_time_s() - start) / t->b->n_repeat;
    }
}

/* One way over all lanes, as the round-th turn; -1: none that counts. */
static void run_turn(struct bench *b, enum way way, int32_t round)
{
    static void (*const ways[N_WAY])(struct bench *, int32_t, int32_t) = {
        [PLAIN] = attend_plain, [FUSED] = attend_fused, [TWO] = attend_two};
    struct turn t = {b, ways[way], NULL};
    if (round >= 0)
        t.seconds = b->seconds + (size_t)way * (size_t)b->model.g.n_layer * MAX_ROUND + round;
    pi_parallel_items(b->n_thread, b->model.g.n_layer, attend_layers, &t);
}

/* Both ways must agree on whom to drop, or one of them does not do the work. Sums are taken in
   different orders, so that equal scores may differ in their last bits. */
static void compare_victims(const struct bench *b)
{
    int32_t n_same = 0, n_layer = b->model.g.n_layer;
    for (int32_t l = 0; l < n_layer; l++)
        n_same += b->victim[l] == kv_lane_victim(b->seq, l, 0);
    if (2 * n_same < n_layer)
        stop(&(pith_error){.message = "the fused pass and two passes choose different victims"});
}

/* ---- lanes ---- */

static void worker_open(struct worker *w, const struct bench *b)
{
    size_t n_group = (size_t)b->model.n_group, dim = (size_t)b->model.g.dim_k;
    w->scratch = memory(kv_attend_scratch_bytes(&b->model.g, b->model.n_group));
    w->out = memory(n_group * dim * sizeof(float));
    w->weight = memory(n_group * b->stride * sizeof(float));
    w->parts.room = (int32_t)pi_ceil_div(b->n, b->model.g.page_len);
    w->parts.end = memory((size_t)w->parts.room * sizeof(int32_t));
    w->parts.factor = memory((size_t)w->parts.room * n_group * sizeof(float));
    w->max = memory(n_group * sizeof(float));
    w->sum = memory(n_group * sizeof(float));
    w->factor = memory(n_group * sizeof(float));
    w->value = memory((size_t)b->model.g.page_len * dim * sizeof(float));
    w->norm = memory(b->stride * sizeof(*w->norm));
    w->row = memory(b->stride * sizeof(float));
    w->score = memory(b->stride * sizeof(float));
    w->pos = memory(b->stride * sizeof(int32_t));
    for (size_t i = 0; i < n_group; i++)
        w->factor[i] = 1.0f / (float)n_group;
}

static void worker_close(struct worker *w)
{
    void *parts[] = {w->parts.end, w->parts.factor, w->scratch, w->out, w->weight, w->max, w->sum,
                     w->factor,    w->value,        w->norm,    w->row, w->score,  w->pos};
    for (size_t i = 0; i < PI_LEN(parts); i++)
        pi_mem_free(parts[i]);
}

static void bench_open(struct bench *b, struct kv_geometry g, int32_t n_group, int32_t n,
                       int32_t n_thread, const char *options)
{
    pith_error err = {0};
    char text[512];
    *b = (struct bench){.n = n, .stride = (size_t)n + 16, .n_thread = n_thread};
    b->model =
        (struct policy_model){.g = g, .n_group = n_group, .scale = 1.0f / sqrtf((float)g.dim_k)};
    snprintf(text, sizeof(text), "longflow:budget=%d%s%s", n, options != NULL ? "," : "",
             options != NULL ? options : "");
    check(keep_config_parse(text, &b->config, &err), &err);
    check(keep_config_fit(&b->config, &g, &err), &err);
    check(keep_create(&b->config, &b->model, n_thread, &b->keep, &err), &err);
    check(kv_cache_create(&g, kv_bytes_for_tokens(&g, n), &b->cache, &err), &err);
    kv_cache_set_marks(b->cache, keep_n_mark(b->keep), true);
    check(kv_seq_create(b->cache, &b->seq, &err), &err);
    check(keep_steps_reserve(b->keep, n_thread, n, false, &err), &err);
    lanes_fill(b->seq, &g, n);
    b->view = (struct keep_view){.kv = b->seq, .n_token = n};
    b->view.state = memory(keep_state_size(b->keep) + 1);
    size_t n_q = (size_t)g.n_head * (size_t)n_group * (size_t)g.dim_k;
    b->q = memory(n_q * sizeof(float));
    fill_random(b->q, n_q, 1);
    b->victim = memory((size_t)g.n_layer * sizeof(int32_t));
    b->seconds = memory(sizeof(double) * N_WAY * (size_t)g.n_layer * MAX_ROUND);
    b->n_repeat = 1;
    b->worker = memory((size_t)n_thread * sizeof(*b->worker));
    for (int32_t i = 0; i < n_thread; i++)
        worker_open(&b->worker[i], b);
}

static void bench_close(struct bench *b)
{
    for (int32_t i = 0; i < b->n_thread; i++)
        worker_close(&b->worker[i]);
    pi_mem_free(b->worker);
    pi_mem_free(b->seconds);
    pi_mem_free(b->victim);
    pi_mem_free(b->q);
    pi_mem_free(b->view.state);
    kv_seq_free(b->seq);
    kv_cache_free(b->cache);
    keep_free(b->keep);
}

/* ---- figures ---- */

static double seconds_of(const struct bench *b, enum way way, int32_t n_round)
{
    double sum = 0.0;
    for (int32_t l = 0; l < b->model.g.n_layer; l++)
        sum += median_of(b->seconds +
                             ((size_t)way * (size_t)b->model.g.n_layer + (size_t)l) * MAX_ROUND,
                         n_round);
    return sum / b->n_thread;
}

/* n_round turns of each way. In every one another goes first, and one that is not counted is
   before all. */
static struct figures measure(struct bench *b, int32_t n_round)
{
    struct figures f;
    double once = 1e30;
    for (int32_t i = 0; i < 3; i++) {
        double start = pi_time_s();
        run_turn(b, PLAIN, -1);
        once = fmin(once, (pi_time_s() - start) / b->model.g.n_layer);
    }
    if (once < MIN_SECONDS && b->model.g.n_layer == 1)
        b->n_repeat = (int32_t)(MIN_SECONDS / once) + 1;
    run_turn(b, FUSED, -1);
    run_turn(b, TWO, -1);
    compare_victims(b);
    for (int32_t r = 0; r < n_round; r++)
        for (int32_t i = 0; i < N_WAY; i++)
            run_turn(b, (enum way)((r + i) % N_WAY), r);
    for (int32_t way = 0; way < N_WAY; way++)
        f.seconds[way] = seconds_of(b, (enum way)way, n_round);
    f.to_plain = f.seconds[FUSED] / f.seconds[PLAIN];
    f.to_two = f.seconds[TWO] / f.seconds[FUSED];
    return f;
}

/* The rows furthest from the goals, and how many rows met both goals. */
struct summary {
    double most_to_plain;
    double least_to_two;
    int32_t n_row;
    int32_t n_plain;
    int32_t n_two;
};

static void print_row(const struct options *o, const struct bench *b, const pith_machine *m,
                      const struct figures *f)
{
    static const double bits[KV_N_TYPE] = {32, 16, 8.5};
    const struct kv_geometry *g = &b->model.g;
    bool cached = g->n_head == 1;
    double n_lane = (double)g->n_layer * g->n_head, us = 1e6 / n_lane;
    double bytes = n_lane * b->n * (2.0 * bits[g->type_k] / 8.0 * g->dim_k + sizeof(int32_t));
    double plain = bytes / f->seconds[PLAIN] * 1e-9, fused = bytes / f->seconds[FUSED] * 1e-9;
    double bound = cached ? NAN : m->read_bytes_per_s * 1e-9;
    const char *format =
        o->csv ? "%d,%s,%s,%d,%d,%d,%.2f,%.2f,%.2f,%.3f,%.3f,%.2f,%.2f,%.2f\n"
               : "%7d  %-6s %-5s %4d %6d %6d %9.1f %9.1f %9.1f %12.3f %12.2f %7.1f %7.1f %7.1f\n";
    printf(format, b->n_thread, cached ? "one" : "many", kv_type_name(g->type_k), g->dim_k,
           b->model.n_group, b->n, us * f->seconds[PLAIN], us * f->seconds[FUSED],
           us * f->seconds[TWO], f->to_plain, f->to_two, plain, fused, bound);
    fflush(stdout);
}

static void add_row(struct summary *s, const struct figures *f)
{
    s->most_to_plain = f->to_plain > s->most_to_plain ? f->to_plain : s->most_to_plain;
    s->least_to_two = f->to_two < s->least_to_two ? f->to_two : s->least_to_two;
    s->n_plain += f->to_plain <= GOAL_PLAIN;
    s->n_two += f->to_two >= GOAL_TWO;
    s->n_row++;
}

static void run(const struct options *o, const pith_machine *m, bool cached)
{
    static const int32_t dims[] = {64, 128}, groups[] = {2, 4}, budgets[] = {512, 1024, 2048, 4096};
    static const enum kv_type types[] = {KV_TYPE_F16, KV_TYPE_Q8_0};
    struct summary s = {.least_to_two = INFINITY};
    size_t n_place = PI_LEN(dims) * PI_LEN(groups) * PI_LEN(budgets) * PI_LEN(types);
    for (size_t i = 0; i < n_place; i++) {
        int32_t n = budgets[i % PI_LEN(budgets)];
        int32_t n_group = groups[i / PI_LEN(budgets) % PI_LEN(groups)];
        int32_t dim = dims[i / PI_LEN(budgets) / PI_LEN(groups) % PI_LEN(dims)];
        enum kv_type type = types[i / PI_LEN(budgets) / PI_LEN(groups) / PI_LEN(dims)];
        struct kv_geometry g = lanes_shape(cached ? 1 : N_HEAD, dim, 64, type);
        if (!cached)
            g = lanes_shape_of(POOL_BYTES, n, g);
        struct bench b;
        bench_open(&b, g, n_group, n, cached ? 1 : m->n_thread, o->keep);
        struct figures f = measure(&b, o->n_round);
        print_row(o, &b, m, &f);
        add_row(&s, &f);
        bench_close(&b);
    }
    if (!o->csv)
        printf("%s, %d threads: fused / plain at most %.3f, goal %.2f, %d of %d rows; two / fused "
               "at least %.2f, goal %.1f, %d of %d rows\n",
               cached ? "one lane" : "many lanes", cached ? 1 : m->n_thread, s.most_to_plain,
               GOAL_PLAIN, s.n_plain, s.n_row, s.least_to_two, GOAL_TWO, s.n_two, s.n_row);
}

int main(int argc, char **argv)
{
    struct options o = {.n_round = 11, .lanes = "both"};
    pith_machine machine[2];
    rig_options(argc, argv, option_table, &o);
    int32_t n_machine = machines_of(o.n_thread, machine);
    puts(o.csv ? "threads,lanes,type,dim,group,entries,plain_us,fused_us,two_us,fused_to_plain,"
                 "two_to_fused,plain_GBps,fused_GBps,read_GBps"
               : "threads  lanes  type   dim  group      B     plain     fused       two  "
                 "fused / plain  two / fused   plain   fused    read\n"
                 "                                             us/lane   us/lane   us/lane"
                 "                               GB/s    GB/s    GB/s");
    if (strcmp(o.lanes, "many") != 0)
        run(&o, &machine[0], true);
    for (int32_t i = 0; i < n_machine && strcmp(o.lanes, "one") != 0; i++)
        run(&o, &machine[i], false);
    return 0;
}
