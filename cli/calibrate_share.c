/*
 * calibrate_share.c - `pith calibrate share`: how far apart the pages of a model's steps are. It
 * prints histograms of each distance, of pages that hold the same tokens, of other pages of like
 * steps, and of pages taken by chance. Nothing is shared meanwhile, so that the pages are the
 * model's own.
 *
 * The text is run twice, over two engines: the policy compares like steps, and the control that
 * takes pages by chance compares those. Invariant: both see the same tokens, one at a time.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calibrate_share.h"
#include "command.h"
#include "share.h"
#include "pith/policy.h"

#define N_BIN 12
#define BAR 40          /* columns of the longest bar */
#define LEAST_PAIRS 100 /* of a quantile of one percent */

enum kind { SAME, ALIKE, CHANCE, N_KIND };
enum distance { RMS, RELATIVE, PAPER, N_DISTANCE };

static const char *const kind_names[] = {"same tokens", "like steps", "by chance"};
static const char *const distance_names[] = {"rms", "relative", "paper"};

struct values {
    double *at; /* [n] */
    size_t n, cap;
};

struct gathering {
    struct values v[N_KIND][N_DISTANCE];
    double step; /* pages of steps more alike than this are no chance */
};

static void add(struct values *v, double x)
{
    if (v->n == v->cap) {
        v->cap = v->cap > 0 ? 2 * v->cap : 256;
        v->at = realloc(v->at, v->cap * sizeof(*v->at));
        if (v->at == NULL)
            cli_fail("no memory for %zu distances", v->cap);
    }
    v->at[v->n++] = x;
}

static void add_pair(struct gathering *g, enum kind kind, const pith_share_pair *p)
{
    add(&g->v[kind][RMS], p->rms);
    add(&g->v[kind][RELATIVE], p->relative);
    add(&g->v[kind][PAPER], p->paper);
}

static void on_alike(void *user, const pith_share_pair *p)
{
    const int32_t *tokens = pith_seq_tokens(p->seq);
    bool same = memcmp(tokens + p->pos, tokens + p->from_pos, (size_t)p->n * sizeof(*tokens)) == 0;
    add_pair(user, same ? SAME : ALIKE, p);
}

static void on_chance(void *user, const pith_share_pair *p)
{
    struct gathering *g = user;
    if (p->cosine <= g->step)
        add_pair(g, CHANCE, p);
}

/* ---- running ---- */

void share_calibrate_check(const char *share)
{
    if (strncmp(share, "memshare", strlen("memshare")) != 0)
        cli_fail_usage("--share %.40s: memshare alone has thresholds to find", share);
}

/* The value of an option in the policy's text, or its default. */
static double option_of(const char *share, const char *key)
{
    char find[32];
    pith_param_info p;
    snprintf(find, sizeof(find), "%s=", key);
    for (const char *at = strchr(share, ':'); at != NULL; at = strchr(at, ',')) {
        at++;
        if (strncmp(at, find, strlen(find)) == 0)
            return atof(at + strlen(find));
    }
    for (int32_t j = 0; pith_policy_get_param(PITH_SHARE, 0, j, &p) == PITH_OK; j++)
        if (strcmp(p.key, key) == 0)
            return atof(p.fallback);
    return 0.0;
}

/* Evaluates tokens one after the other. */
static void run_tokens(pith_seq *seq, const int32_t *tokens, int32_t n,
                       struct cli_progress *progress, double from, double to)
{
    pith_error err;
    for (int32_t i = 0; i < n; i++) {
        pith_batch_item item = {
            .seq = seq, .tokens = tokens + i, .n_token = 1, .logits = PITH_LOGITS_NONE};
        session_check(pith_batch_eval(pith_seq_engine(seq), &item, 1, NULL, NULL, &err), &err);
        if (!cli_progress_step(progress, from + (to - from) * (i + 1) / n))
            cli_exit(EXIT_INTERRUPTED);
    }
}

/* The tokens that the model writes after the prompt. */
static void generate(struct session *s, const struct share_source *from)
{
    pith_generate_params p;
    pith_error err;
    pith_generate_params_default(&p);
    p.n_predict = from->n_generate;
    p.sample.temperature = from->temperature;
    p.sample.seed = (uint64_t)from->seed;
    session_check(pith_generate(s->seq, from->ids->data, from->ids->n, &p, NULL, NULL, NULL, &err),
                  &err);
}

static void start(struct session *s, const struct model_options *m,
                  const struct memory_options *memory, const char *share, int32_t n_token,
                  pith_share_fn *fn, struct gathering *g)
{
    pith_error err;
    struct memory_options o = *memory;
    o.share = share;
    session_start(s, m, &o, n_token);
    cli_check(pith_engine_set_share_log(s->engine, fn, g, true, &err), &err);
}

/* ---- drawing ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const struct values *v, double q)
{
    return v->n > 0 ? v->at[(size_t)(q * (double)(v->n - 1) + 0.5)] : 0.0;
}

static void print_quantiles(const struct gathering *g, enum distance d)
{
    static const double at[] = {0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0};
    printf("  %-14s %8s", "", "pairs");
    for (size_t i = 0; i < sizeof(at) / sizeof(*at); i++)
        printf(" %7.0f%%", 100.0 * at[i]);
    printf("\n");
    for (int k = 0; k < N_KIND; k++) {
        const struct values *v = &g->v[k][d];
        printf("  %-14s %8zu", kind_names[k], v->n);
        for (size_t i = 0; v->n > 0 && i < sizeof(at) / sizeof(*at); i++)
            printf(" %8.4f", quantile(v, at[i]));
        printf("\n");
    }
}

static size_t count_between(const struct values *v, double lo, double hi, bool last)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n; i++)
        n += v->at[i] >= lo && (v->at[i] < hi || last);
    return n;
}

static void print_histogram(const struct gathering *g, enum distance d)
{
    double most = 0.0;
    for (int k = 0; k < N_KIND; k++)
        most = quantile(&g->v[k][d], 1.0) > most ? quantile(&g->v[k][d], 1.0) : most;
    for (int i = 0; i < N_BIN; i++) {
        double lo = most * i / N_BIN, hi = most * (i + 1) / N_BIN;
        printf("  %8.4f ", lo);
        for (int k = 0; k < N_KIND; k++) {
            const struct values *v = &g->v[k][d];
            double share =
                v->n > 0 ? (double)count_between(v, lo, hi, i == N_BIN - 1) / (double)v->n : 0.0;
            int n = (int)(share * BAR / 2 + 0.5);
            printf("|%-*.*s", BAR / 2, n > BAR / 2 ? BAR / 2 : n,
                   "########################################");
        }
        printf("|\n");
    }
}

#define LEAST_LIKE 8 /* pairs from which block=auto measures, too */
#define LEAST_CHANCE 4
#define LIKE_SHARE 0.1
#define CHANCE_SHARE 0.01

/* The threshold that block=auto comes to: a quantile of all pages of like steps, but below nearly
   all that chance takes. 0: there are too few. */
static double measured(const struct gathering *g)
{
    double block = 0.0;
    struct values like = {0};
    const struct values *chance = &g->v[CHANCE][RMS];
    for (int k = SAME; k <= ALIKE; k++)
        for (size_t i = 0; i < g->v[k][RMS].n; i++)
            add(&like, g->v[k][RMS].at[i]);
    if (like.n >= LEAST_LIKE && chance->n >= LEAST_CHANCE) {
        qsort(like.at, like.n, sizeof(double), compare);
        double x = quantile(&like, LIKE_SHARE), y = quantile(chance, CHANCE_SHARE);
        block = x < y ? x : y;
    }
    free(like.at);
    return block;
}

static void print_measured(const struct gathering *g)
{
    double block = measured(g);
    if (block > 0.0)
        printf("\n%.0f %% of the pages of like steps lie below this, and all but %.0f %% of random "
               "pages are further apart: block=%.3g\n",
               100.0 * LIKE_SHARE, 100.0 * CHANCE_SHARE, block);
}

/* For each distance the value that only one of a hundred pages with other tokens is below. These
   are pages of like steps, which a threshold must tell from pages that say the same. */
static void print_suggestion(const struct gathering *g)
{
    if (g->v[ALIKE][RMS].n < LEAST_PAIRS) {
        printf(
            "\n%zu pages of like steps with other tokens are too few to suggest thresholds from; "
            "a longer text has more\n",
            g->v[ALIKE][RMS].n);
        return;
    }
    printf("\nBelow these lies one of a hundred pages of like steps that hold other tokens:\n"
           "  block=%.3g,relative=%.3g, or form=paper,block=%.3g\n",
           quantile(&g->v[ALIKE][RMS], 0.01), quantile(&g->v[ALIKE][RELATIVE], 0.01),
           quantile(&g->v[ALIKE][PAPER], 0.01));
}

static void print(struct gathering *g, const pith_share_stats *t, int32_t n_token)
{
    printf("tokens        %d\nsteps         %lld, of which %lld have one like them before\n",
           n_token, (long long)t->steps_closed, (long long)t->steps_similar);
    for (int d = 0; d < N_DISTANCE; d++) {
        printf("\n"
               "%s: quantiles, and from each value on the share of pages with the same tokens, of "
               "other\n"
               "pages of like steps, and of random pages\n",
               distance_names[d]);
        print_quantiles(g, (enum distance)d);
        print_histogram(g, (enum distance)d);
    }
    print_measured(g);
    print_suggestion(g);
}

/* Runs the text over both engines, the first of them s's, and sorts the distances. Returns its
   tokens. */
static int32_t gather(struct session *s, const struct model_options *m,
                      const struct memory_options *memory, const struct share_source *from,
                      struct gathering *g, pith_share_stats *stats)
{
    struct cli_progress progress = {.what = "comparing", .on = cli_progress_wanted()};
    struct session chance = {.model = s->model, .info = s->info};
    pith_error err;
    int32_t n_most = from->ids->n + from->n_generate + 1;
    cli_interrupt_catch();
    start(s, m, memory, memory->share, n_most, on_alike, g);
    if (from->n_generate > 0)
        generate(s, from);
    else
        run_tokens(s->seq, from->ids->data, from->ids->n, &progress, 0.0, 0.5);
    pith_seq_share_stats(s->seq, stats);

    bool literal = strstr(memory->share, "mode=literal") != NULL;
    start(&chance, m, memory, literal ? "random:share=1,mode=literal" : "random:share=1", n_most,
          on_chance, g);
    int32_t n = pith_seq_length(s->seq), n_prompt = from->n_generate > 0 ? from->ids->n : 0;
    if (n_prompt > 0)
        session_check(pith_seq_eval(chance.seq, from->ids->data, n_prompt, &err), &err);
    run_tokens(chance.seq, pith_seq_tokens(s->seq) + n_prompt, n - n_prompt, &progress, 0.5, 1.0);
    cli_progress_end(&progress);
    chance.model = NULL; /* the other session's */
    session_free(&chance);
    for (int k = 0; k < N_KIND; k++)
        for (int d = 0; d < N_DISTANCE; d++)
            if (g->v[k][d].n > 0)
                qsort(g->v[k][d].at, g->v[k][d].n, sizeof(double), compare);
    return n;
}

static void free_gathering(struct gathering *g)
{
    for (int k = 0; k < N_KIND; k++)
        for (int d = 0; d < N_DISTANCE; d++)
            free(g->v[k][d].at);
}

void share_calibrate(struct session *s, const struct model_options *m,
                     const struct memory_options *memory, const struct share_source *from)
{
    struct gathering g = {.step = option_of(memory->share, "step")};
    pith_share_stats stats;
    int32_t n = gather(s, m, memory, from, &g, &stats);
    print(&g, &stats, n);
    free_gathering(&g);
}

static bool can_share(const struct session *s, const struct model_options *m,
                      const struct memory_options *memory)
{
    pith_engine *e = NULL;
    pith_engine_params p = engine_params(m, memory);
    p.memory_bytes = p.kv_bytes = 0;
    p.kv_tokens = 1;
    bool can = pith_engine_create(s->model, &p, &e, NULL) == PITH_OK;
    pith_engine_free(e);
    return can;
}

double share_threshold(const struct session *s, const struct model_options *m,
                       const struct memory_options *memory, const struct share_source *from)
{
    struct memory_options o = *memory;
    struct session own = {.model = s->model, .info = s->info};
    o.share = "memshare";
    struct gathering g = {.step = option_of(o.share, "step")};
    pith_share_stats stats;
    double block = 0.0;
    if (can_share(s, m, &o)) {
        gather(&own, m, &o, from, &g, &stats);
        block = measured(&g);
    }
    own.model = NULL; /* the other session's */
    session_free(&own);
    free_gathering(&g);
    return block;
}
