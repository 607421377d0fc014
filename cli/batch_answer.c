/*
 * batch_answer.c - lines of a batch's output: documents and faults with the name and the place of
 * their request.
 *
 * Invariant: what is written depends on the request, its place in the input and its tokens; of the
 * clock only "created" does.
 */
#include "batch_answer.h"

#include <stdio.h>
#include <string.h>

#include "io.h"

static json_t *need(json_t *value)
{
    if (value == NULL)
        cli_fail("no memory for a line of the output");
    return value;
}

/* 128 bits, FNV-1a twice from two beginnings. */
const char *batch_answer_id(const char *custom_id, int64_t number, char *buf)
{
    for (uint64_t part = 0; part < 2; part++) {
        uint64_t hash = 0xcbf29ce484222325u;
        hash = (hash ^ part) * 0x100000001b3u;
        for (const char *c = custom_id; c != NULL && *c != '\0'; c++)
            hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
        for (int i = 0; i < 8; i++)
            hash = (hash ^ ((uint64_t)number >> (8 * i) & 0xff)) * 0x100000001b3u;
        snprintf(buf + 16 * part, 17, "%016llx", (unsigned long long)hash);
    }
    return buf;
}

static json_t *prefixed(const char *prefix, const char *id)
{
    return need(json_sprintf("%s%s", prefix, id));
}

/* Takes response and error over. */
static json_t *line_json(const char *custom_id, const char *id, json_t *response, json_t *error)
{
    json_t *name =
        custom_id != NULL ? need(cli_json_text(custom_id, strlen(custom_id))) : json_null();
    return need(json_pack("{s:o, s:o, s:o, s:o}", "id", prefixed("batch_req_", id), "custom_id",
                          name, "response", response, "error", error));
}

static json_t *response_json(const char *id, int code, json_t *body)
{
    return need(json_pack("{s:i, s:o, s:o}", "status_code", code, "request_id",
                          prefixed("req_", id), "body", body));
}

json_t *batch_answer_line(const char *custom_id, int64_t number, const char *document, size_t len)
{
    char id[33];
    batch_answer_id(custom_id, number, id);
    json_t *body = need(json_loadb(document, len, JSON_ALLOW_NUL, NULL));
    return line_json(custom_id, id, response_json(id, 200, body), json_null());
}

/* A failure while it ran is no response: it may be asked for again. */
json_t *batch_fault_line(const char *custom_id, int64_t number, const struct serve_fault *fault)
{
    char id[33];
    struct serve_fault told = *fault;
    struct serve_bytes bytes = {0};
    json_t *response = json_null();
    snprintf(told.message, sizeof(told.message), "line %lld: %.*s", (long long)number,
             (int)sizeof(told.message) - 32, fault->message);
    batch_answer_id(custom_id, number, id);
    if (fault->code < 500) {
        if (!serve_fault_write(&told, SERVE_CHAT, &bytes))
            cli_fail("no memory for a line of the output");
        response = response_json(id, fault->code,
                                 need(json_loadb(bytes.data, bytes.len, JSON_ALLOW_NUL, NULL)));
        serve_bytes_free(&bytes);
    }
    return line_json(custom_id, id, response,
                     need(json_pack("{s:s, s:o}", "code", told.type, "message",
                                    need(cli_json_text(told.message, strlen(told.message))))));
}

json_t *batch_wrong_line(const char *custom_id, int64_t number, const struct serve_fault *fault)
{
    json_t *line = batch_fault_line(custom_id, number, fault);
    if (json_object_set_new(line, "line", json_integer((json_int_t)number)) != 0)
        need(NULL);
    return line;
}
