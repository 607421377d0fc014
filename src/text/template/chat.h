/*
 * chat.h - conversations to prompts: a chat template with the variables that templates expect. The
 * built-in templates are Jinja, as those in models are.
 */
#ifndef PI_CHAT_H
#define PI_CHAT_H

#include "text/template/jinja.h"

/* ---- templates that come along (chat_builtin.c) ---- */

const char *pi_chat_name(int32_t i);        /* NULL past the last */
const char *pi_chat_text(const char *name); /* its Jinja text; NULL: there is no such template */

/* ---- templates ---- */

struct pi_chat_template {
    char *text; /* terminated; owned */
    size_t len;
    struct jinja_template *jinja; /* owned; NULL: it could not be read */
    pith_error err;               /* why */
};

/* Keeps a text that is no template, with the reason why. NOMEM. */
pith_status pi_chat_template_load(const char *text, size_t len, struct pi_chat_template *out,
                                  pith_error *err);
/* One that comes along; INVALID where there is none of that name. */
pith_status pi_chat_find(const char *name, struct pi_chat_template *out, pith_error *err);
void pi_chat_template_free(struct pi_chat_template *t);

/* ---- prompts ---- */

/* A conversation: a JSON text, or where it is NULL messages. */
struct pi_chat {
    const pith_message *messages; /* [n_message] */
    int32_t n_message;
    const char *json; /* [json_len] */
    size_t json_len;
    uint32_t flags;        /* PITH_CHAT_ values */
    int64_t now;           /* seconds since 1970, local; 0: as if there were no clock */
    const char *bos, *eos; /* terminated texts of the tokens, "" where there is none */
    bool drop_bos;         /* a BOS that the prompt starts with is left out */
    const char *opening;   /* [opening_len] what the answer begins with; NULL: nothing */
    size_t opening_len;
};

/* Messages: their number, roles and contents. INVALID. */
pith_status pi_chat_check(const struct pi_chat *chat, pith_error *err);

/* INVALID: the conversation is not well-formed, or the template refuses it or fails; UNSUPPORTED:
   the template could not be read; NOMEM. The caller frees. */
pith_status pi_chat_prompt(const struct pi_chat_template *t, const struct pi_chat *chat,
                           struct jinja_text *out, pith_error *err);

/* Writes the text as pith_chat_render does. */
pith_status pi_chat_copy(const struct jinja_text *text, char *out, size_t cap, size_t *len,
                         pith_error *err);

/* As pith_chat_render, with the name of a template that comes along. */
pith_status pi_chat_render(const char *name, const pith_message *messages, int32_t n_message,
                           uint32_t flags, char *out, size_t cap, size_t *len, pith_error *err);

#endif
