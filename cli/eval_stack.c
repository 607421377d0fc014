/*
 * eval_stack.c - `pith eval stack` on the command line: the options of all ways to make a cache
 * cheaper at once, and defaults that are the stack of the TriAttention V3 report.
 */
#include <stdlib.h>
#include <string.h>

#include "task.h"

struct stack_options {
    const char *file;
    int32_t n_ctx;
    int32_t n_batch;
    int32_t n_chunk;
    int32_t n_repeat;
    struct option_texts budgets;
    const char *reference_type;
    struct cli_text text; /* no option: what file names */
};

struct stack_command {
    struct eval_options shared;
    struct stack_options stack;
};

static const char *const reference_types[] = {"f32", "f16", "q8_0", NULL};

#define AT(member) .offset = offsetof(struct stack_options, member)
static const struct option stack_option_table[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(file), .required = true,
     .help = "the text; - is standard input"},
    {"--ctx-size", "-c", "N", OPTION_INT, AT(n_ctx), .min = 4, .max = EVAL_MAX_TOKENS,
     .help = "tokens of a chunk"},
    {"--batch-size", "-b", "N", OPTION_INT, AT(n_batch), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens read at once"},
    {"--chunks", NULL, "N", OPTION_INT, AT(n_chunk), .min = -1, .max = INT32_MAX,
     .help = "chunks to read; -1: all"},
    {"--budget", NULL, "BUDGET", OPTION_TEXTS, AT(budgets), .absent = "90% and 25%",
     .help = "of a keep policy that names none; repeatable"},
    {"--reference-type", NULL, "TYPE", OPTION_CHOICE, AT(reference_type),
     .choices = reference_types, .help = "storage type of the full cache that is compared with"},
    {"--repeat", NULL, "N", OPTION_INT, AT(n_repeat), .min = 1, .max = 1000,
     .help = "read everything N times; the least seconds count"},
    {0},
};
#undef AT

static const struct option_group stack_groups[] = {
    EVAL_MODEL_GROUP,
    {"Task", stack_option_table, offsetof(struct stack_command, stack)},
    EVAL_GROUPS,
    {0},
};

static void stack_defaults(void *options)
{
    struct stack_command *c = options;
    eval_options_default(&c->shared);
    c->shared.memory.type_k = "q8_0";
    c->shared.memory.type_v = "turbo3";
    c->shared.memory.keep = "triattention:v3";
    c->stack.n_ctx = 4096;
    c->stack.n_batch = 512;
    c->stack.n_chunk = 3;
    c->stack.n_repeat = 1;
    c->stack.reference_type = reference_types[1];
}

/* The budgets of the report's goals, where the policy leaves the question open. */
static void set_budgets(const struct stack_options *o, const char *keep,
                        struct eval_stack_params *params)
{
    static const char *const usual[] = {"90%", "25%"};
    bool open = keep != NULL && strcmp(keep, "none") != 0 && strstr(keep, "budget=") == NULL;
    params->budgets = o->budgets.text;
    params->n_budget = o->budgets.n;
    if (o->budgets.n == 0 && open) {
        params->budgets = usual;
        params->n_budget = 2;
    }
}

static pith_status measure_stack(const struct eval_setup *setup, const void *options,
                                 json_t **result, pith_error *err)
{
    const struct stack_options *o = &((const struct stack_command *)options)->stack;
    struct eval_stack_params params = {
        .text = o->text.data,
        .text_len = o->text.len,
        .n_ctx = o->n_ctx,
        .n_batch = o->n_batch < o->n_ctx ? o->n_batch : o->n_ctx,
        .n_chunk = o->n_chunk > 0 ? o->n_chunk : 0,
        .reference_type = o->reference_type,
        .n_repeat = o->n_repeat,
    };
    set_budgets(o, setup->engine.keep, &params);
    return eval_stack(setup, &params, result, err);
}

static int run_stack(void *options)
{
    struct stack_command *c = options;
    c->stack.text = cli_read_file(c->stack.file);
    cli_chomp(&c->stack.text); /* as perplexity does */
    int status = eval_command_run(options, measure_stack);
    free(c->stack.text.data);
    return status;
}

const struct command task_stack = {
    .name = "stack",
    .summary = "compare storage types, policies and all of them together with the full cache",
    .synopsis = "-m MODEL -f FILE [-ctk TYPE] [-ctv TYPE] [--keep POLICY] [--budget 25%]",
    .notes =
        "One row for the full cache, for each of -ctk with -ctv, --read, --keep and --recall that "
        "is\n"
        "given, and for all together: perplexity against the full cache token by token, bytes of\n"
        "KV memory, seconds. \"--keep none\" or \"-ctk f16 -ctv f16\" leaves a way out.\n"
        "\n"
        "  pith eval stack -m models/pith-mini.gguf -f text.txt -c 8192 --chunks 2",
    .groups = stack_groups,
    .options_size = sizeof(struct stack_command),
    .defaults = stack_defaults,
    .run = run_stack,
};
