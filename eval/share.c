/*
 * share.c - `pith eval share`: many requests in one KV memory that holds a part of them, under each
 * way to let it hold more. The rows take turns in every round, so that a slow minute of the machine
 * does not meet one alone. Figures of time are medians over rounds of a row's time against the
 * first's in the same round.
 *
 * Invariant: every row answers the same requests in the same KV memory. So a row differs from the
 * first by its name's parts and in nothing else.
 */
#include "share.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "derivation.h"

#define USUAL_KEEP "triattention:v3,budget=75%"
#define MAX_ROW 32
#define MAX_REPEAT 101

/* Figures that differ from round to round. */
enum series {
    SERIES_SECONDS,
    SERIES_CPU,       /* of processor time */
    SERIES_RATIO,     /* of generated tokens per second to the first row's in the same round */
    SERIES_CPU_RATIO, /* of generated tokens per second of processor time, likewise */
    SERIES_RUNNING,   /* mean number of answers that run, and its .. */
    SERIES_RUNNING_RATIO,
    SERIES_USED,  /* mean bytes of pages, and of them .. */
    SERIES_SAVED, /* .. what sharing saves, over both, .. */
    SERIES_DEAD,  /* .. and slots without an entry, over them */
    SERIES_ROOM,  /* bytes in use per answer that runs: the first row's over the row's */
    SERIES_SCAN,
    SERIES_SCHEDULE,
    N_SERIES,
};

/* The figures of a row. */
struct figures {
    double *series; /* [N_SERIES][n_repeat] owned */
    struct share_sums sums;
    pith_scheduler_stats stats;
    int64_t kv_peak_bytes;
    int32_t n_right; /* answers, or forced tokens that the model would have chosen .. */
    int32_t n_asked; /* .. of n_asked */
    double parts;
    int32_t n_same; /* answers that are the first row's, token by token */
    struct eval_moments nll, diff;
    json_t *texts; /* NULL unless texts are kept */
};

struct share_table {
    const struct eval_setup *setup;
    const struct eval_share_params *params;
    struct share_items items;
    struct share_rows rows;
    struct figures *figures; /* [n_row] owned */
    struct share_run
        first;      /* of the first row in the first round, which others are compared with */
    char *together; /* the usual row of both policies; owned */
    int64_t kv_bytes;
    int32_t page_len;
    double start_s;
    double fraction;  /* of the task, before the run that goes on, .. */
    double part;      /* .. which is such a part of it, .. */
    const char *name; /* .. and the row's name */
};

static void table_free(struct share_table *t)
{
    for (int32_t i = 0; t->figures != NULL && i < t->rows.n; i++) {
        free(t->figures[i].series);
        json_decref(t->figures[i].texts);
    }
    free(t->figures);
    free(t->together);
    share_run_free(&t->first);
    share_rows_free(&t->rows);
    share_items_free(&t->items);
}

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "share: no memory for the table");
}

/* ---- rows ---- */

/* The usual rows; a share policy that is given is one more. */
static pith_status usual_rows(struct share_table *t, pith_error *err)
{
    const pith_engine_params *e = &t->setup->engine;
    const char *keep = eval_is_full(e) ? USUAL_KEEP : e->keep;
    struct eval_text both = {0};
    eval_text_printf(&both, "memshare:step=0.8 + %s", keep);
    t->together = both.data;
    if (both.failed)
        return no_memory(err);
    const char *const rows[] = {"none",   "prefix", "memshare:step=0.8", "memshare:step=0.9",
                                "random", keep,     t->together,         e->share};
    bool given = e->share != NULL && strcmp(e->share, "none") != 0;
    return share_rows_parse(rows, given ? 8 : 7, &t->rows, err);
}

static pith_status make_rows(struct share_table *t, pith_error *err)
{
    const struct eval_share_params *p = t->params;
    const pith_engine_params *e = &t->setup->engine;
    if (p->n_row == 0)
        return usual_rows(t, err);
    if (p->n_row > MAX_ROW)
        return eval_fail(err, PITH_INVALID, "share: rows = %d are more than %d", (int)p->n_row,
                         MAX_ROW);
    if (e->share != NULL || !eval_is_full(e))
        return eval_fail(err, PITH_INVALID,
                         "share: rows are given, so \"%.80s\" beside them is of none",
                         e->share != NULL ? e->share : e->keep);
    return share_rows_parse(p->rows, p->n_row, &t->rows, err);
}

static pith_status prepare(struct share_table *t, pith_error *err)
{
    const struct eval_share_params *p = t->params;
    const pith_engine_params *e = &t->setup->engine;
    if (p->n_repeat < 1 || p->n_repeat > MAX_REPEAT)
        return eval_fail(err, PITH_INVALID, "share: repeats = %d is not between 1 and %d",
                         (int)p->n_repeat, MAX_REPEAT);
    if (eval_recall(e) != NULL)
        return eval_fail(err, PITH_INVALID, "share: recall \"%.60s\" is of no row", e->recall);
    t->page_len = e->page_len > 0 ? e->page_len : 16;
    t->kv_bytes = e->kv_bytes;
    pith_status status = make_rows(t, err);
    if (status == PITH_OK)
        status = share_items_make(t->setup, p, &t->items, err);
    if (status == PITH_OK && t->kv_bytes == 0)
        status = share_items_memory(&t->items, t->setup, t->page_len, p->fit, &t->kv_bytes, err);
    if (status != PITH_OK)
        return status;
    t->figures = calloc((size_t)t->rows.n, sizeof(*t->figures));
    if (t->figures == NULL)
        return no_memory(err);
    for (int32_t i = 0; i < t->rows.n; i++) {
        struct figures *f = &t->figures[i];
        f->series = calloc((size_t)N_SERIES * (size_t)p->n_repeat, sizeof(*f->series));
        f->texts = t->setup->keep_text ? json_array() : NULL;
        if (f->series == NULL || (t->setup->keep_text && f->texts == NULL))
            return no_memory(err);
    }
    return PITH_OK;
}

/* ---- measuring ---- */

static bool on_progress(void *user, double fraction)
{
    const struct share_table *t = user;
    return t->setup->progress == NULL ||
           t->setup->progress(t->setup->progress_user, t->fraction + fraction * t->part, t->name);
}

static bool same_tokens(const struct share_answer *a, const struct share_answer *b)
{
    return a->tokens.len == b->tokens.len &&
           (a->tokens.len == 0 || memcmp(a->tokens.data, b->tokens.data, a->tokens.len) == 0);
}

/* An answer that was given: what the model thought of its tokens. */
static void judge_forced(const struct share_answer *a, const struct share_answer *first, int32_t n,
                         struct figures *f)
{
    f->n_right += a->n_chosen;
    f->n_asked += n;
    for (int32_t i = 0; i < n; i++) {
        eval_moments_add(&f->nll, a->nll[i]);
        eval_moments_add(&f->diff, a->nll[i] - first->nll[i]);
    }
}

static pith_status judge_written(const struct share_table *t, const struct share_item *item,
                                 const struct share_answer *a, struct figures *f, pith_error *err)
{
    struct derivation_score s;
    const char *text = a->text.data != NULL ? a->text.data : "";
    eval_derivation_score(text, item->prompt.refs.at[0], t->params->n_part, &s);
    f->n_right += s.answer;
    f->n_asked++;
    f->parts += s.parts;
    if (f->texts != NULL &&
        !eval_keep_text(f->texts, &item->prompt, text, NULL, s.answer ? 1.0 : 0.0))
        return no_memory(err);
    return PITH_OK;
}

/* The figures that repeat exactly, and are taken of the first round. */
static pith_status judge(struct share_table *t, const struct share_run *run, struct figures *f,
                         pith_error *err)
{
    pith_status status = PITH_OK;
    f->stats = run->stats;
    f->kv_peak_bytes = run->kv_peak_bytes;
    share_run_sum(run, &t->items, &f->sums);
    for (int32_t i = 0; i < run->n_item && status == PITH_OK; i++) {
        const struct share_answer *a = &run->answers[i], *first = &t->first.answers[i];
        f->n_same += same_tokens(a, first);
        if (a->nll != NULL)
            judge_forced(a, first, t->items.at[i].n_right, f);
        else
            status = judge_written(t, &t->items.at[i], a, f, err);
    }
    return status;
}

static double part_of(double value, double of)
{
    return of > 0.0 ? value / of : 0.0;
}

/* The figures of a round, against the first row's of the same round. */
static void add_round(struct share_table *t, int32_t row, int32_t repeat,
                      const struct share_run *run)
{
    int32_t n = t->params->n_repeat;
    double *s = t->figures[row].series, *first = t->figures[0].series;
    struct share_sums sums;
    share_run_sum(run, &t->items, &sums);
    double n_first = (double)t->figures[0].sums.n_generated;
#define AT(of, which) of[(which)*n + repeat]
    AT(s, SERIES_SECONDS) = run->seconds;
    AT(s, SERIES_RATIO) = part_of((double)sums.n_generated, run->seconds) /
                          part_of(n_first, AT(first, SERIES_SECONDS));
    AT(s, SERIES_CPU) = run->cpu_s;
    AT(s, SERIES_CPU_RATIO) = part_of(part_of((double)sums.n_generated, run->cpu_s),
                                      part_of(n_first, AT(first, SERIES_CPU)));
    AT(s, SERIES_RUNNING) = run->running;
    AT(s, SERIES_RUNNING_RATIO) = part_of(run->running, AT(first, SERIES_RUNNING));
    AT(s, SERIES_USED) = run->used;
    AT(s, SERIES_SAVED) = part_of(run->saved, run->used + run->saved);
    AT(s, SERIES_DEAD) = part_of(run->dead, run->used);
    AT(s, SERIES_ROOM) =
        AT(s, SERIES_RUNNING_RATIO) * part_of(AT(first, SERIES_USED), AT(s, SERIES_USED));
    AT(s, SERIES_SCAN) = part_of(run->stats.share_s, run->seconds);
    AT(s, SERIES_SCHEDULE) = part_of(run->stats.schedule_s, run->seconds);
#undef AT
}

/* The chance of a control: the entries that its model shared, of those that steps had. */
static pith_status set_chance(struct share_table *t, struct share_row *row, pith_error *err)
{
    const struct share_sums *s = &t->figures[row->match].sums;
    return share_row_set_chance(row, part_of((double)s->tokens_shared, (double)s->n_generated),
                                err);
}

static pith_status measure(struct share_table *t, int32_t index, int32_t repeat, pith_error *err)
{
    struct share_row *row = &t->rows.at[index];
    struct share_run run = {0};
    int32_t n_run = t->rows.n * t->params->n_repeat;
    t->part = 1.0 / n_run;
    t->fraction = (repeat * t->rows.n + index) * t->part;
    t->name = row->name;
    pith_status status = row->match >= 0 ? set_chance(t, row, err) : PITH_OK;
    if (status == PITH_OK)
        status = share_run_make(t->setup, row, &t->items, t->kv_bytes, t->page_len, repeat == 0,
                                on_progress, t, &run, err);
    if (status == PITH_OK && repeat == 0 && index == 0) {
        t->first = run;
        run = (struct share_run){0};
    }
    const struct share_run *done = repeat == 0 && index == 0 ? &t->first : &run;
    if (status == PITH_OK && repeat == 0)
        status = judge(t, done, &t->figures[index], err);
    if (status == PITH_OK)
        add_round(t, index, repeat, done);
    share_run_free(&run);
    return status;
}

/* ---- the result ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of an even number the mean of the middle two. */
static double median(const struct share_table *t, const struct figures *f, enum series which)
{
    double sorted[MAX_REPEAT];
    int32_t n = t->params->n_repeat;
    memcpy(sorted, f->series + (size_t)which * (size_t)n, (size_t)n * sizeof(*sorted));
    qsort(sorted, (size_t)n, sizeof(*sorted), compare);
    return 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]);
}

static bool set_speed(const struct share_table *t, const struct share_row *r,
                      const struct figures *f, json_t *row)
{
    const struct share_sums *s = &f->sums;
    double seconds = median(t, f, SERIES_SECONDS), ratio = median(t, f, SERIES_RATIO);
    double bound = r->share != NULL ? 1.0 / (1.0 - s->affected) : (double)NAN;
    double running_ratio = median(t, f, SERIES_RUNNING_RATIO);
    return eval_set(row, "seconds", eval_number(seconds)) &&
           eval_set(row, "tokens_per_s", eval_number((double)s->n_generated / seconds)) &&
           eval_set(row, "total_per_s",
                    eval_number((double)(s->n_prompt + s->n_generated) / seconds)) &&
           eval_set(row, "ratio", eval_number(ratio)) &&
           eval_set(row, "cpu_seconds", eval_number(median(t, f, SERIES_CPU))) &&
           eval_set(row, "cpu_ratio", eval_number(median(t, f, SERIES_CPU_RATIO))) &&
           eval_set(row, "affected", eval_number(s->affected)) &&
           eval_set(row, "bound", eval_number(bound)) &&
           eval_set(row, "of_bound", eval_number(ratio / bound)) &&
           eval_set(row, "running", eval_number(median(t, f, SERIES_RUNNING))) &&
           eval_set(row, "running_ratio", eval_number(running_ratio)) &&
           eval_set(row, "running_of_bound", eval_number(running_ratio / bound)) &&
           eval_set(row, "room", eval_number(median(t, f, SERIES_ROOM))) &&
           eval_set(row, "peak_running", json_integer(f->stats.peak_running)) &&
           eval_set(row, "share_part", eval_number(median(t, f, SERIES_SCAN))) &&
           eval_set(row, "schedule_part", eval_number(median(t, f, SERIES_SCHEDULE)));
}

static bool set_memory(const struct share_table *t, const struct figures *f, json_t *row)
{
    const pith_scheduler_stats *s = &f->stats;
    return eval_set(row, "kv_peak_bytes", json_integer(f->kv_peak_bytes)) &&
           eval_set(row, "kv_mean_bytes", eval_number(median(t, f, SERIES_USED))) &&
           eval_set(row, "saved", eval_number(median(t, f, SERIES_SAVED))) &&
           eval_set(row, "dead", eval_number(median(t, f, SERIES_DEAD))) &&
           eval_set(row, "preempted", json_integer(s->preempted_recompute + s->preempted_swap)) &&
           eval_set(row, "recomputed_tokens", json_integer(s->recomputed_tokens)) &&
           eval_set(row, "cached_tokens", json_integer(f->sums.n_cached)) &&
           eval_set(row, "evicted", json_integer(f->sums.evicted));
}

static bool set_steps(const struct figures *f, json_t *row)
{
    return eval_set(row, "steps_closed", json_integer(f->sums.steps_closed)) &&
           eval_set(row, "steps_compared", json_integer(f->sums.steps_compared)) &&
           eval_set(row, "steps_similar", json_integer(f->sums.steps_similar)) &&
           eval_set(row, "pages_shared", json_integer(f->sums.pages_shared)) &&
           eval_set(row, "tokens_shared", json_integer(f->sums.tokens_shared));
}

static bool set_accuracy(const struct share_table *t, const struct figures *f, json_t *row)
{
    const struct figures *first = &t->figures[0];
    bool forced = t->params->answers != EVAL_SHARE_WRITTEN;
    struct eval_interval i = eval_wilson(f->n_right, f->n_asked);
    double lost = part_of(f->n_right, f->n_asked) - part_of(first->n_right, first->n_asked);
    bool ok = eval_set(row, "accuracy", eval_number(part_of(f->n_right, f->n_asked))) &&
              eval_set(row, "low", eval_number(i.low)) &&
              eval_set(row, "high", eval_number(i.high)) &&
              eval_set(row, "accuracy_diff", eval_number(lost));
    if (ok && !forced)
        ok = eval_set(row, "parts_right", eval_number(f->parts / f->n_asked)) &&
             eval_set(row, "same", eval_number((double)f->n_same / f->n_asked));
    if (ok && forced)
        ok = eval_set(row, "nll", eval_number(eval_moments_mean(&f->nll))) &&
             eval_set(row, "nll_diff", eval_number(eval_moments_mean(&f->diff))) &&
             eval_set(row, "nll_diff_se", eval_number(eval_moments_se(&f->diff)));
    return ok;
}

static bool add_row(const struct share_table *t, int32_t index, json_t *rows)
{
    const struct share_row *r = &t->rows.at[index];
    const struct figures *f = &t->figures[index];
    json_t *row = json_object();
    return json_array_append_new(rows, row) == 0 && eval_set(row, "row", eval_json_text(r->name)) &&
           eval_set(row, "share", eval_json_text(r->share)) &&
           eval_set(row, "keep", eval_json_text(r->keep)) && set_speed(t, r, f, row) &&
           set_memory(t, f, row) && set_steps(f, row) && set_accuracy(t, f, row) &&
           (f->texts == NULL || json_object_set(row, "texts", f->texts) == 0);
}

static json_t *make_settings(const struct share_table *t)
{
    static const char *const answers[] = {"written", "right", "verbatim"};
    const struct eval_share_params *p = t->params;
    const pith_engine_params *e = &t->setup->engine;
    json_t *rows = json_array();
    for (int32_t i = 0; i < t->rows.n; i++)
        json_array_append_new(rows, eval_json_text(t->rows.at[i].name));
    return json_pack(
        "{s:i, s:i, s:i, s:i, s:f, s:s, s:i, s:i, s:I, s:i, s:s*, s:s*, s:s*, s:I, s:b, "
        "s:o}",
        "requests", (int)p->n_request, "parts", (int)p->n_part, "examples", (int)p->n_example,
        "answer_tokens", (int)p->n_predict, "fit", p->fit, "answers", answers[p->answers], "lines",
        (int)p->n_line, "repeats", (int)p->n_repeat, "kv_bytes", (json_int_t)t->kv_bytes,
        "page_len", (int)t->page_len, "type_k", e->type_k, "type_v", e->type_v, "read",
        eval_read(e), "seed", (json_int_t)t->setup->seed, "chat", (int)t->setup->chat, "rows",
        rows);
}

/* The columns that fit a terminal. */
static json_t *shown_columns(void)
{
    static const char *const shown[] = {
        "row",       "tokens_per_s", "ratio",         "affected",   "bound",
        "of_bound",  "running",      "running_ratio", "saved",      "dead",
        "preempted", "accuracy",     "accuracy_diff", "share_part", "schedule_part"};
    json_t *keys = json_array();
    for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++)
        json_array_append_new(keys, json_string(shown[i]));
    return keys;
}

static json_t *make_note(const struct share_table *t)
{
    pith_model_info info;
    int32_t longest = 0;
    char note[192];
    pith_model_get_info(t->setup->model, &info);
    for (int32_t i = 0; i < t->items.n; i++) {
        int32_t n = t->items.at[i].n_id + t->items.at[i].n_predict;
        longest = n > longest ? n : longest;
    }
    if (longest <= info.n_ctx_train)
        return NULL;
    snprintf(note, sizeof(note),
             "Requests of up to %d tokens are longer than the %d of the model's training.",
             (int)longest, (int)info.n_ctx_train);
    return json_string(note);
}

static pith_status make_result(struct share_table *t, json_t **result, pith_error *err)
{
    const struct share_sums *s = &t->figures[0].sums;
    pith_model_info info;
    json_t *rows = json_array();
    char store[128];
    bool ok = rows != NULL;
    pith_model_get_info(t->setup->model, &info);
    eval_store(&t->setup->engine, store, sizeof(store));
    for (int32_t i = 0; i < t->rows.n && ok; i++)
        ok = add_row(t, i, rows);
    json_t *summary = json_pack(
        "{s:i, s:i, s:I, s:i, s:I, s:f, s:I, s:o*}", "n", (int)t->rows.n, "requests",
        (int)t->items.n, "prompt_tokens", (json_int_t)s->n_prompt, "head_tokens",
        (int)t->items.n_head, "generated_tokens", (json_int_t)s->n_generated, "seconds",
        eval_clock_s() - t->start_s, "kv_bytes", (json_int_t)t->kv_bytes, "note", make_note(t));
    json_t *r = json_pack("{s:s, s:o, s:s, s:s*, s:o, s:o, s:o, s:O}", "task", "share", "model",
                          eval_json_text(info.name), "policy", "several", "store",
                          store[0] != '\0' ? store : NULL, "settings", make_settings(t), "summary",
                          summary, "columns", shown_columns(), "rows", rows);
    json_decref(rows);
    if (!ok || r == NULL) {
        json_decref(r);
        return no_memory(err);
    }
    *result = r;
    return PITH_OK;
}

pith_status eval_share(const struct eval_setup *setup, const struct eval_share_params *params,
                       json_t **result, pith_error *err)
{
    struct share_table t = {.setup = setup, .params = params, .start_s = eval_clock_s()};
    pith_status status = prepare(&t, err);
    for (int32_t r = 0; r < params->n_repeat && status == PITH_OK; r++)
        for (int32_t i = 0; i < t.rows.n && status == PITH_OK; i++)
            status = measure(&t, i, r, err);
    if (status == PITH_OK)
        status = make_result(&t, result, err);
    table_free(&t);
    return status;
}
