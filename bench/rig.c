/* rig.c - see rig.h. Command lines are read and explained by the command's own cli/options.c. */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "options.h"

static const char *program = "bench"; /* its name, for sentences */

/* ---- options ---- */

static void check_threads(const struct option *o, const void *field)
{
    const struct option_ints *list = field;
    const int32_t *n = o->type == OPTION_INT ? field : list->value;
    for (int32_t i = 0; i < (o->type == OPTION_INT ? 1 : list->n); i++)
        if (n[i] > pi_thread_count())
            rig_usage("--threads: more than the processors");
}

void rig_options(int argc, char **argv, const struct option *table, void *options)
{
    const struct option_group groups[] = {{.options = table}, {0}};
    const char *slash = strrchr(argv[0], '/');
    struct option_taken taken;
    struct option_error wrong;
    pith_error err = {0};
    bool help;
    program = slash != NULL ? slash + 1 : argv[0];
    if (!options_parse(groups, options, argc - 1, argv + 1, &help, &taken, &wrong))
        rig_usage(wrong.message);
    if (help) {
        printf("usage: %s [options]\n", program);
        options_print(groups, options);
        exit(EXIT_SUCCESS);
    }
    for (const struct option *o = table; o->name != NULL; o++) {
        const void *field = (const char *)options + o->offset;
        const char *level = strcmp(o->name, "--cpu") == 0 ? *(const char *const *)field : NULL;
        if (level != NULL)
            check(pith_cpu_level_set(level, &err), &err);
        if (strcmp(o->name, "--threads") == 0)
            check_threads(o, field);
    }
}

void rig_usage(const char *sentence)
{
    fprintf(stderr, "%s: %s; --help lists the options\n", program, sentence);
    exit(2);
}

bool rig_wants(const char *names, const char *name)
{
    return names == NULL || strstr(names, name) != NULL;
}

/* ---- failures ---- */

void stop(const pith_error *err)
{
    fprintf(stderr, "%s: %s\n", program, err->message);
    exit(EXIT_FAILURE);
}

void check(pith_status status, const pith_error *err)
{
    if (status != PITH_OK)
        stop(err);
}

void *memory(size_t size)
{
    void *block = pi_mem_alloc(PI_MEM_OTHER, size);
    if (block == NULL)
        stop(&(pith_error){.message = "no memory"});
    return block;
}

/* ---- figures ---- */

void add(struct samples *s, double value)
{
    if (s->n == MAX_SAMPLE)
        stop(&(pith_error){.message = "more measurements than there is room for"});
    s->value[s->n++] = value;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median_of(const double *values, int32_t n)
{
    if (n == 0)
        return NAN;
    double *sorted = memory((size_t)n * sizeof(*sorted));
    memcpy(sorted, values, (size_t)n * sizeof(*sorted));
    qsort(sorted, (size_t)n, sizeof(*sorted), ascending);
    double middle = 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]);
    pi_mem_free(sorted);
    return middle;
}

double median(const struct samples *s)
{
    return median_of(s->value, s->n);
}

double best_round(double seconds, int32_t n_thread, int64_t n_item, pi_job_fn *fn, void *ctx)
{
    double best = INFINITY, until = pi_time_s() + seconds;
    for (int32_t round = 0; round < 3 || pi_time_s() < until; round++) {
        double start = pi_time_s();
        pi_parallel_items(n_thread, n_item, fn, ctx);
        best = fmin(best, pi_time_s() - start);
    }
    return best;
}

/* ---- the machine ---- */

pith_machine machine_of(int32_t n_thread)
{
    pith_error err = {0};
    pith_machine machine;
    check(pith_machine_measure(n_thread, &machine, &err), &err);
    return machine;
}

int32_t machines_of(int32_t n_thread, pith_machine out[2])
{
    int32_t n = n_thread == 0 && pi_thread_count() > 1 ? 2 : 1;
    out[0] = machine_of(n_thread == 0 ? 1 : n_thread);
    if (n == 2)
        out[1] = machine_of(0);
    return n;
}

pith_model *load_model(const char *path, int32_t n_thread, pith_model_info *info)
{
    pith_error err = {0};
    pith_model *model;
    pith_model_params params;
    pith_model_params_default(&params);
    params.n_thread = n_thread;
    check(pith_model_load(path, &params, &model, &err), &err);
    pith_model_get_info(model, info);
    return model;
}

double generation_bytes(const pith_model *model)
{
    pith_model_info info;
    pith_tensor_info t;
    double embedding = 0.0, output = 0.0;
    pith_model_get_info(model, &info);
    for (int64_t i = 0; pith_model_tensor(model, i, &t) == PITH_OK; i++) {
        if (strcmp(t.name, "token_embd.weight") == 0)
            embedding = (double)t.bytes;
        if (strcmp(t.name, "output.weight") == 0)
            output = (double)t.bytes;
    }
    return (double)info.weight_bytes - (output > 0.0 ? embedding : 0.0);
}

uint32_t random_u32(uint32_t *seed)
{
    return *seed = *seed * 1664525u + 1013904223u;
}

void fill_random(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(random_u32(&seed) >> 8) * 0x1p-23f - 1.0f;
}

void lanes_fill(struct kv_seq *seq, const struct kv_geometry *g, int32_t n)
{
    enum { N_START = 999983, STEP_K = 7919, STEP_V = 104729 }; /* primes */
    pith_error err = {0};
    size_t dim = (size_t)g->dim_k, n_lane = (size_t)(g->n_layer * g->n_head), chunk = 0;
    float *rows = memory(sizeof(float) * (N_START + APPEND * dim));
    fill_random(rows, N_START + APPEND * dim, 2);
    for (int32_t pos = 0; pos < n; pos += APPEND) {
        check(kv_seq_reserve(seq, APPEND, &err), &err);
        for (size_t i = 0; i < n_lane; i++, chunk++)
            kv_seq_append(seq, (int32_t)i / g->n_head, (int32_t)i % g->n_head, pos, APPEND,
                          rows + chunk * STEP_K % N_START, dim, rows + chunk * STEP_V % N_START,
                          dim);
    }
    pi_mem_free(rows);
}

void lanes_open(const struct kv_geometry *g, int32_t n, struct kv_cache **cache,
                struct kv_seq **seq)
{
    pith_error err = {0};
    check(kv_cache_create(g, kv_bytes_for_tokens(g, n), cache, &err), &err);
    check(kv_seq_create(*cache, seq, &err), &err);
    lanes_fill(*seq, g, n);
}

struct kv_geometry lanes_shape(int32_t n_head, int32_t dim, int32_t page_len, enum kv_type type)
{
    return (struct kv_geometry){.n_layer = 1,
                                .n_head = n_head,
                                .dim_k = dim,
                                .dim_v = dim,
                                .page_len = page_len,
                                .type_k = type,
                                .type_v = type};
}

struct kv_geometry lanes_shape_of(int64_t bytes, int32_t n, struct kv_geometry g)
{
    g.n_layer = (int32_t)pi_max(1, bytes / kv_bytes_for_tokens(&g, n));
    return g;
}
