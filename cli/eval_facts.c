/*
 * eval_facts.c - `pith eval facts` on the command line: texts that are made with facts in them, or
 * a file of contexts with questions, and which function of the library asks them.
 */
#include <facts.h>
#include <stdlib.h>

#include "task.h"

struct facts_options {
    const char *path;
    const char *style;
    struct option_ints lengths;
    int32_t n_text;
    int32_t n_predict;
    bool paired;
    bool not_paired;
    bool cut_once;
    int32_t n_context;
    struct cli_text text; /* no option: what path names */
};

struct facts_command {
    struct eval_options shared;
    struct facts_options facts;
};

/* In the order of enum eval_facts_style. */
static const char *const facts_styles[] = {"pool", "pith", NULL};

#define AT(member) .offset = offsetof(struct facts_options, member)
static const struct option facts_option_table[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(path), .absent = "lines of noise",
     .help = "text that the facts are hidden in; with --cut-once contexts with questions"},
    {"--length", "-n", "LIST", OPTION_INTS, AT(lengths), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens of the whole prompt"},
    {"--texts", NULL, "N", OPTION_INT, AT(n_text), .min = 1, .max = 100000,
     .help = "texts of each length, ten facts in each"},
    {"--style", NULL, "NAME", OPTION_CHOICE, AT(style), .choices = facts_styles,
     .help = "facts of all kinds, or what pith's models are trained on"},
    {"--predict", NULL, "N", OPTION_INT, AT(n_predict), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of an answer"},
    {"--paired", NULL, NULL, OPTION_FLAG, AT(paired), .absent = "with a policy",
     .help = "read each text under the full cache, too, and compare fact by fact"},
    {"--no-paired", NULL, NULL, OPTION_FLAG, AT(not_paired), .help = "do not"},
    {"--cut-once", NULL, NULL, OPTION_FLAG, AT(cut_once),
     .help = "read each context of FILE under the full cache and cut it once"},
    {"--contexts", NULL, "N", OPTION_INT, AT(n_context), .min = 0, .max = INT32_MAX,
     .help = "with --cut-once: how many of them, from the first on; 0: all"},
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
    c->facts.style = facts_styles[0];
    c->facts.lengths = (struct option_ints){{2048}, 1};
    c->facts.n_text = 4;
    c->facts.n_predict = 24;
}

static pith_status measure_facts(const struct eval_setup *setup, const void *options,
                                 json_t **result, pith_error *err)
{
    const struct facts_options *o = &((const struct facts_command *)options)->facts;
    if (o->cut_once) {
        const struct eval_facts_params params = {.path = o->path, .n_context = o->n_context};
        return eval_facts(setup, &params, result, err);
    }
    const struct eval_facts_texts_params params = {
        .style = o->style == facts_styles[0] ? EVAL_FACTS_POOL : EVAL_FACTS_PITH,
        .haystack = o->text.data,
        .haystack_len = o->text.len,
        .lengths = o->lengths.value,
        .n_length = o->lengths.n,
        .n_text = o->n_text,
        .n_predict = o->n_predict,
        .paired = (o->paired || !eval_is_plain(&setup->engine)) && !o->not_paired,
    };
    return eval_facts_texts(setup, &params, result, err);
}

static int run_facts(void *options)
{
    struct facts_command *c = options;
    if (c->facts.paired && c->facts.not_paired)
        cli_fail_usage("--paired and --no-paired contradict each other");
    if (c->facts.cut_once && c->facts.path == NULL)
        cli_fail_usage("--cut-once: name a file of contexts with --file");
    if (!c->facts.cut_once && c->facts.path != NULL)
        c->facts.text = cli_read_file(c->facts.path);
    int status = eval_command_run(options, measure_facts);
    free(c->facts.text.data);
    return status;
}

const struct command task_facts = {
    .name = "facts",
    .summary = "ask for ten facts of a text, each of a fork of one reading",
    .synopsis = "-m MODEL -f FILE [-n 2048,4096] [--texts N] [--keep POLICY]",
    .notes =
        "With --cut-once a line of FILE is {\"context\": C, \"questions\": [{\"ask\": A, "
        "\"answer\": B}, ..]},\neach a text or a list of token ids; an answer is right when all "
        "its tokens are. The rules of\n--keep apply, but a context is read whole and cut once, so "
        "that slack means nothing.\n"
        "\n"
        "  pith eval facts -m model.gguf -f wiki.txt -n 2048 --chat --keep snapkv:budget=25%\n"
        "  pith eval facts -m model.gguf -f items.jsonl --cut-once --keep keydiff:budget=25%",
    .groups = facts_groups,
    .options_size = sizeof(struct facts_command),
    .defaults = facts_defaults,
    .run = run_facts,
};
