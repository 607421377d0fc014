/*
 * request_past.c - calls and results of a chat as texts, for templates that know none: else they
 * would leave them out without a word. They stand as request_style.c asks for calls, in Hermes'
 * form, and results as Qwen's models expect them, in messages of the user's.
 *
 * Invariant: other messages stay the same values, but for one of the user's behind results.
 */
#include "serve/api/request_body.h"

#include <stdlib.h>
#include <string.h>

#include "serve/api/reply.h"

struct past {
    struct serve_reader *rd;
    json_t *list;              /* owned: the new messages */
    json_t *names;             /* owned: of the last calls, by their ids */
    size_t n_call;             /* of them */
    struct serve_bytes result; /* of the results that follow each other */
};

static void add(struct past *p, struct serve_bytes *out, const char *text, size_t len)
{
    if (!serve_bytes_add(out, text, len))
        request_no_memory(p->rd);
}

static void add_words(struct past *p, struct serve_bytes *out, const char *words)
{
    add(p, out, words, strlen(words));
}

static void add_text(struct past *p, struct serve_bytes *out, const json_t *text)
{
    if (json_is_string(text))
        add(p, out, json_string_value(text), json_string_length(text));
}

/* Takes value over. */
static void add_json(struct past *p, struct serve_bytes *out, json_t *value)
{
    char *text = value != NULL ? serve_json_dump(&p->rd->r->source.numbers, value, 0) : NULL;
    json_decref(value);
    if (text == NULL)
        request_no_memory(p->rd);
    else
        add_words(p, out, text);
    free(text);
}

static void set_content(struct past *p, json_t *message, struct serve_bytes *text)
{
    request_set(p->rd, message, "content",
                request_need(p->rd, json_stringn(text->data != NULL ? text->data : "", text->len)));
    serve_bytes_free(text);
}

/* Results that follow each other are one message, with the user's next words: templates may want
   the roles to alternate. Returns whether next, which may be NULL, went into it. */
static bool end_results(struct past *p, const json_t *next)
{
    const json_t *words = json_object_get(next, "content");
    bool joins = request_is(json_object_get(next, "role"), "user") && json_is_string(words);
    if (p->result.len == 0)
        return false;
    json_t *message = request_need(p->rd, json_pack("{s:s}", "role", "user"));
    if (message == NULL)
        return false;
    if (joins) {
        add_words(p, &p->result, "\n");
        add_text(p, &p->result, words);
    }
    set_content(p, message, &p->result);
    request_append(p->rd, p->list, message);
    return joins;
}

/* The name of its function stands with a result where several were called. */
static void add_result(struct past *p, const json_t *message)
{
    const json_t *id = json_object_get(message, "tool_call_id");
    json_t *content = json_object_get(message, "content");
    json_t *name = json_is_string(id) ? json_object_get(p->names, json_string_value(id)) : NULL;
    if (name == NULL)
        name = request_get(message, "name");
    if (p->result.len > 0)
        add_words(p, &p->result, "\n");
    add_words(p, &p->result, "<tool_response>\n");
    if (p->n_call > 1 && name != NULL)
        add_json(p, &p->result, json_pack("{s:O, s:O*}", "name", name, "content", content));
    else
        add_text(p, &p->result, content);
    add_words(p, &p->result, "\n</tool_response>");
}

static void note_name(struct past *p, const json_t *call, json_t *name)
{
    const json_t *id = json_object_get(call, "id");
    if (json_is_string(id))
        request_set(p->rd, p->names, json_string_value(id), json_incref(name));
}

/* The calls stand behind the message's text, as an answer has them. */
static void write_calls(struct past *p, json_t *message)
{
    size_t i;
    json_t *call, *calls = json_object_get(message, "tool_calls");
    struct serve_bytes text = {0};
    add_text(p, &text, json_object_get(message, "content"));
    json_object_clear(p->names);
    p->n_call = json_array_size(calls);
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");
        json_t *name = json_object_get(function, "name");
        json_t *arguments = json_object_get(function, "arguments");
        add_words(p, &text, text.len > 0 ? "\n<tool_call>\n" : "<tool_call>\n");
        add_json(p, &text, json_pack("{s:O, s:O}", "name", name, "arguments", arguments));
        add_words(p, &text, "\n</tool_call>");
        note_name(p, call, name);
    }
    set_content(p, message, &text);
    json_object_del(message, "tool_calls");
}

void request_write_past(struct serve_reader *rd)
{
    size_t i;
    json_t *message;
    struct past p = {
        .rd = rd, .list = request_need(rd, json_array()), .names = request_need(rd, json_object())};
    json_array_foreach(json_object_get(rd->r->source.chat, "messages"), i, message)
    {
        if (request_is_bad(rd))
            break;
        if (request_is(json_object_get(message, "role"), "tool")) {
            add_result(&p, message);
            continue;
        }
        if (end_results(&p, message))
            continue;
        if (json_object_get(message, "tool_calls") != NULL)
            write_calls(&p, message);
        request_append(rd, p.list, json_incref(message));
    }
    if (!request_is_bad(rd))
        (void)end_results(&p, NULL);
    serve_bytes_free(&p.result);
    json_decref(p.names);
    request_set(rd, rd->r->source.chat, "messages", p.list);
}
