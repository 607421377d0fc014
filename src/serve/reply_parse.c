/*
 * reply_parse.c - an answer's text as events. All of it is content.
 */
#include "serve/reply_parse.h"

#include <stdlib.h>

struct reply_parse {
    reply_event_fn *fn;
    void *user;
};

struct reply_parse *reply_parse_create(const struct serve_request *r, const char *id,
                                       reply_event_fn *fn, void *user)
{
    struct reply_parse *p = calloc(1, sizeof(*p));
    (void)r;
    (void)id;
    if (p != NULL)
        *p = (struct reply_parse){fn, user};
    return p;
}

void reply_parse_free(struct reply_parse *p)
{
    free(p);
}

bool reply_parse_feed(struct reply_parse *p, const char *text, size_t len)
{
    const struct reply_event event = {.type = REPLY_EVENT_CONTENT, .text = text, .len = len};
    p->fn(p->user, &event);
    return true;
}

bool reply_parse_finish(struct reply_parse *p, bool cut)
{
    (void)p;
    (void)cut;
    return true;
}
