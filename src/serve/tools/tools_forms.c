/*
 * tools_forms.c - how families of models write calls and reasoning. One table has the forms, one
 * the parts of a template's text that tell them apart, and one the markers that are control tokens.
 * A new family is one line of each table.
 */
#include "serve/tools/tools_parser.h"

#include "base/mem.h"

/* The bars and blocks in DeepSeek's and Tencent's markers. */
#define DS_BAR "\xef\xbd\x9c"
#define DS_SPACE "\xe2\x96\x81"
#define DS(words) "<" DS_BAR words DS_BAR ">"
#define DSML(word) "<" DS_BAR "DSML" DS_BAR word
#define DSML_END(word) "</" DS_BAR "DSML" DS_BAR word

static const struct tools_form forms[] = {
    {.form = SERVE_TOOLS_GENERIC,
     .name = "generic",
     .body = TOOLS_BODY_JSON,
     .open = {"<tool_call>", "<|python_tag|>"},
     .close = "</tool_call>",
     .bare = true},
    {.form = SERVE_TOOLS_HERMES,
     .name = "hermes",
     .body = TOOLS_BODY_JSON,
     .open = {"<tool_call>"},
     .close = "</tool_call>",
     .bare = true},
    {.form = SERVE_TOOLS_QWEN_CODER,
     .name = "qwen-coder",
     .body = TOOLS_BODY_PARAMS,
     .open = {"<tool_call>", "<function="},
     .call_open = {"<function="},
     .skip = {"</function>"},
     .close = "</tool_call>",
     .head_end = ">",
     .key_open = "<parameter=",
     .value_close = "</parameter>",
     .lines = true},
    {.form = SERVE_TOOLS_LLAMA3,
     .name = "llama3",
     .body = TOOLS_BODY_JSON,
     .open = {"<|python_tag|>"},
     .bare = true},
    {.form = SERVE_TOOLS_MISTRAL,
     .name = "mistral",
     .body = TOOLS_BODY_NAMED,
     .open = {"[TOOL_CALLS]"},
     .mixed = true,
     .name_until = {"[CALL_ID]", "[ARGS]"}},
    {.form = SERVE_TOOLS_MISTRAL_ARGS,
     .name = "mistral-args",
     .body = TOOLS_BODY_NAMED,
     .open = {"[TOOL_CALLS]"},
     .mixed = true,
     .name_until = {"[CALL_ID]", "[ARGS]"}},
    {.form = SERVE_TOOLS_GPT_OSS, .name = "gpt-oss", .open = {"<|channel|>"}},
    {.form = SERVE_TOOLS_DEEPSEEK,
     .name = "deepseek",
     .body = TOOLS_BODY_NAMED,
     .open = {DS("tool" DS_SPACE "calls" DS_SPACE "begin")},
     .call_open = {DS("tool" DS_SPACE "call" DS_SPACE "begin")},
     .skip = {"```", DS("tool" DS_SPACE "call" DS_SPACE "end")},
     .close = DS("tool" DS_SPACE "calls" DS_SPACE "end"),
     .name_after = "function" DS("tool" DS_SPACE "sep"),
     .name_until = {DS("tool" DS_SPACE "sep"), "\n"}},
    {.form = SERVE_TOOLS_DSML,
     .name = "dsml",
     .body = TOOLS_BODY_PARAMS,
     .open = {DSML("function_calls>"), DSML("tool_calls>")},
     .call_open = {DSML("invoke name=\"")},
     .skip = {DSML_END("invoke>"), DSML_END("function_calls>"), DSML_END("tool_calls>")},
     .head_end = ">",
     .key_open = DSML("parameter name=\""),
     .value_close = DSML_END("parameter>")},
    {.form = SERVE_TOOLS_KIMI,
     .name = "kimi",
     .body = TOOLS_BODY_NAMED,
     .open = {"<|tool_calls_section_begin|>"},
     .call_open = {"<|tool_call_begin|>"},
     .skip = {"<|tool_call_end|>"},
     .close = "<|tool_calls_section_end|>",
     .name_after = "functions.",
     .name_until = {":", "<|tool_call_argument_begin|>"}},
    {.form = SERVE_TOOLS_GLM,
     .name = "glm",
     .body = TOOLS_BODY_PARAMS,
     .open = {"<tool_call>"},
     .skip = {"</tool_call>"},
     .head_end = "<\n",
     .head_keep = true,
     .key_open = "<arg_key>",
     .value_open = "<arg_value>",
     .value_close = "</arg_value>"},
    {.form = SERVE_TOOLS_SEED,
     .name = "seed",
     .body = TOOLS_BODY_PARAMS,
     .open = {"<seed:tool_call>"},
     .call_open = {"<function="},
     .skip = {"</function>"},
     .close = "</seed:tool_call>",
     .head_end = ">",
     .key_open = "<parameter=",
     .value_close = "</parameter>"},
    {.form = SERVE_TOOLS_MINIMAX,
     .name = "minimax",
     .body = TOOLS_BODY_PARAMS,
     .open = {"<minimax:tool_call>"},
     .call_open = {"<invoke name=\""},
     .skip = {"</invoke>"},
     .close = "</minimax:tool_call>",
     .head_end = ">",
     .key_open = "<parameter name=\"",
     .value_close = "</parameter>"},
    {.form = SERVE_TOOLS_MINICPM,
     .name = "minicpm",
     .body = TOOLS_BODY_PARAMS,
     .open = {"<function name=\""},
     .call_open = {"<function name=\""},
     .skip = {"</function>"},
     .head_end = ">",
     .key_open = "<param name=\"",
     .value_close = "</param>",
     .cdata = true},
    {.form = SERVE_TOOLS_FUNCTIONARY,
     .name = "functionary",
     .body = TOOLS_BODY_NAMED,
     .open = {"<function="},
     .call_open = {"<function="},
     .skip = {"</function>"},
     .name_until = {">"}},
    {.form = SERVE_TOOLS_SOLAR,
     .name = "solar",
     .body = TOOLS_BODY_NAMED,
     .open = {"<|tool_calls|>"},
     .call_open = {"<|tool_call:begin|>"},
     .skip = {"<|tool_call:end|>", "<|calls|>"},
     .name_after = "<|tool_call:name|>",
     .name_until = {"<|tool_call:args|>"}},
    {.form = SERVE_TOOLS_COHERE,
     .name = "cohere",
     .body = TOOLS_BODY_JSON,
     .open = {"<|START_ACTION|>"},
     .close = "<|END_ACTION|>"},
    {.form = SERVE_TOOLS_LIST,
     .name = "list",
     .body = TOOLS_BODY_JSON,
     .open = {"<tool_calls>"},
     .close = "</tool_calls>"},
    {.form = SERVE_TOOLS_NEMOTRON,
     .name = "nemotron",
     .body = TOOLS_BODY_JSON,
     .open = {"<TOOLCALL>"},
     .close = "</TOOLCALL>"},
    {.form = SERVE_TOOLS_APERTUS,
     .name = "apertus",
     .body = TOOLS_BODY_JSON,
     .open = {"<|tools_prefix|>"},
     .close = "<|tools_suffix|>",
     .key_is_name = true},
    {.form = SERVE_TOOLS_GRANITE,
     .name = "granite",
     .body = TOOLS_BODY_JSON,
     .open = {"<|tool_call|>"}},
};

const struct tools_form *tools_form_of(enum serve_tool_form form)
{
    for (size_t i = 0; i < PI_LEN(forms); i++)
        if (forms[i].form == form)
            return &forms[i];
    return &forms[0];
}

const char *serve_tools_form_name(enum serve_tool_form form)
{
    return tools_form_of(form)->name;
}

bool serve_tools_has_tags(enum serve_tool_form form)
{
    return tools_form_of(form)->body == TOOLS_BODY_PARAMS;
}

/* Texts in the templates of a family that writes a form; the first line counts. */
static const struct {
    enum serve_tool_form form;
    const char *has[2];
} signs[] = {
    {SERVE_TOOLS_GPT_OSS, {"<|channel|>commentary", "<|call|>"}},
    {SERVE_TOOLS_DSML, {DS_BAR "DSML" DS_BAR, NULL}},
    {SERVE_TOOLS_DEEPSEEK, {DS("tool" DS_SPACE "calls" DS_SPACE "begin"), NULL}},
    {SERVE_TOOLS_KIMI, {"<|tool_calls_section_begin|>", NULL}},
    {SERVE_TOOLS_SOLAR, {"<|tool_call:begin|>", NULL}},
    {SERVE_TOOLS_APERTUS, {"<|tools_prefix|>", NULL}},
    {SERVE_TOOLS_GRANITE, {"<|tool_call|>", NULL}},
    {SERVE_TOOLS_COHERE, {"<|START_ACTION|>", NULL}},
    {SERVE_TOOLS_MISTRAL_ARGS, {"[TOOL_CALLS]", "[ARGS]"}},
    {SERVE_TOOLS_MISTRAL, {"[TOOL_CALLS]", NULL}},
    {SERVE_TOOLS_SEED, {"<seed:tool_call>", NULL}},
    {SERVE_TOOLS_MINIMAX, {"<minimax:tool_call>", NULL}},
    {SERVE_TOOLS_NEMOTRON, {"<TOOLCALL>", NULL}},
    {SERVE_TOOLS_GLM, {"<arg_key>", "<tool_call>"}},
    {SERVE_TOOLS_QWEN_CODER, {"<function=", "<tool_call>"}},
    {SERVE_TOOLS_MINICPM, {"<function name=\"", "<param name=\""}},
    {SERVE_TOOLS_FUNCTIONARY, {"<function=", "</function>"}},
    {SERVE_TOOLS_LIST, {"<tool_calls>", NULL}},
    {SERVE_TOOLS_HERMES, {"<tool_call>", NULL}},
    {SERVE_TOOLS_LLAMA3, {"<|start_header_id|>", "\"parameters\": "}},
};

static const struct {
    const char *sign, *open, *close;
} thinking[] = {
    {"[THINK]", "[THINK]", "[/THINK]"},
    {"seed:think", "<seed:think>", "</seed:think>"},
    {"<mm:think>", "<mm:think>", "</mm:think>"},
    {"<|START_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|channel>thought", "<|channel>thought", "<channel|>"},
    {"[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"},
    {"<think>", "<think>", "</think>"},
};

static bool contains(const char *text, size_t len, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= len; i++)
        if (text[i] == what[0] && memcmp(text + i, what, n) == 0)
            return true;
    return false;
}

void serve_tools_style_detect(const char *text, size_t len, struct serve_tools_style *out)
{
    *out = (struct serve_tools_style){SERVE_TOOLS_GENERIC, "<think>", "</think>", true};
    for (size_t i = 0; i < PI_LEN(signs); i++) {
        const char *second = signs[i].has[1];
        if (contains(text, len, signs[i].has[0]) &&
            (second == NULL || contains(text, len, second))) {
            out->form = signs[i].form;
            break;
        }
    }
    out->plain = !contains(text, len, out->think_close);
    for (size_t i = 0; i < PI_LEN(thinking); i++)
        if (contains(text, len, thinking[i].sign)) {
            out->think_open = thinking[i].open;
            out->think_close = thinking[i].close;
            out->plain = false;
            break;
        }
}

/* The text is one token, and that is printed only on demand. */
static bool is_control(const pith_model *model, const char *text)
{
    int32_t id = 0;
    int32_t n = 0;
    char bytes[256];
    size_t len = 0;
    if (text == NULL || *text == 0)
        return false;
    if (pith_tokenize(model, text, strlen(text), PITH_TOKENIZE_SPECIAL, &id, 1, &n, NULL) !=
            PITH_OK ||
        n != 1)
        return false;
    return pith_token_bytes(model, id, false, bytes, sizeof bytes, &len) == PITH_OK && len == 0;
}

bool serve_tools_style_special(const struct serve_tools_style *style, const pith_model *model)
{
    const struct tools_form *form = tools_form_of(style->form);
    for (size_t i = 0; i < PI_LEN(form->open); i++)
        if (is_control(model, form->open[i]))
            return true;
    return is_control(model, form->close) || is_control(model, style->think_open) ||
           is_control(model, style->think_close);
}

bool serve_tools_prompt_thinks(const struct serve_tools_style *style, const char *prompt,
                               size_t len)
{
    size_t n = strlen(style->think_open);
    while (len > 0 && (uint8_t)prompt[len - 1] <= ' ')
        len--;
    return len >= n && memcmp(prompt + len - n, style->think_open, n) == 0;
}
