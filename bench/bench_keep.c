/*
 * bench_keep.c - the costs and gains of a keep policy, beside the bounds: `triattention:v3` with
 * statistics, on any model.
 *
 *   prefill   the share of keep rounds in reading a prompt at budget=90%. Every round runs on a
 *             cache filled with random entries (keep_fill.h) and is timed. Passes of 512 tokens are
 *             timed at five depths, and the time of the others is interpolated: a constant plus a
 *             part in proportion to the depth. --whole reads the whole prompt instead.
 *   decode    one sequence at a depth, full against a budget, in turns; the share of rounds in it
 *   fixed     as many sequences as fit in a KV memory of fixed size, decoded in one batch
 *   memory    resident set and pages in use, full against the budget
 *
 * Bounds. A round reads the keys of its lanes, and reads and writes every entry that moves:
 *     seconds >= keys / read bandwidth + (moved bytes, read and written) / copy bandwidth
 * A step of a batch reads the weights once and the entries of every sequence:
 *     seconds >= (weights + entries) / read bandwidth, and its share of the rounds
 * The share of rounds is bounded by their bound over the measured time of everything else.
 *
 * usage: bench_keep [options] MODEL.gguf; see --help
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "keep_fill.h"
#include "random_stats.h"
#include "rig.h"

#define MAX_ROUND 32
#define MAX_ROW 40
#define MAX_SEQ 64
#define N_PASS 512    /* tokens of the prompt's passes */
#define N_POINT 5     /* depths that they are timed at */
#define MAX_STEP 1024 /* of one turn */
#define N_STEP 32 /* of a full cache in one turn; a policy takes as many as lie between rounds */
#define TEXT_SIZE 96

struct options {
    const char *model;
    const char *policy;
    const char *parts; /* names of those that run; NULL: all */
    int32_t n_thread;  /* 0: all processors */
    int32_t n_round;
    int32_t prefill; /* tokens of the prompt */
    int32_t depth;   /* of decoding */
    int32_t budget;
    int32_t fixed_mib;
    bool whole;
    bool csv;
};

static const struct option option_table[] = {
    RIG_TEXT("--parts", "NAME,...", parts, "all", "of prefill, decode, fixed"),
    RIG_INT("--threads", n_thread, 0, 1024, "0: all processors"),
    RIG_INT("--rounds", n_round, 1, MAX_ROUND, "turns of each"),
    RIG_INT("--prefill", prefill, 16 * N_PASS, 1 << 20, "tokens of the prompt"),
    RIG_FLAG("--whole", whole, "read the prompt for real: many minutes"),
    RIG_INT("--depth", depth, 1024, 1 << 20, "of decoding"),
    RIG_INT("--budget", budget, 512, 1 << 20, "entries of a lane"),
    RIG_INT("--fixed", fixed_mib, 1, 1 << 20, "MiB of KV memory of `fixed`"),
    RIG_TEXT("--keep", "POLICY", policy, NULL, "any of triattention's"),
    RIG_CSV(csv),
    RIG_MODEL(model),
    {0},
};

/* One figure: its values, one per round, and its labels. */
struct row {
    char test[TEXT_SIZE];
    const char *unit;
    const char *goal; /* "" where there is none */
    int32_t n;
    double value[MAX_ROUND];
    double bound[MAX_ROUND]; /* NAN: none */
};

struct bench {
    struct options o;
    pith_model *model;
    pith_model_info info;
    double weight_bytes; /* that a generated token reads */
    char stats[32];      /* the name of the file of statistics */
    struct fill fill;
    int32_t *tokens;      /* [most tokens of an evaluation] */
    pith_machine machine; /* of this round */
    struct row row[MAX_ROW];
    int32_t n_row;
};

/* The sequences of one cache. */
struct side {
    struct bench *b;
    pith_engine *engine;
    pith_seq *seq[MAX_SEQ];
    int32_t n_seq;
    int32_t n_step;            /* of one turn */
    bool keeps;                /* there is a policy */
    struct fill_rounds rounds; /* while filling */
    int64_t each_bytes;        /* of pages that a sequence takes at most */
    double rss_bytes;          /* by which filling made the process grow */
};

/* ---- figures ---- */

/* Adds a round's value to the row of that name; bound NAN: there is none. */
static void figure(struct bench *b, double value, double bound, const char *unit, const char *goal,
                   const char *format, ...)
{
    char test[TEXT_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(test, sizeof(test), format, args);
    va_end(args);
    struct row *row = b->row;
    while (row < b->row + b->n_row && strcmp(row->test, test) != 0)
        row++;
    if (row == b->row + MAX_ROW || row->n == MAX_ROUND)
        check(PITH_INTERNAL, &(pith_error){.message = "more figures than there is room for"});
    if (row == b->row + b->n_row) {
        b->n_row++;
        *row = (struct row){.unit = unit, .goal = goal};
        memcpy(row->test, test, sizeof(test));
    }
    row->value[row->n] = value;
    row->bound[row->n++] = bound;
}

static void print_csv(const struct bench *b)
{
    puts("test,round,value,unit,bound,goal");
    for (const struct row *r = b->row; r < b->row + b->n_row; r++) {
        for (int32_t i = 0; i < r->n; i++)
            printf("\"%s\",%d,%.6g,%s,%.6g,%s\n", r->test, i, r->value[i], r->unit, r->bound[i],
                   r->goal);
        printf("\"%s\",median,%.6g,%s,%.6g,%s\n", r->test, median_of(r->value, r->n), r->unit,
               median_of(r->bound, r->n), r->goal);
    }
}

static void print_table(const struct bench *b)
{
    printf("%s, %d threads, read %.1f GB/s, copy %.1f GB/s, median of %d rounds\n\n",
           b->info.file_type, b->machine.n_thread, 1e-9 * b->machine.read_bytes_per_s,
           1e-9 * b->machine.copy_bytes_per_s, b->o.n_round);
    printf("%-64s %10s %10s %8s  %s\n", "", "measured", "bound", "/ bound", "goal");
    for (const struct row *r = b->row; r < b->row + b->n_row; r++) {
        double value = median_of(r->value, r->n), bound = median_of(r->bound, r->n);
        printf("%-64s %10.*f", r->test, value < 100.0 ? 2 : 0, value);
        if (isnan(bound))
            printf(" %10s %8s", "", "");
        else
            printf(" %10.*f %8.2f", bound < 100.0 ? 2 : 0, bound, value / bound);
        printf("  %s%s%s\n", r->unit, r->goal[0] != '\0' ? ", " : "", r->goal);
    }
}

/* ---- the machine and the model ---- */

static void bench_open(struct bench *b)
{
    pith_error err = {0};
    int32_t most = b->o.prefill > b->o.depth ? b->o.prefill : b->o.depth;
    most += (MAX_ROUND + 1) * MAX_STEP; /* sequences that keep go on from turn to turn */
    b->model = load_model(b->o.model, b->o.n_thread, &b->info);
    b->weight_bytes = generation_bytes(b->model);
    check(fill_open(&b->fill, &pi_device_cpu, most, &err), &err);
    b->tokens = memory((size_t)most * sizeof(*b->tokens));
    check(random_stats_write(b->model, b->stats, sizeof(b->stats), &err), &err);
}

static void bench_close(struct bench *b)
{
    remove(b->stats);
    pi_mem_free(b->tokens);
    fill_close(&b->fill);
    pith_model_free(b->model);
}

/* Bytes of this process that are in memory; NAN where the system does not say. */
static double resident_bytes(void)
{
    char line[128];
    double kib = NAN;
    FILE *file = fopen("/proc/self/status", "r");
    if (file == NULL)
        return NAN;
    while (fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = atof(line + 6);
    fclose(file);
    return 1024.0 * kib;
}

/* ---- sides ---- */

/* Params for sequences with keys and values of a type, under the policy where there is a budget;
   they point to keep [cap]. */
static pith_engine_params side_params(const struct bench *b, const char *budget, const char *type,
                                      char *keep, size_t cap)
{
    pith_engine_params p;
    pith_engine_params_default(&p);
    p.device = "cpu"; /* whose rounds have the bounds above */
    p.n_thread = b->o.n_thread;
    p.chunk = N_PASS;
    p.type_k = p.type_v = type;
    if (budget == NULL)
        return p;
    snprintf(keep, cap, "%s,stats=%s,budget=%s", b->o.policy, b->stats, budget);
    p.keep = keep;
    return p;
}

/* Bytes of pages that one sequence takes at most while it grows to n_token tokens. */
static int64_t bytes_of_one(const struct bench *b, const char *budget, const char *type,
                            int32_t n_token)
{
    pith_error err = {0};
    char keep[256];
    int64_t bytes;
    pith_engine_params p = side_params(b, budget, type, keep, sizeof(keep));
    check(pith_kv_estimate(b->model, &p, n_token, &bytes, &err), &err);
    return bytes;
}

/* An engine and an empty sequence that can grow to n_token tokens. With fixed, as many sequences as
   fit in a KV memory of that size in bytes. */
static void side_open(struct side *s, struct bench *b, const char *budget, const char *type,
                      int32_t n_token, int64_t fixed)
{
    pith_error err = {0};
    char keep[256];
    pith_engine_params p = side_params(b, budget, type, keep, sizeof(keep));
    *s = (struct side){.b = b, .keeps = budget != NULL, .n_step = N_STEP, .n_seq = 1};
    s->each_bytes = bytes_of_one(b, budget, type, n_token);
    if (fixed > 0)
        s->n_seq = (int32_t)pi_min(fixed / s->each_bytes, MAX_SEQ);
    p.kv_bytes = fixed > 0 ? fixed : s->each_bytes;
    check(pith_engine_create(b->model, &p, &s->engine, &err), &err);
    for (int32_t i = 0; i < s->n_seq; i++)
        check(pith_seq_create(s->engine, &s->seq[i], &err), &err);
    if (s->keeps)
        s->n_step = keep_get_config(s->engine->keep.handle)->rules.slack;
}

static void side_close(struct side *s)
{
    for (int32_t i = 0; i < s->n_seq; i++)
        pith_seq_free(s->seq[i]);
    pith_engine_free(s->engine);
}

static void side_fill(struct side *s, int32_t n_token)
{
    pith_error err = {0};
    double before = resident_bytes();
    for (int32_t i = 0; i < s->n_seq; i++)
        check(fill_to(&s->b->fill, s->seq[i], n_token, &s->rounds, &err), &err);
    s->rss_bytes = resident_bytes() - before;
}

static double side_used_bytes(const struct side *s)
{
    pith_kv_stats kv;
    pith_engine_kv_stats(s->engine, &kv);
    return (double)kv.used_bytes;
}

static double keep_seconds(const struct side *s)
{
    double seconds = 0.0;
    for (int32_t i = 0; i < s->n_seq; i++)
        seconds += s->seq[i]->keep.tally.seconds;
    return seconds;
}

/* The least time in seconds that a round as large as the filling's rounds takes. */
static double round_bound(const struct side *s)
{
    const pith_machine *m = &s->b->machine;
    if (s->rounds.n == 0)
        return 0.0;
    return (s->rounds.scored_bytes / m->read_bytes_per_s +
            s->rounds.moved_bytes / m->copy_bytes_per_s) /
           (double)s->rounds.n;
}

/* ---- decoding ---- */

struct turn {
    double seconds;
    double keep_s;
    double tokens_per_s; /* of all sequences */
    double bound;
};

static double step_bound(const struct side *s, double entries)
{
    const struct kv_geometry *g = kv_cache_geometry(s->engine->kv);
    double bytes = s->b->weight_bytes + entries * fill_entry_bytes(g);
    double rounds = (double)s->n_seq * round_bound(s) / s->n_step; /* one each in a turn */
    return bytes / s->b->machine.read_bytes_per_s + rounds;
}

/* n_step tokens of every sequence, one at a time, with logits; afterwards a full cache is as
   before. */
static struct turn side_decode(struct side *s)
{
    pith_error err = {0};
    pith_batch_item item[MAX_SEQ];
    struct turn t = {0};
    double keep_s = keep_seconds(s), start = pi_time_s(), entries = 0.0;
    int32_t depth = s->seq[0]->n_token;
    for (int32_t step = 0; step < s->n_step; step++) {
        for (int32_t i = 0; i < s->n_seq; i++) {
            entries += kv_lane_len(s->seq[i]->memory.kv, 0, 0) + 1;
            item[i] =
                (pith_batch_item){.seq = s->seq[i], .tokens = s->b->tokens + step, .n_token = 1};
        }
        check(pith_batch_eval(s->engine, item, s->n_seq, NULL, NULL, &err), &err);
    }
    t.seconds = pi_time_s() - start;
    t.keep_s = keep_seconds(s) - keep_s;
    t.tokens_per_s = (double)s->n_seq * s->n_step / t.seconds;
    t.bound = (double)s->n_seq / step_bound(s, entries / s->n_step);
    for (int32_t i = 0; i < s->n_seq && !s->keeps; i++)
        check(pith_seq_truncate(s->seq[i], depth, &err), &err);
    return t;
}

/* Adds the measurements of one turn of each side. */
static void add_turns(struct side *full, struct side *kept, const char *what, const char *goal)
{
    struct bench *b = full->b;
    struct turn f = side_decode(full), k = side_decode(kept);
    double rounds = kept->n_seq; /* one of each sequence, because a turn is as long as the slack */
    figure(b, f.tokens_per_s, f.bound, "tokens/s", "", "%s, full, %d at a time", what, full->n_seq);
    figure(b, k.tokens_per_s, k.bound, "tokens/s", "", "%s, budget %d, %d at a time", what,
           b->o.budget, kept->n_seq);
    figure(b, k.tokens_per_s / f.tokens_per_s, k.bound / f.bound, "x", goal, "%s, budget / full",
           what);
    figure(b, 1e3 * k.keep_s / rounds, 1e3 * round_bound(kept), "ms", "", "%s, a round", what);
    figure(b, 100.0 * k.keep_s / k.seconds,
           100.0 * rounds * round_bound(kept) / (k.seconds - k.keep_s), "%",
           kept->n_seq == 1 ? "at most 1" : "", "%s, share of rounds", what);
}

/* Full and budget in turns, after one of each that is not counted, because it touches memory for
   the first time. */
static void compare(struct side *full, struct side *kept, const char *what, const char *goal)
{
    (void)side_decode(full);
    (void)side_decode(kept);
    for (int32_t r = 0; r < full->b->o.n_round; r++) {
        full->b->machine = machine_of(full->b->o.n_thread);
        add_turns(full, kept, what, goal);
    }
}

/* ---- parts ---- */

/* Pages that a round gave back stay resident, to be used again. So the resident set is the largest
   so far, budget + slack entries. */
static void add_memory(const struct side *full, const struct side *kept)
{
    struct bench *b = full->b;
    const struct side *side[] = {full, kept};
    const char *name[] = {"full", "budget"};
    for (int32_t i = 0; i < 2; i++) {
        figure(b, side_used_bytes(side[i]) * 0x1p-20, NAN, "MiB", "", "memory, %s, pages in use",
               name[i]);
        figure(b, side[i]->rss_bytes * 0x1p-20, (double)side[i]->each_bytes * 0x1p-20, "MiB", "",
               "memory, %s, resident set grew by", name[i]);
    }
    figure(b, side_used_bytes(full) / side_used_bytes(kept), (double)b->o.depth / b->o.budget, "x",
           "", "memory, full / budget, pages in use");
    figure(b, full->rss_bytes / kept->rss_bytes,
           (double)full->each_bytes / (double)kept->each_bytes, "x", "",
           "memory, full / budget, resident set");
}

/* Tokens that a sequence with a policy has at most after all turns. */
static int32_t most_tokens(const struct bench *b)
{
    return b->o.depth + (b->o.n_round + 1) * MAX_STEP;
}

static void part_decode(struct bench *b)
{
    struct side full, kept;
    char budget[16], what[TEXT_SIZE];
    snprintf(budget, sizeof(budget), "%d", b->o.budget);
    snprintf(what, sizeof(what), "depth %d, f16", b->o.depth);
    side_open(&full, b, NULL, "f16", b->o.depth + N_STEP, 0);
    side_fill(&full, b->o.depth);
    side_open(&kept, b, budget, "f16", most_tokens(b), 0);
    side_fill(&kept, b->o.depth);
    add_memory(&full, &kept);
    compare(&full, &kept, what, "at least 2");
    side_close(&full);
    side_close(&kept);
}

/* How many sequences a KV memory of fixed size holds. */
static void add_fit(struct bench *b, const char *type, const char *budget)
{
    int64_t each = bytes_of_one(b, budget, type, b->o.depth + N_STEP);
    figure(b, (double)(((int64_t)b->o.fixed_mib << 20) / each), NAN, "sequences", "",
           "%d MiB hold at depth %d, %s, %s%s", b->o.fixed_mib, b->o.depth, type,
           budget != NULL ? "budget " : "full", budget != NULL ? budget : "");
}

/* In q8_0, because in f16 not one full sequence of Qwen3-0.6B at depth 16,384 fits in 1 GiB. */
static void part_fixed(struct bench *b)
{
    struct side full, kept;
    char budget[16], what[TEXT_SIZE];
    int64_t bytes = (int64_t)b->o.fixed_mib << 20;
    snprintf(budget, sizeof(budget), "%d", b->o.budget);
    snprintf(what, sizeof(what), "depth %d, q8_0, %d MiB", b->o.depth, b->o.fixed_mib);
    for (int32_t i = 0; i < 4; i++)
        add_fit(b, i < 2 ? "f16" : "q8_0", i % 2 == 0 ? NULL : budget);
    side_open(&full, b, NULL, "q8_0", b->o.depth + N_STEP, bytes);
    side_open(&kept, b, budget, "q8_0", most_tokens(b), bytes);
    if (full.n_seq > 0 && kept.n_seq > 0) {
        side_fill(&full, b->o.depth);
        side_fill(&kept, b->o.depth);
        compare(&full, &kept, what, "at least 6");
    }
    side_close(&full);
    side_close(&kept);
}

/* Seconds of a prompt's pass of N_PASS tokens at a depth. */
struct point {
    double depth; /* of its middle */
    double seconds;
};

/* Time per token between and beyond the points, by straight lines. */
static double interpolate(const struct point *p, double depth)
{
    int32_t i = 0;
    while (i < N_POINT - 2 && p[i + 1].depth < depth)
        i++;
    double slope = (p[i + 1].seconds - p[i].seconds) / (p[i + 1].depth - p[i].depth);
    return p[i].seconds + slope * (depth - p[i].depth);
}

/* Fills up to a place where no round is due for N_PASS tokens, and reads these for real. */
static struct point measure_pass(struct side *s, int32_t depth)
{
    pith_error err = {0};
    pith_seq *seq = s->seq[0];
    struct keep_point at;
    check(fill_to(&s->b->fill, seq, depth, &s->rounds, &err), &err);
    at = (struct keep_point){seq->n_token, 0, 0.0};
    int32_t room = keep_room(s->engine->keep.handle, seq->memory.kv, at, N_PASS + 1);
    if (room <= N_PASS)
        check(fill_to(&s->b->fill, seq, seq->n_token + room, &s->rounds, &err), &err);
    double middle = seq->n_token + 0.5 * N_PASS, start = pi_time_s();
    check(pith_seq_eval(seq, s->b->tokens, N_PASS, &err), &err);
    return (struct point){middle, pi_time_s() - start};
}

/* One prompt: the passes' seconds, from a few; the rounds' are in the side. */
static double sampled_prefill(struct side *s, int32_t n_token)
{
    struct point point[N_POINT];
    double seconds = 0.0;
    pith_error err = {0};
    for (int32_t i = 0; i < N_POINT; i++)
        point[i] = measure_pass(s, (int32_t)((int64_t)(n_token - 4 * N_PASS) * i / (N_POINT - 1)));
    check(fill_to(&s->b->fill, s->seq[0], n_token, &s->rounds, &err), &err);
    for (int32_t n = 0; n + N_PASS <= n_token; n += N_PASS)
        seconds += interpolate(point, n + 0.5 * N_PASS);
    return seconds;
}

static double whole_prefill(struct side *s, int32_t n_token)
{
    pith_error err = {0};
    double start = pi_time_s();
    check(pith_seq_eval(s->seq[0], s->b->tokens, n_token, &err), &err);
    return pi_time_s() - start - s->seq[0]->keep.tally.seconds;
}

static void part_prefill(struct bench *b)
{
    int32_t n = b->o.prefill;
    for (int32_t r = 0; r < b->o.n_round; r++) {
        struct side s;
        b->machine = machine_of(b->o.n_thread);
        side_open(&s, b, "90%", "f16", n, 0);
        double passes = b->o.whole ? whole_prefill(&s, n) : sampled_prefill(&s, n);
        double rounds = keep_seconds(&s), n_round = (double)s.seq[0]->keep.tally.n_round;
        double bound = b->o.whole ? NAN : round_bound(&s) * n_round;
        figure(b, passes, NAN, "s", "", "prompt of %d at 90%%, passes%s", n,
               b->o.whole ? "" : ", from 5 depths");
        figure(b, rounds, bound, "s", "", "prompt of %d at 90%%, %.0f rounds", n, n_round);
        figure(b, 100.0 * rounds / (passes + rounds), 100.0 * bound / passes, "%", "at most 1",
               "prompt of %d at 90%%, share of rounds", n);
        side_close(&s);
    }
}

/* ---- the whole ---- */

int main(int argc, char **argv)
{
    static struct bench b;
    static const struct {
        const char *name;
        void (*run)(struct bench *b);
    } parts[] = {{"prefill", part_prefill}, {"decode", part_decode}, {"fixed", part_fixed}};
    b.o = (struct options){.policy = "triattention:v3",
                           .n_round = 3,
                           .prefill = 32768,
                           .depth = 16384,
                           .budget = 2048,
                           .fixed_mib = 1024};
    rig_options(argc, argv, option_table, &b.o);
    bench_open(&b);
    for (size_t i = 0; i < PI_LEN(parts); i++)
        if (rig_wants(b.o.parts, parts[i].name))
            parts[i].run(&b);
    if (b.o.csv)
        print_csv(&b);
    else
        print_table(&b);
    bench_close(&b);
    return EXIT_SUCCESS;
}
