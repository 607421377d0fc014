/*
 * line.c - from a line of JSON to a request: its name, where it goes to, and its body, which
 * the reader of that API judges.
 *
 * Invariant: a line is read the same whatever stands in other lines.
 */
#include "serve/batch/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "serve/api/request_body.h"

#define TYPE_INVALID "invalid_request_error"

void serve_batch_free(struct serve_batch_line *line)
{
    if (line == NULL)
        return;
    serve_reply_free(line->reply);
    serve_bytes_free(&line->bytes);
    serve_request_free(line->request);
    json_decref(line->json);
    serve_numbers_free(&line->numbers);
    pi_mem_free(line);
}

/* ---- sentences ---- */

/* A value as a sentence names it, on one line; a number as the line has it: 2.0, not 2. */
static const char *show(const json_t *value, char *buf)
{
    if (!json_is_real(value))
        return serve_show(value, buf);
    char *dumped = json_dumps(value, JSON_ENCODE_ANY);
    snprintf(buf, SERVE_SHOW, "%s", dumped != NULL ? dumped : "a value");
    free(dumped);
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
static void read_target(struct serve_batch_line *line, const json_t *method, const json_t *url)
{
    static const char *const urls[] = {"/v1/chat/completions", "/v1/completions"};
    char buf[SERVE_SHOW];
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

static pith_status read_name(struct serve_batch_line *line, pith_error *err)
{
    char buf[SERVE_SHOW];
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

static pith_status read_body(struct serve_batch_line *line, pith_error *err)
{
    const json_t *body = get(line->json, "body");
    if (body == NULL)
        serve_fault_set(&line->fault, 400, TYPE_INVALID, "body", "body: is missing");
    if (line->fault.code != 0)
        return PITH_OK;
    char *text = serve_json_dump(&line->numbers, body, JSON_COMPACT);
    pith_status status = PITH_NOMEM;
    if (text != NULL)
        status = serve_request_parse(&line->setup, line->api, text, strlen(text), &line->request,
                                     &line->fault);
    free(text);
    if (status == PITH_NOMEM)
        return fail(err, status, "no memory for a request");
    return PITH_OK;
}

static struct serve_setup setup_of(const struct serve_batch_setup *from, uint64_t any_seed)
{
    struct serve_setup setup;
    serve_setup_default(&setup);
    setup.model = from->model;
    setup.template_name = from->template_name;
    setup.template_text = from->template_text;
    setup.system = from->system;
    setup.no_thinking = from->no_thinking;
    setup.no_stream = true;
    setup.no_timings = true;
    setup.no_bos = from->no_bos;
    setup.plain_prompts = from->plain_prompts;
    setup.params = from->params;
    setup.any_seed = any_seed;
    return setup;
}

static pith_status parse(struct serve_batch_line *line, const char *text, size_t len,
                         pith_error *err)
{
    json_error_t error;
    char buf[SERVE_SHOW];
    line->json =
        serve_json_load(&line->numbers, text, len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
    if (line->json == NULL)
        return fail(err, PITH_FORMAT, "\"%s\" is not JSON: %s", serve_show_text(text, len, buf),
                    error.text);
    if (!json_is_object(line->json))
        return fail(err, PITH_FORMAT, "%s is not an object", show(line->json, buf));
    PI_TRY(read_name(line, err));
    read_target(line, get(line->json, "method"), get(line->json, "url"));
    return read_body(line, err);
}

pith_status serve_batch_read(const char *text, size_t len, int64_t number,
                             const struct serve_batch_setup *setup, uint64_t any_seed,
                             struct serve_batch_line **out, pith_error *err)
{
    pith_error why;
    struct serve_batch_line *line = pi_mem_alloc(PI_MEM_OTHER, sizeof(*line));
    *out = NULL;
    if (line == NULL)
        return fail(err, PITH_NOMEM, "no memory for a request");
    line->number = number;
    line->setup = setup_of(setup, any_seed);
    pith_status status = parse(line, text, len, &why);
    if (status != PITH_OK && err != NULL)
        *err = why;
    if (status == PITH_NOMEM) {
        serve_batch_free(line);
        return status;
    }
    if (status != PITH_OK) {
        line->nameless = true;
        serve_fault_set(&line->fault, 400, TYPE_INVALID, NULL, "%s", why.message);
    }
    *out = line;
    return status;
}

/* ---- what it is ---- */

void serve_batch_refuse_twin(struct serve_batch_line *line, int64_t first)
{
    char name[SERVE_SHOW];
    const char *id = line->custom_id;
    line->nameless = true;
    line->fault = (struct serve_fault){0};
    serve_fault_set(&line->fault, 400, TYPE_INVALID, "custom_id",
                    "custom_id \"%s\" is that of line %lld, too",
                    serve_show_text(id, strlen(id), name), (long long)first);
}

const char *serve_batch_name(const struct serve_batch_line *line)
{
    return line->custom_id;
}

bool serve_batch_is_chat(const struct serve_batch_line *line)
{
    return line->api == SERVE_CHAT;
}

bool serve_batch_failed(const struct serve_batch_line *line)
{
    return line->fault.code != 0;
}

int32_t serve_batch_n_answer(const struct serve_batch_line *line)
{
    return line->fault.code == 0 ? serve_request_answers(line->request) : 0;
}

int32_t serve_batch_n_prompt(const struct serve_batch_line *line)
{
    return serve_request_count(line->request);
}

void serve_batch_get(const struct serve_batch_line *line, int32_t i, pith_generate_params *params,
                     pith_request *out)
{
    serve_request_get(line->request, i, params, out);
}
