/*
 * reply_parse.h - the joint between a reply and what tells content, reasoning and calls of tools
 * apart: text goes in, events come out.
 */
#ifndef PI_SERVE_REPLY_PARSE_H
#define PI_SERVE_REPLY_PARSE_H

#include "serve/api/request_body.h"

enum reply_event_type {
    REPLY_EVENT_CONTENT,    /* text */
    REPLY_EVENT_REASONING,  /* text */
    REPLY_EVENT_CALL_START, /* index, id, name */
    REPLY_EVENT_CALL_ARGS,  /* index, text */
    REPLY_EVENT_CALL_END,   /* index */
};

struct reply_event {
    enum reply_event_type type;
    int32_t index;
    const char *id, *name; /* terminated */
    const char *text;      /* [len] */
    size_t len;
    bool cut; /* CALL_END: its arguments are not all there */
};

typedef void reply_event_fn(void *user, const struct reply_event *event);

struct reply_parse;

/* NULL: no memory. */
struct reply_parse *reply_parse_create(const struct serve_request *r, const char *id,
                                       reply_event_fn *fn, void *user);
void reply_parse_free(struct reply_parse *p);
bool reply_parse_feed(struct reply_parse *p, const char *text, size_t len); /* false: no memory */
bool reply_parse_in_call(const struct reply_parse *p);
bool reply_parse_finish(struct reply_parse *p, bool cut);

#endif
