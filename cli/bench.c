/*
 * bench.c - `pith bench`: speed of reading prompts and of generating at given depths, beside the
 * bounds of the device. Several sequences may generate together.
 *
 * The bounds. Generating a token reads every weight and every stored key and value once, of experts
 * those that it chooses:
 *   tokens/s <= read bandwidth / (weight bytes + KV bytes at that depth)
 * Sequences that generate together read the weights once. Experts that several choose are counted
 * once for each, but no more bytes than there are. All multiply, as a prompt does.
 * Reading n tokens at depth d multiplies every weight with every token, and every query with every
 * key and value before it:
 *   seconds >= 2 * weights * n / peak + 2 * (dim_k + dim_v) * heads * layers * pairs / f32 peak
 *   pairs = n * d + n * (n + 1) / 2, fewer where a keep policy's budget is reached
 * The peak of the first term is that of int8 for quantised weights and of f32 for others. It cannot
 * be faster than reading the weights once per chunk either. Attention over bf16 and coded types can
 * be faster than f32's peak, where the processor has products for it. On a GPU all peaks are that
 * of f16.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "budget.h"
#include "command.h"
#include "session.h"
#include "pith/inspect.h"
#include "pith/policy.h"

struct bench_options {
    struct option_ints prompts;
    int32_t n_generate;
    struct option_ints depths;
    struct option_ints parallel;
    int32_t n_repeat;
    bool no_warm_up;
    const char *format;
};

struct options {
    struct model_options model;
    struct bench_options bench;
    struct memory_options memory;
};

static const char *const formats[] = {"table", "csv", "json", NULL};

#define AT(member) .offset = offsetof(struct bench_options, member)
static const struct option bench_option_table[] = {
    {"--n-prompt", "-p", "N,N", OPTION_INTS, AT(prompts), .max = INT32_MAX,
     .help = "tokens of prompts; 0: measure none"},
    {"--n-gen", "-n", "N", OPTION_INT, AT(n_generate), .max = INT32_MAX,
     .help = "tokens to generate; 0: do not measure it"},
    {"--n-depth", "-d", "N,N", OPTION_INTS, AT(depths), .max = INT32_MAX,
     .help = "tokens that the sequence holds before"},
    {"--parallel", "-np", "N,N", OPTION_INTS, AT(parallel), .min = 1, .max = 4096,
     .help = "sequences that generate together, each with pages of its own"},
    {"--repetitions", "-r", "N", OPTION_INT, AT(n_repeat), .min = 1, .max = 1000,
     .help = "measurements of each"},
    {"--no-warm-up", NULL, NULL, OPTION_FLAG, AT(no_warm_up),
     .help = "do not evaluate everything once before, for prompts of minutes",
     .also = "--no-warmup", .negative = "--warmup"},
    {"--output", "-o", "FORMAT", OPTION_CHOICE, AT(format), .choices = formats,
     .help = "the form of the output"},
    {0},
};
#undef AT

static const struct option_group groups[] = {
    {"Model", model_option_table, offsetof(struct options, model)},
    {"Measurement", bench_option_table, offsetof(struct options, bench)},
    {"KV memory", memory_option_table, offsetof(struct options, memory)},
    LLAMA_GROUP,
    {0},
};

static void defaults(void *options)
{
    struct options *o = options;
    o->bench = (struct bench_options){.prompts = {{512}, 1},
                                      .n_generate = 128,
                                      .depths = {{0}, 1},
                                      .parallel = {{1}, 1},
                                      .n_repeat = 3,
                                      .format = "table"};
    memory_options_default(&o->memory);
}

/* One measured speed. */
struct row {
    const char *test; /* "prompt" or "generate" */
    int32_t n;        /* tokens */
    int32_t depth;
    int32_t n_seq;  /* sequences */
    double entries; /* live in a lane, on average over the row's tokens, at least */
    double sum;     /* of tokens/s, over the repetitions */
    double sum_squares;
    double best;
    double bound;           /* tokens/s */
    double seconds, rounds; /* of all repetitions, and of their keep rounds */
    int64_t disk;           /* bytes read from disks, over the repetitions */
};

struct bench {
    struct options *options;
    struct session s;
    struct row *rows; /* [n_row] */
    int32_t n_row;
    pith_seq **seq; /* [n_seq] the session's, and others of the same engine, owned */
    int32_t n_seq;
    pith_batch_item *item;    /* [n_seq] */
    int32_t *tokens;          /* [most tokens of a sequence] */
    int64_t matmul_weights;   /* weights that a token is multiplied with */
    int64_t generation_bytes; /* weight bytes read per generated token */
    double kv_bytes_per_token;
    int64_t peak_rss;
    int64_t measuring_rss; /* the peak with the buffers that measured the machine */
    int64_t kv_peak;
    pith_machine machine;
};

/* ---- measuring ---- */

/* The same tokens for sequences first .. first + n_seq. */
static void evaluate(struct bench *b, int32_t first, int32_t n_seq, const int32_t *tokens,
                     int32_t n, pith_logits_mode logits)
{
    pith_error err;
    if (n == 0)
        return;
    for (int32_t i = 0; i < n_seq; i++)
        b->item[i] = (pith_batch_item){
            .seq = b->seq[first + i], .tokens = tokens, .n_token = n, .logits = logits};
    session_check(pith_batch_eval(b->s.engine, b->item, n_seq, NULL, NULL, &err), &err);
}

/* Entries that were evicted, or have left a window, do not come back when tokens are forgotten.
   Recurrent layers may have kept no state there. Then all is read again. */
static void go_to_depth(struct bench *b, int32_t i, int32_t depth)
{
    pith_error err;
    pith_keep_stats keep;
    int32_t length = pith_seq_length(b->seq[i]);
    pith_seq_keep_stats(b->seq[i], &keep);
    if (length > depth) {
        length = keep.rounds > 0 ? 0 : depth;
        pith_status status = pith_seq_truncate(b->seq[i], length, &err);
        if (status == PITH_UNSUPPORTED)
            status = pith_seq_truncate(b->seq[i], length = 0, &err);
        cli_check(status, &err);
    }
    evaluate(b, i, 1, b->tokens + length, depth - length, PITH_LOGITS_NONE);
}

/* Sequences of a row stand at its depth, and the others are empty. */
static void set_out(struct bench *b, const struct row *row)
{
    pith_error err;
    for (int32_t i = row->n_seq; i < b->n_seq; i++)
        cli_check(pith_seq_truncate(b->seq[i], 0, &err), &err);
    for (int32_t i = 0; i < row->n_seq; i++)
        go_to_depth(b, i, row->depth);
}

/* The fewest entries of a lane while the row's tokens follow. They are the entries at its depth,
   and one more per token until a keep policy's budget is reached. */
static void count_entries(const struct bench *b, struct row *row)
{
    pith_keep_stats keep;
    pith_seq_keep_stats(b->s.seq, &keep);
    double n = row->n, at_depth = (double)keep.live / keep.n_lane;
    double grows = n;
    if (keep.budget >= 0) {
        at_depth = at_depth < keep.budget ? at_depth : keep.budget;
        grows = keep.budget - at_depth < n ? keep.budget - at_depth : n;
    }
    row->entries = at_depth + (n > 0.0 ? grows * (1.0 - 0.5 * grows / n) : 0.0);
}

static void add_sample(struct row *row, double seconds)
{
    double speed = (double)row->n * row->n_seq / seconds;
    row->seconds += seconds;
    row->sum += speed;
    row->sum_squares += speed * speed;
    if (speed > row->best)
        row->best = speed;
}

/* Seconds of keep rounds so far, of the row's sequences. */
static double rounds_of(const struct bench *b, const struct row *row)
{
    pith_keep_stats keep;
    double seconds = 0.0;
    for (int32_t i = 0; i < row->n_seq; i++) {
        pith_seq_keep_stats(b->seq[i], &keep);
        seconds += keep.seconds;
    }
    return seconds;
}

static void measure_row(struct bench *b, struct row *row)
{
    set_out(b, row);
    count_entries(b, row);
    row->rounds -= rounds_of(b, row);
    const int32_t *tokens = b->tokens + row->depth;
    int64_t disk = disk_bytes();
    double start = clock_s();
    if (strcmp(row->test, "prompt") == 0)
        evaluate(b, 0, 1, tokens, row->n, PITH_LOGITS_LAST);
    else
        for (int32_t i = 0; i < row->n; i++)
            evaluate(b, 0, row->n_seq, tokens + i, 1, PITH_LOGITS_LAST);
    add_sample(row, clock_s() - start);
    row->rounds += rounds_of(b, row);
    row->disk += disk_bytes() - disk;
}

/* Touches the memory that the rows of a depth will use: its first use is the system's work. */
static void warm_up(struct bench *b, const struct row *rows, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        set_out(b, &rows[i]);
        evaluate(b, 0, rows[i].n_seq, b->tokens + rows[i].depth, rows[i].n, PITH_LOGITS_LAST);
    }
}

static bool together(const struct row *a, const struct row *b)
{
    return a->depth == b->depth && a->n_seq == b->n_seq;
}

/* Repetitions go round the rows of a depth, so that a slow moment does not fall on one of them. */
static void measure(struct bench *b)
{
    const struct bench_options *o = &b->options->bench;
    for (int32_t first = 0; first < b->n_row;) {
        int32_t end = first;
        while (end < b->n_row && together(&b->rows[end], &b->rows[first]))
            end++;
        if (!o->no_warm_up)
            warm_up(b, &b->rows[first], end - first);
        for (int32_t r = 0; r < o->n_repeat; r++)
            for (int32_t i = first; i < end; i++) {
                if (cli_interrupted())
                    cli_exit(EXIT_INTERRUPTED);
                measure_row(b, &b->rows[i]);
            }
        first = end;
    }
}

/* ---- bounds ---- */

static bool is_quantised(const char *type)
{
    return type[0] != 'F' && type[0] != 'B'; /* F32, F16, BF16 */
}

/* The embedding is read by row and, where it is not tied, not as a matrix. The output matrix counts
   for generation, but reads one row of a prompt only. */
#define WHOLE_PAGES 64 /* tokens that fill pages of any length */

static void count_work(struct bench *b)
{
    pith_tensor_info t;
    pith_error err;
    int64_t bytes, state;
    pith_engine_params p = engine_params(&b->options->model, &b->options->memory);
    p.keep = NULL; /* of all that is stored, not of the part that stays or is read */
    p.read = NULL;
    p.recall = NULL;
    p.share = NULL;
    for (int64_t i = 0; pith_model_tensor(b->s.model, i, &t) == PITH_OK; i++) {
        bool embedding = strcmp(t.name, "token_embd.weight") == 0;
        bool output = strcmp(t.name, "output.weight") == 0;
        if (t.n_dim == 2 && !embedding && !output)
            b->matmul_weights += t.dim[0] * t.dim[1];
        bool experts = strstr(t.name, "_exps.") != NULL; /* else a matrix of each head */
        if (t.n_dim == 3)
            b->matmul_weights +=
                (experts ? b->s.info.n_expert_used : t.dim[0]) * t.dim[1] * t.dim[2];
    }
    b->generation_bytes = b->s.info.token_bytes;
    cli_check(pith_kv_estimate(b->s.model, &p, WHOLE_PAGES, &bytes, &err), &err);
    cli_check(pith_kv_estimate(b->s.model, &p, 0, &state, &err), &err);
    b->kv_bytes_per_token = (double)(bytes - state) / WHOLE_PAGES;
}

/* Operations per second of products with weights, and of attention's. */
static double weights_peak(const struct bench *b)
{
    const pith_machine *m = &b->machine;
    double cpu = is_quantised(b->s.info.file_type) ? m->int8_op_per_s : m->f32_flop_per_s;
    return m->f16_flop_per_s > 0.0 ? m->f16_flop_per_s : cpu;
}

static double attention_peak(const struct bench *b)
{
    return b->machine.f16_flop_per_s > 0.0 ? b->machine.f16_flop_per_s : b->machine.f32_flop_per_s;
}

static double generation_bound(const struct bench *b, const struct row *row)
{
    const pith_model_info *i = &b->s.info;
    double n = row->n_seq, weights = (double)b->generation_bytes;
    if (i->n_expert > 0 && n > 1.0)
        weights = fmin(weights * n, (double)i->weight_bytes);
    double kv = b->kv_bytes_per_token * row->entries * n;
    double reading = (weights + kv) / b->machine.read_bytes_per_s;
    double compute = 2.0 * (double)b->matmul_weights * n / weights_peak(b);
    return n / (n > 1.0 ? fmax(reading, compute) : reading);
}

/* Pairs of a token and an entry that it sees, over all layers. */
static double prompt_pairs(const struct bench *b, const struct row *row)
{
    pith_layer_info layer;
    double sum = 0.0, seen = row->entries + 0.5;
    for (int32_t l = 0; pith_model_layer(b->s.model, l, &layer) == PITH_OK; l++)
        if (layer.lanes >= 0)
            sum += layer.window > 0 && layer.window < seen ? layer.window : seen;
    return sum * row->n;
}

static double prompt_bound(const struct bench *b, const struct row *row)
{
    const pith_model_info *i = &b->s.info;
    double n = row->n;
    double attention =
        2.0 * (i->head_dim_k + i->head_dim_v) * (double)i->n_head * prompt_pairs(b, row);
    double compute =
        2.0 * (double)b->matmul_weights * n / weights_peak(b) + attention / attention_peak(b);
    double passes = ceil(n / b->options->memory.chunk);
    /* A pass over a prompt reads about all experts. */
    double read = (double)(i->n_expert > 0 ? i->weight_bytes : b->generation_bytes);
    double reading = passes * read / b->machine.read_bytes_per_s;
    return n / (compute > reading ? compute : reading);
}

/* After the runs, because the measurement's own buffers would count in the peak of memory. */
static void measure_machine(struct bench *b)
{
    pith_error err;
    struct rusage usage;
    pith_kv_stats kv;
    getrusage(RUSAGE_SELF, &usage);
    b->peak_rss = (int64_t)usage.ru_maxrss * 1024;
    pith_engine_kv_stats(b->s.engine, &kv);
    b->kv_peak = kv.peak_bytes;
    pith_status status = pith_device_measure(pith_engine_device(b->s.engine),
                                             b->options->model.n_thread, &b->machine, &err);
    getrusage(RUSAGE_SELF, &usage);
    b->measuring_rss = (int64_t)usage.ru_maxrss * 1024;
    if (status != PITH_OK) { /* what was measured before is printed, without bounds */
        cli_note("bounds are left out: %s", err.message);
        b->machine = (pith_machine){.n_thread = b->s.params.n_thread};
        return;
    }
    for (int32_t i = 0; i < b->n_row; i++) {
        struct row *row = &b->rows[i];
        bool prompt = strcmp(row->test, "prompt") == 0;
        row->bound = prompt ? prompt_bound(b, row) : generation_bound(b, row);
    }
}

/* ---- printing ---- */

static double mean_of(const struct bench *b, const struct row *row)
{
    return row->sum / b->options->bench.n_repeat;
}

static double deviation_of(const struct bench *b, const struct row *row)
{
    int32_t n = b->options->bench.n_repeat;
    double mean = mean_of(b, row);
    double variance = n > 1 ? (row->sum_squares - n * mean * mean) / (n - 1) : 0.0;
    return variance > 0.0 ? sqrt(variance) : 0.0;
}

/* Percent of a row's time. */
static double rounds_share(const struct row *row)
{
    return 100.0 * row->rounds / row->seconds;
}

/* Of a token of the row, on average. */
static double disk_of(const struct bench *b, const struct row *row)
{
    return (double)row->disk / ((double)row->n * row->n_seq * b->options->bench.n_repeat);
}

/* Where the weights lie, and what was read of them from disks. */
static void print_weights(const struct bench *b)
{
    char bytes[32];
    if (!b->s.info.weights_mapped)
        return;
    printf("weights: mapped");
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct row *r = &b->rows[i];
        if (r->disk > 0)
            printf(", %s %d at %d: %s a token read from disk", r->test, r->n, r->depth,
                   cli_bytes((int64_t)disk_of(b, r), bytes));
    }
    putchar('\n');
}

/* Weights, pages as reserved, and buffers. */
static int64_t device_bytes(const struct bench *b)
{
    pith_device_info d;
    pith_error err;
    cli_check(pith_device_find(pith_engine_device(b->s.engine), &d, &err), &err);
    return d.used_bytes;
}

static void print_machine(const pith_machine *m)
{
    if (m->read_bytes_per_s == 0.0)
        return;
    printf("machine: read %.1f GB/s, copy %.1f GB/s, f32 %.0f GFLOP/s, ",
           1e-9 * m->read_bytes_per_s, 1e-9 * m->copy_bytes_per_s, 1e-9 * m->f32_flop_per_s);
    if (m->f16_flop_per_s > 0.0)
        printf("f16 %.0f GFLOP/s\n", 1e-9 * m->f16_flop_per_s);
    else
        printf("int8 %.0f GOP/s\n", 1e-9 * m->int8_op_per_s);
}

static void print_table(const struct bench *b)
{
    char weights[32], rss[32], kv[32], device[32], measuring[32];
    const pith_machine *m = &b->machine;
    const struct memory_options *o = &b->options->memory;
    bool several = b->n_seq > 1;
    printf("%s, %s, %s of weights, loaded in %.2f s\n",
           b->s.info.name[0] != '\0' ? b->s.info.name : b->s.path, b->s.info.file_type,
           cli_bytes(b->s.info.weight_bytes, weights), b->s.load_s);
    printf("kernels %s, %d threads, KV %s/%s, chunk %d; Pith %s\n", pith_cpu_level(), m->n_thread,
           o->type_k, o->type_v, o->chunk, pith_version());
    print_machine(m);
    if (o->keep != NULL)
        printf("keep: %s\n", o->keep);
    if (o->read != NULL)
        printf("read: %s; bounds are for reading everything\n", o->read);
    if (o->recall != NULL)
        printf("recall: %s\n", o->recall);
    if (o->share != NULL)
        printf("share: %s\n", o->share);
    print_weights(b);
    printf("memory: peak %s, of it KV %s; %s on %s; %s while the machine was measured\n\n",
           cli_bytes(b->peak_rss, rss), cli_bytes(b->kv_peak, kv),
           cli_bytes(device_bytes(b), device), pith_engine_device(b->s.engine),
           cli_bytes(b->measuring_rss, measuring));
    printf("%-8s %7s %8s %s%12s %8s %10s %10s %8s%s\n", "test", "tokens", "depth",
           several ? "sequences " : "", "tokens/s", "+-", "best", "bound", "of bound",
           o->keep != NULL ? "   rounds" : "");
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct row *r = &b->rows[i];
        double mean = mean_of(b, r);
        printf("%-8s %7d %8d ", r->test, r->n, r->depth);
        if (several)
            printf("%9d ", r->n_seq);
        printf("%12.2f %8.2f %10.2f ", mean, deviation_of(b, r), r->best);
        if (r->bound > 0.0)
            printf("%10.2f %7.0f%%", r->bound, 100.0 * mean / r->bound);
        else
            printf("%10s %8s", "-", "-");
        if (o->keep != NULL)
            printf(" %7.2f%%", rounds_share(r));
        putchar('\n');
    }
}

static void print_csv(const struct bench *b)
{
    const pith_machine *m = &b->machine;
    const struct memory_options *o = &b->options->memory;
    printf("type,n_param,weight_bytes,level,threads,type_k,type_v,keep,read,recall,share,chunk,"
           "test,n,depth,"
           "tokens_per_s,deviation,best,bound,read_bytes_per_s,f32_flop_per_s,int8_op_per_s,load_s,"
           "peak_rss_bytes,kv_peak_bytes,weights_mapped,disk_bytes_per_token,sequences,device,"
           "f16_flop_per_s,rounds_pct,device_used_bytes\n");
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct row *r = &b->rows[i];
        printf("%s,%lld,%lld,%s,%d,%s,%s,\"%s\",\"%s\",\"%s\",\"%s\",%d,%s,%d,%d,%.3f,%.3f,%.3f,%."
               "3f,%.4g,"
               "%.4g,%.4g,"
               "%.3f,%lld,%lld,%d,%.0f,%d,%s,%.4g,%.4g,%lld\n",
               b->s.info.file_type, (long long)b->s.info.n_param, (long long)b->s.info.weight_bytes,
               pith_cpu_level(), m->n_thread, o->type_k, o->type_v,
               o->keep != NULL ? o->keep : "none", o->read != NULL ? o->read : "none",
               o->recall != NULL ? o->recall : "none", o->share != NULL ? o->share : "none",
               o->chunk, r->test, r->n, r->depth, mean_of(b, r), deviation_of(b, r), r->best,
               r->bound, m->read_bytes_per_s, m->f32_flop_per_s, m->int8_op_per_s, b->s.load_s,
               (long long)b->peak_rss, (long long)b->kv_peak, b->s.info.weights_mapped,
               disk_of(b, r), r->n_seq, pith_engine_device(b->s.engine), m->f16_flop_per_s,
               rounds_share(r), (long long)device_bytes(b));
    }
}

static void print_json(const struct bench *b)
{
    const pith_machine *m = &b->machine;
    const struct memory_options *o = &b->options->memory;
    const char *path = b->s.path, *keep = o->keep != NULL ? o->keep : "none";
    const char *read = o->read != NULL ? o->read : "none";
    const char *recall = o->recall != NULL ? o->recall : "none";
    const char *share = o->share != NULL ? o->share : "none";
    json_t *rows = json_array();
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct row *r = &b->rows[i];
        json_array_append_new(
            rows, json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "test", r->test,
                            "n", (int)r->n, "depth", (int)r->depth, "sequences", (int)r->n_seq,
                            "tokens_per_s", mean_of(b, r), "deviation", deviation_of(b, r), "best",
                            r->best, "bound", r->bound, "disk_bytes_per_token", disk_of(b, r),
                            "rounds_pct", rounds_share(r)));
    }
    json_t *machine =
        json_pack("{s:f, s:f, s:f, s:f, s:f}", "read_bytes_per_s", m->read_bytes_per_s,
                  "copy_bytes_per_s", m->copy_bytes_per_s, "f32_flop_per_s", m->f32_flop_per_s,
                  "int8_op_per_s", m->int8_op_per_s, "f16_flop_per_s", m->f16_flop_per_s);
    cli_json_print(
        json_pack(
            "{s:s, s:o, s:s, s:I, s:I, s:f, s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:I, "
            "s:b, s:s, s:I, s:o, s:o}",
            "version", pith_version(), "model", cli_json_text(path, strlen(path)), "type",
            b->s.info.file_type, "n_param", (json_int_t)b->s.info.n_param, "weight_bytes",
            (json_int_t)b->s.info.weight_bytes, "load_s", b->s.load_s, "level", pith_cpu_level(),
            "threads", (int)m->n_thread, "type_k", o->type_k, "type_v", o->type_v, "keep", keep,
            "read", read, "recall", recall, "share", share, "chunk", (int)o->chunk,
            "peak_rss_bytes", (json_int_t)b->peak_rss, "kv_peak_bytes", (json_int_t)b->kv_peak,
            "weights_mapped", b->s.info.weights_mapped, "device", pith_engine_device(b->s.engine),
            "device_used_bytes", (json_int_t)device_bytes(b), "machine", machine, "rows", rows),
        JSON_INDENT(1) | JSON_REAL_PRECISION(9));
}

/* ---- the whole ---- */

static void add_row(struct bench *b, const char *test, int32_t n, int32_t depth, int32_t n_seq)
{
    if (n > 0)
        b->rows[b->n_row++] = (struct row){.test = test, .n = n, .depth = depth, .n_seq = n_seq};
    b->n_seq = n_seq > b->n_seq ? n_seq : b->n_seq;
}

static void make_rows(struct bench *b)
{
    const struct bench_options *o = &b->options->bench;
    b->n_seq = 1;
    b->rows =
        cli_alloc((size_t)o->depths.n * (size_t)(o->prompts.n + o->parallel.n), sizeof(*b->rows));
    for (int32_t i = 0; i < o->depths.n; i++) {
        int32_t depth = o->depths.value[i];
        for (int32_t j = 0; j < o->prompts.n; j++)
            add_row(b, "prompt", o->prompts.value[j], depth, 1);
        for (int32_t j = 0; j < o->parallel.n && o->n_generate > 0; j++)
            add_row(b, "generate", o->n_generate, depth, o->parallel.value[j]);
    }
    if (b->n_row == 0)
        cli_fail_usage("-p 0 and -n 0 leave nothing to measure");
}

/* Of one sequence. */
static int64_t most_tokens(const struct bench *b)
{
    int64_t most = 1;
    for (int32_t i = 0; i < b->n_row; i++) {
        int64_t n = (int64_t)b->rows[i].depth + b->rows[i].n;
        most = n > most ? n : most;
    }
    if (most > INT32_MAX)
        cli_fail_usage("-d and -p or -n together are %lld tokens, more than a sequence can have",
                       (long long)most);
    return most;
}

/* Bytes of pages of the largest row. Windows and budgets are of each of its sequences, which
   has a page to spare. */
static int64_t most_pages(const struct bench *b)
{
    pith_error err;
    int64_t most = 0, bytes;
    const pith_engine_params p = engine_params(&b->options->model, &b->options->memory);
    for (int32_t i = 0; i < b->n_row; i++) {
        const struct row *r = &b->rows[i];
        int64_t n = (int64_t)r->depth + r->n + (r->n_seq > 1 ? WHOLE_PAGES : 0);
        cli_check(pith_kv_estimate(b->s.model, &p, n < INT32_MAX ? n : INT32_MAX, &bytes, &err),
                  &err);
        most = bytes * r->n_seq > most ? bytes * r->n_seq : most;
    }
    return most;
}

/* Random tokens: the speed of a pass does not depend on which they are. */
static void make_tokens(struct bench *b, int64_t n)
{
    uint64_t state = 1;
    b->tokens = cli_alloc((size_t)n, sizeof(*b->tokens));
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        b->tokens[i] = (int32_t)((state >> 33) % (uint64_t)b->s.info.n_vocab);
    }
}

static void make_sequences(struct bench *b)
{
    pith_error err;
    b->item = cli_alloc((size_t)b->n_seq, sizeof(*b->item));
    b->seq = cli_alloc((size_t)b->n_seq, sizeof(*b->seq));
    b->seq[0] = b->s.seq;
    for (int32_t i = 1; i < b->n_seq; i++)
        cli_check(pith_seq_create(b->s.engine, &b->seq[i], &err), &err);
}

static int run(void *options)
{
    struct bench b = {.options = options};
    const char *format = b.options->bench.format;
    (void)engine_params(&b.options->model, &b.options->memory);
    make_rows(&b);
    int64_t n = most_tokens(&b);
    b.s.n_ctx = b.options->memory.n_ctx;
    session_load(&b.s, &b.options->model, false);
    make_tokens(&b, n);
    b.s.n_answer = b.n_seq;
    b.s.least_answer = b.n_seq;
    budget_settle(&b.s, &b.options->model, &b.options->memory, BUDGET_TEXTS, n);
    b.s.least_pages = most_pages(&b);
    session_start(&b.s, &b.options->model, &b.options->memory, n);
    make_sequences(&b);
    cli_interrupt_catch();
    measure(&b);
    count_work(&b);
    measure_machine(&b);
    if (strcmp(format, "csv") == 0)
        print_csv(&b);
    else if (strcmp(format, "json") == 0)
        print_json(&b);
    else
        print_table(&b);
    for (int32_t i = 1; i < b.n_seq; i++)
        pith_seq_free(b.seq[i]);
    free(b.seq);
    free(b.item);
    free(b.tokens);
    free(b.rows);
    session_free(&b.s);
    return EXIT_SUCCESS;
}

const struct command command_bench = {
    .name = "bench",
    .summary = "measure a model's speed beside the machine's bounds",
    .synopsis = "-m MODEL [-p 512,2048] [-n 128] [-d 0,4096] [-np 1,8]",
    .notes = "Bounds: generation cannot be faster than reading the weights and the stored keys and "
             "values\n"
             "once per token. A prompt cannot be faster than its multiplications at the measured "
             "peak. The\n"
             "KV memory is as large as the deepest row needs unless -c or --kv-memory is given. A "
             "model\n"
             "that fits the processor's caches can pass the bound of reading. Attention over bf16, "
             "q8_0 or\n"
             "turbo types can pass a prompt's, which is for f32.",
    .groups = groups,
    .options_size = sizeof(struct options),
    .defaults = defaults,
    .run = run,
};
