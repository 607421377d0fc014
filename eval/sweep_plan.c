/*
 * sweep_plan.c - from a small JSON file to the list of cells.
 *
 * All of it is checked before anything runs, and every sentence begins with the file's name. The
 * hash of a cell covers all that its result depends on. That is the model's bytes, the task with
 * the bytes of its files, policy, budget, seed, engine settings and version. So a changed setting
 * is another cell, and a renamed or moved file is not.
 */
#define _POSIX_C_SOURCE 200809L

#include "sweep_plan.h"
#include "pith/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FULL "full"
#define SAMPLES 64         /* of the model's file, evenly spaced: */
#define SAMPLE_BYTES 65536 /* a retrained model differs in nearly all of them */
#define CELLS_MAX 100000

struct reader {
    struct sweep_plan *plan;
    uint64_t hash; /* of the settings that all cells share */
    pith_engine_params engine;
};

static void print_hash(char *buf, uint64_t hash)
{
    snprintf(buf, SWEEP_HASH_SIZE, "%016llx", (unsigned long long)hash);
}

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "no memory for the plan of a sweep");
}

/* ---- engine settings ---- */

enum engine_type { ENGINE_INT, ENGINE_LONG, ENGINE_TEXT };

static const struct engine_setting {
    const char *key;
    enum engine_type type;
    size_t offset;
} engine_settings[] = {
    {"threads", ENGINE_INT, offsetof(pith_engine_params, n_thread)},
    {"kv_tokens", ENGINE_INT, offsetof(pith_engine_params, kv_tokens)},
    {"kv_bytes", ENGINE_LONG, offsetof(pith_engine_params, kv_bytes)},
    {"page", ENGINE_INT, offsetof(pith_engine_params, page_len)},
    {"chunk", ENGINE_INT, offsetof(pith_engine_params, chunk)},
    {"type_k", ENGINE_TEXT, offsetof(pith_engine_params, type_k)},
    {"type_v", ENGINE_TEXT, offsetof(pith_engine_params, type_v)},
    {"share", ENGINE_TEXT, offsetof(pith_engine_params, share)},
};
#define N_ENGINE_SETTING (sizeof(engine_settings) / sizeof(engine_settings[0]))

static bool set_engine(const struct engine_setting *s, const json_t *value, pith_engine_params *p)
{
    void *field = (char *)p + s->offset;
    json_int_t number = json_integer_value(value);
    if (s->type == ENGINE_TEXT) {
        *(const char **)field = json_string_value(value);
        return json_is_string(value);
    }
    if (!json_is_integer(value) || number < 0 || (s->type == ENGINE_INT && number > INT32_MAX))
        return false;
    if (s->type == ENGINE_INT)
        *(int32_t *)field = (int32_t)number;
    else
        *(int64_t *)field = (int64_t)number;
    return true;
}

/* Takes the engine's settings out of an object into *p and into record. Its other keys may only be
   the names of `others`, which end with NULL. */
static pith_status read_engine(const char *what, const json_t *object, const char *const *others,
                               pith_engine_params *p, json_t *record, pith_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        size_t i = 0, k = 0;
        while (others[k] != NULL && strcmp(others[k], key) != 0)
            k++;
        if (others[k] != NULL)
            continue;
        while (i < N_ENGINE_SETTING && strcmp(engine_settings[i].key, key) != 0)
            i++;
        if (i == N_ENGINE_SETTING)
            return eval_fail(err, PITH_INVALID, "%s: there is no setting \"%.40s\"", what, key);
        if (!set_engine(&engine_settings[i], value, p))
            return eval_fail(err, PITH_INVALID, "%s: %s must be %s", what, key,
                             engine_settings[i].type == ENGINE_TEXT ? "a text"
                                                                    : "a whole number from 0");
        if (json_object_set(record, key, value) != 0)
            return no_memory(err);
    }
    return PITH_OK;
}

/* ---- policies ---- */

/* Whether the budgets of the sweep go into these options; NULL: there is nothing to limit. */
static bool wants_budget(const char *options)
{
    return options != NULL && strstr(options, "budget=") == NULL;
}

/* A policy is the text of --keep, or an object that may have a --read and change the engine. */
static pith_status read_policy(struct reader *r, const json_t *value, pith_error *err)
{
    static const char *const own[] = {"name", "keep", "read", "recall", NULL};
    struct sweep_policy *p = &r->plan->policies[r->plan->n_policy];
    const json_t *name = json_object_get(value, "name"), *keep = json_object_get(value, "keep");
    const json_t *read = json_object_get(value, "read"), *recall = json_object_get(value, "recall");
    *p = (struct sweep_policy){.engine = r->engine};
    p->settings = json_is_object(json_object_get(r->plan->root, "engine"))
                      ? json_copy(json_object_get(r->plan->root, "engine"))
                      : json_object();
    if (p->settings == NULL)
        return no_memory(err);
    r->plan->n_policy++;
    if (json_is_string(value)) {
        p->name = p->keep = json_string_value(value);
    } else if (json_is_object(value)) {
        if (!json_is_string(name) || (keep != NULL && !json_is_string(keep)) ||
            (read != NULL && !json_is_string(read)) || (recall != NULL && !json_is_string(recall)))
            return eval_fail(err, PITH_INVALID,
                             "policies: an object needs a \"name\", and its \"keep\", \"read\" and "
                             "\"recall\" are texts");
        p->name = json_string_value(name);
        p->keep = json_string_value(keep);
        p->read = json_string_value(read);
        p->recall = json_string_value(recall);
        pith_status status = read_engine("policies", value, own, &p->engine, p->settings, err);
        if (status != PITH_OK)
            return status;
    } else {
        return eval_fail(err, PITH_INVALID, "policies: each must be a text or an object");
    }
    if (p->keep != NULL && (strcmp(p->keep, FULL) == 0 || strcmp(p->keep, "none") == 0))
        p->keep = NULL;
    if (p->read != NULL && strcmp(p->read, "none") == 0)
        p->read = NULL;
    if (p->recall != NULL && strcmp(p->recall, "none") == 0)
        p->recall = NULL;
    if (p->keep == NULL && p->recall != NULL)
        return eval_fail(err, PITH_INVALID,
                         "policies: \"%.60s\" has recall and no keep: nothing is evicted that "
                         "could come back",
                         p->name);
    if (p->keep == NULL && p->read == NULL && strcmp(p->name, "none") == 0)
        p->name = FULL;
    if (wants_budget(p->keep) && wants_budget(p->read))
        return eval_fail(err, PITH_INVALID,
                         "policies: \"%.60s\" keeps and reads without a budget: name that of one",
                         p->name);
    for (int32_t i = 0; i + 1 < r->plan->n_policy; i++)
        if (strcmp(r->plan->policies[i].name, p->name) == 0)
            return eval_fail(err, PITH_INVALID, "policies: \"%.60s\" is there twice", p->name);
    return PITH_OK;
}

static pith_status read_policies(struct reader *r, pith_error *err)
{
    size_t i;
    json_t *value, *list = json_object_get(r->plan->root, "policies");
    if (json_array_size(list) == 0)
        return eval_fail(err, PITH_INVALID, "policies: must be a list with a policy at least");
    r->plan->policies = calloc(json_array_size(list), sizeof(*r->plan->policies));
    if (r->plan->policies == NULL)
        return no_memory(err);
    json_array_foreach(list, i, value)
    {
        pith_status status = read_policy(r, value, err);
        if (status != PITH_OK)
            return status;
    }
    return PITH_OK;
}

/* ---- tasks ---- */

static bool has_task(const struct sweep_plan *plan, const char *name)
{
    for (int32_t i = 0; i < plan->n_task; i++)
        if (strcmp(plan->tasks[i].name, name) == 0)
            return true;
    return false;
}

/* "needle", and "needle 2" for the second of that name. */
static char *task_name(const struct sweep_plan *plan, const char *name)
{
    struct eval_text text = {0};
    eval_text_add(&text, name);
    for (int32_t n = 2; !text.failed && has_task(plan, text.data); n++) {
        eval_text_clear(&text);
        eval_text_printf(&text, "%s %d", name, n);
    }
    if (text.failed)
        eval_text_free(&text);
    return text.data;
}

static pith_status read_task(struct reader *r, const json_t *value, pith_error *err)
{
    struct eval_text names = {0};
    const json_t *task = json_object_get(value, "task"), *name = json_object_get(value, "name");
    if (!json_is_string(task) || (name != NULL && !json_is_string(name)))
        return eval_fail(err, PITH_INVALID,
                         "tasks: each must be an object with a \"task\", and its \"name\" a text");
    struct sweep_task *t = &r->plan->tasks[r->plan->n_task];
    t->kind = sweep_task_find(json_string_value(task), &names);
    if (t->kind == NULL) {
        eval_fail(err, PITH_INVALID, "tasks: there is no task \"%.40s\", only %s",
                  json_string_value(task), names.data != NULL ? names.data : "others");
        eval_text_free(&names);
        return PITH_INVALID;
    }
    uint64_t hash = sweep_hash_text(SWEEP_HASH_START, t->kind->name);
    t->name = task_name(r->plan, name != NULL ? json_string_value(name) : t->kind->name);
    if (t->name == NULL)
        return no_memory(err);
    r->plan->n_task++;
    pith_status status = sweep_args_read(t->kind, value, r->plan->folder, &t->args, &hash, err);
    print_hash(t->hash, hash);
    return status;
}

static pith_status read_tasks(struct reader *r, pith_error *err)
{
    size_t i;
    json_t *value, *list = json_object_get(r->plan->root, "tasks");
    if (json_array_size(list) == 0)
        return eval_fail(err, PITH_INVALID, "tasks: must be a list with a task at least");
    r->plan->tasks = calloc(json_array_size(list), sizeof(*r->plan->tasks));
    if (r->plan->tasks == NULL)
        return no_memory(err);
    json_array_foreach(list, i, value)
    {
        pith_status status = read_task(r, value, err);
        if (status != PITH_OK)
            return status;
    }
    return PITH_OK;
}

/* ---- cells ---- */

/* A budget as the option has it: 128 and "50%" are texts. False when it is neither. */
static bool budget_text(const json_t *value, char *buf, size_t cap)
{
    const char *text = json_string_value(value);
    if (json_is_integer(value) && json_integer_value(value) > 0) {
        snprintf(buf, cap, "%lld", (long long)json_integer_value(value));
        return true;
    }
    if (text == NULL || strlen(text) >= cap || text[0] < '0' || text[0] > '9' ||
        strpbrk(text, ",:= ") != NULL)
        return false;
    snprintf(buf, cap, "%s", text);
    return true;
}

/* Options with the budget in them where they want one; NULL for NULL. *out is owned. */
static pith_status compose(const char *options, const char *budget, char **out, pith_error *err)
{
    if (options == NULL)
        return PITH_OK;
    *out = budget[0] != '\0' && wants_budget(options) ? eval_add_budget(options, budget)
                                                      : strdup(options);
    return *out == NULL ? no_memory(err) : PITH_OK;
}

/* The options of a cell, checked. */
static pith_status compose_cell(const struct sweep_policy *p, struct sweep_cell *c, pith_error *err)
{
    pith_status status = compose(p->keep, c->budget, &c->keep, err);
    if (status == PITH_OK)
        status = compose(p->read, c->budget, &c->read, err);
    if (status == PITH_OK)
        status = pith_policy_check(PITH_KEEP, c->keep, err);
    if (status == PITH_OK)
        status = pith_policy_check(PITH_READ, c->read, err);
    if (status == PITH_OK)
        status = pith_policy_check(PITH_RECALL, p->recall, err);
    if (status == PITH_OK)
        status = pith_policy_check(PITH_SHARE, p->engine.share, err);
    return status == PITH_OK ? pith_store_check(p->engine.type_k, p->engine.type_v, err) : status;
}

static pith_status add_cell(struct reader *r, int32_t task, int64_t seed, int32_t policy,
                            const json_t *budget, pith_error *err)
{
    struct sweep_plan *plan = r->plan;
    const struct sweep_policy *p = &plan->policies[policy];
    struct sweep_cell *c = &plan->cells[plan->n_cell];
    struct eval_text key = {0};
    *c = (struct sweep_cell){.task = task, .policy = policy, .seed = seed};
    plan->n_cell++;
    if (budget != NULL && !budget_text(budget, c->budget, sizeof(c->budget)))
        return eval_fail(err, PITH_INVALID,
                         "budgets: each must be a whole number of tokens or a text like \"50%%\"");
    pith_status status = compose_cell(p, c, err);
    if (status != PITH_OK)
        return status;
    eval_text_printf(&key, "%s | ", plan->tasks[task].name);
    eval_text_add(&key, p->name);
    if (c->budget[0] != '\0')
        eval_text_printf(&key, " | budget %s", c->budget);
    if (seed != SWEEP_NO_SEED)
        eval_text_printf(&key, " | seed %lld", (long long)seed);
    c->key = key.data;
    uint64_t hash = sweep_hash_text(r->hash, plan->tasks[task].hash);
    hash = sweep_hash_text(hash, c->keep);
    if (c->read != NULL) /* without one the hash is as before read policies existed */
        hash = sweep_hash_text(hash, c->read);
    if (p->recall != NULL)
        hash = sweep_hash_text(sweep_hash_text(hash, "recall"), p->recall);
    bool ok = sweep_hash_json(&hash, p->settings);
    hash = sweep_hash(hash, &seed, sizeof(seed));
    print_hash(c->hash, hash);
    return key.failed || !ok ? no_memory(err) : PITH_OK;
}

/* All budgets of a policy; one cell without for those that have or need none. */
static pith_status add_budgets(struct reader *r, int32_t task, int64_t seed, int32_t policy,
                               pith_error *err)
{
    size_t i;
    json_t *value, *budgets = json_object_get(r->plan->root, "budgets");
    const struct sweep_policy *p = &r->plan->policies[policy];
    if ((!wants_budget(p->keep) && !wants_budget(p->read)) || json_array_size(budgets) == 0)
        return add_cell(r, task, seed, policy, NULL, err);
    json_array_foreach(budgets, i, value)
    {
        pith_status status = add_cell(r, task, seed, policy, value, err);
        if (status != PITH_OK)
            return status;
    }
    return PITH_OK;
}

/* Seed i of the list. */
static pith_status read_seed(const json_t *seeds, size_t i, int64_t *out, pith_error *err)
{
    const json_t *seed = json_array_get(seeds, i);
    *out = seeds != NULL ? json_integer_value(seed) : 1;
    if (seeds != NULL && (!json_is_integer(seed) || *out < 0))
        return eval_fail(err, PITH_INVALID, "seeds: must be a list of whole numbers");
    return PITH_OK;
}

/* All policies with a task and seed i; of a task that draws nothing there is only the first. */
static pith_status add_seed(struct reader *r, int32_t task, const json_t *seeds, size_t i,
                            pith_error *err)
{
    const struct sweep_task *t = &r->plan->tasks[task];
    int64_t seed;
    pith_status status = read_seed(seeds, i, &seed, err);
    if (t->kind->is_random != NULL && !t->kind->is_random(&t->args.of)) {
        if (i > 0)
            return status;
        seed = SWEEP_NO_SEED;
    }
    for (int32_t p = 0; p < r->plan->n_policy && status == PITH_OK; p++)
        status = add_budgets(r, task, seed, p, err);
    return status;
}

static pith_status add_cells(struct reader *r, pith_error *err)
{
    const json_t *seeds = json_object_get(r->plan->root, "seeds");
    size_t n_seed = seeds != NULL ? json_array_size(seeds) : 1;
    size_t n_budget = json_array_size(json_object_get(r->plan->root, "budgets"));
    double most = (double)n_seed * r->plan->n_task * r->plan->n_policy * (double)(n_budget + 1);
    pith_status status = PITH_OK;
    if (n_seed == 0)
        return eval_fail(err, PITH_INVALID, "seeds: must be a list of whole numbers");
    if (most > CELLS_MAX)
        return eval_fail(err, PITH_INVALID, "%.0f cells are more than %d", most, CELLS_MAX);
    r->plan->cells = calloc((size_t)most, sizeof(*r->plan->cells));
    if (r->plan->cells == NULL)
        return no_memory(err);
    for (int32_t t = 0; t < r->plan->n_task; t++)
        for (size_t s = 0; s < n_seed && status == PITH_OK; s++)
            status = add_seed(r, t, seeds, s, err);
    return status;
}

/* ---- the file ---- */

static bool is_kind(const json_t *root, const char *key, json_type type)
{
    const json_t *value = json_object_get(root, key);
    return value == NULL || json_typeof(value) == type ||
           (type == JSON_TRUE && json_is_boolean(value));
}

static pith_status check_keys(const json_t *root, pith_error *err)
{
    static const struct {
        const char *key;
        json_type type;
        const char *name;
    } keys[] = {
        {"model", JSON_STRING, "the name of a file"},
        {"out", JSON_STRING, "the name of a file"},
        {"seeds", JSON_ARRAY, "a list"},
        {"policies", JSON_ARRAY, "a list"},
        {"budgets", JSON_ARRAY, "a list"},
        {"tasks", JSON_ARRAY, "a list"},
        {"engine", JSON_OBJECT, "an object"},
        {"chat", JSON_TRUE, "true or false"},
        {"keep_text", JSON_TRUE, "true or false"},
    };
    const size_t n = sizeof(keys) / sizeof(keys[0]);
    const char *key;
    json_t *value;
    if (!json_is_object(root))
        return eval_fail(err, PITH_INVALID, "a sweep is one JSON object");
    json_object_foreach((json_t *)root, key, value)
    {
        size_t i = 0;
        while (i < n && strcmp(keys[i].key, key) != 0)
            i++;
        if (i == n)
            return eval_fail(err, PITH_INVALID, "there is no option \"%.40s\"", key);
        if (!is_kind(root, key, keys[i].type))
            return eval_fail(err, PITH_INVALID, "%s: must be %s", key, keys[i].name);
    }
    return PITH_OK;
}

/* Size and samples of the model's file. */
static pith_status hash_model(const char *path, uint64_t *hash, pith_error *err)
{
    FILE *file = fopen(path, "rb");
    unsigned char *buf = malloc(SAMPLE_BYTES);
    pith_status status = PITH_OK;
    if (file == NULL || buf == NULL || fseek(file, 0, SEEK_END) != 0) {
        status = buf == NULL ? no_memory(err)
                             : eval_fail(err, PITH_IO, "model: \"%.150s\" cannot be read", path);
    } else {
        int64_t size = ftell(file);
        *hash = sweep_hash(*hash, &size, sizeof(size));
        for (int64_t i = 0; i < SAMPLES; i++) {
            fseek(file, (long)(size / SAMPLES * i), SEEK_SET);
            *hash = sweep_hash(*hash, buf, fread(buf, 1, SAMPLE_BYTES, file));
        }
    }
    if (file != NULL)
        fclose(file);
    free(buf);
    return status;
}

/* Everything up to the last slash; "" without one. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup("");
}

/* "sweep.json" gives "sweep.jsonl". */
static char *results_beside(const char *path)
{
    size_t len = strlen(path);
    char *out = malloc(len + 8);
    bool json = len > 5 && strcmp(path + len - 5, ".json") == 0;
    if (out != NULL)
        snprintf(out, len + 8, "%s%s", path, json ? "l" : ".jsonl");
    return out;
}

static pith_status set_paths(struct sweep_plan *plan, const char *path, const char *model,
                             const char *out, pith_error *err)
{
    const char *own_model = json_string_value(json_object_get(plan->root, "model"));
    const char *own_out = json_string_value(json_object_get(plan->root, "out"));
    if (model == NULL && own_model == NULL)
        return eval_fail(err, PITH_INVALID, "model: is missing, the name of a GGUF file");
    plan->model = model != NULL ? strdup(model) : sweep_path(plan->folder, own_model);
    plan->out = out != NULL       ? strdup(out)
                : own_out != NULL ? sweep_path(plan->folder, own_out)
                                  : results_beside(path);
    plan->chat = json_is_true(json_object_get(plan->root, "chat"));
    plan->keep_text = json_is_true(json_object_get(plan->root, "keep_text"));
    return plan->model != NULL && plan->out != NULL ? PITH_OK : no_memory(err);
}

static pith_status read_root(struct sweep_plan *plan, const char *path, pith_error *err)
{
    char *text = NULL;
    size_t len = 0;
    json_error_t reason;
    pith_status status = eval_read_file(path, &text, &len, err);
    if (status != PITH_OK)
        return status;
    plan->root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &reason);
    plan->folder = folder_of(path);
    free(text);
    if (plan->root == NULL)
        return eval_fail(err, PITH_FORMAT, "%.100s: line %d: %.100s", path, reason.line,
                         reason.text);
    return plan->folder != NULL ? PITH_OK : no_memory(err);
}

static pith_status read_all(struct sweep_plan *plan, const char *path, const char *model,
                            const char *out, pith_error *err)
{
    static const char *const none[] = {NULL};
    struct reader r = {.plan = plan, .hash = SWEEP_HASH_START};
    json_t *record = json_object();
    pith_engine_params_default(&r.engine);
    pith_status status = record != NULL ? check_keys(plan->root, err) : no_memory(err);
    if (status == PITH_OK)
        status = set_paths(plan, path, model, out, err);
    if (status == PITH_OK)
        status = read_engine("engine", json_object_get(plan->root, "engine"), none, &r.engine,
                             record, err);
    json_decref(record);
    if (status == PITH_OK)
        status = read_policies(&r, err);
    if (status == PITH_OK)
        status = read_tasks(&r, err);
    if (status == PITH_OK)
        status = hash_model(plan->model, &r.hash, err);
    r.hash = sweep_hash_text(r.hash, pith_version());
    r.hash = sweep_hash_text(r.hash, plan->chat ? "chat" : "");
    r.hash = sweep_hash_text(r.hash, plan->keep_text ? "text" : "");
    return status == PITH_OK ? add_cells(&r, err) : status;
}

pith_status sweep_plan_read(const char *path, const char *model, const char *out,
                            struct sweep_plan *plan, pith_error *err)
{
    struct sweep_plan p = {0};
    pith_error inner = {0};
    pith_status status = read_root(&p, path, err);
    if (status == PITH_OK) {
        status = read_all(&p, path, model, out, &inner);
        if (status != PITH_OK)
            eval_fail(err, status, "%.100s: %s", path, inner.message);
    }
    if (status != PITH_OK) {
        sweep_plan_free(&p);
        return status;
    }
    *plan = p;
    return PITH_OK;
}

void sweep_plan_free(struct sweep_plan *plan)
{
    for (int32_t i = 0; i < plan->n_task; i++) {
        sweep_args_free(&plan->tasks[i].args);
        free(plan->tasks[i].name);
    }
    for (int32_t i = 0; i < plan->n_policy; i++)
        json_decref(plan->policies[i].settings);
    for (int32_t i = 0; i < plan->n_cell; i++) {
        free(plan->cells[i].keep);
        free(plan->cells[i].read);
        free(plan->cells[i].key);
    }
    free(plan->tasks);
    free(plan->policies);
    free(plan->cells);
    free(plan->folder);
    free(plan->model);
    free(plan->out);
    json_decref(plan->root);
    *plan = (struct sweep_plan){0};
}
