/*
 * reply_messages.c - the layout of Anthropic's Messages API: a message of blocks, or events that
 * open, fill and close one block after the other.
 */
#include "serve/api/reply_form.h"

#include <string.h>

/* ---- figures ---- */

/* Tokens that were found in the cache are no input tokens there. */
static json_t *usage_json(const struct reply_answer *a)
{
    struct serve_reply *reply = a->reply;
    json_int_t n = (json_int_t)serve_request_n_prompt(reply->r), cached = a->n_cached;
    json_t *usage = reply_need(reply, json_pack("{s:I, s:I, s:I, s:I}", "input_tokens", n - cached,
                                                "cache_creation_input_tokens", (json_int_t)0,
                                                "cache_read_input_tokens", cached, "output_tokens",
                                                (json_int_t)a->n_generated));
    if (a->done)
        reply_set_kept(reply, usage);
    return usage;
}

static const char *stop_reason(const struct reply_answer *a)
{
    if (a->reason != PITH_STOP_END && a->reason != PITH_STOP_STRING)
        return "max_tokens";
    return reply_ends_in_calls(a)          ? "tool_use"
           : a->reason == PITH_STOP_STRING ? "stop_sequence"
                                           : "end_turn";
}

static json_t *stop_json(const struct reply_answer *a)
{
    return reply_stop(a, json_null());
}

/* Takes content over; the reason is null before the answer has ended. */
static json_t *message_json(const struct reply_answer *a, json_t *content)
{
    struct serve_reply *reply = a->reply;
    const char *model = reply_model(reply), *reason = a->done ? stop_reason(a) : NULL;
    return reply_need(reply,
                      json_pack("{s:o, s:s, s:s, s:o, s:o, s:s?, s:o, s:o}", "id",
                                reply_id(reply, "msg_"), "type", "message", "role", "assistant",
                                "model", reply_string(reply, model, strlen(model)), "content",
                                content, "stop_reason", reason, "stop_sequence", stop_json(a),
                                "usage", usage_json(a)));
}

/* ---- events ---- */

static void begin(struct reply_answer *a)
{
    struct serve_reply *reply = a->reply;
    json_t *message = message_json(a, reply_need(reply, json_array()));
    reply_emit(reply, "message_start",
               json_pack("{s:s, s:o}", "type", "message_start", "message", message));
}

/* Arguments as the object that they are; what was cut off is none, and goes as text under a key. */
static json_t *input_json(struct serve_reply *reply, const struct serve_bytes *args)
{
    json_t *input = args->len > 0 ? serve_json_load(&reply->numbers, args->data, args->len,
                                                    JSON_ALLOW_NUL, NULL)
                                  : json_object();
    if (json_is_object(input))
        return input;
    json_decref(input);
    return reply_need(reply, json_pack("{s:o}", "incomplete", reply_text(reply, args)));
}

/* The text of the open block. */
static json_t *text_json(struct reply_answer *a, const struct serve_bytes *b)
{
    return reply_string(a->reply, b->data != NULL ? b->data + a->n_open : "", b->len - a->n_open);
}

/* The open block, as the message has it. */
static json_t *block_json(struct reply_answer *a)
{
    struct serve_reply *reply = a->reply;
    if (a->open == REPLY_CONTENT)
        return json_pack("{s:s, s:o}", "type", "text", "text", text_json(a, &a->content));
    if (a->open == REPLY_REASONING)
        return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking",
                         text_json(a, &a->reasoning), "signature", "");
    const struct reply_call *call = &a->call[a->n_call - 1];
    return json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id", call->id, "name", call->name,
                     "input", input_json(reply, &call->args));
}

static void close_block(struct reply_answer *a)
{
    if (a->open == REPLY_NOTHING)
        return;
    if (!a->reply->r->reply.stream) {
        if (a->items == NULL)
            a->items = reply_need(a->reply, json_array());
        reply_append(a->reply, a->items, reply_need(a->reply, block_json(a)));
    }
    if (a->open == REPLY_REASONING) /* thoughts are not signed here */
        reply_emit(a->reply, "content_block_delta",
                   json_pack("{s:s, s:i, s:{s:s, s:s}}", "type", "content_block_delta", "index",
                             (int)a->n_block - 1, "delta", "type", "signature_delta", "signature",
                             ""));
    reply_emit(a->reply, "content_block_stop",
               json_pack("{s:s, s:i}", "type", "content_block_stop", "index", (int)a->n_block - 1));
    a->open = REPLY_NOTHING;
}

/* Takes block over. */
static void open_block(struct reply_answer *a, enum reply_kind kind, json_t *block,
                       const struct reply_event *e)
{
    close_block(a);
    a->open = kind;
    a->n_open = kind == REPLY_CONTENT     ? a->content.len - e->len
                : kind == REPLY_REASONING ? a->reasoning.len - e->len
                                          : 0;
    reply_emit(a->reply, "content_block_start",
               json_pack("{s:s, s:i, s:o}", "type", "content_block_start", "index",
                         (int)a->n_block++, "content_block", reply_need(a->reply, block)));
}

static void fill_block(struct reply_answer *a, const char *type, const char *key,
                       const struct reply_event *e)
{
    if (!a->reply->r->reply.stream)
        return;
    reply_emit(a->reply, "content_block_delta",
               json_pack("{s:s, s:i, s:{s:s, s:o}}", "type", "content_block_delta", "index",
                         (int)a->n_block - 1, "delta", "type", type, key,
                         reply_string(a->reply, e->text, e->len)));
}

static void event(struct reply_answer *a, const struct reply_event *e)
{
    switch (e->type) {
    case REPLY_EVENT_CONTENT:
        if (a->open != REPLY_CONTENT)
            open_block(a, REPLY_CONTENT, json_pack("{s:s, s:s}", "type", "text", "text", ""), e);
        fill_block(a, "text_delta", "text", e);
        break;
    case REPLY_EVENT_REASONING:
        if (a->open != REPLY_REASONING)
            open_block(
                a, REPLY_REASONING,
                json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", ""),
                e);
        fill_block(a, "thinking_delta", "thinking", e);
        break;
    case REPLY_EVENT_CALL_START:
        open_block(a, REPLY_CALL,
                   json_pack("{s:s, s:s, s:s, s:{}}", "type", "tool_use", "id", e->id, "name",
                             e->name, "input"),
                   e);
        break;
    case REPLY_EVENT_CALL_ARGS:
        fill_block(a, "input_json_delta", "partial_json", e);
        break;
    case REPLY_EVENT_CALL_END:
        close_block(a);
        break;
    }
}

static void end(struct reply_answer *a)
{
    close_block(a);
    reply_emit(a->reply, "message_delta",
               json_pack("{s:s, s:{s:s, s:o}, s:o}", "type", "message_delta", "delta",
                         "stop_reason", stop_reason(a), "stop_sequence", stop_json(a), "usage",
                         usage_json(a)));
}

static void finish(struct serve_reply *reply)
{
    reply_emit(reply, "message_stop", json_pack("{s:s}", "type", "message_stop"));
}

static void fault(struct serve_reply *reply)
{
    reply_emit(reply, "error", serve_fault_json(&reply->fault, SERVE_MESSAGES));
}

/* ---- the message ---- */

static json_t *document(struct serve_reply *reply)
{
    struct reply_answer *a = &reply->answer[0];
    close_block(a);
    return message_json(a,
                        a->items != NULL ? json_incref(a->items) : reply_need(reply, json_array()));
}

const struct reply_form reply_form_messages = {
    .parses = true,
    .blocks = true,
    .beat = "event: ping\ndata: {\"type\": \"ping\"}\n\n",
    .begin = begin,
    .event = event,
    .end = end,
    .finish = finish,
    .fault = fault,
    .document = document,
};
