/* chat.h - chat templates, recognised by their marks and rendered by our own code: no template
   language is interpreted. */
#ifndef PI_CHAT_H
#define PI_CHAT_H

#include "base/base.h"

/* The template whose marks stand in a model's template text; NULL when unknown. */
const char *pi_chat_detect(const char *text, size_t len);
const char *pi_chat_name(int32_t i);
/* As pith_chat_render, with a template's name. */
pith_status pi_chat_render(const char *name, const pith_message *messages, int32_t n_message,
                           uint32_t flags, char *out, size_t cap, size_t *len, pith_error *err);

#endif
