/*
 * request_fields.c - the fields that APIs have in common: numbers and switches by a table, stop
 * strings, log probabilities. It knows no prompt.
 *
 * Invariant: a value is stored only when it is of the right type and in range.
 */
#include "serve/api/request_body.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define BUDGET_TEXT 24 /* of a whole number */

/* ---- numbers ---- */

enum field_type { FIELD_INT, FIELD_MOST, FIELD_SEED, FIELD_FLOAT, FIELD_BOOL, FIELD_NOT };

struct field {
    const char *key;
    enum field_type type; /* MOST: an int of which more is no fault; NOT: a boolean that is stored
                             the other way round */
    size_t offset;        /* in struct serve_request */
    double min;
    double max;
};

/* Of several keys for one field the last that is given counts. The ranges are the command's
   options of the same names. */
#define AT(member) offsetof(struct serve_request, member)
static const struct field fields[] = {
    {"n_predict", FIELD_MOST, AT(params.n_predict), -1, INT32_MAX},
    {"max_tokens", FIELD_MOST, AT(params.n_predict), -1, INT32_MAX},
    {"max_completion_tokens", FIELD_MOST, AT(params.n_predict), -1, INT32_MAX},
    {"max_output_tokens", FIELD_MOST, AT(params.n_predict), -1, INT32_MAX},
    {"temperature", FIELD_FLOAT, AT(params.sample.temperature), 0, 1e6},
    {"top_p", FIELD_FLOAT, AT(params.sample.top_p), 0, 1},
    {"top_k", FIELD_INT, AT(params.sample.top_k), -1, INT32_MAX},
    {"min_p", FIELD_FLOAT, AT(params.sample.min_p), 0, 1},
    {"repeat_penalty", FIELD_FLOAT, AT(params.sample.repeat_penalty), 1e-6, 1e6},
    {"presence_penalty", FIELD_FLOAT, AT(params.sample.presence_penalty), -1e6, 1e6},
    {"frequency_penalty", FIELD_FLOAT, AT(params.sample.frequency_penalty), -1e6, 1e6},
    {"repeat_last_n", FIELD_INT, AT(params.sample.penalty_last_n), -1, 1 << 20},
    {"seed", FIELD_SEED, AT(params.sample.seed), 0, 0},
    {"n", FIELD_INT, AT(n_answer), 1, SERVE_ANSWERS_MAX},
    {"n_cmpl", FIELD_INT, AT(n_answer), 1, SERVE_ANSWERS_MAX},
    {"n_keep", FIELD_INT, AT(cache.n_keep), -1, INT32_MAX},
    {"ignore_eos", FIELD_BOOL, AT(params.ignore_end), 0, 0},
    {"stream", FIELD_BOOL, AT(reply.stream), 0, 0},
    {"echo", FIELD_BOOL, AT(reply.echo), 0, 0},
    {"cache_prompt", FIELD_BOOL, AT(cache.caches), 0, 0},
    {"timings_per_token", FIELD_BOOL, AT(reply.timings_per_token), 0, 0},
    {"return_progress", FIELD_BOOL, AT(reply.return_progress), 0, 0},
    {"return_tokens", FIELD_BOOL, AT(reply.return_tokens), 0, 0},
    {"post_sampling_probs", FIELD_BOOL, AT(reply.after_sampling), 0, 0},
    {"add_generation_prompt", FIELD_NOT, AT(prompts.no_generation_prompt), 0, 0},
    {"continue_final_message", FIELD_BOOL, AT(prompts.continues), 0, 0},
    {"t_max_predict_ms", FIELD_INT, AT(reply.predict_ms), -1, INT32_MAX},
    {"timeout", FIELD_FLOAT, AT(timeout_s), 0, 1e6},
    {"priority", FIELD_INT, AT(priority), -INT32_MAX, INT32_MAX},
};
#undef AT

static bool in_range(struct serve_reader *rd, const struct field *f, const json_t *value)
{
    char buf[SERVE_SHOW];
    double x = json_number_value(value);
    if (x >= f->min && x <= f->max)
        return true;
    SERVE_FAULT(rd, f->key, "%s: %s is not between %.10g and %.10g", f->key,
                request_show(rd, value, buf), f->min, f->max);
    return false;
}

static void read_field(struct serve_reader *rd, const struct field *f, const json_t *value)
{
    void *at = (char *)rd->r + f->offset;
    char buf[SERVE_SHOW];
    int64_t whole = 0;
    int32_t most;
    switch (f->type) {
    case FIELD_MOST:
        if (!request_ceiling(value, &most))
            request_wrong_type(rd, f->key, value, "a whole number");
        else if (most == INT32_MAX || in_range(rd, f, value))
            *(int32_t *)at = most;
        break;
    case FIELD_INT:
        if (!request_whole(value, &whole) && !request_huge(value))
            request_wrong_type(rd, f->key, value, "a whole number");
        else if (in_range(rd, f, value)) /* no huge one is */
            *(int32_t *)at = (int32_t)whole;
        break;
    case FIELD_SEED: /* any whole number of 64 bits; -1 is none */
        if (json_is_integer(value) && json_integer_value(value) == -1)
            *(uint64_t *)at = rd->setup->any_seed;
        else if (!request_seed(rd, value, at))
            SERVE_FAULT(rd, f->key, "%s: %s is not a whole number of 64 bits", f->key,
                        request_show(rd, value, buf));
        break;
    case FIELD_FLOAT:
        if (!json_is_number(value))
            request_wrong_type(rd, f->key, value, "a number");
        else if (in_range(rd, f, value))
            *(float *)at = (float)json_number_value(value);
        break;
    case FIELD_BOOL:
    case FIELD_NOT:
        if (!json_is_boolean(value))
            request_wrong_type(rd, f->key, value, "true or false");
        else
            *(bool *)at = json_is_true(value) == (f->type == FIELD_BOOL);
        break;
    }
}

static void read_numbers(struct serve_reader *rd, const json_t *body)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        const json_t *value = request_get(body, fields[i].key);
        if (value != NULL)
            read_field(rd, &fields[i], value);
    }
    if (rd->r->params.sample.top_k < 0) /* others' word for "all" */
        rd->r->params.sample.top_k = 0;
}

/* A chat's logprobs are a boolean with a number beside, a text's the number, and llama-server's own
   completion has a number of another name. */
static void read_logprobs(struct serve_reader *rd, const json_t *body)
{
    struct field top = {"top_logprobs", FIELD_INT,
                        offsetof(struct serve_request, reply.top_logprobs), 0, SERVE_TOP_MAX};
    const json_t *logprobs = request_get(body, "logprobs");
    const json_t *number = request_get(body, "top_logprobs");
    struct serve_request *r = rd->r;
    r->reply.top_logprobs = -1;
    if (r->api == SERVE_COMPLETION || r->api == SERVE_INFILL) {
        top.key = "n_probs";
        number = request_get(body, "n_probs");
    } else if (r->api == SERVE_TEXT) {
        top.key = "logprobs";
        number = logprobs;
    } else if (logprobs != NULL && !json_is_boolean(logprobs)) {
        request_wrong_type(rd, "logprobs", logprobs, "true or false");
    } else if (json_is_true(logprobs)) {
        r->reply.top_logprobs = 0;
    } else if (number != NULL && !(json_is_integer(number) && json_integer_value(number) == 0)) {
        SERVE_FAULT(rd, "top_logprobs", "top_logprobs: without \"logprobs\": true there are none");
        return;
    } else {
        return;
    }
    if (number != NULL)
        read_field(rd, &top, number);
    if (r->reply.top_logprobs == 0 && (r->api == SERVE_COMPLETION || r->api == SERVE_INFILL))
        r->reply.top_logprobs = -1;
}

/* ---- lists ---- */

static void read_stop(struct serve_reader *rd, const json_t *stop)
{
    size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    if (stop == NULL)
        return;
    if (!json_is_string(stop) && !json_is_array(stop)) {
        request_wrong_type(rd, "stop", stop, "a string or an array of strings");
        return;
    }
    if (n > SERVE_STOPS_MAX) {
        SERVE_FAULT(rd, "stop", "stop: %zu strings are more than %d", n, SERVE_STOPS_MAX);
        return;
    }
    const char **list = request_alloc(rd, n + 1, sizeof(*list));
    size_t *len = request_alloc(rd, n + 1, sizeof(*len));
    for (size_t i = 0; list != NULL && len != NULL && i < n; i++) {
        const json_t *one = json_is_array(stop) ? json_array_get(stop, i) : stop;
        if (!request_text(rd, "stop", "stop", one))
            return;
        list[i] = json_string_value(one);
        len[i] = json_string_length(one);
        if (len[i] == 0)
            SERVE_FAULT(rd, "stop", "stop: \"\" would end everything");
    }
    rd->r->params.stop = list;
    rd->r->params.stop_len = len;
    rd->r->params.n_stop = (int32_t)n;
}

/* Paths that the last object is to have; none: everything. */
static void read_response_fields(struct serve_reader *rd, const json_t *paths)
{
    size_t n = json_array_size(paths);
    char where[48];
    if (paths != NULL && !json_is_array(paths))
        request_wrong_type(rd, "response_fields", paths, "an array of strings");
    else if (n > SERVE_FIELDS_MAX)
        SERVE_FAULT(rd, "response_fields", "response_fields: %zu are more than %d", n,
                    SERVE_FIELDS_MAX);
    else if (n > 0 && rd->r->api != SERVE_COMPLETION && rd->r->api != SERVE_INFILL)
        SERVE_FAULT(rd, "response_fields",
                    "response_fields: is for /completion and /infill only, %zu are given", n);
    for (size_t i = 0; i < n && !request_is_bad(rd); i++) {
        snprintf(where, sizeof(where), "response_fields[%zu]", i);
        request_string(rd, "response_fields", where, json_array_get(paths, i));
    }
    rd->r->reply.response_fields = n > 0 ? paths : NULL;
}

/* ---- where it runs ---- */

static void read_place(struct serve_reader *rd, const json_t *body)
{
    char buf[SERVE_SHOW];
    const json_t *slot = request_get(body, "id_slot"), *salt = request_get(body, "cache_salt");
    int64_t id;
    bool huge = request_huge(slot);
    if (slot != NULL && !huge && !request_whole(slot, &id))
        request_wrong_type(rd, "id_slot", slot, "a whole number");
    else if (slot != NULL && (huge || id < -1 || (rd->setup->n_slot > 0 && id >= PITH_SLOT_MAX)))
        SERVE_FAULT(rd, "id_slot", "id_slot: %s is not between -1 and %d",
                    request_show(rd, slot, buf), PITH_SLOT_MAX - 1);
    else if (slot != NULL && id < rd->setup->n_slot) /* one above is found by its tokens, as any */
        rd->r->cache.slot = (int32_t)id;
    if (rd->r->cache.slot >= 0 && rd->r->n_answer > 1)
        SERVE_FAULT(rd, "n", "n: %d answers do not fit in one slot, id_slot %d", rd->r->n_answer,
                    rd->r->cache.slot);
    if (salt != NULL && request_text(rd, "cache_salt", "cache_salt", salt))
        rd->r->cache.salt = serve_name_hash(json_string_value(salt), json_string_length(salt));
}

/* A budget of its own: a number of entries, or a text that the engine reads. */
static void read_budget(struct serve_reader *rd, const json_t *value)
{
    char *text;
    int64_t n;
    if (json_is_string(value)) {
        rd->r->cache.budget = request_string(rd, "pith.budget", "pith.budget", value);
    } else if (!request_whole(value, &n)) {
        request_wrong_type(rd, "pith.budget", value, "a number of entries or a text");
    } else if ((text = request_alloc(rd, BUDGET_TEXT, 1)) != NULL) {
        snprintf(text, BUDGET_TEXT, "%lld", (long long)n);
        rd->r->cache.budget = text;
    }
}

/* Fields that only Pith has. */
static void read_pith(struct serve_reader *rd, const json_t *own)
{
    const char *key;
    const json_t *value;
    if (own != NULL && !json_is_object(own))
        request_wrong_type(rd, "pith", own, "an object");
    json_object_foreach((json_t *)own, key, value)
    {
        if (strcmp(key, "budget") != 0)
            SERVE_FAULT(rd, "pith", "pith: \"%.32s\" is none of its fields (budget)", key);
        else if (!json_is_null(value))
            read_budget(rd, value);
    }
}

static void read_stream(struct serve_reader *rd, const json_t *body)
{
    const json_t *options = request_get(body, "stream_options");
    const json_t *usage = request_get(options, "include_usage");
    if (rd->r->reply.stream && rd->setup->no_stream)
        SERVE_FAULT(rd, "stream", "stream: true is not supported in a batch");
    if (options != NULL && !json_is_object(options))
        request_wrong_type(rd, "stream_options", options, "an object");
    else if (usage != NULL && !json_is_boolean(usage))
        request_wrong_type(rd, "stream_options.include_usage", usage, "true or false");
    else
        rd->r->reply.include_usage = json_is_true(usage);
}

void request_read_fields(struct serve_reader *rd, const json_t *body)
{
    const json_t *model = request_get(body, "model");
    if (model != NULL)
        rd->r->model = request_string(rd, "model", "model", model);
    read_numbers(rd, body);
    read_logprobs(rd, body);
    read_stream(rd, body);
    read_place(rd, body);
    read_pith(rd, request_get(body, "pith"));
    request_read_samplers(rd, request_get(body, "samplers"));
    request_refuse_unsupported(rd, body);
    read_stop(rd, request_get(body, "stop"));
    request_read_biases(rd, request_get(body, "logit_bias"));
    read_response_fields(rd, request_get(body, "response_fields"));
}
