/*
 * sweep.c - runs the cells of a plan that have no result yet, and makes the table of all of them.
 *
 * A cell is known by its hash alone. So results stay good after renaming or reordering, and a
 * changed setting runs anew beside them. The model is loaded only when something is left to run.
 */
#define _POSIX_C_SOURCE 200809L

#include "sweep.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "report_data.h"
#include "sweep_log.h"
#include "sweep_plan.h"

struct sweep {
    const struct eval_sweep_params *params;
    struct sweep_plan plan;
    struct sweep_log log;
    pith_model *model;
    json_t **lines; /* [n_cell] owned: the results, NULL where there is none yet */
    bool *left;     /* [n_cell] had no result when the run began */
    int32_t n_done; /* before this run */
    int32_t n_ran;
    int32_t n_failed;
    int32_t now;    /* the cell that runs */
    int32_t number; /* of those that were left, from 1 */
    double passed;  /* expected seconds of the cells before it, .. */
    double here;    /* .. of itself, .. */
    double all;     /* .. and of all that were left */
};

static void note(const struct sweep *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void note(const struct sweep *s, const char *fmt, ...)
{
    char line[512];
    va_list args;
    if (s->params->note == NULL)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    s->params->note(s->params->user, line);
}

/* ---- progress ---- */

struct seconds {
    double sum;
    int32_t n;
};

static void add_seconds(struct seconds *s, double seconds)
{
    s->sum += seconds;
    s->n++;
}

/* Predicts the time of all cells: each takes the mean of the known cells of its task, or of all.
   Once per cell, because a cell tells its progress very often. */
static pith_status foresee(struct sweep *s, pith_error *err)
{
    struct seconds all = {0}, *of_task = calloc((size_t)s->plan.n_task, sizeof(*of_task));
    if (of_task == NULL)
        return eval_fail(err, PITH_NOMEM, "no memory for the times of %d tasks", s->plan.n_task);
    for (int32_t i = 0; i < s->plan.n_cell; i++) {
        double known = results_number(json_object_get(s->lines[i], "summary"), "seconds");
        if (known > 0) {
            add_seconds(&all, known);
            add_seconds(&of_task[s->plan.cells[i].task], known);
        }
    }
    s->number = 0;
    s->passed = s->here = s->all = 0.0;
    for (int32_t i = 0; i < s->plan.n_cell; i++) {
        const struct seconds *t = &of_task[s->plan.cells[i].task];
        double expected = t->n > 0 ? t->sum / t->n : all.n > 0 ? all.sum / all.n : 1.0;
        if (!s->left[i])
            continue;
        s->number += i <= s->now;
        s->all += expected;
        s->passed += i < s->now ? expected : 0.0;
        s->here += i == s->now ? expected : 0.0;
    }
    free(of_task);
    return PITH_OK;
}

static bool on_progress(void *user, double fraction, const char *what)
{
    char line[256];
    const struct sweep *s = user;
    if (s->params->progress == NULL)
        return true;
    snprintf(line, sizeof(line), "%d/%d %s: %s", s->number, s->plan.n_cell - s->n_done,
             s->plan.cells[s->now].key, what);
    return s->params->progress(s->params->user,
                               fmin((s->passed + fraction * s->here) / s->all, 1.0), line);
}

/* ---- what is there ---- */

/* Gives every cell its result, the last of several. */
static void match_results(struct sweep *s)
{
    size_t i;
    json_t *line;
    int32_t n_other = 0;
    json_array_foreach(s->log.results.lines, i, line)
    {
        const char *hash = results_text(json_object_get(line, "cell"), "hash");
        bool known = false;
        for (int32_t c = 0; hash != NULL && c < s->plan.n_cell; c++) {
            if (strcmp(s->plan.cells[c].hash, hash) != 0)
                continue;
            json_decref(s->lines[c]);
            s->lines[c] = json_incref(line);
            known = true;
        }
        n_other += !known;
    }
    for (int32_t c = 0; c < s->plan.n_cell; c++) {
        s->left[c] = s->lines[c] == NULL;
        s->n_done += !s->left[c];
    }
    if (s->log.results.cut)
        note(s, "%s: its last line was half written and is dropped", s->log.path);
    if (s->log.results.n_ignored > 0)
        note(s, "%s: line %d is no result and is ignored, as are %d more", s->log.path,
             s->log.results.first_ignored, s->log.results.n_ignored - 1);
    if (n_other > 0)
        note(s, "%s: %d results are of other settings than the sweep's and stay as they are",
             s->log.path, n_other);
    if (s->n_done > 0)
        note(s, "%d of %d cells are there already", s->n_done, s->plan.n_cell);
}

/* Files that the sweep's own names, which no option has. */
static void tell_files(const struct sweep *s)
{
    if (s->params->file == NULL)
        return;
    s->params->file(s->params->user, s->plan.model);
    for (int32_t i = 0; i < s->plan.n_task; i++)
        for (int k = 0; k < SWEEP_FILES; k++)
            if (s->plan.tasks[i].args.path[k] != NULL)
                s->params->file(s->params->user, s->plan.tasks[i].args.path[k]);
    if (s->params->out == NULL)
        s->params->file(s->params->user, s->plan.out);
}

static pith_status prepare(struct sweep *s, pith_error *err)
{
    pith_status status =
        sweep_plan_read(s->params->path, s->params->model, s->params->out, &s->plan, err);
    if (status != PITH_OK)
        return status;
    size_t n = (size_t)s->plan.n_cell;
    s->lines = calloc(n, sizeof(*s->lines));
    s->left = calloc(n, sizeof(*s->left));
    if (s->lines == NULL || s->left == NULL)
        return eval_fail(err, PITH_NOMEM, "no memory for %zu cells", n);
    status = sweep_log_open(s->plan.out, s->params->fresh, &s->log, err);
    if (status != PITH_OK)
        return status;
    tell_files(s);
    match_results(s);
    if (s->n_done == s->plan.n_cell)
        return PITH_OK;
    for (int32_t i = 0; i < s->plan.n_policy; i++) {
        if (s->plan.policies[i].engine.n_thread == 0)
            s->plan.policies[i].engine.n_thread = s->params->n_thread;
        s->plan.policies[i].engine.device = s->params->device;
        s->plan.policies[i].engine.n_gpu_layers = s->params->n_gpu_layers;
        s->plan.policies[i].engine.tensor_split = s->params->tensor_split;
    }
    pith_model_params load;
    pith_model_params_default(&load);
    load.n_thread = s->params->n_thread;
    load.cache_weights = s->params->cache_weights;
    return pith_model_load(s->plan.model, &load, &s->model, err);
}

/* ---- one cell ---- */

/* The engine's settings, defaults included. */
static json_t *describe_engine(const pith_engine_params *p)
{
    json_t *engine = json_pack("{s:s, s:s, s:i, s:i}", "type_k", p->type_k, "type_v", p->type_v,
                               "page", (int)p->page_len, "chunk", (int)p->chunk);
    bool ok = engine != NULL;
    if (ok && p->kv_tokens > 0)
        ok = json_object_set_new(engine, "kv_tokens", json_integer(p->kv_tokens)) == 0;
    if (ok && p->kv_bytes > 0)
        ok = json_object_set_new(engine, "kv_bytes", json_integer((json_int_t)p->kv_bytes)) == 0;
    if (ok)
        return engine;
    json_decref(engine);
    return NULL;
}

static json_t *seed_of(const struct sweep_cell *c)
{
    return c->seed != SWEEP_NO_SEED ? json_integer((json_int_t)c->seed) : json_null();
}

static json_t *describe_cell(const struct sweep *s, const struct sweep_cell *c)
{
    const struct sweep_policy *p = &s->plan.policies[c->policy];
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s?, s:o, s:o}", "key", c->key, "hash", c->hash,
                     "task", s->plan.tasks[c->task].name, "task_hash", s->plan.tasks[c->task].hash,
                     "policy", p->name, "budget", c->budget[0] != '\0' ? c->budget : NULL, "seed",
                     seed_of(c), "engine", describe_engine(&p->engine));
}

static json_t *describe_run(const struct sweep_policy *p)
{
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc) != NULL)
        strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
    int n_thread = p->engine.n_thread > 0 ? p->engine.n_thread : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return json_pack("{s:s, s:s, s:s, s:i}", "date", date, "version", pith_version(), "cpu_level",
                     pith_cpu_level(), "threads", n_thread);
}

static pith_status measure(struct sweep *s, const struct sweep_cell *c, json_t **line,
                           pith_error *err)
{
    const struct sweep_task *t = &s->plan.tasks[c->task];
    const struct sweep_policy *p = &s->plan.policies[c->policy];
    struct eval_setup setup = {.model = s->model,
                               .engine = p->engine,
                               .seed = c->seed != SWEEP_NO_SEED ? (uint64_t)c->seed : 1,
                               .chat = s->plan.chat,
                               .keep_text = s->plan.keep_text,
                               .progress = on_progress,
                               .progress_user = s};
    setup.engine.keep = c->keep;
    setup.engine.read = c->read;
    setup.engine.recall = p->recall;
    pith_status status = t->kind->run(&setup, &t->args.of, line, err);
    if (status != PITH_OK)
        return status;
    if (json_object_set_new(*line, "cell", describe_cell(s, c)) != 0 ||
        json_object_set_new(*line, "run", describe_run(p)) != 0) {
        json_decref(*line);
        return eval_fail(err, PITH_NOMEM, "no memory for a result");
    }
    return PITH_OK;
}

/* A cell that cannot be measured leaves the others to be; a result that cannot be kept, or a wish
   to stop, ends the sweep. */
static pith_status run_cell(struct sweep *s, int32_t index, pith_error *err)
{
    pith_error inner = {0};
    json_t *line = NULL;
    const struct sweep_cell *c = &s->plan.cells[index];
    s->now = index;
    pith_status status = foresee(s, err);
    if (status != PITH_OK)
        return status;
    status = measure(s, c, &line, &inner);
    s->n_ran++;
    if (status == PITH_CANCELLED)
        return eval_fail(err, status, "cancelled; %d of %d cells are done and will not run again",
                         s->n_done + s->n_ran - s->n_failed - 1, s->plan.n_cell);
    if (status != PITH_OK) {
        s->n_failed++;
        note(s, "%s: failed: %s", c->key, inner.message);
        return PITH_OK;
    }
    s->lines[index] = line;
    return sweep_log_append(&s->log, line, err);
}

/* ---- the table ---- */

static json_t *count(double value)
{
    return isnan(value) ? json_null() : json_integer((json_int_t)value);
}

/* Columns that say the same in every row are left out, so that the table fits a terminal. */
struct table_columns {
    bool seeds;
    bool measures;
    bool reads;
    bool recalls;
};

static json_t *table_row(const struct sweep *s, int32_t index, const struct table_columns *show)
{
    const struct sweep_cell *c = &s->plan.cells[index];
    struct report_point p = {0};
    struct report_cell cell = {.summary = json_object_get(s->lines[index], "summary")};
    const struct report_metric *metric = report_metric_of(cell.summary);
    report_measure(metric, &cell, 1, &p);
    json_t *row = json_pack("{s:s, s:s, s:s?}", "task", s->plan.tasks[c->task].name, "policy",
                            s->plan.policies[c->policy].name, "budget",
                            c->budget[0] != '\0' ? c->budget : NULL);
    bool ok = row != NULL;
    if (show->seeds)
        ok = json_object_set_new(row, "seed", seed_of(c)) == 0;
    if (show->measures && ok)
        ok = json_object_set_new(row, "measure",
                                 metric != NULL ? json_string(metric->name) : json_null()) == 0;
    json_t *figures =
        ok ? json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", show->measures ? "value" : "score",
                       eval_number(p.value), "n", count(p.n), "kv_bytes", count(p.kv_bytes),
                       "tokens_per_s", eval_number(p.tokens_per_s), "evicted", count(p.evicted),
                       "rounds", count(p.rounds))
           : NULL;
    ok = figures != NULL && json_object_update(row, figures) == 0;
    if (ok && show->reads)
        ok = json_object_set_new(row, "read_share", eval_number(p.read_share)) == 0;
    if (ok && show->recalls)
        ok = json_object_set_new(row, "prompt_s", eval_number(p.prompt_s)) == 0 &&
             json_object_set_new(row, "recall_s", eval_number(p.recall_s)) == 0;
    json_decref(figures);
    if (ok)
        return row;
    json_decref(row);
    return NULL;
}

static const char *model_name(const struct sweep *s)
{
    for (int32_t i = 0; i < s->plan.n_cell; i++)
        if (results_text(s->lines[i], "model") != NULL)
            return results_text(s->lines[i], "model");
    return "";
}

/* A text of JSON from one that has the name of a file, which may be any bytes. */
static json_t *any_text(const char *bytes)
{
    char *text = eval_utf8(bytes);
    json_t *value = text != NULL ? json_string(text) : NULL;
    free(text);
    return value;
}

static json_t *make_note(const struct sweep *s)
{
    struct eval_text text = {0};
    eval_text_printf(&text,
                     "The results stand in %s; \"pith eval report %s -o report.html\" draws them.",
                     s->plan.out, s->plan.out);
    json_t *note = text.failed ? NULL : any_text(text.data);
    eval_text_free(&text);
    return note;
}

static json_t *make_summary(const struct sweep *s)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:o}", "n", (int)s->plan.n_cell, "done", (int)s->n_done,
                     "run", (int)(s->n_ran - s->n_failed), "failed", (int)s->n_failed, "note",
                     make_note(s));
}

static pith_status make_table(const struct sweep *s, json_t **result, pith_error *err)
{
    json_t *rows = json_array();
    bool ok = rows != NULL;
    struct table_columns show = {0};
    const struct report_metric *score = NULL;
    int64_t seed = SWEEP_NO_SEED;
    for (int32_t i = 0; i < s->plan.n_cell; i++) {
        const struct report_metric *m = report_metric_of(json_object_get(s->lines[i], "summary"));
        int64_t one = s->plan.cells[i].seed;
        show.seeds |= one != SWEEP_NO_SEED && seed != SWEEP_NO_SEED && one != seed;
        seed = one != SWEEP_NO_SEED ? one : seed;
        score = score == NULL ? m : score;
        show.reads |= s->plan.cells[i].read != NULL;
        show.recalls |= s->plan.policies[s->plan.cells[i].policy].recall != NULL;
        show.measures |= m != NULL && (m != score || !m->share);
    }
    for (int32_t i = 0; i < s->plan.n_cell && ok; i++)
        ok = json_array_append_new(rows, table_row(s, i, &show)) == 0;
    json_t *table = ok ? json_pack("{s:s, s:s, s:s, s:{s:o, s:o}, s:o, s:O}", "task", "sweep",
                                   "model", model_name(s), "policy", "several", "settings", "file",
                                   any_text(s->params->path), "results", any_text(s->plan.out),
                                   "summary", make_summary(s), "rows", rows)
                       : NULL;
    json_decref(rows);
    if (table == NULL)
        return eval_fail(err, PITH_NOMEM, "no memory for the table of a sweep");
    *result = table;
    return PITH_OK;
}

pith_status eval_sweep(const struct eval_sweep_params *params, json_t **result, pith_error *err)
{
    struct sweep s = {.params = params, .log = {.fd = -1}};
    pith_status status = prepare(&s, err);
    for (int32_t i = 0; i < s.plan.n_cell && status == PITH_OK; i++)
        if (s.left[i])
            status = run_cell(&s, i, err);
    if (status == PITH_OK)
        status = make_table(&s, result, err);
    for (int32_t i = 0; i < s.plan.n_cell && s.lines != NULL; i++)
        json_decref(s.lines[i]);
    free(s.lines);
    free(s.left);
    sweep_log_close(&s.log);
    sweep_plan_free(&s.plan);
    pith_model_free(s.model);
    return status;
}
