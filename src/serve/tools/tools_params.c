/*
 * tools_params.c - calls whose arguments are keys and values between tags, made into JSON. A string
 * stays a string, and is passed on while it comes. A value that the tool's schema calls a number, a
 * list and so on is read when its end has come. It stays a string where it is none.
 *
 * A closing tag ends a value only where the next parameter or the end of the call follows it. Where
 * the form has values on lines of their own, so does the tag. All others are a part of the value.
 */
#include "serve/tools/tools_parser.h"

#include "base/utf8.h"

/* Passes JSON on that was made here. The values are the model's, so that it is read again: false
   where it is no JSON, for text that is no UTF-8. */
static bool put(struct serve_tools *t, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (tools_json_step(&t->written, (uint8_t)text[i]) == TOOLS_JSON_BAD)
            return false;
    tools_call_args(t, text, len);
    return true;
}

static bool put_string(struct serve_tools *t, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char escaped[8];
        if (!put(t, escaped, tools_json_escape((uint8_t)text[i], escaped)))
            return false;
    }
    return true;
}

bool tools_params_begin(struct serve_tools *t)
{
    size_t len = t->head.len;
    const char *from = t->head.data;
    while (len > 0 && (pi_is_space(from[len - 1]) || from[len - 1] == '"'))
        len--;
    if (!tools_call_named(t, from, len) || !tools_call_start(t))
        return false;
    t->has_args = true;
    t->state = TOOLS_PARAM;
    t->word.len = 0;
    return put(t, "{", 1);
}

static bool ends(struct serve_tools *t, bool section)
{
    if (!put(t, "}", 1))
        return false;
    tools_call_end(t, true);
    if (section)
        tools_section_end(t);
    return true;
}

/* Between parameters: the next one, or the end of the call. */
static bool param_step(struct serve_tools *t, char c)
{
    tools_append(t, &t->raw, &c, 1);
    if (t->word.len == 0 && pi_is_space(c))
        return true;
    tools_append(t, &t->word, &c, 1);
    const struct tools_form *f = t->form;
    bool part = tools_is_prefix(&t->word, f->key_open);
    if (part && t->word.len == strlen(f->key_open)) {
        t->word.len = t->head.len = 0;
        t->state = TOOLS_KEY;
        return true;
    }
    const char *ways[] = {f->close, f->skip[0]};
    for (size_t i = 0; i < PI_LEN(ways); i++) {
        if (ways[i] == NULL || !tools_is_prefix(&t->word, ways[i]))
            continue;
        if (t->word.len == strlen(ways[i]))
            return ends(t, ways[i] == f->close);
        part = true;
    }
    return part;
}

/* The key is what stands before a quote or a tag; behind a quote DeepSeek says what the value
   is. */
static bool key_ends(struct serve_tools *t)
{
    size_t len = 0;
    while (len < t->head.len && t->head.data[len] != '"' && t->head.data[len] != '<')
        len++;
    if (len == 0)
        return false;
    tools_append(t, &t->head, "", 1); /* an end for strstr and for the schema's look-up */
    if (t->no_memory)
        return false;
    const char *rest = t->head.data + len;
    const char *says = strstr(rest, "string=\"");
    bool text = says != NULL && strncmp(says, "string=\"true", 12) == 0;
    t->head.data[len] = 0;
    t->value_is_text = says != NULL ? text : tools_param_is_text(t, t->name, t->head.data);
    if (t->n_param++ > 0 && !put(t, ", ", 2))
        return false;
    if (!put(t, "\"", 1) || !put_string(t, t->head.data, len) || !put(t, "\": ", 3))
        return false;
    t->value.len = 0;
    t->value_begun = t->value_inline = t->value_flushed = t->ending = false;
    t->state = t->form->value_open == NULL ? TOOLS_VALUE : TOOLS_VALUE_OPEN;
    return !t->value_is_text || put(t, "\"", 1);
}

static bool key_step(struct serve_tools *t, char c)
{
    tools_append(t, &t->raw, &c, 1);
    if (c == '>')
        return key_ends(t);
    tools_append(t, &t->head, &c, 1);
    return t->head.len <= TOOLS_HEAD_MAX;
}

static bool value_open_step(struct serve_tools *t, char c)
{
    tools_append(t, &t->raw, &c, 1);
    if (t->word.len == 0 && pi_is_space(c))
        return true;
    tools_append(t, &t->word, &c, 1);
    if (!tools_is_prefix(&t->word, t->form->value_open))
        return false;
    if (t->word.len == strlen(t->form->value_open)) {
        t->word.len = 0;
        t->state = TOOLS_VALUE;
    }
    return true;
}

/* The line end before a value that has lines of its own. */
static void drop_first_line(struct serve_tools *t)
{
    if (!t->value_begun && t->form->lines && t->value.len > 0 && t->value.data[0] == '\n')
        tools_drop(&t->value, 1);
    t->value_begun = true;
}

/* A value that is no string: as it is, or as Python writes it. */
static bool put_value(struct serve_tools *t)
{
    static const char *const python[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    const char *text = t->value.data;
    size_t len = t->value.len;
    while (len > 0 && pi_is_space(text[len - 1]))
        len--;
    while (len > 0 && pi_is_space(*text)) {
        text++;
        len--;
    }
    for (size_t i = 0; i < PI_LEN(python); i++)
        if (len == strlen(python[i][0]) && memcmp(text, python[i][0], len) == 0)
            return put(t, python[i][1], strlen(python[i][1]));
    if (len > 0 && serve_json_is_value(text, len))
        return put(t, text, len);
    return put(t, "\"", 1) && put_string(t, text, len) && put(t, "\"", 1);
}

static const char cdata_open[] = "<![CDATA[";
static const char cdata_close[] = "]]>";

static bool in_cdata(const struct serve_tools *t)
{
    size_t n = sizeof cdata_open - 1;
    return t->form->cdata && t->value.len >= n && memcmp(t->value.data, cdata_open, n) == 0;
}

/* Whether the value's closing tag, which ends it, is no part of character data. */
static bool closes(const struct serve_tools *t)
{
    struct tools_bytes before = t->value;
    if (!tools_ends_with(&t->value, t->form->value_close))
        return false;
    before.len -= strlen(t->form->value_close);
    return !in_cdata(t) || tools_ends_with(&before, cdata_close);
}

static bool value_ends(struct serve_tools *t)
{
    bool data = in_cdata(t);
    t->value.len -= strlen(t->form->value_close);
    if (data) {
        t->value.len -= sizeof cdata_close - 1;
        tools_drop(&t->value, sizeof cdata_open - 1);
    }
    drop_first_line(t);
    if (t->form->lines && t->value.len > 0 && t->value.data[t->value.len - 1] == '\n')
        t->value.len--;
    t->state = TOOLS_PARAM;
    t->ending = false;
    t->word.len = 0;
    if (!t->value_is_text)
        return put_value(t);
    return put_string(t, t->value.data, t->value.len) && put(t, "\"", 1);
}

/* Bytes at the end of the value that may belong to its closing tag. */
static size_t may_close(const struct serve_tools *t)
{
    const char *close = t->form->value_close;
    size_t k = strlen(close) - 1;
    k = k < t->value.len ? k : t->value.len;
    while (k > 0 && memcmp(t->value.data + t->value.len - k, close, k) != 0)
        k--;
    if (t->form->lines && t->value.len > k && t->value.data[t->value.len - k - 1] == '\n')
        k++;
    return k;
}

/* Passes on what is certain of a value that is text. */
static bool flush(struct serve_tools *t)
{
    if (!t->value_is_text || t->form->cdata)
        return true;
    drop_first_line(t);
    size_t n = t->value.len - may_close(t);
    bool good = put_string(t, t->value.data, n);
    t->value_flushed = t->value_flushed || n > 0;
    tools_drop(&t->value, n);
    return good;
}

/* Whether the closing tag stands where one may end the value, as far as lines matter. */
static bool on_own_line(struct serve_tools *t, size_t at)
{
    if (!t->form->lines || t->value_inline || t->lenient ||
        (at > 0 ? t->value.data[at - 1] == '\n' : !t->value_flushed))
        return true;
    t->loose = true;
    return false;
}

/* Behind a closing tag: it ends the value, or is a part of it. */
static bool ending_step(struct serve_tools *t, char c)
{
    const struct tools_form *f = t->form;
    const char *ways[] = {f->key_open, f->close, f->skip[0]};
    bool part = false;
    if (t->word.len == 0 && pi_is_space(c))
        return true;
    tools_append(t, &t->word, &c, 1);
    for (size_t i = 0; i < PI_LEN(ways) && !t->no_memory; i++) {
        if (ways[i] == NULL || !tools_is_prefix(&t->word, ways[i]))
            continue;
        part = true;
        if (t->word.len < strlen(ways[i]))
            continue;
        t->value.len = t->ending_at + strlen(f->value_close);
        if (!value_ends(t))
            return false;
        if (i > 0)
            return ends(t, i == 1);
        t->head.len = 0;
        t->state = TOOLS_KEY;
        return true;
    }
    if (part)
        return true;
    t->ending = false;
    t->word.len = 0;
    return flush(t);
}

static bool value_step(struct serve_tools *t, char c)
{
    if (t->value.len == 0 && !t->value_begun)
        t->value_inline = c != '\n';
    tools_append(t, &t->raw, &c, 1);
    tools_append(t, &t->value, &c, 1);
    if (t->no_memory)
        return true;
    if (t->ending)
        return ending_step(t, c);
    size_t n_close = strlen(t->form->value_close);
    if (closes(t) && on_own_line(t, t->value.len - n_close)) {
        t->ending = true;
        t->ending_at = t->value.len - n_close;
        t->word.len = 0;
        return true;
    }
    return flush(t);
}

bool tools_params_step(struct serve_tools *t, char c)
{
    switch (t->state) {
    case TOOLS_KEY:
        return key_step(t, c);
    case TOOLS_VALUE_OPEN:
        return value_open_step(t, c);
    case TOOLS_VALUE:
        return value_step(t, c);
    default:
        return param_step(t, c);
    }
}
