/*
 * sweep_task.c - the tasks that a sweep can run: their options in JSON, and the call.
 *
 * A task is a row of the table at the end: its options, their defaults, and a function that moves
 * what was read into the params of eval.h. Values are checked for their kind here and for their
 * range by the task, which knows it.
 */
#define _POSIX_C_SOURCE 200809L

#include "sweep_task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "facts.h"
#include "kept.h"

enum arg_type {
    ARG_TEXT,
    ARG_INT,
    ARG_REAL,
    ARG_BOOL,
    ARG_INTS,  /* into ints */
    ARG_REALS, /* into reals */
    ARG_TEXTS, /* into texts */
    ARG_PATH,  /* a file that the task reads */
    ARG_FILE,  /* a file that is read here */
};

static const char *const type_names[] = {
    [ARG_TEXT] = "a text",
    [ARG_INT] = "a whole number",
    [ARG_REAL] = "a number",
    [ARG_BOOL] = "true or false",
    [ARG_INTS] = "a list of whole numbers",
    [ARG_REALS] = "a list of numbers",
    [ARG_TEXTS] = "a list of texts",
    [ARG_PATH] = "the name of a file",
    [ARG_FILE] = "the name of a file",
};

struct arg {
    const char *key; /* NULL ends a table */
    enum arg_type type;
    size_t offset; /* of the field, where the type has not its own */
    bool required;
};

struct sweep_kind {
    const char *name;
    const struct arg *args;
    void (*defaults)(struct sweep_args *a);
    bool (*is_drawn)(const struct sweep_args *a); /* whether the seed matters; NULL: always */
    pith_status (*run)(const struct eval_setup *setup, const struct sweep_args *a, json_t **result,
                       pith_error *err);
};

/* ---- reading options ---- */

uint64_t sweep_hash(uint64_t hash, const void *bytes, size_t len)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ b[i]) * 0x100000001b3u;
    return hash;
}

uint64_t sweep_hash_text(uint64_t hash, const char *text)
{
    return text != NULL ? sweep_hash(hash, text, strlen(text) + 1) : sweep_hash(hash, "\xff", 2);
}

bool sweep_hash_json(uint64_t *hash, const json_t *value)
{
    char *text = json_dumps(value, JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY);
    bool ok = text != NULL;
    *hash = sweep_hash_text(*hash, text);
    free(text);
    return ok;
}

char *sweep_path(const char *folder, const char *path)
{
    size_t size = strlen(folder) + strlen(path) + 2;
    char *out = malloc(size);
    if (out != NULL && (path[0] == '/' || folder[0] == '\0'))
        snprintf(out, size, "%s", path);
    else if (out != NULL)
        snprintf(out, size, "%s/%s", folder, path);
    return out;
}

struct reader {
    const struct sweep_kind *kind;
    const char *folder;
    struct sweep_args *out;
    uint64_t *hash;
};

static bool is_int(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= INT32_MIN &&
           json_integer_value(value) <= INT32_MAX;
}

/* A list, or one value in place of a list of one. */
static bool read_list(enum arg_type type, const json_t *value, struct sweep_args *a)
{
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n == 0 || n > SWEEP_LIST_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (type == ARG_INTS && is_int(item))
            a->ints[i] = (int32_t)json_integer_value(item);
        else if (type == ARG_REALS && json_is_number(item))
            a->reals[i] = json_number_value(item);
        else if (type == ARG_TEXTS && json_is_string(item))
            a->texts[i] = json_string_value(item);
        else
            return false;
    }
    if (type == ARG_INTS)
        a->n_int = (int32_t)n;
    else if (type == ARG_REALS)
        a->n_real = (int32_t)n;
    else
        a->n_text = (int32_t)n;
    return true;
}

/* False for a value of another kind. */
static bool read_plain(const struct arg *arg, const json_t *value, struct sweep_args *a)
{
    void *field = (char *)a + arg->offset;
    switch (arg->type) {
    case ARG_TEXT:
        *(const char **)field = json_string_value(value);
        return json_is_string(value);
    case ARG_INT:
        if (is_int(value))
            *(int32_t *)field = (int32_t)json_integer_value(value);
        return is_int(value);
    case ARG_REAL:
        *(double *)field = json_number_value(value);
        return json_is_number(value);
    case ARG_BOOL:
        *(bool *)field = json_is_true(value);
        return json_is_boolean(value);
    case ARG_INTS:
    case ARG_REALS:
    case ARG_TEXTS:
        return read_list(arg->type, value, a);
    case ARG_PATH:
    case ARG_FILE:
        break;
    }
    return json_is_string(value);
}

/* The file's bytes go into the hash, so that another text under the same name is another cell. */
static pith_status read_file(const struct reader *r, const struct arg *arg, const json_t *value,
                             pith_error *err)
{
    struct sweep_args *a = r->out;
    char *path = sweep_path(r->folder, json_string_value(value)), *text = NULL;
    size_t len = 0;
    if (path == NULL)
        return eval_fail(err, PITH_NOMEM, "no memory for the name of a file");
    pith_status status = eval_read_file(path, &text, &len, err);
    if (status == PITH_OK)
        *r->hash = sweep_hash(*r->hash, text, len);
    if (arg->type == ARG_PATH) {
        free(text);
        free(a->path);
        a->path = path;
        return status;
    }
    free(path);
    free(a->text);
    a->text = text;
    a->text_len = len;
    return status;
}

static pith_status unknown_option(const struct reader *r, const char *key, pith_error *err)
{
    struct eval_text keys = {0};
    for (const struct arg *arg = r->kind->args; arg->key != NULL; arg++)
        eval_text_printf(&keys, "%s%s", keys.len > 0 ? ", " : "", arg->key);
    eval_fail(err, PITH_INVALID, "task %s: there is no option \"%.40s\", only %s", r->kind->name,
              key, keys.data != NULL ? keys.data : "others");
    eval_text_free(&keys);
    return PITH_INVALID;
}

static pith_status read_option(const struct reader *r, const char *key, const json_t *value,
                               pith_error *err)
{
    const struct arg *arg = r->kind->args;
    while (arg->key != NULL && strcmp(arg->key, key) != 0)
        arg++;
    if (arg->key == NULL)
        return unknown_option(r, key, err);
    if (!read_plain(arg, value, r->out))
        return eval_fail(err, PITH_INVALID, "task %s: %s must be %s", r->kind->name, key,
                         type_names[arg->type]);
    if (arg->type == ARG_PATH || arg->type == ARG_FILE)
        return read_file(r, arg, value, err);
    return PITH_OK;
}

/* The name of a task and those of files are not what it measures. */
static bool hash_options(const struct reader *r, const json_t *options)
{
    json_t *asked = json_copy((json_t *)options);
    if (asked == NULL)
        return false;
    json_object_del(asked, "name");
    for (const struct arg *arg = r->kind->args; arg->key != NULL; arg++)
        if (arg->type == ARG_PATH || arg->type == ARG_FILE)
            json_object_del(asked, arg->key);
    bool ok = sweep_hash_json(r->hash, asked);
    json_decref(asked);
    return ok;
}

pith_status sweep_args_read(const struct sweep_kind *kind, const json_t *options,
                            const char *folder, struct sweep_args *out, uint64_t *hash,
                            pith_error *err)
{
    struct reader r = {kind, folder, out, hash};
    const char *key;
    json_t *value;
    *out = (struct sweep_args){0};
    if (kind->defaults != NULL)
        kind->defaults(out);
    if (!hash_options(&r, options))
        return eval_fail(err, PITH_NOMEM, "no memory for the options of a task");
    json_object_foreach((json_t *)options, key, value)
    {
        if (strcmp(key, "task") == 0 || strcmp(key, "name") == 0)
            continue;
        pith_status status = read_option(&r, key, value, err);
        if (status != PITH_OK)
            return status;
    }
    for (const struct arg *arg = kind->args; arg->key != NULL; arg++)
        if (arg->required && json_object_get(options, arg->key) == NULL)
            return eval_fail(err, PITH_INVALID, "task %s: %s is missing, %s", kind->name, arg->key,
                             type_names[arg->type]);
    return PITH_OK;
}

void sweep_args_free(struct sweep_args *args)
{
    free(args->path);
    free(args->text);
    *args = (struct sweep_args){0};
}

/* The index of a name among names, which end with NULL; -1 with a sentence when it is none. */
static int choose(const char *task, const char *key, const char *name, const char *const *names,
                  pith_error *err)
{
    struct eval_text list = {0};
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], name) == 0) {
            eval_text_free(&list);
            return i;
        }
        eval_text_printf(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    eval_fail(err, PITH_INVALID, "task %s: %s \"%.40s\" is none of %s", task, key, name,
              list.data != NULL ? list.data : "those that there are");
    eval_text_free(&list);
    return -1;
}

#define AT(member) offsetof(struct sweep_args, member)

/* Defaults are those of `pith eval TASK`. */

/* ---- needle ---- */

static const struct arg needle_args[] = {
    {"lengths", ARG_INTS, 0, true},           {"depths", ARG_REALS, 0, false},
    {"style", ARG_TEXT, AT(style), false},    {"file", ARG_FILE, 0, false},
    {"needle", ARG_TEXT, AT(needle), false},  {"question", ARG_TEXT, AT(question), false},
    {"prefix", ARG_TEXT, AT(prefix), false},  {"word", ARG_TEXT, AT(word), false},
    {"number", ARG_TEXT, AT(number), false},  {"needles", ARG_INT, AT(needles), false},
    {"repeats", ARG_INT, AT(repeats), false}, {"predict", ARG_INT, AT(predict), false},
    {"paired", ARG_BOOL, AT(paired), false},  {0},
};

static void needle_defaults(struct sweep_args *a)
{
    static const double depths[] = {0.0, 0.25, 0.5, 0.75, 1.0};
    memcpy(a->reals, depths, sizeof(depths));
    a->n_real = sizeof(depths) / sizeof(depths[0]);
    a->style = "paper";
    a->needles = 1;
    a->repeats = 1;
    a->predict = 64;
    a->paired = true;
}

/* All but the paper's one fact in the text with which the file begins. */
static bool needle_is_drawn(const struct sweep_args *a)
{
    return strcmp(a->style, "paper") != 0 || a->needle != NULL || a->question != NULL ||
           a->needles > 1 || a->repeats > 1;
}

static pith_status run_needle(const struct eval_setup *setup, const struct sweep_args *a,
                              json_t **result, pith_error *err)
{
    static const char *const styles[] = {
        [EVAL_NEEDLE_PAPER] = "paper", [EVAL_NEEDLE_PITH] = "pith", NULL};
    int style = choose("needle", "style", a->style, styles, err);
    if (style < 0)
        return PITH_INVALID;
    struct eval_needle_params p = {
        .style = (enum eval_needle_style)style,
        .haystack = a->text,
        .haystack_len = a->text_len,
        .needle = a->needle,
        .question = a->question,
        .prefix = a->prefix,
        .word = a->word,
        .number = a->number,
        .lengths = a->ints,
        .n_length = a->n_int,
        .depths = a->reals,
        .n_depth = a->n_real,
        .n_needle = a->needles,
        .n_repeat = a->repeats,
        .n_predict = a->predict,
        .paired = a->paired && !eval_is_plain(&setup->engine),
    };
    return eval_needle(setup, &p, result, err);
}

/* ---- ruler ---- */

static const struct arg ruler_args[] = {
    {"tasks", ARG_TEXTS, 0, false},
    {"lengths", ARG_INTS, 0, true},
    {"samples", ARG_INT, AT(samples), false},
    {"haystack", ARG_TEXT, AT(haystack), false},
    {"file", ARG_FILE, 0, false},
    {"example", ARG_BOOL, AT(example), false},
    {0},
};

static void ruler_defaults(struct sweep_args *a)
{
    a->texts[0] = "all";
    a->n_text = 1;
    a->samples = 10;
    a->haystack = "task";
    a->example = true;
}

static pith_status run_ruler(const struct eval_setup *setup, const struct sweep_args *a,
                             json_t **result, pith_error *err)
{
    static const char *const haystacks[] = {[EVAL_HAYSTACK_TASK] = "task",
                                            [EVAL_HAYSTACK_NOISE] = "noise",
                                            [EVAL_HAYSTACK_TEXT] = "text",
                                            [EVAL_HAYSTACK_NEEDLES] = "needles",
                                            NULL};
    int haystack = choose("ruler", "haystack", a->haystack, haystacks, err);
    if (haystack < 0)
        return PITH_INVALID;
    struct eval_ruler_params p = {
        .tasks = a->texts,
        .n_task = a->n_text,
        .lengths = a->ints,
        .n_length = a->n_int,
        .n_sample = a->samples,
        .haystack = (enum eval_haystack)haystack,
        .text = a->text,
        .text_len = a->text_len,
        .example = a->example,
    };
    return eval_ruler(setup, &p, result, err);
}

/* ---- recursion and derivation ---- */

static const struct arg recursion_args[] = {
    {"file", ARG_PATH, 0, false},
    {"min_steps", ARG_INT, AT(min_steps), false},
    {"max_steps", ARG_INT, AT(max_steps), false},
    {"step_stride", ARG_INT, AT(step_stride), false},
    {"samples", ARG_INT, AT(samples), false},
    {"predict", ARG_INT, AT(predict), false},
    {"trace", ARG_BOOL, AT(trace), false},
    {0},
};

static void recursion_defaults(struct sweep_args *a)
{
    a->min_steps = 6;
    a->max_steps = 20;
    a->step_stride = 2;
    a->samples = 10;
}

static bool recursion_is_drawn(const struct sweep_args *a)
{
    return a->path == NULL;
}

static pith_status run_recursion(const struct eval_setup *setup, const struct sweep_args *a,
                                 json_t **result, pith_error *err)
{
    struct eval_recursion_params p = {
        .path = a->path,
        .min_steps = a->min_steps,
        .max_steps = a->max_steps,
        .step_stride = a->step_stride,
        .n_sample = a->samples,
        .n_predict = a->predict == 0 && !a->trace ? 512 : a->predict,
        .trace = a->trace,
    };
    return eval_recursion(setup, &p, result, err);
}

static const struct arg derivation_args[] = {
    {"parts", ARG_INTS, 0, true},
    {"samples", ARG_INT, AT(samples), false},
    {"predict", ARG_INT, AT(predict), false},
    {0},
};

static void derivation_defaults(struct sweep_args *a)
{
    a->samples = 10;
}

static pith_status run_derivation(const struct eval_setup *setup, const struct sweep_args *a,
                                  json_t **result, pith_error *err)
{
    struct eval_derivation_params p = {
        .parts = a->ints, .n_part = a->n_int, .n_sample = a->samples, .n_predict = a->predict};
    return eval_derivation(setup, &p, result, err);
}

/* ---- questions ---- */

static const struct arg questions_args[] = {
    {"file", ARG_PATH, 0, true},
    {"questions", ARG_INT, AT(questions), false},
    {"draws", ARG_INT, AT(draws), false},
    {"parallel", ARG_INT, AT(parallel), false},
    {"predict", ARG_INT, AT(predict), false},
    {"instruction", ARG_TEXT, AT(instruction), false},
    {"temperature", ARG_REAL, AT(temperature), false},
    {"top_k", ARG_INT, AT(top_k), false},
    {"top_p", ARG_REAL, AT(top_p), false},
    {"min_p", ARG_REAL, AT(min_p), false},
    {0},
};

static void questions_defaults(struct sweep_args *a)
{
    a->draws = 1;
    a->parallel = 1;
    a->predict = 2048;
    a->instruction = EVAL_QUESTIONS_INSTRUCTION;
    a->temperature = 0.6;
    a->top_p = 0.95;
}

static bool questions_are_drawn(const struct sweep_args *a)
{
    return a->temperature > 0.0;
}

static pith_status run_questions(const struct eval_setup *setup, const struct sweep_args *a,
                                 json_t **result, pith_error *err)
{
    struct eval_questions_params p = {
        .path = a->path,
        .n_question = a->questions,
        .n_draw = a->draws,
        .n_parallel = a->parallel,
        .n_predict = a->predict,
        .instruction = a->instruction,
    };
    pith_sample_params_default(&p.sample);
    p.sample.temperature = (float)a->temperature;
    p.sample.top_k = a->top_k;
    p.sample.top_p = (float)a->top_p;
    p.sample.min_p = (float)a->min_p;
    return eval_questions(setup, &p, result, err);
}

/* ---- facts ---- */

/* With lengths the file is a haystack, without one of contexts that are cut once. */
static const struct arg facts_args[] = {
    {"lengths", ARG_INTS, 0, false},           {"file", ARG_PATH, 0, false},
    {"contexts", ARG_INT, AT(samples), false}, {"texts", ARG_INT, AT(repeats), false},
    {"style", ARG_TEXT, AT(style), false},     {"predict", ARG_INT, AT(predict), false},
    {"paired", ARG_BOOL, AT(paired), false},   {0},
};

static void facts_defaults(struct sweep_args *a)
{
    a->repeats = 4;
    a->style = "pool";
    a->predict = 24;
    a->paired = true;
}

static bool facts_are_drawn(const struct sweep_args *a)
{
    return a->n_int > 0;
}

static pith_status run_facts_texts(const struct eval_setup *setup, const struct sweep_args *a,
                                   json_t **result, pith_error *err)
{
    static const char *const styles[] = {
        [EVAL_FACTS_POOL] = "pool", [EVAL_FACTS_PITH] = "pith", NULL};
    int style = choose("facts", "style", a->style, styles, err);
    char *text = NULL;
    size_t len = 0;
    pith_status status = style < 0 ? PITH_INVALID : PITH_OK;
    if (status == PITH_OK && a->path != NULL)
        status = eval_read_file(a->path, &text, &len, err);
    if (status != PITH_OK)
        return status;
    struct eval_facts_texts_params p = {
        .style = (enum eval_facts_style)style,
        .haystack = text,
        .haystack_len = len,
        .lengths = a->ints,
        .n_length = a->n_int,
        .n_text = a->repeats,
        .n_predict = a->predict,
        .paired = a->paired && !eval_is_plain(&setup->engine),
    };
    status = eval_facts_texts(setup, &p, result, err);
    free(text);
    return status;
}

static pith_status run_facts(const struct eval_setup *setup, const struct sweep_args *a,
                             json_t **result, pith_error *err)
{
    if (a->n_int > 0)
        return run_facts_texts(setup, a, result, err);
    if (a->path == NULL)
        return eval_fail(err, PITH_INVALID,
                         "task facts: file is missing, the name of a file of contexts, or lengths, "
                         "a list of whole numbers");
    struct eval_facts_params p = {.path = a->path, .n_context = a->samples};
    return eval_facts(setup, &p, result, err);
}

/* ---- perplexity and divergence ---- */

static const struct arg perplexity_args[] = {
    {"file", ARG_FILE, 0, true},
    {"n_ctx", ARG_INT, AT(n_ctx), false},
    {"n_batch", ARG_INT, AT(n_batch), false},
    {"chunks", ARG_INT, AT(chunks), false},
    {"paired", ARG_BOOL, AT(paired), false},
    {"reference_type", ARG_TEXT, AT(reference_type), false},
    {0},
};

static void perplexity_defaults(struct sweep_args *a)
{
    a->n_ctx = 512;
    a->n_batch = 2048;
    a->paired = true;
}

static pith_status run_perplexity(const struct eval_setup *setup, const struct sweep_args *a,
                                  json_t **result, pith_error *err)
{
    struct eval_perplexity_params p = {
        .text = a->text,
        .text_len = a->text_len,
        .n_ctx = a->n_ctx,
        .n_batch = a->n_batch,
        .n_chunk = a->chunks,
        .paired = a->paired && (!eval_is_plain(&setup->engine) || a->reference_type != NULL),
        .reference_type = a->reference_type,
    };
    return eval_perplexity(setup, &p, result, err);
}

static const struct arg divergence_args[] = {
    {"file", ARG_FILE, 0, true},
    {"n_ctx", ARG_INT, AT(n_ctx), false},
    {"chunks", ARG_INT, AT(chunks), false},
    {"reference_type", ARG_TEXT, AT(reference_type), false},
    {0},
};

static pith_status run_divergence(const struct eval_setup *setup, const struct sweep_args *a,
                                  json_t **result, pith_error *err)
{
    struct eval_divergence_params p = {
        .text = a->text,
        .text_len = a->text_len,
        .n_ctx = a->n_ctx,
        .n_chunk = a->chunks,
        .reference_type = a->reference_type,
    };
    return eval_divergence(setup, &p, result, err);
}

/* ---- kept ---- */

static const struct arg kept_args[] = {
    {"file", ARG_FILE, 0, true},
    {"n_ctx", ARG_INT, AT(n_ctx), false},
    {"every", ARG_INT, AT(every), false},
    {0},
};

static void kept_defaults(struct sweep_args *a)
{
    a->n_ctx = 1024;
    a->every = 64;
}

static pith_status run_kept(const struct eval_setup *setup, const struct sweep_args *a,
                            json_t **result, pith_error *err)
{
    struct eval_kept_params p = {
        .text = a->text, .text_len = a->text_len, .n_token = a->n_ctx, .every = a->every};
    return eval_kept(setup, &p, result, err);
}

/* ---- the table ---- */

static bool never_drawn(const struct sweep_args *a)
{
    (void)a;
    return false;
}

static const struct sweep_kind kinds[] = {
    {"needle", needle_args, needle_defaults, needle_is_drawn, run_needle},
    {"ruler", ruler_args, ruler_defaults, NULL, run_ruler},
    {"perplexity", perplexity_args, perplexity_defaults, never_drawn, run_perplexity},
    {"divergence", divergence_args, perplexity_defaults, never_drawn, run_divergence},
    {"recursion", recursion_args, recursion_defaults, recursion_is_drawn, run_recursion},
    {"derivation", derivation_args, derivation_defaults, NULL, run_derivation},
    {"questions", questions_args, questions_defaults, questions_are_drawn, run_questions},
    {"facts", facts_args, facts_defaults, facts_are_drawn, run_facts},
    {"kept", kept_args, kept_defaults, never_drawn, run_kept},
};
#define N_KIND (sizeof(kinds) / sizeof(kinds[0]))

const struct sweep_kind *sweep_kind_find(const char *name, struct eval_text *names)
{
    for (size_t i = 0; i < N_KIND; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    for (size_t i = 0; i < N_KIND && names != NULL; i++)
        eval_text_printf(names, "%s%s", i > 0 ? ", " : "", kinds[i].name);
    return NULL;
}

const char *sweep_kind_name(const struct sweep_kind *kind)
{
    return kind->name;
}

bool sweep_kind_is_drawn(const struct sweep_kind *kind, const struct sweep_args *args)
{
    return kind->is_drawn == NULL || kind->is_drawn(args);
}

pith_status sweep_kind_run(const struct sweep_kind *kind, const struct eval_setup *setup,
                           const struct sweep_args *args, json_t **result, pith_error *err)
{
    return kind->run(setup, args, result, err);
}
