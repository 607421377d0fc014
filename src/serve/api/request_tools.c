/*
 * request_tools.c - the tools that a chat may call, and whether it may or must. It knows OpenAI's
 * form, and no model's way to write calls.
 */
#include "serve/api/request_body.h"

#include <stdio.h>
#include <string.h>

#define TOOLS_MAX 1024

static void check_tool(struct serve_reader *rd, size_t i, const json_t *tool)
{
    char where[64];
    const json_t *function = request_get(tool, "function");
    const json_t *type = request_get(tool, "type");
    const json_t *parameters = request_get(function, "parameters");
    static const char *const types[] = {"function", NULL};
    snprintf(where, sizeof(where), "tools[%zu].type", i);
    if (request_word(rd, "tools", where, type, types) < 0)
        return;
    snprintf(where, sizeof(where), "tools[%zu].function.name", i);
    const char *name = request_string(rd, "tools", where, request_get(function, "name"));
    if (name != NULL && name[0] == '\0')
        SERVE_FAULT(rd, "tools", "%s: \"\" is no name", where);
    snprintf(where, sizeof(where), "tools[%zu].function.parameters", i);
    if (parameters != NULL && !json_is_object(parameters))
        request_wrong_type(rd, where, parameters, "an object");
}

static const json_t *find_tool(const json_t *tools, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach(
        (json_t *)tools, i,
        tool) if (request_is(json_object_get(json_object_get(tool, "function"), "name"),
                             name)) return tool;
    return NULL;
}

/* {"type": "function", "function": {"name"}}: this one, and no other. Other APIs have the name
   beside the type. */
static void read_named(struct serve_reader *rd, const json_t *choice, const json_t *tools)
{
    static const char *const types[] = {"function", NULL};
    bool other =
        rd->r->api == SERVE_MESSAGES || rd->r->api == SERVE_COUNT || rd->r->api == SERVE_RESPONSES;
    const char *where = other ? "tool_choice.name" : "tool_choice.function.name";
    const json_t *type = request_get(choice, "type");
    const json_t *name = request_get(request_get(choice, "function"), "name");
    char buf[SERVE_SHOW];
    if (type != NULL && request_word(rd, "tool_choice", "tool_choice.type", type, types) < 0)
        return;
    const char *text = request_string(rd, "tool_choice", where, name);
    if (text == NULL)
        return;
    if (find_tool(tools, text) == NULL)
        SERVE_FAULT(rd, "tool_choice", "%s: %s is none of %zu tools", where,
                    request_show(rd, name, buf), json_array_size(tools));
    rd->r->calls.choice = SERVE_CHOICE_REQUIRED;
    rd->r->calls.name = text;
}

static void read_choice(struct serve_reader *rd, const json_t *choice, const json_t *tools)
{
    static const char *const words[] = {"auto", "none", "required", NULL};
    if (choice == NULL)
        return;
    if (json_is_object(choice)) {
        read_named(rd, choice, tools);
        return;
    }
    int i = request_word(rd, "tool_choice", "tool_choice", choice, words);
    if (i >= 0)
        rd->r->calls.choice = (enum serve_choice)i;
    if (i == SERVE_CHOICE_REQUIRED && json_array_size(tools) == 0)
        SERVE_FAULT(rd, "tool_choice", "tool_choice: \"required\" without tools");
}

void request_read_tools(struct serve_reader *rd, const json_t *body)
{
    json_t *tools = request_get(body, "tools");
    const json_t *parallel = request_get(body, "parallel_tool_calls");
    size_t n = json_array_size(tools);
    if (tools != NULL && !json_is_array(tools))
        request_wrong_type(rd, "tools", tools, "an array");
    if (n > TOOLS_MAX)
        SERVE_FAULT(rd, "tools", "tools: %zu are more than %d", n, TOOLS_MAX);
    for (size_t i = 0; i < n && !request_is_bad(rd); i++)
        check_tool(rd, i, json_array_get(tools, i));
    if (parallel != NULL && !json_is_boolean(parallel))
        request_wrong_type(rd, "parallel_tool_calls", parallel, "true or false");
    rd->r->calls.one = json_is_false(parallel);
    if (!request_is_bad(rd))
        read_choice(rd, request_get(body, "tool_choice"), tools);
    if (n == 0 || rd->r->calls.choice == SERVE_CHOICE_NONE || request_is_bad(rd))
        return;
    rd->r->calls.tools = tools;
    request_set(rd, rd->r->source.chat, "tools", json_incref(tools));
}
