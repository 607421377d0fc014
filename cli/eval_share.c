/*
 * eval_share.c - `pith eval share` on the command line.
 */
#include <stdlib.h>
#include <string.h>

#include "task.h"

struct share_options {
    int32_t n_request;
    struct option_texts rows;
    int32_t n_part;
    int32_t n_example;
    int32_t n_predict;
    float fit;
    const char *forced;
    int32_t n_line;
    int32_t n_repeat;
};

struct share_command {
    struct eval_options shared;
    struct share_options share;
};

static const char *const forced_kinds[] = {"right", "verbatim", NULL};

#define AT(member) .offset = offsetof(struct share_options, member)
static const struct option share_option_table[] = {
    {"--requests", NULL, "N", OPTION_INT, AT(n_request), .min = 2, .max = 4096,
     .help = "requests that are submitted at once"},
    {"--parts", "-n", "N", OPTION_INT, AT(n_part), .min = 4, .max = 60,
     .help = "sums of a derivation, each a step"},
    {"--examples", NULL, "N", OPTION_INT, AT(n_example), .min = 0, .max = 64,
     .help = "worked derivations that all prompts begin with"},
    {"--predict", NULL, "N", OPTION_INT, AT(n_predict), .min = 0, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of an answer; 0: what a right one takes and a quarter more"},
    {"--fit", NULL, "X", OPTION_FLOAT, AT(fit), .min = 0.001, .max = 1,
     .help = "KV memory: the share of the requests that fit at once when nothing is shared"},
    {"--forced", NULL, "KIND", OPTION_CHOICE, AT(forced), .choices = forced_kinds,
     .absent = "the model writes",
     .help = "answers are given token by token: right derivations, or steps that recur verbatim"},
    {"--lines", NULL, "N", OPTION_INT, AT(n_line), .min = 1, .max = 64,
     .help = "lines of a step that recurs verbatim"},
    {"--row", NULL, "ROW", OPTION_TEXTS, AT(rows), .absent = "the usual seven",
     .help =
         "a way to run them, see below; repeatable, the first is what others are compared with"},
    {"--repeats", NULL, "N", OPTION_INT, AT(n_repeat), .min = 1, .max = 101,
     .help = "rounds over all rows, of which medians are taken"},
    {0},
};
#undef AT

static const struct option_group share_groups[] = {
    EVAL_MODEL_GROUP,
    {"Task", share_option_table, offsetof(struct share_command, share)},
    EVAL_GROUPS,
    {0},
};

static void share_defaults(void *options)
{
    struct share_command *c = options;
    eval_options_default(&c->shared);
    c->shared.memory.page_len = "16"; /* where pages are compared; the same for all rows */
    c->share.n_request = 64;
    c->share.n_part = 12;
    c->share.n_example = 1;
    c->share.fit = 0.25f;
    c->share.n_line = 2;
    c->share.n_repeat = 3;
}

static enum eval_share_answers answers_of(const char *forced)
{
    if (forced == NULL)
        return EVAL_SHARE_WRITTEN;
    return strcmp(forced, "right") == 0 ? EVAL_SHARE_RIGHT : EVAL_SHARE_VERBATIM;
}

static pith_status measure_share(const struct eval_setup *setup, const void *options,
                                 json_t **result, pith_error *err)
{
    const struct share_options *o = &((const struct share_command *)options)->share;
    const struct eval_share_params params = {
        .n_request = o->n_request,
        .n_part = o->n_part,
        .n_example = o->n_example,
        .n_predict = o->n_predict,
        .fit = (double)o->fit,
        .answers = answers_of(o->forced),
        .n_line = o->n_line,
        .rows = o->rows.text,
        .n_row = o->rows.n,
        .n_repeat = o->n_repeat,
    };
    return eval_share(setup, &params, result, err);
}

static int run_share(void *options)
{
    return eval_command_run(options, measure_share);
}

const struct command task_share = {
    .name = "share",
    .summary = "run many requests in a KV memory that holds a part of them, sharing pages or not",
    .synopsis = "-m MODEL [--requests 64] [--fit 0.25] [--row ROW]...",
    .notes =
        "Requests are derivations with steps that recur, all submitted at once. One row for each\n"
        "way to run them: tokens per second against the first row, the bound that memory alone\n"
        "sets, the memory, the accuracy. A row is written as it is shown, of parts joined by\n"
        "\" + \": none, prefix (reuse across requests), page=N, reserve=X, step=N (tokens of a\n"
        "scheduler's step), one policy that shares and one that keeps. --keep and --share put\n"
        "theirs into the usual rows.\n"
        "\n"
        "  pith eval share -m models/pith-mini.gguf\n"
        "  pith eval share -m model.gguf --forced verbatim --row none --row memshare:step=0.9",
    .groups = share_groups,
    .options_size = sizeof(struct share_command),
    .defaults = share_defaults,
    .run = run_share,
};
