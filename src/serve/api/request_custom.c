/*
 * request_custom.c - OpenAI's custom tools, whose input is a text. The model knows them as
 * functions with one argument, "input": a string, which fits their regular expression if they have
 * one.
 */
#include "serve/api/request_body.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether a grammar can be made of the schema; else a fault. */
static void check_schema(struct serve_reader *rd, const char *where, const json_t *schema)
{
    pith_error err;
    char *text = serve_json_dump(&rd->r->source.numbers, schema, JSON_COMPACT);
    if (text == NULL) {
        request_no_memory(rd);
        return;
    }
    if (request_check_schema(text, &err) != PITH_OK)
        SERVE_FAULT(rd, "tools", "%s: %s", where, err.message);
    free(text);
}

/* A schema of texts that are matched as a whole, which anchors at the ends say already. */
static json_t *pattern_schema(struct serve_reader *rd, const char *where, const json_t *definition)
{
    const char *text = json_string_value(definition);
    size_t len = json_string_length(definition);
    if (len > 0 && text[0] == '^') {
        text++;
        len--;
    }
    if (len > 0 && text[len - 1] == '$' && (len < 2 || text[len - 2] != '\\'))
        len--;
    json_t *pattern = json_sprintf("^(?:%.*s)$", (int)len, text);
    json_t *schema =
        request_need(rd, json_pack("{s:s, s:o}", "type", "string", "pattern", pattern));
    if (schema != NULL)
        check_schema(rd, where, schema);
    return schema;
}

/* The schema of the input; *strict: whether it says more than that it is a text. NULL: a fault. */
static json_t *input_schema(struct serve_reader *rd, size_t i, const json_t *format, bool *strict)
{
    static const char *const types[] = {"text", "grammar", NULL}, *const ways[] = {"regex", NULL};
    const json_t *grammar = request_get(format, "grammar");
    char where[80], buf[SERVE_SHOW];
    snprintf(where, sizeof(where), "tools[%zu].custom.format", i);
    if (format != NULL && !json_is_object(format)) {
        SERVE_FAULT(rd, "tools", "%s: %s is not an object", where, request_show(rd, format, buf));
        return NULL;
    }
    snprintf(where, sizeof(where), "tools[%zu].custom.format.type", i);
    int type =
        format == NULL ? 0 : request_word(rd, "tools", where, request_get(format, "type"), types);
    if (type == 0)
        return request_need(rd, json_pack("{s:s}", "type", "string"));
    snprintf(where, sizeof(where), "tools[%zu].custom.format.grammar.syntax", i);
    if (type < 0 || request_word(rd, "tools", where, request_get(grammar, "syntax"), ways) < 0)
        return NULL;
    snprintf(where, sizeof(where), "tools[%zu].custom.format.grammar.definition", i);
    json_t *definition = request_get(grammar, "definition");
    if (request_string(rd, "tools", where, definition) == NULL)
        return NULL;
    *strict = rd->r->calls.fits = true;
    return pattern_schema(rd, where, definition);
}

json_t *request_custom_function(struct serve_reader *rd, size_t i, const json_t *tool)
{
    const json_t *custom = request_get(tool, "custom");
    json_t *name = request_get(custom, "name"), *about = request_get(custom, "description");
    bool strict = false;
    char where[64];
    snprintf(where, sizeof(where), "tools[%zu].custom.name", i);
    const char *text = request_string(rd, "tools", where, name);
    if (text != NULL && text[0] == '\0')
        SERVE_FAULT(rd, "tools", "%s: \"\" is no name", where);
    json_t *input = input_schema(rd, i, request_get(custom, "format"), &strict);
    if (request_is_bad(rd) || input == NULL) {
        json_decref(input);
        return NULL;
    }
    json_t *function =
        request_need(rd, json_pack("{s:s, s:{s:O, s:O*, s:{s:s, s:{s:o}, s:[s], s:b}}}", "type",
                                   "function", "function", "name", name, "description", about,
                                   "parameters", "type", "object", "properties", "input", input,
                                   "required", "input", "additionalProperties", 0));
    if (function != NULL && strict)
        request_set(rd, json_object_get(function, "function"), "strict", json_true());
    return function;
}

json_t *request_custom_arguments(struct serve_reader *rd, const char *where, json_t *input)
{
    return request_text(rd, "messages", where, input)
               ? request_need(rd, json_pack("{s:O}", "input", input))
               : NULL;
}

bool request_is_custom(const struct serve_request *r, const char *name)
{
    size_t i;
    const json_t *tool;
    json_array_foreach(json_object_get(r->source.body, "tools"), i, tool)
    {
        const json_t *own = request_get(request_get(tool, "custom"), "name");
        if (request_is(json_object_get(tool, "type"), "custom") && request_is(own, name))
            return true;
    }
    return false;
}
