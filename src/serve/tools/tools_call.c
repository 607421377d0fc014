/*
 * tools_call.c - a section of calls, and calls whose arguments are JSON. They are an object with
 * name and arguments in any order, or the name and then the arguments. Arguments are passed on byte
 * for byte as soon as the name is known.
 */
#include "serve/tools/tools_parser.h"

#include "base/mem.h"
#include "base/utf8.h"

void tools_call_reset(struct serve_tools *t)
{
    t->word.len = t->head.len = t->args.len = t->value.len = 0;
    t->json = (struct tools_json){0};
    t->written = (struct tools_json){0};
    t->role = TOOLS_ROLE_NONE;
    t->in_key = t->in_value = t->coded = t->has_args = t->started = t->fresh = false;
    t->ending = t->loose = false;
    t->n_param = 0;
    pi_mem_free(t->name);
    t->name = NULL;
}

/* ---- names ---- */

bool tools_call_named(struct serve_tools *t, const char *text, size_t len)
{
    if (len == 0 || len > 128 || t->name != NULL)
        return false;
    for (size_t i = 0; i < len; i++)
        if ((uint8_t)text[i] <= ' ' || strchr("\"{}<>", text[i]) != NULL)
            return false;
    if (pi_utf8_span(text, len) != len)
        return false;
    t->name = pi_mem_strndup(PI_MEM_OTHER, text, len);
    t->no_memory = t->no_memory || t->name == NULL;
    return t->name != NULL;
}

static const char *find(const char *text, size_t len, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = 0; i + n <= len; i++)
        if (memcmp(text + i, what, n) == 0)
            return text + i;
    return NULL;
}

/* NAMED: the name within what stands before the arguments. */
static bool named_by_head(struct serve_tools *t)
{
    if (t->head.len == 0)
        return false;
    const char *from = t->head.data;
    const char *end = from + t->head.len;
    const char *after = t->form->name_after;
    const char *at = after == NULL ? NULL : find(from, (size_t)(end - from), after);
    if (at != NULL)
        from = at + strlen(after);
    for (size_t i = 0; i < PI_LEN(t->form->name_until) && t->form->name_until[i] != NULL; i++) {
        at = find(from, (size_t)(end - from), t->form->name_until[i]);
        end = at == NULL ? end : at;
    }
    while (from < end && pi_is_space(*from))
        from++;
    while (end > from && pi_is_space(end[-1]))
        end--;
    return tools_call_named(t, from, (size_t)(end - from));
}

/* ---- a section ---- */

static bool begins_call(const struct serve_tools *t, const char *marker)
{
    for (size_t i = 0; i < PI_LEN(t->form->call_open) && t->form->call_open[i] != NULL; i++)
        if (strcmp(marker, t->form->call_open[i]) == 0)
            return true;
    return false;
}

void tools_section_begin(struct serve_tools *t, const char *marker, bool bare)
{
    if (t->trim)
        tools_drop(&t->held, t->n_space);
    tools_append(t, &t->raw, t->held.data, t->held.len);
    t->held.len = 0;
    t->n_space = 0;
    tools_call_reset(t);
    t->n_section = 0;
    t->fresh = true;
    t->bare = bare;
    t->as_json = bare || t->form->body == TOOLS_BODY_JSON;
    t->state = marker != NULL && begins_call(t, marker) ? TOOLS_HEAD : TOOLS_BETWEEN;
}

void tools_section_end(struct serve_tools *t)
{
    t->raw.len = 0;
    tools_call_reset(t);
    t->after_call = true;
    t->trim = false;
    t->state = TOOLS_TEXT;
}

/* The kind that the word has become, or may become. */
enum word { WORD_NONE, WORD_PART, WORD_CALL, WORD_SECTION, WORD_SKIP, WORD_CLOSE };

static enum word compare(const struct serve_tools *t, const char *marker, enum word whole,
                         enum word so_far)
{
    if (marker == NULL || !tools_is_prefix(&t->word, marker))
        return so_far;
    if (strlen(marker) == t->word.len)
        return whole;
    return so_far == WORD_NONE ? WORD_PART : so_far;
}

static enum word read_word(const struct serve_tools *t)
{
    enum word w = WORD_NONE;
    const struct tools_form *f = t->form;
    for (size_t i = 0; i < PI_LEN(f->open) && t->n_section > 0 && !t->bare; i++)
        w = compare(t, f->open[i], WORD_SECTION, w);
    for (size_t i = 0; i < PI_LEN(f->call_open) && !t->bare; i++)
        w = compare(t, f->call_open[i], WORD_CALL, w);
    for (size_t i = 0; i < PI_LEN(f->skip); i++)
        w = compare(t, f->skip[i], WORD_SKIP, w);
    if (t->bare)
        w = compare(t, "```", WORD_CLOSE, w);
    return compare(t, f->close, WORD_CLOSE, w);
}

bool tools_call_closes(const struct serve_tools *t)
{
    const struct tools_form *f = t->form;
    bool closes = compare(t, t->bare ? "```" : f->close, WORD_CLOSE, WORD_NONE) != WORD_NONE;
    for (size_t i = 0; i < PI_LEN(f->skip); i++)
        closes = closes || compare(t, f->skip[i], WORD_SKIP, WORD_NONE) != WORD_NONE;
    return closes && t->state == TOOLS_BETWEEN && t->n_section > 0 && t->word.len > 0;
}

static bool begin_object(struct serve_tools *t, char c)
{
    t->state = TOOLS_OBJECT;
    t->fresh = false;
    return tools_object_step(t, c);
}

/* Characters that may stand about the objects of a list. */
static bool list_step(struct serve_tools *t, char c, bool *taken)
{
    *taken = false;
    if (t->fresh && t->form->mixed && (c == '[' || c == '{'))
        t->as_json = true;
    if (!t->as_json)
        return true;
    /* Behind a call that was constrained alone the text is free again. */
    bool free = t->options.constrained && t->bare && t->n_section > 0;
    if (c == '{' && !free) {
        *taken = true;
        return begin_object(t, c);
    }
    if (c == '[' && t->fresh && !t->bare) {
        t->fresh = false;
        *taken = true;
    } else if ((c == ',' || c == ';' || c == ']') && t->n_section > 0) {
        *taken = c != ']' || !t->bare;
        if (c == ']' && t->form->close == NULL && !t->bare) {
            tools_section_end(t);
            return true;
        }
    }
    if (*taken)
        tools_append(t, &t->raw, &c, 1);
    return true;
}

static bool take_word(struct serve_tools *t, enum word w)
{
    t->word.len = 0;
    if (w == WORD_SECTION) {
        t->fresh = true;
        t->as_json = t->form->body == TOOLS_BODY_JSON;
        return true;
    }
    if (w == WORD_CALL) {
        t->head.len = 0;
        t->fresh = false;
        t->state = TOOLS_HEAD;
        return true;
    }
    if (t->n_section > 0)
        t->raw.len = 0;
    if (w == WORD_CLOSE)
        tools_section_end(t);
    return true;
}

static bool between_step(struct serve_tools *t, char c)
{
    if (t->word.len == 0) {
        bool taken = pi_is_space(c);
        if (taken)
            tools_append(t, &t->raw, &c, 1);
        else if (!list_step(t, c, &taken))
            return false;
        if (taken)
            return true;
    }
    tools_append(t, &t->word, &c, 1);
    enum word w = read_word(t);
    bool first = t->word.len == 1 && t->fresh && t->form->call_open[0] == NULL && !t->as_json;
    if (w == WORD_NONE && first) {
        t->word.len = 0;
        t->head.len = 0;
        t->state = TOOLS_HEAD;
        return tools_call_step(t, c);
    }
    if (w == WORD_NONE || (w == WORD_CLOSE && t->n_section == 0))
        return false;
    tools_append(t, &t->raw, &c, 1);
    return w == WORD_PART ? true : take_word(t, w);
}

/* ---- an object ---- */

static void put_args(struct serve_tools *t, const char *text, size_t len)
{
    if (t->started)
        tools_call_args(t, text, len);
    else
        tools_append(t, &t->args, text, len);
}

static bool start(struct serve_tools *t)
{
    if (t->started)
        return true;
    if (t->name == NULL || !tools_call_start(t))
        return false;
    tools_call_args(t, t->args.data, t->args.len);
    t->args.len = 0;
    return true;
}

static bool key_is(const struct serve_tools *t, const char *key)
{
    return t->head.len == strlen(key) && memcmp(t->head.data, key, t->head.len) == 0;
}

static bool key_ends(struct serve_tools *t)
{
    t->in_key = false;
    t->role = TOOLS_ROLE_NONE;
    if (t->form->key_is_name && !t->bare) {
        t->role = TOOLS_ROLE_ARGS;
        return tools_call_named(t, t->head.data, t->head.len);
    }
    if (key_is(t, "name") || key_is(t, "tool_name") || key_is(t, "function"))
        t->role = TOOLS_ROLE_NAME;
    if (key_is(t, "arguments") || key_is(t, "parameters"))
        t->role = TOOLS_ROLE_ARGS;
    /* An answer in JSON that is no call is not to wait for its end. */
    bool other = t->role == TOOLS_ROLE_NONE && !key_is(t, "type") && !key_is(t, "id");
    return !(t->bare && t->name == NULL && other);
}

static bool value_begins(struct serve_tools *t, char c)
{
    t->value.len = 0;
    if (t->role == TOOLS_ROLE_NAME)
        t->in_value = c == '"' && t->name == NULL;
    if (t->role != TOOLS_ROLE_ARGS || c == 'n')
        return true;
    if (t->has_args || (c != '{' && c != '"'))
        return false;
    t->in_value = t->has_args = true;
    t->coded = c == '"';
    return t->coded || t->name == NULL || start(t);
}

/* The string that value has as JSON; NULL where it is none. The caller releases it. */
static json_t *decoded(const struct serve_tools *t)
{
    return json_loadb(t->value.data, t->value.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

static bool value_ends(struct serve_tools *t)
{
    t->in_value = false;
    if (t->role == TOOLS_ROLE_ARGS && !t->coded)
        return true;
    json_t *string = decoded(t);
    const char *text = json_string_value(string);
    size_t len = json_string_length(string);
    bool good = text != NULL;
    if (good && t->role == TOOLS_ROLE_NAME) {
        good = tools_call_named(t, text, len) && (!t->bare || tools_knows(t, t->name)) &&
               (!t->has_args || start(t));
    } else if (good) {
        good = tools_json_is_object(text, len) && (t->name == NULL || start(t));
        if (good)
            put_args(t, text, len);
    }
    json_decref(string);
    return good;
}

/* A byte of a value that matters; bare: a control character in a string. */
static bool value_byte(struct serve_tools *t, char c, bool bare)
{
    char escaped[8] = {c};
    size_t n = bare ? tools_json_escape((uint8_t)c, escaped) : 1;
    if (t->role == TOOLS_ROLE_ARGS && !t->coded)
        put_args(t, escaped, n);
    else
        tools_append(t, &t->value, escaped, n);
    bool ended = t->json.depth == 1 && t->json.state == TOOLS_JSON_AFTER;
    return !ended || value_ends(t);
}

/* Follows the keys and values of the object that holds name and arguments. */
static bool follow(struct serve_tools *t, char c, const struct tools_json *before, bool bare)
{
    if (t->in_key) {
        if (t->json.state == TOOLS_JSON_COLON)
            return key_ends(t);
        tools_append(t, &t->head, &c, 1);
        return t->head.len <= TOOLS_HEAD_MAX;
    }
    if (before->depth == 1 && c == '"' &&
        (before->state == TOOLS_JSON_KEY || before->state == TOOLS_JSON_KEY_OR_END)) {
        t->in_key = true;
        t->head.len = 0;
    }
    if (before->depth == 1 && before->state == TOOLS_JSON_VALUE && !pi_is_space(c) &&
        !value_begins(t, c))
        return false;
    return !t->in_value || value_byte(t, c, bare);
}

static bool object_ends(struct serve_tools *t)
{
    if (!t->has_args && t->bare && t->options.whole) /* an answer that has a name */
        return false;
    if (!start(t))
        return false;
    if (!t->has_args)
        tools_call_args(t, "{}", 2);
    tools_call_end(t, true);
    return true;
}

bool tools_object_step(struct serve_tools *t, char c)
{
    struct tools_json before = {.depth = t->json.depth, .state = t->json.state};
    bool bare = tools_json_bare(&t->json, (uint8_t)c);
    enum tools_json_result r = tools_json_step(&t->json, (uint8_t)c);
    if (r == TOOLS_JSON_BAD)
        return false;
    tools_append(t, &t->raw, &c, 1);
    if (t->as_json) {
        if (!follow(t, c, &before, bare))
            return false;
    } else {
        char escaped[8] = {c};
        tools_call_args(t, escaped, bare ? tools_json_escape((uint8_t)c, escaped) : 1);
        t->has_args = true;
    }
    return r != TOOLS_JSON_DONE || object_ends(t);
}

/* ---- the name before the arguments ---- */

static bool head_step(struct serve_tools *t, char c)
{
    bool params = t->form->body == TOOLS_BODY_PARAMS;
    t->fresh = false;
    if (params && strchr(t->form->head_end, c) != NULL && c != 0)
        return tools_params_begin(t) &&
               (t->form->head_keep ? tools_params_step(t, c)
                                   : (tools_append(t, &t->raw, &c, 1), true));
    if (!params && c == '{')
        return named_by_head(t) && start(t) && begin_object(t, c);
    tools_append(t, &t->raw, &c, 1);
    tools_append(t, &t->head, &c, 1);
    return t->head.len <= TOOLS_HEAD_MAX;
}

bool tools_call_step(struct serve_tools *t, char c)
{
    switch (t->state) {
    case TOOLS_BETWEEN:
        return between_step(t, c);
    case TOOLS_HEAD:
        return head_step(t, c);
    case TOOLS_OBJECT:
        return tools_object_step(t, c);
    default:
        return tools_params_step(t, c);
    }
}
