/*
 * test_tools_golden.c - the output of real models' chat templates for an answer with calls
 * (tests/golden/tools.jsonl, scripts/golden/tools.py) is read back as the same answer. Where the
 * templates are there, each has the form that the golden file names.
 */
#include <jansson.h>

#include "serve/tools/tools.h"
#include "testing.h"

#define GOLDEN PITH_SOURCE_DIR "/tests/golden/tools.jsonl"

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": "
    "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": "
    "{\"type\": \"integer\"}, \"list\": {\"type\": \"array\"}}}}}]";

struct answer {
    char content[1024], reasoning[1024], args[4][4096];
    int32_t n_call, n_end;
};

static void join(char *to, size_t cap, const char *text, size_t len)
{
    size_t at = strlen(to);
    assert_true(at + len < cap);
    memcpy(to + at, text, len);
    to[at + len] = 0;
}

static void on_event(void *user, const struct serve_tools_event *e)
{
    struct answer *a = user;
    assert_true(e->index < 4);
    switch (e->type) {
    case SERVE_TOOLS_CONTENT:
        join(a->content, sizeof a->content, e->text, e->len);
        break;
    case SERVE_TOOLS_REASONING:
        join(a->reasoning, sizeof a->reasoning, e->text, e->len);
        break;
    case SERVE_TOOLS_CALL_START:
        assert_int_equal(e->index, a->n_call);
        assert_string_equal(e->name, "get_weather");
        a->n_call++;
        break;
    case SERVE_TOOLS_CALL_ARGS:
        join(a->args[e->index], sizeof a->args[0], e->text, e->len);
        break;
    case SERVE_TOOLS_CALL_END:
        assert_true(e->complete);
        a->n_end++;
        break;
    default:
        fail_msg("event %d", (int)e->type);
    }
}

static char *read_file(const char *path, size_t *len)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return NULL;
    fseek(file, 0, SEEK_END);
    *len = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*len + 1);
    assert_int_equal(fread(data, 1, *len, file), *len);
    data[*len] = 0;
    fclose(file);
    return data;
}

static struct serve_tools_style style_of(const char *form, const char *name)
{
    struct serve_tools_style style = {SERVE_TOOLS_GENERIC, "<think>", "</think>", true};
    for (int i = 0; i < SERVE_TOOLS_N_FORM; i++)
        if (strcmp(serve_tools_form_name((enum serve_tool_form)i), form) == 0)
            style.form = (enum serve_tool_form)i;
    if (strstr(name, "Seed-OSS") != NULL)
        serve_tools_style_detect("<seed:think>", 12, &style);
    if (strstr(name, "Apriel-1.6") != NULL)
        serve_tools_style_detect("[BEGIN FINAL RESPONSE]<tool_calls>", 34, &style);
    if (strcmp(form, "cohere") == 0)
        serve_tools_style_detect("<|START_THINKING|><|START_ACTION|>", 34, &style);
    if (strcmp(form, "seed") == 0)
        style.form = SERVE_TOOLS_SEED;
    assert_string_equal(serve_tools_form_name(style.form), form);
    return style;
}

static void read_answer(const struct serve_tools_style *style, const json_t *line,
                        const json_t *tools, size_t part, struct answer *a)
{
    *a = (struct answer){0};
    const char *text = json_string_value(json_object_get(line, "text"));
    size_t len = strlen(text);
    struct serve_tools_options options = {.tools = tools,
                                          .thinking =
                                              json_is_true(json_object_get(line, "thinking")),
                                          .on_event = on_event,
                                          .user = a};
    struct serve_tools *t;
    assert_int_equal(serve_tools_create(style, &options, &t, &err), PITH_OK);
    for (size_t i = 0; i < len; i += part)
        assert_int_equal(serve_tools_feed(t, text + i, len - i < part ? len - i : part, &err),
                         PITH_OK);
    assert_int_equal(serve_tools_finish(t, false, &err), PITH_OK);
    assert_int_equal(serve_tools_count(t), a->n_end);
    serve_tools_free(t);
}

static const char *trimmed(char *text)
{
    while (*text != 0 && strchr(" \n", *text) != NULL)
        text++;
    return text;
}

static void check_answer(const json_t *line, struct answer *a)
{
    const char *name = json_string_value(json_object_get(line, "template"));
    const char *text = json_string_value(json_object_get(line, "text"));
    const char *content = json_string_value(json_object_get(line, "content"));
    const char *reasoning = json_string_value(json_object_get(line, "reasoning"));
    if (strcmp(trimmed(a->content), content) != 0 || strcmp(a->reasoning, reasoning) != 0)
        fail_msg("%s: %s\n content \"%s\" reasoning \"%s\"", name, text, a->content, a->reasoning);
    if (a->n_call != json_integer_value(json_object_get(line, "calls")) || a->n_end != a->n_call)
        fail_msg("%s: %s\n has %d calls, %d ended", name, text, a->n_call, a->n_end);
    for (int32_t i = 0; i < a->n_call; i++) {
        json_t *args = json_loads(a->args[i], 0, NULL);
        if (!json_equal(args, json_object_get(line, "arguments")))
            fail_msg("%s: %s\n arguments %s", name, text, a->args[i]);
        json_decref(args);
    }
}

/* Whether the template is there and says the same form and tags. */
static int check_template(const char *name, const struct serve_tools_style *style)
{
    char file[128];
    size_t len;
    snprintf(file, sizeof(file), "templates/%s.jinja", name);
    const char *path = test_data_find(file);
    if (path == NULL)
        return 0;
    char *text = read_file(path, &len);
    assert_non_null(text);
    struct serve_tools_style found;
    serve_tools_style_detect(text, len, &found);
    free(text);
    if (found.form != style->form)
        fail_msg("%s is %s, not %s", name, serve_tools_form_name(style->form),
                 serve_tools_form_name(found.form));
    return 1;
}

static void for_each_line(void (*visit)(const json_t *line, const json_t *tools))
{
    size_t len;
    char *all = read_file(GOLDEN, &len);
    assert_non_null(all);
    json_t *tools = json_loads(tools_text, 0, NULL);
    int n = 0;
    for (char *at = all, *end; at < all + len; at = end + 1, n++) {
        end = strchr(at, '\n');
        json_t *line = json_loadb(at, (size_t)(end - at), 0, NULL);
        assert_non_null(line);
        visit(line, tools);
        json_decref(line);
    }
    assert_true(n > 150);
    json_decref(tools);
    free(all);
}

static void check_line(const json_t *line, const json_t *tools)
{
    static const size_t parts[] = {1, 2, 7, 1000000};
    struct serve_tools_style style = style_of(json_string_value(json_object_get(line, "form")),
                                              json_string_value(json_object_get(line, "template")));
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        struct answer a;
        read_answer(&style, line, tools, parts[i], &a);
        check_answer(line, &a);
    }
}

TEST(reads_back_what_templates_write)
{
    for_each_line(check_line);
}

static void check_form(const json_t *line, const json_t *tools)
{
    (void)tools;
    const char *name = json_string_value(json_object_get(line, "template"));
    struct serve_tools_style style =
        style_of(json_string_value(json_object_get(line, "form")), name);
    assert_int_equal(check_template(name, &style), 1);
}

TEST(detects_the_form_of_each_template)
{
    test_data("templates/Qwen-Qwen3-0.6B.jinja");
    for_each_line(check_form);
    struct serve_tools_style generic = {SERVE_TOOLS_GENERIC, "<think>", "</think>", true};
    assert_int_equal(check_template("SmolLM2-135M-Instruct.gguf", &generic), 1);
    assert_int_equal(check_template("google-gemma-2-2b-it", &generic), 1);
    assert_int_equal(check_template("microsoft-Phi-3.5-mini-instruct", &generic), 1);
}
