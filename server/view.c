/*
 * view.c - /kv and /kv/events: what the cache holds, once and as it changes. The model thread makes
 * the documents between steps, at most five a second, and waits for no reader. exchange.c drops one
 * that is behind.
 *
 * Viewers that name a conversation (X-Session-ID) share a view that follows its last request.
 *
 * Invariant: a view gathers while there are viewers of it, and only then.
 */
#include "view.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

#include "routes.h"
#include "serve/view/view.h"
#include "state.h"

#define EVERY_S 0.2
#define PING_S 15.0
#define VIEWERS_MAX 16

struct viewer {
    struct viewer *next;
    struct exchange *ex; /* a reference */
    double sent;         /* when it was told something */
};

/* The stream that the viewers of one conversation read. */
struct watch {
    struct watch *next;
    uint64_t session;        /* 0: none, so it follows any */
    struct serve_view *view; /* owned */
    struct viewer *viewers;  /* owned; at least one between ticks */
};

/* ---- views ---- */

struct items {
    struct serve_view_item *item; /* [n], owned */
    int32_t n, cap;
};

static bool add_item(void *user, const pith_scheduler_item *from)
{
    struct items *items = user;
    if (items->n == items->cap) {
        int32_t cap = 2 * items->cap + 16;
        struct serve_view_item *more = realloc(items->item, (size_t)cap * sizeof(*more));
        if (more == NULL)
            return false; /* the rest is not shown */
        items->item = more;
        items->cap = cap;
    }
    items->item[items->n++] = (struct serve_view_item){
        .id = from->id,
        .answer = from->answer,
        .slot = from->slot,
        .state = slots_state_name(from->state),
        .n_prompt = from->n_prompt,
        .n_done = from->n_done,
        .n_generated = from->n_generated,
        .n_cached = from->n_cached,
        .held_bytes = from->held_bytes,
        .aside_bytes = from->aside_bytes,
        .full_bytes = from->full_bytes,
        .seq = from->seq,
    };
    return true;
}

/* The caller frees items->item. */
static struct serve_view_source look(struct server *s, struct items *items)
{
    const pith_draft_params *drafts = s->config.schedule.draft;
    struct serve_view_source source = {.engine = s->config.engine,
                                       .draft_engine = drafts != NULL ? drafts->engine : NULL,
                                       .now_s = server_now()};
    *items = (struct items){.n = 0};
    pith_scheduler_get_stats(s->scheduler, &source.stats);
    pith_scheduler_each(s->scheduler, add_item, items);
    source.items = items->item;
    source.n_item = items->n;
    return source;
}

typedef pith_status document_fn(struct serve_view *view, const struct serve_view_source *source,
                                char **json, size_t *len);

/* A document, freed by serve_view_text_free; NULL: no memory. */
static char *document(struct server *s, struct serve_view *view, document_fn *make, size_t *len)
{
    struct items items;
    struct serve_view_source source = look(s, &items);
    char *json = NULL;
    if (make(view, &source, &json, len) != PITH_OK)
        json = NULL;
    free(items.item);
    return json;
}

void view_now(struct exchange *ex)
{
    size_t len = 0;
    char *json = document(ex->server, ex->server->view, serve_view_snapshot, &len);
    if (json != NULL && exchange_send(ex, json, len))
        exchange_end(ex, MHD_HTTP_OK);
    else
        exchange_abort(ex);
    serve_view_text_free(json);
}

/* ---- events ---- */

static bool send_event(struct viewer *v, const char *json, size_t len)
{
    v->sent = server_now();
    return json != NULL && exchange_send(v->ex, "data: ", 6) && exchange_send(v->ex, json, len) &&
           exchange_send(v->ex, "\n\n", 2);
}

static struct viewer *viewer_free(struct viewer *v)
{
    struct viewer *next = v->next;
    exchange_end(v->ex, MHD_HTTP_OK);
    exchange_release(v->ex);
    free(v);
    return next;
}

static struct watch *watch_free(struct watch *w)
{
    struct watch *next = w->next;
    while (w->viewers != NULL)
        w->viewers = viewer_free(w->viewers);
    serve_view_free(w->view);
    free(w);
    return next;
}

static int count_viewers(const struct server *s)
{
    int n = 0;
    for (const struct watch *w = s->watches; w != NULL; w = w->next)
        for (const struct viewer *v = w->viewers; v != NULL; v = v->next)
            n++;
    return n;
}

static struct watch *find_watch(const struct server *s, uint64_t session)
{
    struct watch *w = s->watches;
    while (w != NULL && w->session != session)
        w = w->next;
    return w;
}

static struct session_note *find_note(struct server *s, uint64_t session)
{
    for (int i = 0; i < SESSION_NOTES && session != 0; i++)
        if (s->note[i].session == session)
            return &s->note[i];
    return NULL;
}

/* The watch of a conversation, which may be new; NULL: no memory. */
static struct watch *open_watch(struct server *s, uint64_t session)
{
    struct watch *w = find_watch(s, session);
    if (w != NULL)
        return w;
    w = calloc(1, sizeof(*w));
    if (w == NULL || server_make_view(s, &w->view, NULL) != PITH_OK) {
        free(w);
        return NULL;
    }
    w->session = session;
    const struct session_note *note = find_note(s, session);
    if (note != NULL)
        serve_view_follow_only(w->view, note->id);
    serve_view_watch(w->view, true);
    w->next = s->watches;
    s->watches = w;
    return w;
}

void view_events(struct exchange *ex)
{
    struct server *s = ex->server;
    if (count_viewers(s) >= VIEWERS_MAX) {
        exchange_refuse_with(ex, MHD_HTTP_TOO_MANY_REQUESTS, "rate_limit_error", NULL,
                             "%d watch the cache already, which is the most", count_viewers(s));
        return;
    }
    struct viewer *v = calloc(1, sizeof(*v));
    struct watch *w = v != NULL ? open_watch(s, ex->session) : NULL;
    size_t len = 0;
    if (w == NULL) {
        free(v);
        exchange_abort(ex);
        return;
    }
    exchange_open_events(ex, NULL);
    exchange_hold(ex);
    v->ex = ex;
    v->next = w->viewers;
    w->viewers = v;
    char *json = document(s, w->view, serve_view_snapshot, &len);
    if (!send_event(v, json, len))
        exchange_abort(ex);
    serve_view_text_free(json);
}

/* Tells all viewers of a watch, NULL: only that the server is there, and drops viewers that do not
   listen any more. */
static void tell_all(struct watch *w, const char *json, size_t len)
{
    double now = server_now();
    for (struct viewer **at = &w->viewers; *at != NULL;) {
        struct viewer *v = *at;
        bool ok = !exchange_is_gone(v->ex);
        if (ok && json != NULL) {
            ok = send_event(v, json, len);
        } else if (ok && now - v->sent > PING_S) {
            ok = exchange_send(v->ex, ":\n\n", 3);
            v->sent = now;
        }
        if (ok)
            at = &v->next;
        else
            *at = viewer_free(v);
    }
}

void view_tick(struct server *s, bool idle)
{
    double now = server_now();
    if (s->watches == NULL)
        return;
    struct items items;
    struct serve_view_source source = look(s, &items);
    for (struct watch *w = s->watches; w != NULL; w = w->next)
        serve_view_step(w->view, &source);
    free(items.item);
    /* The document of an idle server stays true. */
    bool due = now - s->viewed >= EVERY_S && !(idle && s->view_idle);
    if (due) {
        s->viewed = now;
        s->view_idle = idle;
    }
    for (struct watch **at = &s->watches; *at != NULL;) {
        struct watch *w = *at;
        size_t len = 0;
        char *json = due ? document(s, w->view, serve_view_delta, &len) : NULL;
        tell_all(w, json, len);
        serve_view_text_free(json);
        if (w->viewers != NULL)
            at = &w->next;
        else
            *at = watch_free(w);
    }
}

void view_close(struct server *s)
{
    while (s->watches != NULL)
        s->watches = watch_free(s->watches);
}

void view_note(struct server *s, uint64_t session, int64_t id)
{
    struct session_note *note = find_note(s, session);
    struct watch *w = find_watch(s, session);
    if (session == 0)
        return;
    if (note == NULL) {
        note = &s->note[s->n_note++ % SESSION_NOTES];
        note->session = session;
    }
    note->id = id;
    if (w != NULL)
        serve_view_follow_only(w->view, id);
}

/* ---- requests of viewers ---- */

void view_cancel(struct exchange *ex)
{
    if (ex->query_id < 0)
        exchange_refuse_with(ex, MHD_HTTP_BAD_REQUEST, "invalid_request_error", "id",
                             "id: the query must have the number of a request, as ?id=1");
    else if (pith_scheduler_cancel(ex->server->scheduler, ex->query_id) != PITH_OK)
        exchange_refuse_with(ex, MHD_HTTP_NOT_FOUND, "not_found_error", "id",
                             "id: no request %lld runs or waits", (long long)ex->query_id);
    else
        exchange_json(ex, MHD_HTTP_OK, json_pack("{s:I}", "id", (json_int_t)ex->query_id));
}

void view_follow(struct exchange *ex)
{
    struct watch *w = find_watch(ex->server, ex->session);
    if (w != NULL)
        serve_view_follow(w->view, ex->query_id, ex->query_answer);
    if (ex->session == 0)
        serve_view_follow(ex->server->view, ex->query_id, ex->query_answer);
    ex->server->view_idle = false;
    exchange_json(ex, MHD_HTTP_OK, json_pack("{s:I}", "id", (json_int_t)ex->query_id));
}
