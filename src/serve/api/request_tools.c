/*
 * request_tools.c - the tools that a chat may call, and whether it may or must. It knows OpenAI's
 * form, and no model's way to write calls.
 */
#include "serve/api/request_body.h"

#include <stdio.h>
#include <string.h>

#define TOOLS_MAX 1024

static void check_function(struct serve_reader *rd, size_t i, const json_t *function)
{
    char where[64], buf[SERVE_SHOW];
    const json_t *parameters = request_get(function, "parameters");
    snprintf(where, sizeof(where), "tools[%zu].function.name", i);
    const char *name = request_string(rd, "tools", where, request_get(function, "name"));
    if (name != NULL && name[0] == '\0')
        SERVE_FAULT(rd, "tools", "%s: \"\" is no name", where);
    snprintf(where, sizeof(where), "tools[%zu].function.parameters", i);
    if (parameters != NULL && !json_is_object(parameters))
        SERVE_FAULT(rd, "tools", "%s: %s is not an object", where,
                    request_show(rd, parameters, buf));
}

/* The tools as functions, for the caller; NULL: a fault. */
static json_t *read_list(struct serve_reader *rd, const json_t *tools)
{
    static const char *const types[] = {"function", "custom", NULL};
    char where[64];
    json_t *list = request_need(rd, json_array());
    for (size_t i = 0; i < json_array_size(tools) && !request_is_bad(rd); i++) {
        json_t *tool = json_array_get(tools, i);
        snprintf(where, sizeof(where), "tools[%zu].type", i);
        int type = request_word(rd, "tools", where, request_get(tool, "type"), types);
        if (type == 0)
            check_function(rd, i, request_get(tool, "function"));
        json_t *one = type == 1 ? request_custom_function(rd, i, tool) : json_incref(tool);
        if (one != NULL)
            request_append(rd, list, one);
    }
    return list;
}

/* The name in a tool, or in what names one. */
static const json_t *name_in(const json_t *tool)
{
    const char *key = request_is(request_get(tool, "type"), "custom") ? "custom" : "function";
    return request_get(request_get(tool, key), "name");
}

static const char *name_of(const json_t *tool)
{
    return json_string_value(request_get(request_get(tool, "function"), "name"));
}

static json_t *find_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i);
        if (request_is(name_in(tool), name))
            return tool;
    }
    return NULL;
}

/* The given tool that {"type": "function", "function": {"name"}} names, or the same with "custom".
   NULL: none, which is a fault. Other APIs have the name beside the type. */
static json_t *named_tool(struct serve_reader *rd, const char *at, const json_t *choice,
                          const json_t *tools)
{
    bool other =
        rd->r->api == SERVE_MESSAGES || rd->r->api == SERVE_COUNT || rd->r->api == SERVE_RESPONSES;
    const json_t *name = name_in(choice);
    bool custom = request_is(request_get(choice, "type"), "custom");
    char where[96], buf[SERVE_SHOW];
    snprintf(where, sizeof(where), "%s%s", at,
             other    ? ".name"
             : custom ? ".custom.name"
                      : ".function.name");
    const char *text = request_string(rd, "tool_choice", where, name);
    json_t *tool = text != NULL ? find_tool(tools, text) : NULL;
    if (text != NULL && tool == NULL)
        SERVE_FAULT(rd, "tool_choice", "%s: %s is none of %zu tools", where,
                    request_show(rd, name, buf), json_array_size(tools));
    return tool;
}

/* {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}: as if these were all tools.
   Responses have both beside the type. Returns them in the order that they were given in, for the
   caller; NULL: no memory. */
static json_t *read_allowed(struct serve_reader *rd, const json_t *choice, json_t *tools)
{
    static const char *const modes[] = {"auto", "required", NULL};
    static const enum serve_choice choices[] = {SERVE_CHOICE_AUTO, SERVE_CHOICE_REQUIRED};
    const json_t *allowed = request_get(choice, "allowed_tools"),
                 *names = request_get(allowed, "tools");
    const char *at = rd->r->api == SERVE_RESPONSES ? "tool_choice" : "tool_choice.allowed_tools";
    json_t *chosen = request_need(rd, json_array());
    char where[64];
    snprintf(where, sizeof(where), "%s.mode", at);
    int mode = request_word(rd, "tool_choice", where, request_get(allowed, "mode"), modes);
    if (mode >= 0)
        rd->r->calls.choice = choices[mode];
    if (!request_is_bad(rd) && json_array_size(names) == 0)
        SERVE_FAULT(rd, "tool_choice", "%s.tools: must be an array of tools", at);
    for (size_t i = 0; i < json_array_size(names) && !request_is_bad(rd); i++) {
        snprintf(where, sizeof(where), "%s.tools[%zu]", at, i);
        (void)named_tool(rd, where, json_array_get(names, i), tools);
    }
    for (size_t i = 0; i < json_array_size(tools) && !request_is_bad(rd); i++) {
        json_t *tool = json_array_get(tools, i);
        if (find_tool(names, name_of(tool)) != NULL)
            request_append(rd, chosen, json_incref(tool));
    }
    return chosen;
}

/* A choice that is an object. The tools that may be called, for the caller; NULL: no memory. */
static json_t *read_some(struct serve_reader *rd, const json_t *choice, json_t *tools)
{
    static const char *const types[] = {"function", "allowed_tools", "custom", NULL};
    const json_t *type = request_get(choice, "type");
    int i = type != NULL ? request_word(rd, "tool_choice", "tool_choice.type", type, types) : 0;
    if (i == 1)
        return read_allowed(rd, choice, tools);
    const json_t *tool = i >= 0 ? named_tool(rd, "tool_choice", choice, tools) : NULL;
    if (tool != NULL) {
        rd->r->calls.choice = SERVE_CHOICE_REQUIRED;
        rd->r->calls.name = name_of(tool);
    }
    return json_incref(tools);
}

static void read_word(struct serve_reader *rd, const json_t *choice, const json_t *tools)
{
    static const char *const words[] = {"auto", "none", "required", NULL};
    int i = request_word(rd, "tool_choice", "tool_choice", choice, words);
    if (i >= 0)
        rd->r->calls.choice = (enum serve_choice)i;
    if (i == SERVE_CHOICE_REQUIRED && json_array_size(tools) == 0)
        SERVE_FAULT(rd, "tool_choice", "tool_choice: \"required\" without tools");
}

void request_read_tools(struct serve_reader *rd, const json_t *body)
{
    const json_t *given = request_get(body, "tools"), *choice = request_get(body, "tool_choice");
    const json_t *parallel = request_get(body, "parallel_tool_calls");
    size_t n = json_array_size(given);
    if (given != NULL && !json_is_array(given))
        request_wrong_type(rd, "tools", given, "an array");
    if (n > TOOLS_MAX)
        SERVE_FAULT(rd, "tools", "tools: %zu are more than %d", n, TOOLS_MAX);
    json_t *list = request_is_bad(rd) ? NULL : read_list(rd, given);
    if (parallel != NULL && !json_is_boolean(parallel))
        request_wrong_type(rd, "parallel_tool_calls", parallel, "true or false");
    rd->r->calls.one = json_is_false(parallel);
    if (choice != NULL && !json_is_object(choice) && !request_is_bad(rd))
        read_word(rd, choice, list);
    if (request_is_bad(rd)) {
        json_decref(list);
        return;
    }
    json_t *tools = json_is_object(choice) ? read_some(rd, choice, list) : json_incref(list);
    json_decref(list);
    if (n == 0 || rd->r->calls.choice == SERVE_CHOICE_NONE || request_is_bad(rd)) {
        json_decref(tools);
        return;
    }
    rd->r->calls.tools = tools;
    request_set(rd, rd->r->source.chat, "tools", tools);
}
