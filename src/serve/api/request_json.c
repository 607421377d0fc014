/*
 * request_json.c - values of JSON as requests want them, sentences that name what is wrong, and the
 * memory of a request. It knows no field.
 *
 * Invariant: the first fault is told, and none has a line break in it.
 */
#include "serve/api/request_body.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE "deadline_s: " /* how the scheduler's words of a late request begin */

/* ---- memory ---- */

/* Blocks of a request, so that they are freed together. */
struct block {
    struct block *next;
    max_align_t data[];
};

void *request_alloc(struct serve_reader *rd, size_t n, size_t size)
{
    struct block *block = NULL;
    if (n <= (SIZE_MAX / 2 - sizeof(*block)) / size)
        block = calloc(1, sizeof(*block) + n * size);
    if (block == NULL) {
        request_no_memory(rd);
        return NULL;
    }
    block->next = rd->r->source.block;
    rd->r->source.block = block;
    return block->data;
}

void request_blocks_free(void *first)
{
    struct block *next;
    for (struct block *block = first; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
}

/* ---- faults ---- */

void serve_fault_set(struct serve_fault *fault, int code, const char *type, const char *param,
                     const char *fmt, ...)
{
    va_list args;
    if (fault->code != 0)
        return;
    *fault = (struct serve_fault){.code = code, .type = type, .param = param};
    va_start(args, fmt);
    vsnprintf(fault->message, sizeof(fault->message), fmt, args);
    va_end(args);
    for (char *c = fault->message; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20) /* by way of Jansson's and templates' words */
            *c = ' ';
}

/* The engine's names of fields that a body has under others. */
static const char *named(const char *message, const char **param)
{
    static const char *const names[][2] = {
        {"budget: ", "pith.budget"},
        {"pith: budget: ", "pith.budget"},
        {DEADLINE, "timeout"},
        {"n_answer: ", "n"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strncmp(message, names[i][0], strlen(names[i][0])) == 0) {
            *param = names[i][1];
            return message + strlen(names[i][0]);
        }
    *param = NULL;
    return message;
}

/* A request is cancelled by its own time, or because the server or its operator ends it. */
static bool was_late(pith_status status, const char *message)
{
    return status == PITH_CANCELLED && strncmp(message, DEADLINE, strlen(DEADLINE)) == 0;
}

void serve_fault_status(struct serve_fault *fault, pith_status status, const char *message,
                        int64_t n_prompt, int64_t n_ctx)
{
    static const struct {
        pith_status status;
        int code;
        const char *type;
    } map[] = {
        {PITH_INVALID, 400, SERVE_INVALID},         {PITH_UNSUPPORTED, 400, SERVE_INVALID},
        {PITH_NOT_FOUND, 400, SERVE_INVALID},       {PITH_KV_FULL, 400, "kv_budget_exceeded"},
        {PITH_CONTEXT, 400, SERVE_CONTEXT},         {PITH_BUSY, 503, "unavailable_error"},
        {PITH_CANCELLED, 503, "unavailable_error"},
    };
    if (was_late(status, message)) {
        const char *param, *rest = named(message, &param);
        serve_fault_set(fault, 504, "timeout_error", param, "%s: %s", param, rest);
        return;
    }
    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++)
        if (map[i].status == status) {
            bool full = fault->code == 0 && n_ctx > 0 && n_prompt >= n_ctx &&
                        (status == PITH_CONTEXT || status == PITH_KV_FULL);
            const char *param, *rest = named(message, &param);
            serve_fault_set(fault, map[i].code, full ? SERVE_CONTEXT : map[i].type, param, "%s%s%s",
                            param != NULL ? param : "", param != NULL ? ": " : "", rest);
            if (full) {
                fault->n_prompt_tokens = n_prompt;
                fault->n_ctx = n_ctx;
            }
            return;
        }
    serve_fault_set(fault, 500, "server_error", NULL, "%s", message);
}

bool request_is_bad(const struct serve_reader *rd)
{
    return rd->fault->code != 0;
}

void request_no_memory(struct serve_reader *rd)
{
    serve_fault_set(rd->fault, 500, "server_error", NULL, "no memory for the request");
}

json_t *request_need(struct serve_reader *rd, json_t *value)
{
    if (value == NULL)
        request_no_memory(rd);
    return value;
}

void request_set(struct serve_reader *rd, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0)
        request_no_memory(rd);
}

void request_append(struct serve_reader *rd, json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0)
        request_no_memory(rd);
}

/* ---- sentences ---- */

const char *request_show(const struct serve_reader *rd, const json_t *value, char *buf)
{
    const char *digits = serve_json_digits(&rd->r->source.numbers, value);
    return digits != NULL ? serve_show_text(digits, strlen(digits), buf) : serve_show(value, buf);
}

/* Digits of an unsigned number of 64 bits, or of a signed one where there is a sign. */
static bool read_seed(const char *digits, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = digits[0] == '-' ? (uint64_t)strtoll(digits, &end, 10) : strtoull(digits, &end, 10);
    return errno == 0 && *end == '\0';
}

bool request_seed(const struct serve_reader *rd, const json_t *value, uint64_t *out)
{
    int64_t whole;
    const char *digits = serve_json_digits(&rd->r->source.numbers, value);
    if (digits != NULL && read_seed(digits, out))
        return true;
    if (!request_whole(value, &whole))
        return false;
    *out = (uint64_t)whole;
    return true;
}

bool request_ceiling(const json_t *value, int32_t *out)
{
    double x = json_number_value(value);
    if (!json_is_number(value) || floor(x) != x || x < INT32_MIN)
        return false;
    *out = x < INT32_MAX ? (int32_t)x : INT32_MAX;
    return true;
}

void request_wrong_type(struct serve_reader *rd, const char *key, const json_t *value,
                        const char *expected)
{
    char buf[SERVE_SHOW];
    SERVE_FAULT(rd, key, "%s: %s is not %s", key, request_show(rd, value, buf), expected);
}

/* ---- values ---- */

json_t *request_get(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* JSON has one kind of numbers: 12.0 is as whole as 12. */
bool request_whole(const json_t *value, int64_t *out)
{
    double x = json_number_value(value);
    if (!json_is_number(value) || (json_is_real(value) && (floor(x) != x || fabs(x) > 0x1p53)))
        return false;
    *out = json_is_real(value) ? (int64_t)x : json_integer_value(value);
    return true;
}

bool request_huge(const json_t *value)
{
    return json_is_real(value) && fabs(json_real_value(value)) > 0x1p53;
}

bool request_text(struct serve_reader *rd, const char *param, const char *where,
                  const json_t *value)
{
    char buf[SERVE_SHOW];
    if (value == NULL || json_is_null(value))
        SERVE_FAULT(rd, param, "%s: is missing", where);
    else if (!json_is_string(value))
        SERVE_FAULT(rd, param, "%s: %s is not a string", where, request_show(rd, value, buf));
    return json_is_string(value);
}

const char *request_string(struct serve_reader *rd, const char *param, const char *where,
                           const json_t *value)
{
    char buf[SERVE_SHOW];
    if (!request_text(rd, param, where, value))
        return NULL;
    if (strlen(json_string_value(value)) == json_string_length(value))
        return json_string_value(value);
    SERVE_FAULT(rd, param, "%s: %s has a zero byte", where, request_show(rd, value, buf));
    return NULL;
}

bool request_is(const json_t *value, const char *word)
{
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

int request_word(struct serve_reader *rd, const char *param, const char *where, const json_t *value,
                 const char *const *words)
{
    char buf[SERVE_SHOW], list[160] = "";
    size_t len = 0;
    for (int i = 0; words[i] != NULL; i++) {
        if (request_is(value, words[i]))
            return i;
        if (len < sizeof(list))
            len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s",
                                    i == 0                 ? ""
                                    : words[i + 1] == NULL ? " and "
                                                           : ", ",
                                    words[i]);
    }
    if (value == NULL)
        SERVE_FAULT(rd, param, "%s: is missing", where);
    else
        SERVE_FAULT(rd, param, "%s: %s is not one of %s", where, request_show(rd, value, buf),
                    list);
    return -1;
}

char *serve_characters(const char *text, size_t len, size_t *n)
{
    size_t cap = 3 * (len + 8);
    char *whole = malloc(cap);
    pith_utf8_stream stream = {0};
    if (whole == NULL)
        return NULL;
    *n = pith_utf8_push(&stream, text, len, whole, cap);
    *n += pith_utf8_push(&stream, NULL, 0, whole + *n, cap - *n);
    return whole;
}

json_t *serve_json_text(const char *text, size_t len)
{
    size_t n;
    json_t *value = json_stringn(len > 0 ? text : "", len); /* refuses what is not UTF-8 */
    char *whole = value == NULL ? serve_characters(text, len, &n) : NULL;
    if (whole == NULL)
        return value;
    value = json_stringn(whole, n);
    free(whole);
    return value;
}
