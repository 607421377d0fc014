/*
 * ruler.c - the table of RULER's tasks, the making of their items, and `pith eval ruler`, which
 * asks them. ruler_niah.c, ruler_track.c, ruler_count.c and ruler_qa.c make the texts.
 *
 * Invariant: an item depends on seed, task, length and sample alone, besides the texts that are
 * given and the tokenizer that measures them.
 */
#include "ruler.h"

#include "answers.h"

#include <stdio.h>
#include <string.h>

/* Answers' tokens and haystacks as RULER has them. */
const struct ruler_task eval_ruler_tasks[RULER_N_TASK] = {
    {"niah_single_1", 128, 1, EVAL_HAYSTACK_NOISE, NULL, eval_build_niah},
    {"niah_single_2", 128, 1, EVAL_HAYSTACK_TEXT, NULL, eval_build_niah},
    {"niah_single_3", 128, 1, EVAL_HAYSTACK_TEXT, NULL, eval_build_niah},
    {"niah_multikey_1", 128, 1, EVAL_HAYSTACK_TEXT, NULL, eval_build_niah},
    {"niah_multikey_2", 128, 1, EVAL_HAYSTACK_NEEDLES, NULL, eval_build_niah},
    {"niah_multikey_3", 128, 1, EVAL_HAYSTACK_NEEDLES, NULL, eval_build_niah},
    {"niah_multivalue", 128, 1, EVAL_HAYSTACK_TEXT, NULL, eval_build_niah},
    {"niah_multiquery", 128, 1, EVAL_HAYSTACK_TEXT, NULL, eval_build_niah},
    {"vt", 30, 5, EVAL_HAYSTACK_NOISE, eval_prepare_vt, eval_build_vt},
    {"cwe", 120, 10, EVAL_HAYSTACK_TASK, eval_prepare_cwe, eval_build_cwe},
    {"fwe", 50, 1, EVAL_HAYSTACK_TASK, eval_prepare_fwe, eval_build_fwe},
    {"qa_1", 32, 1, EVAL_HAYSTACK_TASK, NULL, eval_build_qa}, /* SQuAD */
    {"qa_2", 32, 1, EVAL_HAYSTACK_TASK, NULL, eval_build_qa}, /* HotpotQA */
};

const struct ruler_task *eval_ruler_find(const char *name)
{
    for (int i = 0; i < RULER_N_TASK; i++) {
        if (strcmp(eval_ruler_tasks[i].name, name) == 0)
            return &eval_ruler_tasks[i];
    }
    return NULL;
}

enum eval_haystack eval_ruler_haystack(const struct ruler_task *task, const struct ruler_item *item)
{
    enum eval_haystack h = task->haystack;
    if (h == EVAL_HAYSTACK_TASK)
        return h;
    if (item->haystack != EVAL_HAYSTACK_TASK)
        h = item->haystack;
    if (h == EVAL_HAYSTACK_NEEDLES && task->build == eval_build_vt)
        h = EVAL_HAYSTACK_NOISE;
    if (h == EVAL_HAYSTACK_TEXT && item->text == NULL)
        h = EVAL_HAYSTACK_NOISE;
    return h;
}

struct eval_rng eval_ruler_rng(const struct ruler_build *b, enum ruler_stream stream)
{
    uint64_t task = (uint64_t)(b->task - eval_ruler_tasks) + 1;
    return eval_rng_make(b->item->seed, task << 32 | (uint32_t)b->item->length,
                         (uint64_t)(uint32_t)b->item->sample << 8 | (uint64_t)stream);
}

const char *eval_word(const struct eval_word_list *list, struct eval_rng *rng)
{
    return list->word[eval_rng_below(rng, list->n)];
}

void eval_invent(struct eval_rng *rng, char *buf)
{
    size_t len = 0;
    buf[0] = '\0';
    for (int32_t n = 1 + eval_rng_below(rng, 3); n > 0; n--) {
        const char *onset = eval_word(&eval_onsets, rng), *vowel = eval_word(&eval_vowels, rng);
        const char *coda = eval_word(&eval_codas, rng);
        len += (size_t)snprintf(buf + len, EVAL_INVENTED_SIZE - len, "%s%s%s", onset, vowel, coda);
    }
}

pith_status eval_ruler_make(const struct ruler_task *task, const struct ruler_item *item,
                            const struct eval_counter *counter, struct eval_prompt *out,
                            pith_error *err)
{
    struct ruler_build b = {.task = task, .item = item};
    pith_status status = PITH_OK;
    if (task->build == eval_build_qa && item->qa == NULL)
        return eval_fail(err, PITH_INVALID, "ruler: %s needs a file of its data set", task->name);
    if (item->length <= task->n_predict)
        return eval_fail(err, PITH_INVALID,
                         "%s: a length of %d leaves nothing beside the %d tokens of its answer",
                         task->name, (int)item->length, (int)task->n_predict);
    if (task->prepare != NULL)
        status = task->prepare(&b, counter, err);
    if (status == PITH_OK && b.example.failed)
        status = eval_fail(err, PITH_NOMEM, "%s: no memory for an example", task->name);
    if (status == PITH_OK)
        status = eval_fit(task->name, task->build, &b, task->min_size, INT32_MAX / 2,
                          item->length - task->n_predict, counter, out, err);
    eval_strings_free(&b.pool);
    eval_text_free(&b.example);
    return status;
}

/* ---- the run ---- */

struct ruler_run {
    const struct eval_setup *setup;
    const struct eval_ruler_params *params;
    struct eval_run *run;
    struct eval_counter counter;
    const struct ruler_task *tasks[RULER_N_TASK];
    int32_t n_task;
    struct ruler_qa qa[2]; /* of qa_1 and qa_2; empty without files */
    int32_t n_done;        /* items */
    double sum;            /* of their scores */
    json_t *rows;
};

/* The sums of one row. */
struct ruler_cell {
    double score;
    double n_token;
    json_t *texts; /* NULL unless texts are kept */
};

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "ruler: no memory for results");
}

static pith_status run_item(struct ruler_run *r, const struct ruler_task *task,
                            const struct ruler_item *item, struct ruler_cell *cell, pith_error *err)
{
    struct eval_prompt p = {0};
    struct eval_answer a = {0};
    pith_status status = eval_ruler_make(task, item, &r->counter, &p, err);
    if (status == PITH_OK)
        status = eval_prompt_ask(r->run, r->setup, &p, task->n_predict, NULL, NULL, 0, &a, err);
    if (status == PITH_OK) {
        double score = eval_share_found(a.text, &p.refs);
        if (task->build == eval_build_qa) /* one right answer is enough */
            score = score > 0.0 ? 1.0 : 0.0;
        cell->score += score;
        cell->n_token += p.n_token;
        if (cell->texts != NULL && !eval_keep_text(cell->texts, &p, a.text, NULL, score))
            status = no_memory(err);
    }
    eval_answer_free(&a);
    eval_prompt_free(&p);
    return status;
}

static const char *haystack_name(enum eval_haystack h)
{
    static const char *const names[] = {"task", "noise", "text", "needles"};
    return names[h];
}

static pith_status add_row(struct ruler_run *r, const struct ruler_task *task,
                           const struct ruler_item *item, struct ruler_cell *cell, pith_error *err)
{
    int32_t n = r->params->n_sample;
    struct eval_interval i = eval_wilson(cell->score, n);
    json_t *row = json_pack(
        "{s:s, s:i, s:s, s:i, s:f, s:f, s:f, s:f}", "task", task->name, "length", (int)item->length,
        "haystack", haystack_name(eval_ruler_haystack(task, item)), "n", (int)n, "tokens",
        cell->n_token / n, "score", cell->score / n, "low", i.low, "high", i.high);
    if (row != NULL && cell->texts != NULL && json_object_set(row, "texts", cell->texts) != 0) {
        json_decref(row);
        row = NULL;
    }
    if (row == NULL || json_array_append_new(r->rows, row) != 0)
        return no_memory(err);
    r->sum += cell->score;
    return PITH_OK;
}

/* The questions of a task; NULL: it has none, or there is no file of them. */
static const struct ruler_qa *qa_of(const struct ruler_run *r, const struct ruler_task *task)
{
    const struct ruler_qa *qa = &r->qa[strcmp(task->name, "qa_2") == 0];
    return task->build == eval_build_qa && qa->n > 0 ? qa : NULL;
}

static pith_status read_questions(struct ruler_run *r, pith_error *err)
{
    pith_status status = PITH_OK;
    if (r->params->squad != NULL)
        status = eval_ruler_qa_read(r->params->squad, true, &r->qa[0], err);
    if (status == PITH_OK && r->params->hotpotqa != NULL)
        status = eval_ruler_qa_read(r->params->hotpotqa, false, &r->qa[1], err);
    return status;
}

static pith_status run_cell(struct ruler_run *r, const struct ruler_task *task, int32_t length,
                            pith_error *err)
{
    const struct eval_ruler_params *p = r->params;
    struct ruler_item item = {.seed = r->setup->seed,
                              .length = length,
                              .haystack = p->haystack,
                              .text = p->text,
                              .text_len = p->text_len,
                              .qa = qa_of(r, task),
                              .example = p->example};
    struct ruler_cell cell = {.texts = r->setup->keep_text ? json_array() : NULL};
    pith_status status = PITH_OK;
    if (r->setup->keep_text && cell.texts == NULL)
        status = no_memory(err);
    double n_item = (double)r->n_task * p->n_length * p->n_sample;
    for (item.sample = 0; item.sample < p->n_sample && status == PITH_OK; item.sample++) {
        status = eval_progress(r->run, r->n_done / n_item, err, "%s, %d tokens", task->name,
                               (int)length);
        if (status == PITH_OK)
            status = run_item(r, task, &item, &cell, err);
        r->n_done++;
    }
    if (status == PITH_OK)
        status = add_row(r, task, &item, &cell, err);
    json_decref(cell.texts);
    return status;
}

/* The tasks asked for, each once, in the order of the table for "all". */
static pith_status choose_tasks(struct ruler_run *r, pith_error *err)
{
    bool taken[RULER_N_TASK] = {false};
    for (int32_t i = 0; i < r->params->n_task; i++) {
        const char *name = r->params->tasks[i];
        bool all = strcmp(name, "all") == 0;
        if (!all && eval_ruler_find(name) == NULL)
            return eval_fail(err, PITH_INVALID, "ruler: \"%.40s\" is none of its tasks", name);
        for (int t = 0; t < RULER_N_TASK; t++) {
            const struct ruler_task *task = &eval_ruler_tasks[t];
            bool lacks = task->build == eval_build_qa && qa_of(r, task) == NULL;
            if (taken[t] || (all ? lacks : strcmp(task->name, name) != 0))
                continue;
            if (lacks)
                return eval_fail(err, PITH_INVALID, "ruler: %s needs --%s FILE", name,
                                 t + 1 < RULER_N_TASK ? "squad" : "hotpotqa");
            taken[t] = true;
            r->tasks[r->n_task++] = task;
        }
    }
    return r->n_task > 0 ? PITH_OK : eval_fail(err, PITH_INVALID, "ruler: no task is given");
}

static pith_status check_params(const struct eval_ruler_params *p, pith_error *err)
{
    struct eval_prose prose = {p->text, p->text_len};
    if (p->n_sample < 1)
        return eval_fail(err, PITH_INVALID, "ruler: samples = %d is not positive",
                         (int)p->n_sample);
    if (p->text != NULL)
        return eval_prose_check("ruler", &prose, err);
    if (p->haystack == EVAL_HAYSTACK_TEXT)
        return eval_fail(err, PITH_INVALID, "ruler: haystack = text needs a file");
    return PITH_OK;
}

static json_t *settings_of(const struct ruler_run *r)
{
    const struct eval_ruler_params *p = r->params;
    json_t *tasks = json_array(), *lengths = json_array();
    for (int32_t i = 0; i < r->n_task; i++)
        json_array_append_new(tasks, json_string(r->tasks[i]->name));
    for (int32_t i = 0; i < p->n_length; i++)
        json_array_append_new(lengths, json_integer(p->lengths[i]));
    return json_pack("{s:o, s:o, s:i, s:s, s:I, s:b, s:I, s:b}", "tasks", tasks, "lengths", lengths,
                     "samples", (int)p->n_sample, "haystack", haystack_name(p->haystack),
                     "text_bytes", (json_int_t)p->text_len, "example", (int)p->example, "seed",
                     (json_int_t)r->setup->seed, "chat", (int)r->setup->chat);
}

pith_status eval_ruler(const struct eval_setup *setup, const struct eval_ruler_params *params,
                       json_t **result, pith_error *err)
{
    struct ruler_run r = {
        .setup = setup, .params = params, .counter = eval_counter_of(setup), .rows = json_array()};
    int32_t longest = 0;
    pith_status status = r.rows != NULL ? check_params(params, err) : no_memory(err);
    if (status == PITH_OK)
        status = read_questions(&r, err);
    if (status == PITH_OK)
        status = choose_tasks(&r, err);
    if (status == PITH_OK)
        status = eval_check_lengths("ruler", params->lengths, params->n_length, &longest, err);
    if (status == PITH_OK)
        status = eval_run_create(setup, longest, &r.run, err);
    for (int32_t t = 0; t < r.n_task && status == PITH_OK; t++) {
        for (int32_t i = 0; i < params->n_length && status == PITH_OK; i++)
            status = run_cell(&r, r.tasks[t], params->lengths[i], err);
    }
    if (status == PITH_OK)
        status =
            eval_scored(eval_result(r.run, "ruler", r.n_done, settings_of(&r), json_incref(r.rows)),
                        eval_wilson(r.sum, r.n_done), result, err);
    json_decref(r.rows);
    eval_ruler_qa_free(&r.qa[0]);
    eval_ruler_qa_free(&r.qa[1]);
    eval_run_free(r.run);
    return status;
}
