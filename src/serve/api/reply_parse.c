/*
 * reply_parse.c - an answer's text as events: the parser of the model's style, and its events by
 * the names that replies have for them.
 */
#include "serve/api/reply_parse.h"

#include <stdlib.h>
#include <string.h>

struct reply_parse {
    struct serve_tools *tools;
    reply_event_fn *fn;
    void *user;
};

static void on_event(void *user, const struct serve_tools_event *e)
{
    static const enum reply_event_type types[] = {
        [SERVE_TOOLS_CONTENT] = REPLY_EVENT_CONTENT,
        [SERVE_TOOLS_REASONING] = REPLY_EVENT_REASONING,
        [SERVE_TOOLS_CALL_START] = REPLY_EVENT_CALL_START,
        [SERVE_TOOLS_CALL_ARGS] = REPLY_EVENT_CALL_ARGS,
        [SERVE_TOOLS_CALL_END] = REPLY_EVENT_CALL_END,
    };
    const struct reply_parse *p = user;
    const struct reply_event event = {.type = types[e->type],
                                      .index = e->index,
                                      .id = e->id,
                                      .name = e->name,
                                      .text = e->text,
                                      .len = e->len,
                                      .cut = e->type == SERVE_TOOLS_CALL_END && !e->complete};
    p->fn(p->user, &event);
}

/* Whether the answer begins within reasoning; not where the client began the answer itself. */
static bool thinks(const struct serve_request *r)
{
    size_t len = 0;
    const char *text = serve_request_text(r, &len);
    return text != NULL && serve_tools_prompt_thinks(&r->calls.style, text, len);
}

/* Whether a grammar makes the calls, from their first byte to the last. */
static bool holds_calls(const struct serve_request *r)
{
    return r->format.grammar != NULL &&
           (r->calls.strict || (r->calls.choice == SERVE_CHOICE_REQUIRED &&
                                strcmp(r->format.field, "tool_choice") == 0));
}

struct reply_parse *reply_parse_create(const struct serve_request *r, const char *id,
                                       reply_event_fn *fn, void *user)
{
    pith_error err;
    struct reply_parse *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return NULL;
    *p = (struct reply_parse){.fn = fn, .user = user};
    const struct serve_tools_options options = {
        .tools = r->calls.tools,
        .thinking = thinks(r),
        .reasoning_is_text = r->reply.keeps_reasoning,
        .constrained = r->calls.strict,
        .sure = holds_calls(r),
        .whole = r->calls.or_answer,
        .no_alone = r->calls.no_alone,
        .one_call = r->calls.one,
        .request_id = id,
        .on_event = on_event,
        .user = p,
    };
    if (serve_tools_create(&r->calls.style, &options, &p->tools, &err) != PITH_OK) {
        free(p);
        return NULL;
    }
    return p;
}

void reply_parse_free(struct reply_parse *p)
{
    if (p == NULL)
        return;
    serve_tools_free(p->tools);
    free(p);
}

bool reply_parse_feed(struct reply_parse *p, const char *text, size_t len)
{
    pith_error err;
    return serve_tools_feed(p->tools, text, len, &err) == PITH_OK;
}

bool reply_parse_in_call(const struct reply_parse *p)
{
    return serve_tools_in_call(p->tools);
}

bool reply_parse_finish(struct reply_parse *p, bool cut)
{
    pith_error err;
    return serve_tools_finish(p->tools, cut, &err) == PITH_OK;
}
