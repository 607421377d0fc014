/*
 * request_messages.c - a body of Anthropic's Messages API as one of OpenAI's chat. It judges what
 * has other names there; the rest is judged where all chats are.
 */
#include "serve/api/request_body.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- texts ---- */

/* Claude Code begins its system text with a header that has a number of each request's own,
   "cch=NNNNN". No prefix would ever match: the number becomes zeros. */
static void settle_header(char *text)
{
    char *at = strncmp(text, "x-anthropic-billing-header:", 27) == 0 ? text : NULL;
    char *end = at != NULL ? strchr(at, '\n') : NULL;
    while (at != NULL && (at = strstr(at, "cch=")) != NULL && (end == NULL || at < end))
        for (at += 4; strchr("; \t\n", *at) == NULL; at++)
            *at = '0';
}

/* The text of a string or of blocks of text, with a line break between blocks. NULL: a fault. */
static json_t *text_of(struct serve_reader *rd, const char *where, const json_t *content)
{
    char at[128], buf[SERVE_SHOW];
    size_t len = 0, n = json_is_array(content) ? json_array_size(content) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *block = json_is_array(content) ? json_array_get(content, i) : NULL;
        const json_t *type = request_get(block, "type");
        snprintf(at, sizeof(at), "%s[%zu]", where, i);
        if (block != NULL && !request_is(type, "text")) {
            SERVE_FAULT(rd, where, "%s.type: %s is not \"text\"", at, request_show(rd, type, buf));
            return NULL;
        }
        const json_t *text = block != NULL ? request_get(block, "text") : content;
        if (!request_text(rd, where, block != NULL ? at : where, text))
            return NULL;
        len += json_string_length(text) + 1;
    }
    char *joined = request_alloc(rd, len + 1, 1), *end = joined;
    for (size_t i = 0; joined != NULL && i < n; i++) {
        const json_t *text =
            json_is_array(content) ? json_object_get(json_array_get(content, i), "text") : content;
        if (i > 0)
            *end++ = '\n';
        memcpy(end, json_string_value(text), json_string_length(text) + 1);
        settle_header(end);
        end += json_string_length(text);
    }
    return joined != NULL ? request_need(rd, json_stringn(joined, (size_t)(end - joined))) : NULL;
}

/* ---- messages ---- */

/* The message that blocks become. */
struct gathered {
    json_t *list;  /* of messages, which results go to */
    json_t *texts; /* blocks of text */
    json_t *calls;
    json_t *thoughts; /* a string; NULL: none */
};

static void add_result(struct serve_reader *rd, const char *where, const json_t *block,
                       struct gathered *g)
{
    json_t *id = request_get(block, "tool_use_id"), *content = request_get(block, "content");
    if (!request_text(rd, "messages", where, id))
        return;
    json_t *text = content != NULL ? text_of(rd, "messages", content) : json_string("");
    if (request_need(rd, text) != NULL)
        request_append(
            rd, g->list,
            json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", text));
}

static void add_call(struct serve_reader *rd, const char *where, const json_t *block,
                     struct gathered *g)
{
    json_t *id = request_get(block, "id"), *name = request_get(block, "name");
    json_t *input = request_get(block, "input");
    if (!request_text(rd, "messages", where, id) ||
        request_string(rd, "messages", where, name) == NULL)
        return;
    if (input != NULL && !json_is_object(input)) {
        request_wrong_type(rd, "messages", input, "an object (input)");
        return;
    }
    request_append(rd, g->calls,
                   json_pack("{s:O, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function",
                             "name", name, "arguments",
                             input != NULL ? json_incref(input) : json_object()));
}

static void add_block(struct serve_reader *rd, const char *where, json_t *block, bool user,
                      struct gathered *g)
{
    const json_t *type = request_get(block, "type");
    char buf[SERVE_SHOW];
    if (request_is(type, "text")) {
        if (request_text(rd, "messages", where, request_get(block, "text")))
            request_append(rd, g->texts, json_incref(block));
    } else if (user && request_is(type, "tool_result")) {
        add_result(rd, where, block, g);
    } else if (!user && request_is(type, "tool_use")) {
        add_call(rd, where, block, g);
    } else if (!user && request_is(type, "thinking")) {
        g->thoughts = request_get(block, "thinking");
    } else if (!user && request_is(type, "redacted_thinking")) {
        return; /* it cannot be read here */
    } else {
        SERVE_FAULT(rd, "messages", "%s.type: %s is not one that is supported here", where,
                    request_show(rd, type, buf));
    }
}

static void end_message(struct serve_reader *rd, const char *role, struct gathered *g)
{
    size_t n_call = json_array_size(g->calls);
    if (json_array_size(g->texts) == 0 && n_call == 0 && g->thoughts == NULL)
        return; /* results alone */
    json_t *text = json_array_size(g->texts) > 0 ? text_of(rd, "messages", g->texts)
                   : n_call > 0                  ? json_null()
                                                 : json_string("");
    json_t *m = request_need(rd, json_pack("{s:s, s:o?}", "role", role, "content", text));
    if (m != NULL && n_call > 0)
        request_set(rd, m, "tool_calls", json_incref(g->calls));
    if (m != NULL && g->thoughts != NULL)
        request_set(rd, m, "reasoning_content", json_incref(g->thoughts));
    if (m != NULL)
        request_append(rd, g->list, m);
}

static void add_message(struct serve_reader *rd, size_t i, const json_t *m, json_t *list)
{
    static const char *const roles[] = {"user", "assistant", "system", NULL};
    char where[64];
    snprintf(where, sizeof(where), "messages[%zu].role", i);
    int role = request_word(rd, "messages", where, request_get(m, "role"), roles);
    json_t *content = request_get(m, "content");
    snprintf(where, sizeof(where), "messages[%zu].content", i);
    if (role < 0)
        return;
    if (!json_is_array(content)) {
        if (content == NULL && role == 1) /* an answer of nothing */
            request_append(rd, list, json_pack("{s:s, s:s}", "role", roles[role], "content", ""));
        else if (request_text(rd, "messages", where, content))
            request_append(rd, list,
                           json_pack("{s:s, s:O}", "role", roles[role], "content", content));
        return;
    }
    struct gathered g = {.list = list, .texts = json_array(), .calls = json_array()};
    if (g.texts == NULL || g.calls == NULL)
        request_no_memory(rd);
    for (size_t k = 0; k < json_array_size(content) && !request_is_bad(rd); k++) {
        snprintf(where, sizeof(where), "messages[%zu].content[%zu]", i, k);
        add_block(rd, where, json_array_get(content, k), role != 1, &g);
    }
    if (!request_is_bad(rd))
        end_message(rd, roles[role], &g);
    json_decref(g.texts);
    json_decref(g.calls);
}

static void read_messages(struct serve_reader *rd, const json_t *body, json_t *out)
{
    const json_t *system = request_get(body, "system"), *messages = request_get(body, "messages");
    json_t *list = request_need(rd, json_array());
    if (list == NULL)
        return;
    request_set(rd, out, "messages", list);
    if (messages == NULL)
        SERVE_FAULT(rd, "messages", "messages: is missing");
    else if (!json_is_array(messages) || json_array_size(messages) == 0)
        request_wrong_type(rd, "messages", messages, "an array of messages");
    json_t *text = system != NULL && !request_is_bad(rd) ? text_of(rd, "system", system) : NULL;
    if (text != NULL && json_string_length(text) > 0)
        request_append(rd, list, json_pack("{s:s, s:O}", "role", "system", "content", text));
    json_decref(text);
    for (size_t i = 0; i < json_array_size(messages) && !request_is_bad(rd); i++)
        add_message(rd, i, json_array_get(messages, i), list);
    /* An answer that the client began. */
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    if (request_is(json_object_get(last, "role"), "assistant") &&
        json_object_get(last, "tool_calls") == NULL)
        request_set(rd, out, "continue_final_message", json_true());
}

/* ---- tools ---- */

static void read_tools(struct serve_reader *rd, const json_t *body, json_t *out)
{
    char where[64];
    const json_t *tools = request_get(body, "tools");
    json_t *list = tools != NULL ? request_need(rd, json_array()) : NULL;
    if (tools != NULL && !json_is_array(tools))
        request_wrong_type(rd, "tools", tools, "an array");
    for (size_t i = 0; list != NULL && i < json_array_size(tools) && !request_is_bad(rd); i++) {
        const json_t *tool = json_array_get(tools, i), *type = request_get(tool, "type");
        json_t *name = request_get(tool, "name"), *schema = request_get(tool, "input_schema");
        json_t *about = request_get(tool, "description"), *strict = request_get(tool, "strict");
        if (type != NULL && !request_is(type, "custom"))
            continue; /* of Anthropic's own servers */
        snprintf(where, sizeof(where), "tools[%zu].name", i);
        if (request_string(rd, "tools", where, name) == NULL)
            break;
        request_append(rd, list,
                       json_pack("{s:s, s:{s:O, s:O*, s:O*, s:O*}}", "type", "function", "function",
                                 "name", name, "description", about, "parameters", schema, "strict",
                                 strict));
    }
    if (list != NULL)
        request_set(rd, out, "tools", list);
}

static void read_choice(struct serve_reader *rd, const json_t *body, json_t *out)
{
    static const char *const types[] = {"auto", "any", "tool", "none", NULL};
    const json_t *choice = request_get(body, "tool_choice");
    const json_t *single = request_get(choice, "disable_parallel_tool_use");
    if (choice == NULL)
        return;
    int i = request_word(rd, "tool_choice", "tool_choice.type", request_get(choice, "type"), types);
    if (i == 2)
        request_set(rd, out, "tool_choice",
                    json_pack("{s:s, s:{s:O*}}", "type", "function", "function", "name",
                              request_get(choice, "name")));
    else if (i >= 0)
        request_set(rd, out, "tool_choice",
                    json_string(i == 0   ? "auto"
                                : i == 1 ? "required"
                                         : "none"));
    if (single != NULL && !json_is_boolean(single))
        request_wrong_type(rd, "tool_choice", single, "true or false (disable_parallel_tool_use)");
    else if (json_is_true(single))
        request_set(rd, out, "parallel_tool_calls", json_false());
}

/* ---- the rest ---- */

static void read_thinking(struct serve_reader *rd, const json_t *body, json_t *out)
{
    static const char *const types[] = {"disabled", "enabled", "adaptive", NULL};
    const json_t *thinking = request_get(body, "thinking");
    if (thinking == NULL)
        return;
    int i = request_word(rd, "thinking", "thinking.type", request_get(thinking, "type"), types);
    request_set(rd, out, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", i != 0));
}

/* The form of the answer. Beta versions of the API had the format in a field of its own. */
static void read_output(struct serve_reader *rd, const json_t *body, json_t *out)
{
    static const char *const types[] = {"json_schema", NULL};
    const json_t *config = request_get(body, "output_config");
    const json_t *format = request_get(config, "format");
    json_t *effort = request_get(config, "effort");
    if (config != NULL && !json_is_object(config))
        request_wrong_type(rd, "output_config", config, "an object");
    if (effort != NULL)
        request_set(rd, out, "reasoning_effort", json_incref(effort));
    if (format == NULL)
        format = request_get(body, "output_format");
    if (format == NULL || request_word(rd, "output_config", "output_config.format.type",
                                       request_get(format, "type"), types) < 0)
        return;
    request_set(rd, out, "response_format",
                json_pack("{s:s, s:{s:O*}}", "type", "json_schema", "json_schema", "schema",
                          request_get(format, "schema")));
}

static void read_limits(struct serve_reader *rd, const json_t *body, json_t *out)
{
    char buf[SERVE_SHOW];
    json_t *most = request_get(body, "max_tokens"), *stop = request_get(body, "stop_sequences");
    int32_t n;
    if (most == NULL && rd->r->api == SERVE_MESSAGES)
        SERVE_FAULT(rd, "max_tokens", "max_tokens: is missing");
    else if (most != NULL && (!request_ceiling(most, &n) || n < 1))
        SERVE_FAULT(rd, "max_tokens", "max_tokens: %s is not a whole number of 1 or more",
                    request_show(rd, most, buf));
    if (most != NULL)
        request_set(rd, out, "max_tokens", json_incref(most));
    if (stop != NULL && !json_is_array(stop))
        request_wrong_type(rd, "stop_sequences", stop, "an array of strings");
    else if (stop != NULL)
        request_set(rd, out, "stop", json_incref(stop));
}

json_t *request_from_messages(struct serve_reader *rd, const json_t *body)
{
    /* the same by the same names; those behind `stream` are ours */
    static const char *const same[] = {
        "model",   "temperature", "top_p",   "top_k",    "stream",       "seed", "min_p",
        "id_slot", "cache_salt",  "timeout", "priority", "cache_prompt", "pith"};
    json_t *out = request_need(rd, json_object());
    if (out == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        json_t *value = request_get(body, same[i]);
        if (value != NULL)
            request_set(rd, out, same[i], json_incref(value));
    }
    read_limits(rd, body, out);
    read_messages(rd, body, out);
    read_tools(rd, body, out);
    read_choice(rd, body, out);
    read_thinking(rd, body, out);
    read_output(rd, body, out);
    return out;
}
