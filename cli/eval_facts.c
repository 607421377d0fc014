/*
 * eval_facts.c - `pith eval facts` on the command line: a file of contexts with questions, and
 * which function of the library asks them.
 */
#include <facts.h>

#include "task.h"

struct facts_options {
    const char *path;
    int32_t n_context;
};

struct facts_command {
    struct eval_options shared;
    struct facts_options facts;
};

#define AT(member) .offset = offsetof(struct facts_options, member)
static const struct option facts_option_table[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(path), .required = true,
     .help = "a JSON object per line: context, and questions, each with ask and answer"},
    {"--contexts", NULL, "N", OPTION_INT, AT(n_context), .min = 0, .max = INT32_MAX,
     .help = "how many of them, from the first on; 0: all"},
    {0},
};
#undef AT

static const struct option_group facts_groups[] = {
    EVAL_MODEL_GROUP,
    {"Task", facts_option_table, offsetof(struct facts_command, facts)},
    EVAL_GROUPS,
    {0},
};

static void facts_defaults(void *options)
{
    struct facts_command *c = options;
    eval_options_default(&c->shared);
}

static pith_status measure_facts(const struct eval_setup *setup, const void *options,
                                 json_t **result, pith_error *err)
{
    const struct facts_options *o = &((const struct facts_command *)options)->facts;
    const struct eval_facts_params params = {.path = o->path, .n_context = o->n_context};
    return eval_facts(setup, &params, result, err);
}

static int run_facts(void *options)
{
    return eval_command_run(options, measure_facts);
}

const struct command task_facts = {
    .name = "facts",
    .summary = "cut each context once and ask of what is left, one question at a time",
    .synopsis = "-m MODEL -f FILE --keep POLICY",
    .notes =
        "A line is {\"context\": C, \"questions\": [{\"ask\": A, \"answer\": B}, ..]}, each a text "
        "or a list of\ntoken ids; an answer is right when all its tokens are. The rules of "
        "--keep apply, but a\ncontext is read whole and cut once, so that slack means nothing.",
    .groups = facts_groups,
    .options_size = sizeof(struct facts_command),
    .defaults = facts_defaults,
    .run = run_facts,
};
