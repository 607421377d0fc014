/*
 * bench_tokens.c - tokens per second of the full cache and of keep policies in a KV memory of one
 * size, each with as many sequences as fit. This is the throughput experiment of LongFlow (section
 * 4.4), whose sequences are prompt : output : budget = 512 : 16,000 : 3,200 tokens.
 * TriAttention (5.2.4) has the same with several budgets.
 *
 * Generating 16,000 tokens would take too long. So caches are filled with random entries
 * (keep_fill.h) to the depth that they would have then. There it takes steps through
 * pith_batch_eval, one token of every sequence each.
 *   full         steps at the first, middle and last depth of the output; a step takes a constant
 *                and a part in proportion to its entries, so that the mean over all depths is that
 *                of a straight line through the three
 *   overwriting  every step from the budget on is like the others: B entries, one of which goes
 *   rounds       lanes stand in the middle between two rounds, budget + slack / 2; the first
 *                sequence has a round in the middle of its steps, whose time counts n / slack times
 *                for n sequences; the last tokens before are a real pass, whose queries policies
 *                remember
 * Of the steps of all turns the median counts, and of the readings of memory before them. Prompts
 * are not part of it.
 *
 * Bounds, in tokens per second, for n sequences with e entries each:
 *   roofline       n / ((weights + n * e * bytes of an entry) / read bandwidth), as if all else
 *                  were free; of rounds, too
 *   with products  the same where the weights' part is no less than 2 * n * weights / int8 peak:
 *                  what n tokens compute with each weight that they share the reading of
 * On a GPU pith_device_measure says the bandwidth, and the peak of f16.
 *
 * usage: bench_tokens [options] MODEL.gguf; see --help
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "cpu/machine.h"
#include "engine/devices.h"
#include "keep_fill.h"
#include "random_stats.h"
#include "rig.h"

#define MAX_SEQ 1024
#define MAX_ROUND 16
#define MAX_STEP 64
#define N_WARM 2   /* steps that are not counted, because they touch memory for the first time */
#define N_QUERY 64 /* that a round finds remembered: no policy's defaults ask for more */
#define MAX_DEPTH 3
#define MAX_BUDGET 16
#define N_READ 4 /* readings of memory before a turn */
/* The largest buffer to read. It has as many bytes as a step of a full memory reads, up to this. So
   a large last-level cache holds the same part of both. */
#define READ_MOST ((int64_t)4 << 30)

struct options {
    const char *model;
    const char *policies; /* names of those that run; NULL: all */
    const char *device;
    int32_t n_thread; /* 0: all processors */
    int32_t n_round;
    int32_t n_step; /* of one turn at one depth */
    int32_t prompt;
    int32_t output;
    struct option_ints budgets;
    int32_t n_full;   /* sequences of the full cache: the size of the KV memory, unless */
    int64_t kv_bytes; /* this is given */
    bool csv;
};

static const struct option option_table[] = {
    RIG_TEXT("--policies", "NAME,...", policies, "all",
             "of full, longflow, triattention:v3, triattention:paper, h2o, rkv, snapkv, tova"),
    RIG_INT("--threads", n_thread, 0, 1024, "0: all processors"),
    RIG_INT("--rounds", n_round, 1, MAX_ROUND, "turns of each"),
    RIG_INT("--steps", n_step, 2, MAX_STEP, "of a turn"),
    RIG_INT("--prompt", prompt, 1, 1 << 20, "tokens"),
    RIG_INT("--output", output, 2 * MAX_STEP, 1 << 20, "tokens"),
    RIG_INTS("--budget", budgets, 2 * N_QUERY, 1 << 20,
             "entries of a lane, for each of them a row"),
    RIG_INT("--full", n_full, 1, MAX_SEQ, "sequences that the KV memory holds without a policy"),
    RIG_BYTES("--kv-memory", kv_bytes, "of --full", "the size of the KV memory, as 48GiB"),
    RIG_TEXT("--device", "NAME", device, "auto", "as the command takes it"),
    RIG_CSV(csv),
    RIG_MODEL(model),
    {0},
};

/* One side of the comparison. */
struct entrant {
    const char *name; /* "full", or the policy */
    bool stats;
    const char *goal;
};

static const struct entrant entrants[] = {
    {"full", false, ""},
    {"longflow", false, "at least 2.9 x full, 0.9 of the roofline"},
    {"triattention:v3", true, ""},
    {"triattention:paper", true, ""},
    {"h2o", false, ""},
    {"rkv", false, ""},
    {"snapkv", false, ""},
    {"tova", false, ""},
};

#define N_ENTRANT PI_LEN(entrants)

/* The results of one entrant's turns. */
struct result {
    int32_t n_seq;
    int64_t most_bytes; /* that one sequence ever takes of the KV memory */
    double entries;     /* of a sequence's lanes in a step, the mean */
    int32_t slack;      /* tokens from round to round; 0: there are none */
    struct samples step[MAX_DEPTH];
    struct samples round; /* seconds of one sequence's */
};

struct bench {
    struct options o;
    pith_model *model;
    pith_model_info info;
    double weight_bytes;
    struct pi_device *device;
    int64_t kv_bytes; /* the KV memory */
    uint8_t *memory;  /* [read_size] that is read between turns; NULL on a GPU */
    size_t read_size;
    char stats[64]; /* the name of the file of statistics */
    struct fill fill;
    int32_t tokens[N_QUERY]; /* any */
    double entry_bytes;      /* in all lanes */
    pith_machine machine;
    struct samples read, peak;
    struct result result[N_ENTRANT][MAX_BUDGET]; /* the full cache has the first alone */
};

/* The sequences of one entrant. */
struct side {
    struct bench *b;
    pith_engine *engine;
    pith_seq *seq[MAX_SEQ];
    int32_t n_seq;
    int32_t budget;
};

/* ---- sides ---- */

static const struct keep_rules *rules_of(const struct side *s)
{
    return s->engine->keep.handle != NULL ? &keep_get_config(s->engine->keep.handle)->rules : NULL;
}

/* Entries of a lane that a sequence of this shape ever holds. A policy that overwrites holds more
   than its budget only while it reads a prompt that is longer. */
static int32_t most_entries(const struct side *s)
{
    const struct bench *b = s->b;
    const struct keep_rules *rules = rules_of(s);
    if (rules == NULL)
        return b->o.prompt + b->o.output;
    return rules->overwrite ? s->budget : s->budget + rules->slack;
}

static int64_t bytes_of_one(const struct side *s)
{
    const struct kv_geometry *g = kv_cache_geometry(s->engine->kv);
    int64_t bytes = kv_bytes_for_tokens(g, most_entries(s));
    /* Policies that read their sinks elsewhere: a page more (keep_bytes_at). */
    if (s->engine->keep.handle != NULL &&
        keep_config_places(keep_get_config(s->engine->keep.handle)))
        bytes += kv_bytes_for_tokens(g, g->page_len);
    return bytes;
}

static void side_open(struct side *s, struct bench *b, const struct entrant *entrant,
                      int32_t budget)
{
    pith_error err = {0};
    pith_engine_params p;
    char keep[256];
    bool full = strcmp(entrant->name, "full") == 0;
    pith_engine_params_default(&p);
    p.device = b->device->name;
    p.n_thread = b->o.n_thread;
    p.type_k = p.type_v = "f16";
    p.kv_bytes = b->kv_bytes;
    snprintf(keep, sizeof(keep), "%s%cbudget=%d%s%s", entrant->name,
             strchr(entrant->name, ':') != NULL ? ',' : ':', budget,
             entrant->stats ? ",stats=" : "", entrant->stats ? b->stats : "");
    p.keep = full ? NULL : keep;
    *s = (struct side){.b = b, .budget = budget};
    check(pith_engine_create(b->model, &p, &s->engine, &err), &err);
    s->n_seq = (int32_t)pi_min(b->kv_bytes / bytes_of_one(s), MAX_SEQ);
    if (s->n_seq == 0)
        check(PITH_INVALID, &(pith_error){.message = "not one sequence fits"});
    for (int32_t i = 0; i < s->n_seq; i++)
        check(pith_seq_create(s->engine, &s->seq[i], &err), &err);
}

static void side_close(struct side *s)
{
    for (int32_t i = 0; i < s->n_seq; i++)
        pith_seq_free(s->seq[i]);
    pith_engine_free(s->engine);
}

/* n more tokens of every sequence. */
static void side_eval(struct side *s, int32_t n)
{
    pith_error err = {0};
    pith_batch_item item[MAX_SEQ];
    for (int32_t i = 0; i < s->n_seq; i++)
        item[i] = (pith_batch_item){.seq = s->seq[i], .tokens = s->b->tokens, .n_token = n};
    check(pith_batch_eval(s->engine, item, s->n_seq, NULL, NULL, &err), &err);
}

/* Brings every sequence to the depth of a turn. */
static void side_fill(struct side *s, int32_t n_token)
{
    pith_error err = {0};
    const struct keep_rules *rules = rules_of(s);
    for (int32_t i = 0; i < s->n_seq; i++) {
        int32_t n = n_token - s->seq[i]->n_token;
        if (rules != NULL && rules->overwrite)
            n = s->budget - 1 - N_QUERY;
        else if (rules != NULL && i > 0)
            n = s->budget + rules->slack / 2 - N_QUERY;
        else if (rules != NULL)
            n = s->budget + rules->slack - N_WARM - s->b->o.n_step / 2 - N_QUERY;
        check(fill_without_rounds(&s->b->fill, s->seq[i], n, &err), &err);
    }
    if (rules != NULL)
        side_eval(s, N_QUERY);
}

/* ---- steps ---- */

/* One token of every sequence; seconds without the rounds, which go to *rounds. */
static double side_step(struct side *s, double *rounds)
{
    double before = 0.0, after = 0.0, start;
    for (int32_t i = 0; i < s->n_seq; i++)
        before += s->seq[i]->keep.tally.seconds;
    start = pi_time_s();
    side_eval(s, 1);
    start = pi_time_s() - start;
    for (int32_t i = 0; i < s->n_seq; i++)
        after += s->seq[i]->keep.tally.seconds;
    *rounds = after - before;
    return start - *rounds;
}

/* Bytes per second, now. */
static double read_speed(const struct bench *b)
{
    return b->memory != NULL ? pi_machine_read(b->memory, b->read_size, b->machine.n_thread)
                             : b->machine.read_bytes_per_s;
}

static void side_turn(struct side *s, struct result *r, struct samples *steps)
{
    double rounds;
    int64_t n_round = s->seq[0]->keep.tally.n_round;
    for (int32_t i = 0; i < N_READ; i++)
        add(&s->b->read, read_speed(s->b));
    for (int32_t i = 0; i < N_WARM; i++)
        (void)side_step(s, &rounds);
    for (int32_t i = 0; i < s->b->o.n_step; i++) {
        add(steps, side_step(s, &rounds));
        if (rounds > 0.0)
            add(&r->round, rounds);
    }
    if (r->slack > 0 && s->seq[0]->keep.tally.n_round != n_round + 1)
        check(PITH_INTERNAL, &(pith_error){.message = "not one round in a turn"});
}

/* Depths that a full cache is measured at: behind the prompt, half way and at the end. */
static int32_t depth_of(const struct bench *b, int32_t i)
{
    int32_t room = b->o.output - N_WARM - b->o.n_step;
    return b->o.prompt + (int32_t)((int64_t)room * i / (MAX_DEPTH - 1));
}

static void run_full(struct side *s, struct result *r)
{
    pith_error err = {0};
    r->entries = s->b->o.prompt + 0.5 * s->b->o.output;
    for (int32_t i = 0; i < MAX_DEPTH; i++) {
        int32_t depth = depth_of(s->b, i);
        side_fill(s, depth);
        side_turn(s, r, &r->step[i]);
        for (int32_t j = 0; j < s->n_seq; j++)
            check(pith_seq_truncate(s->seq[j], depth, &err), &err);
    }
}

static void run_entrant(struct bench *b, size_t i, int32_t j)
{
    struct side s;
    struct result *r = &b->result[i][j];
    side_open(&s, b, &entrants[i], b->o.budgets.value[j]);
    const struct keep_rules *rules = rules_of(&s);
    r->n_seq = s.n_seq;
    r->most_bytes = bytes_of_one(&s);
    if (rules == NULL) {
        run_full(&s, r);
    } else {
        r->slack = rules->overwrite ? 0 : rules->slack;
        r->entries = s.budget + 0.5 * (r->slack > 0 ? r->slack + 1 : 0);
        side_fill(&s, 0);
        side_turn(&s, r, &r->step[0]);
    }
    b->entry_bytes = fill_entry_bytes(kv_cache_geometry(s.engine->kv));
    side_close(&s);
}

/* ---- figures ---- */

struct figures {
    double step_s;  /* the mean over the output, without rounds */
    double round_s; /* that a step bears of the rounds of all sequences */
    double tokens_per_s;
    double roofline;
    double with_products;
};

static struct figures figures_of(const struct bench *b, const struct result *r)
{
    struct figures f = {.step_s = median(&r->step[0])};
    double read = median(&b->read), peak = median(&b->peak);
    double entries = r->n_seq * r->entries * b->entry_bytes / read,
           weights = b->weight_bytes / read;
    double products = 2.0 * r->n_seq * (double)b->info.n_param / peak;
    if (r->step[1].n > 0) /* two trapezoids */
        f.step_s = 0.25 * (median(&r->step[0]) + 2.0 * median(&r->step[1]) + median(&r->step[2]));
    if (r->slack > 0)
        f.round_s = r->n_seq * median(&r->round) / r->slack;
    f.tokens_per_s = r->n_seq / (f.step_s + f.round_s);
    f.roofline = r->n_seq / (weights + entries);
    f.with_products = r->n_seq / (fmax(weights, products) + entries);
    return f;
}

static bool runs(const struct bench *b, size_t i)
{
    return rig_wants(b->o.policies, entrants[i].name);
}

/* Rows of an entrant. */
static int32_t rows_of(const struct bench *b, size_t i)
{
    return i == 0 ? 1 : b->o.budgets.n;
}

static void print_csv_row(const struct bench *b, size_t i, int32_t j)
{
    const struct result *r = &b->result[i][j];
    bool full = runs(b, 0);
    struct figures base = full ? figures_of(b, &b->result[0][0]) : (struct figures){0};
    struct figures f = figures_of(b, r);
    printf("%s,%d,%.4f,%.4f,%.6g,%.6g,%.6g,%.4g,%.4g,%d,%lld,%s\n", entrants[i].name, r->n_seq,
           1e3 * f.step_s, 1e3 * f.round_s, f.tokens_per_s, f.roofline, f.with_products,
           full ? f.tokens_per_s / base.tokens_per_s : NAN, full ? f.roofline / base.roofline : NAN,
           i == 0 ? 0 : b->o.budgets.value[j], (long long)r->most_bytes, b->device->name);
    fflush(stdout);
}

static void print_head(const struct bench *b)
{
    printf("%s, %d layers, %.0f MiB of weights, f16 KV memory of %.0f MiB: %.1f times the weights. "
           "Prompt %d, output %d.\n%s, %d threads, read %.1f GB/s, products %.0f GOP/s, medians "
           "of %d turns of %d steps\n\n",
           b->info.file_type, b->info.n_layer, b->weight_bytes * 0x1p-20,
           (double)b->kv_bytes * 0x1p-20, (double)b->kv_bytes / b->weight_bytes, b->o.prompt,
           b->o.output, b->device->name, b->machine.n_thread, 1e-9 * median(&b->read),
           1e-9 * median(&b->peak), b->o.n_round, b->o.n_step);
    puts("                    budget  seqs  step, ms  + rounds  tokens/s  roofline  part  with "
         "products  part"
         "   x full  roofline's  goal");
}

static void print_row(const struct bench *b, size_t i, int32_t j)
{
    const struct result *r = &b->result[i][j];
    struct figures base, f = figures_of(b, r);
    printf("%-18s %7d %5d %9.2f %9.2f %9.1f %9.1f %5.2f %14.1f %5.2f", entrants[i].name,
           i == 0 ? 0 : b->o.budgets.value[j], r->n_seq, 1e3 * f.step_s, 1e3 * f.round_s,
           f.tokens_per_s, f.roofline, f.tokens_per_s / f.roofline, f.with_products,
           f.tokens_per_s / f.with_products);
    if (runs(b, 0)) {
        base = figures_of(b, &b->result[0][0]);
        printf(" %8.2f %11.2f", f.tokens_per_s / base.tokens_per_s, f.roofline / base.roofline);
    }
    printf("  %s\n", entrants[i].goal);
}

static void print_table(const struct bench *b)
{
    const struct result *full = &b->result[0][0];
    print_head(b);
    for (size_t i = 0; i < N_ENTRANT; i++)
        for (int32_t j = 0; j < rows_of(b, i) && runs(b, i); j++)
            print_row(b, i, j);
    if (runs(b, 0))
        printf("\nfull: a step of %d sequences takes %.2f ms at depth %d, %.2f at %d, %.2f at %d\n",
               full->n_seq, 1e3 * median(&full->step[0]), depth_of(b, 0),
               1e3 * median(&full->step[1]), depth_of(b, 1), 1e3 * median(&full->step[2]),
               depth_of(b, 2));
}

/* ---- the whole ---- */

static void bench_open(struct bench *b)
{
    pith_error err = {0};
    pith_engine_params engine;
    check(pi_device_find(b->o.device, &b->device, &err), &err);
    b->model = load_model(b->o.model, b->o.n_thread, &b->info);
    b->weight_bytes = generation_bytes(b->model);
    pith_engine_params_default(&engine);
    engine.type_k = engine.type_v = "f16";
    check(pith_kv_estimate(b->model, &engine, b->o.prompt + b->o.output, &b->kv_bytes, &err), &err);
    b->kv_bytes = b->o.kv_bytes > 0 ? b->o.kv_bytes : b->kv_bytes * b->o.n_full;
    check(fill_open(&b->fill, b->device, b->o.prompt + b->o.output, &err), &err);
    check(random_stats_write(b->model, b->stats, sizeof(b->stats), &err), &err);
    if (!b->device->in_host)
        return;
    b->read_size = (size_t)pi_min(b->kv_bytes + (int64_t)b->weight_bytes, READ_MOST) / 64 * 64;
    b->memory = pi_mem_map(PI_MEM_OTHER, b->read_size);
    if (b->memory == NULL)
        check(PITH_NOMEM, &(pith_error){.message = "no memory to read"});
    memset(b->memory, 1, b->read_size); /* real pages, not the shared page of zeros */
}

/* The bounds of the moment. */
static void look(struct bench *b)
{
    pith_error err = {0};
    check(pith_device_measure(b->device->name, b->o.n_thread, &b->machine, &err), &err);
    add(&b->peak,
        b->machine.f16_flop_per_s > 0.0 ? b->machine.f16_flop_per_s : b->machine.int8_op_per_s);
}

static void check_options(const struct options *o)
{
    if (o->budgets.n > MAX_BUDGET)
        rig_usage("--budget: too many");
    for (int32_t j = 0; j < o->budgets.n; j++)
        if (o->budgets.value[j] < o->prompt)
            rig_usage("--budget: below the tokens of --prompt");
}

int main(int argc, char **argv)
{
    static struct bench b;
    b.o = (struct options){.n_round = 3,
                           .n_step = 8,
                           .prompt = 512,
                           .output = 16000,
                           .budgets = {{3200}, 1},
                           .n_full = 3};
    rig_options(argc, argv, option_table, &b.o);
    check_options(&b.o);
    bench_open(&b);
    if (b.o.csv)
        puts("test,sequences,step_ms,rounds_ms,tokens_per_s,roofline,with_products,to_full,"
             "roofline_to_full,budget,most_bytes,device");
    for (int32_t r = 0; r < b.o.n_round; r++) {
        look(&b);
        for (size_t i = 0; i < N_ENTRANT; i++)
            for (int32_t j = 0; j < rows_of(&b, i) && runs(&b, i); j++) {
                run_entrant(&b, i, j);
                if (b.o.csv && r == b.o.n_round - 1)
                    print_csv_row(&b, i, j);
            }
    }
    if (!b.o.csv)
        print_table(&b);
    remove(b.stats);
    if (b.memory != NULL)
        pi_mem_unmap(PI_MEM_OTHER, b.memory, b.read_size);
    fill_close(&b.fill);
    pith_model_free(b.model);
    return EXIT_SUCCESS;
}
