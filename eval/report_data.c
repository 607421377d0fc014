/*
 * report_data.c - from lines of results to groups, policies and points.
 *
 * It knows no HTML. Results come from files, so nothing in them is trusted: a field of another
 * type is a field that is absent. Order on the page is decided here: groups and policies as first
 * met, the full cache first, budgets ascending.
 */
#define _POSIX_C_SOURCE 200809L

#include "report_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FULL "full"
#define POLICY_MAX 512 /* bytes of a policy's text that tell it from others */
#define Z95 1.959964   /* half width of the normal distribution's 95 % interval */

/* In the order of preference: the first that a result has is what its charts show. */
static const struct report_metric metrics[] = {
    {"perplexity", "perplexity_se", "perplexity", "Perplexity", "less is better", false},
    {"kl_mean", "kl_se", "KL divergence", "KL divergence", "less is better", false},
    {"lost_mass", NULL, "lost mass", "Lost attention", "less is better", false},
    {"score", NULL, "score", "Accuracy", "more is better", true},
};
#define N_METRIC (sizeof(metrics) / sizeof(metrics[0]))

/* ---- policies and budgets ---- */

/* The units that may follow a budget's number, as in --keep, and their factors. */
static const struct unit {
    const char *text;
    enum report_budget_kind kind;
    double factor;
} units[] = {
    {"", REPORT_BUDGET_TOKENS, 1},        {"%", REPORT_BUDGET_SHARE, 0.01},
    {"B", REPORT_BUDGET_BYTES, 1},        {"kB", REPORT_BUDGET_BYTES, 1e3},
    {"MB", REPORT_BUDGET_BYTES, 1e6},     {"GB", REPORT_BUDGET_BYTES, 1e9},
    {"KiB", REPORT_BUDGET_BYTES, 0x1p10}, {"MiB", REPORT_BUDGET_BYTES, 0x1p20},
    {"GiB", REPORT_BUDGET_BYTES, 0x1p30},
};

struct report_budget report_parse_budget(const char *text)
{
    struct report_budget b = {.kind = REPORT_BUDGET_NONE};
    char *end = NULL;
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return b;
    double value = strtod(text, &end);
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (strcmp(end, units[i].text) == 0) {
            b.kind = units[i].kind;
            b.value = value * units[i].factor;
            snprintf(b.text, sizeof(b.text), "%s", text);
            break;
        }
    return b;
}

void report_split_policy(const char *text, char *policy, size_t cap, struct report_budget *budget)
{
    static const char key[] = "budget=";
    const char *at = strstr(text, key);
    *budget = (struct report_budget){.kind = REPORT_BUDGET_NONE};
    snprintf(policy, cap, "%s", text);
    if (at == NULL || at == text || (at[-1] != ':' && at[-1] != ',' && at[-1] != ' '))
        return;
    char value[32];
    size_t len = strcspn(at + strlen(key), ", ");
    const char *rest = at + strlen(key) + len;
    snprintf(value, sizeof(value), "%.*s", (int)(len < 31 ? len : 31), at + strlen(key));
    *budget = report_parse_budget(value);
    if (budget->kind == REPORT_BUDGET_NONE)
        return;
    /* One separator goes with the budget: the one after it, or before it at the end. */
    size_t before = (size_t)(at - text);
    if (*rest == ',')
        rest++;
    else
        before--;
    snprintf(policy, cap, "%.*s%s", (int)before, text, rest);
}

/* Appends "LABEL TEXT" behind a comma. */
static void add_name(char *name, size_t cap, const char *label, const char *text)
{
    size_t len = strlen(name);
    if (text != NULL)
        snprintf(name + len, cap - len, "%s%s%s", len > 0 ? ", " : "", label, text);
}

void report_policy_name(const struct report_options *options, char *name, size_t cap,
                        struct report_budget *budget)
{
    const char *keep = options->keep, *read = options->read;
    char kept[POLICY_MAX] = FULL, part[POLICY_MAX] = "";
    struct report_budget of_keep = {.kind = REPORT_BUDGET_NONE};
    *budget = of_keep;
    if (read != NULL)
        report_split_policy(read, part, sizeof(part), budget);
    /* A second budget stays in the name: it is no axis. */
    if (keep != NULL && budget->kind != REPORT_BUDGET_NONE)
        snprintf(kept, sizeof(kept), "%s", keep);
    else if (keep != NULL)
        report_split_policy(keep, kept, sizeof(kept), &of_keep);
    if (budget->kind == REPORT_BUDGET_NONE)
        *budget = of_keep;
    snprintf(name, cap, "%s", read != NULL && strcmp(kept, FULL) == 0 ? "" : kept);
    add_name(name, cap, "read ", read != NULL ? part : NULL);
    add_name(name, cap, "recall ", options->recall);
    add_name(name, cap, "", options->store);
}

/* ---- names ---- */

/* Finds or adds a policy; -1 when out of memory. There is room for one per cell. */
static int32_t policy_of(struct report *r, const char *name)
{
    for (int32_t i = 0; i < r->n_policy; i++)
        if (strcmp(r->policies[i].name, name) == 0)
            return i;
    struct report_policy *p = &r->policies[r->n_policy];
    p->name = strdup(name);
    p->full = strcmp(name, FULL) == 0;
    return p->name != NULL ? r->n_policy++ : -1;
}

/* The settings without what differs between results that belong into one chart. */
static char *comparable_settings(const json_t *settings)
{
    static const char *const varies[] = {"seed", "policy", "keep", "budget", "type_k", "type_v"};
    json_t *copy = json_is_object(settings) ? json_copy((json_t *)settings) : json_object();
    for (size_t i = 0; i < sizeof(varies) / sizeof(varies[0]); i++)
        json_object_del(copy, varies[i]);
    char *text = copy != NULL ? json_dumps(copy, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    json_decref(copy);
    return text;
}

static const char *or_else(const char *text, const char *otherwise)
{
    return text != NULL ? text : otherwise;
}

/* The sweep's hash of the task's question, or else the task's own text of it. */
static char *group_key(const json_t *result, const json_t *cell)
{
    const char *hash = results_text(cell, "task_hash");
    char *settings = hash == NULL ? comparable_settings(json_object_get(result, "settings")) : NULL;
    if (hash == NULL && settings == NULL)
        return NULL;
    json_t *key = json_pack("[s,s,s,s]", or_else(results_text(result, "model"), ""),
                            or_else(results_text(result, "task"), ""),
                            or_else(results_text(cell, "task"), ""), hash ? hash : settings);
    char *text = key != NULL ? json_dumps(key, JSON_COMPACT) : NULL;
    json_decref(key);
    free(settings);
    return text;
}

/* Two groups of one title are told apart by a number. */
static char *group_title(const struct report *r, const char *name)
{
    char title[256];
    int32_t same = 0;
    for (int32_t i = 0; i < r->n_group; i++) {
        size_t len = strlen(name);
        const char *other = r->groups[i].title;
        same += strncmp(other, name, len) == 0 && (other[len] == '\0' || other[len] == ' ');
    }
    if (same == 0)
        return strdup(name);
    snprintf(title, sizeof(title), "%.200s (%d)", name, same + 1);
    return strdup(title);
}

const struct report_metric *report_metric_of(const json_t *summary)
{
    for (size_t i = 0; i < N_METRIC; i++)
        if (!isnan(results_number(summary, metrics[i].key)))
            return &metrics[i];
    return NULL;
}

/* Finds or adds the group of a result; -1 when out of memory. */
static int32_t group_of(struct report *r, const json_t *result, const json_t *cell)
{
    char *key = group_key(result, cell);
    if (key == NULL)
        return -1;
    for (int32_t i = 0; i < r->n_group; i++)
        if (strcmp(r->groups[i].key, key) == 0) {
            free(key);
            return i;
        }
    struct report_group *g = &r->groups[r->n_group];
    g->task = results_text(result, "task");
    g->model = or_else(results_text(result, "model"), "");
    g->settings = json_object_get(result, "settings");
    g->metric = report_metric_of(json_object_get(result, "summary"));
    g->key = key;
    g->title = group_title(r, or_else(results_text(cell, "task"), g->task));
    /* The group counts even without a title, so that report_free sees its key. */
    r->n_group++;
    return g->title != NULL ? r->n_group - 1 : -1;
}

/* ---- cells ---- */

static void read_seed(struct report_cell *c, const json_t *cell)
{
    const json_t *seed = json_object_get(cell, "seed");
    if (seed == NULL)
        seed = json_object_get(json_object_get(c->result, "settings"), "seed");
    if (json_is_integer(seed))
        snprintf(c->seed, sizeof(c->seed), "%lld", (long long)json_integer_value(seed));
}

static bool read_cell(struct report *r, const json_t *result, const char *file)
{
    char policy[POLICY_MAX];
    const json_t *cell = json_object_get(result, "cell");
    struct report_cell c = {.result = result,
                            .summary = json_object_get(result, "summary"),
                            .run = json_object_get(result, "run"),
                            .file = file};
    const struct report_options options = {
        results_text(result, "policy"), results_text(result, "read"),
        results_text(result, "recall"), results_text(result, "store")};
    report_policy_name(&options, policy, sizeof(policy), &c.budget);
    if (results_text(cell, "policy") != NULL) {
        snprintf(policy, sizeof(policy), "%s", results_text(cell, "policy"));
        if (results_text(cell, "budget") != NULL)
            c.budget = report_parse_budget(results_text(cell, "budget"));
    }
    read_seed(&c, cell);
    c.group = group_of(r, result, cell);
    c.policy = policy_of(r, policy);
    if (c.group < 0 || c.policy < 0)
        return false;
    struct report_group *g = &r->groups[c.group];
    if (g->metric == NULL)
        g->metric = report_metric_of(c.summary);
    r->cells[r->n_cell++] = c;
    return true;
}

static int compare_place(const struct report_cell *a, const struct report_cell *b)
{
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->policy != b->policy)
        return a->policy < b->policy ? -1 : 1;
    if (a->budget.kind != b->budget.kind)
        return a->budget.kind < b->budget.kind ? -1 : 1;
    return (a->budget.value > b->budget.value) - (a->budget.value < b->budget.value);
}

/* Insertion sort: it keeps the order of equals, which qsort does not, and a report has hundreds of
   cells that stand nearly in order. */
static void sort_cells(struct report *r)
{
    for (int32_t i = 1; i < r->n_cell; i++) {
        struct report_cell c = r->cells[i];
        int32_t j = i;
        for (; j > 0 && compare_place(&r->cells[j - 1], &c) > 0; j--)
            r->cells[j] = r->cells[j - 1];
        r->cells[j] = c;
    }
}

/* The full cache is the first policy, whenever it was met. */
static void full_first(struct report *r)
{
    int32_t full = -1;
    for (int32_t i = 0; i < r->n_policy; i++)
        if (r->policies[i].full)
            full = i;
    if (full > 0) {
        struct report_policy p = r->policies[full];
        memmove(r->policies + 1, r->policies, (size_t)full * sizeof(p));
        r->policies[0] = p;
        for (int32_t i = 0; i < r->n_cell; i++) {
            int32_t *policy = &r->cells[i].policy;
            *policy = *policy == full ? 0 : *policy + (*policy < full);
        }
    }
    for (int32_t i = 0; i < r->n_policy; i++)
        r->policies[i].slot = full >= 0 ? i - 1 : i;
}

/* Of two cells with the same place and seed the later one counts: it was run again. */
static void find_superseded(struct report *r)
{
    for (int32_t i = 0; i < r->n_cell; i++)
        for (int32_t j = i + 1; j < r->n_cell && !r->cells[i].superseded; j++) {
            if (compare_place(&r->cells[i], &r->cells[j]) != 0)
                break;
            if (strcmp(r->cells[i].seed, r->cells[j].seed) == 0) {
                r->cells[i].superseded = true;
                r->n_superseded++;
            }
        }
}

/* ---- points ---- */

struct mean {
    double sum;
    int32_t n;
};

static void mean_add(struct mean *m, double value)
{
    if (isnan(value))
        return;
    m->sum += value;
    m->n++;
}

static double mean_value(const struct mean *m)
{
    return m->n > 0 ? m->sum / m->n : (double)NAN;
}

/* The interval of the seeds together. A share of n items has Wilson's, which for scores between 0
   and 1 is as wide or wider than needed. A figure with a standard error has the normal one, errors
   added as independent means' errors are. */
static void judge(const struct report_metric *m, const struct report_cell *cells, int32_t n_cell,
                  struct report_point *p)
{
    double weighted = 0, n = 0, variance = 0;
    struct mean value = {0};
    p->low = p->high = (double)NAN;
    for (int32_t i = 0; i < n_cell; i++) {
        double figure = m != NULL ? results_number(cells[i].summary, m->key) : (double)NAN;
        double items = results_number(cells[i].summary, "n");
        double error = m != NULL && m->error != NULL ? results_number(cells[i].summary, m->error)
                                                     : (double)NAN;
        mean_add(&value, figure);
        weighted += figure * items;
        n += items;
        variance += error * error;
    }
    p->n = n > 0 ? n : (double)NAN;
    p->value = mean_value(&value);
    if (m != NULL && m->share && n > 0 && weighted >= 0 && weighted <= n) {
        struct eval_interval interval = eval_wilson(weighted, n);
        p->value = weighted / n;
        p->low = interval.low;
        p->high = interval.high;
    } else if (variance >= 0 && value.n > 0) {
        double half = Z95 * sqrt(variance) / value.n;
        p->low = fmax(p->value - half, 0.0); /* neither perplexity nor divergence is less */
        p->high = p->value + half;
    }
}

void report_measure(const struct report_metric *metric, const struct report_cell *cells, int32_t n,
                    struct report_point *out)
{
    struct mean speed = {0}, evicted = {0}, rounds = {0}, read = {0}, prompt = {0}, recall = {0};
    out->kv_bytes = (double)NAN;
    for (int32_t i = 0; i < n; i++) {
        double bytes = results_number(cells[i].summary, "kv_peak_bytes");
        if (!isnan(bytes) && !(bytes <= out->kv_bytes))
            out->kv_bytes = bytes;
        /* Nothing per second is no figure where nothing was to be generated. */
        if (results_number(cells[i].summary, "tokens_per_s") > 0)
            mean_add(&speed, results_number(cells[i].summary, "tokens_per_s"));
        mean_add(&evicted, results_number(cells[i].summary, "evicted"));
        mean_add(&rounds, results_number(cells[i].summary, "rounds"));
        mean_add(&read, results_number(cells[i].summary, "read_share"));
        double items = results_number(cells[i].summary, "n");
        const json_t *recalled = json_object_get(cells[i].summary, "recall");
        mean_add(&prompt, results_number(cells[i].summary, "prompt_seconds") / items);
        mean_add(&recall, results_number(recalled, "seconds") / items);
    }
    out->tokens_per_s = mean_value(&speed);
    out->evicted = mean_value(&evicted);
    out->rounds = mean_value(&rounds);
    out->read_share = mean_value(&read);
    out->prompt_s = mean_value(&prompt);
    out->recall_s = mean_value(&recall);
    judge(metric, cells, n, out);
}

/* Cells stand by place; superseded ones are left out. */
static void make_points(struct report *r)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < r->n_cell; i++)
        if (!r->cells[i].superseded)
            r->cells[kept++] = r->cells[i];
    r->n_cell = kept;
    for (int32_t i = 0; i < r->n_cell;) {
        int32_t j = i;
        struct report_point *p = &r->points[r->n_point];
        *p = (struct report_point){
            .group = r->cells[i].group, .policy = r->cells[i].policy, .budget = r->cells[i].budget};
        for (; j < r->n_cell && compare_place(&r->cells[i], &r->cells[j]) == 0; j++)
            r->cells[j].point = r->n_point;
        p->first_cell = i;
        p->n_cell = j - i;
        struct report_group *g = &r->groups[p->group];
        report_measure(g->metric, r->cells + i, p->n_cell, p);
        if (g->n_point++ == 0)
            g->first_point = r->n_point;
        r->n_point++;
        i = j;
    }
}

/* ---- all of it ---- */

static pith_status make_room(struct report *r, int32_t n_file, pith_error *err)
{
    int32_t n = 1;
    for (int32_t i = 0; i < n_file; i++)
        n += (int32_t)json_array_size(r->files[i].lines);
    r->policies = calloc((size_t)n, sizeof(*r->policies));
    r->groups = calloc((size_t)n, sizeof(*r->groups));
    r->points = calloc((size_t)n, sizeof(*r->points));
    r->cells = calloc((size_t)n, sizeof(*r->cells));
    if (r->policies == NULL || r->groups == NULL || r->points == NULL || r->cells == NULL)
        return eval_fail(err, PITH_NOMEM, "no memory for a report of %d results", n - 1);
    return PITH_OK;
}

static pith_status read_files(struct report *r, const char *const *paths, int32_t n_path,
                              pith_error *err)
{
    r->files = calloc((size_t)n_path + 1, sizeof(*r->files));
    if (r->files == NULL)
        return eval_fail(err, PITH_NOMEM, "no memory for a report of %d files", n_path);
    for (int32_t i = 0; i < n_path; i++) {
        pith_status status = results_read(paths[i], &r->files[i], err);
        if (status == PITH_OK && json_array_size(r->files[i].lines) == 0)
            status = results_read_one(paths[i], &r->files[i], err);
        if (status != PITH_OK)
            return status;
        r->n_file++;
        r->n_ignored += r->files[i].n_ignored;
        r->n_cut += r->files[i].cut;
    }
    return PITH_OK;
}

static pith_status read_cells(struct report *r, const char *const *paths, pith_error *err)
{
    for (int32_t f = 0; f < r->n_file; f++) {
        size_t i;
        json_t *line;
        json_array_foreach(r->files[f].lines, i, line)
        {
            if (!read_cell(r, line, paths[f]))
                return eval_fail(err, PITH_NOMEM, "%s: no memory for result %zu", paths[f], i + 1);
        }
    }
    if (r->n_cell == 0)
        return eval_fail(err, PITH_FORMAT, "%s: no line is a result of pith eval",
                         r->n_file > 0 ? paths[0] : "no file");
    return PITH_OK;
}

pith_status report_read(const char *const *paths, int32_t n_path, struct report *out,
                        pith_error *err)
{
    struct report r = {0};
    pith_status status = read_files(&r, paths, n_path, err);
    if (status == PITH_OK)
        status = make_room(&r, n_path, err);
    if (status == PITH_OK)
        status = read_cells(&r, paths, err);
    if (status != PITH_OK) {
        report_free(&r);
        return status;
    }
    full_first(&r);
    sort_cells(&r);
    find_superseded(&r);
    make_points(&r);
    *out = r;
    return PITH_OK;
}

void report_free(struct report *r)
{
    for (int32_t i = 0; i < r->n_file; i++)
        results_free(&r->files[i]);
    for (int32_t i = 0; i < r->n_policy; i++)
        free(r->policies[i].name);
    for (int32_t i = 0; i < r->n_group; i++) {
        free(r->groups[i].key);
        free(r->groups[i].title);
    }
    free(r->files);
    free(r->policies);
    free(r->groups);
    free(r->points);
    free(r->cells);
    *r = (struct report){0};
}
