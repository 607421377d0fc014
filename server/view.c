/*
 * view.c - /kv and /kv/events: what the cache holds, once and as it changes. The model thread makes
 * the events between steps, at most five a second, and waits for no reader: one who is behind is
 * dropped by exchange.c.
 */
#include "view.h"

#include <jansson.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

#include "routes.h"
#include "state.h"

#define EVERY_S 0.2
#define PING_S 15.0
#define VIEWERS_MAX 16

struct viewer {
    struct viewer *next;
    struct exchange *ex; /* a reference */
    double sent;         /* when; 0: never */
};

/* What there is, as JSON; false: no memory. */
static bool describe(struct server *s, struct serve_bytes *out)
{
    pith_kv_stats kv;
    pith_scheduler_stats run;
    pith_engine_kv_stats(s->config.engine, &kv);
    pith_scheduler_get_stats(s->scheduler, &run);
    json_t *o = json_pack(
        "{s:{s:I, s:I, s:I, s:I, s:I}, s:i, s:i}", "kv", "reserved_bytes",
        (json_int_t)kv.reserved_bytes, "used_bytes", (json_int_t)kv.used_bytes, "peak_bytes",
        (json_int_t)kv.peak_bytes, "live_bytes", (json_int_t)kv.live_bytes, "shared_bytes",
        (json_int_t)kv.shared_bytes, "running", run.n_running, "waiting", run.n_waiting);
    char *text = o != NULL ? json_dumps(o, JSON_COMPACT) : NULL;
    bool ok = text != NULL && serve_bytes_add(out, text, strlen(text));
    free(text);
    json_decref(o);
    return ok;
}

void view_now(struct exchange *ex)
{
    struct serve_bytes text = {0};
    if (describe(ex->server, &text) && exchange_send(ex, text.data, text.len))
        exchange_end(ex, MHD_HTTP_OK);
    else
        exchange_abort(ex);
    serve_bytes_free(&text);
}

/* ---- events ---- */

static bool tell(struct viewer *v, const struct serve_bytes *text)
{
    return exchange_send(v->ex, "data: ", 6) && exchange_send(v->ex, text->data, text->len) &&
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

void view_events(struct exchange *ex)
{
    struct server *s = ex->server;
    struct viewer *v = calloc(1, sizeof(*v));
    int n = 0;
    for (const struct viewer *other = s->viewers; other != NULL; other = other->next)
        n++;
    if (v == NULL || n >= VIEWERS_MAX) {
        free(v);
        exchange_refuse_with(ex, MHD_HTTP_TOO_MANY_REQUESTS, "rate_limit_error", NULL,
                             "%d watch the cache already, which is the most", n);
        return;
    }
    exchange_open_events(ex);
    exchange_hold(ex);
    v->ex = ex;
    v->next = s->viewers;
    s->viewers = v;
}

void view_tick(struct server *s)
{
    struct serve_bytes text = {0};
    double now = server_now();
    if (s->viewers == NULL || now - s->viewed < EVERY_S)
        return;
    s->viewed = now;
    bool made = describe(s, &text);
    bool same = made && text.len == s->view.len && memcmp(text.data, s->view.data, text.len) == 0;
    for (struct viewer **at = &s->viewers; *at != NULL;) {
        struct viewer *v = *at;
        bool ok = true;
        if (made && (!same || v->sent == 0.0)) {
            ok = tell(v, &text);
            v->sent = now;
        } else if (now - v->sent > PING_S) {
            ok = exchange_send(v->ex, ":\n\n", 3);
            v->sent = now;
        }
        if (ok && !exchange_is_gone(v->ex))
            at = &v->next;
        else
            *at = viewer_free(v);
    }
    serve_bytes_free(&s->view);
    s->view = text;
}

void view_close(struct server *s)
{
    while (s->viewers != NULL)
        s->viewers = viewer_free(s->viewers);
    serve_bytes_free(&s->view);
}
