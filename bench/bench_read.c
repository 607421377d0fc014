/*
 * bench_read.c - the costs and gains of reading a part of the cache in one layer. Full attention by
 * the same kernel with the same threads is the comparison. Lanes are random (read_store.h), so
 * chosen entries are scattered: the worst case for a gather.
 *
 *   chunk    128 tokens behind T entries under QuoKA, for a budget in entries and one in shares;
 *            its parts apart; full attention beside the measured peak of multiply-adds
 *   prefill  the sum of the chunks 0 .. T, from those that were measured: full attention takes a
 *            time in proportion to the entries, choosing too, so that straight lines lie between
 *   gate     around T = budget, with the gate away: where a part begins to be faster than all
 *   decode   one token behind T entries, with the gate away, scored by the keys themselves and by
 *            their int8 copies; and a chunk by both
 *   methods  a chunk under every read policy, the mean over the layers of the whole model
 *
 * The parts of a chunk are timed by themselves: `select` (queries; quoka.h), `score` (kv_score) and
 * `top` (kv_choose). `attend` is full attention over as many entries as were chosen, and `gather`
 * the additional time of attention over the chosen ones. They run beside the chunk that counts,
 * which goes through the engine's own reader. All of it takes turns in every round; medians over
 * the rounds.
 *
 * usage: bench_read [options]; see --help
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "policy/read/quoka.h"
#include "read_rows.h"
#include "read_store.h"

#define MAX_POINT 40
#define DECODE_PER_ROUND 5 /* a step takes a thousandth of a chunk */
#define MAX_ROUND 100

struct options {
    const char *parts; /* NULL: all */
    struct option_ints lengths;
    int32_t budget;
    int32_t n_round;
    int32_t n_thread; /* 0: all processors */
    bool csv;
    const char *cpu;
};

static const struct option option_table[] = {
    RIG_TEXT("--parts", "NAME,...", parts, "all", "of chunk (with prefill), gate, decode, methods"),
    RIG_INTS("--lengths", lengths, SHAPE_CHUNK, 1 << 20, "entries, ascending, multiples of 128"),
    RIG_INT("--budget", budget, 8, 1 << 16, "entries that a chunk reads beside its own"),
    RIG_INT("--rounds", n_round, 1, MAX_ROUND, "turns of each"),
    RIG_INT("--threads", n_thread, 0, 1024, "0: all processors"),
    RIG_CPU(cpu),
    RIG_CSV(csv),
    {0},
};

/* ---- the parts of a chunk ---- */

/* One chunk under QuoKA in steps, for the threads. */
struct steps {
    const struct store *st;
    const struct side *s;
    const struct place *p;
    struct read_view view;
    size_t scratch_size;
    uint8_t *scratch; /* [SHAPE_HEADS][scratch_size] */
    float *score;     /* [SHAPE_HEADS][p->n] */
    struct quoka_queries queries[SHAPE_HEADS];
    size_t score_size;
    uint8_t *score_scratch; /* [SHAPE_HEADS][score_size] */
    size_t top_size;
    uint8_t *top_scratch; /* [SHAPE_HEADS][top_size] */
    int32_t n_read;
    int32_t *slots; /* [SHAPE_HEADS][n_read] */
};

static const struct quoka_form *form_of(const struct side *s)
{
    return (const struct quoka_form *)(const void *)s->config.params.bytes;
}

static void steps_open(struct steps *w, const struct store *st, const struct side *s,
                       int32_t longest)
{
    *w = (struct steps){.st = st, .s = s};
    w->scratch_size = pi_align(quoka_queries_scratch(form_of(s), &st->model, SHAPE_CHUNK), 64);
    w->score_size = pi_align(kv_score_scratch_bytes(&st->model.g, form_of(s)->n_query), 64);
    w->top_size = pi_align(kv_choose_scratch_bytes(longest), 64);
    w->scratch = memory(SHAPE_HEADS * w->scratch_size);
    w->score_scratch = memory(SHAPE_HEADS * w->score_size);
    w->top_scratch = memory(SHAPE_HEADS * w->top_size);
    w->score = memory((size_t)SHAPE_HEADS * (size_t)longest * sizeof(float));
    w->slots = memory((size_t)SHAPE_HEADS * (size_t)longest * sizeof(int32_t));
}

static void steps_close(struct steps *w)
{
    pi_mem_free(w->scratch);
    pi_mem_free(w->score_scratch);
    pi_mem_free(w->top_scratch);
    pi_mem_free(w->score);
    pi_mem_free(w->slots);
}

static void step_select(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct steps *w = ctx;
    (void)thread;
    for (int64_t h = begin; h < end; h++) {
        const struct read_chunk c = store_chunk(w->st, w->p, (int32_t)h);
        quoka_queries_make(form_of(w->s), &w->st->model, &c,
                           w->scratch + (size_t)h * w->scratch_size, &w->queries[h]);
    }
}

static void step_score(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct steps *w = ctx;
    (void)thread;
    for (int64_t h = begin; h < end; h++) {
        struct kv_score_job job = {
            .seq = w->p->seq,
            .layer = w->p->layer,
            .head = (int32_t)h,
            .n = w->p->n,
            .kind = form_of(w->s)->index == QUOKA_INT8 ? KV_SCORE_UNIT8 : KV_SCORE_COSINE,
            .reduce = KV_SCORE_MAX,
            .q = w->queries[h].q,
            .n_q = w->queries[h].n,
            .out = w->score + (size_t)h * (size_t)w->p->n,
        };
        kv_score(&job, w->score_scratch + (size_t)h * w->score_size);
    }
}

static void step_top(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    struct steps *w = ctx;
    (void)thread;
    for (int64_t h = begin; h < end; h++) {
        const struct read_rules *rules = &w->s->config.rules;
        int32_t *slots = w->slots + (size_t)h * (size_t)w->n_read;
        const float *score = w->score + (size_t)h * (size_t)w->p->n;
        struct kv_choose_job job = read_choice(rules, score, w->p->n, w->n_read, slots);
        kv_choose(&job, w->top_scratch + (size_t)h * w->top_size);
        read_fill(rules, w->p->n, w->n_read, slots);
    }
}

/* ---- chunks of a prompt ---- */

/* The measurements at one depth. */
struct point {
    struct place p;
    int32_t n_read; /* that the rules choose; p.n: everything is read */
    struct samples figure[N_FIGURE];
    double median[N_FIGURE];
};

struct curve {
    struct point point[MAX_POINT];
    int32_t n;
};

static bool is_sparse(const struct point *pt)
{
    return pt->n_read < pt->p.n;
}

static void curve_add(struct curve *c, const struct store *st, const struct side *s, int32_t n)
{
    struct point *pt = &c->point[c->n];
    for (int32_t i = 0; i < c->n; i++)
        if (c->point[i].p.n == n)
            return;
    if (c->n == MAX_POINT)
        stop(&(pith_error){.message = "--lengths: too many for one run"});
    pt->p = (struct place){.seq = store_cut(st, n + SHAPE_CHUNK), .n_tok = SHAPE_CHUNK, .n = n};
    pt->n_read = read_budget_at(&s->config.rules, n);
    c->n++;
}

static void curve_free(struct curve *c)
{
    for (int32_t i = 0; i < c->n; i++)
        kv_seq_free(c->point[i].p.seq);
}

/* One turn of everything that is measured at a point. */
static void measure_point(struct store *st, struct side *s, struct steps *w, struct point *pt)
{
    struct place alone = pt->p;
    add(&pt->figure[DENSE], store_dense(st, &pt->p, false));
    if (!is_sparse(pt))
        return;
    struct spent spent = store_read(st, s, &pt->p);
    add(&pt->figure[CHOOSE], spent.choose);
    add(&pt->figure[ATTEND], spent.attend);
    w->p = &pt->p;
    w->n_read = pt->n_read;
    add(&pt->figure[SELECT], store_heads(st, step_select, w));
    add(&pt->figure[SCORE], store_heads(st, step_score, w));
    add(&pt->figure[TOP], store_heads(st, step_top, w));
    alone.n = pt->n_read;
    alone.seq = store_cut(st, pt->n_read + SHAPE_CHUNK);
    add(&pt->figure[ALONE], store_dense(st, &alone, true));
    kv_seq_free(alone.seq);
}

static void take_medians(struct curve *c)
{
    for (int32_t i = 0; i < c->n; i++)
        for (int f = 0; f < N_FIGURE; f++)
            c->point[i].median[f] = median(&c->point[i].figure[f]);
}

/* Seconds of a chunk as the engine reads it. */
static double read_seconds(const struct point *pt)
{
    return is_sparse(pt) ? pt->median[CHOOSE] + pt->median[ATTEND] : pt->median[DENSE];
}

static double dense_seconds(const struct point *pt)
{
    return pt->median[DENSE];
}

/* A figure at n entries, on the line between the two points beside it. Points ascend; where one
   reads everything and the next a part, the rules jump at once behind the first. */
static double between(const struct curve *c, int32_t n, double (*seconds)(const struct point *pt))
{
    int32_t i = 1;
    while (i + 1 < c->n && c->point[i].p.n < n)
        i++;
    const struct point *a = &c->point[i - 1], *b = &c->point[i];
    if (n <= a->p.n)
        return seconds(a);
    double share = (double)(n - a->p.n) / (b->p.n - a->p.n);
    return seconds(a) + share * (seconds(b) - seconds(a));
}

/* Operations of full attention: two per multiply-add of visible pairs, of keys and of values. */
static double dense_flop(int32_t n)
{
    double pairs = (double)SHAPE_CHUNK * n + 0.5 * SHAPE_CHUNK * (SHAPE_CHUNK + 1);
    return 2.0 * 2.0 * SHAPE_DIM * SHAPE_HEADS * SHAPE_GROUP * pairs;
}

/* The goal for a budget of 1,024 entries; NAN elsewhere. */
static double goal_of(const char *table, int32_t n)
{
    static const struct {
        int32_t n;
        double chunk, prefill;
    } goals[] = {{8192, 5.0, 3.3}, {16384, 9.0, 5.5}, {32768, 14.0, 9.0}, {65536, 19.0, 13.0}};
    for (size_t i = 0; i < PI_LEN(goals); i++)
        if (goals[i].n == n)
            return strcmp(table, "chunk") == 0 ? goals[i].chunk : goals[i].prefill;
    return NAN;
}

static struct row chunk_row(const char *table, const char *setting, const struct point *pt,
                            double peak)
{
    struct row r = row_of(table, setting, pt->p.n);
    memcpy(r.part, pt->median, sizeof(r.part));
    r.dense = pt->median[DENSE];
    r.sparse = read_seconds(pt);
    r.peak = dense_flop(pt->p.n) / r.dense / peak;
    r.share = (double)(pt->n_read + SHAPE_CHUNK) / (pt->p.n + SHAPE_CHUNK);
    return r;
}

static void print_chunks(const struct options *o, const char *setting, bool goals,
                         const struct curve *c, double peak)
{
    for (int32_t i = 0; i < o->lengths.n; i++)
        for (int32_t j = 0; j < c->n; j++)
            if (c->point[j].p.n == o->lengths.value[i]) {
                struct row r = chunk_row("chunk", setting, &c->point[j], peak);
                r.goal = goals ? goal_of("chunk", r.entries) : NAN;
                row_print(&r, o->csv);
            }
    for (int32_t i = 0; i < o->lengths.n; i++) {
        struct row r = row_of("prefill", setting, o->lengths.value[i]);
        r.dense = r.sparse = 0.0;
        for (int32_t n = 0; n < o->lengths.value[i]; n += SHAPE_CHUNK) {
            r.dense += between(c, n, dense_seconds);
            r.sparse += between(c, n, read_seconds);
        }
        r.goal = goals ? goal_of("prefill", r.entries) : NAN;
        row_print(&r, o->csv);
    }
}

/* Points ascend: the first chunk, the last that reads everything and the first that does not, and
   the lengths that are printed. */
static void make_curve(const struct options *o, const struct store *st, const struct side *s,
                       struct curve *c)
{
    int32_t longest = o->lengths.value[o->lengths.n - 1], last = 0;
    while (last + SHAPE_CHUNK <= longest &&
           read_budget_at(&s->config.rules, last + SHAPE_CHUNK) == last + SHAPE_CHUNK)
        last += SHAPE_CHUNK;
    curve_add(c, st, s, 0);
    if (last > 0)
        curve_add(c, st, s, last);
    if (last + SHAPE_CHUNK <= longest)
        curve_add(c, st, s, last + SHAPE_CHUNK);
    for (int32_t i = 0; i < o->lengths.n; i++)
        curve_add(c, st, s, o->lengths.value[i]);
    for (int32_t i = 1; i < c->n; i++)
        for (int32_t j = i; j > 0 && c->point[j].p.n < c->point[j - 1].p.n; j--) {
            struct point swap = c->point[j];
            c->point[j] = c->point[j - 1];
            c->point[j - 1] = swap;
        }
}

static int32_t longest_of(const struct options *o)
{
    return o->lengths.value[o->lengths.n - 1] + SHAPE_CHUNK;
}

static double peak_of(const struct options *o)
{
    return machine_of(o->n_thread).f32_flop_per_s;
}

/* The two budgets share lanes, and their chunks take turns. The peak is measured before and after,
   and the larger counts. */
static void run_chunks(const struct options *o)
{
    enum { ENTRIES, SHARE, N };
    static struct curve curve[N];
    char setting[N][80];
    struct side side[N];
    struct steps steps[N];
    struct store st;
    double peak = peak_of(o);
    snprintf(setting[ENTRIES], sizeof(setting[ENTRIES]), "quoka:budget=%d", o->budget);
    snprintf(setting[SHARE], sizeof(setting[SHARE]), "quoka:budget=25%%");
    for (int i = 0; i < N; i++)
        side_open(&side[i], setting[i], 1, longest_of(o), o->n_thread);
    store_open(&st, &side[0], 1, longest_of(o), o->n_thread);
    for (int i = 0; i < N; i++) {
        steps_open(&steps[i], &st, &side[i], longest_of(o));
        make_curve(o, &st, &side[i], &curve[i]);
    }
    for (int32_t round = 0; round < o->n_round; round++)
        for (int i = 0; i < N; i++)
            for (int32_t j = 0; j < curve[i].n; j++)
                measure_point(&st, &side[i], &steps[i], &curve[i].point[j]);
    peak = fmax(peak, peak_of(o));
    for (int i = 0; i < N; i++) {
        take_medians(&curve[i]);
        print_chunks(o, setting[i], i == ENTRIES && o->budget == 1024, &curve[i], peak);
        curve_free(&curve[i]);
        steps_close(&steps[i]);
        side_close(&side[i]);
    }
    store_close(&st);
}

/* Behind 1 to 1.5 times the budget with nothing that keeps a chunk from being chosen for. */
static void run_gate(const struct options *o)
{
    static struct curve curve;
    char setting[80];
    struct side side;
    struct steps steps;
    struct store st;
    int32_t longest = 2 * o->budget + SHAPE_CHUNK;
    double peak = peak_of(o);
    snprintf(setting, sizeof(setting), "quoka:budget=%d,gate=1", o->budget);
    side_open(&side, setting, 1, longest, o->n_thread);
    store_open(&st, &side, 1, (int32_t)pi_align((size_t)longest, 64), o->n_thread);
    steps_open(&steps, &st, &side, longest);
    for (int32_t eighth = 1; eighth <= 4; eighth++)
        curve_add(&curve, &st, &side, o->budget + eighth * o->budget / 8);
    for (int32_t round = 0; round < o->n_round; round++)
        for (int32_t i = 0; i < curve.n; i++)
            measure_point(&st, &side, &steps, &curve.point[i]);
    take_medians(&curve);
    for (int32_t i = 0; i < curve.n; i++) {
        struct row r = chunk_row("gate", setting, &curve.point[i], peak);
        row_print(&r, o->csv);
    }
    curve_free(&curve);
    steps_close(&steps);
    side_close(&side);
    store_close(&st);
}

/* ---- one token ---- */

/* Entries that both sides chose for the last place that they read, as a share of side a's; the
   place's own are not counted. */
static double overlap_of(const struct side *a, const struct side *b, int32_t n)
{
    int64_t both = 0, all = 0;
    for (int32_t h = 0; h < SHAPE_HEADS; h++) {
        const int32_t *x = a->slots + (size_t)h * (size_t)a->cap;
        const int32_t *y = b->slots + (size_t)h * (size_t)b->cap;
        for (int32_t i = 0, j = 0; i < a->n_slot[h] && x[i] < n; i++) {
            while (j < b->n_slot[h] && y[j] < x[i])
                j++;
            both += j < b->n_slot[h] && y[j] == x[i];
            all++;
        }
    }
    return all > 0 ? (double)both / (double)all : NAN;
}

static double index_bytes(const struct side *s)
{
    struct kv_geometry plain = s->g;
    plain.index = 0;
    plain.index_dim = 0;
    return 100.0 * ((double)kv_page_bytes(&s->g) / (double)kv_page_bytes(&plain) - 1.0);
}

/* Both indices side by side on equal lanes, at one length and number of tokens. */
static void run_indices(const struct options *o, const char *table, int32_t n, int32_t n_tok,
                        double goal)
{
    static const char *const names[] = {"norm", "int8"};
    enum { N = PI_LEN(names) };
    static struct samples dense, choose[N], attend[N];
    struct side side[N];
    struct store st[N];
    struct place p[N];
    char setting[N][80];
    int32_t times = n_tok == 1 ? DECODE_PER_ROUND : 1;
    double overlap[N] = {NAN, NAN};
    dense = choose[0] = choose[1] = attend[0] = attend[1] = (struct samples){0};
    for (int i = 0; i < N; i++) {
        char read[96]; /* with the gate away, which would read a lane whole up to where it pays */
        snprintf(setting[i], sizeof(setting[i]), "quoka:budget=%d,index=%s", o->budget, names[i]);
        snprintf(read, sizeof(read), "%s,gate=1", setting[i]);
        side_open(&side[i], read, 1, n + SHAPE_CHUNK, o->n_thread);
        store_open(&st[i], &side[i], 1, (int32_t)pi_align((size_t)(n + n_tok), 64), o->n_thread);
        p[i] = (struct place){.seq = store_cut(&st[i], n + n_tok), .n_tok = n_tok, .n = n};
    }
    for (int32_t turn = 0; turn < o->n_round * times; turn++) {
        add(&dense, store_dense(&st[turn % N], &p[turn % N], false));
        for (int i = 0; i < N; i++) {
            struct spent spent = store_read(&st[i], &side[i], &p[i]);
            add(&choose[i], spent.choose);
            add(&attend[i], spent.attend);
        }
    }
    overlap[1] = overlap_of(&side[1], &side[0], n);
    for (int i = 0; i < N; i++) {
        struct row r = row_of(table, setting[i], n);
        r.dense = median(&dense);
        r.part[SCORE] = median(&choose[i]);
        r.part[ATTEND] = median(&attend[i]);
        r.sparse = r.part[SCORE] + r.part[ATTEND];
        r.goal = i == 1 ? goal : NAN;
        r.share = (double)(read_budget_at(&side[i].config.rules, n) + n_tok) / (n + n_tok);
        r.index = index_bytes(&side[i]);
        r.overlap = overlap[i];
        row_print(&r, o->csv);
        kv_seq_free(p[i].seq);
        store_close(&st[i]);
        side_close(&side[i]);
    }
}

static void run_decode(const struct options *o)
{
    for (int32_t i = 0; i < o->lengths.n; i++)
        if (o->lengths.value[i] > o->budget * 2)
            run_indices(o, "decode", o->lengths.value[i], 1,
                        o->lengths.value[i] == 32768 ? 2.5 : NAN);
    for (int32_t i = 0; i < o->lengths.n; i++)
        if (o->lengths.value[i] == 32768)
            run_indices(o, "int8", o->lengths.value[i], SHAPE_CHUNK, NAN);
}

/* ---- every method ---- */

#define FILLED 4 /* layers with entries: the first of every role that a policy gives */

/* As the engine has it: a source reads everything anyway. */
static enum read_role role_of(const struct side *s, const struct policy_model *model, int32_t layer)
{
    const struct read_policy *p = s->config.policy;
    enum read_role role = p->role != NULL ? p->role(&s->config.params, model, layer) : READ_OWN;
    return layer < s->config.rules.dense_layers && role != READ_SOURCE ? READ_DENSE : role;
}

/* Layers of each role, and the first of each. */
struct roles {
    int32_t n[READ_REUSE + 1];
    int32_t first[READ_REUSE + 1];
};

static struct roles count_roles(const struct side *s, const struct policy_model *model)
{
    struct roles r = {0};
    for (int32_t l = SHAPE_LAYERS - 1; l >= 0; l--) {
        enum read_role role = role_of(s, model, l);
        r.n[role]++;
        r.first[role] = l;
    }
    return r;
}

/* As QuoKA compares with it, where a policy is not made for prompts. */
static void method_options(const struct options *o, const struct read_policy *policy,
                           const char *basis, char *buf, size_t cap)
{
    bool preset = false, loki = strcmp(policy->name, "loki") == 0;
    for (int32_t i = 0; policy->presets != NULL && policy->presets[i].name != NULL; i++)
        preset = preset || strcmp(policy->presets[i].name, "quoka") == 0;
    snprintf(buf, cap, "%s:%sbudget=%d%s%s", policy->name, preset ? "quoka," : "", o->budget,
             loki ? ",projection=" : "", loki ? basis : "");
}

struct method {
    struct side side;
    struct store st;
    struct place p;
    struct roles roles;
    struct samples dense, choose[READ_REUSE + 1], attend[READ_REUSE + 1];
};

/* One layer where all are alike, else as many as the model has. */
static void method_open(const struct options *o, const char *setting, int32_t n, struct method *m)
{
    pith_error err = {0};
    *m = (struct method){0};
    if (read_config_parse(setting, &m->side.config, &err) != PITH_OK)
        stop(&err);
    bool alike = m->side.config.policy->role == NULL && m->side.config.rules.dense_layers == 0;
    side_open(&m->side, setting, alike ? 1 : SHAPE_LAYERS, n + SHAPE_CHUNK, o->n_thread);
    struct policy_model model = {.g = m->side.g, .n_group = SHAPE_GROUP};
    if (alike)
        m->roles.n[READ_OWN] = SHAPE_LAYERS;
    else
        m->roles = count_roles(&m->side, &model);
    store_open(&m->st, &m->side, alike ? 1 : FILLED, n + SHAPE_CHUNK, o->n_thread);
    m->p = (struct place){.seq = store_cut(&m->st, n + SHAPE_CHUNK), .n_tok = SHAPE_CHUNK, .n = n};
}

static void method_close(struct method *m)
{
    kv_seq_free(m->p.seq);
    store_close(&m->st);
    side_close(&m->side);
}

/* A chunk in a layer of every role, a source before what reuses its choice. */
static void method_turn(struct method *m)
{
    m->p.layer = 0;
    add(&m->dense, store_dense(&m->st, &m->p, false));
    for (int role = 0; role <= READ_REUSE; role++) {
        if (m->roles.n[role] == 0 || role == READ_DENSE)
            continue;
        m->p.layer = m->roles.first[role];
        if (m->p.layer >= FILLED)
            stop(&(pith_error){.message = "methods: a role begins behind the filled layers"});
        struct spent spent = store_read(&m->st, &m->side, &m->p);
        add(&m->choose[role], spent.choose);
        add(&m->attend[role], spent.attend);
    }
}

/* The time of one layer, the mean over the model's layers. */
static void method_print(const struct options *o, struct method *m)
{
    int32_t n = m->p.n, n_read = read_budget_at(&m->side.config.rules, n);
    struct row r = row_of("methods", m->side.config.policy->name, n);
    r.dense = median(&m->dense);
    r.sparse = m->roles.n[READ_DENSE] * r.dense / SHAPE_LAYERS;
    r.share = (double)m->roles.n[READ_DENSE] / SHAPE_LAYERS;
    r.part[SCORE] = 0.0;
    for (int role = 0; role <= READ_REUSE; role++) {
        double part = (double)m->roles.n[role] / SHAPE_LAYERS, choose;
        if (m->roles.n[role] == 0 || role == READ_DENSE)
            continue;
        choose = median(&m->choose[role]);
        r.part[SCORE] += part * choose;
        r.sparse += part * (choose + median(&m->attend[role]));
        r.share +=
            part * (role == READ_SOURCE ? 1.0 : (double)(n_read + SHAPE_CHUNK) / (n + SHAPE_CHUNK));
    }
    r.index = index_bytes(&m->side);
    row_print(&r, o->csv);
}

/* Behind the longest length up to 32,768. */
static void run_methods(const struct options *o)
{
    static struct method m;
    const struct read_policy *policy;
    char basis[64], setting[POLICY_TEXT_SIZE + 80];
    int32_t n = o->lengths.value[0];
    for (int32_t i = 1; i < o->lengths.n && o->lengths.value[i] <= 32768; i++)
        n = o->lengths.value[i];
    write_basis(basis, sizeof(basis));
    for (int32_t i = 0; (policy = read_policy_at(i)) != NULL; i++) {
        method_options(o, policy, basis, setting, sizeof(setting));
        method_open(o, setting, n, &m);
        for (int32_t round = 0; round < o->n_round; round++)
            method_turn(&m);
        method_print(o, &m);
        method_close(&m);
    }
    remove(basis);
}

/* ---- the whole ---- */

static void check_lengths(const struct option_ints *l)
{
    for (int32_t i = 0; i < l->n; i++)
        if (l->value[i] % SHAPE_CHUNK != 0 || (i > 0 && l->value[i] <= l->value[i - 1]))
            rig_usage("--lengths: ascending multiples of 128 are wanted");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(const struct options *o);
    } parts[] = {{"chunk", run_chunks},
                 {"gate", run_gate},
                 {"decode", run_decode},
                 {"methods", run_methods}};
    struct options o = {.lengths = {{1024, 2048, 4096, 8192, 16384, 32768, 65536}, 7},
                        .budget = 1024,
                        .n_round = 20};
    rig_options(argc, argv, option_table, &o);
    check_lengths(&o.lengths);
    o.n_thread = o.n_thread == 0 ? pi_thread_count() : o.n_thread;
    if (!o.csv)
        printf("one layer of 32 query and 8 KV heads of 128, f16, chunks of %d; %d threads, "
               "kernels %s, medians of %d rounds\n",
               SHAPE_CHUNK, o.n_thread, pith_cpu_level(), o.n_round);
    row_print_head(o.csv);
    for (size_t i = 0; i < PI_LEN(parts); i++)
        if (rig_wants(o.parts, parts[i].name))
            parts[i].run(&o);
    return EXIT_SUCCESS;
}
