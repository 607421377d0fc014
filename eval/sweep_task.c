/*
 * sweep_task.c - the options of a task in JSON, read by the rows that the command reads its own by
 * (tasks.c): the same keys, ranges and defaults.
 *
 * Invariant: a value is stored only after it was checked, and every sentence names its key as it
 * was written.
 */
#define _POSIX_C_SOURCE 200809L

#include "sweep_task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- hashes and paths ---- */

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

/* ---- keys ---- */

/* Whether key is one of words, which stand behind each other with spaces. */
static bool is_among(const char *words, const char *key)
{
    size_t len = strlen(key);
    for (const char *at = words; at != NULL && *at != '\0'; at += *at == ' ') {
        size_t n = strcspn(at, " ");
        if (n == len && memcmp(at, key, n) == 0)
            return true;
        at += n;
    }
    return false;
}

/* The key of an option: its name without dashes, with "_" between words. */
static const char *key_of(const struct option *o, char buf[64])
{
    snprintf(buf, 64, "%s", o->name + strspn(o->name, "-"));
    for (char *c = buf; *c != '\0'; c++)
        *c = *c == '-' ? '_' : *c;
    return buf;
}

const struct option *sweep_option_find(const struct option *options, const char *key,
                                       bool *inverted)
{
    char buf[64];
    const struct option *other = NULL;
    *inverted = false;
    for (const struct option *o = options; o->name != NULL; o++) {
        if (strcmp(key_of(o, buf), key) == 0 || is_among(o->keys, key))
            return o;
        if (o->type == OPTION_FLAG && strncmp(buf, "no_", 3) == 0 && strcmp(buf + 3, key) == 0)
            other = o;
    }
    *inverted = other != NULL;
    return other;
}

/* ---- values ---- */

static const char *const type_names[] = {
    [OPTION_FLAG] = "true or false",
    [OPTION_INT] = "a whole number",
    [OPTION_FLOAT] = "a number",
    [OPTION_TEXT] = "a text",
    [OPTION_CHOICE] = "a text",
    [OPTION_INTS] = "a list of whole numbers",
    [OPTION_SHARES] = "a list of numbers",
    [OPTION_TEXTS] = "a list of texts",
};

struct reader {
    const struct eval_task *task;
    const char *key;
    const struct option *option;
    pith_error *err;
};

/* All tasks begin with their file. */
static bool is_file(const struct option *o)
{
    return o->type == OPTION_TEXT && o->value != NULL && strcmp(o->value, "FILE") == 0;
}

static const char *type_name(const struct option *o)
{
    return is_file(o) ? "the name of a file" : type_names[o->type];
}

static pith_status wrong_type(const struct reader *r)
{
    return eval_fail(r->err, PITH_INVALID, "task %s: %s must be %s", r->task->name, r->key,
                     type_name(r->option));
}

static pith_status check_range(const struct reader *r, double value)
{
    const struct option *o = r->option;
    if (!(o->min < o->max) || (value >= o->min && value <= o->max))
        return PITH_OK;
    return eval_fail(r->err, PITH_INVALID, "task %s: %s: %.15g is not between %.15g and %.15g",
                     r->task->name, r->key, value, o->min, o->max);
}

static pith_status read_int(const struct reader *r, const json_t *value, int32_t *out)
{
    json_int_t v = json_integer_value(value);
    if (!json_is_integer(value) || v < INT32_MIN || v > INT32_MAX)
        return wrong_type(r);
    *out = (int32_t)v;
    return check_range(r, (double)v);
}

static pith_status read_real(const struct reader *r, const json_t *value, double *out)
{
    if (!json_is_number(value))
        return wrong_type(r);
    *out = json_number_value(value);
    return check_range(r, *out);
}

static pith_status read_text(const struct reader *r, const json_t *value, const char **out)
{
    if (!json_is_string(value))
        return wrong_type(r);
    *out = json_string_value(value);
    return PITH_OK;
}

static pith_status read_choice(const struct reader *r, const json_t *value, const char **out)
{
    struct eval_text list = {0};
    const char *const *choices = r->option->choices;
    pith_status status = read_text(r, value, out);
    for (int i = 0; choices[i] != NULL && status == PITH_OK; i++) {
        if (strcmp(choices[i], *out) == 0) {
            eval_text_free(&list);
            return PITH_OK;
        }
        eval_text_printf(&list, "%s%s", i > 0 ? ", " : "", choices[i]);
    }
    if (status == PITH_OK)
        status =
            eval_fail(r->err, PITH_INVALID, "task %s: %s \"%.40s\" is none of %s", r->task->name,
                      r->key, *out, list.data != NULL ? list.data : "those that there are");
    eval_text_free(&list);
    return status;
}

/* Numbers up to 1 are shares as they are; where one is larger, all are percent. */
static void scale_shares(struct option_shares *shares)
{
    bool percent = false;
    for (int32_t i = 0; i < shares->n; i++)
        percent |= shares->value[i] > 1.0;
    for (int32_t i = 0; i < shares->n && percent; i++)
        shares->value[i] /= 100.0;
}

/* A list, or one value in place of a list of one. */
static pith_status read_list(const struct reader *r, const json_t *value, void *field)
{
    struct option_ints *ints = field;
    struct option_texts *texts = field;
    struct option_shares *shares = field;
    enum option_type type = r->option->type;
    pith_status status = PITH_OK;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n == 0 || n > OPTION_INTS_MAX)
        return wrong_type(r);
    for (size_t i = 0; i < n && status == PITH_OK; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        status = type == OPTION_INTS     ? read_int(r, item, &ints->value[i])
                 : type == OPTION_SHARES ? read_real(r, item, &shares->value[i])
                                         : read_text(r, item, &texts->text[i]);
    }
    if (type == OPTION_INTS) {
        ints->n = (int32_t)n;
    } else if (type == OPTION_TEXTS) {
        texts->n = (int32_t)n;
    } else {
        shares->n = (int32_t)n;
        scale_shares(shares);
    }
    return status;
}

static pith_status read_flag(const struct reader *r, const json_t *value, bool inverted,
                             union eval_args *a)
{
    char key[64], no[80];
    bool other;
    if (!json_is_boolean(value))
        return wrong_type(r);
    *(bool *)((char *)a + r->option->offset) = json_is_true(value) != inverted;
    snprintf(no, sizeof(no), "no_%s", key_of(r->option, key));
    const struct option *opposite = sweep_option_find(r->task->options, no, &other);
    if (opposite != NULL && !other)
        *(bool *)((char *)a + opposite->offset) = json_is_false(value);
    return PITH_OK;
}

static pith_status read_option(struct reader *r, const json_t *value, union eval_args *a)
{
    bool inverted;
    double real = 0.0;
    r->option = sweep_option_find(r->task->options, r->key, &inverted);
    if (r->option == NULL) {
        struct eval_text keys = {0};
        char buf[64];
        for (const struct option *o = r->task->options; o->name != NULL; o++)
            eval_text_printf(&keys, "%s%s", keys.len > 0 ? ", " : "", key_of(o, buf));
        eval_fail(r->err, PITH_INVALID, "task %s: there is no option \"%.40s\", only %s",
                  r->task->name, r->key, keys.data != NULL ? keys.data : "others");
        eval_text_free(&keys);
        return PITH_INVALID;
    }
    void *field = (char *)a + r->option->offset;
    pith_status status;
    switch (r->option->type) {
    case OPTION_FLAG:
        return read_flag(r, value, inverted, a);
    case OPTION_INT:
        return read_int(r, value, field);
    case OPTION_FLOAT:
        status = read_real(r, value, &real);
        *(float *)field = (float)real;
        return status;
    case OPTION_CHOICE:
        return read_choice(r, value, field);
    case OPTION_TEXT:
        return read_text(r, value, field);
    default:
        return read_list(r, value, field);
    }
}

/* ---- a task ---- */

/* The files' bytes go into the hash, so that another text under the same name is another cell. */
static pith_status read_files(const struct eval_task *task, const char *folder,
                              struct sweep_args *out, uint64_t *hash, pith_error *err)
{
    int n = 0;
    for (const struct option *o = task->options; o->name != NULL; o++) {
        const char **path = (const char **)((char *)&out->of + o->offset);
        char *text = NULL;
        size_t len = 0;
        if (!is_file(o) || *path == NULL || n == SWEEP_FILES)
            continue;
        *path = out->path[n] = sweep_path(folder, *path);
        if (out->path[n++] == NULL)
            return eval_fail(err, PITH_NOMEM, "no memory for the name of a file");
        pith_status status = eval_read_file(*path, &text, &len, err);
        if (status != PITH_OK)
            return status;
        *hash = sweep_hash(*hash, text, len);
        if (path == &out->of.common.path && eval_task_wants_text(task, &out->of)) {
            out->text = text;
            eval_task_set_text(task, &out->of, text, len);
        } else {
            free(text);
        }
    }
    return PITH_OK;
}

/* Names of a task and of its files are no part of its measurement. */
static bool hash_options(const struct eval_task *task, const json_t *options, uint64_t *hash)
{
    const char *key;
    json_t *value, *asked = json_object();
    bool inverted, ok = asked != NULL;
    json_object_foreach((json_t *)options, key, value)
    {
        const struct option *o = sweep_option_find(task->options, key, &inverted);
        if (strcmp(key, "name") != 0 && (o == NULL || !is_file(o)))
            ok = ok && json_object_set(asked, key, value) == 0;
    }
    ok = ok && sweep_hash_json(hash, asked);
    json_decref(asked);
    return ok;
}

/* Without lengths the file of `facts` is one of contexts, which are cut once. */
static bool is_cut_once(const struct eval_task *task, const json_t *options)
{
    static const char *const others[] = {"lengths", "length", "cut_once"};
    bool given = strcmp(task->name, "facts") != 0;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        given |= json_object_get(options, others[i]) != NULL;
    return !given;
}

/* Refuses options that are missing, or do not go together. */
static pith_status check_task(const struct eval_task *task, const union eval_args *a,
                              pith_error *err)
{
    char key[64];
    const char *fault = eval_task_check(task, a);
    if (fault != NULL)
        return eval_fail(err, PITH_INVALID, "task %s: %s", task->name, fault);
    for (const struct option *o = task->options; o->name != NULL; o++)
        if (o->required && *(const char *const *)((const char *)a + o->offset) == NULL)
            return eval_fail(err, PITH_INVALID, "task %s: %s is missing, %s", task->name,
                             key_of(o, key), type_name(o));
    return PITH_OK;
}

pith_status sweep_args_read(const struct eval_task *task, const json_t *options, const char *folder,
                            struct sweep_args *out, uint64_t *hash, pith_error *err)
{
    struct reader r = {.task = task, .err = err};
    json_t *value;
    *out = (struct sweep_args){0};
    out->of = *task->defaults;
    if (is_cut_once(task, options))
        out->of.facts.cut_once = true;
    if (!hash_options(task, options, hash))
        return eval_fail(err, PITH_NOMEM, "no memory for the options of a task");
    json_object_foreach((json_t *)options, r.key, value)
    {
        if (strcmp(r.key, "task") == 0 || strcmp(r.key, "name") == 0)
            continue;
        pith_status status = read_option(&r, value, &out->of);
        if (status != PITH_OK)
            return status;
    }
    pith_status status = check_task(task, &out->of, err);
    return status == PITH_OK ? read_files(task, folder, out, hash, err) : status;
}

void sweep_args_free(struct sweep_args *args)
{
    for (int i = 0; i < SWEEP_FILES; i++)
        free(args->path[i]);
    free(args->text);
    *args = (struct sweep_args){0};
}

const struct eval_task *sweep_task_find(const char *name, struct eval_text *names)
{
    for (const struct eval_task *t = eval_task_table; t->name != NULL; t++)
        if (t->in_sweeps && strcmp(t->name, name) == 0)
            return t;
    for (const struct eval_task *t = eval_task_table; t->name != NULL && names != NULL; t++)
        if (t->in_sweeps)
            eval_text_printf(names, "%s%s", names->len > 0 ? ", " : "", t->name);
    return NULL;
}
