/*
 * prompt.c - pith_prompt: a conversation in a model's template, and its tokens. chat.c renders and
 * vocab.c makes tokens. This file passes the text between them, with marks on the users' text.
 */
#include "base/mem.h"
#include "model/model.h"

struct pith_prompt {
    struct jinja_text text;
};

void pith_chat_params_default(pith_chat_params *out)
{
    *out = (pith_chat_params){0};
}

const char *pith_chat_template(const pith_model *m)
{
    return m->chat.text;
}
const char *pith_chat_template_name(int32_t i)
{
    return pi_chat_name(i);
}

/* ---- rendering ---- */

static pith_status render(const pith_model *m, const pith_chat_params *params,
                          const struct pi_chat *chat, struct jinja_text *out, pith_error *err)
{
    struct pi_chat_template given;
    const char *text = params->template_text;
    PI_TRY(pi_chat_check(chat, err));
    if (params->template_name != NULL)
        PI_TRY(pi_chat_find(params->template_name, &given, err));
    else if (text != NULL)
        PI_TRY(pi_chat_template_load(text, strlen(text), &given, err));
    else if (m->chat.text == NULL)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "the model's file has no chat template: name one of those that come along");
    else
        return pi_chat_prompt(&m->chat, chat, out, err);
    pith_status status = pi_chat_prompt(&given, chat, out, err);
    pi_chat_template_free(&given);
    return status;
}

pith_status pith_prompt_create(const pith_model *m, const pith_chat_params *params,
                               pith_prompt **out, pith_error *err)
{
    if (m == NULL || params == NULL || out == NULL)
        return pi_fail(err, PITH_INVALID, "pith_prompt_create: model, params or out is NULL");
    const struct pi_chat chat = {
        .messages = params->messages,
        .n_message = params->n_message,
        .json = params->json,
        .json_len = params->json_len,
        .flags = params->flags,
        .now = params->now,
        .opening = params->opening,
        .opening_len = params->opening_len,
        .bos = m->bos_text,
        .eos = m->eos_text,
        .drop_bos = pi_vocab_adds_bos(m->vocab),
    };
    pith_prompt *prompt = pi_mem_alloc(PI_MEM_OTHER, sizeof(*prompt));
    if (prompt == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a prompt");
    pith_status status = render(m, params, &chat, &prompt->text, err);
    if (status != PITH_OK) {
        pi_mem_free(prompt);
        return status;
    }
    *out = prompt;
    return PITH_OK;
}

void pith_prompt_free(pith_prompt *prompt)
{
    if (prompt == NULL)
        return;
    jinja_text_free(&prompt->text);
    pi_mem_free(prompt);
}

pith_status pith_chat_render(const pith_model *m, const char *template_name,
                             const pith_message *messages, int32_t n_message, uint32_t flags,
                             char *out, size_t cap, size_t *len, pith_error *err)
{
    const pith_chat_params params = {.template_name = template_name,
                                     .messages = messages,
                                     .n_message = n_message,
                                     .flags = flags};
    pith_prompt *prompt;
    if (len == NULL || (out == NULL && cap > 0))
        return pi_fail(err, PITH_INVALID, "pith_chat_render: len or out is NULL");
    PI_TRY(pith_prompt_create(m, &params, &prompt, err));
    pith_status status = pi_chat_copy(&prompt->text, out, cap, len, err);
    pith_prompt_free(prompt);
    return status;
}

/* ---- the rendered text ---- */

const char *pith_prompt_text(const pith_prompt *prompt, size_t *len)
{
    if (len != NULL)
        *len = prompt->text.len;
    return prompt->text.data;
}

static bool is_user(const struct jinja_text *text, size_t i)
{
    return text->user != NULL ? text->user[i] != 0 : text->from_user;
}

bool pith_prompt_piece(const pith_prompt *prompt, int32_t i, size_t *from, size_t *len,
                       bool *from_user)
{
    const struct jinja_text *text = &prompt->text;
    size_t begin = 0, end = 0;
    if (i < 0)
        return false;
    for (int32_t k = 0; k <= i; k++) {
        begin = end;
        while (end < text->len && is_user(text, end) == is_user(text, begin))
            end++;
    }
    if (begin >= text->len)
        return false;
    *from = begin;
    *len = end - begin;
    *from_user = is_user(text, begin);
    return true;
}

pith_status pith_prompt_tokenize(const pith_model *m, const pith_prompt *prompt, uint32_t flags,
                                 int32_t *out, int32_t cap, int32_t *n_id, pith_error *err)
{
    const struct jinja_text *text = &prompt->text;
    if (text->user == NULL && text->from_user)
        flags &= ~(uint32_t)PITH_TOKENIZE_SPECIAL;
    return pi_vocab_tokenize_marked(m->vocab, text->data, text->len, text->user, flags, out, cap,
                                    n_id, err);
}
