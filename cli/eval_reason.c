/*
 * eval_reason.c - the tasks of `pith eval` in which a model writes at length: recursion,
 * derivation, questions. One task is one block here.
 */
#include "task.h"

#define MAX_SAMPLE 100000

/* ---- recursion ---- */

struct recursion_options {
    const char *path;
    bool trace;
    int32_t min_steps;
    int32_t max_steps;
    int32_t step_stride;
    int32_t n_sample;
    int32_t n_predict;
};

struct recursion_command {
    struct eval_options shared;
    struct recursion_options recursion;
};

#define AT(member) .offset = offsetof(struct recursion_options, member)
static const struct option recursion_option_table[] = {
    {"--trace", NULL, NULL, OPTION_FLAG, AT(trace),
     .help = "the search is written out step by step, as pith's models are trained to; without "
             "it, a question that is answered with JSON"},
    {"--file", "-f", "FILE", OPTION_TEXT, AT(path), .absent = "drawn",
     .help = "records of the benchmark's format"},
    {"--min-steps", NULL, "N", OPTION_INT, AT(min_steps), .min = 1, .max = 8192,
     .help = "fewest steps of the search, also of the records of a file"},
    {"--max-steps", NULL, "N", OPTION_INT, AT(max_steps), .min = 1, .max = 8192,
     .help = "most steps; 58 of drawn graphs"},
    {"--stride", NULL, "N", OPTION_INT, AT(step_stride), .min = 1, .max = 8192,
     .help = "from one number of steps to the next"},
    {"--samples", NULL, "N", OPTION_INT, AT(n_sample), .min = 0, .max = MAX_SAMPLE,
     .help = "graphs of each number of steps; 0: all of a file"},
    {"--predict", NULL, "N", OPTION_INT, AT(n_predict), .min = 0, .max = EVAL_MAX_TOKENS,
     .help =
         "most tokens of an answer; 0: 512, of traces what a right one takes and a quarter more"},
    {0},
};
#undef AT

static const struct option_group recursion_groups[] = {
    EVAL_MODEL_GROUP,
    {"Task", recursion_option_table, offsetof(struct recursion_command, recursion)},
    EVAL_GROUPS,
    {0},
};

static void recursion_defaults(void *options)
{
    struct recursion_command *c = options;
    eval_options_default(&c->shared);
    c->recursion.min_steps = 6; /* the paper's range */
    c->recursion.max_steps = 20;
    c->recursion.step_stride = 2;
    c->recursion.n_sample = 10;
}

static pith_status measure_recursion(const struct eval_setup *setup, const void *options,
                                     json_t **result, pith_error *err)
{
    const struct recursion_options *o = &((const struct recursion_command *)options)->recursion;
    const struct eval_recursion_params params = {
        .path = o->path,
        .min_steps = o->min_steps,
        .max_steps = o->max_steps,
        .step_stride = o->step_stride,
        .n_sample = o->n_sample,
        .n_predict = o->n_predict == 0 && !o->trace ? 512 : o->n_predict,
        .trace = o->trace,
    };
    return eval_recursion(setup, &params, result, err);
}

static int run_recursion(void *options)
{
    return eval_command_run(options, measure_recursion);
}

const struct command task_recursion = {
    .name = "recursion",
    .summary = "ask for the state of a depth-first search after some steps",
    .synopsis = "-m MODEL [--trace] [--max-steps 20]",
    .groups = recursion_groups,
    .options_size = sizeof(struct recursion_command),
    .defaults = recursion_defaults,
    .run = run_recursion,
};

/* ---- derivation ---- */

struct derivation_options {
    struct option_ints parts;
    int32_t n_sample;
    int32_t n_predict;
};

struct derivation_command {
    struct eval_options shared;
    struct derivation_options derivation;
};

#define AT(member) .offset = offsetof(struct derivation_options, member)
static const struct option derivation_option_table[] = {
    {"--parts", "-n", "LIST", OPTION_INTS, AT(parts), .min = 4, .max = 60,
     .help = "sums of a derivation"},
    {"--samples", NULL, "N", OPTION_INT, AT(n_sample), .min = 1, .max = MAX_SAMPLE,
     .help = "derivations of each number of sums"},
    {"--predict", NULL, "N", OPTION_INT, AT(n_predict), .min = 0, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of an answer; 0: what a right one takes and a quarter more"},
    {0},
};
#undef AT

static const struct option_group derivation_groups[] = {
    EVAL_MODEL_GROUP,
    {"Task", derivation_option_table, offsetof(struct derivation_command, derivation)},
    EVAL_GROUPS,
    {0},
};

static void derivation_defaults(void *options)
{
    struct derivation_command *c = options;
    eval_options_default(&c->shared);
    c->derivation.parts = (struct option_ints){{8, 16, 32}, 3};
    c->derivation.n_sample = 10;
}

static pith_status measure_derivation(const struct eval_setup *setup, const void *options,
                                      json_t **result, pith_error *err)
{
    const struct derivation_options *o = &((const struct derivation_command *)options)->derivation;
    const struct eval_derivation_params params = {
        .parts = o->parts.value,
        .n_part = o->parts.n,
        .n_sample = o->n_sample,
        .n_predict = o->n_predict,
    };
    return eval_derivation(setup, &params, result, err);
}

static int run_derivation(void *options)
{
    return eval_command_run(options, measure_derivation);
}

const struct command task_derivation = {
    .name = "derivation",
    .summary = "let a model write out sums, part by part, some of which recur",
    .synopsis = "-m MODEL [-n 8,16,32]",
    .groups = derivation_groups,
    .options_size = sizeof(struct derivation_command),
    .defaults = derivation_defaults,
    .run = run_derivation,
};

/* ---- questions ---- */

struct questions_options {
    const char *path;
    int32_t n_question;
    int32_t n_draw;
    int32_t n_parallel;
    int32_t n_predict;
    float temperature;
    int32_t top_k;
    float top_p;
    float min_p;
    const char *instruction;
};

struct questions_command {
    struct eval_options shared;
    struct questions_options questions;
};

#define AT(member) .offset = offsetof(struct questions_options, member)
static const struct option questions_option_table[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(path), .required = true,
     .help = "a JSON object per line with problem or question, and answer"},
    {"--questions", NULL, "N", OPTION_INT, AT(n_question), .min = 0, .max = INT32_MAX,
     .help = "how many of them, from the first on; 0: all"},
    {"--draws", NULL, "N", OPTION_INT, AT(n_draw), .min = 1, .max = MAX_SAMPLE,
     .help = "answers that are sampled to each"},
    {"--parallel", NULL, "N", OPTION_INT, AT(n_parallel), .min = 1, .max = 256,
     .help = "answers generated at the same time: the same answers, sooner"},
    {"--predict", NULL, "N", OPTION_INT, AT(n_predict), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of an answer"},
    {"--temp", NULL, "X", OPTION_FLOAT, AT(temperature), .min = 0, .max = 100,
     .help = "temperature; 0: greedy"},
    {"--top-k", NULL, "N", OPTION_INT, AT(top_k), .min = 0, .max = INT32_MAX,
     .help = "sample among the N likeliest tokens; 0: off"},
    {"--top-p", NULL, "X", OPTION_FLOAT, AT(top_p), .min = 0, .max = 1,
     .help = "sample among the likeliest tokens that make up this probability; 1: off"},
    {"--min-p", NULL, "X", OPTION_FLOAT, AT(min_p), .min = 0, .max = 1,
     .help = "sample among tokens at least this likely, relative to the likeliest; 0: off"},
    {"--instruction", NULL, "TEXT", OPTION_TEXT, AT(instruction),
     .help = "what follows each problem, on a line of its own; an empty text: nothing"},
    {0},
};
#undef AT

static const struct option_group questions_groups[] = {
    EVAL_MODEL_GROUP,
    {"Task", questions_option_table, offsetof(struct questions_command, questions)},
    EVAL_GROUPS,
    {0},
};

/* The sampling of the papers whose figures these files are known by: temperature 0.6, top-p 0.95.
 */
static void questions_defaults(void *options)
{
    struct questions_command *c = options;
    eval_options_default(&c->shared);
    c->questions.n_draw = 1;
    c->questions.n_parallel = 1;
    c->questions.n_predict = 2048;
    c->questions.temperature = 0.6f;
    c->questions.top_p = 0.95f;
    c->questions.instruction = EVAL_QUESTIONS_INSTRUCTION;
}

static pith_status measure_questions(const struct eval_setup *setup, const void *options,
                                     json_t **result, pith_error *err)
{
    const struct questions_options *o = &((const struct questions_command *)options)->questions;
    struct eval_questions_params params = {
        .path = o->path,
        .n_question = o->n_question,
        .n_draw = o->n_draw,
        .n_parallel = o->n_parallel,
        .n_predict = o->n_predict,
        .instruction = o->instruction,
    };
    pith_sample_params_default(&params.sample);
    params.sample.temperature = o->temperature;
    params.sample.top_k = o->top_k;
    params.sample.top_p = o->top_p;
    params.sample.min_p = o->min_p;
    return eval_questions(setup, &params, result, err);
}

static int run_questions(void *options)
{
    return eval_command_run(options, measure_questions);
}

const struct command task_questions = {
    .name = "questions",
    .summary = "ask problems with known answers and compare the final answers",
    .synopsis = "-m MODEL -f FILE [--draws 8] [--chat]",
    .groups = questions_groups,
    .options_size = sizeof(struct questions_command),
    .defaults = questions_defaults,
    .run = run_questions,
};
