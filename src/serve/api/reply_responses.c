/*
 * reply_responses.c - the layout of OpenAI's Responses API: a response with items (reasoning,
 * message, function_call, custom_tool_call), or events that each say their place in the stream.
 */
#include "serve/api/reply_form.h"

#include <stdio.h>
#include <string.h>

/* ---- items ---- */

static json_t *item_id(struct reply_answer *a, const char *prefix)
{
    return reply_need(a->reply, json_sprintf("%s%s_%d", prefix, a->reply->id, (int)a->n_block - 1));
}

/* The status of the item that ends now. */
static const char *status_of(const struct reply_answer *a)
{
    bool cut = a->done && a->reason != PITH_STOP_END && a->reason != PITH_STOP_STRING;
    return cut ? "incomplete" : "completed";
}

static json_t *text_part(struct serve_reply *reply, json_t *text)
{
    return reply_need(reply, json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text",
                                       text, "annotations", "logprobs"));
}

/* Takes content over. */
static json_t *message_item(struct reply_answer *a, const char *status, json_t *content)
{
    return reply_need(a->reply, json_pack("{s:o, s:s, s:s, s:s, s:o}", "id", item_id(a, "msg_"),
                                          "type", "message", "status", status, "role", "assistant",
                                          "content", content));
}

static json_t *reasoning_item(struct reply_answer *a, const char *status, json_t *content)
{
    return reply_need(a->reply,
                      json_pack("{s:o, s:s, s:s, s:[], s:o}", "id", item_id(a, "rs_"), "type",
                                "reasoning", "status", status, "summary", "content", content));
}

/* The call that came last; it is the open one, where one is. */
static const struct reply_call *last_call(const struct reply_answer *a)
{
    return &a->call[a->n_call - 1];
}

static const char *call_prefix(const struct reply_answer *a)
{
    return last_call(a)->custom ? "ctc_" : "fc_";
}

/* Takes arguments over, of a custom tool the input. */
static json_t *call_item(struct reply_answer *a, const char *status, json_t *arguments)
{
    const struct reply_call *call = last_call(a);
    return reply_need(a->reply,
                      json_pack("{s:o, s:s, s:s, s:s, s:s, s:o}", "id", item_id(a, call_prefix(a)),
                                "type", call->custom ? "custom_tool_call" : "function_call",
                                "status", status, "call_id", call->id, "name", call->name,
                                call->custom ? "input" : "arguments", arguments));
}

/* ---- the response ---- */

static json_t *usage_json(struct reply_answer *a)
{
    struct serve_reply *reply = a->reply;
    json_int_t n = (json_int_t)serve_request_n_prompt(reply->r), m = a->n_generated;
    json_t *usage = reply_need(reply, json_pack("{s:I, s:{s:I}, s:I, s:{s:I}, s:I}", "input_tokens",
                                                n, "input_tokens_details", "cached_tokens",
                                                (json_int_t)a->n_cached, "output_tokens", m,
                                                "output_tokens_details", "reasoning_tokens",
                                                (json_int_t)a->n_thought, "total_tokens", n + m));
    reply_set_kept(reply, usage);
    return usage;
}

/* A field of the body as it was given, or what it is else; takes other over. */
static void echo(struct serve_reply *reply, json_t *object, const char *key, json_t *other)
{
    json_t *given = request_get(reply->r->source.json, key);
    reply_set(reply, object, key, given != NULL ? json_incref(given) : other);
    if (given != NULL)
        json_decref(other);
}

/* Takes output over. */
static json_t *response_json(struct reply_answer *a, const char *status, json_t *output)
{
    struct serve_reply *reply = a->reply;
    const char *model = reply_model(reply);
    bool cut = strcmp(status, "incomplete") == 0;
    json_t *details = cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null();
    json_t *r =
        reply_need(reply, json_pack("{s:o, s:s, s:I, s:s, s:n, s:o, s:o, s:o, s:n, s:b}", "id",
                                    reply_id(reply, "resp_"), "object", "response", "created_at",
                                    (json_int_t)reply->now, "status", status, "error",
                                    "incomplete_details", reply_need(reply, details), "model",
                                    reply_string(reply, model, strlen(model)), "output", output,
                                    "previous_response_id", "store", 0));
    echo(reply, r, "instructions", json_null());
    echo(reply, r, "max_output_tokens", json_null());
    echo(reply, r, "metadata", json_object());
    echo(reply, r, "tools", json_array());
    echo(reply, r, "tool_choice", json_string("auto"));
    echo(reply, r, "text", json_pack("{s:{s:s}}", "format", "type", "text"));
    echo(reply, r, "reasoning", json_pack("{s:n, s:n}", "effort", "summary"));
    echo(reply, r, "truncation", json_string("disabled"));
    reply_set(reply, r, "parallel_tool_calls", json_boolean(!reply->r->calls.one));
    reply_set(reply, r, "temperature", json_real((double)reply->r->params.sample.temperature));
    reply_set(reply, r, "top_p", json_real((double)reply->r->params.sample.top_p));
    reply_set(reply, r, "usage", a->done ? usage_json(a) : json_null());
    return r;
}

/* ---- events ---- */

/* Takes value over, which gets its type and its number. */
static void emit(struct serve_reply *reply, const char *type, json_t *value)
{
    if (reply_need(reply, value) == NULL)
        return;
    if (!reply->r->reply.stream) {
        json_decref(value);
        return;
    }
    reply_set(reply, value, "type", json_string(type));
    reply_set(reply, value, "sequence_number", json_integer(reply->n_event++));
    reply_emit(reply, type, value);
}

static void begin(struct reply_answer *a)
{
    struct serve_reply *reply = a->reply;
    a->items = reply_need(reply, json_array());
    emit(reply, "response.created",
         json_pack("{s:o}", "response", response_json(a, "in_progress", json_array())));
    emit(reply, "response.in_progress",
         json_pack("{s:o}", "response", response_json(a, "in_progress", json_array())));
}

/* Fields of events within an item. */
static json_t *event_fields(struct reply_answer *a, const char *prefix)
{
    json_t *value = reply_need(a->reply, json_pack("{s:o, s:i}", "item_id", item_id(a, prefix),
                                                   "output_index", (int)a->n_block - 1));
    if (a->open != REPLY_CALL)
        reply_set(a->reply, value, "content_index", json_integer(0));
    return value;
}

static const char *prefix_of(const struct reply_answer *a)
{
    return a->open == REPLY_CONTENT ? "msg_" : a->open == REPLY_REASONING ? "rs_" : call_prefix(a);
}

/* The text of the open item. */
static json_t *open_text(struct reply_answer *a)
{
    const struct serve_bytes *b = a->open == REPLY_CONTENT     ? &a->content
                                  : a->open == REPLY_REASONING ? &a->reasoning
                                                               : &a->call[a->n_call - 1].args;
    return reply_string(a->reply, b->data != NULL ? b->data + a->n_open : "", b->len - a->n_open);
}

static json_t *close_content(struct reply_answer *a)
{
    struct serve_reply *reply = a->reply;
    json_t *text = event_fields(a, "msg_"), *part = event_fields(a, "msg_");
    reply_set(reply, text, "text", open_text(a));
    reply_set(reply, text, "logprobs", json_array());
    emit(reply, "response.output_text.done", text);
    reply_set(reply, part, "part", text_part(reply, open_text(a)));
    emit(reply, "response.content_part.done", part);
    return message_item(a, status_of(a),
                        reply_need(reply, json_pack("[o]", text_part(reply, open_text(a)))));
}

static json_t *reasoning_content(struct serve_reply *reply, json_t *text)
{
    return reply_need(reply, json_pack("[{s:s, s:o}]", "type", "reasoning_text", "text", text));
}

static json_t *close_reasoning(struct reply_answer *a)
{
    json_t *text = event_fields(a, "rs_");
    reply_set(a->reply, text, "text", open_text(a));
    emit(a->reply, "response.reasoning_text.done", text);
    return reasoning_item(a, status_of(a), reasoning_content(a->reply, open_text(a)));
}

static json_t *close_call(struct reply_answer *a)
{
    json_t *value = event_fields(a, "fc_");
    reply_set(a->reply, value, "arguments", open_text(a));
    emit(a->reply, "response.function_call_arguments.done", value);
    return call_item(a, status_of(a), open_text(a));
}

/* A custom tool's input comes as a whole. */
static json_t *close_custom(struct reply_answer *a)
{
    json_t *input = reply_input(a->reply, last_call(a));
    json_t *delta = event_fields(a, "ctc_"), *value = event_fields(a, "ctc_");
    reply_set(a->reply, delta, "delta", json_incref(input));
    emit(a->reply, "response.custom_tool_call_input.delta", delta);
    reply_set(a->reply, value, "input", json_incref(input));
    emit(a->reply, "response.custom_tool_call_input.done", value);
    return call_item(a, status_of(a), input);
}

static void close_item(struct reply_answer *a)
{
    if (a->open == REPLY_NOTHING)
        return;
    json_t *item = a->open == REPLY_CONTENT     ? close_content(a)
                   : a->open == REPLY_REASONING ? close_reasoning(a)
                   : last_call(a)->custom       ? close_custom(a)
                                                : close_call(a);
    if (a->items == NULL)
        a->items = reply_need(a->reply, json_array());
    reply_append(a->reply, a->items, json_incref(item));
    emit(a->reply, "response.output_item.done",
         json_pack("{s:i, s:o}", "output_index", (int)a->n_block - 1, "item", item));
    a->open = REPLY_NOTHING;
}

static void open_item(struct reply_answer *a, enum reply_kind kind, const struct reply_event *e)
{
    struct serve_reply *reply = a->reply;
    close_item(a);
    a->open = kind;
    a->n_block++;
    a->n_open = kind == REPLY_CONTENT     ? a->content.len - e->len
                : kind == REPLY_REASONING ? a->reasoning.len - e->len
                                          : 0;
    json_t *item = kind == REPLY_CONTENT     ? message_item(a, "in_progress", json_array())
                   : kind == REPLY_REASONING ? reasoning_item(a, "in_progress", json_array())
                                             : call_item(a, "in_progress", json_string(""));
    emit(reply, "response.output_item.added",
         json_pack("{s:i, s:o}", "output_index", (int)a->n_block - 1, "item", item));
    if (kind != REPLY_CONTENT)
        return;
    json_t *part = event_fields(a, "msg_");
    reply_set(reply, part, "part", text_part(reply, json_string("")));
    emit(reply, "response.content_part.added", part);
}

static void fill(struct reply_answer *a, const char *type, const struct reply_event *e)
{
    if (!a->reply->r->reply.stream)
        return;
    json_t *value = event_fields(a, prefix_of(a));
    reply_set(a->reply, value, "delta", reply_string(a->reply, e->text, e->len));
    if (a->open == REPLY_CONTENT)
        reply_set(a->reply, value, "logprobs", json_array());
    emit(a->reply, type, value);
}

static void event(struct reply_answer *a, const struct reply_event *e)
{
    switch (e->type) {
    case REPLY_EVENT_CONTENT:
        if (a->open != REPLY_CONTENT)
            open_item(a, REPLY_CONTENT, e);
        fill(a, "response.output_text.delta", e);
        break;
    case REPLY_EVENT_REASONING:
        if (a->open != REPLY_REASONING)
            open_item(a, REPLY_REASONING, e);
        fill(a, "response.reasoning_text.delta", e);
        break;
    case REPLY_EVENT_CALL_START:
        open_item(a, REPLY_CALL, e);
        break;
    case REPLY_EVENT_CALL_ARGS:
        if (!last_call(a)->custom)
            fill(a, "response.function_call_arguments.delta", e);
        break;
    case REPLY_EVENT_CALL_END:
        close_item(a);
        break;
    }
}

static void end(struct reply_answer *a)
{
    bool cut = strcmp(status_of(a), "incomplete") == 0;
    close_item(a);
    emit(a->reply, cut ? "response.incomplete" : "response.completed",
         json_pack("{s:o}", "response", response_json(a, status_of(a), json_incref(a->items))));
}

static void finish(struct serve_reply *reply)
{
    (void)reply; /* response.completed was the last word */
}

static void fault(struct serve_reply *reply)
{
    struct reply_answer *a = &reply->answer[0];
    const struct serve_fault *f = &reply->fault;
    json_t *output = a->items != NULL ? json_incref(a->items) : json_array();
    json_t *response = response_json(a, "failed", output);
    reply_set(reply, response, "error",
              json_pack("{s:s, s:o}", "code", serve_fault_is_context(f) ? SERVE_TOO_LONG : f->type,
                        "message", reply_string(reply, f->message, strlen(f->message))));
    emit(reply, "response.failed", json_pack("{s:o}", "response", response));
}

/* ---- the document ---- */

static json_t *document(struct serve_reply *reply)
{
    struct reply_answer *a = &reply->answer[0];
    close_item(a);
    return response_json(a, status_of(a),
                         a->items != NULL ? json_incref(a->items)
                                          : reply_need(reply, json_array()));
}

const struct reply_form reply_form_responses = {
    .parses = true,
    .blocks = true,
    .begin = begin,
    .event = event,
    .end = end,
    .finish = finish,
    .fault = fault,
    .document = document,
};
