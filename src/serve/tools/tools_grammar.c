/*
 * tools_grammar.c - the grammar of calls in a form, as GBNF. Names and markers stand in its text;
 * arguments are rules that the compiler of JSON schemas fills in. Values between tags are text that
 * does not contain the closing tag, so that any other text may stand in them. Also the words that
 * explain tools to a model whose template does not.
 */
#include "serve/tools/tools_parser.h"

#include <stdarg.h>
#include <stdlib.h>
#include <stdio.h>

#include "base/mem.h"

#define DS(words) "<\xef\xbd\x9c" words "\xef\xbd\x9c>"
#define SP "\xe2\x96\x81"

/* A form's calls: begin (open NAME mid ARGUMENTS close) (again open ... close)* end. */
struct shape {
    enum serve_tool_form form;
    const char *trigger; /* calls begin with it */
    const char *before;  /* not AUTO: stands before the trigger; NULL: nothing */
    const char *answer;  /* OR_ANSWER: stands before the answer; NULL: nothing */
    const char *first, *open, *mid, *close;
    const char *again; /* between calls; NULL: there is one only */
    const char *end;
    const char *mid_gbnf; /* in place of mid: an expression */
    /* An object alone is a call, too, where the answer begins with it or behind the tag, in one
       of these spellings. They differ in the name of the arguments. NULL: it is none. */
    const char *alone_args;
    const char *const *spelling; /* [n_spelling] AUTO: the triggers, in place of trigger */
    int32_t n_spelling;
    const char *tag, *tag_end; /* around an object that does not begin the answer */
    /* PARAMS: key_open KEY key_end VALUE value_close for each parameter */
    const char *key_open, *key_end, *value_close;
};

/* How an object that is a call begins; what stands before is one of these, too. */
#define ALONE_0 "{\"name\": \""
#define ALONE_1 "{ \"name\": \""
#define ALONE_2 "{\n  \"name\": \""
#define ALONE_3 "{\n    \"name\": \""
#define ALONE_4 "{\"name\":\""
#define ALONE(tag) tag ALONE_0, tag ALONE_1, tag ALONE_2, tag ALONE_3, tag ALONE_4
#define N_ALONE 5
#define ANY_OBJECT "{\"type\":\"object\"}"
#define GAP_RULE "gap ::= (\" \" | \"\\n  \" | \"\\n    \")?\n"
#define FENCE "```json\n"
#define PYTHON_TAG "<|python_tag|>"

static const char *const hermes_spelling[] = {ALONE(""), ALONE(FENCE), "<tool_call>"};
static const char *const llama3_spelling[] = {ALONE(""), ALONE(PYTHON_TAG)};

static const struct shape shapes[] = {
    {.form = SERVE_TOOLS_GENERIC,
     .trigger = "<tool_call>",
     .open = "\n{\"name\": \"",
     .mid = "\", \"arguments\": ",
     .close = "}\n</tool_call>",
     .again = "\n<tool_call>",
     .alone_args = "arguments",
     .spelling = hermes_spelling,
     .n_spelling = PI_LEN(hermes_spelling),
     .tag = FENCE,
     .tag_end = "\n```"},
    {.form = SERVE_TOOLS_HERMES,
     .trigger = "<tool_call>",
     .open = "\n{\"name\": \"",
     .mid = "\", \"arguments\": ",
     .close = "}\n</tool_call>",
     .again = "\n<tool_call>",
     .alone_args = "arguments",
     .spelling = hermes_spelling,
     .n_spelling = PI_LEN(hermes_spelling),
     .tag = FENCE,
     .tag_end = "\n```"},
    {.form = SERVE_TOOLS_QWEN_CODER,
     .trigger = "<tool_call>",
     .open = "\n<function=",
     .mid = ">\n",
     .close = "</function>\n</tool_call>",
     .again = "\n<tool_call>",
     .key_open = "<parameter=",
     .key_end = ">\n",
     .value_close = "\n</parameter>\n"},
    {.form = SERVE_TOOLS_LLAMA3,
     .trigger = "{\"name\": \"",
     .mid = "\", \"parameters\": ",
     .close = "}",
     .alone_args = "parameters",
     .spelling = llama3_spelling,
     .n_spelling = PI_LEN(llama3_spelling),
     .tag = PYTHON_TAG},
    {.form = SERVE_TOOLS_MISTRAL,
     .trigger = "[TOOL_CALLS]",
     .first = "[",
     .open = "{\"name\": \"",
     .mid = "\", \"arguments\": ",
     .close = "}",
     .again = ", ",
     .end = "]"},
    {.form = SERVE_TOOLS_MISTRAL_ARGS,
     .trigger = "[TOOL_CALLS]",
     .mid = "[ARGS]",
     .again = "[TOOL_CALLS]"},
    {.form = SERVE_TOOLS_GPT_OSS,
     .trigger = " to=functions.",
     .before = "<|channel|>commentary",
     .answer = "<|channel|>final<|message|>",
     .mid_gbnf = "\"<|channel|>commentary\"? \" \"? \"<|constrain|>\"? \"json\"? \"<|message|>\""},
    {.form = SERVE_TOOLS_DEEPSEEK,
     .trigger = DS("tool" SP "calls" SP "begin"),
     .open = DS("tool" SP "call" SP "begin"),
     .mid = DS("tool" SP "sep"),
     .close = DS("tool" SP "call" SP "end"),
     .again = "",
     .end = DS("tool" SP "calls" SP "end")},
    {.form = SERVE_TOOLS_KIMI,
     .trigger = "<|tool_calls_section_begin|>",
     .open = "<|tool_call_begin|>functions.",
     .mid_gbnf = "\":\" [0-9]{1,4} \"<|tool_call_argument_begin|>\"",
     .close = "<|tool_call_end|>",
     .again = "",
     .end = "<|tool_calls_section_end|>"},
    {.form = SERVE_TOOLS_GLM,
     .trigger = "<tool_call>",
     .mid_gbnf = "\"\\n\"?",
     .close = "</tool_call>",
     .again = "\n<tool_call>",
     .key_open = "<arg_key>",
     .key_end = "</arg_key>\n<arg_value>",
     .value_close = "</arg_value>\n"},
    {.form = SERVE_TOOLS_SEED,
     .trigger = "<seed:tool_call>",
     .open = "\n<function=",
     .mid = ">\n",
     .close = "</function>\n</seed:tool_call>",
     .again = "\n<seed:tool_call>",
     .key_open = "<parameter=",
     .key_end = ">",
     .value_close = "</parameter>\n"},
    {.form = SERVE_TOOLS_MINIMAX,
     .trigger = "<minimax:tool_call>",
     .first = "\n",
     .open = "<invoke name=\"",
     .mid = "\">\n",
     .close = "</invoke>\n",
     .again = "",
     .end = "</minimax:tool_call>",
     .key_open = "<parameter name=\"",
     .key_end = "\">",
     .value_close = "</parameter>\n"},
    {.form = SERVE_TOOLS_FUNCTIONARY,
     .trigger = "<function=",
     .mid = ">",
     .close = "</function>",
     .again = "<function="},
    {.form = SERVE_TOOLS_COHERE,
     .trigger = "<|START_ACTION|>",
     .first = "[",
     .open = "{\"tool_name\": \"",
     .mid = "\", \"parameters\": ",
     .close = "}",
     .again = ", ",
     .end = "]<|END_ACTION|>"},
    {.form = SERVE_TOOLS_LIST,
     .trigger = "<tool_calls>",
     .first = "[",
     .open = "{\"name\": \"",
     .mid = "\", \"arguments\": ",
     .close = "}",
     .again = ", ",
     .end = "]</tool_calls>"},
    {.form = SERVE_TOOLS_NEMOTRON,
     .trigger = "<TOOLCALL>",
     .first = "[",
     .open = "{\"name\": \"",
     .mid = "\", \"arguments\": ",
     .close = "}",
     .again = ", ",
     .end = "]</TOOLCALL>"},
    {.form = SERVE_TOOLS_APERTUS,
     .trigger = "<|tools_prefix|>",
     .first = "[",
     .open = "{\"",
     .mid = "\": ",
     .close = "}",
     .again = ", ",
     .end = "]<|tools_suffix|>"},
    {.form = SERVE_TOOLS_GRANITE,
     .trigger = "<|tool_call|>",
     .first = "[",
     .open = "{\"name\": \"",
     .mid = "\", \"arguments\": ",
     .close = "}",
     .again = ", ",
     .end = "]"},
};

static const struct shape *find_shape(enum serve_tool_form form)
{
    for (size_t i = 0; i < PI_LEN(shapes); i++)
        if (shapes[i].form == form)
            return &shapes[i];
    return NULL;
}

const char *const *serve_tools_triggers(enum serve_tool_form form, bool thinks, int32_t *n,
                                        int32_t *n_first)
{
    const struct shape *shape = find_shape(form);
    int32_t from = 0;
    *n = *n_first = 0;
    if (shape == NULL)
        return NULL;
    *n = 1;
    if (shape->spelling == NULL)
        return &shape->trigger;
    if (thinks)
        from = N_ALONE;
    *n = shape->n_spelling - from;
    *n_first = N_ALONE - from;
    return shape->spelling + from;
}

/* ---- text ---- */

struct writer {
    char *text; /* terminated; owned */
    size_t len, cap;
    bool no_memory;
    struct serve_tools_grammar *out;
    const struct serve_numbers *numbers;
    size_t n_rule; /* names of rules that were given out */
    bool loose;    /* of the function that is written: nothing is promised */
};

static void add_bytes(struct writer *w, const char *text, size_t len)
{
    if (w->len + len + 1 > w->cap) {
        size_t cap = w->cap * 2 + len + 256;
        char *grown = pi_mem_grow(PI_MEM_OTHER, w->text, cap, 1);
        if (grown == NULL) {
            w->no_memory = true;
            return;
        }
        w->text = grown;
        w->cap = cap;
    }
    memcpy(w->text + w->len, text, len);
    w->len += len;
    w->text[w->len] = 0;
}

static void add(struct writer *w, const char *text)
{
    add_bytes(w, text, strlen(text));
}

static void PI_PRINTF(2, 3) addf(struct writer *w, const char *fmt, ...)
{
    char line[160]; /* names of rules and numbers */
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    add_bytes(w, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

/* One character of GBNF, in a literal or in a class. */
static void add_char(struct writer *w, char c)
{
    if (c == '\n')
        add(w, "\\n");
    else if (c == '\r')
        add(w, "\\r");
    else if (c == '\t')
        add(w, "\\t");
    else if (strchr("\"\\[]", c) != NULL && c != 0)
        addf(w, "\\%c", c);
    else if ((uint8_t)c < 0x20)
        addf(w, "\\x%02x", (unsigned)(uint8_t)c);
    else
        add_bytes(w, &c, 1);
}

/* A literal and a space; nothing for no text. */
static void add_literal(struct writer *w, const char *text)
{
    if (text == NULL || *text == 0)
        return;
    add(w, "\"");
    for (; *text != 0; text++)
        add_char(w, *text);
    add(w, "\" ");
}

/* Rules NAME-0, NAME-1 ... for text that does not contain `text`, whose first character does not
   come again in it. State i has seen i characters of it. */
static void add_text_rules(struct writer *w, const char *name, const char *end)
{
    size_t n = strlen(end);
    for (size_t i = 0; i < n; i++) {
        addf(w, "%s-%zu ::= (\"", name, i);
        add_char(w, end[0]);
        addf(w, "\" %s-1", name);
        if (i > 0 && i + 1 < n) {
            add(w, " | \"");
            add_char(w, end[i]);
            addf(w, "\" %s-%zu", name, i + 1);
        }
        add(w, " | [^");
        add_char(w, end[0]);
        if (i > 0)
            add_char(w, end[i]);
        addf(w, "] %s-0)?\n", name);
    }
}

/* ---- schemas ---- */

/* Lists a schema as a rule. otherwise: as in serve_tools_schema. */
static void list_schema(struct writer *w, const char *rule, const char *text, const char *otherwise)
{
    struct serve_tools_grammar *g = w->out;
    struct serve_tools_schema *list =
        pi_mem_grow(PI_MEM_OTHER, g->schemas, g->n_schema + 1, sizeof *list);
    if (list != NULL) {
        g->schemas = list;
        struct serve_tools_schema *s = &list[g->n_schema++];
        s->rule = pi_mem_strndup(PI_MEM_OTHER, rule, strlen(rule));
        s->schema = text == NULL ? NULL : pi_mem_strndup(PI_MEM_OTHER, text, strlen(text));
        s->otherwise = otherwise;
        w->no_memory = w->no_memory || s->rule == NULL || s->schema == NULL;
    }
    w->no_memory = w->no_memory || list == NULL;
}

/* A rule for JSON of a schema; its name goes to the end of the text. Owns the schema. */
static void add_schema(struct writer *w, json_t *schema, const char *otherwise)
{
    char name[32];
    snprintf(name, sizeof name, "schema-%zu", w->n_rule++);
    char *text = serve_json_dump(w->numbers, schema, JSON_COMPACT);
    list_schema(w, name, text, w->loose ? otherwise : NULL);
    free(text);
    json_decref(schema);
    addf(w, "%s ", name);
}

/* The schema of arguments: an object, whatever else it says. */
static json_t *arguments_schema(const json_t *function)
{
    const json_t *given = tools_function_schema(function);
    json_t *schema = json_is_object(given) ? json_copy((json_t *)given) : json_object();
    if (json_object_get(schema, "type") == NULL)
        json_object_set_new(schema, "type", json_string("object"));
    return schema;
}

/* A property's schema, with what it may refer to. */
static json_t *property_schema(const json_t *whole, const json_t *property)
{
    static const char *const shared[] = {"$defs", "definitions"};
    json_t *schema = json_is_object(property) ? json_copy((json_t *)property) : json_object();
    for (size_t i = 0; i < PI_LEN(shared); i++) {
        json_t *defs = json_object_get(whole, shared[i]);
        if (defs != NULL)
            json_object_set(schema, shared[i], defs);
    }
    return schema;
}

static bool is_required(const json_t *schema, const char *key)
{
    const json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name != NULL && strcmp(name, key) == 0)
            return true;
    }
    return false;
}

/* ---- calls ---- */

/* Strings of an enum, the same as literals. */
static size_t add_choices(struct writer *w, const json_t *values)
{
    size_t some = 0;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const char *one = json_string_value(json_array_get(values, i));
        if (one == NULL)
            continue;
        add(w, some++ > 0 ? "| " : "( ");
        add_literal(w, one);
        add(w, *one == 0 ? "\"\" " : "");
    }
    add(w, some > 0 ? ") " : "");
    return some;
}

/* A value between tags: one of an enum's strings, any text, or JSON. */
static void add_value(struct writer *w, const json_t *whole, const json_t *property, bool text)
{
    if (!text)
        add_schema(w, property_schema(whole, property), "{}");
    else if (add_choices(w, json_object_get(property, "enum")) == 0)
        add(w, "text-0 ");
}

/* Parameters in the schema's order; those that are not required may be left out. */
static void add_params(struct writer *w, const struct shape *shape, const struct serve_tools *t,
                       const json_t *function)
{
    const char *name = json_string_value(json_object_get(function, "name"));
    const json_t *schema = tools_function_schema(function);
    const char *key;
    json_t *property;
    json_object_foreach(json_object_get(schema, "properties"), key, property)
    {
        bool required = is_required(schema, key);
        add(w, required ? "" : "( ");
        add_literal(w, shape->key_open);
        add_literal(w, key);
        add_literal(w, shape->key_end);
        add_value(w, schema, property, tools_param_is_text(t, name, key));
        add_literal(w, shape->value_close);
        add(w, required ? "" : ")? ");
    }
}

static void add_call(struct writer *w, const struct shape *shape, const struct serve_tools *t,
                     const json_t *function)
{
    add_literal(w, shape->open);
    add_literal(w, json_string_value(json_object_get(function, "name")));
    if (shape->mid_gbnf != NULL)
        addf(w, "%s ", shape->mid_gbnf);
    add_literal(w, shape->mid);
    if (shape->key_open != NULL)
        add_params(w, shape, t, function);
    else
        add_schema(w, arguments_schema(function), ANY_OBJECT);
    add_literal(w, shape->close);
}

/* A call that is an object alone, with or without lines of its own. */
static void add_alone(struct writer *w, const struct shape *shape, const json_t *function)
{
    add(w, "\"{\" gap ");
    add_literal(w, "\"name\":");
    add(w, "\" \"? ");
    add_literal(w, "\"");
    add_literal(w, json_string_value(json_object_get(function, "name")));
    add_literal(w, "\",");
    add(w, "gap ");
    add_literal(w, "\"");
    add_literal(w, shape->alone_args);
    add_literal(w, "\":");
    add(w, "\" \"? ");
    add_schema(w, arguments_schema(function), ANY_OBJECT);
    add(w, "[ \\n]? \"}\" ");
}

/* The rule of that name: any of the functions, or the one of a name. */
static pith_status add_calls(struct writer *w, const struct shape *shape, const char *rule,
                             const struct serve_tools_grammar_options *options, pith_error *err)
{
    size_t some = 0;
    bool alone = strcmp(rule, "alone") == 0;
    struct serve_tools t = {.options = {.tools = options->tools}};
    addf(w, "%s ::= ", rule);
    for (size_t i = 0; i < json_array_size(options->tools); i++) {
        const json_t *function = tools_function(json_array_get(options->tools, i));
        const char *name = json_string_value(json_object_get(function, "name"));
        if (name == NULL || *name == 0)
            return pi_fail(err, PITH_INVALID, "tools[%zu].function.name: must be a string", i);
        if (options->name != NULL && strcmp(options->name, name) != 0)
            continue;
        add(w, some++ > 0 ? "| " : "");
        w->loose = options->choice == SERVE_TOOLS_OR_ANSWER &&
                   !json_is_true(json_object_get(function, "strict"));
        if (alone)
            add_alone(w, shape, function);
        else
            add_call(w, shape, &t, function);
    }
    add(w, "\n");
    if (some == 0 && options->name != NULL)
        return pi_fail(err, PITH_INVALID, "tool_choice: \"%s\" is none of the tools",
                       options->name);
    return some == 0 ? pi_fail(err, PITH_INVALID, "tools: there is none to call") : PITH_OK;
}

/* Not AUTO: whether reasoning may come first. A model of a template that knows none does not think.
   Its calls may begin as the tag does, and it would go on with the wrong one. */
static bool may_think(const struct serve_tools_style *style, bool open)
{
    return open || !style->plain || style->form == SERVE_TOOLS_GPT_OSS;
}

static void add_reasoning(struct writer *w, const struct serve_tools_style *style, bool open)
{
    if (style->form == SERVE_TOOLS_GPT_OSS) {
        add(w, "(\"<|channel|>analysis<|message|>\" think-0 \"<|end|><|start|>assistant\")? ");
        return;
    }
    if (!open) {
        add(w, "( ");
        add_literal(w, style->think_open);
    }
    add(w, "think-0 ");
    add_literal(w, style->think_close);
    add(w, "[ \\n]{0,4} ");
    add(w, open ? "" : ")? ");
}

/* Calls with markers, from the trigger on. */
static void add_marked(struct writer *w, const struct shape *shape,
                       const struct serve_tools_grammar_options *options)
{
    add_literal(w, shape->trigger);
    add_literal(w, shape->first);
    add(w, "call ");
    if (options->parallel && shape->again != NULL) {
        add(w, "( ");
        add_literal(w, shape->again);
        add(w, "call )* ");
    }
    add_literal(w, shape->end);
}

/* Calls with markers, or as objects alone behind their tag. */
static void add_tagged(struct writer *w, const struct shape *shape,
                       const struct serve_tools_grammar_options *options)
{
    bool object = strchr(shape->trigger, '{') != NULL;
    bool tagged = options->choice != SERVE_TOOLS_REQUIRED && shape->alone_args != NULL;
    if (tagged) {
        add_literal(w, shape->tag);
        add(w, "alone ");
        add_literal(w, shape->tag_end);
    }
    if (tagged && !object)
        add(w, "| ");
    if (!tagged || !object)
        add_marked(w, shape, options);
}

static bool is_fenced(const struct shape *shape)
{
    return shape->alone_args != NULL && strcmp(shape->tag, FENCE) == 0;
}

/* The rule of an answer without calls. Where calls may be fenced so may the answer: what it is
   shows behind the fence. */
static void add_other(struct writer *w, const struct shape *shape,
                      const struct serve_tools_style *style,
                      const struct serve_tools_grammar_options *options)
{
    add(w, "other ::= ");
    if (may_think(style, options->thinking))
        add_reasoning(w, style, options->thinking);
    add_literal(w, shape->answer);
    add(w, is_fenced(shape) ? "( answer | " : "answer\n");
    if (!is_fenced(shape))
        return;
    add_literal(w, shape->tag);
    add(w, "answer ");
    add_literal(w, shape->tag_end);
    add(w, ")\n");
}

static void add_root(struct writer *w, const struct shape *shape,
                     const struct serve_tools_style *style,
                     const struct serve_tools_grammar_options *options)
{
    bool free = options->choice == SERVE_TOOLS_AUTO;
    bool answers = options->choice == SERVE_TOOLS_OR_ANSWER;
    bool thinks = !free && may_think(style, options->thinking);
    bool objects = options->choice != SERVE_TOOLS_REQUIRED && shape->alone_args != NULL;
    add(w, "root ::= ");
    if (objects && (free || !(options->thinking || options->no_alone)))
        add(w, "alone | ");
    if (thinks)
        add_reasoning(w, style, options->thinking);
    add(w, answers ? "( " : "");
    add_literal(w, free ? NULL : shape->before);
    add_tagged(w, shape, options);
    add(w, answers ? ")" : "");
    add(w, objects ? "\n" GAP_RULE : "\n");
    if (answers)
        add_other(w, shape, style, options);
    if (thinks)
        add_text_rules(w, "think",
                       style->form == SERVE_TOOLS_GPT_OSS ? "<|end|>" : style->think_close);
    if (shape->key_open != NULL)
        add_text_rules(w, "text", tools_form_of(style->form)->value_close);
}

pith_status serve_tools_grammar_create(const struct serve_tools_style *style,
                                       const struct serve_tools_grammar_options *options,
                                       struct serve_tools_grammar *out, pith_error *err)
{
    const struct shape *shape = find_shape(style->form);
    *out = (struct serve_tools_grammar){0};
    if (shape == NULL)
        return pi_fail(err, PITH_UNSUPPORTED,
                       options->choice == SERVE_TOOLS_REQUIRED
                           ? "calls in the model's form \"%s\" cannot be required"
                           : "calls in the model's form \"%s\" cannot be held to a strict schema",
                       serve_tools_form_name(style->form));
    struct writer w = {.out = out, .numbers = options->numbers};
    add_root(&w, shape, style, options);
    bool required = options->choice == SERVE_TOOLS_REQUIRED;
    pith_status status = PITH_OK;
    if (required || shape->alone_args == NULL || strchr(shape->trigger, '{') == NULL)
        status = add_calls(&w, shape, "call", options, err);
    if (status == PITH_OK && !required && shape->alone_args != NULL)
        status = add_calls(&w, shape, "alone", options, err);
    if (options->choice == SERVE_TOOLS_OR_ANSWER)
        list_schema(&w, "answer", options->answer, NULL);
    out->gbnf = w.text;
    if (status == PITH_OK && w.no_memory)
        status = pi_fail(err, PITH_NOMEM, "no memory for the grammar of calls");
    if (status != PITH_OK) {
        serve_tools_grammar_free(out);
        return status;
    }
    if (options->choice == SERVE_TOOLS_AUTO)
        out->triggers =
            serve_tools_triggers(style->form, options->thinking, &out->n_trigger, &out->n_first);
    return PITH_OK;
}

void serve_tools_grammar_free(struct serve_tools_grammar *g)
{
    for (size_t i = 0; i < g->n_schema; i++) {
        pi_mem_free(g->schemas[i].rule);
        pi_mem_free(g->schemas[i].schema);
    }
    pi_mem_free(g->schemas);
    pi_mem_free(g->gbnf);
    *g = (struct serve_tools_grammar){0};
}

/* ---- words ---- */

pith_status serve_tools_instructions(const json_t *tools, const struct serve_numbers *numbers,
                                     char **out, pith_error *err)
{
    struct writer w = {0};
    add(&w, "You may call functions to help with the user's request. These are the functions:\n");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        char *text = serve_json_dump(numbers, tools_function(json_array_get(tools, i)), 0);
        add(&w, text == NULL ? "" : text);
        add(&w, "\n");
        w.no_memory = w.no_memory || text == NULL;
        free(text);
    }
    add(&w, "To call a function, write its name and its arguments as a JSON object:\n"
            "<tool_call>\n{\"name\": \"FUNCTION\", \"arguments\": {ARGUMENTS}}\n</tool_call>\n"
            "What it returns stands between <tool_response> and </tool_response>.\n"
            "Call functions only where they help; otherwise answer as usual.");
    *out = w.no_memory ? NULL : w.text;
    if (!w.no_memory)
        return PITH_OK;
    pi_mem_free(w.text);
    return pi_fail(err, PITH_NOMEM, "no memory for the description of the tools");
}
