/*
 * test_tools_grammar.c - the grammar of calls: its text, the schemas that it leaves to the compiler
 * of schemas, and what is refused.
 */
#include <jansson.h>

#include "base/mem.h"
#include "serve/tools.h"
#include "testing.h"

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get\", \"parameters\": {\"type\": "
    "\"object\", \"$defs\": {\"d\": {\"type\": \"integer\"}}, \"properties\": {\"city\": "
    "{\"type\": \"string\"}, \"kind\": {\"enum\": [\"a\", \"b\\\"\"]}, \"n\": {\"$ref\": "
    "\"#/$defs/d\"}}, \"required\": [\"city\"]}}}, {\"name\": \"stop\"}]";

static pith_status make(enum serve_tool_form form, struct serve_tools_grammar_options options,
                        struct serve_tools_grammar *g, pith_error *err)
{
    struct serve_tools_style style = {form, "<think>", "</think>"};
    return serve_tools_grammar_create(&style, &options, g, err);
}

static void test_json(void **state)
{
    (void)state;
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct serve_tools_grammar g;
    pith_error err;
    struct serve_tools_grammar_options options = {.tools = tools, .parallel = true};
    assert_int_equal(make(SERVE_TOOLS_HERMES, options, &g, &err), PITH_OK);
    assert_string_equal(
        g.gbnf,
        "root ::= call ( \"\\n<tool_call>\" call )* \n"
        "call ::= \"\\n{\\\"name\\\": \\\"\" \"get\" \"\\\", \\\"arguments\\\": \" schema-0 "
        "\"}\\n</tool_call>\" | \"\\n{\\\"name\\\": \\\"\" \"stop\" \"\\\", "
        "\\\"arguments\\\": \" schema-1 \"}\\n</tool_call>\" \n");
    assert_int_equal(g.n_trigger, 1);
    assert_string_equal(g.triggers[0], "<tool_call>");
    assert_int_equal(g.n_schema, 2);
    assert_string_equal(g.schemas[0].rule, "schema-0");
    json_t *schema = json_loads(g.schemas[0].schema, 0, NULL);
    assert_true(
        json_equal(schema, json_object_get(json_object_get(json_array_get(tools, 0), "function"),
                                           "parameters")));
    assert_string_equal(g.schemas[1].schema, "{\"type\":\"object\"}");
    json_decref(schema);
    serve_tools_grammar_free(&g);
    json_decref(tools);
}

static void test_required(void **state)
{
    (void)state;
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct serve_tools_grammar g;
    pith_error err;
    struct serve_tools_grammar_options options = {
        .tools = tools, .choice = SERVE_TOOLS_REQUIRED, .name = "stop"};
    assert_int_equal(make(SERVE_TOOLS_MISTRAL_ARGS, options, &g, &err), PITH_OK);
    assert_non_null(strstr(g.gbnf, "root ::= ( \"<think>\" think-0 \"</think>\" [ \\n]{0,4} )? "
                                   "\"\\[TOOL_CALLS\\]\" call \n"));
    assert_non_null(strstr(g.gbnf,
                           "think-0 ::= (\"<\" think-1 | [^<] think-0)?\n"
                           "think-1 ::= (\"<\" think-1 | \"/\" think-2 | [^</] think-0)?\n"));
    assert_non_null(strstr(g.gbnf, "think-7 ::= (\"<\" think-1 | [^<>] think-0)?\n"));
    assert_non_null(strstr(g.gbnf, "call ::= \"stop\" \"\\[ARGS\\]\" schema-0 \n"));
    assert_int_equal(g.n_trigger, 0);
    serve_tools_grammar_free(&g);
    options.thinking = true;
    assert_int_equal(make(SERVE_TOOLS_HERMES, options, &g, &err), PITH_OK);
    assert_non_null(
        strstr(g.gbnf, "root ::= think-0 \"</think>\" [ \\n]{0,4} \"<tool_call>\" call"));
    serve_tools_grammar_free(&g);
    json_decref(tools);
}

/* Parameters between tags: strings are text, an enum its words, all else JSON of its schema. */
static void test_params(void **state)
{
    (void)state;
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct serve_tools_grammar g;
    pith_error err;
    struct serve_tools_grammar_options options = {.tools = tools, .name = "get"};
    assert_int_equal(make(SERVE_TOOLS_QWEN_CODER, options, &g, &err), PITH_OK);
    assert_non_null(
        strstr(g.gbnf, "call ::= \"\\n<function=\" \"get\" \">\\n\" \"<parameter=\" \"city\" "
                       "\">\\n\" text-0 \"\\n</parameter>\\n\" ( \"<parameter=\" \"kind\" \">\\n\" "
                       "( \"a\" | \"b\\\"\" ) \"\\n</parameter>\\n\" )? ( \"<parameter=\" \"n\" "
                       "\">\\n\" schema-0 \"\\n</parameter>\\n\" )? "
                       "\"</function>\\n</tool_call>\" \n"));
    assert_int_equal(g.n_schema, 1);
    assert_non_null(strstr(g.schemas[0].schema, "\"$defs\""));
    serve_tools_grammar_free(&g);
    json_decref(tools);
}

static void test_refused(void **state)
{
    (void)state;
    json_t *tools = json_loads(tools_text, 0, NULL);
    json_t *bad = json_loads("[{\"type\": \"function\", \"function\": {}}]", 0, NULL);
    struct serve_tools_grammar g;
    pith_error err;
    assert_int_equal(make(SERVE_TOOLS_HERMES,
                          (struct serve_tools_grammar_options){.tools = tools, .name = "no"}, &g,
                          &err),
                     PITH_INVALID);
    assert_string_equal(err.message, "tool_choice: \"no\" is none of the tools");
    assert_int_equal(make(SERVE_TOOLS_HERMES, (struct serve_tools_grammar_options){0}, &g, &err),
                     PITH_INVALID);
    assert_int_equal(
        make(SERVE_TOOLS_HERMES, (struct serve_tools_grammar_options){.tools = bad}, &g, &err),
        PITH_INVALID);
    assert_int_equal(
        make(SERVE_TOOLS_SOLAR, (struct serve_tools_grammar_options){.tools = tools}, &g, &err),
        PITH_UNSUPPORTED);
    assert_null(g.gbnf);
    json_decref(tools);
    json_decref(bad);
}

static void test_instructions(void **state)
{
    (void)state;
    json_t *tools = json_loads(tools_text, 0, NULL);
    char *text;
    pith_error err;
    assert_int_equal(serve_tools_instructions(tools, &text, &err), PITH_OK);
    assert_non_null(strstr(text, "\n{\"name\": \"get\", \"parameters\": {"));
    assert_non_null(strstr(text, "\n{\"name\": \"stop\"}\n"));
    pi_mem_free(text);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),         cmocka_unit_test(test_required),
        cmocka_unit_test(test_params),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_instructions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
