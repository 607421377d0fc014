/*
 * eval.c - `pith eval`: what all tasks share. The common part of all tasks: a model is loaded, the
 * task measures, and the result is printed. It goes to standard output as a table, as JSON or as
 * CSV, and to files where asked.
 *
 * Invariant: a result that was measured is printed somewhere, even when its file cannot be written.
 */
#define _POSIX_C_SOURCE 200809L

#include "budget.h"
#include "outputs.h"
#include "ranks.h"
#include "task.h"

#include <print.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT(member) .offset = offsetof(struct measure_options, member)
const struct option measure_option_table[] = {
    {"--seed", "-s", "N", OPTION_LONG, AT(seed), .min = 0, .max = 0x1p53,
     .help = "seed of everything that a task draws"},
    {"--chat", NULL, NULL, OPTION_FLAG, AT(chat),
     .help = "prompts are messages: apply the model's chat template"},
    {"--text", NULL, NULL, OPTION_FLAG, AT(keep_text),
     .help = "keep prompts and answers in the result, where the task has them"},
    {"--json", NULL, "FILE", OPTION_TEXT, AT(json), .absent = "", .writes = true,
     .help = "write the whole result as JSON; - is standard output"},
    {"--csv", NULL, "FILE", OPTION_TEXT, AT(csv), .absent = "", .writes = true,
     .help = "write the rows as CSV; - is standard output"},
    {"--progress", NULL, NULL, OPTION_FLAG, AT(progress), .absent = "on a terminal",
     .help = "show the progress and the time left on standard error"},
    {0},
};
#undef AT

void eval_options_default(struct eval_options *o)
{
    memory_options_default(&o->memory);
    o->measure.seed = 1;
}

/* ---- progress ---- */

/* The bar, whose words change from item to item. */
struct ticker {
    struct cli_progress bar;
    char what[160];
};

static bool show_progress(void *user, double fraction, const char *what)
{
    struct ticker *t = user;
    snprintf(t->what, sizeof(t->what), "%s", what);
    return cli_progress_step(&t->bar, fraction);
}

/* ---- output ---- */

static bool is_standard(const char *path)
{
    return path != NULL && strcmp(path, "-") == 0;
}

/* Finds out before hours of measuring whether the file can be written. Its content stays until
   there is a result; a file that only the check made is removed again. */
static void check_output(const char *option, const char *path)
{
    pith_error err;
    path = ranks_output(path);
    if (path != NULL && !is_standard(path) && eval_check_file(path, &err) != PITH_OK)
        cli_fail("%s: %s", option, err.message);
}

typedef void print_fn(const json_t *result, struct eval_text *out);

static struct eval_text make_text(print_fn *print, const json_t *result)
{
    struct eval_text text = {0};
    eval_text_add(&text, "");
    print(result, &text);
    if (text.failed)
        cli_fail("no memory for the result as text");
    return text;
}

/* False when the file could not be written; the text is then on standard output. */
static bool write_result(print_fn *print, const json_t *result, const char *path)
{
    struct eval_text text = make_text(print, result);
    bool ok = true;
    if (!is_standard(path)) {
        pith_error err;
        ok = eval_write_file(ranks_output(path), &text, &err) == PITH_OK;
        if (!ok)
            cli_note("%s; the result goes to standard output", err.message);
    }
    if (!ok || is_standard(path))
        cli_write(text.data, text.len);
    eval_text_free(&text);
    return ok;
}

static int print_result(const struct measure_options *o, const json_t *result)
{
    bool ok = true;
    if (o->json != NULL)
        ok = write_result(eval_print_json, result, o->json);
    if (o->csv != NULL)
        ok = write_result(eval_print_csv, result, o->csv) && ok;
    if (!is_standard(o->json) && !is_standard(o->csv))
        write_result(eval_print_table, result, "-");
    cli_finish_output();
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- the way through ---- */

static void check_options(const struct eval_options *o)
{
    if (is_standard(o->measure.json) && is_standard(o->measure.csv))
        cli_fail_usage("--json - and --csv - both write to standard output: name a file for one");
    check_output("--json", o->measure.json);
    check_output("--csv", o->measure.csv);
}

static int run_task(const struct eval_options *o, const struct session *s, measure_fn *measure)
{
    pith_error err;
    json_t *result = NULL;
    struct ticker ticker = {.bar = {.on = o->measure.progress || cli_progress_wanted()}};
    struct eval_setup setup = {
        .model = s->model,
        .most_bytes = s->task_bytes,
        .engine = engine_params(&o->model, &o->memory),
        .seed = (uint64_t)o->measure.seed,
        .chat = o->measure.chat,
        .keep_text = o->measure.keep_text,
        .progress = show_progress,
        .progress_user = &ticker,
    };
    setup.engine.on_advance = cli_progress_read;
    ticker.bar.what = ticker.what;
    cli_interrupt_catch();
    pith_status status = measure(&setup, o, &result, &err);
    cli_progress_end(&ticker.bar);
    if (status == PITH_CANCELLED && cli_interrupted())
        cli_exit(EXIT_INTERRUPTED);
    cli_check(status, &err);
    int exit_status = print_result(&o->measure, result);
    json_decref(result);
    return exit_status;
}

int eval_command_run(void *options, measure_fn *measure)
{
    struct eval_options *o = options;
    struct session s = {0};
    check_options(o);
    (void)engine_params(&o->model, &o->memory); /* complains before the model is loaded */
    session_load(&s, &o->model, false);
    outputs_agree();
    s.task = true;
    s.pairs = o->pairs;
    budget_settle(&s, &o->model, &o->memory, o->asks ? BUDGET_QUESTIONS : BUDGET_TEXTS, o->longest);
    int status = run_task(o, &s, measure);
    session_free(&s);
    return status;
}

int eval_command_run_alone(void *options, measure_fn *measure)
{
    check_options(options);
    const struct session none = {0};
    return run_task(options, &none, measure);
}

const struct command command_eval = {
    .name = "eval",
    .summary = "measure how well a model knows a text under a cache policy",
    .notes =
        "Every task takes the options of model and cache, and a result is printed as a table, "
        "with\n"
        "--json - as JSON, with --csv - as CSV. The same options and seed give the same result.\n"
        "\n"
        "  pith eval perplexity -m model.gguf -f text.txt -c 512\n"
        "  pith eval needle -m model.gguf --keep streaming:budget=512 --json needle.json",
    .subcommands = eval_tasks,
};
