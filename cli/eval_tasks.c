/*
 * eval_tasks.c - the tasks of `pith eval`: their options, their defaults, and which function of the
 * library measures. One task is one block here and one line in the list at the end.
 */
#include <stdlib.h>

#include "task.h"

/* The text of a file, borrowed from nothing: it stays until the command ends. */
static struct cli_text read_text(const char *path)
{
    return path != NULL ? cli_read_file(path) : (struct cli_text){0};
}

/* A text to be read token by token: one newline at its end is dropped, as llama-perplexity has it.
 */
static struct cli_text read_chomped(const char *path)
{
    struct cli_text text = cli_read_file(path);
    cli_chomp(&text);
    return text;
}

/* ---- perplexity ---- */

struct perplexity_options {
    const char *file;
    int32_t n_ctx;
    int32_t n_batch;
    int32_t n_chunk;
    bool paired;
    bool not_paired;
    const char *reference_type;
    struct cli_text text; /* no option: what file names */
};

struct perplexity_command {
    struct eval_options shared;
    struct perplexity_options perplexity;
};

static const char *const storage_types[] = {"f32", "f16", "q8_0", NULL};

#define AT(member) .offset = offsetof(struct perplexity_options, member)
static const struct option perplexity_option_table[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(file), .required = true,
     .help = "the text; - is standard input"},
    {"--ctx-size", "-c", "N", OPTION_INT, AT(n_ctx), .min = 4, .max = EVAL_MAX_TOKENS,
     .help = "tokens of a chunk"},
    {"--batch-size", "-b", "N", OPTION_INT, AT(n_batch), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens read at once; beyond -c several chunks side by side"},
    {"--chunks", NULL, "N", OPTION_INT, AT(n_chunk), .min = -1, .max = INT32_MAX, .absent = "all",
     .help = "chunks to read"},
    {"--paired", NULL, NULL, OPTION_FLAG, AT(paired), .absent = "with a policy",
     .help = "read the text under the full cache, too, and compare token by token"},
    {"--no-paired", NULL, NULL, OPTION_FLAG, AT(not_paired), .help = "do not"},
    {"--reference-type", NULL, "TYPE", OPTION_CHOICE, AT(reference_type), .choices = storage_types,
     .absent = "as -ctk and -ctv", .help = "storage type of the full cache that is compared with"},
    {0},
};
#undef AT

static const struct option_group perplexity_groups[] = {
    EVAL_MODEL_GROUP,
    {"Task", perplexity_option_table, offsetof(struct perplexity_command, perplexity)},
    EVAL_GROUPS,
    {0},
};

static void perplexity_defaults(void *options)
{
    struct perplexity_command *c = options;
    eval_options_default(&c->shared);
    c->perplexity.n_ctx = 512;
    c->perplexity.n_batch = 2048;
}

static pith_status measure_perplexity(const struct eval_setup *setup, const void *options,
                                      json_t **result, pith_error *err)
{
    const struct perplexity_options *o = &((const struct perplexity_command *)options)->perplexity;
    bool compared = !eval_is_plain(&setup->engine) || o->reference_type != NULL;
    const struct eval_perplexity_params params = {
        .text = o->text.data,
        .text_len = o->text.len,
        .n_ctx = o->n_ctx,
        .n_batch = o->n_batch,
        .n_chunk = o->n_chunk > 0 ? o->n_chunk : 0,
        .paired = (compared || o->paired) && !o->not_paired,
        .reference_type = o->reference_type,
    };
    return eval_perplexity(setup, &params, result, err);
}

static int run_perplexity(void *options)
{
    struct perplexity_command *c = options;
    if (c->perplexity.paired && c->perplexity.not_paired)
        cli_fail_usage("--paired and --no-paired contradict each other");
    c->perplexity.text = read_chomped(c->perplexity.file);
    int status = eval_command_run(options, measure_perplexity);
    free(c->perplexity.text.data);
    return status;
}

static const struct command task_perplexity = {
    .name = "perplexity",
    .summary = "measure how well a text is foretold, as llama-perplexity does",
    .synopsis = "-m MODEL -f FILE [-c N] [-b N]",
    .notes =
        "The second half of every chunk is scored. One newline at the end of the file is dropped.",
    .groups = perplexity_groups,
    .options_size = sizeof(struct perplexity_command),
    .defaults = perplexity_defaults,
    .run = run_perplexity,
};

/* ---- divergence ---- */

struct divergence_options {
    const char *file;
    int32_t n_ctx;
    int32_t n_chunk;
    const char *reference_type;
    struct cli_text text; /* no option: what file names */
};

struct divergence_command {
    struct eval_options shared;
    struct divergence_options divergence;
};

#define AT(member) .offset = offsetof(struct divergence_options, member)
static const struct option divergence_option_table[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(file), .required = true,
     .help = "the text; - is standard input"},
    {"--ctx-size", "-c", "N", OPTION_INT, AT(n_ctx), .min = 4, .max = EVAL_MAX_TOKENS,
     .help = "tokens of a chunk"},
    {"--chunks", NULL, "N", OPTION_INT, AT(n_chunk), .min = -1, .max = INT32_MAX, .absent = "all",
     .help = "chunks to read"},
    {"--reference-type", NULL, "TYPE", OPTION_CHOICE, AT(reference_type), .choices = storage_types,
     .absent = "as -ctk and -ctv", .help = "storage type of the full cache that is compared with"},
    {0},
};
#undef AT

static const struct option_group divergence_groups[] = {
    EVAL_MODEL_GROUP,
    {"Task", divergence_option_table, offsetof(struct divergence_command, divergence)},
    EVAL_GROUPS,
    {0},
};

static void divergence_defaults(void *options)
{
    struct divergence_command *c = options;
    eval_options_default(&c->shared);
    c->divergence.n_ctx = 512;
}

static pith_status measure_divergence(const struct eval_setup *setup, const void *options,
                                      json_t **result, pith_error *err)
{
    const struct divergence_options *o = &((const struct divergence_command *)options)->divergence;
    const struct eval_divergence_params params = {
        .text = o->text.data,
        .text_len = o->text.len,
        .n_ctx = o->n_ctx,
        .n_chunk = o->n_chunk > 0 ? o->n_chunk : 0,
        .reference_type = o->reference_type,
    };
    return eval_divergence(setup, &params, result, err);
}

static int run_divergence(void *options)
{
    struct divergence_command *c = options;
    c->divergence.text = read_chomped(c->divergence.file);
    int status = eval_command_run(options, measure_divergence);
    free(c->divergence.text.data);
    return status;
}

static const struct command task_divergence = {
    .name = "divergence",
    .summary = "compare the model's expectations at each position with those of the full cache",
    .synopsis = "-m MODEL -f FILE [-c N] --keep POLICY",
    .notes =
        "KL divergence (in nats) and agreement of the likeliest token and of the five likeliest.",
    .groups = divergence_groups,
    .options_size = sizeof(struct divergence_command),
    .defaults = divergence_defaults,
    .run = run_divergence,
};

/* ---- needle ---- */

struct needle_options {
    const char *style;
    const char *haystack;
    struct option_ints lengths;
    struct option_ints depths; /* percent */
    int32_t n_needle;
    int32_t n_repeat;
    int32_t n_predict;
    const char *needle;
    const char *question;
    const char *prefix;
    const char *word;
    const char *number;
    bool paired;
    bool not_paired;
    struct cli_text text; /* no option: what haystack names */
};

struct needle_command {
    struct eval_options shared;
    struct needle_options needle;
};

static const char *const needle_styles[] = {"paper", "pith", NULL};

#define AT(member) .offset = offsetof(struct needle_options, member)
static const struct option needle_option_table[] = {
    {"--length", "-n", "LIST", OPTION_INTS, AT(lengths), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens of the whole prompt"},
    {"--depth", "-d", "LIST", OPTION_INTS, AT(depths), .min = 0, .max = 100,
     .help = "where the fact stands, in percent of the text"},
    {"--haystack", "-f", "FILE", OPTION_TEXT, AT(haystack), .absent = "lines of noise",
     .help = "text that the fact is hidden in"},
    {"--style", NULL, "NAME", OPTION_CHOICE, AT(style), .choices = needle_styles,
     .help = "the fact and the question: the paper's, or what pith's models are trained on"},
    {"--needles", NULL, "N", OPTION_INT, AT(n_needle), .min = 1, .max = 32,
     .help = "facts in the text; one of them is asked about"},
    {"--repeat", NULL, "N", OPTION_INT, AT(n_repeat), .min = 1, .max = 100000,
     .help = "texts of each length and depth"},
    {"--predict", NULL, "N", OPTION_INT, AT(n_predict), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of an answer"},
    {"--needle", NULL, "TEXT", OPTION_TEXT, AT(needle), .absent = "the style's",
     .help = "the fact, with {name}, {word} and {number}"},
    {"--question", NULL, "TEXT", OPTION_TEXT, AT(question), .absent = "the style's",
     .help = "what is asked, with {name}"},
    {"--prefix", NULL, "TEXT", OPTION_TEXT, AT(prefix), .absent = "the style's",
     .help = "opening of the answer; an empty text: none"},
    {"--word", NULL, "TEXT", OPTION_TEXT, AT(word), .absent = "the style's",
     .help = "first part of what must be answered"},
    {"--number", NULL, "TEXT", OPTION_TEXT, AT(number), .absent = "the style's",
     .help = "second part"},
    {"--paired", NULL, NULL, OPTION_FLAG, AT(paired), .absent = "with a policy",
     .help = "ask under the full cache, too, and compare text by text"},
    {"--no-paired", NULL, NULL, OPTION_FLAG, AT(not_paired), .help = "do not"},
    {0},
};
#undef AT

static const struct option_group needle_groups[] = {
    EVAL_MODEL_GROUP,
    {"Task", needle_option_table, offsetof(struct needle_command, needle)},
    EVAL_GROUPS,
    {0},
};

static void needle_defaults(void *options)
{
    struct needle_command *c = options;
    eval_options_default(&c->shared);
    c->needle.style = needle_styles[0];
    c->needle.lengths = (struct option_ints){{1024, 2048, 4096}, 3};
    c->needle.depths = (struct option_ints){{0, 25, 50, 75, 100}, 5};
    c->needle.n_needle = 1;
    c->needle.n_repeat = 1;
    c->needle.n_predict = 64;
}

static pith_status measure_needle(const struct eval_setup *setup, const void *options,
                                  json_t **result, pith_error *err)
{
    const struct needle_options *o = &((const struct needle_command *)options)->needle;
    double depths[OPTION_INTS_MAX];
    for (int32_t i = 0; i < o->depths.n; i++)
        depths[i] = o->depths.value[i] / 100.0;
    const struct eval_needle_params params = {
        .style = o->style == needle_styles[0] ? EVAL_NEEDLE_PAPER : EVAL_NEEDLE_PITH,
        .haystack = o->text.data,
        .haystack_len = o->text.len,
        .needle = o->needle,
        .question = o->question,
        .prefix = o->prefix,
        .word = o->word,
        .number = o->number,
        .lengths = o->lengths.value,
        .n_length = o->lengths.n,
        .depths = depths,
        .n_depth = o->depths.n,
        .n_needle = o->n_needle,
        .n_repeat = o->n_repeat,
        .n_predict = o->n_predict,
        .paired = (o->paired || !eval_is_plain(&setup->engine)) && !o->not_paired,
    };
    return eval_needle(setup, &params, result, err);
}

static int run_needle(void *options)
{
    struct needle_command *c = options;
    if (c->needle.paired && c->needle.not_paired)
        cli_fail_usage("--paired and --no-paired contradict each other");
    c->needle.text = read_text(c->needle.haystack);
    int status = eval_command_run(options, measure_needle);
    free(c->needle.text.data);
    return status;
}

static const struct command task_needle = {
    .name = "needle",
    .summary = "ask for a fact at every depth of texts of every length",
    .synopsis = "-m MODEL [-n 1024,4096] [-d 0,50,100]",
    .groups = needle_groups,
    .options_size = sizeof(struct needle_command),
    .defaults = needle_defaults,
    .run = run_needle,
};

/* ---- ruler ---- */

struct ruler_options {
    struct option_texts tasks;
    struct option_ints lengths;
    int32_t n_sample;
    const char *haystack;
    const char *file;
    bool no_example;
    struct cli_text text; /* no option: what file names */
};

struct ruler_command {
    struct eval_options shared;
    struct ruler_options ruler;
};

/* In the order of enum eval_haystack. */
static const char *const haystacks[] = {"task", "noise", "text", "needles", NULL};

#define AT(member) .offset = offsetof(struct ruler_options, member)
static const struct option ruler_option_table[] = {
    {"--task", NULL, "NAME", OPTION_TEXTS, AT(tasks),
     .help = "niah_single_1 .. 3, niah_multikey_1 .. 3, niah_multivalue, niah_multiquery, vt, cwe, "
             "fwe; repeatable (default: all)"},
    {"--length", "-n", "LIST", OPTION_INTS, AT(lengths), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens of prompt and answer"},
    {"--samples", NULL, "N", OPTION_INT, AT(n_sample), .min = 1, .max = 100000,
     .help = "texts of each task and length"},
    {"--haystack", NULL, "NAME", OPTION_CHOICE, AT(haystack), .choices = haystacks,
     .help = "what the facts are hidden in; task: as the benchmark has it"},
    {"--file", "-f", "FILE", OPTION_TEXT, AT(file), .absent = "noise in its place",
     .help = "prose for haystacks of text"},
    {"--no-example", NULL, NULL, OPTION_FLAG, AT(no_example),
     .help = "leave out the worked example of vt and cwe"},
    {0},
};
#undef AT

static const struct option_group ruler_groups[] = {
    EVAL_MODEL_GROUP,
    {"Task", ruler_option_table, offsetof(struct ruler_command, ruler)},
    EVAL_GROUPS,
    {0},
};

static void ruler_defaults(void *options)
{
    struct ruler_command *c = options;
    eval_options_default(&c->shared);
    c->ruler.lengths = (struct option_ints){{1024, 2048, 4096}, 3};
    c->ruler.n_sample = 10;
    c->ruler.haystack = haystacks[0];
}

static enum eval_haystack haystack_of(const char *name)
{
    int i = 0;
    while (haystacks[i] != NULL && haystacks[i] != name)
        i++;
    return (enum eval_haystack)i;
}

static pith_status measure_ruler(const struct eval_setup *setup, const void *options,
                                 json_t **result, pith_error *err)
{
    const struct ruler_options *o = &((const struct ruler_command *)options)->ruler;
    static const char *const all[] = {"all"};
    const struct eval_ruler_params params = {
        .tasks = o->tasks.n > 0 ? o->tasks.text : all,
        .n_task = o->tasks.n > 0 ? o->tasks.n : 1,
        .lengths = o->lengths.value,
        .n_length = o->lengths.n,
        .n_sample = o->n_sample,
        .haystack = haystack_of(o->haystack),
        .text = o->text.data,
        .text_len = o->text.len,
        .example = !o->no_example,
    };
    return eval_ruler(setup, &params, result, err);
}

static int run_ruler(void *options)
{
    struct ruler_command *c = options;
    c->ruler.text = read_text(c->ruler.file);
    int status = eval_command_run(options, measure_ruler);
    free(c->ruler.text.data);
    return status;
}

static const struct command task_ruler = {
    .name = "ruler",
    .summary = "run RULER's tasks at any length",
    .synopsis = "-m MODEL [--task NAME] [-n 1024,4096]",
    .groups = ruler_groups,
    .options_size = sizeof(struct ruler_command),
    .defaults = ruler_defaults,
    .run = run_ruler,
};

/* ---- replay ---- */

struct replay_options {
    const char *path;
    struct option_texts policies;
    struct option_texts readers;
    struct option_ints at;
    int32_t n_query;
    int32_t n_missing;
};

struct replay_command {
    struct eval_options shared;
    struct replay_options replay;
};

#define AT(member) .offset = offsetof(struct replay_options, member)
static const struct option replay_option_table[] = {
    {"FILE", NULL, NULL, OPTION_TEXT, AT(path), .required = true,
     .help = "recorded tensors, as \"pith run --record FILE\" writes them"},
    {"--policy", NULL, "NAME:KEY=VALUE,...", OPTION_TEXTS, AT(policies), .absent = "that of --keep",
     .help = "a keep policy to try; repeatable"},
    {"--read-policy", NULL, "NAME:KEY=VALUE,...", OPTION_TEXTS, AT(readers),
     .absent = "that of --read", .help = "a read policy to try; repeatable"},
    {"--at", NULL, "LIST", OPTION_INTS, AT(at), .min = 1, .max = EVAL_MAX_TOKENS,
     .absent = "before the last --queries", .help = "tokens read when the lanes are looked at"},
    {"--queries", NULL, "N", OPTION_INT, AT(n_query), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens behind each stop whose queries judge what is gone"},
    {"--missing", NULL, "N", OPTION_INT, AT(n_missing), .max = EVAL_MAX_TOKENS,
     .help = "most evicted positions that a row names"},
    {0},
};
#undef AT

static const struct option_group replay_groups[] = {
    {"Task", replay_option_table, offsetof(struct replay_command, replay)},
    EVAL_GROUPS,
    {0},
};

static void replay_defaults(void *options)
{
    struct replay_command *c = options;
    eval_options_default(&c->shared);
    c->replay.n_query = 32;
    c->replay.n_missing = 8;
}

static pith_status measure_replay(const struct eval_setup *setup, const void *options,
                                  json_t **result, pith_error *err)
{
    const struct replay_options *o = &((const struct replay_command *)options)->replay;
    const struct eval_replay_params params = {
        .path = o->path,
        .policies = o->policies.text,
        .n_policy = o->policies.n,
        .readers = o->readers.text,
        .n_reader = o->readers.n,
        .at = o->at.value,
        .n_at = o->at.n,
        .n_query = o->n_query,
        .n_missing = o->n_missing,
    };
    return eval_replay(setup, &params, result, err);
}

static int run_replay(void *options)
{
    return eval_command_run_alone(options, measure_replay);
}

static const struct command task_replay = {
    .name = "replay",
    .summary = "try a policy on recorded tensors, without a model",
    .synopsis = "FILE [--policy NAME:KEY=VALUE,...]",
    .groups = replay_groups,
    .options_size = sizeof(struct replay_command),
    .defaults = replay_defaults,
    .run = run_replay,
};

const struct command *const eval_tasks[] = {
    &task_perplexity, &task_stack,      &task_divergence, &task_needle,    &task_ruler,
    &task_recursion,  &task_derivation, &task_share,      &task_questions, &task_facts,
    &task_replay,     &task_kept,       &task_sweep,      &task_report,    NULL};
