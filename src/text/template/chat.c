/*
 * chat.c - a conversation as the variables of a template, and the prompt that comes out. Contents
 * are a user's text in any turn; roles, BOS and EOS are the template's. It knows no
 * model and no tokenizer.
 */
#include "text/template/chat.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/value/jinja_json.h"

/* ---- templates ---- */

pith_status pi_chat_template_load(const char *text, size_t len, struct pi_chat_template *out,
                                  pith_error *err)
{
    size_t mark = pi_utf8_mark(text, len);
    text += mark;
    len -= mark;
    *out = (struct pi_chat_template){.len = len};
    out->text = pi_mem_strndup(PI_MEM_MODEL, text, len);
    if (out->text == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a chat template of %zu bytes", len);
    pith_status status = jinja_template_parse(text, len, &out->jinja, &out->err);
    return status == PITH_NOMEM ? pi_fail(err, status, "%s", out->err.message) : PITH_OK;
}

void pi_chat_template_free(struct pi_chat_template *t)
{
    pi_mem_free(t->text);
    jinja_template_free(t->jinja);
    *t = (struct pi_chat_template){0};
}

/* ---- variables ---- */

static void set(struct jinja_heap *h, struct jinja_value dict, const char *name,
                struct jinja_value value)
{
    struct jinja_value key = jinja_of(jinja_str_static(h, name));
    if (!jinja_failed(h))
        jinja_dict_set(h, dict.u.dict, key, value);
}

/* Templates build special tokens of roles. Roles that are words of the trade are therefore no
   user's text: they could say nothing else. */
static struct jinja_value role_value(struct jinja_heap *h, struct jinja_value role)
{
    static const char *const known[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    for (size_t i = 0; i < PI_LEN(known); i++)
        if (role.kind == JINJA_STR && jinja_str_is(role.u.s, known[i]))
            return jinja_of(jinja_str_static(h, known[i]));
    return role;
}

static void set_messages(struct jinja_heap *h, struct jinja_value variables,
                         const struct pi_chat *chat)
{
    struct jinja_value list = jinja_list_new(h, JINJA_LIST, (size_t)chat->n_message);
    for (int32_t i = 0; i < chat->n_message && !jinja_failed(h); i++) {
        const pith_message *m = &chat->messages[i];
        struct jinja_value one = jinja_dict_new(h);
        struct jinja_value role = jinja_of(jinja_str_new(h, m->role, strlen(m->role), true));
        set(h, one, "role", role_value(h, role));
        set(h, one, "content", jinja_of(jinja_str_new(h, m->content, strlen(m->content), true)));
        jinja_list_add(h, list, one);
    }
    set(h, variables, "messages", list);
}

static void check_messages(struct jinja_heap *h, struct jinja_value messages)
{
    if (messages.kind != JINJA_LIST) {
        jinja_fail(h, PITH_INVALID, "messages: is missing or no array");
        return;
    }
    for (size_t i = 0; i < messages.u.list->n && !jinja_failed(h); i++) {
        struct jinja_value one = messages.u.list->item[i];
        struct jinja_value *role =
            one.kind == JINJA_DICT ? jinja_dict_find(h, one.u.dict, "role") : NULL;
        if (one.kind != JINJA_DICT)
            jinja_fail(h, PITH_INVALID, "messages[%zu]: is no object", i);
        else if (role == NULL || role->kind != JINJA_STR)
            jinja_fail(h, PITH_INVALID, "messages[%zu].role: is missing or no string", i);
        else
            *role = role_value(h, *role);
    }
}

static void set_json(struct jinja_heap *h, struct jinja_value variables, const struct pi_chat *chat)
{
    struct jinja_value all = jinja_json_read(h, chat->json, chat->json_len);
    if (!jinja_failed(h) && all.kind != JINJA_DICT)
        jinja_fail(h, PITH_INVALID, "JSON: the conversation is no object");
    for (size_t i = 0; !jinja_failed(h) && i < all.u.dict->n; i++)
        jinja_dict_set(h, variables.u.dict, all.u.dict->pair[i].key, all.u.dict->pair[i].value);
    const struct jinja_value *messages =
        jinja_failed(h) ? NULL : jinja_dict_find(h, variables.u.dict, "messages");
    check_messages(h, messages != NULL ? *messages : jinja_none());
}

static void fill(void *user, struct jinja_heap *h, struct jinja_value variables)
{
    const struct pi_chat *chat = user;
    if (chat->json != NULL)
        set_json(h, variables, chat);
    else
        set_messages(h, variables, chat);
    if (chat->json == NULL || (chat->flags & PITH_CHAT_GENERATE) != 0)
        set(h, variables, "add_generation_prompt",
            jinja_bool((chat->flags & PITH_CHAT_GENERATE) != 0));
    if ((chat->flags & PITH_CHAT_NO_THINKING) != 0) {
        set(h, variables, "enable_thinking", jinja_bool(false));
        set(h, variables, "thinking", jinja_bool(false)); /* as DeepSeek calls it */
    }
    set(h, variables, "bos_token", jinja_of(jinja_str_static(h, chat->bos)));
    set(h, variables, "eos_token", jinja_of(jinja_str_static(h, chat->eos)));
}

/* ---- prompts ---- */

static bool ends_with(const struct jinja_text *text, size_t len, const char *end)
{
    size_t n = strlen(end);
    return len >= n && memcmp(text->data + len - n, end, n) == 0;
}

/* Marks for all bytes, where one mark said the same of all; then room for len of them. */
static bool grow_marks(struct jinja_text *text, size_t len)
{
    uint8_t *user = pi_mem_grow(PI_MEM_OTHER, text->user, len, 1);
    if (user == NULL)
        return false;
    if (text->user == NULL)
        memset(user, text->from_user, text->len);
    text->user = user;
    return true;
}

/* Adds bytes [n] of the template, or of a user. */
static pith_status append(struct jinja_text *text, const char *more, size_t n, bool from_user,
                          pith_error *err)
{
    size_t len = text->len + n;
    bool marks = text->user != NULL || text->from_user != from_user;
    char *data = pi_mem_grow(PI_MEM_OTHER, text->data, len + 1, 1);
    if (data != NULL)
        text->data = data;
    if (data == NULL || (marks && n > 0 && !grow_marks(text, len)))
        return pi_fail(err, PITH_NOMEM, "no memory for a prompt of %zu bytes", len);
    if (text->user != NULL && n > 0)
        memset(text->user + text->len, from_user, n);
    memcpy(data + text->len, more, n);
    data[len] = '\0';
    text->len = len;
    return PITH_OK;
}

static pith_status append_text(struct jinja_text *text, const char *more, pith_error *err)
{
    return append(text, more, strlen(more), false, err);
}

/* Where a template of a thinking model has no switch, an empty block of thoughts stands behind the
   opening of the answer. Or it closes the block that the template opened. */
static pith_status close_thoughts(const struct pi_chat_template *t, struct jinja_text *text,
                                  pith_error *err)
{
    size_t len = jinja_space_end(text->data, text->len);
    if (ends_with(text, len, "<think>"))
        return append_text(text, len == text->len ? "\n\n</think>\n\n" : "\n</think>\n\n", err);
    if (strstr(t->text, "</think>") == NULL || ends_with(text, len, "</think>"))
        return PITH_OK;
    return append_text(text, "<think>\n\n</think>\n\n", err);
}

/* The tokenizer puts it there. */
static void drop_bos(struct jinja_text *text, const char *bos)
{
    size_t n = strlen(bos);
    if (n == 0 || text->len < n || memcmp(text->data, bos, n) != 0)
        return;
    for (size_t i = 0; i < n; i++)
        if (text->user != NULL ? text->user[i] != 0 : text->from_user)
            return;
    memmove(text->data, text->data + n, text->len - n + 1);
    if (text->user != NULL)
        memmove(text->user, text->user + n, text->len - n);
    text->len -= n;
}

pith_status pi_chat_prompt(const struct pi_chat_template *t, const struct pi_chat *chat,
                           struct jinja_text *out, pith_error *err)
{
    struct jinja_text text;
    static const int64_t no_clock =
        1721952000; /* 2024-07-26, which Llama's templates fall back to */
    const struct jinja_given given = {.now = chat->now != 0 ? &chat->now : NULL,
                                      .call_now = &no_clock};
    if (t->jinja == NULL)
        return pi_fail(err, t->err.status, "%s", t->err.message);
    PI_TRY(jinja_render(t->jinja, fill, (void *)chat, &given, &text, err));
    pith_status status = PITH_OK;
    uint32_t both = PITH_CHAT_GENERATE | PITH_CHAT_NO_THINKING;
    if ((chat->flags & both) == both && !text.asked_thinking)
        status = close_thoughts(t, &text, err);
    if (chat->drop_bos)
        drop_bos(&text, chat->bos);
    if (status == PITH_OK && chat->opening != NULL)
        status = append(&text, chat->opening, chat->opening_len, true, err);
    if (status != PITH_OK)
        jinja_text_free(&text);
    else
        *out = text;
    return status;
}

/* ---- messages to text ---- */

static pith_status check(const struct pi_chat *chat, pith_error *err)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    if (chat->n_message < 0 || (chat->messages == NULL && chat->n_message > 0))
        return pi_fail(err, PITH_INVALID, "messages: NULL, or n_message %d", chat->n_message);
    for (int32_t i = 0; i < chat->n_message; i++) {
        const pith_message *m = &chat->messages[i];
        bool known = false;
        for (size_t r = 0; r < PI_LEN(roles) && m->role != NULL; r++)
            known = known || strcmp(m->role, roles[r]) == 0;
        if (!known)
            return pi_fail(err, PITH_INVALID,
                           "messages[%d].role: \"%.40s\" is none of system, user, assistant", i,
                           m->role != NULL ? m->role : "NULL");
        if (m->content == NULL)
            return pi_fail(err, PITH_INVALID, "messages[%d].content: is NULL", i);
    }
    return PITH_OK;
}

pith_status pi_chat_check(const struct pi_chat *chat, pith_error *err)
{
    return chat->json != NULL ? PITH_OK : check(chat, err);
}

pith_status pi_chat_copy(const struct jinja_text *text, char *out, size_t cap, size_t *len,
                         pith_error *err)
{
    size_t fits = text->len < cap ? text->len : cap;
    if (fits > 0)
        memcpy(out, text->data, fits);
    *len = text->len;
    if (text->len > cap)
        return pi_fail(err, PITH_RANGE, "cap: %zu bytes do not hold the prompt's %zu", cap,
                       text->len);
    return PITH_OK;
}

pith_status pi_chat_find(const char *name, struct pi_chat_template *out, pith_error *err)
{
    const char *text = pi_chat_text(name);
    if (text == NULL)
        return pi_fail(err, PITH_INVALID, "chat template: \"%.60s\" is none that Pith knows",
                       name != NULL ? name : "NULL");
    return pi_chat_template_load(text, strlen(text), out, err);
}

pith_status pi_chat_render(const char *name, const pith_message *messages, int32_t n_message,
                           uint32_t flags, char *out, size_t cap, size_t *len, pith_error *err)
{
    const struct pi_chat chat = {
        .messages = messages, .n_message = n_message, .flags = flags, .bos = "", .eos = ""};
    struct pi_chat_template t;
    struct jinja_text text;
    if (len == NULL)
        return pi_fail(err, PITH_INVALID, "len: is NULL");
    PI_TRY(pi_chat_find(name, &t, err));
    pith_status status = pi_chat_check(&chat, err);
    if (status == PITH_OK)
        status = pi_chat_prompt(&t, &chat, &text, err);
    if (status == PITH_OK) {
        status = pi_chat_copy(&text, out, cap, len, err);
        jinja_text_free(&text);
    }
    pi_chat_template_free(&t);
    return status;
}
