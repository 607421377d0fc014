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

/* ---- a schema beside tools ---- */

static struct serve_tools_grammar_options call_options(const struct serve_request *r,
                                                       enum serve_tools_choice choice)
{
    size_t len = 0;
    const char *text = serve_request_text(r, &len);
    return (struct serve_tools_grammar_options){
        .tools = r->calls.tools,
        .numbers = &r->source.numbers,
        .name = r->calls.name,
        .choice = choice,
        .parallel = !r->calls.one,
        .thinking = text != NULL && serve_tools_prompt_thinks(&r->calls.style, text, len),
    };
}

static bool accepts(pith_grammar_state *state, const char *text)
{
    return text != NULL &&
           pith_grammar_state_accept_bytes(state, text, strlen(text), NULL) == PITH_OK;
}

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

/* Whether an answer of the grammar may begin as a call that is an object alone does, and where that
   is not known. */
static bool may_begin_as_call(const json_t *tools, const pith_grammar *grammar)
{
    bool may = false;
    for (size_t i = 0; i < json_array_size(tools) && !may; i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        pith_grammar_state *state = NULL;
        may = pith_grammar_state_create(grammar, &state, NULL) != PITH_OK ||
              (accepts(state, "{\"name\": \"") && accepts(state, name) && accepts(state, "\""));
        pith_grammar_state_free(state);
    }
    return may;
}

/* Whether an answer may be calls in place of text of a schema. In forms without a grammar it may
   not. */
static bool may_call(const struct serve_reader *rd)
{
    const struct serve_request *r = rd->r;
    int32_t n, n_first;
    return r->calls.tools != NULL &&
           (r->calls.choice == SERVE_CHOICE_REQUIRED || rd->setup->model == NULL ||
            serve_tools_triggers(r->calls.style.form, false, &n, &n_first) != NULL);
}

/* Makes the answer calls, or text of the schema, whose grammar alone is there. An object alone that
   might be either is a call where nothing is promised of calls. Where a call is required nothing is
   left of the schema. */
static void allow_calls(struct serve_reader *rd, const char *schema)
{
    pith_error err;
    struct serve_request *r = rd->r;
    struct serve_tools_grammar_options options = call_options(r, SERVE_TOOLS_OR_ANSWER);
    pith_grammar *alone = r->format.grammar; /* NULL: there is no model */
    bool required = r->calls.choice == SERVE_CHOICE_REQUIRED;
    r->format.grammar = NULL;
    r->params.sample.grammar = NULL;
    r->calls.or_answer = !required;
    if (required)
        r->format.field = NULL;
    if (!required && alone != NULL) {
        bool alike = may_begin_as_call(r->calls.tools, alone);
        r->calls.strict = !alike || is_strict(r->calls.tools);
        r->calls.no_alone = options.no_alone = alike && r->calls.strict;
        options.answer = schema;
        set_grammar(rd, "tools",
                    request_call_grammar(rd->setup->model, &r->calls.style, &options,
                                         &r->format.grammar, &err),
                    &err);
    }
    pith_grammar_free(alone);
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
    bool calls = may_call(rd);
    if (calls) /* the schema's grammar is asked what it has, and goes */
        params.n_trigger = 0;
    if (rd->setup->model != NULL)
        set_grammar(rd, key,
                    pith_grammar_create_json_schema(rd->setup->model, text, strlen(text), &params,
                                                    &rd->r->format.grammar, &err),
                    &err);
    if (calls && !request_is_bad(rd))
        allow_calls(rd, text);
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

static void constrain_calls(struct serve_reader *rd)
{
    pith_error err;
    struct serve_request *r = rd->r;
    bool required = r->calls.choice == SERVE_CHOICE_REQUIRED;
    if (r->calls.tools == NULL || r->calls.or_answer || (!required && !is_strict(r->calls.tools)))
        return;
    const char *key = required ? "tool_choice" : "tools";
    r->calls.strict = !required;
    if (!is_first(rd, key) || rd->setup->model == NULL)
        return;
    const struct serve_tools_grammar_options options =
        call_options(r, required ? SERVE_TOOLS_REQUIRED : SERVE_TOOLS_AUTO);
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
    if (rd->r->calls.tools != NULL && rd->r->calls.fits && rd->setup->model != NULL &&
        serve_tools_has_tags(rd->r->calls.style.form))
        SERVE_FAULT(rd, "tools",
                    "tools: an input that fits an expression is not supported in the model's form "
                    "of calls \"%s\"",
                    serve_tools_form_name(rd->r->calls.style.form));
    if (!request_is_bad(rd))
        constrain_calls(rd);
}
