/*
 * batch_line.c - from a line of JSON to a request: its name, where it goes to, and its body, which
 * the reader of that API judges.
 *
 * Invariant: a line is read the same whatever stands in other lines.
 */
#include "batch_line.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TYPE_INVALID "invalid_request_error"
#define SHOWN_CHARS 40

void batch_line_free(struct batch_line *line)
{
    serve_request_free(line->request);
    json_decref(line->json);
    serve_numbers_free(&line->numbers);
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

/* A value as a sentence names it, on one line. */
static const char *show(const json_t *value, char *buf)
{
    char text[BATCH_SHOW];
    if (json_is_array(value)) {
        snprintf(buf, BATCH_SHOW, "an array of %zu", json_array_size(value));
    } else if (json_is_object(value)) {
        snprintf(buf, BATCH_SHOW, "an object");
    } else if (json_is_string(value)) {
        batch_show_text(json_string_value(value), json_string_length(value), text);
        snprintf(buf, BATCH_SHOW, "\"%.*s\"", BATCH_SHOW - 3, text);
    } else {
        char *dumped = json_dumps(value, JSON_ENCODE_ANY);
        snprintf(buf, BATCH_SHOW, "%s", dumped != NULL ? dumped : "a value");
        free(dumped);
    }
    return buf;
}

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

/* ---- the line ---- */

/* The value of a key; NULL where there is none or null. */
static const json_t *get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* Where the request goes to. */
static void read_target(struct batch_line *line, const json_t *method, const json_t *url)
{
    static const char *const urls[] = {"/v1/chat/completions", "/v1/completions"};
    char buf[BATCH_SHOW];
    if (method == NULL)
        serve_fault_set(&line->fault, 400, TYPE_INVALID, "method", "method: is missing");
    else if (!json_is_string(method) || strcmp(json_string_value(method), "POST") != 0)
        serve_fault_set(&line->fault, 405, TYPE_INVALID, "method", "method: %s is not \"POST\"",
                        show(method, buf));
    if (url == NULL) {
        serve_fault_set(&line->fault, 400, TYPE_INVALID, "url", "url: is missing");
        return;
    }
    for (int i = 0; i < 2; i++)
        if (json_is_string(url) && strcmp(json_string_value(url), urls[i]) == 0) {
            line->api = i == 0 ? SERVE_CHAT : SERVE_TEXT;
            return;
        }
    serve_fault_set(&line->fault, 404, "not_found_error", "url", "url: %s is not one of %s and %s",
                    show(url, buf), urls[0], urls[1]);
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

static pith_status read_body(struct batch_line *line, const struct serve_setup *setup,
                             pith_error *err)
{
    const json_t *body = get(line->json, "body");
    if (body == NULL)
        serve_fault_set(&line->fault, 400, TYPE_INVALID, "body", "body: is missing");
    if (line->fault.code != 0)
        return PITH_OK;
    char *text = serve_json_dump(&line->numbers, body, JSON_COMPACT);
    pith_status status = PITH_NOMEM;
    if (text != NULL)
        status =
            serve_request_parse(setup, line->api, text, strlen(text), &line->request, &line->fault);
    free(text);
    if (status == PITH_NOMEM)
        return fail(err, status, "no memory for a request");
    return PITH_OK;
}

pith_status batch_line_parse(const char *text, size_t len, const struct serve_setup *setup,
                             struct batch_line *out, pith_error *err)
{
    json_error_t error;
    char buf[BATCH_SHOW];
    struct batch_line line = {0};
    pith_status status = PITH_OK;
    line.json =
        serve_json_load(&line.numbers, text, len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    if (line.json == NULL)
        status = fail(err, PITH_FORMAT, "\"%s\" is not JSON: %s", batch_show_text(text, len, buf),
                      error.text);
    else if (!json_is_object(line.json))
        status = fail(err, PITH_FORMAT, "%s is not an object", show(line.json, buf));
    if (status == PITH_OK)
        status = read_name(&line, err);
    if (status == PITH_OK) {
        read_target(&line, get(line.json, "method"), get(line.json, "url"));
        status = read_body(&line, setup, err);
    }
    if (status != PITH_OK) {
        batch_line_free(&line);
        return status;
    }
    *out = line;
    return PITH_OK;
}
