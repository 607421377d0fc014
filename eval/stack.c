/*
 * stack.c - `pith eval stack`: the costs and gains of the ways to make a cache cheaper, alone and
 * together, on the same tokens, each against the full cache. It is the table of the TriAttention V3
 * report's section 4.6, with the protocol of perplexity and differences token by token.
 *
 * Invariant: the configurations follow from the engine's options alone, and every one reads every
 * chunk. So a row differs from the first in its configuration and in nothing else.
 */
#include "reader.h"
#include "pith/policy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_SIZE 48

/* One configuration and what was measured of it. */
struct config {
    char name[NAME_SIZE];      /* "store + keep" */
    const char *budget;        /* that was put into keep; NULL: none was */
    char *keep;                /* owned: the engine's, with the budget in it; NULL: as it is */
    pith_engine_params engine; /* its keep is set where keep is not NULL */
    struct eval_tally all, after;
    struct eval_answer cost; /* of all chunks; the memory that of the one that took most */
    int64_t kv_end_bytes;    /* most at the end of a chunk */
    double seconds;          /* of the repetition that took least, .. */
    double cpu_s;            /* .. and of processor time likewise */
    int32_t first_round_at;  /* in the chunk where it came first; -1: nowhere */
};

struct stack {
    const struct eval_setup *setup;
    const struct eval_stack_params *params;
    struct eval_chunks chunks;
    struct config *configs; /* [n_config] owned; the first is the full cache */
    int32_t n_config;
    double *full; /* [n_chunk][n_scored] nll under the full cache; owned */
    double start_s;
};

static void stack_free(struct stack *s)
{
    for (int32_t i = 0; i < s->n_config; i++)
        free(s->configs[i].keep);
    free(s->configs);
    free(s->full);
    eval_chunks_free(&s->chunks);
}

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "stack: no memory for configurations");
}

/* ---- configurations ---- */

/* The parts of the engine's options that a configuration has. */
enum part { PART_STORE = 1, PART_READ = 2, PART_KEEP = 4, PART_RECALL = 8 };
#define N_PART 4

static const char *reference_type(const struct stack *s)
{
    return s->params->reference_type != NULL ? s->params->reference_type : "f16";
}

/* The parts that the options have. */
static int parts_of(const struct stack *s)
{
    const pith_engine_params *e = &s->setup->engine;
    const char *type = reference_type(s);
    bool store = strcmp(e->type_k, type) != 0 || strcmp(e->type_v, type) != 0;
    return (store ? PART_STORE : 0) | (eval_read(e) != NULL ? PART_READ : 0) |
           (!eval_is_full(e) ? PART_KEEP : 0) | (eval_recall(e) != NULL ? PART_RECALL : 0);
}

/* The row stays as it is where it is the first's: nothing was asked for. */
static pith_status add_config(struct stack *s, int parts, const char *budget, pith_error *err)
{
    static const char *const names[N_PART] = {"store", "read", "keep", "recall"};
    const pith_engine_params *e = &s->setup->engine;
    struct config *c = &s->configs[s->n_config++];
    *c =
        (struct config){.engine = *e, .first_round_at = -1, .seconds = INFINITY, .cpu_s = INFINITY};
    c->budget = parts & PART_KEEP ? budget : NULL;
    if (!(parts & PART_STORE))
        c->engine.type_k = c->engine.type_v = reference_type(s);
    if (!(parts & PART_READ))
        c->engine.read = NULL;
    if (!(parts & PART_KEEP))
        c->engine.keep = NULL;
    if (!(parts & PART_RECALL))
        c->engine.recall = NULL;
    if (parts == 0)
        c->engine.share = NULL;
    if (c->budget != NULL) {
        c->keep = eval_add_budget(e->keep, budget);
        c->engine.keep = c->keep;
        if (c->keep == NULL)
            return no_memory(err);
    }
    if (parts == 0)
        snprintf(c->name, sizeof(c->name), "%.40s", reference_type(s));
    for (int i = 0; i < N_PART; i++) {
        size_t len = strlen(c->name);
        if (parts & 1 << i)
            snprintf(c->name + len, sizeof(c->name) - len, "%s%s", len > 0 ? " + " : "", names[i]);
    }
    return pith_policy_check(PITH_KEEP, c->engine.keep, err);
}

/* Keep alone, with recall, and all parts together. */
static pith_status add_kept(struct stack *s, int parts, const char *budget, pith_error *err)
{
    const int wanted[] = {PART_KEEP, (PART_KEEP | PART_RECALL) & parts, parts};
    pith_status status = PITH_OK;
    for (int i = 0; i < 3 && status == PITH_OK; i++)
        if (i == 0 || wanted[i] != wanted[i - 1])
            status = add_config(s, wanted[i], budget, err);
    return status;
}

static pith_status add_configs(struct stack *s, pith_error *err)
{
    const struct eval_stack_params *p = s->params;
    int parts = parts_of(s), cheap = parts & (PART_STORE | PART_READ);
    if (parts == 0)
        return eval_fail(err, PITH_INVALID,
                         "stack: no storage type but %s and no policy is given, so that there is "
                         "nothing to compare",
                         reference_type(s));
    if (p->n_budget > 0 && !(parts & PART_KEEP))
        return eval_fail(err, PITH_INVALID,
                         "stack: budget = %.40s is given, but no keep policy to have it",
                         p->budgets[0]);
    if (p->n_budget > 0 && strstr(s->setup->engine.keep, "budget=") != NULL)
        return eval_fail(err, PITH_INVALID,
                         "stack: budget = %.40s is given, and \"%.100s\" has one of its own",
                         p->budgets[0], s->setup->engine.keep);
    pith_status status = add_config(s, 0, NULL, err);
    if (status == PITH_OK && (parts & PART_STORE))
        status = add_config(s, PART_STORE, NULL, err);
    if (status == PITH_OK && (parts & PART_READ))
        status = add_config(s, PART_READ, NULL, err);
    if (status == PITH_OK && cheap == (PART_STORE | PART_READ) && !(parts & PART_KEEP))
        status = add_config(s, cheap, NULL, err);
    if (status == PITH_OK && (parts & PART_KEEP) && p->n_budget == 0)
        status = add_kept(s, parts, NULL, err);
    for (int32_t i = 0; i < p->n_budget && status == PITH_OK; i++)
        status = add_kept(s, parts, p->budgets[i], err);
    return status;
}

static pith_status prepare(struct stack *s, pith_error *err)
{
    const struct eval_stack_params *p = s->params;
    if (p->n_batch < 1 || p->n_batch > p->n_ctx)
        return eval_fail(err, PITH_INVALID, "n_batch: %d is not between 1 and n_ctx = %d",
                         (int)p->n_batch, (int)p->n_ctx);
    if (p->n_repeat < 1)
        return eval_fail(err, PITH_INVALID, "repeats: %d is not positive", (int)p->n_repeat);
    pith_status status = eval_check_recall(s->setup, "stack", err);
    if (status == PITH_OK)
        status = eval_chunks_make(s->setup, p->text, p->text_len, p->n_ctx, p->n_chunk, 1,
                                  &s->chunks, err);
    if (status != PITH_OK)
        return status;
    size_t n_token = (size_t)s->chunks.n_chunk * (size_t)s->chunks.n_ctx;
    s->configs = calloc(4 + 3 * (size_t)p->n_budget + 3, sizeof(*s->configs));
    s->full = calloc(n_token, sizeof(*s->full));
    if (s->configs == NULL || s->full == NULL)
        return no_memory(err);
    return add_configs(s, err);
}

/* ---- measuring ---- */

/* The figures of a chunk; later ones are compared with the full cache's. */
static void add_chunk(struct stack *s, struct config *c, const struct eval_reader *r, int32_t chunk)
{
    double *full = s->full + (size_t)chunk * (size_t)r->n_scored;
    int32_t first = r->first_round[0];
    if (c == s->configs)
        memcpy(full, r->nll, (size_t)r->n_scored * sizeof(*full));
    eval_tally_add(&c->all, r->nll, full, 0, r->n_scored);
    eval_tally_add(&c->after, r->nll, full, eval_reader_after(r, 0), r->n_scored);
    eval_add_cost(&c->cost, &r->cost);
    if (r->kv_end_bytes > c->kv_end_bytes)
        c->kv_end_bytes = r->kv_end_bytes;
    if (first >= 0 && (c->first_round_at < 0 || first < c->first_round_at))
        c->first_round_at = first;
}

/* The whole text under one configuration; figures are taken once, because they repeat exactly. */
static pith_status read_text(struct stack *s, struct config *c, struct eval_run *run,
                             struct eval_reader *r, double fraction, double share, bool counts,
                             pith_error *err)
{
    pith_status status = eval_reader_make(&s->chunks, s->setup->model, eval_run_engine(run), run,
                                          s->params->n_batch, 1, c->name, r, err);
    double seconds = 0.0, part = share / s->chunks.n_chunk, start = eval_cpu_s();
    for (int32_t i = 0; i < s->chunks.n_chunk && status == PITH_OK; i++) {
        status = eval_reader_read(r, i, 1, fraction + i * part, part, err);
        seconds += r->cost.prompt_s;
        if (status == PITH_OK && counts)
            add_chunk(s, c, r, i);
    }
    c->seconds = fmin(seconds, c->seconds);
    c->cpu_s = fmin(eval_cpu_s() - start, c->cpu_s);
    return status;
}

static pith_status measure(struct stack *s, int32_t index, int32_t repeat, pith_error *err)
{
    struct config *c = &s->configs[index];
    struct eval_setup setup = *s->setup;
    struct eval_run *run = NULL;
    struct eval_reader reader = {0};
    double share = 1.0 / s->n_config / s->params->n_repeat;
    setup.engine = c->engine;
    pith_status status = eval_run_create(&setup, s->chunks.n_ctx, &run, err);
    if (status == PITH_OK)
        status = read_text(s, c, run, &reader, (repeat * s->n_config + index) * share, share,
                           repeat == 0, err);
    eval_reader_free(&reader);
    eval_run_free(run);
    return status;
}

/* ---- the result ---- */

static json_t *ratio(double value, double to)
{
    return eval_number(to > 0.0 ? value / to : (double)NAN);
}

static bool set_after(const struct config *c, json_t *row)
{
    const struct eval_moments *nll = &c->after.nll, *diff = &c->after.diff;
    return eval_set(row, "after_tokens", json_integer(nll->n)) &&
           eval_set(row, "after_perplexity", eval_number(exp(eval_moments_mean(nll)))) &&
           eval_set(row, "after_ratio", eval_number(exp(eval_moments_mean(diff)))) &&
           eval_set(row, "after_diff", eval_number(eval_moments_mean(diff))) &&
           eval_set(row, "after_diff_se", eval_number(eval_moments_se(diff)));
}

/* Bytes as "times fewer": the full cache's divided by the configuration's. */
static bool set_costs(const struct stack *s, const struct config *c, json_t *row)
{
    const struct config *full = s->configs;
    int64_t peak = c->cost.kv_peak_bytes;
    bool ok =
        eval_set(row, "kv_peak_bytes", json_integer(peak)) &&
        eval_set(row, "peak_fewer", ratio((double)full->cost.kv_peak_bytes, (double)peak)) &&
        eval_set(row, "kv_end_bytes", json_integer(c->kv_end_bytes)) &&
        eval_set(row, "end_fewer", ratio((double)full->kv_end_bytes, (double)c->kv_end_bytes)) &&
        eval_set(row, "seconds", eval_number(c->seconds)) &&
        eval_set(row, "time_ratio", ratio(c->seconds, full->seconds)) &&
        eval_set(row, "cpu_seconds", eval_number(c->cpu_s)) &&
        eval_set(row, "cpu_ratio", ratio(c->cpu_s, full->cpu_s)) &&
        eval_set(row, "evicted", json_integer(c->cost.evicted)) &&
        eval_set(row, "first_round_at",
                 c->first_round_at >= 0 ? json_integer(c->first_round_at) : json_null());
    if (ok && (parts_of(s) & PART_RECALL))
        ok = eval_set(row, "recall_bytes", json_integer(c->cost.recall.ram_bytes)) &&
             eval_set(row, "recall_seconds", eval_number(c->cost.recall.seconds));
    return ok;
}

static bool add_row(const struct stack *s, const struct config *c, json_t *rows)
{
    json_t *row = json_object();
    const struct eval_moments *diff = &c->all.diff;
    double mean = eval_moments_mean(diff);
    return json_array_append_new(rows, row) == 0 && eval_set(row, "config", json_string(c->name)) &&
           eval_set(row, "budget", c->budget != NULL ? json_string(c->budget) : json_null()) &&
           eval_set_perplexity(row, "perplexity", "perplexity_se", &c->all.nll) &&
           eval_set(row, "ratio", eval_number(exp(mean))) &&
           eval_set(row, "diff", eval_number(mean)) &&
           eval_set(row, "diff_se", eval_number(eval_moments_se(diff))) &&
           eval_set(row, "diff_se_chunks", eval_number(eval_moments_se(&c->all.diff_chunk))) &&
           set_after(c, row) && set_costs(s, c, row);
}

static json_t *make_settings(const struct stack *s)
{
    const pith_engine_params *e = &s->setup->engine;
    const struct eval_stack_params *p = s->params;
    json_t *budgets = json_array();
    for (int32_t i = 0; i < p->n_budget; i++)
        json_array_append_new(budgets, json_string(p->budgets[i]));
    return json_pack("{s:i, s:i, s:i, s:I, s:s, s:s, s:s, s:s, s:s*, s:s*, s:o, s:i}", "n_ctx",
                     (int)p->n_ctx, "n_batch", (int)p->n_batch, "chunks", (int)s->chunks.n_chunk,
                     "text_bytes", (json_int_t)p->text_len, "reference_type", reference_type(s),
                     "type_k", e->type_k, "type_v", e->type_v, "keep", eval_policy(e), "read",
                     eval_read(e), "recall", eval_recall(e), "budgets", budgets, "repeats",
                     (int)p->n_repeat);
}

/* Says of every configuration with a keep policy in which nothing was evicted that it is full. */
static json_t *make_note(const struct stack *s)
{
    struct eval_text note = {0};
    pith_model_info info;
    pith_model_get_info(s->setup->model, &info);
    for (int32_t i = 0; i < s->n_config; i++) {
        const struct config *c = &s->configs[i];
        if (!eval_is_full(&c->engine) && c->cost.evicted == 0)
            eval_text_printf(&note,
                             "%sNothing was evicted under \"%s\"%s%s: chunks of %d tokens are too "
                             "short for a round.",
                             note.len > 0 ? " " : "", c->name, c->budget != NULL ? " at " : "",
                             c->budget != NULL ? c->budget : "", (int)s->chunks.n_ctx);
    }
    if (s->chunks.n_ctx > info.n_ctx_train)
        eval_text_printf(&note,
                         "%sChunks of %d tokens are longer than the %d of the model's training.",
                         note.len > 0 ? " " : "", (int)s->chunks.n_ctx, (int)info.n_ctx_train);
    json_t *value = note.failed ? NULL : json_string(note.len > 0 ? note.data : "");
    eval_text_free(&note);
    return value;
}

/* The columns that fit a terminal. */
static json_t *shown_columns(const struct stack *s)
{
    static const char *const shown[] = {
        "config",           "budget",     "perplexity",    "diff",          "diff_se",
        "after_perplexity", "after_diff", "after_diff_se", "kv_peak_bytes", "peak_fewer",
        "end_fewer",        "seconds",    "time_ratio",    "recall_seconds"};
    json_t *keys = json_array();
    size_t n = sizeof(shown) / sizeof(shown[0]);
    if (!(parts_of(s) & PART_RECALL))
        n--;
    for (size_t i = 0; i < n; i++)
        json_array_append_new(keys, json_string(shown[i]));
    return keys;
}

static pith_status make_result(struct stack *s, json_t **result, pith_error *err)
{
    pith_model_info info;
    json_t *rows = json_array();
    bool ok = rows != NULL;
    pith_model_get_info(s->setup->model, &info);
    for (int32_t i = 0; i < s->n_config && ok; i++)
        ok = add_row(s, &s->configs[i], rows);
    json_t *note = make_note(s);
    if (note != NULL && json_string_length(note) == 0) {
        json_decref(note);
        note = NULL;
    }
    json_t *summary = json_pack("{s:i, s:I, s:I, s:f, s:o*}", "n", (int)s->n_config, "tokens",
                                (json_int_t)s->configs[0].all.nll.n, "prompt_tokens",
                                (json_int_t)s->chunks.n_chunk * s->chunks.n_ctx, "seconds",
                                eval_clock_s() - s->start_s, "note", note);
    json_t *r =
        json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:O}", "task", "stack", "model",
                  eval_json_text(info.name), "policy", "several", "settings", make_settings(s),
                  "summary", summary, "columns", shown_columns(s), "rows", rows);
    json_decref(rows);
    if (!ok || r == NULL) {
        json_decref(r);
        return eval_fail(err, PITH_NOMEM, "stack: no memory for the result");
    }
    *result = r;
    return PITH_OK;
}

pith_status eval_stack(const struct eval_setup *setup, const struct eval_stack_params *params,
                       json_t **result, pith_error *err)
{
    struct stack s = {.setup = setup, .params = params, .start_s = eval_clock_s()};
    pith_status status = prepare(&s, err);
    /* Repetitions go round all configurations, so that a slow minute does not meet one alone. */
    for (int32_t r = 0; r < params->n_repeat && status == PITH_OK; r++)
        for (int32_t i = 0; i < s.n_config && status == PITH_OK; i++)
            status = measure(&s, i, r, err);
    if (status == PITH_OK)
        status = make_result(&s, result, err);
    stack_free(&s);
    return status;
}
