/*
 * request_responses.c - a body of OpenAI's Responses API as one of its chat. Nothing is remembered
 * between requests: a request that refers to an earlier response is refused.
 */
#include "serve/api/request_body.h"

#include <stdio.h>
#include <string.h>

/* ---- items ---- */

/* A string, or parts with text, as chat parts. */
static json_t *content_of(struct serve_reader *rd, const char *where, json_t *content)
{
    char at[96], buf[SERVE_SHOW];
    static const char *const types[] = {"input_text", "output_text",  "text",
                                        "refusal",    "summary_text", "reasoning_text"};
    if (!json_is_array(content))
        return request_text(rd, "input", where, content) ? json_incref(content) : NULL;
    json_t *parts = request_need(rd, json_array());
    for (size_t i = 0; parts != NULL && i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i), *type = request_get(part, "type");
        bool known = false;
        for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++)
            known = known || request_is(type, types[k]);
        snprintf(at, sizeof(at), "%s[%zu].type", where, i);
        if (!known)
            SERVE_FAULT(rd, "input", "%s: %s is no text", at, request_show(rd, type, buf));
        json_t *text = request_get(part, request_is(type, "refusal") ? "refusal" : "text");
        snprintf(at, sizeof(at), "%s[%zu].text", where, i);
        if (request_is_bad(rd) || !request_text(rd, "input", at, text))
            break;
        request_append(rd, parts, json_pack("{s:s, s:O}", "type", "text", "text", text));
    }
    return parts;
}

/* The message of the assistant that ends the list, which calls and thoughts are put into; made
   where there is none. */
static json_t *last_assistant(struct serve_reader *rd, json_t *list, bool with_calls)
{
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    if (request_is(json_object_get(last, "role"), "assistant") &&
        (with_calls || json_object_get(last, "content") == NULL))
        return last;
    last = request_need(rd, json_pack("{s:s}", "role", "assistant"));
    if (last != NULL)
        request_append(rd, list, last);
    return last;
}

static void add_message(struct serve_reader *rd, const char *where, const json_t *item,
                        json_t *list)
{
    char at[80];
    static const char *const roles[] = {"user", "assistant", "system", "developer", NULL};
    snprintf(at, sizeof(at), "%s.role", where);
    int role = request_word(rd, "input", at, request_get(item, "role"), roles);
    snprintf(at, sizeof(at), "%s.content", where);
    json_t *given = request_get(item, "content");
    json_t *content = role < 0                     ? NULL
                      : role == 1 && given == NULL ? request_need(rd, json_string(""))
                                                   : content_of(rd, at, given);
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    if (content == NULL)
        return;
    if (role == 1 && request_is(json_object_get(last, "role"), "assistant") &&
        json_object_get(last, "content") == NULL) /* its thoughts came before */
        request_set(rd, last, "content", content);
    else
        request_append(rd, list, json_pack("{s:s, s:o}", "role", roles[role], "content", content));
}

static void add_call(struct serve_reader *rd, const char *where, const json_t *item, json_t *list)
{
    char at[80];
    bool custom = request_is(request_get(item, "type"), "custom_tool_call");
    json_t *id = request_get(item, "call_id"), *name = request_get(item, "name");
    json_t *text = request_get(item, custom ? "input" : "arguments");
    snprintf(at, sizeof(at), "%s.call_id", where);
    if (!request_text(rd, "input", at, id))
        return;
    snprintf(at, sizeof(at), "%s.name", where);
    if (request_string(rd, "input", at, name) == NULL)
        return;
    snprintf(at, sizeof(at), "%s.input", where);
    if (custom && !request_text(rd, "input", at, text))
        return;
    json_t *m = last_assistant(rd, list, true);
    if (m != NULL && json_object_get(m, "tool_calls") == NULL)
        request_set(rd, m, "tool_calls", json_array());
    const char *type = custom ? "custom" : "function";
    if (m != NULL)
        request_append(rd, json_object_get(m, "tool_calls"),
                       json_pack("{s:O, s:s, s:{s:O, s:O*}}", "id", id, "type", type, type, "name",
                                 name, custom ? "input" : "arguments", text));
}

static void add_output(struct serve_reader *rd, const char *where, const json_t *item, json_t *list)
{
    char at[80];
    json_t *id = request_get(item, "call_id");
    snprintf(at, sizeof(at), "%s.call_id", where);
    if (!request_text(rd, "input", at, id))
        return;
    snprintf(at, sizeof(at), "%s.output", where);
    json_t *given = request_get(item, "output");
    json_t *output = given != NULL ? content_of(rd, at, given) : request_need(rd, json_string(""));
    if (output != NULL)
        request_append(
            rd, list,
            json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", output));
}

/* Puts text behind the thoughts of a message, on a line of its own. */
static void add_thought(struct serve_reader *rd, json_t *m, json_t *text)
{
    const json_t *old = json_object_get(m, "reasoning_content");
    size_t n = json_string_length(old), len = json_string_length(text);
    char *both = m != NULL && old != NULL ? request_alloc(rd, n + len + 1, 1) : NULL;
    if (both == NULL) {
        if (m != NULL && old == NULL)
            request_set(rd, m, "reasoning_content", json_incref(text));
        return;
    }
    memcpy(both, json_string_value(old), n);
    both[n] = '\n';
    memcpy(both + n + 1, json_string_value(text), len);
    request_set(rd, m, "reasoning_content", json_stringn(both, n + len + 1));
}

/* Thoughts that came back in the open; encrypted ones cannot be read here. */
static void add_reasoning(struct serve_reader *rd, const char *where, const json_t *item,
                          json_t *list)
{
    const json_t *content = request_get(item, "content");
    json_t *m = NULL;
    for (size_t i = 0; i < json_array_size(content) && !request_is_bad(rd); i++) {
        json_t *text = request_get(json_array_get(content, i), "text");
        if (text == NULL || !request_text(rd, "input", where, text))
            continue;
        m = m == NULL ? last_assistant(rd, list, false) : m;
        add_thought(rd, m, text);
    }
}

static void add_item(struct serve_reader *rd, size_t i, const json_t *item, json_t *list)
{
    char where[48], buf[SERVE_SHOW];
    const json_t *type = request_get(item, "type");
    snprintf(where, sizeof(where), "input[%zu]", i);
    if (type == NULL || request_is(type, "message"))
        add_message(rd, where, item, list);
    else if (request_is(type, "function_call") || request_is(type, "custom_tool_call"))
        add_call(rd, where, item, list);
    else if (request_is(type, "function_call_output") ||
             request_is(type, "custom_tool_call_output"))
        add_output(rd, where, item, list);
    else if (request_is(type, "reasoning"))
        add_reasoning(rd, where, item, list);
    else
        SERVE_FAULT(rd, "input", "%s.type: %s is not one that is supported here", where,
                    request_show(rd, type, buf));
}

/* ---- messages ---- */

/* Templates want one system message, and that first: those that begin the list become one. */
static void join_systems(struct serve_reader *rd, json_t *list)
{
    json_t *first = json_array_get(list, 0);
    while (json_array_size(list) > 1 && !request_is_bad(rd)) {
        json_t *next = json_array_get(list, 1), *parts = json_array();
        const json_t *role = json_object_get(next, "role");
        if (!request_is(json_object_get(first, "role"), "system") ||
            (!request_is(role, "system") && !request_is(role, "developer"))) {
            json_decref(parts);
            return;
        }
        for (size_t i = 0; i < 2 && parts != NULL; i++) {
            json_t *content = json_object_get(i == 0 ? first : next, "content");
            if (i == 1) /* an empty line: parts are lines of their own */
                request_append(rd, parts, json_pack("{s:s, s:s}", "type", "text", "text", ""));
            if (json_is_array(content))
                json_array_extend(parts, content);
            else
                request_append(rd, parts, json_pack("{s:s, s:O}", "type", "text", "text", content));
        }
        request_set(rd, first, "content", parts);
        json_array_remove(list, 1);
    }
}

/* A message of thoughts alone, which nothing followed. */
static void fill_empty(struct serve_reader *rd, json_t *list)
{
    size_t i;
    json_t *m;
    json_array_foreach(list, i, m) if (json_object_get(m, "content") == NULL &&
                                       json_object_get(m, "tool_calls") == NULL)
        request_set(rd, m, "content", json_string(""));
}

static void read_input(struct serve_reader *rd, const json_t *body, json_t *out)
{
    json_t *instructions = request_get(body, "instructions"), *input = request_get(body, "input");
    json_t *list = request_need(rd, json_array());
    if (list == NULL)
        return;
    request_set(rd, out, "messages", list);
    if (instructions != NULL && request_text(rd, "instructions", "instructions", instructions))
        request_append(rd, list,
                       json_pack("{s:s, s:O}", "role", "system", "content", instructions));
    if (input == NULL)
        SERVE_FAULT(rd, "input", "input: is missing");
    else if (json_is_string(input))
        request_append(rd, list, json_pack("{s:s, s:O}", "role", "user", "content", input));
    else if (!json_is_array(input) || json_array_size(input) == 0)
        request_wrong_type(rd, "input", input, "a string or an array of items");
    for (size_t i = 0; i < json_array_size(input) && !request_is_bad(rd); i++)
        add_item(rd, i, json_array_get(input, i), list);
    if (request_is_bad(rd))
        return;
    join_systems(rd, list);
    fill_empty(rd, list);
}

/* ---- tools and format ---- */

static bool is_custom(const json_t *tool)
{
    return request_is(request_get(tool, "type"), "custom");
}

/* A tool that is named, in a chat's form. */
static json_t *chat_name(const json_t *named)
{
    return json_pack("{s:O*, s:{s:O*}}", "type", request_get(named, "type"),
                     is_custom(named) ? "custom" : "function", "name", request_get(named, "name"));
}

/* Others are the client's own affair, or the service's. */
static bool is_known(const json_t *tool)
{
    return is_custom(tool) || request_is(request_get(tool, "type"), "function");
}

/* A custom tool in a chat's form; NULL: no memory. */
static json_t *chat_custom(const json_t *tool)
{
    json_t *format = request_get(tool, "format");
    json_t *given = json_is_object(format)
                        ? json_pack("{s:O*, s:{s:O*, s:O*}}", "type", request_get(format, "type"),
                                    "grammar", "syntax", request_get(format, "syntax"),
                                    "definition", request_get(format, "definition"))
                        : json_incref(format);
    return json_pack("{s:s, s:{s:O*, s:O*, s:o*}}", "type", "custom", "custom", "name",
                     request_get(tool, "name"), "description", request_get(tool, "description"),
                     "format", given);
}

/* A choice that is an object, in a chat's form; NULL: no memory. */
static json_t *chat_choice(struct serve_reader *rd, const json_t *choice)
{
    const json_t *tools = request_get(choice, "tools"), *type = request_get(choice, "type");
    if (!request_is(type, "allowed_tools"))
        return chat_name(choice);
    json_t *list = request_need(rd, json_array());
    for (size_t i = 0; list != NULL && i < json_array_size(tools) && !request_is_bad(rd); i++)
        if (is_known(json_array_get(tools, i)))
            request_append(rd, list, chat_name(json_array_get(tools, i)));
    return json_pack("{s:s, s:{s:O*, s:o*}}", "type", "allowed_tools", "allowed_tools", "mode",
                     request_get(choice, "mode"), "tools", list);
}

static void read_tools(struct serve_reader *rd, const json_t *body, json_t *out)
{
    char where[64];
    const json_t *tools = request_get(body, "tools");
    json_t *choice = request_get(body, "tool_choice");
    json_t *list = tools != NULL ? request_need(rd, json_array()) : NULL;
    if (tools != NULL && !json_is_array(tools))
        request_wrong_type(rd, "tools", tools, "an array");
    for (size_t i = 0; list != NULL && i < json_array_size(tools) && !request_is_bad(rd); i++) {
        const json_t *tool = json_array_get(tools, i);
        json_t *name = request_get(tool, "name");
        if (!is_known(tool))
            continue;
        if (is_custom(tool)) {
            request_append(rd, list, chat_custom(tool));
            continue;
        }
        snprintf(where, sizeof(where), "tools[%zu].name", i);
        if (request_string(rd, "tools", where, name) == NULL)
            break;
        request_append(rd, list,
                       json_pack("{s:s, s:{s:O, s:O*, s:O*, s:O*}}", "type", "function", "function",
                                 "name", name, "description", request_get(tool, "description"),
                                 "parameters", request_get(tool, "parameters"), "strict",
                                 request_get(tool, "strict")));
    }
    if (list != NULL)
        request_set(rd, out, "tools", list);
    if (json_is_object(choice))
        request_set(rd, out, "tool_choice", chat_choice(rd, choice));
    else if (choice != NULL)
        request_set(rd, out, "tool_choice", json_incref(choice));
}

static void read_format(struct serve_reader *rd, const json_t *body, json_t *out)
{
    json_t *format = request_get(request_get(body, "text"), "format");
    json_t *schema = request_get(format, "schema");
    if (format == NULL)
        return;
    request_set(rd, out, "response_format",
                json_pack("{s:O*, s:{s:O*}}", "type", request_get(format, "type"), "json_schema",
                          "schema", schema));
}

static void refuse_logprobs(struct serve_reader *rd, const json_t *body)
{
    char buf[SERVE_SHOW];
    const json_t *top = request_get(body, "top_logprobs"), *include = request_get(body, "include");
    if (top != NULL && !(json_is_number(top) && json_number_value(top) <= 0))
        SERVE_FAULT(rd, "top_logprobs", "top_logprobs: %s is not supported in responses",
                    request_show(rd, top, buf));
    for (size_t i = 0; i < json_array_size(include); i++)
        if (request_is(json_array_get(include, i), "message.output_text.logprobs"))
            SERVE_FAULT(rd, "include", "include: %s is not supported in responses",
                        request_show(rd, json_array_get(include, i), buf));
}

static void refuse_memory(struct serve_reader *rd, const json_t *body)
{
    static const char *const keys[] = {"previous_response_id", "conversation", "prompt"};
    char buf[SERVE_SHOW];
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *value = request_get(body, keys[i]);
        if (value != NULL)
            SERVE_FAULT(rd, keys[i], "%s: %s is not known, as responses are not stored", keys[i],
                        request_show(rd, value, buf));
    }
    if (json_is_true(request_get(body, "background")))
        SERVE_FAULT(rd, "background", "background: true is not supported");
}

/* Nothing is cut in either way: an input that is too long is refused. */
static void read_truncation(struct serve_reader *rd, const json_t *body)
{
    static const char *const words[] = {"auto", "disabled", NULL};
    const json_t *value = request_get(body, "truncation");
    if (value != NULL)
        (void)request_word(rd, "truncation", "truncation", value, words);
}

json_t *request_from_responses(struct serve_reader *rd, const json_t *body)
{
    /* the same by the same names; those behind `stream` are ours */
    static const char *const same[] = {"model",
                                       "temperature",
                                       "top_p",
                                       "parallel_tool_calls",
                                       "stream",
                                       "seed",
                                       "id_slot",
                                       "cache_salt",
                                       "timeout",
                                       "priority",
                                       "chat_template_kwargs",
                                       "cache_prompt",
                                       "pith"};
    json_t *out = request_need(rd, json_object());
    json_t *most = request_get(body, "max_output_tokens");
    json_t *effort = request_get(request_get(body, "reasoning"), "effort");
    int32_t n;
    if (out == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        json_t *value = request_get(body, same[i]);
        if (value != NULL)
            request_set(rd, out, same[i], json_incref(value));
    }
    if (most != NULL && (!request_ceiling(most, &n) || n < 1))
        request_wrong_type(rd, "max_output_tokens", most, "a whole number of 1 or more");
    else if (most != NULL)
        request_set(rd, out, "max_tokens", json_incref(most));
    if (effort != NULL)
        request_set(rd, out, "reasoning_effort", json_incref(effort));
    read_truncation(rd, body);
    refuse_memory(rd, body);
    refuse_logprobs(rd, body);
    read_input(rd, body, out);
    read_tools(rd, body, out);
    read_format(rd, body, out);
    return out;
}
