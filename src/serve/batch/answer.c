/*
 * answer.c - the line of the output: a document or a fault, with the name and the place of its
 * request.
 *
 * Invariant: what is written depends on the request, its place in the input and its tokens; of the
 * clock only "created" does.
 */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "serve/api/request_body.h"
#include "serve/batch/internal.h"

/* 32 digits made of the request's name and the line's number, into buf [33]: 128 bits, the hash
   from two beginnings. */
static const char *id_of(const struct serve_batch_line *line, char *buf)
{
    for (uint64_t part = 0; part < 2; part++) {
        const char *name = line->custom_id != NULL ? line->custom_id : "";
        uint64_t hash = pi_hash_byte(PI_HASH_EMPTY, (uint8_t)part);
        hash = pi_hash_bytes(hash, name, strlen(name));
        hash = pi_hash_number(hash, (uint64_t)line->number, 8);
        snprintf(buf + 16 * part, 17, "%016llx", (unsigned long long)hash);
    }
    return buf;
}

/* ---- while it runs ---- */

bool serve_batch_open(struct serve_batch_line *line, int64_t now)
{
    char id[33];
    return serve_reply_create(line->request, now, id_of(line, id), &line->reply) == PITH_OK;
}

static void fail(struct serve_batch_line *line, const struct serve_fault *fault)
{
    if (line->fault.code == 0)
        line->fault = *fault;
}

void serve_batch_fail(struct serve_batch_line *line, pith_status status, const char *message,
                      int64_t n_prompt, int64_t n_ctx)
{
    struct serve_fault fault = {0};
    serve_fault_status(&fault, status, message, n_prompt, n_ctx);
    fail(line, &fault);
}

bool serve_batch_token(struct serve_batch_line *line, int32_t i, const pith_answer_token *token)
{
    return serve_reply_token(line->reply, i, token, &line->bytes);
}

bool serve_batch_is_over(const struct serve_batch_line *line, int32_t i, int32_t answer)
{
    return serve_reply_is_over(line->reply, i, answer);
}

bool serve_batch_done(struct serve_batch_line *line, int32_t i, const pith_answer_result *result)
{
    bool ok = serve_reply_done(line->reply, i, result, &line->bytes);
    fail(line, serve_reply_fault(line->reply));
    return ok;
}

/* ---- its line ---- */

/* Takes response and error over. */
static json_t *line_json(const struct serve_batch_line *line, const char *id, json_t *response,
                         json_t *error)
{
    const char *name = line->custom_id;
    return json_pack("{s:o, s:o, s:o, s:o}", "id", json_sprintf("batch_req_%s", id), "custom_id",
                     name != NULL ? serve_json_text(name, strlen(name)) : json_null(), "response",
                     response, "error", error);
}

static json_t *response_json(const char *id, int code, const struct serve_bytes *document)
{
    return json_pack("{s:i, s:o, s:o}", "status_code", code, "request_id",
                     json_sprintf("req_%s", id), "body",
                     json_loadb(document->data, document->len, JSON_ALLOW_NUL, NULL));
}

/* A failure while it ran is no response: it may be asked for again. */
static json_t *fault_line(const struct serve_batch_line *line, const char *id)
{
    struct serve_fault told = line->fault;
    struct serve_bytes bytes = {0};
    json_t *response = json_null();
    snprintf(told.message, sizeof(told.message), "line %lld: %.*s", (long long)line->number,
             (int)sizeof(told.message) - 32, line->fault.message);
    if (told.code < 500) {
        response = serve_fault_write(&told, SERVE_CHAT, &bytes)
                       ? response_json(id, told.code, &bytes)
                       : NULL;
        serve_bytes_free(&bytes);
    }
    return line_json(line, id, response,
                     json_pack("{s:s, s:o}", "code", told.type, "message",
                               serve_json_text(told.message, strlen(told.message))));
}

json_t *serve_batch_answer(const struct serve_batch_line *line)
{
    char id[33];
    id_of(line, id);
    if (line->fault.code == 0)
        return line_json(line, id, response_json(id, 200, &line->bytes), json_null());
    json_t *answer = fault_line(line, id);
    /* It is known by its number where its name is none or another line's. */
    if (answer != NULL && line->nameless &&
        json_object_set_new(answer, "line", json_integer((json_int_t)line->number)) != 0) {
        json_decref(answer);
        return NULL;
    }
    return answer;
}
