/*
 * reply_openai.c - the layouts of /v1/chat/completions and /v1/completions: chunks that end with
 * [DONE], or one document.
 */
#include "serve/api/reply_form.h"

#include <string.h>

/* ---- what both have ---- */

static bool is_chat(const struct serve_reply *reply)
{
    return reply->form == &reply_form_chat;
}

/* Takes choices over. */
static json_t *envelope(struct serve_reply *reply, json_t *choices)
{
    bool chat = is_chat(reply);
    const char *model = reply_model(reply);
    const char *object = !chat                    ? "text_completion"
                         : reply->r->reply.stream ? "chat.completion.chunk"
                                                  : "chat.completion";
    json_t *fingerprint = json_sprintf("pith-%s", pith_version());
    return reply_need(
        reply, json_pack("{s:o, s:s, s:I, s:o, s:o, s:o}", "id",
                         reply_id(reply, chat ? "chatcmpl-" : "cmpl-"), "object", object, "created",
                         (json_int_t)reply->now, "model", reply_string(reply, model, strlen(model)),
                         "system_fingerprint", reply_need(reply, fingerprint), "choices", choices));
}

/* The log probabilities of tokens that go out now; null where none are wanted. */
static json_t *take_logprobs(struct reply_answer *a)
{
    struct serve_reply *reply = a->reply;
    size_t from = a->n_sent, to = reply_tokens_told(a);
    if (reply->r->reply.top_logprobs < 0 ||
        (reply->r->reply.stream && from >= to && (a->begun || is_chat(reply))))
        return json_null();
    a->n_sent = to;
    return is_chat(reply) ? reply_chat_logprobs(reply, &a->tokens, from, to)
                          : reply_text_logprobs(reply, a, from, to);
}

/* Takes what over: a delta, a message or a text, under its key. finish may be NULL. */
static json_t *choice(struct reply_answer *a, const char *key, json_t *what, const char *finish)
{
    struct serve_reply *reply = a->reply;
    return reply_need(reply, json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)a->index, key, what,
                                       "logprobs", take_logprobs(a), "finish_reason", finish));
}

static void send(struct reply_answer *a, const char *key, json_t *what, const char *finish)
{
    struct serve_reply *reply = a->reply;
    json_t *choices = reply_need(reply, json_pack("[o]", choice(a, key, what, finish)));
    json_t *chunk = envelope(reply, choices);
    if (finish != NULL && reply->n_pending == 1 && !reply->r->setup->no_timings)
        reply_set(reply, chunk, "timings", reply_timings(reply));
    else if (reply->r->reply.timings_per_token && a->n_seen > 0)
        reply_set(reply, chunk, "timings", reply_timings_so_far(a));
    reply_emit(reply, NULL, chunk);
}

static void finish(struct serve_reply *reply)
{
    if (reply->r->reply.include_usage) {
        json_t *chunk = envelope(reply, reply_need(reply, json_array()));
        reply_set(reply, chunk, "usage", reply_usage(reply));
        if (!reply->r->setup->no_timings)
            reply_set(reply, chunk, "timings", reply_timings(reply));
        reply_emit(reply, NULL, chunk);
    }
    if (!reply->no_memory && !serve_bytes_add(reply->out, "data: [DONE]\n\n", 14))
        reply->no_memory = true;
}

static void fault(struct serve_reply *reply)
{
    reply_emit(reply, NULL, serve_fault_json(&reply->fault, SERVE_CHAT));
}

static void progress(struct reply_answer *a, json_t *value)
{
    struct serve_reply *reply = a->reply;
    json_t *what = is_chat(reply) ? json_object() : json_string("");
    json_t *one = choice(a, is_chat(reply) ? "delta" : "text", reply_need(reply, what), NULL);
    json_t *chunk = envelope(reply, reply_need(reply, json_pack("[o]", one)));
    reply_set(reply, chunk, "prompt_progress", value);
    reply_emit(reply, NULL, chunk);
}

static json_t *document(struct serve_reply *reply, json_t *(*one)(struct reply_answer *a))
{
    json_t *choices = reply_need(reply, json_array());
    for (int32_t i = 0; i < reply->n_answer; i++)
        reply_append(reply, choices, one(&reply->answer[i]));
    json_t *all = envelope(reply, choices);
    reply_set(reply, all, "usage", reply_usage(reply));
    if (!reply->r->setup->no_timings)
        reply_set(reply, all, "timings", reply_timings(reply));
    return all;
}

/* ---- chats ---- */

static void chat_begin(struct reply_answer *a)
{
    send(a, "delta", reply_need(a->reply, json_pack("{s:s, s:n}", "role", "assistant", "content")),
         NULL);
}

json_t *reply_input(struct serve_reply *reply, const struct reply_call *call)
{
    struct serve_bytes whole = {0};
    const char *data = call->args.data != NULL ? call->args.data : "";
    json_t *args = json_loadb(data, call->args.len, JSON_ALLOW_NUL, NULL);
    if (args == NULL && serve_bytes_add(&whole, data, call->args.len) &&
        serve_bytes_add(&whole, "\"}", 2)) /* cut in the text */
        args = json_loadb(whole.data, whole.len, JSON_ALLOW_NUL, NULL);
    json_t *input = json_object_get(args, "input");
    input = json_is_string(input) ? json_incref(input) : reply_text(reply, &call->args);
    serve_bytes_free(&whole);
    json_decref(args);
    return input;
}

/* A custom tool's call, whose input comes as a whole; NULL: nothing is to be said. */
static json_t *custom_delta(struct reply_answer *a, const struct reply_event *event,
                            const struct reply_call *call)
{
    if (event->type == REPLY_EVENT_CALL_START)
        return json_pack("{s:[{s:i, s:s, s:s, s:{s:s, s:s}}]}", "tool_calls", "index",
                         (int)event->index, "id", call->id, "type", "custom", "custom", "name",
                         call->name, "input", "");
    if (event->type == REPLY_EVENT_CALL_END)
        return json_pack("{s:[{s:i, s:{s:o}}]}", "tool_calls", "index", (int)event->index, "custom",
                         "input", reply_input(a->reply, call));
    return NULL;
}

static void chat_event(struct reply_answer *a, const struct reply_event *event)
{
    struct serve_reply *reply = a->reply;
    json_t *delta = NULL;
    bool calls = event->type != REPLY_EVENT_CONTENT && event->type != REPLY_EVENT_REASONING;
    const struct reply_call *call =
        calls && (size_t)event->index < a->n_call ? &a->call[event->index] : NULL;
    if (call != NULL && call->custom) {
        delta = custom_delta(a, event, call);
        if (delta == NULL)
            return;
    } else if (event->type == REPLY_EVENT_CONTENT)
        delta = json_pack("{s:o}", "content", reply_string(reply, event->text, event->len));
    else if (event->type == REPLY_EVENT_REASONING)
        delta =
            json_pack("{s:o}", "reasoning_content", reply_string(reply, event->text, event->len));
    else if (event->type == REPLY_EVENT_CALL_START)
        delta = json_pack("{s:[{s:i, s:s, s:s, s:{s:s, s:s}}]}", "tool_calls", "index",
                          (int)event->index, "id", event->id, "type", "function", "function",
                          "name", event->name, "arguments", "");
    else if (event->type == REPLY_EVENT_CALL_ARGS)
        delta = json_pack("{s:[{s:i, s:{s:o}}]}", "tool_calls", "index", (int)event->index,
                          "function", "arguments", reply_string(reply, event->text, event->len));
    else
        return; /* the ends of calls need no words */
    send(a, "delta", reply_need(reply, delta), NULL);
}

static void chat_end(struct reply_answer *a)
{
    send(a, "delta", reply_need(a->reply, json_object()), reply_finish(a));
}

static json_t *calls_json(struct reply_answer *a)
{
    struct serve_reply *reply = a->reply;
    json_t *list = reply_need(reply, json_array());
    for (size_t i = 0; i < a->n_call; i++) {
        const struct reply_call *call = &a->call[i];
        if (call->custom) {
            reply_append(reply, list,
                         json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", call->id, "type", "custom",
                                   "custom", "name", call->name, "input",
                                   reply_input(reply, call)));
            continue;
        }
        reply_append(reply, list,
                     json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", call->id, "type", "function",
                               "function", "name", call->name, "arguments",
                               reply_text(reply, &call->args)));
    }
    return list;
}

static json_t *chat_choice(struct reply_answer *a)
{
    struct serve_reply *reply = a->reply;
    bool calls = reply_calls(a);
    json_t *content = calls && a->content.len == 0 ? json_null() : reply_text(reply, &a->content);
    json_t *message =
        reply_need(reply, json_pack("{s:s, s:o}", "role", "assistant", "content", content));
    if (a->reasoning.len > 0)
        reply_set(reply, message, "reasoning_content", reply_text(reply, &a->reasoning));
    if (calls)
        reply_set(reply, message, "tool_calls", calls_json(a));
    return choice(a, "message", message, reply_finish(a));
}

static json_t *chat_document(struct serve_reply *reply)
{
    return document(reply, chat_choice);
}

const struct reply_form reply_form_chat = {
    .parses = true,
    .begin = chat_begin,
    .event = chat_event,
    .end = chat_end,
    .finish = finish,
    .fault = fault,
    .progress = progress,
    .document = chat_document,
};

/* ---- texts ---- */

static const struct serve_bytes *echo_of(const struct reply_answer *a)
{
    return &a->reply->echo[a->index / a->reply->r->n_answer];
}

/* The prompt comes first, with what the model thought of it. */
static void text_begin(struct reply_answer *a)
{
    if (a->reply->r->reply.echo)
        send(a, "text", reply_text(a->reply, echo_of(a)), NULL);
}

static void text_event(struct reply_answer *a, const struct reply_event *event)
{
    send(a, "text", reply_string(a->reply, event->text, event->len), NULL);
}

static void text_end(struct reply_answer *a)
{
    send(a, "text", reply_need(a->reply, json_string("")), reply_finish(a));
}

static json_t *text_choice(struct reply_answer *a)
{
    struct serve_reply *reply = a->reply;
    struct serve_bytes whole = {0};
    if (!serve_bytes_add(&whole, echo_of(a)->data, echo_of(a)->len) ||
        !serve_bytes_add(&whole, a->content.data, a->content.len))
        reply->no_memory = true;
    json_t *one = choice(a, "text", reply_text(reply, &whole), reply_finish(a));
    serve_bytes_free(&whole);
    return one;
}

static json_t *text_document(struct serve_reply *reply)
{
    return document(reply, text_choice);
}

const struct reply_form reply_form_text = {
    .begin = text_begin,
    .event = text_event,
    .end = text_end,
    .finish = finish,
    .fault = fault,
    .progress = progress,
    .document = text_document,
};
