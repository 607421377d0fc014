/*
 * session_chat.c - the chat of a session: its system message, its template, and prompts of both.
 * Texts of files are read once, as a file may be a pipe.
 */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- texts of files ---- */

/* A file's text, instead of the one before: it stays to the end of the program, as words of the
   command line do. */
static const char *keep_text(const char *option, const char *path, bool chomp, char **kept)
{
    struct cli_text file = cli_read_file(path);
    if (chomp)
        cli_chomp(&file);
    if (strlen(file.data) != file.len)
        cli_fail("%s: \"%s\" has a zero byte", option, path);
    free(*kept);
    *kept = file.data;
    return file.data;
}

void chat_system_read(struct chat_options *o)
{
    static char *text;
    if (o->system_file == NULL)
        return;
    if (o->system != NULL)
        cli_fail_usage("--system and --system-file (%s) both give the system message: give one",
                       o->system_file);
    o->system = keep_text("--system-file", o->system_file, true, &text);
}

void chat_template_read(struct chat_options *o)
{
    static char *text;
    if (o->template_file != NULL)
        o->template_text = keep_text("--chat-template-file", o->template_file, false, &text);
}

/* ---- prompts ---- */

static pith_status make_prompt(const pith_model *model, const struct chat_options *o,
                               const pith_message *messages, int32_t n, pith_prompt **out,
                               pith_error *err)
{
    pith_chat_params params;
    pith_chat_params_default(&params);
    params.template_name = o->template_name;
    params.template_text = o->template_text;
    params.messages = messages;
    params.n_message = n;
    params.flags = PITH_CHAT_GENERATE | (o->no_thinking ? PITH_CHAT_NO_THINKING : 0);
    return pith_prompt_create(model, &params, out, err);
}

pith_prompt *session_prompt(const pith_model *model, const struct chat_options *o,
                            const pith_message *messages, int32_t n)
{
    pith_error err;
    pith_prompt *prompt = NULL;
    cli_check(make_prompt(model, o, messages, n, &prompt, &err), &err);
    return prompt;
}

bool session_try_messages(const pith_model *model, const struct chat_options *o,
                          const pith_message *messages, int32_t n, pith_error *err)
{
    pith_prompt *prompt = NULL;
    pith_status status = make_prompt(model, o, messages, n, &prompt, err);
    pith_prompt_free(prompt);
    return status == PITH_OK;
}

struct cli_ids session_prompt_ids(const pith_model *model, const pith_prompt *prompt, bool bos)
{
    pith_error err;
    uint32_t flags = PITH_TOKENIZE_SPECIAL | (bos ? PITH_TOKENIZE_BOS : 0);
    struct cli_ids ids = {0};
    pith_status status = pith_prompt_tokenize(model, prompt, flags, NULL, 0, &ids.n, &err);
    if (status != PITH_RANGE)
        cli_check(status, &err);
    ids.data = cli_alloc((size_t)ids.n + 1, sizeof(int32_t));
    cli_check(pith_prompt_tokenize(model, prompt, flags, ids.data, ids.n, &ids.n, &err), &err);
    return ids;
}

/* ---- templates ---- */

/* The names of the templates as "a, b, c" into buf. */
static void list_templates(char *buf, size_t cap)
{
    size_t len = 0;
    buf[0] = '\0';
    for (int32_t i = 0; pith_chat_template_name(i) != NULL && len + 1 < cap; i++)
        len += (size_t)snprintf(buf + len, cap - len, "%s%s", i > 0 ? ", " : "",
                                pith_chat_template_name(i));
}

/* A template that refuses this conversation may be made for others. */
void session_try_template(const pith_model *model, const char *option, const char *text)
{
    pith_error err;
    pith_prompt *prompt = NULL;
    const pith_message hello = {"user", "Hello"};
    const struct chat_options chat = {.template_text = text};
    pith_status status = make_prompt(model, &chat, &hello, 1, &prompt, &err);
    pith_prompt_free(prompt);
    if (status == PITH_INVALID)
        cli_note("%s: a message alone is refused: %s", option, err.message);
    else if (status != PITH_OK)
        cli_fail("%s: %s", option, err.message);
}

void session_check_template(const pith_model *model, const struct chat_options *o)
{
    char names[512];
    list_templates(names, sizeof(names));
    if (o->template_name != NULL && o->template_file != NULL)
        cli_fail_usage("--chat-template and --chat-template-file are given, both");
    if (o->template_name == NULL) {
        if (pith_chat_template(model) == NULL && o->template_file == NULL)
            cli_fail("the model has no chat template: name one with --chat-template (%s)", names);
        if (o->template_text != NULL)
            session_try_template(model, "--chat-template-file", o->template_text);
        return;
    }
    for (int32_t i = 0; pith_chat_template_name(i) != NULL; i++)
        if (strcmp(pith_chat_template_name(i), o->template_name) == 0)
            return;
    cli_fail_usage("--chat-template: \"%s\" is not one of %s", o->template_name, names);
}
