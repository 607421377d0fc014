/*
 * tasks.c - the tasks of `pith eval`: one block for each, with its options, their defaults and its
 * call, and one row in the table at the end. It knows neither command lines nor JSON.
 *
 * Invariant: a key, a range or a default stands here and nowhere else.
 */
#include "tasks.h"

#include <string.h>

#define MAX_SAMPLE 100000

static const char *const storage_types[] = {"f32", "f16", "q8_0", NULL};

/* The index of a choice in its list. */
static int index_of(const char *const *choices, const char *chosen)
{
    int i = 0;
    while (choices[i] != NULL && strcmp(choices[i], chosen) != 0)
        i++;
    return i;
}

/* Whether the full cache is asked, too. */
static bool is_paired(const struct eval_setup *setup, const union eval_args *a)
{
    return (a->common.paired || !eval_is_plain(&setup->engine)) && !a->common.not_paired;
}

static bool never_random(const union eval_args *a)
{
    (void)a;
    return false;
}

static bool reads_itself(const union eval_args *a)
{
    (void)a;
    return true;
}

/* ---- perplexity ---- */

#define AT(member) .offset = offsetof(struct perplexity_args, member)
const struct option eval_perplexity_options[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(common.path), .required = true,
     .help = "the text; - is standard input"},
    {"--ctx-size", "-c", "N", OPTION_INT, AT(p.n_ctx), .min = 4, .max = EVAL_MAX_TOKENS,
     .help = "tokens of a chunk", .keys = "n_ctx"},
    {"--batch-size", "-b", "N", OPTION_INT, AT(p.n_batch), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens read at once; beyond -c several chunks side by side", .keys = "n_batch"},
    {"--chunks", NULL, "N", OPTION_INT, AT(p.n_chunk), .min = -1, .max = INT32_MAX, .absent = "all",
     .help = "chunks to read"},
    {"--paired", NULL, NULL, OPTION_FLAG, AT(common.paired), .absent = "with a policy",
     .help = "read the text under the full cache, too, and compare token by token"},
    {"--no-paired", NULL, NULL, OPTION_FLAG, AT(common.not_paired), .help = "do not"},
    {"--reference-type", NULL, "TYPE", OPTION_CHOICE, AT(p.reference_type),
     .choices = storage_types, .absent = "as -ctk and -ctv",
     .help = "storage type of the full cache that is compared with"},
    {0},
};
#undef AT

static const union eval_args perplexity_defaults = {
    .perplexity = {.p = {.n_ctx = 512, .n_batch = 2048}}};

static pith_status run_perplexity(const struct eval_setup *setup, const union eval_args *a,
                                  json_t **result, pith_error *err)
{
    struct eval_perplexity_params p = a->perplexity.p;
    p.text = a->common.text;
    p.text_len = a->common.len;
    p.n_chunk = p.n_chunk > 0 ? p.n_chunk : 0;
    p.paired = is_paired(setup, a) || (p.reference_type != NULL && !a->common.not_paired);
    return eval_perplexity(setup, &p, result, err);
}

/* ---- stack ---- */

#define AT(member) .offset = offsetof(struct stack_args, member)
const struct option eval_stack_options[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(common.path), .required = true,
     .help = "the text; - is standard input"},
    {"--ctx-size", "-c", "N", OPTION_INT, AT(p.n_ctx), .min = 4, .max = EVAL_MAX_TOKENS,
     .help = "tokens of a chunk"},
    {"--batch-size", "-b", "N", OPTION_INT, AT(p.n_batch), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens read at once"},
    {"--chunks", NULL, "N", OPTION_INT, AT(p.n_chunk), .min = -1, .max = INT32_MAX,
     .help = "chunks to read; -1: all"},
    {"--budget", NULL, "BUDGET", OPTION_TEXTS, AT(budgets), .absent = "90% and 25%",
     .help = "of a keep policy that names none; repeatable"},
    {"--reference-type", NULL, "TYPE", OPTION_CHOICE, AT(p.reference_type),
     .choices = storage_types, .help = "storage type of the full cache that is compared with"},
    {"--repeat", NULL, "N", OPTION_INT, AT(p.n_repeat), .min = 1, .max = 1000,
     .help = "read everything N times; the least seconds count"},
    {0},
};
#undef AT

static const union eval_args stack_defaults = {
    .stack = {
        .p = {
            .n_ctx = 4096, .n_batch = 512, .n_chunk = 3, .n_repeat = 1, .reference_type = "f16"}}};

static pith_status run_stack(const struct eval_setup *setup, const union eval_args *a,
                             json_t **result, pith_error *err)
{
    /* The budgets of the TriAttention V3 report's goals, where the policy leaves it open. */
    static const char *const usual[] = {"90%", "25%"};
    const char *keep = setup->engine.keep;
    bool open = keep != NULL && strcmp(keep, "none") != 0 && strstr(keep, "budget=") == NULL;
    struct eval_stack_params p = a->stack.p;
    p.text = a->common.text;
    p.text_len = a->common.len;
    p.n_batch = p.n_batch < p.n_ctx ? p.n_batch : p.n_ctx;
    p.n_chunk = p.n_chunk > 0 ? p.n_chunk : 0;
    p.budgets = a->stack.budgets.text;
    p.n_budget = a->stack.budgets.n;
    if (p.n_budget == 0 && open) {
        p.budgets = usual;
        p.n_budget = 2;
    }
    return eval_stack(setup, &p, result, err);
}

/* ---- divergence ---- */

#define AT(member) .offset = offsetof(struct divergence_args, member)
const struct option eval_divergence_options[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(common.path), .required = true,
     .help = "the text; - is standard input"},
    {"--ctx-size", "-c", "N", OPTION_INT, AT(p.n_ctx), .min = 4, .max = EVAL_MAX_TOKENS,
     .help = "tokens of a chunk", .keys = "n_ctx"},
    {"--chunks", NULL, "N", OPTION_INT, AT(p.n_chunk), .min = -1, .max = INT32_MAX, .absent = "all",
     .help = "chunks to read"},
    {"--reference-type", NULL, "TYPE", OPTION_CHOICE, AT(p.reference_type),
     .choices = storage_types, .absent = "as -ctk and -ctv",
     .help = "storage type of the full cache that is compared with"},
    {0},
};
#undef AT

static const union eval_args divergence_defaults = {.divergence = {.p = {.n_ctx = 512}}};

static pith_status run_divergence(const struct eval_setup *setup, const union eval_args *a,
                                  json_t **result, pith_error *err)
{
    struct eval_divergence_params p = a->divergence.p;
    p.text = a->common.text;
    p.text_len = a->common.len;
    p.n_chunk = p.n_chunk > 0 ? p.n_chunk : 0;
    return eval_divergence(setup, &p, result, err);
}

/* ---- needle ---- */

/* In the order of enum eval_needle_style. */
static const char *const needle_styles[] = {"paper", "pith", NULL};

#define AT(member) .offset = offsetof(struct needle_args, member)
const struct option eval_needle_options[] = {
    {"--length", "-n", "LIST", OPTION_INTS, AT(lengths), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens of the whole prompt", .keys = "lengths"},
    {"--depth", "-d", "LIST", OPTION_SHARES, AT(depths), .min = 0, .max = 100,
     .help = "where the fact stands, in percent of the text", .keys = "depths"},
    {"--haystack", "-f", "FILE", OPTION_TEXT, AT(common.path), .absent = "lines of noise",
     .help = "text that the fact is hidden in", .keys = "file"},
    {"--style", NULL, "NAME", OPTION_CHOICE, AT(style), .choices = needle_styles,
     .help =
         "the fact and the question: the paper's, or the form that pith's models are trained on"},
    {"--needles", NULL, "N", OPTION_INT, AT(p.n_needle), .min = 1, .max = 32,
     .help = "facts in the text; one of them is asked about"},
    {"--repeat", NULL, "N", OPTION_INT, AT(p.n_repeat), .min = 1, .max = MAX_SAMPLE,
     .help = "texts of each length and depth", .keys = "repeats"},
    {"--predict", NULL, "N", OPTION_INT, AT(p.n_predict), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of an answer"},
    {"--needle", NULL, "TEXT", OPTION_TEXT, AT(p.needle), .absent = "the style's",
     .help = "the fact, with {name}, {word} and {number}"},
    {"--question", NULL, "TEXT", OPTION_TEXT, AT(p.question), .absent = "the style's",
     .help = "the question, with {name}"},
    {"--prefix", NULL, "TEXT", OPTION_TEXT, AT(p.prefix), .absent = "the style's",
     .help = "opening of the answer; an empty text: none"},
    {"--word", NULL, "TEXT", OPTION_TEXT, AT(p.word), .absent = "the style's",
     .help = "first part of the answer"},
    {"--number", NULL, "TEXT", OPTION_TEXT, AT(p.number), .absent = "the style's",
     .help = "second part"},
    {"--paired", NULL, NULL, OPTION_FLAG, AT(common.paired), .absent = "with a policy",
     .help = "ask under the full cache, too, and compare text by text"},
    {"--no-paired", NULL, NULL, OPTION_FLAG, AT(common.not_paired), .help = "do not"},
    {0},
};
#undef AT

static const union eval_args needle_defaults = {
    .needle = {.style = "paper",
               .lengths = {{1024, 2048, 4096}, 3},
               .depths = {{0.0, 0.25, 0.5, 0.75, 1.0}, 5},
               .p = {.n_needle = 1, .n_repeat = 1, .n_predict = 64}}};

/* All but the paper's one fact in the text with which the file begins. */
static bool needle_is_random(const union eval_args *a)
{
    const struct eval_needle_params *p = &a->needle.p;
    return strcmp(a->needle.style, needle_styles[EVAL_NEEDLE_PAPER]) != 0 || p->needle != NULL ||
           p->question != NULL || p->n_needle > 1 || p->n_repeat > 1;
}

static pith_status run_needle(const struct eval_setup *setup, const union eval_args *a,
                              json_t **result, pith_error *err)
{
    struct eval_needle_params p = a->needle.p;
    p.style = (enum eval_needle_style)index_of(needle_styles, a->needle.style);
    p.haystack = a->common.text;
    p.haystack_len = a->common.len;
    p.lengths = a->needle.lengths.value;
    p.n_length = a->needle.lengths.n;
    p.depths = a->needle.depths.value;
    p.n_depth = a->needle.depths.n;
    p.paired = is_paired(setup, a);
    return eval_needle(setup, &p, result, err);
}

/* ---- ruler ---- */

/* In the order of enum eval_haystack. */
static const char *const haystacks[] = {"task", "noise", "text", "needles", NULL};

#define AT(member) .offset = offsetof(struct ruler_args, member)
const struct option eval_ruler_options[] = {
    {"--task", NULL, "NAME", OPTION_TEXTS, AT(tasks),
     .help = "niah_single_1 .. 3, niah_multikey_1 .. 3, niah_multivalue, niah_multiquery, vt, cwe, "
             "fwe, qa_1, qa_2; repeatable (default: all)",
     .keys = "tasks"},
    {"--length", "-n", "LIST", OPTION_INTS, AT(lengths), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens of prompt and answer", .keys = "lengths"},
    {"--samples", NULL, "N", OPTION_INT, AT(n_sample), .min = 1, .max = MAX_SAMPLE,
     .help = "texts of each task and length"},
    {"--haystack", NULL, "NAME", OPTION_CHOICE, AT(haystack), .choices = haystacks,
     .help = "the text that hides the facts; task: as the benchmark has it"},
    {"--file", "-f", "FILE", OPTION_TEXT, AT(common.path), .absent = "noise in its place",
     .help = "prose for haystacks of text"},
    {"--squad", NULL, "FILE", OPTION_TEXT, AT(squad), .absent = "without qa_1",
     .help = "SQuAD's JSON file (dev-v2.0.json), for qa_1"},
    {"--hotpotqa", NULL, "FILE", OPTION_TEXT, AT(hotpotqa), .absent = "without qa_2",
     .help = "HotpotQA's JSON file (hotpot_dev_distractor_v1.json), for qa_2"},
    {"--no-example", NULL, NULL, OPTION_FLAG, AT(no_example),
     .help = "leave out the worked example of vt and cwe"},
    {0},
};
#undef AT

static const union eval_args ruler_defaults = {
    .ruler = {.lengths = {{1024, 2048, 4096}, 3}, .n_sample = 10, .haystack = "task"}};

static pith_status run_ruler(const struct eval_setup *setup, const union eval_args *a,
                             json_t **result, pith_error *err)
{
    static const char *const all[] = {"all"};
    const struct ruler_args *o = &a->ruler;
    const struct eval_ruler_params p = {
        .tasks = o->tasks.n > 0 ? o->tasks.text : all,
        .n_task = o->tasks.n > 0 ? o->tasks.n : 1,
        .lengths = o->lengths.value,
        .n_length = o->lengths.n,
        .n_sample = o->n_sample,
        .haystack = (enum eval_haystack)index_of(haystacks, o->haystack),
        .text = o->common.text,
        .text_len = o->common.len,
        .squad = o->squad,
        .hotpotqa = o->hotpotqa,
        .example = !o->no_example,
    };
    return eval_ruler(setup, &p, result, err);
}

/* ---- recursion ---- */

#define AT(member) .offset = offsetof(struct recursion_args, member)
const struct option eval_recursion_options[] = {
    {"--trace", NULL, NULL, OPTION_FLAG, AT(p.trace),
     .help = "the search is written out step by step, as pith's models are trained to; without "
             "it, a question that is answered with JSON"},
    {"--file", "-f", "FILE", OPTION_TEXT, AT(common.path), .absent = "drawn",
     .help = "records of the benchmark's format"},
    {"--min-steps", NULL, "N", OPTION_INT, AT(p.min_steps), .min = 1, .max = 8192,
     .help = "fewest steps of the search, also of the records of a file"},
    {"--max-steps", NULL, "N", OPTION_INT, AT(p.max_steps), .min = 1, .max = 8192,
     .help = "most steps; 58 of drawn graphs"},
    {"--stride", NULL, "N", OPTION_INT, AT(p.step_stride), .min = 1, .max = 8192,
     .help = "from one number of steps to the next", .keys = "step_stride"},
    {"--samples", NULL, "N", OPTION_INT, AT(p.n_sample), .min = 0, .max = MAX_SAMPLE,
     .help = "graphs of each number of steps; 0: all of a file"},
    {"--predict", NULL, "N", OPTION_INT, AT(p.n_predict), .min = 0, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of an answer; 0: 512, of traces a right one's length and a quarter more"},
    {"--parallel", NULL, "N", OPTION_INT, AT(p.n_parallel), .min = 1, .max = 256,
     .help = "answers that are generated at the same time; no answer depends on it"},
    {0},
};
#undef AT

/* The paper's range. */
static const union eval_args recursion_defaults = {
    .recursion = {
        .p = {.min_steps = 6, .max_steps = 20, .step_stride = 2, .n_sample = 10, .n_parallel = 1}}};

static bool recursion_is_random(const union eval_args *a)
{
    return a->common.path == NULL;
}

static pith_status run_recursion(const struct eval_setup *setup, const union eval_args *a,
                                 json_t **result, pith_error *err)
{
    struct eval_recursion_params p = a->recursion.p;
    p.path = a->common.path;
    p.n_predict = p.n_predict == 0 && !p.trace ? 512 : p.n_predict;
    return eval_recursion(setup, &p, result, err);
}

/* ---- derivation ---- */

#define AT(member) .offset = offsetof(struct derivation_args, member)
const struct option eval_derivation_options[] = {
    {"--parts", "-n", "LIST", OPTION_INTS, AT(parts), .min = 4, .max = 60,
     .help = "sums of a derivation"},
    {"--samples", NULL, "N", OPTION_INT, AT(n_sample), .min = 1, .max = MAX_SAMPLE,
     .help = "derivations of each number of sums"},
    {"--predict", NULL, "N", OPTION_INT, AT(n_predict), .min = 0, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of an answer; 0: a right one's length and a quarter more"},
    {0},
};
#undef AT

static const union eval_args derivation_defaults = {
    .derivation = {.parts = {{8, 16, 32}, 3}, .n_sample = 10}};

static pith_status run_derivation(const struct eval_setup *setup, const union eval_args *a,
                                  json_t **result, pith_error *err)
{
    const struct derivation_args *o = &a->derivation;
    const struct eval_derivation_params p = {.parts = o->parts.value,
                                             .n_part = o->parts.n,
                                             .n_sample = o->n_sample,
                                             .n_predict = o->n_predict};
    return eval_derivation(setup, &p, result, err);
}

/* ---- share ---- */

/* In the order of enum eval_share_answers, behind those that are written. */
static const char *const forced_kinds[] = {"right", "verbatim", NULL};

#define AT(member) .offset = offsetof(struct share_args, member)
const struct option eval_share_options[] = {
    {"--requests", NULL, "N", OPTION_INT, AT(p.n_request), .min = 2, .max = 4096,
     .help = "requests that are submitted at once"},
    {"--parts", "-n", "N", OPTION_INT, AT(p.n_part), .min = 4, .max = 60,
     .help = "sums of a derivation, each a step"},
    {"--examples", NULL, "N", OPTION_INT, AT(p.n_example), .min = 0, .max = 64,
     .help = "worked derivations that all prompts begin with"},
    {"--predict", NULL, "N", OPTION_INT, AT(p.n_predict), .min = 0, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of an answer; 0: a right one's length and a quarter more"},
    {"--fit", NULL, "X", OPTION_FLOAT, AT(fit), .min = 0.001, .max = 1,
     .help = "KV memory: the share of the requests that fit at once when nothing is shared"},
    {"--forced", NULL, "KIND", OPTION_CHOICE, AT(forced), .choices = forced_kinds,
     .absent = "the model writes",
     .help = "answers are given token by token: right derivations, or steps that recur verbatim"},
    {"--lines", NULL, "N", OPTION_INT, AT(p.n_line), .min = 1, .max = 64,
     .help = "lines of a step that recurs verbatim"},
    {"--row", NULL, "ROW", OPTION_TEXTS, AT(rows), .absent = "the usual seven",
     .help = "a way to run them, see below; repeatable, others are compared with the first"},
    {"--repeats", NULL, "N", OPTION_INT, AT(p.n_repeat), .min = 1, .max = 101,
     .help = "rounds over all rows, of which medians are taken"},
    {0},
};
#undef AT

static const union eval_args share_defaults = {
    .share = {.fit = 0.25f,
              .p = {.n_request = 64, .n_part = 12, .n_example = 1, .n_line = 2, .n_repeat = 3}}};

static pith_status run_share(const struct eval_setup *setup, const union eval_args *a,
                             json_t **result, pith_error *err)
{
    const char *forced = a->share.forced;
    struct eval_share_params p = a->share.p;
    p.fit = (double)a->share.fit;
    p.answers = forced == NULL ? EVAL_SHARE_WRITTEN
                               : (enum eval_share_answers)(1 + index_of(forced_kinds, forced));
    p.rows = a->share.rows.text;
    p.n_row = a->share.rows.n;
    return eval_share(setup, &p, result, err);
}

/* ---- questions ---- */

#define AT(member) .offset = offsetof(struct questions_args, member)
const struct option eval_questions_options[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(common.path), .required = true,
     .help = "a JSON object per line with problem or question, and answer"},
    {"--questions", NULL, "N", OPTION_INT, AT(p.n_question), .min = 0, .max = INT32_MAX,
     .help = "how many of them, from the first on; 0: all"},
    {"--draws", NULL, "N", OPTION_INT, AT(p.n_draw), .min = 1, .max = MAX_SAMPLE,
     .help = "answers that are sampled to each"},
    {"--parallel", NULL, "N", OPTION_INT, AT(p.n_parallel), .min = 1, .max = 256,
     .help = "answers generated at the same time: the same answers, sooner"},
    {"--predict", NULL, "N", OPTION_INT, AT(p.n_predict), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of an answer"},
    {"--temp", NULL, "X", OPTION_FLOAT, AT(p.sample.temperature), .min = 0, .max = 100,
     .help = "temperature; 0: greedy", .keys = "temperature"},
    {"--top-k", NULL, "N", OPTION_INT, AT(p.sample.top_k), .min = 0, .max = INT32_MAX,
     .help = "sample among the N likeliest tokens; 0: off"},
    {"--top-p", NULL, "X", OPTION_FLOAT, AT(p.sample.top_p), .min = 0, .max = 1,
     .help = "sample among the likeliest tokens that make up this probability; 1: off"},
    {"--min-p", NULL, "X", OPTION_FLOAT, AT(p.sample.min_p), .min = 0, .max = 1,
     .help = "sample among tokens at least this likely, relative to the likeliest; 0: off"},
    {"--instruction", NULL, "TEXT", OPTION_TEXT, AT(p.instruction),
     .help = "a text behind each problem, on a line of its own; an empty text: nothing"},
    {0},
};
#undef AT

/* The sampling of the papers whose figures these files are known by: temperature 0.6, top-p
   0.95. */
static const union eval_args questions_defaults = {
    .questions = {.p = {.n_draw = 1,
                        .n_parallel = 1,
                        .n_predict = 2048,
                        .instruction = EVAL_QUESTIONS_INSTRUCTION,
                        .sample = {.temperature = 0.6f, .top_p = 0.95f}}}};

static bool questions_are_random(const union eval_args *a)
{
    return a->questions.p.sample.temperature > 0.0f;
}

static pith_status run_questions(const struct eval_setup *setup, const union eval_args *a,
                                 json_t **result, pith_error *err)
{
    struct eval_questions_params p = a->questions.p;
    pith_sample_params_default(&p.sample);
    p.sample.temperature = a->questions.p.sample.temperature;
    p.sample.top_k = a->questions.p.sample.top_k;
    p.sample.top_p = a->questions.p.sample.top_p;
    p.sample.min_p = a->questions.p.sample.min_p;
    p.path = a->common.path;
    return eval_questions(setup, &p, result, err);
}

/* ---- longbench ---- */

#define AT(member) .offset = offsetof(struct longbench_args, member)
const struct option eval_longbench_options[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(common.path), .required = true,
     .help = "a file of the benchmark: a JSON object per line with context, input and answers"},
    {"--dataset", NULL, "NAME", OPTION_TEXT, AT(p.dataset), .absent = "as the file is named",
     .help = "the data set, which decides prompt and metric"},
    {"--items", NULL, "N", OPTION_INT, AT(p.n_item), .min = 0, .max = INT32_MAX,
     .help = "how many of them, from the first on; 0: all"},
    {"--length", "-n", "N", OPTION_INT, AT(p.n_length), .min = 0, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of a prompt, of a longer one the middle is left out; 0: what the model's "
             "context holds"},
    {"--predict", NULL, "N", OPTION_INT, AT(p.n_predict), .min = 0, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of an answer; 0: the data set's"},
    {"--parallel", NULL, "N", OPTION_INT, AT(p.n_parallel), .min = 1, .max = 256,
     .help = "answers generated at the same time: the same answers, sooner"},
    {0},
};
#undef AT

static const union eval_args longbench_defaults = {.longbench = {.p = {.n_parallel = 1}}};

static pith_status run_longbench(const struct eval_setup *setup, const union eval_args *a,
                                 json_t **result, pith_error *err)
{
    struct eval_longbench_params p = a->longbench.p;
    p.path = a->common.path;
    return eval_longbench(setup, &p, result, err);
}

/* ---- facts ---- */

/* In the order of enum eval_facts_style. */
static const char *const facts_styles[] = {"pool", "pith", NULL};

#define AT(member) .offset = offsetof(struct facts_args, member)
const struct option eval_facts_options[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(common.path), .absent = "lines of noise",
     .help = "text that the facts are hidden in; with --cut-once contexts with questions"},
    {"--length", "-n", "LIST", OPTION_INTS, AT(lengths), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens of the whole prompt", .keys = "lengths"},
    {"--texts", NULL, "N", OPTION_INT, AT(p.n_text), .min = 1, .max = MAX_SAMPLE,
     .help = "texts of each length, ten facts in each"},
    {"--style", NULL, "NAME", OPTION_CHOICE, AT(style), .choices = facts_styles,
     .help = "facts of all kinds, or the kinds that pith's models are trained on"},
    {"--predict", NULL, "N", OPTION_INT, AT(p.n_predict), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "most tokens of an answer"},
    {"--paired", NULL, NULL, OPTION_FLAG, AT(common.paired), .absent = "with a policy",
     .help = "read each text under the full cache, too, and compare fact by fact"},
    {"--no-paired", NULL, NULL, OPTION_FLAG, AT(common.not_paired), .help = "do not"},
    {"--cut-once", NULL, NULL, OPTION_FLAG, AT(cut_once),
     .help = "read each context of FILE under the full cache and cut it once"},
    {"--contexts", NULL, "N", OPTION_INT, AT(n_context), .min = 0, .max = INT32_MAX,
     .help = "with --cut-once: how many of them, from the first on; 0: all"},
    {0},
};
#undef AT

static const union eval_args facts_defaults = {
    .facts = {.style = "pool", .lengths = {{2048}, 1}, .p = {.n_text = 4, .n_predict = 24}}};

static bool facts_are_cut_once(const union eval_args *a)
{
    return a->facts.cut_once;
}

static bool facts_are_random(const union eval_args *a)
{
    return !a->facts.cut_once;
}

static pith_status run_facts(const struct eval_setup *setup, const union eval_args *a,
                             json_t **result, pith_error *err)
{
    if (a->facts.cut_once) {
        const struct eval_facts_params once = {.path = a->common.path,
                                               .n_context = a->facts.n_context};
        return eval_facts(setup, &once, result, err);
    }
    struct eval_facts_texts_params p = a->facts.p;
    p.style = (enum eval_facts_style)index_of(facts_styles, a->facts.style);
    p.haystack = a->common.text;
    p.haystack_len = a->common.len;
    p.lengths = a->facts.lengths.value;
    p.n_length = a->facts.lengths.n;
    p.paired = is_paired(setup, a);
    return eval_facts_texts(setup, &p, result, err);
}

/* ---- replay ---- */

#define AT(member) .offset = offsetof(struct replay_args, member)
const struct option eval_replay_options[] = {
    {"FILE", NULL, NULL, OPTION_TEXT, AT(common.path), .required = true,
     .help = "recorded tensors, as \"pith run --record FILE\" writes them"},
    {"--policy", NULL, "NAME:KEY=VALUE,...", OPTION_TEXTS, AT(policies), .absent = "that of --keep",
     .help = "a keep policy to try; repeatable"},
    {"--read-policy", NULL, "NAME:KEY=VALUE,...", OPTION_TEXTS, AT(readers),
     .absent = "that of --read", .help = "a read policy to try; repeatable"},
    {"--at", NULL, "LIST", OPTION_INTS, AT(at), .min = 1, .max = EVAL_MAX_TOKENS,
     .absent = "before the last --queries", .help = "tokens read when the lanes are looked at"},
    {"--queries", NULL, "N", OPTION_INT, AT(n_query), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens behind each stop whose queries judge the loss"},
    {"--missing", NULL, "N", OPTION_INT, AT(n_missing), .max = EVAL_MAX_TOKENS,
     .help = "most evicted positions that a row names"},
    {0},
};
#undef AT

static const union eval_args replay_defaults = {.replay = {.n_query = 32, .n_missing = 8}};

static pith_status run_replay(const struct eval_setup *setup, const union eval_args *a,
                              json_t **result, pith_error *err)
{
    const struct replay_args *o = &a->replay;
    const struct eval_replay_params p = {
        .path = o->common.path,
        .policies = o->policies.text,
        .n_policy = o->policies.n,
        .readers = o->readers.text,
        .n_reader = o->readers.n,
        .at = o->at.value,
        .n_at = o->at.n,
        .n_query = o->n_query,
        .n_missing = o->n_missing,
    };
    return eval_replay(setup, &p, result, err);
}

/* ---- kept ---- */

#define AT(member) .offset = offsetof(struct kept_args, member)
const struct option eval_kept_options[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(common.path), .required = true,
     .help = "the text to read"},
    {"--length", "-n", "N", OPTION_INT, AT(p.n_token), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens of it", .keys = "n_ctx"},
    {"--every", NULL, "N", OPTION_INT, AT(p.every), .min = 1, .max = EVAL_MAX_TOKENS,
     .help = "tokens between two looks at the lanes"},
    {0},
};
#undef AT

static const union eval_args kept_defaults = {.kept = {.p = {.n_token = 1024, .every = 64}}};

static pith_status run_kept(const struct eval_setup *setup, const union eval_args *a,
                            json_t **result, pith_error *err)
{
    struct eval_kept_params p = a->kept.p;
    p.text = a->common.text;
    p.text_len = a->common.len;
    return eval_kept(setup, &p, result, err);
}

/* ---- the table ---- */

const struct eval_task eval_task_table[] = {
    {"needle", eval_needle_options, &needle_defaults, .in_sweeps = true,
     .is_random = needle_is_random, .run = run_needle},
    {"ruler", eval_ruler_options, &ruler_defaults, .in_sweeps = true, .run = run_ruler},
    /* llama-perplexity drops the newline, too. */
    {"perplexity", eval_perplexity_options, &perplexity_defaults, .in_sweeps = true,
     .drops_newline = true, .is_random = never_random, .run = run_perplexity},
    {"divergence", eval_divergence_options, &divergence_defaults, .in_sweeps = true,
     .drops_newline = true, .is_random = never_random, .run = run_divergence},
    {"recursion", eval_recursion_options, &recursion_defaults, .in_sweeps = true,
     .reads_itself = reads_itself, .is_random = recursion_is_random, .run = run_recursion},
    {"derivation", eval_derivation_options, &derivation_defaults, .in_sweeps = true,
     .run = run_derivation},
    {"questions", eval_questions_options, &questions_defaults, .in_sweeps = true,
     .reads_itself = reads_itself, .is_random = questions_are_random, .run = run_questions},
    {"longbench", eval_longbench_options, &longbench_defaults, .in_sweeps = true,
     .reads_itself = reads_itself, .is_random = never_random, .run = run_longbench},
    {"facts", eval_facts_options, &facts_defaults, .in_sweeps = true,
     .reads_itself = facts_are_cut_once, .is_random = facts_are_random, .run = run_facts},
    {"kept", eval_kept_options, &kept_defaults, .in_sweeps = true, .is_random = never_random,
     .run = run_kept},
    {"stack", eval_stack_options, &stack_defaults, .drops_newline = true, .run = run_stack},
    {"share", eval_share_options, &share_defaults, .run = run_share},
    {"replay", eval_replay_options, &replay_defaults, .reads_itself = reads_itself,
     .run = run_replay},
    {0},
};

const struct eval_task *eval_task_find(const char *name)
{
    for (const struct eval_task *t = eval_task_table; t->name != NULL; t++)
        if (strcmp(t->name, name) == 0)
            return t;
    return NULL;
}

const char *eval_task_check(const struct eval_task *task, const union eval_args *a)
{
    if (a->common.paired && a->common.not_paired)
        return "--paired and --no-paired contradict each other";
    if (task->run == run_facts && a->facts.cut_once && a->common.path == NULL)
        return "--cut-once: name a file of contexts with --file";
    return NULL;
}

bool eval_task_wants_text(const struct eval_task *task, const union eval_args *a)
{
    return a->common.path != NULL && (task->reads_itself == NULL || !task->reads_itself(a));
}

void eval_task_set_text(const struct eval_task *task, union eval_args *a, const char *text,
                        size_t len)
{
    a->common.text = text;
    a->common.len = task->drops_newline && len > 0 && text[len - 1] == '\n' ? len - 1 : len;
}
