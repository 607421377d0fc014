/*
 * request_format.c - what an answer must look like: response_format, json_schema, grammar, and a
 * choice of tools that requires a call. What cannot be promised is refused, never answered
 * unconstrained.
 */
#include "serve/request_body.h"

void request_read_format(struct serve_reader *rd, const json_t *body)
{
    char buf[SERVE_SHOW];
    static const char *const keys[] = {"grammar", "json_schema"};
    const json_t *format = request_get(body, "response_format");
    const json_t *type = request_get(format, "type");
    if (format != NULL && !json_is_object(format))
        request_wrong_type(rd, "response_format", format, "an object");
    else if (type != NULL && !request_is(type, "text"))
        SERVE_FAULT(rd, "response_format", "response_format.type: %s is not \"text\"",
                    serve_show(type, buf));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *value = request_get(body, keys[i]);
        if (value != NULL && !(json_is_string(value) && json_string_length(value) == 0))
            SERVE_FAULT(rd, keys[i], "%s: %s is not supported", keys[i], serve_show(value, buf));
    }
    if (rd->r->tools != NULL && rd->r->tool_choice == SERVE_CHOICE_REQUIRED)
        SERVE_FAULT(rd, "tool_choice", "tool_choice: a call cannot be promised");
}
