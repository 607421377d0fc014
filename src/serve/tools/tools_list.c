/*
 * tools_list.c - the tools that a request gives, in the forms of the APIs: OpenAI's chat
 * ({"function": {...}}), its responses ({"name", "parameters"}), Anthropic's ("input_schema").
 */
#include "serve/tools/tools_parser.h"

const json_t *tools_function(const json_t *tool)
{
    const json_t *function = json_object_get(tool, "function");
    return json_is_object(function) ? function : tool;
}

const json_t *tools_function_schema(const json_t *function)
{
    const json_t *schema = json_object_get(function, "parameters");
    return schema != NULL ? schema : json_object_get(function, "input_schema");
}

static const json_t *find(const struct serve_tools *t, const char *name)
{
    size_t n = json_array_size(t->options.tools);
    for (size_t i = 0; i < n; i++) {
        const json_t *function = tools_function(json_array_get(t->options.tools, i));
        const char *its = json_string_value(json_object_get(function, "name"));
        if (its != NULL && strcmp(its, name) == 0)
            return function;
    }
    return NULL;
}

bool tools_knows(const struct serve_tools *t, const char *name)
{
    return find(t, name) != NULL;
}

static bool names_string(const json_t *type)
{
    const char *name = json_string_value(type);
    if (name != NULL)
        return strcmp(name, "string") == 0;
    for (size_t i = 0; i < json_array_size(type); i++) {
        name = json_string_value(json_array_get(type, i));
        if (name != NULL && strcmp(name, "string") == 0)
            return true;
    }
    return false;
}

/* A schema's own word on it: 1 a string, 0 none, -1 it says nothing. */
static int says_text(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    if (type != NULL)
        return names_string(type);
    const json_t *values = json_object_get(schema, "enum");
    for (size_t i = 0; i < json_array_size(values); i++)
        if (json_is_string(json_array_get(values, i)))
            return 1;
    const json_t *constant = json_object_get(schema, "const");
    if (constant != NULL)
        return json_is_string(constant);
    return values != NULL || json_object_get(schema, "$ref") != NULL ? 0 : -1;
}

bool tools_param_is_text(const struct serve_tools *t, const char *name, const char *key)
{
    const json_t *all = json_object_get(tools_function_schema(find(t, name)), "properties");
    const json_t *schema = json_object_get(all, key);
    int says = says_text(schema);
    if (says >= 0)
        return says;
    static const char *const unions[] = {"anyOf", "oneOf"};
    bool any = false;
    for (size_t u = 0; u < PI_LEN(unions); u++) {
        const json_t *branches = json_object_get(schema, unions[u]);
        for (size_t i = 0; i < json_array_size(branches); i++) {
            any = true;
            if (says_text(json_array_get(branches, i)) != 0)
                return true;
        }
    }
    return !any;
}
