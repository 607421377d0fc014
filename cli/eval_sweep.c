/*
 * eval_sweep.c - the tasks of `pith eval` that work on results: a sweep makes many, report draws
 * them all on a page.
 */
#include <report.h>
#include <stdio.h>
#include <stdlib.h>
#include <sweep.h>
#include <unistd.h>

#include "outputs.h"
#include "task.h"

/* ---- sweep ---- */

struct sweep_options {
    const char *path;
    const char *out;
    bool fresh;
    int32_t *n_failed; /* no option: where measure_sweep tells run_sweep */
};

struct sweep_command {
    struct eval_options shared; /* of which the model, outputs and progress are options here */
    struct sweep_options sweep;
};

#define AT(member) .offset = offsetof(struct sweep_options, member)
static const struct option sweep_option_table[] = {
    {"FILE", NULL, NULL, OPTION_TEXT, AT(path), .required = true,
     .help = "a JSON file with the measurements; docs/eval.md describes it"},
    {"--output", "-o", "FILE", OPTION_TEXT, AT(out), .absent = "as FILE says, or FILE with .jsonl",
     .writes = true,
     .help = "the results, one line each; those that are there are not measured again"},
    {"--fresh", NULL, NULL, OPTION_FLAG, AT(fresh), .help = "forget the results that are there"},
    {0},
};
#undef AT

#define AT(member) .offset = offsetof(struct measure_options, member)
static const struct option output_option_table[] = {
    {"--json", NULL, "FILE", OPTION_TEXT, AT(json), .absent = "", .writes = true,
     .help = "write the table as JSON; - is standard output"},
    {"--csv", NULL, "FILE", OPTION_TEXT, AT(csv), .absent = "", .writes = true,
     .help = "write the table as CSV; - is standard output"},
    {"--progress", NULL, NULL, OPTION_FLAG, AT(progress), .absent = "on a terminal",
     .help = "show the progress and the time left on standard error"},
    {0},
};
#undef AT

static const struct option_group sweep_groups[] = {
    {"Task", sweep_option_table, offsetof(struct sweep_command, sweep)},
    {"Model", model_option_table, offsetof(struct eval_options, model), .without = "as FILE says"},
    {"Output", output_option_table, offsetof(struct eval_options, measure)},
    LLAMA_GROUP,
    {0},
};

static void sweep_defaults(void *options)
{
    struct sweep_command *c = options;
    eval_options_default(&c->shared);
}

static void print_note(void *user, const char *sentence)
{
    (void)user;
    cli_note("%s", sentence);
}

static void check_file(void *user, const char *path)
{
    (void)user;
    outputs_check_input(path);
}

static pith_status measure_sweep(const struct eval_setup *setup, const void *options,
                                 json_t **result, pith_error *err)
{
    const struct sweep_options *o = &((const struct sweep_command *)options)->sweep;
    const struct model_options *model = &((const struct sweep_command *)options)->shared.model;
    pith_engine_params place;
    pith_engine_params_default(&place);
    session_place(model, &place);
    const struct eval_sweep_params params = {
        .path = o->path,
        .model = model->path,
        .n_thread = model->n_thread,
        .device = place.device,
        .n_gpu_layers = place.n_gpu_layers,
        .tensor_split = place.tensor_split,
        .cache_weights = model->cache_weights,
        .out = o->out,
        .fresh = o->fresh,
        .file = check_file,
        .note = print_note,
        .progress = setup->progress,
        .user = setup->progress_user,
    };
    pith_status status = eval_sweep(&params, result, err);
    if (status == PITH_CANCELLED)
        print_note(NULL, err->message);
    if (status == PITH_OK)
        *o->n_failed = (int32_t)json_integer_value(
            json_object_get(json_object_get(*result, "summary"), "failed"));
    return status;
}

static int run_sweep(void *options)
{
    int32_t n_failed = 0;
    ((struct sweep_command *)options)->sweep.n_failed = &n_failed;
    session_set_level(&((struct sweep_command *)options)->shared.model);
    int status = eval_command_run_alone(options, measure_sweep);
    return n_failed > 0 ? EXIT_FAILURE : status;
}

const struct command task_sweep = {
    .name = "sweep",
    .summary = "measure policies x budgets x tasks, and go on where it stopped",
    .synopsis = "FILE [-o RESULTS]",
    .notes = "Each result is on the disk before the next begins, so a sweep can be stopped at any\n"
             "time. The exit status is 1 when a measurement failed; it is tried again next time.\n"
             "\n"
             "  pith eval sweep examples/sweep-nano.json -o nano.jsonl\n"
             "  pith eval report nano.jsonl -o nano.html",
    .groups = sweep_groups,
    .options_size = sizeof(struct sweep_command),
    .defaults = sweep_defaults,
    .run = run_sweep,
};

/* ---- report ---- */

struct report_command {
    struct option_texts files;
    const char *out;
};

#define AT(member) .offset = offsetof(struct report_command, member)
static const struct option report_option_table[] = {
    {"FILES", NULL, NULL, OPTION_TEXTS, AT(files),
     .help = "results of \"pith eval sweep\", or lines of --json results"},
    {"--output", "-o", "FILE", OPTION_TEXT, AT(out), .required = true, .writes = true,
     .help = "the page to write, HTML that needs nothing else"},
    {0},
};
#undef AT

static const struct option_group report_groups[] = {{NULL, report_option_table, 0}, {0}};

static int run_report(void *options)
{
    const struct report_command *c = options;
    struct eval_text page = {0};
    struct eval_report_notes notes = {0};
    pith_error err;
    if (c->files.n == 0)
        cli_fail_usage("FILES is missing: name a file of results");
    cli_check(eval_report(c->files.text, c->files.n, &page, &notes, &err), &err);
    cli_check(eval_write_file(c->out, &page, &err), &err);
    eval_text_free(&page);
    if (notes.n_superseded > 0)
        cli_note("%d results are left out: later ones repeat them", notes.n_superseded);
    if (notes.n_ignored > 0)
        cli_note("%d lines are left out: they are no results", notes.n_ignored);
    if (notes.n_cut > 0)
        cli_note("%d files end within a line, which is left out", notes.n_cut);
    printf("%s: %d results\n", c->out, notes.n_result);
    return EXIT_SUCCESS;
}

const struct command task_report = {
    .name = "report",
    .summary = "draw results on one HTML page",
    .synopsis = "RESULTS... -o PAGE",
    .notes =
        "The page asks the network for nothing and can be mailed, printed, or put on a server.\n"
        "\n"
        "  pith eval report nano.jsonl mini.jsonl -o report.html",
    .groups = report_groups,
    .options_size = sizeof(struct report_command),
    .run = run_report,
};
