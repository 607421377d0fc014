/*
 * longbench.c - `pith eval longbench`: asks the items of a file of the benchmark and scores answers
 * by its metrics. longbench_sets.c has the prompts, longbench_score.c the metrics.
 *
 * Invariant: an item's prompt depends on the item, the model's tokenizer and the length alone.
 */
#include "longbench.h"

#include "answers.h"
#include "lines.h"
#include "parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN_LENGTH (-1) /* of a line that has none */

/* One line of a file. */
struct item {
    struct eval_prompt prompt;
    struct eval_strings truths, classes;
    int64_t length; /* in words, as the benchmark counts them; -1: not said */
    double score;
};

struct longbench_run {
    const struct eval_longbench_params *params;
    struct eval_setup setup;
    const struct longbench_set *set;
    bool by_line; /* lines say the set */
    struct eval_run *run;
    struct item *items; /* [n_item] owned */
    int32_t n_item, cap_item;
    struct eval_asked *asked; /* [n_item] owned */
    int32_t n_predict, n_cut;
    double sum;
    json_t *rows;
};

/* ---- the file ---- */

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "longbench: no memory");
}

/* The data set that a file is named for: its name without folder, ending and "_e". */
static const struct longbench_set *set_of_path(const char *path)
{
    char name[64];
    const char *slash = strrchr(path, '/');
    snprintf(name, sizeof(name), "%s", slash != NULL ? slash + 1 : path);
    char *end = strstr(name, ".jsonl");
    if (end != NULL)
        *end = '\0';
    size_t len = strlen(name);
    if (len > 2 && strcmp(name + len - 2, "_e") == 0)
        name[len - 2] = '\0';
    return eval_longbench_find(name);
}

/* A text or a list of texts. */
static bool add_texts(const json_t *value, struct eval_strings *out)
{
    if (json_is_string(value))
        eval_strings_add(out, json_string_value(value));
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        if (!json_is_string(one))
            return false;
        eval_strings_add(out, json_string_value(one));
    }
    return true;
}

static pith_status read_item(struct longbench_run *r, const json_t *json, int32_t line,
                             struct item *it, pith_error *err)
{
    const json_t *context = json_object_get(json, "context"),
                 *input = json_object_get(json, "input");
    const json_t *length = json_object_get(json, "length"), *set = json_object_get(json, "dataset");
    if (!json_is_string(context) || !json_is_string(input))
        return eval_fail(err, PITH_FORMAT, "longbench: line %d: context and input are no texts",
                         (int)line);
    if (r->by_line && json_is_string(set)) {
        const struct longbench_set *own = eval_longbench_find(json_string_value(set));
        if (r->set != NULL && own != r->set)
            return eval_fail(err, PITH_FORMAT,
                             "longbench: line %d is of \"%.40s\", and earlier ones of %s",
                             (int)line, json_string_value(set), r->set->name);
        r->set = own;
    }
    if (r->set == NULL)
        return eval_fail(err, PITH_INVALID,
                         "longbench: line %d names no data set of the benchmark; name it with "
                         "--dataset",
                         (int)line);
    if (!add_texts(json_object_get(json, "answers"), &it->truths) || it->truths.n == 0 ||
        !add_texts(json_object_get(json, "all_classes"), &it->classes))
        return eval_fail(err, PITH_FORMAT,
                         "longbench: line %d: answers and all_classes are lists of texts",
                         (int)line);
    if (r->set->metric == LONGBENCH_CLASS && it->classes.n == 0)
        return eval_fail(err, PITH_FORMAT,
                         "longbench: line %d: all_classes is missing, by which %s is scored",
                         (int)line, r->set->name);
    if (json_is_integer(length) && json_integer_value(length) < 0)
        return eval_fail(err, PITH_FORMAT, "longbench: line %d: length %lld is negative", (int)line,
                         (long long)json_integer_value(length));
    if (length != NULL && !json_is_null(length) && !json_is_integer(length))
        return eval_fail(err, PITH_FORMAT, "longbench: line %d: length is no whole number",
                         (int)line);
    it->length = json_is_integer(length) ? json_integer_value(length) : UNKNOWN_LENGTH;
    eval_longbench_prompt(r->set, json_string_value(context), json_string_value(input),
                          &it->prompt.text);
    if (it->truths.failed || it->classes.failed)
        return no_memory(err);
    return eval_prompt_check(&it->prompt, err);
}

static pith_status add_item(void *user, const json_t *json, int32_t line, pith_error *err)
{
    struct longbench_run *r = user;
    if (r->params->n_item > 0 && r->n_item == r->params->n_item)
        return PITH_OK;
    struct item *grown = eval_lines_grow(r->items, r->n_item, &r->cap_item, sizeof(*grown));
    if (grown == NULL)
        return no_memory(err);
    r->items = grown;
    r->items[r->n_item++] = (struct item){0};
    return read_item(r, json, line, &r->items[r->n_item - 1], err);
}

static pith_status open_file(struct longbench_run *r, pith_error *err)
{
    const struct eval_longbench_params *p = r->params;
    char *text = NULL;
    size_t len = 0;
    r->set = p->dataset != NULL ? eval_longbench_find(p->dataset) : set_of_path(p->path);
    r->by_line = r->set == NULL;
    if (p->dataset != NULL && r->set == NULL)
        return eval_fail(err, PITH_INVALID,
                         "longbench: \"%.60s\" is not a data set of the benchmark", p->dataset);
    pith_status status = eval_read_file(p->path, &text, &len, err);
    if (status == PITH_OK)
        status = eval_lines_read(text, len, "longbench", add_item, r, err);
    free(text);
    if (status == PITH_OK && r->set->metric == LONGBENCH_NONE)
        return eval_fail(err, PITH_UNSUPPORTED,
                         "longbench: %s is scored by words of Chinese, which Pith cannot part",
                         r->set->name);
    return status;
}

/* ---- prompts ---- */

/* Of a longer prompt its first and its last half of n_most tokens, as the authors cut them. */
static pith_status cut_middle(struct longbench_run *r, struct item *it, int32_t n_most,
                              pith_error *err)
{
    struct eval_text *text = &it->prompt.text;
    struct eval_text cut = {0};
    int32_t *ids = NULL, n = 0, half = n_most / 2;
    pith_status status =
        eval_tokenize(r->setup.model, text->data, text->len, PITH_TOKENIZE_BOS, &ids, &n, err);
    for (int i = 0; i < 2 && status == PITH_OK && n > n_most; i++) {
        const int32_t *from = i == 0 ? ids : ids + n - half;
        size_t len = 0;
        status = pith_detokenize(r->setup.model, from, half, false, NULL, 0, &len, err);
        char *part = status == PITH_RANGE || status == PITH_OK ? malloc(len + 1) : NULL;
        if (part != NULL)
            status = pith_detokenize(r->setup.model, from, half, false, part, len, &len, err);
        else if (status == PITH_OK || status == PITH_RANGE)
            status = no_memory(err);
        if (status == PITH_OK)
            eval_text_add_n(&cut, part, len);
        free(part);
    }
    if (status == PITH_OK && n > n_most) {
        eval_text_free(text);
        *text = cut;
        r->n_cut++;
        if (cut.failed)
            status = no_memory(err);
    } else {
        eval_text_free(&cut);
    }
    free(ids);
    return status;
}

static pith_status make_prompts(struct longbench_run *r, int32_t *longest, pith_error *err)
{
    static const char *const stop[] = {"\n"};
    struct eval_counter counter = eval_counter_of(&r->setup);
    pith_model_info info;
    int32_t n_template = 0, n_most = r->params->n_length;
    pith_status status = counter.count(counter.user, "", NULL, &n_template, err);
    pith_model_get_info(r->setup.model, &info);
    if (n_most == 0)
        n_most = info.n_ctx_train - r->n_predict - n_template;
    if (status == PITH_OK && n_most < 2)
        return eval_fail(err, PITH_INVALID, "longbench: %d tokens hold no prompt", (int)n_most);
    r->asked = calloc((size_t)r->n_item, sizeof(*r->asked));
    if (r->asked == NULL)
        return no_memory(err);
    for (int32_t i = 0; i < r->n_item && status == PITH_OK; i++) {
        struct eval_asked *a = &r->asked[i];
        struct item *it = &r->items[i];
        int32_t n = 0;
        status = cut_middle(r, it, n_most, err);
        if (status == PITH_OK)
            status = counter.count(counter.user, it->prompt.text.data, NULL, &n, err);
        *longest = n > *longest ? n : *longest;
        *a = (struct eval_asked){.prompt = &it->prompt,
                                 .n_predict = r->n_predict,
                                 .stop = stop,
                                 .n_stop = r->set->one_line ? 1 : 0};
        pith_sample_params_default(&a->sample);
        a->sample.temperature = 0.0f;
    }
    return status;
}

/* ---- scores ---- */

/* The best score of the truths. */
static pith_status judge(const struct longbench_run *r, struct item *it, char *answer,
                         pith_error *err)
{
    pith_status status = PITH_OK;
    if (r->set->first_line) {
        answer += strspn(answer, "\n");
        answer[strcspn(answer, "\n")] = '\0';
    }
    for (int32_t i = 0; i < it->truths.n && status == PITH_OK; i++) {
        double score = 0.0;
        status = eval_longbench_score(r->set->metric, answer, it->truths.at[i], &it->classes,
                                      &score, err);
        it->score = score > it->score ? score : it->score;
    }
    return status;
}

/* The benchmark's classes of lengths. */
static const struct {
    const char *name;
    int64_t least, end;
} lengths[] = {
    {"0-4k", 0, 4000}, {"4-8k", 4000, 8000}, {"8k+", 8000, INT64_MAX}, {"?", UNKNOWN_LENGTH, 0}};

static pith_status add_row(struct longbench_run *r, size_t k, pith_error *err)
{
    json_t *texts = r->setup.keep_text ? json_array() : NULL;
    double sum = 0.0;
    int32_t n = 0;
    bool ok = !r->setup.keep_text || texts != NULL;
    for (int32_t i = 0; i < r->n_item; i++) {
        const struct item *it = &r->items[i];
        if (it->length < lengths[k].least || it->length >= lengths[k].end)
            continue;
        n++;
        sum += it->score;
        ok = ok && (texts == NULL ||
                    eval_keep_text(texts, &it->prompt, r->asked[i].answer.text, NULL, it->score));
    }
    r->sum += sum;
    struct eval_interval in = eval_wilson(sum, n);
    json_t *row = n > 0 && ok ? json_pack("{s:s, s:i, s:f, s:f, s:f, s:o*}", "length",
                                          lengths[k].name, "n", (int)n, "score", sum / n, "low",
                                          in.low, "high", in.high, "texts", json_incref(texts))
                              : NULL;
    json_decref(texts);
    if (n > 0 && (row == NULL || json_array_append_new(r->rows, row) != 0))
        return no_memory(err);
    return PITH_OK;
}

static pith_status score_all(struct longbench_run *r, pith_error *err)
{
    pith_status status = PITH_OK;
    for (int32_t i = 0; i < r->n_item && status == PITH_OK; i++) {
        char *copy = eval_copy(eval_visible(r->asked[i].answer.text));
        status = copy != NULL ? judge(r, &r->items[i], copy, err) : no_memory(err);
        free(copy);
    }
    for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]) && status == PITH_OK; k++)
        status = add_row(r, k, err);
    return status;
}

static json_t *settings_of(const struct longbench_run *r)
{
    const struct eval_longbench_params *p = r->params;
    return json_pack("{s:o, s:s, s:i, s:i, s:i, s:i, s:b}", "file", eval_json_text(p->path),
                     "dataset", r->set->name, "items", (int)r->n_item, "n_ctx", (int)p->n_length,
                     "answer_tokens", (int)r->n_predict, "parallel", (int)p->n_parallel, "chat",
                     (int)r->setup.chat);
}

static void free_run(struct longbench_run *r)
{
    for (int32_t i = 0; i < r->n_item; i++) {
        if (r->asked != NULL)
            eval_answer_free(&r->asked[i].answer);
        eval_prompt_free(&r->items[i].prompt);
        eval_strings_free(&r->items[i].truths);
        eval_strings_free(&r->items[i].classes);
    }
    free(r->asked);
    free(r->items);
    json_decref(r->rows);
    eval_run_free(r->run);
}

pith_status eval_longbench(const struct eval_setup *setup,
                           const struct eval_longbench_params *params, json_t **result,
                           pith_error *err)
{
    struct longbench_run r = {.params = params, .setup = *setup, .rows = json_array()};
    int32_t longest = 0;
    pith_status status = r.rows != NULL ? PITH_OK : no_memory(err);
    if (status == PITH_OK && (params->path == NULL || params->n_parallel < 1))
        status = eval_fail(err, PITH_INVALID,
                           "longbench: a file is needed, and parallel = %d must be positive",
                           (int)params->n_parallel);
    if (status == PITH_OK)
        status = open_file(&r, err);
    if (status == PITH_OK) {
        r.setup.chat = r.setup.chat && !r.set->plain;
        r.n_predict = params->n_predict > 0 ? params->n_predict : r.set->n_predict;
        status = make_prompts(&r, &longest, err);
    }
    if (status == PITH_OK)
        status =
            eval_run_create_many(&r.setup, longest + r.n_predict, params->n_parallel, &r.run, err);
    if (status == PITH_OK)
        status = eval_prompts_ask(r.run, &r.setup, r.asked, r.n_item, params->n_parallel, err);
    if (status == PITH_OK)
        status = score_all(&r, err);
    if (status == PITH_OK)
        status = eval_scored(
            eval_result(r.run, "longbench", r.n_item, settings_of(&r), json_incref(r.rows)),
            eval_wilson(r.sum, r.n_item), result, err);
    if (status == PITH_OK && json_object_set_new(json_object_get(*result, "summary"), "cut_prompts",
                                                 json_integer(r.n_cut)) != 0) {
        json_decref(*result);
        *result = NULL;
        status = no_memory(err);
    }
    free_run(&r);
    return status;
}
