/*
 * request_style.c - how the model of a chat writes calls and thoughts, by its template. It knows
 * the tokens that must be shown for that, and has words for a template that knows no tools.
 */
#include "serve/api/request_body.h"

#include <string.h>

#include "base/mem.h"
#include "text/template/chat.h"

static const char *template_of(const struct serve_setup *setup)
{
    const char *text = setup->template_name != NULL   ? pi_chat_text(setup->template_name)
                       : setup->template_text != NULL ? setup->template_text
                                                      : pith_chat_template(setup->model);
    return text != NULL ? text : "";
}

/* Two texts with an empty line between them. */
static json_t *join(struct serve_reader *rd, const char *a, size_t a_len, const char *b,
                    size_t b_len)
{
    char *both = request_alloc(rd, a_len + b_len + 2, 1);
    if (both == NULL)
        return NULL;
    memcpy(both, a, a_len);
    memcpy(both + a_len, "\n\n", 2);
    memcpy(both + a_len + 2, b, b_len);
    return request_need(rd, json_stringn(both, a_len + b_len + 2));
}

/* Puts text behind the system message, or makes one of it. */
static void add_to_system(struct serve_reader *rd, const char *text)
{
    json_t *list = json_object_get(rd->r->source.chat, "messages"),
           *first = json_array_get(list, 0);
    const json_t *content = json_object_get(first, "content");
    json_t *whole;
    if (request_is(json_object_get(first, "role"), "system") && json_is_string(content)) {
        whole =
            join(rd, json_string_value(content), json_string_length(content), text, strlen(text));
        if (whole != NULL)
            request_set(rd, first, "content", whole);
        return;
    }
    whole = request_need(rd, json_pack("{s:s, s:s}", "role", "system", "content", text));
    if (whole != NULL && json_array_insert_new(list, 0, whole) != 0)
        request_no_memory(rd);
    rd->r->calls.explained = true;
}

bool request_explain_to_user(struct serve_reader *rd)
{
    json_t *list = json_object_get(rd->r->source.chat, "messages"), *user = json_array_get(list, 1);
    const json_t *text = json_object_get(json_array_get(list, 0), "content"),
                 *words = json_object_get(user, "content");
    if (!rd->r->calls.explained || !request_is(json_object_get(user, "role"), "user") ||
        !json_is_string(words))
        return false;
    rd->r->calls.explained = false;
    json_t *both = join(rd, json_string_value(text), json_string_length(text),
                        json_string_value(words), json_string_length(words));
    if (both != NULL)
        request_set(rd, user, "content", both);
    json_array_remove(list, 0);
    return both != NULL;
}

static void explain_tools(struct serve_reader *rd)
{
    pith_error err;
    char *text = NULL;
    pith_status status =
        serve_tools_instructions(rd->r->calls.tools, &rd->r->source.numbers, &text, &err);
    if (status == PITH_OK)
        add_to_system(rd, text);
    else
        serve_fault_status(rd->fault, status, err.message, 0, 0);
    pi_mem_free(text);
}

void request_find_style(struct serve_reader *rd)
{
    struct serve_request *r = rd->r;
    const char *text = template_of(rd->setup);
    serve_tools_style_detect(text, strlen(text), &r->calls.style);
    r->params.special =
        r->params.special || serve_tools_style_special(&r->calls.style, rd->setup->model);
    if (strstr(text, "tool_calls") == NULL) /* as all that show calls have it */
        request_write_past(rd);
    if (r->calls.tools != NULL && r->calls.style.form == SERVE_TOOLS_GENERIC && !request_is_bad(rd))
        explain_tools(rd);
}
