/*
 * test_tools.c - answers split into content, reasoning and calls. Each form has texts with their
 * expected events, fed whole, byte by byte, and split at every place.
 *
 * The events are written as one line: "t:" content, "r:" reasoning, "c0:name" a call, "a0:"
 * arguments, "e0" its end ("e0? where the answer was cut); parts of a kind that follow each other
 * are joined. If a call turns out to be none, its text is the only event.
 */
#include <jansson.h>

#include "base/mem.h"
#include "serve/tools/tools.h"
#include "testing.h"

#define DS(x) "<\xef\xbd\x9c" x "\xef\xbd\x9c>"
#define SP "\xe2\x96\x81"

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"n\": {\"type\": "
    "\"integer\"}, \"l\": {\"type\": [\"array\", \"null\"]}, \"u\": {\"anyOf\": [{\"type\": "
    "\"string\"}, {\"type\": \"null\"}]}, \"b\": {\"type\": \"boolean\"}}}}}]";

struct told {
    char text[8192];
    size_t len;
    int type; /* of the last event; -1: none */
    int32_t index;
    char ids[4][160];
};

static void put(struct told *told, const char *text, size_t len)
{
    assert_true(told->len + len < sizeof told->text);
    memcpy(told->text + told->len, text, len);
    told->len += len;
    told->text[told->len] = 0;
}

static void on_event(void *user, const struct serve_tools_event *e)
{
    static const char letters[] = "trcae";
    struct told *told = user;
    char head[300];
    bool has_text = e->type == SERVE_TOOLS_CONTENT || e->type == SERVE_TOOLS_REASONING ||
                    e->type == SERVE_TOOLS_CALL_ARGS;
    bool of_call = e->type >= SERVE_TOOLS_CALL_START;
    if (!has_text || told->type != (int)e->type || (of_call && told->index != e->index)) {
        int n = snprintf(head, sizeof head, "%s%c", told->len == 0 ? "" : "|", letters[e->type]);
        if (of_call)
            n += snprintf(head + n, sizeof head - (size_t)n, "%d", e->index);
        if (e->type == SERVE_TOOLS_CALL_START) {
            n += snprintf(head + n, sizeof head - (size_t)n, ":%s", e->name);
            if (e->index < 4)
                snprintf(told->ids[e->index], sizeof told->ids[0], "%s", e->id);
        }
        if (e->type == SERVE_TOOLS_CALL_END && !e->complete)
            n += snprintf(head + n, sizeof head - (size_t)n, "?");
        if (has_text)
            n += snprintf(head + n, sizeof head - (size_t)n, ":");
        put(told, head, (size_t)n);
    }
    if (has_text) {
        assert_true(e->len > 0);
        put(told, e->text, e->len);
    }
    told->type = (int)e->type;
    told->index = e->index;
}

struct setting {
    struct serve_tools_style style;
    struct serve_tools_options options;
    bool cut;
};

/* Feeds text[0..len) in two parts, or byte by byte where at is past its end. */
static void tell(const struct setting *s, const char *text, size_t len, size_t at,
                 struct told *told)
{
    *told = (struct told){.type = -1};
    struct serve_tools_options options = s->options;
    options.on_event = on_event;
    options.user = told;
    struct serve_tools *t;
    assert_int_equal(serve_tools_create(&s->style, &options, &t, &err), PITH_OK);
    if (at <= len) {
        assert_int_equal(serve_tools_feed(t, text, at, &err), PITH_OK);
        assert_int_equal(serve_tools_feed(t, text + at, len - at, &err), PITH_OK);
    } else {
        for (size_t i = 0; i < len; i++)
            assert_int_equal(serve_tools_feed(t, text + i, 1, &err), PITH_OK);
    }
    assert_int_equal(serve_tools_finish(t, s->cut, &err), PITH_OK);
    serve_tools_free(t);
}

static void check(const struct setting *s, const char *text, const char *expected)
{
    struct told told;
    size_t len = strlen(text);
    tell(s, text, len, 0, &told);
    if (strcmp(told.text, expected) != 0)
        fail_msg("%s: %s\n says   %s\n not    %s", serve_tools_form_name(s->style.form), text,
                 told.text, expected);
    for (size_t at = 1; at <= len + 1; at++) {
        tell(s, text, len, at, &told);
        if (strcmp(told.text, expected) != 0)
            fail_msg("%s: %s\n split at %zu of %zu says %s", serve_tools_form_name(s->style.form),
                     text, at, len, told.text);
    }
}

struct row {
    enum serve_tool_form form;
    const char *text, *says;
};

static struct setting setting_of(enum serve_tool_form form, const json_t *tools)
{
    return (struct setting){.style = {form, "<think>", "</think>"},
                            .options = {.tools = tools, .request_id = "r1"}};
}

#define ARGS "{\"city\": \"Paris \\\"x\\\" {[\xc3\xa9</tool_call>\", \"n\": [1, {\"m\": -2.5e3}]}"
#define CALL "{\"name\": \"get\", \"arguments\": " ARGS "}"

static const struct row rows[] = {
    /* Text alone. */
    {SERVE_TOOLS_HERMES, "Hello <b> world\n", "t:Hello <b> world\n"},
    {SERVE_TOOLS_HERMES, "  x <tool_cal y", "t:  x <tool_cal y"},
    {SERVE_TOOLS_HERMES, "a < b \xe2\x82\xac <tool", "t:a < b \xe2\x82\xac <tool"},
    {SERVE_TOOLS_HERMES, "", ""},
    {SERVE_TOOLS_HERMES, "<think>\n why \n</think>\n\nyes", "r:why|t:yes"},
    {SERVE_TOOLS_HERMES, "<think>\n\n</think>\n\nyes", "t:yes"},
    {SERVE_TOOLS_HERMES, "no <think>x</think>", "t:no <think>x</think>"},
    {SERVE_TOOLS_HERMES, "<think>a </thin b", "r:a </thin b"},
    /* Hermes. */
    {SERVE_TOOLS_HERMES, "<tool_call>\n" CALL "\n</tool_call>", "c0:get|a0:" ARGS "|e0"},
    {SERVE_TOOLS_HERMES, "<think>w</think>Hi\n<tool_call>" CALL "</tool_call>\n",
     "r:w|t:Hi|c0:get|a0:" ARGS "|e0"},
    {SERVE_TOOLS_HERMES, "<tool_call>" CALL "</tool_call> bye", "c0:get|a0:" ARGS "|e0|t: bye"},
    {SERVE_TOOLS_HERMES,
     "<tool_call>" CALL "</tool_call>\n<tool_call>{\"name\": \"f\"}</tool_call>",
     "c0:get|a0:" ARGS "|e0|c1:f|a1:{}|e1"},
    {SERVE_TOOLS_HERMES, "<tool_call>{\"arguments\": {\"a\":1}, \"name\": \"f\"}",
     "c0:f|a0:{\"a\":1}|e0"},
    {SERVE_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}",
     "c0:f|a0:{\"a\": 1}|e0"},
    {SERVE_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"1\n2\"}}",
     "c0:f|a0:{\"a\": \"1\\n2\"}|e0"},
    {SERVE_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": null}", "c0:f|a0:{}|e0"},
    {SERVE_TOOLS_HERMES, "<tool_call>" CALL "<tool_call>" CALL,
     "c0:get|a0:" ARGS "|e0|c1:get|a1:" ARGS "|e1"},
    {SERVE_TOOLS_HERMES, CALL, "c0:get|a0:" ARGS "|e0"},
    {SERVE_TOOLS_HERMES, "```json\n" CALL "\n```", "c0:get|a0:" ARGS "|e0"},
    {SERVE_TOOLS_HERMES, "So:\n```json\n" CALL "\n```\n```json\n" CALL "\n``` ok",
     "t:So:|c0:get|a0:" ARGS "|e0|c1:get|a1:" ARGS "|e1|t: ok"},
    {SERVE_TOOLS_HERMES, "A ```json\n{\"name\": \"else\"}\n```",
     "t:A ```json\n{\"name\": \"else\"}\n```"},
    {SERVE_TOOLS_HERMES, "```json\n{\"a\": 1}\n```", "t:```json\n{\"a\": 1}\n```"},
    {SERVE_TOOLS_HERMES, "{\"name\": \"else\", \"arguments\": {}}",
     "t:{\"name\": \"else\", \"arguments\": {}}"},
    {SERVE_TOOLS_HERMES, "{\"a\": [1]} x", "t:{\"a\": [1]} x"},
    /* Hermes: none after all. */
    {SERVE_TOOLS_HERMES, "a\n<tool_call>\nnot JSON\n</tool_call>",
     "t:a\n<tool_call>\nnot JSON\n</tool_call>"},
    {SERVE_TOOLS_HERMES, "<tool_call></tool_call>", "t:<tool_call></tool_call>"},
    {SERVE_TOOLS_HERMES, "<tool_call>{\"nam", "t:<tool_call>{\"nam"},
    {SERVE_TOOLS_HERMES, "<tool_call>{\"name\": 3}", "t:<tool_call>{\"name\": 3}"},
    {SERVE_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}",
     "t:<tool_call>{\"name\": \"f\", \"arguments\": [1]}"},
    {SERVE_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": tru}}z",
     "t:<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": tru}}z"},
    {SERVE_TOOLS_HERMES, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1,}}\n</tool_call>",
     "t:<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1,}}\n</tool_call>"},
    {SERVE_TOOLS_HERMES,
     "<tool_call>" CALL "\n<tool_call>{\"name\": \"f\", \"arguments\": {]}</tool_call>",
     "c0:get|a0:" ARGS "|e0|t:\n<tool_call>{\"name\": \"f\", \"arguments\": {]}</tool_call>"},
    {SERVE_TOOLS_HERMES, "<tool_call>x<tool_call>" CALL, "t:<tool_call>x|c0:get|a0:" ARGS "|e0"},
    {SERVE_TOOLS_HERMES, "<tool_call><tool_call>" CALL, "t:<tool_call>|c0:get|a0:" ARGS "|e0"},
    /* Qwen3-Coder. */
    {SERVE_TOOLS_QWEN_CODER,
     "Hi\n\n<tool_call>\n<function=get>\n<parameter=city>\nA \"b\"\n</c>\n</parameter>\n"
     "<parameter=n>\n3\n</parameter>\n<parameter=l>\n[1, \"x\"]\n</parameter>\n"
     "<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>",
     "t:Hi|c0:get|a0:{\"city\": \"A \\\"b\\\"\\n</c>\", \"n\": 3, \"l\": [1, \"x\"], \"b\": "
     "true}|e0"},
    {SERVE_TOOLS_QWEN_CODER,
     "<function=get>\n<parameter=city>\n3\n</parameter>\n<parameter=u>\nnull\n</parameter>\n"
     "<parameter=n>\nfew\n</parameter>\n</function>\n</tool_call>\n"
     "<tool_call><function=f></function></tool_call>",
     "c0:get|a0:{\"city\": \"3\", \"u\": \"null\", \"n\": \"few\"}|e0|c1:f|a1:{}|e1"},
    {SERVE_TOOLS_QWEN_CODER, "<tool_call>\n<function=get>\nstray</function>",
     "t:<tool_call>\n<function=get>\nstray</function>"},
    /* A closing tag within a value. */
    {SERVE_TOOLS_QWEN_CODER,
     "<tool_call>\n<function=get>\n<parameter=city>\nends with </parameter> here\n</parameter>\n"
     "</function>\n</tool_call>",
     "c0:get|a0:{\"city\": \"ends with </parameter> here\"}|e0"},
    {SERVE_TOOLS_QWEN_CODER,
     "<function=get>\n<parameter=city>\na</parameter>\n</function> b\n</parameter>\nc\n"
     "</parameter>\n<parameter=n>\n2\n</parameter>\n</function>",
     "c0:get|a0:{\"city\": \"a</parameter>\\n</function> b\\n</parameter>\\nc\", \"n\": 2}|e0"},
    {SERVE_TOOLS_QWEN_CODER,
     "<function=get>\n<parameter=city>\n</parameter>\n</parameter></parameter>\n</function>",
     "c0:get|a0:{\"city\": \"</parameter>\\n</parameter>\"}|e0"},
    {SERVE_TOOLS_QWEN_CODER, "<function=get>\n<parameter=city>\n</parameter>\n</function>",
     "c0:get|a0:{\"city\": \"\"}|e0"},
    {SERVE_TOOLS_QWEN_CODER,
     "<function=get><parameter=city>x</parameter><parameter=n>18446744073709551616</parameter>"
     "</function>",
     "c0:get|a0:{\"city\": \"x\", \"n\": 18446744073709551616}|e0"},
    /* Nothing stands on a line of its own: the call is read all the same. */
    {SERVE_TOOLS_QWEN_CODER,
     "<function=get>\n<parameter=city>\nx</parameter>\n<parameter=n>\n3</parameter>\n</function>",
     "c0:get|a0:{\"city\": \"x\", \"n\": 3}|e0"},
    {SERVE_TOOLS_MINIMAX,
     "<minimax:tool_call>\n<invoke name=\"get\">\n<parameter name=\"city\">a</parameter>b"
     "</parameter>\n</invoke>\n</minimax:tool_call>",
     "c0:get|a0:{\"city\": \"a</parameter>b\"}|e0"},
    {SERVE_TOOLS_GLM,
     "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>a</arg_value> </arg_value>\n</tool_call>",
     "c0:get|a0:{\"city\": \"a</arg_value> \"}|e0"},
    {SERVE_TOOLS_QWEN_CODER, "<tool_call>hi</tool_call>", "t:<tool_call>hi</tool_call>"},
    /* Llama 3. */
    {SERVE_TOOLS_LLAMA3, "{\"name\": \"get\", \"parameters\": {\"city\": \"X\"}}",
     "c0:get|a0:{\"city\": \"X\"}|e0"},
    {SERVE_TOOLS_LLAMA3,
     "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}",
     "c0:f|a0:{}|e0"},
    {SERVE_TOOLS_LLAMA3,
     "{\"name\": \"get\", \"parameters\": {}}; {\"name\": \"get\", \"parameters\": {\"n\": 1}}",
     "c0:get|a0:{}|e0|c1:get|a1:{\"n\": 1}|e1"},
    {SERVE_TOOLS_LLAMA3, "{\"name\": \"get\", \"parameters\": {}}\nDone.",
     "c0:get|a0:{}|e0|t:\nDone."},
    {SERVE_TOOLS_LLAMA3, "<|python_tag|>print(1)", "t:<|python_tag|>print(1)"},
    /* Mistral. */
    {SERVE_TOOLS_MISTRAL,
     "[TOOL_CALLS][{\"name\": \"get\", \"arguments\": {\"n\": 1}, \"id\": \"123456789\"}, "
     "{\"name\": \"f\", \"arguments\": {}}]",
     "c0:get|a0:{\"n\": 1}|e0|c1:f|a1:{}|e1"},
    {SERVE_TOOLS_MISTRAL, "[TOOL_CALLS][]", "t:[TOOL_CALLS][]"},
    {SERVE_TOOLS_MISTRAL_ARGS,
     "Ok[TOOL_CALLS]get[CALL_ID]abcdefghi[ARGS]{\"n\": 1}[TOOL_CALLS]f[ARGS]{}",
     "t:Ok|c0:get|a0:{\"n\": 1}|e0|c1:f|a1:{}|e1"},
    {SERVE_TOOLS_MISTRAL_ARGS, "[TOOL_CALLS]a b[ARGS]{}", "t:[TOOL_CALLS]a b[ARGS]{}"},
    /* gpt-oss. */
    {SERVE_TOOLS_GPT_OSS,
     "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.get <|constrain|>json<|message|>{\"n\": 1}<|call|>",
     "r:why|c0:get|a0:{\"n\": 1}|e0"},
    {SERVE_TOOLS_GPT_OSS, " to=functions.get<|channel|>commentary json<|message|>{}<|call|>",
     "c0:get|a0:{}|e0"},
    {SERVE_TOOLS_GPT_OSS,
     "<|channel|>analysis<|message|>w<|end|><|start|>assistant<|channel|>final<|message|>yes < "
     "no<|return|>",
     "r:w|t:yes < no"},
    {SERVE_TOOLS_GPT_OSS, "<|channel|>commentary<|message|>first<|end|>", "t:first"},
    {SERVE_TOOLS_GPT_OSS, "plain text", "t:plain text"},
    {SERVE_TOOLS_GPT_OSS, "<|channel|>commentary to=python<|message|>1+1<|call|>",
     "t:<|channel|>commentary to=python<|message|>1+1"},
    {SERVE_TOOLS_GPT_OSS, "<|channel|>commentary to=functions.f<|message|>{1<|call|>",
     "t:<|channel|>commentary to=functions.f<|message|>{1"},
    {SERVE_TOOLS_GPT_OSS, "<|channel|>comm", "t:<|channel|>comm"},
    /* DeepSeek. */
    {SERVE_TOOLS_DEEPSEEK,
     "Hm" DS("tool" SP "calls" SP "begin") DS("tool" SP "call" SP "begin") "get" DS(
         "tool" SP "sep") "{\"n\": 1}" DS("tool" SP "call" SP "end")
         DS("tool" SP "call" SP "begin") "f" DS("tool" SP "sep") "{}" DS("tool" SP "call" SP "end")
             DS("tool" SP "calls" SP "end"),
     "t:Hm|c0:get|a0:{\"n\": 1}|e0|c1:f|a1:{}|e1"},
    {SERVE_TOOLS_DEEPSEEK,
     DS("tool" SP "calls" SP "begin") DS("tool" SP "call" SP "begin") "function" DS(
         "tool" SP "sep") "get\n```json\n{\"n\": 1}\n```" DS("tool" SP "call" SP "end")
         DS("tool" SP "calls" SP "end"),
     "c0:get|a0:{\"n\": 1}|e0"},
    {SERVE_TOOLS_DEEPSEEK, DS("tool" SP "calls" SP "begin") "what",
     "t:" DS("tool" SP "calls" SP "begin") "what"},
    /* Others. */
    {SERVE_TOOLS_GLM,
     "x<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>P&</arg_value>\n<arg_key>n</arg_key>"
     "<arg_value>2</arg_value></tool_call>\n<tool_call>f</tool_call>",
     "t:x|c0:get|a0:{\"city\": \"P&\", \"n\": 2}|e0|c1:f|a1:{}|e1"},
    {SERVE_TOOLS_DSML,
     "<\xef\xbd\x9c"
     "DSML\xef\xbd\x9c"
     "function_calls>\n<\xef\xbd\x9c"
     "DSML\xef\xbd\x9cinvoke name=\"get\">\n<\xef\xbd\x9c"
     "DSML\xef\xbd\x9cparameter name=\"z\" string=\"false\">[3]</\xef\xbd\x9c"
     "DSML\xef\xbd\x9cparameter>\n</\xef\xbd\x9c"
     "DSML\xef\xbd\x9cinvoke>\n</\xef\xbd\x9c"
     "DSML\xef\xbd\x9c"
     "function_calls>",
     "c0:get|a0:{\"z\": [3]}|e0"},
    {SERVE_TOOLS_KIMI,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>"
     "{\"n\": 1}<|tool_call_end|><|tool_calls_section_end|>",
     "c0:get|a0:{\"n\": 1}|e0"},
    {SERVE_TOOLS_FUNCTIONARY, "<function=get>{\"n\": 1}</function><function=f>{}</function>",
     "c0:get|a0:{\"n\": 1}|e0|c1:f|a1:{}|e1"},
    {SERVE_TOOLS_GRANITE, "a<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]",
     "t:a|c0:f|a0:{}|e0"},
    {SERVE_TOOLS_APERTUS, "<|tools_prefix|>[{\"get\": {\"n\": 1}}, {\"f\": {}}]<|tools_suffix|>",
     "c0:get|a0:{\"n\": 1}|e0|c1:f|a1:{}|e1"},
};

TEST(tells_calls_apart_in_every_form)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    assert_non_null(tools);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct setting s = setting_of(rows[i].form, tools);
        check(&s, rows[i].text, rows[i].says);
    }
    json_decref(tools);
}

TEST(calls_need_tools)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct setting s = setting_of(SERVE_TOOLS_HERMES, NULL); /* none given */
    check(&s, "<think>a</think><tool_call>" CALL "</tool_call>",
          "r:a|t:<tool_call>" CALL "</tool_call>");
    check(&s, CALL, "t:" CALL);
    s = setting_of(SERVE_TOOLS_GPT_OSS, NULL);
    check(&s, "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
          "t:<|channel|>commentary to=functions.f<|message|>{}");
    s = setting_of(SERVE_TOOLS_HERMES, tools);
    s.options.thinking = true; /* the prompt opened it */
    check(&s, "\nw\n</think>\n\n<tool_call>" CALL, "r:w|c0:get|a0:" ARGS "|e0");
    check(&s, "w", "r:w");
    s.options.reasoning_is_text = true;
    s.options.thinking = false;
    check(&s, "<think>w</think> x", "t:<think>w</think> x");
    s = setting_of(SERVE_TOOLS_HERMES, tools);
    s.options.one_call = true;
    check(&s, "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"f\"}</tool_call>",
          "c0:f|a0:{}|e0");
    check(&s, "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"f\"</tool_call>",
          "c0:f|a0:{}|e0|t:\n<tool_call>{\"name\": \"f\"</tool_call>");
    s.cut = true;
    check(&s,
          "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"f\", \"arguments\": {",
          "c0:f|a0:{}|e0");
    s = setting_of(SERVE_TOOLS_HERMES, tools);
    s.cut = true; /* the limit of tokens */
    check(&s, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [", "c0:f|a0:{\"a\": [|e0?");
    check(&s, "<tool_call>{\"name\": \"f", "t:<tool_call>{\"name\": \"f");
    static const char closed[] = "<tool_call>\n{\"name\": \"f\"}\n</tool_call>";
    for (size_t n = strlen("<tool_call>\n{\"name\": \"f\"}"); n <= strlen(closed); n++) {
        char part[sizeof(closed)] = "";
        memcpy(part, closed, n); /* cut in its closing tag */
        check(&s, part, "c0:f|a0:{}|e0");
    }
    s.cut = false; /* the model's own end */
    check(&s, "<tool_call>{\"name\": \"f\"}</tool", "c0:f|a0:{}|e0|t:</tool");
    s = setting_of(SERVE_TOOLS_GPT_OSS, tools);
    s.cut = true;
    check(&s, "<|channel|>commentary to=functions.f<|message|>{\"a", "c0:f|a0:{\"a|e0?");
    json_decref(tools);
}

/* Where calls are constrained, text that the grammar has not seen is content. */
TEST(constrained_calls_leave_the_rest_as_content)
{
#define OBJECT "{\"name\": \"get\", \"arguments\": {\"a\": 1}}"
#define TOLD "c0:get|a0:{\"a\": 1}|e0"
    static const struct row some[] = {
        {SERVE_TOOLS_HERMES, "x <tool_call>\n" OBJECT "\n</tool_call>", "t:x|" TOLD},
        {SERVE_TOOLS_HERMES, OBJECT, TOLD},
        {SERVE_TOOLS_HERMES, " \n" OBJECT " more", TOLD "|t: more"},
        {SERVE_TOOLS_HERMES, "x " OBJECT, "t:x " OBJECT},
        {SERVE_TOOLS_HERMES, "{\t\"name\": \"get\"}", "t:{\t\"name\": \"get\"}"},
        {SERVE_TOOLS_HERMES, "{\"arguments\": {}, \"name\": \"get\"}",
         "t:{\"arguments\": {}, \"name\": \"get\"}"},
        {SERVE_TOOLS_HERMES, "Look:\n```json\n" OBJECT "\n```\nDone.",
         "t:Look:|" TOLD "|t:\nDone."},
        {SERVE_TOOLS_HERMES, "```json\n{\"a\": 1}\n```", "t:```json\n{\"a\": 1}\n```"},
        {SERVE_TOOLS_HERMES, OBJECT "\n" OBJECT, TOLD "|t:\n" OBJECT},
        {SERVE_TOOLS_HERMES, "<think>w</think>" OBJECT, "r:w|t:" OBJECT},
        {SERVE_TOOLS_GENERIC, "<|python_tag|>" OBJECT, "t:<|python_tag|>" OBJECT},
        {SERVE_TOOLS_QWEN_CODER, "<function=get>\n</function>", "t:<function=get>\n</function>"},
        {SERVE_TOOLS_LLAMA3, "{\"name\": \"get\", \"parameters\": {\"a\": 1}}", TOLD},
        {SERVE_TOOLS_LLAMA3, "<|python_tag|>{\"name\": \"get\", \"parameters\": {\"a\": 1}}", TOLD},
        {SERVE_TOOLS_LLAMA3, "x {\"name\": \"get\", \"parameters\": {\"a\": 1}}",
         "t:x {\"name\": \"get\", \"parameters\": {\"a\": 1}}"},
    };
    json_t *tools = json_loads(tools_text, 0, NULL);
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        struct setting s = setting_of(some[i].form, tools);
        s.options.constrained = true;
        check(&s, some[i].text, some[i].says);
    }
    json_decref(tools);
}

/* Where the answer is calls or text, markers within text are text. */
TEST(behind_text_there_is_no_call_where_it_is_one_or_the_other)
{
#define CODER "<tool_call>\n<function=get>\n</function>\n</tool_call>"
    static const struct {
        struct row row;
        enum { NO_ALONE = 1, FREE = 2 } how;
    } some[] = {
        {{SERVE_TOOLS_HERMES, OBJECT, TOLD}, FREE},
        {{SERVE_TOOLS_HERMES, "{\"arguments\": {}, \"name\": \"get\"}", "c0:get|a0:{}|e0"}, FREE},
        {{SERVE_TOOLS_HERMES, "{\"name\": \"get\"}", "t:{\"name\": \"get\"}"}, FREE},
        {{SERVE_TOOLS_HERMES, "{\"a\": " OBJECT "}", "t:{\"a\": " OBJECT "}"}, FREE},
        {{SERVE_TOOLS_QWEN_CODER, CODER, "c0:get|a0:{}|e0"}, 0},
        {{SERVE_TOOLS_QWEN_CODER, CODER "\n" CODER, "c0:get|a0:{}|e0|c1:get|a1:{}|e1"}, 0},
        {{SERVE_TOOLS_QWEN_CODER, "{\"a\": \"" CODER "\"}", "t:{\"a\": \"" CODER "\"}"}, 0},
        {{SERVE_TOOLS_QWEN_CODER, "<think>w</think>\n\n" CODER, "r:w|c0:get|a0:{}|e0"}, 0},
        {{SERVE_TOOLS_HERMES, OBJECT, TOLD}, 0},
        {{SERVE_TOOLS_HERMES, OBJECT, "t:" OBJECT}, NO_ALONE},
        {{SERVE_TOOLS_HERMES, "{\"name\": \"Bob\"}", "t:{\"name\": \"Bob\"}"}, 0},
        {{SERVE_TOOLS_HERMES, "```json\n" OBJECT "\n```", TOLD}, NO_ALONE},
        {{SERVE_TOOLS_HERMES, "```json\n{\n\n  \"a\": \"`\"\n}\n```", "t:{\n\n  \"a\": \"`\"\n}"},
         0},
        {{SERVE_TOOLS_HERMES, "```json\n{\"name\": 1}\n```", "t:{\"name\": 1}"}, FREE},
        {{SERVE_TOOLS_HERMES, "```json\n[1]\n```", "t:[1]"}, 0},
        {{SERVE_TOOLS_LLAMA3, "<|python_tag|>{\"name\": \"get\", \"parameters\": {\"a\": 1}}",
          TOLD},
         NO_ALONE},
    };
    json_t *tools = json_loads(tools_text, 0, NULL);
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        struct setting s = setting_of(some[i].row.form, tools);
        s.options.constrained = some[i].how != FREE;
        s.options.whole = true;
        s.options.no_alone = some[i].how == NO_ALONE;
        check(&s, some[i].row.text, some[i].row.says);
    }
    json_decref(tools);
}

/* Ids depend on the request and the index alone. */
TEST(ids_depend_on_request_and_index)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct told told;
    struct setting s = setting_of(SERVE_TOOLS_HERMES, tools);
    const char text[] = "<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"g\"}";
    tell(&s, text, sizeof text - 1, 0, &told);
    assert_string_equal(told.ids[0], "call_r1_0");
    assert_string_equal(told.ids[1], "call_r1_1");
    s = setting_of(SERVE_TOOLS_MISTRAL, tools);
    const char mistral[] = "[TOOL_CALLS][{\"name\": \"f\"}, {\"name\": \"f\"}]";
    struct told again;
    tell(&s, mistral, sizeof mistral - 1, 0, &told);
    tell(&s, mistral, sizeof mistral - 1, 3, &again);
    assert_int_equal(strlen(told.ids[0]), 9);
    assert_string_not_equal(told.ids[0], told.ids[1]);
    assert_string_equal(told.ids[1], again.ids[1]);
    s.options.request_id = "r2";
    tell(&s, mistral, sizeof mistral - 1, 3, &again);
    assert_string_not_equal(told.ids[0], again.ids[0]);
    json_decref(tools);
}

/* Arguments come while they are written, where a grammar holds them; else when the call is sure. */
TEST(arguments_stream_while_they_are_written)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct setting s = setting_of(SERVE_TOOLS_HERMES, tools);
    struct told told = {.type = -1};
    s.options.on_event = on_event;
    s.options.user = &told;
    struct serve_tools *t;
    static const char begun[] = "a <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1";
    assert_int_equal(serve_tools_create(&s.style, &s.options, &t, &err), PITH_OK);
    assert_int_equal(serve_tools_feed(t, begun, sizeof begun - 1, &err), PITH_OK);
    assert_string_equal(told.text, "t:a");
    assert_int_equal(serve_tools_feed(t, "}}", 2, &err), PITH_OK);
    assert_string_equal(told.text, "t:a|c0:f|a0:{\"a\": 1}|e0");
    serve_tools_free(t);
    told = (struct told){.type = -1};
    s.options.sure = true;
    assert_int_equal(serve_tools_create(&s.style, &s.options, &t, &err), PITH_OK);
    const char *parts[] = {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"", ": \"b\xc3",
                           "\xa9"};
    const char *says[] = {"c0:f|a0:{\"a\"", "c0:f|a0:{\"a\": \"b", "c0:f|a0:{\"a\": \"b\xc3\xa9"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(serve_tools_feed(t, parts[i], strlen(parts[i]), &err), PITH_OK);
        assert_string_equal(told.text, says[i]);
    }
    serve_tools_free(t);
    told = (struct told){.type = -1}; /* an answer in JSON that is no call */
    assert_int_equal(serve_tools_create(&s.style, &s.options, &t, &err), PITH_OK);
    assert_int_equal(serve_tools_feed(t, "{\"a\": 1, \"b", 11, &err), PITH_OK);
    assert_string_equal(told.text, "t:{\"a\": 1, \"b");
    serve_tools_free(t);
    json_decref(tools);
}

TEST(the_prompt_says_whether_the_answer_thinks)
{
    struct serve_tools_style style;
    serve_tools_style_detect("", 0, &style);
    assert_int_equal(style.form, SERVE_TOOLS_GENERIC);
    serve_tools_style_detect("<|tool_call|>[THINK]", 20, &style);
    assert_int_equal(style.form, SERVE_TOOLS_GRANITE);
    assert_string_equal(style.think_close, "[/THINK]");
    serve_tools_style_detect("", 0, &style);
    assert_true(serve_tools_prompt_thinks(&style, "x<think>\n", 9));
    assert_false(serve_tools_prompt_thinks(&style, "<think></think>", 15));
    assert_false(serve_tools_prompt_thinks(&style, "", 0));
}

/* Ends that the answer was not cut at are whole, and arguments of whole calls are JSON. */
static void check_sound(const struct setting *s, const char *text, size_t len)
{
    static struct told one, other;
    tell(s, text, len, 0, &one);
    tell(s, text, len, len + 1, &other);
    if (strcmp(one.text, other.text) != 0)
        fail_msg("%s: %.*s says %s\n byte by byte %s", serve_tools_form_name(s->style.form),
                 (int)len, text, one.text, other.text);
    if (!s->cut && !s->options.sure && strstr(one.text, "?|") != NULL && strstr(text, "?|") == NULL)
        fail_msg("%s: half a call: %s", serve_tools_form_name(s->style.form), one.text);
    for (int32_t k = 0; k < 3; k++) {
        char begin[16], end[16];
        snprintf(begin, sizeof begin, "|a%d:", (int)k);
        snprintf(end, sizeof end, "|e%d", (int)k);
        char *from = strstr(one.text, begin), *to = from != NULL ? strstr(from, end) : NULL;
        if (to == NULL || to[strlen(end)] == '?')
            continue;
        from += strlen(begin);
        json_t *args =
            json_loadb(from, (size_t)(to - from), JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        if (!json_is_object(args))
            fail_msg("%s: %.*s: %s", serve_tools_form_name(s->style.form), (int)len, text,
                     one.text);
        json_decref(args);
    }
}

/* Each row cut at every byte, and with every byte another. */
TEST(broken_calls_do_no_harm)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    static const char other[] = {'}', '<', '"', '\n'};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct setting s = setting_of(rows[i].form, tools);
        size_t len = strlen(rows[i].text);
        char *text = malloc(len + 1);
        memcpy(text, rows[i].text, len + 1);
        for (size_t at = 0; at <= len; at++) {
            s.cut = true;
            check_sound(&s, text, at);
            s.cut = false;
            check_sound(&s, text, at);
            s.options.sure = true;
            check_sound(&s, text, at);
            s.options.sure = false;
            for (size_t k = 0; k < sizeof other && at < len; k++) {
                char old = text[at];
                text[at] = other[k];
                check_sound(&s, text, len);
                text[at] = old;
            }
        }
        free(text);
    }
    json_decref(tools);
}

static void ignore(void *user, const struct serve_tools_event *e)
{
    (void)user;
    (void)e;
}

/* Every allocation of every row fails once: NOMEM, and all can be freed. */
TEST(failing_memory_is_told)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct setting s = setting_of(rows[i].form, tools);
        s.options.on_event = ignore;
        pith_status status = PITH_NOMEM;
        int64_t used = pi_mem_used(PI_MEM_OTHER);
        for (int64_t n = 1; status == PITH_NOMEM; n++) {
            struct serve_tools *t;
            assert_true(n < 1000);
            pi_mem_fail_at(n, true);
            status = serve_tools_create(&s.style, &s.options, &t, &err);
            if (status == PITH_OK)
                status = serve_tools_feed(t, rows[i].text, strlen(rows[i].text), &err);
            pith_status end = t == NULL ? PITH_NOMEM : serve_tools_finish(t, false, &err);
            assert_true(status == PITH_OK || end == status);
            status = end;
            pi_mem_fail_at(0, false);
            serve_tools_free(t);
            assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
        }
        assert_int_equal(status, PITH_OK);
    }
    json_decref(tools);
}

/* Qwen's markers of calls are printed; control tokens are not. */
TEST(markers_of_calls_are_printed)
{
    pith_model *model;
    const char *path = test_model_file("coder-0.5b", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf");
    assert_int_equal(pith_model_load(path, NULL, &model, &err), PITH_OK);
    struct serve_tools_style style = {SERVE_TOOLS_HERMES, "<think>", "</think>", false};
    assert_false(serve_tools_style_special(&style, model));
    style.think_close = "<|im_end|>";
    assert_true(serve_tools_style_special(&style, model));
    pith_model_free(model);
}
