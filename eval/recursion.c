/*
 * recursion.c - `pith eval recursion`: asks records of the benchmark, drawn or from a file, or
 * traces, and sums up by number of steps. Exact match of the stack is the score.
 *
 * Invariant: a drawn item depends on the seed, its steps and its sample alone.
 */
#include "recursion.h"
#include "parallel.h"

#include <stdlib.h>
#include <string.h>

struct item {
    struct recursion_record drawn; /* owned, unless the record is of a file */
    const struct recursion_record *record;
    struct eval_prompt prompt;
    int32_t n_predict;
};

struct recursion_run {
    const struct eval_setup *setup;
    const struct eval_recursion_params *params;
    struct eval_run *run;
    struct eval_counter counter;
    struct recursion_file file; /* empty: records are drawn */
    struct item *items;         /* [n_item] of all rows, one row behind the other; owned */
    struct eval_asked *asked;   /* [n_item] owned */
    int32_t n_item;
    double n_stack; /* right ones so far */
    json_t *rows;
};

/* The sums of one row. */
struct cell {
    int32_t n;
    int32_t parsed, node, stack, depth, visited;
    double f1, lines;
    json_t *texts; /* NULL unless texts are kept */
};

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "recursion: no memory for results");
}

static void item_free(struct item *it)
{
    eval_record_free(&it->drawn);
    eval_prompt_free(&it->prompt);
}

/* Record number sample among the file's records of `steps` steps, NULL past the last. */
static const struct recursion_record *file_record(const struct recursion_file *f, int32_t steps,
                                                  int32_t sample)
{
    for (int32_t i = 0; i < f->n; i++) {
        if (f->record[i].steps == steps && sample-- == 0)
            return &f->record[i];
    }
    return NULL;
}

/* How many items a row of `steps` steps has. */
static int32_t count_items(const struct recursion_run *r, int32_t steps)
{
    int32_t most = r->params->n_sample, n = 0;
    if (r->params->path == NULL)
        return most;
    while ((most == 0 || n < most) && file_record(&r->file, steps, n) != NULL)
        n++;
    return n;
}

static pith_status make_item(const struct recursion_run *r, int32_t steps, int32_t sample,
                             struct item *it, pith_error *err)
{
    uint64_t seed = r->setup->seed;
    pith_status status = PITH_OK;
    it->record = &it->drawn;
    if (r->params->trace) {
        status = eval_trace_make(seed, steps, sample, &it->drawn, &it->prompt, err);
        it->n_predict = r->params->n_predict;
        if (status != PITH_OK || it->n_predict > 0)
            return status;
        return eval_prompt_predict(&it->prompt, &r->counter, &it->n_predict, err);
    }
    if (r->params->path != NULL)
        it->record = file_record(&r->file, steps, sample);
    else
        status = eval_paper_random(seed, steps, sample, &it->drawn, err);
    if (status != PITH_OK)
        return status;
    eval_paper_prompt(it->record, &it->prompt);
    it->n_predict = r->params->n_predict;
    return eval_prompt_check(&it->prompt, err);
}

/* Compares an answer with its item. */
static pith_status judge(const struct recursion_run *r, const struct item *it, const char *answer,
                         struct cell *cell, pith_error *err)
{
    struct recursion_score s;
    if (r->params->trace)
        eval_trace_score(answer, it->prompt.refs.at[0], &s);
    else
        eval_paper_score(answer, it->record, &s);
    cell->n++;
    cell->parsed += s.parsed;
    cell->node += s.node;
    cell->stack += s.stack;
    cell->depth += s.depth;
    cell->visited += s.visited;
    cell->f1 += s.f1;
    cell->lines += s.lines;
    if (cell->texts != NULL &&
        !eval_keep_text(cell->texts, &it->prompt, answer, NULL, s.stack ? 1.0 : 0.0))
        return no_memory(err);
    return PITH_OK;
}

static pith_status add_row(struct recursion_run *r, int32_t steps, const struct cell *c,
                           pith_error *err)
{
    struct eval_interval i = eval_wilson(c->stack, c->n);
    double n = c->n;
    json_t *row = json_pack("{s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "steps",
                            (int)steps, "n", (int)c->n, "score", c->stack / n, "low", i.low, "high",
                            i.high, "node", c->node / n, "depth", c->depth / n, "visited",
                            c->visited / n, "visited_f1", c->f1 / n, "parsed", c->parsed / n);
    bool ok = row != NULL;
    if (ok && r->params->trace)
        ok = json_object_set_new(row, "step_lines", json_real(c->lines / n)) == 0;
    if (ok && c->texts != NULL)
        ok = json_object_set(row, "texts", c->texts) == 0;
    if (!ok) {
        json_decref(row);
        return no_memory(err);
    }
    r->n_stack += c->stack;
    return json_array_append_new(r->rows, row) == 0 ? PITH_OK : no_memory(err);
}

/* Sums up n items of `steps` steps, which begin at number `first` of all. */
static pith_status sum_row(struct recursion_run *r, int32_t steps, int32_t first, int32_t n,
                           pith_error *err)
{
    struct cell cell = {.texts = r->setup->keep_text ? json_array() : NULL};
    pith_status status = PITH_OK;
    if (r->setup->keep_text && cell.texts == NULL)
        status = no_memory(err);
    for (int32_t i = first; i < first + n && status == PITH_OK; i++)
        status = judge(r, &r->items[i], r->asked[i].answer.text, &cell, err);
    if (status == PITH_OK)
        status = add_row(r, steps, &cell, err);
    json_decref(cell.texts);
    return status;
}

static pith_status sum_rows(struct recursion_run *r, pith_error *err)
{
    const struct eval_recursion_params *p = r->params;
    int32_t first = 0;
    pith_status status = PITH_OK;
    for (int32_t steps = p->min_steps; steps <= p->max_steps && status == PITH_OK;
         steps += p->step_stride) {
        int32_t n = count_items(r, steps);
        if (n > 0)
            status = sum_row(r, steps, first, n, err);
        first += n;
    }
    return status;
}

/* Makes all items, and counts the tokens of the longest. */
static pith_status make_items(struct recursion_run *r, int32_t *longest, pith_error *err)
{
    /* A model that was trained on traces goes on with the next graph. */
    static const char *const stop[] = {"\nGraph:"};
    const struct eval_recursion_params *p = r->params;
    pith_status status = PITH_OK;
    int32_t n_made = 0;
    for (int32_t steps = p->min_steps; steps <= p->max_steps; steps += p->step_stride)
        r->n_item += count_items(r, steps);
    if (r->n_item == 0)
        return eval_fail(err, PITH_INVALID, "recursion: no record has %d to %d steps",
                         (int)p->min_steps, (int)p->max_steps);
    r->items = calloc((size_t)r->n_item, sizeof(*r->items));
    r->asked = calloc((size_t)r->n_item, sizeof(*r->asked));
    if (r->items == NULL || r->asked == NULL)
        return no_memory(err);
    *longest = 0;
    for (int32_t steps = p->min_steps; steps <= p->max_steps; steps += p->step_stride) {
        int32_t n = count_items(r, steps);
        for (int32_t i = 0; i < n && status == PITH_OK; i++, n_made++) {
            struct item *it = &r->items[n_made];
            struct eval_asked *a = &r->asked[n_made];
            int32_t n_token = 0;
            status = make_item(r, steps, i, it, err);
            if (status == PITH_OK)
                status =
                    r->counter.count(r->counter.user, it->prompt.text.data, NULL, &n_token, err);
            if (n_token + it->n_predict > *longest)
                *longest = n_token + it->n_predict;
            *a = (struct eval_asked){.prompt = &it->prompt,
                                     .n_predict = it->n_predict,
                                     .stop = stop,
                                     .n_stop = p->trace ? 1 : 0};
            pith_sample_params_default(&a->sample);
            a->sample.temperature = 0.0f;
        }
    }
    return status;
}

static void free_items(struct recursion_run *r)
{
    for (int32_t i = 0; i < r->n_item && r->items != NULL && r->asked != NULL; i++) {
        eval_answer_free(&r->asked[i].answer);
        item_free(&r->items[i]);
    }
    free(r->asked);
    free(r->items);
}

static pith_status check_params(const struct eval_recursion_params *p, pith_error *err)
{
    int32_t most = p->trace ? TRACE_MAX_STEP : RECURSION_MAX_STEP;
    if (p->path != NULL && p->trace)
        return eval_fail(err, PITH_INVALID, "recursion: traces are drawn, not read from a file");
    if (p->n_parallel < 1)
        return eval_fail(err, PITH_INVALID, "recursion: parallel = %d must be positive",
                         (int)p->n_parallel);
    if (p->n_sample < (p->path != NULL ? 0 : 1))
        return eval_fail(err, PITH_INVALID, "recursion: samples = %d is too few", (int)p->n_sample);
    if (p->path != NULL)
        most = 2 * GRAPH_MAX_NODE;
    if (p->min_steps < 1 || p->max_steps < p->min_steps || p->max_steps > most ||
        p->step_stride < 1 || p->step_stride > most)
        return eval_fail(err, PITH_INVALID,
                         "recursion: steps %d to %d by %d do not ascend between 1 and %d",
                         (int)p->min_steps, (int)p->max_steps, (int)p->step_stride, (int)most);
    return eval_check_predict("recursion", p->n_predict, p->trace ? 0 : 1, err);
}

static pith_status read_file(struct recursion_run *r, pith_error *err)
{
    char *text = NULL;
    size_t len = 0;
    pith_status status = eval_read_file(r->params->path, &text, &len, err);
    if (status == PITH_OK)
        status = eval_record_file_parse(text, len, &r->file, err);
    free(text);
    return status;
}

static json_t *settings_of(const struct recursion_run *r)
{
    const struct eval_recursion_params *p = r->params;
    return json_pack("{s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:b}", "form",
                     p->trace ? "trace" : "question", "file", eval_json_text(p->path), "min_steps",
                     (int)p->min_steps, "max_steps", (int)p->max_steps, "step_stride",
                     (int)p->step_stride, "samples", (int)p->n_sample, "parallel",
                     (int)p->n_parallel, "answer_tokens", (int)p->n_predict, "seed",
                     (json_int_t)r->setup->seed, "chat", (int)r->setup->chat);
}

pith_status eval_recursion(const struct eval_setup *setup,
                           const struct eval_recursion_params *params, json_t **result,
                           pith_error *err)
{
    struct recursion_run r = {
        .setup = setup, .params = params, .counter = eval_counter_of(setup), .rows = json_array()};
    int32_t longest = 0;
    pith_status status = r.rows != NULL ? check_params(params, err) : no_memory(err);
    if (status == PITH_OK && params->path != NULL)
        status = read_file(&r, err);
    if (status == PITH_OK)
        status = make_items(&r, &longest, err);
    if (status == PITH_OK)
        status = eval_run_create_many(setup, longest, params->n_parallel, &r.run, err);
    if (status == PITH_OK)
        status = eval_prompts_ask(r.run, setup, r.asked, r.n_item, params->n_parallel, err);
    if (status == PITH_OK)
        status = sum_rows(&r, err);
    if (status == PITH_OK)
        status = eval_scored(
            eval_result(r.run, "recursion", r.n_item, settings_of(&r), json_incref(r.rows)),
            eval_wilson(r.n_stack, r.n_item), result, err);
    if (status == PITH_OK && params->path != NULL &&
        json_object_set_new(json_object_get(*result, "summary"), "file_disagrees",
                            json_integer(r.file.n_wrong)) != 0) {
        json_decref(*result);
        *result = NULL;
        status = no_memory(err);
    }
    json_decref(r.rows);
    free_items(&r);
    eval_record_file_free(&r.file);
    eval_run_free(r.run);
    return status;
}
