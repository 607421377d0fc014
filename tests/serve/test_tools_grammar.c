/*
 * test_tools_grammar.c - the grammar of calls: its text, the schemas that it leaves to the compiler
 * of schemas, and refusals.
 */
#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "serve/tools/tools.h"
#include "testing.h"

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get\", \"parameters\": {\"type\": "
    "\"object\", \"$defs\": {\"d\": {\"type\": \"integer\"}}, \"properties\": {\"city\": "
    "{\"type\": \"string\"}, \"kind\": {\"enum\": [\"a\", \"b\\\"\"]}, \"n\": {\"$ref\": "
    "\"#/$defs/d\"}}, \"required\": [\"city\"]}}}, {\"name\": \"stop\"}]";

static pith_status make(enum serve_tool_form form, struct serve_tools_grammar_options options,
                        struct serve_tools_grammar *g, pith_error *why)
{
    struct serve_tools_style style = {form, "<think>", "</think>", false};
    return serve_tools_grammar_create(&style, &options, g, why);
}

TEST(makes_the_grammar_of_calls_as_json)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct serve_tools_grammar g;
    struct serve_tools_grammar_options options = {.tools = tools, .parallel = true};
    assert_int_equal(make(SERVE_TOOLS_HERMES, options, &g, &err), PITH_OK);
    assert_string_equal(
        g.gbnf,
        "root ::= alone | \"```json\\n\" alone \"\\n```\" | "
        "\"<tool_call>\" call ( \"\\n<tool_call>\" call )* \n"
        "gap ::= (\" \" | \"\\n  \" | \"\\n    \")?\n"
        "call ::= \"\\n{\\\"name\\\": \\\"\" \"get\" \"\\\", \\\"arguments\\\": \" schema-0 "
        "\"}\\n</tool_call>\" | \"\\n{\\\"name\\\": \\\"\" \"stop\" \"\\\", "
        "\\\"arguments\\\": \" schema-1 \"}\\n</tool_call>\" \n"
        "alone ::= \"{\" gap \"\\\"name\\\":\" \" \"? \"\\\"\" \"get\" \"\\\",\" gap \"\\\"\" "
        "\"arguments\" \"\\\":\" \" \"? schema-2 [ \\n]? \"}\" | \"{\" gap "
        "\"\\\"name\\\":\" \" \"? \"\\\"\" \"stop\" \"\\\",\" gap \"\\\"\" \"arguments\" "
        "\"\\\":\" \" \"? schema-3 [ \\n]? \"}\" \n");
    assert_int_equal(g.n_trigger, 11);
    assert_int_equal(g.n_first, 5);
    assert_string_equal(g.triggers[0], "{\"name\": \"");
    assert_string_equal(g.triggers[5], "```json\n{\"name\": \"");
    assert_string_equal(g.triggers[10], "<tool_call>");
    assert_int_equal(g.n_schema, 4);
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

TEST(required_calls_begin_the_answer)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct serve_tools_grammar g;
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

#define FENCED "\"```json\\n\" "

/* In place of calls there may be an answer, whose rule has the schema that was given. */
TEST(calls_or_an_answer_are_the_whole_text)
{
    static const struct {
        enum serve_tool_form form;
        bool thinking, no_alone;
        const char *root, *other;
    } cases[] = {
        {SERVE_TOOLS_HERMES, false, false,
         "root ::= alone | ( \"<think>\" think-0 \"</think>\" [ \\n]{0,4} )? ( " FENCED
         "alone \"\\n```\" | \"<tool_call>\" call )\n",
         "other ::= ( \"<think>\" think-0 \"</think>\" [ \\n]{0,4} )? ( answer | " FENCED
         "answer \"\\n```\" )\n"},
        {SERVE_TOOLS_HERMES, true, false,
         "root ::= think-0 \"</think>\" [ \\n]{0,4} ( " FENCED
         "alone \"\\n```\" | \"<tool_call>\" call )\n",
         "other ::= think-0 \"</think>\" [ \\n]{0,4} ( answer | " FENCED "answer \"\\n```\" )\n"},
        {SERVE_TOOLS_LLAMA3, false, true,
         "root ::= ( \"<think>\" think-0 \"</think>\" [ \\n]{0,4} )? ( \"<|python_tag|>\" alone "
         ")\n",
         "other ::= ( \"<think>\" think-0 \"</think>\" [ \\n]{0,4} )? answer\n"},
        {SERVE_TOOLS_QWEN_CODER, true, false,
         "root ::= think-0 \"</think>\" [ \\n]{0,4} ( \"<tool_call>\" call )\n",
         "other ::= think-0 \"</think>\" [ \\n]{0,4} answer\n"},
        {SERVE_TOOLS_GPT_OSS, false, false,
         "( \"<|channel|>commentary\" \" to=functions.\" call )\n",
         "\"<|channel|>final<|message|>\" answer\n"},
    };
    json_t *tools = json_loads(tools_text, 0, NULL);
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct serve_tools_grammar g;
        struct serve_tools_grammar_options options = {.tools = tools,
                                                      .choice = SERVE_TOOLS_OR_ANSWER,
                                                      .answer = "{\"type\":\"array\"}",
                                                      .thinking = cases[i].thinking,
                                                      .no_alone = cases[i].no_alone};
        assert_int_equal(make(cases[i].form, options, &g, &err), PITH_OK);
        if (strstr(g.gbnf, cases[i].root) == NULL || strstr(g.gbnf, cases[i].other) == NULL)
            fail_msg("%s and %s are not in %s", cases[i].root, cases[i].other, g.gbnf);
        assert_int_equal(g.n_trigger, 0);
        const struct serve_tools_schema *last = &g.schemas[g.n_schema - 1];
        assert_string_equal(last->rule, "answer");
        assert_string_equal(last->schema, "{\"type\":\"array\"}");
        assert_null(last->otherwise);
        assert_non_null(g.schemas[0].otherwise); /* of no strict tool */
        serve_tools_grammar_free(&g);
    }
    json_decref(tools);
}

/* A template without tags of reasoning has a model that does not think. */
TEST(required_calls_begin_without_thoughts_where_there_are_none)
{
    static const struct {
        const char *text;
        bool thinks;
    } cases[] = {{"<tool_call>", false}, {"<tool_call><think>", true}, {"</think>", true}};
    json_t *tools = json_loads(tools_text, 0, NULL);
    const struct serve_tools_grammar_options options = {.tools = tools,
                                                        .choice = SERVE_TOOLS_REQUIRED};
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct serve_tools_style style;
        struct serve_tools_grammar g;
        serve_tools_style_detect(cases[i].text, strlen(cases[i].text), &style);
        assert_string_equal(style.think_open, "<think>");
        assert_int_equal(serve_tools_grammar_create(&style, &options, &g, &err), PITH_OK);
        assert_int_equal(strstr(g.gbnf, "think") != NULL, cases[i].thinks);
        serve_tools_grammar_free(&g);
    }
    json_decref(tools);
}

/* Parameters between tags: strings are text, an enum its words, all else JSON of its schema. */
TEST(parameters_between_tags_follow_their_schemas)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct serve_tools_grammar g;
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

/* Where the answer begins within reasoning, no object begins it. */
TEST(within_reasoning_no_object_triggers)
{
    static const enum serve_tool_form forms[] = {SERVE_TOOLS_GENERIC, SERVE_TOOLS_LLAMA3,
                                                 SERVE_TOOLS_MISTRAL};
    static const int32_t counts[3][4] = {{11, 5, 6, 0}, {10, 5, 5, 0}, {1, 0, 1, 0}};
    for (int i = 0; i < 3; i++)
        for (int thinks = 0; thinks < 2; thinks++) {
            int32_t n, n_first;
            const char *const *list = serve_tools_triggers(forms[i], thinks != 0, &n, &n_first);
            assert_non_null(list);
            assert_int_equal(n, counts[i][2 * thinks]);
            assert_int_equal(n_first, counts[i][2 * thinks + 1]);
            if (thinks != 0)
                assert_true(list[0][0] != '{');
        }
    int32_t n, n_first;
    assert_null(serve_tools_triggers(SERVE_TOOLS_SOLAR, false, &n, &n_first));
}

TEST(refuses_unknown_tools_and_forms)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    json_t *bad = json_loads("[{\"type\": \"function\", \"function\": {}}]", 0, NULL);
    struct serve_tools_grammar g;
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
    assert_string_equal(err.message,
                        "calls in the model's form \"solar\" cannot be held to a strict schema");
    assert_null(g.gbnf);
    json_decref(tools);
    json_decref(bad);
}

TEST(instructs_a_template_that_knows_no_tools)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    char *text;
    assert_int_equal(serve_tools_instructions(tools, NULL, &text, &err), PITH_OK);
    assert_non_null(strstr(text, "\n{\"name\": \"get\", \"parameters\": {"));
    assert_non_null(strstr(text, "\n{\"name\": \"stop\"}\n"));
    pi_mem_free(text);
    json_decref(tools);
}
