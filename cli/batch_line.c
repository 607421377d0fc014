/*
 * batch_line.c - from a line of JSON to a request. It knows no model: ids of tokens and the numbers
 * that only a model makes right or wrong are judged where the request is submitted.
 *
 * Invariant: a line is read the same whatever stands in other lines. Unknown keys are passed over,
 * as every server does; known ones of another type, or that ask for what nobody here does, are not.
 */
#include "batch_line.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TYPE_INVALID "invalid_request_error"
#define SHOWN_CHARS 40

/* ---- memory ---- */

/* Blocks of a line, so that they are freed together. */
struct block {
    struct block *next;
    max_align_t data[];
};

static void *line_alloc(struct batch_line *line, size_t n, size_t size)
{
    if (n > (SIZE_MAX / 2 - sizeof(struct block)) / size)
        return NULL;
    struct block *block = calloc(1, sizeof(*block) + n * size);
    if (block == NULL)
        return NULL;
    block->next = line->block;
    line->block = block;
    return block->data;
}

void batch_line_free(struct batch_line *line)
{
    struct block *next;
    for (struct block *block = line->block; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    json_decref(line->json);
    *line = (struct batch_line){0};
}

/* ---- sentences ---- */

const char *batch_show_text(const char *text, size_t len, char *buf)
{
    size_t n = len < SHOWN_CHARS ? len : SHOWN_CHARS;
    while (n > 0 && n < len && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--; /* not within a character */
    for (size_t i = 0; i < n; i++)
        buf[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? ' ' : text[i];
    snprintf(buf + n, BATCH_SHOW - n, "%s", n < len ? "..." : "");
    return buf;
}

/* A value as a sentence names it. */
static const char *show(const json_t *value, char *buf)
{
    char text[BATCH_SHOW];
    switch (json_typeof(value)) {
    case JSON_STRING:
        batch_show_text(json_string_value(value), json_string_length(value), text);
        snprintf(buf, BATCH_SHOW, "\"%.*s\"", BATCH_SHOW - 3, text);
        break;
    case JSON_INTEGER:
        snprintf(buf, BATCH_SHOW, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        snprintf(buf, BATCH_SHOW, "%.17g", json_real_value(value));
        break;
    case JSON_ARRAY:
        snprintf(buf, BATCH_SHOW, "an array of %zu", json_array_size(value));
        break;
    case JSON_OBJECT:
        snprintf(buf, BATCH_SHOW, "an object");
        break;
    default:
        snprintf(buf, BATCH_SHOW, "%s",
                 json_is_true(value)    ? "true"
                 : json_is_false(value) ? "false"
                                        : "null");
    }
    return buf;
}

void batch_line_fault(struct batch_line *line, int code, const char *type, const char *param,
                      const char *fmt, ...)
{
    va_list args;
    if (line->fault.code != 0) /* the first one is told */
        return;
    line->fault = (struct batch_fault){.code = code, .type = type, .param = param};
    va_start(args, fmt);
    vsnprintf(line->fault.message, sizeof(line->fault.message), fmt, args);
    va_end(args);
}

#define FAULT(line, param, ...) batch_line_fault(line, 400, TYPE_INVALID, param, __VA_ARGS__)

static void wrong_type(struct batch_line *line, const char *key, const json_t *value,
                       const char *expected)
{
    char buf[BATCH_SHOW];
    FAULT(line, key, "%s: %s is not %s", key, show(value, buf), expected);
}

static void missing(struct batch_line *line, const char *param, const char *where)
{
    FAULT(line, param, "%s: is missing", where);
}

/* The value of a key; NULL where there is none or null. */
static const json_t *get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* ---- numbers ---- */

enum field_type { FIELD_INT, FIELD_SEED, FIELD_FLOAT, FIELD_BOOL };

struct field {
    const char *key;
    enum field_type type;
    size_t offset; /* in struct batch_line */
    double min;
    double max;
};

/* Of several keys for one field the last that is given counts. The ranges are those of the options
   of the same names. */
#define AT(member) offsetof(struct batch_line, member)
static const struct field fields[] = {
    {"n_predict", FIELD_INT, AT(params.n_predict), -1, INT32_MAX},
    {"max_tokens", FIELD_INT, AT(params.n_predict), -1, INT32_MAX},
    {"max_completion_tokens", FIELD_INT, AT(params.n_predict), -1, INT32_MAX},
    {"temperature", FIELD_FLOAT, AT(params.sample.temperature), 0, 1e6},
    {"top_p", FIELD_FLOAT, AT(params.sample.top_p), 0, 1},
    {"top_k", FIELD_INT, AT(params.sample.top_k), -1, INT32_MAX},
    {"min_p", FIELD_FLOAT, AT(params.sample.min_p), 0, 1},
    {"repeat_penalty", FIELD_FLOAT, AT(params.sample.repeat_penalty), 1e-6, 1e6},
    {"presence_penalty", FIELD_FLOAT, AT(params.sample.presence_penalty), -1e6, 1e6},
    {"frequency_penalty", FIELD_FLOAT, AT(params.sample.frequency_penalty), -1e6, 1e6},
    {"repeat_last_n", FIELD_INT, AT(params.sample.penalty_last_n), -1, 1 << 20},
    {"seed", FIELD_SEED, AT(params.sample.seed), 0, 0},
    {"n", FIELD_INT, AT(n_answer), 1, BATCH_ANSWERS_MAX},
    {"ignore_eos", FIELD_BOOL, AT(params.ignore_end), 0, 0},
};
#undef AT

/* JSON has one kind of numbers: 12.0 is as whole as 12. */
static bool as_whole(const json_t *value, int64_t *out)
{
    double x = json_number_value(value);
    if (!json_is_number(value) || (json_is_real(value) && (floor(x) != x || fabs(x) > 0x1p53)))
        return false;
    *out = json_is_real(value) ? (int64_t)x : json_integer_value(value);
    return true;
}

static bool in_range(struct batch_line *line, const struct field *f, const json_t *value)
{
    char buf[BATCH_SHOW];
    double x = json_number_value(value);
    if (x >= f->min && x <= f->max)
        return true;
    FAULT(line, f->key, "%s: %s is not between %.10g and %.10g", f->key, show(value, buf), f->min,
          f->max);
    return false;
}

static void read_field(struct batch_line *line, const struct field *f, const json_t *value)
{
    void *at = (char *)line + f->offset;
    int64_t whole;
    switch (f->type) {
    case FIELD_INT:
        if (!as_whole(value, &whole))
            wrong_type(line, f->key, value, "a whole number");
        else if (in_range(line, f, value))
            *(int32_t *)at = (int32_t)whole;
        break;
    case FIELD_SEED: /* any whole number: a negative one is as good as another */
        if (!as_whole(value, &whole))
            wrong_type(line, f->key, value, "a whole number");
        else
            *(uint64_t *)at = (uint64_t)whole;
        break;
    case FIELD_FLOAT:
        if (!json_is_number(value))
            wrong_type(line, f->key, value, "a number");
        else if (in_range(line, f, value))
            *(float *)at = (float)json_number_value(value);
        break;
    case FIELD_BOOL:
        if (!json_is_boolean(value))
            wrong_type(line, f->key, value, "true or false");
        else
            *(bool *)at = json_is_true(value);
        break;
    }
}

static void read_fields(struct batch_line *line, const json_t *body)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        const json_t *value = get(body, fields[i].key);
        if (value != NULL)
            read_field(line, &fields[i], value);
    }
    if (line->params.sample.top_k < 0) /* others' word for "all" */
        line->params.sample.top_k = 0;
}

/* A chat's logprobs are a boolean with a number beside, a text's the number. */
static void read_logprobs(struct batch_line *line, const json_t *body)
{
    struct field top = {"top_logprobs", FIELD_INT, offsetof(struct batch_line, top_logprobs), 0,
                        BATCH_TOP_MAX};
    const json_t *logprobs = get(body, "logprobs"), *number = get(body, "top_logprobs");
    line->top_logprobs = -1;
    if (line->endpoint == BATCH_TEXT) {
        top.key = "logprobs";
        number = logprobs;
    } else if (logprobs != NULL && !json_is_boolean(logprobs)) {
        wrong_type(line, "logprobs", logprobs, "true or false");
    } else if (json_is_true(logprobs)) {
        line->top_logprobs = 0;
    } else if (number != NULL) {
        FAULT(line, "top_logprobs", "top_logprobs: without \"logprobs\": true there are none");
        return;
    }
    if (number != NULL)
        read_field(line, &top, number);
}

/* ---- lists ---- */

/* A string without a zero byte, which would end it. */
static const char *read_string(struct batch_line *line, const char *param, const char *where,
                               const json_t *value)
{
    char buf[BATCH_SHOW];
    if (!json_is_string(value))
        FAULT(line, param, "%s: %s is not a string", where, show(value, buf));
    else if (strlen(json_string_value(value)) != json_string_length(value))
        FAULT(line, param, "%s: %s has a zero byte", where, show(value, buf));
    else
        return json_string_value(value);
    return NULL;
}

static bool read_stop(struct batch_line *line, const json_t *stop)
{
    size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    if (stop == NULL)
        return true;
    if (!json_is_string(stop) && !json_is_array(stop)) {
        wrong_type(line, "stop", stop, "a string or an array of strings");
        return true;
    }
    if (n > BATCH_STOPS_MAX) {
        FAULT(line, "stop", "stop: %zu strings are more than %d", n, BATCH_STOPS_MAX);
        return true;
    }
    const char **list = line_alloc(line, n + 1, sizeof(*list));
    if (list == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        list[i] =
            read_string(line, "stop", "stop", json_is_array(stop) ? json_array_get(stop, i) : stop);
        if (list[i] == NULL)
            return true;
        if (list[i][0] == '\0')
            FAULT(line, "stop", "stop: \"\" would end everything");
    }
    line->params.stop = list;
    line->params.n_stop = (int32_t)n;
    return true;
}

/* A bias: a number; false bans the token. */
static void read_bias(struct batch_line *line, long long id, const json_t *value,
                      pith_logit_bias *out)
{
    char buf[BATCH_SHOW];
    if (id < 0 || id > INT32_MAX)
        FAULT(line, "logit_bias", "logit_bias: %lld is not a token id", id);
    else if (json_is_false(value))
        *out = (pith_logit_bias){(int32_t)id, -INFINITY};
    else if (!json_is_number(value) || fabs(json_number_value(value)) > 1e6)
        FAULT(line, "logit_bias", "logit_bias: %s, for token %lld, is no number up to 1000000",
              show(value, buf), id);
    else
        *out = (pith_logit_bias){(int32_t)id, (float)json_number_value(value)};
}

static void read_bias_map(struct batch_line *line, const json_t *map, pith_logit_bias *list)
{
    char buf[BATCH_SHOW];
    int32_t n = 0;
    for (void *it = json_object_iter((json_t *)map); it != NULL;
         it = json_object_iter_next((json_t *)map, it)) {
        const char *key = json_object_iter_key(it);
        char *end;
        errno = 0;
        long long id = strtoll(key, &end, 10);
        if (end == key || *end != '\0' || errno != 0) {
            FAULT(line, "logit_bias", "logit_bias: \"%s\" is not a token id",
                  batch_show_text(key, strlen(key), buf));
            return;
        }
        read_bias(line, id, json_object_iter_value(it), &list[n++]);
    }
}

static void read_bias_pairs(struct batch_line *line, const json_t *pairs, pith_logit_bias *list)
{
    char buf[BATCH_SHOW];
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const json_t *pair = json_array_get(pairs, i);
        int64_t id;
        if (json_array_size(pair) != 2 || !as_whole(json_array_get(pair, 0), &id)) {
            FAULT(line, "logit_bias", "logit_bias[%zu]: %s is not a pair of token id and bias", i,
                  show(pair, buf));
            return;
        }
        read_bias(line, id, json_array_get(pair, 1), &list[i]);
    }
}

static bool read_biases(struct batch_line *line, const json_t *bias)
{
    size_t n = json_is_array(bias) ? json_array_size(bias) : json_object_size(bias);
    if (bias == NULL)
        return true;
    if (!json_is_array(bias) && !json_is_object(bias)) {
        wrong_type(line, "logit_bias", bias, "an object or an array of pairs");
        return true;
    }
    if (n > INT32_MAX)
        return false;
    pith_logit_bias *list = line_alloc(line, n + 1, sizeof(*list));
    if (list == NULL)
        return false;
    if (json_is_object(bias))
        read_bias_map(line, bias, list);
    else
        read_bias_pairs(line, bias, list);
    line->params.sample.bias = list;
    line->params.sample.n_bias = (int32_t)n;
    return true;
}

/* ---- messages ---- */

/* The texts of a content that is an array of parts, one after the other; NULL: refused, or no
   memory, which then is no fault. */
static const char *join_parts(struct batch_line *line, size_t i, const json_t *parts)
{
    size_t len = 0;
    char where[64], buf[BATCH_SHOW];
    for (size_t k = 0; k < json_array_size(parts); k++) {
        const json_t *part = json_array_get(parts, k), *type = json_object_get(part, "type");
        snprintf(where, sizeof(where), "messages[%zu].content[%zu].type", i, k);
        if (type == NULL)
            missing(line, "messages", where);
        else if (!json_is_string(type) || strcmp(json_string_value(type), "text") != 0)
            FAULT(line, "messages", "%s: %s is not \"text\"", where, show(type, buf));
        const json_t *text = json_object_get(part, "text");
        snprintf(where, sizeof(where), "messages[%zu].content[%zu].text", i, k);
        if (text == NULL)
            missing(line, "messages", where);
        if (line->fault.code != 0 || read_string(line, "messages", where, text) == NULL)
            return NULL;
        len += json_string_length(text);
    }
    char *joined = line_alloc(line, len + 1, 1), *at = joined;
    for (size_t k = 0; joined != NULL && k < json_array_size(parts); k++) {
        const json_t *text = json_object_get(json_array_get(parts, k), "text");
        memcpy(at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    return joined;
}

static const char *read_role(struct batch_line *line, size_t i, const json_t *role)
{
    static const char *const roles[][2] = {{"system", "system"},
                                           {"developer", "system"},
                                           {"user", "user"},
                                           {"assistant", "assistant"}};
    char where[64], buf[BATCH_SHOW];
    snprintf(where, sizeof(where), "messages[%zu].role", i);
    for (size_t r = 0; json_is_string(role) && r < sizeof(roles) / sizeof(roles[0]); r++)
        if (strcmp(json_string_value(role), roles[r][0]) == 0)
            return roles[r][1];
    if (role == NULL)
        missing(line, "messages", where);
    else
        FAULT(line, "messages", "%s: %s is not one of system, developer, user and assistant", where,
              show(role, buf));
    return NULL;
}

static bool read_messages(struct batch_line *line, const json_t *messages)
{
    char where[64];
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        if (messages == NULL)
            missing(line, "messages", "messages");
        else
            wrong_type(line, "messages", messages, "an array of messages");
        return true;
    }
    size_t n = json_array_size(messages);
    line->message = line_alloc(line, n, sizeof(*line->message));
    if (line->message == NULL || n > INT32_MAX)
        return false;
    for (size_t i = 0; i < n && line->fault.code == 0; i++) {
        const json_t *m = json_array_get(messages, i), *content = get(m, "content");
        snprintf(where, sizeof(where), "messages[%zu].content", i);
        line->message[i].role = read_role(line, i, get(m, "role"));
        if (content == NULL)
            missing(line, "messages", where);
        else if (json_is_array(content))
            line->message[i].content = join_parts(line, i, content);
        else
            line->message[i].content = read_string(line, "messages", where, content);
        if (line->message[i].content == NULL && line->fault.code == 0)
            return false;
    }
    line->n_message = (int32_t)n;
    return true;
}

/* ---- prompts ---- */

/* Ids of one prompt. */
static bool read_ids(struct batch_line *line, const json_t *ids, struct batch_prompt *out)
{
    char buf[BATCH_SHOW];
    size_t n = json_array_size(ids);
    if (n == 0)
        FAULT(line, "prompt", "prompt: a prompt of no tokens");
    out->ids = line_alloc(line, n + 1, sizeof(*out->ids));
    if (out->ids == NULL || n > INT32_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        int64_t value;
        if (!as_whole(id, &value) || value < 0 || value > INT32_MAX) {
            FAULT(line, "prompt", "prompt: %s is not a token id", show(id, buf));
            return true;
        }
        out->ids[i] = (int32_t)value;
    }
    out->n_id = (int32_t)n;
    return true;
}

static bool read_prompt(struct batch_line *line, const json_t *value, struct batch_prompt *out)
{
    if (json_is_array(value))
        return read_ids(line, value, out);
    if (!json_is_string(value)) {
        wrong_type(line, "prompt", value, "a string or an array of token ids");
        return true;
    }
    out->text = json_string_value(value);
    out->len = json_string_length(value);
    return true;
}

/* A string, ids, or an array of either; an array that begins with a number is one of ids. */
static bool read_prompts(struct batch_line *line, const json_t *prompt)
{
    if (prompt == NULL) {
        missing(line, "prompt", "prompt");
        return true;
    }
    bool one = !json_is_array(prompt) || json_is_number(json_array_get(prompt, 0));
    size_t n = one ? 1 : json_array_size(prompt);
    if (n < 1 || n > BATCH_ANSWERS_MAX) {
        FAULT(line, "prompt", "prompt: %zu prompts are not between 1 and %d", n, BATCH_ANSWERS_MAX);
        return true;
    }
    line->prompt = line_alloc(line, n, sizeof(*line->prompt));
    if (line->prompt == NULL)
        return false;
    line->n_prompt = (int32_t)n;
    for (size_t i = 0; i < n && line->fault.code == 0; i++)
        if (!read_prompt(line, one ? prompt : json_array_get(prompt, i), &line->prompt[i]))
            return false;
    return true;
}

/* ---- the body ---- */

/* Keys that ask for another answer than the one that would come: told, not passed over. */
static void refuse_unsupported(struct batch_line *line, const json_t *body)
{
    static const char *const flags[] = {"stream", "echo"};
    static const char *const lists[] = {"tools", "functions"};
    char buf[BATCH_SHOW];
    for (size_t i = 0; i < 2; i++) {
        const json_t *flag = get(body, flags[i]), *list = get(body, lists[i]);
        if (flag != NULL && !json_is_boolean(flag))
            wrong_type(line, flags[i], flag, "true or false");
        else if (json_is_true(flag))
            FAULT(line, flags[i], "%s: true is not supported in a batch", flags[i]);
        if (list != NULL && !json_is_array(list))
            wrong_type(line, lists[i], list, "an array");
        else if (json_array_size(list) > 0)
            FAULT(line, lists[i], "%s: %s is not supported", lists[i], show(list, buf));
    }
    const json_t *suffix = get(body, "suffix"), *best_of = get(body, "best_of");
    int64_t best;
    if (json_string_length(suffix) > 0)
        FAULT(line, "suffix", "suffix: %s is not supported", show(suffix, buf));
    if (best_of != NULL && (!as_whole(best_of, &best) || best != line->n_answer))
        FAULT(line, "best_of", "best_of: %s is not n, which is %d", show(best_of, buf),
              line->n_answer);
    const json_t *format = get(body, "response_format"), *type = get(format, "type");
    if (format != NULL && !json_is_object(format))
        wrong_type(line, "response_format", format, "an object");
    else if (type != NULL &&
             (!json_is_string(type) || strcmp(json_string_value(type), "text") != 0))
        FAULT(line, "response_format", "response_format.type: %s is not \"text\"", show(type, buf));
}

static void read_template(struct batch_line *line, const json_t *kwargs)
{
    const json_t *thinking = get(kwargs, "enable_thinking");
    if (kwargs != NULL && !json_is_object(kwargs))
        wrong_type(line, "chat_template_kwargs", kwargs, "an object");
    else if (thinking != NULL && !json_is_boolean(thinking))
        wrong_type(line, "chat_template_kwargs", thinking, "true or false (enable_thinking)");
    else if (thinking != NULL)
        line->no_thinking = json_is_false(thinking);
}

/* False: no memory. */
static bool read_body(struct batch_line *line, const json_t *body)
{
    const json_t *model = get(body, "model");
    if (!json_is_object(body)) {
        if (body == NULL)
            missing(line, "body", "body");
        else
            wrong_type(line, "body", body, "an object");
        return true;
    }
    if (model != NULL)
        line->model = read_string(line, "model", "model", model);
    read_fields(line, body);
    read_logprobs(line, body);
    refuse_unsupported(line, body);
    read_template(line, get(body, "chat_template_kwargs"));
    if (!read_stop(line, get(body, "stop")) || !read_biases(line, get(body, "logit_bias")))
        return false;
    if (line->endpoint == BATCH_CHAT)
        return read_messages(line, get(body, "messages"));
    if (!read_prompts(line, get(body, "prompt")))
        return false;
    if (line->n_prompt * line->n_answer > BATCH_ANSWERS_MAX)
        FAULT(line, "n", "n: %d answers to each of %d prompts are more than %d", line->n_answer,
              line->n_prompt, BATCH_ANSWERS_MAX);
    return true;
}

/* Where the request goes to. */
static void read_target(struct batch_line *line, const json_t *method, const json_t *url)
{
    static const char *const urls[] = {"/v1/chat/completions", "/v1/completions"};
    char buf[BATCH_SHOW];
    if (method == NULL)
        missing(line, "method", "method");
    else if (!json_is_string(method) || strcmp(json_string_value(method), "POST") != 0)
        batch_line_fault(line, 405, TYPE_INVALID, "method", "method: %s is not \"POST\"",
                         show(method, buf));
    if (url == NULL) {
        missing(line, "url", "url");
        return;
    }
    for (int i = 0; i < 2; i++)
        if (json_is_string(url) && strcmp(json_string_value(url), urls[i]) == 0) {
            line->endpoint = i == 0 ? BATCH_CHAT : BATCH_TEXT;
            return;
        }
    batch_line_fault(line, 404, "not_found_error", "url", "url: %s is not one of %s and %s",
                     show(url, buf), urls[0], urls[1]);
}

/* ---- the line ---- */

static pith_status fail(pith_error *err, pith_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static pith_status fail(pith_error *err, pith_status status, const char *fmt, ...)
{
    va_list args;
    if (err == NULL)
        return status;
    err->status = status;
    va_start(args, fmt);
    vsnprintf(err->message, sizeof(err->message), fmt, args);
    va_end(args);
    for (char *c = err->message; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20) /* of the line, by way of Jansson's words */
            *c = ' ';
    return status;
}

static pith_status read_name(struct batch_line *line, pith_error *err)
{
    char buf[BATCH_SHOW];
    const json_t *id = json_object_get(line->json, "custom_id");
    if (id == NULL)
        return fail(err, PITH_FORMAT, "custom_id: is missing");
    if (!json_is_string(id))
        return fail(err, PITH_FORMAT, "custom_id: %s is not a string", show(id, buf));
    if (json_string_length(id) == 0 || strlen(json_string_value(id)) != json_string_length(id))
        return fail(err, PITH_FORMAT, "custom_id: %s is empty or has a zero byte", show(id, buf));
    line->custom_id = json_string_value(id);
    return PITH_OK;
}

pith_status batch_line_parse(const char *text, size_t len, const struct batch_line *defaults,
                             struct batch_line *out, pith_error *err)
{
    json_error_t error;
    char buf[BATCH_SHOW];
    struct batch_line line = *defaults;
    line.json = json_loadb(text, len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    if (line.json == NULL)
        return fail(err, PITH_FORMAT, "\"%s\" is not JSON: %s", batch_show_text(text, len, buf),
                    error.text);
    pith_status status = PITH_OK;
    if (!json_is_object(line.json))
        status = fail(err, PITH_FORMAT, "%s is not an object", show(line.json, buf));
    if (status == PITH_OK)
        status = read_name(&line, err);
    if (status == PITH_OK) {
        read_target(&line, get(line.json, "method"), get(line.json, "url"));
        if (line.fault.code == 0 && !read_body(&line, get(line.json, "body")))
            status = fail(err, PITH_NOMEM, "no memory for a request of %zu bytes", len);
    }
    if (status != PITH_OK) {
        batch_line_free(&line);
        return status;
    }
    *out = line;
    return PITH_OK;
}
