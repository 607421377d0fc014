/*
 * bench_tokens.c - tokens per second of the full cache and of keep policies in a KV memory of one
 * size, each with as many sequences as fit. This is the throughput experiment of LongFlow (section
 * 4.4), whose sequences are prompt : output : budget = 512 : 16,000 : 3,200 tokens.
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
 *                for n sequences
 * Of the steps of all turns the median counts, and of the readings of memory before them. Prompts
 * are not part of it.
 *
 * Bounds, in tokens per second, for n sequences with e entries each:
 *   roofline       n / ((weights + n * e * bytes of an entry) / read bandwidth), as if all else
 *                  were free; of rounds, too
 *   with products  the same where the weights' part is no less than 2 * n * weights / int8 peak:
 *                  what n tokens compute with each weight that they share the reading of
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
#include "keep_fill.h"
#include "random_stats.h"
#include "rig.h"

#define MAX_SEQ 256
#define MAX_ROUND 16
#define MAX_STEP 64
#define N_WARM 2   /* steps that are not counted, because they touch memory for the first time */
#define N_QUERY 64 /* that a round finds remembered: no policy's defaults ask for more */
#define MAX_DEPTH 3
#define N_READ 4 /* readings of memory before a turn */
/* The largest buffer to read. It has as many bytes as a step of a full memory reads, up to this. So
   a large last-level cache holds the same part of both. */
#define READ_MOST ((int64_t)4 << 30)

struct options {
    const char *model;
    const char *policies; /* names of those that run; NULL: all */
    int32_t n_thread;     /* 0: all processors */
    int32_t n_round;
    int32_t n_step; /* of one turn at one depth */
    int32_t prompt;
    int32_t output;
    int32_t budget;
    int32_t n_full; /* sequences of the full cache: the size of the KV memory */
    bool csv;
};

static const struct option option_table[] = {
    RIG_TEXT("--policies", "NAME,...", policies, "all",
             "of full, longflow, triattention:v3, h2o, rkv, snapkv, tova"),
    RIG_INT("--threads", n_thread, 0, 1024, "0: all processors"),
    RIG_INT("--rounds", n_round, 1, MAX_ROUND, "turns of each"),
    RIG_INT("--steps", n_step, 2, MAX_STEP, "of a turn"),
    RIG_INT("--prompt", prompt, 1, 1 << 20, "tokens"),
    RIG_INT("--output", output, 2 * MAX_STEP, 1 << 20, "tokens"),
    RIG_INT("--budget", budget, N_QUERY, 1 << 20, "entries of a lane"),
    RIG_INT("--full", n_full, 1, MAX_SEQ, "sequences that the KV memory holds without a policy"),
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
    {"h2o", false, ""},
    {"rkv", false, ""},
    {"snapkv", false, ""},
    {"tova", false, ""},
};

#define N_ENTRANT PI_LEN(entrants)

/* The results of one entrant's turns. */
struct result {
    int32_t n_seq;
    double entries; /* of a sequence's lanes in a step, the mean */
    int32_t slack;  /* tokens from round to round; 0: there are none */
    struct samples step[MAX_DEPTH];
    struct samples round; /* seconds of one sequence's */
};

struct bench {
    struct options o;
    pith_model *model;
    pith_model_info info;
    double weight_bytes;
    int64_t kv_bytes; /* the KV memory */
    uint8_t *memory;  /* [read_size] that is read between turns */
    size_t read_size;
    char stats[64]; /* the name of the file of statistics */
    struct fill fill;
    int32_t token[1];
    double entry_bytes; /* in all lanes */
    pith_machine machine;
    struct samples read, int8;
    struct result result[N_ENTRANT];
};

/* The sequences of one entrant. */
struct side {
    struct bench *b;
    pith_engine *engine;
    pith_seq *seq[MAX_SEQ];
    int32_t n_seq;
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
    return rules->overwrite ? b->o.budget : b->o.budget + rules->slack;
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

static void side_open(struct side *s, struct bench *b, const struct entrant *entrant)
{
    pith_error err = {0};
    pith_engine_params p;
    char keep[256];
    bool full = strcmp(entrant->name, "full") == 0;
    pith_engine_params_default(&p);
    p.n_thread = b->o.n_thread;
    p.type_k = p.type_v = "f16";
    p.kv_bytes = b->kv_bytes;
    snprintf(keep, sizeof(keep), "%s%cbudget=%d%s%s", entrant->name,
             strchr(entrant->name, ':') != NULL ? ',' : ':', b->o.budget,
             entrant->stats ? ",stats=" : "", entrant->stats ? b->stats : "");
    p.keep = full ? NULL : keep;
    *s = (struct side){.b = b};
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

/* Shows the policy the queries of the last tokens, as passes do. So a round scores with as many
   queries as in a real sequence. */
static void remember_queries(const struct side *s, struct pith_seq *seq)
{
    const struct kv_geometry *g = kv_cache_geometry(s->engine->kv);
    size_t row = (size_t)s->b->info.n_head * (size_t)g->dim_k;
    struct pi_pass_item item = {
        .kv = seq->memory.kv, .n_tok = N_QUERY, .pos0 = seq->n_token - N_QUERY};
    struct pi_pass_tap_rows rows = {.item = &item};
    struct keep_view view = {.kv = seq->memory.kv,
                             .tokens = seq->tokens,
                             .n_token = item.pos0,
                             .state = seq->keep.state};
    if (s->engine->keep.handle == NULL ||
        (keep_needs(s->engine->keep.handle) & KEEP_NEED_ROWS) == 0 || item.pos0 < 0)
        return;
    rows.q = rows.q_pre = rows.k = rows.v = s->b->fill.noise;
    item.tokens = seq->tokens + item.pos0;
    if (row * N_QUERY > FILL_NOISE)
        check(PITH_INVALID, &(pith_error){.message = "more heads than there are random numbers"});
    for (; rows.layer < g->n_layer; rows.layer++)
        keep_observe(s->engine->keep.handle, &view, &rows);
}

/* Brings every sequence to the depth of a turn. */
static void side_fill(struct side *s, int32_t n_token)
{
    pith_error err = {0};
    const struct keep_rules *rules = rules_of(s);
    for (int32_t i = 0; i < s->n_seq; i++) {
        int32_t n = n_token - s->seq[i]->n_token;
        if (rules != NULL && rules->overwrite)
            n = s->b->o.budget - 1;
        else if (rules != NULL && i > 0)
            n = s->b->o.budget + rules->slack / 2;
        else if (rules != NULL)
            n = s->b->o.budget + rules->slack - N_WARM - s->b->o.n_step / 2;
        check(fill_without_rounds(&s->b->fill, s->seq[i], n, &err), &err);
        remember_queries(s, s->seq[i]);
    }
}

/* ---- steps ---- */

/* One token of every sequence; seconds without the rounds, which go to *rounds. */
static double side_step(struct side *s, double *rounds)
{
    pith_error err = {0};
    pith_batch_item item[MAX_SEQ];
    double before = 0.0, after = 0.0, start;
    for (int32_t i = 0; i < s->n_seq; i++) {
        item[i] = (pith_batch_item){.seq = s->seq[i], .tokens = s->b->token, .n_token = 1};
        before += s->seq[i]->keep.tally.seconds;
    }
    start = pi_time_s();
    check(pith_batch_eval(s->engine, item, s->n_seq, NULL, NULL, &err), &err);
    start = pi_time_s() - start;
    for (int32_t i = 0; i < s->n_seq; i++)
        after += s->seq[i]->keep.tally.seconds;
    *rounds = after - before;
    return start - *rounds;
}

static void side_turn(struct side *s, struct result *r, struct samples *steps)
{
    double rounds;
    int64_t n_round = s->seq[0]->keep.tally.n_round;
    for (int32_t i = 0; i < N_READ; i++)
        add(&s->b->read, pi_machine_read(s->b->memory, s->b->read_size, s->b->machine.n_thread));
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

static void run_entrant(struct bench *b, size_t i)
{
    struct side s;
    struct result *r = &b->result[i];
    side_open(&s, b, &entrants[i]);
    const struct keep_rules *rules = rules_of(&s);
    r->n_seq = s.n_seq;
    if (rules == NULL) {
        run_full(&s, r);
    } else {
        r->slack = rules->overwrite ? 0 : rules->slack;
        r->entries = b->o.budget + 0.5 * (r->slack > 0 ? r->slack + 1 : 0);
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

static struct figures figures_of(const struct bench *b, size_t i)
{
    const struct result *r = &b->result[i];
    struct figures f = {.step_s = median(&r->step[0])};
    double read = median(&b->read), peak = median(&b->int8);
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

static void print_csv(const struct bench *b)
{
    bool full = runs(b, 0);
    struct figures base = full ? figures_of(b, 0) : (struct figures){0};
    puts("test,sequences,step_ms,rounds_ms,tokens_per_s,roofline,with_products,to_full,"
         "roofline_to_full");
    for (size_t i = 0; i < N_ENTRANT; i++) {
        struct figures f = runs(b, i) ? figures_of(b, i) : (struct figures){0};
        if (runs(b, i))
            printf("%s,%d,%.4f,%.4f,%.6g,%.6g,%.6g,%.4g,%.4g\n", entrants[i].name,
                   b->result[i].n_seq, 1e3 * f.step_s, 1e3 * f.round_s, f.tokens_per_s, f.roofline,
                   f.with_products, full ? f.tokens_per_s / base.tokens_per_s : NAN,
                   full ? f.roofline / base.roofline : NAN);
    }
}

static void print_head(const struct bench *b)
{
    printf("%s, %d layers, %.0f MiB of weights, f16 KV memory of %.0f MiB: %.1f times the weights. "
           "Prompt %d, output %d, budget %d.\n%d threads, read %.1f GB/s, int8 %.0f GOP/s, medians "
           "of %d turns of %d steps\n\n",
           b->info.file_type, b->info.n_layer, b->weight_bytes * 0x1p-20,
           (double)b->kv_bytes * 0x1p-20, (double)b->kv_bytes / b->weight_bytes, b->o.prompt,
           b->o.output, b->o.budget, b->machine.n_thread, 1e-9 * median(&b->read),
           1e-9 * median(&b->int8), b->o.n_round, b->o.n_step);
    puts("                  seqs  step, ms  + rounds  tokens/s  roofline  part  with products  part"
         "   x full  roofline's  goal");
}

static void print_table(const struct bench *b)
{
    bool full = runs(b, 0);
    struct figures base = full ? figures_of(b, 0) : (struct figures){0};
    print_head(b);
    for (size_t i = 0; i < N_ENTRANT; i++) {
        struct figures f = runs(b, i) ? figures_of(b, i) : (struct figures){0};
        if (!runs(b, i))
            continue;
        printf("%-16s %5d %9.2f %9.2f %9.1f %9.1f %5.2f %14.1f %5.2f", entrants[i].name,
               b->result[i].n_seq, 1e3 * f.step_s, 1e3 * f.round_s, f.tokens_per_s, f.roofline,
               f.tokens_per_s / f.roofline, f.with_products, f.tokens_per_s / f.with_products);
        if (full)
            printf(" %8.2f %11.2f", f.tokens_per_s / base.tokens_per_s, f.roofline / base.roofline);
        printf("  %s\n", entrants[i].goal);
    }
    if (full)
        printf("\nfull: a step of %d sequences takes %.2f ms at depth %d, %.2f at %d, %.2f at %d\n",
               b->result[0].n_seq, 1e3 * median(&b->result[0].step[0]), depth_of(b, 0),
               1e3 * median(&b->result[0].step[1]), depth_of(b, 1),
               1e3 * median(&b->result[0].step[2]), depth_of(b, 2));
}

/* ---- the whole ---- */

static void bench_open(struct bench *b)
{
    pith_error err = {0};
    pith_engine_params engine;
    b->model = load_model(b->o.model, b->o.n_thread, &b->info);
    b->weight_bytes = generation_bytes(b->model);
    pith_engine_params_default(&engine);
    engine.type_k = engine.type_v = "f16";
    check(pith_kv_estimate(b->model, &engine, b->o.prompt + b->o.output, &b->kv_bytes, &err), &err);
    b->kv_bytes *= b->o.n_full;
    check(fill_open(&b->fill, b->o.prompt + b->o.output, &err), &err);
    b->read_size = (size_t)pi_min(b->kv_bytes + (int64_t)b->weight_bytes, READ_MOST) / 64 * 64;
    b->memory = pi_mem_map(PI_MEM_OTHER, b->read_size);
    if (b->memory == NULL)
        check(PITH_NOMEM, &(pith_error){.message = "no memory to read"});
    memset(b->memory, 1, b->read_size); /* real pages, not the shared page of zeros */
    check(random_stats_write(b->model, b->stats, sizeof(b->stats), &err), &err);
}

int main(int argc, char **argv)
{
    static struct bench b;
    b.o = (struct options){
        .n_round = 3, .n_step = 8, .prompt = 512, .output = 16000, .budget = 3200, .n_full = 3};
    rig_options(argc, argv, option_table, &b.o);
    if (b.o.budget < b.o.prompt)
        rig_usage("--budget: below the tokens of --prompt");
    bench_open(&b);
    for (int32_t r = 0; r < b.o.n_round; r++) {
        b.machine = machine_of(b.o.n_thread);
        add(&b.int8, b.machine.int8_op_per_s);
        for (size_t i = 0; i < N_ENTRANT; i++)
            if (runs(&b, i))
                run_entrant(&b, i);
    }
    if (b.o.csv)
        print_csv(&b);
    else
        print_table(&b);
    remove(b.stats);
    pi_mem_unmap(PI_MEM_OTHER, b.memory, b.read_size);
    fill_close(&b.fill);
    pith_model_free(b.model);
    return EXIT_SUCCESS;
}
