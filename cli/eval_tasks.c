/*
 * eval_tasks.c - the tasks of `pith eval` as commands. A command has the words of its help and the
 * way from a command line to the task; the options stand in eval/tasks.c. One task is one block
 * here and one line in the list at the end.
 */
#include <stdlib.h>
#include <string.h>
#include <tasks.h>

#include "task.h"

struct eval_command {
    struct eval_options shared;
    const struct eval_task *task; /* no option */
    union eval_args args;
};

static void task_defaults(struct eval_command *c, const char *name)
{
    eval_options_default(&c->shared);
    c->task = eval_task_find(name);
    c->args = *c->task->defaults;
}

static pith_status measure_task(const struct eval_setup *setup, const void *options,
                                json_t **result, pith_error *err)
{
    const struct eval_command *c = options;
    return c->task->run(setup, &c->args, result, err);
}

/* Whether the task asks questions in its prompts. */
static bool asks(const struct eval_task *task)
{
    static const char *const reading[] = {"perplexity", "stack", "divergence", "kept"};
    for (size_t i = 0; i < sizeof(reading) / sizeof(reading[0]); i++)
        if (strcmp(task->name, reading[i]) == 0)
            return false;
    return true;
}

/* When the task has an engine of the full cache beside the measured one. */
static enum session_pairs pairs(const struct eval_command *c)
{
    if (strcmp(c->task->name, "divergence") == 0 || strcmp(c->task->name, "stack") == 0)
        return PAIRS_ALWAYS;
    for (const struct option *o = c->task->options; o->name != NULL; o++)
        if (strcmp(o->name, "--paired") == 0 && !c->args.common.not_paired)
            return c->args.common.paired ? PAIRS_ALWAYS : PAIRS_WITH_A_POLICY;
    return PAIRS_NEVER;
}

/* Tokens of the longest text that the task's options name: -c, else --length. */
static int64_t longest(const struct eval_command *c)
{
    int64_t most = 0;
    const uint8_t *args = (const uint8_t *)&c->args;
    for (const struct option *o = c->task->options; o->name != NULL; o++) {
        bool context = o->alias != NULL && strcmp(o->alias, "-c") == 0;
        bool lengths = strcmp(o->name, "--length") == 0;
        if ((context || lengths) && o->type == OPTION_INT) {
            int32_t n;
            memcpy(&n, args + o->offset, sizeof(n));
            return n;
        }
        const struct option_ints *list = (const void *)(args + o->offset);
        for (int32_t i = 0; lengths && o->type == OPTION_INTS && i < list->n; i++)
            most = list->value[i] > most ? list->value[i] : most;
    }
    return most;
}

/* Reads the file that the task wants the text of, and runs it. */
static int run_with(struct eval_command *c, int (*run)(void *options, measure_fn *measure))
{
    struct cli_text text = {0};
    const char *fault = eval_task_check(c->task, &c->args);
    if (fault != NULL)
        cli_fail_usage("%s", fault);
    if (eval_task_wants_text(c->task, &c->args)) {
        text = cli_read_file(c->args.common.path);
        eval_task_set_text(c->task, &c->args, text.data, text.len);
    }
    c->shared.longest = longest(c);
    c->shared.asks = asks(c->task);
    c->shared.pairs = pairs(c);
    int status = run(c, measure_task);
    free(text.data);
    return status;
}

static int run_task(void *options)
{
    return run_with(options, eval_command_run);
}

static int run_alone(void *options)
{
    return run_with(options, eval_command_run_alone);
}

/* The rest of a task's command; with a model, or alone on recorded tensors. */
#define TASK_GROUP(table)                                                                          \
    {                                                                                              \
        "Task", table, offsetof(struct eval_command, args)                                         \
    }
#define WITH_MODEL(table)                                                                          \
    .groups =                                                                                      \
        (const struct option_group[]){EVAL_MODEL_GROUP, TASK_GROUP(table), EVAL_GROUPS, {0}},      \
    .options_size = sizeof(struct eval_command), .run = run_task
#define ALONE(table)                                                                               \
    .groups = (const struct option_group[]){TASK_GROUP(table), EVAL_GROUPS, {0}},                  \
    .options_size = sizeof(struct eval_command), .run = run_alone

static void perplexity_defaults(void *options)
{
    task_defaults(options, "perplexity");
}

static const struct command task_perplexity = {
    .name = "perplexity",
    .summary = "measure how well a model predicts a text, as llama-perplexity does",
    .synopsis = "-m MODEL -f FILE [-c N] [-b N]",
    .notes =
        "The second half of every chunk is scored. One newline at the end of the file is dropped.",
    WITH_MODEL(eval_perplexity_options),
    .defaults = perplexity_defaults,
};

static void stack_defaults(void *options)
{
    struct eval_command *c = options;
    task_defaults(c, "stack");
    c->shared.memory.type_k = "q8_0"; /* the stack of the TriAttention V3 report */
    c->shared.memory.type_v = "turbo3";
    c->shared.memory.keep = "triattention:v3";
}

static const struct command task_stack = {
    .name = "stack",
    .summary = "compare storage types, policies and all of them together with the full cache",
    .synopsis = "-m MODEL -f FILE [-ctk TYPE] [-ctv TYPE] [--keep POLICY] [--budget 25%]",
    .notes =
        "There is one row for the full cache, one for each of -ctk with -ctv, --read, --keep and\n"
        "--recall, and one for all together. They hold perplexity against the full cache token by\n"
        "token, bytes of KV memory, and seconds. \"--keep none\" or \"-ctk f16 -ctv f16\" leaves "
        "a\n"
        "way out.\n"
        "\n"
        "  pith eval stack -m models/pith-mini.gguf -f text.txt -c 8192 --chunks 2",
    WITH_MODEL(eval_stack_options),
    .defaults = stack_defaults,
};

static void divergence_defaults(void *options)
{
    task_defaults(options, "divergence");
}

static const struct command task_divergence = {
    .name = "divergence",
    .summary = "compare the model's expectations at each position with the full cache's",
    .synopsis = "-m MODEL -f FILE [-c N] --keep POLICY",
    .notes =
        "KL divergence (in nats) and agreement of the likeliest token and of the five likeliest.",
    WITH_MODEL(eval_divergence_options),
    .defaults = divergence_defaults,
};

static void needle_defaults(void *options)
{
    task_defaults(options, "needle");
}

static const struct command task_needle = {
    .name = "needle",
    .summary = "ask for a fact at every depth of texts of every length",
    .synopsis = "-m MODEL [-n 1024,4096] [-d 0,50,100]",
    WITH_MODEL(eval_needle_options),
    .defaults = needle_defaults,
};

static void ruler_defaults(void *options)
{
    task_defaults(options, "ruler");
}

static const struct command task_ruler = {
    .name = "ruler",
    .summary = "run RULER's tasks at any length",
    .synopsis = "-m MODEL [--task NAME] [-n 1024,4096]",
    WITH_MODEL(eval_ruler_options),
    .defaults = ruler_defaults,
};

static void recursion_defaults(void *options)
{
    task_defaults(options, "recursion");
}

static const struct command task_recursion = {
    .name = "recursion",
    .summary = "ask for the state of a depth-first search after some steps",
    .synopsis = "-m MODEL [--trace] [--max-steps 20]",
    WITH_MODEL(eval_recursion_options),
    .defaults = recursion_defaults,
};

static void derivation_defaults(void *options)
{
    task_defaults(options, "derivation");
}

static const struct command task_derivation = {
    .name = "derivation",
    .summary = "let a model write out sums, part by part, some of which recur",
    .synopsis = "-m MODEL [-n 8,16,32]",
    WITH_MODEL(eval_derivation_options),
    .defaults = derivation_defaults,
};

static void share_defaults(void *options)
{
    struct eval_command *c = options;
    task_defaults(c, "share");
    c->shared.memory.page_len = "16"; /* where pages are compared; the same for all rows */
}

static const struct command task_share = {
    .name = "share",
    .summary = "run many requests in a KV memory that holds a part of them, sharing pages or not",
    .synopsis = "-m MODEL [--requests 64] [--fit 0.25] [--row ROW]...",
    .notes =
        "Requests are derivations with steps that recur, all submitted at once. One row for each "
        "way\n"
        "to run them: tokens per second against the first row, the bound that memory alone sets, "
        "the\n"
        "memory, the accuracy. A row is written as it is shown, of parts joined by \" + \". The "
        "parts\n"
        "are none, prefix (reuse across requests), page=N, reserve=X, step=N (tokens of a "
        "scheduler's\n"
        "step), one policy that shares and one that keeps. --keep and --share put theirs into the\n"
        "usual rows.\n"
        "\n"
        "  pith eval share -m models/pith-mini.gguf\n"
        "  pith eval share -m model.gguf --forced verbatim --row none --row memshare:step=0.9",
    WITH_MODEL(eval_share_options),
    .defaults = share_defaults,
};

static void questions_defaults(void *options)
{
    task_defaults(options, "questions");
}

static const struct command task_questions = {
    .name = "questions",
    .summary = "ask problems with known answers and compare the final answers",
    .synopsis = "-m MODEL -f FILE [--draws 8] [--chat]",
    WITH_MODEL(eval_questions_options),
    .defaults = questions_defaults,
};

static void longbench_defaults(void *options)
{
    task_defaults(options, "longbench");
}

static const struct command task_longbench = {
    .name = "longbench",
    .summary = "ask a file of LongBench and score answers by its metrics",
    .synopsis = "-m MODEL -f multi_news.jsonl [--chat] [-n 4096]",
    WITH_MODEL(eval_longbench_options),
    .defaults = longbench_defaults,
};

static void facts_defaults(void *options)
{
    task_defaults(options, "facts");
}

static const struct command task_facts = {
    .name = "facts",
    .summary = "ask for ten facts of a text, each of a fork of one reading",
    .synopsis = "-m MODEL -f FILE [-n 2048,4096] [--texts N] [--keep POLICY]",
    .notes =
        "With --cut-once a line of FILE is an object:\n"
        "\n"
        "  {\"context\": C, \"questions\": [{\"ask\": A, \"answer\": B}, ..]}\n"
        "\n"
        "Each is a text or a list of token ids. An answer is right when all its tokens are. The "
        "rules\n"
        "of --keep apply, but a context is read whole and cut once, so that slack means nothing.\n"
        "\n"
        "  pith eval facts -m model.gguf -f wiki.txt -n 2048 --chat --keep snapkv:budget=25%\n"
        "  pith eval facts -m model.gguf -f items.jsonl --cut-once --keep keydiff:budget=25%",
    WITH_MODEL(eval_facts_options),
    .defaults = facts_defaults,
};

static void replay_defaults(void *options)
{
    task_defaults(options, "replay");
}

static const struct command task_replay = {
    .name = "replay",
    .summary = "try a policy on recorded tensors, without a model",
    .synopsis = "FILE [--policy NAME:KEY=VALUE,...]",
    ALONE(eval_replay_options),
    .defaults = replay_defaults,
};

static void kept_defaults(void *options)
{
    task_defaults(options, "kept");
}

static const struct command task_kept = {
    .name = "kept",
    .summary = "write down which positions a policy keeps while it reads a text",
    .synopsis = "-m MODEL -f FILE [--keep POLICY]",
    .notes = "\"pith eval report\" draws the result as a map by layer and KV head over time.\n"
             "\n"
             "  pith eval kept -m model.gguf -f text.txt --keep streaming:budget=128 --json -",
    WITH_MODEL(eval_kept_options),
    .defaults = kept_defaults,
};

const struct command *const eval_tasks[] = {
    &task_perplexity, &task_stack, &task_divergence, &task_needle, &task_ruler,     &task_recursion,
    &task_derivation, &task_share, &task_questions,  &task_facts,  &task_longbench, &task_replay,
    &task_kept,       &task_sweep, &task_report,     NULL};
