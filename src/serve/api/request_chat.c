/*
 * request_chat.c - OpenAI's messages as a chat template wants them, with the template's variables,
 * and the prompt that comes out. It judges the form of messages; their content is the template's
 * business.
 */
#include "serve/api/request_body.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- contents ---- */

/* The text of a part, by the name that its type gives it. */
static const json_t *text_of(const json_t *part)
{
    const json_t *refusal = json_object_get(part, "refusal");
    return refusal != NULL && request_is(json_object_get(part, "type"), "refusal")
               ? refusal
               : json_object_get(part, "text");
}

/* The texts of a content that is an array of parts, each on a line of its own. */
static json_t *join_parts(struct serve_reader *rd, size_t i, const json_t *parts)
{
    size_t len = 0;
    char where[96], buf[SERVE_SHOW];
    for (size_t k = 0; k < json_array_size(parts); k++) {
        const json_t *part = json_array_get(parts, k), *type = json_object_get(part, "type");
        snprintf(where, sizeof(where), "messages[%zu].content[%zu].type", i, k);
        if (type == NULL)
            SERVE_FAULT(rd, "messages", "%s: is missing", where);
        else if (!request_is(type, "text") && !request_is(type, "refusal"))
            SERVE_FAULT(rd, "messages", "%s: %s is not \"text\"", where,
                        request_show(rd, type, buf));
        snprintf(where, sizeof(where), "messages[%zu].content[%zu].text", i, k);
        if (request_is_bad(rd) || !request_text(rd, "messages", where, text_of(part)))
            return NULL;
        len += json_string_length(text_of(part)) + 1;
    }
    char *joined = request_alloc(rd, len + 1, 1), *at = joined;
    for (size_t k = 0; joined != NULL && k < json_array_size(parts); k++) {
        const json_t *text = text_of(json_array_get(parts, k));
        if (k > 0)
            *at++ = '\n';
        memcpy(at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    return joined != NULL ? request_need(rd, json_stringn(joined, (size_t)(at - joined))) : NULL;
}

/* The text in place of a content that is null. An answer may have been thoughts, calls, a
   refusal or nothing at all, and a tool may have said nothing. NULL: the role needs one. */
static json_t *without_content(struct serve_reader *rd, const json_t *m, const json_t *out)
{
    json_t *refusal = request_get(m, "refusal");
    if (json_array_size(json_object_get(out, "tool_calls")) > 0)
        return json_null(); /* templates ask whether there is any */
    if (!request_is(json_object_get(out, "role"), "assistant"))
        return request_is(json_object_get(out, "role"), "tool") ? request_need(rd, json_string(""))
                                                                : NULL;
    return json_is_string(refusal) ? json_incref(refusal) : request_need(rd, json_string(""));
}

static void read_content(struct serve_reader *rd, size_t i, const json_t *m, json_t *out)
{
    char where[64];
    json_t *content = request_get(m, "content");
    json_t *other = content == NULL ? without_content(rd, m, out) : NULL;
    snprintf(where, sizeof(where), "messages[%zu].content", i);
    if (other != NULL)
        content = other;
    else if (json_is_array(content))
        content = join_parts(rd, i, content);
    else if (request_text(rd, "messages", where, content))
        json_incref(content);
    else
        content = NULL;
    if (content != NULL)
        request_set(rd, out, "content", content);
}

/* ---- calls ---- */

/* Templates print arguments as JSON, so they are made what their text says, where that is an
   object. */
static json_t *read_arguments(struct serve_reader *rd, const char *where, json_t *arguments)
{
    char buf[SERVE_SHOW];
    if (json_is_object(arguments))
        return json_incref(arguments);
    if (arguments == NULL)
        return request_need(rd, json_object());
    if (!json_is_string(arguments)) {
        SERVE_FAULT(rd, "messages", "%s: %s is not a string", where,
                    request_show(rd, arguments, buf));
        return NULL;
    }
    json_t *object = serve_json_load(&rd->r->source.numbers, json_string_value(arguments),
                                     json_string_length(arguments), JSON_ALLOW_NUL, NULL);
    if (json_is_object(object))
        return object;
    json_decref(object);
    return json_string_length(arguments) > 0 ? json_incref(arguments)
                                             : request_need(rd, json_object());
}

static void read_call(struct serve_reader *rd, const char *list, size_t k, const json_t *call,
                      json_t *out)
{
    char where[128];
    bool custom = request_is(request_get(call, "type"), "custom");
    json_t *function = request_get(call, custom ? "custom" : "function");
    json_t *id = request_get(call, "id");
    snprintf(where, sizeof(where), "%s[%zu].id", list, k);
    if (id != NULL && !request_text(rd, "messages", where, id))
        return;
    snprintf(where, sizeof(where), "%s[%zu].%s.name", list, k, custom ? "custom" : "function");
    json_t *name = request_get(function, "name");
    if (request_string(rd, "messages", where, name) == NULL)
        return;
    snprintf(where, sizeof(where), "%s[%zu].%s", list, k,
             custom ? "custom.input" : "function.arguments");
    json_t *arguments = custom ? request_custom_arguments(rd, where, request_get(function, "input"))
                               : read_arguments(rd, where, request_get(function, "arguments"));
    if (arguments == NULL)
        return;
    json_t *one = request_need(rd, json_pack("{s:s, s:{s:O, s:o}}", "type", "function", "function",
                                             "name", name, "arguments", arguments));
    if (one != NULL && id != NULL)
        request_set(rd, one, "id", json_incref(id));
    if (one != NULL)
        request_append(rd, out, one);
}

static void read_calls(struct serve_reader *rd, size_t i, const json_t *m, json_t *out)
{
    char where[64];
    const json_t *calls = request_get(m, "tool_calls");
    snprintf(where, sizeof(where), "messages[%zu].tool_calls", i);
    if (calls == NULL)
        return;
    if (!json_is_array(calls)) {
        SERVE_FAULT(rd, "messages", "%s: is not an array", where);
        return;
    }
    json_t *list = request_need(rd, json_array());
    for (size_t k = 0; list != NULL && k < json_array_size(calls) && !request_is_bad(rd); k++)
        read_call(rd, where, k, json_array_get(calls, k), list);
    if (list != NULL && json_array_size(list) > 0)
        request_set(rd, out, "tool_calls", list);
    else
        json_decref(list);
}

/* ---- messages ---- */

static const char *read_role(struct serve_reader *rd, size_t i, const json_t *role)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", NULL};
    char where[64];
    snprintf(where, sizeof(where), "messages[%zu].role", i);
    int r = request_word(rd, "messages", where, role, roles);
    return r == 1 ? "system" : r >= 0 ? roles[r] : NULL;
}

/* Strings that templates look at, and that go through as they are. */
static void copy_strings(struct serve_reader *rd, size_t i, const json_t *m, json_t *out)
{
    static const char *const keys[] = {"name", "tool_call_id", "reasoning_content"};
    json_t *thoughts = request_get(m, "reasoning"); /* as others call them */
    char where[64];
    if (json_is_string(thoughts))
        request_set(rd, out, "reasoning_content", json_incref(thoughts));
    for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
        json_t *value = request_get(m, keys[k]);
        snprintf(where, sizeof(where), "messages[%zu].%s", i, keys[k]);
        if (value != NULL && request_text(rd, "messages", where, value))
            request_set(rd, out, keys[k], json_incref(value));
    }
}

static void read_message(struct serve_reader *rd, size_t i, const json_t *m, json_t *list)
{
    const char *role = read_role(rd, i, request_get(m, "role"));
    json_t *out = role != NULL ? request_need(rd, json_pack("{s:s}", "role", role)) : NULL;
    if (out == NULL)
        return;
    if (strcmp(role, "assistant") == 0)
        read_calls(rd, i, m, out);
    copy_strings(rd, i, m, out);
    if (!request_is_bad(rd))
        read_content(rd, i, m, out);
    request_append(rd, list, out);
}

/* The last message is the beginning of the answer. */
static void take_opening(struct serve_reader *rd, json_t *list)
{
    size_t n = json_array_size(list);
    json_t *last = json_array_get(list, n - 1);
    const json_t *content = json_object_get(last, "content");
    bool other = rd->r->api == SERVE_MESSAGES || rd->r->api == SERVE_COUNT;
    /* Templates differ in where thoughts of an answer that is not ended would stand. */
    if (json_string_length(json_object_get(last, "reasoning_content")) > 0) {
        const char *param = other ? "messages" : "continue_final_message";
        SERVE_FAULT(rd, param,
                    "%s: the last message has thoughts, with which an answer cannot be gone on: "
                    "leave them out",
                    param);
        return;
    }
    if (!request_is(json_object_get(last, "role"), "assistant") || !json_is_string(content) ||
        json_object_get(last, "tool_calls") != NULL || n < 2) {
        SERVE_FAULT(rd, "continue_final_message",
                    "continue_final_message: the last of %zu messages is no text of the assistant",
                    n);
        return;
    }
    size_t len = json_string_length(content);
    char *copy = request_alloc(rd, len + 1, 1);
    if (copy == NULL)
        return;
    memcpy(copy, json_string_value(content), len);
    rd->r->prompts.opening = copy;
    rd->r->prompts.opening_len = len;
    json_array_remove(list, n - 1);
}

static void read_messages(struct serve_reader *rd, const json_t *messages)
{
    if (messages == NULL)
        SERVE_FAULT(rd, "messages", "messages: is missing");
    else if (!json_is_array(messages) || json_array_size(messages) == 0)
        request_wrong_type(rd, "messages", messages, "an array of messages");
    json_t *list = request_is_bad(rd) ? NULL : request_need(rd, json_array());
    if (list == NULL)
        return;
    const json_t *first = json_object_get(json_array_get(messages, 0), "role");
    if (rd->setup->system != NULL && !request_is(first, "system") &&
        !request_is(first, "developer"))
        request_append(rd, list,
                       json_pack("{s:s, s:s}", "role", "system", "content", rd->setup->system));
    for (size_t i = 0; i < json_array_size(messages) && !request_is_bad(rd); i++)
        read_message(rd, i, json_array_get(messages, i), list);
    if (rd->r->prompts.continues && !request_is_bad(rd))
        take_opening(rd, list);
    request_set(rd, rd->r->source.chat, "messages", list);
}

/* ---- the template's variables ---- */

static void read_kwargs(struct serve_reader *rd, const json_t *kwargs)
{
    static const char *const own[] = {"messages", "tools", "add_generation_prompt"};
    const json_t *thinking = request_get(kwargs, "enable_thinking");
    const char *key;
    json_t *value;
    if (kwargs == NULL)
        return;
    if (!json_is_object(kwargs)) {
        request_wrong_type(rd, "chat_template_kwargs", kwargs, "an object");
        return;
    }
    if (thinking != NULL && !json_is_boolean(thinking)) {
        request_wrong_type(rd, "chat_template_kwargs", thinking, "true or false (enable_thinking)");
        return;
    }
    if (thinking != NULL)
        rd->r->prompts.no_thinking = json_is_false(thinking);
    json_object_foreach((json_t *)kwargs, key, value)
    {
        for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
            if (strcmp(key, own[i]) == 0)
                SERVE_FAULT(rd, "chat_template_kwargs",
                            "chat_template_kwargs: \"%s\" is a field of the request itself", key);
        request_set(rd, rd->r->source.chat, key, json_incref(value));
    }
}

static void read_reasoning(struct serve_reader *rd, const json_t *body)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max", NULL};
    static const char *const formats[] = {"none", "auto", "deepseek", "deepseek-legacy", NULL};
    json_t *effort = request_get(body, "reasoning_effort");
    const json_t *format = request_get(body, "reasoning_format");
    int i = effort == NULL
                ? -1
                : request_word(rd, "reasoning_effort", "reasoning_effort", effort, efforts);
    if (i == 0)
        rd->r->prompts.no_thinking = true;
    else if (i > 0)
        request_set(rd, rd->r->source.chat, "reasoning_effort", json_incref(effort));
    if (format != NULL)
        rd->r->reply.keeps_reasoning =
            request_word(rd, "reasoning_format", "reasoning_format", format, formats) == 0;
}

void request_read_chat(struct serve_reader *rd, const json_t *body)
{
    rd->r->source.chat = request_need(rd, json_object());
    if (rd->r->source.chat == NULL)
        return;
    if (rd->r->prompts.continues && json_is_true(request_get(body, "add_generation_prompt")))
        SERVE_FAULT(rd, "continue_final_message",
                    "continue_final_message: true and add_generation_prompt: true exclude each "
                    "other");
    read_kwargs(rd, request_get(body, "chat_template_kwargs"));
    read_reasoning(rd, body);
    read_messages(rd, request_get(body, "messages"));
    request_read_tools(rd, body);
}

/* ---- the prompt ---- */

static pith_status render(struct serve_reader *rd, const json_t *chat, pith_prompt **out,
                          pith_error *err)
{
    const struct serve_request *r = rd->r;
    pith_chat_params params;
    char *json = serve_json_dump(&r->source.numbers, chat, JSON_COMPACT);
    if (json == NULL) {
        request_no_memory(rd);
        return PITH_NOMEM;
    }
    pith_chat_params_default(&params);
    params.template_name = rd->setup->template_name;
    params.template_text = rd->setup->template_text;
    params.json = json;
    params.json_len = strlen(json);
    params.now = rd->setup->now;
    params.opening = r->prompts.opening;
    params.opening_len = r->prompts.opening_len;
    params.flags =
        (r->prompts.no_generation_prompt && r->prompts.opening == NULL ? 0 : PITH_CHAT_GENERATE) |
        (r->prompts.no_thinking ? PITH_CHAT_NO_THINKING : 0);
    pith_status status = pith_prompt_create(rd->setup->model, &params, out, err);
    free(json);
    return status;
}

/* Arguments of calls as text, for templates that put them together as such. False: there are none
   that are no text. */
static bool arguments_to_text(struct serve_reader *rd)
{
    size_t i, k;
    json_t *message, *call;
    bool changed = false;
    json_array_foreach(json_object_get(rd->r->source.chat, "messages"), i, message)
        json_array_foreach(json_object_get(message, "tool_calls"), k, call)
    {
        json_t *function = json_object_get(call, "function");
        const json_t *arguments = json_object_get(function, "arguments");
        char *text = json_is_object(arguments)
                         ? serve_json_dump(&rd->r->source.numbers, arguments, 0)
                         : NULL;
        if (text != NULL)
            request_set(rd, function, "arguments", json_string(text));
        changed = changed || text != NULL;
        free(text);
    }
    return changed;
}

/* A content of null as an empty text, for templates that look into it without asking. False: there
   is none. */
static bool contents_to_text(struct serve_reader *rd)
{
    size_t i;
    json_t *message;
    bool changed = false;
    json_array_foreach(json_object_get(rd->r->source.chat, "messages"), i, message)
    {
        if (!json_is_null(json_object_get(message, "content")))
            continue;
        request_set(rd, message, "content", json_string(""));
        changed = true;
    }
    return changed;
}

/* The text of the last message of the user's, the last part of it where it has several. */
static void take_message(struct serve_reader *rd, struct serve_prompt *p)
{
    const json_t *messages = json_object_get(rd->r->source.chat, "messages"), *text = NULL;
    for (size_t i = json_array_size(messages); i-- > 0 && text == NULL;) {
        const json_t *message = json_array_get(messages, i);
        const json_t *content = json_object_get(message, "content");
        if (!request_is(json_object_get(message, "role"), "user"))
            continue;
        text = content;
        for (size_t k = 0; k < json_array_size(content); k++)
            if (json_is_string(json_object_get(json_array_get(content, k), "text")))
                text = json_object_get(json_array_get(content, k), "text");
    }
    if (!json_is_string(text))
        return;
    size_t len = json_string_length(text);
    char *copy = request_alloc(rd, len + 1, 1);
    if (copy == NULL)
        return;
    p->message = memcpy(copy, json_string_value(text), len);
    p->message_len = len;
}

/* The tokens of a rendered prompt. */
static void take_ids(struct serve_reader *rd, const pith_prompt *rendered, struct serve_prompt *p)
{
    pith_error err;
    const pith_model *model = rd->setup->model;
    uint32_t flags = PITH_TOKENIZE_SPECIAL | (rd->setup->no_bos ? 0 : PITH_TOKENIZE_BOS);
    int32_t n = 0;
    pith_status status = pith_prompt_tokenize(model, rendered, flags, NULL, 0, &n, &err);
    if (status == PITH_RANGE) {
        p->ids = request_alloc(rd, (size_t)n + 1, sizeof(*p->ids));
        if (p->ids == NULL)
            return;
        status = pith_prompt_tokenize(model, rendered, flags, p->ids, n, &n, &err);
    }
    if (status != PITH_OK)
        serve_fault_status(rd->fault, status, err.message, 0, 0);
    else
        p->n_id = n;
}

/* The chat's system messages, and an empty one of the user's, which templates want. */
static json_t *opening_of(const json_t *chat)
{
    size_t i;
    json_t *message, *messages = json_array();
    json_t *out = json_copy((json_t *)chat);
    json_array_foreach(json_object_get(chat, "messages"), i, message)
    {
        const json_t *role = json_object_get(message, "role");
        if (!request_is(role, "system") && !request_is(role, "developer"))
            break;
        json_array_append(messages, message);
    }
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", ""));
    if (json_object_set_new(out, "messages", messages) != 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}

/* How much of the prompt stands before the chat's first word: all that the chats of this system
   prompt have in common. Where the template does not take it alone, nothing is said. */
static void count_system(struct serve_reader *rd)
{
    struct serve_request *r = rd->r;
    struct serve_prompt alone = {0};
    pith_prompt *rendered = NULL;
    json_t *chat = opening_of(r->source.chat);
    if (chat != NULL && render(rd, chat, &rendered, NULL) == PITH_OK)
        take_ids(rd, rendered, &alone);
    while (r->cache.n_system < alone.n_id && r->cache.n_system < r->prompts.item[0].n_id &&
           alone.ids[r->cache.n_system] == r->prompts.item[0].ids[r->cache.n_system])
        r->cache.n_system++;
    pith_prompt_free(rendered);
    json_decref(chat);
}

void request_make_chat(struct serve_reader *rd)
{
    pith_error err;
    struct serve_request *r = rd->r;
    r->prompts.item = request_alloc(rd, 1, sizeof(*r->prompts.item));
    r->prompts.n = 1;
    if (rd->setup->model == NULL || r->prompts.item == NULL)
        return;
    take_message(rd, &r->prompts.item[0]); /* first: results may become the user's */
    request_find_style(rd);
    if (request_is_bad(rd))
        return;
    pith_status status = render(rd, r->source.chat, &r->prompts.rendered, &err);
    if (status == PITH_INVALID && contents_to_text(rd))
        status = render(rd, r->source.chat, &r->prompts.rendered, &err);
    if (status == PITH_INVALID && arguments_to_text(rd))
        status = render(rd, r->source.chat, &r->prompts.rendered, &err);
    if (status == PITH_INVALID && request_explain_to_user(rd))
        status = render(rd, r->source.chat, &r->prompts.rendered, &err);
    if (status == PITH_NOMEM)
        request_no_memory(rd);
    else if (status != PITH_OK)
        SERVE_FAULT(rd, "messages", "messages: %s", err.message);
    else
        take_ids(rd, r->prompts.rendered, &r->prompts.item[0]);
    if (rd->setup->pins && (r->cache.slot >= 0 || r->setup->finds) && r->cache.n_keep == 0 &&
        !request_is_bad(rd))
        count_system(rd);
}
