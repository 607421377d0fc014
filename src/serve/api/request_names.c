/*
 * request_names.c - what fields of a chat are called in the other APIs. Their bodies are read as
 * one of OpenAI's, so a refusal names its fields; a client knows those that it sent.
 */
#include "serve/api/request_body.h"

#include <stdio.h>
#include <string.h>

/* Of several that fit the first counts. */
static const struct name {
    enum serve_api api;
    const char *chat, *own;
} names[] = {
    {SERVE_MESSAGES, "stop", "stop_sequences"},
    {SERVE_MESSAGES, "continue_final_message", "messages"},
    {SERVE_MESSAGES, "reasoning_effort", "output_config.effort"},
    {SERVE_MESSAGES, "response_format.json_schema", "output_config.format"},
    {SERVE_MESSAGES, "response_format", "output_config.format"},
    {SERVE_RESPONSES, "messages", "input"},
    {SERVE_RESPONSES, "reasoning_effort", "reasoning.effort"},
    {SERVE_RESPONSES, "response_format.json_schema", "text.format"},
    {SERVE_RESPONSES, "response_format", "text.format"},
};

/* Parts of a tool, behind its index. */
static const struct name parts[] = {
    {SERVE_MESSAGES, "].function.parameters", "].input_schema"},
    {SERVE_MESSAGES, "].function", "]"},
    {SERVE_RESPONSES, "].function", "]"},
    {SERVE_RESPONSES, "].custom.format.grammar", "].format"},
    {SERVE_RESPONSES, "].custom", "]"},
};

static void replace(struct serve_fault *fault, size_t at, const struct name *n)
{
    char message[sizeof(fault->message)];
    snprintf(message, sizeof(message), "%.*s%s%s", (int)at, fault->message, n->own,
             fault->message + at + strlen(n->chat));
    memcpy(fault->message, message, sizeof(message));
}

void request_rename_fault(struct serve_fault *fault, enum serve_api api)
{
    const char *message = fault->message;
    api = api == SERVE_COUNT ? SERVE_MESSAGES : api;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t len = strlen(names[i].chat);
        if (names[i].api != api || strncmp(message, names[i].chat, len) != 0 ||
            (message[len] != ':' && message[len] != '.'))
            continue;
        replace(fault, 0, &names[i]);
        fault->param = names[i].own;
        return;
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        size_t at = strcspn(message, "]");
        if (parts[i].api != api || strncmp(message, "tools[", strlen("tools[")) != 0 ||
            strncmp(message + at, parts[i].chat, strlen(parts[i].chat)) != 0)
            continue;
        replace(fault, at, &parts[i]);
        return;
    }
}
