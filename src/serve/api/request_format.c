/*
 * request_format.c - the form of an answer: response_format, json_schema, grammar, and a choice of
 * tools that requires a call. A form that cannot be promised is refused, never answered
 * unconstrained.
 */
#include "serve/api/request_body.h"

#include <stdlib.h>
#include <string.h>

/* Where the prompt opened a block of thoughts, the answer is free up to its end. */
static pith_grammar_params params_of(const struct serve_request *r, const char **trigger)
{
    pith_grammar_params params;
    size_t len = 0;
    const char *text = serve_request_text(r, &len);
    pith_grammar_params_default(&params);
    if (text != NULL && serve_tools_prompt_thinks(&r->calls.style, text, len)) {
        *trigger = r->calls.style.think_close;
        params.trigger = trigger;
        params.n_trigger = 1;
    }
    return params;
}

/* One way to say it is enough; two might contradict each other. */
static bool is_first(struct serve_reader *rd, const char *key)
{
    if (rd->r->format.field != NULL)
        SERVE_FAULT(rd, key, "%s: is given beside %s", key, rd->r->format.field);
    rd->r->format.field = key;
    return !request_is_bad(rd);
}

static void set_grammar(struct serve_reader *rd, const char *key, pith_status status,
                        const pith_error *err)
{
    if (status == PITH_NOMEM)
        request_no_memory(rd);
    else if (status != PITH_OK)
        SERVE_FAULT(rd, key, "%s: %s", key, err->message);
    else
        rd->r->params.sample.grammar = rd->r->format.grammar;
}

static void use_schema(struct serve_reader *rd, const char *key, const json_t *schema)
{
    pith_error err;
    const char *trigger;
    if (!is_first(rd, key))
        return;
    char *text = serve_json_dump(&rd->r->source.numbers, schema, JSON_COMPACT);
    if (text == NULL) {
        request_no_memory(rd);
        return;
    }
    pith_grammar_params params = params_of(rd->r, &trigger);
    if (rd->setup->model != NULL)
        set_grammar(rd, key,
                    pith_grammar_create_json_schema(rd->setup->model, text, strlen(text), &params,
                                                    &rd->r->format.grammar, &err),
                    &err);
    free(text);
}

static void use_gbnf(struct serve_reader *rd, const json_t *grammar)
{
    pith_error err;
    const char *trigger;
    if (!request_text(rd, "grammar", "grammar", grammar) || json_string_length(grammar) == 0 ||
        !is_first(rd, "grammar"))
        return;
    pith_grammar_params params = params_of(rd->r, &trigger);
    if (rd->setup->model != NULL)
        set_grammar(rd, "grammar",
                    pith_grammar_create_gbnf(rd->setup->model, json_string_value(grammar),
                                             json_string_length(grammar), &params,
                                             &rd->r->format.grammar, &err),
                    &err);
}

/* Any object, or the object that a schema describes. */
static void read_response_format(struct serve_reader *rd, const json_t *format)
{
    static const char *const types[] = {"text", "json_object", "json_schema", NULL};
    const json_t *schema = request_get(request_get(format, "json_schema"), "schema");
    if (!json_is_object(format)) {
        request_wrong_type(rd, "response_format", format, "an object");
        return;
    }
    int type = request_get(format, "type") == NULL
                   ? 0
                   : request_word(rd, "response_format", "response_format.type",
                                  request_get(format, "type"), types);
    if (type <= 0)
        return;
    if (type == 1 && schema == NULL)
        schema = request_get(format, "schema"); /* llama-server's */
    if (type == 2 && schema == NULL) {
        SERVE_FAULT(rd, "response_format", "response_format.json_schema.schema: is missing");
        return;
    }
    json_t *any = schema == NULL ? request_need(rd, json_pack("{s:s}", "type", "object")) : NULL;
    if (!request_is_bad(rd))
        use_schema(rd, "response_format", schema != NULL ? schema : any);
    json_decref(any);
}

/* ---- calls ---- */

/* A tool whose arguments are promised to follow its schema. */
static bool is_strict(const json_t *tools)
{
    size_t i;
    json_t *tool;
    bool strict = false;
    json_array_foreach((json_t *)tools, i, tool) strict =
        strict || json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
    return strict;
}

static void constrain_calls(struct serve_reader *rd)
{
    pith_error err;
    struct serve_request *r = rd->r;
    bool required = r->calls.choice == SERVE_CHOICE_REQUIRED;
    size_t len = 0;
    const char *text = serve_request_text(r, &len);
    if (r->calls.tools == NULL || (!required && !is_strict(r->calls.tools)))
        return;
    const char *key = required ? "tool_choice" : "tools";
    r->calls.strict = !required;
    if (!is_first(rd, key) || rd->setup->model == NULL)
        return;
    const struct serve_tools_grammar_options options = {
        .tools = r->calls.tools,
        .numbers = &r->source.numbers,
        .name = r->calls.name,
        .choice = required ? SERVE_TOOLS_REQUIRED : SERVE_TOOLS_AUTO,
        .parallel = !r->calls.one,
        .thinking = text != NULL && serve_tools_prompt_thinks(&r->calls.style, text, len),
    };
    set_grammar(rd, key,
                request_call_grammar(rd->setup->model, &r->calls.style, &options,
                                     &rd->r->format.grammar, &err),
                &err);
}

void request_read_format(struct serve_reader *rd, const json_t *body)
{
    const json_t *format = request_get(body, "response_format");
    const json_t *schema = request_get(body, "json_schema"),
                 *grammar = request_get(body, "grammar");
    if (format != NULL)
        read_response_format(rd, format);
    if (schema != NULL && !request_is_bad(rd))
        use_schema(rd, "json_schema", schema);
    if (grammar != NULL && !request_is_bad(rd))
        use_gbnf(rd, grammar);
    if (!request_is_bad(rd))
        constrain_calls(rd);
}
