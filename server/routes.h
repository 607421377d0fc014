/*
 * routes.h - the table of the server's routes. A route names the thread that answers it. The HTTP
 * thread answers with facts that are there already, a worker does work that takes time, and the
 * model thread touches the engine.
 */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include "exchange.h"

enum route_thread {
    ROUTE_HTTP,
    ROUTE_WORKER, /* counts as work that a drain waits for */
    ROUTE_MODEL,
};

enum route_access {
    ROUTE_KEYED,   /* with a key, where keys are asked for */
    ROUTE_OPEN,    /* without a key */
    ROUTE_PRIVATE, /* shows what others wrote: with a key, or without keys to this machine alone */
};

struct route {
    const char *method;
    const char *path; /* "{id}" is a slot's number, "*" the rest */
    void (*answer)(struct exchange *ex);
    enum route_thread thread;
    enum route_access access;
    enum serve_api api;
};

/* The route of a request; HEAD is as GET. NULL: *allow (constant) lists the methods of the path, or
   is NULL where there is no such path. *slot: the number in the path. */
const struct route *route_find(const char *method, const char *path, int32_t *slot,
                               const char **allow);

/* ---- the answers ---- */

void answer_request(struct exchange *ex);  /* answer.c */
void answer_count(struct exchange *ex);    /* likewise: count_tokens */
void answer_render(struct exchange *ex);   /* likewise: the prompt's tokens */
void answer_template(struct exchange *ex); /* likewise: apply-template */
void tokens_encode(struct exchange *ex);   /* tokens.c */
void tokens_decode(struct exchange *ex);
void about_health(struct exchange *ex); /* about.c */
void about_alive(struct exchange *ex);  /* likewise: the thread that has the model moves */
void about_models(struct exchange *ex);
void about_model(struct exchange *ex);
void about_props(struct exchange *ex);
void about_page(struct exchange *ex);
void about_absent(struct exchange *ex);   /* what is not offered */
void metrics_answer(struct exchange *ex); /* metrics.c */
void slots_list(struct exchange *ex);     /* slots.c */
void slots_act(struct exchange *ex);
void view_now(struct exchange *ex); /* view.c */
void view_events(struct exchange *ex);
void view_cancel(struct exchange *ex);
void view_follow(struct exchange *ex);

/* "generating" and the like, a constant string: slots.c. */
const char *slots_state_name(pith_item_state state);

#endif
