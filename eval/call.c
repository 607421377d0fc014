/*
 * call.c - a task by its name, with options of JSON. It reads them as a sweep does, and prints the
 * result as the command does. It knows no task.
 */
#include "call.h"

#include "print.h"
#include "sweep_task.h"

#include <stdlib.h>
#include <string.h>

static pith_status find_task(const char *name, const struct eval_task **out, pith_error *err)
{
    struct eval_text names = {0};
    *out = eval_task_find(name);
    if (*out != NULL)
        return PITH_OK;
    for (const struct eval_task *t = eval_task_table; t->name != NULL; t++)
        eval_text_printf(&names, "%s%s", names.len > 0 ? ", " : "", t->name);
    eval_fail(err, PITH_NOT_FOUND, "there is no task \"%.40s\", only %s", name,
              names.data != NULL ? names.data : "others");
    eval_text_free(&names);
    return PITH_NOT_FOUND;
}

static pith_status read_options(const char *text, json_t **out, pith_error *err)
{
    json_error_t fault;
    *out = json_loads(text != NULL ? text : "{}", JSON_REJECT_DUPLICATES, &fault);
    if (*out != NULL && json_is_object(*out))
        return PITH_OK;
    return eval_fail(err, PITH_INVALID, "options: %s",
                     *out == NULL ? fault.text : "a JSON object is wanted");
}

static pith_status run_task(const struct eval_task *task, const pith_eval_params *p,
                            const union eval_args *args, char **result, pith_error *err)
{
    struct eval_setup setup = {
        .model = p->model,
        .engine = *p->engine,
        .seed = p->seed,
        .chat = p->chat,
        .keep_text = p->keep_text,
        .progress = p->progress,
        .progress_user = p->user,
    };
    struct eval_text text = {0};
    json_t *json = NULL;
    pith_status status = task->run(&setup, args, &json, err);
    if (status != PITH_OK)
        return status;
    eval_print_json(json, &text);
    json_decref(json);
    if (text.failed) {
        eval_text_free(&text);
        return eval_fail(err, PITH_NOMEM, "no memory for a result");
    }
    *result = text.data;
    return PITH_OK;
}

pith_status pith_eval(const pith_eval_params *params, char **result, pith_error *err)
{
    const struct eval_task *task;
    struct sweep_args args = {0};
    uint64_t hash = SWEEP_HASH_START;
    json_t *options = NULL;
    *result = NULL;
    pith_status status = find_task(params->task, &task, err);
    if (status == PITH_OK)
        status = read_options(params->options, &options, err);
    if (status == PITH_OK)
        status = sweep_args_read(task, options, "", &args, &hash, err);
    if (status == PITH_OK)
        status = run_task(task, params, &args.of, result, err);
    sweep_args_free(&args);
    json_decref(options);
    return status;
}

void pith_eval_free(char *result)
{
    free(result);
}
